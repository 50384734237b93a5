"""Clients that keep a number of requests under way, and what each of them got.

Each request has a name of its own (`x-key`), by which an engine's journal tells whether it was sent it once. A client
asks again as soon as it has its answer, so with more clients than the engines have room for the rest is held all the
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
import orjson

_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that is over."""

    key: str
    status: int  # 0: the connection broke
    reason: str  # as Fairlane names it; empty: an engine's answer
    waited_s: float | None  # in the queue, as the service says
    took_s: float
    answered_at: float  # seconds since 1970


@dataclass
class Load:
    """Clients of tenants team-0, team-1, ... in turn, and of the classes in turn."""

    http: aiohttp.ClientSession
    url: str
    name: str
    tenants: int = 4
    classes: tuple[str, ...] = ("interactive", "default", "batch")
    tokens: int = 4
    model: str = "sim-7b"
    once: bool = False  # a client asks no more than it has by now
    done: list[Asked] = field(default_factory=list)
    begun: int = 0
    _clients: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False

    def start(self, clients: int) -> None:
        first = len(self._clients)
        self._clients += [asyncio.create_task(self._client(number)) for number in range(first, first + clients)]

    async def stop(self) -> None:
        """No more is asked. Returns when all have their answer; an error of a client is raised."""
        self._stopping = True
        await asyncio.gather(*self._clients)

    def drop(self) -> None:
        """Nobody waits for an answer any more."""
        self._stopping = True
        for client in self._clients:
            client.cancel()

    def outcomes(self) -> Counter[str]:
        """By status, and the reason where there is one: "200", "503 cancelled"."""
        return Counter(f"{each.status} {each.reason}".strip() for each in self.done)

    async def _client(self, number: int) -> None:
        headers = {
            "content-type": "application/json",
            "x-tenant": f"team-{number % self.tenants}",
            "x-class": self.classes[number // self.tenants % len(self.classes)],
        }
        message = {"role": "user", "content": f"client {number}"}
        body = orjson.dumps({"model": self.model, "max_tokens": self.tokens, "messages": [message]})
        while not self._stopping:
            key = f"{self.name}-{self.begun}"
            self.begun += 1
            self.done.append(await self._ask(key, body, {**headers, "x-key": key}))
            if self.once:
                return

    async def _ask(self, key: str, body: bytes, headers: Mapping[str, str]) -> Asked:
        began, status, reason, waited_s = time.perf_counter(), 0, "connection lost", None
        with contextlib.suppress(aiohttp.ClientConnectionError):
            async with self.http.post(self.url + _PATH, data=body, headers=headers) as answer:
                await answer.read()
                status, reason = answer.status, answer.headers.get("x-fairlane-reason", "")
                timing = answer.headers.get("server-timing", "").partition("queue;dur=")[2]
                waited_s = float(timing.partition(",")[0]) / 1000 if timing else None
        return Asked(key, status, reason, waited_s, time.perf_counter() - began, time.time())
