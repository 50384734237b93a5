"""The door: what an arrival is taken for, whether it may wait, and who is refused.

All limits are looked at before anything is counted, and nothing is changed here: a refused request costs nothing.

A tenant's (or its team's, or its organisation's) own limit refuses the newcomer. When a class or the pool is
full, the newest request of the flow with the most waiting makes room (`Overflow.SHED_HEAVIEST`): in the
class itself, or in the lowest class that waits in the pool, but never in a higher class than the
newcomer's. If the newcomer's own flow is the heaviest, or one request less is not enough for all limits, it is the
newcomer that is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from extproc.core import charging
from extproc.core.class_queue import ClassQueue
from extproc.core.drain_rate import bounded, with_jitter
from extproc.core.events import Arrive, Refuse
from extproc.core.model import MAX_SLOTS, MAX_TOKENS, ClassPolicy, Overflow, PoolPolicy, Request, Unit
from extproc.core.node import Group, Node
from extproc.core.reasons import Reason
from extproc.core.waiting import back_s, expected_s
from extproc.core.windows import Stance

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler


_TIME = Unit.TIME  # as a global, for the hot path
_LONGEST_AGO_S = 7 * 86_400.0  # an absurd clock must not make a request older than any can be


class Scope(Enum):
    """Whose limit it is."""

    TENANT = "tenant"
    CLASS = "class"
    POOL = "pool"


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A limit that an arrival would pass."""

    scope: Scope
    reason: Reason
    excess: float  # by how much, in `what`
    what: str  # requests, bytes or tokens
    message: str  # names the limit, its setting and what was found


class Verdict(NamedTuple):
    """What becomes of a newcomer. Neither: it may wait, and nobody has to leave for it."""

    refuse: Refuse | None = None  # it is refused
    shed: Refuse | None = None  # another one is, to make room


_WELCOME = Verdict()


def newcomer(scheduler: Scheduler, event: Arrive, cls_policy: ClassPolicy, seq: int, now: float) -> Request:
    """The request that an arrival stands for, with what it is expected to take. Figures that cannot be are clamped."""
    estimator, policy = scheduler.estimator, scheduler.policy
    tenant, cls, n, max_output = event.tenant, event.cls, event.n, event.max_output
    if not 1 <= n <= MAX_SLOTS:
        n = min(max(1, n), MAX_SLOTS)
    if max_output is not None and not 1 <= max_output <= MAX_TOKENS:
        max_output = min(max(1, max_output), MAX_TOKENS)
    if event.prompt_tokens is None:
        prompt = estimator.prompt_tokens(tenant, event.body_bytes)
        if prompt > MAX_TOKENS:
            prompt = float(MAX_TOKENS)
    else:
        prompt = float(min(max(1, event.prompt_tokens), MAX_TOKENS))
    output = estimator.output_tokens(tenant, cls, prompt, max_output, n)
    seconds = estimator.seconds(tenant, cls, prompt) if policy.unit is _TIME else 0.0
    allowed = cls_policy.queue_timeout_s
    timeout = math.inf
    if event.timeout_s is not None:
        timeout = max(0.0, event.timeout_s)
        if timeout < allowed:
            allowed = timeout
    arrival = event.arrival if event.arrival < now else now  # now also where it is no number
    if arrival < now - _LONGEST_AGO_S:
        arrival = now - _LONGEST_AGO_S
    return Request(  # by position: by name it takes three times as long
        event.id,
        tenant,
        cls,
        arrival,
        seq,
        event.body_bytes if event.body_bytes > 0 else 0,
        prompt,
        output,
        max_output,
        n,
        arrival + allowed,
        charging.estimated(policy, prompt, output, seconds, n),
        timeout,
        event.prefix,
        event.adapter,
        event.session,
        now,
        0.0,
        policy.path(tenant),
        event.first_byte_seen,
    )


def admit(scheduler: Scheduler, request: Request, cls: ClassQueue, now: float) -> Verdict:
    """Whether `request` of `cls`, which is not counted yet, may wait."""
    if scheduler.draining:
        message = f"pool {scheduler.policy.name!r} takes nothing more in (traffic of the pool: draining)"
        return Verdict(refuse(request, Reason.DRAINING, back_s(scheduler, request, now), now, message))
    limits: Sequence[OverLimit] = ()
    if not _within_limits(scheduler, request, cls):
        limits = _over_limits(scheduler, request, cls)
    victim = None
    if limits:
        victim = _victim(scheduler, request, cls, limits)
        if victim is None:
            return Verdict(refuse(request, limits[0].reason, back_s(scheduler, request, now), now, limits[0].message))
    if cls.policy.fail_fast or scheduler.buckets.by_path:
        hopeless = _hopeless(scheduler, request, cls, now)
        if hopeless is not None:
            return Verdict(hopeless)
    if victim is None:
        return _WELCOME
    message = f"{limits[0].message}; tenant {victim.tenant!r} has the most waiting (overflow of the class)"
    return Verdict(shed=refuse(victim, Reason.SHED, back_s(scheduler, victim, now), now, message))


