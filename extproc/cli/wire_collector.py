"""An OTLP collector that takes everything and keeps nothing, for measuring what exporting costs.

`python -m extproc.cli.wire_collector PORT`: gRPC on loopback, in clear. It answers each export with success.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import grpc

_EXPORT = "Export"
_SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"


def _taken(_: bytes, __: grpc.ServicerContext) -> bytes:
    return b""  # ExportTraceServiceResponse without a partial failure


def serve(port: int) -> grpc.Server:
    """Started."""
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    handler = grpc.method_handlers_generic_handler(_SERVICE, {_EXPORT: grpc.unary_unary_rpc_method_handler(_taken)})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    return server


if __name__ == "__main__":
    serve(int(sys.argv[1])).wait_for_termination()
