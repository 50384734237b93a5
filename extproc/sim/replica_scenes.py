"""Scenes with several replicas in virtual time: who gets what where arrivals are skewed, and what faults do to it.

Each runs the same jobs with one scheduler as well: throughput is relative to that. The engine has E1's steps and as
many slots as are asked for; requests have 128 to 384 tokens in and out.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from extproc.core.model import PoolPolicy
from extproc.core.scheduler import Scheduler
from extproc.sim.engine import EngineOptions
from extproc.sim.figures import Service, Span, capacity, fairness
from extproc.sim.jobs import Job, by_time
from extproc.sim.replicas import Cluster, SharedRun, run_shared
from extproc.sim.scene import Engines
from extproc.sim.shapes import E1
from extproc.sim.virtual import Run, run
from extproc.sim.workloads.workload import Q, a_class, a_pool, a_tenant

WEIGHT = 4.0  # of tenant a's part to all the others'
_OVERLOAD = 1.5  # each side sends so many times what the engine can do


@dataclass(frozen=True)
class Scene:
    """What is run. `homes`: tenant -> number of its replica, or several, which take turns."""

    title: str
    jobs: Sequence[Job]
    policy: PoolPolicy
    engines: Engines
    homes: Mapping[str, tuple[int, ...]]
    weights: Mapping[str, float]  # of the tenants that are backlogged all along
    seconds: float
    warm_up_s: float = 40.0

    @property
    def span(self) -> Span:
        return Span(self.warm_up_s, self.seconds)

    def cluster(self, **changes: object) -> Cluster:
        """As many replicas as its tenants arrive at."""
        count = max(number for numbers in self.homes.values() for number in numbers) + 1
        turns = dict.fromkeys(self.homes, 0)

        def place(job: Job) -> int:
            numbers = self.homes[job.tenant]
            turns[job.tenant] += 1
            return numbers[turns[job.tenant] % len(numbers)]

        return replace(Cluster(count, place), **changes)  # type: ignore[arg-type]

    def shared(
        self, seed: int = 0, check: Callable[[Scheduler, float], None] | None = None, **changes: object
    ) -> SharedRun:
        return run_shared(
            self.jobs, self.policy, self.engines, self.seconds, self.cluster(**changes), seed=seed, check=check
        )

    def single(self, seed: int = 0) -> Run:
        return run(self.jobs, self.policy, self.engines, self.seconds, seed=seed)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run. `share_error`: farthest (share / due) - 1 of a tenant that is backlogged all along."""

    share_error: float
    ratio: float  # service of the first tenant / that of all others
    jain: float
    units_per_s: float
    waiting: tuple[float, float, float]  # in the engine: mean, 99.9 %, most
    over_limit: float  # most by which the claims of all were over the limit, at a look; slots
    inside_over_limit: int  # most by which what they had inside was
    longest_report: int = 0
    exchanges: int = 0


def figures(scene: Scene, done: SharedRun | Run, span: Span | None = None) -> Figures:
    span = span or scene.span
    found, shares = (done.run, done.shares) if isinstance(done, SharedRun) else (done, [])
    service = Service(found)
    units = service.by_tenant(span)
    total = sum(units.get(name, 0.0) for name in scene.weights) or 1.0
    due = sum(scene.weights.values())
    errors = [abs(units.get(name, 0.0) / total / (weight / due) - 1.0) for name, weight in scene.weights.items()]
    queue = sorted(look.waiting for look in found.looks[0] if span.since <= look.at < span.until)
    seen = [s for s in shares if span.since <= s.at < span.until and s.limit]
    return Figures(
        share_error=max(errors),
        ratio=units.get(next(iter(scene.weights)), 0.0) / max(1.0, total - units.get(next(iter(scene.weights)), 0.0)),
        jain=fairness(units, scene.weights),
        units_per_s=sum(units.values()) / span.seconds,
        waiting=(sum(queue) / len(queue), queue[int(0.999 * (len(queue) - 1))], queue[-1]),
        over_limit=max((sum(s.claims) - s.limit for s in seen), default=0.0),
        inside_over_limit=round(max((sum(s.in_flight) - s.limit for s in seen), default=0.0)),
        longest_report=done.longest_report if isinstance(done, SharedRun) else 0,
        exchanges=done.exchanges if isinstance(done, SharedRun) else 0,
    )


