"""Figures of merit, against values worked out by hand and against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.fairness import jain, max_min_shares, percentile

amounts = st.floats(0, 1e6)


@pytest.mark.parametrize(
    ("values", "p", "expected"),
    [
        ([], 50, None),
        ([7.0], 0, 7.0),
        ([7.0], 50, 7.0),
        ([7.0], 100, 7.0),
        ([1, 2, 3, 4], 25, 1),
        ([1, 2, 3, 4], 26, 2),
        ([4, 1, 3, 2], 50, 2),
        ([1, 2, 3, 4], 75, 3),
        ([1, 2, 3, 4], 76, 4),
        (list(range(1, 101)), 99, 99),
        (list(range(1, 101)), 99.5, 100),
        ([1, 1, 1, 9], 75, 1),
    ],
)
def test_percentiles_by_nearest_rank(values: list[float], p: float, expected: float | None) -> None:
    assert percentile(values, p) == expected


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(amounts, min_size=1, max_size=40), st.integers(0, 100))
def test_percentiles_as_numpy_has_them(values: list[float], p: int) -> None:
    assert percentile(values, p) == np.percentile(values, p, method="inverted_cdf")


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 1, 1, 1], 1.0), ([5, 0, 0, 0], 0.25), ([1, 2], 9 / 10), ([1, 2, 3], 36 / 42), ([], 1.0), ([0, 0], 1.0)],
)
def test_jains_index(values: list[float], expected: float) -> None:
    assert jain(values) == pytest.approx(expected)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=10), st.floats(1e-3, 1e3))
def test_jains_index_is_between_its_bounds_and_has_no_unit(values: list[float], unit: float) -> None:
    index = jain(values)
    assert 1 / len(values) - 1e-9 <= index <= 1 + 1e-9
    assert jain([value * unit for value in values]) == pytest.approx(index)


@pytest.mark.parametrize(
    ("demands", "capacity", "shares"),
    [
        ({"a": 10, "b": 10}, 30, {"a": 10, "b": 10}),  # enough for all
        ({"a": 10, "b": 10}, 10, {"a": 5, "b": 5}),
        ({"a": 2, "b": 8, "c": 100}, 30, {"a": 2, "b": 8, "c": 20}),
        ({"a": 2, "b": 20, "c": 100}, 30, {"a": 2, "b": 14, "c": 14}),
        ({"a": 0, "b": 9}, 6, {"a": 0, "b": 6}),
        ({"a": 9}, 0, {"a": 0}),
        ({}, 5, {}),
    ],
)
def test_max_min_shares(demands: dict[str, float], capacity: float, shares: dict[str, float]) -> None:
    assert max_min_shares(demands, capacity) == pytest.approx(shares)


def water_level(demands: list[float], capacity: float) -> list[float]:
    """The same by another way: a level is looked for by halving at which the shares fill the capacity."""
    low, high = 0.0, max(demands)
    for _ in range(100):
        level = (low + high) / 2
        low, high = (level, high) if sum(min(d, level) for d in demands) < capacity else (low, level)
    return [min(d, high) for d in demands]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=8), st.floats(0, 3e4))
def test_max_min_shares_are_a_water_level(demands: list[float], capacity: float) -> None:
    shares = max_min_shares({str(n): d for n, d in enumerate(demands)}, capacity)
    found = [shares[str(n)] for n in range(len(demands))]
    assert found == pytest.approx(water_level(demands, capacity), rel=1e-6, abs=1e-6)
