"""`fairlane bench wire`: what the gateway costs on the wire, through the real Envoy."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import click
from rich.console import Console
from rich.table import Table

from extproc.cli.bench_core import Check, found_as_json
from extproc.cli.output import OUTPUT
from extproc.cli.stack import StackError
from extproc.cli.wire_instructions import Instructions, instructions, why_not
from extproc.cli.wire_measures import MEASURES as WIRE_MEASURES
from extproc.cli.wire_measures import (
    QUICK,
    READING_FLOOR,
    WAITING_FLOOR,
    Cpu,
    Held,
    Latency,
    Scale,
    Soak,
    above,
    added,
    ratio,
)
from extproc.cli.wire_telemetry import Looked, telemetry

MEASURES = {**WIRE_MEASURES, "telemetry": telemetry, "instructions": instructions}

# What must be reached
_STANDARD_MS, _BODY_MS, _ABOVE_FLOOR_MS = 0.7, 1.0, 0.15  # CPU of ours for each request
_SIZE_RATIO = 1.10  # CPU with 2 MB bodies / with 2 KB
_TELEMETRY = 1.05  # with all telemetry / with none
_APART, _COUNTS_APART = 0.05, 0.01  # of two without any, in CPU time and counted; beyond, neither can tell
_P50_MS, _P99_MS = 2.0, 10.0  # added to Envoy alone
_HELD_BYTES = 40_960  # for each held request
_GROWTH, _GROWTH_BYTES = 1.05, 10 * 2**20  # of resident memory, second fifth to last; one of the two
_MORE_TASKS = 8  # streams of the access log and scrapers come and go

Found = dict[str, Any]


@click.command("wire")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--quick", is_flag=True, help="A smaller load: some minutes in place of about half an hour.")
@click.option("--only", "names", multiple=True, type=click.Choice(list(MEASURES)), help="This one; may be repeated.")
@click.option(
    "--keep",
    type=click.Path(file_okay=False, path_type=Path),
    help="Leave configurations and logs of all parts in this folder.",
)
def wire(json_file: Path | None, quick: bool, names: tuple[str, ...], keep: Path | None) -> None:
    """CPU for each request, added latency, memory of held requests, and a soak with clients that leave.

    Envoy, the service, an engine and a load generator, all on this machine. What is compared is measured in turn in
    the same run: the service beside the least that a gRPC server in Python can do, and Envoy with the filter beside
    Envoy alone. What telemetry costs is decided by a count of instructions, which needs valgrind; without it, by CPU
    time. Exit code 1 when a bound does not hold or nothing could be measured.
    """
    if sys.platform != "linux":
        click.echo("bench wire reads CPU and memory as Linux shows them, and runs only there.", err=True)
        sys.exit(1)
    scale = QUICK if quick else Scale()
    wanted = [n for n in MEASURES if not names or n in names]
    if wanted != ["instructions"] and "instructions" in wanted and (reason := why_not()) is not None:
        _tell(f"left out: {reason}")
        wanted.remove("instructions")
    try:
        found = asyncio.run(_measure(wanted, scale, keep))
    except (StackError, OSError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    checks = list(checks_of(found))
    show(found, checks)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(found, checks, scale, quick), indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(check.ok for check in checks) else 1)


async def _measure(names: list[str], scale: Scale, keep: Path | None) -> Found:
    found: Found = {}
    for name in names:
        if keep is None:
            with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as directory:
                found[name] = await MEASURES[name](Path(directory), scale, _tell)
        else:
            (keep / name).mkdir(parents=True, exist_ok=True)
            found[name] = await MEASURES[name](keep / name, scale, _tell)
    return found


def _tell(what: str) -> None:
    click.echo(what, err=True)


def checks_of(found: Found) -> Iterator[Check]:
    """The bounds of what was measured. Where telemetry's instructions were counted, its CPU time decides nothing."""
    for name, check in _CHECKS.items():
        if name in found and not (name == "telemetry" and "instructions" in found):
            yield from check(found[name])


def _most(what: str, value: float, most: float) -> Check:
    return Check(what, value, f"<= {most:g}", value <= most)


def _cpu_checks(cpu: dict[str, Cpu]) -> Iterator[Check]:
    yield _most("CPU of ours for a request, standard, 2 KB, ms", cpu["standard, 2 KB"].median_ms, _STANDARD_MS)
    share = above(cpu, "standard, 2 KB", READING_FLOOR)
    yield _most("of it above the bare gRPC server, ms", share, _ABOVE_FLOOR_MS)
    size = ratio(cpu, "standard, 2 MB, paced", "standard, 2 KB, paced")
    yield _most("with 2 MB / with 2 KB, at the same pace", size, _SIZE_RATIO)
    yield _most("CPU of ours for a request, body, 2 KB, ms", cpu["body, 2 KB"].median_ms, _BODY_MS)


def _latency_checks(latency: dict[str, Latency]) -> Iterator[Check]:
    alone, ours = latency["alone"], latency["with"]
    yield _most("latency added to Envoy alone, p50, ms", added(ours.p50_ms, alone.p50_ms), _P50_MS)
    yield _most("latency added to Envoy alone, p99, ms", added(ours.p99_ms, alone.p99_ms), _P99_MS)


def _held_checks(held: Held) -> Iterator[Check]:
    answered = held.answers.get("200", 0)
    yield Check("held at once", held.held, f">= {held.requests - 16}", held.held >= held.requests - 16)
    yield Check("of these and those inside answered", answered, f"= {held.requests}", answered == held.requests)
    yield _most("bytes of ours for each held request", held.bytes_each, _HELD_BYTES)


