"""Counters of what becomes of requests. This is the edge's recorder, called from the event loop's thread.

`effects` is called two or three times for each request. So it does nothing but count, in `Counts`, and what a call
would cost as much as is written out.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from prometheus_client.core import Metric

from extproc.core.events import Effect, Evict, Refuse, Release, Settled
from extproc.core.model import Source
from extproc.core.reasons import Reason
from extproc.telemetry.metrics.counts import Budget, Count, Counts, Distribution, Histogram
from extproc.telemetry.metrics.tenants import TenantCounts

_WAIT_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_LEAST_WAIT_S = _WAIT_S[0]
_RATIOS = (0.1, 0.2, 0.5, 0.8, 0.9, 1.1, 1.25, 2, 5, 10)
_COUNTED = (Source.USAGE, Source.STREAM)  # of these, tokens are known
# why a request passes, see `edge.recorder`
_PASSED = (
    *("unknown_model", "not_placed", "not_queued", "untracked", "observed", "fault", "off", "observe", "mode"),
    "unread",
)
_MOST_PRIORITIES = 32  # numbers that a class's requests are told apart by; with four steps it has four


@dataclass(slots=True)
class _Class:
    """What the requests of a class are counted in: looked for once, and not by its labels for each of them."""

    released: Count
    wait: Distribution  # of those that were released
    cost: Count
    ratio: Distribution
    settled: dict[Source, Count]
    priorities: dict[int, Count] = field(default_factory=dict)


class RequestCounts:
    def __init__(self, budget: Budget, tenants: TenantCounts) -> None:
        self._tenants = tenants
        self._all: list[Counts | Histogram] = []
        self._classes: dict[tuple[str, str], _Class] = {}

        def counts(name: str, text: str, *labels: str, most: int | None = None) -> Counts:
            made = Counts(name, text, labels, budget, most)
            self._all.append(made)
            return made

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            made = Histogram(name, text, labels, buckets, budget)
            self._all.append(made)
            return made

        self._released = counts("released_requests", "Requests sent on to an engine", "pool", "class")
        self._wait = histogram(
            "queue_wait_seconds",
            "Seconds from a request's first arrival to its release or refusal",
            _WAIT_S,
            "pool",
            "class",
            "outcome",
        )
        self._priority = counts(
            "released_priority",
            f"Requests sent on, by their priority for the engine, low first; beyond {_MOST_PRIORITIES} numbers: other",
            "pool",
            "class",
            "priority",
            most=_MOST_PRIORITIES,
        )
        self._refused = counts("refused_requests", "Requests answered without an engine", "reason")
        self._cancelled = counts("cancelled_requests", "Requests whose client left while held", "pool")
        self._handed_over = counts(
            "handed_over_requests", "Held requests let go at a shutdown, for another replica to take", "pool"
        )
        self._evicted = counts(
            "evicted_requests",
            "Requests inside an engine that made room for a more urgent class, or that an operator took back",
            "pool",
            "class",
        )
        self._settled = counts(
            "settled_requests", "Requests whose cost is final, by where it came from", "pool", "class", "source"
        )
        self._cost = counts("settled_cost", "Cost of settled requests, in the pool's cost units", "pool", "class")
        self._ratio = histogram(
            "estimate_ratio",
            "Estimated cost / final cost, of requests whose tokens were counted",
            _RATIOS,
            "pool",
            "class",
        )
        self._passed = counts("passed_requests", "Requests let through without scheduling", "why")
        self._observed = counts(
            "observed_requests",
            "Requests that passed, by what would have become of them",
            "pool",
            "class",
            "outcome",
        )
        self._observed_wait = histogram(
            "observed_wait_seconds",
            "Seconds that requests that passed would have waited, or had until their answer was over",
            _WAIT_S,
            "pool",
            "class",
            "outcome",
        )
        self._observed_priority = counts(
            "observed_priority",
            "Requests that passed and would have been released, by the priority that the engine would have been told",
            "pool",
            "class",
            "priority",
            most=_MOST_PRIORITIES,
        )
        self._untracked = counts(
            "untracked_requests",
            "Released requests whose second stream did not come (profile strict): a client that left in between, or a "
            "tracking filter that is missing",
        )
        self._body_edits = counts("body_edits", "Request bodies that were to be edited, by outcome", "outcome")
        self._clamped = counts("clamped_requests", "Requests that asked for a class they may not use")
        self._choices_ignored = counts(
            "ignored_choices",
            "Requests that Envoy sent to another endpoint than Fairlane had chosen: its list of endpoints is another",
            "pool",
        )
        self._access_log = counts("access_log_entries", "Access-log entries by what was made of them", "kind")
        self._entries: dict[str, Count] = {}  # by kind: each request has one
        # Known beforehand: a rate does not see the first count of a series that begins with it.
        for reason in Reason:
            self._refused.of((reason.code,))
        for why in _PASSED:
            self._passed.of((why,))

    def families(self) -> Iterable[Metric]:
        return (counted.family() for counted in self._all)

    def effects(self, pool: str, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is Release:
                found = self._classes.get((pool, effect.cls)) or self._class(pool, effect.cls)
                found.released.value += 1
                wait, waited_s = found.wait, effect.waited_s
                # As `Distribution.add` does it; most go as they come.
                wait.fell[bisect_left(wait.bounds, waited_s) if waited_s > _LEAST_WAIT_S else 0] += 1
                wait.total += waited_s
                told = found.priorities.get(effect.priority) or self._told(found, pool, effect)
                told.value += 1
                self._tenants.released(pool, effect.tenant, waited_s)
            elif type(effect) is Settled:
                found = self._classes.get((pool, effect.cls)) or self._class(pool, effect.cls)
                cost, source = effect.cost, effect.source
                found.settled[source].value += 1
                found.cost.value += cost
                if cost > 0 and source in _COUNTED:
                    ratio, value = found.ratio, effect.estimate / cost
                    ratio.fell[bisect_left(ratio.bounds, value)] += 1
                    ratio.total += value
                self._tenants.settled(pool, effect.tenant, cost)
            elif type(effect) is Refuse:
                self._refused.add((effect.reason.code,))
                self._wait.add((pool, effect.cls, effect.reason.code), effect.waited_s)
                self._tenants.refused(pool, effect.tenant, effect.waited_s)
            elif type(effect) is Evict:
                self._evicted.add((pool, effect.cls))

    def _class(self, pool: str, cls: str) -> _Class:
        where = (pool, cls)
        found = self._classes[where] = _Class(
            released=self._released.of(where),
            wait=self._wait.of((*where, "released")),
            cost=self._cost.of(where),
            ratio=self._ratio.of(where),
            settled={source: self._settled.of((*where, source.value)) for source in Source},
        )
        return found

    def _told(self, found: _Class, pool: str, effect: Release) -> Count:
        told = self._priority.of((pool, effect.cls, str(effect.priority)))
        if len(found.priorities) < _MOST_PRIORITIES:
            found.priorities[effect.priority] = told
        return told

    def cancelled(self, pool: str) -> None:
        self._cancelled.add((pool,))

    def handed_over(self, pool: str) -> None:
        self._handed_over.add((pool,))

    def passed(self, why: str) -> None:
        self._passed.add((why,))

    def observed(self, pool: str, cls: str, outcome: str, waited_s: float, priority: int | None = None) -> None:
        self._observed.add((pool, cls, outcome))
        self._observed_wait.add((pool, cls, outcome), waited_s)
        if priority is not None:
            self._observed_priority.add((pool, cls, str(priority)))

    def untracked(self) -> None:
        self._untracked.add(())

    def body_edit(self, outcome: str) -> None:
        self._body_edits.add((outcome,))

    def refused(self, reason: str) -> None:
        self._refused.add((reason,))

    def clamped(self) -> None:
        self._clamped.add(())

    def choice_ignored(self, pool: str) -> None:
        self._choices_ignored.add((pool,))

    def access_log(self, kind: str) -> None:
        count = self._entries.get(kind)
        if count is None:
            count = self._entries[kind] = self._access_log.of((kind,))
        count.value += 1
