"""What is kept and for how long: debts, floods of names, mass cancels. And how long a call may take."""

from __future__ import annotations

import random
import time

import pytest
from fair_queue_bench import Bench

from extproc.core.model import Order, Request, State

pytestmark = pytest.mark.slow


def test_a_debtor_is_kept_until_virtual_time_passes_its_tag() -> None:
    bench = Bench()
    bench.put("debtor")
    for _ in range(7):  # more than are served: b is never idle
        bench.put("b")
    bench.serve(10.0, cost=35.0)
    sizes = []
    for _ in range(6):
        bench.serve(10.0)  # vlast: 0, 10, 20, 30, 40, 50; of that 10 may be given back at the moment
        sizes.append(bench.queue.leaf("debtor") is not None)
    assert sizes == [True, True, True, True, True, False]


def test_a_debtor_is_kept_while_virtual_time_may_be_given_back() -> None:
    """vlast is 40 and b's tag 50, but 50 of that is not settled: V may yet fall to 0."""
    bench = Bench()
    bench.put("debtor")
    for _ in range(7):
        bench.put("b")
    bench.serve(10.0, cost=35.0)
    running = [bench.take(10.0) for _ in range(5)]
    assert (bench.tag("b"), bench.tag("debtor")) == (50.0, 35.0)
    for request in running:
        bench.finish(request, 0.0)
    bench.put("debtor")
    assert (bench.tag("b"), bench.tag("debtor")) == (0.0, 35.0)


def test_an_unused_name_that_left_the_queue_is_forgotten_at_once() -> None:
    bench = Bench()
    bench.cancel(bench.put("a"))
    assert bench.queue.nodes == 0


@pytest.mark.parametrize("levels", [1, 3])
def test_state_of_a_flood_of_names_goes_away(levels: int) -> None:
    """10,000 names with a request each. 300 nodes at most are left as soon as they are served, for any number."""
    count = 10_000
    bench = Bench(checked=False)
    bench.put("y")
    requests = [bench.put(f"x{i}" if levels == 1 else f"o{i % 30}/t{i % 900}/u{i}") for i in range(count)]
    assert bench.queue.size == count + 1
    for _ in requests:
        request = bench.take(10.0)
        if request.tenant != "y":
            bench.finish(request, 10.0)
    assert bench.queue.nodes <= 300  # y runs on
    running = bench.queue.leaf("y")
    assert running is not None and running.in_flight == 1
    for i in range(200):  # a little further traffic
        bench.put(f"z{i % 2}")
        bench.serve(10.0)
    assert bench.queue.nodes <= 300
    bench.queue.check()


def test_all_goes_with_the_last() -> None:
    bench = Bench(checked=False)
    inside = []
    for i in range(500):
        bench.put(f"x{i % 7}/u{i}")
        inside.append(bench.take(10.0))
    for request in inside:
        bench.finish(request, 20.0)
    assert (bench.queue.nodes, bench.queue.size, bench.queue.in_flight) == (0, 0, 0)
    assert next(bench.queue.groups()).vlast == 0.0


def test_names_that_come_once_and_never_again_do_not_pile_up() -> None:
    """Each new name starts at V = 0, so V never passes the debt of those before: the least indebted must go."""
    bench = Bench(checked=False)
    bench.keep_busy()
    bench.put("heavy")
    bench.serve(10.0, cost=1e9)
    for i in range(2_000):
        bench.put(f"x{i}")
        bench.serve(10.0)
    assert bench.queue.size <= 300
    assert bench.tag("heavy") == 1e9
    bench.queue.check()


def test_an_idle_organisation_owes_and_its_members_do_not() -> None:
    """The busy period of x is over: what its users owe each other goes, what x owes y does not."""
    bench = Bench()
    bench.keep_busy()
    bench.put("x/greedy")
    bench.serve(10.0, cost=500.0)
    assert bench.queue.leaf("x/greedy") is None
    bench.put("y")
    bench.put("y")
    bench.put("x/b")
    assert bench.tag("x/b") == 0.0
    assert [bench.serve(10.0) for _ in range(3)] == ["y", "y", "x/b"]


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("tenants", [1, 200, 8_000])
def test_a_mass_cancel_leaves_nothing_and_no_call_is_long(order: Order, tenants: int) -> None:
    bench = Bench(order=order, checked=False)
    keep = bench.put("last", cost=5.0)
    requests = [
        bench.put(f"x{i % tenants}", arrival=i % 777, cost=float(i % 10), deadline=i % 99) for i in range(8_000)
    ]
    random.Random(7).shuffle(requests)
    longest = 0.0
    for request in requests:
        start = time.process_time()
        bench.cancel(request)
        bench.head()
        longest = max(longest, time.process_time() - start)
    assert longest < 0.1  # bounded by design; the figure for the machine at hand is the benchmark's
    assert (len(bench.queue), bench.queue.size) == (1, 1)
    assert bench.take() is keep
    assert all(not group.order for group in bench.queue.groups())


def test_nothing_of_a_cancelled_request_is_kept() -> None:
    bench = Bench(checked=False)
    keep = [bench.put("a") for _ in range(2)]
    many = [bench.put("a") for _ in range(5_000)]
    leaf = bench.queue.leaf("a")
    assert leaf is not None and sum(map(len, leaf.requests)) == 5_002
    for request in reversed(many):
        bench.cancel(request)
    assert [key[2] for block in leaf.requests for key in block] == keep


def test_churn_of_in_flight_counts_leaves_nothing() -> None:
    bench = Bench(checked=False)
    for _ in range(2_001):
        bench.put("a")
    bench.put("low")
    for _ in range(2_000):
        request: Request = bench.take(0.0)
        if request.tenant == "a":
            bench.finish(request, 0.0)
        assert request.state is State.RELEASED
        assert sum(map(len, next(bench.queue.groups()).order)) <= 2
