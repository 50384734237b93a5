"""The harness in virtual time: what it tells the scheduler, what it notes down, and that it loses nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from extproc.core import invariants
from extproc.core.model import Controller, TenantPolicy, WindowPolicy
from extproc.sim.engine import EngineOptions
from extproc.sim.jobs import Fate, Job, Record, by_time, poisson
from extproc.sim.scene import Engines, Join, Lag, Outage, Part, Resize, Restart, WayIn
from extproc.sim.virtual import Run, run
from extproc.sim.ways import BASELINES, DIRECT_FIFO, FAIR, FIRST, GATEWAY_FIFO, SATURATION, Way, fixed
from extproc.sim.workloads.workload import a_class, a_pool

# One slot; a step takes 100 ms and 1 ms for each prefill token; one token at most each step.
SLOW = EngineOptions(max_num_seqs=1, step_base=0.1, step_per_seq=0.0, step_per_prefill_token=0.001)
SMALL = EngineOptions(max_num_seqs=4)


def mixed(seed: int, seconds: float = 60.0, **fields: object) -> list[Job]:
    """Three tenants, two classes, about twice what four slots can do."""
    rng = random.Random(seed)

    def load(tenant: str, cls: str) -> Iterator[Job]:
        for job in poisson(rng, 0.8, tenant, 64, 1, 0.0, seconds, cls):
            yield replace(job, prompt=rng.randint(16, 256), output=rng.randint(1, 120), **fields)

    return by_time(load("a", "interactive"), load("b", "interactive"), load("c", "batch"))


def policy(**changes: object):
    return a_pool(a_class(), a_class("batch", 2), **changes)


def fates(done: Run) -> list[Fate]:
    return [record.fate for record in done.records]


def test_three_requests_by_hand() -> None:
    """Jobs at 1, 1.05 and 1.1 of 10 prompt tokens and 2 output tokens on one slot. (A page has been read before.)

    The first: a step of 100 + 10 ms with its prompt, then one of 100 ms: first token at 1.11, end at 1.21. The second
    is admitted with the step that begins at 1.21: first token at 1.32, end at 1.42. The third: 1.53 and 1.63."""
    jobs = [Job(at, "a", 10, 2) for at in (1.0, 1.05, 1.1)]
    for way in (DIRECT_FIFO, GATEWAY_FIFO, FAIR):
        done = run(jobs, a_pool(), Engines(SLOW), 5.0, way=way, until_done=True)
        assert [record.first for record in done.records] == pytest.approx([1.11, 1.32, 1.53])
        assert [record.ended for record in done.records] == pytest.approx([1.21, 1.42, 1.63])
        assert fates(done) == [Fate.SERVED] * 3
        assert [record.ttft for record in done.records] == pytest.approx([0.11, 0.27, 0.43])
        # One token after the first: 0.1 s.
        assert [record.tpot for record in done.records] == pytest.approx([0.1, 0.1, 0.1])


def test_a_request_of_several_choices_ends_with_the_last_of_them() -> None:
    """Two choices on one slot: the first one's tokens at 1.11 and 1.21, the second one's at 1.32 and 1.42."""
    done = run([Job(1.0, "a", 10, 2, n=2)], a_pool(), Engines(SLOW), 5.0, until_done=True)
    (record,) = done.records
    assert (record.first, record.ended) == (pytest.approx(1.11), pytest.approx(1.42))
    # 10 prompt tokens, and two outputs of two at a weight of 2.
    assert record.charged == 10 + 2 * 4


@pytest.mark.slow
@pytest.mark.parametrize("way", [*BASELINES, FIRST, SATURATION, fixed(5), FAIR], ids=lambda way: way.name)
def test_every_job_has_one_fate_and_its_true_counts(way: Way) -> None:
    jobs = mixed(3)
    done = run(jobs, policy(), Engines(SMALL), 200.0, way=way, check=invariants.check)
    assert len(done.records) == len(jobs)
    assert set(fates(done)) == {Fate.SERVED}
    assert sorted((r.job.at, r.job.tenant) for r in done.records) == sorted((j.at, j.tenant) for j in jobs)
    for record in done.records:
        job = record.job
        assert record.released is not None
        assert record.first is not None
        assert record.ended is not None
        assert job.at <= record.released <= record.first <= record.ended
        if way.gateway and way.change(policy()).unit is policy().unit:
            assert record.charged == job.prompt + 2 * job.output
    if done.scheduler is not None:
        assert all(window.in_flight == 0 for window in done.scheduler.windows.values())
        assert done.scheduler.queued == 0
    # What the engines' counters say: each token but the first is one between two tokens.
    last = done.looks[0][-1]
    assert last.itl_count == sum(job.output - 1 for job in jobs if job.output > 1)


def test_the_same_arguments_give_the_same_run() -> None:
    def once(seed: int) -> list[tuple[float | None, float | None]]:
        engines = Engines(SMALL, count=2, lag=Lag(0.0, 1.0), way_in=WayIn(0.01, 0.05, 0.002), exit_s=0.003)
        done = run(mixed(5), policy(), engines, 90.0, seed=seed)
        return [(record.released, record.ended) for record in done.records]

    assert once(1) == once(1)
    assert once(1) != once(2)


def test_what_the_scheduler_is_told_of_a_job() -> None:
    """Bytes, the client's own limit and nothing of the output; then the true counts."""
    jobs = [Job(0.0, "a", 100, 7, max_output=50), Job(0.0, "b", 100, 7, body_bytes=100)]
    done = run(jobs, a_pool(), Engines(SLOW), 0.05)
    scheduler = done.scheduler
    assert scheduler is not None
    first, second = scheduler.requests.values()
    # 400 bytes are 100 tokens. Nothing is known of outputs but the prior of 256, and the limit of 50.
    assert (first.prompt_tokens, first.output_tokens) == (100.0, 50.0)
    assert (second.prompt_tokens, second.output_tokens) == (25.0, 256.0)


