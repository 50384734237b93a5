"""Each baseline is what it says it is."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

from extproc.core.model import Controller, TenantPolicy, Unit
from extproc.sim.engine import EngineOptions, Policy
from extproc.sim.jobs import Fate, Job
from extproc.sim.scene import Engines
from extproc.sim.virtual import Run, run
from extproc.sim.ways import (
    BASELINES,
    DIRECT_FIFO,
    DIRECT_PRIORITY,
    FAIR,
    FIRST,
    GATEWAY_FIFO,
    ROUND_ROBIN,
    SATURATION,
    THRESHOLD,
    Way,
    fixed,
)
from extproc.sim.workloads.workload import a_class, a_pool, a_tenant

ENGINE = EngineOptions(max_num_seqs=4)


def flood_and_polite() -> list[Job]:
    """Sixty of one tenant at once, then one of each of three others, of the same size."""
    return [Job(0.0, "noisy", 64, 32) for _ in range(60)] + [Job(1.0 + i, f"polite-{i}", 64, 32) for i in range(3)]


def go(way: Way, jobs: list[Job] | None = None, **changes: object) -> Run:
    return run(jobs or flood_and_polite(), a_pool(**changes), Engines(ENGINE), 300.0, way=way, until_done=True)


def order(done: Run) -> list[str]:
    """Tenants by the time of their first token."""
    return [r.job.tenant for r in sorted(done.records, key=lambda r: (r.first or 0.0, int(r.id.removeprefix("job-"))))]


def place(done: Run, tenant: str) -> int:
    return order(done).index(tenant)


def test_fifo_is_first_come_first_served_with_and_without_a_gateway() -> None:
    for way in (DIRECT_FIFO, GATEWAY_FIFO):
        done = go(way)
        firsts = [record.first for record in done.records]  # records are in the order of their coming
        assert firsts == sorted(firsts)
        assert [place(done, f"polite-{i}") for i in range(3)] == [60, 61, 62]


def test_only_the_gateway_holds_back() -> None:
    held = {
        way.name: max(r.wait or 0.0 for r in go(way).records) for way in (DIRECT_FIFO, DIRECT_PRIORITY, GATEWAY_FIFO)
    }
    assert held["direct FIFO"] == held["direct priority"] == 0.0
    assert held["gateway FIFO"] > 1.0


def test_direct_priority_numbers_are_the_tenant_s_requests_inside() -> None:
    """The seed example: A sends four, B and C one each: 0, 1, 2, 3 and 0, 0. With a class base for the lower class."""
    classes = a_class(), a_class("batch", 2)
    jobs = [Job(0.0, "A", 64, 400) for _ in range(4)] + [Job(0.0, "B", 64, 400), Job(0.0, "C", 64, 400, "batch")]
    done = run(jobs, a_pool(*classes), Engines(ENGINE), 60.0, way=DIRECT_PRIORITY, until_done=True)
    assert [record.priority for record in done.records] == [0, 1, 2, 3, 0, 2_000_000]
    # And they fall when requests end.
    later = [*jobs, Job(200.0, "A", 64, 4)]
    done = run(later, a_pool(*classes), Engines(ENGINE), 300.0, way=DIRECT_PRIORITY, until_done=True)
    assert done.records[-1].priority == 0


def test_the_engine_sorts_by_priority_only_where_the_way_says_so() -> None:
    assert {way.name: way.engine(ENGINE).policy for way in (*BASELINES, FAIR)} == {
        "direct FIFO": Policy.FCFS,
        "direct priority": Policy.PRIORITY,
        "gateway FIFO": Policy.FCFS,
        "round robin": Policy.PRIORITY,
        "threshold": Policy.PRIORITY,
        "fair": Policy.PRIORITY,
    }
    done = go(DIRECT_PRIORITY)
    assert max(place(done, f"polite-{i}") for i in range(3)) < 30


def test_round_robin_counts_requests_and_fair_counts_cost() -> None:
    """Two backlogged tenants, 64/32 (cost 128) and 64/160 (cost 384): in turn by number gives 1:1 in requests, which is
    1:3 in cost; by cost it is 3:1 in requests."""
    rng = random.Random(1)
    jobs = [Job(0.0, tenant, 64, output) for tenant, output in (("short", 32), ("long", 160)) for _ in range(400)]
    rng.shuffle(jobs)
    ratios = {}
    for way in (ROUND_ROBIN, FAIR):
        done = run(jobs, a_pool(), Engines(ENGINE), 200.0, way=way)
        served = Counter(r.job.tenant for r in done.records if r.fate is Fate.SERVED and r.first and r.first > 60.0)
        ratios[way.name] = served["short"] / served["long"]
    assert 0.9 <= ratios["round robin"] <= 1.1
    assert 2.7 <= ratios["fair"] <= 3.3


def test_one_queue_forgets_tenants_classes_and_their_limits() -> None:
    policy = a_pool(
        a_class(), a_class("batch", 2), tenants={"a": a_tenant(weight=5.0)}, default_tenant=TenantPolicy(max_queued=1)
    )
    changed = GATEWAY_FIFO.change(policy)
    assert [c.name for c in changed.classes] == ["interactive"]
    assert not changed.tenants
    assert changed.default_tenant.max_queued == policy.max_queued


def test_what_a_way_changes_of_the_policy() -> None:
    policy = a_pool(a_class(), a_class("batch", 2), prefix_slack=9.0)
    assert FAIR.change(policy) == policy
    assert ROUND_ROBIN.change(policy) == replace(policy, unit=Unit.REQUESTS, prefix_slack=0.0)
    for way, controller in ((THRESHOLD, Controller.THRESHOLD), (FIRST, Controller.FIRST), (fixed(7), Controller.FIXED)):
        changed = way.change(policy)
        assert changed.window.controller is controller
        assert (changed.classes, changed.unit) == (policy.classes, Unit.TOKENS)
    assert THRESHOLD.change(policy).window.threshold == 3
    assert fixed(7).change(policy).window.fixed == 7
    saturated = SATURATION.change(policy)
    assert (saturated.window.controller, saturated.window.threshold) == (Controller.THRESHOLD, 5)
    assert {c.gates.max_kv_usage for c in saturated.classes} == {0.8}


def test_threshold_sends_everything_between_two_pages() -> None:
    """Sixty at once, a page each second that shows nothing waiting: all of them leave before the next page."""
    jobs = [Job(0.5, "a", 64, 64) for _ in range(60)]
    done = run(jobs, a_pool(), Engines(ENGINE, scrape_s=1.0), 60.0, way=THRESHOLD, until_done=True)
    assert max(look.waiting for look in done.looks[0]) >= 50


def test_fixed_keeps_so_many_inside() -> None:
    jobs = [Job(0.0, "a", 64, 64) for _ in range(60)]
    done = run(jobs, a_pool(), Engines(ENGINE), 60.0, way=fixed(6), until_done=True)
    assert max(look.waiting for look in done.looks[0]) == 2
    assert max(look.running for look in done.looks[0]) == 4
