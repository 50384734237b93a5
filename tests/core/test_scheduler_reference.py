"""Any order of events, against `reference_scheduler`: the same releases, refusals and settlements in the same order.

Costs are whole numbers, weights and shares powers of two, so that sums are exact and ties are ties on both sides: what
clients allow is below what is expected and nothing is learnt, so the estimate is what they allow. Time passes in ticks
of its own: what time alone opens is then looked for before the next event, on both sides.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from reference_scheduler import Effect as Told
from reference_scheduler import Job, ReferenceScheduler
from scheduler_case import E1, E2, a_class, a_fixed_pool, a_sample

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
    FirstByte,
    FirstToken,
    Reconfigure,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Tick,
    Usage,
)
from extproc.core.model import Order, Overflow, PoolPolicy, Source, State, TenantPolicy, Traffic
from extproc.core.scheduler import Scheduler
from extproc.core.windows import Stance

pytestmark = pytest.mark.slow

TENANTS = {"a": TenantPolicy(weight=2.0), "b": TenantPolicy(max_in_flight=2), "c": TenantPolicy(max_queued=3)}
CAPPED = {"a": TenantPolicy(weight=2.0, max_in_flight=1), "b": TenantPolicy(max_queued=4), "c": TenantPolicy()}


def policy(tenants: dict[str, TenantPolicy] = TENANTS, slots: int = 3, *classes: Any, **changes: Any) -> PoolPolicy:
    three = (
        a_class("interactive", 0, queue_timeout_s=20.0),
        a_class("default", 1, queue_timeout_s=60.0, max_queued=5, promote_after_s=5.0),
        a_class("batch", 2, queue_timeout_s=600.0, min_share=0.25, promote_after_s=9.0),
    )
    values: dict[str, Any] = {
        "max_queued": 12, "promote_every": 3, "priority_steps": 2, "no_endpoint_timeout_s": 30.0
    } | changes  # fmt: skip
    return a_fixed_pool(*(classes or three), slots=slots, tenants=tenants, **values)


BASE = policy()
CLASSES = ["interactive", "default", "batch"]
INTERACTIVE, DEFAULT, BATCH = BASE.classes
RARE = replace(BATCH, min_share=0.5, max_in_flight=2)
LATER = replace(INTERACTIVE, rank=7, min_share=0.25)
URGENT = replace(DEFAULT, order=Order.DEADLINE, max_queued=2)
HASTY = replace(DEFAULT, queue_timeout_s=3.0, promote_after_s=None)
STRICT = replace(INTERACTIVE, max_in_flight=1, overflow=Overflow.REJECT_NEWEST, max_queued=1)
HURRIED = replace(INTERACTIVE, preempt_after_s=1.0)
# Several classes may be behind at once. Plain: without promotion, where only the first turn is looked for.
SHARES = (replace(INTERACTIVE, max_in_flight=1), replace(DEFAULT, min_share=0.5), replace(BATCH, min_share=0.25))
SHARES_PLAIN = tuple(replace(c, promote_after_s=None) for c in SHARES)
ALL_SHARE_PLAIN = tuple(replace(c, min_share=0.25, max_in_flight=None) for c in SHARES_PLAIN)
WITH_SHARES = [
    policy(TENANTS, 3, *SHARES),
    policy(TENANTS, 3, *SHARES_PLAIN),
    policy(CAPPED, 2, *ALL_SHARE_PLAIN),
]
POLICIES = [
    BASE,
    policy(CAPPED, 2),
    policy(TENANTS, 5, INTERACTIVE, RARE),
    policy(TENANTS, 1, LATER, URGENT),
    policy(CAPPED, 3, INTERACTIVE, HASTY, replace(BATCH, rank=1_000)),
    policy(TENANTS, 4, STRICT, max_queued=6),
    policy(TENANTS, 3, HURRIED, replace(DEFAULT, preemptible=True), replace(BATCH, preemptible=True)),
    policy(
        TENANTS,
        4,
        replace(HURRIED, preempt_after_s=0.0, max_in_flight=3),
        replace(DEFAULT, preemptible=True, preempt_after_s=4.0),
        replace(BATCH, min_share=0.0, promote_after_s=None, preemptible=True),
        preempt_per_s=2.0,
        preempt_after_first_byte=True,
    ),
    *WITH_SHARES,
    replace(BASE, traffic=Traffic.PAUSED),
    replace(BASE, traffic=Traffic.DRAINING),
]


class ReferenceMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.scheduler = Scheduler(BASE)
        self.scheduler.estimator.observe = lambda *_: None  # nothing is learnt: what is allowed stays what is expected
        self.reference = ReferenceScheduler(BASE)
        self.names: list[str] = []
        self.told: list[Told] = []
        self.add_endpoint(E1)
        self.page(E1, "good")

    def both(self, event: Event, method: str, *args: Any, **named: Any) -> None:
        """A tick after each: an event that makes no room is not always followed by a look for releases."""
        effects = self.scheduler.apply(event, self.now) + self.scheduler.apply(Tick(), self.now)
        expected = self.reference.run(lambda: getattr(self.reference, method)(*args, **named), self.now)
        self.told += expected
        assert [told(effect) for effect in effects] == expected + self.reference.run(self.reference.tick, self.now)
        self.compare()

    def compare(self) -> None:
        scheduler, reference = self.scheduler, self.reference
        invariants.check(scheduler, self.now)
        states = {State.QUEUED: "queued", State.RELEASED: "inside", State.RUNNING: "inside", State.ENDED: "ended"}
        seen = {
            r.id: (states[r.state], r.cls, r.endpoint, r.charged if r.state is not State.QUEUED else 0.0, r.settled)
            for r in scheduler.requests.values()
        }
        expected = {
            j.id: (j.state, j.cls, j.endpoint and j.endpoint.name, j.charged, j.settled) for j in reference.jobs
        }
        assert seen == expected
        assert [(c.policy, c.retired) for c in scheduler.classes] == [(c.policy, c.retired) for c in reference.classes]
        assert {e: (w.in_flight, w.removed) for e, w in scheduler.windows.items()} == {
            e.name: (reference.in_flight(e), e.removed) for e in reference.endpoints
        }
        for cls, other in zip(scheduler.classes, reference.classes, strict=True):
            tags = {leaf.tenant: leaf.tag for leaf in cls.queue.leaves() if leaf.queued}
            assert tags == {t: flow.tag for t, flow in other.flows.items() if reference.queued(other, t)}
            if cls.policy.min_share > 0:
                assert cls.share_tag == other.share_tag
        assert scheduler.share_v == reference.share_v

    # -- events ---------------------------------------------------------------------------------------

    @rule(
        many=st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(CLASSES)), min_size=3, max_size=8),
        prompt=st.sampled_from([10, 100]),
    )
    def a_burst(self, many: list[tuple[str, str]], prompt: int) -> None:
        for tenant, cls in many:
            self.arrive(tenant, cls, prompt, 50, 1, None, 0.0)

    @rule(
        tenant=st.sampled_from("abcd"),
        cls=st.sampled_from(CLASSES),
        prompt=st.sampled_from([1, 10, 100, 100, 5_000]),
        output=st.sampled_from([1, 50, 50, 100]),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        timeout=st.sampled_from([None, None, None, 0.0, 3.0]),
        ago=st.sampled_from([0.0, 0.0, 0.0, 4.0, 100.0, -9.0]),
        tells=st.sampled_from([True, True, False]),
    )
    def arrive(
        self,
        tenant: str,
        cls: str,
        prompt: int,
        output: int,
        n: int,
        timeout: float | None,
        ago: float,
        tells: bool = True,
    ) -> None:
        known = [c.policy.name for c in self.scheduler.classes if not c.retired]
        cls = cls if cls in known else known[0]
        name = f"r{len(self.names)}"
        self.names.append(name)
        arrival = self.now - ago
        patience = 1e9 if timeout is None else timeout
        job = Job(name, tenant, cls, arrival, prompt + 2.0 * output * n, n, 100, patience, tells_first_byte=tells)
        event = Arrive(name, tenant, cls, arrival, 100, output, n, timeout, prompt_tokens=prompt, first_byte_seen=tells)
        self.both(event, "arrive", job)

    def pick(self, index: int, *states: str) -> str:
        names = [j.id for j in self.reference.jobs if j.state in states] or self.names or ["nobody"]
        return names[index % len(names)]

    @rule(index=st.integers(0, 99), state=st.sampled_from(["queued", "inside", "inside", "inside", "ended"]))
    def end(self, index: int, state: str) -> None:
        name = self.pick(index, state)
        self.both(End(name), "end", name)

    @rule(index=st.integers(0, 99), state=st.sampled_from(["queued", "inside", "ended"]))
    def cancel(self, index: int, state: str) -> None:
        name = self.pick(index, state)
        self.both(Cancel(name, "by an operator"), "cancel", name)

    @rule(index=st.integers(0, 99), kind=st.sampled_from([FirstByte, FirstToken]))
    def the_answer_begins(self, index: int, kind: type[FirstByte | FirstToken]) -> None:
        name = self.pick(index, "inside")
        self.both(kind(name), "begin", name)

    @rule(
        index=st.integers(0, 99),
        prompt=st.sampled_from([0, 100, 4_000]),
        hundreds=st.integers(1, 9),
        source=st.sampled_from([Source.USAGE, Source.USAGE, Source.ERROR, Source.ESTIMATE]),
    )
    def usage(self, index: int, prompt: int, hundreds: int, source: Source) -> None:
        name = self.pick(index, "inside", "ended")
        slots = next((j.slots for j in self.reference.jobs if j.id == name), 1)
        output = 100 * hundreds * slots
        costs = {Source.USAGE: lambda _: prompt + 2.0 * output, Source.ERROR: lambda _: 0.0}
        cost = costs.get(source, lambda job: job.charged)
        self.both(Usage(name, source, prompt, 0, output), "usage", name, cost, source.value)

    @rule(endpoint=st.sampled_from([E1, E2]), kind=st.sampled_from(["good", "good", "stale", "negative", "absurd"]))
    def page(self, endpoint: str, kind: str) -> None:
        waiting = {"negative": -1, "absurd": 10**9}.get(kind, 3)
        started = 1.0 if kind == "stale" else self.now
        window = self.scheduler.windows.get(endpoint)
        seen = None if window is None else window.view(self.now)
        never_read = seen is not None and (seen.age_s is None or seen.stance is Stance.DOWN)
        sample = a_sample(5, waiting, started)
        self.both(
            Scraped(endpoint, sample), "scraped", endpoint, possible=kind == "good" or (kind == "stale" and never_read)
        )

    @rule(endpoint=st.sampled_from([E1, E2]), refused=st.booleans())
    def scrape_failed(self, endpoint: str, refused: bool) -> None:
        self.both(ScrapeFailed(endpoint, refused), "scrape_failed", endpoint, refused=refused)

    @rule(endpoint=st.sampled_from([E1, E2]))
    def add_endpoint(self, endpoint: str) -> None:
        self.both(EndpointAdded(endpoint), "add_endpoint", endpoint)

    @rule(endpoint=st.sampled_from([E1, E2]))
    def remove_endpoint(self, endpoint: str) -> None:
        self.both(EndpointRemoved(endpoint), "remove_endpoint", endpoint)

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 5.0, 25.0, 700.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.both(Tick(), "tick")

    @precondition(lambda self: self.scheduler.next_deadline() is not None)
    @rule()
    def time_passes_to_the_next_deadline(self) -> None:
        due = self.scheduler.next_deadline()
        deadlines = [self.reference.expires(j) for j in self.reference.jobs if j.state != "inside"]
        assert due == min([*deadlines, self.reference.preempt_at()])
        self.now = max(self.now, due)
        self.both(Tick(), "tick")

    @rule(index=st.integers(0, len(POLICIES) - 1))
    def reconfigure(self, index: int) -> None:
        self.both(Reconfigure(POLICIES[index]), "reconfigure", POLICIES[index])

    def teardown(self) -> None:
        self.reconfigure(0)
        for name in self.names:
            self.both(End(name), "end", name)
        self.now += 10.0
        self.both(Tick(), "tick")
        assert self.scheduler.requests == {}


def told(effect: Effect) -> Told:
    """An effect as the reference tells it."""
    if isinstance(effect, Release):
        return ("release", effect.id, effect.endpoint, effect.priority)
    if isinstance(effect, Refuse):
        return ("refuse", effect.id, effect.reason.code)
    if isinstance(effect, Evict):
        return ("evict", effect.id)
    return ("settled", effect.id, effect.cost, effect.source.value)


def walk(seed: int, policies: list[int]) -> ReferenceMachine:
    """As the machine below, with many arrivals: queues are full, classes behind, requests old. `policies`: indices of
    those that it is told on the way, and the first of them before."""
    rng = random.Random(seed)
    pair = ReferenceMachine()
    pair.reconfigure(policies[0])
    pair.add_endpoint(E2)
    pair.page(E2, "good")
    for _ in range(700):
        kind = rng.random()
        if kind < 0.42:
            n, timeout, ago = (
                rng.choice([1, 1, 1, 2, 3]),
                rng.choice([None, None, None, 3.0]),
                rng.choice([0.0, 0.0, 4.0]),
            )
            prompt, output = rng.choice([1, 10, 100, 5_000]), rng.choice([1, 50, 100])
            pair.arrive(rng.choice("abcd"), rng.choice(CLASSES), prompt, output, n, timeout, ago, rng.random() < 0.8)
        elif kind < 0.66:
            pair.end(rng.randrange(99), rng.choice(["inside"] * 9 + ["queued"]))
        elif kind < 0.86:
            pair.usage(rng.randrange(99), rng.choice([0, 100, 4_000]), rng.randrange(1, 9), Source.USAGE)
        elif kind < 0.87:
            pair.cancel(rng.randrange(99), rng.choice(["inside", "queued"]))
        elif kind < 0.88:
            pair.the_answer_begins(rng.randrange(99), rng.choice([FirstByte, FirstToken]))
        elif kind < 0.97:
            pair.time_passes(rng.choice([0.1, 0.5, 2.0, 6.0]))
        elif kind < 0.98:
            pair.scrape_failed(E2, refused=rng.random() < 0.3)
            pair.page(E2, "good")
        else:
            pair.reconfigure(rng.choice(policies))
    pair.teardown()
    return pair


@pytest.mark.parametrize("seed", range(3))
def test_a_long_walk_under_load(seed: int) -> None:
    pair = walk(seed, list(range(len(POLICIES))))
    assert {kind for kind, *_ in pair.told} == {"release", "refuse", "evict", "settled"}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("index", range(len(WITH_SHARES)))
def test_a_long_walk_in_a_pool_of_several_shares(index: int, seed: int) -> None:
    pair = walk(seed, [POLICIES.index(WITH_SHARES[index])])
    assert {"release", "refuse", "settled"} <= {kind for kind, *_ in pair.told}


TestReference = ReferenceMachine.TestCase
TestReference.settings = settings(derandomize=True, max_examples=60, stateful_step_count=40, deadline=None)
