"""The ext_proc port over TLS: who gets in, new certificates while it is open, and handshakes that never end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pki import Authority, Pair, replace, written

from extproc.admin import server as admin_server
from extproc.config.tls import Tls
from extproc.edge import server as edge_server
from extproc.transport import tls_files
from extproc.transport.tls_files import TlsFiles

pytestmark = pytest.mark.asyncio(loop_scope="session")

Logs = list[MutableMapping[str, Any]]
ROOT = Path(__file__).parents[2]
OURS = Authority()
HANDSHAKE = "grpc.server_handshake_timeout_ms"


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    monkeypatch.setattr(tls_files, "log", structlog.get_logger())
    with structlog.testing.capture_logs() as entries:
        yield entries


@contextlib.asynccontextmanager
async def served(tls: Tls | None) -> AsyncIterator[int]:
    """The port's number. It only tells of its health."""
    nobody: Any = type("Nobody", (), {"process": None, "stream": None})()
    files = None if tls is None else TlsFiles(tls, "listen.ext_proc_tls")
    edge = edge_server.build("127.0.0.1:0", nobody, nobody, 0, files)
    await edge.set_serving(True)
    await edge.server.start()
    try:
        yield edge.port
    finally:
        await edge.server.stop(None)


def shows(trust: Authority, pair: Pair | None = None) -> grpc.ChannelCredentials:
    if pair is None:
        return grpc.ssl_channel_credentials(trust.pem)
    return grpc.ssl_channel_credentials(trust.pem, pair.key, pair.certificate)


def channel(port: int, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1),)
    if credentials is None:
        return grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options)
    return grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options)


async def healthy(over: grpc.aio.Channel) -> bool:
    try:
        answer = await health_pb2_grpc.HealthStub(over).Check(health_pb2.HealthCheckRequest(), timeout=20)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        return False
    return answer.status == edge_server.SERVING


async def asked(port: int, credentials: grpc.ChannelCredentials | None) -> bool:
    """Whether it answers a client with a connection of its own."""
    async with channel(port, credentials) as over:
        return await healthy(over)


async def test_tls_alone(tmp_path: Path) -> None:
    async with served(written(tmp_path, OURS.issue())) as port:
        assert await asked(port, shows(OURS))
        assert not await asked(port, None)
        assert not await asked(port, shows(Authority("other")))


async def test_with_an_authority_a_client_shows_a_certificate(tmp_path: Path) -> None:
    async with served(written(tmp_path, OURS.issue(), OURS.pem)) as port:
        assert await asked(port, shows(OURS, OURS.issue()))
        for pair in (None, Authority("ours").issue()):
            assert not await asked(port, shows(OURS, pair))
        assert not await asked(port, None)


async def test_tls_to_a_port_in_plain_text(tmp_path: Path) -> None:
    async with served(None) as port:
        assert await asked(port, None)
        assert not await asked(port, shows(OURS))


async def test_new_certificate_and_authority(tmp_path: Path, logs: Logs) -> None:
    after = Authority("after")
    async with (
        served(written(tmp_path, OURS.issue(), OURS.pem)) as port,
        channel(port, shows(OURS, OURS.issue())) as before,
    ):
        assert await healthy(before)
        written(tmp_path, after.issue(), after.pem)
        assert await asked(port, shows(after, after.issue()))
        assert not await asked(port, shows(OURS, OURS.issue()))
        assert not await asked(port, shows(after, OURS.issue()))
        assert await healthy(before)  # it was let in before
    assert [(entry["event"], entry["setting"]) for entry in logs] == [("tls_read", "listen.ext_proc_tls")]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
async def test_old_versions_of_tls_are_not_spoken(tmp_path: Path) -> None:
    async with served(written(tmp_path, OURS.issue())) as port:
        for version, good in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
            assert await asyncio.to_thread(_comes_through, port, version) is good, version


def _comes_through(port: int, version: ssl.TLSVersion) -> bool:
    context = ssl.create_default_context(cadata=OURS.pem.decode())
    context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else OpenSSL itself would not speak the old ones
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", port), timeout=20) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as over:
                return over.version() is not None
        except (ssl.SSLError, ConnectionError):
            return False


@pytest.mark.slow
@pytest.mark.parametrize("over_tls", [True, False])
async def test_a_handshake_that_never_ends_is_ended(
    over_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred of them, in TLS's or HTTP/2's greeting; meanwhile others come in."""
    options = [each for each in edge_server.OPTIONS if each[0] != HANDSHAKE]
    monkeypatch.setattr(edge_server, "OPTIONS", (*options, (HANDSHAKE, 1_000)))
    async with served(written(tmp_path, OURS.issue()) if over_tls else None) as port:
        stalled = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for number, (_, writer) in enumerate(stalled):
            writer.write((b"\x16\x03\x01\x02" if over_tls else b"PRI * HT")[: number % 8])
        assert await asked(port, shows(OURS) if over_tls else None)
        async with asyncio.timeout(30):
            for reader, writer in stalled:
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1024):
                        pass
                writer.close()


async def test_both_servers_have_this_limit() -> None:
    for options in (edge_server.OPTIONS, admin_server._OPTIONS):
        assert dict(options)[HANDSHAKE] == 10_000


SERVE = """
import asyncio, sys
import extproc
sys.path[:0] = sys.argv[1:2]
import test_tls_grpc_port as case
from extproc.config.tls import Tls

async def main():
    names = ("certificate", "key", "client_ca")
    async with case.served(Tls.model_validate(dict(zip(names, sys.argv[2:], strict=True)))) as port:
        print(port, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_who_fails_writes_nothing_into_the_log(tmp_path: Path) -> None:
    """gRPC's own library would write a line for each, where nobody tells it not to."""
    tls = written(tmp_path, OURS.issue(), OURS.pem)
    files = [tls.certificate, tls.key, str(tls.client_ca)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    paths = os.pathsep.join([str(ROOT), str(Path(__file__).parent)])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVE, str(Path(__file__).parent), *files),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "PYTHONPATH": paths},
    )
    try:
        assert process.stdout is not None
        port = int(await process.stdout.readline())
        for _ in range(5):
            assert not await asked(port, None)
            assert not await asked(port, shows(OURS))
            assert not await asked(port, shows(OURS, Authority("evil").issue()))
        assert await asked(port, shows(OURS, OURS.issue()))
        _, errors = await asyncio.wait_for(process.communicate(b""), 30)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert errors == b""


async def test_a_half_of_a_pair_leaves_it_open(tmp_path: Path, logs: Logs) -> None:
    async with served(written(tmp_path, OURS.issue())) as port:
        replace(tmp_path / "tls.crt", OURS.issue().certificate)
        for _ in range(3):
            assert await asked(port, shows(OURS))
    assert [entry["event"] for entry in logs] == ["tls_refused"]
