"""What the quick engine has beyond the other one, and what it saves. Figures are worked out by hand in the comments."""

from __future__ import annotations

import random
from typing import Any

import pytest

from extproc.sim import shapes
from extproc.sim.engine import EngineOptions, Kind, Policy
from extproc.sim.quick_engine import Beginning, Event, QuickEngine
from extproc.sim.sequence import FinishReason, Request


def engine(cache: int = 0, **options: Any) -> QuickEngine:
    """Steps of 1 s + 0.1 s per decoding sequence + 0.01 s per prompt token."""
    speed = {"step_base": 1.0, "step_per_seq": 0.1, "step_per_prefill_token": 0.01}
    return QuickEngine(EngineOptions(**{**speed, **options}), prefix_cache_tokens=cache)


def request(name: str, prompt: int = 10, tokens: int = 3, **more: Any) -> Request:
    return Request(name, (prompt,), tokens, **more)


def drain(model: QuickEngine) -> list[Event]:
    seen = []
    while (at := model.next_event_at()) is not None:
        seen += model.advance(at)
        model.validate()
    return seen


class TestTime:
    def test_one_request_alone(self) -> None:
        model = engine()
        assert model.next_event_at() is None
        model.add(request("a", prompt=10, tokens=3), 5.0)
        # prefill: 1 + 10 x 0.01; then two steps with one decoding: 1 + 0.1
        seen = drain(model)
        assert [e.at for e in seen] == pytest.approx([6.1, 8.3])
        assert seen == [
            Event(seen[0].at, Kind.FIRST_TOKEN, "a", 0, 1),
            Event(seen[1].at, Kind.FINISHED, "a", 0, 3, FinishReason.LENGTH, last=True),
        ]
        assert model.unfinished == 0

    def test_a_page_and_the_tokens_between_two_events(self) -> None:
        model = engine()
        model.add(request("a", prompt=10, tokens=11), 0.0)
        # first token at 1.1, the others at 2.2, 3.3, ..., 12.1
        page = model.page(7.0)  # 6 tokens: 1.1, 2.2, ..., 6.6
        assert (page.generation_tokens, page.itl_count, page.ttft_count, page.prompt_tokens) == (6, 5, 1, 10)
        assert (page.itl_sum, page.ttft_sum) == pytest.approx((5.5, 1.1))
        assert (page.running, page.waiting) == (1, 0)
        assert page.kv_usage == pytest.approx(1 / 65_536)  # 10 + 5 tokens in blocks of 16
        assert model.tokens("a", 7.0) == 6
        assert model.tokens("a", 7.8) == 7
        assert model.tokens("b", 7.8) == 0

    def test_the_last_of_several_sequences_ends_the_request(self) -> None:
        model = engine()
        model.add(request("a", tokens=5, n=2, stop_at=(2, 3)), 0.0)
        ends = [(e.sequence, e.last) for e in drain(model) if e.kind is Kind.FINISHED]
        assert ends == [(0, False), (1, True)]

    def test_events_that_other_calls_have_come_across_are_not_lost(self) -> None:
        model = engine()
        model.add(request("a", tokens=1), 0.0)
        model.page(5.0)
        assert model.next_event_at() == pytest.approx(1.1)
        assert [e.kind for e in model.advance(5.0)] == [Kind.FINISHED]
        assert model.next_event_at() is None

    def test_what_comes_at_the_end_of_a_step_is_there_for_the_next_one_unless_that_has_begun(self) -> None:
        for looks, first in ((False, 6.0), (True, 7.0)):
            model = engine(step_per_seq=0.0, step_per_prefill_token=0.0)
            model.add(request("a", tokens=9), 0.0)
            model.add(request("b", tokens=9), 2.0)
            if looks:
                model.page(5.0)
            model.add(request("c", tokens=9), 5.0)
            assert [e.at for e in model.advance(99.0) if e.kind is Kind.FIRST_TOKEN] == [1.0, 3.0, first]

    def test_errors(self) -> None:
        model = engine(kv_blocks=2)
        model.add(request("a"), 1.0)
        with pytest.raises(ValueError, match="in use"):
            model.add(request("a"), 1.0)
        with pytest.raises(ValueError, match="needs 33 KV tokens of 32"):
            model.add(request("b", prompt=32, tokens=2), 1.0)
        with pytest.raises(ValueError, match="backwards"):
            model.page(0.5)
        assert model.unfinished == 1


