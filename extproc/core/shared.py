"""What the other replicas tell of a pool that is shared with them (`Synced`), written into the scheduler's books.

    windows     what the others hold at each endpoint counts as ours where ours count together (is anything of ours
                inside, what of a page is foreign), and what this replica may hold is bounded by its claim. The
                more replicas live, the more seldom each reads a page, see `windows.pages`
    order       what the others have charged is charged to the nodes that are here, see `Tree.charge_foreign`; slots
                that they hold count for caps, and for a tenant's place within its class in the engine
    classes     what the others have charged counts for `min_share`, and what they have released for `promote_every`;
                a class below one that waits elsewhere has no turn by rank

`sharing` works out what is told, and what this replica has to tell. Without any word nothing goes: a window of a pool
that is shared begins with a claim of 0. Figures that cannot be are counted, and taken as nothing: a replica that is
out of its mind is not to stop the others.

A part of the scheduler: called by it alone, within an event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from extproc.core.class_queue import note_headroom
from extproc.core.node import MAX_COST

if TYPE_CHECKING:
    from extproc.core.class_queue import ClassQueue
    from extproc.core.events import EndpointShare, FlowShare, Synced
    from extproc.core.scheduler import Scheduler

_MOST_SLOTS = 10**9


@dataclass(frozen=True, slots=True)
class SharedState:
    """The last word of the other replicas. Times are of the scheduler's clock, in seconds."""

    at: float  # when it came
    replicas: int  # that live, this one included
    until: float  # up to when the claims hold; infinite: for ever
    closed_above: int | None  # classes of a higher rank release nothing by rank; None: all may
    lost_since: float | None  # the store has not answered since then; None: it does


def sync(scheduler: Scheduler, event: Synced, now: float) -> None:
    """Take in a word. In a pool that is not shared it is counted, and changes nothing."""
    if not scheduler.policy.shared:
        scheduler.counts["stray_sync"] += 1
        return
    until = now if math.isnan(event.until) else event.until
    closed, lost = event.closed_above, event.lost_since
    scheduler.shared = SharedState(now, event.replicas, until, closed, lost)
    scheduler.closed_above = math.inf if closed is None else closed
    scheduler.derive_open()
    if lost is None:
        for window in scheduler.windows.values():
            window.read_by(event.replicas)
    for share in event.endpoints:
        _share(scheduler, share, until, now)
    if lost is None:
        scheduler.ageing.heard(event.ageing, event.released)
    else:
        scheduler.ageing.alone()
    for flow in event.flows:
        _charge(scheduler, flow, now)
    for flow in event.flows:
        _hold(scheduler, flow, now)
    if scheduler.has_shares:
        _serve(scheduler, event)
    if scheduler.has_headroom:
        note_headroom(scheduler.classes, now)


def forget_class(scheduler: Scheduler, cls: ClassQueue) -> None:
    """The class is gone, and with it what the others hold of it."""
    for tenant, slots in cls.queue.elsewhere.items():
        _change_elsewhere(scheduler, tenant, -slots)


def _share(scheduler: Scheduler, share: EndpointShare, until: float, now: float) -> None:
    window = scheduler.windows.get(share.endpoint)
    if window is None:
        return
    claim, slots = share.claim, (share.others, share.freed, share.gone)
    if not (claim >= 0.0 and all(0 <= each <= _MOST_SLOTS for each in slots)):
        scheduler.counts["absurd_share"] += 1
        claim = claim if claim >= 0.0 else 0.0
    others, freed, gone = (min(max(each, 0), _MOST_SLOTS) for each in slots)
    known = share.known
    if not 0.0 <= known <= _MOST_SLOTS:
        scheduler.counts["absurd_share"] += 1
        known = 0.0
    window.share(claim, others, freed, until, now, gone, known)


def _charge(scheduler: Scheduler, flow: FlowShare, now: float) -> None:
    cls, usage = scheduler.by_name.get(flow.cls), flow.usage
    if cls is None or usage == 0.0:
        return
    if not 0.0 < usage <= MAX_COST:
        scheduler.counts["absurd_share"] += 1
        return
    cls.queue.charge_foreign(flow.tenant, usage, now)


def _hold(scheduler: Scheduler, flow: FlowShare, now: float) -> None:
    cls, slots = scheduler.by_name.get(flow.cls), flow.inside
    if cls is None:
        return
    if not 0 <= slots <= _MOST_SLOTS:
        scheduler.counts["absurd_share"] += 1
        slots = 0
    before = cls.queue.elsewhere.get(flow.tenant, 0)
    if slots != before:
        cls.queue.hold_elsewhere(flow.tenant, slots, now)
        _change_elsewhere(scheduler, flow.tenant, slots - before)


def _change_elsewhere(scheduler: Scheduler, tenant: str, more: int) -> None:
    total = scheduler.elsewhere.get(tenant, 0) + more
    if total:
        scheduler.elsewhere[tenant] = total
    else:
        scheduler.elsewhere.pop(tenant, None)


def _serve(scheduler: Scheduler, event: Synced) -> None:
    """By rank, since the order within a word is nobody's."""
    for cls in scheduler.classes:
        cost = event.served.get(cls.policy.name, 0.0)
        if 0.0 < cost <= MAX_COST:
            scheduler.share_v += cost
            cls.served_elsewhere(cost, scheduler.share_v)
        elif cost != 0.0:
            scheduler.counts["absurd_share"] += 1
