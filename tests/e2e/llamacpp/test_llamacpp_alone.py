"""That the second engine of the end-to-end tests is what they take it for: before Envoy or Fairlane come into it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from . import make_tiny_gguf
from .serve import MODEL_NAME, LlamaServer

pytestmark = pytest.mark.e2e

_PROMPT = {"model": MODEL_NAME, "prompt": "once upon a time", "temperature": 0}
_CHAT = {"model": MODEL_NAME, "messages": [{"role": "user", "content": "hello"}], "temperature": 0}


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[LlamaServer]:
    async with LlamaServer(make_tiny_gguf.write(tmp_path / "tiny.gguf"), directory=tmp_path, slots=2) as server:
        yield server


@pytest.fixture
async def http(engine: LlamaServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


async def test_json_answer_has_the_length_asked_for_and_its_usage(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/completions", json={**_PROMPT, "max_tokens": 30}) as answer:
        assert answer.status == 200
        body = await answer.json()
    text = body["choices"][0]["text"]
    assert len(text) == 30  # a letter or a space each
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz ")
    # <s>, the space that SentencePiece puts before a text, a token for each of its 16 characters
    assert body["usage"]["prompt_tokens"] == 18
    assert body["usage"]["completion_tokens"] == 30


async def test_stream_has_the_same_text_as_the_json_answer(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/chat/completions", json={**_CHAT, "max_tokens": 12}) as answer:
        whole = (await answer.json())["choices"][0]["message"]["content"]
    request = {**_CHAT, "max_tokens": 12, "stream": True, "stream_options": {"include_usage": True}}
    async with http.post("/v1/chat/completions", json=request) as answer:
        assert answer.content_type == "text/event-stream"
        events = [e.removeprefix("data: ") for e in (await answer.text()).split("\n\n") if e]
    assert events[-1] == "[DONE]"
    chunks: list[dict[str, Any]] = [json.loads(e) for e in events[:-1]]
    pieces = [choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"]]
    assert "".join(pieces) == whole
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 12


async def test_metrics_count_tokens_and_show_the_queue_behind_the_slots(http: aiohttp.ClientSession) -> None:
    async def metrics() -> dict[str, float]:
        async with http.get("/metrics") as page:
            lines = (await page.text()).splitlines()
        return {name: float(value) for name, value in (line.split() for line in lines if line and line[0] != "#")}

    async def complete(tokens: int) -> None:
        async with http.post("/v1/completions", json={**_PROMPT, "max_tokens": tokens}) as answer:
            assert answer.status == 200
            await answer.read()

    await complete(7)
    assert (await metrics())["llamacpp:tokens_predicted_total"] == 7
    running = [asyncio.create_task(complete(1_500)) for _ in range(5)]
    seen = await metrics()
    while seen["llamacpp:requests_deferred"] < 3 and not all(task.done() for task in running):
        seen = await metrics()
    assert seen["llamacpp:requests_processing"] == 2
    assert seen["llamacpp:requests_deferred"] == 3
    await asyncio.gather(*running)
    assert (await metrics())["llamacpp:tokens_predicted_total"] == 7 + 5 * 1_500


async def test_stop_ends_it_by_sigterm_and_its_port_is_free_again(tmp_path: Path) -> None:
    model = make_tiny_gguf.write(tmp_path / "tiny.gguf")
    async with LlamaServer(model, directory=tmp_path) as first:
        port = first.at.port
        assert await first.child.stop(timeout_s=5.0)
        assert first.child.exit_code == 0
    async with LlamaServer(model, directory=tmp_path, port=port) as second:
        assert second.child.running


def test_the_model_is_the_same_each_time(tmp_path: Path) -> None:
    files = [make_tiny_gguf.write(tmp_path / name) for name in ("a.gguf", "b.gguf")]
    first, second = (hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    assert first == second
