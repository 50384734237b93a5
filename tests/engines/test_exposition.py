from __future__ import annotations

import math
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from extproc.engines.dialects import ALL_SAMPLE_NAMES, VLLM
from extproc.engines.exposition import MetricsError, Samples, parse
from extproc.engines.parse_cost import parse_cost

WAITING = "vllm:num_requests_waiting"
relaxed = settings(derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def one(line: bytes, name: str = WAITING) -> tuple[dict[str, str], float]:
    """Labels and value of a page with this one sample."""
    [sample] = parse(line + b"\n", frozenset({name}))[name]
    return sample


def by_prometheus_client(page: bytes) -> Samples:
    found = Samples()
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            # it gives every counter a name in _total, whatever the page calls it
            name = sample.name if f"\n{sample.name}".encode() in page else sample.name.removesuffix("_total")
            found.setdefault(name, []).append((dict(sample.labels), float(sample.value)))
    return found


def same(left: Samples, right: Samples) -> bool:
    return repr(left) == repr(right)  # NaN is NaN here


def ordered(samples: Samples) -> Samples:
    return Samples(
        (name, sorted(((dict(sorted(labels.items())), value) for labels, value in found), key=repr))
        for name, found in sorted(samples.items())
    )


# against an independent reader and an independent writer ----------------------------------------------------------


def test_reads_every_sample_as_prometheus_client_does(any_page: str, page: Callable[[str], bytes]) -> None:
    text = page(any_page)
    expected = by_prometheus_client(text)
    assert expected
    assert same(ordered(parse(text, frozenset(expected))), ordered(expected))


def test_reads_only_what_is_wanted(any_page: str, page: Callable[[str], bytes]) -> None:
    text = page(any_page)
    expected = by_prometheus_client(text)
    wanted = frozenset(sorted(expected)[::3])
    assert set(parse(text, wanted)) == wanted


@pytest.mark.parametrize("wanted", [VLLM.sample_names, ALL_SAMPLE_NAMES])
def test_reads_the_wanted_samples_of_every_page_as_prometheus_client_does(
    wanted: frozenset[str], any_page: str, page: Callable[[str], bytes]
) -> None:
    text = page(any_page)
    expected = Samples((name, found) for name, found in by_prometheus_client(text).items() if name in wanted)
    assert same(ordered(parse(text, wanted)), ordered(expected))


def test_reads_an_openmetrics_page_as_prometheus_client_does(page: Callable[[str], bytes]) -> None:
    text = page("vllm.openmetrics")
    expected = Samples()
    for family in openmetrics_families(text.decode()):
        for sample in family.samples:
            expected.setdefault(sample.name, []).append((dict(sample.labels), float(sample.value)))
    assert len(expected) == 8  # with _created, _bucket, _count and _sum
    assert same(ordered(parse(text, frozenset(expected))), ordered(expected))


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
@pytest.mark.slow
def test_blanks_timestamps_exemplars_and_line_ends_do_not_matter(
    drawn: list[tuple[bytes, dict[str, str], float]],
) -> None:
    page = b"# HELP x y\n" + b"".join(line for line, _, _ in drawn) + b"# EOF\n"
    assert parse(page, frozenset({WAITING}))[WAITING] == [(labels, value) for _, labels, value in drawn]


# against prometheus-client's parser on pages that are broken --------------------------------------------------------

NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?(?i:inf|infinity|nan)"
LABELS = r"""\{ [ \t]* (?: (?:[a-zA-Z_][a-zA-Z0-9_]*|"(?:[^"\\]|\\.)*") [ \t]* = [ \t]* "(?:[^"\\]|\\.)*" [ \t]*
             (?: , [ \t]* (?! \}) | (?= \}) | , [ \t]* (?= \}) ) )* \}"""
LINE = re.compile(
    rf"""[ \t\r\f\v]* {WAITING} (?: [ \t]* {LABELS} [ \t]* | [ \t]+ ) (?:{NUMBER}) (?: [ \t]+ (?:{NUMBER}) )?
         (?: [ \t]* [ \t] \# [ \t] [ \t]* (?: {LABELS} )? [ \t]* (?:{NUMBER}) (?: [ \t]+ (?:{NUMBER}) )? )?
         [ \t\r\f\v]*""",
    re.VERBOSE,
)
"""The format of a line, written down once more and as one piece. prometheus-client takes more than this."""

SEEDS = [
    WAITING + r'{engine="0",model_name="b \"v2\""} 2.0',
    WAITING + " 3",
    WAITING + "{} 1e3 1395066363000",
    WAITING + '{a="x",} NaN',
    WAITING + r'{a="b\\",c="\n"} +Inf # {t="1"} 0.5 12',
    WAITING + "\t1e30",
    WAITING + " -1\r",
    WAITING + '_by_reason{reason="capacity"} 4',
    f"# HELP {WAITING} {WAITING} 5",
    f"# {WAITING} 5",
    f'other{{x="{WAITING} 3"}} 1',
    "other{{{ is broken",
    "# EOF",
    "",
]
# no tab: the client takes it for a separator only where there is no space
ALPHABET = ' \n{}",=\\#_:ae01.+-'


@st.composite
def broken_pages(draw: st.DrawFn) -> bytes:
    """Lines of pages, with up to three characters changed, put in or taken out."""
    text = "\n".join(draw(st.lists(st.sampled_from(SEEDS), min_size=1, max_size=3))) + "\n"
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(["", *ALPHABET])) + text[at + draw(st.integers(0, 1)) :]
    return text.encode()


def wanted_lines(page: bytes) -> list[str]:
    return [line for line in page.decode().split("\n") if re.match(rf"[ \t\r\f\v]*{WAITING}(?=[ \t\r{{]|$)", line)]


