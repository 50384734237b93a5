"""What other replicas have charged and hold, in the fair order of one class."""

from __future__ import annotations

import pytest
from fair_queue_bench import Bench, flows
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.fair_queue import Buckets
from extproc.core.model import Order, Request, TenantPolicy

SETTINGS = settings(derandomize=True, deadline=None, max_examples=60)
TREE = ["x/a", "x/b", "y/c", "z", "x"]


def test_what_others_have_charged_delays_the_tenant_here() -> None:
    bench = Bench()
    for tenant in "aabb":
        bench.put(tenant)
    bench.queue.charge_foreign("a", 3.0, bench.now)
    assert bench.tag("a") == 3.0
    assert bench.order(1.0, 4) == "bbaa"


def test_it_is_divided_by_the_weight_at_each_level() -> None:
    bench = Bench({"x": {"weight": 2.0}, "x/a": {"weight": 4.0}})
    bench.put("x/a")
    bench.put("y/c")
    bench.queue.charge_foreign("x/a", 8.0, bench.now)
    group = bench.queue.leaf("x/a").parent  # type: ignore[union-attr]
    assert group is not None
    assert (bench.tag("x/a"), group.tag) == (2.0, 4.0)
    bench.queue.check()


def test_a_group_is_charged_for_one_of_its_own_that_is_not_here() -> None:
    bench = Bench()
    for tenant in ("x/a", "x/a", "y"):
        bench.put(tenant)
    bench.queue.charge_foreign("x/elsewhere", 5.0, bench.now)
    assert bench.queue.leaf("x/elsewhere") is None
    assert bench.tag("x/a") == 0.0
    assert [bench.serve(1.0) for _ in range(3)] == ["y", "x/a", "x/a"]


def test_nobody_is_made_for_it() -> None:
    bench = Bench()
    bench.queue.charge_foreign("a", 5.0, bench.now)
    bench.queue.hold_elsewhere("a", 2, bench.now)
    assert (bench.queue.nodes, bench.queue.root.elsewhere) == (0, 2)
    bench.put("b")
    bench.put("a")
    assert bench.tag("a") == bench.tag("b") == 0.0  # nobody here has had anything


def test_one_that_was_served_elsewhere_does_not_leave_newcomers_here_far_behind() -> None:
    """a runs here, waits nowhere here, and is served elsewhere for long. In one queue V would have gone with it."""
    bench = Bench()
    bench.put("a")
    running = bench.take(1.0)
    for _ in range(100):
        bench.queue.charge_foreign("a", 10.0, bench.now)
    for tenant in "bababa":
        bench.put(tenant)
    assert bench.tag("a") - bench.tag("b") == pytest.approx(10.0)  # the last charge, and not a thousand
    assert bench.order(10.0, 6) == "bbabaa"  # as equals: of two with the same tag the one that has nothing inside
    bench.finish(running, 1.0)


def test_what_was_saved_up_is_used_up_by_what_others_charge() -> None:
    """a may be 10 ahead of b, which is at 20, and has used up half of that elsewhere. Who comes then begins with b."""
    bench = Bench({"a": {"burst": 10.0}})
    for tenant in "bb":
        bench.put(tenant)
    bench.serve(20.0)
    bench.put("a")
    assert (bench.tag("a"), bench.tag("b")) == (10.0, 20.0)
    bench.queue.charge_foreign("a", 5.0, bench.now)
    bench.put("c")
    assert (bench.tag("a"), bench.tag("c")) == (15.0, 20.0)


def test_a_debt_grows_while_its_tenant_is_idle_here() -> None:
    bench = Bench()
    busy = bench.keep_busy()
    bench.put("a")
    bench.serve(5.0)
    bench.queue.charge_foreign("a", 2.0, bench.now)
    assert bench.tag("a") == 7.0
    bench.queue.check()
    bench.finish(busy, 0.0)
    assert bench.queue.nodes == 0  # the busy period is over


