"""Makes spans of records, with OpenTelemetry's SDK, and sends them with its OTLP exporters. Imported only where traces
are on, and at work in one thread.

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

To the HTTP exporter any status below 400 means that the spans have been taken, and it follows no redirect: spans would
be lost unseen. So its session takes a redirect for an error. A session that a credential provider makes
(OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER) is left as it is: the exporter shows it to nobody.

Standard environment variables hold for all that `telemetry.traces` does not say: OTEL_EXPORTER_OTLP_HEADERS,
_CERTIFICATE, _TIMEOUT, _COMPRESSION, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_SPAN_*_LIMIT. Which requests
are followed is decided before (OTEL_TRACES_SAMPLER means nothing here).
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Span, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from extproc.config.telemetry import Traces
from extproc.config.units import split_host_port
from extproc.telemetry.printable import printable
from extproc.telemetry.traces_complaints import Complaints, while_made, without_credentials
from extproc.telemetry.traces_record import Held, Record, Refused

if TYPE_CHECKING:
    import requests

log = structlog.get_logger()

_Attributes = dict[str, str | int | float | bool]

_GRPC_PORT = 4317
_HTTP_PATH = "/v1/traces"
_SESSIONS = (
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER",
    "OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER",
)

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


class SpansError(Exception):
    """Spans cannot be sent. The message names the cause and the cure."""


def make_spans(settings: Traces, version: str, dropped: Callable[[str, int], None]) -> Spans:
    """`settings.otlp` is set. Raises SpansError, and ImportError where an exporter is not installed."""
    try:
        with while_made():
            return Spans(_exporter(settings), version, dropped)
    except (SpansError, ImportError):
        raise
    except Exception as error:  # the environment is read in many places, each with errors of its own
        told = without_credentials(f"{type(error).__name__}: {error}")
        raise SpansError(
            f"telemetry.traces: no exporter can be made ({told}); are the environment variables right that begin with "
            "OTEL_?"
        ) from error


def operation(path: str) -> str:
    """Name of what a request asks for, as `gen_ai.operation.name`. One of few, whatever the path."""
    return next((name for ending, name in _OPERATIONS if path.endswith(ending)), _OTHER)


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
        self._ended = _Ended()
        provider = TracerProvider(sampler=ALWAYS_ON, resource=_resource(version), shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("fairlane", version)
        self._propagator = TraceContextTextMapPropagator()
        self._offset = 0.0  # from `clock` to the time of day
        for cls in type(exporter).__mro__:
            # Its filter lets the same complaint through once in 20 s, so that a second failure would have no cause.
            logging.getLogger(cls.__module__).filters.clear()
        self._heard = Complaints()

    def send(self, records: Sequence[Record]) -> str | None:
        """What went wrong; None: the collector has them."""
        self._offset = self._epoch() - self._clock()  # anew each time: the time of day may be set
        for record in records:
            try:
                self._make(record)
            except Exception:  # one must not take the others with it
                self._dropped("fault", 2)
                if not self._faulty:
                    self._faulty = True
                    log.exception("span_fault")
            time.sleep(0)  # the event loop may have its turn
        spans = self._ended.take()
        if not spans:  # OTEL_SDK_DISABLED
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

    def _make(self, record: Record) -> None:
        arrival = record.queued_at if record.arrival is None else record.arrival
        ended = record.verdict_at if record.ended_at is None else record.ended_at
        end = max(arrival, arrival if ended is None else ended)
        request = self._tracer.start_span(
            "fairlane request", self._parent(record), attributes=_of_request(record), start_time=self._ns(arrival)
        )
        self._wait(record, request, arrival, end)
        for fault in record.faults:
            where: _Attributes = {} if fault.endpoint is None else {"fairlane.endpoint": printable(fault.endpoint)}
            request.add_event(fault.name, where, self._ns(fault.at))
        if record.first_token_at is not None:
            request.add_event("first_token", None, self._ns(record.first_token_at))
        elif record.first_byte_at is not None:
            request.add_event("first_byte", None, self._ns(record.first_byte_at))
        if record.evicted is not None:
            request.add_event("evicted", _of_refusal(record.evicted), self._ns(record.evicted.at))
        if record.settled is not None:
            request.add_event("settled", _of_cost(record), self._ns(record.settled.at))
        error = _error(record)
        if error is not None:
            request.set_attribute("error.type", error[0])
            request.set_status(Status(StatusCode.ERROR, error[1]))
        request.end(self._ns(end))

    def _wait(self, record: Record, request: Span, arrival: float, end: float) -> None:
        verdict_at = end if record.verdict_at is None else record.verdict_at
        attributes: _Attributes = {
            "fairlane.pool": record.pool,
            "fairlane.class": record.cls,
            "fairlane.outcome": _outcome(record),
            "fairlane.queue_wait_seconds": max(0.0, verdict_at - arrival),
        }
        wait = self._tracer.start_span(
            "fairlane wait",
            set_span_in_context(request, Context()),
            attributes=attributes,
            start_time=self._ns(arrival),
        )
        held = record.held
        wait.add_event("enqueued", {} if held is None else _of_hold(held), self._ns(record.queued_at))
        if held is not None and held.kind == "gate":
            wait.add_event("gate_closed", _of_hold(held), self._ns(max(held.at, record.queued_at)))
        for hold in record.holds:
            wait.add_event("gate_closed" if hold.kind == "gate" else "hold_changed", _of_hold(hold), self._ns(hold.at))
        if record.endpoint is not None:
            released: _Attributes = {"fairlane.priority": record.priority}
            if not record.by_envoy:
                released["fairlane.endpoint"] = record.endpoint
            wait.add_event("released", released, self._ns(verdict_at))
        if record.refused is not None:
            wait.set_attribute("error.type", record.refused.code)
            wait.set_status(Status(StatusCode.ERROR, printable(record.refused.message)))
        wait.end(self._ns(max(arrival, verdict_at)))

    def _parent(self, record: Record) -> Context:
        if not record.traceparent:
            return Context()
        carrier = {"traceparent": record.traceparent, "tracestate": record.tracestate}
        return self._propagator.extract(carrier, Context())

    def _ns(self, at: float) -> int:
        return round((at + self._offset) * 1e9)


class _Ended(SpanProcessor):
    """Keeps spans that are over until they are taken."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        spans, self._spans = self._spans, []
        return spans


