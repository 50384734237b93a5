"""What grpcurl does: everything that it knows of the admin API it has from the server's reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import MessageToDict, ParseDict
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from rig import Rig

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

ADMIN = "fairlane.admin.v1.Admin"


class Client:
    """Dynamic messages of descriptors that the server has given."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        self._pool = descriptor_pool.DescriptorPool()
        self._known: set[str] = set()

    async def _ask(self, **question: str) -> Any:
        call = self._reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**question)]))
        return await call.read()

    async def services(self) -> set[str]:
        answer = await self._ask(list_services="")
        return {each.name for each in answer.list_services_response.service}

    async def describe(self, service: str) -> Any:
        """Its descriptor; the files of all that it needs are asked for by name."""
        answer = await self._ask(file_containing_symbol=service)
        await self._add(answer.file_descriptor_response.file_descriptor_proto)
        return self._pool.FindServiceByName(service)

    async def _add(self, serialized: Any) -> None:
        """Those that a file needs come before it."""
        for each in serialized:
            file = descriptor_pb2.FileDescriptorProto.FromString(each)
            if file.name in self._known:
                continue
            self._known.add(file.name)
            for needed in file.dependency:
                if needed not in self._known:
                    answer = await self._ask(file_by_filename=needed)
                    await self._add(answer.file_descriptor_response.file_descriptor_proto)
            self._pool.Add(file)

    async def call(self, service: str, method: str, request: dict[str, Any]) -> dict[str, Any]:
        found = (await self.describe(service)).methods_by_name[method]
        asked = ParseDict(request, message_factory.GetMessageClass(found.input_type)())
        call = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )
        return MessageToDict(await call(asked), descriptor_pool=self._pool)


@pytest_asyncio.fixture(loop_scope="session")
async def client(rig: Rig) -> AsyncIterator[Client]:
    async with grpc.aio.insecure_channel(str(rig.stack.addresses.admin)) as channel:
        yield Client(channel)


async def test_list_and_describe(client: Client) -> None:
    assert {ADMIN, "grpc.health.v1.Health"} <= await client.services()
    described = await client.describe(ADMIN)
    assert {"GetStatus", "UpdateConfig", "WatchStats", "Rollback"} <= set(described.methods_by_name)
    watch = described.methods_by_name["WatchStats"]
    assert (watch.client_streaming, watch.server_streaming) == (False, True)


async def test_a_call_of_each_kind(client: Client) -> None:
    status = await client.call(ADMIN, "GetStatus", {})
    assert status["serving"] is True
    assert (status["caller"], status["callerRole"]) == ("local", "ADMIN")
    change = {"config": {"tenants": {"by-hand": {"weight": 2}}}, "reason": "a test", "validateOnly": True}
    result = await client.call(ADMIN, "UpdateConfig", change)
    assert result["validateOnly"] is True
    assert {each["path"] for each in result["changes"]} >= {"tenants.by-hand.weight"}


async def test_an_error(client: Client) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await client.call(ADMIN, "SetPool", {"pool": "simm", "traffic": "PAUSED", "reason": "a test"})
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND
    assert "there is no pool 'simm'" in (refused.value.details() or "")


async def test_the_port_of_envoy_has_none_of_it(rig: Rig) -> None:
    async with grpc.aio.insecure_channel(str(rig.stack.addresses.ext_proc)) as channel:
        call = channel.unary_unary(f"/{ADMIN}/GetStatus")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
