"""Another policy while requests wait and run: nothing is lost, released twice or settled twice."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from scheduler_case import (
    E1,
    E2,
    FIRST_CHARGE,
    Case,
    a_class,
    a_fixed_pool,
    a_pool,
    drain,
    fill,
    refused,
    released,
    settled,
    two_classes,
)

from extproc.core.model import Controller, CostWeights, Gates, Order, PoolPolicy, State, TenantPolicy, WindowPolicy


def queue_of(case: Case, *tenants: str, each: int = 6, cls: str = "interactive") -> None:
    for i in range(each):
        for tenant in tenants:
            case.arrive(f"{tenant}{i}", tenant, cls)


def with_tenants(**tenants: TenantPolicy) -> PoolPolicy:
    return a_fixed_pool(a_class(queue_timeout_s=1e6), tenants=tenants)


# -- tenants -----------------------------------------------------------------------------------------


def test_weights_hold_from_the_next_release_on() -> None:
    case = Case(with_tenants())
    inside = fill(case, 1)
    queue_of(case, "a", "b", each=20)
    assert drain(case, inside, 4) == ["a0", "b0", "a1", "b1"]
    case.reconfigure(with_tenants(a=TenantPolicy(weight=3.0)))
    order = drain(case, inside, 12)
    assert sum(name[0] == "a" for name in order) == 9


def test_what_is_owed_stays_the_same_in_cost_units() -> None:
    """a has had 3 * 768 more than b, at weight 1. At weight 3 that is one turn of b."""
    case = Case(a_fixed_pool(a_class(queue_timeout_s=1e6), slots=4))
    fill(case, 3, "a")
    case.arrive("z", "z")
    queue_of(case, "a", "b", each=8)
    owed = case.tag("a") - case.tag("b")
    case.reconfigure(replace(with_tenants(a=TenantPolicy(weight=3.0)), window=case.scheduler.policy.window))
    assert case.tag("a") - case.tag("b") == pytest.approx(owed / 3)


def test_a_cap_below_what_is_inside_lets_that_go_on_and_holds_what_waits() -> None:
    case = Case(a_fixed_pool(a_class(), slots=4))
    fill(case, 4, "a")
    queue_of(case, "a", "b", each=1)
    case.reconfigure(a_fixed_pool(a_class(), slots=4, tenants={"a": TenantPolicy(max_in_flight=2)}))
    assert case.scheduler.inside["a"] == 4
    assert released(case.end("fill-interactive-0")) == ["b0"]
    assert released(case.end("fill-interactive-1")) == []
    assert released(case.end("fill-interactive-2")) == ["a0"]


def test_a_cap_that_is_raised_lets_it_go_in_the_same_event() -> None:
    case = Case(a_fixed_pool(a_class(), slots=4, tenants={"a": TenantPolicy(max_in_flight=1)}))
    queue_of(case, "a", each=3)
    assert released(
        case.reconfigure(a_fixed_pool(a_class(), slots=4, tenants={"a": TenantPolicy(max_in_flight=2)}))
    ) == ["a1"]


def test_a_limit_below_what_waits_refuses_only_newcomers() -> None:
    case = Case(with_tenants())
    inside = fill(case, 1)
    queue_of(case, "a", each=5)
    case.reconfigure(with_tenants(a=TenantPolicy(max_queued=2)))
    assert refused(case.arrive("late", "a")) == [("late", "tenant_limit")]
    assert drain(case, inside, 5) == [f"a{i}" for i in range(5)]


def test_a_rate_that_is_given_and_taken_away() -> None:
    """With a rate a's bucket is full at first: one goes, and the next is 768 s away."""
    case = Case(with_tenants())
    inside = fill(case, 1)
    queue_of(case, "a", each=4)
    case.reconfigure(replace(with_tenants(a=TenantPolicy(rate=1.0)), usage_grace_s=1e6))
    assert drain(case, inside, 1) == ["a0"]
    assert released(case.end("a0")) == []
    assert case.scheduler.next_deadline() == pytest.approx(868.0)
    assert released(case.reconfigure(with_tenants())) == ["a1"]


def test_a_tenant_moves_under_another_organisation_with_what_it_owes() -> None:
    case = Case(with_tenants())
    inside = fill(case, 1)
    queue_of(case, "a", "b", "c", each=10)
    assert drain(case, inside, 3) == ["a0", "b0", "c0"]
    case.reconfigure(with_tenants(b=TenantPolicy(parent="org"), c=TenantPolicy(parent="org")))
    order = "".join(name[0] for name in drain(case, inside, 12))
    # With what they have had before: a as much as b and c together, to within one.
    assert (1 + order.count("a"), 2 + order.count("b") + order.count("c")) == (8, 7)
    assert abs(order.count("b") - order.count("c")) <= 1
    case.reconfigure(with_tenants())
    order = "".join(name[0] for name in drain(case, inside, 6))
    assert sorted(order) == sorted("aabbcc")