class TestWork:
    """Steps worked out one by one, instead of time: it says the same on every machine."""

    def test_a_long_answer_costs_as_much_as_a_short_one(self) -> None:
        for tokens in (10, 100_000):
            model = engine()
            model.add(request("a", tokens=tokens), 0.0)
            drain(model)
            # the first step begins; the prompt ends; the answer ends
            assert model.boundaries == 3

    def test_looking_costs_no_step(self) -> None:
        model = engine()
        model.add(request("a", tokens=1000), 0.0)
        for now in range(1000):
            model.page(float(now))
        assert model.boundaries == 2

    def test_an_engine_of_a_thousand_slots_works_per_change(self) -> None:
        draw, model, now, requests = random.Random(1), QuickEngine(shapes.E3), 0.0, 0
        while now < 100.0:
            now += draw.expovariate(5.0)
            model.add(request(f"r{requests}", 256, 256), now)
            requests += 1
            model.advance(now)
        tokens = model.page(now).generation_tokens
        # at most: when it arrives, at the end of its prompt, at its end
        assert model.boundaries <= 3 * requests
        assert tokens > 100 * model.boundaries / 2

    def test_arrivals_that_must_wait_cost_one_step_each_at_most(self) -> None:
        model = engine(max_num_seqs=1)
        model.add(request("a", tokens=10_000), 0.0)
        for i in range(50):
            model.add(request(f"b{i}"), 10.0 + 2 * i)
        model.advance(5000.0)
        assert (model.running, model.waiting) == (1, 50)
        assert model.boundaries <= 52


