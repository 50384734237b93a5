"""A window that several replicas share: its claim, and what the others hold."""

from __future__ import annotations

import math
from typing import Any

import pytest
from window_case import Bench, a_request

from extproc.core.model import Controller, WindowPolicy
from extproc.core.windows import Hold, Stance, make_window, renewed


def shared(claim: float, others: int = 0, *, bench: Bench | None = None, lasts: float = 100.0, **policy: Any) -> Bench:
    bench = bench or Bench(**policy)
    bench.window.share(claim, others, 0, bench.now + lasts, bench.now)
    return bench


def why(bench: Bench, slots: int = 1) -> Hold | None:
    return bench.window.why_not(a_request(slots), 3.0, bench.now)


def test_before_the_first_word_nothing_goes() -> None:
    bench = Bench()
    bench.window.await_word()
    assert not bench.accepts()
    assert not bench.may_overtake(most=4)
    assert why(bench) == Hold("share", 0, 0.0, "requests", "waits for word from the store")
    shared(2.0, bench=bench)
    assert bench.fill() == 2


def test_no_more_than_the_claim() -> None:
    bench = shared(5.0, others=2)
    assert bench.fill() == 5
    hold = why(bench)
    assert hold is not None
    assert (hold.name, hold.value, hold.limit) == ("share", 5, 5.0)
    assert "other replicas hold 2" in hold.note
    bench.free(1)
    assert bench.accepts()


def test_no_more_than_the_window_has_room_for_either() -> None:
    """R + q is 11, of which the others have 9."""
    bench = shared(11.0, others=9)
    assert bench.fill() == 2
    hold = why(bench)
    assert hold is not None
    assert (hold.name, hold.value, hold.limit) == ("slots", 11, 11)


def test_a_wide_one_goes_while_a_slot_would_idle() -> None:
    bench = shared(3.0)
    bench.take(2)
    assert bench.accepts(slots=5)
    bench.take(1)
    assert not bench.accepts(slots=5)
    assert why(bench, 5) is not None


@pytest.mark.parametrize("own", [0, 1])
def test_nothing_goes_when_the_claim_is_over(own: int) -> None:
    bench = shared(5.0, lasts=0.2)
    bench.take(own)
    bench.later(0.2)
    assert bench.accepts()
    bench.later(0.001)
    assert not bench.accepts()
    assert not bench.may_overtake()
    hold = why(bench)
    assert hold is not None
    assert "its claim is over" in hold.note
    assert bench.view.claim == 0.0
    shared(5.0, bench=bench)
    assert bench.accepts()


def test_a_page_does_not_make_a_claim_last_longer() -> None:
    bench = shared(5.0, lasts=0.2)
    bench.later(0.3)
    bench.page()
    assert not bench.accepts()


def test_one_may_overtake_a_claim_that_is_full_and_no_more() -> None:
    bench = shared(2.0)
    bench.take(2)
    assert bench.may_overtake(most=1)
    assert not bench.may_overtake(slots=2, most=1)
    bench.take(1)
    assert not bench.may_overtake(most=1)
    assert bench.may_overtake(most=2)


def test_a_full_window_bounds_overtakers_under_a_claim_with_room() -> None:
    bench = shared(11.0, others=11)
    assert bench.may_overtake(most=1)
    shared(11.0, others=12, bench=bench)
    assert not bench.may_overtake(most=1)


def test_something_is_inside_where_others_hold_something() -> None:
    """With nothing of anybody inside any width may go; foreign load may be probed. With something of others not."""
    bench = shared(20.0)
    assert bench.accepts(slots=40)
    shared(20.0, others=11, bench=bench)
    assert not bench.accepts()
    bench.later(60.0)
    bench.page(running=8, waiting=3)
    shared(20.0, others=11, bench=bench)
    assert not bench.accepts()
    shared(20.0, others=10, bench=bench)
    assert bench.accepts()


def test_one_that_needs_the_whole_prefill_limit_is_not_held_by_what_others_have_inside() -> None:
    """The accounts of prompts and of the KV cache are of ours alone: with nothing in them they hold nothing."""
    bench = shared(4.0, others=3)
    bench.page(running=3, ttft_sum=0.0, ttft_count=0.0)
    assert bench.accepts(prompt=100_000.0)
    bench.take(1)
    assert not bench.accepts(prompt=100_000.0)


