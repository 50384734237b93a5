"""The limits at the door. All are looked at before anything is counted: a refused request costs nothing."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core.class_queue import ClassQueue
from extproc.core.events import Arrive
from extproc.core.model import PoolPolicy
from extproc.core.reasons import Reason


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A limit that an arrival would pass."""

    reason: Reason
    waiting: int  # requests that have to go before there is room again
    message: str  # names the limit, its setting and what was found


def over_limit(
    event: Arrive, cls: ClassQueue, pool: PoolPolicy, queued: int, queued_bytes: int, tenant_bytes: int
) -> OverLimit | None:
    """The first limit that is hit: the tenant's, the class's, the pool's; None: it may wait.

    `queued` and `queued_bytes` are the pool's, `tenant_bytes` the tenant's in all its classes."""
    tenant, who = pool.tenant(event.tenant), f"tenant {event.tenant!r}"
    of_tenant = cls.queue.queued(event.tenant)
    if of_tenant >= tenant.max_queued:
        message = _message(who, of_tenant, "requests", tenant.max_queued, "max_queued of the tenant")
        return OverLimit(Reason.TENANT_LIMIT, of_tenant, message)
    if tenant_bytes and tenant_bytes + event.body_bytes > tenant.max_queued_bytes:
        message = _message(
            who, tenant_bytes, "bytes of requests", tenant.max_queued_bytes, "max_queued_bytes of the tenant"
        )
        return OverLimit(Reason.TENANT_LIMIT, of_tenant, message)
    of_class, class_may = len(cls.queue), cls.policy.max_queued
    if of_class >= class_may:
        message = _message(f"class {event.cls!r}", of_class, "requests", class_may, "max_queued of the class")
        return OverLimit(Reason.QUEUE_FULL, of_class, message)
    where = f"pool {pool.name!r}"
    if queued >= pool.max_queued:
        message = _message(where, queued, "requests", pool.max_queued, "max_queued of the pool")
        return OverLimit(Reason.QUEUE_FULL, queued, message)
    if queued_bytes + event.body_bytes > pool.max_queued_bytes:
        message = _message(
            where, queued_bytes, "bytes of requests", pool.max_queued_bytes, "max_queued_bytes of the pool"
        )
        return OverLimit(Reason.QUEUE_FULL, queued, message)
    return None


def _message(who: str, waiting: int, what: str, most: int, setting: str) -> str:
    return f"{who} has {waiting} {what} waiting, and may have {most} ({setting})"
