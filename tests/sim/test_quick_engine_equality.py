"""The quick engine against the engine that makes every step: the same events at the same times, the same counters.

Times in sixteenths make most sums exact in floating point, so that arrivals at the very end of a step are compared too.
"""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.engine import Engine, EngineOptions, Kind, Policy
from extproc.sim.quick_engine import Event, Page, QuickEngine
from extproc.sim.sequence import FinishReason, Request

pytestmark = pytest.mark.slow

Row = tuple[float, Kind, str, int, int, FinishReason | None]


class Resizable(Engine):
    """The other engine with what the quick one can do besides: a change of size when the next step begins."""

    def __init__(self, options: EngineOptions) -> None:
        super().__init__(options)
        self.resized: EngineOptions | None = None

    def _schedule(self, now: float, events: list[Any]) -> Any:
        if self.resized is not None:
            self._free_blocks += self.resized.kv_blocks - self.options.kv_blocks
            self.options, self.resized = self.resized, None  # type: ignore[misc]
        batch: dict[Any, int] = {}
        short = self._free_blocks < 0
        while self._free_blocks < 0:
            victim = max(self._running, key=lambda s: s.key)
            self._running.remove(victim)
            self._preempt(victim, events)
        budget, preempted = self._continue_running(batch, events)
        if not (preempted or short):
            self._admit(batch, budget, now)
        return batch


class StepByStep:
    """The quick engine's interface over the other one."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.engine = Resizable(options)
        self.events: list[Row] = []

    def reach(self, now: float, *, inclusive: bool) -> None:
        while (at := self.engine.next_step_at()) is not None and (at < now or (inclusive and at == now)):
            for e in self.engine.step(at):
                if e.kind is not Kind.TOKEN:
                    self.events.append((at, e.kind, e.request_id, e.sequence, e.tokens, e.reason))

    def add(self, request: Request, now: float) -> None:
        self.reach(now, inclusive=False)
        self.engine.add(request, now)

    def abort(self, name: str, now: float) -> bool:
        self.reach(now, inclusive=False)
        return self.engine.abort(name, now)

    def resize(self, options: EngineOptions, now: float) -> None:
        self.reach(now, inclusive=False)
        self.engine.resized = options

    def restart(self, now: float) -> list[str]:
        self.reach(now, inclusive=False)
        lost = list(self.engine._live)
        self.engine = Resizable(self.engine.resized or self.engine.options)
        return lost

    def tokens(self, name: str, now: float) -> int:
        self.reach(now, inclusive=True)
        return self.engine.tokens(name)

    def page(self, now: float) -> Page:
        self.reach(now, inclusive=True)
        s = self.engine.stats
        itl, ttft = s.inter_token_latency, s.time_to_first_token
        return Page(
            running=s.running,
            waiting=s.waiting,
            kv_usage=s.kv_usage,
            itl_sum=itl.total,
            itl_count=itl.count,
            ttft_sum=ttft.total,
            ttft_count=ttft.count,
            preemptions=s.preemptions,
            generation_tokens=s.generation_tokens,
            prompt_tokens=s.prompt_tokens,
            prefix_cache_queries=s.prefix_cache_queries,
            prefix_cache_hits=0,
            kv_capacity_tokens=self.engine.options.kv_tokens,
        )


def close(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-9)


class Both:
    """Does everything to both, and compares."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = options
        self.slow, self.quick = StepByStep(options), QuickEngine(options)
        self.events: list[Event] = []
        self.compared = 0
        self.now = 0.0
        self.requests = 0

    def add(self, prompts: tuple[int, ...], max_tokens: int, n: int, priority: int, stop_at: int | None) -> None:
        stops = (stop_at,) * (len(prompts) * n) if stop_at else ()
        request = Request(f"r{self.requests}", prompts, max_tokens, n, priority, stops)
        self.requests += 1
        self.slow.add(request, self.now)
        self.quick.add(request, self.now)

    def abort(self, number: int) -> None:
        name = f"r{number}"
        assert self.quick.abort(name, self.now) is self.slow.abort(name, self.now)

    def look(self, number: int) -> None:
        expected, page = self.slow.page(self.now), self.quick.page(self.now)
        for name, value, other in zip(Page._fields, page, expected, strict=True):
            assert close(value, other), name
        assert self.quick.tokens(f"r{number}", self.now) == self.slow.tokens(f"r{number}", self.now)
        self.quick.validate()

    def advance(self, _: int) -> None:
        self.events += self.quick.advance(self.now)
        self.slow.reach(self.now, inclusive=True)
        self.compare()

    def resize(self, blocks: int, seqs: int) -> None:
        budget = max(self.options.max_num_batched_tokens, seqs)
        o = self.options
        options = EngineOptions(seqs, budget, o.policy, o.block_size, blocks, o.step_base * 2, o.step_per_seq / 2)
        for engine in (self.slow, self.quick):
            engine.resize(options, self.now)  # type: ignore[attr-defined]

    def restart(self, _: int) -> None:
        assert self.quick.restart(self.now) == self.slow.restart(self.now)

    def compare(self) -> None:
        """The events since the last comparison."""
        events, rows = self.events[self.compared :], self.slow.events[self.compared :]
        assert [(e.kind, e.request_id, e.sequence, e.tokens, e.reason) for e in events] == [row[1:] for row in rows]
        assert all(close(e.at, row[0]) for e, row in zip(events, rows, strict=True))
        self.compared = len(self.events)

    def drain(self) -> None:
        while (at := self.quick.next_event_at()) is not None:
            self.now = max(self.now, at)
            self.events += self.quick.advance(self.now)
        self.slow.reach(float("inf"), inclusive=True)
        self.compare()
        self.look(0)
        assert self.slow.engine.unfinished == self.quick.unfinished == 0


