"""Version numbers, and what the configuration's words make of what was found."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.priority import PriorityWay
from extproc.engines.identify.facts import EngineFacts, mismatch, way_of
from extproc.engines.identify.versions import Version, parse

NONE = PriorityWay()
LOW, HIGH = False, True


@pytest.mark.parametrize(
    ("text", "release", "dev"),
    [
        ("0.32.0", (0, 32, 0), False),
        ("0.28.1rc2.dev12+g1a2b3c4", (0, 28, 1), True),
        ("0.28.0rc1", (0, 28, 0), False),
        ("0.11.0+cpu", (0, 11, 0), False),
        ("0.9.1+rocm6.2.dev", (0, 9, 1), False),  # what stands behind the + is the builder's
        ("0.9.2.dev+Gaudi-1.22", (0, 9, 2), True),
        ("0.10.1.1", (0, 10, 1), False),
        ("0.6.3.post1", (0, 6, 3), False),
        ("v0.8.5", (0, 8, 5), False),
        (" 0.10 ", (0, 10, 0), False),
        ("1.0", (1, 0, 0), False),
        ("0.28.0-custom", (0, 28, 0), False),
        ("0.1.2", (0, 1, 2), False),
    ],
)
def test_versions(text: str, release: tuple[int, int, int], dev: bool) -> None:
    assert parse(text) == Version(release, dev)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "dev",
        "main",
        "28",
        "x0.28.0",
        ".28.0",
        "0..1",
        "0.x",
        "1234567.0.0",
        "٠.٢٨.٠",
        "0.1.dev1+g1a2b3c4",
        "0.0.dev0",
    ],
)
def test_no_versions(text: str) -> None:
    assert parse(text) is None


NUMBER = st.integers(min_value=0, max_value=999_999)


@settings(derandomize=True, deadline=None)
@given(
    release=st.tuples(NUMBER, NUMBER, NUMBER),
    prefix=st.sampled_from(["", "v", " "]),
    candidate=st.sampled_from(["", "rc1", "a2", ".post3", ".1", "-fork"]),
    dev=st.sampled_from(["", ".dev12"]),
    local=st.sampled_from(["", "+cpu", "+g1a2b3c4.d20260101", "+dev", "+1.2.3"]),
)
def test_a_release_is_read_back(
    release: tuple[int, int, int], prefix: str, candidate: str, dev: str, local: str
) -> None:
    text = prefix + ".".join(map(str, release)) + candidate + dev + local
    says_nothing = dev != "" and release <= (0, 1, 0)
    assert parse(text) == (None if says_nothing else Version(release, dev != ""))


@settings(derandomize=True, deadline=None)
@given(st.text(max_size=60))
def test_any_text_is_a_version_or_none(text: str) -> None:
    version = parse(text)
    assert version is None or all(0 <= number < 10**6 for number in version.release)


def facts(way: PriorityWay, engine: str | None = "vllm", refuses: str | None = None) -> EngineFacts:
    return EngineFacts(engine, "1.2.3", way, "told", refuses=refuses)


FOUND = [PriorityWay(*flags) for flags in itertools.product((False, True), repeat=3)]


@pytest.mark.parametrize("found", FOUND)
def test_words_win_over_what_was_found(found: PriorityWay) -> None:
    known = facts(found)
    assert way_of("off", "auto", known) == way_of("off", "high_first", known) == NONE
    assert way_of("header", "low_first", known) == PriorityWay(header=True)
    assert way_of("body", "low_first", known) == PriorityWay(body=True)
    assert way_of("both", "low_first", known) == PriorityWay(header=True, body=True)
    assert way_of("both", "high_first", known) == PriorityWay(header=True, body=True, high_first=True)
    assert way_of("body", "auto", known).high_first == found.high_first


@pytest.mark.parametrize("found", FOUND)
@pytest.mark.parametrize("order", ["auto", "low_first", "high_first"])
def test_auto_tells_by_the_header_only(found: PriorityWay, order: str) -> None:
    used = way_of("auto", order, facts(found))
    assert (used.header, used.body) == (found.header, False)
    if not used.header:
        assert used == NONE  # ways are compared: no second kind of none


@pytest.mark.parametrize(
    ("via", "order", "found", "part"),
    [
        ("auto", "auto", PriorityWay(header=True), None),
        ("header", "auto", PriorityWay(header=True), None),
        ("body", "auto", PriorityWay(header=True), None),  # it reads both
        ("both", "auto", PriorityWay(header=True), None),
        ("body", "auto", PriorityWay(body=True, high_first=True), None),
        ("body", "high_first", PriorityWay(body=True, high_first=True), None),
        ("off", "low_first", PriorityWay(body=True, high_first=True), None),
        ("auto", "auto", PriorityWay(body=True), "only in the body"),
        ("header", "auto", PriorityWay(body=True), "only in the body"),
        ("both", "auto", PriorityWay(body=True), None),
        ("body", "low_first", PriorityWay(body=True, high_first=True), "runs the highest number first"),
        ("header", "high_first", PriorityWay(header=True), "runs the lowest number first"),
        ("header", "auto", NONE, "takes no priorities"),
        ("auto", "auto", NONE, None),
    ],
)
def test_what_does_not_go_together_is_said(via: str, order: str, found: PriorityWay, part: str | None) -> None:
    said = mismatch(via, order, facts(found))
    assert said is None if part is None else part in str(said)


def test_of_an_unknown_engine_nothing_is_said() -> None:
    for via in ("auto", "header", "body", "both", "off"):
        assert mismatch(via, "auto", facts(NONE, engine=None)) is None


def test_a_refusal_is_said_first() -> None:
    known = facts(NONE, refuses="answers 400")
    assert mismatch("body", "auto", known) == (
        "vLLM 1.2.3 answers 400, and `priority_via: body` puts one into every body; "
        "set `priority_via: auto` or `off` for this pool"
    )
    assert mismatch("off", "auto", known) is None
