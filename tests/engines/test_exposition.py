from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from extproc.engines.dialect import VLLM
from extproc.engines.exposition import MetricsError, Samples, parse

WAITING = "vllm:num_requests_waiting"
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def one(line: bytes, name: str = WAITING) -> tuple[dict[str, str], float]:
    """Labels and value of a page with this one sample."""
    [sample] = parse(line + b"\n", frozenset({name}))[name]
    return sample


def by_prometheus_client(page: bytes) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            # it gives every counter a name in _total, whatever the page calls it
            name = sample.name if f"\n{sample.name}".encode() in page else sample.name.removesuffix("_total")
            found.setdefault(name, []).append((dict(sample.labels), float(sample.value)))
    return found


def same(left: Samples, right: Samples) -> bool:
    return repr(left) == repr(right)  # NaN is NaN here


def ordered(samples: Samples) -> Samples:
    return {
        name: sorted(((dict(sorted(labels.items())), value) for labels, value in found), key=repr)
        for name, found in sorted(samples.items())
    }


# against an independent reader and an independent writer ----------------------------------------------------------


def test_reads_every_sample_as_prometheus_client_does(any_page: str, page: Callable[[str], bytes]) -> None:
    text = page(any_page)
    expected = by_prometheus_client(text)
    assert len(expected) > 4
    assert same(ordered(parse(text, frozenset(expected))), ordered(expected))


def test_reads_only_what_is_wanted(any_page: str, page: Callable[[str], bytes]) -> None:
    text = page(any_page)
    expected = by_prometheus_client(text)
    wanted = frozenset(sorted(expected)[::3])
    assert set(parse(text, wanted)) == wanted


VALUES = st.floats() | st.integers(-5, 10**12).map(float)


@relaxed
@given(st.dictionaries(st.tuples(st.text(max_size=10), st.text(max_size=10)), VALUES, min_size=1, max_size=5))
def test_reads_what_prometheus_client_writes(series: dict[tuple[str, str], float]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge(
        "vllm:num_requests_waiting", 'help with "quotes" \\ and\nlines', ["engine", "model"], registry=registry
    )
    for labels, value in series.items():
        gauge.labels(*labels).set(value)
    found = parse(generate_latest(registry), frozenset({WAITING}))[WAITING]
    assert len(found) == len(series)
    for labels, value in found:
        expected = series[labels["engine"], labels["model"]]
        assert value == expected or (math.isnan(value) and math.isnan(expected))


BLANK = st.sampled_from([b"", b" ", b"\t", b"  "])
SOME_BLANK = st.sampled_from([b" ", b"\t", b"   "])


@st.composite
def lines(draw: st.DrawFn) -> tuple[bytes, dict[str, str], float]:
    """A sample line with all the freedom that the format gives, with what it says."""
    labels = draw(
        st.dictionaries(st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,6}", fullmatch=True), st.text(max_size=8), max_size=3)
    )
    value = draw(st.floats(allow_nan=False))
    line = draw(BLANK) + WAITING.encode()
    if labels or draw(st.booleans()):
        parts = []
        for key, text in labels.items():
            escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            parts.append(
                draw(BLANK)
                + key.encode()
                + draw(BLANK)
                + b"="
                + draw(BLANK)
                + b'"'
                + escaped.encode()
                + b'"'
                + draw(BLANK)
            )
        line += draw(BLANK) + b"{" + b",".join(parts)
        line += b"," if labels and draw(st.booleans()) else b""
        line += draw(BLANK) + b"}" + draw(BLANK)
    else:
        line += draw(SOME_BLANK)
    line += repr(value).encode()
    if draw(st.booleans()):
        line += draw(SOME_BLANK) + draw(st.sampled_from([b"1395066363000", b"-1", b"1395066363.5"]))
    if draw(st.booleans()):
        line += draw(SOME_BLANK) + b'# {trace_id="a # b"} 0.5 1395066363.5'
    return line + draw(BLANK) + draw(st.sampled_from([b"\n", b"\r\n"])), labels, value


@relaxed
@given(st.lists(lines(), min_size=1, max_size=4))
def test_blanks_timestamps_exemplars_and_line_ends_do_not_matter(
    drawn: list[tuple[bytes, dict[str, str], float]],
) -> None:
    page = b"# HELP x y\n" + b"".join(line for line, _, _ in drawn) + b"# EOF\n"
    assert parse(page, frozenset({WAITING}))[WAITING] == [(labels, value) for _, labels, value in drawn]


# what must not happen ---------------------------------------------------------------------------------------------


@relaxed
@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: WAITING.encode() + b"{" + tail + b"\n"))
def test_any_bytes_give_samples_or_a_metrics_error(page: bytes) -> None:
    try:
        found = parse(page, frozenset({WAITING}))
    except MetricsError as error:
        assert WAITING in str(error)
    else:
        assert set(found) <= {WAITING}


