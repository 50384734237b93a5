"""`fairlane bench metrics`: what a scrape of this service's own metrics costs it."""

from __future__ import annotations

import asyncio
import http.client
import json
import platform
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
from rich.console import Console
from rich.table import Table

from extproc.cli.bench_core import Check
from extproc.cli.output import OUTPUT
from extproc.cli.ports import free_ports
from extproc.config.telemetry import MOST_TENANTS, TenantSeries
from extproc.core.events import Arrive, End, EndpointAdded, Event, Release, Scraped, Usage
from extproc.core.fairness import Fairness
from extproc.core.model import ClassPolicy, PoolPolicy, Sample, Source, WindowPolicy
from extproc.core.priority import PriorityWay
from extproc.core.scheduler import Scheduler
from extproc.core.view import PoolView, view
from extproc.sim.wire_engine import loop_factory
from extproc.telemetry.http import HttpPort
from extproc.telemetry.metrics import EndpointSetStats, Metrics, ScrapeStats, Sources

# What must be reached, with the top tenants that a file has by default
_CPU_MS: Final = 50.0
_BYTES: Final = 1_000_000

_CLASSES: Final = ("interactive", "default", "batch")
_SLOTS: Final = 8  # of each engine
_SETTLED: Final = 0.5  # of what has been released
_NOW: Final = 1_000.0
_PROBE_S: Final = 0.001
_FORMATS: Final = {
    "text": "text/plain;version=0.0.4",
    "OpenMetrics": "application/openmetrics-text;version=1.0.0",
}


@dataclass(frozen=True, slots=True)
class Size:
    tenants: int = 10_000
    pools: int = 4
    endpoints: int = 50  # of each pool; each pool has three classes


@dataclass(frozen=True, slots=True)
class Scrape:
    """Medians of the rounds."""

    format: str
    top: int  # tenants with series of their own
    samples: int
    page_bytes: int
    cpu_ms: float  # of this process, but for its client
    loop_ms: float  # of them on the event loop's thread
    late_ms: float  # by which a timer came late at most, while the page was made


@click.command("metrics")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--quick", is_flag=True, help="Fewer rounds.")
def metrics(json_file: Path | None, quick: bool) -> None:
    """CPU and bytes of a scrape of Fairlane's metrics with 10,000 tenants, 4 pools, 200 engines and 12 classes.

    Schedulers are real and filled: each tenant has come, some of their requests run or are settled, the rest waits. The
    page is fetched over HTTP. CPU time of this process, all of its threads, without the client's. Exit code 1 when a
    bound does not hold.
    """
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            scrapes = runner.run(measured(Size(), 5 if quick else 21))
    except OSError as error:
        click.echo(f"nothing was measured: {error or type(error).__name__}", err=True)
        sys.exit(1)
    checks = checks_of(scrapes)
    _print(scrapes, checks)
    if json_file is not None:
        data = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "quick": quick,
            "size": asdict(Size()),
            "scrapes": [asdict(each) for each in scrapes],
            "checks": [asdict(each) for each in checks],
        }
        json_file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(check.ok for check in checks) else 1)


def checks_of(scrapes: list[Scrape]) -> list[Check]:
    bound = [each for each in scrapes if each.top == TenantSeries().top]
    cpu_ms, size = max(each.cpu_ms for each in bound), max(each.page_bytes for each in bound)
    return [
        Check("CPU of a scrape, ms", cpu_ms, f"<= {_CPU_MS:g}", cpu_ms <= _CPU_MS),
        Check("page, bytes", size, f"<= {_BYTES:,}", size <= _BYTES),
    ]


async def measured(size: Size, rounds: int) -> list[Scrape]:
    """With the default number of top tenants, and with the most. Raises OSError where no port can be had."""
    found = []
    for top in (TenantSeries().top, MOST_TENANTS):
        filled = Filled(size, top)
        (port,) = free_ports(1)
        http_port = HttpPort(filled.metrics.registry, lambda: True, list, lambda _pool, _most: [])
        await http_port.start("127.0.0.1", port)
        try:
            found += [await _scrape(kind, accept, top, port, rounds) for kind, accept in _FORMATS.items()]
        finally:
            await http_port.stop()
    return found


