"""An engine that hangs: its pages show work and no progress. It is closed, tried, and opened when it goes on."""

from __future__ import annotations

from dataclasses import replace

from scheduler_case import E1, E2, Case, a_class, a_pool, refused, released
from window_case import Bench

from extproc.core.explanation import explain
from extproc.core.windows import Stance

AFTER = 30.0


def frozen(bench: Bench, seconds: float, *, every: float = 0.25, running: int = 3, progress: float = 1000.0) -> None:
    for _ in range(round(seconds / every)):
        bench.later(every)
        bench.page(running, progress=progress)


def a_hung_bench() -> Bench:
    bench = Bench(start=8.0)
    bench.take(3)
    bench.page(3, progress=1000.0)
    frozen(bench, AFTER)
    assert bench.stance is Stance.STALLED
    return bench


def test_it_is_closed_when_nothing_has_moved_for_the_set_time() -> None:
    bench = Bench(start=8.0)
    bench.take(3)
    bench.page(3, progress=1000.0)
    frozen(bench, AFTER - 0.25)
    assert bench.stance is Stance.FRESH
    assert bench.accepts()
    frozen(bench, 0.25)
    assert bench.stance is Stance.STALLED
    assert not bench.accepts()
    assert not bench.may_overtake()
    hold = bench.window.why_not(bench.inside[0], 3.0, bench.now)
    assert hold is not None
    assert (hold.name, hold.value, hold.note) == ("stance", AFTER, "stalled")


def test_every_step_is_progress_however_slow() -> None:
    bench = Bench()
    bench.take(3)
    for step in range(20):
        frozen(bench, AFTER - 1.0, every=1.0, progress=float(step))
    assert bench.stance is Stance.FRESH


def test_one_that_hung_while_it_was_idle_is_found_by_our_own_books() -> None:
    """Its page shows 0 and 0 for ever, whatever it is sent."""
    bench = Bench()
    bench.page(0, progress=7.0)
    bench.take(2)
    frozen(bench, AFTER, running=0, progress=7.0)
    assert bench.stance is Stance.STALLED


def test_growing_kv_usage_is_work() -> None:
    """vLLM's counters do not move in the middle of a long prompt."""
    bench = Bench()
    bench.take(1)
    for step in range(60):
        bench.later(1.0)
        bench.page(1, progress=7.0, kv_usage=step / 100)
    assert bench.stance is Stance.FRESH


def test_answers_that_come_back_are_work() -> None:
    bench = Bench()
    bench.take(60)
    for _ in range(50):
        bench.later(1.0)
        bench.window.served()
        bench.free(1)
        bench.page(0, progress=7.0)
    assert bench.stance is Stance.FRESH


def test_clients_that_give_up_are_no_work() -> None:
    bench = Bench()
    bench.take(60)
    for _ in range(50):
        bench.later(1.0)
        bench.free(1)
        bench.page(3, progress=7.0)
    assert bench.stance is Stance.STALLED


def test_an_idle_engine_does_not_hang() -> None:
    bench = Bench()
    frozen(bench, 10 * AFTER, every=1.0, running=0)
    assert bench.stance is Stance.FRESH


def test_work_that_only_waits_counts_as_work() -> None:
    bench = Bench()
    for _ in range(40):
        bench.later(1.0)
        bench.page(0, waiting=6, progress=7.0)
    assert bench.stance is Stance.STALLED


def test_gauges_that_change_without_progress_prove_nothing() -> None:
    bench = Bench()
    for step in range(40):
        bench.later(1.0)
        bench.page(3, waiting=step, progress=7.0)
    assert bench.stance is Stance.STALLED


def test_an_engine_that_cannot_tell_is_never_taken_for_hung() -> None:
    bench = Bench()
    for _ in range(400):
        bench.later(1.0)
        bench.page(3)
    assert bench.stance is Stance.FRESH


def test_it_can_be_switched_off() -> None:
    bench = Bench(stalled_after_s=None)
    frozen(bench, 1000.0, every=1.0)
    assert bench.stance is Stance.FRESH


def test_time_without_pages_proves_nothing() -> None:
    bench = Bench()
    bench.page(3, progress=1.0)
    bench.later(25.0)
    bench.page(3, progress=2.0)
    bench.later(29.0)
    bench.page(3, progress=2.0)
    assert bench.stance is Stance.FRESH


