"""Simulated engines on real ports, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from sim_client import Sim, Start

from extproc.sim.engine import EngineOptions
from extproc.sim.server import ServerOptions, SimServer, serve

FAST = {"step_base": 0.001, "step_per_seq": 0.0, "step_per_prefill_token": 0.0}


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts engines. Keywords that EngineOptions has go there, the rest to ServerOptions."""
    stop = asyncio.Event()
    serving: list[asyncio.Task[None]] = []
    sessions: list[aiohttp.ClientSession] = []

    async def launch(**options: Any) -> Sim:
        names = EngineOptions.__dataclass_fields__
        engine = {k: v for k, v in options.items() if k in names}
        rest = {k: v for k, v in options.items() if k not in names}
        server = SimServer(ServerOptions(engine=EngineOptions(**{**FAST, **engine}), **rest))
        port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        serving.append(asyncio.create_task(serve(server, "127.0.0.1", 0, stop, port.set_result)))
        sessions.append(session := aiohttp.ClientSession())
        return Sim(server, session, f"http://127.0.0.1:{await port}")

    yield launch
    for session in sessions:
        await session.close()
    stop.set()
    await asyncio.gather(*serving)


@pytest.fixture
async def sim(start: Start) -> Sim:
    """A fast engine with eight slots that keeps bodies."""
    return await start(record_body_bytes=2**20)
