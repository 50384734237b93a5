"""The spans of a request, as a collector gets them over gRPC."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from otlp_collector import ENDPOINT, PARENT, SAMPLED, TRACE, Asked, Collected, Pool, a_class, attributes, grpc_collector

from extproc.config.telemetry import Traces
from extproc.core.events import (
    Arrive,
    Cancel,
    End,
    Event,
    Failed,
    FirstByte,
    FirstToken,
    Reconfigure,
    Release,
    TurnedAway,
    Unreachable,
    Usage,
)
from extproc.core.model import Gates, Pick, PickPolicy, Source, Traffic
from extproc.telemetry.printable import printable
from extproc.telemetry.traces import Tracer
from extproc.telemetry.traces_spans import operation

CONVENTIONS = {
    value
    for module in (gen_ai_attributes, error_attributes, server_attributes)
    for name, value in vars(module).items()
    if name.isupper() and isinstance(value, str)
}


class Followed:
    """Requests that are all followed, and their spans."""

    def __init__(self, tracer: Tracer, collected: Collected) -> None:
        self.tracer = tracer
        self.collected = collected
        self.lost = 0

    def pool(self, *classes: Any, **changes: Any) -> Pool:
        return Pool(self.tracer, *classes, **changes)

    def arrive(self, pool: Pool, name: str, asked: Asked | None = None, after_s: float = 0.0, **more: Any) -> bool:
        """Whether it was released at once."""
        self.tracer.begin(name, asked or Asked())
        values: dict[str, Any] = {"tenant": "acme", "cls": "interactive", "arrival": pool.now + after_s}
        effects = pool.apply(Arrive(id=name, body_bytes=40, **(values | more)), after_s)
        return any(isinstance(effect, Release) and effect.id == name for effect in effects)

    def answered(self, pool: Pool, name: str, *events: Event) -> None:
        for event in (*events, Usage(name, Source.USAGE, 10, 0, 20), End(name)):
            pool.apply(event, after_s=1.0)

    def spans(self, requests: int = 1) -> tuple[Span, Span]:
        """(request, wait) of the only one."""
        self.collected.until(2 * requests)
        return self.collected.named("fairlane request"), self.collected.named("fairlane wait")


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Followed]:
    monkeypatch.setattr("extproc.telemetry.traces_export._FLUSH_S", 0.01)
    with grpc_collector() as (address, collected):
        tracer = Tracer.of(Traces(otlp=address, sample=1.0), "1.2.3", lambda _, __: None)
        assert tracer is not None
        yield Followed(tracer, collected)
        tracer.close()


def story(span: Span, since: Span | None = None) -> list[tuple[str, float]]:
    """Its events, each with the seconds since the span's beginning."""
    start = (since or span).start_time_unix_nano
    return [(event.name, round((event.time_unix_nano - start) / 1e9, 3)) for event in span.events]


def lasts(span: Span) -> float:
    return round((span.end_time_unix_nano - span.start_time_unix_nano) / 1e9, 3)


def event(span: Span, name: str) -> dict[str, Any]:
    (found,) = (event for event in span.events if event.name == name)
    return attributes(found.attributes)


