"""What telling costs: CPU of the service for one request with telemetry off, as shipped, and with all of it.

    off          telemetry.enabled: false
    as shipped   metrics and the log of requests; nobody looks
    all of it    and a page is open, the metrics are scraped in one round of eight (of two seconds: so about each 15 s),
                 and spans of the shipped share of requests are exported to a collector
    all traced   the same, but each request has its spans

In turn, in each round, since only ratios within a round mean something on a shared machine; every other round the other
way round, so that what drifts weighs on all alike. What is looked for is a few hundredths of what it is found in: there
are twice as many rounds as for other measurements, and how far the ratios of the rounds are apart is told as well.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from extproc.cli.ports import free_ports
from extproc.cli.wire_measures import SMALL, Cpu, Row, Scale, Told, cpu_of
from extproc.cli.wire_rig import Rig, WaySpec, rig
from extproc.sim.wire_load import Load

OFF, SHIPPED, ALL, TRACED = "telemetry off", "as shipped", "all of it", "all traced"
_WATCHED = (ALL, TRACED)
_SCRAPED_EACH = 8  # rounds


async def telemetry(directory: Path, scale: Scale, tell: Told) -> dict[str, Cpu]:
    """By the name of the row. Raises StackError, also when a request fails."""
    port = free_ports(1)[0]
    otlp = {"otlp": f"http://127.0.0.1:{port}"}
    configs: dict[str, dict[str, Any]] = {
        OFF: {"enabled": False, "page": False},
        SHIPPED: {},
        ALL: {"traces": otlp},
        TRACED: {"traces": {**otlp, "sample": 1.0}},
    }
    found = {name: Cpu() for name in configs}
    load = Load(0, scale.closed, body_bytes=SMALL)
    specs = [WaySpec(name, "fairlane", config={"telemetry": each}) for name, each in configs.items()]
    async with rig(directory, *specs, collector=port) as r, _pages_open(r):
        rounds = 2 * scale.rounds
        for number in range(rounds):
            tell(f"telemetry: round {number + 1} of {rounds}")
            for name in list(configs) if number % 2 else reversed(configs):
                cpu = found[name]
                measured = asyncio.ensure_future(cpu_of(r, Row(name, name, load)))
                if name in _WATCHED and number % _SCRAPED_EACH == 1:
                    await r.metric(name, "fairlane_released_requests_total")
                server_ms, envoy_ms = await measured
                if number > 0:
                    cpu.rounds_ms.append(server_ms)
                    cpu.envoy_ms.append(envoy_ms)
    return found


def costs(found: dict[str, Cpu], name: str) -> float:
    """CPU with it / CPU with telemetry off, of all rounds together: a median would hide what comes seldom."""
    return sum(found[name].rounds_ms) / sum(found[OFF].rounds_ms)


def apart(found: dict[str, Cpu], name: str) -> float:
    """Half of the rounds' ratios are within this of each other."""
    ratios = sorted(_ratios(found, name))
    return ratios[(3 * len(ratios)) // 4] - ratios[len(ratios) // 4]


def _ratios(found: dict[str, Cpu], name: str) -> list[float]:
    return [one / off for one, off in zip(found[name].rounds_ms, found[OFF].rounds_ms, strict=True)]


@contextlib.asynccontextmanager
async def _pages_open(r: Rig) -> AsyncIterator[None]:
    """A reader of the live page's events, where all is looked at."""
    readers = [asyncio.create_task(_read(r.http, f"http://{r.ways[name].http}/events")) for name in _WATCHED]
    try:
        yield
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def _read(http: aiohttp.ClientSession, url: str) -> None:
    async with http.get(url, timeout=aiohttp.ClientTimeout(total=None)) as answer:
        answer.raise_for_status()
        async for _ in answer.content:
            pass
