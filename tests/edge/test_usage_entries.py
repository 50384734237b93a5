"""What an access-log entry says of a request's tokens."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_by_messages import an_entry
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.events import Unreachable, Usage
from extproc.core.model import MAX_TOKENS, Source
from extproc.edge.usage import USAGE, Said, ticket_of
from extproc.edge.usage import read as read_entry
from extproc.pb.wire.v1 import access_log_pb2


def read(entry: access_log_pb2.HTTPAccessLogEntry, ticket: str) -> Usage:
    return read_entry(entry, ticket).usage


def said(entry: access_log_pb2.HTTPAccessLogEntry) -> Said:
    return read_entry(entry, "t")


COUNT, TIME, ERROR, ABORT = Source.USAGE, Source.TIME, Source.ERROR, Source.ABORT


def test_the_ticket_is_what_we_gave_out() -> None:
    assert ticket_of(an_entry("t-1")) == "t-1"
    assert ticket_of(an_entry("")) is None
    assert ticket_of(an_entry(None)) is None


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), None),
        (("upstream_connection_failure",), Unreachable("t")),
        (("upstream_connection_termination",), Unreachable("t", broke=True)),
        (("upstream_remote_reset",), Unreachable("t", broke=True)),
        (("downstream_connection_termination",), None),
        (("downstream_connection_termination", "upstream_remote_reset"), None),  # the client left first
        (("stream_idle_timeout",), None),
    ],
)
def test_whether_the_endpoint_took_the_request(flags: tuple[str, ...], expected: Unreachable | None) -> None:
    entry = an_entry("t")
    for flag in flags:
        setattr(entry.common_properties.response_flags, flag, True)
    assert said(entry).unreachable == expected


@pytest.mark.parametrize(
    ("flag", "source"), [("upstream_connection_failure", ERROR), ("upstream_connection_termination", TIME)]
)
def test_a_request_that_broke_its_engine_s_connection_is_not_free(flag: str, source: Source) -> None:
    entry = an_entry("t", 503)
    setattr(entry.common_properties.response_flags, flag, True)
    assert read(entry, "t") == Usage("t", source)


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (200, {"prompt_tokens": 7, "completion_tokens": 5}, Usage("t", COUNT, 7, 0, 5)),
        (200, {"prompt_tokens": 7, "completion_tokens": 5, "cached_tokens": 3}, Usage("t", COUNT, 7, 3, 5)),
        (200, {"completion_tokens": 0}, Usage("t", COUNT, None, 0, 0)),
        # Anthropic's split of the prompt: 7 new tokens, 100 read from the cache, 20 written to it
        (
            200,
            {"prompt_tokens": 7, "cache_read_tokens": 100, "cache_creation_tokens": 20, "completion_tokens": 5},
            Usage("t", COUNT, 127, 100, 5),
        ),
        (200, {"prompt_tokens": 7, "total_tokens": 7}, Usage("t", COUNT, 7, 0, 0)),  # embeddings
        (200, {"prompt_tokens": 7, "total_tokens": 3}, Usage("t", COUNT, 7, 0, 0)),
        (200, {"total_tokens": 9}, Usage("t", TIME)),
        # an answer without a count: by time, with the prompt where that much is known
        (200, {}, Usage("t", TIME)),
        (200, {"prompt_tokens": 7}, Usage("t", TIME, 7)),
        (200, {"prompt_tokens": 7, "cached_tokens": 3}, Usage("t", TIME, 7)),
        # the client left: before an answer, or during it
        (0, {}, Usage("t", ABORT)),
        (499, {}, Usage("t", ABORT)),
        (499, {"prompt_tokens": 7, "completion_tokens": 2}, Usage("t", COUNT, 7, 0, 2)),
        # the engine refused or failed
        (400, {}, Usage("t", ERROR)),
        (404, {"prompt_tokens": 7}, Usage("t", ERROR, 7)),
        (500, {}, Usage("t", ERROR)),
        (503, {}, Usage("t", ERROR)),
        (399, {}, Usage("t", TIME)),
        # a stream that was shed: 200, and an error inside
        (200, {"error_code": 503}, Usage("t", ERROR)),
        (200, {"error_type": "overloaded"}, Usage("t", ERROR)),
        (200, {"error_type": None}, Usage("t", ERROR)),
        # what was counted before an error was served
        (200, {"error_code": 503, "completion_tokens": 2}, Usage("t", COUNT, None, 0, 2)),
    ],
)
def test_where_the_cost_comes_from(code: int, fields: dict[str, Any], expected: Usage) -> None:
    assert read(an_entry("t", code, **fields), "t") == expected


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (5, 5),
        (5.9, 5),
        (0, 0),
        (-1, None),
        (1e300, MAX_TOKENS),
        (float("inf"), MAX_TOKENS),
        (float("nan"), None),
        (float("-inf"), None),
        ("5", None),
        (True, None),
        (None, None),
        ([5], None),
        ({"n": 5}, None),
    ],
)
def test_what_counts_as_a_number_of_tokens(given: Any, count: int | None) -> None:
    usage = read(an_entry("t", prompt_tokens=given, completion_tokens=1), "t")
    assert usage.prompt_tokens == count
    usage = read(an_entry("t", completion_tokens=given), "t")
    assert (usage.source, usage.output_tokens) == ((TIME, None) if count is None else (COUNT, count))


def test_an_entry_without_anything() -> None:
    """No status: the client left before there was one."""
    assert read(access_log_pb2.HTTPAccessLogEntry(), "t") == Usage("t", ABORT)


@pytest.mark.parametrize("flag", ["downstream_connection_termination", "downstream_remote_reset"])
def test_a_client_that_closes_after_the_last_byte_has_not_left_early(flag: str) -> None:
    entry = an_entry("t")
    setattr(entry.common_properties.response_flags, flag, True)
    assert read(entry, "t") == Usage("t", ABORT)
    entry.common_properties.time_to_last_downstream_tx_byte.nanos = 5
    assert read(entry, "t") == Usage("t", TIME)


@pytest.mark.parametrize("why", ["compressed", "no_object"])
def test_why_envoy_left_a_body_as_it_was(why: str) -> None:
    assert said(an_entry("t", body_edit=why)).unedited == why


@pytest.mark.parametrize("word", [None, 7, "x" * 1000, "edited"])
def test_no_other_word_becomes_a_label(word: Any) -> None:
    assert said(an_entry("t", body_edit=word)).unedited is None
    assert said(an_entry("t")).unedited is None


def test_counts_of_another_namespace_are_not_ours() -> None:
    entry = an_entry("t")
    entry.common_properties.metadata.filter_metadata["other"].update({"completion_tokens": 5})
    assert read(entry, "t") == Usage("t", TIME)


values = st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.lists(st.floats(), max_size=2)
names = st.sampled_from(["prompt_tokens", "completion_tokens", "cached_tokens", "error_code", "error_type"])


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.dictionaries(names, values), st.integers(0, 2**32 - 1))
def test_nothing_that_an_engine_can_send_raises(fields: dict[str, Any], code: int) -> None:
    entry = an_entry("t", code)
    entry.common_properties.metadata.filter_metadata[USAGE].update(fields)
    usage = read(entry, "t")
    for count in (usage.prompt_tokens, usage.cached_tokens, usage.output_tokens):
        assert count is None or 0 <= count <= MAX_TOKENS
    assert (usage.source is COUNT) == (usage.output_tokens is not None)
