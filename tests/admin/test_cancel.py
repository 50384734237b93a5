"""CancelRequests: what is held, what is inside, what is none of ours."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from writes_case import Case

from extproc.admin import cancel
from extproc.admin.cancel import Cancellation, client_message
from extproc.admin.filter import parse
from extproc.admin.portions import Portions
from extproc.core.events import Arrive
from extproc.pb.admin.v1 import admin_pb2


def a_request(filter_: str, reason: str = "runaway job", **fields: Any) -> admin_pb2.CancelRequestsRequest:
    return admin_pb2.CancelRequestsRequest(filter=filter_, reason=reason, **fields)


def counts(answer: admin_pb2.CancelRequestsResponse) -> tuple[int, int, int, bool]:
    return answer.cancelled_count, answer.refused_count, answer.evicted_count, answer.complete


@pytest.fixture
def case() -> Case:
    """Two inside the engine, i0 and i1, which is all that it takes; h0 to h2 of acme and o0 of other wait."""
    case = Case()
    case.control.arrive("i0", "i1", "h0", "h1", "h2")
    case.control.arrive("o0", tenant="other")
    assert case.control.released == {"i0", "i1"}
    return case


async def test_held_ones_that_match_are_refused_and_nothing_else(case: Case) -> None:
    answer = await case.call("CancelRequests", a_request("tenant = acme"))
    assert counts(answer) == (3, 3, 0, True)
    assert case.control.refused == {"h0", "h1", "h2"}
    assert not case.control.evicted
    assert {each.id for each in answer.sample} == {"h0", "h1", "h2"}
    assert set(case.control.messages.values()) == {"cancelled by an operator: runaway job"}


async def test_those_inside_are_meant_where_the_filter_names_the_state(case: Case) -> None:
    answer = await case.call("CancelRequests", a_request("state = released"))
    assert counts(answer) == (2, 0, 2, True)
    assert case.control.evicted == {"i0", "i1"}
    # They are leaving: once more finds nobody.
    again = await case.call("CancelRequests", a_request("state = released AND tenant = acme"))
    assert counts(again) == (0, 0, 0, True)


async def test_a_filter_may_mean_both(case: Case) -> None:
    answer = await case.call("CancelRequests", a_request('tenant = acme AND state != "ended"'))
    assert counts(answer) == (5, 3, 2, True)


async def test_a_dry_run_counts_and_touches_nothing(case: Case) -> None:
    answer = await case.call("CancelRequests", a_request("tenant = acme", validate_only=True))
    assert counts(answer) == (3, 3, 0, True)
    assert not case.control.refused
    (record,) = await case.revisions.list_audit(None, 1)
    assert record.validate_only
    assert record.message == "3 held ones would be refused; 0 inside would be evicted"


async def test_observed_ones_are_left_alone_and_told_of(case: Case) -> None:
    observed = case.control.observe("llama")
    for name in ("x0", "x1"):
        observed.apply(Arrive(name, "watched", "default", arrival=100.0, body_bytes=1), 100.0)
    message = await case.not_now("CancelRequests", a_request("tenant = watched"))
    assert message.startswith("there is nothing to cancel: the filter matches 2 observed requests and no others")
    assert "`observed = false`" in message
    answer = await case.call("CancelRequests", a_request('tenant = watched OR tenant = "other"'))
    assert counts(answer) == (1, 1, 0, True)
    assert set(observed.requests) == {"x0", "x1"}
    failed, done = (await case.revisions.list_audit(None, 2))[::-1]
    assert failed.outcome == "FAILED_PRECONDITION"
    assert "2 observed ones left alone" in done.message


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (a_request(""), "filter"),
        (a_request("   "), "filter"),
        (a_request("tenant ="), "filter"),
        (a_request("tennant = acme"), "filter"),
        (a_request("tenant = acme", reason=""), "reason"),
        (a_request("tenant = acme", reason="a\nb"), "reason"),
        (a_request("tenant = acme", reason="a" * 1001), "reason"),
    ],
)
async def test_what_cannot_be_meant_is_refused_and_audited(
    case: Case, request_: admin_pb2.CancelRequestsRequest, field: str
) -> None:
    assert set(await case.invalid("CancelRequests", request_)) == {field}
    assert not case.control.refused
    assert (await case.outcomes())[-1] == ("CancelRequests", "INVALID_ARGUMENT")


async def test_it_is_audited_with_its_counts(case: Case) -> None:
    await case.call("CancelRequests", a_request("tenant = other"))
    (record,) = await case.revisions.list_audit(None, 1)
    assert (record.author.name, record.reason, record.outcome) == ("ann", "runaway job", "ok")
    assert record.message == "1 held ones refused; 0 inside evicted"


async def test_time_bounds_it_and_a_second_call_does_the_rest() -> None:
    case = Case()
    case.control.arrive(*(f"r{i}" for i in range(500)))
    # The time is over as soon as it is looked at.
    run = Cancellation(case.control, Portions(hold_s=0.0), parse("state = queued"), for_s=0.0)
    first = await run.run("away")
    assert not first.complete
    assert 0 < first.refused < 498
    second = await Cancellation(case.control, Portions(), parse("state = queued")).run("away")
    assert second.complete
    assert first.refused + second.refused == 498  # two are inside


async def test_the_loop_has_its_turns_in_between() -> None:
    case = Case()
    case.control.arrive(*(f"r{i}" for i in range(1000)))
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    busy = asyncio.create_task(others())
    # A portion that is over at once: the loop is given back after each look at the time.
    done = await Cancellation(case.control, Portions(hold_s=0.0), parse("tenant = acme")).run("away")
    busy.cancel()
    assert done.refused == 998
    assert turns >= 998


async def test_a_caller_that_goes_away_leaves_a_record_of_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    case.control.arrive(*(f"r{i}" for i in range(300)))
    task = asyncio.create_task(case.call("CancelRequests", a_request("tenant = acme")))
    cancelled = case.control.apply

    def apply(event: Any, pool: str = "llama") -> Any:
        if len(case.control.messages) == 10:
            task.cancel()
        return cancelled(event, pool)

    monkeypatch.setattr(case.control, "apply", apply)
    monkeypatch.setattr(case.portions, "hold_s", 0.0)
    with pytest.raises(asyncio.CancelledError):
        await task
    (record,) = await case.revisions.list_audit(None, 1)
    assert record.outcome == "CANCELLED"
    done = len(case.control.messages)
    assert 10 <= done < 298
    assert f"{done} held ones refused" in record.message


def test_the_client_is_told_no_more_than_fits() -> None:
    assert client_message("short") == "cancelled by an operator: short"
    assert len(client_message("a" * 1000)) == len("cancelled by an operator: ") + 200
    assert client_message("a" * 1000).endswith("...")
    assert cancel.FOR_S == 2.0
