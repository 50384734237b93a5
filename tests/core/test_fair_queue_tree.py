"""More than one level: organisations, teams, users. Paths are parted by "/"."""

from __future__ import annotations

from collections import Counter

import pytest
from fair_queue_bench import Bench

from extproc.core.fair_queue import Buckets


def test_a_thousand_users_of_one_organisation_get_half() -> None:
    bench = Bench(checked=False)
    for i in range(1000):
        bench.put(f"x/u{i}")
    for _ in range(100):
        bench.put("y/one")
    served = [bench.serve(10.0) for _ in range(200)]
    assert sum(tenant == "y/one" for tenant in served) == 100


def test_weights_hold_at_each_level() -> None:
    """org x:y = 3:1, in x team p:q = 2:1. Of 240: y 60, p 120, q 60, a service more or less."""
    bench = Bench({"x": {"weight": 3}, "x/p": {"weight": 2}}, checked=False)
    for tenant in ("x/p/a", "x/q/b", "y/c"):
        for _ in range(240):
            bench.put(tenant)
    served = Counter(bench.serve(12.0) for _ in range(240))
    assert all(abs(served[t] - n) <= 1 for t, n in {"x/p/a": 120, "x/q/b": 60, "y/c": 60}.items())


def test_order_on_two_levels_by_hand() -> None:
    """Tags x, y on top, a, b in x; all services cost 10. A tie is who came first.
    x,y 0,0: x, in it a,b 0,0: a. x 10, a 10. y. y 10. Tie: x; b. x 20, b 10. y. Tie at 20: x; tie at 10: a."""
    bench = Bench()
    for tenant in ("x/a", "x/a", "x/b", "y", "y", "y"):
        bench.put(tenant)
    assert [bench.serve(10.0) for _ in range(6)] == ["x/a", "y", "x/b", "y", "x/a", "y"]


def test_a_charge_and_its_true_up_reach_all_levels() -> None:
    bench = Bench({"x": {"weight": 4}, "x/p": {"weight": 2}})
    for _ in range(2):
        bench.put("x/p/a")
    request = bench.take(80.0)
    leaf = bench.queue.leaf("x/p/a")
    assert leaf is not None and leaf.parent is not None and leaf.parent.parent is not None
    nodes = (leaf, leaf.parent, leaf.parent.parent)
    assert [node.path for node in nodes] == ["x/p/a", "x/p", "x"]
    assert [node.tag for node in nodes] == [80.0, 40.0, 20.0]
    bench.settle(request, 20.0)
    assert [node.tag for node in nodes] == [20.0, 10.0, 5.0]
    assert [node.in_flight for node in nodes] == [1, 1, 1]
    bench.free(request)
    assert [node.in_flight for node in nodes] == [0, 0, 0]


def test_a_cap_of_a_group_holds_all_under_it_and_work_goes_to_others() -> None:
    bench = Bench({"x": {"max_in_flight": 2}})
    for tenant in ("x/a", "x/b", "x/c", "y"):
        bench.put(tenant)
    inside = [bench.take(1.0) for _ in range(3)]
    assert [r.tenant for r in inside] == ["x/a", "y", "x/b"]
    assert bench.head() is None and len(bench.queue) == 1
    bench.free(inside[0])
    assert bench.take(1.0).tenant == "x/c"


def test_when_all_children_are_capped_the_group_is_passed_over() -> None:
    bench = Bench({"x/a": {"max_in_flight": 1}})
    for tenant in ("x/a", "x/a", "y", "y"):
        bench.put(tenant)
    first = bench.take(1.0)
    assert [bench.take(1.0).tenant for _ in range(2)] == ["y", "y"]
    bench.put("y")
    bench.free(first)
    assert bench.take(1.0).tenant == "x/a"  # x 1, y 2


def test_a_name_with_requests_of_its_own_and_names_under_it() -> None:
    """Its own requests have weight 1 beside those under it, and its cap and weight hold for all."""
    bench = Bench({"x": {"weight": 2, "max_in_flight": 2}})
    first = bench.put("x")
    own = [first, *(bench.put("x") for _ in range(9))]
    assert bench.take(8.0) is first
    assert bench.tag("x") == 4.0  # 8 / weight 2: as yet it is alone
    for _ in range(10):
        bench.put("x/a")
        bench.put("y")
    # Now x is a group at 4, its own queue at 8 in it, with the 8 that may be given back; y at 4, its weight 1.
    assert (bench.tag("x"), bench.queue.nodes, bench.queue.size) == (8.0, 4, 3)
    leaf = bench.queue.leaf("x")
    assert leaf is not None and leaf.parent is not None
    assert (leaf.parent.path, leaf.parent.tag, leaf.parent.in_flight, bench.tag("x/a")) == ("x", 4.0, 1, 8.0)
    bench.settle(first, 2.0)
    assert (bench.tag("x"), leaf.parent.tag) == (2.0, 1.0)
    second = bench.take(6.0)
    assert second is own[1]  # own at 2 before x/a at 8
    assert bench.take(8.0).tenant == "y"  # x is at its cap of 2
    bench.free(first)
    bench.free(second)
    # x goes on one turn, 6/2, before y's 12: at 9, then 13. In it own and x/a are at 8, and own came first.
    assert [bench.take(8.0).tenant for _ in range(3)] == ["x", "y", "x/a"]
    bench.queue.check()


