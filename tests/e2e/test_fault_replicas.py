"""Two replicas of the service: one or both die, freeze or are restarted while requests are held and answers stream; no
client notices.

The engine stands still while a scene waits for something to happen that takes its time: so no answer ends meanwhile, on
a slow machine either, and each still has to go on afterwards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from replicas import ROOMY, Replicas, Scene, assert_in_order, events, freeze, replicated, thaw
from rig import Rig, chat, log_of, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

EACH = 2  # requests that each replica lets in
HELD = 20
DOWN_S = 6.0
CLIENTS = 16  # of the rolling restart


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replicas]:
    args = ("--max-num-seqs", "32", "--step-base-ms", "20", "--step-per-seq-ms", "0")
    config = {"classes": {"default": {"max_in_flight": EACH}}}
    async with replicated(
        tmp_path_factory.mktemp("stack"), engine_args=args, config=config, pool=ROOMY, debug=True
    ) as replicas:
        yield replicas


@pytest_asyncio.fixture(loop_scope="session")
async def replicas(shared: Replicas) -> AsyncIterator[Replicas]:
    for name in shared.names:
        if not shared.child(name).running:
            await shared.rig.stack.start_child(name)
    await shared.until_envoy(healthy=2)
    yield shared
    for name in shared.names:
        thaw(shared.child(name))
    await shared.books_closed()


def scene_of(replicas: Replicas, name: str) -> Scene:
    return Scene(replicas.each.values(), name, inside=EACH * len(replicas.names), held=HELD)


async def test_one_is_killed(replicas: Replicas) -> None:
    """What it held goes to the other one, and there to the place that its first arrival gives it."""
    gone, other = replicas.names
    scene = scene_of(replicas, "one killed")
    await scene.set_up()
    lines = len(log_of(replicas.child(other)))
    await replicas.rig.stack.kill(gone)
    await scene.move_on()
    async with replicas.rig.hung_engines():
        await replicas.each[other].until_held(len(scene.held))
    await scene.move_on()
    await scene.assert_all_succeed()
    assert assert_in_order(log_of(replicas.child(other))[lines:]) > 0
    await replicas.rig.stack.start_child(gone)


async def test_all_are_killed_and_stay_away_for_six_seconds(replicas: Replicas) -> None:
    scene = scene_of(replicas, "all killed")
    await scene.set_up()
    for name in replicas.names:
        await replicas.rig.stack.kill(name)
    await scene.move_on()
    async with replicas.rig.hung_engines():
        await asyncio.sleep(DOWN_S)  # the scenario's pause, no synchronisation
        for name in replicas.names:
            await replicas.rig.stack.start_child(name)
        await until(scene.count, lambda count: count.total() == len(scene.held), "all have come back")
    await scene.move_on()
    await scene.assert_all_succeed()
    waited_ms = [int(task.result().headers["x-fairlane-queue-ms"]) for task in scene.held]
    assert min(waited_ms) > DOWN_S * 1000  # counted from the first arrival


async def test_one_freezes_and_comes_back(replicas: Replicas) -> None:
    frozen, other = replicas.names
    scene = scene_of(replicas, "frozen")
    await scene.set_up()
    freeze(replicas.child(frozen))
    await scene.move_on()
    async with replicas.rig.hung_engines():
        await replicas.each[other].until_held(len(scene.held))  # found by the connection's keepalive
        await replicas.until_envoy(healthy=1)  # found by the health check: it is given nothing new
    await scene.move_on()
    await scene.assert_all_succeed()
    released = await replicas.each[other].metric("fairlane_released_requests_total")
    answers = await asyncio.gather(*(replicas.rig.post(chat(), tenant="meanwhile") for _ in range(10)))
    assert Counter(answer.status for answer in answers) == {200: 10}
    assert await replicas.each[other].metric("fairlane_released_requests_total") == released + 10
    thaw(replicas.child(frozen))
    await replicas.until_envoy(healthy=2)
    await replicas.books_closed()
    await scene.assert_each_ran_once()  # what it still held, it let go


class Load:
    """Clients without end, every other one with a stream, until `ended` is set."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.sent = 0
        self.answered = 0
        self.ended = False

    async def client(self, number: int) -> None:
        while not self.ended:
            self.sent += 1
            headers = {"x-number": str(self.sent)}
            if number % 2:
                answer = await self.rig.post(chat(4), tenant="load", headers=headers)
                assert answer.status == 200, answer.body
            else:
                async with self.rig.stream(10, tenant="load", headers=headers) as stream:
                    body = await stream.read()
                assert body.endswith(b"data: [DONE]\n\n")
                assert body.count(b'"content":" ') == 10
            self.answered += 1

    async def more(self, count: int) -> None:
        wanted = self.answered + count

        async def answered() -> int:
            return self.answered

        await until(answered, lambda now: now >= wanted, f"{count} more answers")


async def test_rolling_restart_under_load(replicas: Replicas) -> None:
    """Each in turn is told to end, hands over what it holds, waits for its answers, ends, and comes back."""
    load = Load(replicas.rig)
    drained = {name: len(events(replicas.child(name), "draining")) for name in replicas.names}
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(load.client(number))
        for name in replicas.names:
            await load.more(CLIENTS)
            await replicas.each[name].until(
                lambda pool: pool["queued"] > 0 and pool["in_flight"] > 0, f"{name} is busy"
            )
            await replicas.rig.stack.stop_child(name)
            assert replicas.child(name).exit_code == 0
            await load.more(CLIENTS)
            await replicas.rig.stack.start_child(name)
            await replicas.until_envoy(healthy=2)
            await load.more(CLIENTS)
        load.ended = True
    numbers = Counter([entry["headers"]["x-number"] for entry in await replicas.rig.seen("load")])
    assert numbers == {str(i): 1 for i in range(1, load.sent + 1)}
    for name in replicas.names:
        (story,) = events(replicas.child(name), "draining")[drained[name] :]
        assert story["in_flight"] > 0
