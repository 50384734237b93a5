"""A pool's engines as they come, go, change and hang. The engines are small HTTP servers that answer as real ones do
(a fake, but the HTTP and the pages are real); the set is told by the test."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.config.load import from_data
from extproc.config.scheduling import Pool
from extproc.core.events import Arrive, EndpointShare, Synced
from extproc.core.priority import PriorityWay
from extproc.core.windows import Stance
from extproc.edge.driver import PoolDriver
from extproc.edge.ways import Ways
from extproc.engines.endpoints.source import Endpoint, OnChange
from extproc.fleet import Fleet
from extproc.telemetry.metrics import Metrics

VLLM = """\
vllm:num_requests_running {running}
vllm:num_requests_waiting 0
vllm:generation_tokens_total {tokens}
vllm:prompt_tokens_total {tokens}
"""
SGLANG = "sglang:num_running_reqs {running}\nsglang:num_queue_reqs 0\n"
HEADER = PriorityWay(header=True)


class Engine:
    """`page` and `version` may be changed while it runs. `asked`: what it was asked to generate."""

    def __init__(self, page: str = VLLM, version: str | None = "0.32.0") -> None:
        self.page = page
        self.version = version
        self.running = 0
        self.tokens = 0
        self.asked: list[str] = []
        self.read = 0  # pages
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/metrics/", self._metrics)
        app.router.add_get("/version", self._version)
        app.router.add_get("/server_info", self._server_info)
        app.router.add_post("/v1/completions", self._completions)
        self.server = TestServer(app)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def _metrics(self, _: web.Request) -> web.Response:
        self.read += 1
        return web.Response(text=self.page.format(running=self.running, tokens=self.tokens))

    async def _version(self, _: web.Request) -> web.Response:
        if self.version is None:
            raise web.HTTPNotFound
        return web.json_response({"version": self.version})

    async def _server_info(self, _: web.Request) -> web.Response:
        if self.page is not SGLANG:
            raise web.HTTPNotFound
        return web.json_response({"version": "0.5.23", "enable_priority_scheduling": True})

    async def _completions(self, request: web.Request) -> web.Response:
        self.asked.append(await request.text())
        self.tokens += 1  # it goes on
        return web.json_response({"choices": []})


class Told:
    """An endpoint set that the test changes."""

    name = "told"
    last_error = None
    failures = 0
    last_success_at = 0.0

    def __init__(self) -> None:
        self._change: OnChange | None = None

    async def run(self, on_change: OnChange) -> None:
        self._change = on_change
        await asyncio.Event().wait()

    @property
    def running(self) -> bool:
        return self._change is not None

    def __call__(self, *endpoints: Endpoint) -> None:
        assert self._change is not None
        self._change(endpoints)


class Case:
    def __init__(self, cluster: dict[str, Any] | None = None, **pool: Any) -> None:
        given = {
            "name": "m",
            "models": ["m"],
            "endpoints": {"file": "unused"},
            "metrics": {"interval": "20ms", "idle_interval": "20ms"},
            "window": {"stalled_after": "200ms"},
        }
        config = from_data({"pools": [given | pool]} | ({} if cluster is None else {"cluster": cluster}))
        self.metrics = Metrics("0")
        self.ways = Ways.configured(config.pools[0])
        loop = asyncio.get_running_loop()
        self.driver = PoolDriver(config.pool_policy(config.pools[0]), [], loop, self.metrics)
        self.set = Told()
        self.fleet = Fleet(config.pools[0], self.driver, self.ways, self.metrics, self.set)

    def stance(self, engine: Engine) -> Stance | None:
        return self.driver.stance(engine.address)

    def window(self, engine: Engine) -> Any:
        return self.driver.scheduler.windows[engine.address]


@asynccontextmanager
async def running(*engines: Engine, **pool: Any) -> AsyncIterator[Case]:
    for engine in engines:
        await engine.server.start_server()
    case = Case(**pool)
    task = asyncio.create_task(case.fleet.run())
    try:
        await until(lambda: case.set.running)
        yield case
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        case.driver.close()
        for engine in engines:
            await engine.server.close()


async def until(wanted: Callable[[], object]) -> None:
    deadline = time.monotonic() + 20.0
    while not wanted():
        assert time.monotonic() < deadline, "not within 20 s"
        await asyncio.sleep(0.005)


async def test_endpoints_come_are_read_are_asked_what_they_are_and_go() -> None:
    engine = Engine()
    async with running(engine) as case:
        assert case.stance(engine) is None
        case.set(Endpoint(engine.address))
        await until(lambda: case.stance(engine) is Stance.FRESH)
        await until(lambda: case.ways.of(engine.address) == HEADER)
        (stats,) = case.fleet.scrape_stats()
        assert (stats.endpoint, stats.dialect, stats.way) == (engine.address, "vllm", HEADER)
        assert case.fleet.set_stats().endpoints == 1
        case.set()
        assert case.stance(engine) is None
        assert case.fleet.scrape_stats() == []


@pytest.mark.slow
async def test_where_other_replicas_read_its_page_too_each_reads_it_more_seldom() -> None:
    """200 ms and a tenth less, where it would be 20 ms."""
    engine = Engine()
    settings = {"interval": "20ms", "idle_interval": "200ms"}
    cluster = {"mode": "shared", "store": {"addresses": ["127.0.0.1:1"]}}
    async with running(engine, cluster=cluster, metrics=settings) as case:
        case.set(Endpoint(engine.address))
        case.driver.synced(Synced(64, math.inf, (EndpointShare(engine.address, 4.0, 0),)))
        waiter = case.driver.arrive(Arrive("r", "t", "default", case.driver.now(), 10))
        assert (await asyncio.wait_for(waiter, 20)).endpoint == engine.address  # type: ignore[union-attr]
        assert case.driver.busy_at(engine.address)
        assert case.window(engine).stretch == pytest.approx(10.0)
        before = engine.read + 1  # the one after a pause that began before
        await until(lambda: engine.read > before)
        began, before = time.monotonic(), engine.read
        await until(lambda: engine.read >= before + 4)
        assert time.monotonic() - began >= 2 * 0.18


async def test_a_request_waits_for_the_first_endpoint() -> None:
    engine = Engine()
    async with running(engine) as case:
        waiter = case.driver.arrive(Arrive("r", "t", "default", case.driver.now(), 10))
        assert not waiter.done()
        case.set(Endpoint(engine.address))
        assert (await asyncio.wait_for(waiter, 20)).endpoint == engine.address  # type: ignore[union-attr]


@pytest.mark.slow
async def test_after_an_empty_set_the_first_endpoint_waits_until_envoy_knows_it_too() -> None:
    """By DNS Envoy asks by itself: let go at once, the request would meet an empty cluster. It is read meanwhile."""
    engine = Engine()
    async with running(engine, endpoints={"dns": {"name": "engines", "port": 8000, "interval": "100ms"}}) as case:
        case.set()
        case.set(Endpoint(engine.address))
        assert case.stance(engine) is None
        began = time.monotonic()
        await until(lambda: case.fleet.scrape_stats()[0].scrapes > 1)
        assert case.stance(engine) is None
        await until(lambda: case.stance(engine) is Stance.FRESH)
        assert time.monotonic() - began >= 1.0


async def test_the_first_answer_and_those_beside_others_count_at_once() -> None:
    one, other = Engine(), Engine()
    async with running(one, other, endpoints={"dns": {"name": "engines", "port": 8000}}) as case:
        case.set(Endpoint(one.address))
        assert case.stance(one) is not None
        case.set(Endpoint(one.address), Endpoint(other.address))
        assert case.stance(other) is not None


async def test_each_engine_has_its_own_way() -> None:
    old, new = Engine(version="0.11.0"), Engine()
    async with running(old, new) as case:
        case.set(Endpoint(old.address), Endpoint(new.address))
        await until(lambda: case.ways.of(old.address) == PriorityWay())
        await until(lambda: case.ways.of(new.address) == HEADER)


async def test_another_identity_behind_the_same_address_begins_anew() -> None:
    engine = Engine()
    async with running(engine) as case:
        case.set(Endpoint(engine.address, "pod-1"))
        await until(lambda: case.stance(engine) is Stance.FRESH)
        first = case.window(engine)
        first.capacity = 99.0
        case.set(Endpoint(engine.address, "pod-2"))
        assert case.stance(engine) is Stance.STARTING
        await until(lambda: case.stance(engine) is Stance.FRESH)
        assert case.window(engine).capacity == 8.0


async def test_the_same_set_again_changes_nothing() -> None:
    engine = Engine()
    async with running(engine) as case:
        case.set(Endpoint(engine.address, "pod-1"))
        await until(lambda: case.stance(engine) is Stance.FRESH)
        window = case.window(engine)
        case.set(Endpoint(engine.address, "pod-1"))
        assert case.window(engine) is window
        assert case.stance(engine) is Stance.FRESH


async def test_another_engine_at_the_same_address_begins_anew_and_is_asked() -> None:
    engine = Engine()
    async with running(engine, priority_via="body") as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.stance(engine) is Stance.FRESH)
        case.window(engine).capacity = 99.0
        engine.page, engine.version = SGLANG, None
        await until(lambda: case.ways.of(engine.address) == PriorityWay(body=True, high_first=True))
        assert case.fleet.scrape_stats()[0].dialect == "sglang"
        assert case.window(engine).capacity == 8.0


@pytest.mark.slow
async def test_a_hanging_engine_is_asked_for_a_token_and_opened_by_its_page() -> None:
    engine = Engine()
    async with running(engine) as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.stance(engine) is Stance.FRESH)
        engine.running = 2
        await until(lambda: engine.asked)
        assert engine.asked == ['{"prompt": "a", "max_tokens": 1, "model": "m"}']
        await until(lambda: case.stance(engine) is Stance.FRESH)


@pytest.mark.slow
async def test_what_an_engine_does_wrong_faults_nothing() -> None:
    engine = Engine(page="<html>{running}{tokens}", version="no version")
    async with running(engine) as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.fleet.scrape_stats()[0].scrapes > 3)
        (stats,) = case.fleet.scrape_stats()
        assert sum(stats.failures.values()) >= 3
        assert (stats.last_failure or "").startswith("malformed: ")
        assert case.stance(engine) is Stance.OUTAGE


async def test_its_end_leaves_no_task() -> None:
    engine = Engine()
    async with running(engine) as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.stance(engine) is Stance.FRESH)
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not any(engine.address in name for name in names)


@pytest.mark.slow
async def test_from_zero_the_second_endpoint_waits_with_the_first() -> None:
    one, other = Engine(), Engine()
    async with running(one, other, endpoints={"dns": {"name": "engines", "port": 8000, "interval": "100ms"}}) as case:
        case.set()
        case.set(Endpoint(one.address))
        case.set(Endpoint(one.address), Endpoint(other.address))
        assert (case.stance(one), case.stance(other)) == (None, None)
        await until(lambda: case.stance(other) is not None)
        await until(lambda: case.stance(one) is not None)


@pytest.mark.slow
async def test_an_engine_that_comes_back_after_failures_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its address never refused a connection, since a proxy stands there."""
    monkeypatch.setattr("extproc.fleet._ASK_EACH_S", 0.0)
    engine = Engine(version="0.11.0")
    async with running(engine) as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.ways.of(engine.address) == PriorityWay())
        page, engine.page = engine.page, "<html>{running}{tokens} bad gateway"
        await until(lambda: case.fleet.scrape_stats()[0].failures)
        engine.page, engine.version = page, "0.32.0"
        await until(lambda: case.ways.of(engine.address) == HEADER)