def test_with_progress_it_begins_anew_from_a_small_window() -> None:
    bench = Bench(start=8.0, max_num_seqs=None)
    for _ in range(6):  # it learns that the engine is large
        bench.fill()
        bench.later()
        bench.page(bench.window.in_flight, progress=float(bench.now))
    assert bench.capacity > 30
    inside = bench.window.in_flight
    frozen(bench, AFTER + 0.25, running=inside, progress=5.0)
    assert bench.stance is Stance.STALLED
    bench.later()
    bench.page(inside, progress=6.0)
    assert bench.stance is Stance.FRESH
    assert bench.capacity == 16.0  # the start, doubled: the page shows it full
    assert bench.window.in_flight == inside


def test_with_nothing_left_it_is_open_again() -> None:
    bench = a_hung_bench()
    bench.free(3)
    bench.later()
    bench.page(0, progress=1000.0)
    assert bench.stance is Stance.FRESH


def test_a_counter_that_went_down_is_another_process() -> None:
    bench = a_hung_bench()
    bench.later()
    bench.page(3, progress=0.0)
    assert bench.stance is Stance.FRESH


def test_while_ours_are_inside_no_other_is_tried() -> None:
    bench = a_hung_bench()
    frozen(bench, 300.0, every=1.0)
    assert not bench.accepts()


def test_when_ours_have_left_one_is_tried_after_a_minute() -> None:
    """Gauges of some engines stay up for ever after all requests were aborted: nobody would try again."""
    bench = a_hung_bench()
    bench.free(3)
    frozen(bench, 59.0, every=1.0)
    assert not bench.accepts()
    frozen(bench, 2.0, every=1.0)
    assert bench.accepts()
    bench.take(1)
    assert not bench.accepts()


def test_requests_go_to_the_other_endpoint_and_the_stalled_one_says_why() -> None:
    policy = a_pool(a_class(queue_timeout_s=1000.0), start=2.0, no_endpoint_timeout_s=60.0)
    case = Case(policy, endpoints=(E1, E2))
    case.arrive("r1")
    case.arrive("r2")
    first = case.scheduler.requests["r1"].endpoint
    other = E2 if first == E1 else E1
    for step in range(130):
        case.now += 0.25
        case.page(first or "", running=1, progress=5.0)
        case.page(other, running=1, progress=float(step))
    for i in range(12):
        case.arrive(f"more-{i}")
    inside = {window.endpoint: window.in_flight for window in case.scheduler.windows.values()}
    assert inside[first or ""] == 1
    assert inside[other] == 2 + 3
    explanation = explain(case.scheduler, "more-11", case.now)
    assert explanation is not None
    case.scrape_fails(other, refused=True)
    explanation = explain(case.scheduler, "more-4", case.now)
    assert explanation is not None
    assert f"{first} is stalled: it answers, but makes no progress with what it has" in explanation.sentence
    ends = case.tick(60.0)
    assert {reason for _, reason in refused(ends)} == {"no_capacity"}
    assert "no endpoint of pool 'm' answered and made progress for 60.0 s" in ends[0].message  # type: ignore[union-attr]


def test_a_policy_without_the_time_opens_what_was_closed_at_once() -> None:
    policy = a_pool(start=1.0)
    case = Case(policy)
    case.arrive("r1")
    for _ in range(35):
        case.now += 1.0
        case.page(running=1, progress=5.0)
    assert case.arrive("r2") == []
    assert case.scheduler.absent_since is not None
    effects = case.reconfigure(replace(policy, window=replace(policy.window, stalled_after_s=None)))
    assert released(effects) == ["r2"]
    assert case.scheduler.absent_since is None
    assert released(case.page(running=1, progress=5.0) + case.arrive("r3")) == ["r3"]  # the next page agrees


def test_a_hung_one_that_shows_nothing_is_tried_only_where_there_is_no_other() -> None:
    """It is idle by all books, and would be the least loaded one."""
    case = Case(a_pool(a_class(queue_timeout_s=1000.0), start=2.0), endpoints=(E1, E2))
    case.arrive("r1")
    hung = case.scheduler.requests["r1"].endpoint or ""
    other = E2 if hung == E1 else E1
    for step in range(40):
        case.now += 1.0
        case.page(hung, progress=5.0)
        case.page(other, progress=float(step))
    case.end("r1")
    assert case.scheduler.windows[hung].stance(case.now) is Stance.STALLED
    for step in range(70):
        case.now += 1.0
        case.arrive(f"x{step}")
        assert case.scheduler.requests[f"x{step}"].endpoint == other
        case.usage(f"x{step}", 1, 1)
        case.end(f"x{step}")
        case.page(other, progress=100.0 + step)
    case.scrape_fails(other, refused=True)
    case.arrive("to see")
    assert case.scheduler.requests["to see"].endpoint == hung
