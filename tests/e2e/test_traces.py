"""Spans of requests through the real Envoy: under the client's span, under Envoy's own where it traces, and with what
happened to them."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from rig import FAST_ENGINE, MODEL, Rig, chat, running, until

from extproc.cli.ports import free_ports

pytestmark = pytest.mark.e2e

ONE_SLOT = {"window": {"controller": "fixed", "fixed": 1, "overtake": 0}}
CLIENT_SPAN = "b7ad6b7169203331"


class Collector(TraceServiceServicer):
    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []

    async def Export(self, request: ExportTraceServiceRequest, _: object) -> ExportTraceServiceResponse:  # noqa: N802
        self.requests.append(request)
        return ExportTraceServiceResponse()

    def of(self, trace: str, service: str = "fairlane") -> list[Span]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            if _attributes(resource.resource)["service.name"] == service
            for scope in resource.scope_spans
            for span in scope.spans
            if trace in ("", span.trace_id.hex())
        ]

    async def until(self, trace: str, spans: int, service: str = "fairlane") -> list[Span]:
        async def found() -> list[Span]:
            return self.of(trace, service)

        return await until(found, lambda found: len(found) == spans, f"{spans} spans of {service}")


def _attributes(owner: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in owner.attributes}


def _events(span: Span) -> list[str]:
    return [event.name for event in span.events]


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[tuple[int, Collector]]:
    collector, server = Collector(), grpc.aio.server()
    (port,) = free_ports(1)
    add_TraceServiceServicer_to_server(collector, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port, collector
    finally:
        await server.stop(None)


@contextlib.asynccontextmanager
async def traced(
    directory: Path, *, by_envoy: float | None = None, sample: float = 0.0, **more: Any
) -> AsyncIterator[tuple[Rig, Collector]]:
    """`by_envoy`: Envoy traces this share of the requests, in percent; None: it does not trace."""
    async with collecting() as (port, collector):

        def envoy_traces(config: dict[str, Any]) -> None:
            _trace(config, port, by_envoy or 0.0)

        telemetry = {"traces": {"otlp": f"http://127.0.0.1:{port}", "sample": sample}}
        patch = None if by_envoy is None else envoy_traces
        settings = {"config": {"telemetry": telemetry}, "envoy_patch": patch, "engine_args": FAST_ENGINE}
        async with running(directory, **(settings | more)) as rig:
            yield rig, collector
            await rig.books_closed()


def _trace(config: dict[str, Any], port: int, percent: float) -> None:
    """What a user adds to `envoy.yaml` for traces of Envoy's own."""
    resources = config["static_resources"]
    hcm = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    hcm["tracing"] = {
        "provider": {
            "name": "envoy.tracers.opentelemetry",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.config.trace.v3.OpenTelemetryConfig",
                "grpc_service": {"envoy_grpc": {"cluster_name": "collector"}, "timeout": "1s"},
                "service_name": "envoy",
            },
        },
        "random_sampling": {"value": percent},
    }
    endpoint = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}
    http2 = {"explicit_http_config": {"http2_protocol_options": {}}}
    options = {"@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions", **http2}
    resources["clusters"].append(
        {
            "name": "collector",
            "type": "STATIC",
            "load_assignment": {
                "cluster_name": "collector",
                "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
            },
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options},
        }
    )
    # Envoy sends its spans every five seconds, or five at a time.
    config["layered_runtime"] = {
        "layers": [
            *config.get("layered_runtime", {}).get("layers", []),
            {"name": "traces", "static_layer": {"tracing.opentelemetry.flush_interval_ms": 100}},
        ]
    }


def a_trace() -> str:
    return secrets.token_hex(16)


def traceparent(trace: str, sampled: bool = True) -> dict[str, str]:
    return {"traceparent": f"00-{trace}-{CLIENT_SPAN}-{int(sampled):02}", "tracestate": "vendor=1"}