async def test_an_engine_whose_counters_went_back_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.fleet._ASK_EACH_S", 0.0)
    engine = Engine(version="0.11.0")
    engine.tokens = 5
    async with running(engine) as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.ways.of(engine.address) == PriorityWay())
        engine.tokens, engine.version = 0, "0.32.0"
        await until(lambda: case.ways.of(engine.address) == HEADER)


async def test_where_envoy_chooses_one_that_stands_still_is_asked_for_a_token() -> None:
    """Nobody knows whether it has been sent anything: its gauges show nothing."""
    engine, busy = Engine(), Engine()
    async with running(engine, busy, pick={"by": "envoy"}) as case:
        case.set(Endpoint(engine.address), Endpoint(busy.address))
        await until(lambda: case.stance(engine) is Stance.FRESH)
        await case.driver.arrive(Arrive("r", "t", "default", case.driver.now(), 10))
        await until(lambda: engine.asked)
        case.driver.end("r")


def changed(**pool: Any) -> Pool:
    """The pool's configuration with other settings."""
    config = from_data({"pools": [{"name": "m", "models": ["m"], "endpoints": {"file": "unused"}, **pool}]})
    return config.pools[0]


async def test_another_list_of_endpoints_keeps_those_that_are_in_both() -> None:
    first, second, third = Engine(), Engine(), Engine()
    async with running(first, second, third, window={"start": 5}) as case:
        case.set(Endpoint(first.address), Endpoint(second.address))
        await until(lambda: case.stance(first) is Stance.FRESH and case.stance(second) is Stance.FRESH)
        kept = case.window(second)
        case.fleet.prepare(changed(endpoints=[second.address, third.address]), case.ways)()
        await until(lambda: case.stance(third) is Stance.FRESH)
        assert case.stance(first) is None
        assert case.window(second) is kept
        assert {each.endpoint for each in case.fleet.scrape_stats()} == {second.address, third.address}


