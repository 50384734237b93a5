"""Whether it is a promotion's turn: of one scheduler, and of one among others."""

from __future__ import annotations

import math

import pytest

from extproc.core.ageing import Ageing

EVERY = 4


def go(ageing: Ageing, dispatches: int) -> list[int]:
    """The numbers of those that were promotions, where each that may be is one."""
    found = []
    for number in range(1, dispatches + 1):
        promoted = ageing.due(EVERY) > 0
        ageing.dispatched(promoted, EVERY)
        if promoted:
            found.append(number)
    return found


def test_the_first_and_each_fourth_after_it() -> None:
    assert go(Ageing(), 12) == [1, 5, 9]


def test_each_one_where_every_dispatch_may_be() -> None:
    ageing = Ageing()
    for _ in range(3):
        assert ageing.due(1) == 1
        ageing.dispatched(True, 1)


def test_nothing_is_saved_up() -> None:
    ageing = Ageing()
    for _ in range(100):
        ageing.dispatched(False, EVERY)
    assert go(ageing, 6) == [1, 5]


def test_dispatches_of_others_count() -> None:
    ageing = Ageing()
    ageing.dispatched(True, EVERY)
    ageing.heard(1.0, 2)
    assert ageing.due(EVERY) == 0
    ageing.heard(1.0, 1)
    assert ageing.due(EVERY) == 1


def test_of_each_dispatch_the_part_that_is_due_here() -> None:
    """A fourth of one in four of 1,600."""
    ageing, found = Ageing(), 0
    for _ in range(400):
        ageing.heard(0.25, 3)
        found += len(go(ageing, 1))
    assert found == pytest.approx(100, abs=2)


def test_what_one_word_brings_may_be_for_several_and_six_words_are_kept() -> None:
    ageing = Ageing()
    ageing.heard(1.0, 40)
    for _ in range(10):
        assert ageing.due(EVERY) > 0
        ageing.dispatched(True, EVERY)
    ageing.counted = 0.0
    ageing.heard(1.0, 40)
    assert ageing.due(EVERY) == 10
    for _ in range(9):
        ageing.heard(1.0, 40)
    assert ageing.due(EVERY) == 61  # 240 and 4


def test_what_is_kept_goes_by_the_mean_of_some_words() -> None:
    ageing = Ageing()
    ageing.heard(1.0, 60)
    ageing.heard(1.0, 0)
    assert ageing.brought == 50.0


def test_one_that_is_late_is_made_up_for_among_others_alone() -> None:
    """Room for it has to be made elsewhere."""
    ageing = Ageing()
    ageing.heard(1.0, 0)
    for _ in range(6):
        ageing.dispatched(False, EVERY)
    assert go(ageing, 5) == [1, 2]
    ageing.alone()
    for _ in range(6):
        ageing.dispatched(False, EVERY)
    assert go(ageing, 5) == [1, 5]


@pytest.mark.parametrize(
    ("part", "released"), [(-1.0, 9), (1.5, 9), (math.nan, 9), (math.inf, 9), (1.0, -9), (1.0, 2**50)]
)
def test_figures_that_cannot_be_are_nothing(part: float, released: int) -> None:
    ageing = Ageing()
    ageing.dispatched(True, EVERY)
    ageing.heard(part, released)
    assert ageing.due(EVERY) == 0