async def test_a_client_s_trace_goes_on_here(tmp_path: Path) -> None:
    async with traced(tmp_path, pool=ONE_SLOT) as (rig, collector):
        trace, held, left, refused, unsampled = (a_trace() for _ in range(5))
        body = chat(5, messages=[{"role": "user", "content": "pl4nted in the prompt"}])
        headers = traceparent(trace) | {"authorization": "Bearer pl4nted", "x-more": "pl4nted"}
        assert (await rig.post(body, tenant="acme", headers=headers)).status == 200
        spans = {span.name: span for span in await collector.until(trace, 2)}
        request, wait = spans["fairlane request"], spans["fairlane wait"]
        assert request.parent_span_id.hex() == CLIENT_SPAN
        assert wait.parent_span_id == request.span_id
        assert request.trace_state == wait.trace_state == "vendor=1"
        told = _attributes(request)
        assert told["gen_ai.operation.name"] == "chat"
        assert told["gen_ai.request.model"] == MODEL
        assert told["gen_ai.request.max_tokens"] == 5
        assert told["gen_ai.usage.output_tokens"] == 5
        assert told["fairlane.tenant"] == "acme"
        assert (told["server.address"], told["server.port"]) == (rig.engines[0].host, rig.engines[0].port)
        assert _events(wait) == ["enqueued", "released"]
        assert _events(request)[-1] == "settled"
        assert request.start_time_unix_nano <= wait.end_time_unix_nano <= request.end_time_unix_nano

        async with rig.hung_engines():
            first = rig.start(chat(2))
            await rig.until_inside(1)
            waits = rig.start(chat(2), tenant="waits", headers=traceparent(held))
            await rig.until_held(1)
            leaves = rig.start(chat(2), tenant="leaves", headers=traceparent(left))
            await rig.until_held(2)
            leaves.cancel()
            await rig.until_held(1)
        assert (await first).status == (await waits).status == 200
        spans = {span.name: span for span in await collector.until(held, 2)}
        assert _events(spans["fairlane wait"]) == ["enqueued", "released"]
        (enqueued, _) = spans["fairlane wait"].events
        assert _attributes(enqueued)["fairlane.hold.kind"] == "window"
        spans = {span.name: span for span in await collector.until(left, 2)}
        assert _attributes(spans["fairlane request"])["fairlane.outcome"] == "left"

        assert (await rig.post(chat(2), headers=traceparent(unsampled, sampled=False))).status == 200
        await rig.books_closed()
        assert (await rig.post(chat(2), headers=traceparent(refused))).status == 200  # the last one: the others are out
        await collector.until(refused, 2)
        assert collector.of(unsampled) == []
        assert len(collector.of("")) == 8  # and nothing of what came without a trace
        assert all(b"pl4nted" not in request.SerializeToString() for request in collector.requests)


async def test_a_refusal_is_an_error(tmp_path: Path) -> None:
    pool = ONE_SLOT | {"max_queued": 1}
    async with traced(tmp_path, pool=pool) as (rig, collector):
        trace = a_trace()
        async with rig.hung_engines():
            first = rig.start(chat(2))
            await rig.until_inside(1)
            second = rig.start(chat(2))
            await rig.until_held(1)
            assert (await rig.post(chat(2), headers=traceparent(trace))).status == 429
        assert (await first).status == (await second).status == 200
        for span in await collector.until(trace, 2):
            assert span.status.code == Status.STATUS_CODE_ERROR
            assert _attributes(span)["error.type"] == "queue_full"


async def test_where_envoy_traces_its_span_is_the_parent(tmp_path: Path) -> None:
    """Envoy puts the context of its span for the ext_proc stream into the stream's metadata: ours lies under it, also
    where the client sent a trace of its own."""
    async with traced(tmp_path, by_envoy=100.0) as (rig, collector):
        for headers in ({}, traceparent(a_trace())):
            before = {span.span_id for span in collector.of("")}
            assert (await rig.post(chat(2), headers=headers)).status == 200
            ours = {
                span.name: span
                for span in await until(
                    lambda before=before: _new(collector, before),
                    lambda found: len(found) == 2,
                    "two spans",
                )
            }
            request = ours["fairlane request"]
            trace = request.trace_id.hex()
            if headers:
                assert trace in headers["traceparent"]
            envoys = await until(
                lambda trace=trace: _of_envoy(collector, trace),
                lambda found, parent=request.parent_span_id: parent in {span.span_id for span in found},
                "Envoy's span that is the parent",
            )
            by_id = {span.span_id: span for span in envoys}
            assert "ext_proc.v3.ExternalProcessor.Process" in by_id[request.parent_span_id].name


async def test_what_envoy_does_not_sample_is_not_sampled_here(tmp_path: Path) -> None:
    """Envoy takes no notice of the flag of a client's trace: its own share decides. A client whose trace is invalid
    gets none from Envoy either, so it goes by the share that is configured here."""
    async with traced(tmp_path, by_envoy=0.0, sample=1.0) as (rig, collector):
        for headers in ({}, traceparent(a_trace()), {"traceparent": "00-invalid"}):
            assert (await rig.post(chat(2), headers=headers)).status == 200
            await rig.books_closed()  # so they are exported in this order
        (request, _) = sorted(await collector.until("", 2), key=lambda span: span.name)
        assert request.parent_span_id == b""


async def _new(collector: Collector, before: set[bytes]) -> list[Span]:
    return [span for span in collector.of("") if span.span_id not in before]


async def _of_envoy(collector: Collector, trace: str) -> list[Span]:
    return collector.of(trace, "envoy")