def test_a_request_that_waited_and_was_answered(followed: Followed) -> None:
    pool = followed.pool()
    pool.apply(Arrive("before", "other", "interactive", 100.0, 40))
    asked = Asked(SAMPLED, "vendor=1,other=2", "llama-3", "/v1/chat/completions", stream=True)
    assert not followed.arrive(pool, "1", asked, max_output=64, n=1)
    pool.apply(Usage("before", Source.USAGE, 1, 0, 1))
    pool.apply(End("before"), after_s=3.0)  # so it is released
    pool.apply(FirstByte("1"), after_s=1.0)
    pool.apply(FirstToken("1"), after_s=0.5)
    pool.apply(Usage("1", Source.USAGE, 12, 2, 20), after_s=2.0)
    pool.apply(End("1"), after_s=0.25)
    request, wait = followed.spans()

    assert request.trace_id.hex() == wait.trace_id.hex() == TRACE
    assert request.parent_span_id.hex() == PARENT
    assert wait.parent_span_id == request.span_id
    assert request.trace_state == wait.trace_state == "vendor=1,other=2"
    assert request.kind == wait.kind == Span.SPAN_KIND_INTERNAL
    assert request.start_time_unix_nano == wait.start_time_unix_nano
    assert (lasts(request), lasts(wait)) == (6.75, 3.0)
    assert story(wait) == [("enqueued", 0.0), ("released", 3.0)]
    assert story(request) == [("first_token", 4.5), ("settled", 6.5)]
    assert request.status.code == wait.status.code == Status.STATUS_CODE_UNSET

    assert attributes(request.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "llama-3",
        "gen_ai.request.max_tokens": 64,
        "gen_ai.request.stream": True,
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.output_tokens": 20,
        "server.address": "10.0.0.1",
        "server.port": 8000,
        "fairlane.ticket": "1",
        "fairlane.pool": "m",
        "fairlane.tenant": "acme",
        "fairlane.class": "interactive",
        "fairlane.outcome": "released",
        "fairlane.priority": 0,
        "fairlane.queue_wait_seconds": 3.0,
    }
    assert event(wait, "enqueued") == {
        "fairlane.hold.kind": "window",
        "fairlane.hold.name": "fixed",
        "fairlane.hold.value": 1.0,
        "fairlane.hold.limit": 1.0,
        "fairlane.hold.explanation": f"it is next; {ENDPOINT} (fresh) holds 1 of ours and 0 others, limit 1.0 "
        "(fixed: 1 of 1)",
        "fairlane.hold.next": "a request inside ends, or a page shows more room",
    }
    assert event(wait, "released") == {"fairlane.priority": 0, "fairlane.endpoint": ENDPOINT}
    # 10 prompt tokens at 1, 2 cached ones at 0.1, 20 output tokens at 2; and estimated, 40 bytes / 4, and `max_output`
    settled = event(request, "settled")
    assert settled.pop("fairlane.settled.estimate") == pytest.approx(10 + 2 * 64)
    assert settled.pop("fairlane.settled.cost") == pytest.approx(50.2)
    assert settled == {
        "fairlane.settled.source": "usage",
        "gen_ai.usage.input_tokens": 12,
        "gen_ai.usage.output_tokens": 20,
    }


def test_a_request_that_went_at_once(followed: Followed) -> None:
    pool = followed.pool()
    assert followed.arrive(pool, "1", Asked(path="/v1/completions"), n=3)
    followed.answered(pool, "1", FirstByte("1"))
    request, wait = followed.spans()
    assert request.parent_span_id == b""  # a trace of its own
    assert story(wait) == [("enqueued", 0.0), ("released", 0.0)]
    assert event(wait, "enqueued") == {}  # nothing held it
    assert story(request) == [("first_byte", 1.0), ("settled", 2.0)]
    assert attributes(request.attributes)["gen_ai.operation.name"] == "text_completion"
    assert attributes(request.attributes)["gen_ai.request.choice.count"] == 3
    assert "gen_ai.request.max_tokens" not in attributes(request.attributes)


def test_a_replay_begins_at_its_first_arrival(followed: Followed) -> None:
    pool = followed.pool()
    assert followed.arrive(pool, "1", arrival=60.0)  # it has waited elsewhere for 40 s
    followed.answered(pool, "1")
    request, wait = followed.spans()
    assert (lasts(request), lasts(wait)) == (42.0, 40.0)
    assert story(wait) == [("enqueued", 40.0), ("released", 40.0)]
    assert attributes(wait.attributes)["fairlane.queue_wait_seconds"] == 40.0


def test_names_are_those_of_the_conventions(followed: Followed) -> None:
    pool = followed.pool()
    followed.arrive(pool, "1", max_output=3, n=2)
    pool.apply(Usage("1", Source.USAGE, 12, 2, 20))
    pool.apply(End("1"))
    request, wait = followed.spans()
    names = set(attributes(request.attributes)) | set(attributes(wait.attributes))
    names |= {name for span in (request, wait) for event in span.events for name in attributes(event.attributes)}
    assert {name for name in names if not name.startswith("fairlane.")} <= CONVENTIONS
    assert {"gen_ai.request.model", "gen_ai.usage.output_tokens", "server.address"} <= names


def test_a_request_whose_client_left_while_it_waited(followed: Followed) -> None:
    pool = followed.pool()
    pool.apply(Arrive("before", "other", "interactive", 100.0, 40))
    followed.arrive(pool, "1")
    pool.apply(End("1"), after_s=7.0)
    request, wait = followed.spans()
    assert (lasts(request), lasts(wait)) == (7.0, 7.0)
    assert story(wait) == [("enqueued", 0.0)]
    assert story(request) == []
    assert attributes(request.attributes)["fairlane.outcome"] == "left"
    assert "server.address" not in attributes(request.attributes)
    assert request.status.code == Status.STATUS_CODE_UNSET


