"""The load client against a small upstream: what it sends, what it times, and what it calls an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web

from extproc.cli.ports import free_ports
from extproc.sim.load import Outcome, Shot, run

TOKEN = b'data: {"choices":[{"text":" a"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"


class Upstream:
    """Answers as the tenant's name says."""

    def __init__(self) -> None:
        self.url = ""
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.open = 0
        self.most_open = 0
        self.all_there = asyncio.Event()
        self.expected = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(orjson.loads(await request.read()))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        how = request.headers["x-tenant"]
        if how == "refused":
            return web.Response(status=429, text="try later", headers={"x-fairlane-queue-ms": "1500"})
        if how == "broken":
            return web.Response(status=500, body=b"\xff" * 500)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        if how in ("held", "odd"):
            response.headers["x-fairlane-queue-ms"] = "250" if how == "held" else "soon"
        await response.prepare(request)
        await response.write(TOKEN)
        if how == "shed":
            await response.write(b'data: {"error":{"message":"overloaded","code":503}}\n\n')
            return response
        if how == "cut":
            assert request.transport is not None
            request.transport.abort()
            return response
        if how == "short":
            return response
        if how == "hangs":
            await asyncio.Event().wait()
        if how == "together":
            self.open += 1
            if self.open == self.expected:
                self.all_there.set()
            await self.all_there.wait()
        await response.write(b": a comment\n\nevent: x\n" + TOKEN[:10])
        await response.write(TOKEN[10:] + USAGE + DONE)
        return response


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    made = Upstream()
    app = web.Application()
    app.router.add_post("/v1/completions", made.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield made
    await runner.cleanup()


async def one(url: str, tenant: str, *, timeout_s: float = 5.0, at_s: float = 0.0) -> Outcome:
    (outcome,) = await run(url, [Shot(tenant, at_s, 3, 2)], model="m", timeout_s=timeout_s)
    return outcome


async def test_what_is_sent(upstream: Upstream) -> None:
    await one(upstream.url, "team-a")
    assert upstream.bodies == [
        {
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_tokens": 2,
            "ignore_eos": True,
            "prompt": "abc abc abc ",
        }
    ]
    assert upstream.headers[0]["content-type"] == "application/json"
    assert upstream.headers[0]["x-tenant"] == "team-a"


async def test_each_token_is_timed(upstream: Upstream) -> None:
    outcome = await one(upstream.url, "team-a")
    assert outcome.error is None
    assert len(outcome.token_s) == 2  # neither the usage nor the end is one
    assert 0.0 <= outcome.sent_s <= outcome.token_s[0] <= outcome.token_s[1] <= outcome.ended_s < 5.0
    assert outcome.ttft_s == outcome.token_s[0] - outcome.sent_s
    assert outcome.queue_s is None


async def test_how_long_it_was_held_is_read_from_the_header(upstream: Upstream) -> None:
    assert (await one(upstream.url, "held")).queue_s == 0.25
    assert (await one(upstream.url, "odd")).queue_s is None
    assert (await one(upstream.url, "refused")).queue_s == 1.5


async def test_shots_leave_at_their_time_whatever_became_of_those_before(upstream: Upstream) -> None:
    upstream.expected = 3
    shots = [Shot("together", 0.02 * n, 1, 1) for n in (0, 2, 1)]
    outcomes = await run(upstream.url, shots, model="m", timeout_s=5.0)
    assert [o.shot for o in outcomes] == shots
    assert [o.error for o in outcomes] == [None] * 3  # none waited for the answer of another
    assert all(o.sent_s >= o.shot.at_s for o in outcomes)
    assert outcomes[0].sent_s < outcomes[2].sent_s < outcomes[1].sent_s


@pytest.mark.parametrize(
    ("how", "tokens", "error"),
    [
        ("refused", 0, "HTTP 429: try later"),
        ("broken", 0, "HTTP 500: " + "�" * 200),
        ("shed", 1, '{"error":{"message":"overloaded","code":503}}'),
        ("short", 1, "the answer was cut off"),
    ],
)
async def test_errors_are_recorded(upstream: Upstream, how: str, tokens: int, error: str) -> None:
    outcome = await one(upstream.url, how)
    assert (len(outcome.token_s), outcome.error) == (tokens, error)
    assert outcome.ended_s > 0
    assert (outcome.ttft_s is None) == (tokens == 0)


async def test_a_stream_that_is_cut(upstream: Upstream) -> None:
    outcome = await one(upstream.url, "cut")
    assert outcome.error is not None
    assert outcome.error.startswith("ClientPayloadError: ")
    assert outcome.ended_s > 0


@pytest.mark.slow
async def test_a_stream_that_hangs(upstream: Upstream) -> None:
    outcome = await one(upstream.url, "hangs", timeout_s=0.4)
    assert outcome.error is not None
    assert "TimeoutError" in outcome.error
    assert len(outcome.token_s) == 1
    assert outcome.ended_s >= 0.4


async def test_a_connection_that_is_refused() -> None:
    outcome = await one(f"http://127.0.0.1:{free_ports(1)[0]}", "team-a")
    assert outcome.error is not None
    assert outcome.error.startswith("ClientConnectorError: ")
    assert outcome.token_s == []


async def test_one_failure_does_not_end_the_others(upstream: Upstream) -> None:
    shots = [Shot(how, 0.0, 1, 1) for how in ("broken", "cut", "team-a", "shed")]
    outcomes = await run(upstream.url, shots, model="m", timeout_s=5.0)
    assert [o.error is None for o in outcomes] == [False, False, True, False]