@pytest.mark.slow
@SETTINGS
@given(
    weights=st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=6, max_size=6),
    bursts=st.lists(st.sampled_from([0.0, 0.0, 5.0]), min_size=6, max_size=6),
    moves=st.lists(
        st.tuples(st.sampled_from(["put", "put", "here", "elsewhere"]), st.sampled_from(TREE), st.integers(1, 64)),
        min_size=20,
        max_size=90,
    ),
)
def test_the_order_is_that_of_one_queue(
    weights: list[float], bursts: list[float], moves: list[tuple[str, str, int]]
) -> None:
    """Where the next in line is served elsewhere, all that follows comes in the order as if it had been served here."""
    nodes = ["x", "x/a", "x/b", "y", "y/c", "z"]
    tenants = {n: TenantPolicy(weight=w, burst=b) for n, w, b in zip(nodes, weights, bursts, strict=True)}
    one, here = Bench(tenants), Bench(tenants)
    busy = [one.keep_busy(), here.keep_busy()]
    for move, tenant, cost in moves:
        charge = float(cost)
        if move == "put":
            one.put(tenant, cost=charge)
            here.put(tenant, cost=charge)
            continue
        expected, seen = one.head(), here.head()
        assert (expected and expected.id) == (seen and seen.id)
        if expected is None or seen is None:
            continue
        one.pop_this(expected, charge)
        one.finish(expected, charge)
        if move == "here":
            here.pop_this(seen, charge)
            here.finish(seen, charge)
        else:
            here.queue.charge_foreign(seen.tenant, charge, here.now)
            here.cancel(seen)
    while (expected := one.head()) is not None:
        seen = here.head()
        assert seen is not None
        assert seen.id == expected.id
        assert here.tag(seen.tenant) == pytest.approx(one.tag(expected.tenant))
        one.pop_this(expected, 7.0)
        here.pop_this(seen, 7.0)
    assert here.head() is None
    assert len(busy) == 2


# -- caps and rates ---------------------------------------------------------------------------------


def test_a_cap_holds_for_all_replicas_together() -> None:
    bench = Bench({"a": {"max_in_flight": 2}})
    for tenant in "aab":
        bench.put(tenant)
    bench.queue.hold_elsewhere("a", 1, bench.now)
    first = bench.take()
    assert (first.tenant, bench.take().tenant, bench.head()) == ("a", "b", None)
    request = next(r for r in [key[2] for block in bench.queue.leaf("a").requests for key in block])  # type: ignore[union-attr]
    block = bench.queue.blocked(request, bench.now)
    assert block is not None
    assert (block.kind, block.value, block.limit) == ("max_in_flight", 2, 2)
    bench.queue.hold_elsewhere("a", 0, bench.now)
    assert bench.head() is request
    bench.queue.hold_elsewhere("a", 9, bench.now)
    assert bench.head() is None
    bench.queue.check()


def test_a_cap_of_a_group_counts_those_of_the_group_that_are_not_here() -> None:
    bench = Bench({"x": {"max_in_flight": 3}})
    bench.queue.hold_elsewhere("x/elsewhere", 2, bench.now)
    for tenant in ("x/a", "x/b"):
        bench.put(tenant)
    running = bench.take()
    assert bench.head() is None
    bench.finish(running, 1.0)
    assert bench.head() is not None
    bench.queue.check()


def test_a_new_policy_counts_them_by_its_own_paths() -> None:
    bench = Bench({"x": {"max_in_flight": 3}})
    bench.queue.hold_elsewhere("x/b", 3, bench.now)
    bench.put("x/a")
    assert bench.head() is None
    bench.queue.reconfigure(flows({"y": {"max_in_flight": 3}, "x/b": {"parent": "y"}}), Order.FIFO, bench.now)
    bench.queue.check()
    assert bench.head() is not None
    bench.queue.reconfigure(flows({"y": {"max_in_flight": 3}, "x/a": {"parent": "y"}, "x/b": {"parent": "y"}}),
                            Order.FIFO, bench.now)  # fmt: skip
    bench.queue.check()
    assert bench.head() is None


