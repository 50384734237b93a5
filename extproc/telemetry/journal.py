"""What the edge tells of single requests, handed on to those that write it down: log, spans, changes of state.

It is called for each event of each pool, five to eight times for a request, so it does nothing itself, and asks nobody
for whom there is nothing in the event. A part that fails does no harm to the others, and none to the edge: that is
counted, and told once a minute at most.

Implements the edge's `Journal` by its structure; parts of one layer do not import each other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import structlog

from extproc.core.events import Arrive, Effect, End, Event, Scraped, ScrapeFailed, Settled
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler

log = structlog.get_logger()

FAULT = "telemetry"
_TOLD_EVERY_S = 60.0
_PAGES = (Scraped, ScrapeFailed)
OBSERVED = "~"  # behind a pool's name: what is observed there; no pool's name has one


class Origin(Protocol):
    """Where a request comes from, as far as its scheduler is not told."""

    @property
    def traceparent(self) -> str:
        """W3C Trace Context; empty: it has none."""

    @property
    def tracestate(self) -> str: ...

    @property
    def model(self) -> str | None:
        """As the client said."""

    @property
    def path(self) -> str:
        """Without its query."""

    @property
    def stream(self) -> bool: ...


class Requests(Protocol):
    """Lines of single requests, see `request_log`. It is told of arrivals, of ends of those that wait, and of whatever
    has effects."""

    @property
    def waiting(self) -> Collection[str]:
        """Requests that wait, as far as it knows. Always the same object."""

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None: ...

    def coming(self, request_id: str, x_request_id: str) -> None: ...

    def interrupted(self, request_id: str, how: str) -> None: ...

    def denied(self, reason: Reason, message: str, model: str | None, x_request_id: str) -> None: ...


class Changes(Protocol):
    """Lines of changes of state, see `change_log`."""

    def page(self, scheduler: Scheduler, endpoint: str, now: float) -> None: ...


class Tracer(Protocol):
    """Spans, see `traces`."""

    @property
    def open(self) -> Collection[str]:
        """Requests that are followed. Always the same object."""

    def samples(self, traceparent: str, /) -> bool: ...

    def begin(self, request_id: str, origin: Origin, /) -> None: ...

    def first_byte(self, request_id: str, after_s: float, /) -> None: ...

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None: ...


class Sampler(Protocol):
    """What is looked at again and again, see `sampler`."""

    @property
    def quiet(self) -> bool:
        """Whether it is to be woken, should anything come."""

    def wake(self) -> None: ...


class Journal:
    """The sampler is woken before all else. Nothing here raises."""

    def __init__(
        self,
        sampler: Sampler,
        requests: Requests | None,
        changes: Changes | None,
        tracer: Tracer | None,
        fault: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        decided: Callable[[str, Sequence[Effect]], None] | None = None,
    ) -> None:
        """None: nobody wants it. `fault`: counts one, `FAULT`. `decided`: is told of verdicts, with the name
        of the pool, see `history`."""
        self.tracing = tracer is not None
        self._sampler = sampler
        self._requests = requests
        self._changes = changes
        self._tracer = tracer
        # Looked into here: most requests go as they come, and are not traced, and each call costs as much as the look.
        self._waiting: Collection[str] = () if requests is None else requests.waiting
        self._followed: Collection[str] = () if tracer is None else tracer.open
        self._fault = fault
        self._clock = clock
        self._decided = decided
        self._told_at = -math.inf
        self._untold = 0
        self.of_observers = _OfObservers(self)

    def coming(self, request_id: str, x_request_id: str) -> None:
        """A request is about to arrive at its scheduler. `x_request_id`: what Envoy calls it."""
        if self._requests is not None:
            self._requests.coming(request_id, x_request_id)

    def interrupted(self, request_id: str, how: str) -> None:
        """A held request is about to end, and its client has not left."""
        if self._requests is not None:
            self._requests.interrupted(request_id, how)

    def followed(self, request_id: str) -> bool:
        """Whether it has spans, and is not over."""
        return request_id in self._followed

    def first_byte(self, request_id: str, after_s: float) -> None:
        """The first byte of its answer came so long after its first arrival."""
        if self._tracer is not None:
            try:
                self._tracer.first_byte(request_id, after_s)
            except Exception:
                self._failed("traces")

    def samples(self, traceparent: str) -> bool:
        """Whether a request is to have spans, that comes with this trace (W3C Trace Context); empty: with none."""
        if self._tracer is not None:
            try:
                return self._tracer.samples(traceparent)
            except Exception:
                self._failed("traces")
        return False

    def begin(self, request_id: str, origin: Origin) -> None:
        """A request is about to arrive at its scheduler, and is to have spans."""
        if self._tracer is not None:
            try:
                self._tracer.begin(request_id, origin)
            except Exception:
                self._failed("traces")

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None:
        """A scheduler has taken in an event. It is only read."""
        kind: type = type(event)
        it: Any = event
        if self._sampler.quiet and (scheduler.requests or kind not in _PAGES):  # they come while nothing happens, too
            self._woken()
        decided = False
        for effect in effects:
            if type(effect) is not Settled:  # a cost is for spans alone, and comes with each request
                decided = True
                break
        if decided and self._decided is not None:  # as `_told_of` does it: each request comes this way
            try:
                self._decided(scheduler.policy.name, effects)
            except Exception:
                self._failed("history")
        if self._requests is not None and (decided or kind is Arrive or (kind is End and it.id in self._waiting)):
            try:
                self._requests.seen(scheduler, event, now, effects)
            except Exception:
                self._failed("request_log")
        if self._followed and self._tracer is not None:
            try:
                self._tracer.seen(scheduler, event, now, effects)
            except Exception:
                self._failed("traces")
        if kind in _PAGES and self._changes is not None:
            try:
                self._changes.page(scheduler, it.endpoint, now)
            except Exception:
                self._failed("change_log")

    def denied(self, reason: Reason, message: str, model: str | None, x_request_id: str) -> None:
        """A request was refused before it reached a scheduler."""
        if self._sampler.quiet:
            self._woken()
        if self._requests is not None:
            try:
                self._requests.denied(reason, message, model, x_request_id)
            except Exception:
                self._failed("request_log")

    def observed(self, scheduler: Scheduler, event: Event, effects: Sequence[Effect]) -> None:
        """Likewise, of requests that pass, and what would become of them."""
        if self._sampler.quiet and (scheduler.requests or not isinstance(event, _PAGES)):
            self._woken()
        if effects:
            self._told_of(scheduler.policy.name + OBSERVED, effects)

    def _told_of(self, pool: str, effects: Sequence[Effect]) -> None:
        if self._decided is not None:
            try:
                self._decided(pool, effects)
            except Exception:
                self._failed("history")

    def _woken(self) -> None:
        try:
            self._sampler.wake()
        except Exception:
            self._failed("sampler")

    def _failed(self, part: str) -> None:
        self._fault(FAULT)
        now = self._clock()
        if now - self._told_at < _TOLD_EVERY_S:
            self._untold += 1
            return
        log.exception("telemetry_fault", part=part, untold=self._untold)
        self._told_at, self._untold = now, 0


class _OfObservers:
    """There are no lines, spans or changes of state of what would be: only the last minutes, for the live page."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self._journal.observed(scheduler, event, effects)
