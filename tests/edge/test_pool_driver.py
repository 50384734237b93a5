"""The scheduler on the event loop: who is woken, when the timer is armed, and that clean-up cannot fail."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest
from envoy_by_messages import ENGINE, Recording, a_config, an_idle_page

from extproc.core.events import Arrive, EndpointShare, Refuse, Release, Settled, Synced, Tick, Usage
from extproc.core.model import Source
from extproc.core.reasons import Reason
from extproc.core.windows import Stance
from extproc.edge.driver import PoolDriver


class Clock:
    """Both clocks of a driver: its own, and a loop that keeps what it is asked to call later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.armed: list[tuple[float, Any, Handle]] = []
        monkeypatch.setattr(PoolDriver, "now", staticmethod(lambda: self.now))

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay: float, call: Any) -> Handle:
        handle = Handle()
        self.armed.append((self.now + delay, call, handle))
        return handle

    @property
    def due(self) -> list[float]:
        """When the timers that are armed now will fire."""
        return [at for at, _, handle in self.armed if not handle.over]

    def to(self, now: float) -> int:
        """Time passes until `now`; what is due fires. Returns how many times something did."""
        fired = 0
        while due := [entry for entry in self.armed if not entry[2].over and entry[0] <= now]:
            at, call, handle = min(due, key=lambda entry: entry[0])
            handle.over = True
            self.now = max(self.now, at)
            call()
            fired += 1
            assert fired < 100, "a timer that fires for ever"
        self.now = now
        return fired


class Handle:
    def __init__(self) -> None:
        self.over = False

    def cancel(self) -> None:
        self.over = True


class Driven:
    def __init__(self, clock: Any, **config: Any) -> None:
        made = a_config(
            classes={"default": {"rank": 1, "priority": 0, "max_waiting": 0, "queue_timeout": "60s"}}, **config
        )
        self.recorder = Recording()
        self.driver = PoolDriver(made.pool_policy(made.pools[0]), [ENGINE], clock, self.recorder)
        self.driver.scraped(ENGINE, an_idle_page())
        self._count = 0

    def arrive(self, **fields: Any) -> tuple[str, asyncio.Future[Any]]:
        self._count += 1
        values: dict[str, Any] = {"arrival": self.driver.now(), "body_bytes": 10, **fields}
        return str(self._count), self.driver.arrive(Arrive(str(self._count), "a", "default", **values))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


# -- the timer ------------------------------------------------------------------------------------


async def test_nothing_is_armed_while_nothing_waits(clock: Clock) -> None:
    it = Driven(clock)
    it.driver.scraped(ENGINE, an_idle_page())
    it.driver.scrape_failed(ENGINE, refused=False)
    it.driver.usage(Usage("unknown", Source.TIME))
    it.driver.end("unknown")
    assert clock.armed == []


async def test_a_request_inside_the_engine_has_no_deadline(clock: Clock) -> None:
    it = Driven(clock)
    it.arrive()
    assert clock.to(1e6) <= 1  # the one that was armed on its arrival may find nothing due
    assert clock.due == []
    assert it.driver.busy


async def test_the_timer_is_armed_for_the_earliest_deadline_only(clock: Clock) -> None:
    it = Driven(clock)
    it.arrive()
    it.arrive()
    assert clock.due == [160.0]
    clock.now = 110.0
    it.arrive()
    assert clock.due == [160.0]
    it.arrive(timeout_s=5.0)
    assert clock.due == [115.0]
    assert len(clock.armed) == 2  # and not once for each event


async def test_an_expiry_wakes_its_waiter_and_arms_the_next(clock: Clock) -> None:
    it = Driven(clock)
    it.arrive()
    _, first = it.arrive()
    clock.now = 110.0
    _, second = it.arrive()
    clock.to(159.9)
    assert not first.done()
    clock.to(160.1)
    verdict = await first
    assert isinstance(verdict, Refuse)
    assert (verdict.reason, verdict.waited_s) == (Reason.QUEUE_TIMEOUT, pytest.approx(60.0))
    assert not second.done()
    assert clock.due == [170.0]
    clock.to(171.0)
    assert (await second).reason is Reason.QUEUE_TIMEOUT
    assert clock.due == []


async def test_the_grace_of_a_missing_usage_ends_by_itself(clock: Clock) -> None:
    it = Driven(clock)
    name, _ = it.arrive()
    it.driver.end(name)
    assert it.driver.busy
    clock.to(104.9)
    assert it.driver.busy
    clock.to(105.1)
    assert not it.driver.busy
    assert isinstance(it.recorder.decided[-1], Settled)
    clock.to(1e6)
    assert clock.due == []


async def test_a_timer_that_fires_early_waits_on(clock: Clock) -> None:
    """A loop's clock and the scheduler's are two."""
    it = Driven(clock)
    it.arrive()
    _, waiter = it.arrive()
    _, call, handle = clock.armed[-1]
    handle.over = True
    clock.now = 159.5
    call()
    assert not waiter.done()
    assert clock.due == [160.0]


