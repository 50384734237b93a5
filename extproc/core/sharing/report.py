"""What this replica has of a pool that it shares, for the others to hear of. Reading changes nothing.

What was charged, and to whom, is not in it: see `Tree.take_spent`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.core.dispatch import full
from extproc.core.node import Group

if TYPE_CHECKING:
    from extproc.core.class_queue import ClassQueue
    from extproc.core.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class ClassState:
    """One class here."""

    name: str
    rank: int
    demand: int  # slots that would be taken by what waits and is held by nothing but the want of room
    backlog: float  # estimated cost of all that waits; cost units


@dataclass(frozen=True, slots=True)
class EndpointState:
    """One endpoint ("host:port") here. Slots."""

    endpoint: str
    in_flight: int  # of this replica
    freed: int  # of this replica, since the endpoint is known; from 0 again where it was gone in the meantime
    limit: float  # that all replicas together may hold; 0: nothing may go there


@dataclass(frozen=True, slots=True)
class State:
    """A pool here. Classes by rank."""

    classes: tuple[ClassState, ...]
    endpoints: tuple[EndpointState, ...]


def report(scheduler: Scheduler, now: float) -> State:
    """O(tenants with state + endpoints). Queues are told as of the last event, what pages tell as of `now`."""
    return State(
        tuple(
            ClassState(c.policy.name, c.policy.rank, _demand(scheduler, c, now), c.root.queued_cost)
            for c in scheduler.classes
        ),
        tuple(
            EndpointState(w.endpoint, w.in_flight, w.freed, w.common_limit(scheduler.q_max, now))
            for w in scheduler.windows.values()
        ),
    )


def _demand(scheduler: Scheduler, cls: ClassQueue, now: float) -> int:
    if not cls.root.queued or scheduler.paused or cls.retired or full(scheduler, cls, now):
        return 0
    demand = _let_go(cls.root)
    if demand:
        demand += cls.queue.wide
    return demand if cls.cap is None else min(demand, cls.cap - cls.held())


def _let_go(group: Group) -> int:
    """Requests under it that caps and rates let go."""
    total = 0
    for child in group.children.values():
        if child.key is None:
            continue
        queued = _let_go(child) if isinstance(child, Group) else child.queued
        cap = child.cap
        if cap is not None:
            queued = min(queued, cap - child.in_flight - child.elsewhere)
        total += queued
    return total
