"""What is read out of a header message: types, ranges, and that nothing a client can send raises."""

from __future__ import annotations

import time
from datetime import UTC, timedelta, timezone
from typing import Any

import pytest
from envoy_by_messages import Request, request
from google.protobuf.struct_pb2 import Struct
from hypothesis import example, given, settings
from hypothesis import strategies as st

from extproc.core.model import MAX_SLOTS, MAX_TOKENS
from extproc.edge.facts import ATTRIBUTES, FACTS, read


def test_a_whole_message() -> None:
    facts = read(
        request(
            "sim-7b",
            {"x-tenant": "a"},
            size=4711,
            at="1970-01-01T00:01:40.25+00:00",
            max_tokens=16,
            n=2,
            metadata={"jwt": {"sub": "x"}},
        )
    )
    assert facts.headers == {":method": "POST", ":path": "/v1/completions", "x-tenant": "a"}
    assert (facts.model, facts.malformed) == ("sim-7b", None)
    assert (facts.max_output, facts.n, facts.body_bytes, facts.arrival) == (16, 2, 4711, 100.25)
    assert facts.metadata["jwt"]["sub"] == "x"


def test_an_empty_message() -> None:
    facts = read(Request())
    assert (dict(facts.headers), facts.model, facts.max_output, facts.n) == ({}, None, None, 1)
    assert (facts.body_bytes, facts.arrival) == (0, None)
    assert facts.malformed is not None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"model": "m"}, None),
        ({}, "names a model"),
        ({"model": None}, "names a model"),
        ({"model": ["m"]}, "names a model"),
        ({"model": ""}, "`model` is empty"),
        ({"model": 7}, "`model` is not a string"),
        ({"model": True}, "`model` is not a string"),
        ({"error": True}, "not JSON"),
        ({"error": "x", "model": "m"}, "not JSON"),
    ],
)
def test_what_is_wrong_with_the_body(facts: dict[str, Any], words: str | None) -> None:
    message = Request()
    message.metadata_context.filter_metadata[FACTS].update(facts)
    malformed = read(message).malformed
    assert malformed is None if words is None else malformed is not None and words in malformed


@pytest.mark.parametrize(
    ("given", "count"),
    [
        (12, 12),
        (12.0, 12),
        (12.9, 12),
        ("12", 12),
        (" 12 ", 12),
        (1, 1),
        (0, None),
        (0.5, None),
        (-3, None),
        (1e300, MAX_TOKENS),
        ("1e400", MAX_TOKENS),
        ("nan", None),
        (float("nan"), None),
        (float("inf"), MAX_TOKENS),
        ("twelve", None),
        ("", None),
        (True, None),
        (None, None),
        ([12], None),
        ({"a": 12}, None),
    ],
)
def test_a_count_of_tokens(given: Any, count: int | None) -> None:
    assert read(request(max_tokens=given)).max_output == count


def test_the_newest_name_of_the_limit_counts_and_a_bad_one_does_not() -> None:
    names = {"max_output_tokens": 3, "max_tokens": 2, "max_completion_tokens": 1}
    assert read(request(**names)).max_output == 1
    assert read(request(max_output_tokens=3, max_tokens=2)).max_output == 2
    assert read(request(max_output_tokens=3)).max_output == 3
    assert read(request(max_tokens=2, max_completion_tokens="x")).max_output == 2


@pytest.mark.parametrize(("given", "n"), [(3, 3), ("3", 3), (0, 1), (-1, 1), ("x", 1), (1e9, MAX_SLOTS), (True, 1)])
def test_choices(given: Any, n: int) -> None:
    assert read(request(n=given)).n == n


@pytest.mark.parametrize(("given", "size"), [(1e6, 10**6), ("77", 77), (-1, 0), (None, 0), (1e300, 2**48)])
def test_the_size_of_the_body(given: Any, size: int) -> None:
    assert read(request(size=given)).body_bytes == size


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("1970-01-01T00:00:10+00:00", 10.0),
        ("1970-01-01T00:00:10.5+00:00", 10.5),
        ("1970-01-01T00:00:10.123456789+00:00", 10.123456),
        ("1970-01-01T01:00:10+01:00", 10.0),
        ("1970-01-01T00:00:10Z", 10.0),
        ("1970-01-01T00:00:10", 10.0),  # no zone: Envoy means UTC
        ("soon", None),
        ("", None),
        (10.0, None),
        (None, None),
        ("0001-01-01T00:00:00+23:59", pytest.approx(-62135683140.0)),
    ],
)
def test_the_time_of_arrival(given: Any, at: Any) -> None:
    assert read(request(at=given)).arrival == at


def test_a_time_without_a_zone_is_not_taken_for_local_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "America/New_York")
        time.tzset()
        assert read(request(at="1970-01-01T00:00:10")).arrival == 10.0
    time.tzset()


def test_of_a_header_that_comes_twice_the_last_counts() -> None:
    """What Envoy appends stands behind what the client sent."""
    message = request(headers={"x-tenant": "the client's"})
    message.request_headers.headers.headers.add(key="x-tenant", raw_value=b"envoy's")
    assert read(message).headers["x-tenant"] == "envoy's"


def test_header_values_that_are_no_text_and_old_ones() -> None:
    message = Request()
    message.request_headers.headers.headers.add(key="a", raw_value=b"\xff\xfe")
    message.request_headers.headers.headers.add(key="b", value="in the old field")
    assert read(message).headers == {"a": "��", "b": "in the old field"}


def test_facts_count_only_in_their_namespace() -> None:
    message = Request()
    message.metadata_context.filter_metadata["fairlane.other"].update({"model": "m"})
    message.attributes["another"].update({"request.size": 5})
    assert (read(message).model, read(message).body_bytes) == (None, 0)


scalars = st.none() | st.booleans() | st.floats() | st.text(max_size=30) | st.sampled_from(["1e999", "-0", "9" * 400])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)  # fmt: skip
names = st.sampled_from(
    ["model", "error", "n", "max_tokens", "max_completion_tokens", "max_output_tokens", "request.size", "request.time"]
)
times = st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=-23)))).map(
    lambda t: t.isoformat()
)


def _struct(fields: dict[str, Any]) -> Struct:
    made = Struct()
    made.update(fields)
    return made


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.dictionaries(names | st.text(max_size=5), values | times, max_size=6),
    st.dictionaries(names | st.text(max_size=5), values | times, max_size=4),
    st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=20)), max_size=4),
)
@example({}, {"request.time": "9999-12-31T23:59:59.999999-23:59"}, [])
def test_nothing_that_a_client_can_send_raises(
    facts: dict[str, Any], attributes: dict[str, Any], headers: list[tuple[str, bytes]]
) -> None:
    message = Request()
    message.metadata_context.filter_metadata[FACTS].CopyFrom(_struct(facts))
    message.attributes[ATTRIBUTES].CopyFrom(_struct(attributes))
    for name, value in headers:
        message.request_headers.headers.headers.add(key=name, raw_value=value)
    read_once = read(Request.FromString(message.SerializeToString()))
    assert read_once.model is None or (isinstance(read_once.model, str) and read_once.model)
    assert read_once.max_output is None or 1 <= read_once.max_output <= MAX_TOKENS
    assert 1 <= read_once.n <= MAX_SLOTS
    assert 0 <= read_once.body_bytes <= 2**48
    assert read_once.arrival is None or isinstance(read_once.arrival, float)
    assert (read_once.malformed is None) <= (read_once.model is not None)
