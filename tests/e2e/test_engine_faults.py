"""Engines whose metrics cannot be read, and engines that die: requests go on."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from rig import FAST_ENGINE, Json, Rig, chat, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

FAULTS = {
    "500": {"metrics": "down"},
    "10 s late": {"metrics": "slow", "seconds": 10},
    "HTML": {"metrics": "html"},
    "an empty page": {"metrics": "empty"},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    # a reading is stale after three intervals and half a second
    pool = {"metrics": {"interval": "100ms", "idle_interval": "200ms", "timeout": "300ms"}}
    async with running(
        tmp_path_factory.mktemp("stack"), engines=2, pool=pool, engine_args=(*FAST_ENGINE, "--max-num-seqs", "4")
    ) as rig:
        yield rig


class Traffic:
    """Requests without end, a few at a time, until `ended` is set; `answered` counts them by status."""

    def __init__(self, rig: Rig, tenant: str) -> None:
        self._rig = rig
        self._tenant = tenant
        self.answered: Counter[int] = Counter()
        self.ended = False

    async def flow(self) -> None:
        while not self.ended:
            answer = await self._rig.post(chat(8), tenant=self._tenant)
            self.answered[answer.status] += 1

    async def more(self, count: int = 20) -> None:
        """Until so many more are answered."""
        wanted = self.answered.total() + count

        async def total() -> int:
            return self.answered.total()

        await until(total, lambda answered: answered >= wanted, f"{count} more answers")


@contextlib.asynccontextmanager
async def traffic(rig: Rig, tenant: str) -> AsyncIterator[Traffic]:
    """Flows while the block runs; what is under way at its end is still answered."""
    flowing = Traffic(rig, tenant)
    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(flowing.flow())
        try:
            yield flowing
        finally:
            flowing.ended = True


def _stances(pool: Json) -> list[str]:
    return [endpoint["stance"] for endpoint in pool["endpoints"]]


@pytest.mark.parametrize("name", FAULTS)
async def test_metrics_page(name: str, rig: Rig) -> None:
    async with traffic(rig, name) as flowing:
        await rig.until(lambda pool: _stances(pool) == ["fresh", "fresh"])
        await rig.faults(engine=0, **FAULTS[name])
        await rig.until(lambda pool: _stances(pool) == ["stale", "fresh"], f"metrics {name}")
        await flowing.more()
        await rig.faults(**FAULTS[name])
        await rig.until(lambda pool: _stances(pool) == ["stale", "stale"], f"metrics {name} everywhere")
        await flowing.more()
        await rig.faults()
        await rig.until(lambda pool: _stances(pool) == ["fresh", "fresh"], "all well again")
        await flowing.more()
    assert set(flowing.answered) == {200}
    for engine in rig.engines:
        assert await rig.metric("fairlane_scrape_failures_total", endpoint=str(engine)) > 0


async def test_metrics_page_that_ends_within_a_line(rig: Rig) -> None:
    """The counts of requests stand in its first half, and whole lines are to be believed."""
    endpoint = str(rig.engines[0])
    async with traffic(rig, "half a page") as flowing:
        await rig.faults(engine=0, metrics="half")
        scrapes = await rig.metric("fairlane_scrapes_total", endpoint=endpoint)
        await until(lambda: rig.metric("fairlane_scrapes_total", endpoint=endpoint), lambda count: count > scrapes + 10)
        await flowing.more()
        pool = await rig.pool()
        assert pool["endpoints"][0]["stance"] == "fresh"
        assert pool["endpoints"][0]["running"] <= 4  # its slots
        await rig.faults()
    assert set(flowing.answered) == {200}


async def test_an_engine_dies_and_comes_back(rig: Rig) -> None:
    """Its own requests fail, for they were running there. All that come afterwards are served by the other one."""
    gone, other = map(str, rig.engines)
    await rig.faults(hang=True)
    victims = [rig.start(chat(), tenant="victims") for _ in range(6)]
    pool = await rig.until_inside(6)
    inside = {endpoint["endpoint"]: endpoint["in_flight"] for endpoint in pool["endpoints"]}
    assert min(inside.values()) > 0
    await rig.stack.kill("engine-1")
    await rig.until_inside(inside[other])
    # Nobody waits for the scraper to find out: what Fairlane still sends there, Envoy takes to the other one.
    late = [rig.start(chat(), tenant="late") for _ in range(12)]
    await until(lambda: _seen_by(rig, other, "late"), lambda count: count > 0, "the other one gets them")
    await rig.faults(engine=1)
    assert Counter(answer.status for answer in await asyncio.gather(*late)) == {200: 12}
    answers = await asyncio.gather(*victims)
    assert Counter(answer.status for answer in answers) == {503: inside[gone], 200: inside[other]}
    for answer in answers:
        if answer.status == 503:
            assert answer.error["code"] == "engine_unavailable"
            assert answer.headers["x-fairlane-reason"] == "engine_unavailable"
    await rig.until(lambda pool: _stances(pool) == ["down", "fresh"])
    async with traffic(rig, "meanwhile") as flowing:
        await flowing.more(60)
        await rig.stack.start_child("engine-1")
        await until(lambda: _seen_by(rig, gone, "meanwhile"), lambda count: count > 5, "it is used again")
        await rig.until(lambda pool: _stances(pool) == ["fresh", "fresh"])
    assert set(flowing.answered) == {200}


async def test_what_is_sent_to_a_dead_engine_goes_to_a_busier_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Metrics are read once a minute only, so it is Envoy that finds the engine dead. That one has the fewest requests;
    a load balancer that goes by that would send them there again and again."""
    pool = {"metrics": {"interval": "60s", "idle_interval": "60s"}, "window": {"start": 100}}
    async with running(tmp_path_factory.mktemp("stack"), engines=2, pool=pool) as rig:
        await rig.faults(hang=True)
        victims = [rig.start(chat(), tenant="victims") for _ in range(6)]
        await rig.until_inside(6)
        await rig.stack.kill("engine-1")
        await rig.until_inside(3)
        await rig.until(lambda pool: _stances(pool)[0] != "down", "its broken connections are forgotten")
        late = [rig.start(chat(), tenant="late") for _ in range(100)]
        await until(lambda: _seen_by(rig, str(rig.engines[1]), "late"), lambda count: count == 100)
        await rig.faults(engine=1)
        assert Counter(answer.status for answer in await asyncio.gather(*late)) == {200: 100}
        assert Counter(answer.status for answer in await asyncio.gather(*victims)) == {200: 3, 503: 3}
        await rig.books_closed()


