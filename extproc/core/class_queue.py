"""A class's queue and its place in the order between classes.

rank        lower goes first, strictly; all else on this page is an exception to it.
min_share   a start-tag queue over guarantees: on each dispatch of cost c the pool's V += c, and the
            served class's tag = min(tag, V) + c/min_share. A backlogged class with a tag below V is
            behind: it goes first. True-ups move both by the difference.
promotion   a class's next request that has waited for `promote_after_s` counts one class up, one in
            `promote_every` dispatches at most.
caps        `max_in_flight`, and the room that it leaves to higher classes (`headroom`). A capped class
            lets the next one go. Neither `min_share` nor promotion asks for headroom.
gates       thresholds on an endpoint's signals; `idle_only` is the one that wants its queue empty. What a
            class's own gates keep from it, lower classes do not get either.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from extproc.core.drain_rate import DrainRate
from extproc.core.fair_queue import FairQueue
from extproc.core.headroom import Headroom
from extproc.core.model import ClassPolicy, Gates, PoolPolicy, Request
from extproc.core.token_bucket import Buckets

_NO_GATES = Gates()


class ClassQueue:
    """The fair queue of one class, with what the class as a whole may take."""

    __slots__ = (
        *("cap", "drain", "gates", "headroom", "policy", "q", "queue", "retired", "root", "share_tag", "share_turn"),
        *("cached_tokens", "output_tokens", "prompt_tokens", "released_tokens"),
    )

    def __init__(self, policy: ClassPolicy, pool: PoolPolicy, buckets: Buckets, now: float) -> None:
        self.share_tag = 0.0
        self.share_turn = 1  # goes up when the class is forgiven what it got beyond its share
        self.retired = False  # no longer configured: it drains
        self.headroom: Headroom | None = None
        # Ever, for those who look: tokens of what was released, estimated, and of what was settled, as counted.
        self.released_tokens = 0.0
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.drain = DrainRate()
        self.queue = FairQueue(pool, policy.order, buckets)
        if pool.shared:
            self.queue.spent = {}
        self.root = self.queue.root  # the books of the class as a whole: each event reads them
        self.policy = policy
        self.take_policy(policy, 0.0, now)

    def take_policy(self, policy: ClassPolicy, share_v: float, now: float) -> None:
        """The class is told `policy` from now on. The queue itself is told by the scheduler."""
        before, self.policy = self.policy.min_share, policy
        if policy.min_share > 0 and policy.min_share != before:
            # What it is behind or ahead is the same in cost units. Nothing, where it had no share.
            self.share_tag = share_v + (self.share_tag - share_v) * before / policy.min_share
            self.share_turn += 1
        self.q = float(policy.max_waiting)
        self.cap = policy.max_in_flight
        gates = policy.gates
        if policy.idle_only:
            gates = replace(gates, max_waiting=1 if gates.max_waiting is None else min(1, gates.max_waiting))
        self.gates: Gates | None = None if gates == _NO_GATES else gates
        if policy.headroom is None:
            self.headroom = None
        elif self.headroom is None:
            self.headroom = Headroom(policy.headroom, now)
        elif self.headroom.epsilon != policy.headroom:
            self.headroom.change(policy.headroom)

    def put(self, request: Request, share_v: float, now: float) -> None:
        if not self.root.queued and self.share_tag < share_v:
            # Like a tenant that returns: a class does not save up what it did not use.
            self.share_tag = share_v
        self.queue.put(request, now)

    def served(self, request: Request, cost: float, share_v: float) -> None:
        """`share_v` after this dispatch. What the class got beyond its share, since nobody else wanted
        it, is not held against it later: else a night alone would starve it for the day. Nor are the
        true-ups of what it has been forgiven."""
        share = self.policy.min_share
        if share > 0:
            if self.share_tag > share_v:
                self.share_tag = share_v
                self.share_turn += 1
            self.share_tag += cost / share
            request.share_turn = self.share_turn

    def trued_up(self, request: Request, delta: float) -> None:
        """`request` really cost `delta` more than was charged."""
        if self.policy.min_share > 0 and request.share_turn == self.share_turn:
            self.share_tag += delta / self.policy.min_share

    def served_elsewhere(self, cost: float, share_v: float) -> None:
        """As `served`, by other replicas."""
        share = self.policy.min_share
        if share > 0:
            if self.share_tag > share_v:
                self.share_tag = share_v
                self.share_turn += 1
            self.share_tag += cost / share

    def behind(self, share_v: float) -> bool:
        return self.share_tag < share_v and self.policy.min_share > 0

    def held(self) -> int:
        """Slots that the class holds, at all replicas."""
        return self.root.in_flight + self.root.elsewhere

    def capped(self) -> bool:
        return self.cap is not None and self.root.in_flight + self.root.elsewhere >= self.cap


def note_headroom(classes: Sequence[ClassQueue], now: float) -> None:
    """Tell each of `classes`, by rank, what those above it hold."""
    above = 0
    for cls in classes:
        if cls.headroom is not None:
            cls.headroom.note(above, now)
        above += cls.held()
