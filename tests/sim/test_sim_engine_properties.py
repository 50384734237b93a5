"""Any order of adding, aborting and stepping keeps the engine's promises."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.engine import Engine, EngineOptions, Kind, Policy
from extproc.sim.sequence import FinishReason, Request

_BLOCK, _BLOCKS = 4, 12

REQUESTS = st.builds(
    lambda prompts, n, max_tokens, priority, stop_at: (prompts, n, max_tokens, priority, stop_at),
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=3).map(tuple),
    n=st.integers(1, 2),
    max_tokens=st.integers(1, 18),
    priority=st.integers(-2, 2),
    stop_at=st.none() | st.integers(1, 25),
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), REQUESTS),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("step"), st.floats(0, 2)),
    ),
    max_size=60,
)
OPTIONS = st.builds(
    EngineOptions,
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.integers(5, 40),
    policy=st.sampled_from(Policy),
    block_size=st.just(_BLOCK),
    kv_blocks=st.just(_BLOCKS),
)


class Book:
    """What the outside of the engine knows, kept without looking inside."""

    def __init__(self, options: EngineOptions) -> None:
        self.engine = Engine(options)
        self.now = 0.0
        self.requests: dict[str, Request] = {}
        self.aborted: set[str] = set()
        self.tokens: Counter[tuple[str, int]] = Counter()
        self.ends: Counter[tuple[str, int]] = Counter()

    def add(self, shape: tuple[tuple[int, ...], int, int, int, int | None]) -> None:
        prompts, n, max_tokens, priority, stop_at = shape
        name = f"r{len(self.requests)}"
        stops = (stop_at,) * (len(prompts) * n) if stop_at else ()
        request = Request(name, prompts, max_tokens, n, priority, stops)
        # longest: 30 + 18 - 1 = 47 of 48 tokens, so nothing is ever refused
        self.engine.add(request, self.now)
        self.requests[name] = request

    def abort(self, number: int) -> None:
        name = f"r{number}"
        had = self.engine.state(name) is not None
        assert self.engine.abort(name, self.now) is had
        if had:
            self.aborted.add(name)

    def step(self, late: float) -> bool:
        due = self.engine.next_step_at()
        if due is None:
            return False
        self.now = max(self.now, due) + late
        for event in self.engine.step(self.now):
            row = (event.request_id, event.sequence)
            assert event.request_id not in self.aborted
            assert not self.ends[row], "an event after the end"
            if event.kind is Kind.PREEMPTED:
                assert event.tokens == self.tokens[row]
                continue
            self.tokens[row] += 1
            assert event.tokens == self.tokens[row]
            assert (event.kind is Kind.FIRST_TOKEN) <= (event.tokens == 1)
            if event.kind is Kind.FINISHED:
                self.ends[row] += 1
                self.check_end(event.request_id, event.reason)
        return True

    def check_end(self, name: str, reason: FinishReason | None) -> None:
        request = self.requests[name]
        stops = bool(request.stop_at) and request.stop_at[0] <= request.max_tokens
        assert reason is (FinishReason.STOP if stops else FinishReason.LENGTH)

    def expected_tokens(self, request: Request) -> int:
        return min(request.max_tokens, request.stop_at[0]) if request.stop_at else request.max_tokens


@settings(max_examples=120, deadline=None)
@given(options=OPTIONS, actions=ACTIONS)
def test_every_request_ends_exactly_once(options: EngineOptions, actions: list[tuple[str, object]]) -> None:
    book = Book(options)
    for verb, argument in actions:
        getattr(book, verb)(argument)
        book.engine.validate()
    steps = 0
    while book.step(0.0):
        book.engine.validate()
        steps += 1
        assert steps < 5_000, "the engine does not come to an end"
    for name, request in book.requests.items():
        rows = [(name, i) for i in range(request.size)]
        if name in book.aborted:
            continue
        assert all(book.ends[row] == 1 for row in rows)
        assert all(book.tokens[row] == book.expected_tokens(request) for row in rows)
    stats = book.engine.stats
    assert book.engine.unfinished == 0
    assert book.engine.next_step_at() is None
    assert (stats.running, stats.waiting, stats.kv_usage) == (0, 0, 0.0)
    assert stats.generation_tokens == sum(book.tokens.values())
    assert sum(stats.success.values()) == sum(book.ends.values())


@settings(max_examples=40, deadline=None)
@given(options=OPTIONS, actions=ACTIONS)
def test_the_same_calls_give_the_same_events(options: EngineOptions, actions: list[tuple[str, object]]) -> None:
    books = [Book(options), Book(options)]
    for book in books:
        for verb, argument in actions:
            getattr(book, verb)(argument)
    first, second = books
    assert first.tokens == second.tokens
    assert first.now == second.now
