"""Who is evicted, for whom, how often, and what becomes of it. By hand: `Controller.FIXED`, so room is slots - inside.

`interactive` may have others evicted after 2 s of waiting; `batch` is preemptible. Unless said otherwise the edge tells
first bytes and has told none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, a_pool, a_sample, released, settled

from extproc.core.events import Effect, EndpointRemoved, Evict, FirstByte, Reconfigure, Scraped, Settled
from extproc.core.explanation import explain
from extproc.core.model import ClassPolicy, Gates, Pick, PickPolicy, PoolPolicy, Source, TenantPolicy, WindowPolicy
from extproc.core.reasons import Reason

INTERACTIVE = a_class(preempt_after_s=2.0)
BATCH = a_class("batch", 2, max_waiting=0, preemptible=True)


def a_preempting_pool(*classes: ClassPolicy, slots: int = 2, **changes: Any) -> PoolPolicy:
    return a_fixed_pool(*(classes or (INTERACTIVE, BATCH)), slots=slots, **changes)


def a_full_case(policy: PoolPolicy | None = None, *, batch: int = 2, **options: Any) -> Case:
    """`batch` requests b0, b1, ... of tenant "low" inside, and nothing else has room."""
    case = Case(policy or a_preempting_pool(), **options)
    for i in range(batch):
        assert released(arrive(case, f"b{i}", "low", "batch")) == [f"b{i}"]
    return case


def arrive(case: Case, name: str, tenant: str = "high", cls: str = "interactive", **fields: Any) -> list[Effect]:
    return case.arrive(name, tenant, cls, **({"first_byte_seen": True} | fields))


def evicted(effects: Sequence[Effect]) -> list[str]:
    return [e.id for e in effects if isinstance(e, Evict)]


# -- the need -------------------------------------------------------------------------------------


def test_the_newest_goes_when_one_has_waited_for_long_enough() -> None:
    case = a_full_case()
    arrive(case, "i0")
    assert case.scheduler.next_deadline() == case.now + 2.0
    assert case.tick(1.9) == []
    (evict,) = case.tick(0.1)
    assert isinstance(evict, Evict)
    assert (evict.id, evict.tenant, evict.cls, evict.reason) == ("b1", "low", "batch", Reason.PREEMPTED)
    assert evict.inside_s == pytest.approx(2.0)
    assert evict.retry_after_s >= 1
    assert "class 'interactive' has waited for 2.0 s" in evict.message


def test_its_slot_is_taken_until_its_stream_has_ended() -> None:
    case = a_full_case()
    arrive(case, "i0")
    case.tick(2.0)
    assert case.tick(0.01) == []
    assert released(case.end("b1")) == ["i0"]


def test_without_a_need_nobody_goes() -> None:
    case = a_full_case(batch=2)
    assert evicted(case.tick(100.0)) == []
    arrive(case, "b2", "low", "batch")
    assert evicted(case.tick(50.0)) == []  # a preemptible one that waits is no need


def test_a_class_without_preempt_after_evicts_nobody() -> None:
    case = a_full_case(a_preempting_pool(a_class(), BATCH))
    arrive(case, "i0")
    assert evicted(case.tick(59.0)) == []


def test_a_class_that_is_not_preemptible_loses_nobody() -> None:
    case = a_full_case(a_preempting_pool(INTERACTIVE, replace(BATCH, preemptible=False)))
    arrive(case, "i0")
    assert evicted(case.tick(59.0)) == []
    assert [r.reason for r in case.tick(2.0) if hasattr(r, "reason")] == [Reason.QUEUE_TIMEOUT]


def test_only_lower_classes_lose() -> None:
    """The own class and a higher one are preemptible here, and are left alone."""
    classes = (a_class("top", 0, preemptible=True), a_class("mid", 1, preemptible=True, preempt_after_s=1.0))
    case = Case(a_preempting_pool(*classes))
    arrive(case, "t0", cls="top")
    arrive(case, "m0", cls="mid")
    arrive(case, "m1", cls="mid")
    assert evicted(case.tick(10.0)) == []


def test_the_wait_counts_from_the_first_arrival() -> None:
    """A replay through another replica does not begin anew."""
    case = a_full_case()
    assert evicted(arrive(case, "i0", arrival=case.now - 5.0)) == ["b1"]


def test_one_behind_another_of_a_class_that_does_not_ask_is_no_need() -> None:
    """The free slot would go to `top`, which asks for nothing."""
    case = a_full_case(a_preempting_pool(a_class("top", 0), a_class("mid", 1, preempt_after_s=1.0), BATCH))
    arrive(case, "t0", cls="top")
    arrive(case, "m0", cls="mid")
    assert evicted(case.tick(10.0)) == []


# -- candidates -----------------------------------------------------------------------------------


def test_not_after_the_first_byte() -> None:
    case = a_full_case()
    case.apply(FirstByte("b1"))
    arrive(case, "i0")
    assert evicted(case.tick(2.0)) == ["b0"]


def test_not_after_the_first_token_either() -> None:
    case = a_full_case()
    case.first_token("b1")
    arrive(case, "i0")
    assert evicted(case.tick(2.0)) == ["b0"]


def test_not_where_the_edge_does_not_tell_first_bytes() -> None:
    case = Case(a_preempting_pool())
    arrive(case, "b0", "low", "batch", first_byte_seen=False)
    arrive(case, "b1", "low", "batch", first_byte_seen=False)
    arrive(case, "i0")
    assert evicted(case.tick(10.0)) == []


def test_after_the_first_byte_if_configured() -> None:
    case = Case(a_preempting_pool(preempt_after_first_byte=True))
    arrive(case, "b0", "low", "batch", first_byte_seen=False)
    arrive(case, "b1", "low", "batch")
    case.apply(FirstByte("b1"))
    case.first_token("b1")
    arrive(case, "i0")
    assert evicted(case.tick(2.0)) == ["b1"]


def test_not_what_has_been_counted_already() -> None:
    """Its answer is out; only its stream has not ended yet."""
    case = a_full_case()
    case.usage("b1", 10, 10)
    arrive(case, "i0")
    assert evicted(case.tick(2.0)) == ["b0"]


def test_not_what_went_by_its_classs_share() -> None:
    """batch has a quarter. The true-up of i0 takes V past batch's tag: it is behind, and goes before i1."""
    classes = (INTERACTIVE, replace(BATCH, min_share=0.25))
    case = Case(a_preempting_pool(*classes, slots=1))
    arrive(case, "i0", max_output=1)
    arrive(case, "b0", "low", "batch")
    arrive(case, "i1")
    case.usage("i0", 5_000, 1)
    assert released(case.end("i0")) == ["b0"]
    assert case.scheduler.requests["b0"].guaranteed
    assert evicted(case.tick(10.0)) == []