def _soak(soak: Soak) -> Iterator[Check]:
    left = sum(soak.left.values())
    answered = soak.answers.get("200", 0)
    yield Check(
        "answered, of those that waited", answered, f"= {soak.requests - left}", answered + left == soak.requests
    )
    second, last = soak.fifth(2), soak.fifth(5)
    flat = last <= second * _GROWTH or last - second <= _GROWTH_BYTES
    yield Check("resident memory, last fifth / second", last / second, f"<= {_GROWTH:g} or 10 MiB", flat)
    open_ = soak.held_at_the_end + soak.inside_at_the_end + soak.known_at_the_end
    yield Check("held, inside or known at the end", open_, "= 0", open_ == 0)
    more = soak.tasks[-1] - soak.tasks[0]
    yield _most("asyncio tasks, end - start", more, _MORE_TASKS)
    yield Check("faults", soak.faults, "= 0", soak.faults == 0)


def _telemetry_checks(looked: Looked) -> Iterator[Check]:
    yield _most("CPU for a request, all telemetry / none", looked.all_of_it, _TELEMETRY)
    yield _most("two processes without any are apart by", looked.apart, _APART)


def _instruction_checks(counted: Instructions) -> Iterator[Check]:
    yield _most("instructions for a request, all telemetry / none", counted.all_of_it, _TELEMETRY)
    yield _most("counts of two processes without any are apart by", counted.apart, _COUNTS_APART)


_CHECKS: dict[str, Callable[[Any], Iterator[Check]]] = {
    "cpu": _cpu_checks,
    "latency": _latency_checks,
    "held": _held_checks,
    "soak": _soak,
    "telemetry": _telemetry_checks,
    "instructions": _instruction_checks,
}


def show(found: Found, checks: list[Check]) -> None:
    console = Console(width=max(100, Console().width), highlight=False)
    if "cpu" in found:
        table = Table("CPU for each request, ms", "median", "lowest", "highest", "Envoy", title_justify="left")
        for name, each in cast(dict[str, Cpu], found["cpu"]).items():
            rounds = sorted(each.rounds_ms)
            figures = (each.median_ms, rounds[0], rounds[-1], sorted(each.envoy_ms)[len(each.envoy_ms) // 2])
            table.add_row(name, *(f"{value:.3f}" for value in figures))
        console.print(table)
        for floor in (READING_FLOOR, WAITING_FLOOR):
            console.print(f"above the {floor}: {above(found['cpu'], 'standard, 2 KB', floor):.3f} ms")
    if "telemetry" in found:
        looked = cast(Looked, found["telemetry"])
        table = Table("CPU for each request, ms", "median", "lowest", "highest", "/ off", title_justify="left")
        for name, each in looked.rows.items():
            told_of = (each.median_ms, min(each.rounds_ms), max(each.rounds_ms), looked.ratio(name))
            table.add_row(name, *(f"{value:.3f}" for value in told_of))
        console.print(table)
    if "instructions" in found:
        _show_counted(console, cast(Instructions, found["instructions"]))
    if "latency" in found:
        table = Table("latency, ms", "p50", "p90", "p99", "generator late, p99", "CPU of ours")
        for name, way in cast(dict[str, Latency], found["latency"]).items():
            columns = (way.p50_ms, way.p90_ms, way.p99_ms, way.late_p99_ms, way.server_cpu_ms)
            medians = (f"{statistics.median(values):.2f}" if values else "-" for values in columns)
            table.add_row(f"Envoy {'alone' if name == 'alone' else 'and Fairlane'}", *medians)
        console.print(table)
    if "held" in found:
        held = cast(Held, found["held"])
        console.print(
            f"{held.held:,} held at once; {held.bytes_each / 1024:.1f} KiB each of ours, "
            f"{held.envoy_bytes_each / 1024:.1f} KiB of Envoy; answers {held.answers}, refused {held.refused}"
        )
    if "soak" in found:
        soak = cast(Soak, found["soak"])
        fifths = ", ".join(f"{soak.fifth(number) / 2**20:.1f}" for number in range(1, 6))
        console.print(
            f"{soak.requests:,} requests in {soak.seconds:.0f} s: answers {soak.answers}, left {soak.left}; "
            f"MiB resident by fifths {fifths}; tasks {soak.tasks[0]} -> {soak.tasks[-1]}, "
            f"objects {soak.objects[0]:,} -> {soak.objects[-1]:,}"
        )
    bounds = Table("what", "figure", "bound", "")
    for check in checks:
        bounds.add_row(check.what, f"{check.value:,.4g}", check.bound, "holds" if check.ok else "FALLS SHORT")
    console.print(bounds)


def _show_counted(console: Console, counted: Instructions) -> None:
    a_request = f"a request at {counted.rate:g} a second"
    table = Table("instructions, thousands", "a request", "a second", "a scrape", a_request, "/ off")
    for name, each in counted.rows.items():
        figures = (each.request_median, each.second_median, each.scrape_median, each.at(counted.rate))
        table.add_row(name, *(f"{value / 1e3:,.1f}" for value in figures), f"{counted.ratio(name):.3f}")
    console.print(table)
    from_ = counted.rate_for(_TELEMETRY)
    at = "at no rate" if from_ is None else f"from {from_:,.0f} requests a second on"
    console.print(
        f"all of it (page open, a scrape each 15 s, {counted.sample:.0%} of the requests traced) / off: "
        f"{counted.all_of_it:.3f}; within {_TELEMETRY:g} {at}"
    )


def as_json(found: Found, checks: list[Check], scale: Scale, quick: bool) -> dict[str, Any]:
    """Everything that was found, with what is needed to find it again."""
    return found_as_json({name: _plain(value) for name, value in found.items()}, checks, scale, quick)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    plain = dataclasses.asdict(value)
    return {**plain, "median_ms": value.median_ms} if isinstance(value, Cpu) else plain