async def test_what_is_only_prepared_changes_nothing() -> None:
    first, second = Engine(), Engine()
    async with running(first, second) as case:
        case.set(Endpoint(first.address))
        case.fleet.prepare(changed(endpoints=[second.address]), case.ways)
        case.set(Endpoint(first.address))
        await until(lambda: case.stance(first) is Stance.FRESH)
        assert case.stance(second) is None


async def test_pages_are_read_at_another_place_and_the_window_stays() -> None:
    engine, pages = Engine(), Engine()
    async with running(engine, pages) as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.stance(engine) is Stance.FRESH)
        window = case.window(engine)
        port = int(pages.address.rpartition(":")[2])
        wanted = changed(
            endpoints={"file": "unused"}, metrics={"interval": "20ms", "idle_interval": "20ms", "port": port}
        )
        case.fleet.prepare(wanted, case.ways)()
        (stats,) = case.fleet.scrape_stats()
        assert stats.scrapes == 0
        await until(lambda: case.fleet.scrape_stats()[0].scrapes > 1)
        assert pages.read > 0
        assert case.window(engine) is window


async def test_other_ways_are_asked_for_anew() -> None:
    engine = Engine()
    async with running(engine) as case:
        case.set(Endpoint(engine.address))
        await until(lambda: case.ways.of(engine.address) == HEADER)
        pool = changed(priority_via="off", metrics={"interval": "20ms", "idle_interval": "20ms"})
        ways = Ways.configured(pool)
        case.fleet.prepare(pool, ways)()
        await until(lambda: engine.address in ways._known)
        assert ways.of(engine.address) == PriorityWay()
