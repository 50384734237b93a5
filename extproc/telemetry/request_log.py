"""One line for each request that was slow or was refused, with the reason.

    request_slow             it waited for longer than `slow_after`, and was released, or left (its client did, or
                             another replica has it), or was refused where lines of refusals are off
    request_refused          it was refused, in the queue or at the door; or evicted from its engine
    request_lines_left_out   how many of these were not written in the last second, and of which kind

A line is written when the verdict is there: until then nobody knows how long the wait is. Why it waits is only known
while it waits. So once a second (`tick`) those are looked at that cross `slow_after` before the next tick, by the
order of their first arrivals (what another process had and is sent again has an earlier one, and crosses sooner). What
is told then is kept until the verdict, and dropped with what goes in time.

Why one request waits costs O(flows of its class), so that is asked for as long as `_EXPLAIN_S` of a tick lasts, and in
classes of up to `_MOST_FLOWS`; the others are told what holds the next request of their class, which is found once. A
tick ends after `_LOOK_S` in any case. Who was not looked at by its verdict (the loop was late, or all of 50,000 cross
at once) gets a line without an explanation.

State: what is held, and nothing of what has gone; only what a fault of a scheduler has kept from us stays, until it is
due to be looked at. What is held is known also where no line is asked for, so that settings that change live are for
what waits already.

Names in lines are cut; who renders them (`logs`) escapes them.

Left out: lines of what passes or is observed, since it does not wait; and of a request's way through its engine, which
is what traces are for.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from extproc.config.telemetry import RequestLog as Settings
from extproc.core.class_queue import ClassQueue
from extproc.core.events import Arrive, Effect, End, Event, Evict, Refuse, Release
from extproc.core.explanation import class_cause, explain
from extproc.core.model import Request, State
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler
from extproc.core.sorted_blocks import insert, remove

log = structlog.get_logger()

SLOW, REFUSED = "slow", "refused"  # kinds of lines

_TICK_S = 1.0  # from one look to the next
_EXPLAIN_S = 0.003  # of a tick
_LOOK_S = 0.006  # of a tick
_MOST_FLOWS = 4_000  # `explain` takes about 0.7 us for each: no more than `_EXPLAIN_S` for one request
_LONGEST_NAME = 128  # characters
_LONGEST_TEXT = 1_000  # characters of a sentence
_QUEUED, _CANCELLED = State.QUEUED, State.CANCELLED


def ignore(_: str, __: int) -> None:
    """For nobody who counts."""


@dataclass(frozen=True, slots=True)
class _Why:
    """What held a request, or the next one of its class, when it was looked at."""

    at: float
    hold: str
    sentence: str
    next: str  # what must happen for it to go
    of: str  # "request" or "class"


@dataclass(slots=True, eq=False)
class _Held:
    """A request that waits."""

    request: Request
    scheduler: Scheduler
    number: int  # among those of equal arrival
    x_request_id: str
    looked_at: bool = False
    why: _Why | None = None


class RequestLog:
    """Of all pools. Times are seconds on the schedulers' clock."""

    def __init__(
        self, settings: Settings, clock: Callable[[], float], left_out: Callable[[str, int], None] = ignore
    ) -> None:
        """`clock`: that of the schedulers. `left_out`: is told of lines that were not written, by kind."""
        self._clock = clock
        self._count_left_out = left_out
        self.waiting: dict[str, _Held] = {}
        self._arrivals: list[list[tuple[float, int, _Held]]] = []  # `sorted_blocks` of those that are not looked at yet
        self._numbers = itertools.count()
        self._left_out: Counter[tuple[str, str]] = Counter()  # kind, reason
        self._coming = self._interrupted = ("", "")  # the last one: ticket, and its request id or way out
        self.configure(settings)
        self._allowed = {kind: (self._burst, clock()) for kind in (SLOW, REFUSED)}  # lines, as of when

    def configure(self, settings: Settings) -> None:
        """Also for what waits already."""
        self._settings = settings
        self._slow_after = float("inf") if settings.slow_after is None else settings.slow_after
        self._burst = max(1.0, settings.lines_per_second)

    # -- what comes -------------------------------------------------------------------------------

    def coming(self, ticket: str, x_request_id: str) -> None:
        """The next event is its arrival."""
        self._coming = (ticket, x_request_id)

    def interrupted(self, ticket: str, how: str) -> None:
        """The next event is its end, and its client has not left."""
        self._interrupted = (ticket, how)

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None:
        """A scheduler has taken in `event` and decided on `effects`."""
        if type(event) is Arrive:
            if scheduler.queued:
                request = scheduler.requests.get(event.id)
                if request is not None and request.state is _QUEUED:
                    self._hold(request, scheduler)
        elif type(event) is End and (held := self._drop(event.id)) is not None:
            self._left(held, now)
        for effect in effects:
            if type(effect) is Release:
                slow = effect.waited_s > self._slow_after
                if slow or effect.id in self.waiting:  # most go as they come, and cost no call
                    held = self._drop(effect.id)
                    if slow:
                        self._released(scheduler, held, effect)
            elif type(effect) is Refuse:
                self._refused(scheduler, self._drop(effect.id), effect)
            elif type(effect) is Evict:
                self._evicted(scheduler, effect)

    def denied(self, reason: Reason, message: str, model: str | None, x_request_id: str = "") -> None:
        """A request was refused before it reached a scheduler."""
        if self._settings.refused and self._may_write(REFUSED, reason):
            fields = {"outcome": "refused", "reason": reason.code, "message": _cut(message, _LONGEST_TEXT)}
            log.info(
                "request_refused", **fields, **_named(x_request_id), **({} if model is None else {"model": _cut(model)})
            )

    def tick(self, now: float) -> None:
        """To be called once a second while there are requests, and once more after the last."""
        if self._left_out:
            self._tell_left_out()
        start = self._clock()
        before = now + _TICK_S - self._slow_after  # minus infinity, where nothing is slow
        classes: dict[ClassQueue, _Why | None] = {}
        arrivals = self._arrivals
        while arrivals and arrivals[0][0][0] <= before and (spent := self._clock() - start) < _LOOK_S:
            key = arrivals[0][0]
            remove(arrivals, key)
            held = key[2]
            held.looked_at = True
            if held.request.state is _QUEUED:
                held.why = self._look(held, now, classes, alone=spent < _EXPLAIN_S)
            elif self.waiting.get(held.request.id) is held:
                del self.waiting[held.request.id]  # a fault has lost the word

    # -- who waits --------------------------------------------------------------------------------

    def _hold(self, request: Request, scheduler: Scheduler) -> None:
        number = next(self._numbers)
        held = self.waiting[request.id] = _Held(request, scheduler, number, self._id_of(request.id))
        insert(self._arrivals, (request.arrival, number, held))

    def _id_of(self, ticket: str, held: _Held | None = None) -> str:
        """What Envoy calls it; empty: not known."""
        if held is not None:
            return held.x_request_id
        return self._coming[1] if self._coming[0] == ticket else ""

    def _drop(self, request_id: str) -> _Held | None:
        held = self.waiting.pop(request_id, None)
        if held is not None and not held.looked_at:
            remove(self._arrivals, (held.request.arrival, held.number, held))
        return held

    def _look(self, held: _Held, now: float, classes: dict[ClassQueue, _Why | None], *, alone: bool) -> _Why | None:
        """`classes`: what is known of them. `alone`: there is time to look at this one for itself."""
        cls = held.scheduler.by_name[held.request.cls]
        why = None
        if alone and cls.queue.size <= _MOST_FLOWS:
            why = self._explained(held.scheduler, held.request, now)
        if why is None:
            if cls not in classes:
                classes[cls] = self._of_class(held.scheduler, cls, now)
            why = classes[cls]
        return why

    def _explained(self, scheduler: Scheduler, request: Request, now: float) -> _Why | None:
        told = explain(scheduler, request.id, now)
        if told is None or told.hold is None:
            return None
        return _Why(now, told.hold.value, _cut(told.sentence, _LONGEST_TEXT), _cut(told.next, _LONGEST_TEXT), "request")

    def _of_class(self, scheduler: Scheduler, cls: ClassQueue, now: float) -> _Why | None:
        cause = class_cause(scheduler, cls, now)
        if cause is None:
            return None
        return _Why(now, cause.hold.value, _cut(cause.told, _LONGEST_TEXT), _cut(cause.then, _LONGEST_TEXT), "class")

    # -- what becomes of them -----------------------------------------------------------------------

    def _released(self, scheduler: Scheduler, held: _Held | None, effect: Release) -> None:
        """`held`: None, where it went as it came; it had waited in another process."""
        if self._may_write(SLOW):
            fields = _fields(scheduler, effect.id, effect.tenant, effect.cls, effect.waited_s)
            fields |= _named(self._id_of(effect.id, held))
            log.info("request_slow", **fields, outcome="released", endpoint=effect.endpoint, **_explanation(held))

    def _left(self, held: _Held, now: float) -> None:
        request = held.request
        waited_s = now - request.arrival
        if request.state is not _CANCELLED:
            return  # it went, and a fault has lost the word
        if waited_s > self._slow_after and self._may_write(SLOW):
            ticket, how = self._interrupted
            fields = _fields(held.scheduler, request.id, request.tenant, request.cls, waited_s)
            fields |= _named(held.x_request_id)
            outcome = how if ticket == request.id else "left"
            log.info("request_slow", **fields, outcome=outcome, **_explanation(held))

    def _refused(self, scheduler: Scheduler, held: _Held | None, effect: Refuse) -> None:
        """`held`: None, where it was refused at the door."""
        slow = effect.waited_s > self._slow_after
        kind = REFUSED if self._settings.refused else SLOW
        if (slow or self._settings.refused) and self._may_write(kind, effect.reason):
            fields = _fields(scheduler, effect.id, effect.tenant, effect.cls, effect.waited_s)
            fields |= _named(self._id_of(effect.id, held))
            told = {"reason": effect.reason.code, "message": _cut(effect.message, _LONGEST_TEXT)}
            log.info(f"request_{kind}", **fields, outcome="refused", **told, **(_explanation(held) if slow else {}))

    def _evicted(self, scheduler: Scheduler, effect: Evict) -> None:
        if self._settings.refused and self._may_write(REFUSED, effect.reason):
            request = scheduler.requests.get(effect.id)
            waited_s = 0.0 if request is None else request.released_at - request.arrival
            fields = _fields(scheduler, effect.id, effect.tenant, effect.cls, waited_s)
            told = {"reason": effect.reason.code, "message": _cut(effect.message, _LONGEST_TEXT)}
            log.info("request_refused", **fields, outcome="evicted", inside_s=round(effect.inside_s, 3), **told)

    # -- how many lines -----------------------------------------------------------------------------

    def _may_write(self, kind: str, reason: Reason | None = None) -> bool:
        """Each kind has a bucket of `lines_per_second`, which holds those of one second; one line, where it is less."""
        now, (allowed, at) = self._clock(), self._allowed[kind]
        allowed = min(self._burst, allowed + (now - at) * self._settings.lines_per_second)
        if allowed >= 1.0:
            self._allowed[kind] = (allowed - 1.0, now)
            return True
        self._allowed[kind] = (allowed, now)
        self._left_out[kind, "" if reason is None else reason.code] += 1
        return False

    def _tell_left_out(self) -> None:
        left_out, self._left_out = self._left_out, Counter()
        counts = {kind: sum(n for (k, _), n in left_out.items() if k == kind) for kind in (SLOW, REFUSED)}
        reasons = {reason: count for (_, reason), count in left_out.items() if reason}
        limit = f"{self._settings.lines_per_second:g} (telemetry.log.lines_per_second)"
        log.info("request_lines_left_out", **counts, reasons=reasons, limit=limit)
        for kind, count in counts.items():
            if count:
                self._count_left_out(kind, count)


def _fields(scheduler: Scheduler, ticket: str, tenant: str, cls: str, waited_s: float) -> dict[str, Any]:
    return {
        "ticket": ticket,
        "pool": scheduler.policy.name,
        "tenant": _cut(tenant),
        "class": cls,
        "waited_s": round(waited_s, 3),
    }


def _named(x_request_id: str) -> dict[str, str]:
    return {"x_request_id": _cut(x_request_id)} if x_request_id else {}


def _explanation(held: _Held | None) -> dict[str, Any]:
    why = None if held is None else held.why
    if held is None or why is None:
        return {"explanation": None}
    return {
        "hold": why.hold,
        "explanation": why.sentence,
        "next": why.next,
        "explained": why.of,
        "explained_at_s": round(why.at - held.request.arrival, 3),  # of its wait
    }


def _cut(text: str, longest: int = _LONGEST_NAME) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."
