"""Where the cost of a request comes from: the engine's own count where there is one, else time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from rig import CHAT, COMPLETIONS, DEADLINE_S, MODEL, Rig, chat, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

PROMPT = {"model": MODEL, "prompt": "hello"}
INPUT = {"model": MODEL, "input": "hello"}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}

# Each with the answer's length of 20 tokens. The simulated engine counts a token for 4 bytes of prompt, and 4 more for
# each message: 2 for the prompt "hello", 6 for a message. A prompt token costs 1, an output token 2.
COUNTED: list[tuple[str, dict[str, Any], int]] = [
    (CHAT, chat(20), 6 + 2 * 20),
    (CHAT, chat(20, n=3), 6 + 2 * 3 * 20),
    (CHAT, chat(20, **WITH_USAGE), 6 + 2 * 20),
    (COMPLETIONS, {**PROMPT, "max_tokens": 20}, 2 + 2 * 20),
    (COMPLETIONS, {**PROMPT, "max_tokens": 20, **WITH_USAGE}, 2 + 2 * 20),
    ("/v1/responses", {**INPUT, "max_output_tokens": 20}, 6 + 2 * 20),
    ("/v1/responses", {**INPUT, "max_output_tokens": 20, "stream": True}, 6 + 2 * 20),
    ("/v1/messages", chat(20), 6 + 2 * 20),
    ("/v1/messages", chat(20, stream=True), 6 + 2 * 20),
    ("/v1/embeddings", {"model": MODEL, "input": ["hello", "you"]}, 2 + 1),
    # Its answer has no completion_tokens: they are the total without the prompt.
    ("/v1/rerank", {"model": MODEL, "query": "hello", "documents": ["a", "b"]}, 2 + 2),
]


class Settled:
    """What is settled from now on."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._before: dict[str, float] = {}

    async def __aenter__(self) -> Settled:
        await self._rig.books_closed()
        self._before = await self._read()
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def _read(self) -> dict[str, float]:
        sources = {
            source: await self._rig.metric("fairlane_settled_requests_total", source=source)
            for source in ("usage", "stream", "time", "estimate", "abort", "error")
        }
        return {**sources, "cost": await self._rig.metric("fairlane_settled_cost_total")}

    async def becomes(self, requests: int) -> dict[str, float]:
        """What has changed, once so many more requests are settled."""

        async def changed() -> dict[str, float]:
            return {k: v - self._before[k] for k, v in (await self._read()).items() if v != self._before[k]}

        def all_there(found: dict[str, float]) -> bool:
            return sum(count for source, count in found.items() if source != "cost") >= requests

        return await until(changed, all_there, f"{requests} settled", DEADLINE_S)


@pytest.mark.parametrize(("path", "body", "cost"), COUNTED)
async def test_counted_by_the_engine(path: str, body: dict[str, Any], cost: int, rig: Rig) -> None:
    async with Settled(rig) as settled:
        answer = await rig.post(body, path=path)
        assert answer.status == 200
        assert await settled.becomes(1) == pytest.approx({"usage": 1, "cost": cost})


async def test_a_stream_without_usage_is_estimated(rig: Rig) -> None:
    async with Settled(rig) as settled:
        assert (await rig.post(chat(20, stream=True))).status == 200
        found = await settled.becomes(1)
    assert found.keys() - {"cost"} in ({"time"}, {"estimate"})
    assert 0 < found["cost"] <= 1_000


async def test_what_the_engine_refuses_costs_nothing(rig: Rig) -> None:
    async with Settled(rig) as settled:
        assert (await rig.post(chat(-1))).status == 400
        assert await settled.becomes(1) == {"error": 1}


@pytest.mark.parametrize("every_chunk", [False, True], ids=["usage at the end", "usage in every chunk"])
async def test_a_stream_that_its_client_leaves(every_chunk: bool, rig: Rig) -> None:
    options = {"include_usage": True, "continuous_usage_stats": every_chunk}
    async with Settled(rig) as settled:
        async with rig.stream(5_000, tenant="leaver", stream_options=options) as answer:
            for _ in range(5):
                await answer.content.readuntil(b"\n\n")
            answer.close()
        found = await settled.becomes(1)
        (entry,) = (await rig.seen("leaver"))[-1:]
    assert entry["state"] == "aborted"
    if every_chunk:
        assert found["usage"] == 1
        assert 6 + 2 * 3 <= found["cost"] <= 6 + 2 * (entry["tokens"] + 1)
    else:
        assert found.keys() - {"cost"} == {"abort"}


async def test_many_at_once_are_all_counted_once(rig: Rig) -> None:
    async with Settled(rig) as settled:
        tasks = [rig.start(chat(4, **(WITH_USAGE if i % 2 else {})), tenant=f"many-{i % 3}") for i in range(60)]
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert await settled.becomes(60) == pytest.approx({"usage": 60, "cost": 60 * (6 + 2 * 4)})
    assert await rig.metric("fairlane_access_log_entries_total", kind="malformed") == 0
