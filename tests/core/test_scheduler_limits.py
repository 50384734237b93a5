"""Who is refused: limits at the door, and timeouts."""

from __future__ import annotations

import pytest
from scheduler_case import E1, E2, Case, a_class, a_pool, fill, refused, released, the_refusal

from extproc.core.model import Overflow, State, TenantPolicy
from extproc.core.reasons import Reason
from extproc.core.view import view

# -- limits at the door ----------------------------------------------------------------------------


def test_a_tenant_s_limit_refuses_it_and_nobody_else() -> None:
    case = Case(a_pool(start=1, tenants={"a": TenantPolicy(max_queued=2)}))
    fill(case, 4)
    assert case.arrive("a0", "a") + case.arrive("a1", "a") == []
    refusal = the_refusal(case.arrive("a2", "a"))
    assert (refusal.reason, refusal.tenant, refusal.cls) == (Reason.TENANT_LIMIT, "a", "interactive")
    assert "tenant 'a'" in refusal.message and "2 (max_queued of the tenant)" in refusal.message
    assert refusal.retry_after_s >= 1
    assert case.arrive("b0", "b") == []
    assert released(case.end("fill-interactive-0")) == ["a0"]
    assert case.arrive("a3", "a") == []  # a place is free again


def test_the_limit_of_a_class() -> None:
    case = Case(a_pool(a_class(max_queued=1), a_class("batch", 2), start=1))
    fill(case, 4)
    case.arrive("r0", "a")
    refusal = the_refusal(case.arrive("r1", "b"))
    assert refusal.reason is Reason.QUEUE_FULL
    assert "class 'interactive'" in refusal.message and "1 (max_queued of the class)" in refusal.message
    assert case.arrive("r2", "b", "batch") == []


def test_the_limit_of_the_pool() -> None:
    interactive = a_class(overflow=Overflow.REJECT_NEWEST)
    case = Case(a_pool(interactive, a_class("batch", 2, max_waiting=0), start=1, max_queued=2))
    fill(case, 4)
    case.arrive("r0", "a")
    case.arrive("r1", "a", "batch")
    refusal = the_refusal(case.arrive("r2", "b"))
    assert refusal.reason is Reason.QUEUE_FULL
    assert "pool 'm'" in refusal.message and "2 (max_queued of the pool)" in refusal.message


def test_the_limit_of_a_tenant_s_bytes_leaves_room_for_others() -> None:
    case = Case(a_pool(start=1, tenants={"a": TenantPolicy(max_queued_bytes=5000)}))
    fill(case, 4)
    case.arrive("a0", "a", body_bytes=3000)
    refusal = the_refusal(case.arrive("a1", "a", body_bytes=2001))
    assert refusal.reason is Reason.TENANT_LIMIT
    assert "3000 bytes" in refusal.message and "5000 (max_queued_bytes of the tenant)" in refusal.message
    assert case.arrive("a2", "a", body_bytes=2000) == []
    assert case.arrive("b0", "b", body_bytes=2001) == []
    case.end("a0")
    assert case.arrive("a3", "a", body_bytes=3000) == []


def test_the_limit_of_bytes() -> None:
    case = Case(a_pool(start=1, max_queued_bytes=5000))
    fill(case, 4)  # released: their bodies have left
    case.arrive("r0", body_bytes=3000)
    refusal = the_refusal(case.arrive("r1", body_bytes=2001))
    assert refusal.reason is Reason.QUEUE_FULL
    assert "3000 bytes" in refusal.message and "5000 (max_queued_bytes of the pool)" in refusal.message
    assert case.arrive("r2", body_bytes=2000) == []


def test_a_refused_request_leaves_no_trace() -> None:
    case = Case(a_pool(start=1, max_queued=0), endpoints=())
    the_refusal(case.arrive("r", "t"))
    assert case.scheduler.requests == {}
    assert case.end("r") == [] and case.usage("r", 5, 5) == []
    assert view(case.scheduler, case.now).classes[0].tenants == 0


def test_retry_after_comes_from_the_drain_rate() -> None:
    """One release a second, of a and z in turn. The next of a's flow would be its 21st: 42 releases, and up to a
    quarter more so that not all come back together."""
    case = Case(a_pool(a_class(queue_timeout_s=1e6), start=1, tenants={"a": TenantPolicy(max_queued=20)}))
    inside = fill(case, 4)
    for i in range(200):
        case.arrive(f"r{i}", "z")
    for _ in range(120):
        case.now += 1.0
        case.page(running=1, waiting=3)
        inside += released(case.end(inside.pop(0)))
    for i in range(20):
        case.arrive(f"a{i}", "a")
    assert 42 <= the_refusal(case.arrive("a20", "a")).retry_after_s <= 53


