"""What the two gRPC ports serve besides ext_proc and the access log."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rig import Rig

from extproc.edge.server import NAMES

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SERVING = health_pb2.HealthCheckResponse.SERVING


async def _health(channel: grpc.aio.Channel, service: str) -> int:
    request = health_pb2.HealthCheckRequest(service=service)
    return (await health_pb2_grpc.HealthStub(channel).Check(request, timeout=20)).status


async def _services(channel: grpc.aio.Channel) -> list[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    async for answer in stub.ServerReflectionInfo(iter([request]), timeout=20):
        return [service.name for service in answer.list_services_response.service]
    return []


@pytest.mark.parametrize("service", NAMES)
async def test_ext_proc_port_is_serving(service: str, rig: Rig) -> None:
    async with grpc.aio.insecure_channel(str(rig.stack.addresses.ext_proc)) as channel:
        assert await _health(channel, service) == SERVING


async def test_ext_proc_port_knows_no_other_service_and_tells_none(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(str(rig.stack.addresses.ext_proc)) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as unknown:
            await _health(channel, "no.such.Service")
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
        # nothing is written: the refusal may come first, and writing would then fail with another code
        refused = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=20)
        assert await refused.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_admin_port_is_serving_and_lists_its_services(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(str(rig.stack.addresses.admin)) as channel:
        assert await _health(channel, "") == SERVING
        assert "grpc.health.v1.Health" in await _services(channel)
