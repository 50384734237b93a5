"""The store dies, is slow, takes no writes, forgets all, under load: no client notices, no engine is flooded."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from cluster_case import SLOTS, Cluster, Load, Q, SlowWay, Watched, clustered

from extproc.cli.ports import HostPort, free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

REPLICAS = 2
AWAY_S = 30.0
SHORT_S = 5.0
LOST = "fairlane_cluster_store_lost"
# Of the slots that could be in use. A fault leaves half (one replica alone goes on, or each with half of its part) or
# nothing; a machine that has no time for its programs some nine tenths. How much exactly is measured by
# `fairlane bench cluster`.
IN_USE = 0.65


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def way() -> AsyncIterator[SlowWay]:
    async with SlowWay(HostPort("127.0.0.1", free_ports(1)[0])) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory, way: SlowWay) -> AsyncIterator[Cluster]:
    directory: Path = tmp_path_factory.mktemp("store")
    async with clustered(directory, REPLICAS, store_at=way.to) as started:
        yield started
        await started.replicas.books_closed()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(stack: Cluster) -> AsyncIterator[Cluster]:
    yield stack
    await stack.quiet()


@contextlib.asynccontextmanager
async def both_busy(cluster: Cluster) -> AsyncIterator[list[Load]]:
    """More than the engine takes, at each of the two; and nothing but answers."""
    loads = [cluster.load(number, f"tenant-{number}", clients=40) for number in range(REPLICAS)]
    await asyncio.gather(*(load.more(80) for load in loads))
    yield loads
    await asyncio.gather(*(load.more(40) for load in loads))
    for load in loads:
        load.assert_all_succeeded()


async def without_the_store(cluster: Cluster) -> Watched:
    """What the engine does from now, when all have lost the store, until some time after each has its even part.

    Until then there is no bound: each goes on from the part that it had in that moment, which goes by what waited."""
    since = time.time()
    await cluster.until_metric("fairlane_endpoint_in_flight_slots", lambda value: value >= SLOTS / REPLICAS)
    even = await cluster.watch(SHORT_S)
    assert even.fill.used > IN_USE, even
    return await cluster.watched(since, time.time())


async def test_it_is_away_for_thirty_seconds(cluster: Cluster) -> None:
    async with both_busy(cluster):
        before = await cluster.watch(8.0)
        cluster.store.kill()
        away = await cluster.watch(AWAY_S)
        for number in range(REPLICAS):
            assert await cluster.metric_of(number, LOST) == 1
        assert away.fill.used >= IN_USE * before.fill.used, (before, away)
        assert away.fill.waiting_999 <= Q + REPLICAS, away
        await cluster.store.start()
        await cluster.until_metric(LOST, lambda value: value == 0)
        await cluster.until_replicas(REPLICAS)
        after = await cluster.watch(SHORT_S)
        assert after.fill.waiting_999 <= Q + REPLICAS, after
        assert after.fill.used > IN_USE, after
        assert min(after.tokens.values()) > 0.25 * after.total, after  # they share again


async def test_it_is_slow_by_a_second(cluster: Cluster, way: SlowWay) -> None:
    async with both_busy(cluster):
        way.delay_s = 1.0
        try:
            await cluster.until_metric(LOST, lambda value: value == 1)
            slow = await without_the_store(cluster)
        finally:
            way.delay_s = 0.0
        assert slow.fill.waiting_999 <= Q + REPLICAS, slow
        await cluster.until_metric(LOST, lambda value: value == 0)


async def test_it_takes_no_writes(cluster: Cluster) -> None:
    """As one that has become a replica of another, in the middle of a failover."""
    async with both_busy(cluster):
        await cluster.store.ask("REPLICAOF", "127.0.0.1", str(free_ports(1)[0]))
        try:
            await cluster.until_metric(LOST, lambda value: value == 1)
            read_only = await without_the_store(cluster)
        finally:
            await cluster.store.ask("REPLICAOF", "NO", "ONE")
        assert read_only.fill.waiting_999 <= Q + REPLICAS, read_only
        await cluster.until_metric(LOST, lambda value: value == 0)


async def test_it_forgets_everything(cluster: Cluster) -> None:
    """Replicas that are new to it both ask for what they have; nothing may be given twice."""
    async with both_busy(cluster):
        since = time.time()
        for _ in range(3):
            await cluster.store.ask("FLUSHALL")
            await cluster.until_replicas(REPLICAS)
        await asyncio.sleep(SHORT_S)  # a stretch of time that is measured, no synchronisation
        seen = await cluster.watched(since, time.time())
        assert seen.fill.waiting_999 <= Q + REPLICAS, seen
        assert seen.fill.used > IN_USE, seen
        assert min(seen.tokens.values()) > 0.25 * seen.total, seen
