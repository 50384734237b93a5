"""Figures as messages: durations and times to the edges, and every state, stance and word of the configuration."""

from __future__ import annotations

import math
from typing import get_args

import pytest
from reads_case import E1, PoolCase, a_config

from extproc.admin import messages
from extproc.admin.control import EngineState, SourceState
from extproc.admin.scan import THERE
from extproc.config.administration import ROLES
from extproc.config.scheduling import Pool
from extproc.core.explanation import explain
from extproc.core.model import State, Traffic
from extproc.core.view import request_view
from extproc.core.windows import Stance
from extproc.pb.admin.v1 import admin_pb2 as pb


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.0, (0, 0)),
        (1.5, (1, 500_000_000)),
        (-1.5, (-1, -500_000_000)),
        (-0.25, (0, -250_000_000)),
        (0.9999999999, (1, 0)),
        (-0.9999999999, (-1, 0)),
        (3, (3, 0)),
        (1e300, (315_576_000_000, 0)),
        (-1e300, (-315_576_000_000, 0)),
    ],
)
def test_durations(seconds: float, expected: tuple[int, int]) -> None:
    found = messages.duration(seconds)
    assert found is not None
    assert (found.seconds, found.nanos) == expected
    found.ToJsonString()  # raises for one that is none


@pytest.mark.parametrize("seconds", [None, math.nan, math.inf, -math.inf])
def test_what_is_no_time(seconds: float | None) -> None:
    assert messages.duration(seconds) is None
    assert messages.timestamp(seconds) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1_700_000_000.25, "2023-11-14T22:13:20.250Z"), (0, "1970-01-01T00:00:00Z"), (-5, "1970-01-01T00:00:00Z")],
)
def test_timestamps(seconds: float, text: str) -> None:
    found = messages.timestamp(seconds)
    assert found is not None
    assert found.ToJsonString() == text
    assert messages.timestamp(1e300).ToJsonString() == "9999-12-31T23:59:59Z"  # type: ignore[union-attr]


def test_every_word_has_its_number() -> None:
    def words(annotation: object) -> set[str]:
        return {word.upper() for word in get_args(annotation)}

    def names(enum: object) -> set[str]:
        return {name for name in enum.keys() if not name.endswith("_UNSPECIFIED")}  # type: ignore[attr-defined]  # noqa: SIM118

    assert words(Pool.model_fields["mode"].annotation) == names(pb.PoolMode)
    assert words(Pool.model_fields["percentage_of"].annotation) == names(pb.PercentageOf)
    assert {role.upper() for role in ROLES} == names(pb.Role)
    assert {member.name for member in Traffic} == names(pb.Traffic)
    assert {member.name for member in Stance} == names(pb.Stance)
    assert {state.name for state in THERE} == names(pb.RequestState)


def test_a_pool() -> None:
    config = a_config(slots=1)
    case = PoolCase(config, "m", observed=True)
    case.arrive("r1", tenant="a", body_bytes=10)
    case.now += 2.0
    case.arrive("r2", tenant="a", body_bytes=100)
    case.arrive("r3", tenant="b", cls="batch", body_bytes=1000)
    case.arrive("o1", observed=True)
    case.now += 3.0
    found = messages.pool(case.running, {"interactive": 3.0}, SourceState("m", "1 static address", "gone"))
    assert (found.name, found.mode, found.percentage, found.percentage_of) == ("m", pb.ENFORCE, 100.0, pb.TENANTS)
    assert (found.traffic, list(found.models), found.retiring) == (pb.OPEN, ["model-of-m"], False)
    assert (found.queued_count, found.queued_bytes, found.in_flight_slots, found.known_count) == (2, 1100, 1, 3)
    assert (found.observed_count, found.endpoint_source, found.endpoint_source_error) == (1, "1 static address", "gone")
    assert [(each.name, each.rank, each.queued_count, each.in_flight_slots) for each in found.classes] == [
        ("interactive", 0, 1, 1),
        ("batch", 2, 1, 0),
    ]
    assert found.classes[0].oldest_wait.seconds == 3
    assert not found.classes[1].HasField("oldest_wait")


def test_an_endpoint() -> None:
    case = PoolCase(a_config(slots=1), "m")
    case.arrive("r1")
    case.now += 5.0
    seen = case.scheduler.windows[E1].view(case.now)
    endpoint = messages.endpoint(seen, "m", EngineState("m", E1, "vllm", "header", "timeout: none in 1 s"))
    assert (endpoint.address, endpoint.pool, endpoint.in_flight_slots) == (E1, "m", 1)
    assert (endpoint.dialect, endpoint.priority_told, endpoint.last_error) == ("vllm", "header", "timeout: none in 1 s")
    assert (endpoint.HasField("running_count"), endpoint.running_count, endpoint.waiting_count) == (True, 0, 0)
    assert not endpoint.HasField("kv_usage_ratio")  # the page does not tell it
    assert endpoint.page_age.seconds == 5
    unknown = messages.endpoint(seen, "m", None)
    assert (unknown.dialect, unknown.priority_told, unknown.last_error) == ("", "", "")


def test_requests_and_explanations() -> None:
    case = PoolCase(a_config(slots=1), "m")
    case.arrive("r1", tenant="a")
    case.now += 2.0
    case.arrive("r2", tenant="b", cls="batch", body_bytes=77, n=1, adapter="lora-1")
    case.now += 0.5
    scheduler = case.scheduler
    inside, held = (
        messages.request(request_view(scheduler.requests[name], case.now), "m", observed=False) for name in ("r1", "r2")
    )
    assert (inside.state, inside.inside.seconds, inside.inside.nanos) == (pb.RELEASED, 2, 500_000_000)
    assert (inside.waited.ToJsonString(), inside.endpoint) == ("0s", E1)
    assert not inside.HasField("timeout_in")
    assert (held.state, held.waited.nanos, held.timeout_in.ToJsonString()) == (pb.QUEUED, 500_000_000, "599.500s")
    assert (held.pool, held.tenant, getattr(held, "class"), held.body_bytes) == ("m", "b", "batch", 77)
    assert (held.slots, held.adapter, held.endpoint, held.evicted, held.observed) == (1, "lora-1", "", False, False)
    assert not held.HasField("inside")

    for name, observed, begins in (
        ("r2", False, "no endpoint has room"),
        ("r2", True, "would be held: "),
        ("r1", True, "would have been released: it is with "),
    ):
        found = explain(scheduler, name, case.now)
        assert found is not None
        view = request_view(scheduler.requests[name], case.now)
        told = messages.explanation(found, view, "m", observed=observed)
        assert told.sentence.startswith(begins) or not observed, told.sentence
        assert told.sentence.endswith(found.sentence)
        assert told.request.observed is observed
        assert bool(told.hold) is told.HasField("estimated_wait") is (name == "r2")


def test_states_that_are_over_are_none_of_the_api() -> None:
    assert {state for state in State if state.name in pb.RequestState.keys()} == THERE  # noqa: SIM118
