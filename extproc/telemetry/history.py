"""The last quarter of an hour of each pool, for the small charts of the live page.

One point for each step of `STEP_S` in which anything happened, so `SAMPLES` points of each pool at most: a gap between
two times that are further apart says that nothing happened there. A point tells levels (held, in flight, limit) as they
are at its time, and what came to pass since the point before (releases, refusals, waits), but for longer than a step
nothing is told of.

What is released and refused is counted as the scheduler says it (`seen`), waits in buckets that are a quarter wide: the
95th percentile of a step is at most that much too large. Refusals at the door, before any pool is known, are not here.

Columns are kept as they are told, so that telling them costs nothing: `plain` gives the lists themselves. Times are
seconds since 1970; when the system's clock is set, those that are past move with it.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from extproc.core.events import Effect, Refuse, Release
from extproc.core.scheduler import Scheduler

STEP_S: Final = 5.0
SPAN_S: Final = 900.0
SAMPLES: Final = int(SPAN_S / STEP_S)

_CLOCK_SET_S: Final = 1.0  # another difference between the two clocks than before, by so much
_BOUNDS: Final = tuple(0.001 * 1.25**i for i in range(61))  # seconds: 1 ms to 650 s
_LEAST: Final = _BOUNDS[0]
_BY_CLASS: Final = ("held", "released_per_s", "wait_mean_s", "wait_p95_s")
_OF_POOL: Final = ("in_flight", "limit", "refused_per_s")


class _Waits:
    """Of what was released of one class since the last point. Seconds."""

    __slots__ = ("buckets", "count", "longest", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.longest = 0.0
        self.buckets = [0] * (len(_BOUNDS) + 1)

    def p95(self) -> float:
        left = self.count - self.count // 20
        for count, bound in zip(self.buckets, _BOUNDS, strict=False):
            left -= count
            if left <= 0:
                return min(bound, self.longest)
        return self.longest


class _Series:
    """Of one pool: `plain` is what the page is told."""

    __slots__ = ("at", "plain", "refused", "waits")

    def __init__(self) -> None:
        self.at: float | None = None  # of the last point, by the scheduler's clock
        self.refused = 0  # since then
        self.waits: dict[str, _Waits] = {}  # by class, since then
        self.plain: dict[str, Any] = {"t": [], **{name: {} for name in _BY_CLASS}, **{name: [] for name in _OF_POOL}}

    def take(self, scheduler: Scheduler, now: float, time_: float) -> None:
        """The next point. `time_`: seconds since 1970."""
        plain = self.plain
        passed_s = STEP_S if self.at is None else max(1.0, min(STEP_S, now - self.at))
        times: list[float] = plain["t"]
        for cls in scheduler.classes:
            name = cls.policy.name
            waits = self.waits.get(name)
            self._put("held", name, cls.root.queued)
            self._put("released_per_s", name, 0.0 if waits is None else round(waits.count / passed_s, 3))
            self._put("wait_mean_s", name, None if waits is None else round(waits.total / waits.count, 3))
            self._put("wait_p95_s", name, None if waits is None else round(waits.p95(), 3))
        q = scheduler.q_max
        plain["in_flight"].append(sum(cls.root.in_flight for cls in scheduler.classes))
        plain["limit"].append(round(sum(window.limit(q, now) for window in scheduler.windows.values()), 3))
        plain["refused_per_s"].append(round(self.refused / passed_s, 3))
        times.append(round(time_, 3))
        self._even(len(times))
        self.at, self.refused, self.waits = now, 0, {}
        self._trim(time_ - SPAN_S)

    def _put(self, what: str, cls: str, value: float | None) -> None:
        column = self.plain[what].get(cls)
        if column is None:
            column = self.plain[what][cls] = [None] * len(self.plain["t"])
        column.append(value)

    def _even(self, length: int) -> None:
        """A class that is gone has no figures any more, and in the end no column."""
        for what in _BY_CLASS:
            for column in self.plain[what].values():
                if len(column) < length:
                    column.append(None)

    def _trim(self, oldest: float) -> None:
        times: list[float] = self.plain["t"]
        old = max(0, len(times) - SAMPLES)
        while times[old] < oldest:
            old += 1
        if not old:
            return
        del times[:old]
        for name in _OF_POOL:
            del self.plain[name][:old]
        for what in _BY_CLASS:
            for column in self.plain[what].values():
                del column[:old]
        gone = [cls for cls, column in self.plain["held"].items() if not any(held is not None for held in column)]
        for what in _BY_CLASS:
            for cls in gone:
                del self.plain[what][cls]


class History:
    """To be used from one event loop."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        """`clock`: seconds since 1970."""
        self._clock = clock
        self._ahead: float | None = None  # of the schedulers' clock; seconds
        self._pools: dict[str, _Series] = {}

    def seen(self, pool: str, effects: Sequence[Effect]) -> None:
        """What a scheduler has decided."""
        series = self._pools.get(pool)
        if series is None:
            series = self._pools[pool] = _Series()
        for effect in effects:  # on the way of each request
            if type(effect) is Release:
                waits = series.waits.get(effect.cls)
                if waits is None:
                    waits = series.waits[effect.cls] = _Waits()
                waits.count += 1
                waited_s = effect.waited_s
                if waited_s > 0.0:
                    waits.total += waited_s
                    if waited_s > waits.longest:
                        waits.longest = waited_s
                waits.buckets[bisect_left(_BOUNDS, waited_s) if waited_s > _LEAST else 0] += 1  # most go as they come
            elif type(effect) is Refuse:
                series.refused += 1

    def sample(self, pool: str, scheduler: Scheduler, now: float) -> None:
        """A point at `now`, seconds by the scheduler's clock. O(classes + endpoints)."""
        series = self._pools.get(pool)
        if series is None:
            series = self._pools[pool] = _Series()
        series.take(scheduler, now, now + self._offset(now))

    def _offset(self, now: float) -> float:
        ahead = self._clock() - now
        before = self._ahead
        if before is None:
            self._ahead = ahead
            return ahead
        if abs(ahead - before) <= _CLOCK_SET_S:
            return before
        self._ahead = ahead
        for series in self._pools.values():
            series.plain["t"][:] = [round(each + ahead - before, 3) for each in series.plain["t"]]
        return ahead

    def keep(self, pools: Iterable[str]) -> None:
        """What there is of other pools is forgotten."""
        there = set(pools)
        for name in [name for name in self._pools if name not in there]:
            del self._pools[name]

    def plain(self) -> dict[str, Any]:
        """JSON as it stands: step_s, and pools {name: {t [seconds since 1970], held, released_per_s, wait_mean_s,
        wait_p95_s {class: [...]}, in_flight, limit (slots of all windows), refused_per_s [...]}}. None: the class was
        not there, or none of it was released. To be read at once: its lists change with the next point."""
        pools = {name: series.plain for name, series in self._pools.items() if series.plain["t"]}
        return {"step_s": STEP_S, "pools": pools}
