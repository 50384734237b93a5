"""The five properties that the theory promises, each looked for over many orders of events.

C_max is the largest charge/weight."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest
from fair_queue_bench import Bench, flows
from fair_queue_reference import Pool, ReferenceQueue
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.fair_queue import FairQueue
from extproc.core.model import Order, Request, State

pytestmark = pytest.mark.slow

COSTS = st.integers(1, 100).map(float)
WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 4.0, 8.0])
few = settings(derandomize=True, deadline=None, max_examples=50)


# -- (a) peek() is None if and only if every queued leaf is held on its path ---------------------------


@few
@given(
    caps=st.lists(st.sampled_from([None, 1, 2, 3]), min_size=4, max_size=4),
    rates=st.lists(st.sampled_from([None, None, 8.0]), min_size=4, max_size=4),
    moves=st.lists(
        st.tuples(st.sampled_from(["put", "pop", "free", "cancel", "wait"]), st.integers(0, 99)), max_size=80
    ),
)
def test_peek_is_none_exactly_when_all_that_is_queued_is_held(
    caps: list[int | None], rates: list[float | None], moves: list[tuple[str, int]]
) -> None:
    """Slots and buckets are counted by the test. Nodes: x with a and b in it, and y."""
    nodes = ("x", "x/a", "x/b", "y")
    cap, rate = dict(zip(nodes, caps, strict=True)), dict(zip(nodes, rates, strict=True))
    bench = Bench({n: {"max_in_flight": cap[n], "rate": rate[n], "rate_burst": 10.0} for n in nodes})
    queued: list[Request] = []
    inside: list[Request] = []
    levels = dict.fromkeys(nodes, 10.0)

    def on_path(request: Request) -> list[str]:
        return [n for n in nodes if n == request.tenant or request.tenant.startswith(n + "/")]

    def held(request: Request) -> bool:
        slots = Counter(n for r in inside for n in on_path(r))
        return any(
            (limit is not None and slots[n] >= limit) or (rate[n] is not None and levels[n] <= 0)
            for n in on_path(request)
            for limit in [cap[n]]
        )

    for move, pick in moves:
        if move == "put":
            queued.append(bench.put(("x/a", "x/b", "y")[pick % 3]))
        elif move == "cancel" and queued:
            bench.cancel(queued.pop(pick % len(queued)))
        elif move == "free" and inside:
            bench.free(inside.pop(pick % len(inside)))
        elif move == "wait":
            bench.now += pick / 16
            levels = {n: min(10.0, level + pick / 16 * 8.0) for n, level in levels.items()}
        elif move == "pop":
            request = bench.pop(float(pick))
            assert (request is None) == all(held(r) for r in queued)
            if request is not None:
                assert not held(request)
                queued.remove(request)
                inside.append(request)
                for n in on_path(request):
                    levels[n] -= pick
        assert (bench.head() is None) == all(held(r) for r in queued)
        assert len(bench.queue) == len(queued)


# -- (b) spread of the tags of siblings that are backlogged all the time --------------------------------


@few
@given(weights=st.lists(WEIGHTS, min_size=2, max_size=5), costs=st.lists(COSTS, min_size=1, max_size=120))
def test_tags_of_backlogged_siblings_stay_within_one_charge(weights: list[float], costs: list[float]) -> None:
    names = [f"t{i}" for i in range(len(weights))]
    bench = Bench({name: {"weight": weight} for name, weight in zip(names, weights, strict=True)}, checked=False)
    for name in names:
        for _ in range(len(costs) + 1):
            bench.put(name)
    for cost in costs:
        bench.serve(cost)
        tags = [bench.tag(name) for name in names]
        assert max(tags) - min(tags) <= max(costs) / min(weights) + 1e-6


class Course:
    """Tenants that are backlogged all the time are served, up to `inside` at a time. A request is charged the first of
    its pair, and settled to the second when it ends."""

    def __init__(self, weights: list[float], costs: list[tuple[float, float]], inside: int) -> None:
        self.weight = {f"t{i}": weight for i, weight in enumerate(weights)}
        self.bench = Bench({name: {"weight": w} for name, w in self.weight.items()}, checked=False)
        for name in self.weight:
            for _ in range(len(costs) + 1):
                self.bench.put(name)
        self.costs, self.inside = costs, inside
        self.c_max = max(max(pair) for pair in costs) / min(weights)
        self.running: list[tuple[Request, float]] = []
        self.wrong = 0.0  # most that the charges of those that were open at a release were wrong by, /weight

    def __iter__(self) -> Iterator[tuple[str, float]]:
        """Tenant and true cost/weight of each release."""
        for charge, cost in self.costs:
            wrong = sum(abs(true - r.charged) / self.weight[r.tenant] for r, true in self.running)
            self.wrong = max(self.wrong, wrong)
            request = self.bench.take(charge)
            self.running.append((request, cost))
            if len(self.running) > self.inside:
                self.bench.finish(*self.running.pop(0))
            yield request.tenant, cost / self.weight[request.tenant]


courses = st.builds(
    Course,
    st.lists(WEIGHTS, min_size=2, max_size=4),
    st.lists(st.tuples(COSTS, COSTS), min_size=1, max_size=100),
    st.integers(0, 6),
)


@few
@given(course=courses)
def test_with_charges_that_were_wrong_the_spread_grows_by_what_was_open(course: Course) -> None:
    """At the last release of f it had the smaller tag. Since then it has been charged and trued up for that request,
    and for those of both that were open then; what g has had since only adds to g's tag."""
    for _ in course:
        tags = [course.bench.tag(name) for name in course.weight]
        assert max(tags) - min(tags) <= course.c_max + course.wrong + 1e-6


