"""Spans of sampled requests, over OTLP: the side of the event loop.

    samples  which requests are followed: by the sampled flag of the trace that a request comes with (W3C Trace
             Context), else one in so many
    begin    one is followed from now on
    seen     what happens to them is taken down, as plain values
    the end  of a request (its stream is over and its cost is final; or it was refused, or left) hands its record on to
             a thread, which makes the spans and sends them (`traces_export`, `traces_spans`)

Two spans: `fairlane request`, from the arrival to the end of its stream, and in it `fairlane wait`, to the verdict. The
scheduler's clock says when: nothing is measured here.

A request that is not followed costs one look into a table for each of its events. While nobody is followed, not even
that: `open` is empty, and nobody calls.

What holds a class is found out when a request that is followed begins to wait, for `_LOOKS_PER_S` of them, and, while
one waits, with the pages, once a second for each pool. It is of the class, not of the single request: to say what holds
that one would take a walk over all flows. `request_slow` in the log has it.

State is bounded: `most_open` requests at a time are followed, and the oldest is given up for a new one. That is far
more than a pool takes in; to come to it takes a leak, or all requests sampled under a load that is nobody's plan.

With traces off, nothing of OpenTelemetry is imported.
"""

from __future__ import annotations

import math
import random
import re
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Protocol

from extproc.config.telemetry import Traces
from extproc.core.charging import counted
from extproc.core.events import (
    Arrive,
    Effect,
    End,
    Event,
    Evict,
    Failed,
    FirstByte,
    FirstToken,
    Refuse,
    Release,
    Scraped,
    Settled,
    TurnedAway,
    Unreachable,
    Usage,
)
from extproc.core.explanation import class_cause
from extproc.core.scheduler import Scheduler
from extproc.telemetry import traces_record
from extproc.telemetry.traces_export import SPANS, Export
from extproc.telemetry.traces_record import Held, Record, Refused, cut, told

_MOST_OPEN = 30_000  # requests that are followed at a time
_MOST_HOLDS = 100  # of a class, that are remembered: a span has 128 events
_MOST_HEADER = 512  # characters of traceparent and of tracestate each; the standard's own limit for the second
_LOOK_S = 1.0
_LOOKS_PER_S = 20  # for requests that begin to wait

# version - trace id - parent id - flags, and what a later version may add. Version ff and ids of zeros are invalid.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})(-.*)?")


class TraceError(Exception):
    """Traces are asked for and cannot be. The message names the cause and the cure."""


class Origin(Protocol):
    """Where a request comes from, see `extproc.edge.recorder.Origin`."""

    @property
    def traceparent(self) -> str: ...
    @property
    def tracestate(self) -> str: ...
    @property
    def model(self) -> str | None: ...
    @property
    def path(self) -> str: ...
    @property
    def stream(self) -> bool: ...


def sampled_flag(traceparent: str) -> bool | None:
    """Whether the trace that a request comes with is sampled; None: it comes with none, or with an invalid one."""
    match = _TRACEPARENT.fullmatch(traceparent.strip(" \t")) if len(traceparent) <= _MOST_HEADER else None
    if match is None:
        return None
    version, flags, more = match.groups()
    if more is not None and version == "00":
        return None
    return int(flags, 16) & 1 == 1


