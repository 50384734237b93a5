"""Within a leaf, heads for grouping, shedding, and where a request stands."""

from __future__ import annotations

import pytest
from fair_queue_bench import Bench

from extproc.core.fair_queue import Block, Place
from extproc.core.model import Order, Request


def ids(requests: list[Request]) -> list[str]:
    return [request.id for request in requests]


# -- order within a leaf --------------------------------------------------------------------------


def test_within_a_tenant_the_older_arrival_goes_first_also_when_it_is_put_later() -> None:
    bench = Bench()
    late = bench.put("a", arrival=20.0)
    same = bench.put("a", arrival=20.0)
    replayed = bench.put("a", arrival=10.0)
    assert [bench.take() for _ in range(3)] == [replayed, late, same]


def test_a_cancelled_head_is_passed_over() -> None:
    bench = Bench()
    first, second, third = (bench.put("a", arrival=t) for t in (1.0, 2.0, 3.0))
    bench.cancel(first)
    bench.cancel(third)
    assert len(bench.queue) == 1
    assert bench.take() is second
    assert bench.head() is None


def test_many_of_one_tenant_keep_their_order() -> None:
    """More than a block of the sequence, put in two interleaved runs."""
    bench = Bench(checked=False)
    for t in [*range(0, 3000, 2), *range(1, 3000, 2)]:
        bench.put("a", arrival=float(t))
    bench.queue.check()
    assert [bench.take().arrival for _ in range(3000)] == [float(t) for t in range(3000)]


def test_shortest_first_takes_the_shortest_of_the_first_eight() -> None:
    bench = Bench(order=Order.SHORTEST_FIRST)
    costs = [90, 30, 50, 80, 70, 60, 40, 20, 10]
    for cost in costs:
        bench.put("a", cost=float(cost))
    # 10 is the ninth: it is seen when one of the eight has gone.
    assert [bench.take().cost for _ in costs] == [20, 10, 30, 40, 50, 60, 70, 80, 90]


def test_a_long_one_grows_shorter_with_age() -> None:
    """500 after 90 s counts 500/(1 + 90/10) = 50, as much as 50 that has just come, and was first."""
    bench = Bench(order=Order.SHORTEST_FIRST)
    long = bench.put("a", cost=500.0)
    bench.now = 89.0
    short = bench.put("a", cost=50.0)
    assert bench.head() is short
    bench.now = 90.0
    bench.cancel(short)
    bench.put("a", cost=50.0)
    assert bench.head() is long


def test_deadline_first() -> None:
    bench = Bench(order=Order.DEADLINE)
    requests = [bench.put("a", deadline=d) for d in (30.0, 10.0, 20.0, 10.0)]
    assert [bench.take() for _ in requests] == [requests[i] for i in (1, 3, 2, 0)]


def test_a_deadline_that_was_changed_where_it_stood_is_found() -> None:
    bench = Bench(order=Order.DEADLINE, checked=False)
    requests = [bench.put("a", deadline=float(d)) for d in range(5)]
    requests[3].deadline = 0.5
    bench.cancel(requests[3])
    assert len(bench.queue) == 4


def test_order_within_a_leaf_does_not_change_the_shares() -> None:
    bench = Bench(order=Order.SHORTEST_FIRST)
    for cost in (9.0, 1.0, 5.0):
        bench.put("a", cost=cost)
        bench.put("b", cost=7.0)
    assert [bench.take(4.0).tenant for _ in range(6)] == ["a", "b", "a", "b", "a", "b"]


# -- heads ----------------------------------------------------------------------------------------