# -- (c) service of any two --------------------------------------------------------------------------


@few
@given(course=courses, share=st.floats(0, 1))
def test_service_of_any_two_backlogged_tenants_differs_by_two_charges_and_what_was_open(
    course: Course, share: float
) -> None:
    """Over any interval: |W_f/w_f - W_g/w_g| <= 2 (C_max + error of what was open), W the true cost of what was
    released. From the start of a busy period on it is half of that."""
    had = dict.fromkeys(course.weight, 0.0)
    since = int(share * len(course.costs))
    later = dict.fromkeys(course.weight, 0.0)
    for i, (tenant, cost) in enumerate(course):
        had[tenant] += cost
        assert max(had.values()) - min(had.values()) <= course.c_max + course.wrong + 1e-6
        if i >= since:
            later[tenant] += cost
        assert max(later.values()) - min(later.values()) <= 2 * (course.c_max + course.wrong) + 1e-6


# -- (d) lift -----------------------------------------------------------------------------------------


@few
@given(
    weight=WEIGHTS,
    burst=st.sampled_from([0.0, 10.0, 160.0]),
    before=st.integers(0, 60),
    debt=st.integers(0, 400),
)
def test_a_tenant_that_returns_starts_at_v_or_its_debt_and_gets_no_more_than_its_share(
    weight: float, burst: float, before: int, debt: int
) -> None:
    """b is served once at the start, then idle for `before` services of a, then backlogged."""
    bench = Bench({"b": {"weight": weight, "burst": burst}}, checked=False)
    for _ in range(400):
        bench.put("a")
    bench.put("b")
    first = next(r for r in bench.queue.heads(0.0, 1e9) if r.tenant == "b")
    bench.pop_this(first, float(debt))
    start = -burst / weight + debt / weight  # V was 0
    for _ in range(before):
        bench.serve(10.0)
    bench.settle(first, float(debt))
    v = before * 10.0
    for _ in range(300):
        bench.put("b")
    assert bench.tag("b") == max(start, v - burst / weight)
    had = Counter(bench.order(10.0, 100))
    # Level with a it gets weight/(weight + 1) of 100 services; before that, what it may use up of its burst alone.
    ahead = min(burst, 1000.0) / 10.0
    assert had["b"] <= (100 - min(ahead, 100)) * weight / (weight + 1) + ahead + max(weight, 1) + 1


