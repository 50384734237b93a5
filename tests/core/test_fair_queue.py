"""The fair order of tenants on one level. Each request is served and settled by hand; no time passes."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from fair_queue_bench import Bench, flows

from extproc.core.fair_queue import FairQueue

# -- shares ---------------------------------------------------------------------------------------


def test_weights_one_to_four_share_the_service_one_to_four() -> None:
    bench = Bench({name: {"weight": weight} for name, weight in zip("abcd", (1, 2, 3, 4), strict=True)}, checked=False)
    for tenant in "abcd":
        for _ in range(500):
            bench.put(tenant)
    served = Counter(bench.order(100.0, 1000))
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
        head = bench.head()
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
        head = bench.head()
        assert head is not None
        order += bench.serve(cost[head.tenant])
    assert order == "abbbab"


# -- lift and debt --------------------------------------------------------------------------------


def test_a_tenant_that_returns_is_lifted_to_the_others_and_does_not_catch_up() -> None:
    bench = Bench()
    for _ in range(200):
        bench.put("a")
        bench.put("b")
    bench.order(10.0, 100)
    assert (bench.tag("a"), bench.tag("b")) == (500.0, 500.0)
    for _ in range(100):
        bench.put("c")
    assert bench.tag("c") == 500.0
    assert Counter(bench.order(10.0, 30)) == {"a": 10, "b": 10, "c": 10}


def test_debt_outlasts_idling_and_is_worked_off_by_the_service_of_others() -> None:
    bench = Bench()
    bench.keep_busy()
    bench.put("greedy")
    assert bench.serve(10.0, cost=1000.0) == "greedy"
    for _ in range(200):
        bench.put("b")
    assert bench.order(10.0, 5) == "bbbbb"
    bench.put("greedy")
    bench.put("greedy")
    # b: five services of 10. greedy owes 1000 - 50 = 950 = 95 services of b; then the tie goes to whoever was first.
    assert (bench.tag("greedy"), bench.tag("b")) == (1000.0, 50.0)
    assert [bench.serve(10.0) for _ in range(97)] == ["b"] * 96 + ["greedy"]


def test_debt_ends_with_the_busy_period() -> None:
    """Nothing queued, running or unsettled: nobody was kept waiting, and all start equal."""
    bench = Bench()
    bench.put("greedy")
    bench.serve(10.0, cost=1000.0)
    assert bench.queue.nodes == 0
    bench.put("greedy")
    bench.put("b")
    assert (bench.tag("greedy"), bench.tag("b")) == (0.0, 0.0)


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


def test_burst_is_what_may_be_saved_up() -> None:
    """a is at 100 when b comes: b starts at 100 - 60/2 = 70, and with charges of 20/2 = 10 goes three times."""
    bench = Bench({"b": {"weight": 2, "burst": 60}})
    for _ in range(20):
        bench.put("a")
    bench.order(20.0, 5)
    for _ in range(10):
        bench.put("b")
    assert (bench.tag("a"), bench.tag("b")) == (100.0, 70.0)
    # 70, 80, 90, then both at 100: a came first; a 120, b 100, 110; then the tie at 120 is a's.
    assert bench.order(20.0, 7) == "bbbabba"


def test_a_burst_does_not_pull_newcomers_down_with_it() -> None:
    """V with b at 70, 30 of it ahead, is 100: c starts there, and another with a burst of 30 at 70, not at 40."""
    bench = Bench({"b": {"burst": 30}, "d": {"burst": 30}})
    for _ in range(20):
        bench.put("a")
    bench.order(20.0, 5)
    for tenant in ("b", "b", "b", "c", "d"):
        bench.put(tenant)
    assert (bench.tag("b"), bench.tag("c"), bench.tag("d")) == (70.0, 100.0, 70.0)
    assert bench.serve(20.0) == "b"  # 90; still 10 ahead
    bench.put("e")
    assert bench.tag("e") == 100.0


# -- true-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cost", "tag"), [(250.0, 125.0), (40.0, 20.0), (0.0, 0.0), (100.0, 50.0)])
def test_settle_trues_the_charge_up_or_down_by_weight(cost: float, tag: float) -> None:
    bench = Bench({"a": {"weight": 2.0}})
    bench.put("a")
    bench.put("a")
    request = bench.take(100.0)
    assert bench.tag("a") == 50.0  # 100 / weight 2
    bench.settle(request, cost)
    assert bench.tag("a") == tag
    assert request.charged == cost
    bench.free(request)
    assert bench.tag("a") == tag  # the end of the stream charges nothing more


def test_settle_before_and_after_the_end_of_the_stream_come_to_the_same() -> None:
    tags = []
    for settle_first in (True, False):
        bench = Bench()
        bench.put("a")
        bench.put("a")
        request = bench.take(100.0)
        if settle_first:
            bench.settle(request, 70.0)
            bench.free(request)
        else:
            bench.free(request)
            bench.settle(request, 70.0)
        tags.append(bench.tag("a"))
    assert tags == [70.0, 70.0]


def test_a_refund_moves_the_tenant_forward_in_the_order() -> None:
    bench = Bench()
    for _ in range(3):
        bench.put("a")
        bench.put("b")
    a = bench.take(100.0)
    bench.take(40.0)
    head = bench.head()
    assert head is not None and head.tenant == "b"  # tags a 100, b 40
    bench.settle(a, 30.0)
    head = bench.head()
    assert head is not None and head.tenant == "a"  # tags a 30, b 40


def test_a_long_request_is_charged_while_it_runs_and_never_less_before_it_ends() -> None:
    bench = Bench()
    for _ in range(3):
        bench.put("a")
        bench.put("b")
    a = bench.take(10.0)
    bench.take(10.0)
    bench.queue.refresh(a, 25.0)
    assert (bench.tag("a"), a.charged) == (25.0, 25.0)
    head = bench.head()
    assert head is not None and head.tenant == "b"  # it was a's turn without that
    bench.queue.refresh(a, 15.0)
    assert (bench.tag("a"), a.charged) == (25.0, 25.0)
    bench.settle(a, 15.0)
    assert (bench.tag("a"), a.charged) == (15.0, 15.0)


# -- caps -----------------------------------------------------------------------------------------


def test_a_capped_tenant_is_passed_over_and_its_turn_is_kept() -> None:
    bench = Bench({"a": {"max_in_flight": 1}})
    for _ in range(5):
        bench.put("a")
        bench.put("b")
    first = bench.take(10.0)
    assert first.tenant == "a"
    assert bench.order(10.0, 3) == "bbb"  # a is at its cap with one inside
    bench.finish(first, 10.0)
    # It has tag 10 and b 30. Its turn is one charge: it goes on from 30 - 10. Then the tie at 30 is a's.
    assert bench.tag("a") == 20.0
    assert bench.order(10.0, 4) == "aaba"


def test_what_a_cap_kept_from_a_tenant_is_not_saved_up() -> None:
    """b gets 50 services while a may not: a goes on one turn before b, and c, which comes then, starts at b's tag."""
    bench = Bench({"a": {"max_in_flight": 1}})
    for _ in range(100):
        bench.put("a")
        bench.put("b")
    first = bench.take(10.0)
    assert bench.order(10.0, 50) == "b" * 50
    bench.finish(first, 10.0)
    assert (bench.tag("a"), bench.tag("b")) == (490.0, 500.0)
    for _ in range(20):
        bench.put("c")
    assert bench.tag("c") == 500.0
    assert Counter(bench.order(10.0, 31)) == {"a": 11, "b": 10, "c": 10}


