"""The workloads of the benchmark, by their numbers in `scheduling.md` 8, and what must hold of each."""

from __future__ import annotations

from typing import Final

from extproc.sim.workloads import answers, bursts, classes, faults, large, prefixes, real, shares, traces
from extproc.sim.workloads.workload import Must, Workload

WORKLOADS: Final[tuple[Workload, ...]] = (
    shares.OVERLOAD,
    shares.WEIGHTED,
    shares.HEAVY_AGAINST_SHORT,
    bursts.NOISY,
    shares.RETURNING,
    classes.BEHIND,
    bursts.FLOOD,
    bursts.BOUNDED,
    classes.INVERSION,
    prefixes.AGENTS,
    faults.FAULTS,
    traces.REAL_TRAFFIC,
    large.LARGE,
    answers.ANSWERS,
    real.REAL,
)
BY_KEY: Final[dict[str, Workload]] = {workload.key: workload for workload in WORKLOADS}


def musts() -> list[tuple[str, Must]]:
    """Everything that must hold, with the workload's key."""
    return [(workload.key, must) for workload in WORKLOADS for must in workload.musts]
