"""What the simulated engine refuses, in which order it works, and what happens when clients leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from sim_client import Sim, Start

from extproc.sim.engine import Policy
from extproc.sim.server import MAX_BODY_BYTES

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
GENERATING = (CHAT, COMPLETIONS, MESSAGES, RESPONSES)
HELLO = {"messages": [{"role": "user", "content": "hello there"}]}


class TestRefusals:
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"{",
            b"[]",
            b"null",
            b"[" * 10_000 + b"]" * 10_000,
            b'{"prompt":' * 10_000 + b"1" + b"}" * 10_000,
            b'{"prompt":' + b'{"a":' * 900 + b"1" + b"}" * 901,
            b'{"prompt":"a","messages":NaN}',
            b'{"prompt":"a","max_tokens":1e999}',
            b'{"prompt":"\xff"}',
            b'{"prompt":"\\ud800"}',
            b'{"prompt":7,"messages":7,"input":7,"max_tokens":1}',
            b'{"prompt":[],"messages":[],"input":[],"max_tokens":1}',
            b'{"prompt":"","messages":[7],"input":[7],"max_tokens":1}',
            b'{"prompt":["a",7],"messages":[{"content":7}],"input":[{"content":[7]}],"max_tokens":1}',
            b'{"stream":"perhaps"}',
            b'{"model":7}',
        ],
        ids=lambda body: body[:24].decode(errors="replace"),
    )
    async def test_bodies_that_make_no_sense(self, sim: Sim, body: bytes) -> None:
        for path in GENERATING:
            status, answer = await sim.post(path, body)
            assert status == 400, path
            assert set(answer["error"]) >= {"message", "type"}
            assert len(answer["error"]["message"]) < 1000

    async def test_the_error_object(self, sim: Sim) -> None:
        _, answer = await sim.complete({"prompt": "a", "max_tokens": 99_999})
        error = answer["error"]
        assert (error["type"], error["param"], error["code"]) == ("BadRequestError", "max_tokens", 400)
        assert "maximum context length is 32768 tokens" in error["message"]

    async def test_messages_errors_have_no_code(self, sim: Sim) -> None:
        status, answer = await sim.post(MESSAGES, {**HELLO, "max_tokens": 99_999})
        assert status == 400
        assert answer["type"] == "error"
        assert set(answer["error"]) == {"type", "message"}

    @pytest.mark.parametrize("kind", ["text/plain", "application/jsonx", "", "multipart/form-data"])
    async def test_wrong_content_type(self, sim: Sim, kind: str) -> None:
        status, answer = await sim.post(COMPLETIONS, {"prompt": "a"}, headers={"Content-Type": kind})
        assert status == 400
        assert "Unsupported Media Type" in answer["error"]["message"]

    async def test_content_type_with_charset_is_right(self, sim: Sim) -> None:
        headers = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert (await sim.complete({"prompt": "a"}, headers=headers))[0] == 200

    async def test_unknown_model(self, sim: Sim) -> None:
        status, answer = await sim.complete({"prompt": "a", "model": "other"})
        assert (status, answer["error"]["type"], answer["error"]["code"]) == (404, "NotFoundError", 404)
        assert (await sim.complete({"prompt": "a", "model": None}))[0] == 200

    @pytest.mark.parametrize(
        "body",
        [
            {"prompt": "a" * 200},
            {"prompt": "a", "max_tokens": 50},
            {"prompt": "a", "max_tokens": 0},
            {"prompt": "a", "max_tokens": -5},
            {"prompt": "a", "max_tokens": 10**25},
            {"prompt": "a", "max_tokens": 1.5},
            {"prompt": "a", "max_tokens": "many"},
            {"prompt": "a", "n": 0},
            {"prompt": "a", "n": 10**9},
            {"prompt": "a", "n": None},
            {"prompt": "a", "stream": "perhaps"},
            {"prompt": "a", "stream_options": {"include_usage": True}},
            {"prompt": "a", "stream": True, "stream_options": 7},
            {"prompt": ["a", ""]},
            {"prompt": ["a"] * 20_000},
        ],
        ids=str,
    )
    async def test_limits(self, start: Start, body: dict[str, Any]) -> None:
        engine = await start(max_model_len=50)
        # not orjson: it writes no integers beyond 64 bits
        status, answer = await engine.complete(json.dumps(body).encode())
        assert (status, answer["error"]["code"]) == (400, 400)

    async def test_a_large_body_is_read(self, sim: Sim) -> None:
        size = 20 * 2**20
        status, answer = await sim.complete(b'{"prompt":"' + b"a" * size + b'"}')
        assert status == 400
        assert f"{size // 4} input tokens" in answer["error"]["message"]

    async def test_a_body_over_the_limit(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        assert MAX_BODY_BYTES == 64 * 2**20
        monkeypatch.setattr("extproc.sim.server.MAX_BODY_BYTES", 1000)
        engine = await start()
        body = b'{"prompt":"a"}'
        assert (await engine.complete(body + b" " * (900 - len(body))))[0] == 200
        status, answer = await engine.complete(body + b" " * (1100 - len(body)))
        assert (status, answer["error"]["code"]) == (413, 413)

    @pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nope", 404), ("GET", COMPLETIONS, 405)])
    async def test_unknown_routes(self, sim: Sim, method: str, path: str, status: int) -> None:
        async with sim.http.request(method, sim.url + path) as answer:
            assert answer.status == status
            assert set(await answer.json()) == {"detail"}

    async def test_a_defect_shows_no_stack(self, sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_args: object) -> None:
            raise RuntimeError("secret")

        monkeypatch.setattr(sim.server.driver, "submit", broken)
        status, answer = await sim.complete({"prompt": "a"})
        assert (status, answer["error"]["type"], answer["error"]["message"]) == (500, "InternalServerError", "")


class TestPriority:
    async def used(self, sim: Sim, body: dict[str, Any], path: str = COMPLETIONS, **headers: str) -> tuple[int, Any]:
        status, _ = await sim.post(
            path, {"prompt": "a", "input": "a", **HELLO, "max_tokens": 1, **body}, headers=headers
        )
        return status, (await sim.requests())[-1]["priority"]

    @pytest.mark.parametrize(
        ("value", "priority"), [(7, 7), ("7", 7), (" -7 ", -7), (1.0, 1), (True, 1), (2**63 - 1, 2**63 - 1)]
    )
    async def test_body_values_that_are_integers(self, sim: Sim, value: Any, priority: int) -> None:
        assert await self.used(sim, {"priority": value}) == (200, priority)

    @pytest.mark.parametrize("value", ["high", 1.5, None, [], {}, 2**63, "9" * 5000])
    async def test_body_values_that_are_none(self, sim: Sim, value: Any) -> None:
        status, answer = await sim.complete({"prompt": "a", "priority": value})
        assert status == 400
        assert answer["error"]["param"] == "body.priority"
        assert answer["error"]["type"] == "Bad Request"

    @pytest.mark.parametrize("path", GENERATING)
    async def test_the_header_wins(self, sim: Sim, path: str) -> None:
        assert await self.used(sim, {"priority": 5}, path, **{"x-vllm-priority": "-3"}) == (200, -3)

    async def test_messages_do_not_know_the_field(self, sim: Sim) -> None:
        assert await self.used(sim, {"priority": "high"}, MESSAGES) == (200, 0)

    @pytest.mark.parametrize("header", ["high", "1.5", "", "9" * 5000])
    async def test_a_header_that_is_no_integer_is_absent(self, sim: Sim, header: str) -> None:
        assert await self.used(sim, {"priority": 5}, **{"X-Vllm-Priority": header}) == (200, 5)

    @pytest.mark.parametrize("header", [str(2**63), str(-(2**63) - 1)])
    async def test_a_header_beyond_64_bits_is_a_server_error(self, sim: Sim, header: str) -> None:
        status, answer = await sim.complete({"prompt": "a"}, headers={"X-Vllm-Priority": header})
        assert (status, answer["error"]["type"], answer["error"]["message"]) == (500, "InternalServerError", "")
        assert (await sim.complete({"prompt": "a"}))[0] == 200

    @pytest.mark.parametrize(
        ("policy", "expected"), [("priority", ["m100", "m3", "p0", "p5"]), ("fcfs", ["p0", "p5", "m100", "m3"])]
    )
    async def test_order(self, start: Start, policy: str, expected: list[str]) -> None:
        engine = await start(max_num_seqs=1, policy=Policy(policy))
        await engine.faults(hang=True)
        done: list[str] = []

        async def send(name: str, priority: int) -> None:
            await engine.complete({"prompt": "a", "max_tokens": 3, "priority": priority})
            done.append(name)

        tasks = []
        for number, (name, priority) in enumerate((("p0", 0), ("p5", 5), ("m100", -100), ("m3", -3)), 1):
            tasks.append(asyncio.ensure_future(send(name, priority)))
            await engine.until(lambda n=number: engine.counts(n))
        await engine.faults()
        await asyncio.gather(*tasks)
        ends = sorted(await engine.requests(), key=lambda r: r["ended_at"])
        assert done == expected
        assert len(ends) == 4


class TestLeaving:
    @pytest.mark.parametrize("stream", [True, False])
    async def test_a_running_request(self, sim: Sim, stream: bool) -> None:
        task = asyncio.ensure_future(
            sim.http.post(sim.url + COMPLETIONS, json={"prompt": "a", "max_tokens": 30_000, "stream": stream})
        )
        await sim.until(lambda: sim.shows("vllm:num_requests_running", 1))
        if stream:
            (await task).close()
        else:
            task.cancel()
        await sim.until(lambda: sim.shows("vllm:num_requests_running", 0))
        (request,) = await sim.requests()
        assert request["state"] == "aborted"
        assert 0 < request["tokens"] < 30_000
        page = await sim.metrics()
        assert page["vllm:request_success_total", "abort"] == 0
        assert page["vllm:request_success_total", "length"] == 0
        assert page["vllm:e2e_request_latency_seconds_count", ""] == 0
        assert sim.server.engine.next_step_at() is None

    async def test_a_waiting_request(self, start: Start) -> None:
        engine = await start(max_num_seqs=1)
        first = asyncio.ensure_future(engine.complete({"prompt": "a", "max_tokens": 30_000}))
        await engine.until(lambda: engine.shows("vllm:num_requests_running", 1))
        second = asyncio.ensure_future(engine.complete({"prompt": "b"}))
        await engine.until(lambda: engine.shows("vllm:num_requests_waiting", 1))
        second.cancel()
        await engine.until(lambda: engine.shows("vllm:num_requests_waiting", 0))
        assert [r["state"] for r in await engine.requests()] == ["running", "aborted"]
        first.cancel()
        await engine.until(lambda: engine.shows("vllm:num_requests_running", 0))

    async def test_before_the_answer_has_begun(self, sim: Sim, caplog: pytest.LogCaptureFixture) -> None:
        body = b'{"prompt":"a","max_tokens":30000,"stream":true}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        length = b"Content-Length: %d\r\n\r\n" % len(body)
        host, port = sim.url.removeprefix("http://").split(":")
        for _ in range(30):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + length + body)
            await writer.drain()
            writer.transport.abort()

        async def all_gone() -> bool:
            return all(r["state"] == "aborted" for r in await sim.requests()) and not sim.server.engine.unfinished

        await sim.until(all_gone)
        assert caplog.records == []

    async def test_one_who_leaves_disturbs_nobody(self, sim: Sim) -> None:
        async def leave() -> None:
            timeout = aiohttp.ClientTimeout(total=0.02)
            await sim.complete({"prompt": "b", "max_tokens": 20_000}, timeout=timeout)

        stay = sim.complete({"prompt": "a", "max_tokens": 60})
        results = await asyncio.gather(stay, *(leave() for _ in range(5)), return_exceptions=True)
        status, answer = results[0]  # type: ignore[misc]
        assert (status, answer["usage"]["completion_tokens"]) == (200, 60)
        assert all(isinstance(r, TimeoutError) for r in results[1:])


class TestShedding:
    async def test_status(self, start: Start) -> None:
        engine = await start(max_num_queued_reqs=3)
        await engine.faults(hang=True)
        held = asyncio.ensure_future(engine.complete({"prompt": "a", "n": 2}))
        await engine.until(lambda: engine.counts(1))
        # 2 + 2 > 3, but 2 + 1 fits
        status, answer = await engine.complete({"prompt": "b", "n": 2})
        error = answer["error"]
        assert (status, error["code"], error["type"]) == (503, 503, "Service Unavailable")
        assert error["message"].startswith("The engine is currently busy")
        fits = asyncio.ensure_future(engine.complete({"prompt": "c"}))
        await engine.until(lambda: engine.counts(2))
        assert (await engine.metrics())["vllm:admission_rejections_total", "max_num_queued_reqs"] == 1
        await engine.faults()
        assert [(await task)[0] for task in (held, fits)] == [200, 200]
        assert [r["state"] for r in await engine.requests()] == ["finished", "refused", "finished"]

    async def test_in_the_stream(self, start: Start) -> None:
        engine = await start(max_num_queued_reqs=0)
        await engine.faults(shed="stream")
        error, done = await engine.stream(COMPLETIONS, {"prompt": "a"})
        assert '"code":503' in error
        assert done == "[DONE]"
        assert (await engine.complete({"prompt": "a"}))[0] == 503
