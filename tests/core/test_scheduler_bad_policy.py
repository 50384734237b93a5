"""A policy that cannot be is refused whole: nothing at all has changed, and the pool goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, released, two_classes
from state_dump import state_of

from extproc.core.model import CostWeights, Gates, PoolPolicy, TenantPolicy, Unit, WindowPolicy


def bad(**changes: Any) -> PoolPolicy:
    return replace(GOOD, **changes)


GOOD = a_fixed_pool(*two_classes(min_share=0.1), separator="/", tenants={"a": TenantPolicy(weight=2.0)})
NAN, INF = float("nan"), float("inf")
BAD_TENANTS = [
    *({"weight": w} for w in (0.0, -1.0, NAN, INF, 1e-9)),
    *({"rate": r} for r in (0.0, -5.0, NAN, INF)),
    *({"rate_burst": b} for b in (-1.0, NAN)),
    *({"burst": b} for b in (-1.0, NAN, INF)),
    *({"max_in_flight": c} for c in (-1, NAN)),
    *({"max_queued": c} for c in (-1, NAN)),
    *({"max_queued_bytes": c} for c in (-1, NAN)),
    {"max_queued_tokens": -1},
]
BAD_CLASSES = [
    *({"min_share": s} for s in (-0.1, 1.1, NAN)),
    *({"queue_timeout_s": t} for t in (-1.0, NAN, INF)),
    *({"headroom": h} for h in (0.0, -1.0, 1.5, NAN)),
    *({"promote_after_s": p} for p in (-1.0, NAN)),
    *({"max_in_flight": c} for c in (-1, NAN)),
    {"max_waiting": -1},
    {"max_queued": -1},
    {"gates": Gates(max_tpot_s=NAN)},
    {"gates": Gates(max_kv_usage=-1.0)},
]
CIRCLE = {"a": TenantPolicy(parent="b"), "b": TenantPolicy(parent="c"), "c": TenantPolicy(parent="a")}
BAD = [
    *(bad(tenants={"a": replace(TenantPolicy(), **c)}) for c in BAD_TENANTS),
    *(bad(default_tenant=replace(TenantPolicy(), **c)) for c in BAD_TENANTS),
    *(bad(classes=(a_class(), a_class("batch", 2, **c))) for c in BAD_CLASSES),
    bad(tenants=CIRCLE),
    bad(tenants={"a": TenantPolicy(parent="a")}),
    bad(tenants={"a": TenantPolicy(parent="a/b/c")}),
    bad(classes=()),
    bad(classes=(a_class(), a_class("batch", 0))),
    bad(classes=(a_class(), a_class("interactive", 1))),
    bad(classes=(a_class(min_share=0.6), a_class("batch", 1, min_share=0.6))),
    *(bad(weights=CostWeights(w, 0.1, 2.0)) for w in (-1.0, NAN, INF)),
    bad(prefix_slack=NAN),
    bad(promote_every=0),
    bad(priority_steps=0),
    bad(usage_grace_s=-1.0),
    bad(max_queued=-1),
    bad(window=WindowPolicy(max_tpot_s=NAN)),
    bad(window=WindowPolicy(ceiling=0.0)),
]


def a_busy_case() -> Case:
    case = Case(GOOD, endpoints=(E1, E2))
    inside = [released(case.arrive(f"r{i}", "abc"[i % 3], ("interactive", "batch")[i % 2])) for i in range(9)]
    case.usage(inside[0][0], 10, 10)
    case.end(inside[1][0])
    return case


def test_the_dump_sees_a_change() -> None:
    case = a_busy_case()
    before = state_of(case.scheduler)
    assert state_of(case.scheduler) == before
    case.scheduler.by_name["batch"].queue.leaf("a").tag += 1.0  # type: ignore[union-attr]
    assert state_of(case.scheduler) != before


@pytest.mark.parametrize("policy", [*BAD, bad(name="other"), bad(unit=Unit.TIME)])
def test_a_policy_that_cannot_be_raises_and_changes_nothing(policy: PoolPolicy) -> None:
    case = a_busy_case()
    before = state_of(case.scheduler)
    with pytest.raises(ValueError, match=r".{20}"):
        case.reconfigure(policy)
    assert state_of(case.scheduler) == before
    assert released(case.end("r0")) != []  # and it goes on


@pytest.mark.parametrize("policy", BAD)
def test_no_scheduler_begins_with_a_policy_that_cannot_be(policy: PoolPolicy) -> None:
    with pytest.raises(ValueError, match=r".{20}"):
        Case(policy, endpoints=())


def test_the_same_policy_again_changes_nothing_but_what_time_does() -> None:
    case = a_busy_case()
    tags = {t: case.tag(t, "batch") for t in "abc"}
    assert case.reconfigure(GOOD) == []
    assert {t: case.tag(t, "batch") for t in "abc"} == tags
