"""Workloads of the design that must come out right, against the toy engine in virtual time.

`c` is the cost of a request, `C` the engine's capacity in requests a second. The first minute is left out.
"""

from __future__ import annotations

import itertools
import random

import pytest
from scheduler_case import a_class, a_pool
from toy_engine import SLOTS, Job, Outcome, ToyEngine, poisson, service_s

from extproc.core.model import PoolPolicy, TenantPolicy, WindowPolicy

pytestmark = pytest.mark.slow

WARM_UP_S = 60.0


def the_policy(**changes: object) -> PoolPolicy:
    """No timeouts and no limits: all that is offered stays."""
    classes = (a_class(queue_timeout_s=1e9), a_class("batch", 2, queue_timeout_s=1e9, max_waiting=0))
    values = {"window": WindowPolicy(), "default_tenant": TenantPolicy(max_queued=1_000_000)} | changes
    return a_pool(*classes, **values)


def by_time(*loads: object) -> list[Job]:
    return sorted(itertools.chain(*loads), key=lambda job: job.at)


def busy(outcome: Outcome, since: float) -> float:
    """Share of the slots in use, by page."""
    seen = [running for at, running in outcome.running if at >= since]
    return sum(seen) / len(seen) / SLOTS


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_overload_of_one_to_two_is_served_one_to_one(seed: int) -> None:
    """Workload 1: 0.7 C against 1.4 C, all 256/256: c = 256 + 2*256 = 768."""
    rng = random.Random(seed)
    capacity = SLOTS / service_s(256, 256)
    seconds = 360.0
    jobs = by_time(
        poisson(rng, "a", 0.7 * capacity, 256, 256, 0.0, seconds),
        poisson(rng, "b", 1.4 * capacity, 256, 256, 0.0, seconds),
    )
    outcome = ToyEngine(the_policy()).run(jobs, seconds)
    a, b = (outcome.cost(tenant, WARM_UP_S, seconds) for tenant in "ab")
    assert a / b == pytest.approx(1.0, abs=0.02)
    difference, worst = 0.0, 0.0
    for at, job in outcome.released:
        if at >= WARM_UP_S:
            difference += job.cost if job.tenant == "a" else -job.cost
            worst = max(worst, abs(difference))
    assert worst <= 2 * 768
    assert busy(outcome, WARM_UP_S) >= 0.98
    waiting = sorted(count for at, count in outcome.waiting if at >= WARM_UP_S)
    assert waiting[int(0.99 * len(waiting))] <= 3 + 1


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ((10.0, 64, 64), (2.0, 256, 256)),  # costs 192 and 768
        ((8.0, 512, 32), (2.0, 32, 512)),  # costs 576 and 1056
    ],
)
@pytest.mark.parametrize("seed", [1, 2])
def test_heavy_against_short_is_even_in_cost(
    short: tuple[float, int, int], long: tuple[float, int, int], seed: int
) -> None:
    """Workload 3: (requests a second, prompt, output). Estimates have to be learnt on the way."""
    rng = random.Random(seed)
    seconds = 420.0
    jobs = by_time(
        poisson(rng, "short", *short, 0.0, seconds),
        poisson(rng, "long", *long, 0.0, seconds),
    )
    outcome = ToyEngine(the_policy()).run(jobs, seconds)
    ratio = outcome.cost("short", WARM_UP_S, seconds) / outcome.cost("long", WARM_UP_S, seconds)
    assert ratio == pytest.approx(1.0, abs=0.03)
    assert busy(outcome, WARM_UP_S) >= 0.98


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_returning_tenant_gets_a_third_and_the_others_see_no_gap(seed: int) -> None:
    """Workload 5: c has been away for two minutes and comes back to a and b. Without lift it gets 95 %."""
    rng = random.Random(seed)
    capacity = SLOTS / service_s(256, 256)
    jobs = by_time(
        poisson(rng, "a", capacity, 256, 256, 0.0, 300.0),
        poisson(rng, "b", capacity, 256, 256, 0.0, 300.0),
        poisson(rng, "c", 0.2 * capacity, 256, 256, 0.0, 60.0),
        poisson(rng, "c", 2 * capacity, 256, 256, 200.0, 300.0),
    )
    outcome = ToyEngine(the_policy()).run(jobs, 300.0)
    a, b, c = (outcome.cost(tenant, 200.0, 300.0) for tenant in "abc")
    assert c / (a + b + c) == pytest.approx(1 / 3, abs=0.03)
    for tenant in "ab":
        assert outcome.gaps(tenant, 200.0, 300.0) <= service_s(256, 256)


def test_batch_alone_fills_the_engine() -> None:
    """No class with a standing queue sends anything: the window has to open all the same."""
    jobs = [Job(0.0, "t", 256, 64, "batch") for _ in range(1_500)]
    outcome = ToyEngine(the_policy()).run(jobs, 120.0)
    assert busy(outcome, 20.0) >= 0.98
    assert max(count for at, count in outcome.waiting if at >= 20.0) <= 3


def test_wide_requests_alone_fill_the_engine() -> None:
    """Four slots each: with 8 inside the next finds no room under 11, and so the window is full at 8."""
    jobs = [Job(0.0, "t", 256, 64, n=4) for _ in range(400)]
    outcome = ToyEngine(the_policy()).run(jobs, 120.0)
    assert busy(outcome, 20.0) >= 0.98
