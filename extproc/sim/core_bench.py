"""How fast and how large the core is: cycles a second, bytes for each request, the longest pause.

A cycle is one request's life: it arrives, is released when another ends, its usage comes, its stream ends. The
queue keeps its length meanwhile. Measured in CPU time of this process, without its own garbage collector's
pauses taken out: they are part of what a release waits for.
"""

from __future__ import annotations

import gc
import math
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from extproc.core.events import Arrive, End, EndpointAdded, Release, Scraped, Usage
from extproc.core.fair_queue import FairQueue
from extproc.core.model import (
    ClassPolicy,
    Controller,
    Order,
    PoolPolicy,
    Request,
    Sample,
    Source,
    TenantPolicy,
    WindowPolicy,
)
from extproc.core.scheduler import Scheduler
from extproc.core.token_bucket import Buckets

_ENDPOINT = "127.0.0.1:8000"
_INSIDE = 64  # requests inside the engine
_BODY_BYTES = 1_024
_TOGETHER = 20  # cancels that are timed together: asking for the time costs more than one of them
_STEP_S = 1e-3  # virtual time between two cycles
_PAGES_S = 0.25


@dataclass(frozen=True, slots=True)
class Size:
    """What is queued: so many requests of so many tenants, whose names have so many levels."""

    queued: int
    tenants: int
    levels: int = 1

    def tenant(self, i: int) -> str:
        number = i % self.tenants
        if self.levels == 1:
            return f"t{number}"
        return f"org{number % 10}/team{number % 100}/t{number}"


def the_policy() -> PoolPolicy:
    """No limit in the way of what is measured; all else as a pool has it by default."""
    endless = 10**12
    return PoolPolicy(
        name="bench",
        classes=(ClassPolicy("default", 0, 0, 1e9, 3, endless),),
        default_tenant=TenantPolicy(max_queued=endless, max_queued_bytes=endless),
        window=WindowPolicy(controller=Controller.ADAPTIVE, max_num_seqs=_INSIDE),
        max_queued=endless,
        max_queued_bytes=endless,
        separator="/",
    )


class Load:
    """A scheduler with a full window and a queue of the wanted size."""

    def __init__(self, size: Size) -> None:
        self.size = size
        self.now = 1.0
        self.scheduler = Scheduler(the_policy())
        self.inside: deque[str] = deque()
        self._count = 0
        self._page_at = 0.0
        self.apply(EndpointAdded(_ENDPOINT))
        self._page()
        while self.scheduler.queued < size.queued:
            self.arrive()

    def apply(self, event: Arrive | End | Usage | Scraped | EndpointAdded) -> None:
        for effect in self.scheduler.apply(event, self.now):
            if isinstance(effect, Release):
                self.inside.append(effect.id)

    def arrive(self) -> None:
        i = self._count
        self._count = i + 1
        # Tenants take turns in an order that is not the one in which they were first seen.
        self.apply(Arrive(f"{i:08x}-default-{i:x}", self.size.tenant(i * 7_919), "default", self.now, _BODY_BYTES))

    def cycle(self) -> None:
        self.now += _STEP_S
        if self.now >= self._page_at:
            self._page()
        self.arrive()
        name = self.inside.popleft()
        self.apply(Usage(name, Source.USAGE, 250, 0, 200))
        self.apply(End(name))

    def _page(self) -> None:
        self._page_at = self.now + _PAGES_S
        running = len(self.inside)
        sample = Sample(running, 0, 0.05, None, None, None, None, None, self.now, kv_capacity_tokens=400_000)
        self.apply(Scraped(_ENDPOINT, sample))


def scheduler_cycles(size: Size, cycles: int, repeats: int) -> float:
    """Cycles of the whole scheduler per second of CPU: arrive, release, usage, end. Median of `repeats`."""
    load = Load(size)
    _times(load.cycle, min(cycles, 2_000))
    return median(cycles / _times(load.cycle, cycles) for _ in range(repeats))


