"""Pause, resume and drain a pool, and take single requests back, as operators do."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from scheduler_case import (
    E1,
    E2,
    FIRST_CHARGE,
    Case,
    a_class,
    a_fixed_pool,
    drain,
    fill,
    refused,
    released,
    settled,
    the_refusal,
    two_classes,
)

from extproc.core.events import Cancel, Effect, EndpointAdded, Evict, Reconfigure, Unreachable
from extproc.core.explanation import Hold, explain
from extproc.core.model import PoolPolicy, TenantPolicy, Traffic
from extproc.core.player import Player
from extproc.core.recording import Clock, Header, Names, Reader, header_to_plain, record_to_plain
from extproc.core.scheduler import Scheduler
from extproc.core.view import request_view, view


def paused(policy: PoolPolicy) -> PoolPolicy:
    return replace(policy, traffic=Traffic.PAUSED)


def draining(policy: PoolPolicy) -> PoolPolicy:
    return replace(policy, traffic=Traffic.DRAINING)


def evicted(effects: list[Effect]) -> list[str]:
    return [effect.id for effect in effects if isinstance(effect, Evict)]


# -- paused ------------------------------------------------------------------------------------------


def test_a_paused_pool_takes_in_and_releases_nothing_and_goes_on_within_the_event_that_resumes_it() -> None:
    policy = a_fixed_pool(a_class(), slots=3)
    case = Case(paused(policy))
    assert [case.arrive(f"r{i}") for i in range(4)] == [[], [], [], []]
    assert view(case.scheduler, case.now).traffic is Traffic.PAUSED
    assert released(case.reconfigure(policy)) == ["r0", "r1", "r2"]
    assert view(case.scheduler, case.now).traffic is Traffic.OPEN
    assert case.reconfigure(paused(policy)) == []
    assert case.end("r0") == []
    assert released(case.reconfigure(policy)) == ["r3"]


RATED = {"a": TenantPolicy(rate=1000.0, rate_burst=1.0)}
MOODY = a_fixed_pool(
    a_class(preempt_after_s=1.0, queue_timeout_s=1000.0),
    a_class("batch", 2, queue_timeout_s=1000.0, max_waiting=0, preemptible=True),
    slots=2,
    tenants=RATED,
)
PROMOTING = replace(MOODY, classes=(MOODY.classes[0], replace(MOODY.classes[1], promote_after_s=1.0, min_share=0.2)))

HAPPENINGS: dict[str, Callable[[Case], object]] = {
    "an arrival": lambda case: case.arrive("new", "n"),
    "an end": lambda case: case.end("fill-batch-0"),
    "a token count that a rate waits for": lambda case: case.usage("fill-batch-0", 0, 0),
    "a page": lambda case: case.page(running=0),
    "a page of an endpoint that comes": lambda case: (case.add(E2), case.page(E2)),
    "a tick": lambda case: case.tick(),
    "a rate that is ready, a promotion, an eviction that is due": lambda case: case.tick(30.0),
    "a first token": lambda case: case.first_token("fill-batch-0"),
    "a connection that fails": lambda case: case.apply(Unreachable("fill-batch-0")),
    "a cancelled one inside": lambda case: case.apply(Cancel("fill-batch-0", "x")),
    "a cancelled one that waits": lambda case: case.apply(Cancel("low", "x")),
    "another policy": lambda case: case.reconfigure(paused(replace(case.scheduler.policy, tenants={}))),
}


@pytest.mark.parametrize("policy", [MOODY, PROMOTING], ids=["moody", "promoting"])
@pytest.mark.parametrize("what", HAPPENINGS)
def test_nothing_that_happens_releases_or_evicts_while_a_pool_is_paused(what: str, policy: PoolPolicy) -> None:
    case = Case(policy)
    for i in range(2):
        case.arrive(f"fill-batch-{i}", "filler", "batch", first_byte_seen=True)
    assert case.scheduler.releases == 2
    for name, cls in (("low", "batch"), ("high", "interactive"), ("high-1", "interactive")):
        case.arrive(name, "a", cls)
    case.reconfigure(paused(policy))
    count = len(case.effects)
    HAPPENINGS[what](case)
    after = [e for e in case.effects[count:] if getattr(e, "reason", None) is None or e.reason.code != "cancelled"]  # type: ignore[union-attr]
    assert [*released(after), *evicted(after)] == []
    assert case.scheduler.releases == 2


def test_a_pause_wakes_nobody_up_but_for_timeouts() -> None:
    """A rate that is ready, an eviction that is due and a window that opens are of no use to anybody then."""
    case = Case(MOODY)
    for i in range(2):
        case.arrive(f"b{i}", "filler", "batch", first_byte_seen=True)
    case.arrive("high", "a")
    assert case.scheduler.next_deadline() == 101.0  # preempt_after
    case.reconfigure(paused(MOODY))
    assert case.scheduler.next_deadline() == 1100.0
    case.tick(50.0)
    assert case.scheduler.next_deadline() == 1100.0
    case.now = 1100.0
    assert refused(case.tick()) == [("high", "paused")]
    assert case.scheduler.next_deadline() is None
    case.arrive("next", "a")
    assert case.scheduler.next_deadline() == 2100.0


def test_many_that_time_out_together_in_a_pause_are_refused_a_few_hundred_at_a_time() -> None:
    case = Case(paused(a_fixed_pool(a_class(queue_timeout_s=5.0))), checked=False)
    for i in range(600):
        case.arrive(f"r{i}")
    assert len(refused(case.tick(5.0))) == 256
    assert case.scheduler.next_deadline() == case.now  # the others are due as well
    assert [len(refused(case.tick())) for _ in range(3)] == [256, 88, 0]
    assert case.scheduler.next_deadline() is None


def test_what_times_out_in_a_pause_is_told_so() -> None:
    case = Case(paused(a_fixed_pool(a_class(queue_timeout_s=60.0))))
    case.arrive("r")
    case.arrive("short", timeout_s=5.0)
    refusal = the_refusal(case.tick(5.0))
    assert (refusal.id, refusal.reason.code) == ("short", "paused")
    assert refusal.message == (
        "waited 5.0 s while pool 'm' is paused (traffic of the pool), and the request itself allows 5 s"
    )
    refusal = the_refusal(case.tick(55.0))
    assert refusal.message == (
        "waited 60.0 s while pool 'm' is paused (traffic of the pool), and class 'interactive' allows 60 s "
        "(queue_timeout of the class)"
    )


def test_a_pause_is_what_explains_a_request_whatever_else_holds_it() -> None:
    policy = a_fixed_pool(a_class(), tenants={"a": TenantPolicy(max_in_flight=0)})
    case = Case(policy)
    case.arrive("r", "a")
    told = explain(case.scheduler, "r", case.now)
    assert told is not None and told.hold is Hold.TENANT_CAP
    case.reconfigure(paused(policy))
    told = explain(case.scheduler, "r", case.now)
    assert told is not None
    assert (told.hold, told.name) == (Hold.PAUSED, "m")
    assert (told.sentence, told.next) == ("pool 'm' is paused (traffic of the pool)", "an operator resumes it")
    case.reconfigure(policy)
    told = explain(case.scheduler, "r", case.now)
    assert told is not None and told.hold is Hold.TENANT_CAP


def test_limits_hold_at_the_door_of_a_paused_pool() -> None:
    case = Case(paused(a_fixed_pool(a_class(max_queued=2))))
    case.arrive("r0", "a")
    case.arrive("r1", "a")
    assert refused(case.arrive("r2", "a")) == [("r2", "queue_full")]
    assert refused(case.arrive("r3", "b")) == [("r1", "shed")]


# -- paused, and hopeless ----------------------------------------------------------------------------


def a_slow_case() -> tuple[Case, PoolPolicy]:
    """One request of FIRST_CHARGE a second has gone for a minute; then the pool is paused with nine waiting."""
    policy = a_fixed_pool(a_class(fail_fast=True, queue_timeout_s=100.0), slots=1)
    case = Case(policy)
    inside = fill(case, 1)
    for i in range(70):
        case.arrive(f"r{i}")
        case.now += 1.0
        if i >= 10:
            drain(case, inside, 1)
    case.reconfigure(paused(policy))
    return case, policy


def test_an_arrival_in_a_pause_is_not_hopeless_by_a_rate_of_the_past() -> None:
    """After 80 s without a release the rate is exp(-80/30) of a request a second: ten in line would take 144 s."""
    case, _ = a_slow_case()
    case.tick(80.0)
    assert case.scheduler.queued == 9
    assert case.arrive("late") == []


def test_after_a_pause_nobody_is_hopeless_by_what_the_pause_has_measured() -> None:
    case, policy = a_slow_case()
    for _ in range(10):
        case.tick(50.0)
        case.arrive(f"more-{case.now}")
    assert case.scheduler.queued == 2  # the others have waited for 100 s
    case.reconfigure(policy)
    assert case.arrive("new") == []


def test_a_rate_that_is_used_up_for_longer_than_it_waits_is_hopeless_in_a_pause_too() -> None:
    policy = a_fixed_pool(a_class(queue_timeout_s=10.0), tenants={"a": TenantPolicy(rate=1.0)}, slots=9)
    case = Case(policy)
    assert released(case.arrive("r", "a")) == ["r"]
    case.reconfigure(paused(policy))
    assert refused(case.arrive("s", "a")) == [("s", "rate_limit")]


# -- paused, and no endpoint; paused, and a class that is gone -----------------------------------------


def test_a_pool_without_endpoints_that_is_paused_refuses_by_whichever_time_is_over() -> None:
    policy = a_fixed_pool(a_class(queue_timeout_s=100.0), no_endpoint_timeout_s=30.0)
    case = Case(paused(policy), endpoints=())
    case.arrive("r")
    case.arrive("short", timeout_s=20.0)
    assert refused(case.tick(20.0)) == [("short", "paused")]
    refusal = the_refusal(case.tick(10.0))
    assert (refusal.id, refusal.reason.code) == ("r", "no_capacity")
    assert "the pool allows 30 s (no_endpoint_timeout of the pool)" in refusal.message


def test_engines_are_restarted_behind_a_pause() -> None:
    policy = a_fixed_pool(a_class(queue_timeout_s=100.0), slots=2, no_endpoint_timeout_s=30.0)
    case = Case(policy)
    case.reconfigure(paused(policy))
    case.arrive("r")
    case.scrape_fails(refused=True)
    case.tick(20.0)
    assert case.page() == []
    assert case.scheduler.absent_since is None
    assert case.scheduler.next_deadline() == 200.0
    assert released(case.reconfigure(policy)) == ["r"]


@pytest.mark.parametrize("how", ["resume", "expire", "cancel", "leave"])
def test_a_class_that_is_gone_drains_after_the_pause(how: str) -> None:
    both, one = a_fixed_pool(*two_classes(), slots=1), a_fixed_pool(a_class(), slots=1)
    case = Case(paused(both))
    case.arrive("b", cls="batch")
    case.reconfigure(paused(one))
    assert set(case.scheduler.by_name) == {"interactive", "batch"}
    with pytest.raises(ValueError, match="class 'batch' is not one of"):
        case.arrive("late", cls="batch")
    if how == "resume":
        assert released(case.reconfigure(one)) == ["b"]
        case.end("b")
        case.usage("b", 1, 1)
    elif how == "expire":
        assert refused(case.tick(60.0)) == [("b", "paused")]
    elif how == "cancel":
        assert refused(case.apply(Cancel("b", "x"))) == [("b", "cancelled")]
    else:
        assert case.end("b") == []
    assert set(case.scheduler.by_name) == {"interactive"}
    assert case.scheduler.paused is (how != "resume")


# -- draining ----------------------------------------------------------------------------------------


def test_a_draining_pool_takes_nothing_in_and_lets_go_in_turn() -> None:
    policy = a_fixed_pool(*two_classes(), slots=1)
    case = Case(policy)
    inside = fill(case, 1)
    case.arrive("low", "a", "batch")
    case.arrive("b", "b")
    case.arrive("c", "c")
    assert case.reconfigure(draining(policy)) == []
    refusal = the_refusal(case.arrive("new", "n"))
    assert (refusal.id, refusal.reason.code, refusal.reason.status) == ("new", "draining", 503)
    assert refusal.message == "pool 'm' takes nothing more in (traffic of the pool: draining)"
    assert drain(case, inside, 3) == ["b", "c", "low"]
    assert refused(case.arrive("newer")) == [("newer", "draining")]
    case.reconfigure(policy)
    assert case.arrive("newest") == []


def test_what_waits_in_a_draining_pool_times_out_as_ever() -> None:
    policy = a_fixed_pool(a_class(queue_timeout_s=10.0))
    case = Case(policy)
    fill(case, 1)
    case.arrive("r")
    case.reconfigure(draining(policy))
    assert refused(case.tick(10.0)) == [("r", "queue_timeout")]


def test_from_paused_to_draining_what_waits_goes() -> None:
    policy = a_fixed_pool(a_class(), slots=1)
    case = Case(paused(policy))
    case.arrive("r")
    assert released(case.reconfigure(draining(policy))) == ["r"]


# -- cancel ------------------------------------------------------------------------------------------


def test_a_held_one_is_refused_and_its_books_are_closed() -> None:
    case = Case(a_fixed_pool(a_class()))
    fill(case, 1)
    case.arrive("r", body_bytes=500)
    refusal = the_refusal(case.apply(Cancel("r", "runaway job")))
    assert (refusal.id, refusal.reason.code, refusal.reason.status) == ("r", "cancelled", 503)
    assert (refusal.message, refusal.waited_s) == ("runaway job", 0.0)
    assert (case.scheduler.queued, case.scheduler.queued_bytes, case.scheduler.held_bytes) == (0, 0, {})
    assert case.scheduler.next_deadline() is None
    assert case.apply(Cancel("r", "again")) == []
    assert case.end("r") == []
    assert case.arrive("r") == []  # the id is free


def test_what_stood_behind_a_cancelled_one_goes_within_the_event() -> None:
    """The first in line may go to an idle engine only, as its class says: nobody passes it."""
    policy = a_fixed_pool(a_class(idle_only=True), a_class("batch", 2), slots=2)
    case = Case(policy)
    case.page(waiting=1)
    case.arrive("first")
    case.arrive("behind", cls="batch")
    assert case.scheduler.queued == 2
    effects = case.apply(Cancel("first", "x"))
    assert refused(effects) == [("first", "cancelled")]
    assert released(effects) == ["behind"]


def test_one_inside_is_evicted_and_keeps_its_slot_until_its_stream_ends() -> None:
    case = Case(a_fixed_pool(a_class()))
    case.arrive("r", "a")
    case.arrive("next", "b")
    case.now += 3.0
    (effect,) = case.apply(Cancel("r", "by hand"))
    assert isinstance(effect, Evict)
    assert (effect.id, effect.reason.code, effect.message, effect.inside_s) == ("r", "cancelled", "by hand", 3.0)
    assert request_view(case.scheduler.requests["r"], case.now).evicted
    assert case.apply(Cancel("r", "again")) == []
    assert case.tick() == []
    told = explain(case.scheduler, "r", case.now)
    assert told is not None
    assert told.sentence == f"it is with {E1} since 3.0 s, and has been evicted, for a higher class or by an operator"
    assert released(case.end("r")) == ["next"]
    assert case.scheduler.preemption.leaving == {}
    assert settled(case.usage("r", 500, 500)) == [("r", 0.0)]


def test_one_whose_answer_has_begun_or_whose_cost_is_final_can_be_taken_back_too() -> None:
    case = Case(a_fixed_pool(a_class(), slots=2))
    case.arrive("begun")
    case.first_token("begun")
    case.arrive("settled")
    assert settled(case.usage("settled", 256, 256)) == [("settled", FIRST_CHARGE)]
    assert evicted(case.apply(Cancel("begun", "x"))) == ["begun"]
    assert evicted(case.apply(Cancel("settled", "x"))) == ["settled"]
    case.end("begun")
    assert case.end("settled") == []
    assert set(case.scheduler.requests) == {"begun"}  # its token count may come yet
    assert case.scheduler.preemption.leaving == {}


def test_one_that_is_over_and_one_that_nobody_knows_are_left_alone() -> None:
    case = Case(a_fixed_pool(a_class()))
    case.arrive("r")
    case.end("r")
    assert case.apply(Cancel("r", "x")) == []
    assert case.apply(Cancel("nobody", "x")) == []
    assert settled(case.usage("r", 256, 256)) == [("r", FIRST_CHARGE)]


def test_one_that_is_preempted_already_is_not_taken_back_twice() -> None:
    policy = a_fixed_pool(a_class(preempt_after_s=0.0), a_class("batch", 2, preemptible=True))
    case = Case(policy)
    case.arrive("b", "b", "batch", first_byte_seen=True)
    assert evicted(case.arrive("i")) == ["b"]
    assert case.apply(Cancel("b", "x")) == []
    assert released(case.end("b")) == ["i"]


def test_what_is_cancelled_is_room_that_is_coming_so_nobody_is_evicted_for_the_same_need() -> None:
    policy = a_fixed_pool(a_class(preempt_after_s=1.0), a_class("batch", 2, preemptible=True), slots=2)
    case = Case(policy)
    for i in range(2):
        case.arrive(f"b{i}", f"b{i}", "batch", first_byte_seen=True)
    case.arrive("i")
    assert evicted(case.apply(Cancel("b0", "x"))) == ["b0"]
    assert case.tick(5.0) == []
    assert released(case.end("b0")) == ["i"]


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_tenant_is_given_back_what_it_was_charged_for_a_cancelled_one(cancelled: bool) -> None:
    """All cost the same. a had r before b came, so b starts level with a's second. Without r, a is one behind."""
    case = Case(a_fixed_pool(a_class(queue_timeout_s=1e6)))
    case.arrive("r", "a")
    for i in range(3):
        case.arrive(f"a{i}", "a")
        case.arrive(f"b{i}", "b")
    if cancelled:
        case.apply(Cancel("r", "x"))
    assert settled(case.usage("r", 256, 256)) == [("r", 0.0 if cancelled else FIRST_CHARGE)]
    assert drain(case, ["r"], 3) == (["a0", "a1", "b0"] if cancelled else ["a0", "b0", "a1"])


