"""What clients and engines must not be able to do: poison the order, break the books, stop the clock."""

from __future__ import annotations

import pytest
from scheduler_case import (
    E1,
    E2,
    Case,
    a_class,
    a_fixed_pool,
    a_pool,
    a_sample,
    drain,
    fill,
    refused,
    released,
    settled,
)
from state_dump import state_of

from extproc.core.events import Arrive, Scraped, Tick
from extproc.core.model import MAX_TOKENS, TenantPolicy
from extproc.core.view import view


def nothing_changes(case: Case, event: object, match: str, now: float | None = None) -> None:
    before = state_of(case.scheduler)
    with pytest.raises(ValueError, match=match):
        case.scheduler.apply(event, case.now if now is None else now)  # type: ignore[arg-type]
    assert state_of(case.scheduler) == before


# -- usage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [MAX_TOKENS, 10**12, 10**30])
def test_a_lying_engine_does_not_keep_its_tenant_back_or_spoil_the_estimates(count: int) -> None:
    case = Case(a_fixed_pool(a_class()))
    inside = fill(case, 1, "victim")
    assert settled(case.usage(inside[0], count, count)) == [(inside[0], 768.0)]
    assert view(case.scheduler, case.now).counts["usage"] == 1
    for i in range(3):
        case.arrive(f"v{i}", "victim")
        case.arrive(f"o{i}", "other")
    assert case.scheduler.requests["v0"].cost == case.scheduler.requests["o0"].cost == 768.0
    assert sorted(drain(case, inside, 4)) == ["o0", "o1", "v0", "v1"]


def test_the_largest_count_that_is_one_is_paid_for() -> None:
    case = Case(a_fixed_pool(a_class()))
    case.arrive("r")
    assert settled(case.usage("r", 1, MAX_TOKENS - 1)) == [("r", 1 + 2.0 * (MAX_TOKENS - 1))]
    assert view(case.scheduler, case.now).counts["usage"] == 0


# -- time --------------------------------------------------------------------------------------------


def test_time_that_goes_backwards_stands_still_and_is_counted() -> None:
    case = Case(a_fixed_pool(a_class(), tenants={"a": TenantPolicy(rate=100.0)}))
    inside = fill(case, 1)
    case.arrive("r", timeout_s=10.0)
    case.now += 5.0
    case.tick()
    case.now = -1e9
    case.arrive("late", timeout_s=3.0, arrival=105.0)
    case.page(started=0.0)
    assert view(case.scheduler, 105.0).counts["time"] == 2
    assert case.scheduler.next_deadline() == 108.0
    case.now = 108.0
    assert refused(case.apply(Tick())) == [("late", "queue_timeout")]
    assert drain(case, inside, 1) == ["r"]


@pytest.mark.parametrize("now", [float("nan"), float("inf")])
def test_a_time_that_is_no_number_is_an_error(now: float) -> None:
    case = Case()
    nothing_changes(case, Tick(), "now must be a number", now)
    assert released(case.arrive("r")) == ["r"]


# -- ids, classes, names -------------------------------------------------------------------------------


def test_an_id_in_use_is_an_error_wherever_the_first_is() -> None:
    case = Case(a_fixed_pool(a_class()))
    case.arrive("ended")
    case.end("ended")
    case.arrive("running")
    case.arrive("held")
    for name in ("ended", "running", "held"):
        nothing_changes(case, Arrive(name, "t", "interactive", case.now, 10), f"{name!r} is in use")
    case.usage("ended", 1, 1)
    assert case.arrive("ended") == []  # its books are closed: it may come again


def test_an_unknown_class_is_an_error() -> None:
    case = Case(a_fixed_pool(a_class()))
    fill(case, 1)
    nothing_changes(case, Arrive("r", "t", "gold", case.now, 10), "class 'gold' is not one of")


@pytest.mark.parametrize("name", ["", "/", "///", "a//b", "/".join("abcdefgh"), "x" * 100_000, "\n\0\N{SNOWMAN}", "*"])
def test_any_name_is_a_tenant(name: str) -> None:
    case = Case(a_fixed_pool(a_class(), separator="/"))
    fill(case, 1)
    for i in range(2):
        assert case.arrive(f"r{i}", name) == []
    assert drain(case, ["fill-interactive-0"], 2) == ["r0", "r1"]
    for i in range(2):
        case.end(f"r{i}")
    case.tick(10.0)
    assert case.scheduler.by_name["interactive"].queue.nodes == 0


@pytest.mark.parametrize("size", [-5, 0, 10**15])
def test_any_size_of_a_body_is_waited_for_or_refused(size: int) -> None:
    case = Case(a_fixed_pool(a_class(), max_queued_bytes=10**16, default_tenant=TenantPolicy(max_queued_bytes=10**16)))
    inside = fill(case, 1)
    assert case.arrive("r", body_bytes=size) == []
    assert case.scheduler.requests["r"].prompt_tokens <= MAX_TOKENS
    assert drain(case, inside, 1) == ["r"]


def test_a_request_that_asks_for_everything_is_cut_to_what_can_be() -> None:
    case = Case(a_pool(start=4))
    case.arrive("r", n=10**9, max_output=10**15, prompt_tokens=10**15, timeout_s=-1e300, arrival=-1e300)
    request = case.scheduler.requests["r"]
    assert (request.slots, request.max_output, request.prompt_tokens) == (128, MAX_TOKENS, MAX_TOKENS)
    assert case.scheduler.next_deadline() is None  # it has gone


# -- pages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("running", "waiting"), [(0, -1), (-1, 0), (0, 10**9), (10**9, 0), (10**30, 10**30)])
def test_a_page_that_cannot_be_is_dropped_and_counted(running: int, waiting: int) -> None:
    case, same = Case(a_pool(start=4)), Case(a_pool(start=4))
    for i in range(9):
        case.arrive(f"r{i}")
        same.arrive(f"r{i}")
    case.page(running=running, waiting=waiting)
    assert view(case.scheduler, case.now).counts["page"] == 1
    assert released(case.end("r0")) == released(same.end("r0")) == ["r7"]


@pytest.mark.parametrize("started", [float("nan"), float("inf"), -1e300])
def test_a_page_from_another_time_is_dropped(started: float) -> None:
    case = Case(a_pool(start=4))
    for i in range(9):
        case.arrive(f"r{i}")
    case.apply(Scraped(E1, a_sample(0, 0, started)))
    assert view(case.scheduler, case.now).counts["page"] == 1


def test_a_lying_endpoint_does_not_hold_up_the_other() -> None:
    case = Case(a_pool(start=4), endpoints=(E1, E2))
    for _ in range(20):
        case.now += 0.25
        case.page(E1, running=-1, waiting=10**9)
        case.page(E2)
    assert [effect.endpoint for i in range(3) for effect in case.arrive(f"r{i}")].count(E2) >= 2