def test_names_become_paths_with_a_separator() -> None:
    case = Case(with_tenants())
    inside = fill(case, 1)
    queue_of(case, "x/0", "x/1", "y/0", each=8)
    assert sorted(drain(case, inside, 3)) == ["x/00", "x/10", "y/00"]
    case.reconfigure(replace(with_tenants(), separator="/"))
    assert case.scheduler.held_bytes["x"] == 14 * 1024
    order = [name[:3] for name in drain(case, inside, 8)]
    assert order.count("y/0") == 4
    case.reconfigure(with_tenants())
    assert "x" not in case.scheduler.held_bytes
    order = [name[:3] for name in drain(case, inside, 6)]
    assert order.count("y/0") in (2, 3)


# -- classes -----------------------------------------------------------------------------------------


def test_a_removed_class_drains_and_takes_nothing_more_in() -> None:
    case = Case(a_fixed_pool(*two_classes(), slots=2))
    inside = fill(case, 1) + fill(case, 1, cls="batch")
    queue_of(case, "a", each=2, cls="batch")
    case.reconfigure(a_fixed_pool(a_class(), slots=2))
    with pytest.raises(ValueError, match=r"class 'batch' is not one of \['interactive'\]"):
        case.arrive("late", cls="batch")
    assert drain(case, inside, 2) == ["a0", "a1"]
    assert [c.policy.name for c in case.scheduler.classes] == ["interactive", "batch"]
    case.end("a0")
    case.end("a1")
    assert "batch" in case.scheduler.by_name  # their usage has not come
    for name in ("a0", "a1", "fill-batch-0"):
        assert settled(case.usage(name, 256, 256)) == [(name, FIRST_CHARGE)]
    assert [c.policy.name for c in case.scheduler.classes] == ["interactive"]


def test_an_empty_class_that_is_removed_is_gone_at_once() -> None:
    case = Case(a_fixed_pool(*two_classes()))
    case.reconfigure(a_fixed_pool(a_class()))
    assert list(case.scheduler.by_name) == ["interactive"]


@pytest.mark.parametrize("how", ["cancel", "expire", "shed"])
def test_a_removed_class_whose_last_request_leaves_is_gone(how: str) -> None:
    policy = a_fixed_pool(*two_classes(), max_queued=1)
    case = Case(policy)
    fill(case, 1)
    case.arrive("b", cls="batch")
    case.reconfigure(replace(policy, classes=(a_class(),)))
    if how == "cancel":
        case.end("b")
    elif how == "expire":
        assert refused(case.tick(60.0)) == [("b", "queue_timeout")]
    else:
        assert refused(case.arrive("i")) == [("b", "shed")]
    assert list(case.scheduler.by_name) == ["interactive"]


def test_a_class_that_comes_back_while_it_drains_is_the_same() -> None:
    both = a_fixed_pool(*two_classes())
    case = Case(both)
    inside = fill(case, 1, cls="batch")
    queue_of(case, "a", each=1, cls="batch")
    case.reconfigure(a_fixed_pool(a_class()))
    case.reconfigure(both)
    assert case.arrive("b", "a", "batch") == []
    assert drain(case, inside, 2) == ["a0", "b"]


def test_a_new_class_takes_requests_at_once_at_its_rank() -> None:
    case = Case(a_fixed_pool(*two_classes()))
    inside = fill(case, 1)
    case.arrive("b", cls="batch")
    case.reconfigure(a_fixed_pool(*two_classes(), a_class("default", 1)))
    case.arrive("d", cls="default")
    assert drain(case, inside, 2) == ["d", "b"]


def test_ranks_that_change_places() -> None:
    case = Case(a_fixed_pool(*two_classes()))
    inside = fill(case, 1)
    case.arrive("b", "t", "batch")
    case.arrive("i", "t")
    case.reconfigure(a_fixed_pool(a_class("interactive", 2), a_class("batch", 0)))
    (effect,) = case.end(inside[0])
    assert (effect.id, effect.priority) == ("b", 0)


def test_a_class_s_cap_that_is_lowered_and_raised() -> None:
    case = Case(a_fixed_pool(a_class(), slots=4))
    inside = fill(case, 4)
    queue_of(case, "a", each=4)
    case.reconfigure(a_fixed_pool(a_class(max_in_flight=2), slots=4))
    assert [released(case.end(name)) for name in inside[:3]] == [[], [], ["a0"]]
    assert released(case.reconfigure(a_fixed_pool(a_class(max_in_flight=3), slots=4))) == ["a1"]