def test_what_others_hold_is_not_foreign() -> None:
    bench = shared(4.0, others=5)
    bench.take(2)
    bench.later()
    bench.page(running=7)
    assert (bench.window.foreign, bench.window.unknown, bench.view.others) == (5, 0, 5)
    for _ in range(20):
        bench.later()
        bench.page(running=8, waiting=2)
    assert (bench.window.unknown, bench.window.foreign) == (3, 8)
    assert (bench.view.claim, bench.view.room) == (4.0, min(4.0 - 2, max(0.0, bench.view.limit - 10)))


def test_a_page_that_shows_what_others_have_just_sent_is_put_right_by_their_word() -> None:
    """The first page is believed at once: 9 run there, and nobody has told of them."""
    bench = Bench(read=False)
    bench.page(running=9)
    assert (bench.window.unknown, bench.window.foreign) == (9, 9)
    bench.later(0.1)
    shared(3.0, others=8, bench=bench)
    assert (bench.window.unknown, bench.window.foreign) == (1, 9)


def test_others_that_vanish_are_foreign_as_far_as_pages_show_them() -> None:
    bench = shared(4.0, others=6)
    bench.later()
    bench.page(running=6)
    shared(4.0, others=0, bench=bench)
    assert bench.window.foreign == 0
    for _ in range(40):  # for five seconds they count as ours that have left
        bench.later()
        bench.page(running=6)
    assert (bench.window.unknown, bench.window.foreign) == (6, 6)


def test_the_window_opens_by_what_all_replicas_together_fill() -> None:
    """R doubles on a page that shows it filled: here by the others for the most part."""
    bench = shared(2.0, others=9)
    bench.take(2)
    bench.later()
    bench.page(running=11)
    assert bench.capacity == 16.0


@pytest.mark.parametrize("controller", [Controller.ADAPTIVE, Controller.FIRST])
def test_slots_that_others_free_prove_that_pages_have_seen_ours(controller: Controller) -> None:
    """What is done within a step never shows. That a window of them has come and gone proves it, whosever they are."""
    bench = shared(8.0, others=9, controller=controller)
    bench.take(2)
    for _ in range(8):
        bench.later()
        bench.window.share(8.0, 9, 2, bench.now + 10, bench.now)
        bench.page(running=0)
    assert bench.capacity > 8.0


def test_what_dead_replicas_held_is_foreign_until_pages_tell_otherwise() -> None:
    """They counted as ours for five seconds: no page within these would show them as foreign."""
    bench = shared(4.0, others=5)
    bench.take(2)
    bench.later()
    bench.page(running=7)
    bench.window.share(9.0, 0, 0, bench.now + 100.0, bench.now, gone=5)
    assert (bench.window.others, bench.window.unknown) == (0, 5)
    assert bench.window.common_limit(3.0, bench.now) == bench.window.limit(3.0, bench.now) - 5
    bench.later()
    bench.page(running=7)
    assert bench.window.unknown == 5
    for _ in range(20):
        bench.later()
        bench.page(running=2)
    assert bench.window.unknown == 0


def test_where_nothing_foreign_is_counted_the_dead_are_not_either() -> None:
    bench = shared(4.0, others=5, controller=Controller.FIXED, fixed=8)
    bench.window.share(8.0, 0, 0, bench.now + 100.0, bench.now, gone=5)
    assert bench.window.unknown == 0
    assert bench.fill() == 8


def test_a_window_that_has_just_begun_knows_what_the_others_have_found() -> None:
    bench = Bench()
    bench.window.share(50.0, 30, 0, bench.now + 100.0, bench.now, known=64.0)
    assert bench.capacity == 64.0
    assert bench.fill() == 37  # 64 + 3 - 30
    bench.window.share(50.0, 30, 0, bench.now + 100.0, bench.now, known=20.0)
    assert bench.capacity == 64.0


def test_one_that_has_seen_the_engine_full_goes_by_that() -> None:
    bench = shared(50.0, others=2)
    bench.take(8)
    bench.later()
    bench.page(running=10, waiting=5)
    found = bench.capacity
    bench.window.share(50.0, 2, 0, bench.now + 100.0, bench.now, known=64.0)
    assert bench.capacity == found


def test_of_an_engine_that_was_away_nothing_is_taken_over() -> None:
    """It may be another one, of which the others have not read a page yet."""
    bench = Bench()
    bench.take(1)
    bench.window.on_failure(refused=True)
    bench.later()
    bench.page()
    bench.window.share(50.0, 4, 0, bench.now + 100.0, bench.now, known=64.0)
    assert (bench.window.lives, bench.capacity) == (2, 8.0)


