"""The loop: when it exchanges, what it makes of the answers, and that nothing ends it but its stop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
from member_case import Replica, endpoint, flow
from redis_rig import RedisServer, eventually, redis_server, wall
from store_case import LEASE_S, Voice, at, store

from extproc.cluster import codec, scripts
from extproc.cluster.errors import StoreError
from extproc.cluster.exchange import Exchange
from extproc.cluster.news import key
from extproc.cluster.words import Answer, Cursor, InUse, Tell

KEYS = scripts.Keys.of("test")


@pytest.fixture
def logs() -> Iterator[Any]:
    with structlog.testing.capture_logs() as entries:
        yield entries


@contextlib.asynccontextmanager
async def _running(exchange: Exchange) -> AsyncIterator[Exchange]:
    before = asyncio.all_tasks()
    exchange.start()
    (task,) = asyncio.all_tasks() - before
    try:
        yield exchange
    finally:
        await exchange.stop()
        assert task.done()


def _exchange(link: Any, member: Replica, name: str = "one", **given: Any) -> Exchange:
    made = Exchange(link, member, name, **{"period_s": 0.05, "lease_s": LEASE_S, **given})
    if isinstance(link, FakeStore):
        link.of = made
    return made


class FakeStore:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.of: Exchange | None = None
        self.asked: list[tuple[float, Tell]] = []  # with the time by which the loop goes, whatever the machine does
        self.left = 0
        self.open = asyncio.Event()
        self.open.set()
        self.answers: list[Answer | InUse | Exception] = []
        self.running = 0
        self.most_running = 0

    async def exchange(self, tell: Tell) -> Answer | InUse:
        self.asked.append((0.0 if self.of is None else self.of._began, tell))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.open.wait()
            await asyncio.sleep(0)
        finally:
            self.running -= 1
        answer = self.answers.pop(0) if self.answers else Answer(1, 1, False, {}, (), Cursor("e", tell.seq))
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def leave(self, *_: str) -> bool:
        assert self.running == 0
        self.left += 1
        return True


# -- when -----------------------------------------------------------------------------------------


@pytest.mark.slow
async def test_an_idle_one_wakes_for_its_heartbeat_and_for_nothing_else() -> None:
    fake, member = FakeStore(), Replica()
    loop = asyncio.get_running_loop()
    call_at, timers = loop.call_at, 0

    def noted(*args: Any, **more: Any) -> Any:
        nonlocal timers
        task = asyncio.current_task()
        timers += task is not None and task.get_name() == "cluster exchange"
        return call_at(*args, **more)

    loop.call_at = noted  # type: ignore[method-assign]
    try:
        async with _running(_exchange(fake, member, lease_s=60.0)):
            await eventually("two heartbeats", lambda: len(member.news) == 3)
            set_by_then = timers
    finally:
        del loop.call_at
    times = [at_s for at_s, _ in fake.asked]
    assert all(later - before >= 1.0 - 1e-9 for before, later in itertools.pairwise(times))
    assert set_by_then <= 3, "one timer for each heartbeat"


@pytest.mark.parametrize(("lease_s", "idle_s"), [(60.0, 1.0), (1.5, 0.5), (0.06, 0.05)])
async def test_an_idle_one_comes_often_enough_for_its_lease(lease_s: float, idle_s: float) -> None:
    assert _exchange(FakeStore(), Replica(), lease_s=lease_s)._idle_s == pytest.approx(idle_s)


@pytest.mark.slow
async def test_a_busy_one_exchanges_each_period_and_never_twice_at_a_time() -> None:
    fake, member = FakeStore(), Replica()
    member.is_busy = True
    async with _running(_exchange(fake, member)):
        await eventually("ten exchanges", lambda: len(member.news) >= 10)
    times = [at_s for at_s, _ in fake.asked]
    gaps = [later - before for before, later in itertools.pairwise(times)]
    assert min(gaps) >= 0.05 - 1e-9 and fake.most_running == 1
    assert [tell.seq for _, tell in fake.asked] == list(range(1, len(times) + 1))


@pytest.mark.slow
async def test_waking_brings_the_next_one_forward_to_a_period_after_the_last() -> None:
    fake, member = FakeStore(), Replica()
    async with _running(_exchange(fake, member, period_s=0.2, lease_s=60.0)) as exchange:
        await eventually("the first exchange", lambda: len(member.news) == 1)
        for _ in range(5):
            exchange.wake()
            await asyncio.sleep(0)
        await eventually("the next one", lambda: len(member.news) == 2)
        first, second = (at_s for at_s, _ in fake.asked)
        assert second - first >= 0.2 - 1e-9
        await eventually("another period", lambda: asyncio.get_running_loop().time() - second > 0.25)
        exchange.wake()
        asked = len(fake.asked)
        await eventually("one at once", lambda: len(fake.asked) > asked)


async def test_waking_while_one_is_on_its_way_brings_another_one() -> None:
    fake, member = FakeStore(), Replica()
    async with _running(_exchange(fake, member)) as exchange:
        fake.open.clear()
        await eventually("it has asked", lambda: fake.running == 1)
        exchange.wake()
        fake.open.set()
        await eventually("another one", lambda: len(member.news) == 2)


async def test_one_that_is_late_is_followed_at_once_and_one_at_a_time() -> None:
    fake, member = FakeStore(), Replica()
    member.is_busy = True
    async with _running(_exchange(fake, member)):
        fake.open.clear()
        await eventually("it has asked", lambda: fake.running == 1)
        began = asyncio.get_running_loop().time()
        await eventually("three periods", lambda: asyncio.get_running_loop().time() - began > 0.15)
        assert len(fake.asked) == 1
        fake.open.set()
        await eventually("the next one", lambda: len(member.news) == 2)
        assert fake.most_running == 1


async def test_stopping_waits_for_what_is_on_its_way_and_leaves_once() -> None:
    fake, member = FakeStore(), Replica()
    exchange = _exchange(fake, member)
    exchange.start()
    fake.open.clear()
    await eventually("it has asked", lambda: fake.running == 1)
    stopping = asyncio.create_task(exchange.stop())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done() and fake.left == 0
    fake.open.set()
    await stopping
    await exchange.stop()
    assert fake.left == 1 and len(fake.asked) == 1


async def test_one_that_was_not_started_stops_and_one_that_idles_stops_at_once() -> None:
    fake = FakeStore()
    await _exchange(fake, Replica()).stop()
    assert fake.left == 0
    exchange = _exchange(fake, Replica(), lease_s=60.0)
    exchange.start()
    await eventually("it has asked", lambda: exchange.state.exchanges == 1)
    await asyncio.wait_for(exchange.stop(), 30)
    assert fake.left == 1


# -- what -----------------------------------------------------------------------------------------


async def test_replicas_hear_of_each_other(server: RedisServer) -> None:
    async with store(server.settings()) as link_one, store(server.settings()) as link_two:
        one = Replica([endpoint(want=10), endpoint("f:1", want=1)], info={"version": "1.0"})
        two = Replica([endpoint(inside=2, want=10)], info={"version": "1.1"})
        first, second = _exchange(link_one, one, "one"), _exchange(link_two, two, "two")
        one.flows = (flow("a"), flow("b", 2.5))
        await first.once()
        await second.once()
        heard = two.news[-1].of("p")
        assert heard.fresh and heard.claims == {"e:1": 6}
        (other,) = heard.others
        assert (other.replica, other.life, other.missed) == ("one", first.state.life, False)
        assert other.report.flows == (flow("a"), flow("b", 2.5)) and other.report.endpoints == one.endpoints
        assert two.news[-1].infos == {"one": {"version": "1.0"}} and two.news[-1].of("unknown").others == ()
        assert [(seen.replica, seen.info) for seen in second.state.peers] == [("one", {"version": "1.0"})]
        await first.once()
        heard = one.news[-1].of("p")
        assert not heard.fresh and heard.claims == {"e:1": 10, "f:1": 1}
        assert heard.others[0].report.endpoints == two.endpoints and one.news[-1].sent_at > one.news[0].sent_at
        assert first.state.ok and first.state.exchanges == 2 and first.state.bytes_read > 0


async def test_flows_of_a_failed_exchange_are_told_with_the_next_one(tmp_path: Path, logs: Any) -> None:
    with redis_server(tmp_path) as server:
        async with store(server.settings()) as link, store(server.settings()) as other:
            member, reader = Replica(), Replica()
            exchange, reads = _exchange(link, member), _exchange(other, reader, "two")
            await exchange.once()
            server.kill()
            member.flows = (flow("a"), flow("b", 1.0))
            await exchange.once()
            member.flows = (flow("b", 2.0),)
            await exchange.once()
            state = exchange.state
            assert [error.kind for error in member.errors] == ["unreachable"] * 2
            assert not state.ok and state.lost_since is not None and state.failures == 2 and state.waiting == 2
            server.start()
            await exchange.once()
            assert state.ok and state.lost_since is None and state.waiting == 0 and member.news[-1].fresh
            await reads.once()
            assert reader.news[-1].of("p").others[0].report.flows == (flow("a"), flow("b", 2.0))
    assert [entry["event"] for entry in logs] == ["cluster_store_lost", "cluster_store_back", "cluster_replicas"]


async def test_a_second_process_with_the_same_id_is_told_and_the_first_one_goes_on(
    server: RedisServer, logs: Any
) -> None:
    async with store(server.settings()) as link:
        mine, theirs = Replica([endpoint(want=3)]), Replica([endpoint(want=16)])
        first, second = _exchange(link, mine, "same"), _exchange(link, theirs, "same")
        await first.once()
        async with _running(second):
            await eventually("it is told", lambda: bool(theirs.errors))
        await first.once()
        assert first.state.ok and not mine.errors and not mine.news[-1].fresh, "the second one's stop did not end it"
        assert theirs.errors[0].kind == "in_use" and "give each its own cluster.replica" in theirs.errors[0].message
        assert second.state.in_use and not theirs.news
    assert [entry["kind"] for entry in logs if entry["event"] == "cluster_store_lost"] == ["in_use"]


async def test_garbage_of_others_is_told_once_and_costs_only_what_it_was(server: RedisServer, logs: Any) -> None:
    async with store(server.settings()) as link:
        member = Replica([endpoint(want=16)])
        exchange = _exchange(link, member)
        good, bad, half = Voice(link, "good"), Voice(link, "bad"), Voice(link, "half")
        fine = codec.message([("p", flow("a"))])
        for _ in range(3):
            await good.exchange(document=codec.document(Replica().tell()[0], {}), message=fine)
            await bad.exchange(at(key("p", "e:1"), inside=5, want=5), document=b"\xff" * 100, message=b"{}")
            await half.exchange(document=codec.document(Replica().tell()[0], {}), message=b"[[1]]")
            server.ask("HSET", KEYS.replicas, "nobody", "x")
            await exchange.once()
        heard = member.news[-1].of("p")
        assert {other.replica: other.report.flows for other in heard.others} == {"good": (flow("a"),), "half": ()}
        assert heard.claims == {"e:1": 11}, "what it claims is the store's to know"
        assert [seen.replica for seen in exchange.state.peers] == ["bad", "good", "half"]
        assert exchange.state.bad == 3 * 3
    said = [entry["error"] for entry in logs if entry["event"] == "cluster_bad_message"]
    assert len(said) == 3
    assert any("the document of replica bad is no JSON" in each for each in said)
    assert any("the message of replica half is not as it should be" in each for each in said)
    assert any("the record of 'nobody'" in each for each in said)


async def test_another_version_is_said_once(server: RedisServer, logs: Any) -> None:
    now = 1000 * int(server.ask("TIME")[0])
    server.ask("HSET", KEYS.versions, "2", f"{now} 60000")
    async with store(server.settings()) as link:
        exchange = _exchange(link, Replica())
        for _ in range(3):
            await exchange.once()
        assert exchange.state.versions == ("2",)
    assert [entry["versions"] for entry in logs if entry["event"] == "cluster_other_version"] == [["2"]]


async def test_more_than_the_store_takes_is_an_error_that_says_so(server: RedisServer) -> None:
    async with store(server.settings()) as link:
        member = Replica([endpoint(f"host-{number}.example:8000") for number in range(10_000)])
        exchange = _exchange(link, member)
        await exchange.once()
        assert "split them over several" in member.errors[0].message and not exchange.state.ok
        member.info = {"what": object()}
        await exchange.once()
        assert "cannot be written" in member.errors[1].message


async def test_no_fault_of_the_member_ends_the_loop(logs: Any) -> None:
    fake, member = FakeStore(), Replica()
    member.is_busy = True
    async with _running(_exchange(fake, member)) as exchange:
        await eventually("it runs", lambda: len(member.news) > 0)
        member.fault = RuntimeError("a fault")
        told = member.told
        await eventually("it goes on", lambda: member.told > told + 2)
        assert exchange.state.error is not None and "a fault" in exchange.state.error.message
        member.fault = None
        heard = len(member.news)
        await eventually("it goes on well", lambda: len(member.news) > heard + 2)
        assert exchange.state.ok
    assert {entry["event"] for entry in logs if entry["log_level"] == "error"} == {"cluster_exchange_fault"}


def _has_failed(exchange: Exchange, times: int) -> bool:
    return exchange.state.failures >= times


async def test_a_fault_in_each_exchange_is_said_once_for_each_place_and_kind(logs: Any) -> None:
    fake, member = FakeStore(), Replica()
    async with _running(_exchange(fake, member)) as exchange:
        member.fault = RuntimeError("a fault")
        for fault in (member.fault, KeyError("another one")):
            member.fault = fault
            enough = exchange.state.failures + 4
            await eventually("some fail", partial(_has_failed, exchange, enough))
    said = [(entry["where"], entry["kind"]) for entry in logs if entry["event"] == "cluster_exchange_fault"]
    assert sorted(said) == [
        (where, kind) for where in ("busy", "exchange", "lost") for kind in ("KeyError", "RuntimeError")
    ]


async def test_an_exchange_that_breaks_off_is_a_failure_and_the_next_is_as_usual() -> None:
    fake, member = FakeStore(), Replica()
    fake.answers = [StoreError("timeout", "slow"), ValueError("odd"), InUse("other", 1.5)]
    observed: list[float] = []
    exchange = _exchange(fake, member, observe=observed.append)
    for _ in range(4):
        await exchange.once()
    assert [error.kind for error in member.errors] == ["timeout", "other", "in_use"]
    assert "within 1.5 s" in member.errors[2].message
    assert exchange.state.failures == 3 and exchange.state.exchanges == 1 and len(observed) == 1


async def test_that_it_was_not_known_is_told_though_that_answer_was_lost(server: RedisServer) -> None:
    """The store is emptied; the exchange after it is done there, and its answer never comes."""
    async with store(server.settings()) as link:
        member = Replica()
        exchange = _exchange(link, member)
        await exchange.once()
        await exchange.once()
        assert [news.fresh for news in member.news] == [True, False]
        server.ask("FLUSHALL")
        ask = link.exchange

        async def unanswered(tell: Tell) -> Any:
            await ask(tell)
            raise StoreError("timeout", "no answer came")

        link.exchange = unanswered  # type: ignore[method-assign]
        await exchange.once()
        link.exchange = ask  # type: ignore[method-assign]
        await exchange.once()
        await exchange.once()
    assert [news.fresh for news in member.news] == [True, False, True, False]


@pytest.mark.slow
async def test_a_slow_store_counts_as_lost_and_a_late_answer_for_nothing(server: RedisServer) -> None:
    async with wall(server) as between, store(between.settings(), timeout_s=0.2) as link:
        member = Replica([endpoint(want=3)])
        member.is_busy = True
        async with _running(_exchange(link, member)) as exchange:
            await eventually("it is heard", lambda: exchange.state.ok)
            between.delay_s = 1.0
            await eventually("lost", lambda: len(member.errors) >= 2 and not exchange.state.ok)
            assert member.errors[-1].kind == "timeout"
            between.delay_s = 0.0
            await eventually("back", lambda: exchange.state.ok)
            assert not member.news[-1].fresh


async def test_a_store_that_is_killed_and_comes_back_empty(tmp_path: Path) -> None:
    with redis_server(tmp_path) as server:
        async with store(server.settings(), timeout_s=1.0) as link, store(server.settings(), timeout_s=1.0) as other:
            members = [Replica([endpoint(want=12)]), Replica([endpoint(want=12)])]
            for member in members:
                member.is_busy = True
            async with (
                _running(_exchange(link, members[0], "one")) as one,
                _running(_exchange(other, members[1], "two")) as two,
            ):
                await eventually("both hear", lambda: all(len(x.state.peers) == 1 for x in (one, two)))
                server.kill()
                await eventually("both have lost it", lambda: not one.state.ok and not two.state.ok)
                server.start()
                await eventually("both hear", lambda: one.state.ok and two.state.ok)
                heard = [len(member.news) for member in members]
                await eventually(
                    "and more", lambda: all(len(m.news) > n + 1 for m, n in zip(members, heard, strict=True))
                )
                claims = [member.news[-1].of("p").claims["e:1"] for member in members]
                assert sum(claims) == 16
