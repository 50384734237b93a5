"""What a workload of the benchmark is: jobs from a seed, the ways that it compares, figures, and what must hold.

A measurement is a table: case -> way -> figure -> value. Most workloads have one case, "". Over several seeds the
benchmark takes the median of each value, and what must hold is looked at in the medians.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from extproc.core.model import ClassPolicy, Controller, PoolPolicy, TenantPolicy, WindowPolicy
from extproc.sim.figures import Service, Span, capacity, common
from extproc.sim.jobs import Job
from extproc.sim.scene import Engines, Fault
from extproc.sim.shapes import E1
from extproc.sim.virtual import NextJob, Run, run
from extproc.sim.ways import BASELINES, DIRECT_FIFO, FAIR, Way

Figures = dict[str, float]
Table = dict[str, dict[str, Figures]]
"""Case -> way -> figure -> value."""

Q = 3  # standing queue that a class with one aims at: `max_waiting`
FOREVER_S = 1e9
NO_LIMIT = 10_000_000


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of it is run. `quick`: shorter, for a look. `traces`: a folder of traces, where there is one."""

    quick: bool = False
    traces: Path | None = None


@dataclass(frozen=True, slots=True)
class Must:
    """A figure that must lie within [least, most]. `about` is what the design says, in words."""

    about: str
    figure: str
    least: float | None = None
    most: float | None = None
    way: str = FAIR.name
    case: str = ""

    def value(self, table: Table) -> float | None:
        """None: this run does not have it."""
        return table.get(self.case, {}).get(self.way, {}).get(self.figure)

    def holds(self, value: float) -> bool:
        """A value that is no number does not hold."""
        low = self.least is None or value >= self.least
        high = self.most is None or value <= self.most
        return value == value and low and high

    @property
    def bound(self) -> str:
        if self.least is not None and self.most is not None:
            return f"{self.least:g} .. {self.most:g}"
        return f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"


@dataclass(frozen=True, slots=True)
class Workload:
    """`key` is its number in `scheduling.md` 8. `span`: window and warm-up, in words."""

    key: str
    title: str
    span: str
    measure: Callable[[int, Scale], Table]
    musts: tuple[Must, ...]
    quick_seeds: int = 1
    seeds: int = 5  # runs, unless asked for otherwise
    missing: Callable[[Scale], str | None] = lambda _scale: None  # why it cannot be run here


def longest_wait(tokens: int) -> float:
    """(q + 2) / mu + the longest service: seconds that nobody should wait beyond, of requests of so many tokens in and
    out on E1."""
    longest = tokens * (E1.step_base + E1.max_num_seqs * E1.step_per_seq) + tokens * E1.step_per_prefill_token
    return (Q + 2) / capacity(tokens, tokens, E1) + longest


def a_class(name: str = "interactive", rank: int = 0, **changes: object) -> ClassPolicy:
    """A class without timeout or limits; the first one keeps a standing queue, the others none."""
    values: dict[str, object] = {
        "priority_base": rank * 1_000_000,
        "queue_timeout_s": FOREVER_S,
        "max_waiting": Q if rank == 0 else 0,
        "max_queued": NO_LIMIT,
    }
    return ClassPolicy(name=name, rank=rank, **(values | changes))  # type: ignore[arg-type]


def a_pool(*classes: ClassPolicy, window: WindowPolicy | None = None, **changes: object) -> PoolPolicy:
    """A pool with the recommended window, and without limits but for those asked for."""
    values: dict[str, object] = {
        "default_tenant": a_tenant(),
        "max_queued": NO_LIMIT,
        "max_queued_bytes": NO_LIMIT * 4096,
        "window": window or WindowPolicy(controller=Controller.ADAPTIVE),
    }
    return PoolPolicy(name="model", classes=classes or (a_class(),), **(values | changes))  # type: ignore[arg-type]


def a_tenant(**changes: object) -> TenantPolicy:
    values: dict[str, object] = {"max_queued": NO_LIMIT, "max_queued_bytes": NO_LIMIT * 4096}
    return TenantPolicy(**(values | changes))  # type: ignore[arg-type]


def with_window(policy: PoolPolicy, **changes: object) -> PoolPolicy:
    return replace(policy, window=replace(policy.window, **changes))  # type: ignore[arg-type]


Extra = Callable[[Run, Service], Mapping[str, float]]
"""The workload's own figures of one run."""


def compare(
    jobs: Sequence[Job],
    policy: PoolPolicy,
    engines: Engines,
    seconds: float,
    span: Span,
    extra: Extra,
    *,
    ways: Iterable[Way] = (*BASELINES, FAIR),
    seed: int = 0,
    faults: Sequence[Fault] = (),
    foreign: Sequence[Job] = (),
    clients: Callable[[], NextJob] | None = None,
    until_done: bool = False,
) -> dict[str, Figures]:
    """The same jobs by each way. Direct FIFO, where it is among them, comes first: the others' throughput is relative
    to it. `clients` makes what sends the next jobs, anew for each way."""
    table: dict[str, Figures] = {}
    direct: float | None = None
    for way in ways:
        done = run(
            jobs,
            policy,
            engines,
            seconds,
            way=way,
            seed=seed,
            faults=faults,
            foreign=foreign,
            next_job=None if clients is None else clients(),
            until_done=until_done,
        )
        service = Service(done)
        if way is DIRECT_FIFO:
            direct = service.units(span) / span.seconds
        table[way.name] = {**extra(done, service), **common(done, service, span, engines.options, direct)}
    return table
