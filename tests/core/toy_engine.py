"""An engine of 20 slots in virtual time, to run the scheduler against.

A request holds its slot for a fixed time by its size; what finds no slot waits in the order of priority,
then arrival. A page tells the true gauges each quarter of a second. Nothing here is random but the
arrivals, which the caller draws.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from extproc.core.events import Arrive, Effect, End, EndpointAdded, Release, Scraped, Usage
from extproc.core.model import CostWeights, PoolPolicy, Sample, Source
from extproc.core.scheduler import Scheduler

SLOTS = 20
ENDPOINT = "toy:8000"
_INTERVAL_S = 0.25
_PREFILL_S = 0.00012  # per prompt token
_STEP_S = 0.034  # per output token: 22 ms and 0.6 ms for each of 20


@dataclass(frozen=True)
class Job:
    at: float
    tenant: str
    prompt: int  # tokens
    output: int
    cls: str = "interactive"
    n: int = 1  # choices; each takes a slot

    @property
    def service_s(self) -> float:
        return service_s(self.prompt, self.output)

    @property
    def cost(self) -> float:
        return CostWeights().cost(self.prompt, self.output * self.n)


def service_s(prompt: int, output: int) -> float:
    return _PREFILL_S * prompt + _STEP_S * output


@dataclass
class Outcome:
    """What happened, by time. Costs are true ones, not the scheduler's estimates."""

    released: list[tuple[float, Job]] = field(default_factory=list)
    finished: list[tuple[float, Job]] = field(default_factory=list)
    waiting: list[tuple[float, int]] = field(default_factory=list)  # in the engine, by page
    running: list[tuple[float, int]] = field(default_factory=list)

    def cost(self, tenant: str, since: float, until: float) -> float:
        """Of the tenant's requests released in [since, until)."""
        return sum(job.cost for at, job in self.released if since <= at < until and job.tenant == tenant)

    def gaps(self, tenant: str, since: float, until: float) -> float:
        """The longest time without a release to the tenant."""
        times = [since] + [at for at, job in self.released if since <= at < until and job.tenant == tenant] + [until]
        return max(b - a for a, b in itertools.pairwise(times))


def poisson(rng: random.Random, tenant: str, rate: float, prompt: int, output: int, since: float, until: float,
            cls: str = "interactive") -> Iterator[Job]:  # fmt: skip
    at = since + rng.expovariate(rate)
    while at < until:
        yield Job(at, tenant, prompt, output, cls)
        at += rng.expovariate(rate)


class ToyEngine:
    def __init__(self, policy: PoolPolicy) -> None:
        self.scheduler = Scheduler(policy)
        self.outcome = Outcome()
        self._events: list[tuple[float, int, str, str]] = []
        self._order = 0
        self._jobs: dict[str, Job] = {}
        self._left: dict[str, int] = {}  # choices that still run
        self._running = 0
        self._waiting: list[tuple[int, int, str]] = []  # (priority, order, request), one for each choice

    def run(self, jobs: Iterable[Job], seconds: float) -> Outcome:
        for job in jobs:
            name = f"r{len(self._jobs)}"
            self._jobs[name] = job
            self._left[name] = job.n
            self._at(job.at, "arrive", name)
        for i in range(int(seconds / _INTERVAL_S)):
            self._at(i * _INTERVAL_S, "page", "")
        self.scheduler.apply(EndpointAdded(ENDPOINT), 0.0)
        while self._events and self._events[0][0] <= seconds:
            now, _, kind, name = heapq.heappop(self._events)
            if kind == "arrive":
                job = self._jobs[name]
                event = Arrive(name, job.tenant, job.cls, now, 4 * job.prompt, n=job.n)
                self._take(self.scheduler.apply(event, now), now)
            elif kind == "page":
                self._page(now)
            else:
                self._finish(name, now)
        return self.outcome

    def _at(self, when: float, kind: str, name: str) -> None:
        self._order += 1
        heapq.heappush(self._events, (when, self._order, kind, name))

    def _take(self, effects: list[Effect], now: float) -> None:
        for effect in effects:
            if isinstance(effect, Release):
                for _ in range(self._jobs[effect.id].n):
                    self._order += 1
                    heapq.heappush(self._waiting, (effect.priority, self._order, effect.id))
                self.outcome.released.append((now, self._jobs[effect.id]))
        self._admit(now)

    def _admit(self, now: float) -> None:
        while self._waiting and self._running < SLOTS:
            name = heapq.heappop(self._waiting)[2]
            self._running += 1
            self._at(now + self._jobs[name].service_s, "finish", name)

    def _finish(self, name: str, now: float) -> None:
        job = self._jobs[name]
        self._running -= 1
        self._left[name] -= 1
        self._admit(now)
        if self._left[name]:
            return
        self.outcome.finished.append((now, job))
        self.scheduler.apply(Usage(name, Source.USAGE, job.prompt, 0, job.output * job.n), now)
        self._take(self.scheduler.apply(End(name), now), now)

    def _page(self, now: float) -> None:
        self.outcome.waiting.append((now, len(self._waiting)))
        self.outcome.running.append((now, self._running))
        sample = Sample(self._running, len(self._waiting), None, None, None, None, None, None, started=now)
        self._take(self.scheduler.apply(Scraped(ENDPOINT, sample), now), now)