async def test_a_tick_that_fails_again_and_again_does_not_spin(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    it = Driven(clock)
    it.arrive()
    _, waiter = it.arrive()
    real = it.driver.scheduler.apply

    def apply(event: Any, now: float) -> Any:
        if isinstance(event, Tick):
            raise RuntimeError("planted")
        return real(event, now)

    with monkeypatch.context() as broken:
        broken.setattr(it.driver.scheduler, "apply", apply)
        assert 1 <= clock.to(165.0) <= 6  # about one in a second
    assert it.recorder.count("fault", "scheduler") == len([e for e in logs if e["event"] == "scheduler_fault"]) >= 1
    assert not waiter.done()
    clock.to(167.0)  # and it is found when the fault is over
    assert (await waiter).reason is Reason.QUEUE_TIMEOUT


async def test_close_disarms(clock: Clock) -> None:
    it = Driven(clock)
    it.driver.close()
    it.arrive()
    it.arrive()
    assert clock.due == [160.0]
    it.driver.close()
    assert clock.due == []


async def test_expiry_on_the_real_clock() -> None:
    it = Driven(asyncio.get_running_loop())
    it.arrive()
    began = time.monotonic()
    _, waiter = it.arrive(timeout_s=0.02)
    async with asyncio.timeout(5):
        verdict = await waiter
    assert verdict.reason is Reason.QUEUE_TIMEOUT
    assert time.monotonic() - began >= 0.02
    it.driver.close()


# -- waiters --------------------------------------------------------------------------------------


async def test_verdicts_that_are_there_at_once(clock: Clock) -> None:
    it = Driven(clock, tenants={"*": {"max_queued": 1}})
    waiters = [it.arrive()[1] for _ in range(3)]
    assert [w.done() for w in waiters] == [True, False, True]
    assert isinstance(waiters[0].result(), Release)
    assert waiters[2].result().reason is Reason.TENANT_LIMIT


async def test_an_end_releases_the_next(clock: Clock) -> None:
    it = Driven(clock)
    first, _ = it.arrive()
    second, waiter = it.arrive()
    clock.now = 103.0
    it.driver.end(first)
    assert (waiter.result().id, waiter.result().waited_s) == (second, 3.0)


async def test_a_page_releases(clock: Clock) -> None:
    it = Driven(clock)
    it.driver.scrape_failed(ENGINE, refused=True)
    assert it.driver.scheduler.windows[ENGINE].stance(clock.now) is Stance.DOWN
    _, waiter = it.arrive()
    assert not waiter.done()
    it.driver.scraped(ENGINE, an_idle_page())
    assert waiter.result().endpoint == ENGINE


async def test_a_waiter_that_was_cancelled_is_stepped_over(clock: Clock) -> None:
    it = Driven(clock)
    first, _ = it.arrive()
    second, waiter = it.arrive()
    waiter.cancel()
    it.driver.end(first)  # releases the second, whose stream has not cleaned up yet
    it.driver.end(second)
    assert sum(it.driver.scheduler.inside.values()) == 0
    assert it.recorder.told == [("release", "sim"), ("release", "sim")]


async def test_the_end_of_a_held_request_cancels_its_waiter_and_is_counted(clock: Clock) -> None:
    it = Driven(clock)
    it.arrive()
    name, waiter = it.arrive()
    it.driver.end(name)
    it.driver.end(name)  # twice does no harm
    assert waiter.cancelled()
    assert it.recorder.count("cancelled", "sim") == 1


async def test_the_first_request_and_the_first_that_waits_wake_the_readers(clock: Clock) -> None:
    it = Driven(clock)
    calls: list[str] = []
    it.driver.add_endpoint("10.0.0.1:8000", lambda: calls.append("a"))
    it.driver.add_endpoint("10.0.0.2:8000", lambda: calls.append("b"))
    name, _ = it.arrive()
    assert calls == ["a", "b"]
    it.arrive()
    assert calls == ["a", "b"] * 2
    it.arrive()
    it.driver.end(name)
    assert calls == ["a", "b"] * 2


async def test_a_release_is_told_to_the_reader_of_its_endpoint(clock: Clock) -> None:
    it = Driven(clock)
    calls: list[str] = []
    it.driver.add_endpoint(ENGINE, on_release=lambda: calls.append("released"))
    it.arrive()
    it.arrive()
    assert calls == ["released"]
    it.driver.remove_endpoint(ENGINE)
    assert it.driver.stance(ENGINE) is None


async def test_readings_matter_while_something_is_held_or_runs_there(clock: Clock) -> None:
    it = Driven(clock)
    other = "10.9.9.9:1"
    it.driver.add_endpoint(other)
    assert not it.driver.busy_at(ENGINE)
    name, _ = it.arrive()
    assert [it.driver.busy_at(each) for each in (ENGINE, other)] == [True, False]
    held, _ = it.arrive()
    assert [it.driver.busy_at(each) for each in (ENGINE, other)] == [True, True]
    it.driver.end(held)
    it.driver.end(name)
    assert [it.driver.busy_at(each) for each in (ENGINE, other)] == [False, False]


async def test_emptied_waits_for_held_and_inside_and_not_for_usage(clock: Clock) -> None:
    it = Driven(clock)
    await it.driver.emptied()
    first, _ = it.arrive()
    second, _ = it.arrive()
    emptied = asyncio.ensure_future(it.driver.emptied())
    for name in (first, second):
        await asyncio.sleep(0)
        assert not emptied.done()
        it.driver.end(name)
    async with asyncio.timeout(5):
        await emptied
    assert it.driver.busy  # their usage may still come


@pytest.mark.parametrize("call", ["end", "usage", "scraped", "scrape_failed"])
async def test_what_is_called_from_clean_up_and_loops_does_not_raise(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, logs: list[Any], call: str
) -> None:
    it = Driven(clock)

    def apply(*_: Any) -> Any:
        raise RuntimeError("planted")

    monkeypatch.setattr(it.driver.scheduler, "apply", apply)
    args: dict[str, tuple[Any, ...]] = {
        "end": ("x",),
        "usage": (Usage("x", Source.TIME),),
        "scraped": (ENGINE, an_idle_page()),
        "scrape_failed": (ENGINE, True),
    }
    getattr(it.driver, call)(*args[call])
    assert it.recorder.told == [("fault", "scheduler")]
    assert [entry["event"] for entry in logs] == ["scheduler_fault"]


async def test_an_arrival_that_fails_raises_and_leaves_no_waiter(clock: Clock) -> None:
    it = Driven(clock)
    with pytest.raises(ValueError, match="class 'x' is not one of"):
        it.driver.arrive(Arrive("1", "a", "x", clock.now, 10))
    assert it.driver._waiters == {}
    assert not it.driver.busy


class Written:
    """A tape that keeps the kinds of events."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.closed = False

    def write(self, event: Any, now: float, effects: Any, raised: str | None = None) -> None:  # noqa: ARG002
        self.events.append(type(event).__name__)

    def close(self) -> None:
        self.closed = True


async def test_a_tape_is_changed_between_two_events_and_the_old_one_is_the_caller_s(clock: Clock) -> None:
    it = Driven(clock)
    first, second = Written(), Written()
    assert it.driver.set_tape(first) is None
    name, _ = it.arrive()
    assert it.driver.set_tape(second) is first
    it.driver.end(name)
    assert it.driver.set_tape(None) is second
    it.arrive()
    assert (first.events, second.events, first.closed, second.closed) == (["Arrive"], ["End"], False, False)
    it.driver.close()
    assert not second.closed


async def test_what_an_observer_does_is_not_written_down(clock: Clock) -> None:
    it = Driven(clock)
    tape = Written()
    it.driver.set_tape(tape)
    it.driver.observe(True)
    observer = it.driver.observer
    assert observer is not None
    observer.watch(Arrive("1", "a", "default", clock.now, 10))
    observer.end("1")
    assert tape.events == []
    it.driver.close()


# -- other replicas -------------------------------------------------------------------------------

SHARED = {"mode": "shared", "store": {"addresses": ["127.0.0.1:6379"]}}


def synced(claim: float, others: int = 0) -> Synced:
    return Synced(2, math.inf, (EndpointShare(ENGINE, claim, others),))


async def test_a_pool_that_is_shared_waits_for_word_and_asks_for_it(clock: Clock) -> None:
    it = Driven(clock, cluster=SHARED, pool={"window": {"controller": "fixed", "fixed": 4, "overtake": 0}})
    asked: list[float] = []
    it.driver.on_busy = lambda: asked.append(clock.now)
    _, first = it.arrive()
    _, second = it.arrive()
    assert (first.done(), second.done(), asked) == (False, False, [100.0])  # and not for each that comes
    it.driver.synced(synced(1))
    assert (first.done(), second.done()) == (True, False)
    it.driver.synced(synced(2))
    assert isinstance(second.result(), Release)
    clock.now = 101.0
    it.arrive()  # it has to wait, as the first one now
    assert asked == [100.0, 101.0]


async def test_readings_matter_where_only_others_have_something(clock: Clock) -> None:
    it = Driven(clock, cluster=SHARED)
    assert not it.driver.busy_at(ENGINE)
    it.driver.synced(synced(0, others=3))
    assert it.driver.busy_at(ENGINE)
    it.driver.synced(synced(0))
    assert not it.driver.busy_at(ENGINE)


async def test_what_is_observed_is_of_this_replica_alone(clock: Clock) -> None:
    """Nobody tells an observer of the others: it would wait for word for ever."""
    it = Driven(clock, cluster=SHARED)
    it.driver.observe(True)
    assert it.driver.observer is not None
    it.driver.observer.watch(Arrive("x", "a", "default", clock.now, 10))
    assert it.driver.observer.scheduler.queued == 0
    it.driver.synced(synced(2))
    assert it.driver.observer.scheduler.shared is None
    assert it.recorder.count("fault", "observer") == 0
