"""The admin port itself: where it binds, health, reflection, how errors go out, how it stops."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from access_case import LOOPBACK, METHODS, Empty, call, channel_to, opened, refusal
from google.protobuf import descriptor_pb2, descriptor_pool
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from extproc.admin.access import AdminStartError
from extproc.admin.errors import AdminError, Violation, invalid
from extproc.admin.server import AdminServer
from extproc.config.administration import Administration
from extproc.pb.admin.v1 import admin_pb2, admin_pb2_grpc

pytestmark = pytest.mark.asyncio(loop_scope="session")

Logs = list[MutableMapping[str, Any]]
ADMIN = "fairlane.admin.v1.Admin"
HEALTH = "grpc.health.v1.Health"
REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def _build(listen: str, **administration: Any) -> AdminServer:
    return AdminServer.build(listen, Administration.model_validate(administration), Empty(), lambda *_: None)


# -- where it binds -------------------------------------------------------------------------------


async def test_a_port_that_is_taken() -> None:
    async with opened() as port:
        with pytest.raises(AdminStartError) as error:
            _build(port.address)
    assert str(error.value) == f"{port.address} (listen.admin) cannot be bound: in use, or not an address here"


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "fairlane.example:0"])
async def test_the_network_without_credentials(listen: str) -> None:
    with pytest.raises(AdminStartError, match="is open to the network"):
        _build(listen)


@pytest.mark.parametrize("name", ["admin.sock", "with space%20?#.sock"])
async def test_a_socket_is_its_owners_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    before = os.umask(0)
    try:
        server = _build(f"unix:{path}")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600  # from the first moment, before anything is answered
        assert os.umask(0) == 0
        await server.start()
        await server.stop(0)
    finally:
        os.umask(before)
    assert not path.exists()


async def test_a_socket_that_nobody_listens_on_any_more(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with opened(listen=f"unix:{path}") as port, channel_to(port.address) as channel:
        await call(channel)


async def test_a_socket_of_another_process_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    async with opened(listen=f"unix:{path}") as port:
        with pytest.raises(AdminStartError, match=r"unix:.*/s \(listen\.admin\) cannot be bound: a process listens on"):
            _build(f"unix:{path}")
        async with channel_to(port.address) as channel:
            await call(channel)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none/s", "there is no directory {0}/none; make it, for this user alone"),
        ("file", "the file is there and is no socket; remove it or name another one"),
        ("link", "the file is there and is no socket"),
        ("file/s", "there is no directory {0}/file"),
    ],
)
async def test_where_no_socket_can_be(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(AdminStartError) as error:
        _build(f"unix:{tmp_path / name}")
    assert words.format(tmp_path) in str(error.value)
    assert (tmp_path / "file").read_text() == "kept"


# -- health ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ADMIN, HEALTH, *REFLECTION])
async def test_health(name: str, tmp_path: Path) -> None:
    """Checked and watched, without a token where the rest asks for one."""
    (tmp_path / "tokens.json").write_text("{}")
    async with opened(tokens_file=str(tmp_path / "tokens.json")) as port, channel_to(port.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=name)
        assert (await stub.Check(request, timeout=20)).status == SERVING
        watch = stub.Watch(request, timeout=20)
        assert (await watch.read()).status == SERVING
        await port.server.set_serving(False)
        assert (await watch.read()).status == NOT_SERVING
        assert (await stub.Check(request, timeout=20)).status == NOT_SERVING
        await port.server.set_serving(True)
        assert (await watch.read()).status == SERVING
        assert (await refusal(channel)).code() is grpc.StatusCode.UNAUTHENTICATED


async def test_health_of_a_name_that_is_none() -> None:
    async with opened() as port, channel_to(port.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="fairlane.Nothing")
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.Check(request, timeout=20)
        assert error.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(request, timeout=20)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


async def test_it_is_not_serving_until_it_is_said_so() -> None:
    server = _build(LOOPBACK)
    await server.start()
    try:
        async with channel_to(f"127.0.0.1:{server.port}") as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
            assert answer.status == NOT_SERVING
    finally:
        await server.stop(0)


# -- reflection -----------------------------------------------------------------------------------


async def test_reflection_describes_the_api(tmp_path: Path) -> None:
    """With the client that comes with grpcio-reflection, in a thread, as it is not for asyncio; without a token."""
    (tmp_path / "tokens.json").write_text("{}")
    found: dict[str, Any] = {}

    def ask(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            found["services"] = set(database.get_services())
            pool = descriptor_pool.DescriptorPool(database)
            found["methods"] = {method.name for method in pool.FindServiceByName(ADMIN).methods}
            request = pool.FindMessageTypeByName("fairlane.admin.v1.UpdateConfigRequest")
            found["config"] = request.fields_by_name["config"].message_type.full_name

    async with opened(tokens_file=str(tmp_path / "tokens.json")) as port:
        await asyncio.to_thread(ask, port.address)
    assert found["services"] == {ADMIN, HEALTH, REFLECTION[0]}
    assert found["methods"] == set(METHODS)
    assert found["config"] == "google.protobuf.Struct"


@pytest.mark.parametrize("service", REFLECTION)
async def test_reflection_under_both_of_its_names(service: str) -> None:
    async with opened() as port, channel_to(port.address) as channel:
        ask = channel.stream_stream(
            f"/{service}/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = [
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=ADMIN),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="fairlane.Nothing"),
        ]
        described, unknown = [answer async for answer in ask(iter(requests), timeout=20)]
    files = [
        descriptor_pb2.FileDescriptorProto.FromString(data)
        for data in described.file_descriptor_response.file_descriptor_proto
    ]
    (service_of_ours,) = [each for file in files for each in file.service if file.package == "fairlane.admin.v1"]
    assert {method.name for method in service_of_ours.method} == set(METHODS)
    assert unknown.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


async def test_no_reflection_stub_is_needed_to_call() -> None:
    """What a client makes of the descriptors alone: a path, and bytes."""
    async with opened() as port, channel_to(port.address) as channel:
        assert await channel.unary_unary(f"/{ADMIN}/GetStatus")(b"", timeout=20) == b""
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (answer,) = [each async for each in stub.ServerReflectionInfo(iter([request]), timeout=20)]
        assert ADMIN in [each.name for each in answer.list_services_response.service]


# -- what goes wrong ------------------------------------------------------------------------------


class Failing(Empty):
    """Raises what it is given."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    async def GetStatus(self, _request: object, _context: object) -> Any:  # noqa: N802
        raise self._error

    async def DumpState(self, _request: object, _context: object) -> AsyncIterator[Any]:  # noqa: N802
        yield admin_pb2.DumpStateResponse(section="status")
        raise self._error