def test_gates_headroom_and_promotion_hold_from_now_on() -> None:
    case = Case(a_fixed_pool(*two_classes(), slots=4))
    case.page(waiting=1)
    case.reconfigure(a_fixed_pool(*two_classes(gates=Gates(max_waiting=1)), slots=4))
    case.arrive("b0", cls="batch")
    assert released(case.reconfigure(a_fixed_pool(*two_classes(headroom=0.01), slots=4))) == ["b0"]
    assert case.scheduler.by_name["batch"].headroom is not None
    case.reconfigure(a_fixed_pool(*two_classes(promote_after_s=1.0), slots=4))
    assert case.scheduler.by_name["batch"].headroom is None
    inside = fill(case, 3)
    case.arrive("b1", "t", "batch")
    case.now += 1.0
    case.arrive("i")
    assert drain(case, inside, 1) == ["b1"]


# -- timeouts and order --------------------------------------------------------------------------------


def test_a_timeout_that_is_shortened_ends_what_has_waited_for_so_long() -> None:
    case = Case(a_fixed_pool(*two_classes()))
    fill(case, 1)
    case.arrive("old")
    case.arrive("other", cls="batch")
    case.now += 5.0
    case.arrive("new")
    effects = case.reconfigure(a_fixed_pool(a_class(queue_timeout_s=5.0), two_classes()[1]))
    assert refused(effects) == [("old", "queue_timeout")]
    assert "5 s (queue_timeout of the class)" in effects[0].message
    assert case.scheduler.next_deadline() == 110.0
    assert refused(case.tick(5.0)) == [("new", "queue_timeout")]
    assert case.scheduler.next_deadline() == 160.0  # the other class's


def test_a_timeout_that_is_lengthened_lets_it_wait_and_never_longer_than_its_client_wants() -> None:
    case = Case(a_fixed_pool(a_class(queue_timeout_s=10.0)))
    fill(case, 1)
    case.arrive("long")
    case.arrive("short", timeout_s=20.0)
    case.reconfigure(a_fixed_pool(a_class(queue_timeout_s=100.0)))
    assert case.tick(10.0) == []
    assert refused(case.tick(10.0)) == [("short", "queue_timeout")]
    assert case.scheduler.next_deadline() == 200.0


def test_the_answer_s_grace_is_not_a_queue_s_timeout() -> None:
    case = Case(a_fixed_pool(a_class()))
    case.arrive("r")
    case.end("r")
    case.reconfigure(a_fixed_pool(a_class(queue_timeout_s=1.0)))
    assert case.scheduler.next_deadline() == 105.0
    assert settled(case.tick(5.0)) == [("r", FIRST_CHARGE)]


def test_the_order_within_a_flow() -> None:
    """By arrival: long, short, urgent. By cost: short first. By deadline: urgent first."""

    def with_order(order: Order) -> PoolPolicy:
        return a_fixed_pool(a_class(order=order))

    for order, first in ((Order.FIFO, "long"), (Order.SHORTEST_FIRST, "short"), (Order.DEADLINE, "urgent")):
        case = Case(a_fixed_pool(a_class(order=Order.DEADLINE)))
        inside = fill(case, 1)
        case.arrive("long", "t", body_bytes=40_000)
        case.arrive("short", "t", body_bytes=100)
        case.arrive("urgent", "t", body_bytes=20_000, timeout_s=30.0)
        case.reconfigure(with_order(order))
        assert drain(case, inside, 1) == [first]


def test_the_order_by_deadline_follows_new_timeouts() -> None:
    """old waits since 20 s, and has 60; new may wait for 35 only as its client says. With 50 for all, old is first."""
    case = Case(a_fixed_pool(a_class(order=Order.DEADLINE)))
    inside = fill(case, 1)
    case.arrive("old", "t")
    case.now += 20.0
    case.arrive("new", "t", timeout_s=35.0)
    assert case.scheduler.by_name["interactive"].queue.peek(case.now) is case.scheduler.requests["new"]
    case.reconfigure(a_fixed_pool(a_class(order=Order.DEADLINE, queue_timeout_s=50.0)))
    assert drain(case, inside, 2) == ["old", "new"]


# -- windows, costs, and the rest ------------------------------------------------------------------------


@pytest.mark.parametrize("controller", list(Controller))
def test_another_controller_takes_over_the_books(controller: Controller) -> None:
    case = Case(a_pool(*two_classes(), start=4), endpoints=(E1, E2))
    fill(case, 10)
    queue_of(case, "a", each=10)
    inside = {e: w.in_flight for e, w in case.scheduler.windows.items()}
    window = WindowPolicy(controller=controller, fixed=3, overtake=0, start=4.0)
    case.reconfigure(replace(case.scheduler.policy, window=window))
    for endpoint, count in inside.items():
        assert case.scheduler.windows[endpoint].in_flight >= count
        assert case.scheduler.windows[endpoint].name == controller.value
    for request in list(case.scheduler.requests.values()):
        case.end(request.id)
        case.page(E1)
    for request in list(case.scheduler.requests.values()):
        case.end(request.id)
    assert all(w.in_flight == 0 for w in case.scheduler.windows.values())


