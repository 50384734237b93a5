"""Workload 12: lengths and tenants from traces of real traffic, at twice the capacity.

A trace is a CSV with the columns `arrival_s`, `prompt_tokens`, `output_tokens`, `user`. The times are stretched until
the trace offers twice what the engine can do: what that is, is measured by sending everything at once.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median

from extproc.sim.figures import Service, Span, ttfts
from extproc.sim.jobs import Fate, Job
from extproc.sim.scene import Engines
from extproc.sim.shapes import E1
from extproc.sim.virtual import Run, run
from extproc.sim.ways import DIRECT_FIFO
from extproc.sim.workloads.workload import Figures, Must, Scale, Table, Workload, a_pool, compare

TRACES = {
    "arena": "vtc_arena_1500.csv",
    "ServeGen small": "servegen_msmall_even_2000.csv",
    "ServeGen large even": "servegen_mlarge_even_2000.csv",
    "ServeGen large skewed": "servegen_mlarge_skewed_2000.csv",
}
_LOAD = 2.0
_LONGEST_S = 100_000.0


def read(path: Path) -> list[Job]:
    """The jobs of a trace; rows without a user belong to nobody in particular. Raises ValueError, KeyError and
    OSError for what is no trace."""
    with path.open(newline="") as file:
        jobs = [
            Job(
                float(row["arrival_s"]),
                row["user"] or "nobody",
                max(1, int(row["prompt_tokens"])),
                max(1, int(row["output_tokens"])),
            )
            for row in csv.DictReader(file)
        ]
    return sorted(jobs, key=lambda job: job.at)


def at_load(jobs: list[Job], load: float, engines: Engines) -> list[Job]:
    """The same jobs, stretched in time until they offer `load` times what the engines can do."""
    at_once = [replace(job, at=0.0) for job in jobs]
    done = run(at_once, a_pool(), engines, _LONGEST_S, way=DIRECT_FIFO, until_done=True)
    factor = done.seconds / load / (jobs[-1].at - jobs[0].at)
    return [replace(job, at=(job.at - jobs[0].at) * factor) for job in jobs]


def small_tenants(jobs: list[Job]) -> set[str]:
    """Those that want less than the median tenant, in units."""
    weights = a_pool().weights
    demand: dict[str, float] = {}
    for job in jobs:
        demand[job.tenant] = demand.get(job.tenant, 0.0) + job.cost(weights)
    middle = median(demand.values())
    return {name for name, units in demand.items() if units < middle}


def _measure(seed: int, scale: Scale) -> Table:
    table: Table = {}
    for case, name in TRACES.items():
        if scale.traces is None or not (scale.traces / name).is_file():
            continue
        engines = Engines(E1)
        jobs = at_load(read(scale.traces / name), _LOAD, engines)
        small = small_tenants(jobs)
        span = Span(0.0, jobs[-1].at)

        def extra(done: Run, service: Service, small: set[str] = small) -> Figures:  # noqa: ARG001
            mine = [r for r in done.records if r.job.tenant in small]
            others = [r for r in done.records if r.job.tenant not in small]
            return {
                "small tenants' mean TTFT, s": fmean(ttfts(done, mine)),
                "large tenants' mean TTFT, s": fmean(ttfts(done, others)),
                "served": sum(r.fate is Fate.SERVED for r in done.records) / len(done.records),
            }

        found = compare(jobs, a_pool(), engines, _LONGEST_S, span, extra, seed=seed, until_done=True)
        fifo = found[DIRECT_FIFO.name]["small tenants' mean TTFT, s"]
        for figures in found.values():
            figures["small tenants' TTFT / direct FIFO"] = figures["small tenants' mean TTFT, s"] / fifo
        table[case] = found
    return table


def _missing(scale: Scale) -> str | None:
    if scale.traces is None or not any((scale.traces / name).is_file() for name in TRACES.values()):
        return f"no traces in {scale.traces}" if scale.traces else "no folder of traces (--traces)"
    return None


REAL_TRAFFIC = Workload(
    key="12",
    title="traces at twice the capacity",
    span="all of each trace, until all are served",
    measure=_measure,
    musts=tuple(
        Must(
            "mean TTFT of tenants below the median demand <= 1/5 of FIFO",
            "small tenants' TTFT / direct FIFO",
            most=0.2,
            case=case,
        )
        for case in TRACES
    ),
    seeds=1,  # nothing is drawn
    missing=_missing,
)