class _Class:
    """Requests of one class that are followed and wait, and what has held the class meanwhile."""

    __slots__ = ("holds", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.holds: deque[Held] = deque(maxlen=_MOST_HOLDS)


class _Pool:
    """Of a pool in which a request that is followed waits."""

    __slots__ = ("classes", "looked_at")

    def __init__(self, now: float) -> None:
        self.classes: dict[str, _Class] = {}
        self.looked_at = now


class Tracer:
    """All but `of` and `close` is called from the event loop, and never waits."""

    @staticmethod
    def of(settings: Traces, version: str, dropped: Callable[[str, int], None]) -> Tracer | None:
        """None: traces are off. `dropped(reason, spans)`: so many are lost. `reason`: `queue_full`, `export_failed`,
        `too_many_open`, `shutdown` or `fault`; it is called from a thread too. Raises TraceError."""
        if settings.otlp is None:
            return None
        try:
            from extproc.telemetry.traces_exporter import SpansError
            from extproc.telemetry.traces_spans import make_spans

            spans = make_spans(settings, version, dropped)
        except ImportError as error:
            raise TraceError(
                f"telemetry.traces.otlp is set, and what it needs is not installed ({error}): install Fairlane with "
                "its extra otel, pip install '.[otel]' in the project's folder, or set telemetry.traces.otlp to null"
            ) from error
        except SpansError as error:
            raise TraceError(str(error)) from error
        try:
            export = Export(spans.send, spans.shutdown, dropped, settings.otlp, spans.close)
        except BaseException:  # no thread can be had
            spans.close()
            raise
        return Tracer(export, settings.sample, dropped)

    def __init__(
        self,
        export: Export,
        sample: float,
        dropped: Callable[[str, int], None],
        *,
        most_open: int = _MOST_OPEN,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`sample`: 0..1, of requests that come without a trace. `chance`: 0..1, evenly."""
        self._export = export
        self._sample = sample
        self._dropped = dropped
        self._most_open = most_open
        self._chance = chance
        self.open: dict[str, Record] = {}  # by request: those that are followed
        self._pools: dict[str, _Pool] = {}
        self._looks = 0  # for requests that began to wait, since then
        self._looks_since = -math.inf
        self._on_event: dict[type, Callable[[Record, Any, float], None]] = {
            Arrive: self._arrives,
            FirstByte: self._first_byte,
            FirstToken: self._first_token,
            Usage: self._usage,
            Unreachable: self._unreachable,
            TurnedAway: self._turned_away,
            Failed: self._failed,
            End: self._ends,
        }
        self._on_effect: dict[type, Callable[[Record, Any, float], None]] = {
            Release: self._released,
            Refuse: self._refused,
            Evict: self._evicted,
            Settled: self._settled,
        }

    def samples(self, traceparent: str) -> bool:
        """Whether a request is to be followed, that comes with this trace; empty: with none."""
        if traceparent:
            sampled = sampled_flag(traceparent)
            if sampled is not None:
                return sampled
        return self._chance() < self._sample

    def begin(self, request_id: str, origin: Origin) -> None:
        """A request is about to arrive at its scheduler, and is followed."""
        parent = "" if sampled_flag(origin.traceparent) is None else origin.traceparent
        if len(self.open) >= self._most_open:
            self._give_up_oldest()
        state = origin.tracestate if parent and len(origin.tracestate) <= _MOST_HEADER else ""
        model = None if origin.model is None else cut(origin.model)
        self.open[request_id] = Record(request_id, parent, state, model, cut(origin.path), origin.stream)

    def first_byte(self, request_id: str, after_s: float) -> None:
        """The first byte of its answer came so long after its first arrival: as Envoy's access log has it."""
        record = self.open.get(request_id)
        if record is not None and record.first_byte_at is None and record.arrival is not None:
            record.first_byte_at = record.arrival + after_s

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None:
        """A scheduler has taken in an event. To be read only."""
        requests = self.open
        if not requests:
            return
        record: Record | None = None
        kind: type = type(event)
        it: Any = event
        on_event = self._on_event.get(kind)
        if on_event is not None:
            record = requests.get(it.id)
            if record is not None:
                on_event(record, event, now)
                if kind is Arrive:
                    record.pool, record.by_envoy = scheduler.policy.name, scheduler.pool_load is not None
        elif kind is Scraped and self._pools:
            self._page(scheduler, now)
        for effect in effects:
            its = requests.get(effect.id)
            if its is not None:
                self._on_effect[type(effect)](its, effect, now)
        if record is not None and kind is Arrive and record.verdict_at is None:
            self._waits(record, scheduler, now)

    def close(self) -> None:
        """Send what is over, for so long as that may take (2.5 s), and end. Blocks."""
        records, self._pools = list(self.open.values()), {}
        self.open.clear()
        given_up = 0
        for record in records:
            if record.ended_at is not None:  # its cost is not final yet
                self._export.offer(record)
            else:
                given_up += SPANS
        if given_up:
            self._dropped("shutdown", given_up)
        self._export.close(given_up)

    # -- events of a request that is followed -----------------------------------------------------

    def _arrives(self, record: Record, event: Arrive, now: float) -> None:
        record.tenant, record.cls = cut(event.tenant), event.cls
        record.arrival, record.queued_at = event.arrival, now
        record.max_output, record.choices = event.max_output, event.n

    def _first_byte(self, record: Record, _: FirstByte, now: float) -> None:
        if record.first_byte_at is None:
            record.first_byte_at = now

    def _first_token(self, record: Record, _: FirstToken, now: float) -> None:
        if record.first_token_at is None:
            record.first_token_at = now

    def _usage(self, record: Record, event: Usage, _: float) -> None:
        if record.settled is not None:
            return
        counts = counted(event)  # an engine may claim anything
        record.prompt_tokens, record.output_tokens = counts.prompt, counts.output
        record.cached_tokens = counts.cached if counts.prompt is None else min(counts.cached, counts.prompt)
        if event.endpoint is not None:
            record.served_by = event.endpoint

    def _unreachable(self, record: Record, event: Unreachable, now: float) -> None:
        record.fault(now, "broken_off" if event.broke else "unreachable", event.endpoint or record.endpoint)

    def _turned_away(self, record: Record, event: TurnedAway, now: float) -> None:
        record.fault(now, "turned_away", event.endpoint or record.endpoint)

    def _failed(self, record: Record, event: Failed, now: float) -> None:
        record.fault(now, "failed", event.endpoint or record.endpoint)

    def _ends(self, record: Record, _: End, now: float) -> None:
        if record.ended_at is not None:
            return
        record.ended_at = now
        if record.arrival is None:  # its scheduler failed over its arrival
            del self.open[record.id]
            self._dropped("fault", SPANS)
        elif record.verdict_at is None:
            self._leaves(record)
            self._finish(record)
        elif record.settled is not None:
            self._finish(record)

    # -- effects on a request that is followed ----------------------------------------------------

    def _released(self, record: Record, effect: Release, now: float) -> None:
        self._decided(record, effect.waited_s, now)
        record.endpoint, record.priority = effect.endpoint, effect.priority

    def _refused(self, record: Record, effect: Refuse, now: float) -> None:
        at = self._decided(record, effect.waited_s, now)
        record.refused = Refused(at, effect.reason.code, told(effect.message))
        record.ended_at = at
        self._finish(record)

    def _evicted(self, record: Record, effect: Evict, now: float) -> None:
        record.evicted = Refused(now, effect.reason.code, told(effect.message))

    def _settled(self, record: Record, effect: Settled, now: float) -> None:
        record.settled = traces_record.Settled(now, effect.source.value, effect.cost, effect.estimate)
        if record.ended_at is not None:
            self._finish(record)

    def _decided(self, record: Record, waited_s: float, now: float) -> float:
        """When the verdict was, by the scheduler's own reckoning: `now` is a moment later."""
        at = record.verdict_at = now if record.arrival is None else record.arrival + waited_s
        self._leaves(record)
        return at

    def _finish(self, record: Record) -> None:
        del self.open[record.id]
        self._export.offer(record)

    def _give_up_oldest(self) -> None:
        record = next(iter(self.open.values()))
        del self.open[record.id]
        self._leaves(record)
        self._dropped("too_many_open", SPANS)

    # -- what holds those that wait ---------------------------------------------------------------

    def _waits(self, record: Record, scheduler: Scheduler, now: float) -> None:
        pool = self._pools.get(record.pool)
        if pool is None:
            pool = self._pools[record.pool] = _Pool(now)
        cls = pool.classes.get(record.cls)
        if cls is None:
            cls = pool.classes[record.cls] = _Class()
        cls.waiting += 1
        if now - self._looks_since >= 1.0:
            self._looks, self._looks_since = 0, now
        if self._looks < _LOOKS_PER_S:
            self._looks += 1
            record.held = _look(cls, record.cls, scheduler, now)
        elif cls.holds:
            record.held = cls.holds[-1]
        record.waits = True

    def _leaves(self, record: Record) -> None:
        """It does not wait any more, if it has."""
        if not record.waits:
            return
        record.waits = False
        pool = self._pools[record.pool]
        cls = pool.classes[record.cls]
        begin = len(cls.holds)
        while begin and cls.holds[begin - 1].at > record.queued_at:
            begin -= 1
        record.holds = tuple(islice(cls.holds, begin, None))
        cls.waiting -= 1
        if cls.waiting == 0:
            del pool.classes[record.cls]
            if not pool.classes:
                del self._pools[record.pool]

    def _page(self, scheduler: Scheduler, now: float) -> None:
        pool = self._pools.get(scheduler.policy.name)
        if pool is None or now - pool.looked_at < _LOOK_S:
            return
        pool.looked_at = now
        for name, cls in pool.classes.items():
            _look(cls, name, scheduler, now)


def _look(cls: _Class, name: str, scheduler: Scheduler, now: float) -> Held | None:
    """What holds the class; it is noted where it is something else than before. None: nothing of it waits."""
    queue = scheduler.by_name.get(name)
    cause = None if queue is None else class_cause(scheduler, queue, now)
    if cause is None:
        return None
    held = Held(now, cause.hold.value, cut(cause.name), cause.value, cause.limit, told(cause.told), told(cause.then))
    last = cls.holds[-1] if cls.holds else None
    if last is None or (last.kind, last.name) != (held.kind, held.name):
        cls.holds.append(held)
    return held
