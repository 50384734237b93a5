"""What is released, where to, and who leaves: events in, effects out.

Invariants are checked after each event (`Case`), here and in the files beside this one.
"""

from __future__ import annotations

from collections import Counter

import pytest
from scheduler_case import E1, E2, Case, a_pool, fill, refused, released, settled, two_classes

from extproc.core.events import Release, Unreachable
from extproc.core.model import InvalidMoveError, Request, State, TenantPolicy
from extproc.core.view import view

# -- release and hold ------------------------------------------------------------------------------


def test_released_at_once_when_there_is_room() -> None:
    case = Case()
    effects = case.arrive("r", "t")
    assert effects == [Release("r", E1, priority=0, tenant="t", cls="interactive", waited_s=0.0)]


def test_held_when_the_window_is_full_and_the_end_of_a_stream_releases_the_next_at_once() -> None:
    case = Case(a_pool(start=4))
    fill(case, 7)  # R 4 + q 3
    assert case.arrive("r", "t") == []
    case.now += 1.25
    effects = case.end("fill-interactive-3")
    assert released(effects) == ["r"]
    assert effects[0].waited_s == 1.25


def test_nothing_goes_without_an_endpoint_and_all_that_fits_goes_when_one_is_read() -> None:
    case = Case(a_pool(start=4), endpoints=())
    for i in range(10):
        assert case.arrive(f"r{i}") == []
    assert case.add(E1) == []
    assert released(case.page(E1)) == [f"r{i}" for i in range(7)]


def test_the_grace_for_the_first_reading_is_over_without_one() -> None:
    case = Case(read=False)
    case.arrive("r")
    assert released(case.tick(1.9)) == []
    assert released(case.tick(0.1)) == ["r"]


def test_order_within_a_tenant_is_by_arrival_and_tenants_alternate() -> None:
    case = Case(a_pool(start=1, max_queued=100))
    fill(case, 4)
    for i in range(3):
        case.arrive(f"a{i}", "a")
    for i in range(3):
        case.arrive(f"b{i}", "b")
    order = []
    inside = [f"fill-interactive-{i}" for i in range(4)]
    for _ in range(6):
        gone = released(case.end(inside.pop(0)))
        order += gone
        inside += gone
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_replayed_request_gets_its_place_back() -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("second", "a")
    case.now += 1.0
    case.arrive("first", "a", arrival=99.0)
    effects = case.end("fill-interactive-0")
    assert released(effects) == ["first"]
    assert effects[0].waited_s == 2.0
    assert released(case.end("fill-interactive-1")) == ["second"]


@pytest.mark.parametrize("arrival", [1e12, float("nan"), float("inf")])
def test_an_arrival_after_now_is_now(arrival: float) -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("r", "a", arrival=arrival)
    assert refused(case.tick(60.0)) == [("r", "queue_timeout")]


def test_the_emptier_endpoint_is_picked() -> None:
    case = Case(a_pool(start=4), endpoints=(E1, E2))
    where = [case.arrive(f"r{i}")[0].endpoint for i in range(4)]
    assert where == [E1, E2, E1, E2]
    case.end("r0")
    case.end("r2")
    assert [case.arrive(f"s{i}")[0].endpoint for i in range(3)] == [E1, E1, E2]  # 0:2, 1:2, then a tie at 2:2: in turn


def test_emptier_is_in_proportion_to_the_window() -> None:
    case = Case(a_pool(start=4), endpoints=(E1, E2))
    for i in range(14):
        case.arrive(f"r{i}")
    case.now += 0.25
    case.page(E1, running=7)  # full and nothing waits: R = 8
    case.page(E2, running=3, waiting=4)  # R = 4 + (3 - 4)/2 = 3.5
    for i in range(14):
        case.end(f"r{i}")
    where = Counter(case.arrive(f"s{i}")[0].endpoint for i in range(8))
    # Limits 11 and 6.5: 5 and 3 of 8 is 0.45 and 0.46 full.
    assert where == {E1: 5, E2: 3}


def test_n_choices_take_n_slots() -> None:
    case = Case(a_pool(start=4))
    case.arrive("wide", n=4)
    assert view(case.scheduler, case.now).in_flight == 4
    assert released(case.arrive("r0") + case.arrive("r1") + case.arrive("r2")) == ["r0", "r1", "r2"]
    assert case.arrive("r3") == []
    assert released(case.end("wide")) == ["r3"]
    assert view(case.scheduler, case.now).in_flight == 4


