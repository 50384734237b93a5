"""The fair order within one class. Each request is served and settled by hand; no time passes."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.fair_queue import FairQueue
from extproc.core.model import Request, State


class Bench:
    """A queue, with the moves of the states that the scheduler makes around it."""

    def __init__(
        self, weights: dict[str, float] | None = None, caps: dict[str, int] | None = None, *, checked: bool = True
    ) -> None:
        self.checked = checked  # invariants after each service, at a cost that grows with what is queued
        self.queue = FairQueue(lambda tenant: ((weights or {}).get(tenant, 1.0), (caps or {}).get(tenant)))
        self._seq = itertools.count(1)

    def put(self, tenant: str, arrival: float = 0.0, slots: int = 1) -> Request:
        seq = next(self._seq)
        request = Request(
            id=f"{tenant}{seq}",
            tenant=tenant,
            cls="c",
            arrival=arrival,
            seq=seq,
            body_bytes=0,
            prompt_tokens=0.0,
            output_tokens=0.0,
            max_output=None,
            slots=slots,
            deadline=0.0,
        )
        self.queue.put(request)
        return request

    def pop(self, charge: float = 1.0) -> Request | None:
        request = self.queue.pop(charge)
        if request is not None:
            request.move(State.RELEASED)
        if self.checked:
            self.queue.check()
        return request

    def take(self, charge: float = 1.0) -> Request:
        request = self.pop(charge)
        assert request is not None
        return request

    def finish(self, request: Request, cost: float) -> None:
        self.queue.free(request)
        self.queue.settle(request, cost)
        if self.checked:
            self.queue.check()

    def serve(self, charge: float, cost: float | None = None) -> str:
        """One request from queue to end. Returns its tenant."""
        request = self.take(charge)
        self.finish(request, charge if cost is None else cost)
        return request.tenant

    def cancel(self, request: Request) -> None:
        request.move(State.CANCELLED)
        self.queue.remove(request)

    def tag(self, tenant: str) -> float:
        leaf = self.queue.leaf(tenant)
        assert leaf is not None
        return leaf.tag


# -- shares ---------------------------------------------------------------------------------------


def test_weights_one_to_four_share_the_service_one_to_four() -> None:
    bench = Bench(weights={"a": 1, "b": 2, "c": 3, "d": 4}, checked=False)
    for tenant in "abcd":
        for _ in range(500):
            bench.put(tenant)
    served = Counter(bench.serve(100.0) for _ in range(1000))
    # 1000 services over 1 + 2 + 3 + 4 = 10 parts. A tenant is at most one service from its share.
    for tenant, share in {"a": 100, "b": 200, "c": 300, "d": 400}.items():
        assert abs(served[tenant] - share) <= 1


def test_short_and_long_requests_get_the_same_cost_not_the_same_number() -> None:
    """64/64 tokens cost 64 + 2*64 = 192; 256/256 cost 256 + 2*256 = 768, four times as much."""
    bench = Bench(checked=False)
    cost = {"short": 192.0, "long": 768.0}
    for tenant in cost:
        for _ in range(1000):
            bench.put(tenant)
    served: Counter[str] = Counter()
    for _ in range(500):
        head = bench.queue.peek()
        assert head is not None
        served[bench.serve(cost[head.tenant])] += 1
    assert served == {"short": 400, "long": 100}


def test_order_of_two_tenants_by_hand() -> None:
    """Tags a, b before each service: 0,0 -> 30,0 -> 30,10 -> 30,20 -> 30,30 (a came first) -> 60,30."""
    bench = Bench()
    for _ in range(4):
        bench.put("a")
        bench.put("b")
    cost = {"a": 30.0, "b": 10.0}
    order = ""
    for _ in range(6):
        head = bench.queue.peek()
        assert head is not None
        order += bench.serve(cost[head.tenant])
    assert order == "abbbab"


# -- lift and debt --------------------------------------------------------------------------------


def test_a_tenant_that_returns_is_lifted_to_the_others_and_does_not_catch_up() -> None:
    bench = Bench()
    for _ in range(200):
        bench.put("a")
        bench.put("b")
    for _ in range(100):
        bench.serve(10.0)
    assert (bench.tag("a"), bench.tag("b")) == (500.0, 500.0)
    for _ in range(100):
        bench.put("c")
    assert bench.tag("c") == 500.0
    assert Counter(bench.serve(10.0) for _ in range(30)) == {"a": 10, "b": 10, "c": 10}


def test_debt_outlasts_idling_and_is_worked_off_by_the_service_of_others() -> None:
    bench = Bench()
    bench.put("greedy")
    assert bench.serve(10.0, cost=1000.0) == "greedy"
    for _ in range(200):
        bench.put("b")
    for _ in range(5):
        assert bench.serve(10.0) == "b"
    bench.put("greedy")
    bench.put("greedy")
    # b: five services of 10. greedy owes 1000 - 50 = 950 = 95 services of b; then the tie goes to whoever was first.
    assert (bench.tag("greedy"), bench.tag("b")) == (1000.0, 50.0)
    assert [bench.serve(10.0) for _ in range(96)] == ["b"] * 95 + ["greedy"]


def test_a_tenant_that_idles_between_requests_gains_nothing_from_it() -> None:
    """b comes one at a time against a backlog of a: half each, whatever b's number of requests."""
    bench = Bench()
    for _ in range(100):
        bench.put("a")
    order = ""
    bench.put("b")
    for _ in range(20):
        served = bench.serve(10.0)
        order += served
        if served == "b":
            bench.put("b")
    assert Counter(order) == {"a": 10, "b": 10}


