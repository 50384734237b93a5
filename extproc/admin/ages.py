"""How long the oldest held request of a flow, or of a class, has waited."""

from __future__ import annotations

import math
from typing import Final

from extproc.admin.portions import Work
from extproc.core.class_queue import ClassQueue
from extproc.core.model import Order
from extproc.core.node import Leaf
from extproc.core.scheduler import Scheduler

_FLOWS: Final = 256  # looked at between two looks at the time
_FLOWS_BY_DEADLINE: Final = 4  # each of which means looking at all that it has


def oldest_arrival(leaf: Leaf, order: Order) -> float | None:
    """Seconds on the scheduler's clock; None: nothing is held. O(1), but for `Order.DEADLINE`, where it is O(flow)."""
    if not leaf.queued:
        return None
    if order is Order.DEADLINE:
        return min(key[2].arrival for block in leaf.requests for key in block)
    return leaf.requests[0][0][2].arrival


async def oldest_by_class(scheduler: Scheduler, work: Work) -> dict[str, float]:
    """The oldest arrival of each class that holds something. O(flows), in portions: a class's is as of the last of
    them."""
    found: dict[str, float] = {}
    for cls in list(scheduler.classes):
        arrival = await _oldest(cls, work)
        if arrival is not None:
            found[cls.policy.name] = arrival
    return found


async def _oldest(cls: ClassQueue, work: Work) -> float | None:
    if not cls.root.queued:
        return None
    by_deadline = cls.policy.order is Order.DEADLINE
    at_once = _FLOWS_BY_DEADLINE if by_deadline else _FLOWS
    oldest = math.inf
    leaves = list(cls.queue.leaves())
    for first in range(0, len(leaves), at_once):
        if work.over:
            await work.next()
        some = [leaf.requests for leaf in leaves[first : first + at_once] if leaf.queued]
        if by_deadline:
            arrivals = [key[2].arrival for requests in some for block in requests for key in block]
        else:
            arrivals = [requests[0][0][0] for requests in some]
        oldest = min(oldest, min(arrivals, default=math.inf))
    return oldest if oldest < math.inf else None