@pytest.mark.parametrize("method", ["GetStatus", "DumpState"])
async def test_an_error_with_details(method: str) -> None:
    violations = [Violation("pool.weight", "must be more than 0"), Violation("", "whole")]
    error = AdminError(grpc.StatusCode.FAILED_PRECONDITION, "not now: größer", violations)
    async with opened(Failing(error)) as port, channel_to(port.address) as channel:
        refused = await refusal(channel, method)
    assert refused.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert refused.details() == "not now: größer"
    status = rpc_status.from_call(refused)
    assert (status.code, status.message) == (9, "not now: größer")
    details = error_details_pb2.BadRequest()
    assert status.details[0].Unpack(details)
    assert [(each.field, each.description) for each in details.field_violations] == [
        ("pool.weight", "must be more than 0"),
        ("", "whole"),
    ]


@pytest.mark.parametrize("text", ["x", "é", "漢", "\udc80", "\n"])
async def test_an_error_of_any_size_arrives(text: str) -> None:
    """gRPC's clients take 8 KiB of trailers."""
    violations = [Violation(f"tenants.{n}.{text * 500}", text * 5000) for n in range(5000)]
    error = AdminError(grpc.StatusCode.INVALID_ARGUMENT, text * 100_000, violations)
    async with opened(Failing(error)) as port, channel_to(port.address) as channel:
        refused = await refusal(channel)
    assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (refused.details() or "").endswith("...")
    details = error_details_pb2.BadRequest()
    assert rpc_status.from_call(refused).details[0].Unpack(details)
    *some, rest = details.field_violations
    assert some[0].field.startswith("tenants.0.")
    assert rest.description == f"and {5000 - len(some)} more"


@pytest.mark.parametrize("method", ["GetStatus", "DumpState"])
async def test_a_fault_is_in_the_log_and_not_on_the_wire(method: str, logs: Logs) -> None:
    async with opened(Failing(RuntimeError("s3cret"))) as port, channel_to(port.address) as channel:
        refused = await refusal(channel, method)
        await call(channel, "ListPools")
    assert refused.code() is grpc.StatusCode.INTERNAL
    (entry,) = logs
    assert (entry["event"], entry["method"], entry["log_level"]) == ("admin_fault", method, "error")
    assert refused.details() == f"a fault in Fairlane; its log tells more under {entry['fault']}"
    assert rpc_status.from_call(refused).message == refused.details()


