"""Dividing slots between replicas: by hand, and what must hold whatever they tell."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.sharing.division import Claimant, ClassRule, Division, Replica, divide, fill, share_out, whole

ONE = (ClassRule("interactive", 0.0),)
TWO = (ClassRule("interactive", 0.0), ClassRule("batch", 0.0))


def a_replica(
    *inside: int, busy: bool = True, **classes: tuple[int, int, float] | tuple[int, int, float, int]
) -> Replica:
    return Replica(inside, {name: Claimant(*each) for name, each in classes.items()}, busy)


def parts(limits: list[float], replicas: list[Replica], rules: tuple[ClassRule, ...] = ONE) -> list[list[float]]:
    """Of each of them, as each works it out by itself."""
    turns = (replicas[i:] + replicas[:i] for i in range(len(replicas)))
    return [divide(limits, turn, rules, {}).parts for turn in turns]


# -- by hand ---------------------------------------------------------------------------------------


def test_an_empty_endpoint_is_divided_by_weight() -> None:
    heavy, light = a_replica(0, interactive=(0, 100, 0.8)), a_replica(0, interactive=(0, 100, 0.2))
    assert parts([20.0], [heavy, light]) == [[pytest.approx(16.0)], [pytest.approx(4.0)]]


def test_what_is_held_stays_and_what_is_free_goes_by_weight() -> None:
    """10 + 0.8 * (20 - 15) and 5 + 0.2 * 5."""
    heavy, light = a_replica(10, interactive=(10, 100, 0.8)), a_replica(5, interactive=(5, 100, 0.2))
    assert parts([20.0], [heavy, light]) == [[pytest.approx(14.0)], [pytest.approx(6.0)]]


def test_who_is_behind_asks_for_more_and_who_is_ahead_for_less() -> None:
    one, other = a_replica(10, interactive=(10, 100, 0.5)), a_replica(10, interactive=(10, 100, 0.5))
    assert divide([20.0], [one, other], ONE, {"interactive": 2.5}).parts == [pytest.approx(12.5)]
    assert divide([20.0], [one, other], ONE, {"interactive": -2.5}).parts == [pytest.approx(7.5)]
    assert divide([20.0], [one, other], ONE, {"interactive": -50.0}).parts == [0.0]


def test_none_gets_more_than_it_can_use_and_the_others_get_that() -> None:
    few, many = a_replica(0, interactive=(0, 2, 0.8)), a_replica(0, interactive=(0, 100, 0.2))
    assert parts([20.0], [few, many]) == [[pytest.approx(2.0)], [pytest.approx(18.0)]]


def test_a_class_without_a_standing_queue_leaves_that_of_the_others_free() -> None:
    """20 slots, 3 of them of the standing queue of interactive ones: batch may fill 17, and steady ones count."""
    rules = (ClassRule("interactive", 0.0, 20.0), ClassRule("batch", 0.0, 17.0))
    quiet, batch = a_replica(4), a_replica(0, batch=(0, 100, 1.0))
    assert parts([20.0], [quiet, batch], rules) == [[pytest.approx(5.5)], [pytest.approx(13.0 + 1.5)]]
    both = a_replica(0, interactive=(0, 19, 1.0))
    assert parts([20.0], [both, batch], rules) == [[pytest.approx(19.5)], [pytest.approx(0.5)]]


def test_steady_slots_are_not_up_for_division() -> None:
    """8 slots of tenants that wait for nothing; the other 12 are free for the one that waits."""
    steady, waits = a_replica(8), a_replica(0, interactive=(0, 100, 1.0))
    assert parts([20.0], [steady, waits]) == [[pytest.approx(8.0)], [pytest.approx(12.0)]]


def test_where_nothing_waits_what_is_free_is_spread_over_those_that_are_busy() -> None:
    """20 - 3 - 5 = 12, 6 for each of the two busy ones."""
    found = parts([20.0], [a_replica(3), a_replica(5), a_replica(0, busy=False)])
    assert found == [[pytest.approx(9.0)], [pytest.approx(11.0)], [0.0]]


def test_a_higher_class_takes_from_a_lower_one_elsewhere_as_far_as_it_needs() -> None:
    """Batch holds all 20 slots; 4 interactive ones wait at the other replica."""
    batch, four = a_replica(20, batch=(20, 100, 1.0)), a_replica(0, interactive=(0, 4, 1.0))
    assert parts([20.0], [batch, four], TWO) == [[pytest.approx(16.0)], [pytest.approx(4.0)]]
    assert divide([20.0], [batch, four], TWO, {}).unmet == {"batch"}


def test_a_min_share_is_kept_for_a_lower_class() -> None:
    rules = (ClassRule("interactive", 0.0), ClassRule("batch", 0.1))
    batch, many = a_replica(0, batch=(0, 100, 1.0)), a_replica(0, interactive=(0, 100, 1.0))
    assert parts([20.0], [batch, many], rules) == [[pytest.approx(2.0)], [pytest.approx(18.0)]]
    assert divide([20.0], [batch, many], rules, {}).unmet == {"interactive", "batch"}


def test_what_is_promoted_comes_before_the_class_above() -> None:
    """Batch keeps its 5 slots, and has one more; another replica's batch, of which nothing is promoted, has none."""
    batch, many = a_replica(5, batch=(5, 100, 0.5, 1)), a_replica(12, interactive=(12, 100, 1.0))
    other = a_replica(3, batch=(3, 100, 0.5))
    assert parts([20.0], [batch, many, other], TWO) == [[pytest.approx(6.0)], [pytest.approx(14.0)], [0.0]]
    assert divide([20.0], [batch, many], TWO, {"batch": -4.0}).parts == [pytest.approx(6.0)]
    assert divide([4.0], [batch, many], TWO, {}).parts == [pytest.approx(4.0)]


