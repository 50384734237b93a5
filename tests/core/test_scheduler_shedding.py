"""A full class or pool: the newest request of the flow with the most waiting makes room, or the newcomer is refused."""

from __future__ import annotations

import pytest
from scheduler_case import Case, a_class, a_fixed_pool, a_pool, fill, refused, released, the_refusal

from extproc.core.model import Overflow, PoolPolicy, TenantPolicy
from extproc.core.reasons import Reason
from extproc.core.view import view


def full(policy: PoolPolicy) -> Case:
    """Its one slot is taken. Whatever comes waits."""
    case = Case(policy)
    fill(case, 1)
    return case


def waiting(case: Case) -> list[str]:
    return sorted(r.id for r in case.scheduler.requests.values() if r.endpoint is None)


def test_the_newest_request_of_the_heaviest_flow_makes_room() -> None:
    case = full(a_fixed_pool(a_class(max_queued=3)))
    for name in ("a0", "a1", "b0"):
        case.arrive(name, name[0])
    refusal = the_refusal(case.arrive("c0", "c"))
    assert (refusal.id, refusal.reason, refusal.tenant) == ("a1", Reason.SHED, "a")
    assert "3 (max_queued of the class)" in refusal.message and "tenant 'a' has the most waiting" in refusal.message
    assert refusal.retry_after_s >= 1
    assert waiting(case) == ["a0", "b0", "c0"]
    assert "a1" not in case.scheduler.requests
    assert case.end("a1") == []  # its stream ends later: nothing is freed twice


def test_the_newcomer_of_the_heaviest_flow_is_refused_itself() -> None:
    case = full(a_fixed_pool(a_class(max_queued=3)))
    for name in ("a0", "a1", "b0"):
        case.arrive(name, name[0])
    assert refused(case.arrive("a2", "a")) == [("a2", "queue_full")]
    assert waiting(case) == ["a0", "a1", "b0"]


def test_of_equals_the_newcomer_is_refused() -> None:
    """c's flow with its request would be as heavy as any other."""
    case = full(a_fixed_pool(a_class(max_queued=2)))
    case.arrive("a0", "a")
    case.arrive("b0", "b")
    assert refused(case.arrive("c0", "c")) == [("c0", "queue_full")]


def test_heavy_is_by_cost_and_not_by_requests() -> None:
    """a: one of 4 KiB, 1,024 + 512 units. b: one of 4 bytes, 1 + 512; with its newcomer of 4 bytes 1,026."""
    case = full(a_fixed_pool(a_class(max_queued=2)))
    case.arrive("a0", "a", body_bytes=4096)
    case.arrive("b0", "b", body_bytes=4)
    assert refused(case.arrive("b1", "b", body_bytes=4)) == [("a0", "shed")]


def test_heavy_is_in_proportion_to_weight() -> None:
    """a: two requests at weight 4, 384 each unit of weight. b: one and the newcomer at weight 1, 1,536."""
    case = full(a_fixed_pool(a_class(max_queued=3), tenants={"a": TenantPolicy(weight=4.0)}))
    for name in ("a0", "a1", "b0"):
        case.arrive(name, name[0])
    assert refused(case.arrive("b1", "b")) == [("b1", "queue_full")]
    assert refused(case.arrive("a2", "a")) == [("b0", "shed")]  # 3 at weight 4 are 576, one at weight 1 is 768


def test_the_heaviest_organisation_is_found_first() -> None:
    """x has five users with one request each, y one user with three."""
    case = full(a_fixed_pool(a_class(max_queued=8), separator="/"))
    for i in range(5):
        case.arrive(f"x{i}", f"x/{i}")
    for i in range(3):
        case.arrive(f"y{i}", "y/0")
    assert refused(case.arrive("z0", "z/0")) == [("x4", "shed")]
    assert refused(case.arrive("z1", "z/0")) == [("x3", "shed")]
    # x, y and z with its newcomer have three each
    assert refused(case.arrive("z2", "z/0")) == [("z2", "queue_full")]
    assert refused(case.arrive("x5", "x/5")) == [("x5", "queue_full")]


