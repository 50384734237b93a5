"""The same events give the same effects."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from scheduler_case import E1, E2, Case, a_pool, a_sample, two_classes

from extproc.core.events import (
    Arrive,
    Cancel,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Evict,
    Reconfigure,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Tick,
    Usage,
)
from extproc.core.model import Source, Traffic, WindowPolicy
from extproc.core.scheduler import Scheduler
from extproc.core.view import view

pytestmark = pytest.mark.slow


POLICY = a_pool(*two_classes(min_share=0.1), start=4, max_queued=30, window=WindowPolicy(start=4.0))
POLICIES = [POLICY, POLICY, *(replace(POLICY, traffic=traffic) for traffic in (Traffic.PAUSED, Traffic.DRAINING))]


def a_random_event(rng: random.Random, ids: list[str], now: float) -> Event:
    kind = rng.randrange(12)
    if rng.random() < 0.05:
        return Reconfigure(rng.choice(POLICIES))
    known = rng.choice(ids) if ids else "none"
    endpoint = rng.choice([E1, E2])
    if kind < 4:
        ids.append(f"r{len(ids)}")
        return Arrive(
            ids[-1],
            rng.choice("abcdef"),
            rng.choice(["interactive", "batch"]),
            now - rng.choice([0.0, 0.0, 3.0]),
            rng.randrange(10, 50_000),
            rng.choice([None, 10, 1000]),
            rng.choice([1, 1, 1, 4]),
            rng.choice([None, 1.0, 5.0]),
        )
    if kind < 7:
        return Cancel(known, "by hand") if rng.random() < 0.1 else End(known)
    if kind == 7:
        return Usage(known, rng.choice(list(Source)), rng.randrange(1000), 0, rng.randrange(1000))
    if kind < 10:
        waiting = rng.choice([0, 0, 0, 2, 9])
        return Scraped(endpoint, a_sample(rng.randrange(12), waiting, now, itl_sum=now / 9, itl_count=now))
    if kind == 10:
        return rng.choice([ScrapeFailed(endpoint, rng.random() < 0.3), Tick()])
    return rng.choice([EndpointAdded(endpoint), EndpointAdded(endpoint), EndpointRemoved(endpoint)])


def test_the_same_events_give_the_same_effects() -> None:
    case = Case(POLICY, endpoints=(E1, E2))
    rng = random.Random(7)
    ids: list[str] = []
    per_event = []
    for _ in range(2_000):
        case.now += rng.choice([0.0, 0.01, 0.3, 1.0])
        per_event.append(case.apply(a_random_event(rng, ids, case.now)))
        case.tick()
    assert {type(effect) for effect in case.effects} == {Release, Refuse, Settled, Evict}
    again = Scheduler(POLICY)
    effects = [effect for event, now in case.events for effect in again.apply(event, now)]
    assert effects == case.effects
    reasons = {effect.reason.code for effect in effects if isinstance(effect, Refuse)}
    assert reasons >= {"paused", "draining", "cancelled"}
    assert view(again, case.now) == view(case.scheduler, case.now)
