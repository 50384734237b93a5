"""Workloads 6 and 9: a class that may wait must not make another one wait."""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import replace
from statistics import fmean

from extproc.core.headroom import poisson_quantile
from extproc.core.model import PoolPolicy
from extproc.sim.figures import Service, Span, alone_s, capacity, chosen, quantile, ttfts, waits
from extproc.sim.jobs import Fate, Job, Record, by_time, poisson
from extproc.sim.scene import Engines
from extproc.sim.shapes import E1
from extproc.sim.virtual import Run
from extproc.sim.ways import BASELINES, FAIR, Way
from extproc.sim.workloads.workload import Figures, Must, Scale, Table, Workload, a_class, a_pool, compare

# -- 6 ---------------------------------------------------------------------------------------------

_EPSILON = 0.03
_LATE_S = 0.3
_SLOTS = E1.max_num_seqs


def _batch(**changes: object) -> Way:
    def change(policy: PoolPolicy) -> PoolPolicy:
        classes = tuple(replace(c, **changes) if c.name == "batch" else c for c in policy.classes)  # type: ignore[arg-type]
        return replace(policy, classes=classes)

    return Way("fair, " + ("idle rule" if changes.get("idle_only") else "no headroom"), change=change)


IDLE_RULE = _batch(headroom=None, idle_only=True)
NO_HEADROOM = _batch(headroom=None)


def _behind(seed: int, scale: Scale) -> Table:
    rng = random.Random(seed)  # noqa: S311
    batch, until = 600 if scale.quick else 3_000, 900.0
    span = Span(60.0, until)
    rate = capacity(256, 256, E1)
    jobs = by_time(
        (Job(0.0, "batch", 256, 256, "batch") for _ in range(batch)),
        poisson(rng, rate / 2, "people", 256, 256, 0.0, until),
    )

    def extra(done: Run, service: Service) -> Figures:
        people = chosen(done, span, lambda job: job.cls == "interactive")
        first = ttfts(done, people)
        inside = sum(_inside(r, span) for r in done.records if r.job.cls == "interactive") / span.seconds
        slots = max(0, _SLOTS - poisson_quantile(inside, 1 - _EPSILON))
        due = rate * slots / _SLOTS * (256 + 2 * 256)
        ends = [r.ended for r in done.records if r.job.cls == "batch" and r.fate is Fate.SERVED and r.ended]
        return {
            f"interactive waits > {_LATE_S} s": sum(t > _LATE_S for t in first) / len(first),
            "interactive in flight, mean": inside,
            "B, slots left for batch": float(slots),
            "batch / (C B / R)": service.units(span, "batch") / span.seconds / due if due else math.nan,
            "batch units/s": service.units(span, "batch") / span.seconds,
            "batch served": len(ends) / batch,
            "last batch answer, s": max(ends, default=math.nan),
        }

    ways = (*BASELINES, IDLE_RULE, NO_HEADROOM, FAIR)
    policy = a_pool(a_class(), a_class("batch", 2, headroom=_EPSILON))
    end = until + 2.0 * batch / rate
    return {"": compare(jobs, policy, Engines(E1), end, span, extra, ways=ways, seed=seed, until_done=True)}


def _inside(record: Record, span: Span) -> float:
    """Seconds of the span that it spent in the engine."""
    if record.released is None:
        return 0.0
    until = span.until if record.ended is None else min(record.ended, span.until)
    return max(0.0, until - max(record.released, span.since))


BEHIND = Workload(
    key="6",
    quick_seeds=5,
    title="3,000 batch at t = 0 (quick: 600) behind interactive at half load, 256/256",
    span="60 to 900 s, and until the batch is done",
    measure=_behind,
    musts=(
        Must(
            f"P(interactive waits > {_LATE_S} s) <= epsilon + 1 point",
            f"interactive waits > {_LATE_S} s",
            most=_EPSILON + 0.01,
        ),
        Must("batch >= 0.9 C B / R", "batch / (C B / R)", least=0.9),
        Must("batch finishes", "batch served", least=1.0),
    ),
)


# -- 9 ---------------------------------------------------------------------------------------------


def _inversion(seed: int, scale: Scale) -> Table:
    rng = random.Random(seed)  # noqa: S311
    count = 5 if scale.quick else 20
    until = 30.0 + 15.0 * count
    batch = [Job(0.0, f"b{i % 3}", 256, rng.randint(64, 448), "batch") for i in range(int(3 * until))]
    high = [Job(30.0 + 15.0 * i + rng.uniform(0.0, 15.0), "people", 256, 64) for i in range(count)]
    span = Span(30.0, until)

    def extra(done: Run, service: Service) -> Figures:  # noqa: ARG001 - the signature of all
        people = chosen(done, span, lambda job: job.cls == "interactive")
        ends = sorted(r.ended for r in done.records if r.ended is not None)
        lets = sorted(r.released for r in done.records if r.released is not None and r.job.cls == "batch")
        passed, late, behind = 0, [], []
        for r in people:
            gone = done.seconds if r.released is None else r.released
            first = done.seconds if r.first is None else r.first
            passed += bisect.bisect_left(lets, gone) - bisect.bisect_right(lets, r.job.at)
            completion = ends[bisect.bisect_right(ends, r.job.at)]
            late.append(gone - completion)
            behind.append(first - completion)
        return {
            "batch let by, requests": float(passed),
            "held beyond the next completion, s": max(late),
            "first token after it, mean s": fmean(behind),
            "first token after it, max s": max(behind),
            "high TTFT p50, s": quantile(ttfts(done, people), 50),
            "high held p50, s": quantile(waits(done, people), 50),
        }

    policy = a_pool(a_class(), a_class("batch", 2))
    jobs = by_time(batch, high)
    return {"": compare(jobs, policy, Engines(E1), until + 60.0, span, extra, seed=seed)}


_STEP_S = E1.step_base + _SLOTS * E1.step_per_seq
_PREFILL_S = 2 * 256 * E1.step_per_prefill_token  # its own, and that of a batch request which may share its step

INVERSION = Workload(
    key="9",
    title="priority inversion: batch fills the slots, now and then one request of the high class",
    span="30 s to the end, every 15 s one (quick: 5 of them, else 20)",
    measure=_inversion,
    musts=(
        Must("dispatched next: no batch request is let by", "batch let by, requests", most=0.0),
        Must("held no longer than to the next completion", "held beyond the next completion, s", most=1e-6),
        Must(
            "its first token follows it within two steps and the prefill",
            "first token after it, max s",
            most=2 * _STEP_S + _PREFILL_S + alone_s(Job(0.0, "", 0, 1), E1),
        ),
    ),
)
