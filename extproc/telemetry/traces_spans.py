"""Makes spans of records, of the class that OpenTelemetry's SDK has for those that are over, and sends them with its
OTLP exporters. Imported only where traces are on, and at work in one thread.

    fairlane request   arrival .. end of the stream     first_token or first_byte, faults of endpoints, evicted, settled
      fairlane wait    arrival .. verdict               enqueued, gate_closed, hold_changed, released

Both are INTERNAL: the spans of the HTTP request and of the call to the engine are Envoy's and the engine's. Status
ERROR for what was refused, evicted, or failed by its engine; a client that leaves is no error. `settled` may be later
than the end of its span: the token count of many answers comes after them.

Attributes are those of the GenAI conventions as far as they have them, then `fairlane.*`. `gen_ai.provider.name` is
left out: nobody here knows it, and a guess such as `openai` would be added up with what was bought there. No prompt,
answer, header or key is among them; what a client named (tenant, model) is cut and escaped.

The exporters tell what goes wrong in their own logs alone. Those are kept from standard error (`traces_complaints`);
the last one is what `Spans.send` returns.

Standard environment variables hold for all that `telemetry.traces` does not say: OTEL_EXPORTER_OTLP_HEADERS,
_CERTIFICATE, _TIMEOUT, _COMPRESSION, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SPAN_*_LIMIT. Which requests
are followed is decided before (OTEL_TRACES_SAMPLER means nothing here).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import structlog
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.environment_variables import OTEL_SDK_DISABLED
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util import BoundedList
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from extproc.config.telemetry import Traces
from extproc.config.units import split_host_port
from extproc.telemetry.printable import printable
from extproc.telemetry.traces_complaints import Complaints, while_made, without_credentials
from extproc.telemetry.traces_exporter import SpansError, make_exporter, service_of
from extproc.telemetry.traces_record import Held, Record, Refused

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

log = structlog.get_logger()

Attributes = dict[str, str | int | float | bool]

# Endings of paths, the more special ones first.
_OPERATIONS = (
    ("/chat/completions", "chat"),
    ("/messages", "chat"),
    ("/responses", "chat"),
    ("/completions", "text_completion"),
    ("/generate", "text_completion"),
    ("/generate_stream", "text_completion"),
    ("/embeddings", "embeddings"),
    # The conventions have no names for these.
    ("/rerank", "rerank"),
    ("/audio/transcriptions", "transcription"),
    ("/audio/translations", "translation"),
    ("/audio/speech", "speech"),
)
_OTHER = "other"

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_UNSET = Status(StatusCode.UNSET)


class Moment(NamedTuple):
    """An event of a span."""

    name: str
    attributes: Attributes
    at: float


class Told(NamedTuple):
    """A span."""

    name: str
    attributes: Attributes
    events: list[Moment]
    error: str | None  # a sentence; None: its status is not set
    start: float
    end: float


def make_spans(settings: Traces, version: str, dropped: Callable[[str, int], None]) -> Spans:
    """`settings.otlp` is set. Raises SpansError, and ImportError where an exporter is not installed."""
    try:
        with while_made():
            return Spans(make_exporter(settings), version, dropped)
    except (SpansError, ImportError):
        raise
    except Exception as error:  # the environment is read in many places, each with errors of its own
        told = without_credentials(f"{type(error).__name__}: {error}")
        raise SpansError(
            f"telemetry.traces: no exporter can be made ({told}); are the environment variables right that begin with "
            "OTEL_?"
        ) from error


class Spans:
    """`send` is called from one thread; `shutdown` from another, to end a `send` that takes too long."""

    def __init__(
        self,
        exporter: SpanExporter,
        version: str,
        dropped: Callable[[str, int], None],
        *,
        epoch: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`dropped(reason, spans)`: of a record that no span can be made of. `clock`: the one that the records go
        by."""
        self._exporter = exporter
        self._dropped = dropped
        self._faulty = False
        self._epoch = epoch
        self._clock = clock
        self._resource = service_of(version)
        self._scope = InstrumentationScope("fairlane", version)
        self._limits = SpanLimits()
        self._ids = RandomIdGenerator()
        self._disabled = os.environ.get(OTEL_SDK_DISABLED, "").strip().lower() == "true"
        self._propagator = TraceContextTextMapPropagator()
        self._offset = 0.0  # from `clock` to the time of day
        for cls in type(exporter).__mro__:
            # Its filter lets the same complaint through once in 20 s, so that a second failure would have no cause.
            logging.getLogger(cls.__module__).filters.clear()
        self._heard = Complaints()

    def send(self, records: Sequence[Record]) -> str | None:
        """What went wrong; None: the collector has them."""
        if self._disabled:
            return None
        self._offset = self._epoch() - self._clock()  # anew each time: the time of day may be set
        spans: list[ReadableSpan] = []
        for record in records:
            try:
                spans += self._made(record)
            except Exception:  # one must not take the others with it
                self._dropped("fault", 2)
                if not self._faulty:
                    self._faulty = True
                    log.exception("span_fault")
            time.sleep(0)  # the event loop may have its turn
        if not spans:
            return None
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            return without_credentials(f"{type(error).__name__}: {error}")
        return None if result is SpanExportResult.SUCCESS else self._heard.last

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def close(self) -> None:
        """No `send` is under way, and none will be: what the exporter says is nobody's any more."""
        self._heard.close()

    # -- one request ------------------------------------------------------------------------------

    def _made(self, record: Record) -> tuple[ReadableSpan, ReadableSpan]:
        """(wait, request)"""
        parent = self._parent(record)
        request = self._context(parent)
        return (
            self._span(wait_of(record), self._context(request), request),
            self._span(request_of(record), request, parent),
        )

    def _span(self, told: Told, context: SpanContext, parent: SpanContext | None) -> ReadableSpan:
        """As it is when it is over. To begin one of the SDK's, add to it and end it costs more than three times as
        much, most of it for locks and checks."""
        limits = self._limits
        events: Sequence[Event] = [
            Event(name, _within(its, limits.max_event_attributes, limits.max_attribute_length), self._ns(at))
            for name, its, at in told.events
        ]
        if limits.max_events is not None and len(events) > limits.max_events:
            events = BoundedList.from_seq(limits.max_events, events)
        return ReadableSpan(
            told.name,
            context,
            parent,
            self._resource,
            _within(told.attributes, limits.max_span_attributes, limits.max_span_attribute_length),
            events,
            status=_UNSET if told.error is None else Status(StatusCode.ERROR, told.error),
            start_time=self._ns(told.start),
            end_time=self._ns(told.end),
            instrumentation_scope=self._scope,
        )

    def _context(self, parent: SpanContext | None) -> SpanContext:
        """Of a new span."""
        trace = self._ids.generate_trace_id() if parent is None else parent.trace_id
        state = None if parent is None else parent.trace_state
        return SpanContext(trace, self._ids.generate_span_id(), False, _SAMPLED, state)

    def _parent(self, record: Record) -> SpanContext | None:
        if not record.traceparent:
            return None
        carrier = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        found = get_current_span(self._propagator.extract(carrier, Context())).get_span_context()
        return found if found.is_valid else None

    def _ns(self, at: float) -> int:
        return round((at + self._offset) * 1e9)


