"""How often each of several replicas reads a page, and when a window takes a page for old then."""

from __future__ import annotations

import math

import pytest
from scheduler_case import E1, E2, Case, a_fixed_pool
from window_case import Bench

from extproc.core.events import EndpointAdded, EndpointShare, Synced
from extproc.core.model import Controller, WindowPolicy
from extproc.core.windows import Stance, renewed
from extproc.core.windows.pages import stretch


def word(replicas: int, lost_since: float | None = None) -> Synced:
    return Synced(replicas, math.inf, (EndpointShare(E1, 4.0, 0), EndpointShare(E2, 4.0, 0)), lost_since=lost_since)


def stretches(case: Case) -> set[float]:
    return {window.stretch for window in case.scheduler.windows.values()}


@pytest.mark.parametrize(
    ("replicas", "interval", "idle", "times"),
    [
        (1, 0.25, 4.0, 1.0),
        (2, 0.25, 4.0, 1.0),
        (3, 0.25, 4.0, 1.5),
        (8, 0.25, 4.0, 4.0),
        (64, 0.25, 4.0, 4.0),  # a second
        (64, 0.25, 0.5, 2.0),  # no more seldom than where nothing is to be done
        (64, 0.02, 4.0, 32.0),
        (64, 2.0, 4.0, 1.0),  # it is configured to be longer than a second
        (64, 0.25, 0.25, 1.0),
        (10**12, 0.25, 4.0, 4.0),
        (-1, 0.25, 4.0, 1.0),
    ],
)
def test_together_as_many_as_two_and_at_most_a_second_apart(
    replicas: int, interval: float, idle: float, times: float
) -> None:
    policy = WindowPolicy(scrape_interval_s=interval, idle_scrape_interval_s=idle)
    assert stretch(replicas, policy) == pytest.approx(times)


def at_work(replicas: int) -> Bench:
    bench = Bench(scrape_interval_s=0.25, idle_scrape_interval_s=4.0)
    bench.window.share(4.0, 0, 0, math.inf, bench.now)
    bench.window.read_by(replicas)
    bench.take()
    return bench


@pytest.mark.parametrize(("replicas", "fresh_s"), [(1, 1.25), (2, 1.25), (4, 2.0), (8, 3.5), (64, 3.5)])
def test_a_page_is_old_after_three_of_its_intervals_and_half_a_second(replicas: int, fresh_s: float) -> None:
    bench = at_work(replicas)
    bench.page(running=1)
    bench.later(fresh_s - 0.01)
    assert bench.window.stance(bench.now) is Stance.FRESH
    assert bench.accepts()
    bench.later(0.02)
    assert bench.window.stance(bench.now) is Stance.STALE


def test_one_more_or_less_counts_for_the_page_that_is_there() -> None:
    bench = at_work(8)
    bench.later(2.0)
    assert bench.window.stance(bench.now) is Stance.FRESH
    limit = bench.window.limit(3.0, bench.now)
    bench.window.read_by(2)
    assert bench.window.stance(bench.now) is Stance.STALE
    assert bench.window.limit(3.0, bench.now) < limit  # R alone: an old page allows no standing queue
    bench.window.read_by(8)
    assert bench.window.limit(3.0, bench.now) == limit


def test_another_controller_knows_how_many_read() -> None:
    bench = at_work(8)
    other = renewed(bench.window, WindowPolicy(controller=Controller.FIXED, idle_scrape_interval_s=4.0), [], bench.now)
    assert other.stretch == 4.0


def test_the_word_of_the_others_says_how_many_live_and_the_last_one_holds_without_the_store() -> None:
    case = Case(a_fixed_pool(slots=4, shared=True))
    assert stretches(case) == {1.0}
    case.apply(word(8))
    assert stretches(case) == {4.0}
    case.apply(word(1, lost_since=case.now))
    assert stretches(case) == {4.0}
    case.apply(EndpointAdded(E2))
    case.apply(word(6))
    assert stretches(case) == {3.0}
    case.apply(word(1))
    assert stretches(case) == {1.0}
