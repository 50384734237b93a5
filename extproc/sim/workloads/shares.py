"""Workloads 1, 2, 3 and 5: who gets how much while all want more."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from functools import partial

from extproc.sim.figures import Service, Span, capacity, fairness, released_difference
from extproc.sim.jobs import by_time, poisson
from extproc.sim.scene import Engines
from extproc.sim.shapes import E1
from extproc.sim.virtual import Run
from extproc.sim.workloads.workload import (
    Figures,
    Must,
    Q,
    Scale,
    Table,
    Workload,
    a_pool,
    a_tenant,
    compare,
    longest_wait,
)

C = capacity(256, 256, E1)  # requests a second
COST = 256 + 2 * 256  # of each, in units
_WARM_UP_S = 60.0
_INSIDE = "longest wait inside, s"


def _span(scale: Scale) -> Span:
    return Span(_WARM_UP_S, 180.0 if scale.quick else 360.0)


def _shares(weights: Mapping[str, float], span: Span, done: Run, service: Service) -> Figures:
    """Service of each tenant beside its weight. For tenants that are backlogged all along."""
    units = service.by_tenant(span)
    total = sum(units.values()) or 1.0
    found = {f"service {name}, units/s": units.get(name, 0.0) / span.seconds for name in weights}
    shares = {name: units.get(name, 0.0) / total / (weight / sum(weights.values())) for name, weight in weights.items()}
    found |= {f"share {name} / due": share for name, share in shares.items()}
    found["farthest share / due - 1"] = max(abs(share - 1.0) for share in shares.values())
    found["difference, units"] = service.difference(span, weights)
    found["difference at release, units"] = released_difference(done, span, weights)
    found["Jain"] = fairness(units, weights)
    return found


# -- 1 ---------------------------------------------------------------------------------------------


def _overload(seed: int, scale: Scale) -> Table:
    rng, span = random.Random(seed), _span(scale)  # noqa: S311
    jobs = by_time(
        poisson(rng, 0.7 * C, "a", 256, 256, 0.0, span.until),
        poisson(rng, 1.4 * C, "b", 256, 256, 0.0, span.until),
    )

    def extra(done: Run, service: Service) -> Figures:
        units = service.by_tenant(span)
        found = {"service ratio b / a": units.get("b", 0.0) / (units.get("a", 0.0) or 1.0)}
        return found | _shares({"a": 1.0, "b": 1.0}, span, done, service) | {"goal of the difference, 2c": 2.0 * COST}

    return {"": compare(jobs, a_pool(), Engines(E1), span.until, span, extra, seed=seed)}


OVERLOAD = Workload(
    key="1",
    title="overload 1:2 (0.7 C and 1.4 C, 256/256)",
    span="60 to 360 s (quick: 180 s)",
    measure=_overload,
    musts=(
        Must("service ratio 1.00 +- 0.02", "service ratio b / a", 0.98, 1.02),
        Must("accumulated difference <= 2c", "difference, units", most=2.0 * COST),
        Must("throughput >= 98 % of direct", "throughput / direct", least=0.98),
        Must("engine waiting p99 <= q + 1", "engine waiting p99", most=Q + 1),
        Must("nothing is left behind in the engine: (q + 2)/mu + longest service", _INSIDE, most=longest_wait(256)),
    ),
)


# -- 2 ---------------------------------------------------------------------------------------------

_WEIGHTS = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}


def _weights(seed: int, scale: Scale) -> Table:
    rng, span = random.Random(seed), _span(scale)  # noqa: S311
    jobs = by_time(*[poisson(rng, C, name, 256, 256, 0.0, span.until) for name in _WEIGHTS])
    tenants = {name: a_tenant(weight=weight) for name, weight in _WEIGHTS.items()}
    extra = partial(_shares, _WEIGHTS, span)
    return {"": compare(jobs, a_pool(tenants=tenants), Engines(E1), span.until, span, extra, seed=seed)}


WEIGHTED = Workload(
    key="2",
    title="weights 1:2:3:4, each tenant sends C, 256/256",
    span="60 to 360 s (quick: 180 s)",
    measure=_weights,
    musts=(Must("shares within 2 %", "farthest share / due - 1", most=0.02),),
)


# -- 3 ---------------------------------------------------------------------------------------------

_PAIRS = {
    "10/s of 64/64, 2/s of 256/256": ((10.0, 64, 64), (2.0, 256, 256)),
    "8/s of 512/32, 2/s of 32/512": ((8.0, 512, 32), (2.0, 32, 512)),
}


def _pairs(seed: int, scale: Scale) -> Table:
    span = Span(_WARM_UP_S, 240.0 if scale.quick else 420.0)
    table: Table = {}
    for case, (short, long) in _PAIRS.items():
        rng = random.Random(seed)  # noqa: S311
        jobs = by_time(
            poisson(rng, short[0], "short", short[1], short[2], 0.0, span.until),
            poisson(rng, long[0], "long", long[1], long[2], 0.0, span.until),
        )

        def extra(done: Run, service: Service) -> Figures:
            units = service.by_tenant(span)
            found = {"cost ratio short / long": units.get("short", 0.0) / (units.get("long", 0.0) or 1.0)}
            return found | _shares({"short": 1.0, "long": 1.0}, span, done, service)

        table[case] = compare(jobs, a_pool(), Engines(E1), span.until, span, extra, seed=seed)
    return table


HEAVY_AGAINST_SHORT = Workload(
    key="3",
    title="heavy against short; no request says how much it will answer",
    span="60 to 420 s (quick: 240 s)",
    measure=_pairs,
    musts=tuple(Must("cost ratio 1.00 +- 0.03", "cost ratio short / long", 0.97, 1.03, case=case) for case in _PAIRS),
)


# -- 5 ---------------------------------------------------------------------------------------------

_BACK_S, _END_S = 200.0, 300.0


def _returning(seed: int, scale: Scale) -> Table:  # noqa: ARG001 - it is short already
    rng, span = random.Random(seed), Span(_BACK_S, _END_S)  # noqa: S311
    jobs = by_time(
        poisson(rng, C, "a", 256, 256, 0.0, _END_S),
        poisson(rng, C, "b", 256, 256, 0.0, _END_S),
        poisson(rng, 0.2 * C, "c", 256, 256, 0.0, 60.0),
        poisson(rng, 2 * C, "c", 256, 256, _BACK_S, _END_S),
    )

    def extra(done: Run, service: Service) -> Figures:
        units = service.by_tenant(span)
        total = sum(units.values()) or 1.0
        found = {f"share of {name}": units.get(name, 0.0) / total for name in "abc"}
        return found | {"longest gap of a or b, s": max(_gap(done, name, span) for name in "ab")}

    return {"": compare(jobs, a_pool(), Engines(E1), _END_S, span, extra, seed=seed)}


def _gap(done: Run, tenant: str, span: Span) -> float:
    """The longest time in which no answer to the tenant began."""
    times = sorted(r.first for r in done.records if r.first is not None and r.job.tenant == tenant)
    inside = [at for at in times if span.since <= at < span.until]
    return max(b - a for a, b in itertools.pairwise([span.since, *inside, span.until]))


_SLOT_S = 256 * (E1.step_base + E1.max_num_seqs * E1.step_per_seq)

RETURNING = Workload(
    key="5",
    title="c was away for two minutes and joins a and b at 200 s, 256/256",
    span="200 to 300 s",
    measure=_returning,
    musts=(
        Must("c gets a third +- 3 points", "share of c", 1 / 3 - 0.03, 1 / 3 + 0.03),
        Must("no gap for a and b: none longer than a slot's turn", "longest gap of a or b, s", most=_SLOT_S * 1.1),
    ),
)