def test_a_page_cut_anywhere_never_gives_another_value(page: Callable[[str], bytes]) -> None:
    text = page("vllm_old.txt")
    whole = parse(text, VLLM.sample_names)
    cut_inside = 0
    for end in range(len(text)):
        try:
            found = parse(text[:end], VLLM.sample_names)
        except MetricsError:
            cut_inside += 1
        else:
            assert found.items() <= whole.items()
    # an error wherever the cut leaves a name whole and its line open
    wanted = [line for line in text.splitlines() if re.split(b"[{ ]", line)[0].decode() in VLLM.sample_names]
    assert len(wanted) == 8
    assert cut_inside == sum(len(line) - len(re.split(b"[{ ]", line)[0]) + 1 for line in wanted)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b"", "expected a value"),
        (b" ", "expected a value"),
        (b"{}", "expected a value"),
        (b" many", "'many' is no number"),
        (b" 1_000", "'1_000' is no number"),
        (b" 1 2 3", "expected a value and at most a timestamp"),
        (b" 1 soon", "'soon' is no number"),
        (b'{engine="0" 1', "no label"),
        (b'{engine="0 1', "no label"),
        (b'{engine="0\\"} 1', "no label"),
        (b"{engine=0} 1", "no label"),
        (b'{0="0"} 1', "no label"),
        (b'{engine="0",,} 1', "no label"),
        (b'{engine="0" model="m"} 1', "no label"),
        (b'{engine="0",engine="1"} 1', "engine is given twice"),
        (b'{engine="\xff"} 1', "utf-8"),
    ],
)
def test_a_malformed_wanted_line_is_an_error_that_names_the_cause(line: bytes, cause: str) -> None:
    with pytest.raises(MetricsError) as error:
        one(WAITING.encode() + line)
    assert WAITING in str(error.value)
    assert cause in str(error.value)


@pytest.mark.parametrize(
    "broken", [b'other{a="', b"other", b"other x", b"\xff\xfe", b'"vllm:num_requests_waiting" 3', b"{", b"\x00"]
)
def test_malformed_lines_that_are_not_wanted_are_stepped_over(broken: bytes) -> None:
    page = broken + b"\n" + WAITING.encode() + b" 3\n" + broken
    assert parse(page, frozenset({WAITING})) == {WAITING: [({}, 3.0)]}


def test_a_longer_name_is_another_name() -> None:
    page = WAITING.encode() + b'_by_reason{reason="capacity"} 3\n' + WAITING.encode() + b"_total broken\n"
    assert parse(page, frozenset({WAITING})) == {}


def test_an_unclosed_label_of_a_hundred_kilobytes_takes_no_exponential_time() -> None:
    with pytest.raises(MetricsError):
        one(WAITING.encode() + b'{a="' + b"xxx\\\\" * 30_000)


# single facts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [(b"+Inf", math.inf), (b"-Inf", -math.inf), (b"Inf", math.inf), (b"1e3", 1000.0), (b"-0.5", -0.5), (b"+7", 7.0)],
)
def test_numbers(text: bytes, value: float) -> None:
    assert one(WAITING.encode() + b" " + text) == ({}, value)


def test_not_a_number_is_a_value() -> None:
    assert math.isnan(one(WAITING.encode() + b" NaN")[1])


def test_escapes() -> None:
    labels, _ = one(WAITING.encode() + rb'{a="back\\slash",b="quo\"te",c="li\ne",d="\\n",e="\t"} 1')
    # an unknown escape stands for itself, as with other readers
    assert labels == {"a": "back\\slash", "b": 'quo"te', "c": "li\ne", "d": "\\n", "e": "\\t"}


def test_a_quoted_label_name() -> None:
    assert one(WAITING.encode() + b'{"a.b"="x"} 1') == ({"a.b": "x"}, 1.0)


def test_braces_commas_and_blanks_inside_a_label() -> None:
    assert one(WAITING.encode() + b'{a="} , {b=\\"c\\"} 9"} 1') == ({"a": '} , {b="c"} 9'}, 1.0)


def test_an_empty_page() -> None:
    assert parse(b"", frozenset({WAITING})) == {}


def test_a_full_page_costs_little(page: Callable[[str], bytes]) -> None:
    text = page("metrics_vllm_0.32_dp2.txt")  # 67 kB
    best = math.inf
    for _ in range(30):
        before = time.thread_time()
        parse(text, VLLM.sample_names)
        best = min(best, time.thread_time() - before)
    # 0.4 ms of CPU where this was written; the bound leaves room for a slower machine
    assert best < 0.002
