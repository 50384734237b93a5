"""A class's queue and its place in the order between classes.

`min_share` is a start-tag queue over guarantees: on each dispatch of cost c the pool's V += c, and the
served class's tag = min(tag, V) + c/min_share. A backlogged class with a tag below V is behind: it goes
first.
"""

from __future__ import annotations

from extproc.core.fair_queue import FairQueue
from extproc.core.model import ClassPolicy, PoolPolicy, Request


class ClassQueue:
    """The fair queue of one class, with what the class as a whole may take."""

    __slots__ = ("policy", "queue", "share_tag")

    def __init__(self, policy: ClassPolicy, pool: PoolPolicy) -> None:
        self.policy = policy
        self.share_tag = 0.0

        def tenant(name: str) -> tuple[float, int | None]:
            t = pool.tenant(name)
            return t.weight, t.max_in_flight

        self.queue = FairQueue(tenant)

    def put(self, request: Request, share_v: float) -> None:
        if len(self.queue) == 0:
            # Like a tenant that returns: a class does not save up what it did not use.
            self.share_tag = max(self.share_tag, share_v)
        self.queue.put(request)

    def served(self, cost: float, share_v: float) -> None:
        """`share_v` after this dispatch. What the class got beyond its share, since nobody else wanted
        it, is not held against it later: else a night alone would starve it for the day."""
        if self.policy.min_share > 0:
            self.share_tag = min(self.share_tag, share_v) + cost / self.policy.min_share

    def behind(self, share_v: float) -> bool:
        return self.policy.min_share > 0 and self.share_tag < share_v

    def capped(self) -> bool:
        cap = self.policy.max_in_flight
        return cap is not None and self.queue.in_flight >= cap
