"""`fairlane bench core`: what the scheduler costs, in time and memory."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from extproc.cli.output import OUTPUT, made_by
from extproc.sim import core_bench, pool_bench
from extproc.sim.core_bench import Size

# What must be reached
_CYCLES = 50_000  # of the fair queue a second, with 10,000 tenants
_GROWTH = 2.0  # cost at 1e6 queued / cost at 1e3
_BYTES = 1_024  # for each queued request
_CANCEL_S, _PAUSE_S, _CANCELLED = 2.0, 0.020, 100_000
_AFTER_FLOOD, _NAMES = 0.01, 100_000  # of the nodes at the peak
_HELD = (0, 300)  # requests that wait, in a pool as production has it

_CYCLE_SIZES = (
    Size(100, 1),
    Size(1_000, 100),
    Size(1_000, 1_000),
    Size(10_000, 10_000),
    Size(10_000, 10_000, levels=3),
    Size(100_000, 10_000),
    Size(100_000, 100_000),
    Size(100_000, 100_000, levels=3),
    Size(1_000_000, 1_000),
    Size(1_000_000, 100_000),
)
_QUICK_SIZES = (Size(100, 1), Size(1_000, 1_000), Size(10_000, 10_000), Size(10_000, 10_000, levels=3))


@dataclass(frozen=True, slots=True)
class Check:
    what: str
    value: float
    bound: str
    ok: bool


def found_as_json(found: Mapping[str, Any], checks: Sequence[Check], scale: Any, quick: bool) -> dict[str, Any]:
    """`found` and its checks, with what is needed to find it again. `scale`: a dataclass."""
    return {
        **made_by(),
        "quick": quick,
        "scale": asdict(scale),
        **found,
        "checks": [asdict(check) for check in checks],
        "ok": all(check.ok for check in checks),
    }


@click.command("core")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--quick", is_flag=True, help="Small queues only: some seconds in place of some minutes.")
def core(json_file: Path | None, quick: bool) -> None:
    """Cycles a second, bytes for each queued request, and the longest pause of the core.

    A cycle is put, pop, settle and free for the fair queue alone; and arrival, release, usage and end for the
    whole scheduler, estimates, windows and all. A pool: the same with the settings that a file has by default, two
    endpoints, 50 tenants, 300 requests inside, and what the edge asks besides. CPU time of one core. Exit code 1
    when a bound does not hold.
    """
    sizes, cycles, repeats = (_QUICK_SIZES, 5_000, 3) if quick else (_CYCLE_SIZES, 20_000, 3)
    rows = []
    for size in sizes:
        queue, scheduler = (
            core_bench.queue_cycles(size, cycles, repeats),
            core_bench.scheduler_cycles(size, cycles, repeats),
        )
        rows.append({**asdict(size), "queue_cycles_per_s": queue, "scheduler_cycles_per_s": scheduler})
    pools = [pool_bench.cost(held, cycles) for held in _HELD]
    share = 10 if quick else 1
    memory = core_bench.bytes_per_request(Size(100_000 // share, 10_000 // share))
    cancel = core_bench.mass_cancel(_CANCELLED // share, 1_000)
    flood = core_bench.flood(_NAMES // share)
    checks = list(_checks(rows, memory, cancel, flood))
    _print(rows, pools, checks)
    if json_file is not None:
        data = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "quick": quick,
            "cycles": rows,
            "pool": [asdict(pool) for pool in pools],
            "bytes_per_request": memory,
            "mass_cancel": asdict(cancel),
            "flood": asdict(flood),
            "checks": [asdict(check) for check in checks],
        }
        json_file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    sys.exit(0 if all(check.ok for check in checks) else 1)


def _checks(
    rows: list[dict[str, Any]], memory: float, cancel: core_bench.Cancel, flood: core_bench.Flood
) -> Iterator[Check]:
    def rate(queued: int, tenants: int, which: str) -> float | None:
        found = [r[which] for r in rows if (r["queued"], r["tenants"], r["levels"]) == (queued, tenants, 1)]
        return found[0] if found else None

    at_10k = rate(10_000, 10_000, "queue_cycles_per_s") or 0.0
    yield Check("fair queue, cycles/s at 10,000 tenants", at_10k, f">= {_CYCLES}", at_10k >= _CYCLES)
    for which, name in (("queue_cycles_per_s", "fair queue"), ("scheduler_cycles_per_s", "scheduler")):
        small, large = rate(1_000, 1_000, which), rate(1_000_000, 1_000, which)
        if small and large:
            growth = small / large
            yield Check(f"{name}, cost at 1e6 queued / at 1e3", growth, f"<= {_GROWTH:g}", growth <= _GROWTH)
    yield Check("bytes for each queued request", memory, f"<= {_BYTES}", memory <= _BYTES)
    yield Check(f"mass cancel of {cancel.requests}, s", cancel.total_s, f"< {_CANCEL_S:g}", cancel.total_s < _CANCEL_S)
    yield Check("longest pause of it, s", cancel.longest_s, f"<= {_PAUSE_S:g}", cancel.longest_s <= _PAUSE_S)
    after = flood.nodes_after / max(1, flood.nodes_at_peak)
    yield Check(
        f"nodes left after {flood.names} names, share of the peak", after, f"< {_AFTER_FLOOD:g}", after < _AFTER_FLOOD
    )


def _print(rows: list[dict[str, Any]], pools: list[pool_bench.Cost], checks: list[Check]) -> None:
    console = Console()
    table = Table("queued", "tenants", "levels", "fair queue, cycles/s", "scheduler, cycles/s")
    for row in rows:
        table.add_row(
            f"{row['queued']:,}", f"{row['tenants']:,}", str(row["levels"]),
            f"{row['queue_cycles_per_s']:,.0f}", f"{row['scheduler_cycles_per_s']:,.0f}",
        )  # fmt: skip
    console.print(table)
    costs = Table("a pool with so many held", "CPU of a cycle, us", "of the quickest twentieth")
    for pool in pools:
        costs.add_row(str(pool.held), f"{pool.median_us:.1f}", f"{pool.least_us:.1f}")
    console.print(costs)
    bounds = Table("what", "figure", "bound", "")
    for check in checks:
        bounds.add_row(check.what, f"{check.value:,.4g}", check.bound, "holds" if check.ok else "FALLS SHORT")
    console.print(bounds)
