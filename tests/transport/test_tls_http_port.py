"""The HTTP port over TLS, on asyncio's loop and on uvloop's: who gets in, new certificates while it is open, and
clients that do not come to the end of a handshake. Real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import uvloop
from pki import Authority, Pair, replace, written
from prometheus_client import CollectorRegistry, Gauge

from extproc.config.tls import Tls
from extproc.telemetry import http_refusals
from extproc.telemetry.http import HttpPort
from extproc.telemetry.http_connections import Connections, Limits
from extproc.transport import tls_files
from extproc.transport.tls_files import TlsFiles

Logs = list[MutableMapping[str, Any]]
Run = Callable[[Awaitable[None]], None]
OURS = Authority()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    def run(what: Awaitable[None]) -> None:
        async def told() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
            async with asyncio.timeout(60):
                await what

        unhandled: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(told())
        assert not unhandled

    yield run


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logs]:
    for module in (tls_files, http_refusals):
        monkeypatch.setattr(module, "log", structlog.get_logger())
    with structlog.testing.capture_logs() as entries:
        yield entries


class Port:
    def __init__(self, limits: Limits | None) -> None:
        registry = CollectorRegistry()
        Gauge("a_gauge", "One.", registry=registry).set(3)
        self.http = HttpPort(registry, lambda: True, list, lambda *_: [], limits=limits)
        self.open: list[asyncio.StreamWriter] = []

    @property
    def at(self) -> int:
        return self.http._bound[1]

    @property
    def connections(self) -> Connections:
        return self.http._connections

    async def connect(self, context: ssl.SSLContext | None = None, sent: bytes = b"") -> asyncio.StreamReader:
        name = None if context is None else "localhost"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.at, ssl=context, server_hostname=name)
        self.open.append(writer)
        writer.write(sent)
        return reader

    async def ask(self, path: str, context: ssl.SSLContext | None, *lines: str) -> str:
        """Its answer: status line, headers and body. Raises OSError."""
        head = [f"GET {path} HTTP/1.1", *(lines or (f"Host: localhost:{self.at}",)), "Connection: close", "", ""]
        reader = await self.connect(context, "\r\n".join(head).encode())
        return (await reader.read()).decode()

    async def refused(self, path: str, context: ssl.SSLContext) -> bool:
        """Whether nothing comes: an alert, or the connection's end."""
        try:
            return await self.ask(path, context) == ""
        except OSError:
            return True

    async def until_open(self, count: int) -> None:
        while len(self.connections) != count:  # noqa: ASYNC110 - nobody sets an event for it
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def served(tls: Tls, limits: Limits | None = None, host: str = "127.0.0.1") -> AsyncIterator[Port]:
    port = Port(limits)
    await port.http.start(host, 0, TlsFiles(tls, "listen.http_tls"))
    try:
        yield port
    finally:
        for writer in port.open:
            writer.close()
        await port.http.stop()
        await port.until_open(0)


def client(trust: Authority = OURS, pair: Pair | None = None, folder: Path | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=trust.pem.decode())
    if pair is not None and folder is not None:
        (folder / "client.pem").write_bytes(pair.certificate + pair.key)
        context.load_cert_chain(folder / "client.pem")
    return context


def test_it_answers(run: Run, tmp_path: Path, logs: Logs) -> None:
    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            assert (await port.ask("/readyz", client())).startswith("HTTP/1.1 200 ")
            assert "\na_gauge 3.0\n" in await port.ask("/metrics", client())
            await port.until_open(0)

    run(story())
    assert not logs


def test_several_requests_of_one_connection(run: Run, tmp_path: Path) -> None:
    """All of them sent at once, with the end of the handshake."""

    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            reader = await port.connect(client(), b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 3)
            for _ in range(3):
                assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")
            assert [each.stage.value for each in port.connections._open.values()] == ["idle"]

    run(story())


