"""Any order of events, against a model that knows only what the effects say.

The model tracks each request through `known`: waiting, inside, over. It has no notion of fairness or
windows; those have their scenarios. What it proves: one outcome for each request, one permit and one
release, one settlement, and books that end at zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scheduler_case import E1, E2, a_class, a_pool, a_sample

from extproc.core import invariants
from extproc.core.events import (
    Arrive,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Tick,
    Usage,
)
from extproc.core.explanation import explain
from extproc.core.model import MAX_SLOTS, Source, State, TenantPolicy
from extproc.core.scheduler import Scheduler
from extproc.core.view import view

POLICY = a_pool(
    a_class("interactive", 0, queue_timeout_s=20.0),
    a_class("default", 1, queue_timeout_s=60.0, max_in_flight=3),
    a_class("batch", 2, queue_timeout_s=600.0, max_waiting=0, max_queued=6, min_share=0.1),
    start=2.0,
    overtake=1,
    tenants={"a": TenantPolicy(weight=4.0, max_queued=4), "b": TenantPolicy(max_in_flight=2)},
    max_queued=12,
    max_queued_bytes=200_000,
)


class Phase(Enum):
    WAITING = "waiting"
    INSIDE = "inside"
    REFUSED = "refused"
    LEFT = "left"  # its stream ended while it was held
    ENDED = "ended"  # its stream ended after it was released


@dataclass
class Known:
    phase: Phase
    slots: int
    body_bytes: int
    endpoint: str | None = None
    settled: bool = False


_COUNTS = st.one_of(st.none(), st.integers(0, 5_000), st.sampled_from([-1, -(10**12), 10**12]))
_GAUGES = st.one_of(st.integers(0, 12), st.sampled_from([-3, 10**12]))
_FLOATS = st.one_of(st.none(), st.floats(0, 1e5), st.sampled_from([1e300, math.inf, math.nan]))
_ENDPOINTS = st.sampled_from([E1, E2])


class SchedulerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.scheduler = Scheduler(POLICY)
        self.known: dict[str, Known] = {}
        self.endpoints: set[str] = set()
        self.add_endpoint(E1)
        self.apply(Scraped(E1, a_sample(0, 0, self.now)))

    # -- the model ------------------------------------------------------------------------------

    def apply(self, event: Event) -> None:
        """Also a `Tick`: time alone may have opened a window since the event before."""
        for effect in self.scheduler.apply(event, self.now) + self.scheduler.apply(Tick(), self.now):
            self.note(effect)

    def note(self, effect: Effect) -> None:
        request = self.known[effect.id]
        match effect:
            case Release():
                assert request.phase is Phase.WAITING
                assert effect.endpoint in self.endpoints
                assert effect.waited_s >= 0
                request.phase, request.endpoint = Phase.INSIDE, effect.endpoint
            case Refuse():
                assert request.phase is Phase.WAITING
                assert 1 <= effect.retry_after_s <= 750  # 600 s and a quarter
                request.phase = Phase.REFUSED
            case Settled():
                assert request.phase in (Phase.INSIDE, Phase.ENDED)
                assert not request.settled
                assert math.isfinite(effect.cost) and effect.cost >= 0
                request.settled = True

    def pick(self, index: int, *phases: Phase) -> str:
        names = [name for name, request in self.known.items() if not phases or request.phase in phases]
        return names[index % len(names)] if names else "nobody"

    # -- events ---------------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from(["a", "b", "c", "d"]),
        cls=st.sampled_from(["interactive", "default", "batch"]),
        body_bytes=st.sampled_from([0, 100, 5_000, 150_000]),
        max_output=st.sampled_from([None, None, 0, 50, 10**12]),
        n=st.sampled_from([1, 1, 1, 2, 5, 0, 10**6]),
        timeout=st.sampled_from([None, None, None, 0.0, 3.0, 1e9, -1.0]),
        ago=st.sampled_from([0.0, 0.0, 0.0, 2.0, 1e6, -50.0]),
    )
    def arrive(
        self, tenant: str, cls: str, body_bytes: int, max_output: int | None, n: int, timeout: float | None, ago: float
    ) -> None:
        name = f"r{len(self.known)}"
        self.known[name] = Known(Phase.WAITING, min(max(n, 1), MAX_SLOTS), body_bytes)
        self.apply(Arrive(name, tenant, cls, self.now - ago, body_bytes, max_output, n, timeout))

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 999))
    def end_one_inside(self, index: int) -> None:
        self.end(self.pick(index, Phase.INSIDE))

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 999))
    def end_any(self, index: int) -> None:
        self.end(self.pick(index))

    def end(self, name: str) -> None:
        request = self.known.get(name)
        # Before the event: what it sets free may be given to others within the same call.
        if request is not None and request.phase is Phase.WAITING:
            request.phase = Phase.LEFT
        elif request is not None and request.phase is Phase.INSIDE:
            request.phase = Phase.ENDED
        self.apply(End(name))

    @precondition(lambda self: self.known)
    @rule(
        index=st.integers(0, 999),
        source=st.sampled_from(Source),
        prompt=_COUNTS,
        output=_COUNTS,
        cached=st.sampled_from([0, 7, -9, 10**12]),
    )
    def usage(self, index: int, source: Source, prompt: int | None, output: int | None, cached: int) -> None:
        self.apply(Usage(self.pick(index), source, prompt, cached, output))

    @rule(
        endpoint=_ENDPOINTS,
        running=_GAUGES,
        waiting=_GAUGES,
        floats=st.tuples(_FLOATS, _FLOATS, _FLOATS, _FLOATS),
        lag=st.sampled_from([0.0, 0.1, 3.0, -1.0]),
    )
    def absurd_page(
        self, endpoint: str, running: int, waiting: int, floats: tuple[float | None, ...], lag: float
    ) -> None:
        kv, itl_sum, itl_count, preemptions = floats
        sample = a_sample(running, waiting, self.now - lag, kv_usage=kv, itl_sum=itl_sum, itl_count=itl_count,
                          preemptions=preemptions)  # fmt: skip
        self.apply(Scraped(endpoint, sample))

    @rule(endpoint=_ENDPOINTS, waiting=st.sampled_from([0, 0, 0, 1, 9]), pace=st.sampled_from([0.02, 0.3]))
    def good_page(self, endpoint: str, waiting: int, pace: float) -> None:
        inside = sum(r.slots for r in self.known.values() if r.phase is Phase.INSIDE and r.endpoint == endpoint)
        tokens = (self.now - 1000.0) * 100
        sample = a_sample(max(0, inside - waiting), waiting, self.now, kv_usage=0.5, itl_sum=pace * tokens,
                          itl_count=tokens, preemptions=0.0)  # fmt: skip
        self.apply(Scraped(endpoint, sample))

    @rule(endpoint=_ENDPOINTS, refused=st.sampled_from([False, False, True]))
    def scrape_failed(self, endpoint: str, refused: bool) -> None:
        self.apply(ScrapeFailed(endpoint, refused))

    @rule(endpoint=_ENDPOINTS)
    def add_endpoint(self, endpoint: str) -> None:
        self.endpoints.add(endpoint)
        self.apply(EndpointAdded(endpoint))

    @rule(endpoint=_ENDPOINTS)
    def remove_endpoint(self, endpoint: str) -> None:
        self.endpoints.discard(endpoint)
        self.apply(EndpointRemoved(endpoint))

    @rule(seconds=st.sampled_from([0.001, 0.3, 1.0, 4.0, 31.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.apply(Tick())

    @rule()
    def time_passes_to_the_next_deadline(self) -> None:
        due = self.scheduler.next_deadline()
        if due is not None:
            self.now = max(self.now, due)
            self.apply(Tick())
            after = self.scheduler.next_deadline()
            assert after is None or after > self.now  # or the caller would spin

    # -- what must hold -------------------------------------------------------------------------

    @invariant()
    def the_books_agree(self) -> None:
        scheduler = self.scheduler
        invariants.check(scheduler, self.now)
        waiting = {name for name, r in self.known.items() if r.phase is Phase.WAITING}
        inside = {name for name, r in self.known.items() if r.phase is Phase.INSIDE}
        unsettled = {name for name, r in self.known.items() if r.phase is Phase.ENDED and not r.settled}
        assert {r.id for r in scheduler.requests.values() if r.state is State.QUEUED} == waiting
        assert {r.id for r in scheduler.requests.values() if r.state is State.RELEASED} == inside
        assert {r.id for r in scheduler.requests.values() if r.state is State.ENDED} == unsettled
        seen = view(scheduler, self.now)
        assert (seen.queued, seen.known) == (len(waiting), len(waiting) + len(inside) + len(unsettled))
        assert seen.queued_bytes == sum(self.known[name].body_bytes for name in waiting)
        assert seen.in_flight == sum(self.known[name].slots for name in inside)
        for endpoint in seen.endpoints:
            assert endpoint.in_flight == sum(
                self.known[name].slots for name in inside if self.known[name].endpoint == endpoint.endpoint
            )
        for name in scheduler.requests:
            told = explain(scheduler, name, self.now)
            assert told is not None and (told.hold is not None) == (name in waiting)

    def teardown(self) -> None:
        """End all, count all, let time pass: nothing is left."""
        for name in list(self.known):
            self.end(name)
        for name, request in list(self.known.items()):
            if request.phase is Phase.ENDED and len(name) % 2:  # the others never tell
                self.apply(Usage(name, Source.USAGE, 10, 0, 10))
        self.now += 10_000.0
        self.apply(Tick())
        scheduler = self.scheduler
        invariants.check(scheduler, self.now)
        assert (scheduler.queued, scheduler.queued_bytes, scheduler.requests) == (0, 0, {})
        assert dict(scheduler.inside) == {}
        assert scheduler.next_deadline() is None
        assert view(scheduler, self.now).in_flight == 0
        assert set(scheduler.windows) == self.endpoints
        for request in self.known.values():
            assert request.phase in (Phase.REFUSED, Phase.LEFT, Phase.ENDED)
            assert request.settled == (request.phase is Phase.ENDED)


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(derandomize=True, max_examples=60, stateful_step_count=50, deadline=None)
