"""WatchStats over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf import duration_pb2

from extproc.admin.reads import Reads
from extproc.pb.admin.v1 import admin_pb2 as pb


@asynccontextmanager
async def serving(reads: Reads) -> AsyncIterator[str]:
    handler = grpc.unary_stream_rpc_method_handler(
        reads.WatchStats,
        request_deserializer=pb.WatchStatsRequest.FromString,
        response_serializer=pb.Stats.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.Admin", {"WatchStats": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        reads.close()
        await server.stop(None)


def watched(channel: grpc.aio.Channel, interval_s: float = 0.1) -> grpc.aio.UnaryStreamCall[Any, pb.Stats]:
    call = channel.unary_stream(
        "/x.Admin/WatchStats",
        request_serializer=pb.WatchStatsRequest.SerializeToString,
        response_deserializer=pb.Stats.FromString,
    )
    return call(pb.WatchStatsRequest(interval=duration_pb2.Duration(nanos=int(interval_s * 1e9))))