@pytest.mark.parametrize(("n", "slots"), [(0, 1), (-5, 1), (10**9, 128)])
def test_absurd_n_is_clamped(n: int, slots: int) -> None:
    case = Case()
    case.arrive("r", n=n)
    assert view(case.scheduler, case.now).in_flight == slots


def test_a_request_wider_than_the_window_goes_when_a_slot_is_free() -> None:
    case = Case(a_pool(start=4))
    fill(case, 4)
    assert case.arrive("wide", "a", n=20) == []
    assert case.arrive("next", "b") == []  # it does not pass: else the wide one would wait for ever
    assert released(case.end("fill-interactive-0")) == ["wide"]
    assert released(case.end("wide")) == ["next"]


def test_a_tenant_with_nothing_inside_passes_what_a_list_of_prompts_has_overfilled() -> None:
    case = Case(a_pool(start=4, overtake=1))
    case.arrive("list", "greedy")
    for _ in range(8):
        case.now += 0.25
        case.page(E1, running=4, waiting=60)
    assert case.arrive("more", "greedy") == []
    assert released(case.arrive("p0", "polite")) == ["p0"]
    assert case.arrive("q0", "other") == []  # one guest at a time
    assert released(case.end("p0")) == ["q0"]


def test_after_a_broken_connection_nothing_goes_before_a_page() -> None:
    case = Case(a_pool(start=4))
    fill(case, 7)
    case.arrive("r0")
    assert case.apply(Unreachable("fill-interactive-0")) == []
    assert case.end("fill-interactive-0") == []  # its slot is free, and the endpoint is in doubt
    case.now += 0.1
    assert released(case.page(E1, running=6)) == ["r0"]
    assert case.apply(Unreachable("nobody")) == []


# -- leaving ---------------------------------------------------------------------------------------


def test_cancel_while_held_frees_the_place() -> None:
    case = Case(a_pool(start=1, tenants={"a": TenantPolicy(max_queued=1)}))
    fill(case, 4)
    case.arrive("a0", "a")
    assert refused(case.arrive("a1", "a")) == [("a1", "tenant_limit")]
    assert case.end("a0") == []
    assert case.arrive("a2", "a") == []
    assert released(case.end("fill-interactive-0")) == ["a2"]
    assert case.scheduler.queued_bytes == 0


def test_cancel_of_a_head_that_blocked_lets_the_next_go_in_the_same_event() -> None:
    case = Case(a_pool(start=4))
    fill(case, 5)
    case.arrive("wide", "a", n=8)
    case.arrive("narrow", "a")
    assert released(case.end("wide")) == ["narrow"]


def test_the_end_of_a_stream_twice_frees_one_slot() -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("r0")
    case.arrive("r1")
    assert released(case.end("fill-interactive-0")) == ["r0"]
    assert released(case.end("fill-interactive-0")) == []


# -- overtaking and priority -----------------------------------------------------------------------


def test_a_tenant_with_nothing_inside_may_exceed_a_full_window_by_one() -> None:
    case = Case(a_pool(start=4, overtake=1))
    fill(case, 7)
    assert case.arrive("again", "filler") == []
    case.end("again")
    assert released(case.arrive("n0", "newcomer")) == ["n0"]
    assert case.arrive("n1", "newcomer") == []
    case.end("n1")
    assert case.arrive("m0", "other newcomer") == []  # by one in all, not by one each


def test_a_class_without_a_standing_queue_overtakes_nobody() -> None:
    case = Case(a_pool(*two_classes(), start=4, overtake=1))
    fill(case, 4, cls="batch")
    assert case.arrive("b", "newcomer", "batch") == []


def test_priority_counts_the_tenant_s_requests_inside() -> None:
    """The example of the design: B and C send one each: 0 and 0; A sends four: 0, 1, 2, 3."""
    case = Case(a_pool(start=20))
    effects = [case.arrive(name, name[0])[0] for name in ("b", "a1", "a2", "c", "a3", "a4")]
    assert [(e.id, e.priority) for e in effects] == [("b", 0), ("a1", 0), ("a2", 1), ("c", 0), ("a3", 2), ("a4", 3)]
    case.end("a2")
    assert case.arrive("a5", "a")[0].priority == 3  # three are inside


