"""The port that Envoy talks to: what is on it, and what is said when it cannot be had."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from envoy_by_messages import Edge, Envoy, a_config, request, until
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.config.requests import LARGEST_BODY
from extproc.edge import server
from extproc.edge.wire import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(autouse=True, loop_scope="session")
async def collected() -> AsyncIterator[None]:
    """A server that could not be bound is stopped when it is collected, for which it needs its loop."""
    yield
    gc.collect()
    await asyncio.sleep(0)


async def test_health_of_every_service_that_envoy_may_ask_for() -> None:
    edge = Edge(a_config())
    built = server.build("127.0.0.1:0", edge.processor, edge.access_log)
    await built.server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{built.port}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(name: str) -> str:
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=name))
            return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

        names = ("", EXT_PROC_SERVICE, ACCESS_LOG_SERVICE)
        for serving, word in ((True, "SERVING"), (False, "NOT_SERVING")):
            await built.set_serving(serving)
            assert [await status(name) for name in names] == [word] * 3
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await status("another")
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
    await built.server.stop(None)
    edge.close()


async def test_the_largest_body_that_the_configuration_takes() -> None:
    edge = Edge(a_config())
    built = server.build("127.0.0.1:0", edge.processor, edge.access_log, max_body=LARGEST_BODY)
    with pytest.raises(OverflowError):  # what the bound is for
        server.build("127.0.0.1:0", edge.processor, edge.access_log, max_body=LARGEST_BODY + 1024**2)
    await built.server.stop(None)
    edge.close()


async def test_a_method_that_is_not_there_is_refused() -> None:
    edge = Edge(a_config())
    built = server.build("127.0.0.1:0", edge.processor, edge.access_log)
    await built.server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{built.port}") as channel:
        call = channel.unary_unary(f"/{EXT_PROC_SERVICE}/Another")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call(b"")
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    await built.server.stop(None)
    edge.close()


@pytest.mark.slow
async def test_a_thousand_streams_at_once_are_all_heard() -> None:
    """grpc's own limits would drop a part of them."""
    edge = Edge(a_config(tenants={"*": {"max_queued": 2000}}))
    built = server.build("127.0.0.1:0", edge.processor, edge.access_log)
    await built.server.start()
    envoy = Envoy(f"127.0.0.1:{built.port}")
    streams = [envoy.stream() for _ in range(1000)]
    await asyncio.gather(*(stream.send(request()) for stream in streams))
    await until(lambda: edge.held + edge.inside == 1000)
    assert (edge.inside, edge.held) == (1, 999)
    await envoy.close()
    await built.server.stop(None)
    edge.close()


async def test_a_port_that_is_taken_is_named_with_its_key() -> None:
    edge = Edge(a_config())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(server.PortInUseError) as error:
            server.build(address, edge.processor, edge.access_log)
    assert str(error.value) == f"{address} (listen.ext_proc) cannot be bound: in use, or not an address here"


async def test_a_second_server_on_the_port_is_an_error_and_not_a_partner() -> None:
    edge = Edge(a_config())
    built = server.build("127.0.0.1:0", edge.processor, edge.access_log)
    with pytest.raises(server.PortInUseError):
        server.build(f"127.0.0.1:{built.port}", edge.processor, edge.access_log)
    await built.server.stop(None)


async def test_an_address_that_is_not_here_is_named() -> None:
    edge = Edge(a_config())
    with pytest.raises(server.PortInUseError, match=r"192\.0\.2\.1:50051 \(listen\.ext_proc\) cannot be bound"):
        server.build("192.0.2.1:50051", edge.processor, edge.access_log)
