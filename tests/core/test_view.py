"""What is shown of a scheduler: windows' limits and rooms, what holds a class, closed gates, tokens, standstill."""

from __future__ import annotations

import pytest
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, a_pool, two_classes
from state_dump import state_of

from extproc.core.events import Refuse
from extproc.core.explanation import class_cause
from extproc.core.model import Gates, TenantPolicy, Traffic, WindowPolicy
from extproc.core.view import ClassView, PoolView, view


def seen(case: Case) -> PoolView:
    """It leaves no trace, or a recording could not be replayed."""
    before = state_of(case.scheduler)
    found = view(case.scheduler, case.now)
    assert state_of(case.scheduler) == before
    return found


def of(found: PoolView, name: str) -> ClassView:
    return next(cls for cls in found.classes if cls.name == name)


def test_limit_and_room_of_a_window() -> None:
    case = Case(a_pool(*two_classes(), start=4))
    (window,) = seen(case).endpoints
    # R + q of the class that aims at the longest queue: 4 + 3
    assert (window.queue_target, window.limit, window.room, window.in_flight) == (3.0, 7.0, 7.0, 0)
    for number in range(9):
        case.arrive(f"r{number}", "t")
    (window,) = seen(case).endpoints
    assert (window.limit, window.room, window.in_flight) == (7.0, 0.0, 7)


def test_nothing_may_go_to_an_endpoint_that_is_down() -> None:
    case = Case(endpoints=(E1, E2))
    case.scrape_fails(E2, refused=True)
    rooms = {window.endpoint: (window.limit, window.room) for window in seen(case).endpoints}
    assert rooms == {E1: (7.0, 7.0), E2: (0.0, 0.0)}


@pytest.mark.parametrize(
    ("window", "floor", "at_floor"),
    [
        (WindowPolicy(start=1, floor=1), 1.0, True),
        (WindowPolicy(start=2, floor=1), 1.0, False),
        (WindowPolicy(start=1, floor=1, max_num_seqs=1), None, False),  # it has no more, and is not closed
    ],
)
def test_a_window_at_its_floor(window: WindowPolicy, floor: float | None, at_floor: bool) -> None:
    (shown,) = seen(Case(a_pool(window=window))).endpoints
    assert (shown.floor, shown.at_floor) == (floor, at_floor)


def test_what_holds_the_next_of_each_class() -> None:
    case = Case(a_fixed_pool(*two_classes()))
    case.arrive("a0", "a")
    assert [cls.hold for cls in seen(case).classes] == [None, None]
    case.arrive("a1", "a")
    case.arrive("b0", "b", "batch")
    assert [cls.hold for cls in seen(case).classes] == ["window", "higher_class"]
    cause = class_cause(case.scheduler, case.scheduler.by_name["batch"], case.now)
    assert cause is not None
    assert cause.told == "1 requests of class 'interactive' go first"


def test_what_holds_all_of_a_class() -> None:
    case = Case(a_fixed_pool(slots=9, tenants={"a": TenantPolicy(max_in_flight=1)}))
    case.arrive("a0", "a")
    case.arrive("a1", "a")
    assert of(seen(case), "interactive").hold == "tenant_cap"


def test_gates_that_are_closed() -> None:
    gated = a_class("batch", 2, gates=Gates(max_waiting=2, max_kv_usage=0.5))
    case = Case(a_pool(a_class(), gated), endpoints=(E1, E2))
    assert of(seen(case), "batch").closed_gates == {"max_waiting": 0, "max_kv_usage": 0}
    case.page(E1, 1, 2)
    case.page(E2, 1, 0, kv_usage=0.75)
    assert of(seen(case), "batch").closed_gates == {"max_waiting": 1, "max_kv_usage": 1}
    assert of(seen(case), "interactive").closed_gates == {}


def test_limits_that_are_not_set_are_absent() -> None:
    limits = of(seen(Case(a_pool(a_class(max_in_flight=5)))), "interactive").limits
    assert limits == {
        "max_queued_requests": 1_000_000,
        "max_in_flight_slots": 5,
        "max_waiting_requests": 3,
        "queue_timeout_seconds": 60.0,
    }


def test_tokens() -> None:
    case = Case(a_fixed_pool())
    case.arrive("a0", "a", body_bytes=400)
    case.arrive("a1", "a", body_bytes=40)
    # bytes / 4, and 256 of the answer before anything is known
    shown = of(seen(case), "interactive")
    assert (shown.released_tokens, shown.queued_tokens) == (100 + 256, 10 + 256)
    case.usage("a0", 90, 20, cached_tokens=30)
    shown = of(seen(case), "interactive")
    assert (shown.prompt_tokens, shown.cached_tokens, shown.output_tokens) == (90, 30, 20)


def test_for_how_long_nothing_has_gone() -> None:
    case = Case(a_fixed_pool())
    assert seen(case).since_release_s is None
    case.arrive("a0", "a")
    case.now += 50.0
    assert seen(case).since_release_s is None  # nothing waits
    case.arrive("a1", "a")
    case.arrive("a2", "a")
    case.now += 5.0
    assert seen(case).since_release_s == pytest.approx(5.0)  # not 55: nothing waited before
    case.end("a0")
    case.now += 2.0
    assert seen(case).since_release_s == pytest.approx(2.0)
    case.reconfigure(a_fixed_pool(traffic=Traffic.PAUSED))
    assert seen(case).since_release_s is None  # nothing may go


def test_a_refused_request_does_not_wait() -> None:
    case = Case(a_fixed_pool(a_class(max_queued=1)))
    case.arrive("a0", "a")
    case.arrive("a1", "a")
    case.now += 3.0
    assert any(isinstance(effect, Refuse) for effect in case.arrive("a2", "a"))
    assert seen(case).since_release_s == pytest.approx(3.0)