def test_a_rate_holds_for_all_replicas_together() -> None:
    bench = Bench({"a": {"rate": 1.0, "rate_burst": 10.0}})
    bench.put("a")
    bench.queue.charge_foreign("a", 14.0, bench.now)
    assert bench.head() is None
    assert bench.queue.next_eligible_at() == pytest.approx(4.0)
    bench.now = 4.1
    assert bench.head() is not None
    bench.queue.check()


def test_a_bucket_that_nobody_here_is_in_is_charged_as_well() -> None:
    buckets = Buckets()
    bench = Bench({"a": {"rate": 1.0, "rate_burst": 10.0}}, buckets=buckets)
    bench.put("a")
    bench.serve(4.0)
    assert (bench.queue.leaf("a"), buckets.alone) == (None, 1)
    bench.queue.charge_foreign("a", 8.0, bench.now)
    assert buckets.listed[0][0][0] == pytest.approx(12.0)  # when it is full
    bench.put("a")
    assert bench.head() is None
    bench.queue.check()


@SETTINGS
@given(
    moves=st.lists(
        st.tuples(
            st.sampled_from(["put", "pop", "free", "cancel", "charge", "hold", "wait"]),
            st.sampled_from([*TREE, "x/far"]),
            st.integers(0, 40),
        ),
        max_size=100,
    )
)
def test_the_books_hold_whatever_others_tell(moves: list[tuple[str, str, int]]) -> None:
    bench = Bench(
        {
            "x": {"max_in_flight": 3, "rate": 4.0, "rate_burst": 9.0},
            "x/a": {"max_in_flight": 2, "burst": 3.0},
            "z": {"rate": 2.0},
        }
    )
    queued: list[Request] = []
    inside: list[Request] = []
    for move, tenant, n in moves:
        if move == "put":
            queued.append(bench.put(tenant, slots=1 + n % 3, cost=float(n)))
        elif move == "pop":
            request = bench.pop(float(n))
            if request is not None:
                queued.remove(request)
                inside.append(request)
        elif move == "free" and inside:
            bench.finish(inside.pop(n % len(inside)), float(n))
        elif move == "cancel" and queued:
            bench.cancel(queued.pop(n % len(queued)))
        elif move == "charge":
            bench.queue.charge_foreign(tenant, float(n), bench.now)
        elif move == "hold":
            bench.queue.hold_elsewhere(tenant, n % 4, bench.now)
        elif move == "wait":
            bench.now += n / 4
        bench.queue.check()
    for tenant in [*TREE, "x/far"]:
        bench.queue.hold_elsewhere(tenant, 0, bench.now)
    for request in queued:
        bench.cancel(request)
    for request in inside:
        bench.finish(request, 0.0)
    assert (bench.queue.nodes, bench.queue.wide, bench.queue.root.elsewhere, bench.queue.elsewhere) == (0, 0, 0, {})


# -- what is told of this replica -------------------------------------------------------------------


def test_what_was_charged_is_kept_for_the_others_once() -> None:
    bench = Bench()
    bench.queue.spent = {}
    bench.put("a", cost=5.0)
    request = bench.take(5.0)
    assert bench.queue.take_spent() == {"a": 5.0}
    bench.queue.refresh(request, 8.0)
    bench.settle(request, 6.0)
    assert bench.queue.take_spent() == {"a": 1.0}
    bench.free(request)
    waits = bench.put("b")
    assert bench.queue.take_spent() == {"a": 0.0, "b": 0.0}  # of them something else has changed
    bench.cancel(waits)
    bench.queue.charge_foreign("a", 50.0, bench.now)
    assert bench.queue.take_spent() == {"b": 0.0}


def test_where_nobody_asks_nothing_is_kept() -> None:
    bench = Bench()
    bench.put("a")
    bench.serve(5.0)
    assert bench.queue.spent is None
    with pytest.raises(ValueError, match="that replicas share"):
        bench.queue.take_spent()
