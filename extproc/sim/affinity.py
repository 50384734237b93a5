"""What prefix affinity gives: conversations with shared system prompts on three engines, in virtual time.

Each user has one conversation after the other, of six turns. A turn's prompt is the system prompt, all that was said
before, and 100 to 300 tokens more; its answer has 60 to 200. After an answer the user reads for a while. System prompts
are of four sizes, a quarter of the users each, or one for everybody. Engines are E1 (20 slots) with a prefix cache of
60,000 tokens, some 20 conversations: not all fit, if each engine sees all of them.

The gateway knows prompts by hashes of their first 512, 1,024, ... bytes, at 4 bytes for a token; the engine by what was
computed, turn by turn. So the gateway's guess is as rough as it is in life.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from extproc.core.model import PoolPolicy
from extproc.core.prefixes import BYTES
from extproc.sim.figures import Service, Span, fairness, quantile, ttfts
from extproc.sim.jobs import Fate, Job, Record
from extproc.sim.prefix_cache import Beginning
from extproc.sim.scene import Engines
from extproc.sim.shapes import E1
from extproc.sim.virtual import NextJob, Run, run
from extproc.sim.ways import Way
from extproc.sim.workloads.workload import a_pool

ENGINES = 3
_CACHE = 60_000  # tokens of each engine
_TURNS = 6
_BLOCK = 256  # tokens; of a system prompt the cache keeps pieces of so many
_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Case:
    """`users` in a closed loop. `prompts`: tokens of the system prompts. `reads_s`: mean pause after an answer."""

    name: str
    users: int
    prompts: tuple[int, ...]
    reads_s: float
    adds: tuple[int, int] = (100, 300)  # tokens that a turn adds, beside the answer


_SIZES = (256, 1024, 4096, 8192)
CASES = (
    Case("light load, 4 system prompts", 30, _SIZES, 6.0),
    Case("busy, 4 system prompts", 90, _SIZES, 6.0),
    Case("busy, one system prompt of 4,096 tokens", 90, (4096,), 6.0),
    Case("light load, one system prompt of 4,096 tokens", 30, (4096,), 6.0),
    Case("agents: turns of 500 to 1,500 tokens, no reading", 36, (4096,), 0.2, (500, 1500)),
    Case("overload, 4 system prompts", 150, _SIZES, 0.5),
)


def _weights(**weights: float) -> Callable[[PoolPolicy], PoolPolicy]:
    return lambda policy: replace(policy, pick=replace(policy.pick, **weights))  # type: ignore[arg-type]


WAYS = (
    Way("load alone", change=_weights(prefix=0.0, session=0.0)),
    Way("default", change=_weights(session=0.0)),
    Way("prefix 1", change=_weights(prefix=1.0, session=0.0)),
    Way("prefix 3", change=_weights(prefix=3.0, session=0.0)),
    Way("default, sessions", change=_weights()),
    Way("prefix 1, sessions", change=_weights(prefix=1.0)),
    Way("prefix 3, sessions", change=_weights(prefix=3.0)),
)
"""`sessions`: requests name theirs. The others are as if none did."""


class _Users:
    """What each user sends, one turn after the other. The same seed gives the same texts, whatever answers take."""

    def __init__(self, case: Case, seed: int) -> None:
        self._case = case
        self._rngs = [random.Random(f"{seed} {user}") for user in range(case.users)]  # noqa: S311
        self._talks = [0] * case.users
        self._turns: list[list[int]] = [[] for _ in range(case.users)]  # tokens of the prompt at each turn's end

    def first(self) -> list[Job]:
        jobs = [self._next(user, rng.uniform(0.0, 5.0)) for user, rng in enumerate(self._rngs)]
        return sorted(jobs, key=lambda job: job.at)

    def again(self, record: Record, now: float) -> Job:
        user = int(record.job.tenant.removeprefix("user-"))
        return self._next(user, now + self._rngs[user].expovariate(1.0 / self._case.reads_s))

    def _next(self, user: int, at: float) -> Job:
        rng, turns = self._rngs[user], self._turns[user]
        if len(turns) == _TURNS:
            turns.clear()
        if not turns:
            self._talks[user] += 1
        number = user % len(self._case.prompts)
        shared = self._case.prompts[number]
        output = rng.randint(60, 200)
        turns.append((turns[-1] if turns else shared) + rng.randint(*self._case.adds))
        prompt = turns[-1]
        talk = (user + 1) * 100_000 + self._talks[user]
        begun = [Beginning(hash((number, size)), size) for size in range(_BLOCK, shared + 1, _BLOCK)]
        said = [Beginning(hash((number, talk, size)), size) for size in turns]
        # Whoever agrees in more than the system prompt is in the same conversation.
        known = tuple(
            hash((number, size if size <= _BYTES_PER_TOKEN * shared else (talk, size)))
            for size in BYTES
            if size <= _BYTES_PER_TOKEN * prompt
        )
        turns[-1] += output  # the answer is part of what comes next
        return Job(
            at, f"user-{user}", prompt, output, prefix=known, session=talk, beginnings=(*begun, *said), max_output=256
        )


def measure(case: Case, way: Way, seed: int, seconds: float) -> dict[str, float]:
    """Figures of one run of so many seconds; the first fifth warms up."""
    users = _Users(case, seed)
    again: NextJob = users.again
    engines = Engines(E1, ENGINES, prefix_cache_tokens=_CACHE)
    span = Span(seconds / 5, seconds)
    done = run(users.first(), a_pool(), engines, seconds, way=way, seed=seed, next_job=again)
    return _figures(done, span, case)


def _figures(done: Run, span: Span, case: Case) -> dict[str, float]:
    served = [r for r in done.records if r.fate is Fate.SERVED and r.first is not None and r.first >= span.since]
    waited = ttfts(done, [r for r in done.records if r.job.at >= span.since])
    units = Service(done).by_tenant(span)
    counts = [sum(r.endpoint == number for r in served) for number in range(ENGINES)]
    return {
        "tokens found in the cache": sum(r.cached for r in served) / sum(r.job.prompt for r in served),
        "requests/s": len(served) / span.seconds,
        "TTFT p50, s": quantile(waited, 50),
        "TTFT p95, s": quantile(waited, 95),
        "time per token p50, s": quantile([r.tpot for r in served if r.tpot is not None], 50),
        "busiest engine / mean": max(counts) * ENGINES / sum(counts),
        "Jain": fairness(units, {f"user-{user}": 1.0 for user in range(case.users)}),
    }
