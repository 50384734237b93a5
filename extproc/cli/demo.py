"""`fairlane demo`: one noisy tenant and two polite ones, with and without Fairlane, through the real Envoy.

`noisy` sends a burst of 200 requests at once; `team-a` and `team-b` send one each second. First straight
to the engines (Envoy without the filter), then through Fairlane; the same requests, the same engines.
"""

from __future__ import annotations

import asyncio
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson

from extproc.cli.stack import Addresses, Stack, StackError, StackOptions
from extproc.sim.fairness import jain, max_min_shares, percentile
from extproc.sim.load import Outcome, Shot, run

_MODEL = "sim-7b"
_NOISY, _POLITE = "noisy", ("team-a", "team-b")
_BURST = 200
_POLITE_S = 16  # seconds for which the polite ones send; the burst keeps the engines busy for longer
_FAIR_S = 10.0  # Jain's index is over these first seconds: both engines are full, and all tenants want more
_SLOTS = 8  # of each of the two engines
_TIMEOUT_S = 120.0
# What the showcase promises
_TIMES_LESS = 5.0  # a polite tenant's wait for its first token, at p99
_THROUGHPUT = 0.95  # of that without Fairlane
_SEED = 1


@dataclass(frozen=True)
class Way:
    """One half of the showcase, measured."""

    outcomes: list[Outcome]
    tenants: dict[str, dict[str, Any]]
    jain: float
    throughput: float  # output tokens per second
    errors: int

    def as_json(self) -> dict[str, Any]:
        return {
            "tenants": self.tenants,
            "jain": self.jain,
            "throughput_tokens_per_s": self.throughput,
            "errors": self.errors,
        }


@click.command("demo")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures there.")
def demo(json_file: Path | None) -> None:
    """The showcase, in about a minute.

    It promises that polite tenants wait at least 5 times less for their first token (p99), at 95 % or more of
    the direct throughput, and that no request fails. Exit code 1 when that is not so, with what falls short. A
    machine that is busy with other work may fall short in throughput: both halves take all it has to give.
    """
    try:
        direct, fair = asyncio.run(_both())
    except StackError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    _print(direct, fair)
    if json_file is not None:
        data = {"direct": direct.as_json(), "fairlane": fair.as_json()}
        json_file.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    short = shortfalls(direct, fair)
    for line in short:
        click.echo(f"Falls short: {line}", err=True)
    sys.exit(1 if short else 0)


async def _both() -> tuple[Way, Way]:
    shots = _shots()
    direct = await _one("straight to the engines", False, shots)
    fair = await _one("through Fairlane", True, shots)
    return direct, fair


def _shots() -> list[Shot]:
    """Mixed lengths, as in life: equal ones would finish in step and make both ways look odd."""
    rng = random.Random(_SEED)  # noqa: S311 - the same load each time is the point
    shots = [Shot(_NOISY, 0.0, rng.randint(32, 96), rng.randint(24, 88)) for _ in range(_BURST)]
    for number, tenant in enumerate(_POLITE):
        offset = 0.25 + 0.5 * number
        shots += [Shot(tenant, second + offset, 64, 32) for second in range(_POLITE_S)]
    return shots


async def _one(what: str, with_fairlane: bool, shots: list[Shot]) -> Way:
    click.echo(f"{len(shots)} requests {what} ...", err=True)
    options = StackOptions(
        addresses=Addresses.free(),
        with_fairlane=with_fairlane,
        engine_args=("--model", _MODEL, "--max-num-seqs", str(_SLOTS), "--scheduling-policy", "priority"),
    )
    async with Stack(options) as stack:
        return measure(await run(stack.url, shots, model=_MODEL, timeout_s=_TIMEOUT_S))


