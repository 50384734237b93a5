"""How fairly a class is served, as the meter says: by hand, against another reckoning, and of a scheduler at work."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from fair_queue_bench import Bench, flows
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_case import Case, a_class, a_fixed_pool

from extproc.core import fairness
from extproc.core.class_queue import ClassQueue
from extproc.core.events import Release
from extproc.core.fairness import Fairness, FairnessMeter, jain
from extproc.core.model import Order, Request, TenantPolicy
from extproc.core.token_bucket import Buckets


class Watched(Bench):
    """A class's queue, and its meter. Requests may be served out of turn."""

    def __init__(self, tenants: dict[str, dict[str, float]] | None = None, **default: float) -> None:
        super().__init__(tenants, **default)
        self.cls = ClassQueue(a_class(), flows(tenants, **default), Buckets(), 0.0)
        self.queue = self.cls.queue
        self.meter = FairnessMeter()

    def first_of(self, tenant: str) -> Request:
        return next(r for r in self.queue.heads(self.now, math.inf) if r.tenant == tenant)

    def give(self, tenant: str, charge: float) -> Request:
        """A service, and at once another request in its place: there is always something waiting."""
        request = self.first_of(tenant)
        self.put(tenant)
        self.pop_this(request, charge)
        return request

    def look(self, at: float) -> Fairness | None:
        self.now = at
        self.meter.look(self.cls, at)
        return self.meter.fairness(at)


def waiting(*tenants: str) -> Watched:
    watched = Watched()
    for tenant in tenants:
        watched.put(tenant)
    return watched


# -- by hand --------------------------------------------------------------------------------------


def test_three_to_one() -> None:
    """Rates 300/60 and 100/60: (3 + 1)^2 / (2 * (9 + 1)) = 16/20. Tags 300 and 100."""
    watched = waiting("a", "b")
    assert watched.look(0.0) is None
    for _ in range(3):
        watched.give("a", 100.0)
    watched.give("b", 100.0)
    found = watched.look(60.0)
    assert found is not None
    assert (found.tenants, found.spread) == (2, 200.0)
    assert found.jain == pytest.approx(0.8)


def test_one_has_it_all() -> None:
    watched = waiting("a", "b", "c", "d")
    watched.look(0.0)
    watched.give("a", 50.0)
    assert watched.look(5.0) == Fairness(4, 0.25, 50.0)


def test_nobody_has_anything() -> None:
    watched = waiting("a", "b")
    watched.look(0.0)
    assert watched.look(5.0) == Fairness(2, 1.0, 0.0)


def test_service_is_held_against_weights() -> None:
    watched = Watched({"a": {"weight": 4.0}})
    for tenant in "ab":
        watched.put(tenant)
    watched.look(0.0)
    watched.give("a", 400.0)
    watched.give("b", 100.0)
    assert watched.look(5.0) == Fairness(2, 1.0, 0.0)


def test_one_that_pauses_does_not_compete() -> None:
    watched = waiting("a", "b", "c")
    watched.look(0.0)
    watched.give("a", 10.0)
    watched.give("b", 10.0)
    watched.queue.remove(watched.first_of("c"))
    watched.put("c")
    assert watched.look(5.0) == Fairness(2, 1.0, 0.0)
    # From then on it does: 10 for each between the last two looks; a and b have had 20 in 10 s.
    for tenant in "abc":
        watched.give(tenant, 10.0)
    found = watched.look(10.0)
    assert found is not None
    assert (found.tenants, found.jain) == (3, pytest.approx(1.0))


def test_one_that_is_alone_competes_with_nobody() -> None:
    watched = waiting("a")
    watched.look(0.0)
    assert watched.look(5.0) is None


def test_one_that_comes_is_measured_from_its_first_look() -> None:
    """a: 120 in 60 s; b: 60 in its 30 s. 2 a second each."""
    watched = waiting("a")
    watched.look(0.0)
    watched.give("a", 60.0)
    watched.now = 29.0
    watched.put("b")
    watched.look(30.0)
    watched.give("a", 60.0)
    watched.give("b", 60.0)
    found = watched.look(60.0)
    assert found is not None
    assert (found.tenants, found.jain) == (2, pytest.approx(1.0))


def test_what_is_over_a_minute_ago_does_not_count() -> None:
    watched = waiting("a", "b")
    watched.look(0.0)
    watched.give("a", 1000.0)
    for at in range(5, 70, 5):
        watched.look(float(at))
    # The looks of 5 to 65 s are left: in these a has had nothing as yet, nor has b.
    assert watched.meter.fairness(65.0) == Fairness(2, 1.0, 1000.0)


