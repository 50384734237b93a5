"""When the sampler wakes up, and what it does then. The event loop's clock is the test's."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from extproc.core.events import Arrive, End, EndpointAdded, Scraped, Usage
from extproc.core.fairness import Fairness
from extproc.core.model import ClassPolicy, Controller, PoolPolicy, Sample, Source, WindowPolicy
from extproc.core.scheduler import Scheduler
from extproc.telemetry import sampler as module
from extproc.telemetry.change_log import ChangeLog
from extproc.telemetry.history import History
from extproc.telemetry.sampler import Sampler, Watched

ENDPOINT = "10.0.0.1:8000"


class Timer:
    def __init__(self, when: float, call: Callable[[], None]) -> None:
        self._when, self.call, self.cancelled = when, call, False

    def when(self) -> float:
        return self._when

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """As much of an event loop as the sampler may use."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self.calls = 0  # of anything
        self.fired: list[float] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def time(self) -> float:
        self.calls += 1
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        self.calls += 1
        timer = Timer(self.now + delay, call)
        heapq.heappush(self._timers, (timer.when(), next(self._numbers), timer))
        return timer

    @property
    def armed(self) -> int:
        return sum(not timer.cancelled for _, _, timer in self._timers)

    def run_until(self, until: float, late_s: float = 0.0) -> None:
        while self._timers and self._timers[0][0] + late_s <= until:
            due, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                self.now = due + late_s
                self.fired.append(self.now)
                timer.call()
        self.now = until


class Case:
    """One pool with an endpoint of two slots, on the loop's clock."""

    def __init__(self, classes: int = 1, **options: Any) -> None:
        window = WindowPolicy(controller=Controller.FIXED, fixed=2, overtake=0)
        policies = tuple(ClassPolicy(f"c{i}", i, 0, 1e6, 0, 1000) for i in range(classes))
        self.loop = Loop()
        self.scheduler = Scheduler(PoolPolicy("m", policies, window=window))
        self.scheduler.apply(EndpointAdded(ENDPOINT), self.loop.now)
        self.faults: list[str] = []
        self.pools = [Watched("m", self.scheduler, lambda: self.loop.now)]
        history = History(clock=lambda: 1.7e9 + self.loop.now)
        options = {"pools": lambda: self.pools, "fault": self.faults.append, "history": history} | options
        self.sampler = Sampler(cast(asyncio.AbstractEventLoop, self.loop), **options)
        self.page()

    def event(self, event: Any) -> None:
        """As the journal does."""
        self.sampler.wake()
        effects = self.scheduler.apply(event, self.loop.now)
        self.sampler.history.seen("m", effects)

    def page(self) -> None:
        self.event(Scraped(ENDPOINT, Sample(0, 0, None, None, None, None, None, None, self.loop.now)))

    def arrive(self, name: str, tenant: str = "t", cls: str = "c0") -> None:
        self.event(Arrive(name, tenant, cls, self.loop.now, 100))

    def end(self, name: str) -> None:
        self.event(End(name))
        self.event(Usage(name, Source.USAGE, 10, 0, 10))

    @property
    def series(self) -> dict[str, Any]:
        series: dict[str, Any] = self.sampler.history.plain()["pools"]["m"]
        return series


def at_rest(**options: Any) -> Case:
    """Nothing has come for a minute."""
    case = Case(**options)
    case.loop.run_until(1060.0)
    case.loop.fired.clear()
    return case


# -- when it wakes up -----------------------------------------------------------------------------


def test_nothing_wakes_up_before_anything_happens() -> None:
    loop = Loop()
    Sampler(cast(asyncio.AbstractEventLoop, loop), lambda: ())
    assert (loop.calls, loop.armed) == (0, 0)


@pytest.mark.parametrize("tenth", range(0, 110, 3))
def test_after_the_end_of_traffic_two_more_ticks_come_at_most_and_then_none(tenth: int) -> None:
    """Whenever it ends within a step or a second."""
    case = at_rest()
    for i in range(30):
        case.arrive(f"r{i}")
        case.loop.run_until(case.loop.now + tenth / 100)
        case.end(f"r{i}")
    case.loop.run_until(case.loop.now + tenth / 10)
    case.arrive("last")
    case.loop.run_until(case.loop.now + 0.05)
    case.end("last")
    end = case.loop.now
    case.loop.run_until(end + 3600.0)
    assert 1 <= sum(at > end for at in case.loop.fired) <= 2
    assert case.loop.armed == 0
    assert (case.series["held"]["c0"][-1], case.series["in_flight"][-1]) == (0, 0)
    # And no release is left for a point that never comes.
    assert case.sampler.history._pools["m"].waits == {}


