"""No endpoint is there: what is held waits for one, for a time of its own.

A pool may be scaled to zero, and the request that arrives is what starts its first engine; or all engines may be down.
Neither is the fault of the queue, and both take minutes. So a held request survives it, for `no_endpoint_timeout_s`
from the moment at which the last endpoint went, or from its arrival if it came later; its class's `queue_timeout_s`
counts all the same. Then it is refused with 503 `no_capacity`.

An endpoint is there if it is configured or found, takes connections, and does not hang (`Window.here`). One that has
not been read yet is there, and so is one that is full.

Looked at with each event about endpoints and with each one that finds time to have passed; nothing wakes up for it but
the requests' own deadlines. What was refused stays refused; those that still wait when an endpoint comes have all of
their own time back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core.model import Request, State

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler


def look(scheduler: Scheduler, now: float) -> None:
    """Bring `scheduler.absent_since` up to `now`. O(endpoints), and O(queued) where it changes."""
    here = any(window.here(now) for window in scheduler.windows.values())
    if here == (scheduler.absent_since is None):
        return
    scheduler.absent_since = None if here else now
    set_deadlines(scheduler)


def expires_at(scheduler: Scheduler, request: Request) -> float:
    """When a queued request has waited for long enough, as things are."""
    since = scheduler.absent_since
    if since is None:
        return request.deadline
    return min(request.deadline, max(since, request.queued_at) + scheduler.policy.no_endpoint_timeout_s)


def set_deadlines(scheduler: Scheduler) -> None:
    """Of all that waits. The newcomer of the event at hand has none yet."""
    for request in scheduler.requests.values() if scheduler.queued else ():
        if request.state is State.QUEUED and request is not scheduler.newcomer:
            at = expires_at(scheduler, request)
            if at != request.expires_at:
                scheduler.deadlines.drop(request)
                scheduler.deadlines.set(request, at)
