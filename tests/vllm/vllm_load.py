"""Streamed completions of exact lengths, and when each of their tokens came.

The model writes one ASCII letter for a token, so the tokens of a chunk are its letters: vLLM puts several into one when
its reader is slow. A prompt of N letters has N tokens. Times are those of `time.monotonic()`, in seconds.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

import aiohttp
import orjson
from rig import COMPLETIONS, Json, Rig
from vllm_server import MODEL_NAME

_LONG = aiohttp.ClientTimeout(total=600)
_NUMBERS = itertools.count()  # makes each prompt another one, so that no prefix is cached


@dataclass
class Run:
    """One request and what became of it."""

    tenant: str
    prompt: int  # tokens
    output: int  # tokens that were asked for
    sent: float
    status: int = 0
    held_s: float = 0.0  # by Fairlane, as it says
    tokens: list[tuple[float, int]] = field(default_factory=list)  # when, and how many
    ended: float | None = None
    over: asyncio.Event = field(default_factory=asyncio.Event)
    usage: Json | None = None
    error: Json | None = None  # in place of a stream, or what a stream turned into

    @property
    def received(self) -> int:
        return sum(count for _, count in self.tokens)

    @property
    def first(self) -> float:
        """When the first token came. IndexError if none has."""
        return self.tokens[0][0]

    @property
    def ttft(self) -> float:
        """Time to first token, seconds."""
        return self.first - self.sent

    @property
    def whole(self) -> bool:
        """It was answered in full, and the engine's own count says the same."""
        counted = {"prompt_tokens": self.prompt, "completion_tokens": self.output}
        return self.status == 200 and self.received == self.output and counted.items() <= (self.usage or {}).items()

    def served_by(self, end: float) -> float:
        """Cost of what it had got by then: a unit for a token of the prompt, two for one of the answer."""
        if not self.tokens or self.first > end:
            return 0.0
        return self.prompt + 2 * sum(count for when, count in self.tokens if when <= end)


def prompt(length: int) -> str:
    """So many letters, other ones each time."""
    number, letters = next(_NUMBERS), ""
    while number or not letters:
        number, digit = divmod(number, 26)
        letters += chr(ord("a") + digit)
    return (letters + " once upon a time in the west" * length)[:length]


class Load:
    """Sends requests through a rig's Envoy and keeps what becomes of them, in the order of sending."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.runs: list[Run] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def work_clock(self) -> Callable[[float], int]:
        """The tokens that all requests together had got by a time: a clock that stands still when the machine does."""
        events = sorted(event for run in self.runs for event in run.tokens)
        times, counts = [when for when, _ in events], [0, *itertools.accumulate(count for _, count in events)]
        return lambda now: counts[bisect.bisect_right(times, now)]

    def send(
        self,
        tenant: str,
        prompt_tokens: int,
        output: int,
        *,
        cls: str | None = None,
        body: Json | None = None,
        headers: Iterable[tuple[str, str]] = (),
    ) -> Run:
        """Start one in the background. `body` and `headers` are more of them."""
        run = Run(tenant, prompt_tokens, output, time.monotonic())
        self.runs.append(run)
        head = [("content-type", "application/json"), ("x-tenant", tenant), *headers]
        if cls is not None:
            head.append(("x-class", cls))
        whole = {
            "model": MODEL_NAME,
            "prompt": prompt(prompt_tokens),
            "max_tokens": output,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **(body or {}),
        }
        task = asyncio.create_task(self._read(run, whole, head))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return run

    async def all_ended(self) -> None:
        """Wait until every one has been answered. Raises what a client got in place of an answer."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    @contextlib.asynccontextmanager
    async def outstanding(self, count: int, tenant: str, prompt_tokens: int, output: int) -> AsyncIterator[None]:
        """So many clients, each of which sends the next request when it has its answer. They leave with the block."""

        async def client() -> None:
            while True:
                await self.send(tenant, prompt_tokens, output).over.wait()

        clients = [asyncio.create_task(client()) for _ in range(count)]
        try:
            yield
        finally:
            for task in clients:
                task.cancel()
            await self.leave()

    async def leave(self) -> None:
        """What is not answered yet is left, as a client does that closes its connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, run: Run, body: Json, headers: list[tuple[str, str]]) -> None:
        url = self._rig.stack.url + COMPLETIONS
        try:
            async with self._rig.http.post(url, data=orjson.dumps(body), headers=headers, timeout=_LONG) as answer:
                run.status = answer.status
                run.held_s = int(answer.headers.get("x-fairlane-queue-ms", 0)) / 1000
                if answer.status != 200:
                    run.error = {"body": await answer.text(), "reason": answer.headers.get("x-fairlane-reason")}
                async for line in answer.content:
                    if not line.startswith(b"data: {"):
                        continue
                    event = orjson.loads(line[6:])
                    now = time.monotonic()
                    if count := sum(len(choice["text"]) for choice in event.get("choices", ())):
                        run.tokens.append((now, count))
                    run.usage = event.get("usage") or run.usage
                    run.error = event.get("error") or run.error
        finally:
            run.ended = time.monotonic()
            run.over.set()