def measure(outcomes: list[Outcome]) -> Way:
    """Figures of one run. Jain's index is over service received / max-min fair share: 1 means that each tenant got what
    a fair division of all that was served would give it."""
    by_tenant: dict[str, list[Outcome]] = {name: [] for name in (*_POLITE, _NOISY)}
    for outcome in outcomes:
        by_tenant[outcome.shot.tenant].append(outcome)
    served = {name: float(sum(_tokens(o, _FAIR_S) for o in of)) for name, of in by_tenant.items()}
    wanted = {
        name: float(sum(o.shot.output_tokens for o in of if o.sent_s <= _FAIR_S)) for name, of in by_tenant.items()
    }
    shares = max_min_shares(wanted, sum(served.values()))
    ended = max(o.ended_s for o in outcomes)
    tenants = {name: _tenant(of) for name, of in by_tenant.items()}
    return Way(
        outcomes=outcomes,
        tenants=tenants,
        jain=jain([served[name] / shares[name] for name in by_tenant if shares[name] > 0]),
        throughput=sum(len(o.token_s) for o in outcomes) / ended,
        errors=sum(o.error is not None for o in outcomes),
    )


def shortfalls(direct: Way, fair: Way) -> list[str]:
    """What the showcase promises and this run has not shown: one sentence each, with its figures."""
    found: list[str] = []
    for name in _POLITE:
        before, after = direct.tenants[name]["ttft_p99_ms"], fair.tenants[name]["ttft_p99_ms"]
        if before is None or after is None:
            found.append(f"{name} got no token {'straight from the engines' if before is None else 'through Fairlane'}")
        elif before < _TIMES_LESS * after:
            found.append(
                f"{name} waits {before / after:.1f} times less for its first token (p99 {_seconds(before)} s -> "
                f"{_seconds(after)} s), and should wait {_TIMES_LESS:g} times less"
            )
    if fair.throughput < _THROUGHPUT * direct.throughput:
        found.append(
            f"output tokens per second {direct.throughput:.0f} -> {fair.throughput:.0f} are "
            f"{fair.throughput / direct.throughput:.1%}, and should be {_THROUGHPUT:.0%}; "
            "is the machine busy otherwise?"
        )
    for way, where in ((direct, "straight to the engines"), (fair, "through Fairlane")):
        if way.errors:
            found.append(f"{way.errors} of {len(way.outcomes)} requests {where} failed, and none should")
    return found


def _tokens(outcome: Outcome, until_s: float) -> int:
    return sum(at <= until_s for at in outcome.token_s)


def _tenant(outcomes: list[Outcome]) -> dict[str, Any]:
    ttft = [o.ttft_s for o in outcomes if o.ttft_s is not None]
    queue = [o.queue_s for o in outcomes if o.queue_s is not None]
    row: dict[str, Any] = {"requests": len(outcomes), "errors": sum(o.error is not None for o in outcomes)}
    for name, values in (("ttft", ttft), ("queue", queue)):
        for p in (50, 95, 99):
            value = percentile(values, p)
            row[f"{name}_p{p}_ms"] = None if value is None else round(value * 1000, 1)
    row["first_errors"] = [o.error for o in outcomes if o.error is not None][:3]
    return row


def _print(direct: Way, fair: Way) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="A noisy tenant and two polite ones (TTFT and queue wait in seconds)")
    for column in ("way", "tenant", "requests", "errors", "TTFT p50", "p95", "p99", "queue p50", "p99"):
        table.add_column(column, justify="left" if column in ("way", "tenant") else "right")
    for label, way in (("direct", direct), ("fairlane", fair)):
        for name, row in way.tenants.items():
            figures = [row[f"ttft_p{p}_ms"] for p in (50, 95, 99)] + [row["queue_p50_ms"], row["queue_p99_ms"]]
            table.add_row(label, name, str(row["requests"]), str(row["errors"]), *map(_seconds, figures))
            label = ""
        table.add_section()
    console = Console(width=max(100, Console().width))
    console.print(table)
    console.print(
        f"Jain's index {direct.jain:.3f} -> {fair.jain:.3f}; "
        f"output tokens/s {direct.throughput:.0f} -> {fair.throughput:.0f} ({fair.throughput / direct.throughput:.1%})"
    )
    for name in _POLITE:
        before, after = direct.tenants[name]["ttft_p99_ms"], fair.tenants[name]["ttft_p99_ms"]
        if before and after:
            console.print(f"{name} waits {before / after:.0f} times less for its first token (p99)")
    for label, way in (("direct", direct), ("fairlane", fair)):
        for name, row in way.tenants.items():
            for error in row["first_errors"]:
                console.print(f"{label}, {name}: {error}", style="red", markup=False)


def _seconds(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds / 1000:.2f}"