# -- (e) forgetting is exact ---------------------------------------------------------------------------


@few
@given(
    moves=st.lists(
        st.tuples(st.sampled_from(["put", "put", "pop", "pop", "free", "settle", "cancel"]), st.integers(0, 99)),
        min_size=20,
        max_size=120,
    ),
    bursts=st.booleans(),
)
def test_forgetting_changes_no_later_order(moves: list[tuple[str, int]], bursts: bool) -> None:
    """Against a reference that forgets nothing within a busy period: any estimates, any true-ups. Neither is V moved
    by it, nor a tag. (Within the bound on debtors: here are fewer names than it allows.)"""
    _forgotten(moves, bursts)


def _forgotten(moves: list[tuple[str, int]], bursts: bool) -> int:
    """The most nodes that the reference had, and the queue had not any more."""
    names = ("a", "b", "c", "x/d", "x/e")
    policy = flows({n: {"burst": 16.0, "weight": 2.0} for n in ("a", "b", "x", "x/d")} if bursts else {})
    queue, reference = FairQueue(policy), ReferenceQueue(Pool(), policy, Order.FIFO)
    most = 0
    for seq, (move, pick) in enumerate(moves):
        if move == "put":
            request = Request(
                id=str(seq), tenant=names[pick % 5], cls="c", arrival=0.0, seq=seq, body_bytes=0, prompt_tokens=0.0,
                output_tokens=0.0, max_output=None, slots=1, deadline=0.0, cost=1.0,
            )  # fmt: skip
            queue.put(request, 0.0)
            reference.put(request, 0.0)
        elif move == "cancel" and reference.queued:
            request = reference.queued[pick % len(reference.queued)]
            request.move(State.CANCELLED)
            queue.remove(request)
            reference.remove(request)
        elif move == "pop":
            head = queue.peek(0.0)
            assert head is reference.peek(0.0)
            if head is not None:
                queue.pop(head, float(pick), 0.0)
                reference.pop(head, float(pick), 0.0)
        elif move == "free" and (running := [run for run in reference.runs if not run.freed]):
            run = running[pick % len(running)]
            queue.free(run.request)
            reference.free(run.request)
        elif move == "settle" and (running := [run for run in reference.runs if not run.settled]):
            run = running[0]
            queue.settle(run.request, float(pick * 2))
            run.request.settled = True
            reference.true_up(run.request, float(pick * 2), final=True)
        for leaf in queue.leaves():
            assert leaf.tag == reference.nodes[reference.leaf_of[leaf.tenant]].tag
        most = max(most, len(reference.leaf_of) - queue.size)
    return most


@pytest.mark.parametrize("seed", range(6))
def test_forgetting_changes_no_later_order_in_a_long_busy_period(seed: int) -> None:
    """One tenant never rests, with several inside and estimates that are mostly far too high: V falls as often as it
    rises. The others come for one request or two."""
    dice = random.Random(seed)
    moves = [("put", 0)] * 6
    for _ in range(150):
        moves += [("put", 0)] * 2 + [("put", dice.randrange(1, 5))] * dice.choice([0, 0, 1, 2])
        moves += [("pop", dice.choice([5, 50, 99])) for _ in range(3)]
        moves += [(dice.choice(["free", "settle"]), dice.choice([0, 0, 2, 20])) for _ in range(6)]
    assert _forgotten(moves, bursts=seed % 2 == 1) > 0


def test_something_is_forgotten_in_this() -> None:
    """b is served once for 5 and idle; a goes on to 30. Then b is gone, and comes back to where it would be."""
    moves = [("put", 0)] * 8 + [("put", 1)]
    moves += [("pop", 10), ("pop", 5), ("settle", 5), ("free", 0), ("settle", 2), ("free", 0)]
    moves += [("pop", 10), ("settle", 5), ("free", 0)] * 3
    moves += [("put", 1), ("pop", 10), ("pop", 10), ("pop", 10)]
    assert _forgotten(moves, bursts=False) == 1