def _within(attributes: Attributes, most: int | None, longest: int | None) -> Mapping[str, AttributeValue]:
    """As far as the limits allow. The SDK's own class for that is made only where there is something to leave out."""
    if longest is None and (most is None or len(attributes) <= most):
        return attributes
    return BoundedAttributes(most, attributes, max_value_len=longest)


# -- what they tell -------------------------------------------------------------------------------


def operation(path: str) -> str:
    """Name of what a request asks for, as `gen_ai.operation.name`. One of few, whatever the path."""
    return next((name for ending, name in _OPERATIONS if path.endswith(ending)), _OTHER)


def request_of(record: Record) -> Told:
    """From its arrival to the end of its stream."""
    arrival, end = _lasted(record)
    attributes = _of_request(record)
    error = _error(record)
    return _span("fairlane request", attributes, _events_of_request(record), error, arrival, end)


def wait_of(record: Record) -> Told:
    """From its arrival to the verdict."""
    arrival, end = _lasted(record)
    verdict_at = end if record.verdict_at is None else record.verdict_at
    attributes = _of_wait(record, max(0.0, verdict_at - arrival))
    error = None if record.refused is None else _refusal(record.refused)
    return _span("fairlane wait", attributes, _events_of_wait(record, verdict_at), error, arrival, verdict_at)


def _span(
    name: str, attributes: Attributes, events: list[Moment], error: tuple[str, str] | None, start: float, end: float
) -> Told:
    """`error`: its kind, and a sentence."""
    if error is None:
        return Told(name, attributes, events, None, start, max(start, end))
    attributes["error.type"] = error[0]
    return Told(name, attributes, events, error[1], start, max(start, end))


def _lasted(record: Record) -> tuple[float, float]:
    """(its arrival, its end)"""
    arrival = record.queued_at if record.arrival is None else record.arrival
    ended = record.verdict_at if record.ended_at is None else record.ended_at
    return arrival, max(arrival, arrival if ended is None else ended)


# -- events ---------------------------------------------------------------------------------------


