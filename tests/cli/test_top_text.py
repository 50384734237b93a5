"""Names as a terminal may have them, bars, and tables that fit."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from top_case import HOSTILE

from extproc.cli.top.bars import Look, bar
from extproc.cli.top.table import Column, drawn, joined
from extproc.cli.top.text import cut, fill, safe, width, wrapped


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("team-a", "team-a"),
        ("müller 日本", "müller 日本"),
        ("a\x1b[2J", "a\\x1b[2J"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("👨\u200d👩", "👨\\u200d👩"),
        ("❤\ufe0f", "❤\\ufe0f"),
        ("🇩🇪", "\\U0001f1e9\\U0001f1ea"),
        ("👍🏽", "👍\\U0001f3fd"),
        ("e\u0301", "é"),  # composed
        ("x\u0301\u0302\u0303", "x\u0301\u0302\\u0303"),  # two marks, and no more
        ("\u0301x", "\\u0301x"),  # on nothing
        ("\x00\x7f\x9b", "\\x00\\x7f\\x9b"),
        ("\u2028\u00ad\ufeff", "\\u2028\\xad\\ufeff"),
        ("\ud800", "\\ud800"),
        ("", ""),
    ],
)
def test_what_a_terminal_would_act_on_is_shown_as_an_escape(name: str, shown: str) -> None:
    assert safe(name) == shown


def test_ascii_only() -> None:
    assert safe("mü日\x1b", ascii_only=True) == "m\\xfc\\u65e5\\x1b"


def test_a_long_name_is_looked_at_in_part() -> None:
    assert safe("x" * 10_000, most=10) == "xxxxxxxxxx..."
    assert safe("\x1b" * 10_000, most=2) == "\\x1b\\x1b..."


@given(st.text(max_size=60), st.integers(0, 30), st.booleans())
@settings(derandomize=True, deadline=None)
def test_any_name_fills_exactly_its_column(name: str, cells: int, unicode: bool) -> None:
    look = Look(unicode)
    shown = fill(safe(name, ascii_only=not unicode), cells, look.ellipsis)
    assert cell_len(shown) == cells
    assert shown.isprintable()
    assert unicode or shown.isascii()


@pytest.mark.parametrize("name", HOSTILE)
def test_the_width_is_the_sum_of_its_characters(name: str) -> None:
    """So no character depends on its neighbours, about which terminals differ."""
    shown = safe(name)
    assert width(shown) == sum(map(cell_len, shown))


def test_cutting_counts_cells() -> None:
    assert cut("abcdef", 6, "…") == "abcdef"
    assert cut("abcdef", 4, "…") == "abc…"
    assert cut("日本語", 5, "…") == "日本…"
    assert cut("日本語", 4, "…") == "日 …"  # half a character cannot be shown
    assert cut("abc", 1, "…") == "…"
    assert cut("abc", 0, "…") == ""
    assert fill("ab", 4, "…", right=True) == "  ab"


def test_wrapping() -> None:
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("abcdefgh ij", 3) == ["abc", "def", "gh", "ij"]
    assert wrapped("日本語", 4) == ["日本", "語"]
    assert wrapped("", 5) == []


# ---- bars


@pytest.mark.parametrize(
    ("ours", "foreign", "limit", "shown"),
    [
        (0, 0, 16, "[................]"),
        (4, 0, 16, "[####............]"),
        (4, 3, 16, "[####ooo.........]"),
        (16, 0, 16, "[################]"),
        (10, 6, 16, "[##########oooooo]"),
        (0.1, 0, 1000, "[#...............]"),  # what is there is seen
        (999, 0, 1000, "[###############.]"),  # so is room
        (12, 4, 8, "[####oooo!!!!!!!!]"),  # half of it is beyond the limit
        (3, 0, 0, "[!!!!!!!!!!!!!!!!]"),  # closed, with three inside
        (0, 0, 0, "[................]"),
        (float("nan"), float("inf"), float("inf"), "[................]"),
        (-3, 0, 4, "[................]"),
    ],
)
def test_bars(ours: float, foreign: float, limit: float, shown: str) -> None:
    assert bar(ours, foreign, limit, 18, Look(unicode=False)).plain == shown


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.integers(2, 60))
@settings(derandomize=True, deadline=None)
def test_a_bar_is_as_wide_as_asked(ours: float, foreign: float, limit: float, cells: int) -> None:
    assert cell_len(bar(ours, foreign, limit, cells, Look()).plain) == cells


# ---- tables


def columns() -> list[Column]:
    return [
        Column("name", ["a-long-name", "b"], 0, 4),
        Column("count", ["12", "3"], 1, right=True),
        Column("notes", ["something", ""], 2, 5),
    ]


def plain(cells: int) -> list[str]:
    return [line.plain.rstrip() for line in drawn(columns(), cells, Look())]


def test_a_table_with_room() -> None:
    assert plain(40) == [
        "name        count notes",
        "a-long-name    12 something",
        "b               3",
    ]


def test_wide_columns_are_cut_first_and_the_least_important_goes_then() -> None:
    assert plain(20) == [
        "name   count notes",
        "a-lon…    12 someth…",
        "b          3",
    ]
    assert plain(12) == ["name   count", "a-lon…    12", "b          3"]
    assert plain(4) == ["name", "a-l…", "b"]


def test_parts_of_a_line() -> None:
    parts = [(2, "first", ""), (0, "second", ""), (1, "third", "")]
    assert joined(parts, 40, Look()).plain == "first  second  third"
    assert joined(parts, 14, Look()).plain == "second  third"
    assert joined(parts, 4, Look()).plain == "sec…"
