"""Who reads an engine's page where replicas share it: each one, each more seldom, or one for all. Virtual time.

    own         each replica reads a page each 0.25 s
    half        of more than two replicas each reads more seldom: together they read as many as two. What Fairlane does
    stretched   together they read as many as one
    told        one reads each 0.25 s; the others have its page 50 to 250 ms later, as the store would bring it

Scenes: equal tenants of which most arrive at one replica, three times what the engine can do (16 and 64 slots of E1);
short requests of a fast engine, 16 to 48 tokens in and out (64 slots), 1.7 times; 64 slots with what only a page can
tell: a load of others for 20 s, half of what the engine can do, and later half of the slots gone. A page shows the
engine as it was 60 to 110 ms before.

    .venv/bin/python tests/sim/replica_pages.py          # some five minutes of one core

Figures are means over seeds, those of the waiting the 99.9 % and the most of all looks of all seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import fmean

from extproc.sim.figures import Service, Span, capacity
from extproc.sim.jobs import Job, by_time
from extproc.sim.replica_scenes import arrivals, engine, skewed
from extproc.sim.replicas import Cluster, SharedRun, run_shared
from extproc.sim.scene import Engines, Fault, Lag, Resize
from extproc.sim.shapes import E8
from extproc.sim.workloads.workload import a_pool

REPLICAS = (2, 4, 8)
SEEDS = (1, 2)
LAG = Lag(0.06, 0.11)
TOLD_S = (0.05, 0.25)


@dataclass(frozen=True)
class Case:
    """`spans`: in which it is looked at, by name."""

    name: str
    jobs: list[Job]
    engines: Engines
    homes: dict[str, tuple[int, ...]]
    seconds: float
    spans: dict[str, Span]
    faults: tuple[Fault, ...] = ()
    foreign: tuple[Job, ...] = ()

    def run(self, replicas: int, seed: int, **how: object) -> SharedRun:
        turns = dict.fromkeys(self.homes, 0)

        def place(job: Job) -> int:
            turns[job.tenant] += 1
            numbers = self.homes[job.tenant]
            return numbers[turns[job.tenant] % len(numbers)]

        cluster = replace(Cluster(replicas, place), **how)  # type: ignore[arg-type]
        return run_shared(
            self.jobs, a_pool(), self.engines, self.seconds, cluster, seed=seed, faults=self.faults,
            foreign=self.foreign,
        )  # fmt: skip


def ways(replicas: int) -> Iterator[tuple[str, dict[str, object]]]:
    yield "own", {"stretch": 1.0}
    if replicas > 2:
        yield "half", {"stretch": replicas / 2}
    yield "stretched", {"stretch": float(replicas)}
    yield "told", {"stretch": 1.0, "told_s": TOLD_S}


def steady(replicas: int, slots: int, seed: int) -> Case:
    scene = skewed(replicas, tenants=max(10, 2 * replicas), slots=slots, seconds=120.0, seed=seed)
    engines = replace(scene.engines, lag=LAG)
    spans = {"": Span(40.0, 120.0)}
    return Case(f"{slots} slots", list(scene.jobs), engines, dict(scene.homes), 120.0, spans)


def told_by_pages(replicas: int, seed: int) -> Case:
    case = steady(replicas, 64, seed)
    foreign = tuple(
        replace(job, tenant="somebody")
        for job in arrivals(seed, "somebody", 0.5 * capacity(256, 256, engine(64)), 70.0, since=50.0)
    )
    half = Resize(90.0, engine(32))
    spans = {"load of others": Span(50.0, 75.0), "half the slots": Span(90.0, 120.0)}
    return replace(case, name="told by pages", faults=(half,), foreign=foreign, spans=spans)


def quick(replicas: int, seed: int) -> Case:
    options = replace(E8, max_num_seqs=64)
    rate = 1.3 * capacity(32, 32, options)
    homes = dict(skewed(replicas, tenants=max(10, 2 * replicas), seconds=0.0).homes)
    jobs = by_time(
        *(arrivals(seed, name, rate / len(homes) * 1.3, 25.0, prompt=(16, 48), output=(16, 48)) for name in homes)
    )
    return Case("short ones", list(jobs), Engines(options, lag=LAG), homes, 25.0, {"": Span(8.0, 25.0)})


def table(cases: list[Case], replicas: int) -> Iterator[str]:
    for name, how in ways(replicas):
        done = [(case, case.run(replicas, seed, **how)) for seed, case in zip(SEEDS, cases, strict=True)]
        for title in cases[0].spans:
            queue: list[int] = []
            units, errors = [], []
            for case, shared in done:
                span = case.spans[title]
                looks = [look for look in shared.run.looks[0] if span.since <= look.at < span.until]
                queue += [look.waiting for look in looks]
                got = Service(shared.run).by_tenant(span)
                units.append(sum(got.values()) / span.seconds)
                mean = sum(got.values()) / len(case.homes)
                errors.append(max(abs(got.get(tenant, 0.0) / mean - 1.0) for tenant in case.homes))
            queue.sort()
            yield (
                f"| {replicas} | {title or cases[0].name} | {name} | {fmean(queue):.2f} / "
                f"{queue[int(0.999 * (len(queue) - 1))]} / {queue[-1]} | {fmean(units):.0f} | {fmean(errors):.3f} |"
            )


def main() -> None:
    sys.stdout.write(
        "| replicas | scene | pages | waiting mean / 99.9 % / most | cost units/s | farthest share off |\n"
    )
    for replicas in REPLICAS:
        for make in (
            lambda seed, n=replicas: steady(n, 16, seed),
            lambda seed, n=replicas: steady(n, 64, seed),
            lambda seed, n=replicas: told_by_pages(n, seed),
            lambda seed, n=replicas: quick(n, seed),
        ):
            for line in table([make(seed) for seed in SEEDS], replicas):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
