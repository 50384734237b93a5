"""What our Lua filters cost: Envoy's CPU time per request and per chunk, with and without each of them.

Run: PYTHONSAFEPATH=1 PYTHONPATH=tests/e2e:. nice python tests/e2e/lua_cost.py
CPU time is read from /proc, so a busy machine changes it little. Each figure is the better of two rounds.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path

import orjson
from lua_case import JSON, Case, Json, filtering, lua, shipped
from recorded import recording

_MEMBERS = '"priority":1000001'
_SIZES = {"2 KB": 2_000, "200 KB": 200_000, "2 MB": 2_000_000, "20 MB": 20_000_000}
_WISH: Json = {
    "name": "test.wish",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config",
        "metadata": [{"metadata_namespace": "fairlane.body", "value": {"append": _MEMBERS}}],
    },
}
_CHUNKS = 200


def _chat(size: int) -> bytes:
    words = "".join(random.Random(size).choices('abcdefgh \n"', k=size))
    turns = [{"role": "user", "content": words[i : i + 4_000]} for i in range(0, size, 4_000)]
    return orjson.dumps({"model": "m", "max_tokens": 5, "messages": turns})


def _image(size: int) -> bytes:
    url = "data:image/png;base64," + random.Random(size).randbytes(size * 3 // 4).hex()[:size]
    parts = [{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return orjson.dumps({"model": "m", "messages": [{"role": "user", "content": parts}]})


def _token_ids(size: int) -> bytes:
    return orjson.dumps({"model": "m", "prompt": [[1000 + i % 9000 for i in range(100)]] * (size // 502)})


def _strings(size: int) -> bytes:
    return orjson.dumps({"model": "m", "input": ["a short sentence to embed"] * (size // 28)})


async def _per_request_ms(filters: list[Json], body: bytes, *, count: int) -> tuple[float, float]:
    """Envoy's CPU per request in ms, and its resident memory in MB afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        async with filtering(Path(directory), filters) as case:
            await case.post(body)
            best = float("inf")
            for _ in range(2):
                before = case.cpu_s()
                await _post_many(case, body, count)
                best = min(best, case.cpu_s() - before)
            assert not case.script_errors(), case.script_errors()
            return best * 1000 / count, case.resident_mb()


async def _post_many(case: Case, body: bytes, count: int) -> None:
    async def some(share: int) -> None:
        for _ in range(share):
            await case.post(body, JSON)
        case.upstream.received.clear()

    await asyncio.gather(*(some(count // 4) for _ in range(4)))


async def requests() -> None:
    facts = shipped("fairlane.facts")
    ways = {
        "json_to_metadata": [facts, _WISH],
        "+ facts.lua": [facts, _WISH, lua("facts.lua")],
        "+ append.lua": [facts, _WISH, lua("append.lua")],
    }
    bodies = {f"chat {name}": _chat(size) for name, size in _SIZES.items()}
    bodies["image 20 MB"] = _image(20_000_000)
    bodies["lists of ids 2 MB"] = _token_ids(2_000_000)
    bodies["short strings 2 MB"] = _strings(2_000_000)
    for name, body in bodies.items():
        count = next(
            n for size, n in ((10_000, 1_600), (1_000_000, 200), (5_000_000, 24), (50_000_000, 8)) if len(body) < size
        )
        for way, filters in ways.items():
            ms, resident = await _per_request_ms(filters, body, count=count)
            print(f"{name:20} {way:18} {ms:9.3f} ms per request, resident {resident:5.0f} MB", flush=True)


async def chunks() -> None:
    delta = '"choices":[{"index":0,"delta":{"content":" token"},"logprobs":null,"finish_reason":null,"token_ids":null}]'
    head = '{"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1790000000,"model":"a/model",'
    usage = ',"usage":{"prompt_tokens":12,"total_tokens":19,"completion_tokens":7}'
    ways: dict[str, list[Json]] = {
        "no filter": [],
        "usage.lua": [lua("usage.lua")],
        "sse_to_metadata": [shipped("fairlane.usage.sse")],
    }
    for name, more in {"usage in none": "", "usage in each": usage}.items():
        event = f"data: {head}{delta}{more}}}\n\n".encode()
        for way, filters in ways.items():
            with tempfile.TemporaryDirectory() as directory:
                async with filtering(Path(directory), filters) as case:
                    stream = {"content_type": "text/event-stream", "piece": len(event), "chunked": True}
                    case.upstream.answer = recording(event * _CHUNKS, **stream)
                    await case.post(b"{}")
                    best = float("inf")
                    for _ in range(2):
                        before = case.cpu_s()
                        await _post_many(case, b"{}", 80)
                        best = min(best, case.cpu_s() - before)
                    us = best * 1e6 / 80 / _CHUNKS
                    print(f"{name}: {way:16} {us:6.1f} us per chunk of {len(event)} bytes", flush=True)


if __name__ == "__main__":
    asyncio.run(chunks())
    asyncio.run(requests())
