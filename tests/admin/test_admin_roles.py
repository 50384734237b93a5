"""Each method of the admin API, called by each role and by nobody."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
import pytest_asyncio
from access_case import METHODS, Port, bearer, call, channel_to, opened, refusal, write_tokens

from extproc.admin import guard
from extproc.edge import server as edge_server
from extproc.pb.admin.v1 import admin_pb2_grpc

pytestmark = pytest.mark.asyncio(loop_scope="session")

# as the proto's comments have it
READS = [
    "GetStatus",
    "ListPools",
    "GetPool",
    "ListEndpoints",
    "ListFlows",
    "ListRequests",
    "ExplainRequest",
    "WatchStats",
    "GetConfig",
    "ExportConfig",
    "ValidateConfig",
    "ListRevisions",
    "DiffRevisions",
    "ListAuditRecords",
]
OPERATES = [
    "DumpState",
    "SetTenant",
    "SetClass",
    "SetPool",
    "BoostTenant",
    "CancelRequests",
    "StartRecording",
    "StopRecording",
]
ADMINISTERS = ["UpdateConfig", "Rollback"]
MAY = {"viewer": {*READS}, "operator": {*READS, *OPERATES}, "admin": {*READS, *OPERATES, *ADMINISTERS}}
NEEDS = {
    **dict.fromkeys(READS, "viewer"),
    **dict.fromkeys(OPERATES, "operator"),
    **dict.fromkeys(ADMINISTERS, "admin"),
}


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def port(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Port]:
    file = tmp_path_factory.mktemp("roles") / "tokens.json"
    write_tokens(file, viewer="viewer", operator="operator", admin="admin")
    async with opened(tokens_file=str(file)) as found:
        yield found


async def test_every_method_has_a_role() -> None:
    assert len(METHODS) == 24
    assert set(METHODS) == MAY["admin"] == set(guard.NEEDS)


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("role", ["viewer", "operator", "admin"])
async def test_a_role(role: str, method: str, port: Port) -> None:
    port.servicer.calls.clear()
    port.denied.clear()
    async with channel_to(port.address) as channel:
        if method in MAY[role]:
            await call(channel, method, metadata=bearer(role))
            ((called, caller),) = port.servicer.calls
            assert (called, caller.name, caller.role) == (method, f"{role}-holder", role)
            assert caller.peer.startswith("ipv4:127.0.0.1:")
            assert not port.denied
        else:
            error = await refusal(channel, method, metadata=bearer(role))
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            cause = f"{method} needs role {NEEDS[method]}"
            assert error.details() == f"{cause}; {role}-holder is {role}"
            assert not port.servicer.calls
            ((peer, *told),) = port.denied
            assert peer.startswith("ipv4:127.0.0.1:")
            assert told == [method, cause, f"{role}-holder", "PERMISSION_DENIED"]


@pytest.mark.parametrize("method", sorted(METHODS))
async def test_nobody(method: str, port: Port) -> None:
    port.servicer.calls.clear()
    port.denied.clear()
    async with channel_to(port.address) as channel:
        error = await refusal(channel, method)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not port.servicer.calls
    assert [told[1:] for told in port.denied] == [(method, "no token", "", "UNAUTHENTICATED")]


@pytest.mark.parametrize("method", sorted(METHODS))
async def test_loopback_and_socket_without_credentials_configured(method: str, tmp_path: Path) -> None:
    for listen in ("127.0.0.1:0", f"unix:{tmp_path}/admin.sock"):
        async with opened(listen=listen) as port, channel_to(port.address) as channel:
            await call(channel, method)
            ((_, caller),) = port.servicer.calls
            assert (caller.name, caller.role) == ("local", "admin")


async def test_a_method_that_is_not_in_the_table_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "NEEDS", {name: role for name, role in guard.NEEDS.items() if name != "GetPool"})
    async with opened() as port, channel_to(port.address) as channel:
        assert (await refusal(channel, "GetPool")).code() is grpc.StatusCode.PERMISSION_DENIED
        await call(channel, "ListPools")
        assert [name for name, _ in port.servicer.calls] == ["ListPools"]


async def test_every_method_of_the_generated_servicer_is_served() -> None:
    served = {name for name in vars(admin_pb2_grpc.AdminServicer) if not name.startswith("_")}
    assert served == set(METHODS)


async def test_the_port_for_envoy_has_none_of_them() -> None:
    nobody = SimpleNamespace(process=None, stream=None)
    edge = edge_server.build("127.0.0.1:0", nobody, nobody)
    await edge.server.start()
    try:
        async with channel_to(f"127.0.0.1:{edge.port}") as channel:
            for method in METHODS:
                assert (await refusal(channel, method)).code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await edge.server.stop(0)
