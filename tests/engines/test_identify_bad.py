"""Answers that are none: nothing of it raises, the engine is served all the same, and the warning says why."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.core.priority import PriorityWay
from extproc.engines.identify import EngineFacts, identify, mismatch, way_of
from extproc.engines.identify.question import MAX_ANSWER_BYTES, Questions

PATIENCE_S = 20.0
WORDS = ("auto", "vllm", "sglang", "tgi", "llamacpp", "tensorrt_llm", "triton", "dynamo")
NONE = PriorityWay()

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def ask(url: str, engine: str = "vllm", timeout_s: float = PATIENCE_S) -> EngineFacts:
    async with aiohttp.ClientSession() as session:
        return await identify(url, session, engine=engine, model=None, timeout_s=timeout_s)


def always(body: bytes, status: int = 200, content_type: str = "application/json", **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, status=status, content_type=content_type, headers=named)

    return handle


BAD = {
    "html": (always(b"<html><body>Welcome</body></html>", content_type="text/html"), "no JSON"),
    "empty": (always(b""), "no JSON"),
    "half": (always(b'{"version": "0.3'), "no JSON"),
    "binary": (always(bytes(range(256))), "no JSON"),
    "deep": (always(b"[" * 100_000), "no JSON"),
    "null": (always(b"null"), "no JSON"),
    "list": (always(b"[1, 2]"), "no version"),
    "number": (always(b"7"), "no version"),
    "other shape": (always(b'{"data": 7, "version": {"major": 0}}'), "no version"),
    "wrong types": (always(b'{"data": [{"id": 7, "owned_by": []}, 3], "version": 0.32}'), "no version"),
    "blank": (always(b'{"version": " "}'), "no version"),
    "redirect": (
        always(b"", 307, Location="http://203.0.113.1/version"),
        "to http://203.0.113.1/version; not followed",
    ),
    "no place": (always(b"", 302), "not followed"),
    "unauthorized": (always(b'{"error": "Unauthorized"}', 401), "API key"),
    "forbidden": (always(b"", 403), "API key"),
    "broken": (always(b"", 500), "HTTP status 500"),
    "gzip": (always(gzip.compress(b'{"version": "0.32.0"}'), Content_Encoding="gzip"), "compressed"),
    "not gzip": (always(b'{"version": "0.32.0"}', Content_Encoding="gzip"), "compressed"),
}


@pytest.mark.parametrize("case", BAD)
async def test_a_bad_answer_is_named(case: str) -> None:
    handler, why = BAD[case]
    async with serving(handler) as url:
        facts = await ask(url)
        assert (facts.engine, facts.version) == ("vllm", None)
        assert why in str(facts.warning)
        # the header is harmless, the body is not
        assert way_of("auto", "auto", facts) == PriorityWay(header=True)


@pytest.mark.parametrize("case", BAD)
async def test_no_engine_is_found_or_told_a_priority_by_body_in_bad_answers(case: str) -> None:
    handler, _ = BAD[case]
    async with serving(handler) as url:
        for engine in WORDS:
            facts = await ask(url, engine)
            assert facts.engine == (None if engine == "auto" else engine)
            assert not facts.way.body
            assert way_of("auto", "auto", facts) == (PriorityWay(header=True) if engine == "vllm" else NONE)
            # only an answer could have made these tell a priority
            assert (facts.warning is not None) == (engine in ("auto", "vllm", "sglang"))
            assert mismatch("off", "auto", facts) is None


async def test_of_a_large_answer_only_the_start_is_read() -> None:
    wrote = 0
    ended = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal wrote
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        try:
            await response.write(b'{"version": "')
            for _ in range(50):
                await response.write(b"x" * 1_048_576)
                wrote += 1_048_576
        except ConnectionError:
            pass
        finally:
            ended.set()
        return response

    async with serving(handle) as url:
        facts = await ask(url, "tgi")
        async with aiohttp.ClientSession() as session:
            answer = await Questions(session, url, PATIENCE_S).get("/version")
        assert answer.problem == f"an answer of more than {MAX_ANSWER_BYTES} bytes"
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()
    assert facts.version is None
    assert wrote < 2 * 25 * 1_048_576  # of 2 * 50: what is read, and what the sockets hold


async def test_a_server_that_sends_a_byte_now_and_then_is_given_up() -> None:
    gone = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(b" ")
                await asyncio.sleep(0.01)
        finally:
            gone.set()

    async with serving(handle) as url:
        facts = await ask(url, timeout_s=0.1)
        assert "no answer within 0.1 s" in str(facts.warning)
        async with asyncio.timeout(PATIENCE_S):
            await gone.wait()


async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    facts = await ask(f"http://127.0.0.1:{port}", "auto")
    assert (facts.engine, facts.way) == (None, NONE)
    assert "Cannot connect" in str(facts.warning)


async def test_one_that_does_not_answer_is_asked_once() -> None:
    asked = 0

    async def handle(_: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handle) as url:
        facts = await ask(url, "auto", timeout_s=0.1)
    assert (facts.engine, asked) == (None, 1)
    assert "no answer within 0.1 s" in str(facts.warning)


async def test_a_connection_that_is_closed_without_an_answer() -> None:
    async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        for engine in WORDS:
            facts = await ask(f"http://127.0.0.1:{port}", engine)
            assert not facts.way.body


@pytest.mark.parametrize("url", ["http://", "nonsense", "ftp://127.0.0.1:1", "http://127.0.0.1:99999", "http://a b:1"])
async def test_an_address_that_is_none(url: str) -> None:
    for engine in ("auto", "vllm"):
        assert (await ask(url, engine)).warning is not None


async def test_a_closed_session() -> None:
    session = aiohttp.ClientSession()
    await session.close()
    facts = await identify("http://127.0.0.1:1", session, engine="vllm", model=None, timeout_s=1.0)
    assert facts.way == NONE
    assert "Session is closed" in str(facts.warning)


async def test_what_an_engine_says_cannot_spoil_a_log() -> None:
    async with serving(always(b'{"version": "0.32.0\\n\\u001b[31m' + b"x" * 10_000 + b'"}')) as url:
        facts = await ask(url)
    assert facts.version is not None
    assert len(facts.version) <= 200
    assert facts.version.isprintable()
    assert facts.told.isprintable()


async def test_cancelling_ends_it() -> None:
    came = asyncio.Event()

    async def handle(_: web.Request) -> web.StreamResponse:
        came.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(handle) as url:
        task = asyncio.create_task(ask(url))
        async with asyncio.timeout(PATIENCE_S):
            await came.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