def test_priority_starts_at_the_base_of_the_class_and_counts_all_classes_of_the_tenant() -> None:
    case = Case(a_pool(*two_classes(), start=20))
    assert case.arrive("b", "t", "batch")[0].priority == 2_000_000
    assert case.arrive("i", "t")[0].priority == 1


def test_priority_never_reaches_the_numbers_of_the_next_class() -> None:
    case = Case(a_pool(start=20, priority_steps=3))
    assert [case.arrive(f"r{i}")[0].priority for i in range(6)] == [0, 1, 2, 2, 2, 2]


# -- endpoints -------------------------------------------------------------------------------------


def test_a_removed_endpoint_gets_nothing_more_and_goes_when_its_last_stream_ends() -> None:
    case = Case(endpoints=(E1,))
    case.arrive("r0")
    case.remove(E1)
    assert E1 in case.scheduler.windows
    assert case.arrive("r1") == []
    case.end("r0")
    assert E1 not in case.scheduler.windows
    assert settled(case.usage("r0", 100, 50)) == [("r0", 200.0)]
    case.add(E2)
    assert released(case.page(E2)) == ["r1"]


def test_an_idle_endpoint_goes_at_once() -> None:
    case = Case()
    case.remove(E1)
    assert case.scheduler.windows == {}


def test_an_endpoint_that_comes_back_keeps_the_books_of_its_earlier_life() -> None:
    case = Case(a_pool(start=4))
    fill(case, 5)
    case.remove(E1)
    case.add(E1)
    assert case.arrive("r") == []  # not read yet
    case.page(E1, running=5)
    assert case.scheduler.requests["r"].state is State.RELEASED
    assert case.scheduler.windows[E1].in_flight == 6
    for i in range(5):
        case.end(f"fill-interactive-{i}")
    case.end("r")
    assert case.scheduler.windows[E1].in_flight == 0


def test_an_endpoint_added_twice_is_one() -> None:
    case = Case(a_pool(start=4))
    fill(case, 5)
    case.add(E1)
    assert case.scheduler.windows[E1].in_flight == 5


def test_a_refused_endpoint_is_left_for_the_other() -> None:
    case = Case(endpoints=(E1, E2))
    case.scrape_fails(E1, refused=True)
    assert [case.arrive(f"r{i}")[0].endpoint for i in range(3)] == [E2, E2, E2]
    case.page(E1)
    assert case.arrive("r3")[0].endpoint == E1


# -- what is not known -----------------------------------------------------------------------------


def test_unknown_ids_and_endpoints_are_ignored() -> None:
    case = Case()
    before = view(case.scheduler, case.now)
    assert case.end("nobody") == []
    assert case.usage("nobody", 5, 5) == []
    assert case.page("10.9.9.9:1", running=5) == []
    assert case.scrape_fails("10.9.9.9:1", refused=True) == []
    assert case.remove("10.9.9.9:1") == []
    assert view(case.scheduler, case.now) == before


def test_an_unknown_class_and_a_known_id_are_errors_and_change_nothing() -> None:
    case = Case()
    case.arrive("r")
    before = view(case.scheduler, case.now)
    with pytest.raises(ValueError, match=r"class 'gold' is not one of \['interactive'\]"):
        case.arrive("s", cls="gold")
    with pytest.raises(ValueError, match="'r' is in use"):
        case.arrive("r")
    assert view(case.scheduler, case.now) == before


def test_a_move_that_is_none_raises_with_the_story() -> None:
    request = Request("r7", "t", "c", 1.0, 1, 10, 1.0, 1.0, None, 1, 9.0, state=State.SETTLED)
    with pytest.raises(InvalidMoveError, match=r"settled -> released is no move; request r7 of tenant 't'"):
        request.move(State.RELEASED)


def test_one_that_waits_behind_a_bug_in_the_dispatch_can_still_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    queue = case.scheduler.by_name["interactive"].queue
    with monkeypatch.context() as planted:
        planted.setattr(queue, "pop", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            case.arrive("r", timeout_s=3.0)
    assert case.scheduler.next_deadline() == case.now + 3.0
    assert case.scheduler.held_bytes == {"a": 1024}
    assert case.end("r") == []
    assert case.scheduler.requests == {}
    assert case.scheduler.held_bytes == {}
    assert case.scheduler.next_deadline() is None
