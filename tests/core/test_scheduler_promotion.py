"""A request that has waited for `promote_after_s` counts one class up, one in `promote_every` dispatches at most."""

from __future__ import annotations

from scheduler_case import Case, a_class, a_fixed_pool, a_pool, drain, fill, released, two_classes

from extproc.core.events import Release


def aged_batch(**changes: object) -> tuple:
    return two_classes(**({"promote_after_s": 10.0} | changes))


def test_it_passes_the_class_above_from_the_moment_on_and_with_its_priority_base() -> None:
    case = Case(a_fixed_pool(*aged_batch()))
    inside = fill(case, 1)
    case.arrive("b", "t", "batch")
    case.arrive("i0")
    case.arrive("i1")
    case.now += 9.75
    assert drain(case, inside, 1) == ["i0"]
    case.now += 0.25
    (effect,) = case.end("i0")
    assert isinstance(effect, Release)
    assert (effect.id, effect.priority, effect.cls, effect.waited_s) == ("b", 0, "batch", 10.0)


def test_a_request_that_has_not_waited_for_so_long_keeps_its_own_priority_base() -> None:
    case = Case(a_fixed_pool(*aged_batch()))
    (effect,) = case.arrive("b", "t", "batch")
    assert isinstance(effect, Release) and effect.priority == 2_000_000


def test_ageing_cannot_turn_the_order_round() -> None:
    """Ten aged requests of batch and twenty of interactive: one dispatch in four is a promotion."""
    case = Case(a_fixed_pool(*aged_batch(), promote_every=4))
    inside = fill(case, 1)
    for i in range(10):
        case.arrive(f"b{i}", cls="batch")
    case.now += 30.0
    for i in range(20):
        case.arrive(f"i{i}")
    order = drain(case, inside, 13)
    assert order == ["b0", "i0", "i1", "i2", "b1", "i3", "i4", "i5", "b2", "i6", "i7", "i8", "b3"]


def test_only_the_next_in_fair_order_is_promoted() -> None:
    """a's old request is not next, since a has something inside: b's new one is."""
    case = Case(a_fixed_pool(*aged_batch(), slots=2))
    fill(case, 1, "a", "batch")
    inside = fill(case, 1)
    case.arrive("old", "a", "batch")
    case.now += 11.0
    case.arrive("new", "b", "batch")
    case.arrive("i0")
    assert drain(case, inside, 1) == ["i0"]
    case.arrive("i1")
    case.now += 10.0
    assert drain(case, inside, 1) == ["new"]  # has waited for 10 s itself by now


def test_it_counts_one_class_up_and_no_more() -> None:
    batch = a_class("batch", 2, promote_after_s=10.0)
    case = Case(a_fixed_pool(a_class(), a_class("default", 1), batch))
    inside = fill(case, 1)
    case.arrive("b", cls="batch")
    case.now += 20.0
    case.arrive("d", cls="default")
    case.arrive("i")
    assert drain(case, inside, 3) == ["i", "b", "d"]


def test_it_has_the_standing_queue_of_the_class_above() -> None:
    """R = 4, and a page with one waiting: batch by itself stops at R, interactive has 3 more."""
    case = Case(a_pool(*aged_batch(), start=4))
    fill(case, 4, cls="batch")
    for i in range(2):
        assert case.arrive(f"b{i}", "t", "batch") == []
    case.now += 10.0
    (effect,) = case.page(running=3, waiting=1)
    assert isinstance(effect, Release)
    assert (effect.id, effect.priority) == ("b0", 0)  # and b1 is no promotion, so it waits


def test_a_class_at_its_cap_is_not_promoted() -> None:
    case = Case(a_fixed_pool(*aged_batch(max_in_flight=1), slots=2))
    fill(case, 1, cls="batch")
    inside = fill(case, 1)
    case.arrive("b", cls="batch")
    case.now += 20.0
    case.arrive("i")
    assert drain(case, inside, 1) == ["i"]


def test_a_class_that_is_emptied_by_promotions_alone_is_served_under_any_load() -> None:
    case = Case(a_fixed_pool(*aged_batch(), promote_every=8), checked=False)
    inside = fill(case, 1)
    for i in range(5):
        case.arrive(f"b{i}", cls="batch")
    for i in range(200):
        case.arrive(f"i{i}", timeout_s=None)
    order = []
    for _ in range(60):
        case.now += 0.5
        order += drain(case, inside, 1)
    at = [n for n, name in enumerate(order) if name.startswith("b")]
    # Half a second each: the 20th dispatch is the first at an age of 10 s, then one in eight.
    assert at == [19, 27, 35, 43, 51]


def test_a_wide_promoted_request_is_not_passed() -> None:
    case = Case(a_pool(*aged_batch(), start=4))
    inside = fill(case, 7)
    case.arrive("wide", "t", "batch", n=3)
    case.now += 10.0
    case.page(running=4, waiting=3)
    case.arrive("i")
    assert [released(case.end(name)) for name in inside[:3]] == [[], [], ["wide"]]  # 7 - 3 + 3 <= R + q
