"""The floor under any gateway in Python: the least that a gRPC server behind ext_proc can do.

    python -m extproc.cli.wire_floor PORT ENDPOINT read|cancel

It decides nothing and keeps nothing. Each stream gets one answer, made once and of the size of a real one; a body that
comes after it gets "go on"; entries of the access log are read and dropped. `read` stays in a read until the stream
ends; `cancel` waits for the end as cancellation, which grpc.aio brings to every handler whose stream has ended. What
the service takes beyond this is its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

import grpc

from extproc.edge.release_answer import release
from extproc.edge.server import OPTIONS
from extproc.edge.wire import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE, go_on
from extproc.pb.wire.v1 import access_log_pb2
from extproc.sim.wire_engine import loop_factory


def answer(endpoint: str) -> bytes:
    """As long as a release of the service."""
    headers = {
        "x-vllm-priority": "1000000",
        "x-fairlane-ticket": "0123abcd-sim-ffff",
        "x-fairlane-class": "default",
        "x-fairlane-queue-ms": "0",
        "x-fairlane-endpoint": endpoint,
        "x-fairlane-timing": "queue;dur=0.0",
    }
    return release(headers, endpoint)


class Floor:
    def __init__(self, endpoint: str, *, reads: bool) -> None:
        self._answer = answer(endpoint)
        self._go_on = go_on("request_body") or b""
        self._reads = reads

    async def process(self, _: object, context: Any) -> None:
        if await context.read() is grpc.aio.EOF:
            return
        await context.write(self._answer)
        if not self._reads:
            await asyncio.get_running_loop().create_future()
        while await context.read() is not grpc.aio.EOF:
            await context.write(self._go_on)

    async def access_log(self, messages: AsyncIterator[bytes], _: Any) -> bytes:
        async for _raw in messages:
            pass
        return access_log_pb2.StreamAccessLogsResponse().SerializeToString()


async def serve(port: int, endpoint: str, *, reads: bool) -> None:
    """On the loopback, until cancelled."""
    floor = Floor(endpoint, reads=reads)
    server = grpc.aio.server(options=OPTIONS)
    process = grpc.stream_stream_rpc_method_handler(floor.process)
    entries = grpc.stream_unary_rpc_method_handler(floor.access_log)
    server.add_generic_rpc_handlers((
        grpc.method_handlers_generic_handler(EXT_PROC_SERVICE, {"Process": process}),
        grpc.method_handlers_generic_handler(ACCESS_LOG_SERVICE, {"StreamAccessLogs": entries}),
    ))  # fmt: skip
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        await server.wait_for_termination()
    finally:
        await server.stop(None)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1]), sys.argv[2], reads=sys.argv[3] == "read"))