def test_two_that_are_promoted_share_what_there_is() -> None:
    one, other = a_replica(0, batch=(0, 9, 0.5, 2)), a_replica(0, batch=(0, 9, 0.5, 4))
    many = a_replica(0, interactive=(0, 100, 1.0))
    assert parts([20.0], [one, other, many], TWO) == [[pytest.approx(2.0)], [pytest.approx(4.0)], [pytest.approx(14.0)]]
    assert parts([3.0], [one, other, many], TWO) == [[pytest.approx(1.0)], [pytest.approx(2.0)], [0.0]]


def test_what_is_promoted_passes_one_class_and_no_more() -> None:
    three = (ClassRule("interactive", 0.0), ClassRule("default", 0.0), ClassRule("batch", 0.0))
    batch, default = a_replica(0, batch=(0, 9, 1.0, 1)), a_replica(0, default=(0, 100, 1.0))
    many = a_replica(0, interactive=(0, 100, 1.0))
    assert parts([20.0], [batch, default], three) == [[pytest.approx(1.0)], [pytest.approx(19.0)]]
    assert parts([20.0], [batch, default, many], three) == [[0.0], [0.0], [pytest.approx(20.0)]]


def test_what_is_promoted_counts_in_what_a_min_share_keeps() -> None:
    rules = (ClassRule("interactive", 0.0), ClassRule("batch", 0.25))
    many = a_replica(0, interactive=(0, 100, 1.0))
    assert parts([20.0], [a_replica(0, batch=(0, 9, 1.0, 1)), many], rules)[0] == [pytest.approx(5.0)]
    assert parts([20.0], [a_replica(5, batch=(5, 9, 1.0, 1)), many], rules)[0] == [pytest.approx(6.0)]


def test_each_endpoint_is_divided_alike() -> None:
    heavy, light = a_replica(0, 0, interactive=(0, 999, 0.75)), a_replica(0, 0, interactive=(0, 999, 0.25))
    assert parts([8.0, 100.0], [heavy, light]) == [
        [pytest.approx(6.0), pytest.approx(75.0)],
        [pytest.approx(2.0), pytest.approx(25.0)],
    ]


def test_one_whose_weight_nobody_knows_yet_gets_what_is_left() -> None:
    known, new = a_replica(0, interactive=(0, 3, 1.0)), a_replica(0, interactive=(0, 100, 0.0))
    assert parts([20.0], [known, new])[1] == [pytest.approx(17.0)]


def test_no_endpoint_and_no_room() -> None:
    assert divide([], [a_replica(interactive=(0, 5, 1.0))], ONE, {}) == Division([], frozenset({"interactive"}))
    assert divide([0.0], [a_replica(0, interactive=(0, 5, 1.0))], ONE, {}).parts == [0.0]


def test_remainders_take_turns() -> None:
    carry, wants = 0.0, []
    for _ in range(12):
        want, carry = whole(0.25, carry)
        wants.append(want)
    assert wants == [0, 0, 0, 1] * 3


