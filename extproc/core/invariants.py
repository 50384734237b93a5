"""What must hold after every event. For tests; costs O(all)."""

from __future__ import annotations

import math
from collections import Counter

from extproc.core.absence import expires_at
from extproc.core.dispatch import first_turn, next_release, turns
from extproc.core.model import INSIDE, State
from extproc.core.preemption import may_be_evicted
from extproc.core.scheduler import Scheduler
from extproc.core.sorted_blocks import iterate

_ALIVE = INSIDE | {State.QUEUED, State.ENDED}


def check(scheduler: Scheduler, now: float) -> None:
    """Raise AssertionError, naming what is wrong, where an invariant does not hold."""
    requests = scheduler.requests.values()
    inside = [r for r in requests if r.state in INSIDE]
    queued = [r for r in requests if r.state is State.QUEUED]
    _equal("known requests that are over", [r.story() for r in requests if r.state not in _ALIVE], [])
    _equal("queued", scheduler.queued, len(queued))
    _equal("queued bytes", scheduler.queued_bytes, sum(r.body_bytes for r in queued))
    held: Counter[str] = Counter()
    for r in queued:
        for path in scheduler.policy.path(r.tenant):
            held[path] += r.body_bytes
    _equal("queued bytes by tenant", scheduler.held_bytes, {path: n for path, n in held.items() if n})
    _equal("inside by tenant", dict(scheduler.inside), dict(Counter(r.tenant for r in inside)))
    _equal("classes", sorted(scheduler.by_name), sorted(c.policy.name for c in scheduler.classes))
    _shared(scheduler)
    for cls in scheduler.classes:
        cls.queue.check()
        mine = [r for r in requests if r.cls == cls.policy.name]
        _equal(f"queued of {cls.policy.name}", len(cls.queue), sum(r.state is State.QUEUED for r in mine))
        _equal(f"slots of {cls.policy.name}", cls.queue.in_flight, sum(r.slots for r in mine if r.state in INSIDE))
        unsettled = sum(r.state is not State.QUEUED and not r.settled for r in mine)
        _equal(f"open of {cls.policy.name}", sum(leaf.open for leaf in cls.queue.leaves()), unsettled)
    _buckets(scheduler)
    for window in scheduler.windows.values():
        here = [r for r in inside if r.endpoint == window.endpoint]
        _equal(f"in flight of {window.endpoint}", window.in_flight, sum(r.slots for r in here))
        _equal(
            f"guests of {window.endpoint}", window.guests, sum(r.slots for r in here if r.guest == window.guest_turn)
        )
        if scheduler.pool_load is None:
            _equal(f"foreign of {window.endpoint}", window.foreign, window.others + window.unknown)
    there = any(window.here(now) for window in scheduler.windows.values())
    _equal("an endpoint is there", scheduler.absent_since is None, there)
    late = [r.id for r in queued if r.expires_at != expires_at(scheduler, r)]
    _equal("queued under another deadline than theirs", late, [])
    leaving = {r.id: r for r in inside if r.evicted}
    _equal("evicted and inside", scheduler.preemption.leaving, leaving)
    candidates = {r.id for r in inside if may_be_evicted(r, scheduler.by_name[r.cls].policy, scheduler.policy)}
    _equal("may be evicted", set(scheduler.preemption.candidates), candidates if scheduler.preempts else set())
    if scheduler.looked and not scheduler.paused:
        _nothing_waits_that_could_go(scheduler, now)


def _shared(scheduler: Scheduler) -> None:
    """What other replicas hold, and what that lets go here. In a pool that is not shared there are no others."""
    elsewhere: Counter[str] = Counter()
    for cls in scheduler.classes:
        elsewhere.update(cls.queue.elsewhere)
    _equal("slots elsewhere by tenant", scheduler.elsewhere, dict(elsewhere))
    ranks = [c.policy.rank for c in scheduler.classes if c.policy.rank <= scheduler.closed_above]
    _equal("classes that have their turn", [c.policy.rank for c in scheduler.open_classes], ranks)
    _equal(
        "charges are kept for others", {c.queue.spent is not None for c in scheduler.classes}, {scheduler.policy.shared}
    )
    if not scheduler.policy.shared:
        windows = scheduler.windows.values()
        _equal("word of others", (scheduler.shared, scheduler.closed_above, scheduler.elsewhere), (None, math.inf, {}))
        _equal("claims", {(w.claim, w.claim_until, w.others) for w in windows} - {(math.inf, math.inf, 0)}, set())


def _buckets(scheduler: Scheduler) -> None:
    """Each one that has no members, and no other, is listed by the time at which it is full."""
    listed = list(iterate(scheduler.buckets.listed))
    _equal("buckets in order", listed, sorted(listed))
    _equal("buckets that are listed", len(listed), scheduler.buckets.alone)
    lonely = {path: bucket.alone for path, bucket in scheduler.buckets.by_path.items() if not bucket.members}
    _equal("buckets without members", {key[2].path: key for key in listed}, lonely)
    _equal("when they are full", [key[0] for key in listed], [key[2].full_at() for key in listed])


def _nothing_waits_that_could_go(scheduler: Scheduler, now: float) -> None:
    if scheduler.plain:
        _equal("the first turn", first_turn(scheduler, now), next(turns(scheduler, now), None))
    choice = next_release(scheduler, now)
    if choice is not None:
        request = choice.request
        raise AssertionError(f"{request.id} of class {request.cls} waits, and may go to {choice.window.endpoint}")


def _equal(what: str, seen: object, expected: object) -> None:
    if seen != expected:
        raise AssertionError(f"{what}: {seen}, expected {expected}")