def test_wake_is_one_comparison_but_for_the_first_time_after_a_tick() -> None:
    case = at_rest()
    case.sampler.wake()
    assert case.loop.armed == 1
    calls = case.loop.calls
    for _ in range(10_000):
        case.sampler.wake()
    assert case.loop.calls == calls


def test_it_ticks_each_second_while_a_request_is_in_the_books_though_nothing_comes() -> None:
    case = at_rest()
    case.arrive("r")
    case.loop.run_until(1070.5)
    assert case.loop.fired == [1061.0 + i for i in range(10)]
    assert case.series["in_flight"][-2:] == [1, 1]
    assert case.series["t"][-1] - case.series["t"][-2] == 5.0


def test_one_sample_for_each_step_of_five_seconds() -> None:
    case = at_rest()
    before = len(case.series["t"])
    case.arrive("r")
    case.loop.run_until(1120.9)
    # Steps from 1060 to 1120; the first tick comes at 1061.
    assert len(case.series["t"]) == before + 13


def test_pages_of_idle_engines_make_no_more_than_one_sample_a_step() -> None:
    """Every two seconds, as of an idle pool."""
    case = at_rest()
    before = len(case.series["t"])
    for _ in range(300):
        case.page()
        case.loop.run_until(case.loop.now + 2.0)
    assert len(case.series["t"]) - before <= 600 / 5 + 1
    assert len(case.loop.fired) <= 301
    case.loop.run_until(case.loop.now + 10.0)
    assert case.loop.armed == 0


def test_what_comes_while_the_last_tick_is_awaited_is_looked_at_within_a_second() -> None:
    case = at_rest()
    case.arrive("r")
    case.end("r")
    case.loop.run_until(1061.1)  # the next tick is that of 1065
    case.arrive("s")
    assert case.loop.armed == 1
    case.loop.run_until(1062.2)
    assert case.loop.fired == [1061.0, pytest.approx(1062.1)]


def test_closed_it_does_nothing_any_more() -> None:
    case = at_rest()
    case.arrive("r")
    case.sampler.close()
    case.sampler.close()
    case.sampler.wake()
    case.loop.run_until(2000.0)
    assert (case.loop.fired, case.loop.armed) == ([], 0)


def test_closed_while_nothing_happens_it_is_not_woken() -> None:
    case = at_rest()
    case.sampler.close()
    case.arrive("r")
    assert case.loop.armed == 0


def test_closed_from_within_a_tick() -> None:
    case = Case()
    case.sampler._ticks = (lambda _: case.sampler.close(),)
    case.loop.run_until(2000.0)
    assert (len(case.loop.fired), case.loop.armed) == (1, 0)


# -- what a tick does -----------------------------------------------------------------------------


def test_lag_is_how_late_a_tick_is() -> None:
    lags: list[float] = []
    case = Case(lag=lags.append)
    case.arrive("r")
    case.loop.run_until(1001.0)
    case.loop.run_until(1002.5, late_s=0.25)
    assert lags == [pytest.approx(0.0), pytest.approx(0.25)]


def test_ticks_get_the_loop_s_time() -> None:
    ticks: list[float] = []
    case = Case(ticks=[ticks.append])
    case.arrive("r")
    case.loop.run_until(1003.5)
    assert ticks == [1001.0, 1002.0, 1003.0]


def test_a_tick_that_fails_is_counted_told_once_a_minute_and_stops_nobody() -> None:
    ticks: list[float] = []

    def fails(_: float) -> None:
        raise RuntimeError("planted")

    with capture_logs() as lines:
        case = Case(ticks=[fails, ticks.append])
        case.arrive("r")
        case.loop.run_until(1119.5)
    assert len(ticks) == len(case.faults) == 119
    assert set(case.faults) == {"telemetry"}
    assert [(line["event"], line["log_level"]) for line in lines] == [("telemetry_fault", "error")] * 2
    assert len(case.series["t"]) == 24