def _events_of_request(record: Record) -> list[Moment]:
    events: list[Moment] = []
    for fault in record.faults:
        where: Attributes = {} if fault.endpoint is None else {"fairlane.endpoint": printable(fault.endpoint)}
        events.append(Moment(fault.name, where, fault.at))
    if record.first_token_at is not None:
        events.append(Moment("first_token", {}, record.first_token_at))
    elif record.first_byte_at is not None:
        events.append(Moment("first_byte", {}, record.first_byte_at))
    if record.evicted is not None:
        events.append(Moment("evicted", _of_refusal(record.evicted), record.evicted.at))
    if record.settled is not None:
        events.append(Moment("settled", _of_cost(record), record.settled.at))
    return events


def _events_of_wait(record: Record, verdict_at: float) -> list[Moment]:
    held = record.held
    events = [Moment("enqueued", {} if held is None else _of_hold(held), record.queued_at)]
    if held is not None and held.kind == "gate":
        events.append(Moment("gate_closed", _of_hold(held), max(held.at, record.queued_at)))
    events += (
        Moment("gate_closed" if hold.kind == "gate" else "hold_changed", _of_hold(hold), hold.at)
        for hold in record.holds
    )
    if record.endpoint is not None:
        released: Attributes = {"fairlane.priority": record.priority}
        if not record.by_envoy:
            released["fairlane.endpoint"] = record.endpoint
        events.append(Moment("released", released, verdict_at))
    return events


# -- attributes -----------------------------------------------------------------------------------


def _of_request(record: Record) -> Attributes:
    attributes: Attributes = {
        "gen_ai.operation.name": operation(record.path),
        "gen_ai.request.stream": record.stream,
        "fairlane.ticket": record.id,
        "fairlane.pool": record.pool,
        "fairlane.tenant": printable(record.tenant),
        "fairlane.class": record.cls,
        "fairlane.outcome": _outcome(record),
    }
    if record.model is not None:
        attributes["gen_ai.request.model"] = printable(record.model)
    if record.max_output is not None:
        attributes["gen_ai.request.max_tokens"] = record.max_output
    if record.choices != 1:
        attributes["gen_ai.request.choice.count"] = record.choices
    if record.arrival is not None and record.verdict_at is not None:
        attributes["fairlane.queue_wait_seconds"] = max(0.0, record.verdict_at - record.arrival)
    if record.endpoint is not None:
        attributes["fairlane.priority"] = record.priority
    endpoint = record.served_by or (None if record.by_envoy else record.endpoint)
    if endpoint is not None:
        attributes["server.address"], attributes["server.port"] = split_host_port(endpoint)
    if record.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = record.prompt_tokens
        if record.cached_tokens:
            attributes["gen_ai.usage.cache_read.input_tokens"] = record.cached_tokens
    if record.output_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = record.output_tokens
    return attributes


def _of_wait(record: Record, wait_s: float) -> Attributes:
    return {
        "fairlane.pool": record.pool,
        "fairlane.class": record.cls,
        "fairlane.outcome": _outcome(record),
        "fairlane.queue_wait_seconds": wait_s,
    }


def _of_hold(held: Held) -> Attributes:
    attributes: Attributes = {
        "fairlane.hold.kind": held.kind,
        "fairlane.hold.name": printable(held.name),
        "fairlane.hold.explanation": printable(held.told),
        "fairlane.hold.next": printable(held.then),
    }
    if held.value is not None:
        attributes["fairlane.hold.value"] = float(held.value)
    if held.limit is not None:
        attributes["fairlane.hold.limit"] = float(held.limit)
    return attributes


def _of_cost(record: Record) -> Attributes:
    settled = record.settled
    if settled is None:
        return {}
    attributes: Attributes = {
        "fairlane.settled.source": settled.source,
        "fairlane.settled.cost": settled.cost,
        "fairlane.settled.estimate": settled.estimate,
    }
    if record.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = record.prompt_tokens
    if record.output_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = record.output_tokens
    return attributes


def _of_refusal(refused: Refused) -> Attributes:
    return {"error.type": refused.code, "fairlane.message": printable(refused.message)}


def _outcome(record: Record) -> str:
    if record.refused is not None:
        return record.refused.code
    return "left" if record.endpoint is None else "released"


def _error(record: Record) -> tuple[str, str] | None:
    """(its kind, a sentence); None: it was served, or its client left."""
    refused = record.refused or record.evicted
    if refused is not None:
        return _refusal(refused)
    if record.faults and record.settled is not None and record.settled.source == "error":
        last = record.faults[-1]
        return last.name, f"{printable(last.endpoint or 'the endpoint')}: {last.name.replace('_', ' ')}"
    return None


def _refusal(refused: Refused) -> tuple[str, str]:
    return refused.code, printable(refused.message)