def expired(scheduler: Scheduler, request: Request, now: float) -> Refuse:
    """The answer to one that has waited for too long."""
    timeout = scheduler.by_name[request.cls].policy.queue_timeout_s
    wait, waited = back_s(scheduler, request, now), f"waited {now - request.arrival:.1f} s"
    limit = f"class {request.cls!r} allows {timeout:g} s (queue_timeout of the class)"
    if request.timeout_s < timeout:
        limit = f"the request itself allows {request.timeout_s:g} s"
    pool, since = scheduler.policy, scheduler.absent_since
    by_pool = since is not None and request.expires_at < request.deadline
    if scheduler.paused and not by_pool:
        message = f"{waited} while pool {pool.name!r} is paused (traffic of the pool), and {limit}"
        return refuse(request, Reason.PAUSED, wait, now, message)
    if since is None:
        return refuse(request, Reason.QUEUE_TIMEOUT, wait, now, f"{waited}, and {limit}")
    if by_pool:
        limit = f"the pool allows {pool.no_endpoint_timeout_s:g} s (no_endpoint_timeout of the pool)"
    there = [w for w in scheduler.windows.values() if not w.removed]
    did = "answered and made progress" if any(w.stance(now) is Stance.STALLED for w in there) else "answered"
    which = f"no endpoint of pool {pool.name!r} {did}" if there else f"pool {pool.name!r} had no endpoint"
    message = f"{waited}; {which} for {now - since:.1f} s; {limit}"
    return refuse(request, Reason.NO_CAPACITY, wait, now, message)


def refuse(of: Request, reason: Reason, wait_s: float, now: float, message: str) -> Refuse:
    """`wait_s`: when it may come back."""
    retry = with_jitter(bounded(wait_s, 1.0), of.id)
    return Refuse(of.id, reason, message, retry, of.tenant, of.cls, max(0.0, now - of.arrival))


def _hopeless(scheduler: Scheduler, request: Request, cls: ClassQueue, now: float) -> Refuse | None:
    """Refuse at once what cannot go before its time is up. To be asked where there is a rate or `fail_fast`."""
    left = max(0.0, request.deadline - now)
    ready_at = now
    for path in request.path:
        bucket = scheduler.buckets.get(path)
        if bucket is not None and scheduler.policy.tenant(path).rate is not None:  # else it is of a rate that is gone
            ready_at = max(ready_at, bucket.ready_at)
    if ready_at - now > left:
        message = (
            f"the rate of tenant {request.tenant!r} is used up for {ready_at - now:.1f} s, "
            f"and its request may wait for {left:.1f} s (rate of the tenant)"
        )
        return refuse(request, Reason.RATE_LIMIT, ready_at - now, now, message)
    # While the pool is paused nobody knows how long it will be: the rate is that of another time.
    if cls.policy.fail_fast and scheduler.queued and not scheduler.paused:
        wait = expected_s(scheduler, request, now)
        if wait is not None and wait > left:
            message = (
                f"it would wait for about {wait:.0f} s, and may wait for {left:.0f} s "
                "(queue_timeout and fail_fast of the class)"
            )
            return refuse(request, Reason.QUEUE_TIMEOUT, wait - left, now, message)
    return None


# -- limits ---------------------------------------------------------------------------------------


def _within_limits(scheduler: Scheduler, request: Request, cls: ClassQueue) -> bool:
    """Whether no limit is hit. The same as an empty `_over_limits`, in one pass: most arrivals hit none."""
    pool, policy, node = scheduler.policy, cls.policy, cls.root
    size, tokens = request.body_bytes, request.prompt_tokens + request.output_tokens
    if node.queued >= policy.max_queued or scheduler.queued >= pool.max_queued:
        return False
    if scheduler.queued_bytes + size > pool.max_queued_bytes:
        return False
    most_bytes, most_tokens = policy.max_queued_bytes, policy.max_queued_tokens
    if most_bytes is not None and node.queued_bytes + size > most_bytes:
        return False
    if most_tokens is not None and node.queued_tokens + tokens > most_tokens:
        return False
    held = scheduler.held_bytes
    children: dict[str, Node] = node.children
    for path in request.path:
        limits = pool.tenant(path)
        waiting = held.get(path)
        if waiting and waiting + size > limits.max_queued_bytes:
            return False
        below = children.get(path)
        if below is None:
            if limits.max_queued <= 0:
                return False
            children = {}
            continue
        if below.queued >= limits.max_queued:
            return False
        most_tokens = limits.max_queued_tokens
        if most_tokens is not None and below.queued_tokens and below.queued_tokens + tokens > most_tokens:
            return False
        children = below.children if isinstance(below, Group) else {}
    return True