def test_not_what_was_promoted() -> None:
    classes = (INTERACTIVE, replace(BATCH, promote_after_s=1.0))
    case = Case(a_preempting_pool(*classes, slots=1))
    arrive(case, "i0")
    arrive(case, "b0", "low", "batch")
    case.now += 1.0
    arrive(case, "i1")
    assert released(case.end("i0")) == ["b0"]
    assert evicted(case.tick(10.0)) == []


# -- it must help ---------------------------------------------------------------------------------


def test_not_where_the_tenants_own_cap_holds_it() -> None:
    policy = a_preempting_pool(tenants={"high": TenantPolicy(max_in_flight=1)})
    case = Case(policy)
    arrive(case, "i0")
    arrive(case, "b0", "low", "batch")
    arrive(case, "i1")
    assert evicted(case.tick(10.0)) == []


def test_not_where_the_classs_cap_holds_it() -> None:
    case = Case(a_preempting_pool(replace(INTERACTIVE, max_in_flight=1), BATCH))
    arrive(case, "i0")
    arrive(case, "b0", "low", "batch")
    arrive(case, "i1", "another")
    assert evicted(case.tick(10.0)) == []


def test_not_where_a_rate_holds_it() -> None:
    case = a_full_case(a_preempting_pool(tenants={"high": TenantPolicy(rate=1.0, rate_burst=0.0)}, slots=3))
    arrive(case, "i0")  # takes the third slot, and the rate for 768 s
    arrive(case, "i1")
    assert evicted(case.tick(10.0)) == []