def test_a_burst_after_a_quiet_night_is_not_told_to_stay_away_for_minutes() -> None:
    case = Case(a_pool(a_class(max_queued=20), start=4))
    case.end(case.arrive("evening")[0].id)
    case.now += 10_000.0
    case.page()
    for i in range(7 + 20):
        case.arrive(f"r{i}", f"t{i}")
    case.now += 1.0
    case.end("r0")
    case.arrive("r27", "t27")
    # Eight went in a second: 20 wait for 2.5 s, were it to go on like that. With the night in it: 75 s and more.
    assert the_refusal(case.arrive("r28", "t28")).retry_after_s <= 4


# -- timeouts --------------------------------------------------------------------------------------


def test_a_request_that_waits_too_long_is_refused() -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("r", "t")
    assert case.scheduler.next_deadline() == 160.0
    assert case.tick(59.9) == []
    refusal = the_refusal(case.tick(0.1))
    assert refusal.reason is Reason.QUEUE_TIMEOUT
    assert "waited 60.0 s" in refusal.message and "60 s (queue_timeout of the class)" in refusal.message
    assert case.scheduler.next_deadline() is None
    assert "r" not in case.scheduler.requests


def test_the_reason_is_no_capacity_when_all_endpoints_are_down() -> None:
    case = Case(a_pool(start=1), endpoints=(E1, E2))
    case.scrape_fails(E1, refused=True)
    case.scrape_fails(E2, refused=True)
    case.arrive("r")
    assert refused(case.tick(60.0)) == [("r", "no_capacity")]


def test_the_reason_is_no_capacity_when_there_is_no_endpoint() -> None:
    case = Case(endpoints=())
    case.arrive("r")
    assert refused(case.tick(60.0)) == [("r", "no_capacity")]


def test_one_endpoint_that_answers_is_capacity() -> None:
    case = Case(a_pool(start=1), endpoints=(E1, E2))
    fill(case, 8)
    case.scrape_fails(E2, refused=True)
    case.arrive("r")
    assert refused(case.tick(60.0)) == [("r", "queue_timeout")]


@pytest.mark.parametrize(("asked", "got"), [(5.0, 5.0), (59.0, 59.0), (600.0, 60.0), (None, 60.0)])
def test_a_timeout_of_the_client_only_shortens(asked: float | None, got: float) -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("r", timeout_s=asked)
    assert case.scheduler.next_deadline() == 100.0 + got


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_of_nothing_does_not_wait(timeout: float) -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    assert refused(case.arrive("r", timeout_s=timeout)) == [("r", "queue_timeout")]


@pytest.mark.parametrize("timeout", [0.0, -1.0, float("nan")])
def test_a_timeout_of_nothing_is_no_reason_to_refuse_what_need_not_wait(timeout: float) -> None:
    case = Case(a_pool(start=1))
    assert released(case.arrive("r", timeout_s=timeout)) == ["r"]


def test_a_wide_head_that_expires_lets_the_next_go_in_the_same_event() -> None:
    case = Case(a_pool(start=4))
    fill(case, 5)
    case.arrive("wide", "a", n=8, timeout_s=1.0)
    case.arrive("narrow", "b")
    effects = case.tick(1.0)
    assert (refused(effects), released(effects)) == ([("wide", "queue_timeout")], ["narrow"])


def test_timeouts_count_from_the_first_arrival_also_after_a_replay() -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("r", arrival=70.0)
    assert refused(case.tick(29.9)) == []
    assert refused(case.tick(0.1)) == [("r", "queue_timeout")]


def test_a_released_request_has_no_timeout() -> None:
    case = Case()
    case.arrive("r")
    assert case.tick(10_000.0) == []
    assert case.scheduler.requests["r"].state is State.RELEASED


def test_many_that_expire_at_once_do_so_in_portions() -> None:
    """2,000 at once: an event deals with 256, the next tick is due at once, and a release is not kept waiting."""
    case = Case(a_pool(start=1), checked=False)
    inside = fill(case, 4)
    for i in range(2_000):
        case.arrive(f"r{i}", f"t{i % 50}")
    case.now += 61.0
    assert len(refused(case.page(running=1, waiting=3))) == 256
    due = case.scheduler.next_deadline()
    assert due is not None and due < case.now
    rounds, gone = 0, 256
    while (due := case.scheduler.next_deadline()) is not None and due <= case.now:
        gone += len(refused(case.tick()))
        rounds += 1
    assert (rounds, gone, case.scheduler.queued) == (7, 2_000, 0)
    case.end(inside[0])


def test_what_one_lying_engine_claims_teaches_little() -> None:
    """A hundred tokens were asked for. Ten million are charged, and learnt by nobody."""
    case = Case(a_pool(start=4))
    case.arrive("r0", "liar", max_output=100)
    case.usage("r0", 10, 9_999_998)
    case.arrive("r1", "other")
    assert case.scheduler.requests["r1"].output_tokens < 256


def test_an_arrival_long_before_anything_is_not_the_oldest_of_all() -> None:
    case = Case(a_pool(a_class(queue_timeout_s=1e9), start=1))
    fill(case, 4)
    case.arrive("r", arrival=float("-inf"))
    assert case.scheduler.requests["r"].arrival == case.now - 7 * 86_400.0
