"""One of three engines fails everything at once, and its page is as good as any: it would always be the least loaded
one. The bad engine is a small HTTP server; the others are simulated."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from choice_case import FAST, METRICS, Engine, traffic
from rig import Rig, running

from extproc.cli.ports import HostPort

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

PAGE = "vllm:num_requests_running 0\nvllm:num_requests_waiting 0\nvllm:generation_tokens_total 0\n"


class Failing:
    """Answers 500, or breaks the connection, while `bad`; else it answers."""

    def __init__(self, *, breaks: bool) -> None:
        self.breaks = breaks
        self.bad = True
        app = web.Application()
        app.router.add_get("/metrics", self._page)
        app.router.add_get("/metrics/", self._page)
        app.router.add_post("/v1/chat/completions", self._chat)
        self.server = TestServer(app)

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=PAGE)

    async def _chat(self, request: web.Request) -> web.Response:
        await request.read()
        if not self.bad:
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}})
        if self.breaks:
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(0)
        return web.json_response({"error": {"message": "EngineDeadError", "code": 500}}, status=500)


@contextlib.asynccontextmanager
async def with_a_bad_one(directory: Path, bad: Failing) -> AsyncIterator[Rig]:
    await bad.server.start_server()
    good = [Engine(number, FAST, directory) for number in (1, 2)]
    try:
        for engine in good:
            await engine.start()
        at = [HostPort("127.0.0.1", bad.server.port or 0), *(engine.at for engine in good)]
        async with running(directory, engines=at, pool={"metrics": METRICS}) as rig:
            yield rig
    finally:
        for engine in good:
            engine.kill()
        await bad.server.close()


@pytest.mark.parametrize("breaks", [False, True], ids=["answers 500", "breaks connections"])
async def test_it_is_left_alone_and_taken_again(breaks: bool, tmp_path: Path) -> None:
    bad = Failing(breaks=breaks)
    async with with_a_bad_one(tmp_path, bad) as rig:
        async with traffic(rig, "steady") as flowing:
            await flowing.more(400)
            failed = len(flowing.answers) - flowing.statuses[200]
            assert 0 < failed < 60  # by load alone it would get two thirds of all
            assert await rig.metric("fairlane_endpoint_failed_requests_total") == pytest.approx(failed, abs=2)
            bad.bad = False
            served = f"127.0.0.1:{bad.server.port}"
            before = len(flowing.answers)
            while not any(a.headers.get("x-fairlane-endpoint") == served for a in flowing.answers[before:]):
                await flowing.more(20)
        await rig.books_closed()