def test_not_where_a_gate_is_closed() -> None:
    case = a_full_case(a_preempting_pool(replace(INTERACTIVE, gates=Gates(max_waiting=3)), BATCH))
    arrive(case, "i0")
    case.now += 2.0
    assert evicted(case.apply(Scraped(E1, a_sample(2, 3, case.now)))) == []
    case.now += 0.1
    assert evicted(case.apply(Scraped(E1, a_sample(2, 0, case.now)))) == ["b1"]


def test_not_where_foreign_load_alone_fills_the_engine() -> None:
    """4 slots and a standing queue of 3: 7 may be inside. 2 of ours run beside 20 others: one less is 21."""
    case = Case(a_pool(INTERACTIVE, BATCH, window=WindowPolicy(start=4.0, overtake=0)))
    for i in range(2):
        arrive(case, f"b{i}", "low", "batch")
    case.page(running=22)
    arrive(case, "i0")
    for _ in range(20):  # the page stays fresh
        case.now += 0.25
        assert evicted(case.page(running=22)) == []


def test_from_an_endpoint_that_would_take_it_only() -> None:
    case = Case(a_preempting_pool(slots=1), endpoints=(E1, E2))
    arrive(case, "b0", "low", "batch")
    arrive(case, "b1", "low", "batch")
    assert [case.scheduler.requests[b].endpoint for b in ("b0", "b1")] == [E1, E2]
    case.apply(EndpointRemoved(E2))
    arrive(case, "i0")
    assert evicted(case.tick(2.0)) == ["b0"]


def test_a_wide_one_goes_as_soon_as_one_slot_would_idle() -> None:
    """Four choices need one eviction, as they need one slot to be free."""
    case = a_full_case()
    arrive(case, "i0", n=4)
    assert evicted(case.tick(2.0)) == ["b1"]
    assert released(case.end("b1")) == ["i0"]
    assert evicted(case.tick(10.0)) == []


def test_an_overfull_window_loses_as_many_as_it_takes() -> None:
    """Four inside, and room is made for two: three have to leave, the newest first, one a second."""
    case = a_full_case(a_preempting_pool(slots=4), batch=4)
    arrive(case, "i0")
    case.apply(Reconfigure(a_preempting_pool(slots=2)))
    gone = []
    for _ in range(4):
        gone += evicted(case.tick(2.0))
        for name in gone:
            case.end(name)
    assert gone == ["b3", "b2", "b1"]
    assert case.scheduler.requests["i0"].endpoint == E1


def test_more_than_four_are_not_sent_away_for_one() -> None:
    case = a_full_case(a_preempting_pool(slots=6), batch=6)
    arrive(case, "i0")
    case.apply(Reconfigure(a_preempting_pool(slots=2)))
    assert evicted(case.tick(2.0)) == []


def test_prompts_that_fill_the_kv_cache() -> None:
    """1,000 tokens of cache, 920 of them planned with. Two prompts of 400 are in it: a third needs one to leave."""
    case = Case(a_pool(INTERACTIVE, BATCH, window=WindowPolicy(start=100.0)))
    case.page(kv_capacity_tokens=1_000, kv_usage=0.0)
    for i in range(2):
        assert released(arrive(case, f"b{i}", "low", "batch", prompt_tokens=400, max_output=10)) == [f"b{i}"]
    arrive(case, "i0", prompt_tokens=400, max_output=10)
    assert case.scheduler.requests["i0"].endpoint is None
    for _ in range(8):
        case.now += 0.25
        effects = case.page(running=2, kv_capacity_tokens=1_000, kv_usage=0.8)
    assert evicted(effects) == ["b1"]
    assert released(case.end("b1")) == ["i0"]


# -- how often ------------------------------------------------------------------------------------


def test_not_twice_for_the_same_need() -> None:
    case = a_full_case()
    arrive(case, "i0")
    assert evicted(case.tick(2.0)) == ["b1"]
    assert evicted(case.tick(30.0)) == []  # the stream of b1 takes its time


def test_one_a_second_whatever_waits() -> None:
    case = a_full_case(a_preempting_pool(slots=8), batch=8)
    for i in range(8):
        arrive(case, f"i{i}", f"t{i}")
    case.now += 2.0
    times = []
    for _ in range(400):
        for name in evicted(case.tick(0.01)):
            times.append(case.now)
            case.end(name)
    assert len(times) == 4
    assert all(later - earlier >= 1.0 - 1e-9 for earlier, later in pairwise(times))


