"""Any operations in any order, against the slow reference: the same order, and the same books.

Costs are whole numbers and weights powers of two, so that tags are exact and ties are ties."""

from __future__ import annotations

import itertools
import random

import hypothesis.strategies as st
import pytest
from fair_queue_reference import ROOT, Key, Node, Pool, ReferenceQueue, Run
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.core.fair_queue import Block, Buckets, FairQueue
from extproc.core.model import Order, PoolPolicy, Request, State, TenantPolicy
from extproc.core.node import Node as QueueNode

pytestmark = pytest.mark.slow

TENANTS = ("a", "b", "c", "a/x", "a/y", "d/x/p", "d/x/q", "d/y/p", "d/x")
NODES = ("a", "b", "c", "a/x", "a/y", "d", "d/x", "d/y", "d/x/p", "d/x/q", "d/y/p")
COSTS = st.integers(0, 64).map(float)

POLICIES = st.builds(
    TenantPolicy,
    weight=st.sampled_from([1.0, 1.0, 0.5, 2.0, 4.0]),
    max_in_flight=st.sampled_from([None, None, None, 1, 2, 3]),
    burst=st.sampled_from([0.0, 0.0, 16.0]),
    rate=st.sampled_from([None, None, None, 4.0, 16.0]),
    rate_burst=st.sampled_from([0.0, 32.0]),
    max_queued=st.sampled_from([100, 2]),
    max_queued_tokens=st.sampled_from([None, 64]),
)
FLOWS = st.builds(
    lambda tenants, separator, moved: PoolPolicy(
        name="p",
        classes=(),
        separator=separator,
        tenants={**tenants, **({"b": TenantPolicy(parent="d/x")} if moved else {})},
    ),
    st.dictionaries(st.sampled_from(NODES), POLICIES, max_size=6),
    st.sampled_from(["/", "/", None]),
    st.booleans(),
)


