"""What is remembered of what was sent where: sessions, adapters, shares of prompts; and that it is bounded."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from extproc.core.adapters import Adapters
from extproc.core.prefixes import Prefixes
from extproc.core.sessions import Sessions


def lines_run(what: Callable[[], None]) -> int:
    """Lines of the core, those of comprehensions for each turn: a measure of work that no other load disturbs. What
    the collector of garbage ends meanwhile, of any other test, is not counted."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if "/extproc/core/" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        what()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize(
    ("length", "body_bytes", "share"),
    [(1, 1024, 0.5), (2, 1024, 1.0), (3, 1024, 1.0), (4, 10_000, 0.4096), (8, 131_072, 0.5), (12, 131_072, 0.5)],
)
def test_the_share_of_a_prompt(length: int, body_bytes: int, share: float) -> None:
    prefixes = Prefixes()
    prefixes.sent("e", tuple(range(1, length + 1)), 0.0)
    prompt = (*range(1, length + 1), 99)
    assert prefixes.share("e", prompt, body_bytes, 1.0) == share
    assert prefixes.share("other", prompt, body_bytes, 1.0) == 0.0


def test_an_unknown_size_of_the_body_is_taken_for_the_prefix_alone() -> None:
    prefixes = Prefixes()
    prefixes.sent("e", (1,), 0.0)
    assert prefixes.share("e", (1,), 0, 1.0) == 1.0


def test_a_session_is_where_its_last_request_went() -> None:
    sessions = Sessions()
    sessions.sent(1, "a")
    sessions.sent(2, "a")
    sessions.sent(1, "b")
    assert (sessions.of(1), sessions.of(2), sessions.of(3)) == ("b", "a", None)
    sessions.forget("a")
    assert (sessions.of(1), sessions.of(2)) == ("b", None)


def test_sessions_are_bounded_and_the_least_recently_used_go_first() -> None:
    sessions = Sessions()
    for i in range(32_768):
        sessions.sent(i, "a")
    sessions.sent(0, "a")  # again
    sessions.sent(-1, "a")
    assert len(sessions) == 32_768
    assert (sessions.of(0), sessions.of(1), sessions.of(2)) == ("a", None, "a")


def test_an_endpoint_that_comes_back_is_not_where_its_sessions_were() -> None:
    sessions = Sessions()
    sessions.sent(1, "a")
    sessions.sent(2, "a")
    sessions.forget("a")
    sessions.sent(2, "a")  # the engine that answers there now
    assert (sessions.of(1), sessions.of(2)) == (None, "a")
    sessions.forget("never seen")
    assert sessions.of(2) == "a"


def test_many_endpoints_are_forgotten_without_a_look_at_each_session() -> None:
    """Each removal is one event, and the requests of all pools wait for it."""
    few, many = Sessions(), Sessions()
    few.sent(0, "a")
    for i in range(32_768):
        many.sent(i, f"e{i % 10}")
    assert lines_run(lambda: few.forget("a")) == lines_run(lambda: many.forget("e3")) > 0


def test_shares_are_those_of_each_endpoint() -> None:
    prefixes = Prefixes()
    prefixes.sent("all", (1, 2), 100.0)
    prefixes.sent("half", (1,), 100.0)
    prefixes.sent("other", (3, 4), 100.0)
    prefixes.sent("long ago", (1, 2), 0.0)
    assert prefixes.shares((1, 2), 1024, 300.5) == {"all": 1.0, "half": 0.5}


def test_as_many_adapters_are_loaded_as_there_are_slots_the_last_ones_sent() -> None:
    adapters = Adapters()
    for at, name in enumerate("xyz"):
        adapters.sent("e", name, float(at))
    assert [adapters.fit("e", name, (), 2, 5.0) for name in "xyz"] == [0.0, 1.0, 1.0]
    assert [adapters.fit("e", name, (), None, 5.0) for name in "wxyz"] == [0.0, 1.0, 1.0, 1.0]
    adapters.sent("e", "x", 6.0)
    assert [adapters.fit("e", name, (), 2, 7.0) for name in "xyz"] == [1.0, 0.0, 1.0]
    assert adapters.fit("e", "w", (), 4, 7.0) == 0.5


def test_what_the_page_shows_is_loaded_and_takes_a_slot() -> None:
    adapters = Adapters()
    adapters.sent("e", "x", 0.0)
    adapters.sent("e", "y", 1.0)
    assert adapters.fit("e", "shown", ("shown",), 1, 2.0) == 1.0
    assert [adapters.fit("e", name, ("shown",), 2, 2.0) for name in "xy"] == [0.0, 1.0]
    assert adapters.fit("e", "y", ("y", "shown"), 2, 2.0) == 1.0
    assert adapters.fit("e", "other", ("shown",), 4, 2.0) == 0.5


def test_adapters_are_forgotten_after_five_minutes_and_with_their_engine() -> None:
    adapters = Adapters()
    adapters.sent("e", "x", 0.0)
    assert adapters.fit("e", "x", (), None, 300.0) == 1.0
    assert adapters.fit("e", "x", (), None, 300.1) == 0.0
    adapters.sent("e", "x", 301.0)
    adapters.forget("e")
    assert adapters.fit("e", "x", (), None, 301.0) == 0.0


def test_adapters_are_bounded() -> None:
    adapters = Adapters()
    for i in range(65):
        adapters.sent("e", f"adapter-{i}", 0.0)
    assert adapters.fit("e", "adapter-0", (), None, 0.0) == 0.0
    assert adapters.fit("e", "adapter-1", (), None, 0.0) == 1.0