@pytest.mark.parametrize("method", ["GetStatus", "WatchStats"])
async def test_what_is_no_message(method: str) -> None:
    async with opened() as port, channel_to(port.address) as channel:
        ask = channel.stream_unary(f"/{ADMIN}/{method}")
        for messages, words in (
            ([], f"no {method}Request was sent"),
            ([b"\xff\xff"], f"what was sent is no {ADMIN.rpartition('.')[0]}.{method}Request"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await ask(iter(messages), timeout=20)
            assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert (error.value.details() or "").startswith(words)
        assert not port.servicer.calls


async def test_what_is_nested_more_deeply_than_protobuf_reads_is_told_so() -> None:
    request = admin_pb2.UpdateConfigRequest()
    inner = request.config
    for _ in range(40):
        inner = inner.fields["a"].struct_value
    inner.fields["a"].bool_value = True
    async with opened() as port, channel_to(port.address) as channel:
        refused = await refusal(channel, "UpdateConfig", request=request)
        assert refused.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "nested more deeply than protobuf reads" in (refused.details() or "")


async def test_large_and_compressed_messages(tmp_path: Path) -> None:
    large = admin_pb2.ValidateConfigRequest(yaml="#" * 15 * 1024**2)
    too_large = admin_pb2.ValidateConfigRequest(yaml="#" * 17 * 1024**2)
    async with opened() as port, channel_to(port.address) as channel:
        await call(channel, "ValidateConfig", request=large)
        refused = await refusal(channel, "ValidateConfig", request=too_large)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        stub = admin_pb2_grpc.AdminStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stub.ValidateConfig(large, timeout=20, compression=grpc.Compression.Gzip)
        assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    (tmp_path / "tokens.json").write_text("{}")
    async with opened(tokens_file=str(tmp_path / "tokens.json")) as port, channel_to(port.address) as channel:
        refused = await refusal(channel, "ValidateConfig", request=large)
        assert refused.code() is grpc.StatusCode.UNAUTHENTICATED


# -- the end --------------------------------------------------------------------------------------


class Endless(Empty):
    def __init__(self) -> None:
        super().__init__()
        self.running = asyncio.Event()
        self.ended = asyncio.Event()

    async def _wait(self) -> None:
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def GetStatus(self, _request: object, _context: object) -> Any:  # noqa: N802
        await self._wait()

    async def WatchStats(self, _request: object, _context: object) -> AsyncIterator[admin_pb2.Stats]:  # noqa: N802
        yield admin_pb2.Stats(revision=1)
        await self._wait()


class Pouring(Empty):
    """Sends as fast as it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = asyncio.Event()

    async def WatchStats(self, _request: object, _context: object) -> AsyncIterator[admin_pb2.Stats]:  # noqa: N802
        try:
            while True:
                yield admin_pb2.Stats(pools=[admin_pb2.Pool(name="x" * 10_000)])
        finally:
            self.ended.set()


async def test_it_stops_under_open_streams(logs: Logs) -> None:
    servicer = Endless()
    async with opened(servicer) as port, channel_to(port.address) as channel:
        stream = admin_pb2_grpc.AdminStub(channel).WatchStats(admin_pb2.WatchStatsRequest(), timeout=60)
        health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
        assert (await stream.read()).revision == 1
        assert (await health.read()).status == SERVING
        await servicer.running.wait()
        async with asyncio.timeout(20):
            stopping = asyncio.create_task(port.server.stop(0.2))
            assert (await health.read()).status == NOT_SERVING
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stream.read()
            await stopping
        assert error.value.code() is grpc.StatusCode.UNAVAILABLE
        assert servicer.ended.is_set()
    assert not logs


@pytest.mark.parametrize("method", ["GetStatus", "WatchStats"])
async def test_a_client_that_leaves(method: str, logs: Logs) -> None:
    servicer = Endless()
    async with opened(servicer) as port, channel_to(port.address) as channel:
        request = admin_pb2.WatchStatsRequest() if method == "WatchStats" else admin_pb2.GetStatusRequest()
        asked = getattr(admin_pb2_grpc.AdminStub(channel), method)(request, timeout=60)
        await servicer.running.wait()
        asked.cancel()
        async with asyncio.timeout(20):
            await servicer.ended.wait()
        await call(channel, "ListPools")
    assert not logs


async def test_a_reader_that_does_not_read_and_leaves(logs: Logs) -> None:
    """The generator is closed when its stream ends, wherever it was."""
    servicer = Pouring()
    async with opened(servicer) as port:
        channel = channel_to(port.address)
        stream = admin_pb2_grpc.AdminStub(channel).WatchStats(admin_pb2.WatchStatsRequest(), timeout=60)
        await stream.read()
        async with asyncio.timeout(20):
            await call(channel, "ListPools")  # others are answered meanwhile
            await channel.close()
            await servicer.ended.wait()
    assert not logs


async def test_it_stops_under_a_reader_that_does_not_read(logs: Logs) -> None:
    servicer = Pouring()
    async with opened(servicer) as port, channel_to(port.address) as channel:
        stream = admin_pb2_grpc.AdminStub(channel).WatchStats(admin_pb2.WatchStatsRequest(), timeout=60)
        await stream.read()
        async with asyncio.timeout(20):
            await port.server.stop(0.2)
            await servicer.ended.wait()
    assert not logs


async def test_an_error_helper_names_its_field() -> None:
    async with opened(Failing(invalid("filter", "is empty"))) as port, channel_to(port.address) as channel:
        refused = await refusal(channel)
    assert (refused.code(), refused.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "filter: is empty")
