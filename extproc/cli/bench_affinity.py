"""`fairlane bench affinity`: what it gives to choose endpoints by prefix and session, in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

import click
import orjson

from extproc import __version__
from extproc.cli.output import OUTPUT
from extproc.sim.affinity import CASES, WAYS, measure


@click.command("affinity")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each case.")
@click.option(
    "--seconds", type=click.FloatRange(30, 3600), default=240.0, show_default=True, help="Virtual seconds of each run."
)
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
def affinity(seeds: int, seconds: float, json_file: Path | None) -> None:
    """Conversations with shared system prompts on three engines, by several weights of `pick`.

    No engine, Envoy or network is needed. Figures are medians over the seeds; the first fifth of each run warms up.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for case in CASES:
        found[case.name] = {}
        for way in WAYS:
            runs = [measure(case, way, seed, seconds) for seed in range(1, seeds + 1)]
            found[case.name][way.name] = {name: median(run[name] for run in runs) for name in runs[0]}
        _print(case.name, found[case.name])
    if json_file is not None:
        data = {
            "command": " ".join(["fairlane", *sys.argv[1:]]),
            "fairlane": __version__,
            "seeds": seeds,
            "seconds": seconds,
            "cases": found,
        }
        json_file.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))


def _print(case: str, ways: dict[str, dict[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=case, title_justify="left")
    table.add_column("weights", min_width=20)
    for name in next(iter(ways.values())):
        table.add_column(name, justify="right")
    for way, figures in ways.items():
        table.add_row(way, *(f"{value:.3f}" for value in figures.values()))
    Console(width=max(140, Console().width), highlight=False).print(table)
