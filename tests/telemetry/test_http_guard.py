"""What clients of the HTTP port may not do: fill the log, hold connections, ask for somebody else's page. Real sockets,
lines as the service writes them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import aiohttp
import orjson
import pytest
import structlog
from prometheus_client import CollectorRegistry

from extproc.cli.ports import free_ports
from extproc.telemetry import http_refusals, logs
from extproc.telemetry.http import HttpPort
from extproc.telemetry.http_connections import Connections, Limits
from extproc.telemetry.http_origin import foreign_host, foreign_origin
from extproc.telemetry.http_refusals import Refusals

SECRET = b"SECRETTOKEN"


class Port:
    def __init__(self, limits: Limits | None = None) -> None:
        self.now = 1000.0
        self.broken = False
        self.number = free_ports(1)[0]
        self.http = HttpPort(CollectorRegistry(), self._ready, list, lambda *_: [], limits=limits)
        self.connections._clock = lambda: self.now
        self.open: list[asyncio.StreamWriter] = []

    def _ready(self) -> bool:
        if self.broken:
            raise RuntimeError(SECRET.decode())
        return True

    @property
    def connections(self) -> Connections:
        return self.http._connections

    async def connect(self, sent: bytes = b"") -> asyncio.StreamReader:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        self.open.append(writer)
        writer.write(sent)
        await writer.drain()
        return reader

    async def ask(self, sent: bytes) -> bytes:
        """All that comes until the port closes."""
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                return await (await self.connect(sent)).read()
        return b""

    def stages(self) -> list[str]:
        return [each.stage.value for each in self.connections._open.values()]

    async def sweep_at(self, now: float) -> None:
        self.now = now
        self.connections.sweep()
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def served(limits: Limits | None = None, host: str = "127.0.0.1") -> AsyncIterator[Port]:
    made = Port(limits)
    await made.http.start(host, made.number)
    try:
        yield made
    finally:
        for writer in made.open:
            writer.close()
        await made.http.stop()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    async with served() as made:
        yield made


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger that has been used keeps its sink."""
    monkeypatch.setattr(http_refusals, "log", structlog.get_logger())