async def test_the_only_engine_dies_and_what_is_held_waits_for_its_return(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """It refuses faster than any engine answers. Lost is what was inside, and what went before Envoy told of it: a
    window or two of 7 (R 4 and q 3), and not the queue."""
    args = (*FAST_ENGINE, "--max-num-seqs", "4")
    async with running(tmp_path_factory.mktemp("stack"), engine_args=args, pool={"window": {"start": 4}}) as rig:
        await rig.faults(hang=True)
        tasks = [rig.start(chat(), tenant=f"t{i % 5}") for i in range(120)]
        await rig.until(lambda pool: pool["queued"] >= 100 and pool["queued"] + pool["in_flight"] == 120)
        await rig.stack.kill("engine-1")
        await rig.until(lambda pool: _stances(pool) == ["down"] and pool["in_flight"] == 0)
        assert (await rig.pool())["queued"] >= 90
        await rig.stack.start_child("engine-1")
        statuses = Counter(answer.status for answer in await asyncio.gather(*tasks))
        assert set(statuses) == {200, 503}
        assert statuses[503] <= 30
        await rig.books_closed()


async def _seen_by(rig: Rig, engine: str, tenant: str) -> int:
    async with rig.http.get(f"http://{engine}/sim/requests") as answer:
        return sum(entry["headers"].get("x-tenant") == tenant for entry in await answer.json())


async def test_an_engine_that_sheds_load(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It refuses, plainly or within a stream of status 200; what it says reaches the client, and costs nothing."""
    args = (*FAST_ENGINE, "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
    async with running(tmp_path_factory.mktemp("stack"), engine_args=args) as rig:
        await rig.faults(hang=True, shed="stream")
        running_one = rig.start(chat())
        await until(rig.seen, lambda seen: len(seen) == 1)
        plain = await rig.post(chat())
        assert plain.status == 503
        assert plain.json["error"]["type"] == "Service Unavailable"
        streamed = await rig.post(chat(stream=True))
        assert streamed.status == 200
        assert b'"Service Unavailable"' in streamed.body
        await rig.faults()
        assert (await running_one).status == 200
        await rig.books_closed()
        assert await rig.metric("fairlane_settled_requests_total", source="error") == 2
        assert await rig.metric("fairlane_settled_requests_total", source="usage") == 1
