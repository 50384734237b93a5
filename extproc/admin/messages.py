"""What the core and the service say of themselves, as messages of the admin API.

Each function is O(1), or O(classes) for a pool. A figure that is not known, or is none, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from google.protobuf import duration_pb2, timestamp_pb2

from extproc.admin.control import EngineState, RunningPool, SourceState
from extproc.core.class_queue import ClassQueue
from extproc.core.explanation import Explanation, class_cause, closed_gates
from extproc.core.model import State
from extproc.core.view import RequestView, since_release_s
from extproc.core.windows import WindowView
from extproc.pb.admin.v1 import admin_pb2 as pb

_NANOS: Final = 1_000_000_000
_MOST_SECONDS: Final = 315_576_000_000  # of a Duration: 10,000 years
_LAST_SECOND: Final = 253_402_300_799  # of a Timestamp: the end of the year 9999


def duration(seconds: float | None) -> duration_pb2.Duration | None:
    """None for what is not known, or not finite."""
    if seconds is None or not math.isfinite(seconds):
        return None
    whole, nanos = _parts(max(-_MOST_SECONDS, min(seconds, _MOST_SECONDS)))
    return duration_pb2.Duration(seconds=whole, nanos=nanos)


def timestamp(seconds: float | None) -> timestamp_pb2.Timestamp | None:
    """`seconds` since 1970. None for what is not known, or not finite."""
    if seconds is None or not math.isfinite(seconds):
        return None
    whole, nanos = _parts(max(0.0, min(seconds, _LAST_SECOND)))
    return timestamp_pb2.Timestamp(seconds=whole, nanos=nanos)


def _parts(seconds: float) -> tuple[int, int]:
    """Both of the sign of `seconds`."""
    whole = int(seconds)
    nanos = round((seconds - whole) * _NANOS)
    if abs(nanos) == _NANOS:
        return whole + (1 if nanos > 0 else -1), 0
    return whole, nanos


def seconds_of(message: duration_pb2.Duration) -> float:
    return message.seconds + message.nanos / _NANOS


def request(seen: RequestView, pool: str, *, observed: bool) -> pb.Request:
    found = pb.Request(
        id=seen.id,
        pool=pool,
        tenant=seen.tenant,
        state=seen.state.name,
        waited=duration(seen.waited_s),
        timeout_in=duration(seen.timeout_in_s),
        endpoint=seen.endpoint or "",
        cost=seen.cost,
        body_bytes=seen.body_bytes,
        slots=seen.slots,
        adapter=seen.adapter or "",
        evicted=seen.evicted,
        observed=observed,
    )
    setattr(found, "class", seen.cls)
    if seen.state is not State.QUEUED:
        found.inside.CopyFrom(duration(seen.inside_s) or duration_pb2.Duration())
    return found


def class_stats(running: RunningPool, seen: ClassQueue, oldest_wait_s: float | None) -> pb.ClassStats:
    now, scheduler = running.now(), running.scheduler
    cause = class_cause(scheduler, seen, now)
    fairness = running.fairness.get(seen.policy.name)
    return pb.ClassStats(
        name=seen.policy.name,
        rank=seen.policy.rank,
        queued_count=len(seen.queue),
        in_flight_slots=seen.queue.in_flight,
        tenant_count=seen.queue.size,
        retiring=seen.retired,
        oldest_wait=duration(oldest_wait_s) if len(seen.queue) else None,
        hold="" if cause is None else cause.hold.value,
        sentence="" if cause is None else cause.told,
        next="" if cause is None else cause.then,
        gates=[pb.Gate(name=name, closed_count=count) for name, count in closed_gates(scheduler, seen, now).items()],
        wait_objective=duration(running.objectives.get(seen.policy.name)),
        queued_cost=seen.queue.queued_cost,
        releases_per_second=seen.drain.per_second(now),
        jain_index=None if fairness is None else fairness.jain,
        tag_spread=None if fairness is None else fairness.spread,
        competing_count=0 if fairness is None else fairness.tenants,
    )


def endpoint(seen: WindowView, pool: str, engine: EngineState | None, *, removed: bool = False) -> pb.Endpoint:
    return pb.Endpoint(
        address=seen.endpoint,
        pool=pool,
        stance=seen.stance.name,
        in_flight_slots=seen.in_flight,
        foreign_count=seen.foreign,
        capacity=seen.capacity,
        running_count=seen.running,
        waiting_count=seen.waiting,
        kv_usage_ratio=seen.kv_usage,
        time_per_output_token=duration(seen.tpot_s),
        page_age=duration(seen.age_s),
        dialect="" if engine is None else engine.dialect,
        priority_told="" if engine is None else engine.priority_told,
        last_error="" if engine is None else engine.last_failure or "",
        turned_away_count=seen.turned_away,
        failed_count=seen.failed,
        limit=seen.limit,
        room=seen.room,
        queue_target=seen.queue_target,
        controller=seen.controller,
        at_floor=seen.at_floor,
        removed=removed,
        others_slots=seen.others,
        claim_slots=seen.claim,
    )


def pool(running: RunningPool, oldest_waits_s: Mapping[str, float], source: SourceState | None) -> pb.Pool:
    """Without its endpoints: there may be hundreds. `oldest_waits_s`: by class, of what is held."""
    settings, scheduler = running.pool, running.scheduler
    return pb.Pool(
        name=settings.name,
        mode=settings.mode.upper(),
        percentage=settings.percentage,
        percentage_of=settings.percentage_of.upper(),
        traffic=scheduler.policy.traffic.name,
        models=settings.models,
        queued_count=scheduler.queued,
        queued_bytes=scheduler.queued_bytes,
        in_flight_slots=sum(cls.queue.in_flight for cls in scheduler.classes),
        known_count=len(scheduler.requests),
        releases_per_second=scheduler.drain.per_second(running.now()),
        classes=[class_stats(running, cls, oldest_waits_s.get(cls.policy.name)) for cls in scheduler.classes],
        observed_count=0 if running.observed is None else len(running.observed.requests),
        retiring=running.retiring,
        endpoint_source="" if source is None else source.told,
        endpoint_source_error="" if source is None else source.last_error or "",
        since_release=duration(since_release_s(scheduler, running.now())),
        leaked_slots=running.leaked(),
    )


def explanation(found: Explanation, seen: RequestView, pool: str, *, observed: bool) -> pb.Explanation:
    held = found.state is State.QUEUED
    sentence = found.sentence
    if observed:
        sentence = f"would be held: {sentence}" if held else f"would have been released: {sentence}"
    return pb.Explanation(
        request=request(seen, pool, observed=observed),
        hold="" if found.hold is None else found.hold.value,
        name=found.name,
        value=found.value,
        limit=found.limit,
        ahead_in_flow_count=found.ahead_in_flow,
        flow_position=found.flow_position,
        flow_count=found.flows,
        estimated_wait=duration(found.estimated_wait_s) if held else None,
        sentence=sentence,
        next=found.next,
        priority=found.priority,
    )
