"""The service ends, by force or in order, while requests are held and answers stream: no client notices."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable
from itertools import combinations

import pytest
import pytest_asyncio
import yaml
from rig import DEADLINE_S, Answer, Json, Rig, chat, log_of, running, until

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import answers
from extproc.cli.stack import FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

STREAMS, HELD, TENANTS = 5, 100, 4
LONG, SHORT = 300, 4  # tokens of a streamed answer, and of a held request's
DOWN_S = 2.0


@pytest_asyncio.fixture(loop_scope="session")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    """Five requests may be inside. The engine has room for five more, so that after a restart the held ones need not
    wait for the five that stream. A stream takes 12 s at least: longer than a restart."""
    args = ("--max-num-seqs", str(2 * STREAMS), "--step-base-ms", "40", "--step-per-seq-ms", "0")
    config = {"classes": {"default": {"max_in_flight": STREAMS}}}
    pool = {"window": {"start": STREAMS}}
    async with running(
        tmp_path_factory.mktemp("stack"), engine_args=args, config=config, pool=pool, debug=True, stop_timeout_s=60
    ) as rig:
        yield rig
        await rig.books_closed()


class Scene:
    """Five answers that stream and a hundred requests that are held; the order in which these came is known."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.received = [bytearray() for _ in range(STREAMS)]
        self.streams: list[asyncio.Task[None]] = []
        self.held: list[asyncio.Task[Answer]] = []

    async def set_up(self) -> None:
        async with self.rig.hung_engines():  # so that the answers' time begins when all is set up
            self.streams = [asyncio.create_task(self._read(i)) for i in range(STREAMS)]
            await self.rig.until_inside(STREAMS)
            for number in range(HELD):
                headers = {"x-number": str(number)}
                self.held.append(self.rig.start(chat(SHORT), tenant=f"tenant-{number % TENANTS}", headers=headers))
                await self.rig.until_held(number + 1)
        await until(self.progress, lambda sizes: min(sizes) > 0, "all stream")

    async def progress(self) -> list[int]:
        """Bytes of each stream so far."""
        return [len(received) for received in self.received]

    async def _read(self, number: int) -> None:
        async with self.rig.stream(LONG, tenant="streams") as answer:
            async for piece in answer.content.iter_any():
                self.received[number] += piece

    async def move_on(self) -> None:
        """Wait until each stream has got more than it has now."""
        before = await self.progress()
        await until(
            self.progress, lambda sizes: all(b < now for b, now in zip(before, sizes, strict=True)), "all go on"
        )

    async def assert_all_succeed(self) -> None:
        assert [answer.status for answer in await asyncio.gather(*self.held)] == [200] * HELD
        for task in self.held:
            assert task.result().json["usage"]["completion_tokens"] == SHORT
        await asyncio.gather(*self.streams)
        for received in self.received:
            assert received.endswith(b"data: [DONE]\n\n")
            assert received.count(b'"content":" ') == LONG
            assert received.count(b"data: ") == LONG + 2  # the opening one, and the end
        assert len(set(map(_words, self.received))) == 1  # one prompt, one text
        seen = [e["headers"]["x-number"] for e in await self.rig.seen() if "x-number" in e["headers"]]
        assert sorted(seen, key=int) == [str(i) for i in range(HELD)]  # none came to the engine twice


def _words(stream: bytearray) -> bytes:
    return b"".join(part.split(b'"')[0] for part in stream.split(b'"content":"')[1:])


