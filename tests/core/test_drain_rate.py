"""Releases per second, and the waits that are told from them."""

from __future__ import annotations

import pytest

from extproc.core.drain_rate import DrainRate, with_jitter


def steady(rate: DrainRate, per_second: float, since: float, until: float) -> None:
    for i in range(round((until - since) * per_second)):
        rate.count(since + (i + 1) / per_second)


def test_nothing_measured_is_no_rate_and_a_guess_of_five_seconds() -> None:
    rate = DrainRate()
    assert rate.per_second(100.0) == 0.0
    assert rate.wait_s(1_000_000, 100.0) == 5.0
    rate.count(100.0)
    assert rate.per_second(100.0) == 0.0  # one instant is no rate


@pytest.mark.parametrize("seconds", [10.0, 30.0, 300.0])
def test_a_steady_rate_is_found_early_too(seconds: float) -> None:
    rate = DrainRate()
    rate.count(1000.0)
    steady(rate, 10.0, 1000.0, 1000.0 + seconds)
    assert rate.per_second(1000.0 + seconds) == pytest.approx(10.0, rel=0.05)
    assert rate.wait_s(100, 1000.0 + seconds) == pytest.approx(10.0, rel=0.05)


def test_a_change_is_followed_within_two_minutes() -> None:
    rate = DrainRate()
    steady(rate, 10.0, 0.0, 300.0)
    steady(rate, 2.0, 300.0, 420.0)
    # What is left of the old rate after four times 30 s: 8 * e^-4 = 0.15.
    assert rate.per_second(420.0) == pytest.approx(2.15, rel=0.05)


def test_it_decays_when_nothing_goes() -> None:
    rate = DrainRate()
    steady(rate, 10.0, 0.0, 300.0)
    assert rate.per_second(330.0) == pytest.approx(10.0 / 2.71828, rel=0.02)


def test_waits_stay_within_what_a_client_can_use() -> None:
    rate = DrainRate()
    steady(rate, 10.0, 0.0, 300.0)
    assert rate.wait_s(0, 300.0) == 1.0
    assert rate.wait_s(10**9, 300.0) == 600.0
    assert rate.wait_s(5, 600.0) == 600.0  # nothing has gone for five minutes


def test_a_clock_that_steps_back_does_no_harm() -> None:
    rate = DrainRate()
    steady(rate, 10.0, 0.0, 300.0)
    rate.count(200.0)
    assert rate.per_second(300.0) == pytest.approx(10.0, rel=0.05)


def test_idle_time_does_not_count_as_slow() -> None:
    """Ten a second by day, nothing by night. Five seconds into the morning: ten, not 10 * (1 - e^(-5/30))."""
    rate = DrainRate()
    steady(rate, 10.0, 0.0, 300.0)
    rate.resume(10_000.0)
    assert rate.wait_s(1_000_000, 10_000.0) == 5.0  # nothing is known of today
    steady(rate, 10.0, 10_000.0, 10_005.0)
    assert rate.per_second(10_005.0) == pytest.approx(10.0, rel=0.1)


def test_a_short_pause_is_part_of_the_rate() -> None:
    rate = DrainRate()
    steady(rate, 10.0, 0.0, 300.0)
    rate.resume(330.0)
    assert rate.per_second(330.0) == pytest.approx(10.0 / 2.71828, rel=0.02)


def test_jitter_is_up_to_a_quarter_and_the_same_for_the_same_request() -> None:
    told = {key: with_jitter(100.0, key) for key in (f"request-{i}" for i in range(500))}
    assert all(100 <= seconds <= 125 for seconds in told.values())
    assert len(set(told.values())) >= 20  # they do not come back together
    assert all(with_jitter(100.0, key) == seconds for key, seconds in told.items())


def test_jitter_gives_whole_seconds_of_at_least_one() -> None:
    assert with_jitter(0.0, "x") == 1
    assert with_jitter(1.0, "") == 1  # an empty key has no spread
