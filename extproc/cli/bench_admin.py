"""`fairlane bench admin`: how soon a change holds for what waits, and what changes and watchers cost."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import click
import grpc
from rich.console import Console
from rich.table import Table

from extproc.cli.admin_knobs import HELD, KNOBS, POOL, SLOTS
from extproc.cli.admin_measures import Storm, Turned, Watched, bench
from extproc.cli.bench_core import Check
from extproc.cli.output import OUTPUT
from extproc.cli.stack import Addresses, Stack, StackError, StackOptions

# What must be reached
_EFFECT_MS: Final = 100.0  # from a call's start to its first effect on what waits
_WATCHERS: Final = 50
_KINDS: Final = ((0, 1.0), (_WATCHERS, 1.0), (_WATCHERS, 0.1))  # the default interval, and the shortest there is
_MORE_CPU: Final = 0.10  # of the service's CPU for a request, with the watchers
_MORE_WAIT_MS: Final = 1.0  # until the release of one that finds room

_STEP: Final = ("--step-base-ms", "4", "--step-per-seq-ms", "0", "--step-per-prefill-token-ms", "0")
_ENGINE_ARGS: Final = (*_STEP, "--record-requests", "1000000")
_CONFIG: Final[dict[str, Any]] = {"tenants": {"*": {"max_queued": 10_000}}}
_WINDOW: Final = {"controller": "fixed", "fixed": SLOTS, "overtake": 0, "stalled_after": None}


@dataclass(frozen=True, slots=True)
class Figures:
    turned: list[Turned]
    storm: Storm | None
    watched: list[Watched]  # by _KINDS


@click.command("admin")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--changes", type=click.IntRange(0), default=1000, show_default=True,
              help="Good ones by chance, and as many bad ones, under load; 0: none.")  # fmt: skip
@click.option("--repeats", type=click.IntRange(1), default=7, show_default=True, help="Of each knob.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True,
              help="Of load with and without watchers.")  # fmt: skip
@click.option("--round-s", type=click.FloatRange(0.5), default=4.0, show_default=True, help="Seconds of each.")
def admin(json_file: Path | None, changes: int, repeats: int, rounds: int, round_s: float) -> None:
    """Changes of a running service: a real Envoy, 200 held requests, two simulated engines on this machine.

    For each knob: the time from the call's start until engines or clients see its effect. Then good and bad changes by
    chance while load flows: whether a request is lost or sent twice. Then load with and without 50 watchers that do
    not read. Exit code 1 when a bound does not hold or nothing could be measured.
    """
    addresses = Addresses.free(2)
    pool = {"name": POOL, "models": ["*"], "endpoints": [str(at) for at in addresses.engines], "window": _WINDOW}
    options = StackOptions(addresses=addresses, engine_args=_ENGINE_ARGS, config={**_CONFIG, "pools": [pool]})
    try:
        figures = asyncio.run(_measured(options, changes, repeats, rounds, round_s))
    except (StackError, grpc.aio.AioRpcError, OSError) as error:
        click.echo(f"nothing was measured: {error}", err=True)
        sys.exit(1)
    checks = checks_of(figures)
    _print(figures, checks)
    if json_file is not None:
        data = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            **asdict(figures),
            "checks": [asdict(each) for each in checks],
        }
        json_file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(check.ok for check in checks) else 1)


async def _measured(options: StackOptions, changes: int, repeats: int, rounds: int, round_s: float) -> Figures:
    async with Stack(options) as stack, bench(stack) as measures:
        turned = []
        for knob in KNOBS:
            click.echo(f"{knob.name}: {repeats} times", err=True)
            turned.append(await measures.turn(knob, repeats))
        click.echo(f"load with and without {_WATCHERS} watchers: {rounds} rounds of {round_s:g} s each", err=True)
        watched = await measures.watched(_KINDS, rounds, round_s)
        storm = None
        if changes:
            click.echo(f"{changes} good and {changes} bad changes", err=True)
            storm = await measures.storm(changes)
        return Figures(turned, storm, watched)


def checks_of(figures: Figures) -> list[Check]:
    slowest = max(each.first_median for each in figures.turned)
    none, many, *_ = figures.watched
    cpu, wait = many.cpu_ms / none.cpu_ms - 1, many.wait_ms - none.wait_ms
    checks = [
        Check("first effect of the slowest knob, ms", slowest, f"<= {_EFFECT_MS:g}", slowest <= _EFFECT_MS),
        Check(f"more CPU with {_WATCHERS} watchers, share", cpu, f"<= {_MORE_CPU:g}", cpu <= _MORE_CPU),
        Check(f"more wait with {_WATCHERS} watchers, ms", wait, f"<= {_MORE_WAIT_MS:g}", wait <= _MORE_WAIT_MS),
    ]  # fmt: skip
    if figures.storm is not None:
        storm = figures.storm
        wrong = storm.lost + storm.twice + storm.faults
        checks.append(Check("requests lost or sent twice, faults", wrong, "== 0", wrong == 0))
        checks.append(Check("bad changes refused", storm.bad, f"== {storm.good}", storm.bad == storm.good))
    return checks


def _print(figures: Figures, checks: list[Check]) -> None:
    console = Console()
    knobs = Table("knob", "moved", "call", "first effect", "most", "last effect", "most")
    for each in figures.turned:
        knobs.add_row(
            each.name, str(each.effects), f"{each.call_median:.1f}", f"{each.first_median:.1f}",
            f"{each.first_max:.1f}", f"{each.last_median:.1f}", f"{each.last_max:.1f}",
        )  # fmt: skip
    console.print(f"{HELD} held; ms since the call began, medians and most")
    console.print(knobs)
    watched = Table("watchers", "each, s", "requests", "CPU, ms", "wait, ms", "wait p99, ms", "answer, ms", "MiB more")
    for row in figures.watched:
        watched.add_row(
            str(row.watchers), f"{row.interval_s:g}", f"{row.requests:,}", f"{row.cpu_ms:.3f}", f"{row.wait_ms:.2f}",
            f"{row.wait_ms_p99:.2f}", f"{row.answer_ms:.1f}", f"{row.growth_mib:.1f}",
        )  # fmt: skip
    console.print(watched)
    storm = figures.storm
    if storm is not None:
        told = ", ".join(f"{count:,} {name}" for name, count in sorted(storm.outcomes.items()))
        console.print(
            f"{storm.good} good and {storm.bad} bad changes in {storm.took_s:.0f} s ({storm.change_ms:.1f} ms for a "
            f"good one), {storm.requests:,} requests: {told}; lost {storm.lost}, sent twice {storm.twice}, faults "
            f"{storm.faults}"
        )
    bounds = Table("what", "figure", "bound", "")
    for check in checks:
        bounds.add_row(check.what, f"{check.value:,.4g}", check.bound, "holds" if check.ok else "FALLS SHORT")
    console.print(bounds)