@pytest.fixture
def out(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What has come on standard error."""
    before = logging.getLogger().handlers[:]
    yield lambda: capsys.readouterr().err
    logging.getLogger().handlers[:] = before
    structlog.reset_defaults()


async def until(condition: Callable[[], bool], within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():  # noqa: ASYNC110 - nobody sets an event for it
            await asyncio.sleep(0.005)


def get(path: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", *(lines or ("Host: 127.0.0.1",)), "", ""]).encode()


# -- the log ------------------------------------------------------------------------------------------


BAD = [
    b"GET /x HTTP/1.1\r\nAuthorization: Bearer " + SECRET + b"a" * 9000 + b"\r\n\r\n",
    b"GET /x HTTP/1.1\r\n" + SECRET + b"\x00: 1\r\n\r\n",
    b"GET /" + SECRET + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
    SECRET + b" / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01" + SECRET + b"\r\n\r\n",
    b"GET /x HTTP/1.1\r\nHost: x\r\nContent-Length: " + SECRET + b"\r\n\r\n",
    b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    + SECRET
    + b"\r\n",
]


@pytest.mark.parametrize("json", [True, False])
async def test_no_client_writes_into_the_log(out: Callable[[], str], json: bool) -> None:
    logs.set_up("debug", json)
    async with served() as port:
        for _ in range(5):
            for sent in BAD:
                await port.ask(sent)
        early = out()
    told = early + out()
    assert SECRET.decode() not in told
    assert "aaaa" not in told
    assert "Traceback" not in told
    lines = told.splitlines()
    assert early.count("http_requests_refused") == 1
    assert len(lines) == 2  # the first at once, the rest at the end, since the minute is not over
    if json:
        first, rest = map(orjson.loads, lines)
        assert (first["event"], first["level"], first["count"], first["malformed"]) == (
            "http_requests_refused",
            "warning",
            1,
            1,
        )
        assert rest["count"] == rest["malformed"] == 5 * len(BAD) - 1


async def test_an_error_of_our_own_is_told_by_its_place(out: Callable[[], str]) -> None:
    logs.set_up("debug", True)
    async with served() as port:
        port.broken = True
        answer = await port.ask(get("/readyz"))
        assert answer.startswith(b"HTTP/1.1 500 ")
        assert SECRET not in answer
    (line,) = map(orjson.loads, out().splitlines())
    assert (line["event"], line["level"], line["count"], line["error"]) == (
        "http_requests_failed",
        "error",
        1,
        "RuntimeError",
    )
    assert line["at"].startswith("test_http_guard.py:")
    assert line["at"].endswith(" in _ready")
    assert SECRET.decode() not in str(line)


async def test_once_in_a_while() -> None:
    with structlog.testing.capture_logs() as told:
        refusals = Refusals(every_s=0.05)
        for _ in range(3):
            refusals.count("malformed")
        assert [line["count"] for line in told] == [1]
        await until(lambda: len(told) == 2)
        await until(lambda: refusals._timer is None)  # nothing more came: nothing wakes up
        refusals.count("not_whole")
        refusals.close()
    counts = [(line["count"], line.get("malformed"), line.get("not_whole")) for line in told]
    assert counts == [(1, 1, None), (2, 2, None), (1, None, 1)]


# -- connections --------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /m", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"])
async def test_half_a_request_has_ten_seconds(port: Port, sent: bytes) -> None:
    reader = await port.connect(sent)
    await until(lambda: port.stages() == ["asking" if sent else "new"])
    await port.sweep_at(1009.9)
    assert len(port.connections) == 1
    await port.sweep_at(1010.0)
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    await until(lambda: len(port.connections) == 0)
    assert not port.connections.sweeping


async def test_byte_by_byte_is_no_way_out(port: Port) -> None:
    reader = await port.connect(b"GET /healthz HTTP/1.1\r\n")
    await until(lambda: port.stages() == ["asking"])
    (connection,) = port.connections._open.values()
    connection.data_received(b"a: 1\r\n")
    await port.sweep_at(1009.0)
    connection.data_received(b"b: 1\r\n")
    await port.sweep_at(1010.0)
    async with asyncio.timeout(20):
        assert await reader.read() == b""


async def test_one_that_is_idle_has_thirty_seconds_and_ten_for_the_next(port: Port) -> None:
    reader = await port.connect(get("/healthz"))
    async with asyncio.timeout(20):
        await reader.readuntil(b"ok\n")
        await port.sweep_at(1029.9)
        port.open[0].write(get("/healthz"))
        await reader.readuntil(b"ok\n")  # its time begins anew
        await port.sweep_at(1059.8)
        assert len(port.connections) == 1
        (connection,) = port.connections._open.values()
        port.open[0].write(b"GET /he")
        await until(lambda: connection.since == 1059.8)
        await port.sweep_at(1069.7)
        assert len(port.connections) == 1
        await port.sweep_at(1069.8)
        assert await reader.read() == b""


async def test_idle_ends(port: Port) -> None:
    reader = await port.connect(get("/healthz"))
    async with asyncio.timeout(20):
        await reader.readuntil(b"ok\n")
        await port.sweep_at(1030.0)
        assert await reader.read() == b""


async def test_the_sweep_comes_by_itself() -> None:
    made = Port(Limits(whole_s=0.1, idle_s=0.1))
    made.connections._clock = None
    await made.http.start("127.0.0.1", made.number)
    try:
        for sent in (b"GET /m", get("/healthz")):
            reader = await made.connect(sent)
            async with asyncio.timeout(20):
                await reader.read()
        assert not made.connections.sweeping
    finally:
        for writer in made.open:
            writer.close()
        await made.http.stop()


async def test_so_many_connections_and_no_more() -> None:
    async with served(Limits(most=20)) as port:
        readers = []
        for number in range(20):
            readers.append(await port.connect(b"GET /m"))
            await until(lambda number=number: len(port.connections) == number + 1)
        with structlog.testing.capture_logs() as told:
            # A probe gets in, in the place of the one that has waited for longest.
            assert b"200 OK" in await port.ask(get("/healthz", "Host: localhost", "Connection: close"))
        assert [line["too_many_connections"] for line in told] == [1]
        assert await gone(readers[0])
        await until(lambda: len(port.connections) == 19)
        assert not any(reader.at_eof() for reader in readers[1:])


async def gone(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(5):
            return await reader.read() == b""
    return True


async def test_nobody_who_is_being_answered_gives_way() -> None:
    waiting = asyncio.Event()

    class Slow:
        async def page(self, _: str) -> tuple[bytes, str]:
            await waiting.wait()
            return b"at last", "text/plain"

    async with served(Limits(most=2)) as port:
        port.http._exposition = Slow()  # type: ignore[assignment]
        readers = [await port.connect(get("/metrics")) for _ in range(2)]
        await until(lambda: port.stages() == ["answering"] * 2)
        assert await port.ask(get("/healthz")) == b""
        waiting.set()
        for reader in readers:
            async with asyncio.timeout(20):
                await reader.readuntil(b"at last")


async def test_an_answer_under_way_has_no_limit(port: Port) -> None:
    """As a stream of events is."""
    waiting = asyncio.Event()

    class Slow:
        async def page(self, _: str) -> tuple[bytes, str]:
            await waiting.wait()
            return b"at last", "text/plain"

    port.http._exposition = Slow()  # type: ignore[assignment]
    reader = await port.connect(get("/metrics"))
    await until(lambda: port.stages() == ["answering"])
    await port.sweep_at(100_000.0)
    waiting.set()
    async with asyncio.timeout(20):
        await reader.readuntil(b"at last")
    assert len(port.connections) == 1


async def test_an_answer_that_nobody_takes_ends(port: Port) -> None:
    class Large:
        async def page(self, _: str) -> tuple[bytes, str]:
            return b"x" * 20_000_000, "text/plain"

    port.http._exposition = Large()  # type: ignore[assignment]
    with socket.create_connection(("127.0.0.1", port.number)) as stuck:
        stuck.sendall(get("/metrics"))
        await until(lambda: port.stages() == ["idle"])
        await port.sweep_at(1030.0)
        await until(lambda: len(port.connections) == 0)


async def test_the_port_ends_with_half_requests_open() -> None:
    async with served() as port:
        for _ in range(10):
            await port.connect(b"GET /m")
        await until(lambda: len(port.connections) == 10)
        async with asyncio.timeout(20):
            await port.http.stop()
        await until(lambda: len(port.connections) == 0)
        assert not port.connections.sweeping


# -- whose page asks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/status", "/events", "/explain?id=x", "/", "/page.js", "/nowhere"])
async def test_a_foreign_name_gets_nothing_at_loopback(port: Port, path: str) -> None:
    for host in ("evil.example", f"evil.example:{port.number}", "127.0.0.1.evil.example", "10.0.0.1", "", "a b"):
        answer = await port.ask(get(path, f"Host: {host}", "Connection: close"))
        assert answer.startswith(b"HTTP/1.1 403 "), host
        assert f"http://127.0.0.1:{port.number}".encode() in answer
        assert b"listen: {http: ...}" in answer


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_whether_it_lives_is_told_to_all(port: Port, path: str) -> None:
    assert b" 200 OK" in await port.ask(get(path, "Host: evil.example", "Connection: close"))


async def test_names_of_loopback(port: Port) -> None:
    for host in ("localhost", "LOCALHOST.:9090", "a.localhost:1", "127.0.0.1", "127.3.2.1:9090", "[::1]:80", "[::1]"):
        answer = await port.ask(get("/metrics", f"Host: {host}", "Connection: close"))
        assert b" 200 OK" in answer, host
    assert b" 200 OK" in await port.ask(b"GET /metrics HTTP/1.0\r\n\r\n")


async def test_on_another_address_any_name_will_do() -> None:
    async with served(host="0.0.0.0") as port:
        answer = await port.ask(get("/metrics", "Host: fairlane.example:9090", "Connection: close"))
        assert b" 200 OK" in answer


async def test_a_real_client_by_name_and_by_address() -> None:
    async with served(host="localhost") as port, aiohttp.ClientSession() as session:
        for host in ("localhost", "127.0.0.1"):
            async with session.get(f"http://{host}:{port.number}/status") as answer:
                assert answer.status == 200


def test_the_name_that_it_listens_at_is_ours() -> None:
    assert not foreign_host(["fairlane-1:9090"], "Fairlane-1")
    assert foreign_host(["fairlane-2:9090"], "fairlane-1")
    assert foreign_host(["localhost", "evil.example"], "localhost")
    for host in ("localhost@evil.example", "localhost:port", "[::1", "evil.example#localhost", "local\thost", ":80"):
        assert foreign_host([host], "127.0.0.1"), host


@pytest.mark.parametrize(
    ("origin", "host", "foreign"),
    [
        (None, "a:9090", False),
        ("http://a:9090", "a:9090", False),
        ("http://A:9090", "a:9090", False),
        ("http://a", "a:80", False),
        ("https://a", "a:443", False),
        ("https://a:8443", "a", False),
        ("http://[::1]:9090", "[::1]:9090", False),
        ("http://b:9090", "a:9090", True),
        ("http://a:9091", "a:9090", True),
        ("http://a", "a:9090", True),
        ("null", "a:9090", True),
        ("", "a:9090", True),
        ("http://a:9090", None, True),
        ("http://a.evil.example", "a", True),
        ("http://a:x", "a", True),
    ],
)
def test_origins(origin: str | None, host: str | None, foreign: bool) -> None:
    assert foreign_origin(origin, host) is foreign