def test_a_name_with_requests_of_its_own_beside_those_under_it() -> None:
    """Under x: x itself with two requests, x/0 with one."""
    case = full(a_fixed_pool(a_class(max_queued=3), separator="/"))
    case.arrive("own0", "x")
    case.arrive("own1", "x")
    case.arrive("r0", "x/0")
    assert refused(case.arrive("r1", "x/1")) == [("own1", "shed")]
    assert refused(case.arrive("r2", "x/0")) == [("r2", "queue_full")]  # x/0 would have two then
    case.end("own0")
    case.arrive("r3", "x/0")
    assert refused(case.arrive("own2", "x")) == [("r3", "shed")]


def test_the_lowest_class_that_waits_makes_room_in_a_full_pool() -> None:
    classes = (a_class(), a_class("default", 1), a_class("batch", 2))
    case = full(a_fixed_pool(*classes, max_queued=4))
    for name, cls in (("i0", "interactive"), ("i1", "interactive"), ("d0", "default"), ("b0", "batch")):
        case.arrive(name, "a", cls)
    assert refused(case.arrive("i2", "a")) == [("b0", "shed")]  # though the newcomer's tenant is heavier
    assert refused(case.arrive("i3", "a")) == [("d0", "shed")]
    assert refused(case.arrive("i4", "a")) == [("i4", "queue_full")]
    assert refused(case.arrive("i5", "b")) == [("i3", "shed")]
    # never a higher class than the newcomer's
    assert refused(case.arrive("d1", "c", "default")) == [("d1", "queue_full")]
    assert refused(case.arrive("b1", "c", "batch")) == [("b1", "queue_full")]


def test_reject_newest_sheds_nobody() -> None:
    classes = (a_class(overflow=Overflow.REJECT_NEWEST), a_class("batch", 2))
    case = full(a_fixed_pool(*classes, max_queued=3))
    for name, cls in (("a0", "interactive"), ("a1", "interactive"), ("a2", "batch")):
        case.arrive(name, "a", cls)
    assert refused(case.arrive("b0", "b")) == [("b0", "queue_full")]
    assert refused(case.arrive("b1", "b", "batch")) == [("b1", "queue_full")]  # batch sheds a's one, which is as heavy


def test_bytes_of_a_class() -> None:
    """5,000 allowed, a has 4,000 waiting in one, b's newcomer needs 2,000: 1,000 too many."""
    case = full(a_fixed_pool(a_class(max_queued_bytes=5000)))
    case.arrive("a0", "a", body_bytes=4000)
    effects = case.arrive("b0", "b", body_bytes=2000)
    assert refused(effects) == [("a0", "shed")]
    assert "4000 bytes" in effects[0].message and "5000 (max_queued_bytes of the class)" in effects[0].message
    assert waiting(case) == ["b0"]


def test_one_request_less_must_be_enough() -> None:
    """a's newest has 1,000 of the 1,500 bytes that are too many. Its older one of 3,000 stays, too."""
    case = full(a_fixed_pool(a_class(max_queued_bytes=5000)))
    case.arrive("a0", "a", body_bytes=3000)
    case.arrive("a1", "a", body_bytes=1000)
    assert refused(case.arrive("b0", "b", body_bytes=2500)) == [("b0", "queue_full")]
    assert waiting(case) == ["a0", "a1"]


def test_tokens_of_a_class() -> None:
    """A request of 1,024 bytes is 256 + 256 tokens, and 1,000 are allowed; one of 4 bytes is 1 + 256."""
    case = full(a_fixed_pool(a_class(max_queued_tokens=1000)))
    case.arrive("a0", "a")
    refusal = the_refusal(case.arrive("a1", "a"))
    assert refusal.reason is Reason.QUEUE_FULL
    assert "512 tokens" in refusal.message and "1000 (max_queued_tokens of the class)" in refusal.message
    assert case.arrive("b0", "b", body_bytes=4) == []  # 769
    assert refused(case.arrive("c0", "c", body_bytes=4)) == [("a0", "shed")]  # 1,026


