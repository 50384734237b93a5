"""The closed forms against counting."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.stretch import Growth, Stretch

STRETCHES = st.builds(
    Stretch,
    start=st.sampled_from((0.0, 0.1, 12_345.678)),
    steps=st.integers(1, 60),
    first=st.sampled_from((0.25, 0.1, 0.0237)),
    slower=st.sampled_from((0.0, 1e-18, 1 / 1024, 0.0007)),
)


def ends(stretch: Stretch) -> list[float]:
    """End of each step, added up one by one."""
    at, seconds, found = stretch.start, stretch.first, []
    for _ in range(stretch.steps):
        at += seconds
        seconds += stretch.slower
        found.append(at)
    return found


@settings(max_examples=100, derandomize=True, deadline=None)
@given(stretch=STRETCHES, late=st.floats(0, 20), exactly=st.none() | st.integers(0, 59))
def test_ends_and_their_number(stretch: Stretch, late: float, exactly: int | None) -> None:
    assert [stretch.end(i + 1) for i in range(stretch.steps)] == pytest.approx(ends(stretch), rel=1e-12)
    now = stretch.start + late if exactly is None else stretch.end(exactly)
    before = [step for step in range(1, stretch.steps) if stretch.end(step) < now]
    until = [step for step in range(1, stretch.steps) if stretch.end(step) <= now]
    assert stretch.ended(now, inclusive=False) == len(before)
    assert stretch.ended(now, inclusive=True) == len(until)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(stretch=STRETCHES, steps=st.integers(0, 59))
def test_what_is_left_goes_on_as_before(stretch: Stretch, steps: int) -> None:
    steps = min(steps, stretch.steps - 1)
    rest = stretch.after(steps)
    assert rest.steps == stretch.steps - steps
    assert ends(rest) == pytest.approx(ends(stretch)[steps:], rel=1e-12)
    assert rest.only_first().end(1) == rest.end(1)


def test_steps_that_grow_by_hand() -> None:
    stretch = Stretch(10.0, 4, 1.0, 0.5)  # 1, 1.5, 2, 2.5 s
    assert [stretch.end(i) for i in (1, 2, 3, 4)] == [11.0, 12.5, 14.5, 17.0]
    assert [stretch.ended(t, inclusive=True) for t in (10.9, 11.0, 12.4, 14.5, 99.0)] == [0, 1, 1, 3, 3]
    assert [stretch.ended(t, inclusive=False) for t in (11.0, 14.5)] == [0, 2]


@settings(max_examples=100, derandomize=True, deadline=None)
@given(
    size=st.integers(1, 7),
    asks=st.lists(st.integers(-20, 20), max_size=9),
    step=st.integers(0, 30),
    steps=st.integers(0, 40),
    free=st.integers(0, 60),
)
def test_blocks_asked_for(size: int, asks: list[int], step: int, steps: int, free: int) -> None:
    growth = Growth(size)
    for first in asks:
        growth.add(first)
    growth.add(3)
    growth.drop(3 + size)  # the same phase
    by_step = [sum((step + i - first) % size == 0 for first in asks) for i in range(steps)]
    assert growth.need(step, steps) == sum(by_step)
    lasts = max(k for k in range(steps + 1) if sum(by_step[:k]) <= free)
    assert growth.lasts(step, free, steps) == lasts