def _over_limits(scheduler: Scheduler, request: Request, cls: ClassQueue) -> list[OverLimit]:
    """Limits that are hit: the tenant's and those of the nodes above it, the class's, the pool's."""
    found: list[OverLimit] = []
    pool, policy, queue = scheduler.policy, cls.policy, cls.queue
    size, tokens = request.body_bytes, request.prompt_tokens + request.output_tokens
    block = queue.over_limit(request.tenant, tokens, request.path)
    if block is not None:
        what, more = ("requests", 1.0) if block.kind == "max_queued" else ("tokens", tokens)
        found.append(_over(Scope.TENANT, block.path, block.value, more, block.limit, what, block.kind))
    for path in request.path:
        held = scheduler.held_bytes.get(path, 0)
        if held and held + size > (most := pool.tenant(path).max_queued_bytes):
            found.append(_over(Scope.TENANT, path, held, size, most, "bytes", "max_queued_bytes"))

    who = request.cls
    root = queue.root
    if root.queued >= policy.max_queued:
        found.append(_over(Scope.CLASS, who, root.queued, 1, policy.max_queued, "requests", "max_queued"))
    limit = policy.max_queued_bytes
    if limit is not None and root.queued_bytes + size > limit:
        found.append(_over(Scope.CLASS, who, root.queued_bytes, size, limit, "bytes", "max_queued_bytes"))
    limit = policy.max_queued_tokens
    if limit is not None and root.queued_tokens + tokens > limit:
        found.append(_over(Scope.CLASS, who, root.queued_tokens, tokens, limit, "tokens", "max_queued_tokens"))

    who = pool.name
    if scheduler.queued >= pool.max_queued:
        found.append(_over(Scope.POOL, who, scheduler.queued, 1, pool.max_queued, "requests", "max_queued"))
    held = scheduler.queued_bytes
    most = pool.max_queued_bytes
    if held + size > most:
        found.append(_over(Scope.POOL, who, held, size, most, "bytes", "max_queued_bytes"))
    return found


def _over(scope: Scope, who: str, waiting: float, more: float, most: float, what: str, setting: str) -> OverLimit:
    of = "requests" if what == "requests" else f"{what} of requests"
    of_whom = scope.value
    message = f"{of_whom} {who!r} has {waiting:.0f} {of} waiting, and may have {most:.0f} ({setting} of the {of_whom})"
    reason = Reason.TENANT_LIMIT if scope is Scope.TENANT else Reason.QUEUE_FULL
    return OverLimit(scope, reason, waiting + more - most, what, message)


# -- who makes room -------------------------------------------------------------------------------


def _victim(scheduler: Scheduler, request: Request, cls: ClassQueue, limits: Sequence[OverLimit]) -> Request | None:
    """Who makes room for `request`; None: nobody, it is refused itself."""
    scopes = {limit.scope for limit in limits}
    if cls.policy.overflow is Overflow.REJECT_NEWEST or Scope.TENANT in scopes:
        return None
    rank = cls.policy.rank
    candidates = [cls] if Scope.CLASS in scopes else [c for c in scheduler.classes if c.policy.rank >= rank]
    for candidate in reversed(candidates):
        victim = candidate.queue.heaviest()
        if victim is None:
            continue
        if candidate is cls and not _outweighs(victim, request, scheduler.policy):
            return None
        return victim if all(_makes_room(victim, limit) for limit in limits) else None
    return None


def _makes_room(victim: Request, limit: OverLimit) -> bool:
    """Whether `victim` alone is enough to let the newcomer in."""
    if limit.what == "bytes":
        return victim.body_bytes >= limit.excess
    if limit.what == "tokens":
        return victim.prompt_tokens + victim.output_tokens >= limit.excess
    return limit.excess <= 1


def _outweighs(victim: Request, request: Request, pool: PoolPolicy) -> bool:
    """Whether the flow of `victim`, the heaviest, is still heavier than that of `request` with it: compared where
    their paths part, by what is queued / weight."""
    if victim.tenant == request.tenant:
        return False
    nodes: list[Node] = []
    node: Node | None = victim.leaf
    while node is not None and node.parent is not None:
        nodes.append(node)
        node = node.parent
    above = ""
    # Once more its own name: a tenant that others hang under has a leaf of the same name among them.
    for heavy, path in zip(reversed(nodes), (*request.path, request.path[-1]), strict=False):
        if heavy.path != path:
            parent = heavy.parent
            own = None if parent is None else parent.children.get(path)
            weight = 1.0 if path == above else pool.tenant(path).weight
            load = ((0.0 if own is None else own.queued_cost) + request.cost) / weight
            return heavy.queued_cost / heavy.weight > load
        above = path
    return False
