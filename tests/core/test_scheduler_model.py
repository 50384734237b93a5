"""Any order of events, against a model that knows only what the effects say.

The model tracks each request through `known`: waiting, inside, over. It has no notion of fairness or
windows; those have their scenarios. What it proves: one outcome for each request, one permit and one
release, one settlement, and books that end at zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from scheduler_case import E1, E2, a_class, a_sample
from state_dump import state_of

from extproc.core import invariants
from extproc.core.events import (
    Arrive,
    Cancel,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Evict,
    Failed,
    FirstByte,
    FirstToken,
    Reconfigure,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Tick,
    TurnedAway,
    Unreachable,
    Usage,
)
from extproc.core.explanation import explain
from extproc.core.model import (
    INSIDE,
    MAX_SLOTS,
    Controller,
    Gates,
    Order,
    Outage,
    Overflow,
    PoolPolicy,
    Source,
    State,
    TenantPolicy,
    Traffic,
    Unit,
    WindowPolicy,
)
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler
from extproc.core.view import view

pytestmark = pytest.mark.slow

BATCH = a_class("batch", 2, queue_timeout_s=600.0, max_waiting=0, max_queued=6, min_share=0.1)


def policies(controller: Controller) -> list[PoolPolicy]:
    """Each class of settings once, and a `min_share` in each: so V is the cost of all that was dispatched."""
    window = WindowPolicy(start=2.0, overtake=1, controller=controller)
    interactive, default = a_class(queue_timeout_s=20.0), a_class("default", 1, max_in_flight=3)
    flat = PoolPolicy(
        name="m",
        classes=(interactive, default, BATCH),
        window=window,
        tenants={"x/a": TenantPolicy(weight=4.0, max_queued=4), "x/b": TenantPolicy(max_in_flight=2)},
        max_queued=12,
        max_queued_bytes=200_000,
    )
    tree = replace(
        flat,
        separator="/",
        tenants={
            "x": TenantPolicy(rate=300.0, rate_burst=1_000.0, max_queued_tokens=9_000),
            "x/a": TenantPolicy(rate=50.0, max_in_flight=1, burst=500.0),
            "z": TenantPolicy(parent="y", max_queued_bytes=6_000),
        },
        classes=(interactive, replace(default, order=Order.SHORTEST_FIRST), replace(BATCH, headroom=0.05)),
        max_queued=6,
    )
    moody = replace(
        flat,
        classes=(
            replace(interactive, overflow=Overflow.REJECT_NEWEST, fail_fast=True, min_share=0.2),
            replace(BATCH, promote_after_s=2.0, gates=Gates(2, 0.1, 0.9, 1.0), order=Order.DEADLINE),
        ),
        promote_every=2,
        prefix_slack=2_000.0,
        default_tenant=TenantPolicy(rate=1_000.0),
        window=replace(window, outage=Outage.HOLD, overtake=0),
    )
    idle = replace(flat, classes=(replace(BATCH, rank=0, idle_only=True), replace(interactive, rank=5)), tenants={})
    pushing = replace(
        flat,
        classes=(
            replace(interactive, preempt_after_s=1.0),
            replace(default, preemptible=True, preempt_after_s=3.0),
            replace(BATCH, preemptible=True, min_share=0.02),
        ),
        preempt_per_s=3.0,
    )
    ruthless = replace(pushing, preempt_per_s=100.0, preempt_after_first_byte=True, prefix_slack=2_000.0)
    paused = [replace(policy, traffic=Traffic.PAUSED) for policy in (moody, pushing)]
    return [flat, tree, moody, idle, pushing, ruthless, *paused, replace(tree, traffic=Traffic.DRAINING)]


BAD = [
    {"default_tenant": TenantPolicy(weight=0.0)},
    {"tenants": {"x/a": TenantPolicy(weight=math.nan)}},
    {"tenants": {"p": TenantPolicy(parent="q"), "q": TenantPolicy(parent="p")}},
    {"unit": Unit.TIME},
    {"classes": (BATCH, replace(BATCH, name="other"))},
]
CLASSES = ["interactive", "default", "batch"]
TENANTS = ["x/a", "x/b", "y", "z", "x"]


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
    evicted: bool = False
    cost: float = 0.0  # once it is settled


_COUNTS = st.one_of(st.none(), st.integers(0, 5_000), st.sampled_from([-1, -(10**12), 10**12]))
_GAUGES = st.one_of(st.integers(0, 12), st.sampled_from([-1, 10**9, 10**12]))
_FLOATS = st.one_of(st.none(), st.floats(0, 1e5), st.sampled_from([1e300, math.inf, math.nan]))
_ENDPOINTS = st.sampled_from([E1, E2])


class SchedulerMachine(RuleBasedStateMachine):
    controllers: tuple[Controller, ...] = (Controller.ADAPTIVE,)

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.policies = [policy for controller in self.controllers for policy in policies(controller)]
        self.scheduler = Scheduler(self.policies[0])
        self.known: dict[str, Known] = {}
        self.evicted_at = -math.inf
        self.reconfigured = False  # since then, perhaps with another rate
        self.cancelling = False
        self.served_elsewhere = 0.0  # cost
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
                assert self.scheduler.policy.traffic is not Traffic.PAUSED
                assert effect.endpoint in self.endpoints
                assert effect.waited_s >= 0
                request.phase, request.endpoint = Phase.INSIDE, effect.endpoint
            case Refuse():
                assert request.phase is Phase.WAITING
                assert 1 <= effect.retry_after_s <= 750  # 600 s and a quarter
                request.phase = Phase.REFUSED
            case Evict():
                assert request.phase is Phase.INSIDE
                assert not request.evicted
                assert 1 <= effect.retry_after_s <= 750
                assert effect.inside_s >= 0
                request.evicted = True
                if effect.reason is Reason.CANCELLED:
                    assert self.cancelling
                    return
                assert not request.settled
                assert self.scheduler.policy.traffic is not Traffic.PAUSED
                assert self.now >= self.evicted_at + 1.0 / self.scheduler.policy.preempt_per_s or self.reconfigured
                self.evicted_at, self.reconfigured = self.now, False
            case Settled():
                assert request.phase in (Phase.INSIDE, Phase.ENDED)
                assert effect.cost == 0.0 or not request.evicted
                assert not request.settled
                assert math.isfinite(effect.cost) and effect.cost >= 0
                request.settled, request.cost = True, effect.cost

    def pick(self, index: int, *phases: Phase) -> str:
        names = [name for name, request in self.known.items() if not phases or request.phase in phases]
        return names[index % len(names)] if names else "nobody"

    # -- events ---------------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from(TENANTS),
        cls=st.sampled_from(CLASSES),
        body_bytes=st.sampled_from([0, 100, 5_000, 150_000]),
        max_output=st.sampled_from([None, None, 0, 50, 10**12]),
        n=st.sampled_from([1, 1, 1, 2, 5, 0, 10**6]),
        timeout=st.sampled_from([None, None, None, 0.0, 3.0, 1e9, -1.0]),
        ago=st.sampled_from([0.0, 0.0, 0.0, 2.0, 1e6, -50.0]),
        prefix=st.sampled_from([(), (1, 2), (1, 3)]),
        tells=st.booleans(),
    )
    def arrive(
        self,
        tenant: str,
        cls: str,
        body_bytes: int,
        max_output: int | None = None,
        n: int = 1,
        timeout: float | None = None,
        ago: float = 0.0,
        prefix: tuple[int, ...] = (),
        tells: bool = True,
    ) -> None:
        name = f"r{len(self.known)}"
        event = Arrive(name, tenant, cls, self.now - ago, body_bytes, max_output, n, timeout, None, prefix, tells)
        if cls not in [c.name for c in self.scheduler.policy.classes]:
            self.changes_nothing(event, "is not one of")
            return
        self.known[name] = Known(Phase.WAITING, min(max(n, 1), MAX_SLOTS), body_bytes)
        self.apply(event)

    @rule(many=st.lists(st.tuples(st.sampled_from(TENANTS), st.sampled_from(CLASSES)), min_size=4, max_size=9))
    def a_burst(self, many: list[tuple[str, str]]) -> None:
        for tenant, cls in many:
            self.arrive(tenant, cls, 1_000)

    def changes_nothing(self, event: Event, match: str) -> None:
        before = state_of(self.scheduler)
        with pytest.raises(ValueError, match=match):
            self.scheduler.apply(event, self.now)
        assert state_of(self.scheduler) == before

    @rule(index=st.integers(0, 999))
    def arrive_again(self, index: int) -> None:
        if self.scheduler.requests:
            name = list(self.scheduler.requests)[index % len(self.scheduler.requests)]
            self.changes_nothing(Arrive(name, "y", self.scheduler.policy.classes[0].name, self.now, 5), "is in use")

    @rule(index=st.integers(0, 99))
    def reconfigure(self, index: int) -> None:
        self.reconfigured = True
        self.apply(Reconfigure(self.policies[index % len(self.policies)]))

    @rule(changes=st.sampled_from(BAD))
    def reconfigure_badly(self, changes: dict[str, Any]) -> None:
        self.changes_nothing(Reconfigure(replace(self.scheduler.policy, **changes)), ".")

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 999), any_phase=st.booleans(), kind=st.sampled_from([FirstByte, FirstToken]))
    def the_answer_begins(self, index: int, any_phase: bool, kind: type[FirstByte | FirstToken]) -> None:
        self.apply(kind(self.pick(index) if any_phase else self.pick(index, Phase.INSIDE)))

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 999), broke=st.booleans())
    def unreachable(self, index: int, broke: bool) -> None:
        self.apply(Unreachable(self.pick(index, Phase.INSIDE), broke))

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 999), endpoint=st.none() | _ENDPOINTS)
    def turned_away(self, index: int, endpoint: str | None) -> None:
        self.apply(TurnedAway(self.pick(index), endpoint))

    @precondition(lambda self: self.known)
    @rule(index=st.integers(0, 999), endpoint=st.none() | _ENDPOINTS)
    def failed(self, index: int, endpoint: str | None) -> None:
        self.apply(Failed(self.pick(index), endpoint))

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
    @rule(index=st.integers(0, 999), phase=st.sampled_from(Phase))
    def cancel(self, index: int, phase: Phase) -> None:
        """A held one is refused and one inside evicted, once; to all others it is nothing."""
        name = self.pick(index, phase)
        request = self.known.get(name)
        takes = request is not None and (
            request.phase is Phase.WAITING or (request.phase is Phase.INSIDE and not request.evicted)
        )
        effects = self.scheduler.apply(Cancel(name, "by hand"), self.now)
        mine = [e for e in effects if isinstance(e, Refuse | Evict) and e.reason is Reason.CANCELLED]
        assert [(e.id, e.message) for e in mine] == ([(name, "by hand")] if takes else [])
        self.cancelling = True
        for effect in effects + self.scheduler.apply(Tick(), self.now):
            self.note(effect)
        self.cancelling = False

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

    @rule(
        endpoint=_ENDPOINTS,
        waiting=st.sampled_from([0, 0, 0, 1, 9]),
        pace=st.sampled_from([0.02, 0.3]),
        progress=st.sampled_from([None, 5.0, 6.0]),
    )
    def good_page(self, endpoint: str, waiting: int, pace: float, progress: float | None) -> None:
        inside = sum(r.slots for r in self.known.values() if r.phase is Phase.INSIDE and r.endpoint == endpoint)
        tokens = (self.now - 1000.0) * 100
        sample = a_sample(max(0, inside - waiting), waiting, self.now, kv_usage=0.5, itl_sum=pace * tokens,
                          itl_count=tokens, preemptions=0.0, ttft_sum=pace * tokens, ttft_count=tokens,
                          progress=progress)  # fmt: skip
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
        before = state_of(self.scheduler)
        for name in self.scheduler.requests:
            explain(self.scheduler, name, self.now)
        assert state_of(self.scheduler) == before  # it leaves no trace
        self.apply(Tick())

    @rule(seconds=st.sampled_from([0.5, 1e9]))
    def time_goes_backwards(self, seconds: float) -> None:
        """An event from the past is one of now."""
        counted = self.scheduler.counts["time_went_backwards"]
        for effect in self.scheduler.apply(Tick(), self.now - seconds):
            self.note(effect)
        assert self.scheduler.counts["time_went_backwards"] == counted + 1

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
        assert {r.id for r in scheduler.requests.values() if r.state in INSIDE} == inside
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
            assert told.sentence and told.next
            if name in waiting:
                assert told.estimated_wait_s is None or 1.0 <= told.estimated_wait_s <= 600.0
                assert told.ahead_in_flow >= 0 and 0 <= told.flow_position <= told.flows
                assert all(x is None or not math.isnan(x) for x in (told.value, told.limit))
        # What is released and not settled is charged for what it has had until now; V is that, and all that is settled,
        # and what other replicas have had.
        running = sum(r.charged for r in scheduler.requests.values() if r.state is not State.QUEUED and not r.settled)
        settled = sum(r.cost for r in self.known.values())
        assert scheduler.share_v == pytest.approx(running + settled + self.served_elsewhere, rel=1e-9, abs=1e-6)

    def teardown(self) -> None:
        """End all, count all, let time pass: nothing is left."""
        self.apply(Reconfigure(self.policies[0]))
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
        assert scheduler.held_bytes == {}
        assert all(c.queue.nodes == 0 and not c.retired for c in scheduler.classes)
        assert len(scheduler.deadlines) == 0
        for request in self.known.values():
            assert request.phase in (Phase.REFUSED, Phase.LEFT, Phase.ENDED)
            assert request.settled == (request.phase is Phase.ENDED)


class AdaptiveMachine(SchedulerMachine):
    pass


class FirstMachine(SchedulerMachine):
    controllers = (Controller.FIRST,)


class ChangingMachine(SchedulerMachine):
    """Every policy under every controller."""

    controllers = tuple(Controller)


TestAdaptive = AdaptiveMachine.TestCase
TestAdaptive.settings = settings(derandomize=True, max_examples=25, stateful_step_count=50, deadline=None)
TestFirst = FirstMachine.TestCase
TestFirst.settings = settings(derandomize=True, max_examples=16, stateful_step_count=50, deadline=None)
TestChanging = ChangingMachine.TestCase
TestChanging.settings = settings(derandomize=True, max_examples=16, stateful_step_count=50, deadline=None)
