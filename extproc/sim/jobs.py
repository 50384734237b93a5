"""Requests of a simulated run, and what became of each of them.

Times are seconds from the start of the run. A job has exactly one fate; what still waits or runs when the run ends is
`UNFINISHED`.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from extproc.core.model import CostWeights
from extproc.sim.prefix_cache import Beginning


class Fate(Enum):
    """What became of a job."""

    SERVED = "served"
    REFUSED = "refused"  # by the gateway, at the door or after it had waited
    LEFT = "left"  # its client had no patience
    ABORTED = "aborted"  # the engine broke it off, or was not there, or the gateway took it back (`reason`)
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Job:
    """One request. `prompt` and `output` are the true tokens, of each of `n` choices the same output."""

    at: float
    tenant: str
    prompt: int
    output: int
    cls: str = "interactive"
    max_output: int | None = None  # as the client says
    n: int = 1
    prefix: tuple[int, ...] = ()  # chained hashes of the prompt's beginnings, shortest first
    timeout_s: float | None = None  # as the client says
    patience_s: float | None = None  # its client leaves when no token has come by then
    body_bytes: int | None = None  # None: 4 for each token of the prompt
    adapter: str | None = None  # LoRA adapter
    session: int | None = None  # that it belongs to
    beginnings: tuple[Beginning, ...] | None = None  # of the prompt, as the engine caches them; None: `prefix` tells

    def cost(self, weights: CostWeights) -> float:
        """What it really costs, in units."""
        return weights.cost(self.prompt, self.output * self.n)


@dataclass(slots=True, eq=False)
class Record:
    """A job on its way. `released` is when the gateway let it go; for a direct way that is `job.at`."""

    id: str
    job: Job
    fate: Fate = Fate.UNFINISHED
    endpoint: int | None = None  # number of its engine
    priority: int = 0  # what the engine was told
    released: float | None = None
    first: float | None = None  # first token
    ended: float | None = None  # served, refused, left or aborted
    reason: str | None = None  # code of the refusal
    status: int | None = None  # HTTP status of the refusal
    retry_after: int | None = None  # seconds
    preempted: int = 0
    charged: float | None = None  # cost that the scheduler settled
    cached: int = 0  # tokens of the prompt that the engine had in its prefix cache

    @property
    def ttft(self) -> float | None:
        """Seconds from sending to the first token."""
        return None if self.first is None else self.first - self.job.at

    @property
    def wait(self) -> float | None:
        """Seconds in the gateway."""
        return None if self.released is None else self.released - self.job.at

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None: not served, or a single token."""
        if self.fate is not Fate.SERVED or self.first is None or self.ended is None or self.job.output < 2:
            return None
        return (self.ended - self.first) / (self.job.output - 1)


def poisson(
    rng: random.Random, rate: float, tenant: str, prompt: int, output: int, since: float, until: float,
    cls: str = "interactive",
) -> Iterator[Job]:  # fmt: skip
    """Jobs of one size, `rate` a second."""
    at = since + rng.expovariate(rate)
    while at < until:
        yield Job(at, tenant, prompt, output, cls)
        at += rng.expovariate(rate)


def by_time(*loads: Iterable[Job]) -> list[Job]:
    """All of them in the order of their times; equal times stay as given."""
    return sorted((job for load in loads for job in load), key=lambda job: job.at)
