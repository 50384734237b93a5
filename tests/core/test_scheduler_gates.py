"""Gates: thresholds of a class on an endpoint's own signals, and the rule of an empty queue."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, fill, released, two_classes

from extproc.core.model import Gates, PoolPolicy


def gated(slots: int = 4, **gates: Any) -> PoolPolicy:
    """Batch below interactive; its gates are as given."""
    return a_fixed_pool(*two_classes(gates=Gates(**gates)), slots=slots)


@pytest.mark.parametrize(("waiting", "goes"), [(1, True), (2, False), (3, False)])
def test_max_waiting_is_closed_at_the_threshold(waiting: int, goes: bool) -> None:
    case = Case(gated(max_waiting=2))
    case.page(running=1, waiting=waiting)
    assert released(case.arrive("b", cls="batch")) == (["b"] if goes else [])
    assert released(case.arrive("i")) == ["i"]  # another class's gate is nothing to it


@pytest.mark.parametrize(("usage", "goes"), [(0.89, True), (0.9, True), (0.91, False), (None, True)])
def test_max_kv_usage_is_closed_above_the_threshold(usage: float | None, goes: bool) -> None:
    case = Case(gated(max_kv_usage=0.9))
    case.page(kv_usage=usage)
    assert released(case.arrive("b", cls="batch")) == (["b"] if goes else [])


@pytest.mark.parametrize(("seconds", "goes"), [(9.9, True), (10.0, True), (10.1, False), (None, True)])
def test_max_tpot_is_closed_above_the_threshold_of_the_last_two_pages(seconds: float | None, goes: bool) -> None:
    """100 tokens in so many seconds, against 0.1 s a token."""
    case = Case(gated(max_tpot_s=0.1))
    case.page(itl_sum=50.0, itl_count=1000.0)  # what was before does not count
    assert case.arrive("first", cls="batch") != []  # one page alone tells nothing
    case.now += 0.5
    case.page(itl_sum=None if seconds is None else 50.0 + seconds, itl_count=1100.0)
    assert released(case.arrive("b", cls="batch")) == (["b"] if goes else [])
    case.now += 0.5
    case.page(itl_sum=60.1, itl_count=1100.0)  # a page without tokens: unknown again
    assert len(released(case.tick() + case.arrive("c", cls="batch"))) == 1 or not goes


@pytest.mark.parametrize(("seconds", "goes"), [(4.0, True), (4.1, False)])
def test_max_ttft_is_closed_above_the_threshold(seconds: float, goes: bool) -> None:
    """Two first tokens in so many seconds, against 2 s each."""
    case = Case(gated(max_ttft_s=2.0))
    case.page(ttft_sum=5.0, ttft_count=7.0)
    case.now += 0.5
    case.page(ttft_sum=5.0 + seconds, ttft_count=9.0)
    assert released(case.arrive("b", cls="batch")) == (["b"] if goes else [])


def test_the_gate_of_a_stale_page_is_open() -> None:
    """A page is fresh for 3 * 0.25 + 0.5 s while something is inside."""
    case = Case(gated(max_waiting=1))
    fill(case, 1)
    case.page(running=1, waiting=5)
    case.arrive("b", cls="batch")
    assert released(case.tick(1.25)) == []
    assert released(case.tick(0.01)) == ["b"]


def test_the_gate_of_an_endpoint_that_was_never_read_is_open() -> None:
    case = Case(gated(max_waiting=1), read=False)
    case.arrive("b", cls="batch")
    assert released(case.tick(2.0)) == ["b"]  # first_scrape_grace_s


def test_the_page_that_shows_the_signal_within_its_limit_lets_it_go() -> None:
    case = Case(gated(max_waiting=1))
    case.page(waiting=1)
    case.arrive("b", cls="batch")
    case.now += 0.25
    assert released(case.page(waiting=0)) == ["b"]


def test_a_lower_class_does_not_pass_one_that_its_gate_holds() -> None:
    case = Case(a_fixed_pool(a_class(gates=Gates(max_waiting=1)), a_class("batch", 2), slots=4))
    case.page(waiting=1)
    assert case.arrive("i") == []
    assert case.arrive("b", cls="batch") == []
    assert released(case.end("i")) == ["b"]  # with nobody to pass it goes, its own gate is open


def test_idle_only_goes_where_nothing_waits() -> None:
    case = Case(a_fixed_pool(*two_classes(idle_only=True), slots=8), endpoints=(E1, E2))
    case.page(E1, running=3, waiting=1)
    case.page(E2, running=7, waiting=0)
    where = [effect.endpoint for i in range(3) for effect in case.arrive(f"b{i}", cls="batch")]
    assert where == [E2, E2, E2]
    case.page(E2, running=7, waiting=1)
    assert case.arrive("b3", cls="batch") == []
    assert case.arrive("i")[0].endpoint == E1


def test_idle_only_is_no_weaker_than_the_class_s_own_gate() -> None:
    case = Case(a_fixed_pool(*two_classes(idle_only=True, gates=Gates(max_waiting=5, max_kv_usage=0.5)), slots=8))
    case.page(waiting=1, kv_usage=0.1)
    assert case.arrive("b", cls="batch") == []
    assert case.page(waiting=0, kv_usage=0.6) == []
    assert released(case.page(waiting=0, kv_usage=0.5)) == ["b"]


def test_the_other_endpoint_takes_what_a_gate_keeps_from_one() -> None:
    case = Case(gated(max_kv_usage=0.9), endpoints=(E1, E2))
    case.page(E1, kv_usage=0.95)
    case.page(E2, kv_usage=0.5)
    assert [case.arrive(f"b{i}", cls="batch")[0].endpoint for i in range(4)] == [E2] * 4
    assert case.arrive("b4", cls="batch") == []


# -- a class that goes before its turn holds up nobody where its own gate is closed -----------------


def behind_its_share(slots: int, endpoints: tuple[str, ...]) -> Case:
    """Batch waits and is behind its min_share of a half; its gate is open everywhere."""
    policy = a_fixed_pool(*two_classes(min_share=0.5, gates=Gates(max_waiting=1)), slots=slots)
    case = Case(policy, endpoints=endpoints)
    for endpoint in endpoints:
        case.page(endpoint, waiting=1)
    assert case.arrive("b", cls="batch") == []
    assert released(case.arrive("i0")) == ["i0"]  # V moves on, batch does not
    assert case.scheduler.by_name["batch"].behind(case.scheduler.share_v)
    return case


def test_a_gate_of_a_class_behind_its_share_does_not_hold_up_those_above() -> None:
    case = behind_its_share(4, (E1,))
    assert released(case.arrive("i1") + case.arrive("i2")) == ["i1", "i2"]
    assert released(case.page(waiting=0)) == ["b"]


def test_a_gate_of_a_promoted_request_does_not_hold_up_those_above() -> None:
    case = Case(a_fixed_pool(*two_classes(promote_after_s=5.0, gates=Gates(max_waiting=1)), slots=4))
    case.page(waiting=1)
    case.arrive("b", "t", "batch")
    case.now += 6.0
    case.page(waiting=1)
    assert released(case.arrive("i0") + case.arrive("i1")) == ["i0", "i1"]
    (effect,) = case.page(waiting=0)
    assert (effect.id, effect.priority) == ("b", 0)


def test_where_its_gate_is_open_and_there_is_no_room_the_place_is_kept() -> None:
    """E1 is closed to batch and has room, E2 is open and full: interactive may use E1, and batch has the next of E2."""
    case = behind_its_share(2, (E1, E2))
    case.page(E2, waiting=1)
    assert [e.endpoint for name in ("i1", "i2") for e in case.arrive(name)] == [E2, E1]  # i0 is on E1
    assert case.arrive("i3")[0].endpoint == E2
    assert case.arrive("i4") == []
    case.page(E2, waiting=0)
    (effect,) = case.end("i0")  # on E1
    assert (effect.id, effect.endpoint) == ("i4", E1)
    assert case.arrive("i5") == []
    (effect,) = case.end("i1")  # on E2
    assert (effect.id, effect.endpoint) == ("b", E2)
