"""The scheduler's state as data: for status, metrics and dumps. Reading changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from extproc.core.class_queue import ClassQueue
from extproc.core.explanation import class_cause, closed_gates
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
    queued_cost: float = 0.0  # estimate
    queued_tokens: float = 0.0  # estimate
    released_tokens: float = 0.0  # estimate, ever
    prompt_tokens: int = 0  # counted, ever; those from a cache among them
    cached_tokens: int = 0  # counted, ever
    output_tokens: int = 0  # counted, ever
    hold: str | None = None  # what holds its next request, see `explanation.Hold`; None: nothing waits
    closed_gates: Mapping[str, int] = field(default_factory=dict)  # its gates -> endpoints that they are closed at
    limits: Mapping[str, float] = field(default_factory=dict)  # those that are set, by name


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
class ShareView:
    """What is known of the other replicas, where a pool is shared with them."""

    replicas: int | None  # that live, this one included; None: there has been no word yet
    age_s: float | None  # since the last word
    left_s: float | None  # that the claims still hold; None: for ever
    lost_s: float | None  # that the store has not answered; None: it does
    closed_above: int | None  # classes of a higher rank wait for one that waits elsewhere
    others: int  # slots that the other replicas hold
    claim: float  # slots that this one may hold


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
    since_release_s: float | None = None  # that something waits and nothing has gone; None: nothing waits, or may go
    limits: Mapping[str, float] = field(default_factory=dict)  # of the pool, by name
    share: ShareView | None = None  # None: the pool is not shared with other replicas


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
    """O(classes * endpoints), whatever is queued; O(flows) where caps and rates hold all of a class."""
    return PoolView(
        pool=scheduler.policy.name,
        queued=scheduler.queued,
        queued_bytes=scheduler.queued_bytes,
        in_flight=sum(c.queue.in_flight for c in scheduler.classes),
        known=len(scheduler.requests),
        releases_per_s=scheduler.drain.per_second(now),
        classes=tuple(_class_view(scheduler, c, now) for c in scheduler.classes),
        endpoints=tuple(w.view(now, scheduler.q_max) for w in scheduler.windows.values()),
        counts={
            "usage": scheduler.counts["absurd_usage"],
            "time": scheduler.counts["time_went_backwards"],
            "page": sum(w.absurd for w in scheduler.windows.values()),
            "share": scheduler.counts["absurd_share"] + scheduler.counts["stray_sync"],
        },
        traffic=scheduler.policy.traffic,
        since_release_s=since_release_s(scheduler, now),
        limits={
            "max_queued_requests": scheduler.policy.max_queued,
            "max_queued_bytes": scheduler.policy.max_queued_bytes,
        },
        share=_share_view(scheduler, now) if scheduler.policy.shared else None,
    )


def _share_view(scheduler: Scheduler, now: float) -> ShareView:
    last, windows = scheduler.shared, [w for w in scheduler.windows.values() if not w.removed]
    others = sum(w.others for w in windows)
    claim = sum(w.claim for w in windows if now <= w.claim_until)
    if last is None:
        return ShareView(None, None, None, None, None, others, claim)
    return ShareView(
        replicas=last.replicas,
        age_s=now - last.at,
        left_s=None if last.until == math.inf else max(0.0, last.until - now),
        lost_s=None if last.lost_since is None else now - last.lost_since,
        closed_above=last.closed_above,
        others=others,
        claim=claim,
    )


def since_release_s(scheduler: Scheduler, now: float) -> float | None:
    """For how long something has waited and nothing gone; None: nothing waits, or nothing may go."""
    if not scheduler.queued or scheduler.paused:
        return None
    return max(0.0, now - max(scheduler.released_at, scheduler.queued_since))


def _class_view(scheduler: Scheduler, cls: ClassQueue, now: float) -> ClassView:
    policy, queue = cls.policy, cls.queue
    cause = class_cause(scheduler, cls, now)
    limits = {
        "max_queued_requests": policy.max_queued,
        "max_queued_bytes": policy.max_queued_bytes,
        "max_queued_tokens": policy.max_queued_tokens,
        "max_in_flight_slots": policy.max_in_flight,
        "max_waiting_requests": policy.max_waiting,
        "queue_timeout_seconds": policy.queue_timeout_s,
        "min_share_ratio": policy.min_share or None,
    }
    return ClassView(
        name=policy.name,
        rank=policy.rank,
        queued=len(queue),
        in_flight=queue.in_flight,
        tenants=queue.size,
        retired=cls.retired,
        queued_cost=queue.queued_cost,
        queued_tokens=queue.queued_tokens,
        released_tokens=cls.released_tokens,
        prompt_tokens=cls.prompt_tokens,
        cached_tokens=cls.cached_tokens,
        output_tokens=cls.output_tokens,
        hold=None if cause is None else cause.hold.value,
        closed_gates=closed_gates(scheduler, cls, now),
        limits={name: limit for name, limit in limits.items() if limit is not None},
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