# -- true-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "tag"), [(250.0, 125.0), (40.0, 20.0), (0.0, 0.0), (100.0, 50.0)])
def test_settle_trues_the_charge_up_or_down_by_weight(cost: float, tag: float) -> None:
    bench = Bench(weights={"a": 2.0})
    bench.put("a")
    bench.put("a")
    request = bench.take(100.0)
    assert bench.tag("a") == 50.0  # 100 / weight 2
    bench.queue.settle(request, cost)
    assert bench.tag("a") == tag
    assert request.charged == cost
    bench.queue.free(request)
    assert bench.tag("a") == tag  # the end of the stream charges nothing more


def test_settle_before_and_after_the_end_of_the_stream_come_to_the_same() -> None:
    tags = []
    for settle_first in (True, False):
        bench = Bench()
        bench.put("a")
        bench.put("a")
        request = bench.take(100.0)
        if settle_first:
            bench.queue.settle(request, 70.0)
            bench.queue.free(request)
        else:
            bench.queue.free(request)
            bench.queue.settle(request, 70.0)
        bench.queue.check()
        tags.append(bench.tag("a"))
    assert tags == [70.0, 70.0]


def test_a_refund_moves_the_tenant_forward_in_the_order() -> None:
    bench = Bench()
    for _ in range(3):
        bench.put("a")
        bench.put("b")
    a = bench.take(100.0)
    bench.take(40.0)
    head = bench.queue.peek()
    assert head is not None and head.tenant == "b"  # tags a 100, b 40
    bench.queue.settle(a, 30.0)
    head = bench.queue.peek()
    assert head is not None and head.tenant == "a"  # tags a 30, b 40


# -- caps -----------------------------------------------------------------------------------------


def test_a_capped_tenant_is_passed_over_and_its_turn_is_kept() -> None:
    bench = Bench(caps={"a": 1})
    for _ in range(5):
        bench.put("a")
        bench.put("b")
    first = bench.take(10.0)
    assert first.tenant == "a"
    assert [bench.serve(10.0) for _ in range(3)] == ["b", "b", "b"]  # a is at its cap with one inside
    bench.finish(first, 10.0)
    assert [bench.serve(10.0) for _ in range(3)] == ["a", "a", "a"]  # tags a 10, b 30: a's turn, a tie at 30 is a's


def test_pop_gives_nothing_when_caps_block_all_that_is_queued() -> None:
    bench = Bench(caps={"a": 2, "b": 1})
    inside = [bench.put(tenant) for tenant in ("a", "a", "b")]
    for _ in inside:
        bench.take()
    bench.put("a")
    bench.put("b")
    assert len(bench.queue) == 2
    assert bench.queue.peek() is None
    assert bench.pop() is None
    bench.finish(inside[2], 1.0)
    assert bench.take().tenant == "b"
    assert bench.pop() is None


def test_pop_of_an_empty_queue_is_none() -> None:
    bench = Bench()
    assert bench.pop() is None
    bench.cancel(bench.put("a"))
    assert bench.pop() is None


def test_slots_count_against_the_cap() -> None:
    bench = Bench(caps={"a": 4})
    wide = bench.put("a", slots=4)
    bench.put("a")
    assert bench.take() is wide
    assert bench.queue.in_flight == 4
    assert bench.pop() is None
    bench.finish(wide, 1.0)
    assert bench.queue.in_flight == 0
    assert bench.pop() is not None


# -- ties and order within a tenant ---------------------------------------------------------------


