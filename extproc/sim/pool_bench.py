"""What the scheduler takes of one request in a pool as production has it, with the settings that a file has by default.

Three classes, of which one has a share; two endpoints under the adaptive window, with pages that show all that vLLM's
do; 50 tenants; some hundred requests inside. A cycle is one request's life as the edge tells it: arrival, usage and end
(in turns one before the other), and after each event the next deadline is asked for, as the edge does. Arrivals and
ends keep pace at 1,000 a second, so nothing waits, or always as many: then each end lets one go.

CPU time of this process, with the work of the events' own objects, and of the pages.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from extproc.core.events import Arrive, End, EndpointAdded, Event, Release, Scraped, Usage
from extproc.core.model import ClassPolicy, PoolPolicy, Sample, Source, WindowPolicy
from extproc.core.scheduler import Scheduler

_ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000")
_CLASSES = ("interactive",) * 7 + ("default",) * 2 + ("batch",)
_TENANTS = 50
_INSIDE = 300
_STEP_S = 1e-3  # virtual time between two cycles
_PAGES_S = 0.25
_BATCH = 500  # cycles that are timed together


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one cycle, in microseconds of CPU."""

    held: int  # requests that wait all the time
    least_us: float  # the mean of the quickest twentieth, which others on the machine disturbed least
    median_us: float


def cost(held: int, cycles: int) -> Cost:
    """Over so many cycles. The first of them warm up, and are not counted."""
    load = _Load(held)
    load.run(_BATCH * 4)
    took = sorted(_timed(load) for _ in range(max(20, cycles // _BATCH)))
    quick = took[: len(took) // 20]
    return Cost(held, sum(quick) / len(quick), took[len(took) // 2])


def _timed(load: _Load) -> float:
    began = time.process_time()
    load.run(_BATCH)
    return (time.process_time() - began) / _BATCH * 1e6


def _policy(held: int) -> PoolPolicy:
    """`held`: the window is full with what is inside. Else there is room for all that comes."""
    slots = _INSIDE // len(_ENDPOINTS) if held else 4 * _INSIDE
    classes = (
        ClassPolicy("interactive", 0, 0, 60.0, 3, 10_000),
        ClassPolicy("default", 1, 1_000_000, 300.0, 3, 10_000),
        ClassPolicy("batch", 2, 2_000_000, 3_500.0, 0, 10_000, min_share=0.02),
    )
    return PoolPolicy("bench", classes, window=WindowPolicy(max_num_seqs=slots))


class _Load:
    def __init__(self, held: int) -> None:
        self.now = 1_000.0
        self.scheduler = Scheduler(_policy(held))
        self._inside: deque[tuple[str, str]] = deque()  # (id, endpoint), as released
        self._count = dict.fromkeys(_ENDPOINTS, 0)
        self._number = 0
        self._tokens = self._answers = 0.0
        self._page_at = 0.0
        for endpoint in _ENDPOINTS:
            self._apply(EndpointAdded(endpoint))
        while len(self._inside) < _INSIDE:  # not all at once: prompts that are not read yet have a limit
            self._step()
            if not self.scheduler.queued:
                self._arrive()
        while self.scheduler.queued < held:
            self._arrive()

    def run(self, cycles: int) -> None:
        for _ in range(cycles):
            self._step()
            self._arrive()
            name, endpoint = self._inside.popleft()
            self._count[endpoint] -= 1
            usage, end = Usage(name, Source.USAGE, 500, 0, 200), End(name)
            for event in (usage, end) if self._number % 2 else (end, usage):
                self._apply(event)

    def _apply(self, event: Event) -> None:
        for effect in self.scheduler.apply(event, self.now):
            if isinstance(effect, Release):
                self._inside.append((effect.id, effect.endpoint))
                self._count[effect.endpoint] += 1
        self.scheduler.next_deadline()

    def _arrive(self) -> None:
        number = self._number = self._number + 1
        turn = number * 7_919  # tenants and classes in an order that is not the one in which they were first seen
        asked = 512 if number % 2 else None
        name, tenant, cls = f"0a1b2c3d-bench-{number:x}", f"tenant-{turn % _TENANTS}", _CLASSES[turn % len(_CLASSES)]
        self._apply(Arrive(name, tenant, cls, self.now, 2_048, asked))

    def _step(self) -> None:
        self.now += _STEP_S
        if self.now < self._page_at:
            return
        self._page_at = self.now + _PAGES_S
        for endpoint, count in self._count.items():
            self._tokens += count * 8.0  # of 30 ms each
            self._answers += 125.0
            sample = Sample(
                count, 0, 0.1, 0.03 * self._tokens, self._tokens, 0.0, self._tokens, 500.0 * self._answers, self.now,
                ttft_sum=0.2 * self._answers, ttft_count=self._answers, kv_capacity_tokens=2_000_000,
            )  # fmt: skip
            self._apply(Scraped(endpoint, sample))