def test_no_more_is_taken_over_than_the_policy_allows() -> None:
    bench = Bench(ceiling=20.0)
    bench.window.share(50.0, 0, 0, bench.now + 100.0, bench.now, known=64.0)
    assert bench.capacity == 20.0


def test_limits_that_all_share() -> None:
    bench = shared(4.0, others=5)
    bench.take(2)
    assert bench.window.common_limit(3.0, bench.now) == 11.0
    for _ in range(20):
        bench.later()
        bench.page(running=9)
    assert bench.window.unknown == 2
    assert bench.window.common_limit(3.0, bench.now) == bench.window.limit(3.0, bench.now) - 2
    bench.window.on_failure(refused=True)
    assert bench.window.common_limit(3.0, bench.now) == 0.0


def test_where_only_foreign_load_is_inside_one_may_look_after_a_while() -> None:
    bench = Bench(read=False)
    bench.page(running=30)
    assert bench.window.common_limit(3.0, bench.now) == 0.0
    bench.later(6.0)
    bench.page(running=30)
    assert bench.window.common_limit(3.0, bench.now) == 1.0


def test_without_pages_what_others_hold_is_known_all_the_same() -> None:
    """In an outage foreign load is not: the last page that showed it is too old. 0.8 of 8 are 7."""
    bench = shared(8.0, others=3)
    for _ in range(20):
        bench.later()
        bench.page(running=6)
    assert bench.window.unknown == 3
    bench.later(31.0)
    assert bench.stance is Stance.OUTAGE
    assert bench.window.common_limit(3.0, bench.now) == bench.window.limit(3.0, bench.now) == 7.0
    assert bench.fill() == 4


def test_a_fixed_number_is_of_all_together() -> None:
    bench = shared(8.0, others=3, controller=Controller.FIXED, fixed=8)
    assert bench.fill() == 5


def test_kv_and_prefill_are_divided_as_the_slots_are() -> None:
    bench = Bench(start=100.0)
    bench.page(kv_usage=0.0, kv_capacity_tokens=100_000)
    whole, prefill = bench.view.kv_ceiling, bench.view.prefill_limit
    assert whole is not None and prefill is not None
    shared(25.0, others=75, bench=bench)
    assert bench.view.kv_ceiling == pytest.approx(whole / 4)
    assert bench.view.prefill_limit == pytest.approx(prefill / 4)
    shared(1.0, others=75, bench=bench)
    assert bench.view.prefill_limit == 1024.0
    shared(math.inf, bench=bench)
    assert (bench.view.kv_ceiling, bench.view.prefill_limit) == (whole, prefill)


def test_the_usage_that_others_make_is_not_taken_for_ours() -> None:
    """Half of the slots and half of the tokens are ours: our own count is right, and nothing is to be corrected."""
    bench = Bench(start=100.0)
    shared(50.0, others=10, bench=bench)
    bench.take(10, prompt=3_000.0)
    for _ in range(40):
        bench.later()
        bench.page(running=20, kv_usage=0.6, kv_capacity_tokens=100_000)
        shared(50.0, others=10, bench=bench)
    assert bench.window.kv.calibration == pytest.approx(1.0, abs=0.05)  # type: ignore[attr-defined]


def test_another_controller_takes_over_the_claim() -> None:
    bench = shared(3.0, others=4, lasts=0.5)
    bench.take(2)
    bench.free(1)
    other = renewed(bench.window, WindowPolicy(start=8.0, controller=Controller.FIRST), bench.inside, bench.now)
    assert (other.claim, other.others, other.foreign, other.freed, other.in_flight) == (3.0, 4, 4, 1, 1)
    bench.window = other
    assert bench.fill() == 3
    bench.free(1)
    bench.later(0.6)
    assert not bench.accepts()


def test_what_others_hold_stays_when_the_engine_is_another() -> None:
    bench = shared(3.0, others=4)
    bench.page(running=9)
    bench.window.on_failure(refused=True)
    bench.later()
    bench.page(running=4)
    assert (bench.window.others, bench.window.foreign) == (4, 4)


def test_what_has_a_claim_without_end_is_as_without_one() -> None:
    window, alone = Bench(), Bench()
    window.window.share(math.inf, 0, 0, math.inf, window.now)
    assert window.fill() == alone.fill()
    assert window.view == alone.view
    assert make_window("e", WindowPolicy(), 0.0).claim == math.inf
