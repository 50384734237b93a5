"""Workloads 4, 7 and 8: one tenant, or all of them, send much more than there is room for."""

from __future__ import annotations

import random
from statistics import median

from extproc.sim.fairness import jain
from extproc.sim.figures import Service, Span, capacity, chosen, quantile, retry_after_errors, ttfts
from extproc.sim.jobs import Fate, Job, by_time, poisson
from extproc.sim.scene import Engines
from extproc.sim.shapes import E1
from extproc.sim.virtual import Run
from extproc.sim.workloads.workload import (
    Figures,
    Must,
    Scale,
    Table,
    Workload,
    a_pool,
    a_tenant,
    compare,
    longest_wait,
)

# -- 4 ---------------------------------------------------------------------------------------------

_TOKENS = 128
_BURST_AT_S, _BURST = 30.0, 500
_BURST_S = _BURST / capacity(_TOKENS, _TOKENS, E1)  # it keeps the engine busy for longer: the polite ones are there too


def _noisy(seed: int, scale: Scale) -> Table:  # noqa: ARG001 - it is short already
    rng, until = random.Random(seed), _BURST_AT_S + _BURST_S  # noqa: S311
    polite = [poisson(rng, 0.1, f"polite-{i}", _TOKENS, _TOKENS, 0.0, until) for i in range(9)]
    jobs = by_time(*polite, [Job(_BURST_AT_S, "noisy", _TOKENS, _TOKENS) for _ in range(_BURST)])
    span = Span(_BURST_AT_S, until)

    def extra(done: Run, service: Service) -> Figures:  # noqa: ARG001 - the signature of all
        found: Figures = {}
        for who, noisy in (("polite", False), ("noisy", True)):
            mine = [r for r in chosen(done, span) if (r.job.tenant == "noisy") == noisy]
            waits = ttfts(done, mine)
            found |= {f"{who} TTFT p{p}, s": quantile(waits, p) for p in (50, 95, 99)}
        return found

    return {"": compare(jobs, a_pool(), Engines(E1), until + 200.0, span, extra, seed=seed, until_done=True)}


NOISY = Workload(
    key="4",
    title=f"noisy burst: 9 tenants at 0.1/s, one sends {_BURST} at once, {_TOKENS}/{_TOKENS}",
    span=f"jobs sent from 30 s on for {_BURST_S:.0f} s, until all are served",
    measure=_noisy,
    musts=(
        Must("polite p99 TTFT <= (q + 2)/mu + longest service", "polite TTFT p99, s", most=longest_wait(_TOKENS)),
        Must("throughput >= 98 % of direct", "throughput / direct", least=0.98),
    ),
)


# -- 7 ---------------------------------------------------------------------------------------------


def _flood(seed: int, scale: Scale) -> Table:
    users = 1_000 if scale.quick else 10_000
    rng = random.Random(seed)  # noqa: S311
    since = 30.0
    until = since + users / capacity(64, 64, E1)
    flood = [Job(since, f"x/{i}", 64, 64) for i in range(users)]
    jobs = by_time(poisson(rng, 0.1, "y/only", 64, 64, 0.0, until), flood)
    span = Span(since, until)

    def extra(done: Run, service: Service) -> Figures:  # noqa: ARG001 - the signature of all
        waits = ttfts(done, chosen(done, span, lambda job: job.tenant == "y/only"))
        found = {f"y TTFT p{p}, s": quantile(waits, p) for p in (50, 95, 99)}
        if done.scheduler is not None:
            left = sum(len(list(c.queue.leaves())) for c in done.scheduler.classes)
            found["flows remembered / users"] = left / users
        return found

    policy = a_pool(separator="/")
    return {"": compare(jobs, policy, Engines(E1), until + 300.0, span, extra, seed=seed, until_done=True)}


FLOOD = Workload(
    key="7",
    title="flood: organisation x, 10,000 users at once (quick: 1,000); y, one user at 0.1/s; 64/64",
    span="while the flood lasts, and until all are served",
    measure=_flood,
    musts=(
        Must("y p99 TTFT <= (q + 2)/mu + longest service", "y TTFT p99, s", most=longest_wait(64)),
        Must("state returns after the flood: < 1 % of the names", "flows remembered / users", most=0.01),
    ),
    seeds=3,
)


# -- 8 ---------------------------------------------------------------------------------------------

_TENANTS = tuple(f"t{i}" for i in range(10))
_MAX_QUEUED = 20  # requests of a tenant


def _overload(seed: int, scale: Scale) -> Table:
    rng = random.Random(seed)  # noqa: S311
    span = Span(120.0, 300.0 if scale.quick else 480.0)
    end = span.until + 150.0  # so that the truth of the last Retry-After is known
    rate = capacity(256, 256, E1)
    jobs = by_time(*[poisson(rng, rate, name, 256, 256, 0.0, end) for name in _TENANTS])

    def extra(done: Run, service: Service) -> Figures:
        units = service.by_tenant(span)
        refused = [r for r in chosen(done, span) if r.fate is Fate.REFUSED]
        errors = retry_after_errors(done, span)
        found = {"Jain": jain([units.get(name, 0.0) for name in _TENANTS])}
        if refused:
            found["refused with 429"] = sum(r.status == 429 for r in refused) / len(refused)
            found["with Retry-After"] = sum(r.retry_after is not None for r in refused) / len(refused)
        if errors:
            found["Retry-After off by, median"] = median(errors)
            found["Retry-After off by, p95"] = quantile(errors, 95)
        return found

    policy = a_pool(default_tenant=a_tenant(max_queued=_MAX_QUEUED))
    return {"": compare(jobs, policy, Engines(E1), end, span, extra, seed=seed)}


BOUNDED = Workload(
    key="8",
    title=f"10x overload, 10 tenants, each may have {_MAX_QUEUED} waiting, 256/256",
    span="120 to 480 s (quick: 300 s)",
    measure=_overload,
    musts=(
        Must("Jain >= 0.999", "Jain", least=0.999),
        Must("refused get 429", "refused with 429", least=1.0),
        Must("and a Retry-After", "with Retry-After", least=1.0),
        Must("which is within 30 % of the truth (median)", "Retry-After off by, median", most=0.3),
    ),
)