def engine(slots: int) -> EngineOptions:
    """E1's steps with other slots."""
    return replace(E1, max_num_seqs=slots, max_num_batched_tokens=max(2048, 32 * slots))


def arrivals(
    seed: int, tenant: str, rate: float, until: float, *, since: float = 0.0, cls: str = "interactive",
    prompt: tuple[int, int] = (128, 384), output: tuple[int, int] = (128, 384),
) -> Iterator[Job]:  # fmt: skip
    """Poisson, of random lengths; the same for the same seed and tenant."""
    rng = random.Random(f"{seed} {tenant} {cls}")  # noqa: S311
    at = since + rng.expovariate(rate)
    while at < until:
        yield Job(at, tenant, rng.randint(*prompt), rng.randint(*output), cls)
        at += rng.expovariate(rate)


def heavy_here(replicas: int = 2, *, slots: int = 64, seconds: float = 240.0, seed: int = 1) -> Scene:
    """Tenant a has four times the weight of all others together, and all its requests arrive at one replica; at each of
    the other replicas another tenant."""
    rate = _OVERLOAD * capacity(256, 256, engine(slots))
    names = {f"b{i}": (i,) for i in range(1, replicas)}
    others = len(names)
    jobs = by_time(
        arrivals(seed, "a", rate, seconds), *(arrivals(seed, name, rate / others, seconds) for name in names)
    )
    policy = a_pool(tenants={"a": a_tenant(weight=WEIGHT * others)})
    weights = {"a": WEIGHT * others} | dict.fromkeys(names, 1.0)
    title = f"weights 4:1, a at one replica, {replicas} replicas"
    return Scene(title, jobs, policy, Engines(engine(slots)), {"a": (0,)} | names, weights, seconds)


def skewed(replicas: int = 2, *, tenants: int = 10, slots: int = 64, seconds: float = 240.0, seed: int = 1) -> Scene:
    """Equal tenants. The first replica has most of them; the last tenant arrives at all replicas."""
    rate = _OVERLOAD * capacity(256, 256, engine(slots))
    names = [f"t{i}" for i in range(tenants)]
    # As t0 to t6 at the first one, and one or more at each of the others.
    first = max(1, tenants - 1 - max(2, replicas - 1))
    homes: dict[str, tuple[int, ...]] = {}
    for i, name in enumerate(names):
        homes[name] = (0,) if i < first else (1 + (i - first) % (replicas - 1),)
    homes[names[-1]] = tuple(range(replicas))
    jobs = by_time(*(arrivals(seed, name, rate / tenants * 2, seconds) for name in names))
    title = f"{tenants} equal tenants, most at one replica, {replicas} replicas"
    return Scene(title, jobs, a_pool(), Engines(engine(slots)), homes, dict.fromkeys(names, 1.0), seconds)


def grouped(*, slots: int = 64, seconds: float = 240.0, seed: int = 1) -> Scene:
    """Two organisations of equal weight: x has users at both replicas, y one user at the second."""
    rate = _OVERLOAD * capacity(256, 256, engine(slots))
    homes = {"x/a": (0,), "x/b": (0,), "x/c": (1,), "y/d": (1,)}
    jobs = by_time(*(arrivals(seed, name, rate / 2, seconds) for name in homes))
    weights = {"x/a": 1.0, "x/b": 1.0, "x/c": 1.0, "y/d": 3.0}
    policy = a_pool(separator="/")
    return Scene("a group over two replicas", jobs, policy, Engines(engine(slots)), homes, weights, seconds)


def ranked(load: float, *, min_share: float = 0.0, slots: int = 64, seconds: float = 240.0, seed: int = 1) -> Scene:
    """Interactive at one replica with `load` times what the engine can do, batch at the other, as much as it likes."""
    rate = capacity(256, 256, engine(slots))
    policy = a_pool(a_class(), a_class("batch", 1, min_share=min_share))
    jobs = by_time(arrivals(seed, "a", load * rate, seconds), arrivals(seed, "b", 1.5 * rate, seconds, cls="batch"))
    title = f"interactive at {load:g} C at one replica, batch at the other, min_share {min_share:g}"
    return Scene(title, jobs, policy, Engines(engine(slots)), {"a": (0,), "b": (1,)}, {"a": 1.0, "b": 1.0}, seconds)