def test_when_pools_cannot_be_told_it_still_ends() -> None:
    def pools() -> list[Watched]:
        raise RuntimeError("planted")

    case = Case(pools=pools)
    case.loop.run_until(1100.0)
    assert len(case.loop.fired) <= 2
    assert case.loop.armed == 0
    assert case.faults


def test_a_pool_that_fails_does_not_stop_the_others() -> None:
    def leaked() -> int:
        raise RuntimeError("planted")

    case = Case(changes=ChangeLog())
    case.pools.insert(0, Watched("bad", case.scheduler, lambda: case.loop.now, leaked))
    case.arrive("r")
    case.loop.run_until(1001.5)
    assert case.series["in_flight"] == [1]
    assert case.faults == ["telemetry"]


def test_changes_are_told_with_the_leaks() -> None:
    with capture_logs() as lines:
        case = Case(changes=ChangeLog())
        case.pools[0] = Watched("m", case.scheduler, lambda: case.loop.now, lambda: 3)
        case.arrive("r")
        case.loop.run_until(1030.0)
    (line,) = [line for line in lines if line["event"] == "slots leaked"]
    assert (line["pool"], line["requests"]) == ("m", 3)


# -- fairness -------------------------------------------------------------------------------------


def busy(case: Case, tenants: int = 2, cls: str = "c0") -> None:
    """Both slots are taken by others; then two requests of each tenant wait."""
    if not case.scheduler.requests:
        case.arrive("x", "x", cls)
        case.arrive("y", "y", cls)
    for i in range(tenants):
        for turn in "ab":
            case.arrive(f"{cls}{i}{turn}", f"t{i}", cls)


def test_fairness_by_pool_and_class() -> None:
    case = Case(classes=2)
    busy(case)
    case.loop.run_until(1004.5)
    assert case.sampler.fairness() == {"m": {}}  # one look
    case.loop.run_until(1006.5)
    assert case.sampler.fairness() == {"m": {"c0": Fairness(2, 1.0, 0.0)}}


def test_fairness_of_what_is_over_is_not_told() -> None:
    case = Case()
    busy(case)
    case.loop.run_until(1010.5)
    assert case.sampler.fairness()["m"]
    for name in list(case.scheduler.requests):
        case.end(name)
    case.loop.run_until(1100.0)
    assert case.sampler.fairness() == {"m": {}}


def test_a_pool_or_class_that_is_gone_goes() -> None:
    case = Case()
    busy(case)
    case.loop.run_until(1010.5)
    case.pools.clear()
    case.loop.run_until(1020.0)
    assert case.sampler.fairness() == {}
    assert case.sampler.history.plain()["pools"] == {}


def test_many_tenants_are_looked_at_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three classes of three tenants, three children in a tick: one class each at 1001, 1002 and 1003 s, and again
    from 1005 s on."""
    monkeypatch.setattr(module, "LOOKED_AT", 3)
    case = Case(classes=3)
    for i in range(3):
        busy(case, 3, f"c{i}")
    for until, known in ((1004.5, set()), (1005.5, {"c0"}), (1006.5, {"c0", "c1"}), (1007.5, {"c0", "c1", "c2"})):
        case.loop.run_until(until)
        assert set(case.sampler.fairness()["m"]) == known


def test_a_round_begins_when_all_have_had_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight classes one a second: a round of eight seconds, though a step has five."""
    monkeypatch.setattr(module, "LOOKED_AT", 1)
    case = Case(classes=8)
    for i in range(8):
        busy(case, 2, f"c{i}")
    case.loop.run_until(1100.5)
    assert len(case.sampler._to_look) <= 8
    assert set(case.sampler.fairness()["m"]) == {f"c{i}" for i in range(8)}


# -- the real loop --------------------------------------------------------------------------------


@pytest.mark.slow
async def test_on_the_real_loop() -> None:
    loop = asyncio.get_running_loop()
    ticked, lags = asyncio.Event(), list[float]()
    sampler = Sampler(loop, lambda: (), lags.append, [lambda _: ticked.set()])
    try:
        sampler.wake()
        await asyncio.wait_for(ticked.wait(), 10.0)
        assert len(lags) == 1
        assert lags[0] >= 0.0
    finally:
        sampler.close()