def test_depth_of_five() -> None:
    bench = Bench()
    for tenant in ("a/b/c/d/e", "a/b/c/d/f", "g"):
        bench.put(tenant)
    assert bench.queue.nodes == 7
    assert [bench.serve(1.0) for _ in range(3)] == ["a/b/c/d/e", "g", "a/b/c/d/f"]
    assert bench.queue.nodes == 0


def test_a_parent_by_name() -> None:
    bench = Bench({"bob": {"parent": "x"}})
    bench.put("bob")
    leaf = bench.queue.leaf("bob")
    assert leaf is not None and leaf.parent is not None and leaf.parent.path == "x"


# -- rates: a second is a second ------------------------------------------------------------------


def test_a_rate_holds_a_tenant_and_lets_it_go_in_time() -> None:
    """10 a second, 20 at once: 20 are gone at once, 12 more make a debt of 12, so it goes on after 1.2 s."""
    bench = Bench({"a": {"rate": 10.0, "rate_burst": 20.0}})
    for _ in range(5):
        bench.put("a")
    bench.take(19.0)
    bench.take(13.0)
    assert bench.head() is None
    at = bench.queue.next_eligible_at()
    assert at == pytest.approx(1.2)
    bench.now = 1.19
    assert bench.head() is None
    bench.now = at or 0.0
    assert bench.head() is not None
    assert bench.queue.next_eligible_at() is None


def test_an_empty_bucket_lets_nothing_go_until_it_is_positive() -> None:
    bench = Bench({"a": {"rate": 10.0, "rate_burst": 20.0}})
    bench.put("a")
    bench.put("a")
    bench.take(20.0)
    assert bench.head() is None
    bench.now = 0.001
    assert bench.head() is not None


def test_true_ups_count_against_the_rate() -> None:
    bench = Bench({"a": {"rate": 10.0, "rate_burst": 20.0}})
    for _ in range(3):
        bench.put("a")
    first = bench.take(30.0)
    assert bench.queue.next_eligible_at() == pytest.approx(1.0)
    bench.queue.refresh(first, 40.0)
    assert bench.queue.next_eligible_at() == pytest.approx(2.0)
    bench.settle(first, 25.0)
    assert bench.queue.next_eligible_at() == pytest.approx(0.5)
    bench.now = 0.51
    assert bench.head() is not None


def test_a_refund_may_let_go_at_once() -> None:
    bench = Bench({"x": {"rate": 10.0, "rate_burst": 20.0}})
    bench.put("x/a")
    bench.put("x/b")
    first = bench.take(30.0)
    assert bench.head() is None
    bench.settle(first, 5.0)
    assert bench.take(1.0).tenant == "x/b"


def test_a_rate_of_a_group_holds_all_classes_of_the_pool() -> None:
    buckets = Buckets()
    one, two = (Bench({"x": {"rate": 10.0, "rate_burst": 20.0}}, buckets=buckets) for _ in range(2))
    for bench in (one, two):
        bench.put("x/a")
        bench.put("y")
    assert one.take(30.0).tenant == "x/a"
    assert two.take(1.0).tenant == "y"
    assert two.head() is None
    assert (one.queue.next_eligible_at(), two.queue.next_eligible_at()) == (None, pytest.approx(1.0))
    two.now = 1.01
    assert two.take(1.0).tenant == "x/a"


def test_a_tenant_at_its_rate_does_not_pull_newcomers_down() -> None:
    """A charge of 10 makes a wait 0.95 s: every tenth of a second one goes, and each tenth is a's. After 10 s a has
    had 100 and b 900. Then it is a's turn again, at 890, one charge before b; but c starts where b is."""
    bench = Bench({"a": {"rate": 10.0 / 0.95}}, checked=False)
    for _ in range(300):
        bench.put("a")
        bench.put("b")
    had: Counter[str] = Counter()
    for tick in range(100):
        bench.now = tick / 10
        had[bench.serve(10.0)] += 10
    assert had == {"a": 100, "b": 900}
    bench.now = 10.0
    bench.put("c")
    assert (bench.tag("a"), bench.tag("b"), bench.tag("c")) == (890.0, 900.0, 900.0)


def test_a_bucket_is_kept_until_it_is_full_again() -> None:
    """Or leaving and coming back would be a new start."""
    buckets = Buckets()
    bench = Bench(rate=10.0, rate_burst=20.0, buckets=buckets)
    bench.put("a")
    bench.serve(50.0)
    assert (bench.queue.nodes, len(buckets)) == (0, 1)
    bench.put("a")
    assert bench.head() is None
    bench.now = 3.01
    bench.serve(1.0)
    bench.now = 10.0
    for i in range(4):
        bench.put(f"b{i}")
    assert buckets.get("a") is None