def test_direct_ways_have_no_window_and_gateways_keep_it_short() -> None:
    jobs = [Job(0.0, "a", 64, 64) for _ in range(60)]
    for way, least, most in ((DIRECT_FIFO, 50, 60), (FAIR, 0, 12)):
        done = run(jobs, a_pool(), Engines(SMALL), 60.0, way=way, until_done=True)
        worst = max(look.waiting for look in done.looks[0])
        assert least <= worst <= most


def test_a_page_shows_the_past() -> None:
    """A request runs from 0.5 to 10.0 s. With a lag of 2 s, a page read each second shows it for the first time at 3 s,
    which is the state of 1 s, and no more at 12 s, which is that of 10 s."""
    seen: list[tuple[float, int]] = []

    def look(scheduler: object, now: float) -> None:
        window = next(iter(scheduler.windows.values()), None)  # type: ignore[attr-defined]
        if window is not None:
            running = window.view(now).running
            if running is not None and (not seen or seen[-1][1] != running):
                seen.append((now, running))

    engines = Engines(replace(SLOW, step_per_prefill_token=0.0), lag=Lag(2.0, 2.0), scrape_s=1.0)
    run([Job(0.5, "a", 1, 95)], a_pool(), engines, 20.0, check=look)
    assert [(round(at), running) for at, running in seen] == [(0, 0), (3, 1), (12, 0)]


def test_gauges_never_go_back_in_time() -> None:
    """Lags drawn between 0 and 5 s: a page is never older than the one before it. Counters would fall, which the
    scheduler takes for a restart."""
    counts: list[float] = []

    def look(scheduler: object, now: float) -> None:
        window = next(iter(scheduler.windows.values()))  # type: ignore[attr-defined]
        view = window.view(now)
        if view.running is not None:
            counts.append(view.age_s or 0.0)

    done = run(mixed(2), policy(), Engines(SMALL, lag=Lag(0.0, 5.0), scrape_s=0.5), 60.0, check=look, seed=4)
    assert counts
    assert all(
        look.itl_count >= before.itl_count for before, look in zip(done.looks[0], done.looks[0][1:], strict=False)
    )


def test_the_way_into_the_engine_takes_time_for_each_in_turn() -> None:
    """Three at once, 0.1 s each and then 0.05 s: in the engine at 1.15, 1.25 and 1.35, and 1 ms later done."""
    options = EngineOptions(max_num_seqs=8, step_base=0.001, step_per_seq=0.0, step_per_prefill_token=0.0)
    engines = Engines(options, way_in=WayIn(0.05, 0.05, each=0.1), exit_s=0.5)
    done = run([Job(1.0, "a", 1, 1) for _ in range(3)], a_pool(), engines, 5.0)
    assert [record.first for record in done.records] == pytest.approx([1.151, 1.251, 1.351])


def test_the_end_is_known_later_than_it_is() -> None:
    """A slot is free for the gateway 0.5 s after the engine has freed it. One slot of the window, so one at a time."""
    options = EngineOptions(max_num_seqs=8, step_base=0.1, step_per_seq=0.0, step_per_prefill_token=0.0)
    jobs = [Job(0.0, "a", 1, 1) for _ in range(3)]
    done = run(jobs, a_pool(), Engines(options, exit_s=0.5), 5.0, way=fixed(1), until_done=True)
    assert [record.ended for record in done.records] == pytest.approx([0.1, 0.7, 1.3], abs=0.02)


# -- faults ----------------------------------------------------------------------------------------


def test_refused_jobs_carry_the_reason_and_when_to_return() -> None:
    jobs = [Job(0.0, "a", 64, 64) for _ in range(40)]
    tight = a_pool(default_tenant=TenantPolicy(max_queued=5))
    done = run(jobs, tight, Engines(SMALL), 60.0, until_done=True)
    refused = [record for record in done.records if record.fate is Fate.REFUSED]
    assert len(refused) + sum(fate is Fate.SERVED for fate in fates(done)) == 40
    assert {(record.reason, record.status) for record in refused} == {("tenant_limit", 429)}
    assert all(record.retry_after is not None and record.retry_after >= 1 for record in refused)