def _full(pool: Pool) -> None:
    for name in ("inside", "waits"):
        pool.apply(Arrive(name, "other", "interactive", 100.0, 40))


def test_a_request_that_was_refused_at_the_door(followed: Followed) -> None:
    pool = followed.pool(max_queued=1)
    _full(pool)
    followed.arrive(pool, "1", tenant="other")
    request, wait = followed.spans()
    for span in (request, wait):
        assert lasts(span) == 0.0
        assert span.status.code == Status.STATUS_CODE_ERROR
        assert "pool" in span.status.message
        assert attributes(span.attributes)["error.type"] == "queue_full"
        assert attributes(span.attributes)["fairlane.outcome"] == "queue_full"


def test_a_request_that_waited_for_too_long(followed: Followed) -> None:
    pool = followed.pool(a_class(queue_timeout_s=5.0))
    _full(pool)
    followed.arrive(pool, "1")
    pool.apply(Arrive("late", "other", "interactive", 105.5, 40), after_s=5.5)
    request, wait = followed.spans()
    assert lasts(wait) == 5.5
    assert request.status.code == wait.status.code == Status.STATUS_CODE_ERROR
    assert attributes(request.attributes)["error.type"] == "queue_timeout"


def test_a_request_that_an_operator_took_back_from_its_engine(followed: Followed) -> None:
    pool = followed.pool()
    followed.arrive(pool, "1")
    pool.apply(Cancel("1", "cancelled by\nroot"), after_s=1.0)
    followed.answered(pool, "1")
    request, wait = followed.spans()
    assert story(request) == [("evicted", 1.0), ("settled", 2.0)]
    assert event(request, "evicted") == {"error.type": "cancelled", "fairlane.message": "cancelled by\\nroot"}
    assert request.status == Status(code=Status.STATUS_CODE_ERROR, message="cancelled by\\nroot")
    assert attributes(request.attributes)["error.type"] == "cancelled"
    assert wait.status.code == Status.STATUS_CODE_UNSET


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda name: Failed(name), "failed"),
        (lambda name: TurnedAway(name), "turned_away"),
        (lambda name: Unreachable(name, broke=True), "broken_off"),
    ],
)
def test_a_request_that_its_engine_failed(followed: Followed, make: Callable[[str], Event], name: str) -> None:
    pool = followed.pool()
    followed.arrive(pool, "1")
    pool.apply(make("1"), after_s=1.0)
    pool.apply(Usage("1", Source.ERROR))
    pool.apply(End("1"))
    request, _ = followed.spans()
    assert story(request) == [(name, 1.0), ("settled", 1.0)]
    assert event(request, name) == {"fairlane.endpoint": ENDPOINT}
    assert attributes(request.attributes)["error.type"] == name
    assert request.status.code == Status.STATUS_CODE_ERROR


def test_a_fault_of_an_endpoint_that_another_made_up_for(followed: Followed) -> None:
    pool = followed.pool()
    followed.arrive(pool, "1")
    pool.apply(Unreachable("1", endpoint="10.0.0.9:8000"), after_s=1.0)
    pool.apply(Usage("1", Source.USAGE, 5, 0, 6, endpoint="[2001:db8::1]:8080"))
    pool.apply(End("1"))
    request, _ = followed.spans()
    assert event(request, "unreachable") == {"fairlane.endpoint": "10.0.0.9:8000"}
    assert request.status.code == Status.STATUS_CODE_UNSET
    told = attributes(request.attributes)
    assert (told["server.address"], told["server.port"]) == ("2001:db8::1", 8080)  # where it was served


def test_where_envoy_chooses_the_endpoint_none_is_named_before_it_is_known(followed: Followed) -> None:
    pool = followed.pool(pick=PickPolicy(by=Pick.ENVOY))
    followed.arrive(pool, "1")
    followed.answered(pool, "1")
    request, wait = followed.spans()
    assert "server.address" not in attributes(request.attributes)
    assert event(wait, "released") == {"fairlane.priority": 0}


