"""Why a request waits, and the state as data."""

from __future__ import annotations

from scheduler_case import E1, Case, a_class, a_pool, fill, two_classes

from extproc.core.events import Arrive, End
from extproc.core.explanation import Hold, explain
from extproc.core.model import State, TenantPolicy
from extproc.core.view import flows, view

BATCH = a_class("batch", 2, max_waiting=0)


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


def test_explain_when_no_endpoint_can_take_it() -> None:
    case = Case(endpoints=())
    case.arrive("r")
    assert the_hold(case, "r")[0] is Hold.NO_ENDPOINT
    assert "there is none" in the_hold(case, "r")[2]
    case.add(E1)
    assert (the_hold(case, "r")[0], f"{E1} is starting" in the_hold(case, "r")[2]) == (Hold.NO_ENDPOINT, True)
    case.scrape_fails(E1, refused=True)
    assert (the_hold(case, "r")[0], f"{E1} is down" in the_hold(case, "r")[2]) == (Hold.NO_ENDPOINT, True)


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


def test_deadlines_of_a_mass_cancel_are_dropped() -> None:
    case = Case(endpoints=())
    for i in range(5_000):
        case.scheduler.apply(Arrive(f"r{i}", "t", "interactive", case.now, 10), case.now)
        case.scheduler.apply(End(f"r{i}"), case.now)
    assert len(case.scheduler.deadlines) <= 300
    assert case.scheduler.next_deadline() is None