def test_heads_are_those_within_the_slack_in_fair_order() -> None:
    bench = Bench()
    for tenant in "abcd":
        for _ in range(3):
            bench.put(tenant)
    for charge in (30.0, 10.0, 20.0):  # a 30, b 10, c 20, d 0
        bench.take(charge)
    assert [r.tenant for r in bench.queue.heads(0.0, 0.0)] == ["d"]
    assert [r.tenant for r in bench.queue.heads(0.0, 20.0)] == ["d", "b", "c"]
    assert [r.tenant for r in bench.queue.heads(0.0, 99.0)] == ["d", "b", "c", "a"]
    assert [r.tenant for r in bench.queue.heads(0.0, 99.0, most=2)] == ["d", "b"]
    assert bench.queue.heads(0.0, 99.0)[0] is bench.head()


def test_one_taken_within_the_slack_is_charged_as_any_other() -> None:
    bench = Bench()
    for tenant in "ab":
        for _ in range(3):
            bench.put(tenant)
    bench.take(30.0)
    heads = bench.queue.heads(0.0, 50.0)
    assert [r.tenant for r in heads] == ["b", "a"]
    bench.pop_this(heads[1], 30.0)
    assert (bench.tag("a"), bench.tag("b")) == (60.0, 0.0)
    assert bench.order(30.0, 3) == "bbb"  # b 30, b 60, and the tie is b's: a has two inside


def test_heads_of_a_tree_have_the_slack_at_each_level() -> None:
    bench = Bench()
    for tenant in ("x/a", "x/a", "x/b", "y/c", "y/c"):
        bench.put(tenant)
    bench.take(10.0)  # x/a; x 10 and a 10 in it
    assert [r.tenant for r in bench.queue.heads(0.0, 5.0)] == ["y/c"]
    assert [r.tenant for r in bench.queue.heads(0.0, 10.0)] == ["y/c", "x/b", "x/a"]


# -- shedding -------------------------------------------------------------------------------------


def test_the_heaviest_flow_loses_its_newest() -> None:
    bench = Bench({"b": {"weight": 4}})
    for _ in range(3):
        bench.put("a", cost=10.0)
        bench.put("b", cost=30.0)
    # a has 30 waiting; b 90, at weight 4 that is 22.5.
    for left in ("a#5", "b#6", "a#3", "b#4"):  # 30 - 22.5, 20 - 22.5, 20 - 15, 10 - 15
        request = bench.queue.heaviest()
        assert request is not None and request.id == left
        bench.cancel(request)


def test_the_heaviest_follows_what_comes_and_goes() -> None:
    bench = Bench()
    assert bench.queue.heaviest() is None
    bench.put("a", cost=10.0)
    bench.put("b", cost=20.0)
    assert bench.queue.heaviest().tenant == "b"  # type: ignore[union-attr]
    more = bench.put("a", cost=15.0)
    assert bench.queue.heaviest() is more
    assert bench.take().tenant == "a"
    assert bench.queue.heaviest().tenant == "b"  # type: ignore[union-attr]
    bench.put("c", cost=21.0)
    assert bench.queue.heaviest().tenant == "c"  # type: ignore[union-attr]
    for request in bench.queue.heads(0.0, 1e9):
        bench.cancel(request)
    assert bench.queue.heaviest() is None
    assert next(bench.queue.groups()).loads is None  # dropped with the last


def test_many_names_of_one_organisation_are_heavier_than_one_of_another() -> None:
    bench = Bench(checked=False)
    for _ in range(5):
        bench.put("y/one", cost=10.0)
    flood = [bench.put(f"x/u{i}", cost=10.0) for i in range(20)]
    shed = []
    for _ in range(15):
        request = bench.queue.heaviest()
        assert request is not None
        shed.append(request)
        bench.cancel(request)
    assert set(shed) <= set(flood)
    bench.queue.check()


# -- limits on what waits -------------------------------------------------------------------------