def test_the_next_deadline_is_when_the_rate_allows_it() -> None:
    case = a_full_case(a_preempting_pool(preempt_per_s=0.5))
    arrive(case, "i0", "x")
    arrive(case, "i1", "y")
    case.tick(2.0)
    case.end("b1")
    assert case.scheduler.next_deadline() == case.now + 2.0
    assert evicted(case.tick(1.9)) == []
    assert evicted(case.tick(0.1)) == ["b0"]


@pytest.mark.parametrize("per_s", [0.5, 1.0, 3.0, 100.0])
def test_no_second_has_more_than_are_allowed(per_s: float) -> None:
    case = a_full_case(a_preempting_pool(slots=40, preempt_per_s=per_s), batch=40, checked=False)
    for i in range(40):
        arrive(case, f"i{i}", f"t{i}")
    case.now += 2.0
    times = []
    for _ in range(3_000):
        for name in evicted(case.tick(0.001)):
            times.append(case.now)
            case.end(name)
    assert len(times) == min(40, 1 + int(per_s * 2.999))
    for start in times:
        assert sum(start <= at < start + 1.0 - 1e-9 for at in times) <= max(1, per_s)


def test_what_does_not_help_is_not_tried_again_at_once() -> None:
    """A look in vain costs as much as there is inside; it wakes nobody, and the next one is 0.1 s later."""
    case = a_full_case(a_preempting_pool(slots=6), batch=6)
    arrive(case, "i0")
    case.apply(Reconfigure(a_preempting_pool(slots=2)))
    case.tick(2.0)
    assert case.scheduler.next_deadline() == case.now - 2.0 + 60.0  # its timeout
    case.end("b0")
    case.end("b1")  # now three are enough, but it has just been looked at
    assert evicted(case.tick(0.05)) == []
    assert evicted(case.tick(0.05)) == ["b5"]


# -- what becomes of it ---------------------------------------------------------------------------


@pytest.mark.parametrize("source", [*Source, None])
def test_nothing_is_charged_for_it(source: Source | None) -> None:
    """Whatever the log says, and if it says nothing."""
    case = a_full_case()
    before = case.tag("low", "batch")
    charge = case.scheduler.requests["b1"].charged
    arrive(case, "i0")
    case.tick(2.0)
    case.end("b1")
    effects = case.tick(5.0) if source is None else case.usage("b1", 1_000, 1_000, source=source)
    (told,) = [e for e in effects if isinstance(e, Settled)]
    assert (told.id, told.cost, told.source) == ("b1", 0.0, Source.ERROR)
    assert case.tag("low", "batch") == pytest.approx(before - charge)


def test_nothing_is_learnt_from_it() -> None:
    case = a_full_case()
    arrive(case, "i0")
    case.tick(2.0)
    case.usage("b1", 10_000, 10_000)
    case.end("b1")
    assert len(case.scheduler.estimator) == 0


def test_its_class_does_not_take_the_free_slot_by_its_share() -> None:
    """A share of a half. old: V = 258. b0: V = 1,026, tag = 258 + 1,536. b1: V = 1,794, tag = 1,794 + 1,536 = 3,330.
    old costs 1,000 more: V = 2,794. Without b1's 768: V = 2,026, which would be above a tag of 3,330 - 1,536."""
    case = Case(a_preempting_pool(INTERACTIVE, replace(BATCH, min_share=0.5)))
    arrive(case, "old", max_output=1)
    case.end("old")
    for i in range(3):
        arrive(case, f"b{i}", "low", "batch")
    case.usage("old", 1_256, 1)
    (_, batch) = case.scheduler.classes
    assert (case.scheduler.share_v, batch.share_tag) == (2_794.0, 3_330.0)
    arrive(case, "i0")
    case.tick(2.0)
    case.usage("b1", None, None, source=Source.ERROR)  # before the end of its stream
    assert released(case.end("b1")) == ["i0"]


def test_it_may_come_again() -> None:
    case = a_full_case()
    arrive(case, "i0")
    case.tick(2.0)
    case.end("b1")
    arrive(case, "b1-again", "low", "batch")
    assert released(case.end("i0")) == ["b1-again"]


def test_one_whose_client_leaves_first_is_as_any_other() -> None:
    case = a_full_case()
    arrive(case, "i0")
    case.tick(1.0)
    case.end("b1")
    assert evicted(case.tick(5.0)) == []


