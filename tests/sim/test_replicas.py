"""Several replicas in virtual time: shares, room and throughput beside one scheduler's, and faults.

Each replica's clock is minutes or an hour off the others'. What must hold is what is asked for at a period of 100 ms.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest

from extproc.core import invariants
from extproc.sim.figures import Span, capacity
from extproc.sim.jobs import Fate, by_time
from extproc.sim.replica_cost import cost
from extproc.sim.replica_faults import back_s
from extproc.sim.replica_scenes import (
    Figures,
    Scene,
    ageing,
    arrivals,
    coming_and_going,
    engine,
    figures,
    grouped,
    heavy_here,
    ranked,
    skewed,
)
from extproc.sim.replicas import Death, Freeze, StoreLost
from extproc.sim.scene import Engines
from extproc.sim.virtual import Run
from extproc.sim.workloads.workload import a_pool

SECONDS = 150.0
Q = 3


def both(scene: Scene, **cluster: object) -> tuple[Figures, Figures]:
    """(several replicas, one scheduler)."""
    return figures(scene, scene.shared(**cluster)), figures(scene, scene.single())


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_four_to_one_though_each_arrives_at_a_replica_of_its_own(replicas: int) -> None:
    scene = heavy_here(replicas, slots=16, seconds=SECONDS)
    shared, one = both(scene)
    assert shared.ratio == pytest.approx(4.0, rel=0.05)
    assert shared.units_per_s >= 0.98 * one.units_per_s
    assert shared.waiting[1] <= Q + replicas
    assert shared.over_limit <= replicas


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4])
def test_equal_tenants_are_served_alike_though_most_arrive_at_one_replica(replicas: int) -> None:
    shared, one = both(skewed(replicas, seconds=SECONDS))
    assert shared.jain >= 0.98
    assert shared.units_per_s >= 0.98 * one.units_per_s
    assert shared.waiting[1] <= Q + replicas


def test_without_a_common_order_it_would_be_one_to_one() -> None:
    """The same with a store that never answers: each has an even part. So the scene does tell."""
    scene = heavy_here(2, slots=16, seconds=SECONDS)
    alone = figures(scene, scene.shared(faults=(StoreLost(0.0, SECONDS),)))
    assert alone.ratio < 1.3


@pytest.mark.slow
def test_long_prompts_here_and_long_answers_there_come_out_right_in_cost() -> None:
    """A slot of a brings a ninth of the cost that one of b brings."""
    scene = heavy_here(2, slots=16, seconds=300.0)
    jobs = [
        replace(job, prompt=32, output=500) if job.tenant == "a" else replace(job, prompt=500, output=32)
        for job in scene.jobs
    ]
    # b's short ones are over soon: more of them, so that some always wait.
    jobs = sorted([*jobs, *(j for j in jobs if j.tenant != "a" for _ in range(5))], key=lambda job: job.at)
    shared, one = both(replace(scene, jobs=jobs, warm_up_s=100.0))
    assert shared.ratio == pytest.approx(one.ratio, rel=0.08)
    assert shared.units_per_s >= 0.97 * one.units_per_s


@pytest.mark.slow
def test_a_group_has_its_share_over_both_replicas() -> None:
    """x's three users have a sixth each, y's one has half."""
    shared, _ = both(grouped(seconds=SECONDS))
    assert shared.share_error <= 0.05


@pytest.mark.slow
def test_tenants_that_come_and_go() -> None:
    shared, one = both(coming_and_going(slots=16, seconds=100.0))
    assert shared.units_per_s >= 0.98 * one.units_per_s
    assert shared.waiting[1] <= Q + 2


# -- classes ---------------------------------------------------------------------------------------


def first_tokens(run: Run, cls: str) -> float:
    """Median seconds."""
    return median(r.ttft for r in run.records if r.job.cls == cls and r.ttft is not None and r.job.at > 40.0)


@pytest.mark.slow
def test_batch_elsewhere_gives_way_to_interactive() -> None:
    scene = ranked(0.7, seconds=SECONDS)
    shared, one = scene.shared(), scene.single()
    assert first_tokens(shared.run, "interactive") <= first_tokens(one, "interactive") + 0.05
    assert figures(scene, shared).units_per_s >= 0.98 * figures(scene, one).units_per_s


@pytest.mark.slow
def test_batch_elsewhere_has_nothing_while_interactive_wants_all() -> None:
    scene = ranked(1.5, seconds=SECONDS)
    assert figures(scene, scene.shared()).ratio > 100.0


@pytest.mark.slow
def test_a_min_share_is_kept_at_another_replica() -> None:
    scene = ranked(1.5, min_share=0.1, seconds=SECONDS)
    batch = 1.0 / (1.0 + figures(scene, scene.shared()).ratio)
    assert 0.07 <= batch <= 0.12


def of_batch(run: Run) -> float:
    """Its part of the dispatches."""
    went = [r.job.cls for r in run.records if r.released is not None and r.released > 40.0]
    return went.count("batch") / len(went)


@pytest.mark.slow
@pytest.mark.parametrize(("homes", "long"), [((1,), 1), ((1,), 4), ((0, 1, 2, 3), 1)])
def test_one_in_promote_every_is_a_promotion_over_all_replicas(homes: tuple[int, ...], long: int) -> None:
    """Batch waits where interactive does not, whatever its answers take; or at all four."""
    scene = ageing(homes=homes, long=long, seconds=SECONDS)
    shared, one = scene.shared(), scene.single()
    assert of_batch(one) == pytest.approx(1 / 8, rel=0.05)
    assert of_batch(shared.run) == pytest.approx(of_batch(one), rel=0.12)
    assert figures(scene, shared).waiting[1] <= Q + len(shared.schedulers)


@pytest.mark.slow
def test_promotions_are_not_lost_while_room_is_made_for_them() -> None:
    """Requests of a second: three dispatches in each period."""
    scene = ageing(seconds=100.0)
    jobs = [replace(j, prompt=j.prompt // 8 + 1, output=j.output // 8 + 1) for j in scene.jobs for _ in range(8)]
    scene = replace(scene, jobs=jobs)
    assert of_batch(scene.shared().run) == pytest.approx(of_batch(scene.single()), rel=0.12)


@pytest.mark.slow
def test_a_request_of_eight_slots_is_one_dispatch() -> None:
    scene = ageing(seconds=SECONDS)
    scene = replace(scene, jobs=[replace(job, n=8) for job in scene.jobs])
    assert of_batch(scene.shared().run) == pytest.approx(of_batch(scene.single()), rel=0.12)


# -- faults ----------------------------------------------------------------------------------------

AT_S = 60.0


@pytest.fixture(scope="module")
def scene() -> Scene:
    return heavy_here(2, slots=32, seconds=120.0)


@pytest.mark.slow
def test_the_store_is_lost_for_half_a_minute(scene: Scene) -> None:
    done = scene.shared(faults=(StoreLost(AT_S, AT_S + 30.0),))
    before, lost = (figures(scene, done, span) for span in (Span(30.0, AT_S), Span(AT_S, AT_S + 30.0)))
    assert lost.units_per_s >= 0.9 * before.units_per_s
    assert lost.over_limit <= 2
    assert lost.inside_over_limit <= 2
    assert lost.waiting[2] <= Q + 2 * 2
    after = figures(scene, done, Span(105.0, 120.0))
    assert after.ratio == pytest.approx(4.0, rel=0.2)  # of 15 s, with the noise of that
    assert all(s.shared is not None and s.shared.lost_since is None for s in done.schedulers)


@pytest.mark.slow
def test_a_replica_that_crashes_and_begins_anew_floods_no_engine() -> None:
    """Short answers. The store knows nothing of the dead one's requests at once, and the engine runs them on."""
    scene = heavy_here(2, slots=64, seconds=80.0)
    jobs = [replace(j, prompt=j.prompt // 6 + 1, output=j.output // 6 + 1) for j in scene.jobs for _ in range(6)]
    scene = replace(scene, jobs=jobs)
    done = scene.shared(faults=(Death(AT_S, 0, back_s=1.0),))
    assert figures(scene, done, Span(AT_S, 80.0)).waiting[2] <= Q + 4 * 2

    def running(since: float, until: float) -> float:
        looks = [look.running for look in done.run.looks[0] if since <= look.at < until]
        return sum(looks) / len(looks)

    assert running(AT_S, AT_S + 5.0) >= 0.8 * running(40.0, AT_S)
    assert running(AT_S + 5.0, 80.0) >= 0.95 * running(40.0, AT_S)


def test_nobody_waits_for_a_replica_that_begins_anew_to_find_out_what_the_engine_can_do() -> None:
    """At 0.85 of it. Its own window begins at 8, and the other one holds more than that."""
    rate = 0.85 * capacity(256, 256, engine(64))
    jobs = by_time(*(arrivals(1, tenant, rate / 2, 80.0) for tenant in "ab"))
    homes = {"a": (0,), "b": (1,)}
    scene = Scene(
        "two that wait for nothing", jobs, a_pool(), Engines(engine(64)), homes, dict.fromkeys(homes, 1.0), 80.0
    )
    done = scene.shared(faults=(Death(AT_S, 1, back_s=1.0),))
    waits = [r.wait for r in done.run.records if r.job.at > 40.0 and r.wait is not None]
    assert len(waits) > 50
    assert max(waits) <= 1.0


@pytest.mark.slow
def test_a_store_that_is_emptied_harms_nothing(scene: Scene) -> None:
    done = scene.shared(faults=(StoreLost(AT_S, AT_S, flushed=True),))
    since = figures(scene, done, Span(AT_S, AT_S + 10.0))
    assert since.units_per_s >= 0.9 * figures(scene, done, Span(30.0, AT_S)).units_per_s
    assert since.over_limit <= 2
    assert since.waiting[2] <= Q + 2 * 2


@pytest.mark.slow
def test_the_share_of_a_dead_one_is_back_within_five_seconds(scene: Scene) -> None:
    """What it held goes to another and is served there, in the order of arrival."""
    done = scene.shared(faults=(Death(AT_S, 0),))
    back = back_s(done, {0}, AT_S)
    assert back is not None
    assert back <= 5.0
    moved = [r for r in done.run.records if r.job.tenant == "a" and r.job.at < AT_S and (r.released or 0.0) > AT_S]
    assert len(moved) > 50
    assert {done.homes[r.id] for r in moved} == {1}
    released = sorted(moved, key=lambda r: r.released or 0.0)
    assert [r.job.at for r in released] == sorted(r.job.at for r in moved)
    assert all(r.fate is not Fate.REFUSED for r in done.run.records)


@pytest.mark.slow
def test_one_that_was_frozen_uses_no_stale_share(scene: Scene) -> None:
    """What ended in the meantime it does not refill before it has heard again, which takes a millisecond at least."""
    until = AT_S + 20.0
    done = scene.shared(faults=(Freeze(AT_S, until, 0),))
    there = [r.released for r in done.run.records if done.homes.get(r.id) == 0 and r.released is not None]
    assert not any(AT_S < at <= until + 0.001 for at in there)
    assert any(until < at < until + 5.0 for at in there)
    thawed = figures(scene, done, Span(until, until + 5.0))
    assert thawed.over_limit <= 2
    assert thawed.inside_over_limit <= 2


@pytest.mark.slow
def test_clocks_that_differ_change_nothing(scene: Scene) -> None:
    """Two hours; and the epoch beside a machine's own start."""
    same, *others = (figures(scene, scene.shared(clocks=c)) for c in ((0.0,), (0.0, -7_200.0), (1.6e9, 0.0)))
    for found in others:
        assert found.ratio == pytest.approx(same.ratio, rel=0.01)
        assert found.waiting == pytest.approx(same.waiting, abs=0.1)


def test_invariants_hold_after_every_event() -> None:
    small = ranked(1.2, min_share=0.1, slots=8, seconds=40.0)

    done = small.shared(check=invariants.check, faults=(StoreLost(15.0, 20.0), Freeze(25.0, 30.0, 1)))
    assert sum(record.fate is Fate.SERVED for record in done.run.records) > 20


# -- cost ------------------------------------------------------------------------------------------


def test_what_is_told_is_bounded_by_what_has_changed() -> None:
    """Ten tenants: no report has more flows than that, whatever waits."""
    assert skewed(2, seconds=40.0).shared().longest_report <= 10


@pytest.mark.slow
def test_an_exchange_costs_no_more_than_its_part_with_ten_times_the_tenants() -> None:
    few, many = cost(200, exchanges=30), cost(2_000, exchanges=30)
    assert many.mean_ms <= 5.0 * few.mean_ms + 1.0
