"""Who inside is evicted for one that waits. Off unless a class is `preemptible` and another has `preempt_after_s`.

A full engine of long low requests makes a high one wait for the next of them to end. Engines rank only what has not
begun, so the queue before them has to take one back: the edge answers its client 503, Envoy drops the connection, the
engine aborts what it had. What it had is lost, so this is for what costs little to lose and is sent again by itself.

    need        the request that the next free slot would go to (the first of `dispatch.turns` that no endpoint takes)
                has waited for `preempt_after_s` of its class. Others behind it are not asked: a slot would not be
                theirs. So neither a tenant's own cap or rate, nor the class's cap or headroom, nor a closed gate can be
                a reason to evict: they have no turn, or no endpoint that is open to it
    candidate   it is inside, in a preemptible class of lower rank, and the edge will tell its first byte and has not
                (`preempt_after_first_byte`: whatever the edge tells). Not one that went by its class's `min_share` or
                `promote_after_s`: what those promise would be taken back
    helps       without it the endpoint would take the one that waits (`Window.why_not`), by all of the window's
                accounts. In an overfull window it may take up to four: then the newest of them goes first, and its slot
                is kept, since nobody passes the one that waits
    choice      the latest release of those that help
    limits      `preempt_per_s`, a token bucket of one. What is leaving counts as room that is coming: nobody else goes
                for the same need

An evicted request holds its slots until its `End`, as any other, and its tenant is charged nothing. Its class is not
given back what it counts for `min_share`: it would be behind then, and take the free slot itself.

Left out: evicting what waits in the engine's own queue first (no page says which these are), and evicting for
requests that would wait too long by the forecast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from extproc.core.dispatch import By, Turn, is_open, turns
from extproc.core.drain_rate import bounded, with_jitter
from extproc.core.events import Evict
from extproc.core.model import INSIDE, ClassPolicy, Gates, PoolPolicy, Request, State
from extproc.core.reasons import Reason
from extproc.core.waiting import back_s
from extproc.core.windows import Window

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler
    from extproc.core.windows.pool_load import PoolLoad

_TOGETHER = 4  # requests of one endpoint that have to leave for one need, at most
_AGAIN_S = 0.1  # a look in vain costs O(inside): the next one for the same request is not before


class Preemption:
    """Of one pool."""

    __slots__ = ("_evicted_at", "_in_vain", "_in_vain_until", "_ready_at", "candidates", "leaving")

    def __init__(self) -> None:
        self.candidates: dict[str, Request] = {}  # in the order of their releases
        self.leaving: dict[str, Request] = {}  # evicted, and inside still
        self._evicted_at = self._ready_at = -math.inf  # the last eviction; when the next may be
        self._in_vain: Request | None = None  # evicting for it would not have helped
        self._in_vain_until = 0.0

    # -- the books ----------------------------------------------------------------------------------

    def consider(self, request: Request, cls: ClassPolicy, pool: PoolPolicy) -> None:
        """`request` of `cls` has been released, has begun to answer, or has cost what it will."""
        if may_be_evicted(request, cls, pool):
            self.candidates[request.id] = request
        else:
            self.candidates.pop(request.id, None)

    def left(self, request: Request) -> None:
        """It is not inside any more."""
        self.candidates.pop(request.id, None)
        self.leaving.pop(request.id, None)

    def rebuild(self, scheduler: Scheduler) -> None:
        """The policy is another: also the pace of evictions, and what was looked at in vain."""
        self._ready_at = self._evicted_at + 1.0 / scheduler.policy.preempt_per_s
        self._in_vain = None
        inside = [r for r in scheduler.requests.values() if r.state in INSIDE]
        inside.sort(key=lambda r: r.released_as)
        self.candidates = {}
        for request in inside if scheduler.preempts else ():
            self.consider(request, scheduler.by_name[request.cls].policy, scheduler.policy)

    def evict(self, scheduler: Scheduler, now: float) -> Evict | None:
        """What is to leave now, if anything. To be asked when what may go has gone."""
        if now < self._ready_at:
            return None
        found = self._choose(scheduler, now)
        if found is None:
            return None
        victim, turn = found
        self._evicted_at, self._ready_at = now, now + 1.0 / scheduler.policy.preempt_per_s
        waited = now - turn.request.arrival
        message = (
            f"a request of class {turn.cls.policy.name!r} has waited for {waited:.1f} s (its preempt_after), "
            f"and requests of class {victim.cls!r} make room (preemptible)"
        )
        retry = with_jitter(bounded(back_s(scheduler, victim, now), 1.0), victim.id)
        return self.take_back(victim, Reason.PREEMPTED, message, retry, now)

    def take_back(self, victim: Request, reason: Reason, message: str, retry_after_s: int, now: float) -> Evict:
        """`victim`, which is inside, is to leave: for a more urgent one, or because an operator says so."""
        self.candidates.pop(victim.id, None)
        self.leaving[victim.id] = victim
        victim.evicted = True
        return Evict(
            id=victim.id,
            reason=reason,
            message=message,
            retry_after_s=retry_after_s,
            tenant=victim.tenant,
            cls=victim.cls,
            inside_s=now - victim.released_at,
        )

    def next_at(self, scheduler: Scheduler, now: float) -> float | None:
        """When time alone makes a need, or lets one be met; None: it does not. What does not help now is looked at
        again with what happens next: that wakes nobody."""
        first = None
        for turn, _ in _needs(scheduler, now):
            after = turn.cls.policy.preempt_after_s
            if after is not None:
                at = max(turn.request.arrival + after, self._ready_at)
                if at > now and (first is None or at < first):
                    first = at
        return first

    # -- the choice ---------------------------------------------------------------------------------

    def _choose(self, scheduler: Scheduler, now: float) -> tuple[Request, Turn] | None:
        for turn, passed in _needs(scheduler, now):
            after = turn.cls.policy.preempt_after_s
            request = turn.request
            if after is None or now < request.arrival + after:
                continue
            if request is self._in_vain and now < self._in_vain_until:
                continue
            if scheduler.pool_load is not None:
                leaving = sum(r.slots for r in self.leaving.values())
                if scheduler.pool_load.has_room(request.slots - leaving, turn.q, now):
                    continue
                victim = self._victim_anywhere(scheduler, scheduler.pool_load, turn, leaving, now)
                if victim is not None:
                    return victim, turn
                self._in_vain, self._in_vain_until = request, now + _AGAIN_S
                continue
            windows = scheduler.windows.values()
            there = {w.endpoint: w for w in windows if is_open(w, turn.cls.gates, passed, now)}
            gone = {name: [r for r in self.leaving.values() if r.endpoint == name] for name in there}
            if any(w.why_not(request, turn.q, now, gone[name]) is None for name, w in there.items()):
                continue  # there is room, or it is coming
            victim = self._victim(scheduler, turn, there, gone, now)
            if victim is not None:
                return victim, turn
            self._in_vain, self._in_vain_until = request, now + _AGAIN_S
        return None

    def _victim(
        self, scheduler: Scheduler, turn: Turn, there: dict[str, Window], gone: dict[str, list[Request]], now: float
    ) -> Request | None:
        rank, by_name = turn.cls.policy.rank, scheduler.by_name
        together: dict[str, list[Request]] = {name: [] for name in there}
        for request in reversed(self.candidates.values()):
            mine = together.get(request.endpoint or "")
            if mine is None or len(mine) == _TOGETHER or by_name[request.cls].policy.rank <= rank:
                continue
            mine.append(request)
            window = there[request.endpoint or ""]
            if window.why_not(turn.request, turn.q, now, [*gone[window.endpoint], *mine]) is None:
                return mine[0]
        return None

    def _victim_anywhere(
        self, scheduler: Scheduler, pool_load: PoolLoad, turn: Turn, leaving: int, now: float
    ) -> Request | None:
        """Where Envoy chooses the endpoints: whoever leaves makes room for all. `leaving`: slots that become free."""
        mine: list[Request] = []
        for request in reversed(self.candidates.values()):
            if scheduler.by_name[request.cls].policy.rank <= turn.cls.policy.rank:
                continue
            mine.append(request)
            leaving += request.slots
            if pool_load.has_room(turn.request.slots - leaving, turn.q, now):
                return mine[0]
            if len(mine) == _TOGETHER:
                return None
        return None


def may_be_evicted(request: Request, cls: ClassPolicy, pool: PoolPolicy) -> bool:
    """Whether a request of `cls` that is inside may be taken back."""
    if not cls.preemptible or request.guaranteed or request.evicted or request.settled:
        return False
    if pool.preempt_after_first_byte:
        return True
    return request.tells_first_byte and request.first_byte_at is None and request.state is State.RELEASED


def _needs(scheduler: Scheduler, now: float) -> Iterator[tuple[Turn, list[Gates]]]:
    """Turns that would get the next free slot, and the gates that must be closed there, as `dispatch.next_release` goes
    through them."""
    passed: list[Gates] = []
    for turn in turns(scheduler, now):
        yield turn, passed
        if turn.by is By.RANK or turn.cls.gates is None:
            return
        passed.append(turn.cls.gates)
