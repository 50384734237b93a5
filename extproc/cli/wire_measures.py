"""The four measurements of the gateway on the wire. Each starts a rig of its own and gives figures, no verdicts.

What is compared is measured in turn, A B C A B C, in one run: on a shared machine only ratios and differences within a
round mean something. The first round is thrown away.

CPU is compared at equal rates. At 40 requests a second each one costs twice what it costs at 1,000, since the event
loop and gRPC's own thread wake up for each alone; and what goes on once a second anyway has fewer requests to be
divided by. So a body of 2 MB, of which Envoy can read some tens a second, is set against one of 2 KB at the same pace.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from extproc.cli.probe import until
from extproc.cli.stack import StackError
from extproc.cli.wire_rig import Rig, Way, WaySpec, resident_bytes, rig
from extproc.sim.fairness import percentile
from extproc.sim.wire_load import Load
from extproc.wiring.description import Wiring

_SPARE_FILES = 2_000  # beside the held requests' connections: to the engine, to the service, listeners
_WARM_UP = 500
_SAMPLE_S, _SAMPLES_PER_COUNT = 0.5, 10
_COUNT_S = 30.0
_SETTLE_S = 2.0
_WAIT_S = 300.0
_SLOTS = 16  # of the window, where requests are to be held

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured."""

    rounds: int = 7  # of the CPU, the dropped one included
    launches: int = 4  # of all processes, where telemetry is looked at
    counted_launches: int = 2  # of each process, where instructions are counted
    counted_rounds: int = 7  # there
    counted: int = 200  # requests of a round there
    counted_s: float = 6.0  # that are counted there without a request
    closed: int = 1_500  # requests of a round, as fast as they go
    paced: int = 120  # requests of a round, at `pace`
    pace: float = 40.0  # a second
    latency_rounds: int = 6
    latency_requests: int = 1_000
    rate: float = 200.0  # a second
    held: int = 10_000
    soak: int = 100_000


QUICK = Scale(
    rounds=3, launches=2, closed=600, paced=60, latency_rounds=3, latency_requests=400, held=1_000, soak=5_000,
    counted_launches=1, counted_rounds=3, counted=100, counted_s=3.0,
)  # fmt: skip

# -- CPU ------------------------------------------------------------------------------------------

BODY_CONFIG = {"pools": [{"priority_via": "body"}]}
SMALL, LARGE = 2_048, 2_000_000
READING_FLOOR, WAITING_FLOOR = "floor that reads to the end", "floor that waits to be cancelled"