def test_more_room_is_used_in_the_same_event() -> None:
    case = Case(a_fixed_pool(a_class(), slots=1))
    queue_of(case, "a", each=5)
    assert released(case.reconfigure(a_fixed_pool(a_class(), slots=3))) == ["a1", "a2"]
    assert case.reconfigure(a_fixed_pool(a_class(), slots=1)) == []
    assert [released(case.end(f"a{i}")) for i in range(3)] == [[], [], ["a3"]]


def test_a_removed_endpoint_s_window_goes_on_to_count() -> None:
    case = Case(a_fixed_pool(a_class(), slots=2), endpoints=(E1, E2))
    fill(case, 4)
    case.remove(E1)
    case.reconfigure(a_pool(a_class(), start=4))
    assert case.scheduler.windows[E1].removed
    case.end("fill-interactive-0")
    case.end("fill-interactive-2")
    assert E1 not in case.scheduler.windows


def test_costs_by_new_weights_for_what_comes_and_what_is_settled() -> None:
    case = Case(a_fixed_pool(a_class(), slots=10))
    case.arrive("r0", "t")
    case.reconfigure(replace(case.scheduler.policy, weights=CostWeights(1.0, 1.0, 10.0)))
    case.arrive("r1", "t")
    assert case.tag("t") == FIRST_CHARGE + 256 + 2560
    assert settled(case.usage("r0", 100, 10)) == [("r0", 200.0)]


def test_thresholds_of_the_pool() -> None:
    case = Case(a_fixed_pool(a_class()))
    fill(case, 1)
    queue_of(case, "a", each=3)
    case.reconfigure(replace(case.scheduler.policy, max_queued=2))
    assert len(case.scheduler.requests) == 4
    assert refused(case.arrive("late", "b")) == [("late", "queue_full")]  # two would have to go for it


def test_a_hundred_policies_in_a_row_lose_nothing() -> None:
    policies = [
        a_fixed_pool(*two_classes(), slots=2),
        a_fixed_pool(*two_classes(min_share=0.3, order=Order.DEADLINE), slots=1, separator="/"),
        a_fixed_pool(a_class("interactive", 3), slots=3, tenants={"x/0": TenantPolicy(parent="y", weight=2.0)}),
        a_fixed_pool(*two_classes(max_in_flight=1), slots=4, tenants={"x": TenantPolicy(max_in_flight=1)}),
        a_fixed_pool(*two_classes(), slots=0, separator="/", tenants={"x": TenantPolicy(rate=1e6)}),
    ]
    case = Case(policies[0])
    known: dict[str, State] = {}
    for i in range(100):
        names = [c.policy.name for c in case.scheduler.classes if not c.retired]
        case.arrive(f"r{i}", f"x/{i % 3}", names[i % len(names)])
        known[f"r{i}"] = State.QUEUED
        case.reconfigure(policies[i % 5])
        case.now += 0.1
        case.page(E1)
        running = [r.id for r in case.scheduler.requests.values() if r.state is State.RELEASED]
        for name in running[:1]:
            case.usage(name, 100, 100)
            case.end(name)
    case.reconfigure(a_fixed_pool(*two_classes(), slots=200))
    assert sorted(released(case.effects)) == sorted(known)  # each once
    for name in known:
        case.usage(name, 100, 100)
        case.end(name)
    assert sorted(name for name, _ in settled(case.effects)) == sorted(known)
    assert case.scheduler.requests == {}
    assert all(c.queue.nodes == 0 for c in case.scheduler.classes)


@pytest.mark.parametrize("parents", [False, True], ids=["separator", "parents"])
def test_a_deep_tenant_in_debt_may_come_back_after_its_groups_have_come(parents: bool) -> None:
    """acme/ml/x/y is idle and owes 5000 when the names become paths; acme/ml waits and takes its group's place."""
    case = Case(a_fixed_pool(a_class()))
    case.arrive("r0", "acme/ml/x/y")
    case.arrive("f", "filler")
    case.arrive("r2", "acme/ml")
    case.usage("r0", 5000, 0)
    assert released(case.end("r0")) == ["f"]
    chain = ["acme", "acme/ml", "acme/ml/x", "acme/ml/x/y"]
    tenants = {name: TenantPolicy(parent=above) for above, name in itertools.pairwise(chain)} if parents else {}
    case.reconfigure(a_fixed_pool(a_class(), tenants=tenants, separator=None if parents else "/"))
    case.arrive("r3", "acme/ml/x/y")
    order = drain(case, ["f"], 2)
    assert sorted(order) == ["r2", "r3"]