class Filled:
    """Metrics of pools that have seen all tenants. Time stands still, so that the pages of engines stay fresh."""

    def __init__(self, size: Size, top: int) -> None:
        self.metrics = Metrics("bench")
        self.metrics.configure(TenantSeries(top=top))
        self.schedulers = {f"pool-{i}": Scheduler(_policy(f"pool-{i}")) for i in range(size.pools)}
        self._released: dict[str, list[str]] = {name: [] for name in self.schedulers}
        engines = [f"10.0.{i // 250}.{i % 250}:8000" for i in range(size.endpoints)]
        for name in self.schedulers:
            for engine in engines:
                self._apply(name, EndpointAdded(engine))
                self._apply(name, Scraped(engine, Sample(0, 0, 0.1, 10.0, 5.0, 0.0, 10.0, 10.0, _NOW)))
        names = list(self.schedulers)
        for i in range(size.tenants):
            cls = _CLASSES[i // size.pools % len(_CLASSES)]
            self._apply(names[i % size.pools], Arrive(f"{i:08x}", f"tenant-{i:05d}", cls, _NOW, 1_000 + i))
        for name, released in self._released.items():
            for request in released[: int(_SETTLED * len(released))]:
                self._apply(name, Usage(request, Source.USAGE, 250, 0, 200))
                self._apply(name, End(request))
        scrapers = [
            ScrapeStats(name, engine, "vllm", 1_000, {"timeout": 1}, 0.01, PriorityWay(header=True))
            for name in names
            for engine in engines
        ]
        sets = [EndpointSetStats(name, size.endpoints, 0, 0.5) for name in names]
        fairness = {name: {cls: Fairness(1_000, 0.9, 1e5) for cls in _CLASSES} for name in names}
        self.metrics.watch(
            Sources(
                pools=self._views,
                scrapers=lambda: scrapers,
                sets=lambda: sets,
                fairness=lambda: fairness,
                objectives=lambda: dict.fromkeys(_CLASSES, 10.0),
                leaked=lambda: dict.fromkeys(names, 0),
                modes=lambda: dict.fromkeys(names, "enforce"),
                held_of=self._held_of,
            )
        )

    def _apply(self, pool: str, event: Event) -> None:
        effects = self.schedulers[pool].apply(event, _NOW)
        self._released[pool] += [effect.id for effect in effects if isinstance(effect, Release)]
        if effects:
            self.metrics.effects(pool, effects)

    def _views(self) -> list[PoolView]:
        return [view(scheduler, _NOW) for scheduler in self.schedulers.values()]

    def _held_of(self, pool: str, tenant: str) -> int:
        return sum(cls.queue.queued(tenant) for cls in self.schedulers[pool].classes)


def _policy(name: str) -> PoolPolicy:
    endless = 10**9
    classes = (
        ClassPolicy("interactive", 0, 0, 60.0, 3, endless),
        ClassPolicy("default", 1, 1_000_000, 300.0, 3, endless, max_in_flight=10_000),
        ClassPolicy("batch", 2, 2_000_000, 3_500.0, 0, endless, min_share=0.02),
    )
    window = WindowPolicy(max_num_seqs=_SLOTS)
    return PoolPolicy(name, classes, window=window, max_queued=endless, max_queued_bytes=endless)


async def _scrape(kind: str, accept: str, top: int, port: int, rounds: int) -> Scrape:
    cpu, loop, late = [], [], []
    body = b""
    for number in range(rounds + 1):
        process, own = time.process_time(), time.thread_time()
        body, client = await asyncio.to_thread(_fetched, port, accept)
        if number:  # the first one warms up
            cpu.append(1e3 * (time.process_time() - process - client))
            loop.append(1e3 * (time.thread_time() - own))
            late.append(1e3 * await _latest(port, accept))
    samples = sum(not line.startswith(b"#") for line in body.splitlines())
    median = statistics.median
    return Scrape(kind, top, samples, len(body), median(cpu), median(loop), median(late))


def _fetched(port: int, accept: str) -> tuple[bytes, float]:
    """The page, and CPU seconds that it took the client. In a thread."""
    began = time.thread_time()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    try:
        connection.request("GET", "/metrics", headers={"accept": accept})
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise OSError(f"the page was answered with {answer.status}")
    return body, time.thread_time() - began


async def _latest(port: int, accept: str) -> float:
    """The most seconds that a timer of a millisecond is late while a page is fetched. Apart from the rounds that count
    CPU, since it takes some."""
    fetching = asyncio.ensure_future(asyncio.to_thread(_fetched, port, accept))
    most = 0.0
    while not fetching.done():
        due = time.monotonic() + _PROBE_S
        await asyncio.sleep(_PROBE_S)
        most = max(most, time.monotonic() - due)
    await fetching
    return most


def _print(scrapes: list[Scrape], checks: list[Check]) -> None:
    console = Console()
    table = Table("format", "top tenants", "samples", "bytes", "CPU, ms", "on the loop, ms", "late at most, ms")
    for each in scrapes:
        table.add_row(
            each.format, str(each.top), f"{each.samples:,}", f"{each.page_bytes:,}",
            f"{each.cpu_ms:.1f}", f"{each.loop_ms:.1f}", f"{each.late_ms:.1f}",
        )  # fmt: skip
    console.print(table)
    bounds = Table("what", "figure", "bound", "")
    for check in checks:
        bounds.add_row(check.what, f"{check.value:,.4g}", check.bound, "holds" if check.ok else "FALLS SHORT")
    console.print(bounds)