@dataclass(slots=True)
class Cpu:
    """CPU of the server for one request, milliseconds, by round."""

    rounds_ms: list[float] = field(default_factory=list)
    envoy_ms: list[float] = field(default_factory=list)

    @property
    def median_ms(self) -> float:
        return statistics.median(self.rounds_ms)


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured under one name."""

    name: str
    way: str
    load: Load


def _cpu_rows(scale: Scale) -> list[Row]:
    small = Load(0, scale.closed, body_bytes=SMALL)
    slow = {"shape": "open", "rate": scale.pace, "clients": 4}
    return [
        Row("standard, 2 KB", "standard", small),
        Row(READING_FLOOR, "read", small),
        Row(WAITING_FLOOR, "cancel", small),
        Row("body, 2 KB", "body", small),
        Row("floor of body", "read body", small),
        Row("standard, 2 KB, paced", "standard", Load(0, scale.paced, body_bytes=SMALL, **slow)),  # type: ignore[arg-type]
        Row("standard, 2 MB, paced", "standard", Load(0, scale.paced, body_bytes=LARGE, **slow)),  # type: ignore[arg-type]
    ]


async def cpu(directory: Path, scale: Scale, tell: Told) -> dict[str, Cpu]:
    """By the name of the row. Raises StackError, also when a request fails: its cost would not be that of an answer."""
    body = Wiring(profile="body")
    ways = (
        WaySpec("standard", "fairlane"),
        WaySpec("read", "read"),
        WaySpec("cancel", "cancel"),
        WaySpec("body", "fairlane", wiring=body, config=BODY_CONFIG),
        WaySpec("read body", "read", wiring=body),
    )
    rows = _cpu_rows(scale)
    found = {row.name: Cpu() for row in rows}
    async with rig(directory, *ways) as r:
        for number in range(scale.rounds):
            tell(f"cpu: round {number + 1} of {scale.rounds}")
            for row in rows:
                server_ms, envoy_ms = await cpu_of(r, row)
                if number > 0:
                    found[row.name].rounds_ms.append(server_ms)
                    found[row.name].envoy_ms.append(envoy_ms)
    return found


async def cpu_of(r: Rig, row: Row) -> tuple[float, float]:
    way = r.ways[row.way]
    clocks = (way.server_cpu(), way.envoy_cpu())
    before = [clock.read() for clock in clocks]
    result = await r.load(row.way, row.load)
    server_s, envoy_s = (clock.read() - b for clock, b in zip(clocks, before, strict=True))
    if result.ok != row.load.requests:
        raise StackError(f"{row.name}: {row.load.requests} requests gave {result.answers}")
    return server_s * 1e3 / row.load.requests, envoy_s * 1e3 / row.load.requests


def above(found: dict[str, Cpu], one: str, other: str) -> float:
    """By how much one row is above another, milliseconds."""
    return added(found[one].rounds_ms, found[other].rounds_ms)


def ratio(found: dict[str, Cpu], one: str, other: str) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(found[one].rounds_ms, found[other].rounds_ms, strict=True))


# -- latency --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Latency:
    """Of whole answers through one way. Milliseconds, by round."""

    p50_ms: list[float] = field(default_factory=list)
    p90_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    late_p99_ms: list[float] = field(default_factory=list)  # of the generator itself
    server_cpu_ms: list[float] = field(default_factory=list)  # of a request, at this rate; empty without a server


async def latency(directory: Path, scale: Scale, tell: Told) -> dict[str, Latency]:
    """Through Envoy `alone`, and `with` Fairlane. Raises StackError when a request fails."""
    found = {"alone": Latency(), "with": Latency()}
    async with rig(directory, WaySpec("alone", "none"), WaySpec("with", "fairlane")) as r:
        for number in range(scale.latency_rounds):
            tell(f"latency: round {number + 1} of {scale.latency_rounds}")
            load = Load(0, scale.latency_requests, shape="open", rate=scale.rate, seed=number)
            for name, way in found.items():
                clock = r.ways["with"].server_cpu()
                before = clock.read()
                result = await r.load(name, load)
                if result.ok != load.requests:
                    raise StackError(f"latency, {name}: {load.requests} requests gave {result.answers}")
                if number == 0:
                    continue
                for values, p in ((way.p50_ms, 50), (way.p90_ms, 90), (way.p99_ms, 99)):
                    values.append(_percentile_ms(result.latency_s, p))
                way.late_p99_ms.append(_percentile_ms(result.late_s, 99))
                if name == "with":
                    way.server_cpu_ms.append((clock.read() - before) * 1e3 / load.requests)
    return found


def added(one: list[float], other: list[float]) -> float:
    """Median over the rounds of the difference within a round."""
    return statistics.median(a - b for a, b in zip(one, other, strict=True))


def _percentile_ms(values: list[float], p: float) -> float:
    return 1e3 * (percentile(values, p) or 0.0)


# -- held -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """Much held at once, and then let go."""

    requests: int  # held and inside
    held: int  # at the same time
    answers: dict[str, int]
    unanswered: int
    refused: int  # by Fairlane
    bytes_each: float  # resident memory of ours for each held request
    envoy_bytes_each: float


async def held(directory: Path, scale: Scale, tell: Told) -> Held:
    """Raises StackError, at once where the limit of open files does not allow it."""
    allow_files(scale.held + _SPARE_FILES)
    tell(f"held: {scale.held} requests")
    load = Load(0, scale.held + _SLOTS, shape="at_once", tenants=100, timeout_s=_WAIT_S)
    async with rig(directory, _holding("held")) as r:
        way = r.ways["held"]
        await r.load("held", Load(0, _WARM_UP))
        await r.until_empty("held")
        await r.hold_engine()
        before = _resident(way)
        running = r.begin("held", load)
        pool = await r.until_pool("held", lambda p: p["queued"] >= scale.held, _WAIT_S / 2)
        await asyncio.sleep(_SETTLE_S)
        grown = [(now - b) / max(1, pool["queued"]) for now, b in zip(_resident(way), before, strict=True)]
        await r.free_engine()
        result = await r.finish(running)
        await r.until_empty("held")
        refused = await r.metric("held", "fairlane_refused_requests_total")
    return Held(load.requests, pool["queued"], result.answers, result.unanswered, int(refused), *grown)


def _holding(name: str) -> WaySpec:
    """A service whose engine takes few requests at once."""
    window = {"controller": "fixed", "fixed": _SLOTS, "overtake": 0}
    return WaySpec(name, "fairlane", config={"pools": [{"window": window}]})


def _resident(way: Way) -> tuple[int, int]:
    return way.resident_bytes(), resident_bytes(way.envoy.pid or 0)


def allow_files(wanted: int) -> None:
    """Raise the soft limit of open files, which children inherit, to `wanted`. Raises StackError with what to do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise StackError(
            f"so many held requests need {wanted} open files, and at most {hard} are allowed: "
            f"raise the limit (ulimit -Hn {wanted}, or LimitNOFILE= of the unit), or measure with --quick"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


# -- soak -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Soak:
    """A long run in which clients leave at every point."""

    requests: int
    seconds: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    unanswered: int = 0
    resident: list[int] = field(default_factory=list)  # bytes, at equal intervals
    tasks: list[int] = field(default_factory=list)  # of asyncio; the first before the load, the last after it
    objects: list[int] = field(default_factory=list)  # that the garbage collector knows, at the same times
    held_at_the_end: int = 0
    inside_at_the_end: int = 0
    known_at_the_end: int = 0  # requests whose usage is waited for
    faults: int = 0

    def fifth(self, number: int) -> float:
        """Median resident memory of one fifth of the run, the first being 1. Bytes."""
        size = len(self.resident) // 5
        part = self.resident[(number - 1) * size : number * size] if size else self.resident
        return statistics.median(part) if part else 0.0


async def soak(directory: Path, scale: Scale, tell: Told) -> Soak:
    """Raises StackError."""
    found = Soak(scale.soak)
    load = Load(0, scale.soak, clients=64, answer="5,3", leaving=0.3, timeout_s=max(300.0, scale.soak / 50))
    async with rig(directory, _holding("soak")) as r:
        way = r.ways["soak"]
        await r.load("soak", Load(0, _WARM_UP))
        await r.until_empty("soak")
        await _count(way, found)
        running = r.begin("soak", load)
        finished = asyncio.ensure_future(r.finish(running))
        try:
            while not finished.done():
                await asyncio.wait((finished,), timeout=_SAMPLE_S)
                found.resident.append(way.resident_bytes())
                if len(found.resident) % _SAMPLES_PER_COUNT == 0:
                    tell(f"soak: {found.resident[-1] / 2**20:.1f} MiB after {len(found.resident) * _SAMPLE_S:.0f} s")
                    await _count(way, found)
            result = await finished
        finally:
            finished.cancel()
        pool = await r.until_empty("soak")
        pool = await r.until_pool("soak", lambda p: p["known"] == 0, 30.0)
        await _count(way, found)
        found.faults = int(await r.metric("soak", "fairlane_faults_total"))
    found.held_at_the_end, found.inside_at_the_end, found.known_at_the_end = (
        pool["queued"], pool["in_flight"], pool["known"],
    )  # fmt: skip
    found.seconds, found.answers, found.left = result.seconds, result.answers, result.left
    found.unanswered = result.unanswered
    return found


async def _count(way: Way, found: Soak) -> None:
    """Ask the service what it keeps (see `wire_service`)."""
    assert way.server is not None  # noqa: S101 - this way has the service
    log, pid = way.server.log, way.server.pid
    seen = _counts(log)
    if pid is None:
        raise StackError(f"the service ended; the last lines of its log:\n{way.server.tail()}")
    os.kill(pid, signal.SIGUSR1)
    if not await until(lambda: len(_counts(log)) > len(seen), _COUNT_S):
        raise StackError("the service does not tell what it keeps")
    counted = json.loads(_counts(log)[-1])
    found.tasks.append(counted["tasks"])
    found.objects.append(counted["objects"])


def _counts(log: Path) -> list[bytes]:
    return [line for line in log.read_bytes().splitlines() if line.startswith(b'{"tasks"')]


MEASURES: dict[str, Callable[[Path, Scale, Told], Awaitable[object]]] = {
    "cpu": cpu,
    "latency": latency,
    "held": held,
    "soak": soak,
}
