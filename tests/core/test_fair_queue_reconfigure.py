"""Another policy while requests wait and run."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import pytest
from fair_queue_bench import Bench, flows

from extproc.core.fair_queue import Buckets
from extproc.core.model import Order, PoolPolicy, Request, TenantPolicy
from extproc.core.node import Leaf

pytestmark = pytest.mark.slow


def test_a_new_weight_holds_from_now_on() -> None:
    bench = Bench(checked=False)
    for _ in range(200):
        bench.put("a")
        bench.put("b")
    bench.order(10.0, 100)
    bench.queue.reconfigure(flows({"a": {"weight": 3}}), Order.FIFO, 0.0)
    assert Counter(bench.order(12.0, 40)) == {"a": 30, "b": 10}


def test_what_a_tenant_owes_stays_the_same_in_cost() -> None:
    """V is 0 (b). a has 40 at weight 1, of that 10 not settled; at weight 4 that is 10. Settled at 2: 32/4 = 8."""
    bench = Bench()
    for _ in range(3):
        bench.put("a")
    assert bench.serve(30.0) == "a"
    last = bench.take(10.0)
    bench.put("b")
    bench.put("b")
    bench.queue.leaf("b").tag = 0.0  # type: ignore[union-attr]
    bench.queue.reconfigure(flows(), Order.FIFO, 0.0)
    bench.queue.reconfigure(flows({"a": {"weight": 4}}), Order.FIFO, 0.0)
    assert (bench.tag("a"), bench.tag("b")) == (10.0, 0.0)
    bench.settle(last, 2.0)
    assert bench.tag("a") == 8.0


def test_a_cap_that_was_lowered_lets_run_what_runs() -> None:
    bench = Bench()
    for _ in range(5):
        bench.put("a")
    inside = [bench.take() for _ in range(3)]
    bench.queue.reconfigure(flows({"a": {"max_in_flight": 2}}), Order.FIFO, 0.0)
    assert (bench.queue.in_flight, bench.head()) == (3, None)
    bench.free(inside[0])
    assert bench.head() is None
    bench.free(inside[1])
    assert bench.take().tenant == "a"
    assert bench.head() is None


def test_a_cap_that_was_raised_lets_go_but_not_catch_up() -> None:
    bench = Bench({"a": {"max_in_flight": 1}})
    for _ in range(30):
        bench.put("a")
        bench.put("b")
    bench.take(10.0)
    assert bench.order(10.0, 20) == "b" * 20
    bench.queue.reconfigure(flows(), Order.FIFO, 0.0)
    assert (bench.tag("a"), bench.tag("b")) == (190.0, 200.0)
    assert bench.order(10.0, 4) == "abab"  # a has one inside: the tie at 200 is b's
    # 190 -> a 200; tie: b (fewer inside) 210; a 210; tie: b


def test_a_rate_comes_changes_and_goes() -> None:
    bench = Bench()
    for _ in range(5):
        bench.put("a")
    bench.queue.reconfigure(flows({"a": {"rate": 10.0}}), Order.FIFO, 0.0)
    bench.take(20.0)
    assert bench.queue.next_eligible_at() == pytest.approx(2.0)
    bench.queue.reconfigure(flows({"a": {"rate": 20.0}}), Order.FIFO, 0.0)
    assert bench.queue.next_eligible_at() == pytest.approx(1.0)
    assert bench.head() is None
    bench.queue.reconfigure(flows(), Order.FIFO, 0.0)
    assert bench.queue.next_eligible_at() is None
    assert bench.take().tenant == "a"


def test_a_tenant_moves_with_all_its_books() -> None:
    bench = Bench()
    queued = [bench.put("bob", cost=7.0) for _ in range(3)]
    inside = bench.take(10.0)
    for tenant in ("x/a", "x/a", "y"):
        bench.put(tenant)
    bench.queue.reconfigure(flows({"bob": TenantPolicy(parent="x")}), Order.FIFO, 0.0)
    bench.queue.check()
    leaf = bench.queue.leaf("bob")
    assert leaf is not None and leaf.parent is not None
    x = leaf.parent
    assert (x.path, x.queued, x.in_flight, x.open, x.owed, x.queued_cost) == ("x", 4, 1, 1, 10.0, 16.0)
    # On top V was 10, bob's own tag: no debt, so bob starts at V of x, 0. x is charged the 10 that are open.
    assert (leaf.tag, x.tag) == (0.0, 20.0)
    bench.settle(inside, 4.0)
    assert (leaf.tag, x.tag) == (-6.0, 14.0)
    bench.free(inside)
    served = [bench.take().id for _ in range(5)]
    assert {r.id for r in queued[1:]} < set(served)
    assert bench.queue.in_flight == 5


def test_a_debt_moves_along_and_an_advance_does_not() -> None:
    """V on top is 20 (b). a owes 30, at weight 2 in its new place that is 15. c is behind and starts anew."""
    bench = Bench()
    for tenant in ("a", "a", "b", "b", "c", "c", "x/d", "x/d"):
        bench.put(tenant)
    bench.take(50.0)
    bench.take(20.0)
    running = [bench.take(40.0), bench.take(40.0)]
    for request in running:
        bench.settle(request, 40.0)
    assert [bench.tag(t) for t in ("a", "b", "c", "x/d")] == [50.0, 20.0, 40.0, 40.0]
    new = flows({"a": TenantPolicy(parent="x", weight=2), "c": TenantPolicy(parent="x")})
    bench.queue.reconfigure(new, Order.FIFO, 0.0)
    # x/d is at 40 in x and alone there: V of x.
    assert [bench.tag(t) for t in ("a", "b", "c", "x/d")] == [55.0, 20.0, 60.0, 40.0]
    bench.queue.check()


def test_levels_appear_and_disappear() -> None:
    bench = Bench()
    names = ["x/p/a", "x/p/b", "x/q/a", "y", "x"]
    for tenant in names * 3:
        bench.put(tenant)
    inside = [bench.take(10.0) for _ in range(4)]
    # x keeps the group that its own requests are in.
    for separator, nodes in ((None, 6), ("/", 8), (None, 6)):
        bench.queue.reconfigure(flows(separator=separator), Order.FIFO, 0.0)
        bench.queue.check()
        assert (bench.queue.size, bench.queue.nodes) == (5, nodes)
        assert (len(bench.queue), bench.queue.in_flight) == (11, 4)
    for request in inside:
        bench.finish(request, 3.0)
    assert Counter(bench.serve(5.0) for _ in range(11)) + Counter(r.tenant for r in inside) == Counter(names * 3)
    assert bench.queue.nodes == 0


def test_the_order_within_a_leaf_changes() -> None:
    bench = Bench()
    requests = [bench.put("a", deadline=d, cost=c) for d, c in ((30.0, 3.0), (20.0, 1.0), (10.0, 2.0))]
    assert bench.head() is requests[0]
    bench.queue.reconfigure(flows(), Order.DEADLINE, 0.0)
    assert bench.head() is requests[2]
    requests[0].deadline = 5.0
    bench.queue.reconfigure(flows(), Order.DEADLINE, 0.0)
    assert bench.head() is requests[0]
    bench.queue.reconfigure(flows(), Order.SHORTEST_FIRST, 0.0)
    assert bench.head() is requests[1]
    bench.queue.check()


@pytest.mark.parametrize("weight", [0.0, math.nan])
def test_a_policy_that_is_none_changes_nothing(weight: float) -> None:
    bench = Bench({"x": {"weight": 2}})
    bench.put("x/a")
    bench.put("x/a")
    bench.take(10.0)
    with pytest.raises(ValueError, match="weight of 'x'"):
        bench.queue.reconfigure(flows({"x": {"weight": weight}}, separator=None), Order.DEADLINE, 0.0)
    leaf = bench.queue.leaf("x/a")
    assert leaf is not None and leaf.parent is not None and (leaf.parent.tag, leaf.parent.weight) == (5.0, 2.0)
    bench.queue.check()


# -- idle tenants in debt, under groups that go or become leaves ---------------------------------------


def by_parent(*chain: str) -> dict[str, TenantPolicy]:
    """Each but the first hangs under the one before it."""
    return {name: TenantPolicy(parent=above) for above, name in itertools.pairwise(chain)}


@pytest.mark.parametrize(
    ("deep", "before", "new"),
    [
        ("acme/ml/x/y", flows(separator=None), flows()),
        ("y", flows(separator=None), flows(by_parent("acme", "acme/ml", "x", "y"), separator=None)),
        ("acme/ml/x/y", flows(by_parent("q", "acme/ml"), separator=None), flows()),
    ],
)
def test_a_deep_debtor_goes_with_the_idle_groups_that_a_leaf_replaces(
    deep: str, before: PoolPolicy, new: PoolPolicy
) -> None:
    """It moves under groups that are idle, so it owes nobody anything there and goes with them."""
    bench = Bench()
    bench.queue.reconfigure(before, Order.FIFO, 0.0)
    bench.put(deep)
    first = bench.take(0.0)
    bench.put("filler")
    bench.put("acme/ml")
    bench.finish(first, 5000.0)
    bench.queue.reconfigure(new, Order.FIFO, 0.0)
    bench.queue.check()
    assert bench.queue.leaf(deep) is None
    bench.put(deep)
    bench.queue.check()
    assert sorted(bench.serve(1.0) for _ in range(3)) == sorted([deep, "filler", "acme/ml"])
    assert (bench.queue.nodes, bench.queue.size) == (0, 0)


def test_the_bucket_of_a_node_that_goes_knows_it_no_more() -> None:
    buckets = Buckets()
    bench = Bench(buckets=buckets)
    tenants = {"a/b/c": {"rate": 100.0}}
    bench.queue.reconfigure(flows(tenants, separator=None), Order.FIFO, 0.0)
    bench.put("a/b/c/d")
    deep = bench.take(0.0)
    bench.put("filler")
    bench.put("a/b")
    bench.finish(deep, 5000.0)
    bench.queue.reconfigure(flows(tenants), Order.FIFO, 0.0)
    bench.queue.check()
    bucket = buckets.get("a/b/c")
    assert bucket is None or not bucket.members


def test_check_finds_a_node_that_is_out_of_the_tree_but_in_a_bucket() -> None:
    bench = Bench({"a": {"rate": 1.0}})
    bench.put("a")
    bench.put("b")
    leaf = bench.queue.leaf("a")
    assert leaf is not None and leaf.bucket is not None
    ghost = Leaf("a", leaf.parent, TenantPolicy(), "a")  # type: ignore[arg-type]
    leaf.bucket.members[ghost] = bench.queue
    with pytest.raises(AssertionError, match="bucket of 'a'"):
        bench.queue.check()


DEEP = ["a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e", "a/x/c", "b", "b/a", "c/b/a"]


def _in_a_circle(policy: PoolPolicy, name: str) -> bool:
    try:
        policy.path(name)
    except ValueError:
        return True
    return False


class Walk:
    """Requests of deep names in every state, while the tree changes its shape under them."""

    def __init__(self, seed: int, *, parents: bool, separators: tuple[str | None, ...]) -> None:
        self.rng = random.Random(seed)
        self.parents, self.separators = parents, separators
        self.buckets = Buckets()
        self.bench = Bench(buckets=self.buckets)
        self.queued: list[Request] = []
        self.inside: list[Request] = []
        self.unsettled: list[Request] = []

    def step(self) -> None:
        rng, bench = self.rng, self.bench
        move = rng.choice(["put", "put", "pop", "pop", "free", "free", "settle", "settle", "refresh", "cancel", "new"])
        bench.now += rng.choice([0.0, 0.1, 30.0])
        if move == "put":
            self.queued.append(bench.put(rng.choice(DEEP), cost=rng.choice([1.0, 1000.0])))
        elif move == "pop":
            request = bench.pop(rng.choice([0.0, 7.0, 3000.0]))
            if request is not None:
                self.queued.remove(request)
                self.inside.append(request)
                self.unsettled.append(request)
        elif move == "free" and self.inside:
            bench.free(self.inside.pop(rng.randrange(len(self.inside))))
        elif move == "settle" and self.unsettled:
            bench.settle(self.unsettled.pop(rng.randrange(len(self.unsettled))), rng.choice([0.0, 10.0, 5000.0]))
        elif move == "refresh" and self.unsettled:
            bench.queue.refresh(rng.choice(self.unsettled), 4000.0)
        elif move == "cancel" and self.queued:
            bench.cancel(self.queued.pop(rng.randrange(len(self.queued))))
        elif move == "new":
            order = rng.choice(list(Order))
            policy = self.policy()
            while any(_in_a_circle(policy, name) for name in DEEP):
                policy = self.policy()
            bench.queue.reconfigure(policy, order, bench.now)
        bench.queue.check()
        assert Counter(r.tenant for r in self.queued) == +Counter({t: bench.queue.queued(t) for t in DEEP})
        busy = {r.tenant for r in self.queued + self.inside + self.unsettled}
        assert busy <= {leaf.tenant for leaf in bench.queue.leaves()}

    def policy(self) -> PoolPolicy:
        rng = self.rng
        return flows(
            {
                name: TenantPolicy(
                    parent=rng.choice(["q", "q/r", *DEEP]) if self.parents and rng.random() < 0.3 else None,
                    weight=rng.choice([1e-6, 1.0, 4.0]),
                    rate=rng.choice([None, None, 100.0]),
                    max_in_flight=rng.choice([None, None, 1]),
                    burst=rng.choice([0.0, 50.0]),
                )
                for name in ["q", *DEEP]
                if rng.random() < 0.5
            },
            separator=rng.choice(self.separators),
        )

    def end(self) -> None:
        """All that is there can still be served, and nothing is left of it."""
        bench = self.bench
        bench.queue.reconfigure(flows(), Order.FIFO, bench.now)
        for request in self.inside:
            bench.free(request)
        for request in self.unsettled:
            bench.settle(request, 1.0)
        served = Counter(bench.serve(1.0) for _ in self.queued)
        assert served == Counter(r.tenant for r in self.queued)
        assert (bench.queue.nodes, bench.queue.size, list(bench.queue.leaves())) == (0, 0, [])
        for name in DEEP:
            bucket = self.buckets.get(name)
            assert bucket is None or not bucket.members


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("parents", "separators"),
    [(False, (None, "/")), (True, (None,)), (True, ("/",)), (True, (None, "/"))],
    ids=["separator", "parents", "parents-in-paths", "both"],
)
def test_any_change_of_shape_keeps_the_books(seed: int, parents: bool, separators: tuple[str | None, ...]) -> None:
    walk = Walk(seed, parents=parents, separators=separators)
    for _ in range(300):
        walk.step()
    walk.end()
