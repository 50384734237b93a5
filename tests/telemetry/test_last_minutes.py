"""The last minutes of a pool: what its points say, and that there are never more than a quarter of an hour of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from extproc.core.events import Arrive, End, EndpointAdded, EndpointRemoved, Reconfigure, Refuse, Release, Scraped
from extproc.core.model import ClassPolicy, Controller, PoolPolicy, Sample, WindowPolicy
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler
from extproc.telemetry.history import SAMPLES, History

A = "10.0.0.1:8000"
B = "10.0.0.2:8000"
UNIX = 1_700_000_000.0  # when the schedulers' clock was 0


def a_class(name: str, rank: int = 0) -> ClassPolicy:
    return ClassPolicy(name, rank, 0, queue_timeout_s=1e6, max_waiting=0, max_queued=1000)


class Pool:
    """A pool of two endpoints with 2 slots each, on a clock that the test moves."""

    def __init__(self, *classes: ClassPolicy) -> None:
        window = WindowPolicy(controller=Controller.FIXED, fixed=2, overtake=0)
        self.policy = PoolPolicy("m", classes or (a_class("chat"),), window=window)
        self.scheduler = Scheduler(self.policy)
        self.now = 100.0
        self.wall = UNIX + 100.0
        self.history = History(clock=lambda: self.wall)
        for endpoint in (A, B):
            self.apply(EndpointAdded(endpoint))
            self.page(endpoint)

    def apply(self, event: Any) -> None:
        self.history.seen("m", self.scheduler.apply(event, self.now))

    def page(self, endpoint: str) -> None:
        self.apply(Scraped(endpoint, Sample(0, 0, None, None, None, None, None, None, self.now)))

    def arrive(self, name: str, cls: str = "chat") -> None:
        self.apply(Arrive(name, "t", cls, self.now, 100))

    def sample(self, seconds: float = 5.0) -> dict[str, Any]:
        self.now += seconds
        self.wall += seconds
        self.history.sample("m", self.scheduler, self.now)
        return self.series

    @property
    def series(self) -> dict[str, Any]:
        series: dict[str, Any] = self.history.plain()["pools"]["m"]
        return series


def released(cls: str, waited_s: float) -> Release:
    return Release("r", A, 0, "t", cls, waited_s)


def refused(cls: str) -> Refuse:
    return Refuse("r", Reason.QUEUE_TIMEOUT, "", 1, "t", cls, 3.0)


# -- what a point says ----------------------------------------------------------------------------


def test_a_point_by_hand() -> None:
    """Six requests for 2 * 2 slots: four go at once, two wait."""
    pool = Pool()
    for i in range(6):
        pool.arrive(f"r{i}")
    assert pool.sample() == {
        "t": [UNIX + 105.0],
        "held": {"chat": [2]},
        "released_per_s": {"chat": [0.8]},  # 4 in 5 s
        "wait_mean_s": {"chat": [0.0]},
        "wait_p95_s": {"chat": [0.0]},
        "in_flight": [4],
        "limit": [4.0],
        "refused_per_s": [0.0],
    }


def test_what_came_to_pass_counts_for_one_point() -> None:
    pool = Pool()
    for i in range(5):
        pool.arrive(f"r{i}")
    pool.sample()
    pool.apply(End("r0"))  # the fifth goes, having waited for 5 s
    series = pool.sample()
    assert series["released_per_s"]["chat"] == [0.8, 0.2]
    assert series["wait_mean_s"]["chat"] == [0.0, 5.0]
    assert series["held"]["chat"] == [1, 0]
    series = pool.sample()
    assert series["released_per_s"]["chat"] == [0.8, 0.2, 0.0]
    assert series["wait_mean_s"]["chat"] == [0.0, 5.0, None]
    assert series["wait_p95_s"]["chat"][2] is None


def test_refusals() -> None:
    pool = Pool()
    pool.history.seen("m", [refused("chat")] * 10)
    pool.sample()
    assert pool.sample()["refused_per_s"] == [2.0, 0.0]


def test_after_a_pause_nothing_is_told_of_it() -> None:
    """Five releases after ten minutes of nothing are five in a step, not in ten minutes."""
    pool = Pool()
    pool.sample()
    pool.now += 600.0
    pool.wall += 600.0
    pool.history.seen("m", [released("chat", 0.0)] * 5)
    assert pool.sample(1.0)["released_per_s"]["chat"] == [0.0, 1.0]


def test_a_removed_endpoint_adds_nothing_to_the_limit() -> None:
    pool = Pool()
    pool.arrive("r0")
    pool.arrive("r1")
    pool.apply(EndpointRemoved(A))
    assert pool.sample(0.5)["limit"] == [2.0]


def test_the_95th_percentile_is_at_most_a_quarter_too_large() -> None:
    """Of 0.1, 0.2 .. 10 s it is 9.5 s."""
    pool = Pool()
    pool.history.seen("m", [released("chat", i / 10) for i in range(1, 101)])
    (p95,) = pool.sample()["wait_p95_s"]["chat"]
    assert 9.5 <= p95 <= min(10.0, 9.5 * 1.25)


@pytest.mark.parametrize(("waited_s", "told"), [(0.0, 0.0), (-1.0, 0.0), (0.0004, 0.0), (3.0, 3.0), (5000.0, 5000.0)])
def test_of_one_wait_the_percentile_is_that(waited_s: float, told: float) -> None:
    pool = Pool()
    pool.history.seen("m", [released("chat", waited_s)])
    series = pool.sample()
    assert series["wait_p95_s"]["chat"] == [told]
    assert series["wait_mean_s"]["chat"] == [told]


def test_of_twenty_waits_the_longest_one_is_left_out() -> None:
    """19 of 20 are 95 in 100."""
    pool = Pool()
    pool.history.seen("m", [*[released("chat", 1.0)] * 19, released("chat", 100.0)])
    (p95,) = pool.sample()["wait_p95_s"]["chat"]
    assert 1.0 <= p95 <= 1.25


def test_it_is_json() -> None:
    pool = Pool()
    pool.arrive("r0")
    pool.sample()
    assert json.loads(json.dumps(pool.history.plain())) == pool.history.plain()
    assert pool.history.plain()["step_s"] == 5.0


# -- classes and pools that come and go -----------------------------------------------------------


def test_a_class_that_comes_has_no_figures_before_and_one_that_goes_none_after() -> None:
    pool = Pool(a_class("chat"), a_class("old", 1))
    pool.sample()
    pool.apply(Reconfigure(replace(pool.policy, classes=(a_class("chat"), a_class("new", 1)))))
    assert pool.sample()["held"] == {"chat": [0, 0], "old": [0, None], "new": [None, 0]}
    for _ in range(SAMPLES):
        pool.sample()
    assert set(pool.series["held"]) == set(pool.series["wait_p95_s"]) == {"chat", "new"}


def test_a_pool_that_is_gone_goes() -> None:
    pool = Pool()
    pool.sample()
    pool.history.sample("other", pool.scheduler, pool.now)
    pool.history.keep(["m"])
    assert list(pool.history.plain()["pools"]) == ["m"]


def test_a_pool_without_a_point_is_not_told_of() -> None:
    pool = Pool()
    pool.arrive("r0")
    assert pool.history.plain() == {"step_s": 5.0, "pools": {}}


# -- bounds and clocks ----------------------------------------------------------------------------


def columns(series: dict[str, Any]) -> list[list[Any]]:
    found = []
    for column in series.values():
        found += column.values() if isinstance(column, dict) else [column]
    return found


def test_no_more_than_a_quarter_of_an_hour_is_kept() -> None:
    pool = Pool(a_class("chat"), a_class("batch", 1))
    for _ in range(500):
        pool.sample()
    assert {len(column) for column in columns(pool.series)} == {180}
    assert pool.series["t"][0] == pool.series["t"][-1] - 179 * 5.0


def test_what_is_old_goes_after_a_pause_too() -> None:
    pool = Pool()
    for _ in range(10):
        pool.sample()
    pool.sample(870.0)
    # The points of 105 .. 150 s; it is 1020 s: those before 120 s are too old.
    assert pool.series["t"] == [UNIX + at for at in (120, 125, 130, 135, 140, 145, 150, 1020)]
    assert {len(column) for column in columns(pool.series)} == {8}


def test_a_clock_that_is_set_takes_the_past_with_it() -> None:
    pool = Pool()
    pool.sample()
    pool.wall -= 3600.0
    series = pool.sample()
    assert series["t"] == [UNIX + 105.0 - 3600.0, UNIX + 110.0 - 3600.0]


def test_a_clock_that_is_a_little_off_makes_no_jumps() -> None:
    pool = Pool()
    pool.sample()
    pool.wall += 0.4
    assert pool.sample()["t"] == [UNIX + 105.0, UNIX + 110.0]
