"""The recommended controller: slots, and how its parts come together."""

from __future__ import annotations

from typing import Any

import pytest
from window_case import Bench as AnyBench
from window_case import Q, a_request

from extproc.core.model import Controller
from extproc.core.windows import Stance


class Bench(AnyBench):
    """Its page has no latency histogram unless asked for: slots are the limit."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**({"controller": Controller.ADAPTIVE} | settings))


# -- slots ----------------------------------------------------------------------------------------


def test_slow_start_doubles_on_a_page_that_has_seen_our_requests() -> None:
    bench = Bench()
    inside = []
    for _ in range(4):
        inside.append(bench.fill())
        bench.later()
        bench.page(running=bench.window.in_flight)
    assert inside == [11, 19, 35, 67]  # 8, 16, 32, 64, each + 3
    assert bench.capacity == 128.0


@pytest.mark.parametrize(("running", "capacity"), [(1, 8.0), (9, 8.0), (10, 16.0)])
def test_a_page_from_before_the_burst_does_not_double(running: int, capacity: float) -> None:
    """11 inside, and the page shows `running`: one less than ours may be on its way, two are a page that is too old."""
    bench = Bench()
    assert bench.fill() == 11
    bench.later()
    bench.page(running=running)
    assert bench.capacity == capacity


def test_r_is_filled_at_nine_tenths() -> None:
    bench = Bench()
    bench.take(7)
    bench.later()
    bench.page(running=7)
    assert bench.capacity == 8.0  # 7 < 7.2
    bench.take()
    bench.later()
    bench.page(running=8)
    assert bench.capacity == 16.0


def test_both_foreign_and_ours_fill_it_but_foreign_alone_teach_nothing() -> None:
    bench = Bench(read=False)
    bench.page(running=6)
    assert bench.view.foreign == 6
    for _ in range(10):
        bench.later()
        bench.page(running=8)
    assert bench.capacity == 8.0
    assert bench.fill() == 3  # R + q - 8
    bench.later()
    bench.page(running=11)
    assert bench.capacity == 16.0


def test_much_waiting_sets_r_to_what_runs_and_a_little_goes_half_way() -> None:
    bench = Bench()
    bench.fill()
    bench.later()
    bench.page(running=5, waiting=6)  # 6 = 2q, no more
    assert bench.capacity == 6.5
    assert bench.window.limit(Q, bench.now) == 10.0  # 9.5: one goes while fewer than 9.5 are inside
    bench.later()
    bench.page(running=4, waiting=7)  # the most of the last three readings is 5
    assert bench.capacity == 5.0


def test_after_something_waited_growth_is_by_tenths() -> None:
    bench = Bench(start=40.0)
    bench.fill()
    bench.later()
    bench.page(running=43, waiting=1)
    assert bench.capacity == 41.5
    bench.later()
    bench.fill()
    bench.page(running=bench.window.in_flight)
    assert bench.capacity == pytest.approx(41.5 * 1.1)


def test_dips_of_running_are_bridged_and_none_at_all_tells_nothing() -> None:
    bench = Bench(start=20.0)
    bench.take(31)
    for running, expected in ((20, 20.0), (3, 20.0), (2, 20.0), (4, 4.0)):
        bench.later()
        bench.page(running=running, waiting=28)
        assert bench.capacity == expected  # after three low readings in a row it is no dip
    other = Bench()
    other.fill()
    other.later()
    other.page(running=0, waiting=3)
    assert other.capacity == 8.0


def test_answers_of_one_step_open_the_window_though_the_page_never_shows_them() -> None:
    bench = Bench()
    bench.fill()
    bench.page()
    for _ in range(11):
        bench.free()
        bench.take()
    bench.later(1.0)
    bench.page(running=0)
    assert bench.capacity == 16.0


def test_and_where_the_page_has_a_latency_histogram_too() -> None:
    """It stays at nothing: W, from 8 on, doubles with each 8 that come and go in over a second."""
    bench = Bench(read=False)
    bench.page(itl_sum=0.0, itl_count=0.0)
    assert bench.fill() == 8
    windows = []
    for _ in range(4):
        bench.later(1.0)
        for _ in range(bench.window.in_flight):
            bench.free()
            bench.take()
        bench.page(running=0, itl_sum=0.0, itl_count=0.0)
        windows.append(bench.view.tpot_window)
        bench.fill()
    assert windows == [8.0, 16.0, 32.0, 64.0]  # the first page without tokens begins the turn
    assert bench.window.in_flight > 30


def test_a_page_that_is_too_slow_does_not_raise_r() -> None:
    bench = Bench(max_tpot_s=0.1, read=False)
    bench.page(itl_sum=0.0, itl_count=0.0)
    bench.take(8)
    bench.later()
    bench.page(running=8, itl_sum=2.0, itl_count=10.0)
    assert bench.capacity == 8.0


def test_slots_that_are_known_are_there_at_once_and_never_probed_beyond() -> None:
    bench = Bench(max_num_seqs=20)
    assert bench.fill() == 23
    for _ in range(5):
        bench.later()
        bench.page(running=20, waiting=0)
    assert bench.capacity == 20.0
    bench.later()
    bench.page(running=12, waiting=11)  # KV is full, say: fewer run
    bench.later()
    bench.page(running=12, waiting=11)
    assert bench.capacity == 20.0  # the most of three
    bench.later()
    bench.page(running=12, waiting=11)
    assert bench.capacity == 12.0


def test_floor_and_ceiling_hold() -> None:
    low = Bench(floor=2.0)
    low.fill()
    low.page(running=1, waiting=100)
    assert low.capacity == 2.0
    high = Bench(ceiling=20.0)
    for _ in range(3):
        high.fill()
        high.later()
        high.page(running=high.window.in_flight)
    assert high.capacity == 20.0


def test_a_class_without_a_standing_queue_fills_r() -> None:
    assert Bench().fill(q=0.0) == 8


def test_a_wide_one_goes_when_it_fits_or_a_slot_would_idle() -> None:
    bench = Bench()
    bench.take(7)
    assert bench.accepts(100)
    bench.take()
    assert bench.accepts(3)
    assert not bench.accepts(4)


# -- latency --------------------------------------------------------------------------------------


def test_a_small_engine_is_limited_by_slots_and_a_slow_one_by_latency() -> None:
    bench = Bench(read=False, max_num_seqs=8)
    bench.take(8)
    bench.page(running=8, itl_sum=0.0, itl_count=0.0)
    bench.later(1.0)
    bench.page(running=8, itl_sum=8.0, itl_count=8 / 0.030)  # 30 ms: W = 8 * 0.1425/0.03 = 38
    assert bench.view.tpot_window == pytest.approx(38.0)
    assert bench.fill() == 11
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.value, hold.limit, hold.unit) == ("slots", 11, 11.0, "requests")
    bench.later(60.0)
    bench.page(running=8, itl_sum=488.0, itl_count=8 / 0.030 + 480 / 0.300)  # 300 ms: W = 8 * 0.1425/0.3
    assert bench.view.tpot_window == pytest.approx(3.8, rel=1e-3)
    assert bench.window.limit(Q, bench.now) == 4.0
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.limit) == ("latency", 4.0)
    assert "step time" in hold.note  # and no number of requests will make it quick
    assert bench.view.below_step


def test_without_a_histogram_latency_sets_no_limit_until_there_is_one() -> None:
    bench = Bench(start=50.0)
    assert bench.view.tpot_window is None
    assert bench.fill() == 53
    bench.later()
    bench.page(running=53, itl_sum=0.0, itl_count=0.0)
    assert bench.view.tpot_window == 53.0


def test_the_pace_comes_from_the_tokens_where_there_is_no_histogram() -> None:
    """4 run, 80 tokens in a second: 20 each, 50 ms a token."""
    bench = Bench(read=False)
    bench.page(running=4, generation_tokens=100.0)
    bench.later(1.0)
    bench.page(running=4, generation_tokens=180.0)
    assert bench.window.pace_s == pytest.approx(0.05)
    assert bench.view.tpot_s is None


def test_counters_that_go_down_keep_all_that_was_learnt() -> None:
    bench = Bench(read=False)
    bench.page(itl_sum=0.0, itl_count=0.0, kv_capacity_tokens=10_000, prompt_tokens=50.0)
    for second in range(1, 6):
        bench.fill()
        n = bench.window.in_flight
        bench.later(1.0)
        bench.page(
            running=n, itl_sum=8.0 * second, itl_count=200.0 * second, kv_capacity_tokens=10_000, prompt_tokens=50.0
        )
    before = bench.view
    bench.later(1.0)
    bench.page(running=2, itl_sum=1.0, itl_count=10.0, kv_capacity_tokens=10_000, prompt_tokens=0.0)
    after = bench.view
    assert (after.capacity, after.tpot_window, after.margin) == (before.capacity, before.tpot_window, before.margin)
    assert (after.prefill_limit, after.kv_ceiling) == (before.prefill_limit, before.kv_ceiling)
    assert after.unanswered == before.unanswered


# -- age of the page ------------------------------------------------------------------------------


def test_stale_gives_up_the_standing_queue_and_an_outage_a_fifth() -> None:
    bench = Bench(start=10.0)
    bench.take()
    for seconds, stance, room in (
        (1.25, Stance.FRESH, 12),  # R + q = 13
        (1.26, Stance.STALE, 9),
        (30.0, Stance.STALE, 9),
        (30.1, Stance.OUTAGE, 7),  # 0.8 * 10
        (1e6, Stance.OUTAGE, 7),
    ):
        bench.now = 1000.0 + seconds
        assert (bench.stance, bench.room()) == (stance, room)


def test_foreign_load_holds_a_probe_back_for_five_seconds_at_most() -> None:
    bench = Bench(read=False)
    bench.page(running=100)
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert (hold.name, hold.value, hold.limit) == ("foreign", 100, 11.0)
    assert not bench.accepts()
    bench.later(5.1)
    bench.page(running=100)
    assert bench.accepts()
    bench.take()
    assert not bench.accepts()
    hold = bench.window.why_not(a_request(), Q, bench.now)
    assert hold is not None
    assert hold.name == "foreign"


# -- overtaking -----------------------------------------------------------------------------------


def test_a_full_window_takes_a_guest_at_a_time() -> None:
    bench = Bench()
    bench.fill()
    assert not bench.accepts()
    assert bench.may_overtake()
    assert not bench.may_overtake(2)
    bench.go(a_request(), most=12.0)
    assert not bench.may_overtake()
    bench.free()
    assert bench.may_overtake()


def test_an_overfull_window_takes_a_guest_at_a_time() -> None:
    """A list of 64 prompts was released as one: the page shows 64, R + q is 11."""
    bench = Bench()
    bench.take()
    for _ in range(8):
        bench.later()
        bench.page(running=8, waiting=56)
    assert bench.may_overtake(4)
    guest = bench.go(a_request(4), most=12.0)
    assert (guest.guest, bench.view.guests) == (1, 4)
    assert not bench.may_overtake()
    bench.end(guest)
    assert bench.may_overtake()


@pytest.mark.parametrize(("tokens", "pace"), [(1e-300, None), (0.07, None), (0.1, 50.0), (50.0, 0.1)])
def test_no_token_takes_longer_than_a_minute(tokens: float, pace: float | None) -> None:
    """5 s spent on so many tokens. What is over 60 s a token is dropped and counted."""
    bench = Bench(read=False)
    bench.page(itl_sum=0.0, itl_count=0.0)
    bench.later()
    bench.page(running=8, itl_sum=5.0, itl_count=tokens)
    assert bench.window.pace_s == (None if pace is None else pytest.approx(pace))
    assert bench.window.absurd == (pace is None)


def test_nor_by_what_ran_where_the_page_has_no_histogram() -> None:
    bench = Bench(read=False)
    bench.page(running=8, generation_tokens=0.0)
    bench.later()
    bench.page(running=8, generation_tokens=1e-3)  # 8 * 0.25 s / 0.001 = 2,000 s
    assert (bench.window.pace_s, bench.window.absurd) == (None, 1)
    bench.later()
    bench.page(running=8, generation_tokens=20.001)
    assert bench.window.pace_s == pytest.approx(0.1)
