"""Which requests are followed, and what is kept of them while they live."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.trace import get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from otlp_collector import SAMPLED, Asked, Pool

from extproc.core.events import Arrive, End, Release, Usage
from extproc.core.explanation import class_cause
from extproc.core.model import Source
from extproc.telemetry.traces import Tracer, sampled_flag
from extproc.telemetry.traces_record import Record

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Taken:
    """In place of the thread."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def offer(self, record: Record) -> None:
        self.records.append(record)

    def close(self, given_up: int = 0) -> None:
        self.given_up = given_up


class Following:
    """A tracer whose records stay here."""

    def __init__(self, sample: float = 1.0, chance: float = 0.5, **more: Any) -> None:
        self.taken = Taken()
        self.lost: Counter[str] = Counter()
        self.tracer = Tracer(self.taken, sample, self._dropped, chance=lambda: chance, **more)  # type: ignore[arg-type]

    def _dropped(self, reason: str, spans: int) -> None:
        self.lost[reason] += spans


def a_traceparent(version: str = "00", trace: str = TRACE, parent: str = PARENT, flags: str = "01") -> str:
    return f"{version}-{trace}-{parent}-{flags}"


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (SAMPLED, True),
        (a_traceparent(flags="00"), False),
        (a_traceparent(flags="03"), True),  # random trace id, and sampled
        (a_traceparent(flags="02"), False),
        (f" \t{SAMPLED}\t ", True),
        (a_traceparent("cc") + "-what-comes-later", True),
        ("", None),
        (a_traceparent("ff"), None),
        (SAMPLED + "-more", None),  # version 00 has no more
        (a_traceparent(trace="0" * 32), None),
        (a_traceparent(parent="0" * 16), None),
        (SAMPLED.upper(), None),
        (SAMPLED[:-1], None),
        (SAMPLED + ",", None),
        ("\ud800" + SAMPLED, None),
        (a_traceparent("cc") + "-" + "x" * 512, None),
    ],
)
def test_the_sampled_flag_of_a_trace(header: str, sampled: bool | None) -> None:
    assert sampled_flag(header) is sampled


_HEX = st.text("0123456789abcdefABCDEF0", min_size=2, max_size=2)


@settings(derandomize=True, deadline=None, max_examples=500)
@given(
    st.one_of(
        st.text(st.characters(blacklist_characters="\n"), max_size=80),
        st.builds(
            lambda version, zero, flags, more, space: f"{space}{version}-{zero}-{PARENT}-{flags}{more}{space}",
            _HEX,
            st.sampled_from([TRACE, "0" * 32]),
            _HEX,
            st.sampled_from(["", "-", "-x", "x", " ", "-01"]),
            st.sampled_from(["", " ", "\t"]),
        ),
    )
)
@example("cc" + SAMPLED[2:] + "-" + "x" * (512 - 56))
@example("cc" + SAMPLED[2:] + "-" + "x" * (513 - 56))
def test_the_flag_is_read_as_the_sdk_does(header: str) -> None:
    context = TraceContextTextMapPropagator().extract({"traceparent": header}, Context())
    found = get_current_span(context).get_span_context()
    assert sampled_flag(header) is (found.trace_flags.sampled if found.is_valid else None)


@pytest.mark.parametrize(
    ("traceparent", "sample", "followed"),
    [
        (SAMPLED, 0.0, True),  # its trace is sampled, whatever is configured
        (a_traceparent(flags="00"), 1.0, False),
        ("", 1.0, True),
        ("", 0.51, True),
        ("", 0.5, False),  # the chance is 0.5
        ("", 0.0, False),
        ("nonsense", 1.0, True),  # it has none
        ("nonsense", 0.0, False),
    ],
)
def test_a_request_goes_by_its_trace_and_else_by_the_share(traceparent: str, sample: float, followed: bool) -> None:
    following = Following(sample)
    assert following.tracer.samples(traceparent) is followed
    if followed:
        following.tracer.begin("1", Asked(traceparent, "a=b"))
    Pool(following.tracer).apply(Arrive("1", "t", "interactive", 100.0, 10))
    following.tracer.close()
    assert following.lost == ({"shutdown": 2} if followed else {})


def test_what_is_not_followed_leaves_nothing_behind() -> None:
    following = Following(sample=0.0)
    pool = Pool(following.tracer)
    assert following.tracer.samples(SAMPLED)
    following.tracer.begin("yes", Asked(SAMPLED))
    for name in ("no", "yes", "not either"):
        pool.apply(Arrive(name, "t", "interactive", 100.0, 10))
        assert (name in following.tracer.open) is (name == "yes")
    for name in ("no", "yes", "not either"):
        pool.apply(Usage(name, Source.USAGE, 3, 0, 4))
        pool.apply(End(name))
    assert [record.id for record in following.taken.records] == ["yes"]
    assert following.tracer.open == {}
    assert "yes" not in following.tracer.open
    assert following.tracer._pools == {}


def test_a_released_request_is_followed_until_its_stream_is_over_and_its_cost_is_final() -> None:
    for usage_first in (True, False):
        following = Following()
        pool = Pool(following.tracer)
        following.tracer.begin("1", Asked())
        pool.apply(Arrive("1", "t", "interactive", 100.0, 10))
        steps = [Usage("1", Source.USAGE, 3, 1, 4), End("1")]
        one, other = steps if usage_first else reversed(steps)
        pool.apply(one, after_s=1.0)
        assert following.taken.records == []
        pool.apply(other, after_s=1.0)
        (record,) = following.taken.records
        assert (record.prompt_tokens, record.cached_tokens, record.output_tokens) == (3, 1, 4)
        assert record.ended_at == (102.0 if usage_first else 101.0)
        assert record.settled is not None
        assert record.settled.source == "usage"