def queue_cycles(size: Size, cycles: int, repeats: int) -> float:
    """Cycles of the fair queue alone per second of CPU: put, pop, settle, free. Median of `repeats`."""
    policy = the_policy()
    queue = FairQueue(policy, Order.FIFO, Buckets())
    requests = deque(_request(i, size) for i in range(size.queued + (repeats + 1) * cycles))
    for _ in range(size.queued):
        queue.put(requests.popleft(), 0.0)

    def cycle() -> None:
        queue.put(requests.popleft(), 0.0)
        request = queue.peek(0.0)
        if request is None:
            raise RuntimeError("nothing may go, with no cap set")
        queue.pop(request, request.cost, 0.0)
        queue.settle(request, 650.0)
        queue.free(request)

    _times(cycle, cycles)
    return median(cycles / _times(cycle, cycles) for _ in range(repeats))


def _request(i: int, size: Size) -> Request:
    return Request(
        f"{i:08x}", size.tenant(i * 7_919), "default", 0.0, i, _BODY_BYTES, 256.0, 256.0, None, 1, math.inf, cost=768.0
    )


def _times(call: Callable[[], object], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        call()
    return time.process_time() - began


def bytes_per_request(size: Size) -> float:
    """Memory of one queued request, in all of the scheduler's books."""
    gc.collect()
    tracemalloc.start()
    try:
        load = Load(Size(0, size.tenants, size.levels))
        for _ in range(_INSIDE + 1):
            load.arrive()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(size.queued):
            load.arrive()
        return (tracemalloc.get_traced_memory()[0] - before) / size.queued
    finally:
        tracemalloc.stop()


@dataclass(frozen=True, slots=True)
class Cancel:
    """All at once leave. Seconds of CPU."""

    requests: int
    total_s: float  # of the cancels
    longest_s: float  # of `_TOGETHER` events and a release: so long that release can have had to wait
    left: int  # still queued afterwards


def mass_cancel(count: int, tenants: int) -> Cancel:
    """`count` queued requests are cancelled one after the other, while others end and release new ones."""
    gc.collect()
    load = Load(Size(count, tenants))
    inside = set(load.inside)
    # The last first: those that are next would be released before their turn to leave comes.
    names = [r.id for r in reversed(load.scheduler.requests.values()) if r.id not in inside]
    total = longest = 0.0
    for first in range(0, len(names), _TOGETHER):

        def leave(these: list[str] = names[first : first + _TOGETHER]) -> None:
            for name in these:
                load.apply(End(name))

        took = _times(leave, 1)
        release = _times(lambda: load.apply(End(load.inside.popleft())), 1) if load.inside else 0.0
        total, longest = total + took, max(longest, took + release)
    return Cancel(len(names), total, longest, load.scheduler.queued)


@dataclass(frozen=True, slots=True)
class Flood:
    """Names that come once. Nodes and bytes of state."""

    names: int
    nodes_at_peak: int
    nodes_after: int
    bytes_at_peak: int
    bytes_after: int  # above what there was before


def flood(names: int) -> Flood:
    """Each of `names` sends one request; all are served; then a few tenants go on as ever."""
    gc.collect()
    tracemalloc.start()
    try:
        load = Load(Size(0, 10))
        _serve(load, 2_000)
        before = tracemalloc.get_traced_memory()[0]
        for i in range(names):
            load.apply(Arrive(f"flood-{i}", f"name-{i}", "default", load.now, _BODY_BYTES))
        nodes, peak = _nodes(load), tracemalloc.get_traced_memory()[0] - before
        _serve(load, names + 2_000)
        gc.collect()
        return Flood(names, nodes, _nodes(load), peak, tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()


def _serve(load: Load, requests: int) -> None:
    """Ten tenants send on, two requests for each three that end, until `requests` have ended and the queue is short."""
    ended = 0
    while ended < requests or load.scheduler.queued > 100:
        if (ended % 3 and ended < requests) or not load.inside:
            load.arrive()
        if load.inside:
            load.now += _STEP_S
            name = load.inside.popleft()
            load.apply(Usage(name, Source.USAGE, 250, 0, 200))
            load.apply(End(name))
        ended += 1


def _nodes(load: Load) -> int:
    return sum(c.queue.nodes for c in load.scheduler.classes)
