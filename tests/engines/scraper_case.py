"""An engine whose pages a test exchanges, and a scraper of it. Waits are for events, with a deadline."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.core.model import Sample
from extproc.engines.dialects import PATHS, VLLM
from extproc.engines.scraper import ScrapeFailure, Scraper

PAGES = Path(__file__).parent / "pages"
VLLM_PAGE = (PAGES / "vllm_two_engines.txt").read_bytes()
LLAMACPP_PAGE = (PAGES / "llamacpp.txt").read_bytes()
PATIENCE_S = 20.0  # until a test counts as hung; never reached by one that passes
NEVER_S = 3600.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engine:
    """A server whose pages a test exchanges while it runs. `asked` has a request's kind for each one that came."""

    def __init__(self) -> None:
        self.full: Handler = answer(VLLM_PAGE)
        self.filtered: Handler = filtering(VLLM_PAGE)
        self.asked: list[str] = []
        self.requests: list[web.Request] = []
        self.paths: set[str] = set()  # at which there is a page, beside those of known engines
        self.came = asyncio.Condition()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        filtered = request.path == "/metrics/" and "name[]" in request.query
        assert filtered or (request.path in (*PATHS, *self.paths) and not request.query), request.rel_url
        async with self.came:
            self.asked.append("filtered" if filtered else "full")
            self.requests.append(request)
            self.came.notify_all()
        return await (self.filtered if filtered else self.full)(request)

    async def requested(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.came:
            await self.came.wait_for(lambda: len(self.asked) >= count)


def answer(body: bytes, status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, status=status, headers=named, content_type="text/plain")

    return handle


def filtering(page: bytes) -> Handler:
    """Like vLLM's server: only the lines of the samples that the query names."""

    async def handle(request: web.Request) -> web.StreamResponse:
        wanted = tuple(name + end for name in request.query.getall("name[]") for end in "{ ")
        lines = [line for line in page.decode().splitlines(keepends=True) if line.startswith(wanted)]
        return web.Response(text="".join(lines))

    return handle


def forever() -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(NEVER_S)
        raise AssertionError

    return handle


@contextlib.asynccontextmanager
async def serving(engine: Engine, tls: ssl.SSLContext | None = None) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get("/{path:.*}", engine.handle)
    server = TestServer(app, handler_cancellation=True, scheme="http" if tls is None else "https")
    await server.start_server(shutdown_timeout=0, ssl=tls)
    engine.url = str(server.make_url(""))
    try:
        yield
    finally:
        await server.close()


@contextlib.asynccontextmanager
async def raw_server(reply: bytes) -> AsyncIterator[str]:
    """Answers each connection with these bytes and closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Scraped:
    """A running scraper and what it has reported."""

    def __init__(self) -> None:
        self.now = 100.0
        self.busy = True
        self.samples: list[Sample] = []
        self.failures: list[ScrapeFailure] = []
        self.reported = asyncio.Event()
        self.scraper: Scraper
        self.task: asyncio.Task[None]

    def on_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.reported.set()

    def on_failure(self, failure: ScrapeFailure) -> None:
        self.failures.append(failure)
        self.reported.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.reported.clear()
                await self.reported.wait()

    async def sampled(self, count: int = 1) -> Sample:
        """The sample that is `count` further on."""
        goal = len(self.samples) + count
        await self.until(lambda: len(self.samples) >= goal)
        return self.samples[-1]

    async def failed(self, count: int = 1) -> ScrapeFailure:
        goal = len(self.failures) + count
        await self.until(lambda: len(self.failures) >= goal)
        return self.failures[-1]


@contextlib.asynccontextmanager
async def scraping(url: str, **settings: Any) -> AsyncIterator[Scraped]:
    scraped = Scraped()
    scraped.scraper = Scraper(
        "engine-a",
        url,
        **{
            "dialect": VLLM,
            "interval_s": 0.001,
            "idle_interval_s": NEVER_S,
            "timeout_s": PATIENCE_S,
            "on_sample": scraped.on_sample,
            "on_failure": scraped.on_failure,
            "busy": lambda: scraped.busy,
            "clock": lambda: scraped.now,
            **settings,
        },
    )
    scraped.task = asyncio.create_task(scraped.scraper.run())
    try:
        yield scraped
    finally:
        scraped.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraped.task
