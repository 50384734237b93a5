"""What all controllers share beyond `test_window_first`: gates, outages, bad pages, another policy; and the two
baselines that learn nothing."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_case import Bench, Q, a_request

from extproc.core.model import Controller, Gates, Outage, WindowPolicy
from extproc.core.windows import Adaptive, First, Fixed, Stance, Threshold, make_window, renewed

ALL = list(Controller)
LEARNING = [Controller.ADAPTIVE, Controller.FIRST]


@pytest.mark.parametrize(
    ("controller", "kind"),
    [
        (Controller.ADAPTIVE, Adaptive),
        (Controller.FIRST, First),
        (Controller.THRESHOLD, Threshold),
        (Controller.FIXED, Fixed),
    ],
)
def test_the_policy_names_the_controller(controller: Controller, kind: type) -> None:
    window = make_window("10.0.0.1:8000", WindowPolicy(controller=controller), 5.0)
    assert type(window) is kind
    assert (window.endpoint, window.view(5.0).controller, window.stance(5.0)) == (
        "10.0.0.1:8000",
        controller.value,
        Stance.STARTING,
    )


# -- what holds for all ---------------------------------------------------------------------------


@pytest.mark.parametrize("controller", ALL)
def test_with_nothing_inside_one_goes_whatever_its_size(controller: Controller) -> None:
    bench = Bench(controller=controller, fixed=4)
    bench.page(running=0, waiting=0, kv_usage=0.99, kv_capacity_tokens=1_000)
    assert bench.accepts(128, prompt=1e6, output=1e5)
    bench.go(a_request(128, prompt=1e6, output=1e5))
    assert bench.window.in_flight == 128


@pytest.mark.parametrize("controller", ALL)
def test_removed_starting_and_down_take_nothing_and_say_so(controller: Controller) -> None:
    bench = Bench(controller=controller, read=False)
    assert not bench.accepts()
    assert bench.window.limit(Q, bench.now) == 0.0
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.note) == ("stance", "starting")
    bench.page()
    assert bench.accepts()
    assert bench.window.why_not(a_request(), Q, bench.now) is None
    bench.window.on_failure(refused=True)
    assert not bench.accepts()
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.note) == ("stance", "down")
    bench.page()
    bench.window.removed = True
    assert not bench.accepts()
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.note) == ("stance", "removed")
    bench.window.revive(bench.now)
    assert bench.stance is Stance.STARTING


@pytest.mark.parametrize("controller", ALL)
def test_ends_come_down_to_zero_and_no_further(controller: Controller) -> None:
    bench = Bench(controller=controller, fixed=5)
    bench.take(3)
    bench.free(3)
    assert bench.window.in_flight == 0
    with pytest.raises(AssertionError, match="in flight -1"):
        bench.window.free(a_request(), bench.now)


@pytest.mark.parametrize("controller", ALL)
def test_an_outage_may_be_told_to_hold_everything(controller: Controller) -> None:
    bench = Bench(controller=controller, outage=Outage.HOLD)
    bench.later(31.0)
    assert bench.stance is Stance.OUTAGE
    assert bench.room() == 0
    assert bench.window.limit(Q, bench.now) == 0.0
    assert not bench.may_overtake()
    bench.page()
    assert bench.accepts()


@pytest.mark.parametrize(("outage", "first", "adaptive"), [(Outage.DEGRADE, 4, 7), (Outage.OPEN, 11, 8)])
def test_an_outage_degrades_or_goes_on_as_if_fresh(outage: Outage, first: int, adaptive: int) -> None:
    """First: R/2 = 4 of 8, or R + q. Adaptive: 0.8 * 8 = 6.4, rounded up; or min(R + q, W) with W = 8."""
    for controller, expected in ((Controller.FIRST, first), (Controller.ADAPTIVE, adaptive)):
        bench = Bench(controller=controller, outage=outage, read=False)
        bench.page(running=2, itl_sum=0.0, itl_count=0.0)
        bench.later(31.0)
        assert bench.room() == expected


def test_views_and_explanations_leave_no_trace() -> None:
    """A replay of the same events gives the same decisions, whether or not somebody has looked in between."""

    def story(look: bool) -> list[bool]:
        bench = Bench(controller=Controller.ADAPTIVE, start=50.0)
        said = []
        for i in range(60):
            bench.later(0.05)
            if i % 5 == 0:
                bench.page(
                    running=bench.window.in_flight,
                    kv_usage=0.5,
                    kv_capacity_tokens=4_000,
                    itl_sum=i,
                    itl_count=20.0 * i,
                )
            request = a_request(prompt=100.0 + i, output=50.0 + i)
            if look:
                bench.window.view(bench.now)
                bench.window.why_not(request, Q, bench.now)
            said.append(bench.window.accepts(request, Q, bench.now))
            if said[-1]:
                bench.go(request)
            if i % 3 == 0 and bench.inside:
                bench.window.observed(bench.inside[0], 100, i)
                bench.free()
        return said

    quiet = story(look=False)
    assert story(look=True) == quiet
    assert True in quiet
    assert False in quiet


# -- gates ----------------------------------------------------------------------------------------


def gate(bench: Bench, **gates: Any) -> tuple[str, float, float] | None:
    hold = bench.window.gate(Gates(**gates), bench.now)
    return None if hold is None else (hold.name, hold.value, hold.limit)


@pytest.mark.parametrize("controller", ALL)
def test_max_waiting_closes_at_the_threshold_and_the_others_above(controller: Controller) -> None:
    bench = Bench(controller=controller, read=False)
    bench.page(itl_sum=0.0, itl_count=0.0, ttft_sum=0.0, ttft_count=0.0)
    bench.later()
    bench.page(
        running=5, waiting=2, kv_usage=0.5, itl_sum=20.0, itl_count=100.0, ttft_sum=3.0, ttft_count=4.0
    )  # 0.2 s per token, 0.75 s to the first
    assert gate(bench, max_waiting=3) is None
    assert gate(bench, max_waiting=2) == ("max_waiting", 2, 2)
    assert gate(bench, max_kv_usage=0.5) is None
    assert gate(bench, max_kv_usage=0.49) == ("max_kv_usage", 0.5, 0.49)
    assert gate(bench, max_tpot_s=0.2) is None
    assert gate(bench, max_tpot_s=0.19) == ("max_tpot", 0.2, 0.19)
    assert gate(bench, max_ttft_s=0.75) is None
    assert gate(bench, max_ttft_s=0.7) == ("max_ttft", 0.75, 0.7)
    assert gate(bench, max_waiting=2, max_kv_usage=0.1) == ("max_waiting", 2, 2)  # the first one
    assert gate(bench) is None


def test_what_is_unknown_or_stale_closes_nothing() -> None:
    closed = {"max_waiting": 1, "max_tpot_s": 0.001, "max_kv_usage": 0.001, "max_ttft_s": 0.001}
    bench = Bench(read=False)
    assert gate(bench, **closed) is None  # not read yet
    bench.page(itl_sum=10.0, itl_count=10.0, ttft_sum=10.0, ttft_count=10.0)
    assert gate(bench, **closed) is None  # a lifetime's sums are no latency
    bench.later()
    bench.page(itl_sum=20.0, itl_count=20.0, ttft_sum=20.0, ttft_count=20.0)
    assert gate(bench, max_tpot_s=0.5) == ("max_tpot", 1.0, 0.5)
    bench.later()
    bench.page(itl_sum=20.0, itl_count=20.0, ttft_sum=20.0, ttft_count=20.0)
    assert gate(bench, **closed) is None  # no token came: an idle engine opens
    bench.later()
    bench.page(running=1, waiting=5)
    assert gate(bench, max_waiting=1) is not None
    bench.take()
    bench.later(1.3)
    assert bench.stance is Stance.STALE
    assert gate(bench, max_waiting=1) is None


# -- pages that cannot be meant -------------------------------------------------------------------


@pytest.mark.parametrize("controller", ALL)
@pytest.mark.parametrize(("running", "waiting"), [(0, -1), (-1, 0), (0, 10**9), (10**9, 0)])
def test_gauges_that_cannot_be_meant_make_the_page_worthless(
    controller: Controller, running: int, waiting: int
) -> None:
    bench = Bench(controller=controller)
    before = bench.view
    bench.later(2.0)
    bench.page(running=running, waiting=waiting, itl_sum=5.0, itl_count=5.0)
    after = bench.view
    assert after.absurd == 1
    assert (after.capacity, after.foreign, after.age_s) == (before.capacity, before.foreign, 2.0)


@pytest.mark.parametrize("controller", LEARNING)
def test_figures_that_are_no_numbers_are_unknown_and_counted(controller: Controller) -> None:
    bench = Bench(controller=controller)
    bench.later()
    bench.page(kv_usage=math.nan, itl_sum=math.inf, itl_count=-1.0, preemptions=math.nan, kv_capacity_tokens=0)
    assert bench.view.absurd == 5
    assert bench.view.kv_usage is None
    assert bench.view.age_s == 0.0  # the gauges are good, so the page is


@pytest.mark.parametrize("controller", LEARNING)
def test_more_seconds_between_tokens_than_the_engine_can_hold_are_dropped(controller: Controller) -> None:
    """5 on the page, twice, and 8 to spare: (10 + 8) * 600.25 s at most."""
    bench = Bench(controller=controller)
    bench.page(running=5, itl_sum=0.0, itl_count=0.0)
    bench.later()
    bench.page(running=5, itl_sum=10_805.0, itl_count=10.0)
    assert bench.view.absurd == 1
    assert bench.view.tpot_s is None
    bench.later()
    bench.page(running=5, itl_sum=10_806.0, itl_count=20.0)
    assert bench.view.tpot_s == pytest.approx(0.1)


@pytest.mark.parametrize("controller", ALL)
def test_a_page_older_than_the_one_before_is_dropped(controller: Controller) -> None:
    bench = Bench(controller=controller)
    bench.later()
    bench.page(running=3, waiting=0)
    foreign, capacity = bench.view.foreign, bench.view.capacity
    bench.page(running=300, waiting=50, started=bench.now - 0.1)
    assert (bench.view.foreign, bench.view.capacity, bench.view.running) == (foreign, capacity, 3)
    assert bench.view.absurd == 1


_GAUGES = st.one_of(st.integers(-2, 40), st.sampled_from([999_999, 10**9]))
_FLOATS = st.one_of(
    st.none(), st.floats(0, 1e6), st.sampled_from([0.0, -1.0, 1e18, 1e300, math.inf, -math.inf, math.nan])
)
_PAGES = st.tuples(
    _GAUGES,
    _GAUGES,
    st.fixed_dictionaries(
        dict.fromkeys(
            ("kv_usage", "itl_sum", "itl_count", "preemptions", "ttft_sum", "ttft_count", "prompt_tokens"), _FLOATS
        )
        | {"kv_capacity_tokens": st.one_of(st.none(), st.integers(-5, 10**7))}
    ),
    st.sampled_from([-0.5, 0.0, 0.01, 0.25, 2.0, 40.0]),
)


@pytest.mark.slow
@pytest.mark.parametrize("controller", ALL)
@settings(derandomize=True, max_examples=30, deadline=None)
@given(pages=st.lists(_PAGES, max_size=15))
def test_no_page_poisons_the_state(controller: Controller, pages: list[tuple[int, int, dict[str, Any], float]]) -> None:
    bench = Bench(controller=controller, ceiling=64.0)
    for running, waiting, others, seconds in pages:
        bench.later(abs(seconds))
        bench.page(running, waiting, started=bench.now + min(0.0, seconds), **others)
        for field in fields(bench.view):
            value = getattr(bench.view, field.name)
            if isinstance(value, float):
                assert math.isfinite(value), field.name
        if controller in LEARNING:
            assert 1.0 <= bench.capacity <= 64.0
            assert bench.fill(prompt=10.0, output=5.0) <= 67  # ceiling + q
        else:
            bench.take()
        bench.free(bench.window.in_flight)
        bench.later(5.1)
        assert bench.accepts(q=0.0)
    bench.later(100.0)
    bench.page(running=2, waiting=0, itl_sum=10.0, itl_count=100.0)
    assert bench.accepts()


# -- another policy -------------------------------------------------------------------------------


@pytest.mark.parametrize("controller", LEARNING)
def test_another_policy_bounds_what_was_learnt(controller: Controller) -> None:
    bench = Bench(controller=controller, start=40.0)
    assert bench.room() >= 40
    same = renewed(bench.window, WindowPolicy(controller=controller, ceiling=10.0, start=40.0), [], bench.now)
    assert same is bench.window
    assert bench.capacity == 10.0
    assert bench.room() == 10 + Q


@pytest.mark.parametrize("before", ALL)
@pytest.mark.parametrize("after", ALL)
def test_another_controller_takes_over_the_books(before: Controller, after: Controller) -> None:
    bench = Bench(controller=before, fixed=9)
    bench.take(2)
    bench.go(a_request(3))
    bench.later()
    bench.page(running=7)
    foreign = bench.view.foreign
    window = renewed(bench.window, WindowPolicy(controller=after, fixed=9), bench.inside, bench.now)
    assert window.view(bench.now).controller == after.value
    assert window.in_flight == 5
    assert window.stance(bench.now) is Stance.FRESH
    if {before, after} <= set(LEARNING):
        assert window.foreign == foreign == 1  # 0.5 * 2, seen once
    bench.window = window
    bench.free(3)
    assert window.in_flight == 0
    if isinstance(window, Adaptive):
        assert (window.view(bench.now).unanswered, window.kv.held(bench.now)) == (0, 0.0)


# -- threshold and fixed --------------------------------------------------------------------------


def test_threshold_sends_everything_while_the_last_page_shows_fewer_waiting() -> None:
    bench = Bench(controller=Controller.THRESHOLD, threshold=3)
    bench.page(running=4, waiting=2)
    bench.take(500)
    assert bench.accepts()  # nothing changes between two pages: the rule's known fault
    bench.later()
    bench.page(running=4, waiting=3)
    assert not bench.accepts()
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.value, hold.limit) == ("threshold", 3, 3)
    bench.free(500)
    assert bench.accepts()  # nothing of ours inside
    bench.take()
    assert not bench.accepts()


def test_threshold_goes_by_the_floor_in_an_outage() -> None:
    bench = Bench(controller=Controller.THRESHOLD, floor=2.0)
    bench.later(31.0)
    assert bench.fill() == 2


def test_fixed_is_fixed_whatever_the_page_shows() -> None:
    bench = Bench(controller=Controller.FIXED, fixed=7)
    for running, waiting in ((0, 0), (100, 50), (7, 0)):
        bench.later()
        bench.page(running=running, waiting=waiting, kv_usage=1.0, itl_sum=1e4, itl_count=1.0)
        assert bench.room() == 7
    bench.later(100.0)
    assert bench.fill() == 7
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.value, hold.limit, hold.unit) == ("fixed", 7, 7.0, "requests")