class TestPrefixCache:
    def test_cached_tokens_need_no_prefill(self) -> None:
        model = engine(cache=1000)
        beginnings = (Beginning(1, 64), Beginning(2, 128))
        model.add(request("a", prompt=130, tokens=1), 0.0, beginnings)
        model.add(request("b", prompt=130, tokens=1), 0.0, beginnings)
        # a: 130 tokens; b: 130 - 128 tokens, in the same step: 1 + 1.32
        seen = drain(model)
        assert [(e.request_id, e.cached) for e in seen] == [("a", 0), ("b", 128)]
        assert [e.at for e in seen] == pytest.approx([2.32, 2.32])
        page = model.page(9.0)
        assert (page.prefix_cache_queries, page.prefix_cache_hits, page.prompt_tokens) == (260, 128, 260)

    def test_the_last_token_is_always_computed_and_blocks_are_whole(self) -> None:
        model = engine(cache=1000)
        for name in "ab":
            model.add(request(name, prompt=64, tokens=1), 0.0, (Beginning(1, 64),))
        # 63 of b's 64 tokens could be taken from the cache, in blocks of 16 they are 48
        assert [e.cached for e in drain(model)] == [0, 48]

    def test_without_names_or_without_a_cache_nothing_is_found(self) -> None:
        for model, beginnings in ((engine(cache=1000), ()), (engine(), (Beginning(1, 64),))):
            for name in "ab":
                model.add(request(name, prompt=100, tokens=1), 0.0, beginnings)
            assert [e.cached for e in drain(model)] == [0, 0]

    def test_many_templates_in_turn_find_nothing_and_one_after_the_other_all(self) -> None:
        # cache for 3 of 8 templates of 4,096 tokens
        def hits(order: list[int]) -> int:
            model = engine(cache=3 * 4096, step_base=0.0, max_num_batched_tokens=8192)
            for i, template in enumerate(order):
                model.add(request(f"r{i}", prompt=4100, tokens=1), float(i), (Beginning(template, 4096),))
            drain(model)
            return model.page(1e6).prefix_cache_hits

        assert hits([i % 8 for i in range(24)]) == 0
        assert hits([i // 3 for i in range(24)]) == 16 * 4096

    def test_a_restart_empties_it(self) -> None:
        model = engine(cache=1000)
        model.add(request("a", prompt=100, tokens=1), 0.0, (Beginning(1, 64),))
        drain(model)
        model.restart(10.0)
        model.add(request("b", prompt=100, tokens=1), 10.0, (Beginning(1, 64),))
        assert [e.cached for e in drain(model)] == [0]


class TestResizeAndRestart:
    def test_half_the_slots_and_slower_steps_from_the_next_step_on(self) -> None:
        model = engine(max_num_seqs=4)
        for name in "abcd":
            model.add(request(name, prompt=10, tokens=3), 0.0)
        model.add(request("e", prompt=10, tokens=1), 0.0)
        model.add(request("f", prompt=10, tokens=1), 0.0)
        model.add(request("g", prompt=10, tokens=1), 0.0)
        # prefill of four: 1.4; the step under way ends at 2.8; from then on a step takes twice as long
        model.advance(2.0)
        model.resize(EngineOptions(2, step_base=2.0, step_per_seq=0.2, step_per_prefill_token=0.02), 2.0)
        seen = drain(model)
        # the four keep their slots: 2.8 + 2 + 4 x 0.2 = 5.6; then two at a time: + 2 + 20 x 0.02 = 8.0; + 2.2
        ends = {e.request_id: e.at for e in seen if e.kind is Kind.FINISHED}
        assert ends == pytest.approx({**dict.fromkeys("abcd", 5.6), "e": 8.0, "f": 8.0, "g": 10.2})

    def test_blocks_are_taken_back_from_the_last_one(self) -> None:
        model = engine(block_size=4, kv_blocks=10)
        model.add(request("a", prompt=12, tokens=4), 0.0)
        model.add(request("b", prompt=12, tokens=4), 0.0)
        model.resize(EngineOptions(block_size=4, kv_blocks=5), 1.0)
        seen = drain(model)
        assert [(e.kind, e.request_id) for e in seen] == [
            (Kind.FIRST_TOKEN, "a"),
            (Kind.FIRST_TOKEN, "b"),
            (Kind.PREEMPTED, "b"),
            (Kind.FINISHED, "a"),
            (Kind.FINISHED, "b"),
        ]
        assert model.page(1e6).kv_capacity_tokens == 20

    def test_an_idle_engine_changes_at_once(self) -> None:
        model = engine()
        model.resize(EngineOptions(3, kv_blocks=7), 1.0)
        assert model.options.max_num_seqs == 3
        assert model.page(1.0).kv_capacity_tokens == 7 * 16

    @pytest.mark.parametrize(
        "options",
        [
            EngineOptions(policy=Policy.PRIORITY),
            EngineOptions(block_size=8),
            EngineOptions(kv_blocks=1),
            EngineOptions(1, max_num_batched_tokens=1),
        ],
    )
    def test_what_cannot_be(self, options: EngineOptions) -> None:
        model = engine()
        for name in "ab":
            model.add(request(name, prompt=20), 0.0)
        model.advance(0.0)
        with pytest.raises(ValueError, match=r"cannot change|too small"):
            model.resize(options, 1.0)

    def test_a_restart_loses_all_and_counts_from_zero(self) -> None:
        model = engine(max_num_seqs=1)
        model.add(request("a", tokens=9), 0.0)
        model.add(request("b"), 0.0)
        assert model.page(3.0).generation_tokens == 2
        model.add(request("c"), 3.0)
        assert model.restart(3.0) == ["a", "b", "c"]
        assert model.page(3.0)[:10] == (0, 0, 0.0, 0.0, 0, 0.0, 0, 0, 0, 0)
        assert [e.request_id for e in model.advance(3.0)] == ["a"]  # its first token, from before
        assert model.next_event_at() is None
        model.add(request("a", tokens=1), 4.0)
        assert [e.at for e in drain(model)] == pytest.approx([5.1])


class TestShapes:
    def step(self, options: EngineOptions, decoding: int, prefill: int = 0, context: int = 0) -> float:
        o = options
        return (
            o.step_base
            + o.step_per_seq * decoding
            + o.step_per_prefill_token * prefill
            + o.step_per_context_token * context
        )

    def test_known_steps(self) -> None:
        assert self.step(shapes.E1, 20) == pytest.approx(0.034)
        assert self.step(shapes.E3, 1024) == pytest.approx(0.25, rel=0.01)  # bound by latency: 250 ms
        assert self.step(shapes.E70, 0, prefill=8192) == pytest.approx(0.672, rel=0.01)  # a full prefill
        # 420,000 tokens in the cache are read in 14 ms
        assert self.step(shapes.E70, 0, context=420_000) - shapes.E70.step_base == pytest.approx(0.01386)
        assert shapes.e2(256, 256).kv_tokens == pytest.approx(300 * 384, abs=16)

    @pytest.mark.parametrize("rate", [275.0, 425.0])
    def test_the_real_one_makes_the_tokens_that_it_is_set_to(self, rate: float) -> None:
        model, now = QuickEngine(shapes.real(rate)), 0.0
        for i in range(100):
            model.add(request(f"r{i}", 64, 128), 0.0)
        now = drain(model)[-1].at
        # prompts cost it a little: 0.048 ms x 64 for 128 tokens
        assert 12_800 / now == pytest.approx(rate, rel=0.04)
