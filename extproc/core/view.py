"""The scheduler's state as data: for status, metrics and dumps. Reading changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.core.model import Request, State, Traffic
from extproc.core.scheduler import Scheduler
from extproc.core.windows import WindowView


@dataclass(frozen=True, slots=True)
class ClassView:
    name: str
    rank: int
    queued: int  # requests
    in_flight: int  # slots
    tenants: int  # with state
    retired: bool = False  # no longer configured: it drains


@dataclass(frozen=True, slots=True)
class FlowView:
    """One tenant in one class."""

    tenant: str
    cls: str
    queued: int  # requests
    in_flight: int  # slots
    tag: float  # cost units / weight
    weight: float


@dataclass(frozen=True, slots=True)
class PoolView:
    pool: str
    queued: int  # requests
    queued_bytes: int
    in_flight: int  # slots
    known: int  # requests in the books, those that wait for their usage among them
    releases_per_s: float
    classes: tuple[ClassView, ...]
    endpoints: tuple[WindowView, ...]
    counts: Mapping[str, int] = field(default_factory=dict)  # of what cannot be, and was clamped or dropped, by kind
    traffic: Traffic = Traffic.OPEN


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request that is held or inside an engine, or whose token count is awaited."""

    id: str
    seq: int  # the order of arrivals
    tenant: str
    cls: str
    state: State
    waited_s: float  # from its first arrival to its release, or to now
    inside_s: float  # since its release; 0 while it is held
    timeout_in_s: float | None  # None: it is not held
    endpoint: str | None
    cost: float  # estimate
    body_bytes: int
    slots: int
    adapter: str | None
    evicted: bool


def view(scheduler: Scheduler, now: float) -> PoolView:
    """O(classes + endpoints), whatever is queued."""
    return PoolView(
        pool=scheduler.policy.name,
        queued=scheduler.queued,
        queued_bytes=scheduler.queued_bytes,
        in_flight=sum(c.queue.in_flight for c in scheduler.classes),
        known=len(scheduler.requests),
        releases_per_s=scheduler.drain.per_second(now),
        classes=tuple(
            ClassView(c.policy.name, c.policy.rank, len(c.queue), c.queue.in_flight, c.queue.size, c.retired)
            for c in scheduler.classes
        ),
        endpoints=tuple(w.view(now) for w in scheduler.windows.values()),
        counts={
            "usage": scheduler.counts["absurd_usage"],
            "time": scheduler.counts["time_went_backwards"],
            "page": sum(w.absurd for w in scheduler.windows.values()),
        },
        traffic=scheduler.policy.traffic,
    )


def flows(scheduler: Scheduler, most: int) -> list[FlowView]:
    """The `most` longest flows, longest first. O(flows)."""
    rows = [
        FlowView(leaf.tenant, c.policy.name, leaf.queued, leaf.in_flight, leaf.tag, leaf.weight)
        for c in scheduler.classes
        for leaf in c.queue.leaves()
    ]
    rows.sort(key=lambda row: (-row.queued, -row.in_flight, row.tenant, row.cls))
    return rows[:most]


def request_view(request: Request, now: float) -> RequestView:
    """O(1)."""
    held = request.state is State.QUEUED
    until = now if request.ended_at is None else request.ended_at
    return RequestView(
        id=request.id,
        seq=request.seq,
        tenant=request.tenant,
        cls=request.cls,
        state=request.state,
        waited_s=(now if held else request.released_at) - request.arrival,
        inside_s=0.0 if held else until - request.released_at,
        timeout_in_s=request.expires_at - now if held else None,
        endpoint=request.endpoint,
        cost=request.cost,
        body_bytes=request.body_bytes,
        slots=request.slots,
        adapter=request.adapter,
        evicted=request.evicted,
    )
