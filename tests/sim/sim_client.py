"""A client of the simulated engine, for tests: requests, streams, the metrics page parsed by Prometheus' own parser."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from prometheus_client.parser import text_string_to_metric_families

from extproc.sim.server import SimServer


@dataclass
class Sim:
    """The server and a client to it."""

    server: SimServer
    http: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: Any, **more: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        headers = {"Content-Type": "application/json", **more.pop("headers", {})}
        async with self.http.post(self.url + path, data=data, headers=headers, **more) as answer:
            return answer.status, orjson.loads(await answer.read())

    async def complete(self, body: Any, **more: Any) -> tuple[int, Any]:
        return await self.post("/v1/completions", body, **more)

    async def stream(self, path: str, body: dict[str, Any], **headers: str) -> list[str]:
        """The data of each server-sent event."""
        async with self.http.post(self.url + path, json={**body, "stream": True}, headers=headers) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            text = await answer.text()
        events = text.split("\n\n")
        assert events.pop() == ""
        return [line.removeprefix("data: ") for e in events for line in e.split("\n") if line.startswith("data: ")]

    async def get(self, path: str) -> Any:
        async with self.http.get(self.url + path) as answer:
            assert answer.status == 200
            return orjson.loads(await answer.read())

    async def faults(self, **faults: Any) -> int:
        async with self.http.put(self.url + "/sim/faults", data=orjson.dumps(faults)) as answer:
            return answer.status

    async def metrics(self, path: str = "/metrics") -> dict[tuple[str, str], float]:
        """Samples by name and the label that tells series apart ("" if none does)."""
        async with self.http.get(self.url + path) as answer:
            assert answer.status == 200
            assert answer.headers["Content-Type"] == "text/plain; version=1.0.0; charset=utf-8"
            page = await answer.text()
        known = {"engine", "model_name"}
        return {
            (sample.name, next((v for k, v in sample.labels.items() if k not in known), "")): sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
        }

    async def requests(self) -> list[dict[str, Any]]:
        found = await self.get("/sim/requests")
        assert isinstance(found, list)
        return found

    async def until(self, condition: Callable[[], Awaitable[bool]], seconds: float = 5.0) -> None:
        """Ask again and again until it is so; an error after ``seconds``."""
        async with asyncio.timeout(seconds):
            while not await condition():  # noqa: ASYNC110 - what it waits for is on the other side of a socket
                await asyncio.sleep(0.002)

    async def shows(self, name: str, value: float) -> bool:
        """The metrics page has this value."""
        return (await self.metrics(f"/metrics/?name[]={name}"))[name, ""] == value

    async def counts(self, handed_in: int) -> bool:
        """So many requests were handed to the engine or have been there."""
        return sum(r["request_id"] is not None for r in await self.requests()) == handed_in


Start = Callable[..., Awaitable[Sim]]
"""Starts an engine; see the fixture ``start``."""
