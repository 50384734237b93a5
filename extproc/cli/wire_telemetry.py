"""What telling costs: CPU of the service for one request with telemetry off, as shipped, and with all of it.

    telemetry off        enabled: false, page: false
    off, once more       the same in another process: what two that do the same seem to differ by
    as shipped           metrics and the log of requests; nobody looks
    all but scrapes      and a page is open, and spans of the shipped share of requests are exported to a collector
    scraped each round   the same process, read by Prometheus once in each round
    all traced           as the one before the last, but each request has its spans

In turn, in each round, beginning with another one each time, since only what is near in time can be compared on a
shared machine. What is looked for is a few hundredths of what it is found in: so there are many rounds, medians are
compared since disturbances are rare and large, and all processes are started several times, since two that do the same
differ by some hundredths for as long as they live. A median would hide what comes once in many rounds, so scrapes are
found apart: what one adds to a round is spread over the requests that such a round has between two scrapes.

Even so CPU time does not tell on which side of the bound it is; `wire_instructions` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from extproc.cli.ports import free_ports
from extproc.cli.wire_measures import SMALL, Cpu, Row, Scale, Told, cpu_of
from extproc.cli.wire_rig import CpuClock, Rig, WaySpec, rig
from extproc.sim.wire_load import Load

OFF, CONTROL, SHIPPED, ALL, SCRAPED, TRACED = (
    "telemetry off",
    "off, once more",
    "as shipped",
    "all but scrapes",
    "scraped each round",
    "all traced",
)
_WATCHED = (ALL, TRACED)
_LOOK_S = 0.02
SCRAPE_S = 15.0  # between two scrapes, as Prometheus has it where nothing else is said


@dataclass(slots=True)
class Looked:
    """What was found, by the name of the row."""

    rows: dict[str, Cpu]
    scraped_s: list[float]  # that the rounds took in which there was a scrape

    @property
    def all_of_it(self) -> float:
        """CPU for one request with all of it and a scrape each 15 s / with telemetry off."""
        scrape = self.ratio(SCRAPED) - self.ratio(ALL)
        return self.ratio(ALL) + scrape * statistics.median(self.scraped_s) / SCRAPE_S

    def ratio(self, name: str) -> float:
        """Median CPU for one request / that with telemetry off, in two processes."""
        off = statistics.median(self.rows[OFF].rounds_ms + self.rows[CONTROL].rounds_ms)
        return self.rows[name].median_ms / off

    @property
    def apart(self) -> float:
        """By how much two processes differ that do the same: a part of the smaller one's CPU."""
        one, other = sorted((self.ratio(OFF), self.ratio(CONTROL)))
        return other / one - 1


def configs(collector: int) -> dict[str, dict[str, Any]]:
    """`telemetry` of each process. `collector`: the port of the one for spans."""
    otlp = {"otlp": f"http://127.0.0.1:{collector}"}
    off: dict[str, Any] = {"enabled": False, "page": False}
    return {
        OFF: off,
        CONTROL: off,
        SHIPPED: {},
        ALL: {"traces": otlp},
        TRACED: {"traces": {**otlp, "sample": 1.0}},
    }


async def telemetry(directory: Path, scale: Scale, tell: Told) -> Looked:
    """Raises StackError, also when a request fails."""
    port = free_ports(1)[0]
    specs = [WaySpec(name, "fairlane", config={"telemetry": each}) for name, each in configs(port).items()]
    found = Looked({name: Cpu() for name in (OFF, CONTROL, SHIPPED, ALL, SCRAPED, TRACED)}, [])
    load = Load(0, scale.closed, body_bytes=SMALL)
    for launch in range(scale.launches):
        launched = directory / f"launch-{launch + 1}"
        launched.mkdir()
        async with rig(launched, *specs, collector=port) as r, pages_open(r, _WATCHED):
            for number in range(scale.rounds):
                tell(f"telemetry: launch {launch + 1} of {scale.launches}, round {number + 1} of {scale.rounds}")
                await _round(r, load, found, launch + number, kept=number > 0)
    return found


async def _round(r: Rig, load: Load, found: Looked, number: int, *, kept: bool) -> None:
    for name in turned(list(found.rows), number):
        cpu, way = found.rows[name], ALL if name == SCRAPED else name
        start = time.monotonic()
        measured = asyncio.ensure_future(cpu_of(r, Row(name, way, load)))
        if name == SCRAPED:
            await _half_done(measured, r.ways[way].server_cpu(), _round_s(found.rows[ALL], load) / 2)
            await r.metric(way, "fairlane_released_requests_total")
        server_ms, envoy_ms = await measured
        if kept:
            cpu.rounds_ms.append(server_ms)
            cpu.envoy_ms.append(envoy_ms)
            if name == SCRAPED:
                found.scraped_s.append(time.monotonic() - start)


def turned(rows: Sequence[str], number: int) -> Sequence[str]:
    """From another one on each time, and back when all have begun once."""
    turns, first = divmod(number, len(rows))
    turned = (*rows[first:], *rows[:first])
    return turned[::-1] if turns % 2 else turned


def _round_s(cpu: Cpu, load: Load) -> float:
    """CPU seconds of a round."""
    return cpu.median_ms * load.requests / 1e3 if cpu.rounds_ms else 0.0


async def _half_done(measured: asyncio.Future[Any], clock: CpuClock, cpu_s: float) -> None:
    """Until a server has worked for so long."""
    before = clock.read()
    while not measured.done() and clock.read() - before < cpu_s:  # noqa: ASYNC110 - nothing tells of CPU time
        await asyncio.sleep(_LOOK_S)


@contextlib.asynccontextmanager
async def pages_open(r: Rig, ways: Sequence[str]) -> AsyncIterator[None]:
    """A reader of the live page's events, at each of these."""
    readers = [asyncio.create_task(_read(r.http, f"http://{r.ways[name].http}/events")) for name in ways]
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
