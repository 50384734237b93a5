"""`fairlane bench cluster`: several replicas that keep one fair order."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import orjson

from extproc.cli.output import OUTPUT, made_by
from extproc.sim.replica_cost import Cost, cost
from extproc.sim.replica_faults import Outcome, outcomes
from extproc.sim.replica_scenes import Row, row

REPLICAS = (2, 4, 8, 16)
PERIODS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0)
TENANTS = (100, 1_000, 10_000)


@click.command("cluster")
@click.option("--virtual", is_flag=True, help="The core, the division and the store's rule in virtual time.")
@click.option("--quick", is_flag=True, help="Less of it: half a minute with --virtual, five minutes without.")
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes for the table of --virtual."
)
@click.option("--json", "json_file", type=OUTPUT, help="Write everything there.")
def cluster(virtual: bool, quick: bool, jobs: int, json_file: Path | None) -> None:
    """Shares, overshoot and throughput of several replicas beside those of one; what faults do; what an exchange costs.

    As real processes behind a real Envoy, with a store (redis-server or valkey-server on PATH) and a simulated engine,
    in about twenty minutes; or with --virtual, where nothing but this program is needed. Exit code 1 when a bound does
    not hold or nothing could be measured.
    """
    if not virtual:
        from extproc.cli.bench_cluster_table import run

        sys.exit(run(json_file, quick=quick))
    began = time.monotonic()
    replicas, periods = ((2, 4), (0.1, 0.5)) if quick else (REPLICAS, PERIODS_S)
    cells = [(n, p) for n in replicas for p in periods]
    if jobs == 1:
        rows = [row(*cell) for cell in cells]
    else:
        with ProcessPoolExecutor(jobs) as pool:
            rows = list(pool.map(row, *zip(*cells, strict=True)))
    faults = outcomes(replicas[:2])
    costs = [cost(tenants) for tenants in (TENANTS[:2] if quick else TENANTS)]
    _print(rows, faults, costs)
    seconds = time.monotonic() - began
    if json_file is not None:
        json_file.write_bytes(orjson.dumps(_data(rows, faults, costs, seconds), option=orjson.OPT_INDENT_2))
    short = [f"{r.replicas} replicas, {1000 * r.period_s:g} ms: {what}" for r in rows for what in r.short()]
    short += [f"{f.replicas} replicas, {f.title}: {what}" for f in faults for what in f.short()]
    click.echo(f"{seconds:.0f} s")
    for line in short:
        click.echo(f"Falls short: {line}", err=True)
    sys.exit(1 if short else 0)


def _data(rows: list[Row], faults: list[Outcome], costs: list[Cost], seconds: float) -> dict[str, Any]:
    return {
        **made_by(),
        "seconds": round(seconds, 1),
        "rows": [asdict(each) for each in rows],
        "faults": [asdict(each) for each in faults],
        "costs": [asdict(each) for each in costs],
    }


def _print(rows: list[Row], faults: list[Outcome], costs: list[Cost]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(width=max(120, Console().width), highlight=False)
    table = Table(title="Weights 4:1 over all replicas, and ten equal tenants under skew", title_justify="left")
    for name in ("replicas", "period", "4:1 off by", "one's", "Jain", "waiting", "throughput / one's", "flows told"):
        table.add_column(name, justify="right")
    for each in rows:
        mean, high, most = each.waiting
        table.add_row(
            str(each.replicas),
            f"{1000 * each.period_s:g} ms",
            f"{100 * each.ratio_error:+.1f} %",
            f"{100 * each.one_ratio_error:+.1f} %",
            f"{each.jain:.4f}",
            f"{mean:.1f} / {high:g} / {most:g}",
            f"{each.throughput:.3f}",
            str(each.longest_report),
        )
    table.caption = "waiting in the engine: mean / 99.9 % of looks / most; flows told: most in one report"
    console.print(table)
    table = Table(title="Faults", title_justify="left")
    for name in (
        "replicas",
        "fault",
        "throughput / before",
        "waiting most",
        "claims over the limit",
        "shares back after",
    ):
        table.add_column(name, justify="right")
    for found in faults:
        back = "-" if found.back_s is None else f"{found.back_s:.2g} s"
        table.add_row(
            str(found.replicas), found.title, f"{found.throughput:.3f}", f"{found.waiting:g}", f"{found.over_limit:g}",
            back,
        )  # fmt: skip
    console.print(table)
    table = Table(title="An exchange, two replicas: tell and heard", title_justify="left")
    for name in ("tenants that wait", "changed in a period", "ms in the mean", "ms at most", "of a core at 100 ms"):
        table.add_column(name, justify="right")
    for spent in costs:
        table.add_row(
            f"{spent.tenants:,}", str(spent.changed), f"{spent.mean_ms:.2f}", f"{spent.most_ms:.1f}",
            f"{spent.mean_ms:.2f} %",
        )  # fmt: skip
    console.print(table)