# -- attributes -----------------------------------------------------------------------------------


def _of_request(record: Record) -> _Attributes:
    attributes: _Attributes = {
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


def _of_hold(held: Held) -> _Attributes:
    attributes: _Attributes = {
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


def _of_cost(record: Record) -> _Attributes:
    settled = record.settled
    if settled is None:
        return {}
    attributes: _Attributes = {
        "fairlane.settled.source": settled.source,
        "fairlane.settled.cost": settled.cost,
        "fairlane.settled.estimate": settled.estimate,
    }
    if record.prompt_tokens is not None:
        attributes["gen_ai.usage.input_tokens"] = record.prompt_tokens
    if record.output_tokens is not None:
        attributes["gen_ai.usage.output_tokens"] = record.output_tokens
    return attributes


def _of_refusal(refused: Refused) -> _Attributes:
    return {"error.type": refused.code, "fairlane.message": printable(refused.message)}


def _outcome(record: Record) -> str:
    if record.refused is not None:
        return record.refused.code
    return "left" if record.endpoint is None else "released"


def _error(record: Record) -> tuple[str, str] | None:
    """(its kind, a sentence); None: it was served, or its client left."""
    refused = record.refused or record.evicted
    if refused is not None:
        return refused.code, printable(refused.message)
    if record.faults and record.settled is not None and record.settled.source == "error":
        last = record.faults[-1]
        return last.name, f"{printable(last.endpoint or 'the endpoint')}: {last.name.replace('_', ' ')}"
    return None


# -- the exporter ---------------------------------------------------------------------------------


def _resource(version: str) -> Resource:
    """What the environment says of the service counts for more."""
    ours = Resource.create({"service.name": "fairlane", "service.version": version})
    return ours.merge(OTELResourceDetector().detect())


def _exporter(settings: Traces) -> SpanExporter:
    url = settings.otlp or ""
    parts = urlsplit(url)
    if settings.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        if parts.path.strip("/"):
            raise SpansError(
                f"telemetry.traces.otlp has the path {printable(parts.path)!r}, and gRPC has none: leave it out, or "
                "set telemetry.traces.protocol to http"
            )
        if parts.port is None and parts.scheme == "http":
            url = f"http://{parts.netloc}:{_GRPC_PORT}"  # gRPC would take 443
        return OTLPSpanExporter(endpoint=url)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as OTLPHttpSpanExporter

    return OTLPHttpSpanExporter(
        endpoint=url if parts.path.strip("/") else url.rstrip("/") + _HTTP_PATH,
        session=None if any(os.environ.get(name) for name in _SESSIONS) else _session(),
    )


def _session() -> requests.Session:
    import requests

    session = requests.Session()
    session.hooks["response"].append(_no_redirect)
    return session


def _no_redirect(response: requests.Response, *_: object, **__: object) -> None:
    if 300 <= response.status_code < 400:  # where to is not told: it may hold a token
        from requests.exceptions import HTTPError

        raise HTTPError(
            f"it answers {response.status_code}: its traces are taken at another address, which telemetry.traces.otlp "
            "must have"
        )