# -- whatever they tell ----------------------------------------------------------------------------

claimants = st.tuples(st.integers(0, 50), st.integers(0, 200), st.floats(0.0, 1.0), st.sampled_from([0, 0, 1, 5]))


@st.composite
def groups(draw: st.DrawFn) -> tuple[list[float], list[Replica]]:
    endpoints = draw(st.integers(1, 3))
    limits = draw(st.lists(st.floats(0.0, 100.0), min_size=endpoints, max_size=endpoints))
    found = []
    for _ in range(draw(st.integers(1, 5))):
        classes = {
            name: (*each[:3], min(each[3], each[1]) if name == "batch" else 0)
            for name in ("interactive", "batch")
            if (each := draw(st.none() | claimants)) is not None and each[1] > 0
        }
        active = sum(each[0] for each in classes.values())
        more = draw(st.lists(st.integers(0, 40), min_size=endpoints, max_size=endpoints))
        inside = [active // endpoints + (at < active % endpoints) + extra for at, extra in enumerate(more)]
        found.append(a_replica(*inside, busy=bool(any(inside) or classes), **classes))
    return limits, found


@pytest.mark.slow
@settings(deadline=None)
@given(groups(), st.floats(0.0, 0.5))
def test_together_they_get_what_there_is_and_no_more(group: tuple[list[float], list[Replica]], share: float) -> None:
    """At each endpoint: the limit, or what is held there for those that wait for nothing where that is more."""
    limits, replicas = group
    rules = (ClassRule("interactive", 0.0), ClassRule("batch", share))
    found = parts(limits, replicas, rules)
    steady = [
        max(0.0, 1.0 - sum(c.active for c in r.classes.values()) / sum(r.in_flight)) if sum(r.in_flight) else 0.0
        for r in replicas
    ]
    for at, limit in enumerate(limits):
        held = sum(part * r.in_flight[at] for part, r in zip(steady, replicas, strict=True))
        total = sum(each[at] for each in found)
        assert total <= max(limit, held) + 1e-6
        if any(r.busy for r in replicas):
            assert total == pytest.approx(max(limit, held), abs=1e-6)


@settings(deadline=None)
@given(groups())
def test_a_higher_class_is_unmet_only_where_the_lower_one_has_nothing(
    group: tuple[list[float], list[Replica]],
) -> None:
    limits, replicas = group
    amounts, left = share_out(sum(limits), replicas, TWO)
    wanted = sum(
        r.classes["interactive"].active + r.classes["interactive"].demand
        for r in replicas
        if "interactive" in r.classes
    )
    kept = sum(r.classes["batch"].kept for r in replicas if "batch" in r.classes)  # what is promoted comes before
    assert amounts["interactive"] == pytest.approx(max(0.0, min(wanted, sum(limits) - kept)))
    assert left >= -1e-9
    assert sum(amounts.values()) + left == pytest.approx(sum(limits))


@settings(deadline=None)
@given(st.floats(0.0, 500.0), st.lists(st.tuples(st.floats(1e-6, 1.0), st.integers(0, 100)), max_size=8))
def test_filling_is_max_min_fair(amount: float, each: list[tuple[float, int]]) -> None:
    """Nobody beyond its most; all of it is given as far as it can be; who has less than its most has as much, by
    weight, as any other."""
    weights, most = [w for w, _ in each], [float(m) for _, m in each]
    given_to = fill(amount, weights, most)
    assert all(-1e-9 <= g <= m + 1e-9 for g, m in zip(given_to, most, strict=True))
    assert sum(given_to) == pytest.approx(min(amount, sum(most)), abs=1e-6)
    levels = [g / w for g, w in zip(given_to, weights, strict=True)]
    for level, g, m in zip(levels, given_to, most, strict=True):
        if g < m - 1e-6:
            assert level >= max(levels) - 1e-3 * max(1.0, max(levels))


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60))
def test_whole_slots_are_the_parts_in_the_mean(wanted: list[float]) -> None:
    carry, total = 0.0, 0
    for part in wanted:
        slots, carry = whole(part, carry)
        assert 0 <= slots <= math.floor(part) + 1
        assert 0.0 <= carry <= 1.0
        total += slots
    assert total + carry == pytest.approx(sum(wanted), abs=1e-6)
