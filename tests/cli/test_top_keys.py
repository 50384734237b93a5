"""Keys of `fairlane top`: what bytes mean, and what each key changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from top_case import TEAM_A, TEAM_B, TEAM_C

from extproc.cli.top.choices import Choices, in_view, press
from extproc.cli.top.figures import ORDERS, FlowKey
from extproc.cli.top.keys import Keys

# ---- bytes


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"q", ["q"]),
        (b"sS<>?", ["s", "S", "<", ">", "?"]),
        (b" \t\r\n", ["space", "tab", "enter", "enter"]),
        (b"\x1b[A\x1b[B", ["up", "down"]),
        (b"\x1bOA\x1bOB", ["up", "down"]),
        (b"\x1b[5~\x1b[6~", ["page-up", "page-down"]),
        (b"\x1b[H\x1b[1~\x1bOF", ["home", "home", "end"]),
        (b"\x1b[Z", ["back-tab"]),
        (b"\x1b[1;5Cq", ["q"]),  # Ctrl and right: no key of ours
        (b"\x1b[200~q\x1b[201~", ["q"]),  # a paste
        (b"\x1bq", ["esc", "q"]),  # quickly one after the other
        (b"\x1b\x1b[A", ["esc", "up"]),
        (b"\x01\x7f", []),
        ("ü日".encode(), ["ü", "日"]),
        (b"\xff\xfeq", ["\ufffd", "\ufffd", "q"]),
        (b"\x1b[" + b"1;" * 40 + b"q", []),  # no sequence is so long: all of it is dropped
    ],
)
def test_bytes_are_keys(data: bytes, keys: list[str]) -> None:
    assert Keys().feed(data) == keys


def test_a_sequence_may_be_torn() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.waits
    assert keys.feed(b"[") == []
    assert keys.feed(b"5") == []
    assert keys.feed(b"~j") == ["page-up", "j"]
    assert not keys.waits


def test_esc_alone_is_a_key_when_nothing_follows() -> None:
    keys = Keys()
    assert keys.feed(b"\x1b") == []
    assert keys.end() == ["esc"]
    assert not keys.waits
    keys.feed(b"\x1b[1")
    assert keys.end() == []  # the rest never came
    assert keys.feed(b"q") == ["q"]


@given(st.lists(st.binary(max_size=20), max_size=10))
@settings(derandomize=True, deadline=None)
def test_no_bytes_break_it(parts: list[bytes]) -> None:
    keys = Keys()
    for part in parts:
        assert all(key.isprintable() and key for key in keys.feed(part))
    keys.end()
    assert not keys.waits


# ---- what keys choose

FLOWS = [TEAM_A, TEAM_B, TEAM_C]
POOLS = ["llama", "qwen"]


def pressed(choices: Choices, *keys: str, flows: list[FlowKey] = FLOWS) -> Choices:
    for key in keys:
        after = press(key, choices, flows, POOLS)
        assert after is not None
        choices = after
    return choices


def test_q_is_the_end() -> None:
    assert press("q", Choices(), FLOWS, POOLS) is None
    assert press("q", Choices(help=True, paused=True), [], []) is None


def test_pause() -> None:
    assert pressed(Choices(), "space").paused
    assert not pressed(Choices(), "space", "p").paused


def test_sort_columns_in_turn_each_in_its_direction() -> None:
    names = list(ORDERS)
    choices = Choices()
    found = []
    for _ in names:
        choices = pressed(choices, "s")
        found.append((choices.sort, choices.down))
    assert found == [
        ("in-flight", True), ("oldest", True), ("weight", True), ("tag", False), ("tenant", False), ("class", False),
        ("queued", True),
    ]  # fmt: skip
    assert pressed(Choices(), "s", "S") == pressed(Choices(), ">", "<") == Choices()
    assert not pressed(Choices(), "r").down
    assert pressed(Choices(), "r", "r") == Choices()


def test_the_choice_is_a_flow_and_not_a_row() -> None:
    choices = pressed(Choices(), "down")
    assert (choices.chosen, choices.row) == (TEAM_B, 1)
    moved = in_view(choices, [TEAM_C, TEAM_A, TEAM_B], rows=10)
    assert (moved.chosen, moved.row) == (TEAM_B, 2)
    assert pressed(moved, "up", flows=[TEAM_C, TEAM_A, TEAM_B]).chosen == TEAM_A


def test_where_it_has_gone_its_neighbour_is_chosen() -> None:
    choices = pressed(Choices(), "down")
    assert in_view(choices, [TEAM_A, TEAM_C], rows=10).chosen == TEAM_C
    assert in_view(choices, [TEAM_A], rows=10).chosen == TEAM_A
    assert in_view(choices, [], rows=10).chosen == TEAM_B  # it may come again
    assert in_view(Choices(), [TEAM_A], rows=10).chosen is None


def test_moving_stays_within_the_flows() -> None:
    assert pressed(Choices(), "k").chosen == TEAM_A
    assert pressed(Choices(), *"jjjjjj").chosen == TEAM_C
    assert pressed(Choices(), *"jj", "home").chosen == TEAM_A
    assert pressed(Choices(), "down", flows=[]) == Choices()
    many = [FlowKey("p", f"t{i}", "c") for i in range(100)]
    choices = in_view(Choices(), many, rows=10)
    assert [
        (choices := in_view(pressed(choices, key, flows=many), many, rows=10)).row
        for key in ("page-down", "page-down", "page-up", "g")
    ] == [9, 18, 9, 0]


def test_the_chosen_one_is_in_view() -> None:
    many = [FlowKey("p", f"t{i}", "c") for i in range(100)]
    shown = in_view(replace(Choices(), chosen=many[50]), many, rows=10)
    assert (shown.first, shown.row) == (41, 50)
    assert in_view(replace(shown, chosen=many[45]), many, rows=10).first == 41
    assert in_view(replace(shown, chosen=many[30]), many, rows=10).first == 30
    assert in_view(replace(shown, chosen=None), many[:5], rows=10).first == 0
    assert in_view(replace(shown, first=99), many, rows=10).first <= 50


def test_enter_explains_the_chosen_one_or_the_first() -> None:
    assert pressed(Choices(), "enter").chosen == TEAM_A
    choices = pressed(Choices(), "down", "enter")
    assert (choices.chosen, choices.explained) == (TEAM_B, True)
    assert pressed(choices, "down").chosen == TEAM_C  # and goes on with the next
    assert not pressed(choices, "esc").explained
    assert not pressed(Choices(), "enter", flows=[]).explained


def test_pools() -> None:
    assert [pressed(Choices(), *["tab"] * n).pool for n in range(4)] == ["", "llama", "qwen", ""]
    assert pressed(Choices(), "back-tab").pool == "qwen"
    assert pressed(Choices(), "2").pool == "qwen"
    assert pressed(Choices(), "2", "0").pool == ""
    assert pressed(Choices(), "9").pool == ""
    assert pressed(Choices(pool="gone"), "tab").pool == "llama"
    chosen = pressed(Choices(), "down", "enter", "1")
    assert (chosen.chosen, chosen.explained) == (None, False)


def test_sections_and_help() -> None:
    assert pressed(Choices(), "e", "c", "f").hidden == {"endpoints", "classes", "flows"}
    assert pressed(Choices(), "e", "e").hidden == frozenset()
    assert pressed(Choices(), "?").help
    assert pressed(Choices(), "?", "s") == Choices()  # any key closes it, and does nothing else


@pytest.mark.slow
@given(st.lists(st.sampled_from([*"spSr<>jkgecf0123?xü²", "up", "page-down", "page-up", "tab", "enter", "esc"])))
@settings(derandomize=True, deadline=None)
def test_any_keys_in_any_order(keys: list[str]) -> None:
    choices = Choices()
    for place, key in enumerate(keys):
        flows = FLOWS[: place % 4]
        choices = in_view(pressed(choices, key, flows=flows), flows, rows=2)
        assert choices.sort in ORDERS
        assert choices.pool in ("", *POOLS)
        assert choices.first >= 0
        assert choices.chosen is None or not flows or choices.chosen in flows
