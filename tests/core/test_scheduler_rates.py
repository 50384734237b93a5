"""Rates in cost units a second: who waits, for how long, and who is told to come back.

A request of 1,024 bytes is charged 768 units at release. A bucket without burst lets one go when it is not in debt.
"""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_case import Case, a_class, a_fixed_pool, drain, fill, refused, released, settled, the_refusal

from extproc.core import token_bucket
from extproc.core.events import Tick, Usage
from extproc.core.explanation import Hold, explain
from extproc.core.model import PoolPolicy, Source, TenantPolicy
from extproc.core.reasons import Reason


def pool(rate: float = 100.0, node: str = "a", **changes: Any) -> PoolPolicy:
    tenant = TenantPolicy(rate=rate, rate_burst=changes.pop("burst", 0.0))
    classes = (a_class(**changes.pop("of_class", {})), a_class("batch", 2))
    return a_fixed_pool(*classes, slots=changes.pop("slots", 100), tenants={node: tenant}, separator="/", **changes)


def at(case: Case, seconds: float) -> list[str]:
    """What is released at `seconds` after the start."""
    case.now = 100.0 + seconds
    return released(case.apply(Tick()))


def test_the_second_waits_until_the_first_is_paid_for() -> None:
    """768 units at 100 a second: 7.68 s. Others are not held up."""
    case = Case(pool())
    assert released(case.arrive("a0", "a")) == ["a0"]
    assert case.arrive("a1", "a") + case.arrive("a2", "a") == []
    assert released(case.arrive("b0", "b")) == ["b0"]
    assert at(case, 7.67) == []
    assert at(case, 7.69) == ["a1"]
    assert at(case, 15.3) == []
    assert at(case, 15.4) == ["a2"]


def test_a_burst_may_be_used_at_once() -> None:
    """2,000 units: two requests leave 464, a third goes into debt by 304, which is paid off after 3.04 s."""
    case = Case(pool(burst=2000.0))
    assert [released(case.arrive(f"a{i}", "a")) for i in range(4)] == [["a0"], ["a1"], ["a2"], []]
    assert at(case, 3.03) == []
    assert at(case, 3.05) == ["a3"]


def test_the_next_deadline_is_the_moment_at_which_the_bucket_lets_go() -> None:
    case = Case(pool())
    case.arrive("a0", "a")
    case.arrive("a1", "a")
    due = case.scheduler.next_deadline()
    assert due == pytest.approx(107.68)
    assert due is not None
    case.now = due
    assert released(case.apply(Tick())) == ["a1"]
    assert case.scheduler.next_deadline() is None


def test_what_it_really_took_is_taken_or_given_back() -> None:
    case = Case(pool())
    case.arrive("a0", "a")
    case.arrive("a1", "a")
    assert settled(case.usage("a0", 256, 756)) == [("a0", 1768.0)]  # 1,000 more: 10 s longer
    assert at(case, 17.67) == []
    assert at(case, 17.69) == ["a1"]  # in debt by 768 - 1 again
    case.now = 118.0
    effects = case.usage("a1", 100, 0)  # 668 given back: 99 in debt at 117.69, 68 by now
    assert settled(effects) == [("a1", 100.0)]
    case.arrive("a2", "a")
    assert at(case, 18.67) == []
    assert at(case, 18.69) == ["a2"]


def test_a_refund_that_pays_all_lets_the_next_go_in_the_same_event() -> None:
    case = Case(pool())
    case.arrive("a0", "a")
    case.arrive("a1", "a")
    case.now += 1.0
    effects = case.apply(Usage("a0", Source.ERROR))
    assert released(effects) == ["a1"]


def test_a_usage_that_never_comes_lets_the_next_go_when_it_is_given_up() -> None:
    """The charge of a0 stands: 7.68 s. What is settled by time alone can hold others, too."""
    case = Case(pool(rate=1000.0, of_class={"queue_timeout_s": 1e6}))
    case.page(itl_sum=0.0, itl_count=0.0)
    case.page(itl_sum=5.0, itl_count=100.0)
    case.arrive("a0", "a")
    case.now += 0.5
    case.end("a0")  # half a second at 50 ms: ten tokens, 276 units in place of 768
    case.arrive("a1", "a")
    assert at(case, 0.77) == ["a1"]
    (effect,) = [e for e in case.tick(5.0) if hasattr(e, "cost")]
    assert (effect.id, effect.cost) == ("a0", pytest.approx(276.0))


@pytest.mark.parametrize("node", ["org", "org/team", "org/team/a"])
def test_a_rate_at_each_level_holds_for_all_classes_together(node: str) -> None:
    case = Case(pool(node=node))
    assert released(case.arrive("r0", "org/team/a")) == ["r0"]
    assert case.arrive("r1", "org/team/a", "batch") == []
    assert released(case.arrive("r2", "org/team/b")) == (["r2"] if node == "org/team/a" else [])
    assert released(case.arrive("r3", "org/other/a")) == ([] if node == "org" else ["r3"])
    told = explain(case.scheduler, "r1", case.now)
    assert told is not None
    assert (told.hold, told.name, told.value, told.limit) == (Hold.RATE, node, -768.0, 100.0)
    assert told.next == "7.7 s pass: its rate is 100 cost units a second"


def test_the_rate_is_what_a_tenant_gets_over_time() -> None:
    """1,000 s at 100 units a second are 100,000 units, or 130 requests of 768 beside the one in advance."""
    case = Case(pool(of_class={"queue_timeout_s": 1e6}, slots=10_000), checked=False)
    for i in range(200):
        case.arrive(f"a{i}", "a")
    ticks = 0
    while (due := case.scheduler.next_deadline()) is not None and due <= 1_100.0:
        assert due > case.now
        case.now, ticks = due, ticks + 1
        assert len(released(case.apply(Tick()))) == 1  # it never wakes for nothing
    assert ticks == 130