async def _assert_order(rig: Rig, log: list[Json]) -> None:
    """In the process that `log` is of, each tenant's requests went in the order of their first arrival, but for those
    that came back to it only after a later one had gone."""
    number = {e["headers"].get("x-fairlane-ticket"): e["headers"].get("x-number") for e in await rig.seen()}
    came: dict[int, int] = {}  # number of the request -> line of the log
    went: dict[int, int] = {}
    arrivals: dict[int, float] = {}
    for line, entry in enumerate(log):
        if entry["event"] not in ("held", "released") or number.get(entry["ticket"]) is None:
            continue
        which = int(number[entry["ticket"]])
        came.setdefault(which, line)  # one that need not wait has no line `held`
        if entry["event"] == "released":
            went[which] = line
        else:
            arrivals[which] = entry["arrival"]
    assert sorted(went) == list(range(HELD))
    for tenant in range(TENANTS):
        mine = [i for i in range(HELD) if i % TENANTS == tenant]
        wrong = [(i, j) for i, j in combinations(mine, 2) if came[i] < went[j] < went[i]]
        assert not wrong
    # Their places were restored, not given anew: what came back late carries its first arrival.
    ordered = [arrivals[i] for i in sorted(arrivals)]
    assert ordered == sorted(ordered)


async def test_killed_while_100_are_held_and_5_answers_stream(rig: Rig) -> None:
    scene = Scene(rig)
    await scene.set_up()
    await rig.stack.kill(FAIRLANE)
    lines_before = len(log_of(rig.stack.child(FAIRLANE)))
    await scene.move_on()
    await asyncio.sleep(DOWN_S)  # the scenario's pause, no synchronisation
    await rig.stack.start_child(FAIRLANE)
    await scene.move_on()
    assert not any(stream.done() for stream in scene.streams)  # else this scene would prove nothing
    await scene.assert_all_succeed()
    waited_ms = [int(task.result().headers["x-fairlane-queue-ms"]) for task in scene.held]
    assert min(waited_ms) > DOWN_S * 1000  # counted from the first arrival
    await _assert_order(rig, log_of(rig.stack.child(FAIRLANE))[lines_before:])
    assert await rig.metric("fairlane_access_log_entries_total", kind="other_process") == STREAMS


async def test_terminated_while_100_are_held_and_5_answers_stream(rig: Rig) -> None:
    """The next process listens as soon as the port is free, while the first one still waits for its five answers."""
    scene = Scene(rig)
    await scene.set_up()
    first = rig.stack.child(FAIRLANE)
    stopping = asyncio.create_task(first.stop(60))
    await until(lambda: _refused(rig.stack.addresses.ext_proc), bool, "the first one listens no more")
    successor, rig.service_at = _successor(rig)
    successor.start()
    try:
        await until(lambda: answers(rig.service_at, "/readyz"), bool, "the second one is ready", DEADLINE_S)
        await scene.move_on()
        assert not any(stream.done() for stream in scene.streams)
        assert first.running
        await scene.assert_all_succeed()
        assert await stopping  # in time, and not killed
        assert first.exit_code == 0
        await _assert_order(rig, log_of(successor))
        await rig.books_closed()
    finally:
        await successor.stop(30)
        await first.stop(60)
        rig.service_at = rig.stack.addresses.http
        await rig.stack.start_child(FAIRLANE)
    assert successor.exit_code == 0


def _successor(rig: Rig) -> tuple[Child, HostPort]:
    """Another process on the same ext_proc port. The other two ports are its own, since the first one keeps them."""
    config = yaml.safe_load((rig.stack.directory / "fairlane.yaml").read_text())
    admin, http = (HostPort("127.0.0.1", port) for port in free_ports(2))
    config["listen"].update(admin=str(admin), http=str(http))
    file = rig.stack.directory / "successor.yaml"
    file.write_text(yaml.safe_dump(config))
    first = rig.stack.child(FAIRLANE)
    argv = [str(file) if argument.endswith("fairlane.yaml") else argument for argument in first.argv]
    log = rig.stack.directory / "successor.log"
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    return Child("successor", argv, log=log, directory=rig.stack.directory, env=env), http


def _refused(at: HostPort) -> Awaitable[bool]:
    async def refused() -> bool:
        try:
            _, writer = await asyncio.open_connection(*at)
        except ConnectionRefusedError:
            return True
        writer.close()
        return False

    return refused()
