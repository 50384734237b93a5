"""What the simulated engine counts, in the terms of vLLM's metrics.

Gauges are those that vLLM shows: taken at the end of a step, after the finished sequences have left and before the next
ones are admitted. So with short requests ``running`` dips although the engine is full.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from extproc.sim.sequence import FinishReason, Sequence

_REQUEST_SECONDS: Final = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
    120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_TOKEN_SECONDS: Final = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_FIRST_TOKEN_SECONDS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_STEP_TOKENS: Final = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
_REQUEST_TOKENS: Final = (
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1000.0,
    2000.0,
    5000.0,
    10000.0,
    20000.0,
)
_PREEMPTIONS: Final = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


class Histogram:
    """Counts by upper bound, as Prometheus has them. ``observe`` costs one bisection."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        """Observations per bucket, not yet cumulative; the last one is above every bound."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)


class Stats:
    """Counters, histograms and gauges of one engine. Seconds and tokens throughout."""

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_usage = 0.0
        """Share of the KV blocks in use, 0 to 1."""

        self.steps = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.preemptions = 0
        """Late, as in vLLM: a preemption is counted with the victim's next token."""
        self.success: Final = dict.fromkeys(FinishReason, 0)

        self.time_to_first_token: Final = Histogram(_FIRST_TOKEN_SECONDS)
        self.inter_token_latency: Final = Histogram(_TOKEN_SECONDS)
        self.time_per_output_token: Final = Histogram(_TOKEN_SECONDS)
        self.e2e_latency: Final = Histogram(_REQUEST_SECONDS)
        self.queue_time: Final = Histogram(_REQUEST_SECONDS)
        self.inference_time: Final = Histogram(_REQUEST_SECONDS)
        self.prefill_time: Final = Histogram(_REQUEST_SECONDS)
        self.decode_time: Final = Histogram(_REQUEST_SECONDS)
        self.iteration_tokens: Final = Histogram(_STEP_TOKENS)
        self.request_prompt_tokens: Final = Histogram(_REQUEST_TOKENS)
        self.request_generation_tokens: Final = Histogram(_REQUEST_TOKENS)
        self.request_preemptions: Final = Histogram(_PREEMPTIONS)

    def token(self, sequence: Sequence, now: float) -> int:
        """Count one new token of the sequence. Returns the tokens that the step has processed for it."""
        self.generation_tokens += 1
        if sequence.preempted_unseen:
            self.preemptions += sequence.preempted_unseen
            sequence.preempted_unseen = 0
        if sequence.last_at is None:
            self.prompt_tokens += sequence.prompt
            self.time_to_first_token.observe(now - sequence.arrival)
            return sequence.prompt + 1
        self.inter_token_latency.observe(now - sequence.last_at)
        return 1

    def finished(self, sequence: Sequence, now: float) -> None:
        """Count a sequence that has produced its last token at ``now``."""
        scheduled, first = sequence.scheduled_at, sequence.first_at
        if scheduled is None or first is None:
            raise RuntimeError(f"{sequence!r} finished without having run")
        decode = now - first
        self.success[sequence.reason] += 1
        self.time_per_output_token.observe(decode / (sequence.produced - 1) if sequence.produced > 1 else 0.0)
        self.e2e_latency.observe(now - sequence.arrival)
        self.queue_time.observe(scheduled - sequence.arrival)
        self.inference_time.observe(now - scheduled)
        self.prefill_time.observe(first - scheduled)
        self.decode_time.observe(decode)
        self.request_prompt_tokens.observe(sequence.prompt)
        self.request_generation_tokens.observe(sequence.produced)
        self.request_preemptions.observe(sequence.preempted)