def test_what_held_it_is_told_as_it_changes(followed: Followed) -> None:
    """A gate, then a pause by an operator, then the gate again; looked at with the pages, once a second."""
    pool = followed.pool(a_class(gates=Gates(max_kv_usage=0.8)), slots=4)
    pool.page(kv_usage=0.9)
    assert not followed.arrive(pool, "1")
    for _ in range(4):
        pool.now += 0.25
        pool.page(kv_usage=0.9)  # nothing has changed
    policy = pool.scheduler.policy
    pool.apply(Reconfigure(_with(policy, traffic=Traffic.PAUSED)), after_s=0.5)
    pool.now += 0.5
    pool.page(kv_usage=0.9)  # at 2.0
    pool.apply(Reconfigure(policy), after_s=0.5)
    pool.now += 0.25
    pool.page(kv_usage=0.9)  # 0.75 s after the last look
    pool.now += 0.25
    pool.page(kv_usage=0.9)  # at 3.0
    pool.now += 0.5
    pool.page(kv_usage=0.5)  # it is released
    followed.answered(pool, "1")
    _, wait = followed.spans()
    assert story(wait) == [
        ("enqueued", 0.0),
        ("gate_closed", 0.0),
        ("hold_changed", 2.0),
        ("gate_closed", 3.0),
        ("released", 3.5),
    ]
    first = attributes(wait.events[1].attributes)
    assert first["fairlane.hold.name"] == "max_kv_usage"
    assert (first["fairlane.hold.value"], first["fairlane.hold.limit"]) == (0.9, 0.8)
    assert attributes(wait.events[2].attributes)["fairlane.hold.kind"] == "paused"


def _with(policy: Any, **changes: Any) -> Any:
    return dataclasses.replace(policy, **changes)


def test_changes_before_it_came_and_after_it_went_are_not_its_own(followed: Followed) -> None:
    pool = followed.pool(a_class(gates=Gates(max_kv_usage=0.8)))
    policy = pool.scheduler.policy
    pool.page(kv_usage=0.9)
    followed.arrive(pool, "first")
    pool.apply(Reconfigure(_with(policy, traffic=Traffic.PAUSED)), after_s=1.0)
    pool.page(kv_usage=0.9)
    followed.arrive(pool, "second", after_s=1.0)
    pool.apply(End("second"), after_s=0.5)
    pool.apply(Reconfigure(policy), after_s=1.0)
    pool.page(kv_usage=0.9)
    pool.apply(End("first"))
    followed.collected.until(4)
    waits = sorted((s for s in followed.collected.spans if s.name == "fairlane wait"), key=lasts)
    assert [[event.name for event in span.events] for span in waits] == [
        ["enqueued"],
        ["enqueued", "gate_closed", "hold_changed", "gate_closed"],
    ]
    assert event(waits[0], "enqueued")["fairlane.hold.kind"] == "paused"


def test_whatever_clients_write_arrives_cut_and_escaped(followed: Followed) -> None:
    nasty = "\"'\n\x00\x1b[31m<script>\ud800\u202e\U0001f600" + "x" * 10_000
    pool = followed.pool()
    followed.arrive(pool, "1", Asked(SAMPLED, "not valid \ud800", nasty, nasty), tenant=nasty)
    followed.answered(pool, "1")
    followed.arrive(pool, "2")
    followed.answered(pool, "2")
    followed.collected.until(4)
    request = next(span for span in followed.collected.spans if span.parent_span_id.hex() == PARENT)
    told = attributes(request.attributes)
    shown = "\"'\\n\\x00\\x1b[31m<script>\\ud800\\u202e\U0001f600"
    assert told["fairlane.tenant"].startswith(shown + "x")
    assert told["gen_ai.request.model"] == told["fairlane.tenant"]
    assert len(told["fairlane.tenant"]) == 128 - 5 + 22  # five characters, as 22
    assert told["gen_ai.operation.name"] == "other"
    assert request.trace_state == ""


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/v1/chat/completions", "chat"),
        ("/openai/v1/chat/completions", "chat"),
        ("/v1/completions", "text_completion"),
        ("/v1/messages", "chat"),
        ("/v1/responses", "chat"),
        ("/v1/embeddings", "embeddings"),
        ("/generate", "text_completion"),
        ("/v1/audio/speech", "speech"),
        ("/anything", "other"),
        ("", "other"),
    ],
)
def test_the_operation_is_one_of_few(path: str, name: str) -> None:
    assert operation(path) == name


def test_clean_text_is_one_printable_line() -> None:
    assert printable("käse \U0001f9c0 'a'") == "käse \U0001f9c0 'a'"
    assert printable("a\r\nb\t\x7f\u2028\udfff") == "a\\r\\nb\\t\\x7f\\u2028\\udfff"
