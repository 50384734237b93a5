"""The benchmark over several seeds: medians, what must hold, and both as data.

Seeds are independent and may be run in processes of their own. What must hold is looked at in the medians of the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from statistics import median
from typing import Any

from extproc.sim.workloads import BY_KEY
from extproc.sim.workloads.workload import Must, Scale, Table, Workload


@dataclass(frozen=True, slots=True)
class Verdict:
    """One thing that must hold, and whether it does. `value` None: this run does not have the figure."""

    must: Must
    value: float | None

    @property
    def ok(self) -> bool:
        return self.value is not None and self.must.holds(self.value)

    def sentence(self) -> str:
        where = f"{self.must.case}: " if self.must.case else ""
        value = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{where}{self.must.about}: {self.must.way}: {self.must.figure} is {value}, must be {self.must.bound}"


@dataclass(frozen=True, slots=True)
class Result:
    """One workload over its seeds. `skipped`: why it was not run."""

    workload: Workload
    seeds: tuple[int, ...]
    tables: tuple[Table, ...]  # one for each seed
    skipped: str | None = None

    @property
    def table(self) -> Table:
        """The median of each figure over the seeds."""
        return medians(self.tables)

    @property
    def verdicts(self) -> list[Verdict]:
        table = self.table
        cases = set(table)
        # A case that is not there was left out for good reason (a trace that is missing, a quick run).
        return [Verdict(must, must.value(table)) for must in self.workload.musts if must.case in cases]

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload.key,
            "title": self.workload.title,
            "span": self.workload.span,
            "skipped": self.skipped,
            "seeds": list(self.seeds),
            "medians": _clean(self.table),
            "by_seed": [_clean(table) for table in self.tables],
            "must_hold": [
                {
                    "about": v.must.about,
                    "case": v.must.case,
                    "way": v.must.way,
                    "figure": v.must.figure,
                    "least": v.must.least,
                    "most": v.must.most,
                    "value": None if v.value is None or not math.isfinite(v.value) else v.value,
                    "ok": v.ok,
                }
                for v in self.verdicts
            ],
        }


def medians(tables: Sequence[Table]) -> Table:
    """Figure by figure; values that are no numbers do not count."""
    found: Table = {}
    for table in tables:
        for case, ways in table.items():
            for way, figures in ways.items():
                row = found.setdefault(case, {}).setdefault(way, {})
                for name in figures.keys() - row.keys():
                    row[name] = _median(tables, case, way, name)
                # In the order of the first table that has them.
                found[case][way] = {name: row[name] for name in dict.fromkeys([*figures, *row])}
    return found


def _median(tables: Sequence[Table], case: str, way: str, name: str) -> float:
    values = [t.get(case, {}).get(way, {}).get(name, math.nan) for t in tables]
    good = [v for v in values if not math.isnan(v)]
    return median(good) if good else math.nan


def _clean(table: Table) -> dict[str, Any]:
    """JSON knows neither nan nor infinity."""
    return {
        case: {
            way: {name: (value if math.isfinite(value) else None) for name, value in figures.items()}
            for way, figures in ways.items()
        }
        for case, ways in table.items()
    }


def run_all(
    keys: Sequence[str], seeds: int | None, scale: Scale, jobs: int, done: Callable[[Result], None]
) -> list[Result]:
    """Run the workloads in order, each with so many seeds (None: its own number), in so many processes; `done` is told
    of each as it ends."""
    results: list[Result] = []
    pool = ProcessPoolExecutor(jobs) if jobs > 1 else None
    try:
        for key in keys:
            result = _run(BY_KEY[key], seeds, scale, pool)
            results.append(result)
            done(result)
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
    return results


def _run(workload: Workload, seeds: int | None, scale: Scale, pool: ProcessPoolExecutor | None) -> Result:
    reason = workload.missing(scale)
    if reason is not None:
        return Result(workload, (), (), reason)
    count = seeds or (workload.quick_seeds if scale.quick else workload.seeds)
    numbers = tuple(range(1, count + 1))
    if pool is None:
        return Result(workload, numbers, tuple(workload.measure(seed, scale) for seed in numbers))
    futures = {pool.submit(measure, workload.key, seed, scale): seed for seed in numbers}
    tables = {futures[future]: future.result() for future in as_completed(futures)}
    return Result(workload, numbers, tuple(tables[seed] for seed in numbers))


def measure(key: str, seed: int, scale: Scale) -> Table:
    """What a process of its own is asked for: workloads themselves cannot be sent to one."""
    return BY_KEY[key].measure(seed, scale)