def test_a_tag_that_goes_back_counts_as_nothing() -> None:
    """a was charged 100 before and has cost 20: its tag goes from 100 to 20."""
    watched = waiting("a", "b")
    charged = watched.give("a", 100.0)
    watched.look(0.0)
    watched.settle(charged, 20.0)
    watched.give("b", 50.0)
    assert watched.look(5.0) == Fairness(2, 0.5, 30.0)


def test_of_a_tree_the_top_level_is_looked_at() -> None:
    """big has had 30 + 10, small has had 40."""
    watched = waiting("big/x", "big/y", "small/z")
    watched.look(0.0)
    watched.give("big/x", 30.0)
    watched.give("big/y", 10.0)
    watched.give("small/z", 40.0)
    assert watched.look(5.0) == Fairness(2, 1.0, 0.0)


def test_one_that_its_own_cap_holds_does_not_compete() -> None:
    watched = Watched({"capped": {"max_in_flight": 1}})
    for tenant in ("capped", "a", "b"):
        watched.put(tenant)
    watched.look(0.0)
    watched.give("capped", 10.0)
    watched.give("a", 10.0)
    watched.give("b", 10.0)
    assert watched.look(5.0) == Fairness(2, 1.0, 0.0)


def test_one_that_was_held_at_a_look_begins_anew() -> None:
    """It is lifted when its cap lets go, which is no service: only what comes after is measured."""
    watched = Watched({"capped": {"max_in_flight": 1}})
    for tenant in ("capped", "a", "b"):
        watched.put(tenant)
    watched.look(0.0)
    request = watched.give("capped", 10.0)
    for tenant in "ab":
        watched.give(tenant, 500.0)
    watched.look(5.0)
    watched.settle(request, 10.0)
    watched.free(request)
    assert watched.tag("capped") == 490.0  # V less one turn
    assert watched.look(10.0) == Fairness(2, 1.0, 0.0)
    found = watched.look(15.0)
    assert found is not None
    # a and b: 500 in 15 s; it: nothing in 5 s. (1 + 1 + 0)^2 / (3 * 2)
    assert (found.tenants, found.jain, found.spread) == (3, pytest.approx(4 / 6), 10.0)


# -- when nobody looks ----------------------------------------------------------------------------


def test_an_old_look_tells_nothing() -> None:
    watched = waiting("a", "b")
    watched.look(0.0)
    watched.look(5.0)
    assert watched.meter.fairness(20.0) is not None
    assert watched.meter.fairness(20.1) is None


def test_a_second_look_at_the_same_time_is_none() -> None:
    watched = waiting("a", "b")
    watched.look(5.0)
    watched.give("a", 10.0)
    assert watched.look(5.0) is None
    assert watched.look(4.0) is None


def test_another_policy_begins_the_minute_anew() -> None:
    watched = waiting("a", "b")
    watched.look(0.0)
    watched.look(5.0)
    watched.queue.reconfigure(flows({"a": {"weight": 2.0}}), Order.FIFO, 6.0)
    assert watched.look(10.0) is None
    assert watched.look(15.0) is not None


def test_a_class_that_was_made_anew_begins_the_minute_anew() -> None:
    watched = waiting("a", "b")
    watched.look(0.0)
    watched.look(5.0)
    other = waiting("a", "b")
    other.queue.flows = watched.queue.flows
    watched.meter.look(other.cls, 10.0)
    assert watched.meter.fairness(10.0) is None


def test_looking_changes_nothing() -> None:
    watched = waiting("a", "b")
    before = [(leaf.tag, leaf.seq, leaf.key) for leaf in watched.queue.leaves()]
    watched.look(0.0)
    watched.look(5.0)
    assert [(leaf.tag, leaf.seq, leaf.key) for leaf in watched.queue.leaves()] == before
    watched.queue.check()


# -- bounds ---------------------------------------------------------------------------------------


def test_of_too_many_every_second_one_is_looked_at_and_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "MOST", 4)
    watched = waiting(*(f"t{i}" for i in range(1, 9)))  # their backlogs have the numbers 1 to 8
    assert watched.meter.look(watched.cls, 0.0) == 8
    for i in range(1, 9):
        watched.give(f"t{i}", 10.0 if i % 2 == 0 else 1000.0)
    assert watched.look(5.0) == Fairness(4 * 2, 1.0, 0.0)
    watched.put("t9")  # one more: every fourth
    assert watched.look(10.0) == Fairness(2 * 4, 1.0, 0.0)