class FairQueueModel(RuleBasedStateMachine):
    """Two classes of one pool, each with its queue and its reference."""

    @initialize(flows=FLOWS, order=st.sampled_from(Order))
    def start(self, flows: PoolPolicy, order: Order) -> None:
        self.now = 0.0
        self.seq = itertools.count(1)
        buckets, pool = Buckets(), Pool()
        self.pairs = [(FairQueue(flows, order, buckets), ReferenceQueue(pool, flows, order)) for _ in range(2)]
        self.flows = flows

    def pair(self, cls: int) -> tuple[FairQueue, ReferenceQueue]:
        return self.pairs[cls]

    @rule(
        cls=st.integers(0, 1),
        tenant=st.sampled_from(TENANTS),
        cost=COSTS,
        slots=st.sampled_from([1, 1, 1, 2]),
        late=st.sampled_from([0.0, 0.0, 5.0]),
        timeout=st.sampled_from([10.0, 20.0]),
    )
    def put(self, cls: int, tenant: str, cost: float, slots: int, late: float, timeout: float) -> None:
        queue, reference = self.pair(cls)
        seq, arrival = next(self.seq), self.now - late
        request = Request(
            id=f"{tenant}#{seq}", tenant=tenant, cls=str(cls), arrival=arrival, seq=seq, body_bytes=seq,
            prompt_tokens=cost, output_tokens=1.0, max_output=None, slots=slots, deadline=arrival + timeout, cost=cost,
        )  # fmt: skip
        assert queue.over_limit(tenant, cost) == self._limit(reference, tenant, cost)
        queue.put(request, self.now)
        reference.put(request, self.now)

    def _limit(self, reference: ReferenceQueue, tenant: str, tokens: float) -> Block | None:
        """From the tenant's node upwards. By path: also what is queued in other places of the tree counts there."""
        path = reference.flows.path(tenant)
        for n in range(len(path), 0, -1):
            policy = reference.flows.tenant(path[n - 1])
            waiting = reference.waiting(path[:n])
            has = sum(r.prompt_tokens + r.output_tokens for r in waiting)
            if len(waiting) >= policy.max_queued:
                return Block("max_queued", path[n - 1], len(waiting), policy.max_queued)
            if policy.max_queued_tokens is not None and waiting and has + tokens > policy.max_queued_tokens:
                return Block("max_queued_tokens", path[n - 1], has, policy.max_queued_tokens)
        return None

    @rule(cls=st.integers(0, 1), error=st.sampled_from([0.0, 0.0, 8.0]))
    def pop(self, cls: int, error: float) -> None:
        queue, reference = self.pair(cls)
        request = queue.peek(self.now)
        assert request is reference.peek(self.now)
        if request is not None:
            self._pop(cls, request, request.cost + error)

    def _pop(self, cls: int, request: Request, charge: float) -> None:
        queue, reference = self.pair(cls)
        queue.pop(request, charge, self.now)
        reference.pop(request, charge, self.now)
        request.move(State.RELEASED)
        assert request.charged == charge

    @rule(cls=st.integers(0, 1), slack=st.sampled_from([0.0, 16.0, 64.0]), pick=st.integers(0, 8))
    def pop_a_head(self, cls: int, slack: float, pick: int) -> None:
        queue, reference = self.pair(cls)
        reference.tell(self.now)
        heads = queue.heads(self.now, slack)
        assert heads == list(reference.heads(self.now, slack))
        fewer = queue.heads(self.now, slack, most=2)
        assert fewer[:1] == heads[:1] and len(fewer) == min(2, len(heads)) and set(fewer) <= set(heads)
        if heads:
            request = heads[pick % len(heads)]
            self._pop(cls, request, request.cost)

    @rule(cls=st.integers(0, 1), pick=st.integers(0, 99))
    def cancel(self, cls: int, pick: int) -> None:
        queue, reference = self.pair(cls)
        if reference.queued:
            request = reference.queued[pick % len(reference.queued)]
            request.move(State.CANCELLED)
            queue.remove(request)
            reference.remove(request)

    def _run(self, cls: int, pick: int, what: str) -> Run | None:
        runs = [run for run in self.pair(cls)[1].runs if not getattr(run, what)]
        return runs[pick % len(runs)] if runs else None

    @rule(cls=st.integers(0, 1), pick=st.integers(0, 99))
    def free(self, cls: int, pick: int) -> None:
        run = self._run(cls, pick, "freed")
        if run is not None:
            queue, reference = self.pair(cls)
            queue.free(run.request)
            reference.free(run.request)

    @rule(cls=st.integers(0, 1), pick=st.integers(0, 99), cost=COSTS)
    def settle(self, cls: int, pick: int, cost: float) -> None:
        run = self._run(cls, pick, "settled")
        if run is not None:
            queue, reference = self.pair(cls)
            queue.settle(run.request, cost)
            run.request.settled = True
            reference.true_up(run.request, cost, final=True)
            assert run.request.charged == cost

    @rule(cls=st.integers(0, 1), pick=st.integers(0, 99), cost=COSTS)
    def refresh(self, cls: int, pick: int, cost: float) -> None:
        run = self._run(cls, pick, "settled")
        if run is not None:
            queue, reference = self.pair(cls)
            queue.refresh(run.request, cost)
            reference.true_up(run.request, cost, final=False)
            assert run.request.charged == run.charged

    @rule(seconds=st.sampled_from([0.125, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def wait_for_a_rate(self) -> None:
        times = [at for queue, _ in self.pairs if (at := queue.next_eligible_at()) is not None]
        if times:
            self.now = max(self.now, min(times))

    @rule(flows=FLOWS, order=st.sampled_from(Order), timeout=st.sampled_from([10.0, 3.0]))
    def reconfigure(self, flows: PoolPolicy, order: Order, timeout: float) -> None:
        for queue, reference in self.pairs:
            reference.tell(self.now)
            queue.tell(self.now)
        for queue, reference in self.pairs:
            for request in reference.queued:
                request.deadline = min(request.deadline, request.arrival + timeout)
            kept = _keys(queue)
            queue.reconfigure(flows, order, self.now)
            reference.reconfigure(flows, order, kept)

    @rule(cls=st.integers(0, 1))
    def shed(self, cls: int) -> None:
        """From the top: the child with the most queued cost/weight; its newest request."""
        queue, reference = self.pair(cls)
        request = queue.heaviest()
        assert (request is None) == (not reference.queued)
        if request is None:
            return
        for node in reference.chain(reference.leaf_of[request.tenant]):
            loads = {
                n.key: sum(r.cost for r in reference.waiting(n.key)) / n.policy.weight
                for n in reference.children(node.key[:-1])
                if reference.waiting(n.key)
            }
            assert loads[node.key] == max(loads.values())
        waiting = reference.waiting(reference.leaf_of[request.tenant])
        if reference.order is Order.DEADLINE:
            assert request is max(waiting, key=lambda r: (r.deadline, r.seq))
        else:
            assert request is max(waiting, key=lambda r: (r.arrival, r.seq))
        request.move(State.SHED)
        queue.remove(request)
        reference.remove(request)

    @invariant()
    def same(self) -> None:
        for queue, reference in self.pairs:
            assert queue.peek(self.now) is reference.peek(self.now)
            queue.check()
            assert reference.eligible == {n.key for n in reference.nodes.values() if n.key and reference.may_go(n)}
            assert len(queue) == len(reference.queued)
            assert queue.in_flight == reference.slots(ROOT)
            assert queue.queued_bytes == sum(r.body_bytes for r in reference.queued)
            assert queue.queued_tokens == sum(r.prompt_tokens + r.output_tokens for r in reference.queued)
            assert queue.size <= len(reference.leaf_of)
            assert _keys(queue) <= set(reference.nodes)
            self._same_nodes(queue, reference)
            self._same_holds(queue, reference)

    def _same_nodes(self, queue: FairQueue, reference: ReferenceQueue) -> None:
        """Those that are not idle: with the same tags and books."""
        for group in queue.groups():
            for child in group.children.values():
                node = reference.nodes[_key(child)]
                assert child.queued == len(reference.waiting(node.key))
                assert child.in_flight == reference.slots(node.key)
                assert child.open == len(reference.open(node.key))
                assert child.owed == reference.owed(node.key)
                assert (child.tag, child.seq) == (node.tag, node.seq)

    def _same_holds(self, queue: FairQueue, reference: ReferenceQueue) -> None:
        for request in reference.queued:
            chain = reference.chain(reference.leaf_of[request.tenant])
            held = next((n.key[-1] for n in chain if reference.held(n)), None)
            block = queue.blocked(request, self.now)
            assert (None if block is None else block.path) == held
            order = reference.in_order(reference.leaf_of[request.tenant], self.now)
            assert queue.place(request).ahead_in_flow == order.index(request)
            assert queue.cost_ahead(request) >= sum(r.cost for r in order[: order.index(request)])
        times = [
            bucket.ready_at()
            for n in reference.nodes.values()
            if n.key and (bucket := reference.bucket(n)) is not None and bucket.ready_at() > self.now
            and reference.waiting(n.key) and self._but_for_rate(reference, n)
        ]  # fmt: skip
        assert queue.next_eligible_at() == min(times, default=None)

    def _but_for_rate(self, reference: ReferenceQueue, node: Node) -> bool:
        cap = node.policy.max_in_flight
        if cap is not None and reference.slots(node.key) >= cap:
            return False
        leaf = node.key in reference.leaf_of.values()
        return leaf or any(reference.may_go(child) for child in reference.children(node.key))

    def teardown(self) -> None:
        """All is cancelled or served: nothing is left."""
        for cls, (queue, reference) in enumerate(getattr(self, "pairs", [])):
            while reference.queued:
                self.cancel(cls, 0)
            for run in list(reference.runs):
                if not run.settled:
                    queue.settle(run.request, 7.0)
                    run.request.settled = True
                if not run.freed:
                    queue.free(run.request)
            assert (queue.nodes, queue.size, queue.in_flight, len(queue)) == (0, 0, 0, 0)


def _key(node: QueueNode) -> Key:
    return () if node.parent is None else (*_key(node.parent), node.path)


def _keys(queue: FairQueue) -> set[Key]:
    return {_key(child) for group in queue.groups() for child in group.children.values()}


def _policy(dice: random.Random) -> PoolPolicy:
    def node() -> TenantPolicy:
        return TenantPolicy(
            weight=dice.choice([1.0, 1.0, 0.5, 2.0, 4.0]),
            max_in_flight=dice.choice([None, None, None, 1, 2, 4]),
            burst=dice.choice([0.0, 0.0, 16.0, 64.0]),
            rate=dice.choice([None, None, None, None, 4.0, 32.0]),
            rate_burst=dice.choice([0.0, 64.0]),
        )

    tenants = {name: node() for name in NODES if dice.random() < 0.5}
    if dice.random() < 0.3:
        tenants["b"] = TenantPolicy(parent="d/x")
    return PoolPolicy(name="p", classes=(), separator=dice.choice(["/", "/", "/", None]), tenants=tenants)


_STEPS = {
    "put": 25,
    "pop": 25,
    "pop_a_head": 3,
    "free": 20,
    "settle": 20,
    "refresh": 3,
    "cancel": 3,
    "wait": 8,
    "shed": 1,
}


@pytest.mark.parametrize("seed", range(8))
def test_a_long_walk(seed: int) -> None:
    """As the model, but longer and with a fixed mix of operations: busy periods last, and debts, credits and
    buckets have the time to matter. Two tenants that never rest; the others come and go."""
    dice = random.Random(seed)
    walk = FairQueueModel()
    walk.start(flows=_policy(dice), order=dice.choice(list(Order)))
    names = dice.sample(TENANTS, 5)
    for step in range(500):
        if dice.random() < 0.01:
            walk.reconfigure(flows=_policy(dice), order=dice.choice(list(Order)), timeout=dice.choice([10.0, 20.0]))
        what = dice.choices(list(_STEPS), list(_STEPS.values()))[0]
        cls, pick, cost = int(dice.random() < 0.3), dice.randrange(99), float(dice.choice([0, 1, 8, 16, 16, 32, 64]))
        queue, reference = walk.pairs[cls]
        if what == "put" and len(queue) < 12:
            walk.put(
                cls=cls, tenant=dice.choice(names), cost=cost, slots=dice.choice([1, 1, 2]),
                late=dice.choice([0.0, 0.0, 5.0]), timeout=dice.choice([10.0, 20.0]),
            )  # fmt: skip
        elif what == "pop" and len(reference.runs) < 8:
            walk.pop(cls=cls, error=dice.choice([0.0, 8.0]))
        elif what == "pop_a_head":
            walk.pop_a_head(cls=cls, slack=dice.choice([0.0, 16.0, 64.0]), pick=pick)
        elif what == "wait":
            walk.wait(seconds=dice.choice([0.125, 0.5, 2.0]))
        elif what in ("free", "settle") and len(reference.open(ROOT)) <= 1 and step < 450:
            continue  # the busy period goes on
        elif what in ("settle", "refresh"):
            getattr(walk, what)(cls=cls, pick=pick, cost=cost)
        elif what in ("free", "cancel"):
            getattr(walk, what)(cls=cls, pick=pick)
        elif what == "shed":
            walk.shed(cls=cls)
        walk.same()
    walk.teardown()


FairQueueModel.TestCase.settings = settings(derandomize=True, deadline=None, max_examples=40, stateful_step_count=40)
test_fair_queue_model = FairQueueModel.TestCase
