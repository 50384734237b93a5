"""Answers that are no metrics pages, or none that can be taken: from real servers, over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from scraper_case import (
    LLAMACPP_PAGE,
    NEVER_S,
    PATIENCE_S,
    VLLM_PAGE,
    Engine,
    Handler,
    answer,
    filtering,
    forever,
    raw_server,
    scraping,
    serving,
)

from extproc.cli.ports import free_ports
from extproc.engines.dialects import LLAMACPP
from extproc.engines.scraper import FailureKind, Scraper


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    async with serving(engine):
        yield engine


# failures ---------------------------------------------------------------------------------------------------------


async def test_connection_refused() -> None:
    async with scraping(f"http://127.0.0.1:{free_ports(1)[0]}") as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.REFUSED
    assert failure.at == 100.0
    assert scraped.scraper.failures[FailureKind.REFUSED] >= 1
    assert scraped.scraper.last_failure is not None and scraped.scraper.failing is FailureKind.REFUSED


async def test_an_engine_that_goes_away_and_comes_back() -> None:
    engine = Engine()
    async with serving(engine), scraping(engine.url) as scraped:
        await scraped.sampled()
        port = int(engine.url.rsplit(":", 1)[1].strip("/"))
    async with scraping(f"http://127.0.0.1:{port}") as scraped:
        await scraped.failed(2)
        back = web.Application()
        back.router.add_get("/{path:.*}", engine.handle)
        server = TestServer(back, port=port)
        await server.start_server()
        try:
            await scraped.sampled(2)
        finally:
            await server.close()
    assert scraped.failures[-1].kind is FailureKind.REFUSED


async def test_an_engine_slower_than_the_timeout(engine: Engine) -> None:
    engine.filtered = forever()
    async with scraping(engine.url, timeout_s=0.05) as scraped:
        failure = await scraped.failed(2)
        assert failure.kind is FailureKind.TIMEOUT
        assert failure.message == "no page within 0.05 s"
        engine.filtered = filtering(VLLM_PAGE)
        scraped.scraper._timeout_s = PATIENCE_S  # so that a slow machine passes too
        await scraped.sampled()
    assert "full" not in engine.asked


async def test_a_page_that_stops_in_the_middle_is_a_timeout(engine: Engine) -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(LLAMACPP_PAGE[:100])
        await asyncio.sleep(NEVER_S)
        raise AssertionError

    engine.full = stall
    async with scraping(engine.url, dialect=LLAMACPP, timeout_s=0.1) as scraped:
        assert (await scraped.failed()).kind is FailureKind.TIMEOUT


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (answer(b"no", status=500), FailureKind.STATUS, "HTTP status 500"),
        (answer(b"no", status=404), FailureKind.STATUS, "HTTP status 404"),
        (answer(b"", status=302, Location="/login"), FailureKind.STATUS, "HTTP status 302, to /login"),
        (answer(b"<html><body>Sign in</body></html>"), FailureKind.MALFORMED, "HTML"),
        (answer(b""), FailureKind.MISSING, "llamacpp:requests_processing"),
        (answer(bytes(range(256)) * 200), FailureKind.MISSING, "llamacpp:requests_processing"),
        (answer(LLAMACPP_PAGE[:-2]), FailureKind.MALFORMED, "llamacpp:requests_deferred"),
        (answer(LLAMACPP_PAGE.replace(b"deferred 9", b"deferred -1")), FailureKind.MISSING, "cannot be true"),
        (answer(b"\x1f\x8b no gzip", Content_Encoding="gzip"), FailureKind.MALFORMED, "gzip"),
    ],
    ids=["500", "404", "redirect", "html", "empty", "binary", "half a line", "minus one", "bad gzip"],
)
async def test_answers_that_are_no_metrics(engine: Engine, reply: Handler, kind: FailureKind, said: str) -> None:
    engine.full = reply
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
        assert failure.kind is kind
        assert said in failure.message
        assert not scraped.samples
        engine.full = answer(LLAMACPP_PAGE)
        assert (await scraped.sampled()).waiting == 9
    assert {request.path for request in engine.requests} == {"/metrics"}  # nobody followed the redirect


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", FailureKind.REFUSED),
        (b"SSH-2.0-OpenSSH_9.2\r\n", FailureKind.MALFORMED),
        (HEAD + b"Content-Length: 500\r\n\r\n" + LLAMACPP_PAGE[:60], FailureKind.MALFORMED),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\nllama", FailureKind.MALFORMED),
        # without a length the end of the connection is the end of the page: only the open line tells
        (HEAD + b"Connection: close\r\n\r\n" + LLAMACPP_PAGE[:-2], FailureKind.MALFORMED),
    ],
    ids=["closed without an answer", "not HTTP", "shorter than its length", "half a chunk", "cut off"],
)
async def test_answers_that_break_off(reply: bytes, kind: FailureKind) -> None:
    async with raw_server(reply) as url, scraping(url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
    assert failure.kind is kind, failure.message


async def test_a_page_of_fifty_megabytes_is_left_unread(engine: Engine) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        sent = 0
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                await response.write(b"x 1\n" * 250_000)
                sent += 1
        return response

    engine.full = flood
    async with scraping(engine.url, dialect=LLAMACPP, interval_s=NEVER_S) as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.TOO_LARGE
    assert failure.message == "the page has more than 4194304 bytes"
    assert sent < 40  # megabytes: 4 read, the rest of it in socket buffers


async def test_a_small_page_that_unpacks_to_a_large_one_is_too_large(engine: Engine) -> None:
    engine.full = answer(gzip.compress(b"x 1\n" * 2_000_000), Content_Encoding="gzip")
    async with scraping(engine.url, dialect=LLAMACPP, interval_s=NEVER_S) as scraped:
        assert (await scraped.failed()).kind is FailureKind.TOO_LARGE


async def test_gzip_is_not_asked_for_and_is_understood(engine: Engine) -> None:
    engine.full = answer(gzip.compress(LLAMACPP_PAGE), Content_Encoding="gzip")
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        assert (await scraped.sampled()).waiting == 9
    assert engine.requests[0].headers["Accept-Encoding"] == "identity"


async def test_impossible_values_are_counted_whether_or_not_there_is_a_sample(engine: Engine) -> None:
    engine.full = answer(LLAMACPP_PAGE.replace(b"deferred 9", b"deferred -1"))
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        await scraped.failed()
        assert scraped.scraper.ignored["waiting"] >= 1
        engine.full = answer(LLAMACPP_PAGE.replace(b"prompt_tokens_total 120", b"prompt_tokens_total NaN"))
        assert (await scraped.sampled()).prompt_tokens is None
    assert scraped.scraper.ignored["prompt_tokens"] >= 1


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://h/", "http://", "/metrics"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="engine-a"):
        Scraper(
            "engine-a",
            url,
            interval_s=1.0,
            idle_interval_s=1.0,
            timeout_s=1.0,
            on_sample=lambda _: None,
            on_failure=lambda _: None,
            busy=lambda: True,
            clock=lambda: 0.0,
        )


# answers that take long, or much ------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def drip(head: bytes, piece: bytes, every_s: float) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """Sends a head at once, then piece after piece without end. Its URL, and what is set once the client has gone."""
    gone = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head)
            while not reader.at_eof():
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(every_s)
        writer.close()
        gone.set()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", gone
    finally:
        server.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (HEAD + b"Content-Length: 2000\r\n\r\n", b"#"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n#\r\n"),
    ],
    ids=["of the head", "of a page with a length", "of chunks without end"],
)
async def test_byte_after_byte_is_no_page(head: bytes, piece: bytes) -> None:
    # a byte at a time may come at any rate; what counts is the time for all of it
    async with drip(head, piece, 0.01) as (url, gone), scraping(url, dialect=LLAMACPP, timeout_s=0.2) as scraped:
        failure = await scraped.failed()
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()  # the connection is not kept
    assert failure.kind is FailureKind.TIMEOUT
    assert failure.message == "no page within 0.2 s"


async def test_chunks_without_end_are_read_up_to_the_largest_page() -> None:
    piece = b"10000\r\n" + b"x 1\n" * 0x4000 + b"\r\n"
    async with (
        drip(HEAD + b"Transfer-Encoding: chunked\r\n\r\n", piece, 0.0) as (url, gone),
        scraping(url, dialect=LLAMACPP, interval_s=NEVER_S) as scraped,
    ):
        failure = await scraped.failed()
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()
    assert failure.kind is FailureKind.TOO_LARGE


@pytest.mark.slow
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_bomb_does_not_fill_memory(engine: Engine, coding: str) -> None:
    packing = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | (16 if coding == "gzip" else 0))
    bomb = b"".join(packing.compress(bytes(2**20)) for _ in range(64)) + packing.flush()
    assert len(bomb) < 100_000  # unpacked: 64 MiB
    engine.full = answer(bomb, Content_Encoding=coding)
    async with scraping(engine.url, dialect=LLAMACPP, interval_s=NEVER_S) as scraped:
        tracemalloc.start()
        try:
            failure = await scraped.failed()
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert failure.kind is FailureKind.TOO_LARGE
    assert most < 16 * 2**20, f"{most:,} bytes at a time"  # the largest page, twice, and what a connection needs


@pytest.mark.parametrize(
    ("body", "coding", "said"),
    [
        (gzip.compress(LLAMACPP_PAGE)[:-12], "gzip", "it is cut off"),
        (LLAMACPP_PAGE, "br", "compressed with 'br'"),
        (LLAMACPP_PAGE, "gzip", "cannot be unpacked as gzip"),
    ],
)
async def test_compression_that_is_not_what_it_says(engine: Engine, body: bytes, coding: str, said: str) -> None:
    engine.full = answer(body, Content_Encoding=coding)
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.MALFORMED
    assert said in failure.message


@pytest.mark.parametrize("content_type", ["text/html", "application/octet-stream", "application/json", ""])
async def test_the_content_type_is_not_looked_at(engine: Engine, content_type: str) -> None:
    async def typed(_: web.Request) -> web.StreamResponse:
        return web.Response(body=LLAMACPP_PAGE, headers={"Content-Type": content_type})

    engine.full = typed
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        assert (await scraped.sampled()).waiting == 9


@pytest.mark.parametrize(
    ("body", "said"),
    [(b"", "(the page is empty)"), (b" \n\n", "(the page is empty)"), (bytes(1000), "(it is binary)")],
)
async def test_an_empty_page_is_called_so(engine: Engine, body: bytes, said: str) -> None:
    engine.full = answer(body)
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.MISSING
    assert failure.message.endswith(said)


async def test_a_head_without_measure_is_no_answer() -> None:
    reply = HEAD + b"X-Long: " + b"x" * 200_000 + b"\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(reply) as url, scraping(url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.MALFORMED
    assert len(failure.message) <= 400


async def test_a_kept_connection_that_the_engine_is_just_closing_is_no_failure() -> None:
    """As HTTP servers do with a connection that was not used for some seconds: the next request meets its end."""
    connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD + f"Content-Length: {len(LLAMACPP_PAGE)}\r\n\r\n".encode() + LLAMACPP_PAGE)
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server, scraping(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", dialect=LLAMACPP) as scraped:
        await scraped.sampled(5)
    assert not scraped.failures
    assert connections >= 5
