"""The first controller, and the books and stances that all controllers share (`windows.base`)."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from window_case import Bench as AnyBench
from window_case import Q, a_request

from extproc.core.model import Controller
from extproc.core.windows import Stance


class Bench(AnyBench):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**({"controller": Controller.FIRST} | settings))


# -- starting -------------------------------------------------------------------------------------


def test_nothing_goes_before_the_first_reading_or_the_grace() -> None:
    bench = Bench(read=False, first_scrape_grace_s=2.0)
    assert bench.stance is Stance.STARTING
    assert not bench.accepts()
    bench.later(1.99)
    assert not bench.accepts()
    bench.later(0.02)
    assert bench.stance is Stance.OUTAGE
    assert bench.fill() == 4  # half of R = 8


def test_a_first_reading_opens_the_window_at_once() -> None:
    bench = Bench(read=False)
    bench.page()
    assert bench.stance is Stance.FRESH
    assert bench.fill() == 11  # R + q
    assert Bench().fill(q=0.0) == 8  # a class without a standing queue: R


def test_a_first_reading_that_fails_ends_the_wait_for_it() -> None:
    bench = Bench(read=False)
    bench.window.on_failure(refused=False)
    assert bench.stance is Stance.OUTAGE
    assert bench.fill() == 4


def test_the_first_reading_makes_foreign_load_exact() -> None:
    bench = Bench(read=False)
    bench.page(running=5, waiting=1)
    assert bench.window.foreign == 6  # not smoothed: 0.5 * 6 would let three too many go


# -- capacity -------------------------------------------------------------------------------------


def test_slow_start_doubles_on_a_page_that_has_seen_our_requests() -> None:
    bench = Bench()
    inside = []
    for _ in range(4):
        inside.append(bench.fill())
        bench.later()
        bench.page(running=bench.window.in_flight)
    assert inside == [11, 19, 35, 67]  # 8, 16, 32, 64, each + 3
    assert bench.capacity == 128.0


def test_a_page_from_before_the_burst_does_not_double() -> None:
    """The figures of the design: w 0, r 1, i 11. The burst is in the engine, and not yet on its page."""
    bench = Bench()
    assert bench.fill() == 11
    bench.later()
    bench.page(running=1, waiting=0)
    assert bench.capacity == 8.0


def test_a_window_that_is_not_full_does_not_grow() -> None:
    bench = Bench()
    bench.take(9)  # 0.9 * (8 + 3) = 9.9 is full
    bench.later()
    bench.page(running=9)
    assert bench.capacity == 8.0
    bench.take()
    bench.later()
    bench.page(running=10)
    assert bench.capacity == 16.0


def test_a_class_without_a_standing_queue_opens_the_window_too() -> None:
    """It is full at R: by the yardstick of R + q, 8 < 9.9, batch alone would stay at the start for ever."""
    bench = Bench()
    assert bench.fill(q=0.0) == 8
    bench.later()
    bench.page(running=8, asked=0.0)
    assert bench.capacity == 16.0


def test_wide_requests_open_the_window_too() -> None:
    """Eight slots are taken by one request of eight; the next such one finds no room under 11."""
    bench = Bench()
    bench.go(a_request(8))
    assert not bench.accepts(8)
    bench.later()
    bench.page(running=8, asked=Q - 7)
    assert bench.capacity == 16.0


def test_an_idle_window_does_not_grow_whatever_is_asked() -> None:
    bench = Bench()
    bench.later()
    bench.page(running=0, asked=Q - 127)
    assert bench.capacity == 8.0


def test_much_waiting_sets_r_to_what_runs() -> None:
    bench = Bench()
    bench.fill()
    bench.later()
    bench.page(running=4, waiting=7)  # 7 > 2q
    assert bench.capacity == 4.0


def test_a_little_waiting_moves_r_half_way() -> None:
    bench = Bench()
    bench.fill()
    bench.later()
    bench.page(running=5, waiting=6)  # 6 = 2q, no more
    assert bench.capacity == 6.5


def test_after_something_waited_growth_is_by_tenths() -> None:
    bench = Bench()
    bench.fill()
    bench.later()
    bench.page(running=4, waiting=7)
    bench.free(4)  # 7 = 4 + 3: full
    for expected in (5.0, 6.0):
        bench.later()
        bench.fill()
        bench.page(running=bench.window.in_flight)
        assert bench.capacity == expected
    large = Bench(start=40.0)
    large.fill()
    large.later()
    large.page(running=43, waiting=1)  # R = 40 + (43 - 40)/2, and slow start is over
    large.later()
    large.fill()
    large.page(running=large.window.in_flight)
    assert large.capacity == pytest.approx(41.5 * 1.1)


def test_dips_of_running_are_bridged() -> None:
    """`running` 20, then 3, 2 with much waiting: the gauge was taken between finish and admission."""
    bench = Bench(start=20.0)
    bench.take(31)
    for running, expected in ((20, 20.0), (3, 20.0), (2, 20.0), (4, 4.0)):
        bench.later()
        bench.page(running=running, waiting=28)
        assert bench.capacity == expected  # after three low readings in a row it is no dip


def test_readings_from_before_nothing_waited_are_no_dips() -> None:
    """The engine shrank while it was not full: what it ran before says nothing of what it can run now."""
    bench = Bench(start=20.0)
    bench.take(31)
    for running, waiting in ((20, 28), (3, 0), (4, 28)):
        bench.later()
        bench.page(running=running, waiting=waiting)
    assert bench.capacity == 4.0


def test_a_page_that_runs_nothing_while_something_waits_tells_nothing_of_slots() -> None:
    """Requests that are done in one step are gone when the gauge is taken, and the next not admitted yet."""
    bench = Bench(start=8.0)
    bench.fill()
    for waiting in (1, 3, 100):
        bench.later()
        bench.page(running=0, waiting=waiting)
    assert bench.capacity == 8.0


def turn_over(bench: Bench, requests: int) -> None:
    """So many end, one after the other, and the next goes at once."""
    for _ in range(requests):
        bench.free()
        bench.take()


def test_the_window_opens_for_requests_that_the_gauge_never_shows() -> None:
    """A window of eleven (R + q) comes and goes for over a second, and nothing waits: R doubles."""
    bench = Bench(start=8.0)
    bench.fill()
    bench.page()  # full: from here on the turn counts
    turn_over(bench, 11)
    bench.later(1.0)
    bench.page(running=0)
    assert bench.capacity == 16.0


def test_a_window_that_has_not_turned_over_does_not_open() -> None:
    few, soon, queued = Bench(start=8.0), Bench(start=8.0), Bench(start=8.0)
    for bench in (few, soon, queued):
        bench.fill()
        bench.page(waiting=1)  # the turn begins
    turn_over(few, 10)
    few.later(1.0)
    turn_over(soon, 50)
    soon.later(0.9)
    turn_over(queued, 50)
    queued.later(1.0)
    for bench in (few, soon):
        bench.page(running=0)
        assert bench.capacity == 8.0
    queued.page(running=0, waiting=1)  # something waits: no room, whatever has come and gone
    assert queued.capacity == 8.0


def test_no_opening_on_a_page_that_is_too_slow() -> None:
    bench = Bench(start=8.0, max_tpot_s=0.150)
    bench.page(itl_sum=0.0, itl_count=0.0)
    inside = bench.fill()
    bench.later()
    bench.page(running=inside, itl_sum=20.0, itl_count=100.0)  # 200 ms for each token
    assert bench.capacity == 8.0


def test_capacity_stays_within_floor_and_ceiling() -> None:
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


# -- foreign load ---------------------------------------------------------------------------------


def test_foreign_load_rises_by_half_and_decays_by_three_tenths_in_whole_requests() -> None:
    bench = Bench()
    seen = []
    for running in (1, 0, 0, 0, 0, 0):
        bench.later()
        bench.page(running=running)
        seen.append(bench.window.foreign)
    assert seen == [1, 0, 0, 0, 0, 0]  # 0.5 rounds up to 1; 0.35 to 0: no tail
    bench.page(running=10)
    assert bench.window.foreign == 5
    tail = []
    for _ in range(8):
        bench.later()
        bench.page(running=0)
        tail.append(bench.window.foreign)
    assert tail == [4, 2, 2, 1, 1, 1, 0, 0]  # 5 * 0.7^k: 3.5 2.45 1.72 1.2 0.84 0.59 0.41 0.29, rounded half up


def test_foreign_load_takes_room_from_ours() -> None:
    bench = Bench(read=False)
    bench.page(running=6)
    assert bench.fill() == 5  # 8 + 3 - 6


def test_requests_that_ended_a_moment_ago_are_not_foreign_on_a_lagging_page() -> None:
    bench = Bench()
    bench.take(8)
    bench.later(0.5)
    bench.free(8)
    bench.later(0.4)
    bench.page(running=8)
    assert bench.window.foreign == 0


def test_also_when_they_had_been_inside_for_long() -> None:
    """Inside since before the five seconds that are looked back: the count at their beginning is theirs too."""
    bench = Bench()
    bench.take(8)
    for _ in range(40):
        bench.later()
        bench.page(running=8)
    bench.free(8)
    bench.later(0.1)
    bench.page(running=8)  # gauges lag by 60-110 ms
    assert bench.window.foreign == 0


def test_five_seconds_later_what_still_runs_is_foreign() -> None:
    bench = Bench()
    bench.take(8)
    bench.later(1.0)
    bench.free(8)
    bench.later(5.1)
    bench.page(running=8)
    assert bench.window.foreign == 4


def test_requests_released_while_the_page_was_read_count_as_released_after_it() -> None:
    bench = Bench()
    started = bench.now = bench.now + 1.0
    bench.later(0.2)
    bench.fill()  # 11, all of them after the scrape was sent
    bench.later(0.1)
    bench.page(running=0, started=started)
    assert (bench.capacity, bench.window.foreign) == (8.0, 0)


def test_full_is_what_was_inside_when_the_scrape_was_sent() -> None:
    """5 inside then, 11 before and 11 again now. The page lags and shows 11: no sign of a window too small."""
    bench = Bench()
    bench.take(11)
    bench.later()
    bench.free(6)
    started = bench.now
    bench.later(0.1)
    bench.take(6)
    bench.page(running=11, started=started)
    assert bench.capacity == 8.0


def test_the_history_of_our_own_count_is_bounded() -> None:
    bench = Bench()
    for _ in range(20_000):
        bench.now += 0.001
        bench.take()
        bench.free()
    assert len(bench.window._history) <= 502  # five seconds in steps of 10 ms, and one from before


# -- time per output token ------------------------------------------------------------------------


def test_tpot_over_the_limit_shrinks_the_window_and_under_it_opens_again() -> None:
    bench = Bench(max_tpot_s=0.1)
    bench.page(itl_sum=0.0, itl_count=0.0)
    bench.take(10)
    bench.later()
    bench.page(running=10, itl_sum=20.0, itl_count=100.0)
    assert bench.window.tpot_s == 0.2
    assert bench.window.view(bench.now).tpot_window == 9.0  # 0.9 * load
    assert not bench.accepts()
    bench.later()
    bench.page(running=10, itl_sum=29.6, itl_count=200.0)  # 0.096: between 95 % of the limit and the limit
    assert bench.window.view(bench.now).tpot_window == 9.0
    bench.later()
    bench.page(running=10, itl_sum=38.6, itl_count=300.0)  # 0.09
    assert bench.window.view(bench.now).tpot_window == 10.0


def test_tpot_is_the_difference_between_pages_and_not_the_mean_of_a_lifetime() -> None:
    bench = Bench(max_tpot_s=0.1)
    bench.page(itl_sum=1e6, itl_count=1e6)  # a second per token, long ago
    bench.take(10)
    bench.later()
    bench.page(running=10, itl_sum=1e6 + 5.0, itl_count=1e6 + 100.0)
    assert bench.window.tpot_s == pytest.approx(0.05)
    assert bench.window.view(bench.now).tpot_window is None


def test_no_new_tokens_means_unknown_and_an_idle_engine_opens() -> None:
    bench = Bench(max_tpot_s=0.1)
    bench.page(itl_sum=0.0, itl_count=0.0)
    bench.take(8)
    bench.later()
    bench.page(running=8, itl_sum=20.0, itl_count=100.0)
    bench.later()
    bench.page(running=8, itl_sum=20.0, itl_count=100.0)
    assert bench.window.view(bench.now).tpot_window == pytest.approx(7.2)  # still running: nothing is learnt
    bench.free(8)
    bench.later()
    bench.page(running=0, itl_sum=20.0, itl_count=100.0)
    assert bench.window.view(bench.now).tpot_window is None
    assert bench.fill() == 11


def test_tpot_never_closes_the_window() -> None:
    bench = Bench(max_tpot_s=0.1, floor=1.0)
    total = 0.0
    for i in range(100):
        total += 100.0
        bench.page(running=1, itl_sum=total, itl_count=float(i + 1))
        bench.later()
    assert bench.window.view(bench.now).tpot_window == 1.0
    assert bench.fill() == 1


def test_counters_that_go_down_are_a_restart_and_no_reading() -> None:
    bench = Bench(max_tpot_s=0.1)
    bench.take(5)
    bench.page(running=5, itl_sum=100.0, itl_count=1000.0, preemptions=7.0)
    bench.later()
    bench.page(running=5, itl_sum=1.0, itl_count=1.0, preemptions=0.0)
    assert bench.window.tpot_s is None
    assert bench.window.view(bench.now).tpot_window is None
    assert bench.capacity == 8.0
    bench.later()
    bench.page(running=5, itl_sum=1.5, itl_count=11.0, preemptions=0.0)
    assert bench.window.tpot_s == pytest.approx(0.05)


@pytest.mark.parametrize(("itl_sum", "itl_count"), [(math.nan, 9.0), (9.0, math.nan), (math.inf, 9.0), (9.0, math.inf)])
def test_figures_that_are_no_numbers_teach_nothing(itl_sum: float, itl_count: float) -> None:
    bench = Bench(max_tpot_s=0.1)
    bench.page(itl_sum=0.0, itl_count=0.0)
    bench.take(4)
    for _ in range(2):  # two of them: inf - inf is no number either
        bench.later()
        bench.page(running=4, itl_sum=itl_sum, itl_count=itl_count, kv_usage=math.nan, preemptions=math.nan)
    assert not bench.window.tpot_s
    assert bench.window.view(bench.now).tpot_window is None
    assert bench.capacity == 8.0


# -- KV cache -------------------------------------------------------------------------------------


def test_kv_over_its_limit_holds_the_window_for_ten_seconds() -> None:
    bench = Bench()
    bench.take(11)
    bench.later()
    bench.page(running=6, kv_usage=0.96)
    assert bench.capacity == 5.0  # running - 1
    assert not bench.accepts()
    bench.free(3)
    for _ in range(39):  # 9.75 s, full at 5 + 3, and KV has room again
        bench.later()
        bench.page(running=8, kv_usage=0.5)
    assert bench.capacity == 5.0
    bench.later()
    bench.page(running=8, kv_usage=0.5)
    assert bench.capacity == 6.0


def test_kv_at_its_limit_is_not_over_it() -> None:
    bench = Bench()
    bench.take(6)
    bench.page(running=6, kv_usage=0.95)
    assert bench.capacity == 8.0


def test_new_preemptions_count_as_kv_over_its_limit() -> None:
    bench = Bench()
    bench.take(6)
    bench.page(running=6, preemptions=3.0)
    assert bench.capacity == 8.0  # preempted before we looked
    bench.later()
    bench.page(running=6, preemptions=4.0)
    assert bench.capacity == 5.0


def test_kv_never_raises_the_window() -> None:
    bench = Bench()
    bench.page(running=50, kv_usage=0.99)
    assert bench.capacity == 8.0


# -- age of the page ------------------------------------------------------------------------------


def test_a_stale_page_gives_up_the_standing_queue_and_an_outage_half_of_r() -> None:
    bench = Bench()
    bench.take()  # so one less finds room
    for seconds, stance, room in (
        (1.25, Stance.FRESH, 10),  # 3 intervals of 0.25 and 0.5
        (1.26, Stance.STALE, 7),
        (30.0, Stance.STALE, 7),
        (30.1, Stance.OUTAGE, 3),
        (1e6, Stance.OUTAGE, 3),
    ):
        bench.now = 1000.0 + seconds
        assert (bench.stance, bench.room()) == (stance, room)


def test_a_page_is_not_stale_while_it_is_read_seldom_because_nothing_happens() -> None:
    bench = Bench(idle_scrape_interval_s=2.0)
    for seconds, stance in ((6.5, Stance.FRESH), (6.6, Stance.STALE)):  # 3 intervals of 2 and 0.5
        bench.now = 1000.0 + seconds
        assert bench.stance is stance
    bench.now = 1001.3
    bench.take()  # now it matters, and the page is old until the next one comes
    assert bench.stance is Stance.STALE


# -- unreachable ----------------------------------------------------------------------------------


def test_one_broken_connection_may_be_the_fault_of_its_request_and_two_are_not() -> None:
    bench = Bench()
    bench.window.on_unreachable(bench.now, broke=True)
    assert bench.stance is Stance.FRESH
    bench.later(1.1)
    bench.window.on_unreachable(bench.now, broke=True)
    assert bench.stance is Stance.FRESH
    bench.later(0.1)
    bench.window.on_unreachable(bench.now, broke=True)
    assert bench.stance is Stance.DOWN


def test_a_failed_connection_holds_back_until_a_page_is_read() -> None:
    bench = Bench()
    bench.take()
    bench.later(1.0)
    bench.window.on_unreachable(bench.now, broke=False)
    assert (bench.stance, bench.room()) == (Stance.DOWN, 0)
    bench.later(0.1)
    bench.page(running=1, started=bench.now - 0.2)  # asked for before the connection broke: it proves nothing
    assert bench.stance is Stance.DOWN
    bench.page(running=1, started=bench.now)
    assert (bench.stance, bench.room(), bench.capacity) == (Stance.FRESH, 10, 8.0)  # and nothing was unlearnt


def test_a_failed_connection_holds_back_for_two_seconds_without_a_page() -> None:
    bench = Bench()
    bench.window.on_unreachable(bench.now, broke=False)
    bench.later(1.9)
    assert bench.stance is Stance.DOWN
    bench.later(0.1)
    assert bench.stance is Stance.FRESH


# -- overtaking -----------------------------------------------------------------------------------


def test_a_full_window_takes_a_guest_and_the_next_when_it_is_full_again() -> None:
    bench = Bench()
    bench.fill()  # 11 of 11
    assert bench.may_overtake()
    assert not bench.may_overtake(2)
    bench.go(a_request(), most=12.0)
    assert not bench.may_overtake()  # 12 of 11
    bench.free()
    assert bench.may_overtake()  # the guest is inside still, but 11 of 11 again


def overfill(bench: Bench) -> None:
    """A list of 64 prompts was released as one request: the page shows 64, R + q is 11."""
    bench.take()
    for _ in range(8):
        bench.later()
        bench.page(running=8, waiting=56)
    assert bench.window.foreign > 50
    assert not bench.accepts()


def test_an_overfull_window_takes_a_guest_at_a_time() -> None:
    bench = Bench()
    overfill(bench)
    assert bench.may_overtake()
    guest = bench.go(a_request(), most=12.0)
    assert not bench.may_overtake()
    bench.end(guest)
    assert bench.may_overtake()


def test_the_only_guest_may_be_wide() -> None:
    bench = Bench()
    overfill(bench)
    assert bench.may_overtake(4)
    bench.go(a_request(4), most=12.0)
    assert not bench.may_overtake()


def test_who_overtook_in_ordinary_times_does_not_take_the_guest_s_place() -> None:
    bench = Bench()
    bench.fill()
    assert bench.go(a_request(), most=12.0).guest == 0  # one beyond a full window: no guest
    bench.free(11)  # it runs on for long, and is alone
    overfill(bench)
    assert bench.may_overtake()


def test_who_was_a_guest_is_one_no_more_when_the_window_has_drained() -> None:
    bench = Bench()
    overfill(bench)
    guest = bench.go(a_request(), most=12.0)
    for _ in range(30):
        bench.later()
        bench.page(running=2)
    assert bench.window.foreign == 0
    overfill(bench)  # the guest from before is inside still
    assert bench.may_overtake()
    bench.end(guest)
    assert bench.window.guests == 0


def test_in_an_outage_the_last_foreign_reading_is_not_believed() -> None:
    bench = Bench(read=False)
    bench.page(running=100)  # 100 run and nothing waits: R = 16
    bench.later(31.0)
    assert bench.fill() == 8


def test_what_others_run_without_waiting_is_capacity_too() -> None:
    bench = Bench(read=False)
    capacities = []
    for _ in range(5):
        bench.page(running=100)
        bench.later()
        capacities.append(bench.capacity)
    assert capacities == [16.0, 32.0, 64.0, 128.0, 128.0]
    assert bench.fill() == 31  # 128 + 3 - 100


def test_an_outage_is_over_with_the_next_page() -> None:
    bench = Bench()
    bench.later(60.0)
    assert bench.stance is Stance.OUTAGE
    bench.page()
    assert (bench.stance, bench.room()) == (Stance.FRESH, 11)


# -- refused --------------------------------------------------------------------------------------


def test_refused_is_down_until_a_good_page_which_starts_anew() -> None:
    bench = Bench()
    for _ in range(2):
        bench.fill()
        bench.later()
        bench.page(running=bench.window.in_flight)
    assert bench.capacity == 32.0
    bench.window.on_failure(refused=True)
    assert bench.stance is Stance.DOWN
    bench.free(bench.window.in_flight)
    assert bench.fill() == 0
    bench.window.on_failure(refused=False)
    bench.later(100.0)
    assert bench.stance is Stance.DOWN
    bench.page()
    assert (bench.stance, bench.capacity) == (Stance.FRESH, 8.0)
    bench.fill()
    bench.later()
    bench.page(running=11)
    assert bench.capacity == 16.0  # in slow start again


def test_what_ran_there_stays_in_the_books_over_a_fresh_start() -> None:
    bench = Bench()
    bench.take(5)
    bench.window.on_failure(refused=True)
    bench.page(running=0)
    assert bench.window.in_flight == 5
    assert bench.fill() == 11
    bench.free(11)
    with pytest.raises(AssertionError, match="in flight -1"):
        bench.window.free(a_request(), bench.now)


# -- always one -----------------------------------------------------------------------------------


def test_one_goes_when_nothing_of_ours_is_inside_however_wide() -> None:
    bench = Bench()
    assert bench.accepts(128, q=0.0)
    bench.go(a_request(128))
    assert not bench.accepts()


def test_a_wide_one_goes_when_it_fits_or_a_slot_would_idle() -> None:
    bench = Bench()
    bench.take(7)  # of R = 8
    assert bench.accepts(100)
    bench.take()  # 8 of 8: no slot idles, and 3 may queue
    assert bench.accepts(3)
    assert not bench.accepts(4)


def test_phantom_foreign_load_holds_back_for_five_seconds_at_most() -> None:
    """Gauges of an engine that stay high for ever after all its requests were aborted."""
    bench = Bench(read=False)
    bench.page(running=100)
    bench.take()
    bench.free()
    bench.later(4.9)
    bench.page(running=100)
    assert not bench.accepts()
    bench.later(0.2)
    bench.page(running=100)
    assert bench.accepts()
    bench.take()
    assert not bench.accepts()  # one, to see what happens


# -- removed and back -----------------------------------------------------------------------------


def test_a_removed_endpoint_takes_nothing_and_keeps_its_books_when_it_is_back() -> None:
    bench = Bench()
    bench.take(3)
    bench.window.removed = True
    assert not bench.accepts()
    bench.later()
    bench.window.revive(bench.now)
    assert bench.stance is Stance.STARTING
    assert bench.window.in_flight == 3
    bench.page(running=3)
    assert bench.window.foreign == 0  # the three are ours
    assert bench.fill() == 11


# -- whatever the page says -----------------------------------------------------------------------

_GAUGES = st.one_of(st.integers(0, 40), st.sampled_from([10**9, 10**12]))
_FLOATS = st.one_of(st.none(), st.floats(0, 1e6), st.sampled_from([0.0, 1e18, math.inf, math.nan]))


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    steps=st.lists(
        st.tuples(_GAUGES, _GAUGES, _FLOATS, _FLOATS, _FLOATS, _FLOATS, st.sampled_from([0.01, 0.25, 2.0, 40.0])),
        max_size=20,
    )
)
def test_never_nothing_and_never_without_limit(steps: list[tuple[Any, ...]]) -> None:
    bench = Bench(ceiling=64.0)
    for running, waiting, kv, itl_sum, itl_count, preemptions, seconds in steps:
        bench.later(seconds)
        bench.page(running, waiting, kv_usage=kv, itl_sum=itl_sum, itl_count=itl_count, preemptions=preemptions)
        assert 1.0 <= bench.capacity <= 64.0
        assert bench.fill() <= 67  # ceiling + q
        bench.free(bench.window.in_flight)
        bench.later(5.1)
        assert bench.accepts(q=0.0)
