"""What the quick engine counts: the figures of vLLM's page that a gateway reads, for many steps at once."""

from __future__ import annotations

from typing import NamedTuple


class Page(NamedTuple):
    """The metrics page: gauges as at the end of the last step, counters since the start. Seconds and tokens."""

    running: int
    waiting: int
    kv_usage: float
    itl_sum: float
    itl_count: int
    ttft_sum: float
    ttft_count: int
    preemptions: int
    generation_tokens: int
    prompt_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    kv_capacity_tokens: int


class Counters:
    """Counters and gauges of one engine, as ``extproc.sim.stats`` has them."""

    def __init__(self) -> None:
        self.running = self.waiting = 0
        self.kv_usage = 0.0
        self.itl_sum = self.ttft_sum = 0.0
        self.itl_count = self.ttft_count = 0
        self.preemptions = 0
        self.generation_tokens = self.prompt_tokens = 0
        self.prefix_cache_queries = self.prefix_cache_hits = 0

    def steps(self, sequences: int, steps: int, seconds: float) -> None:
        """So many sequences have got a token in each of so many steps in a row, which took so long together.

        The gaps between the tokens of one sequence add up to the time between the first and the last.
        """
        tokens = sequences * steps
        self.generation_tokens += tokens
        self.itl_count += tokens
        self.itl_sum += sequences * seconds

    def prefilled(self, prompt: int, arrival: float, last_at: float | None, preempted: int, now: float) -> None:
        """The token at the end of a prefill: the first one, or the next one after a preemption.

        A preemption is counted late, as in vLLM: with the victim's next token.
        """
        self.generation_tokens += 1
        self.preemptions += preempted
        if last_at is None:
            self.prompt_tokens += prompt
            self.ttft_sum += now - arrival
            self.ttft_count += 1
        else:
            self.itl_sum += now - last_at
            self.itl_count += 1

    def page(self, kv_capacity_tokens: int) -> Page:
        return Page(
            self.running,
            self.waiting,
            self.kv_usage,
            self.itl_sum,
            self.itl_count,
            self.ttft_sum,
            self.ttft_count,
            self.preemptions,
            self.generation_tokens,
            self.prompt_tokens,
            self.prefix_cache_queries,
            self.prefix_cache_hits,
            kv_capacity_tokens,
        )
