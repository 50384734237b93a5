"""What `bench cluster` shows of several real processes, and what must hold."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from extproc.cli.bench_cluster_real import QUICK, Q, Result, Scale, Shares, real
from extproc.cli.bench_core import Check, found_as_json
from extproc.cli.stack import StackError

# What must be reached
_RATIO, _WITHIN = 4.0, 0.05
_JAIN = 0.98
_THROUGHPUT = 0.98  # / that of one process
_RETURNED_S = 5.0
_AWAY = 0.90  # throughput without the store / with it
_COST = 1.10  # CPU for a request


def run(json_file: Path | None, *, quick: bool) -> int:
    """Measure and show. The exit code: 1 when a bound does not hold or nothing could be measured."""
    if sys.platform != "linux":
        click.echo("bench cluster reads CPU as Linux shows it, and runs only there; --virtual runs anywhere.", err=True)
        return 1
    scale = QUICK if quick else Scale()
    try:
        with tempfile.TemporaryDirectory(prefix="fairlane-bench-") as directory:
            result = asyncio.run(real(Path(directory), scale, lambda what: click.echo(what, err=True)))
    except (StackError, OSError) as error:
        click.echo(str(error), err=True)
        return 1
    console = Console(width=max(150, Console().width), highlight=False)
    for table in tables(result):
        console.print(table)
    found = list(checks(result))
    bounds = Table("what", "figure", "bound", "")
    for check in found:
        bounds.add_row(check.what, f"{check.value:,.4g}", check.bound, "holds" if check.ok else "FALLS SHORT")
    console.print(bounds)
    if json_file is not None:
        json_file.write_text(json.dumps(as_json(result, found, scale, quick), indent=2) + "\n", encoding="utf-8")
    return 0 if all(check.ok for check in found) else 1


def as_json(result: Result, found: list[Check], scale: Scale, quick: bool) -> dict[str, Any]:
    """Everything that was found, with what is needed to find it again."""
    return found_as_json(dataclasses.asdict(result), found, scale, quick)


def tables(result: Result) -> Iterator[Table]:
    """Shares and room; what they cost; what the store is asked."""
    table = Table(
        *(
            "processes",
            "4 : 1",
            "Jain",
            "waiting, 99.9 %",
            "most",
            "slots used / one",
            "tokens/s / one",
            "share back, s",
            "slots used meanwhile",
        ),
        *("slots used without the store / with it", "waiting, 99.9 %"),
        title="shares, by the engine's journal",
        title_justify="left",
    )
    for count, shares in result.shares.items():
        table.add_row(
            _name(count),
            f"{_median(shares.ratio):.3f}",
            f"{_median(shares.jain):.4f}",
            f"{_median(shares.waiting_999):.0f}",
            f"{max(shares.waiting_max)}",
            f"{result.throughput(count):.3f}",
            f"{result.tokens(count):.3f}",
            f"{max(shares.returned_s):.2f}" if shares.returned_s else "-",
            f"{_median(shares.meanwhile):.2f}" if shares.meanwhile else "-",
            *((f"{shares.away.throughput:.3f}", f"{shares.away.engine.waiting_999}") if shares.away else ("-", "-")),
        )
    yield table
    table = Table(
        *(
            "processes",
            "CPU for each request, ms",
            "one, at the same rate",
            "one, at the rate of each",
            "as many apart",
        ),
        *("/ one", "/ one at the rate of each", "/ apart"),
        title="cost, all services together",
        title_justify="left",
    )
    for count, costs in result.costs.items():
        medians = (_median(each.ms) for each in (costs.shared, costs.single, costs.at_part, costs.apart))
        figures = (*medians, costs.to_single, costs.to_part, costs.to_apart)
        table.add_row(_name(count), *(f"{value:.3f}" for value in figures))
    yield table
    table = Table(
        *("processes", "exchanges/s of each", "CPU of a service for one, ms", "CPU of the store, ms"),
        *("bytes to the store", "bytes from it"),
        title="exchanges, with one answer under way at each",
        title_justify="left",
    )
    for count, costs in result.costs.items():
        if (each := costs.exchanges) is not None:
            milliseconds = (f"{value:.3f}" for value in (each.service_ms, each.store_ms))
            sizes = (f"{value:,.0f}" for value in (each.bytes_in, each.bytes_out))
            table.add_row(_name(count), f"{each.per_replica_s:.1f}", *milliseconds, *sizes)
    yield table


def checks(result: Result) -> Iterator[Check]:
    """The bounds of several replicas, as medians over the rounds."""
    for count, shares in result.shares.items():
        if count > 1:
            yield from _share_checks(result, count, shares)
    for count, costs in result.costs.items():
        for what, cost in (("one at the same rate", costs.to_single), ("as many that share nothing", costs.to_apart)):
            yield Check(f"CPU for a request, {count} / {what}", cost, f"<= {_COST:g}", cost <= _COST)


def _share_checks(result: Result, count: int, shares: Shares) -> Iterator[Check]:
    ratio, index, waiting = _median(shares.ratio), _median(shares.jain), _median(shares.waiting_999)
    within = abs(ratio / _RATIO - 1) <= _WITHIN
    yield Check(f"weights 4 : 1 at {count} replicas", ratio, f"{_RATIO:g} +- {_WITHIN:.0%}", within)
    yield Check(f"Jain's index, {count} replicas", index, f">= {_JAIN:g}", index >= _JAIN)
    yield Check(f"waiting in the engine, 99.9 %, {count}", waiting, f"<= {Q + count}", waiting <= Q + count)
    throughput = result.throughput(count)
    yield Check(f"slots used, {count} / one", throughput, f">= {_THROUGHPUT:g}", throughput >= _THROUGHPUT)
    if shares.returned_s:
        most = max(shares.returned_s)
        yield Check(f"share back after kill -9, {count}, s", most, f"<= {_RETURNED_S:g}", most <= _RETURNED_S)
    if shares.away is not None:
        without, engine = shares.away.throughput, shares.away.engine.waiting_999
        yield Check(f"slots used without the store / with it, {count}", without, f">= {_AWAY:g}", without >= _AWAY)
        yield Check(f"waiting meanwhile, 99.9 %, {count}", engine, f"<= {Q + count}", engine <= Q + count)


def _name(count: int) -> str:
    return "1, single" if count == 1 else f"{count}, shared"


def _median(values: list[float] | list[int]) -> float:
    return statistics.median(values)
