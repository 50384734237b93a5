"""Three replicas that share an engine: they are restarted, killed, stopped for a while, under load."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from cluster_case import SLOTS, Cluster, Q, clustered
from replicas import assert_in_order, events, freeze, thaw
from rig import Json, chat, log_of, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

REPLICAS = 3
HELD = 200
FROZEN_S = 8.0
LEASE_S = 3.0  # as shipped


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with clustered(tmp_path_factory.mktemp("ends"), REPLICAS, debug=True) as started:
        yield started
        await all_run(started)
        await started.replicas.books_closed()


async def all_run(stack: Cluster) -> None:
    for name in stack.names:
        if not stack.replicas.child(name).running:
            await stack.rig.stack.start_child(name)


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(stack: Cluster) -> AsyncIterator[Cluster]:
    await all_run(stack)
    await stack.replicas.until_envoy(healthy=REPLICAS)
    await stack.until_replicas(REPLICAS)
    yield stack
    for name in stack.names:
        thaw(stack.replicas.child(name))
    await stack.quiet()


async def test_each_is_restarted_in_turn_and_no_client_notices(cluster: Cluster) -> None:
    plain = cluster.load(None, "rolling", clients=24)
    streams = cluster.load(None, "rolling-streams", clients=16, tokens=20, streams=True)
    before = {name: len(events(cluster.replicas.child(name), "draining")) for name in cluster.names}
    for name in cluster.names:
        await asyncio.gather(plain.more(48), streams.more(16))
        await cluster.replicas.each[name].until(lambda pool: pool["queued"] > 0 and pool["in_flight"] > 0)
        await cluster.rig.stack.stop_child(name)
        assert cluster.replicas.child(name).exit_code == 0
        await asyncio.gather(plain.more(48), streams.more(16))
        await cluster.rig.stack.start_child(name)
        await cluster.replicas.until_envoy(healthy=REPLICAS)
    await asyncio.gather(plain.end(), streams.end())
    for load in (plain, streams):
        load.assert_all_succeeded()
        ran = Counter([entry["headers"]["x-number"] for entry in await cluster.rig.seen(load.tenant)])
        assert ran == {str(number): 1 for number in range(1, load.sent + 1)}
    for name in cluster.names:
        (story,) = events(cluster.replicas.child(name), "draining")[before[name] :]
        assert story["in_flight"] > 0  # else nothing would have been shown


async def test_one_is_killed_with_two_hundred_held(cluster: Cluster) -> None:
    """All are answered, each tenant's in the order of their arrival, and the others may use its part."""
    gone, *others = cluster.names
    lines = {name: len(log_of(cluster.replicas.child(name))) for name in others}
    async with cluster.rig.hung_engines():
        held = []
        for number in range(HELD + SLOTS):
            headers = {"x-number": str(number)}
            tenant = f"killed-{number % 4}"
            held.append(cluster.rig.start(chat(), tenant=tenant, headers=headers, straight_to=cluster.door(0)))
        pool = await cluster.replicas.each[gone].until(lambda pool: books(pool) == len(held), "all came")
        assert pool["queued"] >= HELD - Q - 1
        await cluster.rig.stack.kill(gone)

        async def at_the_others() -> int:
            pools = [await cluster.replicas.each[name].pool() for name in others]
            return sum(map(books, pools))

        await until(at_the_others, lambda count: count == pool["queued"], "what it held has come to the others")
    answers = await asyncio.gather(*held)
    assert Counter(answer.status for answer in answers) == {200: len(held)}
    ran = Counter([entry["headers"]["x-number"] for entry in await cluster.rig.seen() if _mine(entry, "killed")])
    assert ran == {str(number): 1 for number in range(len(held))}
    for name in others:
        assert_in_order(log_of(cluster.replicas.child(name))[lines[name] :])
    # Alone, each of the two gets half of what is there, and all of it while the other one wants nothing.
    alone = cluster.load(1, "left", clients=40)
    await alone.more(100)
    seen = await cluster.watch(4.0)
    assert seen.fill.used > 0.75, seen  # it would be half
    alone.assert_all_succeeded()


async def test_the_others_go_on_while_nobody_knows_that_one_has_died(cluster: Cluster) -> None:
    """Until its lease is over its part of the engine is not theirs; but theirs is."""
    loads = [cluster.load(number, f"goes on {number}", clients=30) for number in range(REPLICAS)]
    await asyncio.gather(*(load.more(60) for load in loads))
    await cluster.rig.stack.kill(cluster.names[-1])
    await asyncio.sleep(LEASE_S / 3)  # its answers are over, and that it is silent is known: no synchronisation
    seen = await cluster.watch(LEASE_S / 2)
    assert seen.fill.used > 0.1, seen  # two thirds are theirs, less what a busy machine is late with; it was 0.01
    await asyncio.gather(*(load.more(60) for load in loads))
    seen = await cluster.watch(LEASE_S)
    assert seen.fill.used > 0.75, seen  # it would be two thirds
    for load in loads:
        load.assert_all_succeeded()


async def test_one_that_stood_still_uses_no_share_of_before(cluster: Cluster) -> None:
    """Its share went to the others meanwhile; what it held when it stopped must not go to the engine on top of it."""
    busy = cluster.load(0, "goes on", clients=40)
    frozen = cluster.load(1, "stood still", clients=40)
    await asyncio.gather(busy.more(60), frozen.more(60))
    freeze(cluster.replicas.child(cluster.names[1]))
    await asyncio.sleep(FROZEN_S)  # the scenario's pause, no synchronisation
    since = time.time()
    thaw(cluster.replicas.child(cluster.names[1]))
    await asyncio.gather(busy.more(100), frozen.more(50))
    seen = await cluster.watched(since, time.time())
    assert seen.fill.waiting_max <= Q + REPLICAS, seen
    await asyncio.gather(busy.end(), frozen.end())
    for load in (busy, frozen):
        load.assert_all_succeeded()


def books(pool: Json) -> int:
    return int(pool["queued"]) + int(pool["in_flight"])


def _mine(entry: Json, prefix: str) -> bool:
    return str(entry["headers"].get("x-tenant", "")).startswith(prefix)
