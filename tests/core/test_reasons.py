"""The table of reasons: what clients, metrics and documents rely on."""

from __future__ import annotations

import pytest

from extproc.core.reasons import Reason


def test_codes_are_unique() -> None:
    codes = [reason.code for reason in Reason]
    assert len(set(codes)) == len(codes)
    assert len(Reason.__members__) == len(codes)  # an Enum silently makes an alias of equal values


def test_the_codes_that_clients_know() -> None:
    """A change here breaks somebody's client or dashboard."""
    assert {reason.code: reason.status for reason in Reason} == {
        "queue_full": 429,
        "tenant_limit": 429,
        "rate_limit": 429,
        "shed": 429,
        "queue_timeout": 503,
        "preempted": 503,
        "paused": 503,
        "cancelled": 503,
        "draining": 503,
        "no_capacity": 503,
        "body_too_large": 413,
        "invalid_request_error": 400,
        "model_not_found": 404,
        "fault": 503,
    }


@pytest.mark.parametrize("reason", Reason)
def test_each_reason(reason: Reason) -> None:
    assert reason.status in (
        400,
        404,
        413,
        429,
        503,
    )  # never 408, 504, 529: clients and proxies retry those by themselves
    assert reason.retry == (reason.status in (429, 503))
    assert reason.code.replace("_", "").isalpha() and reason.code == reason.code.lower()
    assert reason.error_type == {429: "rate_limit_error", 503: "service_unavailable"}.get(
        reason.status, "invalid_request_error"
    )
    assert reason.meaning
