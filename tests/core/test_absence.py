"""No endpoint is there: what is held waits for one, for a time of its own, and has its own time back when one comes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scheduler_case import E1, E2, Case, a_class, a_pool, refused, released, the_refusal

from extproc.core.events import Unreachable
from extproc.core.model import Order, PoolPolicy, WindowPolicy

BUDGET = 30.0


def a_patient_pool(queue_timeout_s: float = 1000.0, **changes: Any) -> PoolPolicy:
    return a_pool(a_class(queue_timeout_s=queue_timeout_s), no_endpoint_timeout_s=BUDGET, **changes)


def test_a_pool_without_endpoints_holds_a_request_for_its_budget_and_then_says_no_capacity() -> None:
    case = Case(a_patient_pool(), endpoints=())
    assert case.arrive("r1") == []
    assert case.scheduler.next_deadline() == case.now + BUDGET
    assert case.tick(BUDGET - 0.1) == []
    refusal = the_refusal(case.tick(0.1))
    assert (refusal.id, refusal.reason.code) == ("r1", "no_capacity")
    assert refusal.message == (
        "waited 30.0 s; pool 'm' had no endpoint for 30.0 s; the pool allows 30 s (no_endpoint_timeout of the pool)"
    )


def test_each_request_has_a_budget_of_its_own_from_when_it_came() -> None:
    case = Case(a_patient_pool(), endpoints=())
    case.arrive("r1")
    case.tick(20.0)
    case.arrive("r2")
    assert refused(case.tick(10.0)) == [("r1", "no_capacity")]
    assert refused(case.tick(19.9)) == []
    assert refused(case.tick(0.1)) == [("r2", "no_capacity")]


def test_a_replayed_request_has_its_budget_from_when_it_came_here() -> None:
    case = Case(a_patient_pool(), endpoints=())
    case.arrive("r1", arrival=case.now - 500.0)
    assert case.tick(BUDGET - 0.1) == []
    assert refused(case.tick(0.1)) == [("r1", "no_capacity")]


def test_what_is_held_goes_when_the_first_engine_has_started() -> None:
    case = Case(a_patient_pool(), endpoints=())
    case.arrive("r1")
    case.tick(29.0)
    case.add(E1)  # its own window waits for the first page
    assert case.tick(1.0) == []
    assert released(case.page(E1)) == ["r1"]


def test_when_the_last_endpoint_goes_the_budget_begins_for_what_is_held() -> None:
    case = Case(a_patient_pool(start=1.0), endpoints=(E1, E2))
    for i in range(8):
        case.arrive(f"inside-{i}")
    case.arrive("held")
    case.tick(100.0)
    case.page(E1, running=1, waiting=3)
    case.page(E2, running=1, waiting=3)
    case.scrape_fails(E1, refused=True)
    case.tick(60.0)
    assert case.scheduler.absent_since is None  # the other one is there
    case.scrape_fails(E2, refused=True)
    assert case.tick(BUDGET - 0.1) == []
    assert refused(case.tick(0.1)) == [("held", "no_capacity")]


def test_with_an_endpoint_back_a_request_has_all_of_its_own_time() -> None:
    case = Case(a_patient_pool(queue_timeout_s=100.0, start=1.0))
    inside = [f"inside-{i}" for i in range(4)]
    for name in inside:
        case.arrive(name)
    case.arrive("held")
    case.scrape_fails(E1, refused=True)
    case.tick(20.0)
    case.page(E1, running=1, waiting=3)
    assert case.scheduler.next_deadline() == 200.0
    assert case.tick(79.9) == []
    assert refused(case.tick(0.1)) == [("held", "queue_timeout")]


def test_the_class_s_timeout_counts_also_while_no_endpoint_is_there() -> None:
    case = Case(a_patient_pool(queue_timeout_s=5.0), endpoints=())
    case.arrive("r1")
    refusal = the_refusal(case.tick(5.0))
    assert refusal.reason.code == "no_capacity"
    assert refusal.message.endswith("class 'interactive' allows 5 s (queue_timeout of the class)")


def test_one_that_has_not_been_read_yet_is_there() -> None:
    case = Case(a_patient_pool(), read=False)
    case.arrive("r1")
    assert case.scheduler.absent_since is None


def test_a_connection_that_failed_takes_the_only_endpoint_away_until_it_is_looked_at_again() -> None:
    case = Case(a_patient_pool(start=1.0))
    case.arrive("r1")
    case.apply(Unreachable("r1"))
    assert case.scheduler.absent_since == case.now
    case.tick(2.0)
    assert case.scheduler.absent_since is None


def test_a_removed_endpoint_is_not_there_though_something_runs_on_it() -> None:
    case = Case(a_patient_pool(start=1.0))
    for i in range(5):
        case.arrive(f"r{i}")
    case.remove(E1)
    assert case.scheduler.absent_since == case.now
    case.end("r0")  # its room is nobody's
    assert refused(case.tick(BUDGET)) == [("r4", "no_capacity")]


def test_the_budget_can_be_changed_while_requests_wait_by_it() -> None:
    policy = a_patient_pool()
    case = Case(policy, endpoints=())
    case.arrive("r1")
    case.tick(10.0)
    case.reconfigure(replace(policy, no_endpoint_timeout_s=60.0))
    assert refused(case.tick(49.9)) == []
    assert refused(case.tick(0.1)) == [("r1", "no_capacity")]


def test_the_order_by_deadline_does_not_go_by_the_budget() -> None:
    """Both expire by the budget; the one that its client gives less time still goes first."""
    cls = a_class(queue_timeout_s=1000.0, order=Order.DEADLINE)
    window = WindowPolicy(start=1.0, overtake=0)
    case = Case(PoolPolicy(name="m", classes=(cls,), window=window, no_endpoint_timeout_s=BUDGET), endpoints=())
    case.arrive("later", timeout_s=900.0)
    case.arrive("sooner", timeout_s=800.0)
    case.add(E1)
    assert released(case.page(E1)) == ["sooner", "later"]