def test_names_of_loopback_over_https(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            for host in (f"localhost:{port.at}", "localhost", f"127.0.0.1:{port.at}", f"[::1]:{port.at}"):
                assert (await port.ask("/metrics", client(), f"Host: {host}")).startswith("HTTP/1.1 200 "), host
            answer = await port.ask("/metrics", client(), "Host: evil.example")
            assert answer.startswith("HTTP/1.1 403 ")
            assert f"ask at https://127.0.0.1:{port.at}," in answer

    run(story())


def test_who_shows_no_certificate_gets_no_answer(run: Run, tmp_path: Path, logs: Logs) -> None:
    evil = Authority("evil")

    async def story() -> None:
        async with served(written(tmp_path, OURS.issue(), OURS.pem)) as port:
            good = client(pair=OURS.issue(), folder=tmp_path)
            assert (await port.ask("/readyz", good)).startswith("HTTP/1.1 200 ")
            for context in (client(), client(pair=evil.issue(), folder=tmp_path)):
                assert await port.refused("/readyz", context)
            await port.until_open(0)

    run(story())
    assert [entry["event"] for entry in logs] == ["http_requests_refused"] * 2  # at once, and the rest at the end
    reasons = [entry["no_tls_reason"] for entry in logs]
    assert reasons == ["PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED"]


def test_new_certificate_and_authority(run: Run, tmp_path: Path, logs: Logs) -> None:
    """Connections that are open stay; who comes next meets the new ones, and the old authority's clients are out."""
    after = Authority("after")

    async def story() -> None:
        async with served(written(tmp_path, OURS.issue(), OURS.pem)) as port:
            old = client(OURS, OURS.issue(), tmp_path)
            reader = await port.connect(old, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b"ok\n")
            written(tmp_path, after.issue(), after.pem)
            assert (await port.ask("/readyz", client(after, after.issue(), tmp_path))).startswith("HTTP/1.1 200 ")
            with pytest.raises(ssl.SSLCertVerificationError):
                await port.ask("/readyz", old)
            assert await port.refused("/readyz", client(after, OURS.issue(), tmp_path))
            port.open[0].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")

    run(story())
    assert [entry["event"] for entry in logs if entry["event"].startswith("tls")] == ["tls_read"]


def test_a_client_without_a_server_name_gets_the_new_one_too(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            after = OURS.issue()
            written(tmp_path, after)

            def see() -> bytes | None:
                context = client()
                context.check_hostname = False
                with (
                    socket.create_connection(("127.0.0.1", port.at)) as plain,
                    context.wrap_socket(plain) as over,
                ):
                    return over.getpeercert(binary_form=True)

            assert await asyncio.to_thread(see) == after.der

    run(story())


def test_broken_files_leave_it_open(run: Run, tmp_path: Path, logs: Logs) -> None:
    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            replace(tmp_path / "tls.key", b"s3cret")
            for _ in range(3):
                assert (await port.ask("/readyz", client())).startswith("HTTP/1.1 200 ")

    run(story())
    assert [entry["event"] for entry in logs] == ["tls_refused"]


# -- handshakes that come to nothing --------------------------------------------------------------


def test_plain_text_is_not_answered(run: Run, tmp_path: Path, logs: Logs) -> None:
    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            for _ in range(20):
                with contextlib.suppress(ConnectionError):
                    assert "HTTP" not in await port.ask("/healthz", None, "Host: SECRET")
            await port.until_open(0)

    run(story())
    assert [entry["event"] for entry in logs] == ["http_requests_refused"] * 2  # at once, and the rest at the end
    assert sum(entry["no_tls"] for entry in logs) == 20
    assert {entry["no_tls_reason"] for entry in logs} == {"HTTP_REQUEST"}


def test_who_only_looks_whether_the_port_is_open_is_not_told_of(run: Run, tmp_path: Path, logs: Logs) -> None:
    """As load balancers do it."""

    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            for _ in range(20):
                await port.connect()
                port.open.pop().close()
            await port.until_open(0)

    run(story())
    assert not logs


@pytest.mark.slow
def test_a_handshake_that_never_ends_is_ended(run: Run, tmp_path: Path) -> None:
    """Half of a greeting, or nothing at all."""

    async def story() -> None:
        limits = Limits(whole_s=0.3)
        async with served(written(tmp_path, OURS.issue()), limits) as port:
            hello = client_hello()
            readers = [await port.connect(sent=hello[: number * 2]) for number in range(100)]
            await port.until_open(100)
            for reader in readers:
                with contextlib.suppress(ConnectionError):
                    while await reader.read(1024):
                        pass
            await port.until_open(0)
            assert (await port.ask("/readyz", client())).startswith("HTTP/1.1 200 ")

    run(story())


@pytest.mark.slow
def test_a_handshake_that_is_done_and_asks_nothing_is_ended(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with served(written(tmp_path, OURS.issue()), Limits(whole_s=0.3)) as port:
            reader = await port.connect(client(), b"GET /he")
            with contextlib.suppress(OSError):
                assert await reader.read() == b""
            await port.until_open(0)

    run(story())


def test_unfinished_handshakes_do_not_keep_others_out(run: Run, tmp_path: Path) -> None:
    """They count among the most that there may be, and go first."""

    async def story() -> None:
        async with served(written(tmp_path, OURS.issue()), Limits(most=8, whole_s=30)) as port:
            for _ in range(40):
                await port.connect(sent=b"\x16\x03\x01")
            assert (await port.ask("/readyz", client())).startswith("HTTP/1.1 200 ")
            assert len(port.connections) <= 8

    run(story())


def test_the_port_stops_in_the_middle_of_handshakes(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async with served(written(tmp_path, OURS.issue())) as port:
            for _ in range(10):
                await port.connect(sent=client_hello()[:50])
            await port.until_open(10)

    run(story())


def client_hello() -> bytes:
    sent, answered = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client().wrap_bio(answered, sent, server_hostname="localhost").do_handshake()
    return sent.read()
