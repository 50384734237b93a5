"""Another policy while requests wait and run."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from fair_queue_bench import Bench, flows

from extproc.core.model import Order, TenantPolicy


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
