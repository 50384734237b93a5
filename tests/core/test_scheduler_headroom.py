"""A class with `headroom` leaves room for the next arrival of a higher class: B = R - 1 - quantile."""

from __future__ import annotations

import heapq
import random

import pytest
from scheduler_case import Case, a_fixed_pool, fill, released, two_classes

from extproc.core.events import Arrive, End
from extproc.core.explanation import Hold, explain
from extproc.core.model import PoolPolicy
from extproc.core.scheduler import Scheduler


def pool(epsilon: float, **changes: object) -> PoolPolicy:
    return a_fixed_pool(*two_classes(queue_timeout_s=1e6, headroom=epsilon, **changes), slots=20)


def held_by_others(case: Case) -> None:
    """Ten slots of interactive for an hour; then none."""
    names = fill(case, 10)
    case.now += 3_600.0
    for name in names:
        case.end(name)


def test_the_room_that_is_left() -> None:
    """R = 20 and 10 held by others: P(X <= 15) = 0.951, P(X <= 14) = 0.917. With epsilon 5 % B = 20 - 1 - 15."""
    case = Case(pool(0.05))
    held_by_others(case)
    gone = [released(case.arrive(f"b{i}", f"t{i}", "batch")) for i in range(6)]
    assert gone == [["b0"], ["b1"], ["b2"], ["b3"], [], []]
    told = explain(case.scheduler, "b4", case.now)
    assert told is not None
    assert (told.hold, told.name, told.value, told.limit) == (Hold.HEADROOM, "batch", 4, 4)
    assert "10.0 on average" in told.sentence
    assert [case.arrive(f"i{i}") != [] for i in range(16)] == [True] * 16  # they find their slots


def test_the_end_of_one_of_its_own_lets_the_next_go() -> None:
    case = Case(pool(0.05))
    held_by_others(case)
    for i in range(6):
        case.arrive(f"b{i}", "t", "batch")
    assert released(case.end("b0")) == ["b4"]


def test_with_nobody_above_it_has_all() -> None:
    case = Case(pool(0.02))
    assert len([i for i in range(20) if case.arrive(f"b{i}", "t", "batch")]) == 20


def test_the_room_comes_back_when_nobody_comes_any_more() -> None:
    case = Case(pool(0.05))
    held_by_others(case)
    for i in range(20):
        case.arrive(f"b{i}", "t", "batch")
    case.tick(20.0)
    assert 4 < case.scheduler.by_name["batch"].queue.in_flight < 20
    case.tick(3_600.0)
    assert case.scheduler.by_name["batch"].queue.in_flight == 20


def test_min_share_does_not_ask_for_it() -> None:
    case = Case(pool(0.05, min_share=0.5))
    held_by_others(case)
    for i in range(6):
        case.arrive(f"b{i}", "t", "batch")
    assert case.scheduler.by_name["batch"].queue.in_flight == 4
    # b3 has put batch 768/0.5 ahead of V, which moves on by 768 a dispatch: it is behind after the third.
    assert [released(case.arrive(f"i{i}")) for i in range(3)] == [["i0"], ["i1"], ["i2", "b4"]]


def test_another_epsilon_holds_at_the_next_look() -> None:
    """P(X <= 12) = 0.792, P(X <= 11) = 0.697."""
    case = Case(pool(0.05))
    held_by_others(case)
    for i in range(12):
        case.arrive(f"b{i}", "t", "batch")
    case.reconfigure(pool(0.25))
    assert case.scheduler.by_name["batch"].queue.in_flight == 20 - 1 - 12


@pytest.mark.parametrize(("epsilon", "room"), [(0.05, 4), (0.02, 3)])
def test_an_arrival_of_a_higher_class_finds_a_slot(epsilon: float, room: int) -> None:
    """R = 20, Poisson arrivals that hold 9.5 slots on average for 1 s each; batch ever waiting, 3 s each.
    P(X <= 15) = 0.967 and P(X <= 14) = 0.940, P(X <= 16) = 0.982: B is 4 and 3.
    The mean that is measured goes up and down, and with it B; what batch has it does not give back at once."""
    _, waited, held = run(pool(epsilon), arrivals=4_500)
    assert waited <= epsilon + 0.01
    assert held == pytest.approx(room, abs=0.5)


def test_without_headroom_they_find_none() -> None:
    _, waited, _ = run(a_fixed_pool(*two_classes(queue_timeout_s=1e6), slots=20), arrivals=2_500)
    assert waited > 0.8


def run(policy: PoolPolicy, arrivals: int) -> tuple[Scheduler, float, float]:
    """(scheduler, share of interactive arrivals that wait, mean slots of batch), after 200 s of warming up."""
    case = Case(policy, checked=False)
    scheduler, rng = case.scheduler, random.Random(3)
    ends: list[tuple[float, str]] = []
    for i in range(900):
        scheduler.apply(Arrive(f"b{i}", "t", "batch", case.now, 400), case.now)

    def pay(effects: list, now: float) -> None:
        for effect in effects:
            if effect.id in scheduler.requests and scheduler.requests[effect.id].endpoint is not None:
                heapq.heappush(ends, (now + (3.0 if effect.cls == "batch" else 1.0), effect.id))

    for request in list(scheduler.requests.values()):
        if request.endpoint is not None:
            heapq.heappush(ends, (case.now + 3.0 * rng.random(), request.id))
    now, waits, seen, area, since = case.now, 0, 0, 0.0, case.now
    for i in range(arrivals):
        at = now + rng.expovariate(9.5)
        while ends and ends[0][0] <= at:
            end, name = heapq.heappop(ends)
            area += (end - since) * scheduler.by_name["batch"].queue.in_flight if end > case.now + 200 else 0.0
            since = end
            pay(scheduler.apply(End(name), end), end)
        now = at
        effects = scheduler.apply(Arrive(f"i{i}", f"u{i % 7}", "interactive", now, 400), now)
        pay(effects, now)
        if now > case.now + 200:
            seen += 1
            waits += scheduler.requests[f"i{i}"].endpoint is None
    return scheduler, waits / max(1, seen), area / max(1e-9, since - case.now - 200)
