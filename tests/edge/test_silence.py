"""Streams that say nothing, by one timer for all of them, on a loop whose clock is a number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from extproc.edge import silence as module
from extproc.edge.silence import Silence

MOST = 1_000


class Clock:
    """The time, and the loop's timers."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[[], None]) -> Any:
        self.timers.append((self.now + delay, call))
        return object()

    def until(self, at: float) -> None:
        while self.timers and min(self.timers, key=lambda t: t[0])[0] <= at:
            due = min(self.timers, key=lambda t: t[0])
            self.timers.remove(due)
            self.now = due[0]
            due[1]()
        self.now = at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    return clock


def test_who_says_nothing_is_told_when_its_own_time_is_over(clock: Clock) -> None:
    over: list[tuple[float, str]] = []
    silence = Silence(60.0, lambda stream: over.append((clock.now, stream)))
    silence.begins("speaks", MOST)
    clock.until(110.0)
    silence.begins("silent", MOST)
    clock.until(130.0)
    silence.begins("later", MOST)
    silence.ends("speaks")
    clock.until(400.0)
    assert over == [(170.0, "silent"), (190.0, "later")]


def test_many_streams_set_one_timer_and_an_idle_one_sets_none(clock: Clock) -> None:
    silence = Silence(60.0, lambda stream: pytest.fail(f"{stream} has spoken"))
    for number in range(100):
        silence.begins(number, MOST)
        silence.ends(number)
    assert len(clock.timers) == 1
    clock.until(160.0)
    assert clock.timers == []
    silence.begins("again", MOST)
    assert [at for at, _ in clock.timers] == [220.0]
    silence.ends("again")


def test_an_end_that_comes_after_the_limit_is_no_matter(clock: Clock) -> None:
    over: list[str] = []
    silence = Silence(60.0, over.append)
    silence.begins("a", MOST)
    clock.until(161.0)
    silence.ends("a")
    assert over == ["a"]


def test_beyond_the_most_the_one_that_is_silent_for_longest_makes_room(clock: Clock) -> None:
    over: list[str] = []
    silence = Silence(60.0, over.append)
    assert [silence.begins(stream, 2) for stream in ("a", "b")] == [None, None]
    assert silence.begins("c", 2) == "a"
    silence.ends("b")
    assert silence.begins("d", 2) is None
    assert silence.begins("e", 2) == "c"
    clock.until(400.0)
    assert over == ["d", "e"]  # who made room is not told of again
