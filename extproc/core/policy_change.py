"""Another policy for a pool that is at work.

What waits stays, whatever the new limits are, and waits by the new timeouts. A class that is gone takes nothing more
in, drains, and is forgotten when nothing of it is left. Windows keep what they have learnt, unless their controller is
another; limits of latency and of the KV cache hold at once, by what the last page has shown. What was measured while
the pool was paused is no rate of service.

O(requests + tenants). Orders between tenants are built anew only where what is said of tenants has changed, or the
order within each: with 20,000 waiting of 5,000 tenants all else takes a tenth of the time. A part of the scheduler:
called by it alone, within an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core.absence import set_deadlines
from extproc.core.class_queue import ClassQueue, note_headroom
from extproc.core.model import INSIDE, Order, PoolPolicy, Request, State, TenantPolicy, Traffic
from extproc.core.policy_check import check_change
from extproc.core.shared import forget_class
from extproc.core.windows import renewed

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler


def change(scheduler: Scheduler, new: PoolPolicy, now: float) -> None:
    """Raises ValueError, and changes nothing, for a policy that cannot be."""
    check_change(scheduler.policy, new)
    if scheduler.paused and new.traffic is not Traffic.PAUSED:
        _resume(scheduler, now)
    old, scheduler.policy = scheduler.policy, new
    orders = {cls.policy.name: cls.policy.order for cls in scheduler.classes}  # that the queues are in
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
    same_tree = (old.separator, old.default_tenant, old.tenants) == (new.separator, new.default_tenant, new.tenants)
    tree = _Tree(new)
    for cls in scheduler.classes:
        order = cls.policy.order
        if same_tree and order is orders.get(cls.policy.name, order) and order is not Order.DEADLINE:
            cls.queue.flows = new  # it says the same: most changes are of something else, and this costs most of all
        else:
            cls.queue.reconfigure(tree, order, now)
            cls.queue.flows = new
        if cls.retired:
            retire(scheduler, cls)
    if not same_tree:
        _change_rates(scheduler)
        _count_held_bytes(scheduler, tree)
    _measure_headroom(scheduler, now)
    set_deadlines(scheduler)
    inside: dict[str | None, list[Request]] = {}
    for request in scheduler.requests.values():
        if request.state in INSIDE:
            inside.setdefault(request.endpoint, []).append(request)
    for endpoint, window in scheduler.windows.items():
        scheduler.windows[endpoint] = renewed(window, new.window, inside.get(endpoint, ()), now)
    scheduler.derive()
    scheduler.preemption.rebuild(scheduler)


def retire(scheduler: Scheduler, cls: ClassQueue) -> None:
    """Forget a class that is no longer configured, once nothing of it is left."""
    if cls.queue.size == 0:
        scheduler.classes = [c for c in scheduler.classes if c is not cls]
        del scheduler.by_name[cls.policy.name]
        forget_class(scheduler, cls)
        scheduler.derive()
        if not scheduler.preempts:  # it was the last that others would have been evicted for, or might have been
            scheduler.preemption.candidates.clear()


def _resume(scheduler: Scheduler, now: float) -> None:
    """A pause tells nothing of how fast the queues drain."""
    scheduler.drain.resume(now)
    for cls in scheduler.classes:
        cls.drain.resume(now)


def _change_rates(scheduler: Scheduler) -> None:
    """Also of buckets of tenants that have nobody in the tree just now: the door asks them too (`admission`)."""
    scheduler.buckets.change_alone(scheduler.policy.tenant)


def _measure_headroom(scheduler: Scheduler, now: float) -> None:
    """Also of a class that had no headroom, or another rank: what those above it hold is known at once."""
    note_headroom(scheduler.classes, now)
    for cls in scheduler.classes:
        if cls.headroom is not None:
            cls.headroom.change(cls.headroom.epsilon)


def _new_deadlines(scheduler: Scheduler, cls: str, timeout_s: float) -> None:
    """Before the queue is put in order anew, which may go by them."""
    for request in scheduler.requests.values():
        if request.cls == cls and request.state is State.QUEUED:
            request.deadline = request.arrival + min(request.timeout_s, timeout_s)


def _count_held_bytes(scheduler: Scheduler, tree: _Tree) -> None:
    """The paths of those that wait may be others now."""
    held: dict[str, int] = {}
    for request in scheduler.requests.values():
        if request.state is State.QUEUED:
            request.path = tree.path(request.tenant)
            if request.body_bytes:
                for path in request.path:
                    held[path] = held.get(path, 0) + request.body_bytes
    scheduler.held_bytes = held


class _Tree:
    """What a policy says of tenants, each asked once: the queues of all classes and all that waits ask the same."""

    __slots__ = ("_paths", "_policy", "_tenants")

    def __init__(self, policy: PoolPolicy) -> None:
        self._policy = policy
        self._paths: dict[str, tuple[str, ...]] = {}
        self._tenants: dict[str, TenantPolicy] = {}

    def tenant(self, name: str) -> TenantPolicy:
        found = self._tenants.get(name)
        if found is None:
            found = self._tenants[name] = self._policy.tenant(name)
        return found

    def path(self, tenant: str) -> tuple[str, ...]:
        found = self._paths.get(tenant)
        if found is None:
            found = self._paths[tenant] = self._policy.path(tenant)
        return found