def test_limits_hold_at_every_node_and_are_named() -> None:
    bench = Bench({"x": {"max_queued": 3}, "x/a": {"max_queued": 2}, "y": {"max_queued_tokens": 100}})
    assert bench.queue.over_limit("x/a", 1.0) is None
    for tenant in ("x/a", "x/a", "x/b"):
        bench.put(tenant)
    assert bench.queue.over_limit("x/a", 1.0) == Block("max_queued", "x/a", 2, 2)
    assert bench.queue.over_limit("x/c", 1.0) == Block("max_queued", "x", 3, 3)
    assert bench.queue.over_limit("y/a", 500.0) is None  # alone it may be too large
    bench.put("y/a", cost=60.0)
    assert bench.queue.over_limit("y/b", 40.0) is None
    assert bench.queue.over_limit("y/b", 41.0) == Block("max_queued_tokens", "y", 60.0, 100)


# -- where a request stands -----------------------------------------------------------------------


def test_the_nearest_limit_that_holds_a_request_is_named() -> None:
    bench = Bench({"x": {"max_in_flight": 1}, "x/a": {"rate": 10.0, "rate_burst": 5.0}})
    bench.put("x/a")
    waits, other, free = bench.put("x/a"), bench.put("x/b"), bench.put("y")
    assert bench.queue.blocked(waits, 0.0) is None
    assert bench.take(25.0).tenant == "x/a"
    block = bench.queue.blocked(waits, 1.0)
    assert block is not None and (block.kind, block.path, block.value, block.limit) == ("rate", "x/a", -10.0, 10.0)
    assert block.until == pytest.approx(2.0)
    assert bench.queue.blocked(waits, 2.5) == Block("max_in_flight", "x", 1, 1)
    assert bench.queue.blocked(other, 0.0) == Block("max_in_flight", "x", 1, 1)
    assert bench.queue.blocked(free, 0.0) is None


def test_place_in_the_flow_and_of_the_flow() -> None:
    bench = Bench()
    requests = {tenant: [bench.put(tenant) for _ in range(3)] for tenant in "abc"}
    bench.take(30.0)  # a 30, b 0, c 0
    bench.take(10.0)  # b 10
    assert bench.queue.place(requests["a"][2]) == Place(ahead_in_flow=1, position=2, flows=3)
    assert bench.queue.place(requests["b"][1]) == Place(0, 1, 3)
    assert bench.queue.place(requests["c"][0]) == Place(0, 0, 3)


def test_place_is_told_of_the_first_level_that_differs() -> None:
    bench = Bench()
    for tenant in ("x/a", "y"):
        bench.put(tenant)
    last = bench.put("x/b")
    assert bench.queue.place(last) == Place(0, 1, 2)  # x is next, in it a goes first
    bench.take(1.0)
    assert bench.queue.place(last) == Place(0, 1, 2)  # y goes first
    bench.take(1.0)
    assert bench.queue.place(last) == Place(0, 0, 1)


def test_cost_ahead_by_hand() -> None:
    bench = Bench()
    for _ in range(3):
        bench.put("a", cost=10.0)
    mine = [bench.put("b", cost=20.0) for _ in range(3)]
    bench.put("c", cost=500.0)
    bench.take(10.0)  # a 10, then b 0, c 0
    assert bench.queue.cost_ahead(mine[0]) == 0.0
    # 40 of its own; a may get 30 until it is at 40, and has 20; c gets 40 of its 500.
    assert bench.queue.cost_ahead(mine[2]) == 40.0 + 20.0 + 40.0


def test_cost_ahead_counts_what_goes_to_other_organisations() -> None:
    bench = Bench({"y": {"weight": 2}})
    for _ in range(2):
        bench.put("x/a", cost=10.0)
    mine = bench.put("x/b", cost=10.0)
    for _ in range(10):
        bench.put("y", cost=10.0)
    # In x: a and b are level, a came first, but nothing is ahead by tag. On top x and y are level, too.
    assert bench.queue.cost_ahead(mine) == 0.0
    bench.take(10.0)
    bench.take(10.0)  # x/a: a 10, x 10; y: 5
    # y is 5 behind x, which is 10 at weight 2.
    assert bench.queue.cost_ahead(mine) == 10.0