def test_a_cost_that_no_usage_came_for_ends_it_too() -> None:
    following = Following()
    pool = Pool(following.tracer, usage_grace_s=5.0)
    following.tracer.begin("1", Asked())
    pool.apply(Arrive("1", "t", "interactive", 100.0, 10))
    pool.apply(End("1"), after_s=2.0)
    pool.apply(Arrive("2", "t", "interactive", 108.0, 10), after_s=6.0)  # another's event: the grace is over
    (record,) = following.taken.records
    assert record.settled is not None
    assert (record.id, record.ended_at, record.settled.at) == ("1", 102.0, 108.0)


def test_an_absurd_count_is_none() -> None:
    following = Following()
    pool = Pool(following.tracer)
    following.tracer.begin("1", Asked())
    pool.apply(Arrive("1", "t", "interactive", 100.0, 10))
    pool.apply(Usage("1", Source.USAGE, 10**30, 10**30, -1))
    pool.apply(End("1"))
    (record,) = following.taken.records
    assert (record.prompt_tokens, record.output_tokens) == (None, None)


def test_the_oldest_is_given_up_for_a_new_one() -> None:
    following = Following(most_open=3)
    pool = Pool(following.tracer)
    for number in range(5):
        following.tracer.begin(str(number), Asked())
        pool.apply(Arrive(str(number), "t", "interactive", 100.0, 10))
    assert list(following.tracer.open) == ["2", "3", "4"]
    assert following.lost == {"too_many_open": 4}
    for number in range(5):
        pool.apply(End(str(number)))
        pool.apply(Usage(str(number), Source.USAGE, 3, 0, 4))
    assert {record.id for record in following.taken.records} == {"2", "3", "4"}
    assert following.tracer._pools == {}


def test_a_request_that_its_scheduler_never_took_is_forgotten() -> None:
    following = Following()
    pool = Pool(following.tracer)
    following.tracer.begin("1", Asked())
    with pytest.raises(ValueError, match="class 'none' is not one of"):
        pool.apply(Arrive("1", "t", "none", 100.0, 10))
    pool.apply(End("1"))  # as the driver does
    assert following.tracer.open == {}
    assert following.lost == {"fault": 2}


def test_names_are_cut_before_they_are_kept() -> None:
    following = Following()
    pool = Pool(following.tracer)
    long = "x" * 10_000
    following.tracer.begin("1", Asked(SAMPLED, "a=" + long, long, "/" + long))
    pool.apply(Arrive("1", long, "interactive", 100.0, 10))
    following.tracer.close()
    following.tracer.begin("2", Asked(SAMPLED, "a=b", long, "/" + long))
    (record,) = following.tracer.open.values()
    assert record.model is not None
    assert (len(record.model), len(record.path), record.tracestate) == (128, 128, "a=b")


def test_what_waits_for_its_cost_at_the_end_is_exported_and_what_runs_is_not() -> None:
    following = Following()
    pool = Pool(following.tracer, slots=2)
    for name in ("ended", "runs", "waits"):
        following.tracer.begin(name, Asked())
        pool.apply(Arrive(name, "t", "interactive", 100.0, 10))
    pool.apply(End("ended"))
    following.tracer.close()
    assert [record.id for record in following.taken.records] == ["ended"]
    assert following.lost == {"shutdown": 4}
    assert following.taken.given_up == 4


def test_the_verdict_is_when_the_scheduler_says() -> None:
    """`seen` is called a moment after, with that moment's time."""
    following = Following()
    pool = Pool(following.tracer)
    scheduler, tracer = pool.scheduler, following.tracer
    tracer.begin("1", Asked())
    event = Arrive("1", "t", "interactive", 99.0, 10)
    effects = scheduler.apply(event, 100.0)
    assert isinstance(effects[0], Release)
    tracer.seen(scheduler, event, 100.3, effects)
    (record,) = tracer.open.values()
    assert (record.arrival, record.verdict_at) == (99.0, 100.0)


def test_what_holds_a_class_is_looked_up_for_twenty_requests_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are told what was found last."""
    looks: list[str] = []

    def counted(*args: Any) -> Any:
        looks.append(args[1].policy.name)
        return class_cause(*args)

    monkeypatch.setattr("extproc.telemetry.traces.class_cause", counted)
    following = Following()
    pool = Pool(following.tracer)
    pool.apply(Arrive("inside", "t", "interactive", 100.0, 10))
    for number in range(60):
        following.tracer.begin(str(number), Asked())
        pool.apply(Arrive(str(number), "t", "interactive", pool.now, 10), after_s=0.001)
    assert len(looks) == 20
    assert all(record.held is not None for record in following.tracer.open.values())
    for number in range(60):  # each waits alone now
        pool.apply(End(str(number)))
    for number in range(60, 120):
        following.tracer.begin(str(number), Asked())
        pool.apply(Arrive(str(number), "t", "interactive", pool.now, 10), after_s=0.001)
        pool.apply(End(str(number)))
    assert len(looks) == 20
    following.tracer.begin("later", Asked())
    pool.apply(Arrive("later", "t", "interactive", pool.now, 10), after_s=1.0)
    assert len(looks) == 21
