"""Collectors of spans, in this process and on free ports: one that speaks gRPC, one that speaks HTTP, one that only
accepts connections. And a pool at work whose requests are followed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from extproc.core.events import Effect, EndpointAdded, Event, Scraped
from extproc.core.model import ClassPolicy, Controller, PoolPolicy, Sample, WindowPolicy
from extproc.core.scheduler import Scheduler
from extproc.telemetry.traces import Tracer

DEADLINE_S = 20.0
ENDPOINT = "10.0.0.1:8000"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


def until(wanted: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not wanted():
        assert time.monotonic() < deadline, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.005)


def attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value") or "string_value") for pair in pairs}


class Collected:
    """What a collector has been sent, and what it does about it."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answers = threading.Event()  # until it is set, it hangs
        self.answers.set()
        self.fails = False
        self.asked = 0

    @property
    def spans(self) -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def resource(self) -> dict[str, Any]:
        return attributes(self.requests[0].resource_spans[0].resource.attributes)

    def named(self, name: str) -> Span:
        """The only span of that name."""
        (span,) = (span for span in self.spans if span.name == name)
        return span

    def until(self, spans: int) -> list[Span]:
        until(lambda: len(self.spans) >= spans, f"{spans} spans")
        assert len(self.spans) == spans
        return self.spans

    def take(self, request: ExportTraceServiceRequest, headers: Mapping[str, str]) -> bool:
        """Whether it is taken."""
        self.asked += 1
        self.answers.wait()
        if self.fails:
            return False
        self.requests.append(request)
        self.headers.append(dict(headers))
        return True


class _Servicer(TraceServiceServicer):
    def __init__(self, collected: Collected) -> None:
        self._collected = collected

    def Export(self, request: ExportTraceServiceRequest, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        headers = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
        if not self._collected.take(request, headers):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not today")
        return ExportTraceServiceResponse()


@contextmanager
def grpc_collector(port: int = 0) -> Iterator[tuple[str, Collected]]:
    """(its address, what it has)."""
    collected = Collected()
    pool = ThreadPoolExecutor(max_workers=4)
    server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
    add_TraceServiceServicer_to_server(_Servicer(collected), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}", collected
    finally:
        collected.answers.set()
        server.stop(None).wait()
        pool.shutdown()


@contextmanager
def http_collector() -> Iterator[tuple[str, Collected]]:
    """As `grpc_collector`. It takes posts to /v1/traces alone."""
    collected = Collected()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            right = self.path == "/v1/traces"
            request = ExportTraceServiceRequest.FromString(body)
            taken = right and collected.take(request, {k.lower(): v for k, v in self.headers.items()})
            self.send_response(200 if taken else 400 if right else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", collected
    finally:
        collected.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent_listener() -> Iterator[str]:
    """Connections are accepted, by the system, and nothing is ever read or said."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


@dataclass(frozen=True)
class Asked:
    """Where a request comes from; what `Tracer.begin` is told."""

    traceparent: str = ""
    tracestate: str = ""
    model: str | None = "llama"
    path: str = "/v1/chat/completions"
    stream: bool = False


class Pool:
    """A scheduler on a clock of its own, with one endpoint of one slot unless told otherwise, and a tracer that sees
    all of it."""

    def __init__(self, tracer: Tracer, *classes: ClassPolicy, slots: int = 1, **changes: Any) -> None:
        window = changes.pop("window", None) or WindowPolicy(controller=Controller.FIXED, fixed=slots, overtake=0)
        self.tracer = tracer
        self.scheduler = Scheduler(PoolPolicy(name="m", classes=classes or (a_class(),), window=window, **changes))
        self.now = 100.0
        self.apply(EndpointAdded(ENDPOINT))
        self.page()

    def page(self, running: int = 0, waiting: int = 0, **changes: Any) -> None:
        """The endpoint's page is read."""
        gauges: dict[str, Any] = {"kv_usage": None, "itl_sum": None, "itl_count": None, "preemptions": None}
        counters = {"generation_tokens": None, "prompt_tokens": None, "started": self.now}
        self.apply(Scraped(ENDPOINT, Sample(running, waiting, **(gauges | counters | changes))))

    def apply(self, event: Event, after_s: float = 0.0) -> list[Effect]:
        self.now += after_s
        effects = self.scheduler.apply(event, self.now)
        self.tracer.seen(self.scheduler, event, self.now, effects)
        return effects


def a_class(name: str = "interactive", rank: int = 0, **changes: Any) -> ClassPolicy:
    values = {"priority_base": rank * 1_000_000, "queue_timeout_s": 60.0, "max_waiting": 3, "max_queued": 1_000_000}
    return ClassPolicy(name=name, rank=rank, **(values | changes))