def ageing(*, homes: Sequence[int] = (1,), long: int = 1, slots: int = 64, seconds: float = 240.0) -> Scene:
    """Interactive at the first replica, more than the engine can do; batch at `homes`, whose requests count one class
    up after 5 s, one dispatch in eight. Answers of batch are `long` times as long."""
    rate = capacity(256, 256, engine(slots))
    policy = a_pool(a_class(), a_class("batch", 1, promote_after_s=5.0), promote_every=8)
    batch = [f"b{number}" for number in homes]
    loads = [list(arrivals(1, name, 0.4 * rate / len(batch), seconds, cls="batch")) for name in batch]
    loads = [[replace(job, output=long * job.output) for job in load] for load in loads]
    jobs = by_time(arrivals(1, "a", 1.5 * rate, seconds), *loads)
    at: dict[str, tuple[int, ...]] = {"a": (0,), **{name: (n,) for name, n in zip(batch, homes, strict=True)}}
    title = f"interactive at one replica, batch that has waited for its promote_after at {len(batch)}"
    return Scene(title, jobs, policy, Engines(engine(slots)), at, dict.fromkeys(at, 1.0), seconds)


def coming_and_going(*, replicas: int = 2, slots: int = 64, seconds: float = 240.0, seed: int = 1) -> Scene:
    """Ten tenants at each replica, each of which sends for some seconds and is silent for some, at about 1.1 C."""
    rate = capacity(256, 256, engine(slots))
    rng = random.Random(seed)  # noqa: S311
    homes: dict[str, tuple[int, ...]] = {}
    loads = []
    for i in range(10 * replicas):
        name = f"t{i}"
        homes[name] = (i % replicas,)
        at = rng.uniform(0.0, 10.0)
        while at < seconds:
            until = at + rng.uniform(2.0, 10.0)
            loads.append(list(arrivals(seed + round(1000 * at), name, 2.2 * rate / len(homes), until, since=at)))
            at = until + rng.uniform(2.0, 10.0)
    per = 1.1 * 2 / (10 * replicas) * rate
    loads = [[job for k, job in enumerate(load) if k <= 10.0 * per] for load in loads]
    policy, engines = a_pool(), Engines(engine(slots))
    return Scene("coming and going", by_time(*loads), policy, engines, homes, dict.fromkeys(homes, 1.0), seconds)


@dataclass(frozen=True, slots=True)
class Row:
    """Of so many replicas that meet so often: weights 4:1 (`heavy_here`), and Jain's index of equal ones (`skewed`)."""

    replicas: int
    period_s: float
    ratio_error: float  # (service of a / that of all others) / 4 - 1
    one_ratio_error: float  # of one scheduler
    jain: float
    waiting: tuple[float, float, float]
    throughput: float  # the less of both scenes, relative to one scheduler
    longest_report: int

    def short(self) -> list[str]:
        """What must hold at 100 ms with up to four replicas, and does not."""
        if self.period_s != 0.1 or self.replicas > 4:
            return []
        found = [
            (abs(self.ratio_error) <= 0.05, f"4:1 is off by {self.ratio_error:.3f}, at most 0.05"),
            (self.jain >= 0.98, f"Jain {self.jain:.4f}, at least 0.98"),
            (self.waiting[1] <= Q + self.replicas, f"waiting {self.waiting[1]:g}, at most {Q} + {self.replicas}"),
            (self.throughput >= 0.98, f"throughput {self.throughput:.3f}, at least 0.98"),
        ]
        return [what for holds, what in found if not holds]


def row(replicas: int, period_s: float) -> Row:
    heavy, skew = heavy_here(replicas), skewed(replicas, tenants=max(10, 2 * replicas))
    first, second = (figures(s, s.shared(period_s=period_s)) for s in (heavy, skew))
    alone = [figures(s, s.single()) for s in (heavy, skew)]
    return Row(
        replicas=replicas,
        period_s=period_s,
        ratio_error=first.ratio / WEIGHT - 1.0,
        one_ratio_error=alone[0].ratio / WEIGHT - 1.0,
        jain=second.jain,
        waiting=max(first.waiting, second.waiting, key=lambda w: (w[1], w[2])),
        throughput=min(first.units_per_s / alone[0].units_per_s, second.units_per_s / alone[1].units_per_s),
        longest_report=second.longest_report,
    )