# -- refused at the door ---------------------------------------------------------------------------


def test_what_cannot_go_in_time_is_refused_at_once_and_told_when_to_come_back() -> None:
    case = Case(pool(of_class={"queue_timeout_s": 5.0}))
    case.arrive("a0", "a")
    refusal = the_refusal(case.arrive("a1", "a"))
    assert refusal.reason is Reason.RATE_LIMIT
    assert "rate of tenant 'a' is used up for 7.7 s" in refusal.message and "may wait for 5.0 s" in refusal.message
    assert 8 <= refusal.retry_after_s <= 10  # 7.68 and up to a quarter
    case.now += 3.0
    assert case.arrive("a2", "a") == []  # 4.68 s left: it waits
    assert at(case, 7.69) == ["a2"]


def test_a_client_s_own_timeout_counts() -> None:
    case = Case(pool())
    case.arrive("a0", "a")
    assert refused(case.arrive("a1", "a", timeout_s=7.0)) == [("a1", "rate_limit")]
    assert case.arrive("a2", "a", timeout_s=8.0) == []


def test_a_tenant_within_its_rate_is_not_refused_for_its_age() -> None:
    """A replayed request comes 90 s after its first arrival, with 60 s to wait: it goes, or has waited too long."""
    case = Case(pool(slots=1))
    assert released(case.arrive("old", "a", arrival=10.0)) == ["old"]
    assert refused(case.arrive("older", "b", arrival=10.0)) == [("older", "queue_timeout")]


def test_an_absurd_usage_of_a_rated_tenant_does_not_shut_it_out() -> None:
    case = Case(pool())
    case.arrive("a0", "a")
    case.usage("a0", 10**12, 10**12)
    case.arrive("a1", "a")
    assert at(case, 7.69) == ["a1"]


# -- fail_fast -------------------------------------------------------------------------------------


def slow_pool(**of_class: Any) -> Case:
    """One slot, one release a second in the last two minutes; 20 of z wait."""
    case = Case(
        a_fixed_pool(a_class(**({"queue_timeout_s": 10.0, "fail_fast": True} | of_class)), a_class("batch", 2)),
        checked=False,
    )
    inside = fill(case, 1)
    for i in range(120):
        case.arrive(f"w{i}", "z")
        case.now += 1.0
        drain(case, inside, 1)
    for i in range(20):
        case.arrive(f"r{i}", f"z{i % 2}")
    return case


def test_what_would_wait_for_longer_than_it_may_is_refused_at_the_door() -> None:
    """One of z0 would be its eleventh: 20 of the two tenants before it, at one a second, and it has 10 s to wait."""
    case = slow_pool()
    waiting = case.scheduler.queued
    refusal = the_refusal(case.arrive("late", "z0"))
    assert refusal.reason is Reason.QUEUE_TIMEOUT
    assert "would wait for about" in refusal.message and "(queue_timeout and fail_fast of the class)" in refusal.message
    assert case.scheduler.queued == waiting
    assert case.arrive("other", "new") == []  # its flow is next but one


def test_without_fail_fast_it_waits() -> None:
    assert slow_pool(fail_fast=False).arrive("late", "z0") == []


def test_one_with_nothing_before_it_is_not_refused_for_a_short_timeout() -> None:
    """Batch waits, and goes after it. The wait that clients are told is never below a second; the estimate is."""
    case = Case(a_fixed_pool(a_class(queue_timeout_s=0.5, fail_fast=True), a_class("batch", 2, queue_timeout_s=1e6)))
    inside = fill(case, 1)
    for i in range(20):
        case.arrive(f"b{i}", "z", "batch")
    for _ in range(10):
        case.now += 1.0
        drain(case, inside, 1)
    assert case.arrive("i", "a") == []


def test_a_wait_beyond_what_clients_are_told_is_compared_as_it_is() -> None:
    """29 before it, and two releases 100 s apart: (1 + e^-3.3)/(30 (1 - e^-3.3)) a second, so 810 s. Clients are told
    600 s at most."""
    case = Case(a_fixed_pool(a_class(queue_timeout_s=700.0, fail_fast=True)), checked=False)
    inside = fill(case, 1)
    for i in range(30):
        case.arrive(f"r{i}", "z")
    case.now += 100.0
    drain(case, inside, 1)
    assert refused(case.arrive("late", "z")) == [("late", "queue_timeout")]


def test_where_nothing_is_known_nobody_is_refused() -> None:
    case = Case(a_fixed_pool(a_class(queue_timeout_s=1.0, fail_fast=True)))
    fill(case, 1)
    for i in range(50):
        assert case.arrive(f"r{i}") == []


def test_a_flood_of_names_leaves_so_many_buckets_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name has a rate of its own and is served once. One that owed more before is still held to it."""
    monkeypatch.setattr(token_bucket, "MAX_ALONE", 50)
    case = Case(a_fixed_pool(a_class(queue_timeout_s=1e6), default_tenant=TenantPolicy(rate=1.0)))
    for i, prompt in enumerate([5_000, *[256] * 500]):
        name = f"x{i}"
        assert released(case.arrive(name, name, prompt_tokens=prompt)) == [name]
        case.usage(name, prompt, 256)
        case.end(name)
        assert len(case.scheduler.buckets) == min(i + 1, 50)
    assert case.arrive("again", "x0") == []
    assert at(case, 5_511.0) == []
    assert at(case, 5_513.0) == ["again"]