def test_the_one_that_waited_leaves_and_the_slot_is_anybodys() -> None:
    case = a_full_case()
    arrive(case, "i0")
    case.tick(2.0)
    case.end("i0")
    arrive(case, "b2", "low", "batch")
    assert released(case.end("b1")) == ["b2"]
    assert settled(case.tick(5.0)) == [("b1", 0.0)]


# -- policy ---------------------------------------------------------------------------------------


def test_switched_on_while_it_runs() -> None:
    """What is inside counts from then on; in the order of their releases, also where that was not that of arrivals."""
    off = a_preempting_pool(a_class(), replace(BATCH, preemptible=False))
    case = Case(off)
    arrive(case, "b0", "low", "batch")
    arrive(case, "b1", "low", "batch")
    arrive(case, "b2", "low", "batch")
    arrive(case, "b3", "other", "batch", arrival=case.now - 50.0)
    case.end("b0")  # of two tenants the one with less goes: b3 before b2
    assert case.scheduler.requests["b3"].endpoint == E1
    arrive(case, "i0", arrival=case.now - 3.0)
    assert evicted(case.apply(Reconfigure(a_preempting_pool()))) == ["b3"]


def test_switched_off_while_one_is_leaving() -> None:
    case = a_full_case()
    arrive(case, "i0")
    case.tick(2.0)
    case.apply(Reconfigure(a_preempting_pool(a_class(), replace(BATCH, preemptible=False))))
    assert released(case.end("b1")) == ["i0"]
    assert settled(case.tick(5.0)) == [("b1", 0.0)]
    assert case.scheduler.preemption.leaving == {}


# -- why ------------------------------------------------------------------------------------------


def test_explain_says_what_may_come() -> None:
    case = a_full_case()
    arrive(case, "i0")
    case.tick(0.5)
    told = explain(case.scheduler, "i0", case.now)
    assert told is not None
    assert "in 1.5 s at the soonest one of a lower class is evicted for it" in told.next
    case.tick(1.5)
    told = explain(case.scheduler, "i0", case.now)
    assert told is not None
    assert "the stream of a request that is evicted ends" in told.next
    gone = explain(case.scheduler, "b1", case.now)
    assert gone is not None
    assert "has been evicted" in gone.sentence
    assert gone.next == "its stream ends"


def test_explain_says_nothing_of_it_where_nobody_can_go() -> None:
    case = a_full_case(a_preempting_pool(INTERACTIVE, replace(BATCH, preemptible=False)))
    arrive(case, "i0")
    told = explain(case.scheduler, "i0", case.now)
    assert told is not None
    assert "evicted" not in told.next


@pytest.mark.parametrize("per_s", [0.0, -1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(per_s: float) -> None:
    with pytest.raises(ValueError, match="preempt_per_s of pool 'm' must be a number"):
        Case(a_preempting_pool(preempt_per_s=per_s))


def test_a_wait_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="preempt_after_s of class 'interactive' must be a number"):
        Case(a_preempting_pool(replace(INTERACTIVE, preempt_after_s=-1.0), BATCH))


# -- where Envoy chooses the endpoints ------------------------------------------------------------


def test_where_envoy_chooses_whoever_leaves_makes_room_for_all() -> None:
    policy = a_preempting_pool(slots=1, pick=PickPolicy(by=Pick.ENVOY))
    case = a_full_case(policy, endpoints=(E1, E2))
    arrive(case, "i0")
    assert evicted(case.tick(2.0)) == ["b1"]
    arrive(case, "i1")
    assert evicted(case.tick(1.9)) == []  # the slot that becomes free is for i0, and i1 has not waited for long enough
    assert released(case.end("b1")) == ["i0"]
    assert evicted(case.tick(0.1)) == ["b0"]


def test_where_envoy_chooses_an_explanation_speaks_of_all_endpoints_together() -> None:
    policy = a_preempting_pool(slots=1, pick=PickPolicy(by=Pick.ENVOY))
    case = a_full_case(policy, endpoints=(E1, E2))
    arrive(case, "i0")
    told = explain(case.scheduler, "i0", case.now)
    assert told is not None
    assert (told.value, told.limit) == (2, 2.0)
    assert told.sentence == "it is next; the endpoints together hold 2 of ours and 0 others, limit 2.0"
