"""The gRPC server that Envoy talks to: ext_proc, access log and health on one port."""

from __future__ import annotations

from dataclasses import dataclass

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.edge.access_log import AccessLog
from extproc.edge.stream import ExternalProcessor
from extproc.edge.wire import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE
from extproc.transport.tls_files import HANDSHAKE_OPTIONS, TlsFiles

_LARGEST_MESSAGE = 64 * 1024**2
_AROUND_A_BODY = 4 * 1024**2  # headers, and one chunk more

OPTIONS: tuple[tuple[str, int], ...] = (
    # With the defaults a burst loses streams: 1,934 of 10,000 were cancelled.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    # Envoy's keep-alive pings would count as abuse and end all holds after two minutes.
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    # Envoy compresses nothing, and the limit of a message holds before it is unpacked: 64 MiB of zeros are 64 GiB.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    # A second process on the port is an error, not a partner.
    ("grpc.so_reuseport", 0),
    *HANDSHAKE_OPTIONS,
)

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
NAMES = ("", EXT_PROC_SERVICE, ACCESS_LOG_SERVICE)  # that Envoy's health checks may ask for


class PortInUseError(Exception):
    """The address cannot be bound. The message names it and what it is for."""


@dataclass(frozen=True, slots=True)
class EdgeServer:
    server: grpc.aio.Server
    health: health.aio.HealthServicer
    port: int  # that it is bound to: another than asked for where 0 was

    async def set_serving(self, serving: bool) -> None:
        for name in NAMES:
            await self.health.set(name, SERVING if serving else NOT_SERVING)


def build(
    address: str,
    processor: ExternalProcessor,
    access_log: AccessLog,
    max_body: int = 0,
    tls: TlsFiles | None = None,
) -> EdgeServer:
    """A server bound to `address` ("host:port"), not started. `max_body`: bytes of a body that must fit into a message.
    `tls`: None: plain text. Raises PortInUseError."""
    largest = max(_LARGEST_MESSAGE, max_body + _AROUND_A_BODY)
    lengths = (("grpc.max_receive_message_length", largest), ("grpc.max_send_message_length", largest))
    server = grpc.aio.server(options=(*OPTIONS, *lengths))
    # Messages stay bytes here: what cannot be parsed is our fault to handle, not grpc's to refuse.
    for service, method, handler in (
        (EXT_PROC_SERVICE, "Process", processor.process),
        (ACCESS_LOG_SERVICE, "StreamAccessLogs", access_log.stream),
    ):
        kind = grpc.stream_stream_rpc_method_handler if method == "Process" else grpc.stream_unary_rpc_method_handler
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: kind(handler)}),))
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    return EdgeServer(server, servicer, _bind(server, address, tls))


def _bind(server: grpc.aio.Server, address: str, tls: TlsFiles | None) -> int:
    """Bind and return the port, or say which key of the configuration names an address that is taken."""
    try:
        credentials = None if tls is None else tls.credentials()
        bound: int = (
            server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
        )
    except RuntimeError as error:
        raise PortInUseError(f"{address} (listen.ext_proc) cannot be bound: in use, or not an address here") from error
    if bound == 0:
        raise PortInUseError(f"{address} (listen.ext_proc) cannot be bound: in use, or not an address here")
    return bound
