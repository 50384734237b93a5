"""Two replicas on one engine, each with other clients: they share as one would, by what the engine itself has done."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from cluster_case import Cluster, Q, clustered

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

REPLICAS = 2
CONFIG = {
    "tenants": {"four": {"weight": 4}},
    # Its guaranteed share would let some of it go, whatever waits.
    "classes": {"batch": {"min_share": 0}},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with clustered(tmp_path_factory.mktemp("shares"), REPLICAS, config=CONFIG) as started:
        yield started
        await started.replicas.books_closed()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(stack: Cluster) -> AsyncIterator[Cluster]:
    yield stack
    await stack.quiet()


async def test_weights_hold_though_each_tenant_comes_to_another_replica(cluster: Cluster) -> None:
    four = cluster.load(0, "four", clients=40)
    one = cluster.load(1, "one", clients=40)
    await asyncio.gather(four.more(80), one.more(20))
    since = time.time()
    await asyncio.gather(four.more(1_200), one.more(300))
    seen = await cluster.watched(since, time.time())
    assert seen.tokens["four"] / seen.tokens["one"] == pytest.approx(4, rel=0.05), seen
    assert seen.fill.waiting_999 <= Q + REPLICAS, seen
    for load in (four, one):
        load.assert_all_succeeded()


async def test_equal_tenants_get_equal_parts_though_most_of_them_come_to_one_replica(cluster: Cluster) -> None:
    tenants = [f"equal-{number}" for number in range(8)]
    loads = [cluster.load(number >= 6, tenant, clients=8) for number, tenant in enumerate(tenants)]
    await asyncio.gather(*(load.more(10) for load in loads))
    since = time.time()
    await asyncio.gather(*(load.more(60) for load in loads))
    seen = await cluster.watched(since, time.time())
    assert seen.jain(tenants) >= 0.98, seen
    assert seen.fill.waiting_999 <= Q + REPLICAS, seen
    for load in loads:
        load.assert_all_succeeded()


async def test_a_higher_class_that_waits_at_one_replica_closes_the_lower_ones_at_the_other(cluster: Cluster) -> None:
    async def released() -> float:
        return await cluster.metric_of(1, "fairlane_released_requests_total", **{"class": "batch"})

    batch = cluster.load(1, "night", clients=30, headers={"x-class": "batch"})
    await batch.more(20)
    high = cluster.load(0, "people", clients=50, headers={"x-class": "interactive"})
    await high.more(100)
    before = await released()
    assert before > 0
    await high.more(400)
    assert await released() == before
    await high.end()
    await batch.more(40)
    for load in (high, batch):
        load.assert_all_succeeded()
