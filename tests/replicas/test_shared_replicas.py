"""Mode shared with whole services: one engine of four slots, several replicas."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from replicas_case import SLOTS, Replica, eventually

from redis_rig import RedisServer  # isort: skip  # found through replicas_case

from extproc.admin.records import Author
from extproc.cli.ports import free_ports
from extproc.core.sharing.sharing import Sharing
from extproc.service import StartError

# One loop for all: grpc's poller outlives the loop that it began on.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

Start = Callable[..., Replica]


async def several(store: str, replica: Start, *names: str, **config: Any) -> list[Replica]:
    found = [replica(store, name, "shared", **config) for name in names]
    for it in found:
        await it.ready()
    await eventually(
        "they know of each other", lambda: all(it.others == set(names) - {it.seen.replica} for it in found)
    )
    return found


def inside(*replicas: Replica) -> list[int]:
    return [it.window.in_flight for it in replicas]


async def test_an_idle_replica_claims_nothing_and_asks_when_somebody_comes(store: RedisServer, replica: Start) -> None:
    one, other = await several(store.address, replica, "r1", "r2")
    for it in (one, other):
        assert (it.window.claim, it.window.others) == (0, 0)
    (call,) = await one.ask()
    assert (await one.answer(call)).HasField("request_headers")
    await eventually("the other one knows", lambda: other.window.others == 1)
    assert other.window.foreign == 1
    assert inside(one, other) == [1, 0]


async def test_one_that_is_alone_with_its_requests_has_all_slots(store: RedisServer, replica: Start) -> None:
    one, other = await several(store.address, replica, "r1", "r2")
    await one.ask(SLOTS + 2)
    await eventually("all slots are taken", lambda: inside(one) == [SLOTS])
    assert one.held == 2
    await eventually("the other one knows", lambda: other.window.others == SLOTS)


async def test_two_that_have_requests_divide_the_slots(store: RedisServer, replica: Start) -> None:
    one, other = await several(store.address, replica, "r1", "r2")
    most = 0
    calls = await one.ask(8)
    await eventually("the first has taken some", lambda: inside(one)[0] >= 2)
    await other.ask(8)
    # Each end gives a slot to whoever is due: equal tenants, so half each in the end.
    async with asyncio.timeout(60):
        while inside(one, other) != [2, 2]:
            most = max(most, sum(inside(one, other)))
            over = next((call for call in calls if not call.done()), None)
            if inside(one)[0] > 2 and over is not None:
                calls.remove(over)
                over.cancel()
            await asyncio.sleep(0.02)
    assert most <= SLOTS
    assert one.held
    assert other.held
    await eventually("both know", lambda: (one.window.others, other.window.others) == (2, 2))
    (others,) = (await one.series("fairlane_endpoint_others_slots")).values()
    (claim,) = (await one.series("fairlane_endpoint_claim_slots")).values()
    assert others == 2
    assert 0 < claim <= SLOTS
    told = orjson.loads((await one.get("/status"))[1])
    assert told["cluster"]["mode"] == "shared"
    assert told["pools"][0]["endpoints"][0]["others"] == 2


async def test_one_that_leaves_gives_its_part_back(store: RedisServer, replica: Start) -> None:
    one, other = await several(store.address, replica, "r1", "r2")
    await other.ask(3)
    await eventually("the other one has three", lambda: inside(other) == [3])
    await one.ask(6)
    await eventually("the first has the rest", lambda: inside(one) == [1])
    await other.leave()
    await eventually("the first has all", lambda: inside(one) == [SLOTS])
    assert one.others == set()


async def test_without_a_store_it_starts_says_so_and_takes_its_part(replica: Start, logs: list[Any]) -> None:
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    it = replica(nowhere, "r1", "shared", cluster={"replicas": 2})
    await it.ready()
    assert await it.health("edge") == "SERVING"
    await it.ask(SLOTS)
    # one slot at first: another replica may have the rest, which it knows of by what it heard last
    await eventually("one goes", lambda: inside(it) == [1])
    await eventually("then its part by number, a lease later", lambda: inside(it) == [SLOTS // 2])
    assert it.held == SLOTS // 2
    status = (await it.status()).cluster
    assert (status.store_used, status.store_lost, status.exchange_count > 0) == (True, True, True)
    assert not status.HasField("exchange_age")
    assert nowhere in status.store_error
    assert await it.series("fairlane_cluster_store_lost") == {"": 1}
    failed = await it.series("fairlane_cluster_exchange_failures_total")
    assert failed['{kind="unreachable"}'] > 0
    lost = [entry for entry in logs if entry["event"] == "cluster_store_lost"]
    assert len(lost) == 1  # and not with each exchange
    assert nowhere in lost[0]["error"]


async def test_a_store_that_is_lost_is_shown_and_comes_back(tmp_path: Path, replica: Start) -> None:
    own = RedisServer(tmp_path / "own")
    own.start()
    try:
        one, other = await several(own.address, replica, "r1", "r2")
        await one.ask(3)
        await eventually("three go", lambda: inside(one) == [3])
        own.kill()
        await eventually("both see it", lambda: one.seen.lost_s is not None and other.seen.lost_s is not None)
        assert inside(one) == [3]  # what runs goes on
        (call,) = await other.ask()
        await eventually("nothing stops", lambda: inside(other) == [1])
        assert (await other.answer(call)).HasField("request_headers")
        own.start()
        await eventually("it is back", lambda: one.seen.lost_s is None and other.seen.lost_s is None)
        await eventually("they hear of each other", lambda: (one.window.others, other.window.others) == (1, 3))
        assert await one.series("fairlane_cluster_store_lost") == {"": 0}
        assert (await one.status()).cluster.store_error == ""
    finally:
        own.kill()


async def test_two_with_one_id(store: RedisServer, replica: Start, logs: list[Any]) -> None:
    (one,) = await several(store.address, replica, "r1")
    twin = replica(store.address, "r1", "shared")
    await twin.ready()
    await eventually("it is told", lambda: twin.seen.in_use)
    assert "give each its own cluster.replica" in twin.seen.error
    assert await twin.series("fairlane_cluster_id_in_use") == {"": 1}
    assert await one.series("fairlane_cluster_id_in_use") == {"": 0}
    assert (await twin.status()).cluster.replica_in_use
    assert any("give each its own" in entry.get("error", "") for entry in logs)
    (call,) = await twin.ask()
    assert (await twin.answer(call)).HasField("request_headers")  # it serves, by what is safe
    await one.leave()
    await eventually("it takes its place", lambda: not twin.seen.in_use and twin.seen.lost_s is None)


async def test_an_id_is_made_up(store: RedisServer, replica: Start) -> None:
    made = [replica(store.address, None, "shared") for _ in range(2)]
    for it in made:
        await it.ready()
    one, other = (it.seen.replica for it in made)
    assert one != other
    for name in (one, other):
        assert re.fullmatch(r"[A-Za-z0-9._-]{1,54}-[0-9a-f]{8}", name)


async def test_modes_that_differ_are_told_once(store: RedisServer, replica: Start, logs: list[Any]) -> None:
    one = replica(store.address, "r1", "shared")
    other = replica(store.address, "r2", "partition")
    for it in (one, other):
        await it.ready()

    def told() -> list[tuple[str, str, str]]:
        found = [entry for entry in logs if entry["event"] == "cluster_modes_differ"]
        return [(each["mode"], each["other"], each["other_mode"]) for each in found]

    await eventually("both say so", lambda: len(told()) == 2)
    before = one.seen.exchanges
    await eventually("some exchanges later", lambda: one.seen.exchanges >= before + 3)
    assert sorted(told()) == [("partition", "r1", "shared"), ("shared", "r2", "partition")]


async def test_a_pool_that_comes_later_is_shared(store: RedisServer, replica: Start) -> None:
    one, other = await several(store.address, replica, "r1", "r2")
    config = one.service.revisions.config
    more = {"name": "more", "models": ["o"], "endpoints": config.pools[0].endpoints.known}
    for it in (one, other):
        data = it.config.model_copy(update={"pools": [*it.config.pools, type(config.pools[0]).model_validate(more)]})
        (await it.service.prepare(data))()
    await eventually(
        "it is told of, too",
        lambda: all(len(it.service.pools()) == 2 and it.service.pools()[1].endpoints for it in (one, other)),
    )
    await eventually("its claims come", lambda: one.service.pools()[1].endpoints[0].claim == 0)


async def test_it_needs_the_package(replica: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "extproc.cluster.link", None)  # as where `redis` is not there
    it = replica("127.0.0.1:1", "r1", "shared")
    with pytest.raises(StartError, match=r"install Fairlane with its extra cluster, pip install '\.\[cluster\]'"):
        await it.over()


async def test_without_a_store_partition_says_only_what_it_is(replica: Start) -> None:
    it = replica("", "r1", "partition", cluster={"store": None})
    await it.ready()
    status = await it.status()
    assert (status.cluster.mode, status.cluster.active, status.cluster.store_used) == (3, True, False)
    assert not status.cluster.replicas
    assert await it.series("fairlane_cluster_store_lost") == {}
    assert await it.series("fairlane_cluster_active") == {"": 1}
    assert await it.health("edge") == "SERVING"


@pytest.mark.parametrize("mode", ["shared", "standby", "partition", "single"])
async def test_a_live_change_reaches_the_others(store: RedisServer, replica: Start, mode: str) -> None:
    one, other = replica(store.address, "r1", mode), replica(store.address, "r2", mode)
    for it in (one, other):
        await it.ready()
    await eventually("they know of each other", lambda: one.others == {"r2"} and other.others == {"r1"})
    author = Author("alice", "admin", "ipv4:192.0.2.1:1", "UpdateConfig")
    how: Any = {"reason": "a test", "ttl_s": None, "etag": "", "validate_only": False}
    await one.service.revisions.patch(author, {"pools": {"sim": {"max_queued": 7}}}, None, **how)
    await eventually("it is there", lambda: other.service.revisions.config.pools[0].max_queued == 7)
    await eventually(
        "each knows of the other one's",
        lambda: all({each.cluster_revision for each in it.seen.replicas} == {1} for it in (one, other)),
    )
    assert [each.refused for each in one.seen.replicas] == ["", ""]
    assert {each.cluster_revision for each in (await one.status()).cluster.replicas} == {1}


async def test_what_another_program_says_of_itself_does_no_harm(store: RedisServer, replica: Start) -> None:
    (one,) = await several(store.address, replica, "r1")
    info = {"version": 7, "revision": -1, "mode": ["x"], "configuration": {"revision": True, "error": {}}}
    now = int(store.ask("TIME")[0]) * 1000
    document = orjson.dumps([info, []]).decode()
    record = f"life 1 1 {now} 60000\n{{}}"
    store.ask("HSET", "{fairlane:fairlane}:1:replicas", "odd", record, "odd:document", document)
    await eventually("it is seen", lambda: one.others == {"odd"})
    odd = next(each for each in (await one.status()).cluster.replicas if each.replica == "odd")
    assert (odd.version, odd.revision, odd.cluster_revision, odd.refused_error) == ("", 0, 0, "")
    await one.ask(SLOTS)
    await eventually("its requests go", lambda: sum(inside(one)) == SLOTS)


@pytest.mark.parametrize("where", ["tell", "heard"])
async def test_a_fault_of_ours_stops_nothing(
    store: RedisServer, replica: Start, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    one, _ = await several(store.address, replica, "r1", "r2")

    def broken(*_: object) -> None:
        raise RuntimeError("a fault")

    await one.ask(1)
    with monkeypatch.context() as patched:
        patched.setattr(Sharing, where, broken)
        await eventually("it shows", lambda: one.window.claim == 1)
        await one.ask(SLOTS)
        await eventually("its part by number", lambda: inside(one) == [SLOTS // 2])
        assert (await one.series("fairlane_faults_total"))['{where="cluster"}'] > 0
        assert await one.series("fairlane_cluster_store_lost") == {"": 0}
    await eventually("it is over", lambda: inside(one) == [SLOTS])
