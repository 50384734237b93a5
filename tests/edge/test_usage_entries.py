"""What an access-log entry says of a request's tokens."""

from __future__ import annotations

from typing import Any

import pytest
from envoy_by_messages import an_entry, tried
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.events import Failed, TurnedAway, Unreachable, Usage
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
    assert said(entry).faults == (() if expected is None else (expected,))


A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def refused(entry: access_log_pb2.HTTPAccessLogEntry) -> access_log_pb2.HTTPAccessLogEntry:
    entry.common_properties.response_flags.upstream_connection_failure = True
    entry.response.response_code_details = "upstream_reset_before_response_started{connection_failure}"
    return entry


@pytest.mark.parametrize(
    ("entry", "named", "faults", "ignored"),
    [
        # as it was told
        (tried(an_entry("t"), A), A, (), None),
        (tried(refused(an_entry("t", 503)), A), A, (Unreachable("t"),), None),
        (tried(an_entry("t", 503), A), A, (TurnedAway("t"),), None),
        # tried again elsewhere: the named one did not take it, and the last one is judged by itself
        (tried(an_entry("t"), B, 2), A, (Unreachable("t"),), None),
        (tried(an_entry("t", 503), B, 2), A, (Unreachable("t"), TurnedAway("t", B)), None),
        (tried(refused(an_entry("t", 503)), B, 3), A, (Unreachable("t"), Unreachable("t", endpoint=B)), None),
        # tried again at the same one, as there is no other
        (tried(an_entry("t"), A, 2), A, (), None),
        (tried(refused(an_entry("t", 503)), A, 3), A, (Unreachable("t"),), None),
        # one try, elsewhere: Envoy did not do as it was told
        (tried(an_entry("t"), B), A, (), B),
        (tried(an_entry("t", 429), B), A, (TurnedAway("t", B),), B),
        (tried(an_entry("t"), B, 0), A, (), None),  # an Envoy that does not count its tries
        # Envoy chose, or the request is not in the books any more
        (tried(an_entry("t"), B, 2), None, (), None),
        (tried(an_entry("t", 503), B, 1), None, (TurnedAway("t", B),), None),
        (tried(refused(an_entry("t", 503)), B, 1), None, (Unreachable("t", endpoint=B),), None),
        # no endpoint was found, or none that has a port
        (an_entry("t", 503), A, (TurnedAway("t"),), None),
        (tried(an_entry("t", 503), "/run/engine.sock:0"), A, (TurnedAway("t"),), None),
        # another spelling of one address
        (tried(an_entry("t"), "[0:0::1]:8000"), "[::1]:8000", (), None),
        (tried(an_entry("t"), "[::2]:8000"), "[::1]:8000", (), "[::2]:8000"),
    ],
)
def test_which_endpoint_is_to_blame(
    entry: access_log_pb2.HTTPAccessLogEntry, named: str | None, faults: Any, ignored: str | None
) -> None:
    found = read_entry(entry, "t", named)
    assert (found.faults, found.ignored) == (faults, ignored)


@pytest.mark.parametrize(
    ("code", "details", "fields", "fault"),
    [
        (503, "via_upstream", {}, TurnedAway),
        (429, "via_upstream", {"error_code": 429}, TurnedAway),
        (500, "via_upstream", {}, Failed),
        (502, "via_upstream", {}, Failed),
        (400, "via_upstream", {}, None),
        (500, "ext_proc_error", {}, None),
        (404, "via_upstream", {"error_code": 503}, None),  # the status is what counts, where it is an error
        # not by the engine: no healthy endpoint, another filter, Fairlane's eviction, an Envoy that says nothing
        (503, "no_healthy_upstream", {}, None),
        (429, "request_rate_limited", {}, None),
        (503, "preempted", {}, None),
        (503, "", {}, None),
        # a stream that was shed
        (200, "via_upstream", {"error_code": 503}, TurnedAway),
        (200, "via_upstream", {"error_code": 429}, TurnedAway),
        (200, "via_upstream", {"error_code": "503"}, TurnedAway),
        (200, "via_upstream", {"error_code": 500}, Failed),
        (200, "via_upstream", {"error_code": 500, "error_type": "overloaded_error"}, Failed),
        (200, "via_upstream", {"error_code": True}, None),
        (200, "via_upstream", {"error_type": "Service Unavailable"}, TurnedAway),  # vLLM's /v1/messages
        (200, "via_upstream", {"error_type": "overloaded"}, TurnedAway),  # TGI
        (200, "via_upstream", {"error_type": "overloaded_error"}, TurnedAway),
        (200, "via_upstream", {"error_type": "rate_limit_error"}, TurnedAway),
        (200, "via_upstream", {"error_code": "server_error", "error_type": "Internal Server Error"}, None),
        (200, "via_upstream", {"error_type": "x" * 10_000}, None),
        (200, "via_upstream", {"completion_tokens": 3}, None),
    ],
)
def test_whether_the_engine_had_no_room_or_failed(
    code: int, details: str, fields: dict[str, Any], fault: type[TurnedAway | Failed] | None
) -> None:
    entry = an_entry("t", code, **fields)
    entry.response.response_code_details = details
    assert said(entry).faults == (() if fault is None else (fault("t"),))


def test_a_refusal_at_the_end_of_all_retries_is_still_the_engine_s() -> None:
    """Envoy flags it then (URX), as it flags answers of its own."""
    entry = tried(an_entry("t", 503), A, 3)
    entry.common_properties.response_flags.upstream_retry_limit_exceeded = True
    assert read_entry(entry, "t", A).faults == (TurnedAway("t"),)


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
