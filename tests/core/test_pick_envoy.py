"""`pick.by: envoy`: Envoy chooses the endpoint, and the scheduler says how many may be inside all of them together.

Engines of 8 slots each; a request holds its slot for a fixed time on its engine. Which one that is, the test's own
Envoy says: by lot, by least request, or in turn. The scheduler never learns it.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_case import E1, E2, Case, a_class, a_fixed_pool, a_pool, a_sample, released

from extproc.core.events import EndpointAdded, Release
from extproc.core.model import Controller, Pick, PickPolicy, PoolPolicy, WindowPolicy

ENVOY = PickPolicy(by=Pick.ENVOY)
E3 = "10.0.0.3:8000"
ENDPOINTS = (E1, E2, E3)
SLOTS = 8
PAGE_S = 0.25

Balance = Callable[[random.Random, Sequence[int]], int]
"""(lot, requests at each engine) -> the engine that Envoy sends the next one to."""


def by_lot(lot: random.Random, inside: Sequence[int]) -> int:
    return lot.randrange(len(inside))


def least_request(lot: random.Random, inside: Sequence[int]) -> int:
    """Of two drawn by lot, as Envoy does it."""
    first, second = lot.randrange(len(inside)), lot.randrange(len(inside))
    return first if inside[first] <= inside[second] else second


def adaptive(**changes: Any) -> PoolPolicy:
    """Windows that count foreign load and know their slots. No page tells of latency, memory or prompts."""
    window = WindowPolicy(controller=Controller.ADAPTIVE, max_num_seqs=SLOTS, overtake=1)
    return replace(a_pool(a_class(max_waiting=0)), window=window, pick=ENVOY, **changes)


class Engines:
    """Three of them behind an Envoy, and a queue before it that never runs dry."""

    def __init__(self, balance: Balance, service_s: Sequence[float], seed: int, policy: PoolPolicy) -> None:
        self.case = Case(policy, endpoints=ENDPOINTS, checked=False)
        self.lot = random.Random(seed)
        self.balance = balance
        self.service_s = service_s
        self.inside: list[list[str]] = [[] for _ in ENDPOINTS]  # first come first served
        self.foreign = [0] * len(ENDPOINTS)
        self.most = 0  # released and not ended, ever
        self.under: list[float] = []  # times at which there was room by the sum, and something waited all the same
        self.shown: list[int] = []  # the pool's foreign load after each page
        self._ends: list[tuple[float, int, int, str]] = []
        self._number = itertools.count()
        self._serving: set[str] = set()

    @property
    def own(self) -> int:
        return sum(len(each) for each in self.inside)

    def limit(self) -> float:
        return sum(w.limit(0.0, self.case.now) for w in self.case.scheduler.windows.values())

    def run(self, seconds: float) -> None:
        until = self.case.now + seconds
        pages = [(self.case.now + PAGE_S * (1 + n / len(ENDPOINTS)), n) for n in range(len(ENDPOINTS))]
        heapq.heapify(pages)
        self._arrive(SLOTS * 8)
        while True:
            ends_at = self._ends[0][0] if self._ends else float("inf")
            at = min(ends_at, pages[0][0])
            if at > until:
                return
            self.case.now = at
            if ends_at <= pages[0][0]:
                _, _, engine, name = heapq.heappop(self._ends)
                self.inside[engine].remove(name)
                self._serving.discard(name)
                self._serve(engine)
                self._take(self.case.end(name))
                self._arrive(1)
            else:
                self._page(heapq.heappop(pages)[1])
                heapq.heappush(pages, (at + PAGE_S, self._last))
            self._look()

    def _page(self, engine: int) -> None:
        self._last = engine
        inside = len(self.inside[engine]) + self.foreign[engine]
        running = min(SLOTS, inside)
        self._take(self.case.page(ENDPOINTS[engine], running, inside - running))
        load = self.case.scheduler.pool_load
        assert load is not None
        self.shown.append(load.foreign)

    def _arrive(self, count: int) -> None:
        for _ in range(count):
            number = next(self._number)
            self._take(self.case.arrive(f"r{number}", f"t{number % 5}"))

    def _take(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Release):
                assert effect.endpoint in ENDPOINTS
                assert effect.fallbacks == ()
                engine = self.balance(self.lot, [len(each) for each in self.inside])
                self.inside[engine].append(effect.id)
                self._serve(engine)
                # Never beyond the sum of the windows, at the time of the release.
                assert self.own <= self.limit()
                self.most = max(self.most, self.own)

    def _serve(self, engine: int) -> None:
        slots = max(0, SLOTS - self.foreign[engine])
        for name in self.inside[engine][:slots]:
            if name not in self._serving:
                self._serving.add(name)
                ends_at = self.case.now + self.service_s[engine] * self.lot.uniform(0.5, 1.5)
                heapq.heappush(self._ends, (ends_at, next(self._number), engine, name))

    def _look(self) -> None:
        scheduler = self.case.scheduler
        assert scheduler.pool_load is not None
        assert scheduler.pool_load.in_flight == self.own == sum(w.in_flight for w in scheduler.windows.values())
        if scheduler.queued and self.own + scheduler.pool_load.foreign + 1 <= self.limit():
            self.under.append(self.case.now)


@settings(derandomize=True, deadline=None, max_examples=12)
@given(
    seed=st.integers(0, 10**6),
    balance=st.sampled_from([by_lot, least_request]),
    slow=st.sampled_from([1.0, 3.0, 10.0]),
    slots=st.integers(1, 9),
)
def test_the_sum_of_fixed_windows_is_always_full_and_never_exceeded(
    seed: int, balance: Balance, slow: float, slots: int
) -> None:
    policy = replace(a_fixed_pool(a_class(max_waiting=0), slots=slots), pick=ENVOY)
    engines = Engines(balance, (0.4, 0.4, 0.4 * slow), seed, policy)
    engines.run(5.0)
    assert engines.most == 3 * slots
    assert engines.under == []


@settings(derandomize=True, deadline=None, max_examples=6)
@given(
    seed=st.integers(0, 10**6),
    balance=st.sampled_from([by_lot, least_request]),
    slow=st.sampled_from([1.0, 2.0, 4.0]),
    service_s=st.sampled_from([0.1, 0.5, 2.0]),
)
def test_without_foreign_load_the_sum_stays_full(seed: int, balance: Balance, slow: float, service_s: float) -> None:
    """Whatever runs where. What is taken for foreign load by mistake is soon gone."""
    engines = Engines(balance, (service_s, service_s, service_s * slow), seed, adaptive())
    engines.run(8.0)
    assert engines.under == []
    assert sum(engines.shown) / len(engines.shown) < 0.1
    pages = len(engines.shown)
    assert sum(n > 0 for n in engines.shown) <= pages * 0.05
    # Two seconds of pages without a moment at which all of it was used would be "stays".
    runs = [len(list(group)) for some, group in itertools.groupby(engines.shown, key=lambda n: n > 0) if some]
    assert max(runs, default=0) <= 8 * len(ENDPOINTS)


def test_what_a_single_window_would_take_for_foreign_is_none_here() -> None:
    """All that is released runs on one engine."""
    case = Case(adaptive(), endpoints=ENDPOINTS)
    for i in range(2 * SLOTS):
        case.arrive(f"r{i}")
    for _ in range(20):
        case.now += PAGE_S
        case.page(E1)
        case.page(E2, running=SLOTS, waiting=SLOTS)
        case.page(E3)
    assert [w.foreign for w in case.scheduler.windows.values()] == [0, 0, 0]
    assert case.scheduler.pool_load is not None
    assert case.scheduler.pool_load.foreign == 0


@pytest.mark.parametrize("balance", [by_lot, least_request])
def test_lasting_foreign_load_takes_its_place(balance: Balance) -> None:
    engines = Engines(balance, (0.5, 0.5, 0.5), 1, adaptive())
    engines.foreign = [0, 6, 0]
    engines.run(12.0)
    late = engines.shown[len(engines.shown) // 3 :]
    assert 2.0 <= sum(late) / len(late) <= 6.0
    assert engines.own <= 3 * SLOTS - 1


def test_foreign_load_of_the_first_pages_counts_at_once_and_is_shared_out_whole() -> None:
    case = Case(adaptive(), endpoints=ENDPOINTS, read=False)
    case.page(E1, running=7)
    case.page(E2, running=8, waiting=2)
    case.page(E3)
    windows = case.scheduler.windows
    assert [w.foreign for w in windows.values()] == [6, 5, 6]  # 17 over three of 8 slots each
    gone = [name for i in range(9) for name in released(case.arrive(f"r{i}", f"t{i}"))]
    assert len(gone) == 3 * SLOTS - 17


def test_foreign_load_that_has_gone_is_forgotten_with_the_next_page() -> None:
    case = Case(adaptive(), endpoints=ENDPOINTS, read=False)
    for endpoint in ENDPOINTS:
        case.page(endpoint, running=8)
    assert released(case.arrive("a")) == []
    case.now += PAGE_S
    assert released(case.page(E2)) == ["a"]


def test_full_of_foreign_load_one_goes_after_five_seconds_to_see() -> None:
    case = Case(adaptive(), endpoints=(E1, E2), read=False)
    case.page(E1, running=8)
    case.page(E2, running=8)
    case.arrive("a")
    case.arrive("b")
    gone = []
    for _ in range(24):
        case.now += PAGE_S
        gone += released(case.page(E1, running=8)) + released(case.page(E2, running=8))
    assert gone == ["a"]


def test_a_page_that_comes_no_more_tells_nothing_after_four_seconds() -> None:
    case = Case(adaptive(), endpoints=(E1, E2), read=False)
    case.page(E1, running=5)
    case.page(E2, running=5)
    for _ in range(17):
        case.now += PAGE_S
        case.page(E1, running=5)
    assert case.scheduler.windows[E1].foreign == 5
    assert case.scheduler.windows[E2].foreign == 0


def test_an_endpoint_that_is_down_has_no_room_but_its_books_count() -> None:
    """Four were booked there; Envoy has sent them to others, or they fail and end."""
    case = Case(replace(a_fixed_pool(a_class(max_waiting=0), slots=4), pick=ENVOY), endpoints=(E1, E2))
    gone = [e for i in range(8) for e in case.arrive(f"r{i}", f"t{i}")]
    assert len(gone) == 8
    case.scrape_fails(E1, refused=True)
    case.arrive("next")
    there = [e.id for e in gone if isinstance(e, Release) and e.endpoint == E2]
    assert [released(case.end(name)) for name in there] == [[], [], [], []]  # 4 inside, and room for 4
    (effect,) = case.end("r0" if "r0" not in there else "r1")
    assert isinstance(effect, Release)
    assert effect.endpoint == E2


def test_with_no_endpoint_left_nobody_goes() -> None:
    case = Case(adaptive(), endpoints=(E1,))
    case.remove(E1)
    assert case.arrive("a") == []
    case.now += 10.0
    assert case.tick() == []
    case.add(E2)
    assert released(case.page(E2)) == ["a"]


def test_a_wide_request_goes_when_a_slot_would_idle() -> None:
    case = Case(replace(a_fixed_pool(a_class(max_waiting=0), slots=4), pick=ENVOY), endpoints=(E1, E2))
    for i in range(7):
        assert released(case.arrive(f"r{i}"))
    assert released(case.arrive("wide", n=6)) == ["wide"]
    assert released(case.arrive("next")) == []


def test_nobody_overtakes_and_no_request_is_grouped() -> None:
    policy = replace(a_fixed_pool(a_class(), slots=1, overtake=1, prefix_slack=1e6), pick=ENVOY)
    case = Case(policy, endpoints=(E1, E2))
    case.arrive("a0", "a", prefix=(1,))
    case.arrive("a1", "a", prefix=(1,))
    assert case.arrive("x", "x", prefix=(2,)) == []
    assert case.arrive("y", "y", prefix=(1,)) == []
    assert released(case.end("a0")) == ["x"]
    assert case.scheduler.prefixes.match(E1, (1,), case.now)[0] == 0


def test_the_setting_may_change_while_requests_are_inside() -> None:
    fixed = a_fixed_pool(a_class(max_waiting=0), slots=2)
    case = Case(fixed, endpoints=(E1, E2))
    for i in range(3):
        case.arrive(f"r{i}")
    case.reconfigure(replace(fixed, pick=ENVOY))
    assert case.scheduler.pool_load is not None
    assert case.scheduler.pool_load.in_flight == 3
    assert released(case.arrive("r3")) == ["r3"]
    assert released(case.arrive("r4")) == []
    case.reconfigure(fixed)
    assert case.scheduler.pool_load is None
    (effect,) = case.end("r0")
    assert isinstance(effect, Release)
    assert (effect.id, effect.fallbacks) == ("r4", (E2 if effect.endpoint == E1 else E1,))


def test_foreign_load_is_counted_by_each_window_again_when_fairlane_chooses_again() -> None:
    case = Case(adaptive(), endpoints=(E1, E2), read=False)
    case.page(E1, running=6)
    case.page(E2)
    assert [w.foreign for w in case.scheduler.windows.values()] == [3, 3]
    case.reconfigure(replace(adaptive(), pick=PickPolicy()))
    case.now += PAGE_S
    case.page(E1, running=6)
    case.page(E2)
    assert [w.foreign for w in case.scheduler.windows.values()] == [6, 0]
    case.reconfigure(adaptive())
    assert [w.foreign for w in case.scheduler.windows.values()] == [0, 0]


def test_an_endpoint_that_comes_counts_from_its_first_page() -> None:
    case = Case(adaptive(), endpoints=(E1,))
    for i in range(SLOTS):
        case.arrive(f"r{i}")
    assert released(case.arrive("more")) == []
    case.apply(EndpointAdded(E2))
    assert released(case.page(E2)) == ["more"]


def test_pages_that_cannot_be_meant_count_for_nothing() -> None:
    case = Case(adaptive(), endpoints=(E1, E2))
    bad = a_sample(-1, 10**9, case.now)
    case.page(E1, running=bad.running, waiting=bad.waiting)
    assert case.scheduler.pool_load is not None
    assert case.scheduler.pool_load.foreign == 0


def test_the_slots_of_an_endpoint_that_is_left_alone_do_not_count() -> None:
    case = Case(a_fixed_pool(slots=2, pick=ENVOY), endpoints=(E1, E2))
    for _ in range(3):
        case.scheduler.windows[E1].on_failed(case.now)
    assert [released(case.arrive(f"r{i}")) for i in range(3)] == [["r0"], ["r1"], []]
