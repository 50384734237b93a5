"""An engine that has nothing but a metrics page, for `fairlane bench scrape`: as little work as an answer can be.

    python -m extproc.cli.scrape_pages PORT PAGE still|moves filter|no_filter

`filter` answers `/metrics/?name[]=...` with the named samples, as vLLM does; `no_filter` with an empty page, as vLLM
with several API servers does. `moves` begins each page with a comment that differs, so that no page is the last one
again, as those of engines at work are not.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final, cast
from urllib.parse import parse_qs, urlsplit

from extproc.sim.engine import EngineOptions
from extproc.sim.pages import MetricsPage
from extproc.sim.stats import Stats
from extproc.sim.wire_engine import loop_factory

_END_OF_HEAD: Final = b"\r\n\r\n"
_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0)


def vllm_page(least_bytes: int) -> bytes:
    """As vLLM 0.32 writes it: the simulator's page, and behind it histograms of its HTTP server until it is as long."""
    page = bytearray(MetricsPage(Stats(), EngineOptions(), model="m", max_model_len=8192, created=1.7e9).render())
    handler = 0
    while len(page) < least_bytes:
        name, labels = "http_request_duration_highr_seconds", f'handler="/v1/{handler}",method="POST"'
        lines = [f'{name}_bucket{{{labels},le="{limit}"}} {7.0 * handler}\n' for limit in (*_BUCKETS, "+Inf")]
        lines += [f"{name}_count{{{labels}}} {7.0 * handler}\n", f"{name}_sum{{{labels}}} {0.25 * handler}\n"]
        page += "".join(lines).encode()
        handler += 1
    return bytes(page)


def filtered(page: bytes, names: list[str]) -> bytes:
    """The samples of these names."""
    wanted = tuple(f"{name}{end}".encode() for name in names for end in "{ ")
    return b"".join(line for line in page.splitlines(keepends=True) if line.startswith(wanted))


class Pages:
    def __init__(self, page: bytes, *, moves: bool, filters: bool) -> None:
        self._page = page
        self._moves = moves
        self._filters = filters
        self._made: dict[bytes, bytes] = {}  # target -> page
        self._answers = 0

    def answer(self, target: bytes) -> bytes:
        page = self._made.get(target)
        if page is None:
            page = self._made[target] = self._make(target.decode("ascii"))
        if self._moves:
            self._answers += 1
            page = b"# %d\n" % self._answers + page
        head = b"HTTP/1.1 200 OK\r\nServer: uvicorn\r\nContent-Type: text/plain; version=1.0.0\r\n"
        return head + b"Content-Length: %d\r\n\r\n" % len(page) + page

    def _make(self, target: str) -> bytes:
        names = parse_qs(urlsplit(target).query).get("name[]")
        if names is None:
            return self._page
        return filtered(self._page, names) if self._filters else b""


class _Connection(asyncio.Protocol):
    """HTTP/1.1 without pipelining and without bodies of requests."""

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._head = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        self._head += data
        if self._head.endswith(_END_OF_HEAD):
            target = self._head.split(b" ", 2)[1]
            self._head = b""
            self._transport.write(self._pages.answer(target))


async def serve(port: int, pages: Pages) -> None:
    """On the loopback, until cancelled."""
    server = await asyncio.get_running_loop().create_server(lambda: _Connection(pages), "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    given = Pages(Path(sys.argv[2]).read_bytes(), moves=sys.argv[3] == "moves", filters=sys.argv[4] == "filter")
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1]), given))
