"""The guess at what engines have cached."""

from __future__ import annotations

from extproc.core.prefixes import Prefixes

NEVER = (0, float("-inf"))


def test_the_longest_known_beginning_counts() -> None:
    prefixes = Prefixes()
    prefixes.sent("e", (1, 2, 3), 10.0)
    assert prefixes.match("e", (1, 2, 3, 4), 11.0) == (3, 10.0)
    assert prefixes.match("e", (1, 2, 9), 11.0) == (2, 10.0)
    assert prefixes.match("e", (7,), 11.0) == NEVER
    assert prefixes.match("other", (1, 2, 3), 11.0) == NEVER
    assert prefixes.match("e", (), 11.0) == NEVER


def test_the_more_recent_one_is_known_by_its_time() -> None:
    prefixes = Prefixes()
    prefixes.sent("e", (1,), 10.0)
    prefixes.sent("e", (2,), 20.0)
    assert prefixes.match("e", (1,), 21.0) < prefixes.match("e", (2,), 21.0)


def test_what_is_old_or_forgotten_is_gone() -> None:
    prefixes = Prefixes()
    prefixes.sent("e", (1,), 10.0)
    assert prefixes.match("e", (1,), 310.0) == (1, 10.0)
    assert prefixes.match("e", (1,), 310.1) == NEVER
    prefixes.sent("e", (1,), 20.0)
    prefixes.forget("e")
    assert prefixes.match("e", (1,), 20.0) == NEVER


def test_memory_is_bounded_and_the_least_recently_sent_go_first() -> None:
    prefixes = Prefixes()
    for i in range(8_192):
        prefixes.sent("e", (i,), float(i) / 1e6)
    prefixes.sent("e", (0,), 1.0)  # again
    prefixes.sent("e", (-1,), 1.0)
    assert prefixes.match("e", (0,), 1.0) == (1, 1.0)
    assert prefixes.match("e", (1,), 1.0) == NEVER
    assert prefixes.match("e", (2,), 1.0)[0] == 1


def test_of_one_prompt_the_longest_beginning_is_forgotten_first() -> None:
    prefixes = Prefixes()
    prefixes.sent("e", (1, 2, 3), 0.0)
    for i in range(8_190):
        prefixes.sent("e", (-i - 1,), 1.0)
    assert prefixes.match("e", (1, 2, 3), 1.0) == (2, 0.0)
