"""An upstream that records the exact bytes of requests and gives exact bytes as answers. It computes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from extproc.cli.ports import HostPort, free_ports

METRICS = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
_PACE_S = 0.0005  # between two pieces, so that they travel in segments of their own


@dataclass(frozen=True)
class Received:
    """One request as it came, the body without its transfer coding."""

    head: bytes
    body: bytes

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names in lower case, in the order of the wire."""
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = (line.split(":", 1) for line in lines if line)
        return [(name.lower(), value.strip()) for name, value in pairs]

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]


@dataclass(frozen=True)
class Recording:
    """An answer: status line and headers without framing, and the pieces of its body."""

    head: bytes
    pieces: tuple[bytes, ...]
    chunked: bool

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def wire(self) -> list[bytes]:
        if not self.chunked:
            return [self.head + b"content-length: %d\r\n\r\n" % len(self.body), *self.pieces]
        chunks = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in self.pieces if piece]
        return [self.head + b"transfer-encoding: chunked\r\n\r\n", *chunks, b"0\r\n\r\n"]


def recording(
    body: bytes,
    *,
    content_type: str = "application/json",
    status: str = "200 OK",
    piece: int | None = None,
    chunked: bool = False,
    more: bytes = b"",
) -> Recording:
    """`piece`: bytes that are sent at a time."""
    head = f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\n".encode() + more
    size = piece or max(len(body), 1)
    return Recording(head, tuple(body[i : i + size] for i in range(0, len(body), size)), chunked)


class Upstream:
    """Gives `answer` to every POST."""

    def __init__(self, at: HostPort) -> None:
        self.at = at
        self.answer = recording(b"{}")
        self.received: list[Received] = []
        self.connections: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await _body(head.lower(), reader)
                if head.startswith(b"GET /metrics"):
                    pieces = recording(METRICS, content_type="text/plain").wire()
                else:
                    self.received.append(Received(head, body))
                    pieces = self.answer.wire()
                for piece in pieces:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(_PACE_S)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the other side has closed
        finally:
            self.connections.discard(writer)
            writer.close()


async def _body(head: bytes, reader: asyncio.StreamReader) -> bytes:
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line)
    if fields.get(b"transfer-encoding") == b"chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readline()
        await reader.readline()
        return body
    return await reader.readexactly(int(fields.get(b"content-length", b"0")))


@asynccontextmanager
async def serving() -> AsyncIterator[Upstream]:
    """An upstream on a free port of the loopback."""
    upstream = Upstream(HostPort("127.0.0.1", free_ports(1)[0]))
    server = await asyncio.start_server(upstream.serve, upstream.at.host, upstream.at.port)
    try:
        yield upstream
    finally:
        server.close()
        for writer in list(upstream.connections):
            writer.close()
