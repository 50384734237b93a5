"""Lines for changes of state: each once, and not for each request or page.

    endpoint    its stance. Told after each reading of its page, and of the sampler's, since time alone changes it too
    class       its gates are closed at every endpoint, or not any more. At some only they hold nobody back
    window      as small as it may become, or larger again
    queue       something waits, may go, and nothing has gone for `STALLED_S`; or that is over
    leaks       requests that the books have and whose stream is over: a fault of ours

What has just changed may change back with the next page. So gates, windows and leaks count once two samples in a row
have shown the same, an old page once it has been old for `_OLD_S`, and a state that keeps changing is told in pauses
that double from one second to a minute. A change that is not told at once is told when its pause is over, unless it
has changed back by then: what was told last is true in the end.

The causes of what an endpoint is are told by those who find them: `engines.scraper` says why a page cannot be read. A
line here says what the scheduler makes of it. Not told: an endpoint's first reading (the scraper tells of that) and its
going (the endpoint set does).

Names of tenants are in no line, but for the sentence of a stalled queue, in which they are quoted as Python does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final, Generic, TypeVar

import structlog

from extproc.core.explanation import class_cause, closed_gates
from extproc.core.model import Outage
from extproc.core.scheduler import Scheduler
from extproc.core.view import since_release_s
from extproc.core.windows import Stance, Window, WindowView

log = structlog.get_logger()

T = TypeVar("T")

STALLED_S: Final = 30.0
_TWO_SAMPLES_S: Final = 4.0  # they are five seconds apart, and the second may be a little early
_OLD_S: Final = 2.0
_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_CALM_S: Final = 120.0  # without a line: the next one is no flapping
_MOST_TOLD: Final = 300  # characters of a sentence

_WARNS: Final = frozenset({Stance.DOWN, Stance.STALLED, Stance.OUTAGE})
_NOTES: Final = {
    Stance.DOWN: "it does not take connections: nothing is released to it",
    Stance.STALLED: "it answers, and makes no progress: nothing is released to it but a request a minute, to see",
    Stance.STALE: "its page is old: it gets no standing queue",
}
_OUTAGES: Final = {
    Outage.DEGRADE: "no page for half a minute: it gets less, by our own count",
    Outage.HOLD: "no page for half a minute: nothing is released to it",
    Outage.OPEN: "no page for half a minute: it gets what it got by its last one",
}


class _Fact(Generic[T]):
    """A state, and what of it has been told. Times in seconds."""

    __slots__ = ("_pause_s", "_since", "_state", "_told_at", "told")

    def __init__(self, told: T) -> None:
        self.told = told
        self._state = told
        self._since = self._told_at = float("-inf")
        self._pause_s = _PAUSE_S

    def take(self, state: T) -> None:
        """It is `state`, and others have told so."""
        self.told = self._state = state

    def is_news(self, state: T, now: float, lasting_s: float = 0.0) -> bool:
        """It is `state` now; whether that is to be told. It is taken to be, then."""
        if state != self._state:
            self._state, self._since = state, now
        if state == self.told or now - self._since < lasting_s or now - self._told_at < self._pause_s:
            return False
        flapping = now - self._told_at < _CALM_S
        self._pause_s = min(_LONGEST_PAUSE_S, 2.0 * self._pause_s) if flapping else _PAUSE_S
        self.told, self._told_at = state, now
        return True


class _Endpoint:
    __slots__ = ("at_floor", "stance")

    def __init__(self) -> None:
        self.stance = _Fact(Stance.STARTING)
        self.at_floor = _Fact(False)


class _Pool:
    __slots__ = ("endpoints", "gates", "leaked", "stalled")

    def __init__(self) -> None:
        self.endpoints: dict[str, _Endpoint] = {}
        self.gates: dict[str, _Fact[bool]] = {}  # by class
        self.stalled = _Fact(False)
        self.leaked = _Fact(0)


class ChangeLog:
    """To be used from one event loop. Reads schedulers and changes nothing. `now` is the schedulers', in seconds."""

    def __init__(self) -> None:
        self._pools: dict[str, _Pool] = {}

    def page(self, scheduler: Scheduler, endpoint: str, now: float) -> None:
        """The endpoint's page was read, or could not be. O(1)."""
        window = scheduler.windows.get(endpoint)
        if window is None or window.removed:
            return
        fact = self._endpoint(scheduler, endpoint).stance
        stance, was = window.stance(now), fact.told
        if stance is Stance.STARTING:
            return  # it was added, or added again: for a moment nothing is known of it
        if was is Stance.STARTING and stance is Stance.FRESH:
            fact.take(stance)
            return
        if not fact.is_news(stance, now, _OLD_S if stance is Stance.STALE else 0.0):
            return
        note = _OUTAGES[scheduler.policy.window.outage] if stance is Stance.OUTAGE else _NOTES.get(stance)
        told = {} if note is None else {"note": note}
        (log.warning if stance in _WARNS else log.info)(
            "endpoint stance changed",
            pool=scheduler.policy.name,
            endpoint=endpoint,
            stance=stance.value,
            was=was.value,
            **told,
        )

    def sample(self, scheduler: Scheduler, now: float, leaked: int = 0) -> None:
        """Every few seconds. `leaked`: requests, see above. O(classes * endpoints), and O(flows) for a queue that is
        found stalled."""
        pool = self._pool(scheduler)
        there = [window for window in scheduler.windows.values() if not window.removed]
        for window in there:
            self.page(scheduler, window.endpoint, now)
            self._tell_floor(scheduler, window, now)
        for name in pool.endpoints.keys() - {window.endpoint for window in there}:
            del pool.endpoints[name]
        self._tell_gates(scheduler, pool, len(there), now)
        self._tell_stalled(scheduler, pool.stalled, now)
        self._tell_leaked(scheduler, pool.leaked, leaked, now)

    def keep(self, pools: Iterable[str]) -> None:
        """What there is of other pools is forgotten."""
        there = set(pools)
        for name in [name for name in self._pools if name not in there]:
            del self._pools[name]

    # -- inside -----------------------------------------------------------------------------------

    def _pool(self, scheduler: Scheduler) -> _Pool:
        name = scheduler.policy.name
        pool = self._pools.get(name)
        if pool is None:
            pool = self._pools[name] = _Pool()
        return pool

    def _endpoint(self, scheduler: Scheduler, endpoint: str) -> _Endpoint:
        endpoints = self._pool(scheduler).endpoints
        known = endpoints.get(endpoint)
        if known is None:
            known = endpoints[endpoint] = _Endpoint()
        return known

    def _tell_floor(self, scheduler: Scheduler, window: Window, now: float) -> None:
        fact = self._endpoint(scheduler, window.endpoint).at_floor
        # A view costs a hundred times what a limit does, and a window at its floor has no larger limit than that.
        may_be = window.limit(0.0, now) <= math.ceil(max(1.0, window.policy.floor))
        at_floor = may_be and window.view(now, scheduler.q_max).at_floor
        if not fact.is_news(at_floor, now, _TWO_SAMPLES_S):
            return
        pool, figures = scheduler.policy.name, _figures(window.view(now, scheduler.q_max))
        if at_floor:
            log.warning("window at its floor", pool=pool, endpoint=window.endpoint, **figures)
        else:
            log.info("window above its floor again", pool=pool, endpoint=window.endpoint, **figures)

    def _tell_gates(self, scheduler: Scheduler, pool: _Pool, endpoints: int, now: float) -> None:
        for name in pool.gates.keys() - {cls.policy.name for cls in scheduler.classes if cls.gates is not None}:
            del pool.gates[name]
        for cls in scheduler.classes:
            if cls.gates is None:
                continue
            closed = closed_gates(scheduler, cls, now)
            fact = pool.gates.setdefault(cls.policy.name, _Fact(False))
            if not fact.is_news(0 < endpoints == sum(closed.values()), now, _TWO_SAMPLES_S):
                continue
            if fact.told:
                log.info(
                    "gates of a class closed at all endpoints",
                    pool=scheduler.policy.name,
                    gates=sorted(gate for gate, count in closed.items() if count),
                    held=cls.root.queued,
                    **{"class": cls.policy.name},
                )
            else:
                log.info("gates of a class open again", pool=scheduler.policy.name, **{"class": cls.policy.name})

    def _tell_stalled(self, scheduler: Scheduler, fact: _Fact[bool], now: float) -> None:
        seconds = since_release_s(scheduler, now)
        if not fact.is_news(seconds is not None and seconds >= STALLED_S, now):
            return
        if not fact.told:
            log.info("queue moves again", pool=scheduler.policy.name, held=scheduler.queued)
            return
        first = next(cls for cls in scheduler.classes if cls.root.queued)
        cause = class_cause(scheduler, first, now)
        why = {} if cause is None else {"hold": cause.hold.value, "cause": _cut(cause.told), "next": _cut(cause.then)}
        log.warning(
            "queue stalled",
            pool=scheduler.policy.name,
            held=scheduler.queued,
            since_release_s=round(seconds or 0.0, 1),
            **{"class": first.policy.name},
            **why,
        )

    def _tell_leaked(self, scheduler: Scheduler, fact: _Fact[int], leaked: int, now: float) -> None:
        if not fact.is_news(leaked, now, _TWO_SAMPLES_S):
            return
        if leaked:
            note = "their streams are over: this is a fault of Fairlane, and a restart frees them"
            log.error("slots leaked", pool=scheduler.policy.name, requests=leaked, note=note)
        else:
            log.info("leaked slots are free", pool=scheduler.policy.name)


def _figures(view: WindowView) -> dict[str, float]:
    figures = {
        "capacity": view.capacity,
        "latency_window": view.tpot_window,
        "floor": view.floor,
        "tpot_s": view.tpot_s,
    }
    return {name: round(value, 4) for name, value in figures.items() if value is not None}


def _cut(sentence: str) -> str:
    return sentence if len(sentence) <= _MOST_TOLD else f"{sentence[: _MOST_TOLD - 1]}…"
