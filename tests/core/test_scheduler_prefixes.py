"""Prefix grouping: of the flows within `prefix_slack` of their turn one goes whose prompt an engine has just read.

All requests of 1,024 bytes are charged 768 units, warm or cold.
"""

from __future__ import annotations

import random

import pytest
from scheduler_case import E1, E2, FIRST_CHARGE, Case, a_class, a_fixed_pool, drain, fill, released

from extproc.core.model import Gates, PoolPolicy

A, B = (1, 10), (2, 20)  # two prompts


def pool(slack: float = 1000.0, slots: int = 1, **changes: object) -> PoolPolicy:
    return a_fixed_pool(a_class(queue_timeout_s=1e6, **changes), slots=slots, prefix_slack=slack)


def two_warm_tenants(slack: float) -> tuple[Case, list[str]]:
    """One slot, taken by a prompt A. x is next in fair order with a prompt B, y after it with A."""
    case = Case(pool(slack, slots=2))
    case.arrive("y-first", "y", prefix=B)
    (inside,) = released(case.arrive("warm", "z", prefix=A))
    case.arrive("x", "x", prefix=(3,))
    case.arrive("y", "y", prefix=A)
    return case, [inside]


def test_a_warm_request_within_the_slack_goes_first() -> None:
    """x comes to V = 0, the tag of nobody; y has had 768."""
    case, inside = two_warm_tenants(slack=768.0)
    assert drain(case, inside, 2) == ["y", "x"]


def test_beyond_the_slack_it_waits_for_its_turn() -> None:
    case, inside = two_warm_tenants(slack=767.0)
    assert drain(case, inside, 2) == ["x", "y"]


def test_it_is_charged_as_if_nothing_were_cached() -> None:
    case, inside = two_warm_tenants(slack=768.0)
    drain(case, inside, 1)
    assert case.tag("y") == 2 * FIRST_CHARGE


def test_without_prefixes_the_fair_order_holds() -> None:
    case = Case(pool())
    inside = fill(case, 1)
    for i in range(3):
        for tenant in "xyz":
            case.arrive(f"{tenant}{i}", tenant)
    assert drain(case, inside, 6) == ["x0", "y0", "z0", "x1", "y1", "z1"]


def test_the_longest_match_goes_first_and_then_the_one_that_was_read_last() -> None:
    case = Case(pool(slack=10_000.0))
    case.arrive("first", "t0", prefix=(1, 2, 3))
    case.arrive("a", "t1", prefix=(1, 9))
    case.arrive("b", "t2", prefix=(1, 2, 8))
    case.arrive("c", "t3", prefix=(7,))
    case.now += 1.0
    assert drain(case, ["first"], 3) == ["b", "a", "c"]


def test_it_goes_to_the_endpoint_that_has_read_it_though_that_is_fuller() -> None:
    case = Case(pool(slots=4), endpoints=(E1, E2))
    assert case.arrive("a0", "x", prefix=A)[0].endpoint == E1
    assert [case.arrive(f"a{i}", "x", prefix=A)[0].endpoint for i in (1, 2, 3)] == [E1] * 3
    assert case.arrive("a4", "x", prefix=A)[0].endpoint == E2  # no room there: elsewhere, in its turn
    case.end("a0")
    assert case.arrive("a5", "x", prefix=A)[0].endpoint in (E1, E2)
    assert case.arrive("b0", "x", prefix=B)[0].endpoint == E2


def test_a_removed_endpoint_has_read_nothing() -> None:
    case = Case(pool(slots=4), endpoints=(E1, E2))
    assert case.arrive("a0", "x", prefix=A)[0].endpoint == E1
    case.end("a0")
    case.remove(E1)
    case.add(E1)
    case.page(E1)
    assert case.arrive("a1", "x", prefix=A)[0].endpoint != E1 or case.scheduler.windows[E2].in_flight == 0
    assert case.scheduler.prefixes.match(E1, A, case.now)[0] in (0, 2)


def test_a_gate_holds_a_warm_request_too() -> None:
    case = Case(pool(slots=4, gates=Gates(max_waiting=1)), endpoints=(E1, E2))
    assert case.arrive("a0", "x", prefix=A)[0].endpoint == E1
    case.page(E1, running=1, waiting=1)
    assert case.arrive("a1", "x", prefix=A)[0].endpoint == E2


def test_of_a_promoted_class_only_the_next_request_goes() -> None:
    """y's prompt is warm and within the slack, but it is x that has waited."""
    classes = (a_class(), a_class("batch", 2, promote_after_s=10.0))
    case = Case(a_fixed_pool(*classes, prefix_slack=10_000.0))
    case.arrive("i", "t", prefix=A)
    case.arrive("x", "x", "batch", prefix=B)
    case.now += 10.0
    case.arrive("y", "y", "batch", prefix=A)
    case.arrive("j", "u", prefix=(5,))
    assert drain(case, ["i"], 1) == ["x"]


@pytest.mark.parametrize("slack", [0.0, 2_000.0, 8_000.0])
def test_tags_spread_by_the_slack_and_one_charge_at_most(slack: float) -> None:
    """Twelve tenants with three prompts, ever waiting; two slots. What grouping gains is its hits."""
    rng = random.Random(5)
    case = Case(pool(slack, slots=2), checked=False)
    inside: list[str] = []
    sent = 0

    def arrive(k: int) -> None:
        nonlocal sent
        sent += 1
        effects = case.arrive(f"r{sent}", f"t{k}", prefix=((k % 3, 100 + k % 3)), body_bytes=rng.randrange(100, 4_000))
        inside.extend(released(effects))

    for _ in range(4):
        for k in range(12):
            arrive(k)
    hits, last, largest = 0, -1, 0.0
    for _ in range(400):
        case.now += 0.1
        (gone,) = released(case.end(inside.pop(0)))
        inside.append(gone)
        request = case.scheduler.requests[gone]
        tenant = int(request.tenant[1:])
        hits += tenant % 3 == last
        last = tenant % 3
        largest = max(largest, request.charged)
        arrive(tenant)
        tags = [leaf.tag for leaf in case.scheduler.by_name["interactive"].queue.leaves() if leaf.queued]
        assert max(tags) - min(tags) <= slack + largest + 1e-6
    assert hits / 400 > {0.0: 0.2, 2_000.0: 0.6, 8_000.0: 0.85}[slack]
    assert slack or hits / 400 < 0.5
