"""Why a request waits, and the state as data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, a_pool, drain, fill, released, two_classes
from state_dump import state_of

from extproc.core.events import Arrive, End
from extproc.core.explanation import Explanation, Hold, explain
from extproc.core.model import Controller, Gates, Outage, State, TenantPolicy, Traffic, WindowPolicy
from extproc.core.view import flows, view

BATCH = a_class("batch", 2, max_waiting=0)


def told_of(case: Case, request: str) -> Explanation:
    """It leaves no trace, or a recording could not be replayed."""
    before = state_of(case.scheduler)
    told = explain(case.scheduler, request, case.now + 0.3)
    assert told is not None and state_of(case.scheduler) == before
    return told


def cause(case: Case, request: str) -> tuple[Hold | None, str, float | None, float | None]:
    told = told_of(case, request)
    return told.hold, told.name, told.value, told.limit


def the_hold(case: Case, request: str) -> tuple[Hold | None, int, str]:
    told = explain(case.scheduler, request, case.now)
    assert told is not None
    return told.hold, told.ahead_in_flow, told.sentence


def test_explain_names_each_hold() -> None:
    policy = a_pool(a_class(), a_class("capped", 1, max_in_flight=1), BATCH, start=4,
                    tenants={"small": TenantPolicy(max_in_flight=1)})  # fmt: skip
    case = Case(policy)
    case.arrive("small0", "small")
    case.arrive("small1", "small")
    assert the_hold(case, "small1")[0] is Hold.TENANT_CAP
    assert "may hold 1 (max_in_flight)" in the_hold(case, "small1")[2]
    case.arrive("c0", "c", "capped")
    case.arrive("c1", "c", "capped")
    assert the_hold(case, "c1")[0] is Hold.CLASS_CAP
    fill(case, 5)
    case.arrive("a0", "a")
    case.arrive("a1", "a")
    case.arrive("b0", "b")
    case.arrive("batch", "b", "batch")
    assert the_hold(case, "a0")[:2] == (Hold.WINDOW, 0)
    assert f"{E1} (fresh) holds 7 of ours and 0 others, limit 7.0" in the_hold(case, "a0")[2]
    assert the_hold(case, "a1")[:2] == (Hold.FLOW, 1)
    assert the_hold(case, "b0")[0] is Hold.ORDER
    assert "tenant 'a'" in the_hold(case, "b0")[2]
    assert the_hold(case, "batch")[0] is Hold.HIGHER_CLASS
    assert "'interactive'" in the_hold(case, "batch")[2]


def test_its_flow_and_its_place_in_it() -> None:
    case = Case(a_fixed_pool())
    fill(case, 1)
    for i in range(4):
        case.arrive(f"r{i}", "t")
    told = told_of(case, "r3")
    assert (told.hold, told.name, told.value, told.limit) == (Hold.FLOW, "t", 3.0, 0.0)
    assert (told.ahead_in_flow, told.flow_position, told.flows) == (3, 0, 1)
    assert (told.sentence, told.next) == ("3 earlier requests of tenant 't' go first", "they are released")


def test_the_flows_before_its_own() -> None:
    case = Case(a_fixed_pool(slots=3))
    for i, tenant in enumerate("abc"):
        case.arrive(f"{tenant}0", tenant, body_bytes=1_000 * (i + 1))
    for tenant in "abc":
        case.arrive(f"{tenant}1", tenant)
    assert cause(case, "a1") == (Hold.WINDOW, "fixed", 3.0, 3.0)
    assert cause(case, "b1") == (Hold.ORDER, "a", 1, 0)
    told = told_of(case, "c1")
    assert (told.hold, told.name, told.flow_position, told.flows) == (Hold.ORDER, "a", 2, 3)
    assert told.sentence == ("tenant 'a' has had less service and goes first; the flow of tenant 'c' is number 3 of 3")


def test_the_place_is_that_of_the_node_where_the_tree_parts_first() -> None:
    """x has had a request, so y is first; within x its two users are level."""
    case = Case(a_fixed_pool(separator="/"))
    case.arrive("x", "x/0")
    for tenant in ("x/1", "x/2", "y/0"):
        case.arrive(tenant, tenant)
    told = told_of(case, "x/2")
    assert (told.hold, told.name, told.flow_position, told.flows) == (Hold.ORDER, "y/0", 1, 2)


@pytest.mark.parametrize("node", ["org", "org/team", "org/team/a"])
def test_the_node_whose_cap_holds_it(node: str) -> None:
    case = Case(a_fixed_pool(slots=9, separator="/", tenants={node: TenantPolicy(max_in_flight=2)}))
    for i in range(4):
        case.arrive(f"r{i}", "org/team/a")
    told = told_of(case, "r3")
    assert (told.hold, told.name, told.value, told.limit, told.ahead_in_flow) == (Hold.TENANT_CAP, node, 2, 2, 1)
    assert told.next == "one of its requests ends"


def test_a_class_at_its_cap() -> None:
    case = Case(a_fixed_pool(a_class(max_in_flight=2), slots=9))
    fill(case, 2)
    case.arrive("r", "t")
    assert cause(case, "r") == (Hold.CLASS_CAP, "interactive", 2, 2)


def test_why_another_class_goes_first() -> None:
    classes = (a_class(), a_class("default", 1, min_share=0.5), a_class("batch", 2, promote_after_s=5.0))
    case = Case(a_fixed_pool(*classes))
    inside = fill(case, 1)
    case.arrive("i", "a")
    case.arrive("d", "b", "default")
    case.arrive("b", "c", "batch")
    assert cause(case, "b") == (Hold.HIGHER_CLASS, "interactive", 1.0, 0.0)
    assert told_of(case, "b").sentence == "1 requests of class 'interactive' go first"
    assert drain(case, inside, 1) == ["i"]
    case.arrive("j", "a")
    assert cause(case, "j") == (Hold.HIGHER_CLASS, "default", 1.0, 0.0)
    assert told_of(case, "j").sentence == "class 'default' has had less than its min_share and goes first"
    assert cause(case, "d") == (Hold.WINDOW, "fixed", 1, 1)
    assert drain(case, inside, 1) == ["d"]
    case.arrive("e", "b", "default")
    case.end("j")
    case.tick(5.0)
    assert cause(case, "e") == (Hold.HIGHER_CLASS, "batch", 1.0, 0.0)
    assert "has waited for its promote_after" in told_of(case, "e").sentence


def test_a_lower_class_that_its_own_gate_holds_is_not_blamed() -> None:
    case = Case(a_fixed_pool(*two_classes(min_share=0.5, gates=Gates(max_waiting=1))))
    fill(case, 1)
    case.page(running=1, waiting=1)
    case.arrive("b", "t", "batch")
    case.arrive("i", "u")
    case.end("fill-interactive-0")
    case.arrive("j", "u")
    assert case.scheduler.by_name["batch"].behind(case.scheduler.share_v)
    assert cause(case, "j") == (Hold.WINDOW, "fixed", 1, 1)
    assert cause(case, "b") == (Hold.GATE, "max_waiting", 1, 1)


def test_a_class_that_leaves_room_does_not_blame_the_one_below() -> None:
    classes = (a_class(), a_class("default", 1, headroom=0.05), a_class("batch", 2))
    case = Case(a_fixed_pool(*classes, slots=20))
    names = fill(case, 10)
    case.now += 3_600.0
    for name in names:
        case.end(name)
    for i in range(6):  # P(X <= 15) = 0.951 for a mean of 10: four
        case.arrive(f"d{i}", "t", "default")
    for i in range(17):
        case.arrive(f"b{i}", "t", "batch")
    assert cause(case, "d4") == (Hold.HEADROOM, "default", 4, 4)
    assert cause(case, "b16")[0] is Hold.WINDOW


def test_the_gate_and_where_it_is_closed() -> None:
    case = Case(a_fixed_pool(a_class(gates=Gates(max_kv_usage=0.9)), slots=4), endpoints=(E1, E2))
    case.page(E1, kv_usage=0.95)
    case.page(E2, kv_usage=0.99)
    case.arrive("r")
    told = told_of(case, "r")
    assert (told.hold, told.name, told.value, told.limit) == (Hold.GATE, "max_kv_usage", 0.95, 0.9)
    assert told.sentence == (
        "a gate of class 'interactive' is closed everywhere: "
        f"{E1}: max_kv_usage is 0.95, limit 0.9; {E2}: max_kv_usage is 0.99, limit 0.9"
    )
    assert told.next == "a page shows the signal within its limit"


def test_a_gate_at_one_endpoint_and_no_room_at_the_other() -> None:
    case = Case(a_fixed_pool(a_class(gates=Gates(max_kv_usage=0.9))), endpoints=(E1, E2))
    fill(case, 1)
    case.page(E2, kv_usage=0.95)
    case.arrive("r")
    told = told_of(case, "r")
    assert (told.hold, told.name, told.value, told.limit) == (Hold.WINDOW, "fixed", 1, 1)
    assert f"{E1} (fresh) holds 1 of ours and 0 others, limit 1.0 (fixed: 1 of 1)" in told.sentence
    assert f"{E2}: max_kv_usage is 0.95, limit 0.9" in told.sentence


def test_the_wait_is_the_cost_before_it_at_the_rate_of_the_last_half_minute() -> None:
    """One a second for two minutes. The fifth of t waits behind four of its own and four of u: 8 s."""
    case = Case(a_fixed_pool(a_class(queue_timeout_s=600.0)), checked=False)
    inside = fill(case, 1)
    for i in range(120):
        case.arrive(f"w{i}", "w")
        case.now += 1.0
        drain(case, inside, 1)
    for i in range(5):
        case.arrive(f"t{i}", "t")
        case.arrive(f"u{i}", "u")
    told = told_of(case, "t4")
    assert (told.ahead_in_flow, told.timeout_in_s) == (4, pytest.approx(599.7))
    assert told.estimated_wait_s == pytest.approx(8.0, rel=0.05)
    assert told_of(case, "t0").estimated_wait_s == 1.0  # never less is told


def test_no_wait_is_estimated_where_nothing_goes_or_nothing_has_gone() -> None:
    """Whatever went before: what is paused waits for an operator, and what has no endpoint for one. That holds for
    those behind the first of their flow too."""
    policy = a_fixed_pool(a_class(queue_timeout_s=600.0))
    case = Case(policy, checked=False)
    inside = fill(case, 1)
    case.arrive("first")
    case.arrive("second")
    just_now = explain(case.scheduler, "second", case.now)  # no rate without time
    assert just_now is not None and just_now.estimated_wait_s is None
    case.now += 1.0
    drain(case, inside, 1)
    case.now += 1.0
    known = told_of(case, "second")
    assert known.hold is Hold.WINDOW
    assert known.estimated_wait_s == 1.0

    case.arrive("third")
    case.reconfigure(replace(policy, traffic=Traffic.PAUSED))
    assert [told_of(case, name).estimated_wait_s for name in ("second", "third")] == [None, None]
    case.reconfigure(policy)
    assert told_of(case, "third").estimated_wait_s is not None
    case.scrape_fails(E1, refused=True)
    assert [told_of(case, name).hold for name in ("second", "third")] == [Hold.NO_ENDPOINT, Hold.FLOW]
    assert [told_of(case, name).estimated_wait_s for name in ("second", "third")] == [None, None]


def test_what_time_alone_has_opened_is_told_as_such() -> None:
    case = Case(a_fixed_pool(), read=False)
    case.arrive("r")
    assert released(case.effects) == []
    told = explain(case.scheduler, "r", case.now + 2.5)
    assert told is not None
    assert (told.hold, told.value, told.next) == (Hold.WINDOW, None, "the next event: there is room by now")


def test_explain_when_no_endpoint_can_take_it() -> None:
    case = Case(endpoints=())
    case.arrive("r")
    assert the_hold(case, "r")[0] is Hold.NO_ENDPOINT
    assert "there is none" in the_hold(case, "r")[2]
    case.add(E1)
    assert (the_hold(case, "r")[0], f"{E1} is starting" in the_hold(case, "r")[2]) == (Hold.NO_ENDPOINT, True)
    case.scrape_fails(E1, refused=True)
    assert (the_hold(case, "r")[0], f"{E1} is down" in the_hold(case, "r")[2]) == (Hold.NO_ENDPOINT, True)


def test_an_outage_whose_policy_is_to_hold() -> None:
    window = WindowPolicy(controller=Controller.FIXED, fixed=1, outage=Outage.HOLD)
    case = Case(replace(a_fixed_pool(), window=window))
    case.now += 31.0
    case.arrive("r")
    told = told_of(case, "r")
    assert (told.hold, told.name, told.value, told.limit) == (Hold.NO_ENDPOINT, "m", None, None)
    assert told.sentence == (f"no endpoint can take it: {E1} is without a page for half a minute (outage: hold)")
    assert told.next == "an endpoint answers"


def test_explain_does_not_blame_a_higher_class_that_is_all_capped() -> None:
    case = Case(a_pool(*two_classes(), start=2, tenants={"small": TenantPolicy(max_in_flight=1)}))
    case.arrive("s0", "small")
    case.arrive("s1", "small")
    case.arrive("b0", "b", "batch")
    case.arrive("b1", "b", "batch")
    assert the_hold(case, "b1")[0] is Hold.WINDOW


def test_explain_times_and_states() -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("r")
    case.now += 7.0
    case.page(running=1, waiting=3)
    told = explain(case.scheduler, "r", case.now)
    assert told is not None
    assert (told.state, told.waited_s, told.timeout_in_s) == (State.QUEUED, 7.0, 53.0)
    case.end("fill-interactive-0")
    case.now += 2.0
    told = explain(case.scheduler, "r", case.now)
    assert told is not None
    assert (told.state, told.hold, told.waited_s) == (State.RELEASED, None, 7.0)
    assert f"with {E1} since 2.0 s" in told.sentence
    case.end("r")
    told = explain(case.scheduler, "r", case.now)
    assert told is not None and told.state is State.ENDED
    assert told.next == "its token count comes, or is given up"
    assert explain(case.scheduler, "nobody", case.now) is None


def test_view_and_flows() -> None:
    case = Case(a_pool(*two_classes(), start=2, tenants={"a": TenantPolicy(weight=2.0)}))
    for i in range(7):
        case.arrive(f"a{i}", "a", body_bytes=100)
    case.arrive("b0", "b", body_bytes=50)
    case.arrive("c0", "c", "batch", body_bytes=7)
    seen = view(case.scheduler, case.now)
    assert (seen.pool, seen.queued, seen.queued_bytes, seen.in_flight, seen.known) == ("m", 4, 257, 5, 9)
    assert [(c.name, c.rank, c.queued, c.in_flight, c.tenants) for c in seen.classes] == [
        ("interactive", 0, 3, 5, 2),
        ("batch", 2, 1, 0, 1),
    ]
    assert [(e.endpoint, e.in_flight, e.capacity) for e in seen.endpoints] == [(E1, 5, 2.0)]
    rows = flows(case.scheduler, 10)
    assert [(f.tenant, f.cls, f.queued, f.in_flight, f.weight) for f in rows] == [
        ("a", "interactive", 2, 5, 2.0),
        ("b", "interactive", 1, 0, 1.0),
        ("c", "batch", 1, 0, 1.0),
    ]
    assert rows[0].tag == 5 * (25 + 512) / 2  # 100 bytes are 25 tokens, 256 of output by the prior
    assert len(flows(case.scheduler, 1)) == 1


@pytest.mark.slow
def test_deadlines_of_a_mass_cancel_are_dropped() -> None:
    case = Case(endpoints=())
    for i in range(5_000):
        case.scheduler.apply(Arrive(f"r{i}", "t", "interactive", case.now, 10), case.now)
        case.scheduler.apply(End(f"r{i}"), case.now)
    assert len(case.scheduler.deadlines) <= 300
    assert case.scheduler.next_deadline() is None


def test_no_wait_is_foreseen_for_a_class_that_others_pass() -> None:
    case = Case(a_fixed_pool(*two_classes(), slots=1))
    inside = fill(case, 1, cls="batch")
    for number in range(4):
        case.arrive(f"low{number}", "t", "batch")
    for _ in range(3):  # its rate is known
        case.now += 1.0
        inside = released(case.end(inside[0]))
    assert told_of(case, "low3").estimated_wait_s is not None
    case.arrive("high", "u")
    assert the_hold(case, "low3")[0] is Hold.HIGHER_CLASS
    assert told_of(case, "low3").estimated_wait_s is None
    case.arrive("low4", "t", "batch")
    assert the_hold(case, "low4")[0] is Hold.FLOW
    assert told_of(case, "low4").estimated_wait_s is None  # those before it wait for the others, too
