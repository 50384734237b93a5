"""Room that a class leaves for higher ones: the Poisson quantile, the mean, the cap."""

from __future__ import annotations

import math

import pytest

from extproc.core.headroom import Headroom, poisson_quantile


def exact(mean: float, p: float) -> int:
    """By the definition, term by term in logarithms."""
    below, k = 0.0, 0
    while True:
        below += math.exp(k * math.log(mean) - mean - math.lgamma(k + 1))
        if below >= p:
            return k
        k += 1


@pytest.mark.parametrize("mean", [0.05, 0.5, 1.0, 3.3, 9.5, 40.0, 150.0])
@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_the_quantile_is_exact_for_small_means(mean: float, p: float) -> None:
    assert poisson_quantile(mean, p) == exact(mean, p)


@pytest.mark.parametrize("mean", [201.0, 500.0, 1_000.0])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.95, 0.99, 0.999])
def test_the_quantile_is_within_one_slot_for_large_means(mean: float, p: float) -> None:
    assert abs(poisson_quantile(mean, p) - exact(mean, p)) <= 1


def test_nobody_above_needs_no_room() -> None:
    assert poisson_quantile(0.0, 0.999) == 0
    assert Headroom(0.01, 0.0).cap(20.9, 100.0) == 20


def test_the_mean_is_over_what_has_been_seen() -> None:
    headroom = Headroom(0.05, 0.0)
    headroom.note(19, 0.0)
    headroom.note(0, 30.0)
    assert headroom.mean == pytest.approx(19.0)  # all that has been seen
    assert Headroom(0.034, 0.0).cap(20.0, 0.0) == 20


def test_one_slot_is_kept_for_the_arrival_itself() -> None:
    """10 held at all times. P(X <= 15) = 0.951, P(X <= 14) = 0.917: B = 20 - 1 - 15 with epsilon 5 %."""
    headroom = Headroom(0.05, 0.0)
    headroom.note(10, 0.0)
    assert headroom.cap(20.0, 100.0) == 4
    assert headroom.cap(4.0, 200.0) == 0  # never negative
    assert headroom.cap(math.inf, 300.0) == 1_000_000 - 16  # no window knows its engine


def test_the_mean_follows_in_a_minute() -> None:
    headroom = Headroom(0.05, 0.0)
    headroom.note(10, 0.0)
    headroom.note(0, 600.0)
    headroom.note(0, 660.0)
    assert headroom.mean == pytest.approx(10.0 / math.e, rel=1e-3)
    assert headroom.cap(4.0, 2_000.0) == 4  # nobody has been there for twenty minutes


def test_time_that_goes_backwards_changes_nothing() -> None:
    headroom = Headroom(0.05, 10.0)
    headroom.note(5, 20.0)
    headroom.note(5, 5.0)
    assert headroom.mean == 0.0
