"""The running pools by one configuration after another: who goes on, who begins and who ends. Their engines have a
metrics page and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from aiohttp import web

from extproc.config.load import ConfigError, from_data
from extproc.config.model import Config
from extproc.core.events import Arrive, Release
from extproc.edge.driver import Outcome
from extproc.edge.stream import ExternalProcessor
from extproc.edge.tracking import Tracking
from extproc.pools import Pools
from extproc.telemetry.metrics import Metrics

PAGE = 'vllm:num_requests_running{model_name="m"} 0\nvllm:num_requests_waiting{model_name="m"} 0\n'


ENGINES: list[str] = []  # where the two of the test that runs are


@pytest_asyncio.fixture(autouse=True)
async def engines() -> AsyncIterator[None]:
    async def page(_: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        for _ in range(2):
            await web.TCPSite(runner, "127.0.0.1", 0).start()
        ENGINES[:] = [f"{host}:{port}" for host, port in runner.addresses]
        yield
    finally:
        await runner.cleanup()


def a_pool(name: str = "sim", *, engine: int = 0, **settings: Any) -> dict[str, Any]:
    window = {"controller": "fixed", "fixed": 1, "overtake": 0}
    metrics = {"interval": "60s", "idle_interval": "60s"}
    return {
        "name": name,
        "models": [name],
        "endpoints": [ENGINES[engine]],
        "window": window,
        "metrics": metrics,
        **settings,
    }


def a_config(*pools: dict[str, Any], **settings: Any) -> Config:
    return from_data({"pools": list(pools) or [a_pool()], **settings})


class Case:
    def __init__(self, config: Config) -> None:
        self.metrics = Metrics("0")
        self.pools = Pools(config, self.metrics, "0")
        tracking = Tracking(self.pools.gate, self.metrics)
        self.pools.start(ExternalProcessor(self.pools.gate, tracking, self.metrics))
        self._count = 0

    async def change(self, config: Config) -> None:
        (await self.pools.prepare(config))()

    def arrive(self, pool: str = "sim", cls: str = "default") -> tuple[str, asyncio.Future[Outcome]]:
        self._count += 1
        driver = self.pools.named(pool).driver
        event = Arrive(f"r{self._count}", "team-a", cls, driver.now(), 10)
        return event.id, driver.arrive(event)

    @property
    def names(self) -> list[tuple[str, bool]]:
        return [(running.pool.name, running.retiring) for running in self.pools]


@contextlib.asynccontextmanager
async def at_work(*pools: dict[str, Any], **settings: Any) -> AsyncIterator[Case]:
    case = Case(a_config(*pools, **settings))
    try:
        yield case
    finally:
        await case.pools.stop()
        left = [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert left == []


async def until(wanted: Any) -> None:
    async with asyncio.timeout(10):
        while not wanted():  # noqa: ASYNC110 - the other side tells nobody
            await asyncio.sleep(0.001)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def read(file: Path) -> list[Any]:
    return [orjson.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


async def full(case: Case) -> tuple[str, asyncio.Future[Outcome]]:
    """One is inside, and a second one, which is returned, is held."""
    await until(lambda: case.pools.named("sim").driver.scheduler.windows)
    inside, released = case.arrive()
    await asyncio.wait_for(released, 10)
    _, held = case.arrive()
    assert not held.done()
    return inside, held


async def test_what_is_only_prepared_is_not_in_force() -> None:
    async with at_work() as case:
        before = case.pools.named("sim").driver.scheduler.policy
        await case.pools.prepare(a_config(a_pool(max_queued=7), a_pool("other", engine=1)))
        assert case.pools.named("sim").driver.scheduler.policy == before
        assert case.names == [("sim", False)]


async def test_a_change_reaches_what_waits() -> None:
    async with at_work() as case:
        _, held = await full(case)
        config = a_config(a_pool(window={"controller": "fixed", "fixed": 2, "overtake": 0}))
        await case.change(config)
        assert isinstance(held.result(), Release)
        assert case.pools.named("sim").driver.scheduler.policy == config.pool_policy(config.pools[0])
        assert case.pools.gate.rules.config is config


async def test_a_new_pool_takes_requests_at_once() -> None:
    async with at_work() as case:
        await case.change(a_config(a_pool(), a_pool("other", engine=1)))
        assert case.names == [("sim", False), ("other", False)]
        _, released = case.arrive("other")
        verdict = await asyncio.wait_for(released, 10)
        assert isinstance(verdict, Release)
        assert verdict.endpoint == ENGINES[1]


async def test_a_pool_that_is_gone_ends_when_what_it_has_is_done() -> None:
    async with at_work() as case:
        inside, held = await full(case)
        driver = case.pools.named("sim").driver
        await case.change(a_config(a_pool("other", engine=1)))
        assert case.names == [("other", False), ("sim", True)]
        driver.end(inside)
        verdict = await asyncio.wait_for(held, 10)
        assert isinstance(verdict, Release)  # it has its turn as if nothing had happened
        assert case.pools.gate.owner(f"{case.pools.gate._process}-sim-1") is driver  # its access log still finds it
        driver.end(verdict.id)
        await until(lambda: case.names == [("other", False)])


async def test_a_pool_that_comes_back_takes_up_where_it_was() -> None:
    async with at_work() as case:
        inside, held = await full(case)
        driver = case.pools.named("sim").driver
        await case.change(a_config(a_pool("other", engine=1)))
        await case.change(a_config(a_pool(max_queued=7)))
        assert case.names == [("sim", False)] or case.names == [("sim", False), ("other", True)]
        assert case.pools.named("sim").driver is driver
        driver.end(inside)
        assert isinstance(await asyncio.wait_for(held, 10), Release)
        driver.end(held.result().id)
        await until(lambda: case.names == [("sim", False)])


async def test_the_unit_cannot_change_while_requests_are_counted_in_it() -> None:
    async with at_work() as case:
        with pytest.raises(ConfigError) as error:
            await case.pools.prepare(a_config(a_pool(cost={"unit": "time"})))
        assert [fault.path for fault in error.value.faults] == ["pools.sim"]


async def test_a_bad_file_of_keys_stops_a_change_that_reads_it_and_no_other(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("{}")
    identity = {"tenant": [{"api_key": {"file": str(keys)}}]}
    async with at_work(identity=identity) as case:
        keys.write_text("- no mapping")
        await case.change(a_config(a_pool(max_queued=7), identity=identity))
        assert case.pools.named("sim").driver.scheduler.policy.max_queued == 7
        with pytest.raises(ConfigError, match="expected a mapping") as error:
            await case.pools.prepare(
                a_config(identity=identity, classes={"only": {"rank": 0, "priority": 0}}, default_class="only")
            )
        assert [fault.path for fault in error.value.faults] == ["identity"]


async def test_a_certificate_that_is_not_there_stops_the_change(tmp_path: Path) -> None:
    metrics = {"interval": "60s", "idle_interval": "60s", "token_file": str(tmp_path / "none")}
    async with at_work() as case:
        with pytest.raises(ConfigError, match="none") as error:
            await case.pools.prepare(a_config(a_pool(metrics=metrics)))
        assert [fault.path for fault in error.value.faults] == ["pools.sim.metrics"]


async def test_modes_come_and_go_with_their_observers() -> None:
    async with at_work() as case:
        running = case.pools.named("sim")
        assert running.driver.observer is None
        await case.change(a_config(a_pool(mode="observe")))
        assert running.driver.observer is not None
        await case.change(a_config(a_pool(mode="off")))
        assert running.driver.observer is None
        await case.change(a_config(a_pool(percentage=50)))
        assert running.driver.observer is not None


async def test_a_recording_begins_and_ends_while_it_runs(tmp_path: Path) -> None:
    file = tmp_path / "traffic.jsonl.gz"
    async with at_work() as case:
        inside, _ = await full(case)
        await case.change(a_config(recording={"file": str(file)}))
        assert case.pools.recording().files == (str(tmp_path / "traffic.sim.jsonl.gz"),)
        case.pools.named("sim").driver.end(inside)
        await case.change(a_config())
        assert not case.pools.recording().active
        await until(lambda: not case.pools._background)
        lines = read(tmp_path / "traffic.sim.jsonl.gz")
        assert lines[0]["part"] == 2  # it says itself that it begins in the middle
        assert lines[0]["endpoints"] == [ENGINES[0]]
        assert lines[1]["event"] == {"type": "end", "id": inside}


async def test_another_recording_to_the_same_file_waits_for_the_first(tmp_path: Path) -> None:
    file = str(tmp_path / "traffic.jsonl.gz")
    async with at_work(recording={"file": file}) as case:
        await until(lambda: case.pools.named("sim").driver.scheduler.windows)
        case.arrive()
        await case.change(a_config(recording={"file": file, "tenants": "hashed"}))
        await until(lambda: case.pools.recording().active)
        request, _ = case.arrive()
        await case.change(a_config())
        await until(lambda: not case.pools._background)
        lines = read(tmp_path / "traffic.sim.jsonl.gz")
        assert lines[0]["salt"] is not None
        assert [line["event"]["id"] for line in lines[1:] if line["event"]["type"] == "arrive"] == [request]
        assert (tmp_path / "traffic.sim.jsonl.gz.1").exists()


async def test_a_recording_where_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with at_work() as case:
        with pytest.raises(ConfigError, match="cannot be written") as error:
            await case.pools.prepare(a_config(recording={"file": str(tmp_path / "file" / "traffic.jsonl")}))
        assert [fault.path for fault in error.value.faults] == ["recording.file"]


async def test_what_is_only_prepared_leaves_nothing_behind(tmp_path: Path) -> None:
    """Whoever may only ask must not write, nor make threads and open files."""
    victim = tmp_path / "state.db"
    victim.write_text("precious")
    async with at_work() as case:
        threads = set(threading.enumerate())
        other = a_pool("db", engine=1)
        with pytest.raises(ConfigError, match="is no recording"):
            await case.pools.prepare(a_config(a_pool(), other, recording={"file": str(tmp_path / "state")}))
        await case.pools.prepare(a_config(a_pool(), other, recording={"file": str(tmp_path / "new" / "traffic")}))
        for _ in range(3):
            await case.pools.prepare(a_config(a_pool(), other))
        more = {thread.name for thread in set(threading.enumerate()) - threads}
        assert all(name.startswith("asyncio_") for name in more)  # of the pool that files are read in
    assert names_in(tmp_path) == ["state.db"]
    assert victim.read_text() == "precious"


async def test_a_check_reads_no_file(tmp_path: Path) -> None:
    async with at_work() as case:
        metrics = {"interval": "60s", "idle_interval": "60s", "token_file": str(tmp_path / "none")}
        case.pools.check(a_config(a_pool(metrics=metrics)))
        with pytest.raises(ConfigError):
            case.pools.check(a_config(a_pool(cost={"unit": "time"})))


async def test_a_recording_at_a_path_that_no_system_has(tmp_path: Path) -> None:
    async with at_work() as case:
        with pytest.raises(ConfigError, match="cannot be used") as error:
            await case.pools.prepare(a_config(recording={"file": str(tmp_path / ("x" * 300))}))
        assert [fault.path for fault in error.value.faults] == ["recording.file"]
    with pytest.raises(ConfigError, match="zero character"):
        a_config(recording={"file": "zero\0"})


async def test_a_pool_that_ends_between_asking_and_doing_begins_anew() -> None:
    async with at_work() as case:
        inside, held = await full(case)
        driver = case.pools.named("sim").driver
        await case.change(a_config(a_pool("other", engine=1)))
        commit = await case.pools.prepare(a_config(a_pool(max_queued=7)))
        driver.end(inside)
        driver.end((await asyncio.wait_for(held, 10)).id)  # type: ignore[union-attr]
        await until(lambda: case.names == [("other", False)])
        commit()
        assert case.pools.named("sim").driver is not driver
        _, released = case.arrive()
        assert isinstance(await asyncio.wait_for(released, 10), Release)


async def test_a_paused_pool_that_is_taken_away_lets_go_what_it_holds() -> None:
    async with at_work(a_pool(traffic="paused")) as case:
        await until(lambda: case.pools.named("sim").driver.scheduler.windows)
        request, held = case.arrive()
        driver = case.pools.named("sim").driver
        await case.change(a_config(a_pool("other", engine=1)))
        assert isinstance(await asyncio.wait_for(held, 10), Release)
        driver.end(request)
        await until(lambda: case.names == [("other", False)])


async def test_recordings_that_change_twice_while_one_is_closed(tmp_path: Path) -> None:
    file = str(tmp_path / "traffic.jsonl.gz")
    async with at_work(recording={"file": file}) as case:
        await until(lambda: case.pools.named("sim").driver.scheduler.windows)
        case.arrive()
        await case.change(a_config(recording={"file": file, "tenants": "hashed"}))
        await case.change(a_config(recording={"file": file, "keep": 9}))
        assert not case.pools.recording().active  # the first one is being closed
        await until(lambda: case.pools.recording().active)
        request, _ = case.arrive()
        await case.change(a_config())
        await until(lambda: not case.pools._background)
        lines = read(tmp_path / "traffic.sim.jsonl.gz")
        assert lines[0]["salt"] is None
        assert [line["event"]["id"] for line in lines[1:] if line["event"]["type"] == "arrive"] == [request]


async def test_a_pool_that_is_added_while_others_are_recorded_puts_no_foreign_file_aside(tmp_path: Path) -> None:
    (tmp_path / "traffic.db").write_text("precious")
    recording = {"file": str(tmp_path / "traffic"), "keep": 1}
    async with at_work(recording=recording) as case:
        with pytest.raises(ConfigError, match="is no recording"):
            await case.pools.prepare(a_config(a_pool(), a_pool("db", engine=1), recording=recording))


async def test_what_is_no_file_is_no_recording(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "traffic.sim")
    async with at_work() as case:
        with pytest.raises(ConfigError, match="is no recording"):
            await case.pools.prepare(a_config(recording={"file": str(tmp_path / "traffic")}))


async def test_a_pool_that_comes_back_is_recorded_as_well(tmp_path: Path) -> None:
    async with at_work() as case:
        inside, held = await full(case)
        driver = case.pools.named("sim").driver
        other = a_pool("other", engine=1)
        recording = {"file": str(tmp_path / "traffic.jsonl.gz")}
        await case.change(a_config(other))
        await case.change(a_config(other, recording=recording))
        await case.change(a_config(a_pool(), other, recording=recording))
        assert case.pools.named("sim").driver is driver
        assert len(case.pools.recording().files) == 2
        driver.end(inside)
        driver.end((await asyncio.wait_for(held, 10)).id)  # type: ignore[union-attr]
        await case.change(a_config(a_pool(), other))
        await until(lambda: not case.pools._background)
        assert [line["event"]["type"] for line in read(tmp_path / "traffic.sim.jsonl.gz")[1:]] == ["end", "end"]
