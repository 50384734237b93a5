"""`fairlane bench fairness`: the workloads of the design in virtual time, beside every baseline."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import Any

import click
import orjson

from extproc.cli.output import OUTPUT, made_by
from extproc.sim.report import Result, run_all
from extproc.sim.workloads import BY_KEY
from extproc.sim.workloads.workload import Scale

_TRACES = Path("../shared/traces")


@click.command("fairness")
@click.option(
    "--workload", "keys", multiple=True, type=click.Choice(list(BY_KEY)), help="Only this one; may be repeated."
)
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    help="Runs of each workload.  [default: 5, of the long ones 1 or 3; quick: 1]",
)
@click.option("--quick", is_flag=True, help="Shorter runs and one seed, for a look: in two minutes.")
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes for the seeds.")
@click.option(
    "--traces",
    type=click.Path(file_okay=False, path_type=Path),
    default=_TRACES,
    show_default=True,
    help="Folder of the traces of workload 12.",
)
@click.option("--json", "json_file", type=OUTPUT, help="Write everything there.")
def fairness(
    keys: tuple[str, ...], seeds: int | None, quick: bool, jobs: int, traces: Path, json_file: Path | None
) -> None:
    """Run the workloads in virtual time: Fairlane's scheduler beside direct access, FIFO, round robin and others.

    No engine, Envoy or network is needed. The figures are medians over the seeds, and each workload states what must
    hold of them. Exit code 1 when something does not, with what falls short, its value and its bound.
    """
    scale = Scale(quick=quick, traces=traces if traces.is_dir() else None)
    began = time.monotonic()
    results = run_all(keys or tuple(BY_KEY), seeds, scale, jobs, _print)
    seconds = time.monotonic() - began
    if json_file is not None:
        data = as_json(results, quick, seconds)
        json_file.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    short = [f"workload {r.workload.key}: {v.sentence()}" for r in results for v in r.verdicts if not v.ok]
    held = sum(v.ok for r in results for v in r.verdicts)
    click.echo(f"{held} of {held + len(short)} hold; {seconds:.0f} s")
    for line in short:
        click.echo(f"Falls short: {line}", err=True)
    sys.exit(1 if short else 0)


def as_json(results: list[Result], quick: bool, seconds: float) -> dict[str, Any]:
    """Everything that was found, with what is needed to find it again."""
    return {
        **made_by(),
        "quick": quick,
        "seconds": round(seconds, 1),
        "ok": all(v.ok for r in results for v in r.verdicts),
        "workloads": [result.as_json() for result in results],
    }


def _print(result: Result) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=max(140, Console().width), highlight=False)
    workload = result.workload
    if result.skipped is not None:
        console.print(f"Workload {workload.key}, {workload.title}: skipped, {result.skipped}\n", markup=False)
        return
    for case, ways in result.table.items():
        title = f"Workload {workload.key}: {workload.title}" + (f"\n{case}" if case else "")
        runs = f"{len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}"
        table = Table(title=title, caption=f"{workload.span}; medians of {runs}", title_justify="left")
        table.add_column("figure", min_width=30)
        for way in ways:
            table.add_column(way, justify="right")
        for name in dict.fromkeys(name for figures in ways.values() for name in figures):
            table.add_row(name, *(_number(figures.get(name)) for figures in ways.values()))
        console.print(table)
    for verdict in result.verdicts:
        console.print(("holds        " if verdict.ok else "FALLS SHORT  ") + verdict.sentence(), markup=False)
    console.print()


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "-"
    if value == int(value) and abs(value) < 1e6:
        return str(int(value))
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
