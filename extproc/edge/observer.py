"""What would become of the requests that pass a pool as they came (mode `observe`, and whoever is outside of the
percentage of mode `enforce`).

An observer is a second scheduler by the pool's policy, with windows of its own. It is told of each such request, of
the same endpoints and pages, and of the same tokens; nobody waits for its releases. A request that it has released
counts as inside until its answer is over, as any other. It reports for each request one outcome

    released_at_once, released_later    and the priority that the engine would have been told
    a reason (`queue_full`, ...)        it would have been refused
    ended_first                         its answer was over before it would have been released

and how long it would have waited, or had by then.

Facts that shaped it

    endpoints   nobody tells Envoy where a request is to go that passes, so Envoy chooses. The observer goes by the load
                of all endpoints together (`pick.by: envoy`), whatever the pool's own setting: by single endpoints, what
                stands in the books of one and runs at another would count as foreign
    pages       they also show the requests that the observer holds or has refused: these run all the same. As many are
                taken off a page before the observer is told of it, first of those that wait in the engine, in
                proportion where there are several endpoints. What is left is what the engines would show if the rest
                were held; it is never made more, so what others send counts in full
    pace        the time per token, the KV cache and the like are those of engines that have everything at once: where
                these are overrun, windows by such signals are smaller than they would be if requests were held
    queue       what is held ends all the same, and leaves the queue then. Engines that run more at once than the
                windows allow so shorten it: the waits are the least that they would be, and much that ended first says
                that they would be longer
    alone       requests of the same pool that are held and released (`enforce` for a percentage) are foreign load to
                the observer, and those that pass are to the pool. They do not share queues or tenants' accounts

Left out: evicting. What is observed cannot be taken back, and its slot would stay taken. And a recording: what is
observed can be replayed from what is recorded in mode `enforce`.

A fault in here is counted and logged, and the request goes its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from extproc.core.events import Arrive, Effect, Event, Refuse, Release
from extproc.core.model import Pick, PoolPolicy, Sample
from extproc.edge.fault_lines import FaultLines
from extproc.edge.recorder import Recorder, SchedulerJournal
from extproc.edge.scheduler_driver import Interrupted, Outcome, SchedulerDriver

MARK = "~"  # behind the pool's name; no pool's name has one
AT_ONCE, LATER, ENDED_FIRST = "released_at_once", "released_later", "ended_first"


def as_observed(policy: PoolPolicy) -> PoolPolicy:
    """The pool's policy, as its observer goes by it."""
    return replace(
        policy,
        pick=replace(policy.pick, by=Pick.ENVOY),
        classes=tuple(replace(cls, preemptible=False, preempt_after_s=None) for cls in policy.classes),
        shared=False,
    )


class _Muted:
    """What a scheduler does counts, but not what one would do."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def effects(self, pool: str, effects: list[Effect]) -> None:
        pass

    def cancelled(self, pool: str) -> None:
        pass

    def handed_over(self, pool: str) -> None:
        pass

    def refused(self, reason: str) -> None:
        pass

    def fault(self, where: str) -> None:  # noqa: ARG002
        self._recorder.fault("observer")


class Observer(SchedulerDriver):
    """Of one pool. Raises nothing."""

    def __init__(
        self,
        policy: PoolPolicy,
        loop: asyncio.AbstractEventLoop,
        recorder: Recorder,
        pages: Mapping[str, Sample],
        on_change: Callable[[], None],
        journal: SchedulerJournal | None = None,
    ) -> None:
        """`policy`: the pool's own. `pages`: the last one of each endpoint, kept by the caller. `on_change` is called
        when an observed request is over, and when nothing is awaited any more."""
        super().__init__(as_observed(policy), (), loop, _Muted(recorder), journal=journal)
        self.name = policy.name + MARK
        self.verbose = False
        self._pool = policy.name
        self._reports_to = recorder
        self._pages = pages
        self._on_change = on_change
        self._passing: dict[str, int] = {}  # requests whose answer is not over -> slots
        self._slots = 0  # of these
        self._own_faults = FaultLines("observer_fault", self.now)

    @property
    def passing(self) -> int:
        """Requests whose answer is not over."""
        return len(self._passing)

    @property
    def busy(self) -> bool:
        return bool(self._passing or self.scheduler.requests)

    def busy_at(self, endpoint: str) -> bool:  # noqa: ARG002 - any may have them
        return bool(self._passing)

    def watch(self, event: Arrive) -> None:
        """A request passes now. Until its `end`."""
        try:
            waiter = self.arrive(event)
        except Exception:
            self._reports_to.fault("observer")
            self._own_faults.exception(pool=self._pool)
            return
        finally:  # afterwards, since the first one to come to an idle pool wakes the readers
            self._passing[event.id] = event.n
            self._slots += event.n
        if waiter.done():
            self._report(event, AT_ONCE, waiter)
        else:
            waiter.add_done_callback(partial(self._report, event, LATER))

    def end(self, request_id: str, how: Interrupted = Interrupted.LEFT) -> None:
        self._slots -= self._passing.pop(request_id, 0)
        super().end(request_id, how)
        self._on_change()

    def scraped(self, endpoint: str, sample: Sample) -> None:
        super().scraped(endpoint, self._without_held(sample))

    def reconfigure(self, policy: PoolPolicy) -> None:
        """`policy`: the pool's own."""
        try:
            super().reconfigure(as_observed(policy))
        except Exception:
            self._reports_to.fault("observer")
            self._own_faults.exception(pool=self._pool)

    def _apply(self, event: Event) -> None:
        super()._apply(event)
        if not self.busy:
            self._on_change()

    def _report(self, event: Arrive, released: str, waiter: asyncio.Future[Outcome]) -> None:
        told, pool = self._reports_to, self._pool
        if waiter.cancelled():
            told.observed(pool, event.cls, ENDED_FIRST, max(0.0, self.now() - event.arrival))
            return
        if waiter.exception() is not None:
            return  # a fault, which has been counted
        match waiter.result():
            case Release() as release:
                told.observed(pool, event.cls, released, release.waited_s, release.priority)
            case Refuse() as refusal:
                told.observed(pool, event.cls, refusal.reason.code, refusal.waited_s)

    def _without_held(self, page: Sample) -> Sample:
        """The page, less what would not be in the engine."""
        hidden = self._slots - sum(cls.queue.in_flight for cls in self.scheduler.classes)
        if hidden <= 0:
            return page
        waiting = sum(each.waiting for each in self._pages.values())
        running = sum(each.running for each in self._pages.values())
        of_waiting = min(hidden, waiting)
        of_running = min(hidden - of_waiting, running)
        return replace(
            page,
            waiting=page.waiting - _share(of_waiting, page.waiting, waiting),
            running=page.running - _share(of_running, page.running, running),
        )


def _share(of: int, part: int, whole: int) -> int:
    """Of `of`, as much as `part` is of `whole`."""
    return min(part, round(of * part / whole)) if whole > 0 else 0
