"""Answers of the simulated engine: JSON and streams of the four APIs, usage in all its variants."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest
from sim_client import Sim, Start

CHAT, COMPLETIONS, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"
# 11 bytes are 3 tokens; each message costs 4 more
HELLO = {"messages": [{"role": "user", "content": "hello there"}]}
USAGE = {"stream_options": {"include_usage": True}}


def chunks(events: list[str]) -> list[dict[str, Any]]:
    assert events[-1] == "[DONE]"
    return [orjson.loads(event) for event in events[:-1]]


class TestPlain:
    async def test_chat(self, sim: Sim) -> None:
        status, answer = await sim.post(CHAT, {**HELLO, "max_tokens": 5}, headers={"X-Request-Id": "abc"})
        assert status == 200
        assert (answer["id"], answer["object"], answer["model"]) == ("chatcmpl-abc", "chat.completion", "sim-7b")
        (choice,) = answer["choices"]
        assert (choice["index"], choice["finish_reason"]) == (0, "length")
        assert choice["message"]["role"] == "assistant"
        assert len(choice["message"]["content"].split()) == 5
        assert answer["usage"] == {
            "prompt_tokens": 7,
            "total_tokens": 12,
            "completion_tokens": 5,
            "prompt_tokens_details": None,
        }

    async def test_completion(self, sim: Sim) -> None:
        status, answer = await sim.complete({"prompt": "12345", "max_tokens": 3, "model": "sim-7b"})
        assert status == 200
        assert answer["id"].startswith("cmpl-")
        assert answer["object"] == "text_completion"
        assert len(answer["choices"][0]["text"].split()) == 3
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 3)

    async def test_n_times_prompts(self, sim: Sim) -> None:
        _, answer = await sim.complete({"prompt": ["1234", "12345678"], "max_tokens": 2, "n": 3})
        assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3, 4, 5]
        # each prompt counts once, each of six outputs counts
        assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 12)

    @pytest.mark.parametrize(
        ("prompt", "tokens", "choices"),
        [([5, 6, 7], 3, 1), ([[5, 6], [7]], 3, 2), ("äöü", 2, 1)],
        ids=["token ids", "lists of token ids", "UTF-8"],
    )
    async def test_forms_of_a_prompt(self, sim: Sim, prompt: Any, tokens: int, choices: int) -> None:
        _, answer = await sim.complete({"prompt": prompt, "max_tokens": 1})
        assert (answer["usage"]["prompt_tokens"], len(answer["choices"])) == (tokens, choices)

    async def test_content_in_parts(self, sim: Sim) -> None:
        parts = [{"type": "text", "text": "hello "}, {"type": "text", "text": "there"}]
        _, answer = await sim.post(CHAT, {"messages": [{"role": "user", "content": parts}], "max_tokens": 1})
        assert answer["usage"]["prompt_tokens"] == 7

    async def test_the_same_prompt_gives_the_same_answer(self, start: Start) -> None:
        one, other, seeded = await start(), await start(), await start(seed=7)
        texts = []
        for engine in (one, one, other, seeded):
            _, answer = await engine.post(CHAT, {**HELLO, "max_tokens": 8})
            texts.append(answer["choices"][0]["message"]["content"])
        assert texts[0] == texts[1] == texts[2] != texts[3]

    async def test_length_without_a_limit(self, sim: Sim) -> None:
        _, answer = await sim.post(CHAT, HELLO)
        assert 16 <= answer["usage"]["completion_tokens"] <= 256
        assert answer["choices"][0]["finish_reason"] == "stop"
        _, answer = await sim.complete({"prompt": "a"})
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (16, "length")

    async def test_ignore_eos_takes_all_of_the_context(self, start: Start) -> None:
        engine = await start(max_model_len=50)
        _, answer = await engine.post(CHAT, {**HELLO, "ignore_eos": True})
        assert answer["usage"]["total_tokens"] == 50
        assert answer["choices"][0]["finish_reason"] == "length"

    async def test_max_completion_tokens_wins(self, sim: Sim) -> None:
        _, answer = await sim.post(CHAT, {**HELLO, "max_tokens": 9, "max_completion_tokens": 2})
        assert answer["usage"]["completion_tokens"] == 2

    async def test_messages(self, sim: Sim) -> None:
        _, answer = await sim.post(MESSAGES, {**HELLO, "system": "be brief", "max_tokens": 3})
        assert (answer["type"], answer["stop_reason"]) == ("message", "max_tokens")
        assert answer["usage"] == {"input_tokens": 13, "output_tokens": 3}  # 3 + 4 and 2 + 4
        assert len(answer["content"][0]["text"].split()) == 3

    async def test_responses(self, sim: Sim) -> None:
        _, answer = await sim.post(RESPONSES, {"input": "hello there", "max_output_tokens": 3})
        assert (answer["object"], answer["status"]) == ("response", "incomplete")
        usage = answer["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (7, 3, 10)
        assert len(answer["output"][0]["content"][0]["text"].split()) == 3

    async def test_repeated_request_ids_do_not_collide(self, sim: Sim) -> None:
        await sim.faults(hang=True)
        headers = {"X-Request-Id": "same"}
        tasks = [asyncio.ensure_future(sim.complete({"prompt": "a"}, headers=headers)) for _ in range(2)]
        await sim.until(lambda: sim.counts(2))
        await sim.faults()
        assert [answer["id"] for _, answer in await asyncio.gather(*tasks)] == ["cmpl-same"] * 2


class TestStream:
    async def test_chat(self, sim: Sim) -> None:
        _, plain = await sim.post(CHAT, {**HELLO, "max_tokens": 4})
        events = chunks(await sim.stream(CHAT, {**HELLO, "max_tokens": 4}, **{"x-request-id": "abc"}))
        assert {e["id"] for e in events} == {"chatcmpl-abc"}
        assert {e["object"] for e in events} == {"chat.completion.chunk"}
        deltas = [e["choices"][0]["delta"] for e in events]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(d["content"] for d in deltas) == plain["choices"][0]["message"]["content"]
        assert [e["choices"][0]["finish_reason"] for e in events] == [None, None, None, None, "length"]
        assert not any("usage" in e for e in events)

    async def test_completions(self, sim: Sim) -> None:
        events = chunks(await sim.stream(COMPLETIONS, {"prompt": "a", "max_tokens": 2}))
        assert [e["choices"][0]["finish_reason"] for e in events] == [None, "length"]
        assert all(e["choices"][0]["text"].startswith(" ") for e in events)
        assert not any("usage" in e for e in events)

    async def test_usage_on_demand_is_one_chunk_more(self, sim: Sim) -> None:
        events = chunks(await sim.stream(CHAT, {**HELLO, "max_tokens": 4, "n": 2, **USAGE}))
        assert [e for e in events if "usage" in e] == events[-1:]
        assert events[-1]["choices"] == []
        assert events[-1]["usage"] == {"prompt_tokens": 7, "total_tokens": 15, "completion_tokens": 8}
        roles = [e["choices"][0]["index"] for e in events[:2]]
        assert roles == [0, 1]

    async def test_continuous_usage(self, sim: Sim) -> None:
        options = {"include_usage": True, "continuous_usage_stats": True}
        body = {"prompt": ["1234", "12345678"], "max_tokens": 2, "stream_options": options}
        events = chunks(await sim.stream(COMPLETIONS, body))
        seen = [(e["choices"][0]["index"], e["usage"]["total_tokens"]) for e in events[:-1]]
        # prompts of 1 and 2 tokens, each with its own outputs
        assert sorted(seen) == [(0, 2), (0, 3), (1, 3), (1, 4)]
        assert events[-1]["usage"] == {"prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4}

    async def test_continuous_without_include_is_nothing(self, sim: Sim) -> None:
        body = {"prompt": "a", "stream_options": {"continuous_usage_stats": True}}
        assert not any("usage" in e for e in chunks(await sim.stream(COMPLETIONS, body)))

    async def test_forced_usage(self, start: Start) -> None:
        engine = await start(force_usage=True)
        events = chunks(await engine.stream(CHAT, {**HELLO, "max_tokens": 2}))
        assert [e["usage"]["completion_tokens"] for e in events] == [0, 1, 2, 2]
        assert events[-1]["choices"] == []

    async def test_messages(self, sim: Sim) -> None:
        events = [orjson.loads(e) for e in await sim.stream(MESSAGES, {**HELLO, "max_tokens": 2})]
        assert [e["type"] for e in events] == [
            "message_start",
            "content_block_start",
            "content_block_delta",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
        assert events[0]["message"]["usage"] == {"input_tokens": 7, "output_tokens": 0}
        assert events[-2]["usage"] == {"input_tokens": 7, "output_tokens": 2}

    async def test_responses(self, sim: Sim) -> None:
        events = [
            orjson.loads(e) for e in await sim.stream(RESPONSES, {"input": "hello there", "max_output_tokens": 2})
        ]
        assert [e["sequence_number"] for e in events] == list(range(len(events)))
        assert events[0]["response"]["usage"] is None
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["usage"]["output_tokens"] == 2
        text = "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")
        assert text == events[-1]["response"]["output"][0]["content"][0]["text"]

    async def test_an_http_1_0_client_gets_a_stream_without_chunks(self, sim: Sim) -> None:
        host, port = sim.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        body = b'{"prompt":"a","max_tokens":2,"stream":true}'
        head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        answer = await reader.read()
        writer.close()
        payload = answer.split(b"\r\n\r\n", 1)[1]
        assert payload.startswith(b"data: {")
        assert payload.endswith(b"data: [DONE]\n\n")

    async def test_headers_come_before_the_first_token(self, sim: Sim) -> None:
        await sim.faults(hang=True)
        body = {"prompt": "a", "max_tokens": 1, "stream": True}
        async with sim.http.post(sim.url + COMPLETIONS, json=body) as answer:
            assert answer.status == 200
            assert (await sim.requests())[0]["state"] == "waiting"
            await sim.faults()
            assert b"[DONE]" in await answer.read()


async def test_a_real_client_understands_it(sim: Sim) -> None:
    openai = pytest.importorskip("openai")
    async with openai.AsyncOpenAI(base_url=f"{sim.url}/v1", api_key="none", max_retries=0) as client:
        messages = [{"role": "user", "content": "hello there"}]
        plain = await client.chat.completions.create(model="sim-7b", messages=messages, max_tokens=3)
        assert plain.usage.total_tokens == 10
        stream = await client.chat.completions.create(
            model="sim-7b", messages=messages, max_tokens=3, stream=True, stream_options={"include_usage": True}
        )
        parts = [chunk async for chunk in stream]
        text = "".join(c.choices[0].delta.content or "" for c in parts if c.choices)
        assert text == plain.choices[0].message.content
        assert parts[-1].usage.completion_tokens == 3
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="other", messages=messages)
        assert [m.id async for m in client.models.list()] == ["sim-7b"]
        final = await client.responses.create(model="sim-7b", input="hello there", max_output_tokens=2)
        assert final.usage.output_tokens == 2
