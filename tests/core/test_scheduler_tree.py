"""Limits at every node of the tree of tenants: organisation, team, tenant."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_case import Case, a_class, a_fixed_pool, drain, fill, refused, released, the_refusal, two_classes

from extproc.core.model import PoolPolicy, TenantPolicy


def pool(tenants: dict[str, TenantPolicy] | None = None, slots: int = 1, **changes: Any) -> PoolPolicy:
    return a_fixed_pool(a_class(), a_class("batch", 2), slots=slots, separator="/", tenants=tenants or {}, **changes)


def full(tenants: dict[str, TenantPolicy], **changes: Any) -> Case:
    case = Case(pool(tenants, **changes))
    fill(case, 1)
    return case


@pytest.mark.parametrize("node", ["org", "org/team", "org/team/a"])
def test_requests_at_each_level(node: str) -> None:
    case = full({node: TenantPolicy(max_queued=2)})
    case.arrive("r0", "org/team/a")
    case.arrive("r1", "org/team/a")
    refusal = the_refusal(case.arrive("r2", "org/team/a"))
    assert refusal.reason.code == "tenant_limit"
    assert f"tenant {node!r} has 2 requests waiting, and may have 2 (max_queued of the tenant)" in refusal.message
    assert refused(case.arrive("r3", "org/team/b")) == ([] if node == "org/team/a" else [("r3", "tenant_limit")])
    assert refused(case.arrive("r4", "org/other/c")) == ([("r4", "tenant_limit")] if node == "org" else [])
    assert case.arrive("r5", "another/team/a") == []


def test_requests_are_limited_in_each_class_and_bytes_in_all_together() -> None:
    case = full({"org": TenantPolicy(max_queued=1, max_queued_bytes=5000)})
    assert case.arrive("r0", "org/a", body_bytes=3000) == []
    assert case.arrive("r1", "org/b", "batch", body_bytes=1000) == []
    refusal = the_refusal(case.arrive("r2", "org/c", "batch", body_bytes=1001))
    assert "tenant 'org' has 1 requests waiting" in refusal.message
    case.end("r0")
    refusal = the_refusal(case.arrive("r3", "org/a", body_bytes=4001))
    assert "1000 bytes of requests waiting, and may have 5000 (max_queued_bytes of the tenant)" in refusal.message
    assert case.arrive("r4", "org/a", body_bytes=4000) == []
    assert case.scheduler.held_bytes == {"org": 5000, "org/a": 4000, "org/b": 1000}


def test_one_that_is_larger_than_the_limit_may_wait_alone() -> None:
    case = full({"org": TenantPolicy(max_queued_bytes=100, max_queued_tokens=100)})
    assert case.arrive("r0", "org/a", body_bytes=3000) == []
    assert refused(case.arrive("r1", "org/b", body_bytes=1)) == [("r1", "tenant_limit")]


def test_tokens_at_a_level() -> None:
    """1,024 bytes are 256 tokens, and 256 of output are expected: 512 each."""
    case = full({"org/team": TenantPolicy(max_queued_tokens=1100)})
    assert case.arrive("r0", "org/team/a") + case.arrive("r1", "org/team/b") == []
    refusal = the_refusal(case.arrive("r2", "org/team/c"))
    assert "tenant 'org/team' has 1024 tokens of requests waiting" in refusal.message
    assert "1100 (max_queued_tokens of the tenant)" in refusal.message
    assert case.arrive("r3", "org/other/a") == []


@pytest.mark.parametrize(("node", "most"), [("org", 3), ("org/team", 2), ("org/team/a", 1)])
def test_slots_at_each_level(node: str, most: int) -> None:
    case = Case(pool({node: TenantPolicy(max_in_flight=most)}, slots=100))
    for i in range(5):
        case.arrive(f"r{i}", "org/team/a")
    assert case.scheduler.by_name["interactive"].queue.in_flight == most
    assert released(case.arrive("b", "org/team/b")) == (["b"] if node == "org/team/a" else [])
    assert released(case.arrive("c", "another/team/a")) == ["c"]
    assert released(case.end("r0")) == (["r1"] if node == "org/team/a" else ["b"])  # the next of the node, at once


def test_slots_are_those_of_a_class() -> None:
    case = Case(pool({"org": TenantPolicy(max_in_flight=1)}, slots=100))
    assert released(case.arrive("i", "org/a") + case.arrive("b", "org/a", "batch")) == ["i", "b"]


def test_a_wide_request_may_pass_the_cap_and_then_nothing_may() -> None:
    """The cap is looked at before: one slot is free, and the request is not to wait for ever."""
    case = Case(pool({"org": TenantPolicy(max_in_flight=2)}, slots=100))
    assert released(case.arrive("r0", "org/a") + case.arrive("wide", "org/b", n=4)) == ["r0", "wide"]
    assert case.arrive("r1", "org/c") == []
    assert released(case.end("r0")) == []  # 4 of 2
    assert released(case.end("wide")) == ["r1"]


def test_the_settings_of_a_name_s_siblings_hold_where_it_has_none() -> None:
    tenants = {"org/*": TenantPolicy(max_queued=1), "org/big": TenantPolicy(max_queued=2)}
    case = full(tenants)
    assert [refused(case.arrive(f"s{i}", "org/small")) != [] for i in range(2)] == [False, True]
    assert [refused(case.arrive(f"b{i}", "org/big")) != [] for i in range(3)] == [False, False, True]
    assert [refused(case.arrive(f"o{i}", "other/small")) != [] for i in range(3)] == [False] * 3


def test_a_parent_puts_a_name_under_another_node() -> None:
    policy = a_fixed_pool(tenants={"b": TenantPolicy(parent="a"), "a": TenantPolicy(max_queued=2)})
    case = Case(policy)
    fill(case, 1)
    assert policy.path("b") == ("a", "b")
    assert case.arrive("b0", "b") + case.arrive("a0", "a") == []
    assert "tenant 'a' has 2" in the_refusal(case.arrive("b1", "b")).message


def test_paths() -> None:
    tenants = {"acme": TenantPolicy(parent="holding"), "acme/x": TenantPolicy(parent="else/where")}
    policy = pool(tenants)
    assert policy.path("plain") == ("plain",)
    assert policy.path("a/b/c") == ("a", "a/b", "a/b/c")
    assert policy.path("acme/y") == ("holding", "acme", "acme/y")  # where the organisation is, its users are
    assert policy.path("acme/x/1") == ("else", "else/where", "acme/x", "acme/x/1")
    assert policy.path("a/b/c/d/e/f") == ("a", "a/b", "a/b/c", "a/b/c/d", "a/b/c/d/e/f")
    assert policy.path("/a") == ("/a",)
    long = "/".join(["acme"] * 10_000)
    assert policy.path(long) == ("holding", "acme", "acme/acme", "acme/acme/acme", long)
    assert a_fixed_pool().path("a/b") == ("a/b",)


def test_service_is_shared_level_by_level() -> None:
    """x has three users and y one: y's gets half of all, x's a sixth each."""
    case = Case(pool(), checked=False)
    inside = fill(case, 1)
    for i in range(60):
        for tenant in ("x/0", "x/1", "x/2", "y/0"):
            case.arrive(f"{tenant} {i}", tenant)
    order = [name.split()[0] for name in drain(case, inside, 60)]
    assert {tenant: order.count(tenant) for tenant in sorted(set(order))} == {
        "x/0": 10,
        "x/1": 10,
        "x/2": 10,
        "y/0": 30,
    }


@pytest.mark.slow
def test_ten_thousand_names_of_one_organisation_hold_up_another_s_one_for_one_turn() -> None:
    case = Case(pool(), checked=False)
    inside = fill(case, 1)
    for i in range(10_000):
        case.arrive(f"x{i}", f"x/{i}")
    case.arrive("y", "y/0")
    assert "y" in drain(case, inside, 2)
    for i in range(10_000):
        case.end(f"x{i}")
    case.end("y")
    case.tick(10.0)
    assert case.scheduler.by_name["interactive"].queue.nodes == 0


def test_two_classes_have_trees_of_their_own() -> None:
    case = Case(a_fixed_pool(*two_classes(), slots=3, separator="/"))
    case.arrive("i", "x/0")
    case.arrive("b", "x/1", "batch")
    assert [c.queue.size for c in case.scheduler.classes] == [1, 1]