def test_tie_goes_to_the_tenant_with_fewer_in_flight() -> None:
    bench = Bench()
    for _ in range(3):
        bench.put("a")
    bench.take(10.0)
    bench.put("b")  # lifted to a's tag, 10
    assert (bench.tag("a"), bench.tag("b")) == (10.0, 10.0)
    assert bench.take(10.0).tenant == "b"  # a has one inside


def test_tie_with_the_same_in_flight_goes_to_the_flow_that_came_first() -> None:
    bench = Bench()
    for tenant in ("c", "a", "b"):
        bench.put(tenant)
    assert [bench.take(10.0).tenant for _ in range(3)] == ["c", "a", "b"]


def test_within_a_tenant_the_older_arrival_goes_first_also_when_it_is_put_later() -> None:
    bench = Bench()
    late = bench.put("a", arrival=20.0)
    same = bench.put("a", arrival=20.0)
    replayed = bench.put("a", arrival=10.0)
    assert [bench.take() for _ in range(3)] == [replayed, late, same]


def test_a_cancelled_head_is_passed_over() -> None:
    bench = Bench()
    first, second, third = (bench.put("a", arrival=t) for t in (1.0, 2.0, 3.0))
    bench.cancel(first)
    bench.cancel(third)
    bench.queue.check()
    assert len(bench.queue) == 1
    assert bench.take() is second
    assert bench.pop() is None


# -- memory ---------------------------------------------------------------------------------------


def test_state_of_a_flood_of_names_goes_away_once_virtual_time_has_passed_it() -> None:
    bench = Bench()
    for i in range(10_000):
        bench.put(f"x{i}")
    requests = [bench.queue.pop(10.0) for _ in range(10_000)]
    for request in requests:
        assert request is not None
        request.move(State.RELEASED)
        bench.queue.free(request)
        bench.queue.settle(request, 10.0)
    assert bench.queue.size == 10_000  # each owes the 10 that it had
    for _ in range(3):
        bench.put("y")
    bench.serve(5.0)  # V 0
    bench.serve(5.0)  # V 5
    assert bench.queue.size == 10_001
    bench.serve(5.0)  # V 10: what all of them owed is paid
    assert bench.queue.size == 1


def test_a_debtor_is_kept_until_virtual_time_passes_its_tag() -> None:
    bench = Bench()
    bench.put("debtor")
    bench.serve(10.0, cost=35.0)
    for _ in range(6):  # one more than is served: b is never idle
        bench.put("b")
    sizes = []
    for _ in range(5):
        bench.serve(10.0)  # V: 0, 10, 20, 30, 40
        sizes.append(bench.queue.leaf("debtor") is not None)
    assert sizes == [True, True, True, True, False]


def test_names_that_come_once_and_never_again_do_not_pile_up() -> None:
    """Each new name starts at V = 0, so V never passes the debt of those before: the least indebted must go."""
    bench = Bench()
    bench.put("heavy")
    bench.serve(10.0, cost=1e9)
    for i in range(25_000):
        bench.put(f"x{i}")
        request = bench.queue.pop(10.0)
        assert request is not None
        request.move(State.RELEASED)
        bench.queue.free(request)
        bench.queue.settle(request, 10.0)
    assert bench.queue.size <= 10_001
    assert bench.tag("heavy") == 1e9


def test_when_nobody_is_left_tags_start_over() -> None:
    bench = Bench()
    for _ in range(10):
        bench.put("a")
        bench.serve(10.0, cost=0.0)
    assert bench.queue.size == 0
    bench.put("a")
    assert bench.tag("a") == 0.0


def test_an_unused_name_that_left_the_queue_is_forgotten_at_once() -> None:
    bench = Bench()
    bench.cancel(bench.put("a"))
    assert bench.queue.size == 0


def test_mass_cancel_keeps_heaps_bounded() -> None:
    bench = Bench()
    keep = bench.put("a", arrival=0.0)
    requests = [bench.put("a", arrival=1.0) for _ in range(49_999)]
    leaf = bench.queue.leaf("a")
    assert leaf is not None and len(leaf.fifo) == 50_000
    for request in requests:
        bench.cancel(request)
    assert len(leaf.fifo) <= 100  # 1 live, and the slack of 64 before a rebuild
    assert bench.take() is keep


def test_mass_cancel_of_as_many_tenants_keeps_heaps_bounded() -> None:
    bench = Bench()
    requests = [bench.put(f"x{i}") for i in range(50_000)]
    for request in requests:
        bench.cancel(request)
    assert bench.queue.size == 0
    root = bench.queue._root
    assert (len(root.heap), len(root.debtors)) == (0, 0)


