"""What must hold after every event. For tests; costs O(all)."""

from __future__ import annotations

from collections import Counter

from extproc.core.model import State
from extproc.core.scheduler import Scheduler


def check(scheduler: Scheduler, now: float) -> None:
    """Raise AssertionError, naming what is wrong, where an invariant does not hold."""
    requests = scheduler.requests.values()
    released = [r for r in requests if r.state is State.RELEASED]
    queued = [r for r in requests if r.state is State.QUEUED]
    _equal("known requests that are over", [r.story() for r in requests if r.state not in _ALIVE], [])
    _equal("queued", scheduler.queued, len(queued))
    _equal("queued bytes", scheduler.queued_bytes, sum(r.body_bytes for r in queued))
    by_tenant: Counter[str] = Counter()
    for r in queued:
        by_tenant[r.tenant] += r.body_bytes
    _equal("queued bytes by tenant", dict(scheduler.tenant_bytes), {t: n for t, n in by_tenant.items() if n})
    _equal("inside by tenant", dict(scheduler.inside), dict(Counter(r.tenant for r in released)))
    for cls in scheduler.classes:
        cls.queue.check()
        mine = [r for r in requests if r.cls == cls.policy.name]
        _equal(f"queued of {cls.policy.name}", len(cls.queue), sum(r.state is State.QUEUED for r in mine))
        slots = sum(r.slots for r in mine if r.state is State.RELEASED)
        _equal(f"slots of {cls.policy.name}", cls.queue.in_flight, slots)
        unsettled = sum(r.state in (State.RELEASED, State.ENDED) and not r.settled for r in mine)
        _equal(f"open of {cls.policy.name}", sum(leaf.open for leaf in cls.queue.leaves()), unsettled)
    for window in scheduler.windows.values():
        slots = sum(r.slots for r in released if r.endpoint == window.endpoint)
        _equal(f"in flight of {window.endpoint}", window.in_flight, slots)
        inside = [r for r in released if r.endpoint == window.endpoint]
        _equal(
            f"guests of {window.endpoint}", window.guests, sum(r.slots for r in inside if r.guest == window.guest_turn)
        )
    _nothing_waits_that_could_go(scheduler, now)


_ALIVE = (State.QUEUED, State.RELEASED, State.ENDED)


def _nothing_waits_that_could_go(scheduler: Scheduler, now: float) -> None:
    for cls, q in scheduler.order():
        head = None if cls.capped() else cls.queue.peek()
        if head is None:
            continue
        free = [w.endpoint for w in scheduler.windows.values() if w.accepts(head.slots, q, now)]
        _equal(f"endpoints with room while {head.id} of class {cls.policy.name} waits", free, [])
        return  # those after it may not pass


def _equal(what: str, seen: object, expected: object) -> None:
    if seen != expected:
        raise AssertionError(f"{what}: {seen}, expected {expected}")