def test_pop_gives_nothing_when_caps_block_all_that_is_queued() -> None:
    bench = Bench({"a": {"max_in_flight": 2}, "b": {"max_in_flight": 1}})
    inside = [bench.put(tenant) for tenant in ("a", "a", "b")]
    for _ in inside:
        bench.take()
    bench.put("a")
    bench.put("b")
    assert len(bench.queue) == 2
    assert bench.head() is None
    bench.finish(inside[2], 1.0)
    assert bench.take().tenant == "b"
    assert bench.head() is None


def test_an_empty_queue_gives_nothing() -> None:
    bench = Bench()
    assert bench.head() is None
    bench.cancel(bench.put("a"))
    assert bench.head() is None


def test_slots_count_against_the_cap() -> None:
    bench = Bench({"a": {"max_in_flight": 4}})
    wide = bench.put("a", slots=4)
    bench.put("a")
    assert bench.take() is wide
    assert bench.queue.in_flight == 4
    assert bench.head() is None
    bench.finish(wide, 1.0)
    assert bench.queue.in_flight == 0
    assert bench.head() is not None


# -- ties -----------------------------------------------------------------------------------------


def test_tie_goes_to_the_tenant_with_fewer_in_flight() -> None:
    bench = Bench()
    for _ in range(3):
        bench.put("a")
    bench.take(10.0)
    bench.put("b")  # lifted to a's tag, 10
    assert (bench.tag("a"), bench.tag("b")) == (10.0, 10.0)
    assert bench.take(10.0).tenant == "b"  # a has one inside


