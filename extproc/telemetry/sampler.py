"""What is looked at again and again: fairness, the last minutes, changes of state, how late the event loop is.

One timer on the loop, a second long while requests are in the books or come, and none at all when nothing happens.

    wake    is called for an event that comes while it is `quiet`, but for engines' pages while the books are empty. The
            first one after a tick says that something came, and sets the timer if it is not set; for all others it is
            not quiet, and nobody calls
    tick    tells how late it is (what keeps the loop kept the timer too) and calls `ticks`
    sample  the first tick in each step of `STEP_S` of the clock: history, change log, and fairness is looked at
    end     when nothing has come since the last tick and the books are empty, one more sample is taken at the next
            step, so that the last levels are zero and nothing is left uncounted. So two ticks come after the last
            event at most

Looking at fairness costs time for each child of a fair queue's root. Beyond `LOOKED_AT` children in one tick the other
classes are looked at with the ticks that follow, and a next round begins when all have had their turn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from extproc.core.class_queue import ClassQueue
from extproc.core.fairness import Fairness, FairnessMeter
from extproc.core.scheduler import Scheduler
from extproc.telemetry.change_log import ChangeLog
from extproc.telemetry.history import STEP_S, History

log = structlog.get_logger()

TICK_S: Final = 1.0
LOOKED_AT: Final = 10_000
_AFTER_STEP_S: Final = 0.01  # some loops fire a little early
_FAULT_TOLD_S: Final = 60.0


def _ignore(_: object) -> None:
    """Nobody wants to know."""


def _none() -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Watched:
    """A pool at work."""

    name: str
    scheduler: Scheduler
    now: Callable[[], float]  # the scheduler's clock
    leaked: Callable[[], int] = _none  # requests in the books whose stream is over
    observed: bool = False  # of what passes: no change of state is told of what would be


class Sampler:
    """To be used from one event loop. What goes wrong here, or in what is called, is told to `fault` as "telemetry",
    and to the log once a minute at most; the timer goes on."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pools: Callable[[], Iterable[Watched]],
        lag: Callable[[float], None] = _ignore,
        ticks: Sequence[Callable[[float], None]] = (),
        fault: Callable[[str], None] = _ignore,
        changes: ChangeLog | None = None,
        history: History | None = None,
    ) -> None:
        """`lag` is told how late each tick is, in seconds. `ticks` are called with the loop's time. `changes`: None:
        changes of state are not told. `history`: None: one of its own."""
        self.history = history or History()
        self._loop = loop
        self._pools = pools
        self._lag = lag
        self._ticks = tuple(ticks)
        self._fault = fault
        self._changes = changes
        self._timer: asyncio.TimerHandle | None = None
        self.quiet = True  # nothing has come since the last tick
        self._closed = False
        self._step = -1  # that the last sample was taken in
        self._meters: dict[str, dict[str, tuple[FairnessMeter, Callable[[], float]]]] = {}
        self._to_look: deque[tuple[FairnessMeter, ClassQueue, Callable[[], float]]] = deque()
        self._fault_told_at = float("-inf")

    def wake(self) -> None:
        """Something happens."""
        if self.quiet:
            self._stir()

    def fairness(self) -> Mapping[str, Mapping[str, Fairness]]:
        """Pool -> class -> over the last minute. A class in which fewer than two tenants compete is not there, nor one
        that has not been looked at for a while."""
        found: dict[str, dict[str, Fairness]] = {}
        for pool, classes in self._meters.items():
            of_pool = found[pool] = {}
            for cls, (meter, now) in classes.items():
                fairness = meter.fairness(now())
                if fairness is not None:
                    of_pool[cls] = fairness
        return found

    def close(self) -> None:
        """No tick comes any more."""
        self._closed, self.quiet = True, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- inside -----------------------------------------------------------------------------------

    def _stir(self) -> None:
        self.quiet = False
        timer = self._timer
        if timer is not None:
            if timer.when() <= self._loop.time() + TICK_S:
                return
            timer.cancel()  # it was to be the last one
        self._arm(TICK_S)

    def _arm(self, seconds: float) -> None:
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        now, timer = self._loop.time(), self._timer
        self._timer = None
        came, self.quiet = not self.quiet, True
        step = int(now // STEP_S)
        sampled, self._step = step != self._step, step
        if timer is not None:
            self._guarded(self._lag, max(0.0, now - timer.when()))
        for tick in self._ticks:
            self._guarded(tick, now)
        pools: list[Watched] = []
        try:
            pools.extend(self._pools())
            if sampled:
                self._sample(pools)
            self._look()
        except Exception as error:
            self._failed(error)
        if self._closed:
            return
        if any(pool.scheduler.requests for pool in pools):
            self._arm(TICK_S)
        elif came or not sampled:  # not sampled: a pool with requests in its books has gone
            self._arm(max(TICK_S, (step + 1) * STEP_S - now + _AFTER_STEP_S))

    def _sample(self, pools: Sequence[Watched]) -> None:
        names = {pool.name for pool in pools}
        self.history.keep(names)
        if self._changes is not None:
            self._changes.keep(names)
        before, self._meters = self._meters, {}
        ended = not self._to_look
        for pool in pools:
            now, scheduler = pool.now(), pool.scheduler
            try:
                self.history.sample(pool.name, scheduler, now)
                if self._changes is not None and not pool.observed:
                    self._changes.sample(scheduler, now, pool.leaked())
            except Exception as error:  # of one pool: the others are looked at all the same
                self._failed(error)
            old = before.get(pool.name, {})
            meters = self._meters[pool.name] = {}
            for cls in scheduler.classes:
                name = cls.policy.name
                meter, _ = meters[name] = old[name] if name in old else (FairnessMeter(), pool.now)
                if ended:
                    self._to_look.append((meter, cls, pool.now))

    def _look(self) -> None:
        left = LOOKED_AT
        while self._to_look and left > 0:
            meter, cls, now = self._to_look.popleft()
            left -= meter.look(cls, now())

    def _guarded(self, call: Callable[[float], None], value: float) -> None:
        try:
            call(value)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        try:
            self._fault("telemetry")
        finally:
            now = self._loop.time()
            if now - self._fault_told_at >= _FAULT_TOLD_S:
                self._fault_told_at = now
                log.error("telemetry_fault", part="sampler", exc_info=error)