def test_the_number_looked_at_does_not_go_to_and_fro(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nine every fourth; of seven as well, though every second would do; of four, which is half of what every second
    would allow, all are looked at, and the minute begins anew."""
    monkeypatch.setattr(fairness, "MOST", 4)
    watched = waiting(*(f"t{i}" for i in range(1, 10)))
    watched.look(0.0)
    watched.look(5.0)
    for i in (1, 3):
        watched.queue.remove(watched.first_of(f"t{i}"))
    assert watched.look(10.0) == Fairness(2 * 4, 1.0, 0.0)
    for i in (5, 7, 9):
        watched.queue.remove(watched.first_of(f"t{i}"))
    assert watched.look(15.0) is None
    assert watched.look(20.0) == Fairness(4, 1.0, 0.0)


def test_memory_does_not_grow_with_looks() -> None:
    watched = waiting("a", "b")
    for at in range(1000):
        watched.look(at / 10)
    assert len(watched.meter._looks) <= 16


@pytest.mark.parametrize(("rates", "index"), [([1e200, 1e200], 1.0), ([1e-300, 0.0], 0.5), ([0.0, 0.0], 1.0)])
def test_jain_of_figures_whose_squares_are_no_floats(rates: list[float], index: float) -> None:
    assert jain(rates) == index


# -- against another reckoning --------------------------------------------------------------------


@dataclass
class Seen:
    seq: int
    tag: float
    eligible: bool


def reckoned(looks: Sequence[tuple[float, dict[str, Seen]]], now: float) -> Fairness | None:
    """By the definition, tenant by tenant."""
    looks = [(at, seen) for at, seen in looks if at >= now - 60.0]
    rates, tags = [], []
    for tenant, last in looks[-1][1].items():
        run: list[tuple[float, float]] = []
        for at, seen in reversed(looks):
            then = seen.get(tenant)
            if then is None or not then.eligible or then.seq != last.seq:
                break
            run.append((at, then.tag))
        if len(run) >= 2:
            (end, high), (start, low) = run[0], run[-1]
            rates.append(max(0.0, high - low) / (end - start))
            tags.append(last.tag)
    if len(rates) < 2:
        return None
    squares = sum(rate * rate for rate in rates)
    index = sum(rates) ** 2 / (len(rates) * squares) if squares else 1.0
    return Fairness(len(rates), index, max(tags) - min(tags))


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "serve", "serve", "serve", "end", "leave", "look", "look"]),
        st.sampled_from("abcd"),
        st.integers(1, 50),
    ),
    max_size=120,
)


@given(MOVES)
@settings(derandomize=True, deadline=None, max_examples=150)
def test_as_another_reckoning_has_it(moves: list[tuple[str, str, int]]) -> None:
    watched = Watched({"a": {"weight": 2.0}, "b": {"max_in_flight": 1}})
    inside: list[Request] = []
    looks: list[tuple[float, dict[str, Seen]]] = []
    for move, tenant, amount in moves:
        here = {r.tenant: r for r in watched.queue.heads(watched.now, math.inf)}
        if move == "put":
            watched.put(tenant)
        elif move == "serve" and tenant in here:
            watched.pop_this(here[tenant], float(amount))
            inside.append(here[tenant])
        elif move == "leave" and tenant in here:
            watched.queue.remove(here[tenant])
        elif move == "end" and inside:
            request = inside.pop(0)
            watched.settle(request, float(amount))
            watched.free(request)
        elif move == "look":
            watched.now += amount
            found = watched.look(watched.now)
            looks.append(
                (watched.now, {x.tenant: Seen(x.seq, x.tag, x.key is not None) for x in watched.queue.leaves()})
            )
            expected = reckoned(looks[-16:], watched.now)
            assert (found is None) == (expected is None)
            if found is not None and expected is not None:
                assert found.tenants == expected.tenants
                assert found.jain == pytest.approx(expected.jain)
                assert found.spread == pytest.approx(expected.spread)


# -- a scheduler at work --------------------------------------------------------------------------


def test_two_that_always_wait_are_served_by_weight() -> None:
    """Weights 4 to 1, four slots, one request a second done: a gets four times the tokens, as Jain's index wants it."""
    tenants = {"a": TenantPolicy(weight=4.0), "b": TenantPolicy()}
    case = Case(a_fixed_pool(a_class(queue_timeout_s=1e6), slots=4, tenants=tenants), checked=False)
    meter, cls = FairnessMeter(), case.scheduler.classes[0]
    for i in range(300):
        case.arrive(f"a{i}", "a")
        case.arrive(f"b{i}", "b")
    released = [e.id for e in case.effects if isinstance(e, Release)]
    served = {"a": 0, "b": 0}
    for second in range(240):
        case.now += 1.0
        case.page(running=4)
        request = released.pop(0)
        case.usage(request, 100, 50)
        released += [e.id for e in case.end(request) if isinstance(e, Release)]
        if second >= 180:
            served[request[0]] += 1
        if second % 5 == 4:
            meter.look(cls, case.now)
    found = meter.fairness(case.now)
    assert found is not None
    assert found.tenants == 2
    assert found.jain >= 0.99
    assert served["a"] == pytest.approx(4 * served["b"], abs=4)
