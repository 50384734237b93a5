"""An open-loop client: requests leave when their time has come, whatever became of those before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp
import orjson

_PROMPT_WORD = "abc "  # four bytes: about one token of a prompt
_DATA = b"data:"


@dataclass(frozen=True, slots=True)
class Shot:
    """One request to be sent."""

    tenant: str
    at_s: float  # after the start
    prompt_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Outcome:
    """What became of a shot. Times in seconds after the start of the run."""

    shot: Shot
    sent_s: float = 0.0
    token_s: list[float] = field(default_factory=list)  # arrival of each output token
    ended_s: float = 0.0
    queue_s: float | None = None  # held by Fairlane, as its header says
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token, from sending; None: there was none."""
        return self.token_s[0] - self.sent_s if self.token_s else None


async def run(url: str, shots: Sequence[Shot], *, model: str, timeout_s: float) -> list[Outcome]:
    """Send all shots to `url` (an OpenAI base without /v1) as streams, and wait for all answers."""
    outcomes = [Outcome(shot) for shot in shots]
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        start = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for outcome in outcomes:
                tasks.create_task(_send(session, url, model, outcome, start))
    return outcomes


async def _send(session: aiohttp.ClientSession, url: str, model: str, outcome: Outcome, start: float) -> None:
    loop = asyncio.get_running_loop()
    shot = outcome.shot
    await asyncio.sleep(max(0.0, start + shot.at_s - loop.time()))
    body = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": shot.output_tokens,
        "ignore_eos": True,
        "prompt": _PROMPT_WORD * shot.prompt_tokens,
    }
    outcome.sent_s = loop.time() - start
    try:
        async with session.post(
            f"{url}/v1/completions",
            data=orjson.dumps(body),
            headers={"content-type": "application/json", "x-tenant": shot.tenant},
        ) as response:
            queue_ms = response.headers.get("x-fairlane-queue-ms")
            outcome.queue_s = int(queue_ms) / 1000 if queue_ms and queue_ms.isdigit() else None
            if response.status != 200:
                text = (await response.read())[:200].decode(errors="replace")
                outcome.error = f"HTTP {response.status}: {text}"
            else:
                await _read(response, outcome, start)
    except (aiohttp.ClientError, TimeoutError) as error:
        outcome.error = f"{type(error).__name__}: {error}"
    outcome.ended_s = loop.time() - start


async def _read(response: aiohttp.ClientResponse, outcome: Outcome, start: float) -> None:
    loop = asyncio.get_running_loop()
    done = False
    async for line in response.content:
        if not line.startswith(_DATA):
            continue
        data = line[len(_DATA) :].strip()
        if data == b"[DONE]":
            done = True
        elif b'"error"' in data:
            outcome.error = data.decode(errors="replace")[:200]
        elif b'"choices":[]' not in data:
            outcome.token_s.append(loop.time() - start)
    if not done and outcome.error is None:
        outcome.error = "the answer was cut off"
