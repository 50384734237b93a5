"""Looking through all requests: those of each pool, then those that a pool observes, in the order in which they came.

That is the order in which they reached this process, by their `seq`. It need not be the order of a queue: one that
Envoy sends again after a restart keeps its first arrival, and of two that came at once either may be taken in first.

A scan takes a scheduler's requests down at once and goes through them in portions (`portions`). What comes later is not
among them; what has ended since is left out. A request is given as it is at that moment. Two scans go on at a time,
the others wait for one of them.

A position is (pool, whether it is observed, `seq`): all that goes before it has been looked at. Pools are taken by
name, so that a position holds whatever is configured in between; the number of a request never changes. So, over
several scans that follow each other, each request that stays is given once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from operator import attrgetter
from time import perf_counter
from typing import Final, NamedTuple

from extproc.admin.control import Control, RunningPool
from extproc.admin.portions import LOOK_EVERY, Portions, Work
from extproc.core.model import Request, State
from extproc.core.scheduler import Scheduler
from extproc.core.view import RequestView, request_view

Matches = Callable[[Request, float, str, bool], bool]
"""(request, now on its scheduler's clock, name of its pool, whether it is observed) -> whether it is meant."""

THERE: Final = frozenset({State.QUEUED, State.RELEASED, State.RUNNING, State.ENDED})


class Position(NamedTuple):
    pool: str
    observed: bool
    seq: int


class Found(NamedTuple):
    running: RunningPool
    view: RequestView
    observed: bool

    @property
    def position(self) -> Position:
        return Position(self.running.pool.name, self.observed, self.view.seq)


class Scan:
    """One scan. Iterate over it, once; `position` is that of the last one looked at, `complete` whether there are no
    more. Whoever leaves the iteration early closes it, or others wait for longer."""

    def __init__(
        self,
        control: Control,
        portions: Portions,
        matches: Matches,
        *,
        after: Position | None = None,
        for_s: float = 0.5,
    ) -> None:
        """`for_s`: seconds from its beginning after which it stops, with one portion done at least."""
        self.position = after
        self.complete = False
        self._control = control
        self._portions = portions
        self._matches = matches
        self._for_s = for_s

    async def __aiter__(self) -> AsyncGenerator[Found, None]:
        async with self._portions.scans:
            async for found in self._found():
                yield found

    async def _found(self) -> AsyncIterator[Found]:
        work = Work(self._portions)
        until = perf_counter() + self._for_s
        await work.next()
        matches, steps = self._matches, 1  # a page goes on by some, however slow the machine is
        after = self.position
        for running, observed, scheduler in self._schedulers():
            pool = running.pool.name
            requests = list(scheduler.requests.values())
            if after is not None and after[:2] == (pool, observed):
                del requests[: bisect_right(requests, after.seq, key=attrgetter("seq"))]
            requests.reverse()
            while requests:  # which frees them one by one: of those that are cancelled nobody else has a hold
                if steps % LOOK_EVERY == 0 and work.over:
                    if perf_counter() >= until:
                        return
                    await work.next()
                request = requests.pop()
                steps += 1
                if request.state not in THERE:
                    continue
                self.position = Position(pool, observed, request.seq)
                now = running.now()
                if matches(request, now, pool, observed):
                    steps = 0  # whoever takes it works within our portion
                    yield Found(running, request_view(request, now), observed)
        self.complete = True

    def _schedulers(self) -> Sequence[tuple[RunningPool, bool, Scheduler]]:
        found: list[tuple[RunningPool, bool, Scheduler]] = []
        for running in self._control.running():
            found.append((running, False, running.scheduler))
            if running.observed is not None:
                found.append((running, True, running.observed))
        found.sort(key=lambda each: (each[0].pool.name, each[1]))
        if self.position is None:
            return found
        after = self.position[:2]
        return [each for each in found if (each[0].pool.name, each[1]) >= after]


def find(control: Control, request_id: str) -> tuple[RunningPool, bool, Request] | None:
    """(its pool, whether it is observed, the request)."""
    for running in control.running():
        for observed, scheduler in ((False, running.scheduler), (True, running.observed)):
            request = None if scheduler is None else scheduler.requests.get(request_id)
            if request is not None:
                return running, observed, request
    return None
