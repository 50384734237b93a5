"""Whether an engine still makes tokens, asked of small HTTP servers that answer as engines do (and of one that is
silent, as a hung one is)."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from extproc.engines.one_token import ask_for_a_token

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def ask(handler: Handler, **changes: Any) -> tuple[str | None, list[tuple[str, Any]]]:
    """What it says, and what the engine was asked."""
    asked: list[tuple[str, Any]] = []

    async def take(request: web.Request) -> web.StreamResponse:
        asked.append((request.path, json.loads(await request.read())))
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", take)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        url = str(server.make_url(""))
        return await ask_for_a_token(url, session, **({"model": "m", "timeout_s": 5.0} | changes)), asked


def answers(status: int, text: str = "{}") -> Handler:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    return handler


async def test_an_engine_that_answers_is_well() -> None:
    told, asked = await ask(answers(200, '{"choices": []}'))
    assert told is None
    assert asked == [("/v1/completions", {"prompt": "a", "max_tokens": 1, "model": "m"})]


async def test_without_a_name_the_engine_takes_its_own_model() -> None:
    _, asked = await ask(answers(200), model=None)
    assert asked == [("/v1/completions", {"prompt": "a", "max_tokens": 1})]


async def test_a_pooling_model_is_asked_for_an_embedding() -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.path == "/v1/embeddings" else 404)

    told, asked = await ask(handler)
    assert told is None
    assert asked[1] == ("/v1/embeddings", {"input": "a", "model": "m"})


async def test_silence_is_told() -> None:
    async def silent(_: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    told, asked = await ask(silent, timeout_s=0.05)
    assert told == "no token within 0.05 s"
    assert len(asked) == 1


async def test_a_key_that_is_missing_is_told_with_the_cure() -> None:
    told, _ = await ask(answers(401))
    assert told is not None
    assert told.startswith("/v1/completions answered 401: it wants an API key")
    assert told.endswith("set `metrics.token_file` of the pool")


async def test_a_server_s_fault_is_told_and_no_other_way_is_tried() -> None:
    told, asked = await ask(answers(500))
    assert told == "/v1/completions answered 500"
    assert len(asked) == 1


async def test_one_that_knows_neither_way_is_told() -> None:
    told, asked = await ask(answers(404))
    assert told == "/v1/embeddings answered 404"
    assert len(asked) == 2


async def test_redirects_are_not_followed() -> None:
    async def away(_: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect("http://127.0.0.1:1/")

    told, _ = await ask(away)
    assert told == "/v1/completions answered 307"


async def test_nobody_there_is_told() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # not listening: connections are refused
        async with aiohttp.ClientSession() as session:
            told = await ask_for_a_token(
                f"http://127.0.0.1:{held.getsockname()[1]}", session, model=None, timeout_s=5.0
            )
    assert told is not None
    assert told.startswith("ClientConnectorError")