def test_clients_without_patience_leave_held_and_running() -> None:
    """One slot, 0.21 s each: of four at once with half a second of patience two get a first token in time."""
    jobs = [Job(0.0, "a", 10, 2, patience_s=0.5) for _ in range(4)]
    for way in (DIRECT_FIFO, FAIR):
        done = run(jobs, a_pool(), Engines(SLOW), 5.0, way=way, until_done=True)
        assert fates(done) == [Fate.SERVED, Fate.SERVED, Fate.LEFT, Fate.LEFT]
        assert [record.ended for record in done.records][2:] == [0.5, 0.5]


def test_a_restart_loses_what_is_inside_and_the_rest_is_served() -> None:
    jobs = mixed(6, 40.0)
    engines = Engines(SMALL)
    done = run(jobs, policy(), engines, 300.0, faults=[Restart(20.0, away_s=2.0)], until_done=True)
    aborted = [record for record in done.records if record.fate is Fate.ABORTED]
    assert 3 <= len(aborted) <= 16
    assert all(record.ended is not None and 20.0 <= record.ended <= 22.3 for record in aborted)
    assert {record.fate for record in done.records} == {Fate.SERVED, Fate.ABORTED}
    assert done.scheduler is not None
    assert all(window.in_flight == 0 for window in done.scheduler.windows.values())
    assert all(record.charged is not None for record in done.records)


def test_an_outage_of_the_page_stops_no_request() -> None:
    jobs = mixed(7, 40.0)
    done = run(jobs, policy(), Engines(SMALL), 300.0, faults=[Outage(10.0, 30.0)], until_done=True)
    assert set(fates(done)) == {Fate.SERVED}
    inside = [r for r in done.records if r.released is not None and 12.0 < r.released < 30.0]
    assert len(inside) > 10


def test_foreign_jobs_take_room_and_are_nobody_s() -> None:
    """The only slot is busy with a foreign job of 0.21 s: ours comes after it."""
    done = run([Job(0.05, "a", 10, 2)], a_pool(), Engines(SLOW), 5.0, foreign=[Job(0.0, "?", 10, 2)])
    (record,) = done.records
    assert record.first == pytest.approx(0.32)
    assert [f.fate for f in done.foreign] == [Fate.SERVED]
    assert len(done.records) == 1


def test_a_larger_engine_runs_more() -> None:
    jobs = [Job(0.0, "a", 64, 64) for _ in range(200)]
    done = run(
        jobs, a_pool(), Engines(SMALL), 60.0, way=DIRECT_FIFO, faults=[Resize(5.0, replace(SMALL, max_num_seqs=8))]
    )
    assert max(look.running for look in done.looks[0] if look.at < 5.0) == 4
    assert max(look.running for look in done.looks[0] if look.at > 6.0) == 8


def test_endpoints_join_and_part() -> None:
    jobs = mixed(8, 60.0)
    faults = [Join(20.0, 1), Part(40.0, 0)]
    for way in (DIRECT_FIFO, FAIR):
        done = run(jobs, policy(), Engines(SMALL, count=2), 300.0, way=way, faults=faults, until_done=True)
        assert set(fates(done)) == {Fate.SERVED}
        used = {(int(r.released // 20), r.endpoint) for r in done.records if r.released is not None}
        assert {endpoint for period, endpoint in used if period == 0} == {0}
        assert {endpoint for period, endpoint in used if period == 1} == {0, 1}
        assert {endpoint for period, endpoint in used if period >= 2} == {1}


def test_a_closed_loop_sends_the_next_when_one_is_over() -> None:
    """One client with one request at a time: ten of 0.21 s in 2.1 s."""

    def again(record: Record, now: float) -> Job | None:
        return replace(record.job, at=now)

    done = run([Job(1.0, "a", 10, 2)], a_pool(), Engines(SLOW), 3.15, next_job=again)
    assert fates(done) == [Fate.SERVED] * 10 + [Fate.UNFINISHED]
    assert [record.job.at for record in done.records] == pytest.approx([1.0 + 0.21 * i for i in range(11)])


def test_a_warm_prefix_is_not_computed_again() -> None:
    """400 of 410 prompt tokens are shared: 0.51 s for the first prompt, 0.11 s for the second, told as cached."""
    engines = Engines(SLOW, prefix_cache_tokens=400, prefix_tokens=400)
    jobs = [Job(at, "a", 410, 1, prefix=(7,)) for at in (1.0, 2.0)]
    done = run(jobs, a_pool(), engines, 5.0, until_done=True)
    assert [record.ttft for record in done.records] == pytest.approx([0.51, 0.11])
    assert [record.cached for record in done.records] == [0, 400]
    # 410 + 2, and 10 + 0.1 * 400 + 2.
    assert [record.charged for record in done.records] == pytest.approx([412.0, 52.0])


def test_the_scrape_interval_is_told_to_the_window() -> None:
    done = run([], a_pool(window=WindowPolicy(controller=Controller.ADAPTIVE)), Engines(SMALL, scrape_s=5.0), 20.0)
    assert done.policy.window.scrape_interval_s == 5.0
    assert done.policy.window.idle_scrape_interval_s == 5.0
