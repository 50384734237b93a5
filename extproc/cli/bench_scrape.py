"""`fairlane bench scrape`: what reading engines' metrics pages costs this process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import click
import structlog
from rich.console import Console
from rich.table import Table

from extproc.cli.bench_core import Check
from extproc.cli.child import Child
from extproc.cli.output import OUTPUT
from extproc.cli.ports import free_ports
from extproc.cli.scrape_pages import filtered, vllm_page
from extproc.config.metrics import Metrics
from extproc.engines.access import Access
from extproc.engines.dialects import VLLM, MissingSignalError
from extproc.engines.exposition import MetricsError, parse
from extproc.engines.parse_cost import parse_cost
from extproc.engines.scraper import Scraper
from extproc.sim.wire_engine import loop_factory

# What must be reached
_PARSE_MS: Final = 1.0  # for a full vLLM page
_IDLE_PERCENT: Final = 2.0  # of a core, for _IDLE_ENDPOINTS
_IDLE_ENDPOINTS: Final = 100

_PAGE_BYTES: Final = 60_000
_BUSY_ENDPOINTS: Final = 10
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Reading:
    """Medians, CPU time of one page."""

    what: str
    page_bytes: int
    parse_ms: float
    read_ms: float  # parsing, and making a sample of it
    prometheus_client_ms: float
    ratio: float  # prometheus-client's parser / ours


@dataclass(frozen=True, slots=True)
class Scraping:
    """Of this process, while the pages come from another one."""

    what: str
    endpoints: int
    interval_s: float
    scrapes_per_s: float
    each_ms: float  # CPU of one scrape, median of the rounds
    percent: float  # of a core, median of the rounds


@click.command("scrape")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--quick", is_flag=True, help="Shorter rounds: half a minute in place of three minutes.")
@click.option(
    "--page",
    "page_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A vLLM metrics page of your own in place of a made one.",
)
def scrape(json_file: Path | None, quick: bool, page_file: Path | None) -> None:
    """CPU of reading a vLLM page, of 100 idle endpoints, and of one scrape of a busy one.

    Pages come from another process on this machine. prometheus-client's parser reads the same page in the same run. CPU
    time of this process, all of its threads, with the event loop that `serve` takes. Exit code 1 when a bound does not
    hold or nothing could be measured.
    """
    try:
        page = vllm_page(_PAGE_BYTES) if page_file is None else page_file.read_bytes()
        readings = [_reading("full page", page), _reading("filtered page", filtered(page, sorted(VLLM.sample_names)))]
    except (MetricsError, MissingSignalError, ValueError, OSError) as error:
        click.echo(f"the page cannot be measured: {error}", err=True)
        sys.exit(1)
    rounds, round_s = (3, 4.0) if quick else (7, 8.0)
    try:
        with _quiet(), asyncio.Runner(loop_factory=loop_factory()) as runner:
            scrapings = runner.run(_scrapings(page, rounds, round_s))
    except (OSError, TimeoutError, RuntimeError) as error:
        click.echo(f"nothing was measured: {error or type(error).__name__}", err=True)
        sys.exit(1)
    checks = checks_of(readings, scrapings)
    _print(readings, scrapings, checks)
    if json_file is not None:
        data = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "quick": quick,
            "readings": [asdict(each) for each in readings],
            "scrapings": [asdict(each) for each in scrapings],
            "checks": [asdict(each) for each in checks],
        }
        json_file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(check.ok for check in checks) else 1)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the scrapers' own lines, two for each endpoint."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)


def checks_of(readings: list[Reading], scrapings: list[Scraping]) -> list[Check]:
    parsing = next(each for each in readings if each.what == "full page").parse_ms
    idle = next(each for each in scrapings if each.what == "idle, filtered page").percent
    return [
        Check("parsing a full page, ms", parsing, f"<= {_PARSE_MS:g}", parsing <= _PARSE_MS),
        Check(
            f"{_IDLE_ENDPOINTS} idle endpoints, % of a core", idle, f"<= {_IDLE_PERCENT:g}", idle <= _IDLE_PERCENT
        ),
    ]  # fmt: skip


def _reading(what: str, page: bytes, runs: int = 200) -> Reading:
    names = VLLM.sample_names
    reference_s = parse_cost(page, names, runs=runs).prometheus_client_s
    parsing, both = [], []
    for _ in range(runs):
        began = time.thread_time()
        samples = parse(page, names)
        parsed = time.thread_time()
        VLLM.read(samples, 0.0)
        both.append(time.thread_time() - began)
        parsing.append(parsed - began)
    parse_s = statistics.median(parsing)
    return Reading(
        what, len(page), 1e3 * parse_s, 1e3 * statistics.median(both), 1e3 * reference_s, reference_s / parse_s
    )


async def _scrapings(page: bytes, rounds: int, round_s: float) -> list[Scraping]:
    defaults = Metrics()
    idle = (_IDLE_ENDPOINTS, defaults.idle_interval, False)
    busy = (_BUSY_ENDPOINTS, defaults.interval, True)
    found = []
    for what, (endpoints, interval_s, is_busy), words in (
        ("idle, filtered page", idle, ("still", "filter")),
        ("idle, full page", idle, ("still", "no_filter")),
        ("busy, filtered page", busy, ("moves", "filter")),
        ("busy, full page", busy, ("moves", "no_filter")),
    ):
        click.echo(f"{what}: {endpoints} endpoints, every {interval_s:g} s", err=True)
        async with _engine(page, words) as url:
            found.append(await _scraping(what, url, endpoints, interval_s, is_busy, rounds, round_s))
    return found


async def _scraping(
    what: str, url: str, endpoints: int, interval_s: float, busy: bool, rounds: int, round_s: float
) -> Scraping:
    samples = 0
    failures: list[str] = []

    def count(_: object) -> None:
        nonlocal samples
        samples += 1

    access = Access()
    scrapers = [
        Scraper(
            f"engine-{number}",
            url,
            access=access,
            dialect=VLLM,
            interval_s=min(interval_s, Metrics().interval),
            idle_interval_s=interval_s,
            timeout_s=Metrics().timeout,
            on_sample=count,
            on_failure=lambda failure: failures.append(failure.message),
            busy=lambda: busy,
            clock=time.monotonic,
        )
        for number in range(endpoints)
    ]
    tasks = []
    try:
        for scraper in scrapers:  # begun over one interval, as they are after some time
            tasks.append(asyncio.create_task(scraper.run()))
            await asyncio.sleep(interval_s / endpoints)
        each_ms, percent, per_s = [], [], []
        for _ in range(rounds):
            before, cpu, began = samples, time.process_time(), time.monotonic()
            await asyncio.sleep(max(round_s, 2 * interval_s))
            spent, took, came = time.process_time() - cpu, time.monotonic() - began, samples - before
            if not came:
                raise RuntimeError(f"{what}: no page came; {failures[-1] if failures else 'no failure was told'}")
            each_ms.append(1e3 * spent / came)
            percent.append(100 * spent / took)
            per_s.append(came / took)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    median: Callable[[list[float]], float] = statistics.median
    return Scraping(what, endpoints, interval_s, median(per_s), median(each_ms), median(percent))


@contextlib.asynccontextmanager
async def _engine(page: bytes, words: tuple[str, str]) -> AsyncIterator[str]:
    """A child process that serves the page; its URL. Raises TimeoutError when it does not come up."""
    with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as directory:
        folder = Path(directory)
        (folder / "page").write_bytes(page)
        (port,) = free_ports(1)
        argv = [sys.executable, "-m", "extproc.cli.scrape_pages", str(port), str(folder / "page"), *words]
        child = Child("pages", argv, log=folder / "log", directory=folder, env=os.environ)
        child.start()
        try:
            await _listens(child, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.kill()


async def _listens(child: Child, port: int) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        if child.failed or time.monotonic() > deadline:
            raise TimeoutError(f"the process that serves the pages does not come up: {child.tail()}")
        await asyncio.sleep(0.05)


def _print(readings: list[Reading], scrapings: list[Scraping], checks: list[Check]) -> None:
    console = Console()
    pages = Table("page", "bytes", "parse, ms", "parse and read, ms", "reference parser, ms", "times as long")
    for reading in readings:
        pages.add_row(
            reading.what, f"{reading.page_bytes:,}", f"{reading.parse_ms:.3f}", f"{reading.read_ms:.3f}",
            f"{reading.prometheus_client_ms:.2f}", f"{reading.ratio:.0f}",
        )  # fmt: skip
    console.print(pages)
    table = Table("endpoints", "number", "every, s", "scrapes/s", "CPU of one, ms", "% of a core")
    for each in scrapings:
        table.add_row(
            each.what, str(each.endpoints), f"{each.interval_s:g}", f"{each.scrapes_per_s:.1f}",
            f"{each.each_ms:.3f}", f"{each.percent:.2f}",
        )  # fmt: skip
    console.print(table)
    bounds = Table("what", "figure", "bound", "")
    for check in checks:
        bounds.add_row(check.what, f"{check.value:,.4g}", check.bound, "holds" if check.ok else "FALLS SHORT")
    console.print(bounds)
