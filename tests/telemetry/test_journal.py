"""The journal hands each event on to those that want it, and no fault of theirs comes back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from extproc.core.events import (
    Arrive,
    Effect,
    End,
    EndpointAdded,
    Event,
    FirstToken,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Tick,
    Usage,
)
from extproc.core.model import ClassPolicy, PoolPolicy, Sample, Source
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler
from extproc.edge import recorder
from extproc.telemetry import journal as journal_module
from extproc.telemetry.journal import Journal, Origin

AT = "10.0.0.1:8000"
SCHEDULER = Scheduler(
    PoolPolicy("sim", (ClassPolicy("default", 0, priority_base=0, queue_timeout_s=60.0, max_waiting=0, max_queued=9),))
)
PAGE = Sample(0, 0, None, None, None, None, None, None, 1.0)
RELEASE = Release("r0", AT, 0, "a", "default", 0.0)
EVENTS: tuple[Event, ...] = (
    EndpointAdded(AT),
    Scraped(AT, PAGE),
    Arrive("r0", "a", "default", 1.0, 100),
    ScrapeFailed(AT, refused=True),
    Tick(),  # released something
    End("r0"),
    FirstToken("r0"),
)
EFFECTS: tuple[list[Effect], ...] = ([], [], [], [], [RELEASE], [], [])


class Part:
    """Takes down what it is told, and may fail over it."""

    def __init__(self, fails: bool = False) -> None:
        self.told: list[Any] = []
        self.notes: list[Any] = []
        self.known: list[str] = []  # requests that wait, or are followed
        self.fails = fails
        self.quiet = True

    def _take(self, what: Any) -> None:
        self.told.append(what)
        if self.fails:
            raise RuntimeError("a fault of this part")

    def wake(self) -> None:
        self._take("wake")

    @property
    def waiting(self) -> Collection[str]:
        return self.known

    @property
    def open(self) -> Collection[str]:
        return self.known

    def samples(self, traceparent: str) -> bool:
        self._take(traceparent)
        return True

    def begin(self, request_id: str, origin: Origin) -> None:
        self.known.append(request_id)
        self._take((request_id, origin.traceparent))

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None:
        assert scheduler is SCHEDULER
        self._take((event, now, effects))

    def denied(self, reason: Reason, message: str, model: str | None, x_request_id: str) -> None:
        self._take((reason, message, model, x_request_id))

    def coming(self, request_id: str, x_request_id: str) -> None:
        self.notes.append((request_id, x_request_id))

    def interrupted(self, request_id: str, how: str) -> None:
        self.notes.append((request_id, how))

    def first_byte(self, request_id: str, after_s: float) -> None:
        self.notes.append((request_id, after_s))

    def decided(self, pool: str, effects: Sequence[Effect]) -> None:
        self._take((pool, effects))

    def page(self, scheduler: Scheduler, endpoint: str, now: float) -> None:
        assert scheduler is SCHEDULER
        self._take((endpoint, now))


@dataclass
class Told:
    """Faults that were logged, and counted."""

    lines: list[dict[str, Any]]
    counted: list[str]
    now: float = 50.0

    def exception(self, event: str, **fields: Any) -> None:
        self.lines.append({"event": event, **fields})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    found = Told([], [])
    monkeypatch.setattr(journal_module, "log", found)
    return found


def a_journal(told: Told, **parts: Part) -> Journal:
    sampler, requests = parts.get("sampler", Part()), parts.get("requests")
    if requests is not None:
        requests.known.append("r0")
    return Journal(
        sampler,
        requests,
        parts.get("changes"),
        parts.get("tracer"),
        told.counted.append,
        lambda: told.now,
        parts["history"].decided if "history" in parts else None,
    )


def tell(journal: Journal) -> None:
    journal.samples("00-1-2-01")
    journal.begin("r0", recorder.Origin("00-1-2-01", "", "m", "/v1", stream=False))
    for number, event in enumerate(EVENTS):
        journal.seen(SCHEDULER, event, float(number), EFFECTS[number])
    journal.denied(Reason.FAULT, "no", None, "x1")


def test_each_part_is_told_what_it_wants(told: Told) -> None:
    parts = {name: Part() for name in ("sampler", "requests", "history", "changes", "tracer")}
    journal = a_journal(told, **parts)
    assert journal.tracing
    tell(journal)
    seen = [(event, float(number), EFFECTS[number]) for number, event in enumerate(EVENTS)]
    assert (
        parts["sampler"].told == ["wake"] * 6
    )  # also for what never came to a scheduler; not for pages of idle engines
    assert parts["requests"].told == [seen[2], seen[4], seen[5], (Reason.FAULT, "no", None, "x1")]
    assert parts["history"].told == [("sim", [RELEASE])]
    assert parts["changes"].told == [(AT, 1.0), (AT, 3.0)]
    assert parts["tracer"].told == ["00-1-2-01", ("r0", "00-1-2-01"), *seen]
    assert not told.counted


def test_a_cost_that_is_final_is_for_spans_alone(told: Told) -> None:
    parts = {name: Part() for name in ("sampler", "requests", "history", "tracer")}
    parts["tracer"].known.append("r0")
    journal = a_journal(told, **parts)
    cost = Settled("r0", "t", "batch", Source.USAGE, 2.0, 1.0)
    usage = Usage("r0", Source.USAGE, 3, 0, 4)
    journal.seen(SCHEDULER, usage, 1.0, [cost])
    journal.seen(SCHEDULER, usage, 2.0, [cost, RELEASE])  # it made room for another one
    assert parts["sampler"].told == ["wake"] * 2
    assert parts["requests"].told == [(usage, 2.0, [cost, RELEASE])]
    assert parts["history"].told == [("sim", [cost, RELEASE])]
    assert parts["tracer"].told == [(usage, 1.0, [cost]), (usage, 2.0, [cost, RELEASE])]


def test_without_a_tracer_no_request_is_followed(told: Told) -> None:
    assert not a_journal(told).followed("r0")
    assert not a_journal(told).samples("00-1-2-01")
    tracer = Part()
    journal = a_journal(told, tracer=tracer)
    journal.begin("r0", recorder.Origin("", "", "m", "/v1", stream=False))
    assert journal.followed("r0")
    assert not journal.followed("r1")


def test_who_waits_not_and_is_not_followed_is_told_to_nobody(told: Told) -> None:
    requests, tracer = Part(), Part()
    journal = a_journal(told, requests=requests, tracer=tracer)
    tracer.known.append("r0")
    journal.seen(SCHEDULER, End("r1"), 1.0, [])
    assert requests.told == []
    assert tracer.told == [(End("r1"), 1.0, [])]  # while one is followed, it finds out itself
    tracer.known.clear()
    journal.seen(SCHEDULER, End("r0"), 2.0, [])
    assert requests.told == [(End("r0"), 2.0, [])]
    assert len(tracer.told) == 1


def test_a_sampler_of_traces_that_fails_samples_nothing(told: Told) -> None:
    assert a_journal(told, tracer=Part()).samples("")
    assert not a_journal(told, tracer=Part(fails=True)).samples("")
    assert told.counted == ["telemetry"]


def test_nobody_wants_it(told: Told) -> None:
    sampler = Part()
    journal = a_journal(told, sampler=sampler)
    assert not journal.tracing
    tell(journal)
    assert sampler.told == ["wake"] * 6
    assert not told.counted


def test_pages_wake_while_something_is_in_the_books(told: Told) -> None:
    sampler = Part()
    journal = a_journal(told, sampler=sampler)
    scheduler = Scheduler(SCHEDULER.policy)
    for event, wakes in (
        (EndpointAdded(AT), 1),
        (Scraped(AT, PAGE), 1),
        (Arrive("r0", "a", "default", 1.0, 100), 2),
        (Scraped(AT, PAGE), 3),
        (ScrapeFailed(AT, refused=False), 4),
    ):
        journal.seen(scheduler, event, 1.0, scheduler.apply(event, 1.0))
        assert len(sampler.told) == wakes


def test_a_sampler_that_is_awake_is_not_woken(told: Told) -> None:
    sampler = Part()
    sampler.quiet = False
    journal = a_journal(told, sampler=sampler)
    tell(journal)
    for number, event in enumerate(EVENTS):
        journal.of_observers.seen(SCHEDULER, event, float(number), EFFECTS[number])
    assert sampler.told == []


@pytest.mark.parametrize(
    ("name", "part", "faults"),
    [
        ("sampler", "sampler", 6),
        ("requests", "request_log", 4),
        ("history", "history", 1),
        ("changes", "change_log", 2),
        ("tracer", "traces", 9),
    ],
)
def test_a_part_that_fails_harms_nobody(told: Told, name: str, part: str, faults: int) -> None:
    usual = {"sampler": 6, "requests": 4, "history": 1, "changes": 2, "tracer": 9}
    parts = {each: Part(fails=each == name) for each in usual}
    tell(a_journal(told, **parts))
    assert {each: len(found.told) for each, found in parts.items()} == usual
    assert told.counted == ["telemetry"] * faults
    assert told.lines == [{"event": "telemetry_fault", "part": part, "untold": 0}]


def test_faults_are_told_once_a_minute(told: Told) -> None:
    journal = a_journal(told, requests=Part(fails=True))
    for _ in range(121):
        journal.seen(SCHEDULER, End("r0"), 1.0, [])
        told.now += 1.0
    assert [line["untold"] for line in told.lines] == [0, 59, 59]
    assert len(told.counted) == 121


def test_it_is_what_the_edge_asks_for(told: Told) -> None:
    journal: recorder.Journal = a_journal(told)
    assert journal.tracing is False


def test_of_what_would_be_there_are_the_last_minutes_alone(told: Told) -> None:
    parts = {name: Part() for name in ("sampler", "requests", "history", "changes", "tracer")}
    journal = a_journal(told, **parts)
    for number, event in enumerate(EVENTS):
        journal.of_observers.seen(SCHEDULER, event, float(number), EFFECTS[number])
    assert parts["sampler"].told == ["wake"] * 5
    assert parts["history"].told == [("sim~", [RELEASE])]
    assert not any(parts[name].told for name in ("requests", "changes", "tracer"))


def test_notes_go_to_whom_they_concern(told: Told) -> None:
    requests, tracer = Part(), Part()
    for journal in (a_journal(told, requests=requests, tracer=tracer), a_journal(told)):
        journal.coming("r0", "x0")
        journal.interrupted("r0", "handed_over")
        journal.first_byte("r0", 0.5)
    assert requests.notes == [("r0", "x0"), ("r0", "handed_over")]
    assert tracer.notes == [("r0", 0.5)]