def test_churn_of_in_flight_counts_keeps_the_heap_of_tenants_bounded() -> None:
    """Each change of in-flight makes a new entry; stale ones must not pile up while nobody pops them."""
    bench = Bench()
    for _ in range(20_001):
        bench.put("a")
    bench.put("low")
    longest = 0
    for _ in range(20_000):
        request = bench.queue.pop(0.0)
        assert request is not None and request.tenant == "a"
        request.move(State.RELEASED)
        bench.queue.free(request)
        bench.queue.settle(request, 0.0)
        longest = max(longest, len(bench.queue._root.heap))
    assert longest <= 64 + 2 * 2 + 1


# -- properties -----------------------------------------------------------------------------------

_COSTS = st.integers(1, 100).map(float)
_WEIGHTS = st.sampled_from([0.5, 1.0, 2.0, 3.0, 8.0])


@settings(derandomize=True, max_examples=60, deadline=None)
@given(weights=st.lists(_WEIGHTS, min_size=2, max_size=5), costs=st.lists(_COSTS, min_size=1, max_size=120))
def test_tags_of_backlogged_siblings_stay_within_one_charge(weights: list[float], costs: list[float]) -> None:
    names = [f"t{i}" for i in range(len(weights))]
    bench = Bench(weights=dict(zip(names, weights, strict=True)))
    for name in names:
        for _ in range(len(costs) + 1):
            bench.put(name)
    bound = max(costs) / min(weights)
    for cost in costs:
        bench.serve(cost)
        tags = [bench.tag(name) for name in names]
        assert max(tags) - min(tags) <= bound + 1e-6


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    weights=st.lists(_WEIGHTS, min_size=2, max_size=4),
    costs=st.lists(st.tuples(_COSTS, _COSTS), min_size=1, max_size=120),
    data=st.data(),
)
def test_service_of_any_two_backlogged_tenants_differs_by_less_than_two_charges(
    weights: list[float], costs: list[tuple[float, float]], data: st.DataObject
) -> None:
    """Also over any interval, and with charges that were wrong and settled before the next service."""
    names = [f"t{i}" for i in range(len(weights))]
    bench = Bench(weights=dict(zip(names, weights, strict=True)), checked=False)
    for name in names:
        for _ in range(len(costs) + 1):
            bench.put(name)
    c_max = max(cost for _, cost in costs) / min(weights)
    since = data.draw(st.integers(0, len(costs) - 1))
    had: Counter[str] = Counter()
    for i, (charge, cost) in enumerate(costs):
        tenant = bench.serve(charge, cost)
        if i >= since:
            had[tenant] += cost
        normal = [had[name] / weight for name, weight in zip(names, weights, strict=True)]
        assert max(normal) - min(normal) <= 2 * c_max + 1e-6


@settings(derandomize=True, max_examples=80, deadline=None)
@given(
    caps=st.lists(st.one_of(st.none(), st.integers(1, 3)), min_size=1, max_size=4),
    moves=st.lists(st.tuples(st.sampled_from(["put", "pop", "finish", "cancel"]), st.integers(0, 99)), max_size=80),
)
def test_pop_is_none_exactly_when_all_that_is_queued_is_blocked(
    caps: list[int | None], moves: list[tuple[str, int]]
) -> None:
    """Against a count of queued and inside kept by the test."""
    names = [f"t{i}" for i in range(len(caps))]
    limits = {name: cap for name, cap in zip(names, caps, strict=True) if cap is not None}
    bench = Bench(caps=limits)
    queued: list[Request] = []
    inside: list[Request] = []
    for move, pick in moves:
        if move == "put":
            queued.append(bench.put(names[pick % len(names)], arrival=float(pick)))
        elif move == "cancel" and queued:
            bench.cancel(queued.pop(pick % len(queued)))
        elif move == "finish" and inside:
            bench.finish(inside.pop(pick % len(inside)), float(pick))
        elif move == "pop":
            holds = Counter(request.tenant for request in inside)
            free = [r for r in queued if r.tenant not in limits or holds[r.tenant] < limits[r.tenant]]
            request = bench.pop(float(pick))
            assert (request is None) == (not free)
            if request is not None:
                oldest = min((r for r in queued if r.tenant == request.tenant), key=lambda r: (r.arrival, r.seq))
                assert request is oldest and request in free
                queued.remove(request)
                inside.append(request)
        bench.queue.check()
        assert len(bench.queue) == len(queued)
        assert bench.queue.in_flight == len(inside)