def client_reads(lines: list[str]) -> list[tuple[dict[str, str], float]] | None:
    """None: it refuses them."""
    try:
        families = list(text_string_to_metric_families("".join(line + "\n" for line in lines)))
    except (ValueError, IndexError):
        return None
    return [(dict(sample.labels), float(sample.value)) for family in families for sample in family.samples]


@settings(relaxed, max_examples=300)
@given(broken_pages())
@pytest.mark.slow
def test_the_same_values_as_prometheus_client_or_both_refuse(page: bytes) -> None:
    lines = wanted_lines(page)
    expected = client_reads(lines)
    of_the_format = all(map(LINE.fullmatch, lines)) and (
        page.endswith(b"\n") or not page.endswith(tuple(line.encode() for line in lines))
    )
    try:
        found = parse(page, frozenset({WAITING}))
    except MetricsError:
        assert expected is None or not of_the_format  # refused by both, or only the client takes what is not the format
    else:
        assert of_the_format
        assert expected is not None
        assert same(Samples({WAITING: found.get(WAITING, [])}), Samples({WAITING: expected}))


# what must not happen ---------------------------------------------------------------------------------------------


@relaxed
@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: WAITING.encode() + b"{" + tail + b"\n"))
def test_any_bytes_give_samples_or_a_metrics_error(page: bytes) -> None:
    try:
        found = parse(page, frozenset({WAITING}))
    except MetricsError as error:
        assert WAITING in str(error) or "no metrics page" in str(error)
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
    assert len(wanted) == 9
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


def test_a_page_without_any_sample_is_blank() -> None:
    wanted = frozenset({WAITING})
    assert parse(b"", wanted).blank
    assert parse(b"\n# TYPE x counter\n  # EOF\n", wanted).blank
    assert not parse(b"# TYPE x counter\nx 1\n", wanted).blank
    assert not parse(WAITING.encode() + b" 1\n", wanted).blank


@pytest.mark.parametrize(
    ("page", "what"),
    [
        (b"<!DOCTYPE html><html>\nvllm:num_requests_waiting 3\n", "HTML"),
        (b"  \r\n <html>", "HTML"),
        (b'[{"iter": 1}]', "JSON"),
        (b"[]", "JSON"),
        (b"{}", "JSON"),
        (b'{"status": "ok"}\n', "JSON"),
        (b"\x1f\x8b\x08\x00vllm", "gzip"),
    ],
)
def test_what_is_no_metrics_page_is_told(page: bytes, what: str) -> None:
    with pytest.raises(MetricsError, match=f"the answer is {what} and no metrics page"):
        parse(page, frozenset({WAITING}))


def test_a_name_in_quotes_is_no_json() -> None:
    assert parse(b'{"a.b", x="y"} 1\n' + WAITING.encode() + b" 2\n", frozenset({WAITING})) == {WAITING: [({}, 2.0)]}


def test_a_name_begins_a_line_or_is_none() -> None:
    name = WAITING.encode()
    page = b"# HELP " + name + b" \\n" + name + b' 1\nx{a="\\n' + name + b' 2"} 3\n#' + name + b" 4\n-" + name + b" 5\n"
    assert parse(page, frozenset({WAITING})) == {}


def test_the_same_series_twice_is_read_twice() -> None:
    assert parse(2 * (WAITING.encode() + b" 1\n"), frozenset({WAITING})) == {WAITING: [({}, 1.0), ({}, 1.0)]}


def test_lines_that_end_in_two_characters() -> None:
    page = b"# TYPE x gauge\r\n" + WAITING.encode() + b'{a="b"} 2\r\n' + WAITING.encode() + b" 3\r\n"
    assert parse(page, frozenset({WAITING})) == {WAITING: [({"a": "b"}, 2.0), ({}, 3.0)]}


def test_no_wanted_name_finds_nothing() -> None:
    assert parse(b"x 1\n", frozenset()) == {}


def test_names_that_begin_alike_are_told_apart() -> None:
    names = ["a", "ab", "abc", "abd", "b:c", "b.c", "x"]
    page = "".join(f"{name} {number}\n" for number, name in enumerate(names)).encode()
    # a dot is no wildcard: each name finds its own line
    assert parse(page, frozenset(names)) == {name: [({}, float(number))] for number, name in enumerate(names)}


def test_fifty_megabytes_are_read_in_time() -> None:
    page = b'x_bucket{le="0.5",model_name="m"} 1.0\n' * 1_400_000 + WAITING.encode() + b" 3\n"
    assert len(page) > 50_000_000
    before = time.thread_time()
    assert parse(page, frozenset({WAITING})) == {WAITING: [({}, 3.0)]}
    # 0.1 s of CPU where this was written: more bytes take no more than their share
    assert time.thread_time() - before < 2.0


def test_a_full_page_costs_little(page: Callable[[str], bytes]) -> None:
    cost = parse_cost(page("metrics_vllm_0.32_dp2.txt"), VLLM.sample_names, runs=50)  # 67 kB
    # 0.4 ms of CPU where this was written; the bound leaves room for a slower machine
    assert cost.parse_s < 0.002
    assert cost.ratio > 10
    assert cost.page_bytes == 66_785


def test_all_engines_names_cost_no_more_than_one_engines(page: Callable[[str], bytes]) -> None:
    text = page("metrics_vllm_0.32_dp2.txt")
    one = parse_cost(text, VLLM.sample_names, runs=50).parse_s
    assert parse_cost(text, ALL_SAMPLE_NAMES, runs=50).parse_s < 3.0 * one
