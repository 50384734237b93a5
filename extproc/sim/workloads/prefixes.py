"""Workload 10: agents whose prompts begin alike, and an engine whose prefix cache cannot hold all beginnings."""

from __future__ import annotations

import random
from dataclasses import replace

from extproc.core.model import PoolPolicy
from extproc.sim.figures import Service, Span
from extproc.sim.jobs import Fate, Job, Record
from extproc.sim.scene import Engines
from extproc.sim.shapes import E1
from extproc.sim.virtual import NextJob, Run
from extproc.sim.ways import BASELINES, FAIR, Way
from extproc.sim.workloads.workload import Figures, Must, Scale, Table, Workload, a_pool, compare

_USERS, _TEMPLATES, _HELD = 24, 8, 3
_SHARED, _OWN, _OUTPUT = 4096, 128, 96  # tokens
_OUTSTANDING = 8  # requests of each user
_SLACK = 15_000.0
_COST = _SHARED + _OWN + 2 * _OUTPUT  # charged as if nothing were cached

NO_GROUPING = Way("fair, no grouping", change=lambda policy: replace(policy, prefix_slack=0.0))


def _job(at: float, user: int) -> Job:
    return Job(at, f"user-{user}", _SHARED + _OWN, _OUTPUT, prefix=(user % _TEMPLATES + 1,))


def _again(record: Record, now: float) -> Job:
    return replace(record.job, at=now)


def _clients() -> NextJob:
    return _again


def _agents(seed: int, scale: Scale) -> Table:
    rng = random.Random(seed)  # noqa: S311
    span = Span(60.0, 180.0 if scale.quick else 360.0)
    users = [user for user in range(_USERS) for _ in range(_OUTSTANDING)]
    rng.shuffle(users)
    jobs = sorted((_job(rng.uniform(0.0, 1.0), user) for user in users), key=lambda job: job.at)
    tenants = {f"user-{user}": 1.0 for user in range(_USERS)}

    def extra(done: Run, service: Service) -> Figures:  # noqa: ARG001 - the signature of all
        served = [
            r
            for r in done.records
            if r.fate is Fate.SERVED and r.first is not None and span.since <= r.first < span.until
        ]
        # In units as charged: what is cached counts in full, as in the order of release.
        charged = _as_charged(done)
        return {
            "requests/s": len(served) / span.seconds,
            "prefix hits": sum(r.cached > 0 for r in served) / max(1, len(served)),
            "spread, requests": charged.difference(span, tenants) / _COST,
        }

    policy = a_pool(prefix_slack=_SLACK)
    engines = Engines(E1, prefix_cache_tokens=_HELD * _SHARED, prefix_tokens=_SHARED)
    ways = (*BASELINES, NO_GROUPING, FAIR)
    table = compare(jobs, policy, engines, span.until, span, extra, ways=ways, seed=seed, clients=_clients)
    alone, grouped = table[NO_GROUPING.name], table[FAIR.name]
    grouped["requests/s / no grouping"] = grouped["requests/s"] / alone["requests/s"]
    grouped["spread beyond no grouping, requests"] = grouped["spread, requests"] - alone["spread, requests"]
    return {"": table}


def _as_charged(done: Run) -> Service:
    """Service in which a cached token counts as any other."""
    weights = replace(done.policy.weights, cached=done.policy.weights.prompt)
    policy: PoolPolicy = replace(done.policy, weights=weights)
    return Service(replace(done, policy=policy))


AGENTS = Workload(
    key="10",
    title=f"{_USERS} agents, {_TEMPLATES} templates of {_SHARED:,} tokens, cache for {_HELD}, "
    f"{_OUTSTANDING} requests of each always under way",
    span="60 to 360 s (quick: 180 s)",
    measure=_agents,
    musts=(
        Must(">= 90 % hits", "prefix hits", least=0.9),
        Must(">= 2.5x throughput of no grouping", "requests/s / no grouping", least=2.5),
        Must(
            "spread <= no grouping + slack / c",
            "spread beyond no grouping, requests",
            most=_SLACK / _COST,
        ),
    ),
)