def test_a_tie_follows_the_slots_as_they_become_free() -> None:
    """a and b at 10 with two and one inside; a's end first, then the tie is a's."""
    bench = Bench()
    mine = [bench.put("a") for _ in range(4)]
    other = [bench.put("b") for _ in range(3)]
    for _ in range(3):
        bench.take(5.0 if bench.queue.leaf("b").in_flight else 0.0)  # type: ignore[union-attr]
    inside = [r for r in mine + other if r.state.value == "released"]
    assert Counter(r.tenant for r in inside) == {"a": 2, "b": 1}
    for request in inside:
        bench.settle(request, 10.0 / 2 if request.tenant == "a" else 10.0)
    assert (bench.tag("a"), bench.tag("b")) == (10.0, 10.0)
    head = bench.head()
    assert head is not None and head.tenant == "b"
    for request in inside:
        if request.tenant == "a":
            bench.free(request)
    head = bench.head()
    assert head is not None and head.tenant == "a"


def test_tie_with_the_same_in_flight_goes_to_the_flow_that_came_first() -> None:
    bench = Bench()
    for tenant in ("c", "a", "b"):
        bench.put(tenant)
    assert [bench.take(10.0).tenant for _ in range(3)] == ["c", "a", "b"]


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [-1.0, math.nan, math.inf, -math.inf, 1e13])
def test_a_cost_that_is_none_is_refused_and_nothing_has_happened(cost: float) -> None:
    bench = Bench()
    first = bench.put("a")
    bench.put("a")
    for operation in (
        lambda: bench.put("b", cost=cost),
        lambda: bench.queue.pop(first, cost, 0.0),
    ):
        with pytest.raises(ValueError, match=f"{cost!r}"):
            operation()
    assert (len(bench.queue), bench.queue.size, bench.tag("a")) == (2, 1, 0.0)
    assert bench.take(4.0) is first
    for operation in (lambda: bench.queue.settle(first, cost), lambda: bench.queue.refresh(first, cost)):
        with pytest.raises(ValueError, match=f"{cost!r}"):
            operation()
    assert (bench.tag("a"), first.charged) == (4.0, 4.0)
    bench.queue.check()


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf, 1e-9, "1", None])
def test_a_weight_that_is_none_is_refused_by_name_and_value(weight: object) -> None:
    bench = Bench({"org": {"weight": weight}})
    with pytest.raises(ValueError, match="weight of 'org' must be a number from 1e-06 to 1e\\+06, not"):
        bench.put("org/a")
    assert (bench.queue.nodes, len(bench.queue)) == (0, 0)


@pytest.mark.parametrize(
    ("field", "value"), [("max_in_flight", -1), ("burst", -1.0), ("burst", math.nan), ("rate", 0.0), ("rate", math.inf)]
)
def test_other_limits_that_are_none_are_refused(field: str, value: float) -> None:
    bench = Bench({"a": {field: value}})
    with pytest.raises(ValueError, match=f"{field} of 'a'"):
        bench.put("a")
    assert bench.queue.nodes == 0


def test_a_path_that_is_too_deep_is_refused() -> None:
    class Deep:
        tenant = flows().tenant

        def path(self, tenant: str) -> tuple[str, ...]:
            return tuple(tenant[:n] for n in range(1, len(tenant) + 1))

    bench = Bench()
    bench.queue = FairQueue(Deep())
    bench.put("abcde")
    assert bench.queue.nodes == 5
    with pytest.raises(ValueError, match="6 levels"):
        bench.put("ABCDEF")


def test_what_a_request_is_not_in_a_state_for_is_refused() -> None:
    bench = Bench()
    first, second = bench.put("a"), bench.put("a")
    bench.cancel(second)
    for operation in (
        lambda: bench.queue.remove(second),
        lambda: bench.queue.pop(second, 1.0, 0.0),
        lambda: bench.queue.free(first),
        lambda: bench.queue.settle(first, 1.0),
    ):
        with pytest.raises(ValueError, match="request a#"):
            operation()
    bench.take()
    bench.put("a")
    bench.finish(first, 1.0)
    for operation in (
        lambda: bench.queue.remove(first),
        lambda: bench.queue.free(first),
        lambda: bench.queue.settle(first, 1.0),
        lambda: bench.queue.refresh(first, 9.0),
    ):
        with pytest.raises(ValueError, match="request a#1"):
            operation()
    bench.queue.check()


def test_time_that_goes_backwards_stands_still() -> None:
    bench = Bench({"a": {"rate": 10.0, "rate_burst": 10.0}})
    bench.now = 100.0
    for _ in range(3):
        bench.put("a")
    bench.take(20.0)  # 10 in debt: until 101
    bench.now = 50.0
    assert bench.head() is None
    bench.now = 101.01
    assert bench.head() is not None
    bench.now = 0.0
    assert bench.head() is not None