# -- recorded and replayed -----------------------------------------------------------------------------


def test_pauses_drains_and_cancels_are_recorded_and_play_the_same() -> None:
    policy = PROMOTING
    case = Case(policy, endpoints=())
    case.apply(EndpointAdded(E1))
    case.page()
    for i in range(12):
        case.arrive(f"r{i}", "ab"[i % 2], ("interactive", "batch")[i % 3 == 0], first_byte_seen=True)
        case.now += 0.3
    for step, traffic in enumerate((Traffic.PAUSED, Traffic.OPEN, Traffic.DRAINING, Traffic.OPEN)):
        case.reconfigure(replace(policy, traffic=traffic))
        case.arrive(f"more-{step}")
        for name in (f"r{3 * step}", f"r{3 * step + 1}"):
            case.apply(Cancel(name, "by hand"))
            case.end(name)
        case.tick(7.0)
    kinds = {type(effect).__name__ for effect in case.effects}
    assert kinds == {"Release", "Refuse", "Evict", "Settled"}

    again = Scheduler(policy)
    lines = [_line(header_to_plain(Header("0", "run", 1, "m", Clock(100.0, 0.0), (), policy)))]
    for event, now in case.events:
        lines.append(_line(record_to_plain(event, now, again.apply(event, now), Names())))
    assert sum('"cancel"' in line for line in lines) == 8
    play = Player(Reader(lines).header).play_all(Reader(lines))
    assert play.same, play.first and play.first.text()
    assert play.played["Release"] == len(released(case.effects))
    assert play.events == len(case.events)
    assert any(isinstance(event, Reconfigure) and event.policy.traffic is Traffic.PAUSED for event, _ in case.events)


def _line(value: object) -> str:
    return json.dumps(value) + "\n"
