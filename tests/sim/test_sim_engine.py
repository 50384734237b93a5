"""The model alone, on a clock that the tests move. Figures are worked out by hand in the comments."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.sim.engine import Engine, EngineOptions, Event, Kind, Policy
from extproc.sim.sequence import FinishReason, Request, State


def engine(**options: Any) -> Engine:
    """Steps of 1 s + 0.1 s per decoding sequence + 0.01 s per prompt token."""
    speed = {"step_base": 1.0, "step_per_seq": 0.1, "step_per_prefill_token": 0.01}
    return Engine(EngineOptions(**{**speed, **options}))


def request(name: str, prompt: int = 10, tokens: int = 3, **more: Any) -> Request:
    return Request(name, (prompt,), tokens, **more)


def run(model: Engine, until: float = float("inf")) -> list[tuple[float, Event]]:
    """Step as long as there is something to do; the events with their times."""
    seen = []
    while (at := model.next_step_at()) is not None and at <= until:
        seen += [(at, event) for event in model.step(at)]
        model.validate()
    return seen


def times(seen: list[tuple[float, Event]], name: str) -> list[float]:
    return [at for at, event in seen if event.request_id == name and event.kind is not Kind.PREEMPTED]


def order(seen: list[tuple[float, Event]], kind: Kind) -> list[str]:
    return [event.request_id for _, event in seen if event.kind is kind]


class TestTime:
    def test_an_engine_without_requests_wants_no_step(self) -> None:
        model = engine()
        assert model.next_step_at() is None
        with pytest.raises(ValueError, match="due at None"):
            model.step(0.0)

    def test_one_request_alone(self) -> None:
        model = engine()
        model.add(request("a", prompt=10, tokens=3), 5.0)
        assert model.next_step_at() == 5.0
        assert model.step(5.0) == []
        # prefill: 1 + 10 x 0.01; then two steps with one decoding: 1 + 0.1
        seen = run(model)
        assert times(seen, "a") == pytest.approx([6.1, 7.2, 8.3])
        assert [event.kind for _, event in seen] == [Kind.FIRST_TOKEN, Kind.TOKEN, Kind.FINISHED]
        assert [event.tokens for _, event in seen] == [1, 2, 3]
        assert seen[-1][1].reason is FinishReason.LENGTH
        assert model.next_step_at() is None

    def test_a_single_token_is_first_and_last(self) -> None:
        model = engine()
        model.add(request("a", tokens=1), 0.0)
        assert [event for _, event in run(model)] == [Event(Kind.FINISHED, "a", 0, 1, FinishReason.LENGTH)]

    def test_context_tokens_cost_time_if_wanted(self) -> None:
        model = engine(step_per_context_token=0.001)
        model.add(request("a", prompt=10, tokens=3), 0.0)
        # prefill 1.1; then with 10 and 11 tokens in the cache: 1.1 + 0.010, 1.1 + 0.011
        assert times(run(model), "a") == pytest.approx([1.1, 2.21, 3.321])

    def test_a_late_step_is_not_made_up_for(self) -> None:
        model = engine()
        model.add(request("a", prompt=10, tokens=3), 0.0)
        model.step(0.0)
        model.step(4.0)  # due at 1.1
        assert model.next_step_at() == pytest.approx(5.1)

    def test_too_early_a_step_and_time_that_goes_backwards_are_errors(self) -> None:
        model = engine()
        model.add(request("a"), 1.0)
        model.step(1.0)
        with pytest.raises(ValueError, match=r"due at 2\.1"):
            model.step(1.5)
        with pytest.raises(ValueError, match="backwards"):
            model.add(request("b"), 0.5)

    def test_requests_that_come_in_a_step_are_looked_at_after_it(self) -> None:
        model = engine()
        model.add(request("a", prompt=10, tokens=9), 0.0)
        model.step(0.0)
        model.add(request("b", prompt=20, tokens=1), 0.5)
        model.step(1.1)
        # the gauges of this step do not know b yet
        assert (model.stats.running, model.stats.waiting) == (1, 0)
        # the next: 1 + 0.1 (a decodes) + 20 x 0.01
        assert model.next_step_at() == pytest.approx(2.4)
        assert order(run(model, until=2.5), Kind.FINISHED) == ["b"]


class TestBatch:
    def test_decoding_sequences_share_a_step(self) -> None:
        model = engine()
        for name in "abcd":
            model.add(request(name, prompt=10, tokens=2), 0.0)
        # one prefill step of 40 tokens: 1.4; then four decode: 1 + 4 x 0.1
        seen = run(model)
        assert [at for at, _ in seen] == pytest.approx([1.4] * 4 + [2.8] * 4)
        assert order(seen, Kind.FINISHED) == ["a", "b", "c", "d"]

    def test_slots_are_refilled_when_they_are_free(self) -> None:
        model = engine(max_num_seqs=2)
        for name, tokens in (("a", 2), ("b", 4), ("c", 1)):
            model.add(request(name, prompt=10, tokens=tokens), 0.0)
        run(model, until=1.3)
        assert (model.stats.running, model.stats.waiting) == (2, 1)
        seen = run(model)
        # 1.2: a, b first; 2.4: a ends; c is let in: 1 + 0.1 (b) + 0.1 (10 prompt tokens); 3.6: c ends, b has 3; 4.7: b
        assert times(seen, "a") == pytest.approx([2.4])
        assert times(seen, "c") == pytest.approx([3.6])
        assert times(seen, "b") == pytest.approx([2.4, 3.6, 4.7])

    def test_the_gauges_dip_between_an_end_and_the_next_admission(self) -> None:
        model = engine(max_num_seqs=1)
        model.add(request("a", tokens=1), 0.0)
        model.add(request("b", tokens=2), 0.0)
        run(model, until=1.1)
        # a has left, b is not admitted yet: as vLLM shows it, although the slot is taken again at once
        assert (model.stats.running, model.stats.waiting) == (0, 1)
        assert model.state("b") is State.RUNNING

    def test_a_long_prompt_is_computed_in_chunks_beside_decoding(self) -> None:
        model = engine(max_num_batched_tokens=100)
        model.add(request("a", prompt=10, tokens=6), 0.0)
        run(model, until=1.1)  # a has its first token; the step under way ends at 2.2
        model.add(request("b", prompt=250, tokens=1), 1.5)
        seen = run(model)
        # from 2.2 on a decodes and b gets 99, 99 and 52 tokens: 1 + 0.1 + 0.99, the same, 1 + 0.1 + 0.52
        assert times(seen, "a")[:4] == pytest.approx([2.2, 4.29, 6.38, 8.0])
        assert times(seen, "b") == pytest.approx([8.0])

    def test_the_budget_of_a_step_is_shared_by_prompts(self) -> None:
        model = engine(max_num_batched_tokens=100)
        model.add(request("a", prompt=80, tokens=1), 0.0)
        model.add(request("b", prompt=60, tokens=1), 0.0)
        # 80 + 20 of b: 1 + 1.0; then the other 40: 1.4
        seen = run(model)
        assert times(seen, "a") == pytest.approx([2.0])
        assert times(seen, "b") == pytest.approx([3.4])

    def test_n_and_lists_of_prompts_fan_out(self) -> None:
        model = engine(max_num_seqs=4)
        model.add(Request("a", prompts=(10, 20), max_tokens=2, n=3), 0.0)
        assert model.unfinished == 6
        run(model, until=1.5)
        # 4 slots: three times 10 and once 20 tokens: 1.5 s
        assert (model.stats.running, model.stats.waiting) == (4, 2)
        assert model.stats.prompt_tokens == 50
        seen = run(model)
        ends = [event.sequence for _, event in seen if event.kind is Kind.FINISHED]
        assert ends == [0, 1, 2, 3, 4, 5]
        assert model.unfinished == 0
        assert model.state("a") is None

    def test_sequences_stop_by_themselves_or_at_the_limit(self) -> None:
        model = engine()
        model.add(Request("a", prompts=(10,), max_tokens=4, n=3, stop_at=(2, 4, 9)), 0.0)
        ends = {event.sequence: event for _, event in run(model) if event.kind is Kind.FINISHED}
        assert [(ends[i].tokens, ends[i].reason) for i in range(3)] == [
            (2, FinishReason.STOP),
            (4, FinishReason.STOP),
            (4, FinishReason.LENGTH),
        ]
        assert model.stats.success == {FinishReason.STOP: 2, FinishReason.LENGTH: 1}


class TestOrder:
    SENT = (("p0", 0), ("p5", 5), ("m3", -3), ("p0b", 0), ("m100", -100), ("p5b", 5))

    def finished(self, policy: Policy) -> list[str]:
        model = engine(max_num_seqs=1, policy=policy)
        model.add(request("first", tokens=2), 0.0)
        model.step(0.0)
        for name, priority in self.SENT:
            model.add(request(name, tokens=1, priority=priority), 0.5)
        return order(run(model), Kind.FINISHED)

    def test_by_priority_then_arrival(self) -> None:
        # the order that vLLM 0.32 was seen to take
        assert self.finished(Policy.PRIORITY) == ["first", "m100", "m3", "p0", "p0b", "p5", "p5b"]

    def test_fcfs_ignores_priorities(self) -> None:
        assert self.finished(Policy.FCFS) == ["first", "p0", "p5", "m3", "p0b", "m100", "p5b"]

    def test_nobody_loses_its_slot_to_a_better_one(self) -> None:
        model = engine(max_num_seqs=1, policy=Policy.PRIORITY)
        model.add(request("low", tokens=50, priority=9), 0.0)
        run(model, until=10.0)
        model.add(request("urgent", tokens=1, priority=-100), 10.0)
        seen = run(model)
        assert order(seen, Kind.FINISHED) == ["low", "urgent"]
        assert order(seen, Kind.PREEMPTED) == []


class TestCache:
    def test_a_request_that_can_never_fit_is_refused(self) -> None:
        model = engine(block_size=16, kv_blocks=2)
        model.add(request("fits", prompt=30, tokens=3), 0.0)  # the last token needs no place: 32
        with pytest.raises(ValueError, match="needs 33 KV tokens of 32"):
            model.add(request("large", prompt=30, tokens=4), 0.0)
        assert order(run(model), Kind.FINISHED) == ["fits"]

    def test_usage_counts_whole_blocks(self) -> None:
        model = engine(block_size=16, kv_blocks=8)
        model.add(request("a", prompt=17, tokens=4), 0.0)
        run(model, until=1.2)
        assert model.stats.kv_usage == pytest.approx(2 / 8)
        run(model)
        assert model.stats.kv_usage == 0.0

    def test_a_prompt_waits_until_the_whole_of_it_fits(self) -> None:
        model = engine(block_size=16, kv_blocks=5, max_num_batched_tokens=32)
        model.add(request("a", prompt=32, tokens=3), 0.0)
        model.add(request("b", prompt=40, tokens=1), 0.0)
        model.add(request("c", prompt=1, tokens=1), 0.0)
        model.step(0.0)
        model.step(1.32)
        # a holds three blocks by now. The 31 tokens that b could compute in this step would fit into the other two, but
        # all of b needs three; c would fit, but nobody passes the first one.
        assert (model.state("b"), model.state("c")) == (State.WAITING, State.WAITING)
        seen = run(model)
        assert order(seen, Kind.FINISHED) == ["a", "b", "c"]
        assert order(seen, Kind.PREEMPTED) == []

    @pytest.mark.parametrize(
        ("policy", "victim"), [(Policy.FCFS, "c"), (Policy.PRIORITY, "b")], ids=["latest", "worst priority"]
    )
    def test_the_victim_of_a_shortage(self, policy: Policy, victim: str) -> None:
        # b runs already when a and c come; the order of the running ones is b, a, c.
        model = engine(block_size=16, kv_blocks=4, policy=policy)
        model.add(request("b", prompt=16, tokens=9, priority=7), 0.0)
        model.step(0.0)
        model.add(request("a", prompt=16, tokens=3, priority=0), 0.5)
        model.add(request("c", prompt=16, tokens=3, priority=1), 0.5)
        model.step(1.16)
        # Blocks: b 2, a 1, c 1. Next a and c need one more each: under fcfs the latest goes, c, which is enough;
        # under priority the highest number, b, though it has had its turn in this step.
        events = model.step(2.6)
        assert [e.request_id for e in events if e.kind is Kind.PREEMPTED] == [victim]
        assert [e.request_id for e in events if e.kind is not Kind.PREEMPTED] == ["b", "a", "c"]
        assert model.state(victim) is State.WAITING
        assert sorted(order(run(model), Kind.FINISHED)) == ["a", "b", "c"]

    def test_a_victim_that_had_its_turn_costs_the_others_none(self) -> None:
        model = engine(block_size=16, kv_blocks=6, policy=Policy.PRIORITY)
        model.add(request("b", prompt=16, tokens=9, priority=7), 0.0)
        model.step(0.0)
        for name in "acd":
            model.add(request(name, prompt=16, tokens=3), 0.5)
        model.step(1.16)
        # Blocks: b 2, a, c and d 1 each, 1 free. a takes it, c takes one of b's, d the other: three decode, 1.3 s.
        model.step(2.8)
        assert model.next_step_at() == pytest.approx(4.1)
        assert [e.request_id for e in model.step(4.2) if e.kind is Kind.TOKEN] == ["a", "c", "d"]

    def test_a_victim_that_had_its_turn_gives_its_tokens_back(self) -> None:
        model = engine(block_size=16, kv_blocks=5, max_num_batched_tokens=10, policy=Policy.PRIORITY, max_num_seqs=3)
        model.add(request("b", prompt=1, tokens=20, priority=7), 0.0)
        model.step(0.0)
        model.add(request("a", prompt=12, tokens=20), 0.5)
        model.add(request("d", prompt=48, tokens=2), 0.5)
        # Tokens of a and d in the cache after each of the next steps: 9 0, 12 6, 13 14, 14 22, 15 30, 16 38. All five
        # blocks are taken then. In the step after it b has its turn, a needs a block, b goes, and d gets 10 - 1 tokens.
        for _ in range(7):
            at = model.next_step_at()
            assert at is not None
            events = model.step(at)
        assert [e.request_id for e in events if e.kind is Kind.PREEMPTED] == ["b"]
        assert model.next_step_at() == pytest.approx(at + 1 + 0.1 + 9 * 0.01)

    def test_a_victim_computes_again_and_loses_no_token(self) -> None:
        model = engine(block_size=16, kv_blocks=3)
        model.add(request("a", prompt=16, tokens=3), 0.0)
        model.add(request("b", prompt=16, tokens=3), 0.0)
        # 0: both in prefill, 1 + 0.32. 1.32: first tokens; a takes the third block, b goes. a alone: 1.1 a step.
        # 2.42, 3.52: a ends, having held 16 + 2 tokens. b computes 17 tokens: 1.17, then one decoding: 1.1.
        seen = run(model)
        assert times(seen, "a") == pytest.approx([1.32, 2.42, 3.52])
        assert times(seen, "b") == pytest.approx([1.32, 4.69, 5.79])
        assert [e.tokens for _, e in seen if e.request_id == "b"] == [1, 1, 2, 3]
        assert [e.kind for _, e in seen if e.request_id == "b"] == [
            Kind.FIRST_TOKEN,
            Kind.PREEMPTED,
            Kind.TOKEN,
            Kind.FINISHED,
        ]
        assert model.stats.prompt_tokens == 32
        assert model.stats.generation_tokens == 6

    def test_a_victim_computes_again_in_chunks(self) -> None:
        model = engine(block_size=16, kv_blocks=3, max_num_batched_tokens=16)
        model.add(request("a", prompt=15, tokens=5), 0.0)
        model.add(request("b", prompt=15, tokens=4), 0.0)
        # 15 of a and 1 of b: 1.16. a decodes, 14 of b: 1.24. Both decode: 1.2, at 3.6. Then b needs a block, which a
        # has taken. a alone to its end: 1.1, 1.1. b has 17 tokens: 16, then 1: 1.16 and 1.01; then it decodes: 1.1.
        seen = run(model)
        assert times(seen, "a") == pytest.approx([1.16, 2.4, 3.6, 4.7, 5.8])
        assert times(seen, "b") == pytest.approx([2.4, 3.6, 7.97, 9.07])
        assert model.stats.prompt_tokens == 30

    def test_the_preemption_counter_is_late_as_in_vllm(self) -> None:
        model = engine(block_size=16, kv_blocks=3)
        model.add(request("a", prompt=16, tokens=3), 0.0)
        model.add(request("b", prompt=16, tokens=3), 0.0)
        run(model, until=2.5)
        assert model.state("b") is State.WAITING
        assert (model.stats.running, model.stats.waiting) == (1, 1)
        assert model.stats.preemptions == 0
        run(model, until=4.7)  # b's next token
        assert model.stats.preemptions == 1

    def test_nobody_is_admitted_in_a_step_that_preempts(self) -> None:
        model = engine(block_size=16, kv_blocks=4, max_num_seqs=3, policy=Policy.PRIORITY)
        model.add(request("a", prompt=16, tokens=2), 0.0)
        model.add(request("b", prompt=32, tokens=2), 0.0)
        model.step(0.0)
        model.add(request("urgent", prompt=1, tokens=1, priority=-1), 0.5)
        # 1.48: a takes the fourth block, b needs a fifth and is its own victim. Its two blocks are free now, urgent
        # is the first in the queue and needs one, but not in this step.
        events = model.step(1.48)
        assert [e.request_id for e in events if e.kind is Kind.PREEMPTED] == ["b"]
        assert model.state("urgent") is State.WAITING
        assert order(run(model), Kind.FINISHED) == ["a", "urgent", "b"]


class TestAbort:
    def test_while_running_frees_the_slot_at_the_end_of_the_step(self) -> None:
        model = engine(max_num_seqs=1)
        model.add(request("a", prompt=10, tokens=50), 0.0)
        model.add(request("b", prompt=10, tokens=1), 0.0)
        run(model, until=1.1)
        assert model.abort("a", 1.5) is True
        assert model.next_step_at() == pytest.approx(2.2)  # the step takes its time
        assert model.step(2.2) == []
        assert (model.stats.running, model.stats.waiting) == (0, 1)
        assert [at for at, _ in run(model)] == pytest.approx([3.3])
        assert model.stats.success[FinishReason.LENGTH] == 1  # b only

    def test_while_waiting(self) -> None:
        model = engine(max_num_seqs=1)
        for name in "abc":
            model.add(request(name, tokens=2), 0.0)
        run(model, until=1.1)
        assert model.abort("b", 1.2) is True
        seen = run(model)
        assert order(seen, Kind.FINISHED) == ["a", "c"]

    def test_before_any_step(self) -> None:
        model = engine()
        model.add(request("a"), 0.0)
        assert model.abort("a", 0.0) is True
        assert model.next_step_at() is None
        model.add(request("b", tokens=1), 3.0)
        assert model.next_step_at() == 3.0
        assert order(run(model), Kind.FINISHED) == ["b"]

    def test_takes_all_sequences_that_are_left(self) -> None:
        model = engine(max_num_seqs=2)
        model.add(Request("a", (10,), 9, n=3, stop_at=(1, 9, 9)), 0.0)
        run(model, until=1.2)  # one has finished, the second runs, the third has just got the free slot
        assert model.unfinished == 2
        model.abort("a", 1.3)
        assert model.unfinished == 0
        assert run(model) == []
        assert (model.stats.running, model.stats.waiting, model.stats.kv_usage) == (0, 0, 0.0)

    def test_twice_and_of_strangers_does_nothing(self) -> None:
        model = engine()
        model.add(request("a", tokens=1), 0.0)
        run(model)
        assert model.abort("a", 9.0) is False
        assert model.abort("nobody", 9.0) is False

    def test_many_aborts_leave_no_garbage(self) -> None:
        model = engine(max_num_seqs=1)
        model.add(request("first", tokens=2), 0.0)
        for i in range(1000):
            model.add(request(f"r{i}", tokens=1), 0.0)
        model.step(0.0)
        for i in range(1000):
            model.abort(f"r{i}", 0.5)
        assert len(model._queue) <= 64
        assert order(run(model), Kind.FINISHED) == ["first"]


class TestRules:
    def test_an_id_is_used_once_at_a_time(self) -> None:
        model = engine()
        model.add(request("a", tokens=1), 0.0)
        with pytest.raises(ValueError, match="in use"):
            model.add(request("a"), 0.0)
        run(model)
        model.add(request("a", tokens=1), 5.0)
        assert order(run(model), Kind.FINISHED) == ["a"]

    @pytest.mark.parametrize(
        "bad",
        [
            {"prompts": ()},
            {"prompts": (0,)},
            {"max_tokens": 0},
            {"n": 0},
            {"stop_at": (1, 2)},
            {"stop_at": (0,)},
        ],
    )
    def test_requests_are_checked(self, bad: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="request x"):
            Request(**{"id": "x", "prompts": (1,), "max_tokens": 1, **bad})

    @pytest.mark.parametrize(
        "bad",
        [
            {"max_num_seqs": 0},
            {"kv_blocks": 0},
            {"max_num_seqs": 9, "max_num_batched_tokens": 8},
            {"step_base": float("nan")},
            {"step_base": -1.0},
            {"step_base": 0.0, "step_per_seq": 0.0},
        ],
    )
    def test_options_are_checked(self, bad: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="must"):
            EngineOptions(**bad)

    def test_a_forbidden_move_tells_the_story(self) -> None:
        model = engine()
        model.add(request("a", tokens=1), 0.0)
        sequence = model._arrived[0]
        run(model)
        with pytest.raises(RuntimeError, match=r"a\[0\] finished .* cannot become running"):
            sequence.move(State.RUNNING)


def test_latencies_are_those_of_the_clock() -> None:
    model = engine(max_num_seqs=1)
    model.add(request("a", prompt=10, tokens=3), 0.0)  # tokens at 1.1, 2.2, 3.3
    model.add(request("b", prompt=10, tokens=2), 0.0)  # admitted at 3.3; tokens at 4.4, 5.5
    run(model)
    stats = model.stats
    assert stats.time_to_first_token.total == pytest.approx(1.1 + 4.4)
    assert (stats.inter_token_latency.total, stats.inter_token_latency.count) == (pytest.approx(3.3), 3)
    assert stats.time_per_output_token.total == pytest.approx(1.1 + 1.1)
    assert stats.e2e_latency.total == pytest.approx(3.3 + 5.5)
    assert stats.queue_time.total == pytest.approx(3.3)
    assert stats.prefill_time.total == pytest.approx(1.1 + 1.1)
    assert stats.decode_time.total == pytest.approx(2.2 + 1.1)
    assert stats.inference_time.total == pytest.approx(3.3 + 2.2)
    # a: 10 prompt tokens and its first; 1; 1. b the same without the last
    assert (stats.iteration_tokens.total, stats.steps) == (pytest.approx(25), 5)