ADD = st.tuples(
    st.lists(st.integers(1, 30), min_size=1, max_size=2).map(tuple),
    st.integers(1, 30),
    st.integers(1, 2),
    st.integers(-2, 2),
    st.none() | st.integers(1, 35),
)
NUMBER = st.tuples(st.integers(0, 20))
ACTIONS = st.lists(
    st.tuples(
        st.integers(0, 40).map(lambda n: n / 16) | st.floats(0, 3),
        st.one_of(
            st.tuples(st.just("add"), ADD),
            st.tuples(st.just("add"), ADD),
            st.tuples(st.just("abort"), NUMBER),
            st.tuples(st.just("look"), NUMBER),
            st.tuples(st.just("advance"), NUMBER),
        ),
    ),
    max_size=50,
)
OPTIONS = st.builds(
    EngineOptions,
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.integers(6, 40),
    policy=st.sampled_from(Policy),
    block_size=st.sampled_from((1, 3, 4)),
    kv_blocks=st.sampled_from((60, 64, 200)),
    step_base=st.sampled_from((0.125, 0.1)),
    step_per_seq=st.sampled_from((0.0625, 0.0, 0.013)),
    step_per_prefill_token=st.sampled_from((0.0, 1 / 256, 0.0007)),
    step_per_context_token=st.sampled_from((0.0, 1 / 1024, 0.0003)),
)


@settings(max_examples=150, derandomize=True, deadline=None)
@given(options=OPTIONS, actions=ACTIONS)
def test_the_same_events_counters_and_gauges(options: EngineOptions, actions: list[Any]) -> None:
    both = Both(options)
    for wait, (verb, arguments) in actions:
        both.now += wait
        getattr(both, verb)(*arguments)
    both.drain()


@pytest.mark.parametrize("policy", Policy)
@pytest.mark.parametrize("seed", range(4))
def test_a_long_random_run_short_of_blocks_with_resizes_and_restarts(policy: Policy, seed: int) -> None:
    draw = random.Random(seed)
    both = Both(EngineOptions(12, 64, policy, 4, 60, 0.05, 0.003, 0.0004, 0.00007 * (seed % 2)))
    for _ in range(900):
        both.now += draw.expovariate(6.0)
        verb = draw.choices(("add", "abort", "look", "advance", "resize", "restart"), (60, 6, 20, 20, 2, 0.2))[0]
        if verb == "add":
            prompts = tuple(draw.randint(1, 60) for _ in range(draw.choice((1, 1, 1, 2))))
            both.add(prompts, draw.randint(1, 60), draw.choice((1, 1, 2)), draw.randint(-2, 2), None)
        elif verb == "resize":
            both.resize(draw.choice((30, 45, 60, 90)), draw.choice((6, 12, 20)))
        else:
            getattr(both, verb)(max(0, both.requests - draw.randint(0, 30)))
    both.drain()
    assert sum(e.kind is Kind.PREEMPTED for e in both.events) > 100


@pytest.mark.parametrize("seed", [2, 3, 16, 23, 24, 30, 64])
def test_those_behind_one_that_preempts_itself_miss_a_step(seed: int) -> None:
    """Rare: the one with the highest key must stand in the middle of the running list, and ask for a block itself.

    With these seeds it happens, and some of those that miss the step are aborted in it, or preempted or aborted next.
    """
    draw = random.Random(seed)
    size = draw.choice((1, 2, 4))
    both = Both(EngineOptions(16, 64, Policy.PRIORITY, size, 60 // size, 0.1, 0.02, 1 / 1024, 0.0003))
    for _ in range(500):
        both.now += draw.expovariate(12.0)
        verb = draw.choices(("add", "abort", "look", "advance"), (45, 20, 20, 15))[0]
        if verb == "add":
            both.add((draw.randint(1, 8),), draw.randint(1, 20), draw.choice((1, 2)), draw.randint(-3, 3), None)
        else:
            getattr(both, verb)(max(0, both.requests - draw.randint(0, 16)))
    both.drain()
    assert sum(e.kind is Kind.PREEMPTED for e in both.events) > 20
