"""Another policy for a pool that is at work.

What waits stays, whatever the new limits are, and waits by the new timeouts. A class that is gone takes nothing more
in, drains, and is forgotten when nothing of it is left. Windows keep what they have learnt, unless their controller is
another. A part of the scheduler: called by it alone, within an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core.absence import set_deadlines
from extproc.core.class_queue import ClassQueue
from extproc.core.model import INSIDE, PoolPolicy, State
from extproc.core.policy_check import check_change
from extproc.core.windows import renewed

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler


def change(scheduler: Scheduler, new: PoolPolicy, now: float) -> None:
    """Raises ValueError, and changes nothing, for a policy that cannot be."""
    check_change(scheduler.policy, new)
    scheduler.policy = new
    policies = {p.name: p for p in new.classes}
    for cls in scheduler.classes:
        policy = policies.pop(cls.policy.name, None)
        cls.retired = policy is None
        if policy is None:
            continue
        if policy.queue_timeout_s != cls.policy.queue_timeout_s:
            _new_deadlines(scheduler, cls.policy.name, policy.queue_timeout_s)
        cls.take_policy(policy, scheduler.share_v, now)
    added = [ClassQueue(p, new, scheduler.buckets, now) for p in policies.values()]
    scheduler.classes = sorted([*scheduler.classes, *added], key=lambda c: c.policy.rank)
    scheduler.by_name = {c.policy.name: c for c in scheduler.classes}
    for cls in scheduler.classes:
        cls.queue.reconfigure(new, cls.policy.order, now)
        if cls.retired:
            retire(scheduler, cls)
    _count_held_bytes(scheduler)
    set_deadlines(scheduler)
    for endpoint, window in scheduler.windows.items():
        inside = [r for r in scheduler.requests.values() if r.state in INSIDE and r.endpoint == endpoint]
        scheduler.windows[endpoint] = renewed(window, new.window, inside, now)
    scheduler.derive()
    scheduler.preemption.rebuild(scheduler)


def retire(scheduler: Scheduler, cls: ClassQueue) -> None:
    """Forget a class that is no longer configured, once nothing of it is left."""
    if cls.queue.size == 0:
        scheduler.classes = [c for c in scheduler.classes if c is not cls]
        del scheduler.by_name[cls.policy.name]
        scheduler.derive()


def _new_deadlines(scheduler: Scheduler, cls: str, timeout_s: float) -> None:
    """Before the queue is put in order anew, which may go by them."""
    for request in scheduler.requests.values():
        if request.cls == cls and request.state is State.QUEUED:
            request.deadline = request.arrival + min(request.timeout_s, timeout_s)


def _count_held_bytes(scheduler: Scheduler) -> None:
    """The paths of those that wait may be others now."""
    held: dict[str, int] = {}
    for request in scheduler.requests.values():
        if request.state is State.QUEUED:
            request.path = scheduler.policy.path(request.tenant)
            if request.body_bytes:
                for path in request.path:
                    held[path] = held.get(path, 0) + request.body_bytes
    scheduler.held_bytes = held