def test_a_pool_s_bytes_are_made_room_for_in_the_lowest_class() -> None:
    case = full(a_fixed_pool(a_class(), a_class("batch", 2), max_queued_bytes=5000))
    case.arrive("b0", "b", "batch", body_bytes=3000)
    case.arrive("i0", "a", body_bytes=2000)
    assert refused(case.arrive("i1", "a", body_bytes=1000)) == [("b0", "shed")]
    assert case.scheduler.queued_bytes == 3000


def test_room_in_the_class_is_not_enough_where_the_pool_is_full_of_something_else() -> None:
    """Class: one too many. Pool: 1,000 bytes too many, of which the class's heaviest frees 500."""
    policy = a_fixed_pool(a_class(max_queued=2), a_class("batch", 2), max_queued_bytes=5000)
    case = full(policy)
    case.arrive("a0", "a", body_bytes=500)
    case.arrive("a1", "a", body_bytes=500)
    case.arrive("b0", "b", "batch", body_bytes=3500)
    before = view(case.scheduler, case.now)
    assert refused(case.arrive("c0", "c", body_bytes=1500)) == [("c0", "queue_full")]
    assert view(case.scheduler, case.now) == before
    assert refused(case.arrive("c1", "c", body_bytes=1000)) == [("a1", "shed")]  # 500 too many: now it is enough


def test_nobody_is_shed_for_one_that_is_refused_by_its_own_limits() -> None:
    tenants = {"c": TenantPolicy(max_queued=0), "d": TenantPolicy(rate=1.0)}
    case = Case(a_fixed_pool(a_class(max_queued=2), slots=2, tenants=tenants))
    assert released(case.arrive("d0", "d")) == ["d0"]  # 768 units at one a second
    fill(case, 1)
    case.arrive("a0", "a")
    case.arrive("a1", "a")
    assert refused(case.arrive("c0", "c")) == [("c0", "tenant_limit")]
    assert refused(case.arrive("d1", "d")) == [("d1", "rate_limit")]
    assert waiting(case) == ["a0", "a1"]


def test_what_a_wide_one_held_up_goes_in_the_same_event_when_it_is_shed() -> None:
    """R + q = 7 slots, 5 taken: eight choices do not fit, and nobody passes them."""
    case = Case(a_pool(a_class(max_queued=2), start=4))
    fill(case, 5)
    case.arrive("wide", "a", n=8)
    assert case.arrive("b0", "b") == []
    effects = case.arrive("c0", "c")
    assert (refused(effects), released(effects)) == ([("wide", "shed")], ["b0", "c0"])


@pytest.mark.slow
@pytest.mark.parametrize("overflow", list(Overflow))
def test_a_long_overload_keeps_the_queue_at_its_limit_and_everybody_gets_the_same(overflow: Overflow) -> None:
    """Ten tenants, one of which sends as much as all others together. 20 may wait."""
    case = Case(a_fixed_pool(a_class(max_queued=20, overflow=overflow, queue_timeout_s=1e6)), checked=False)
    (inside,) = fill(case, 1)
    served: dict[str, int] = {}
    for i in range(2_000):
        for k in (9, i % 9):
            case.arrive(f"r{i}-{k}", f"t{k}")
            assert case.scheduler.queued <= 20
        gone = [e for e in case.end(inside) if released([e])]
        inside = gone[0].id
        if i >= 200:
            served[gone[0].tenant] = served.get(gone[0].tenant, 0) + 1
    if overflow is Overflow.SHED_HEAVIEST:
        assert min(served.values()) == pytest.approx(180, abs=3) and max(served.values()) == pytest.approx(180, abs=3)
    else:  # whoever comes first when there is a place has it
        assert served == {"t9": 1_800}
