"""One pool's scheduler: the only writer of its state. Events in, effects out.

`apply(event, now)` is everything. An arrival is queued in its class's fair order or refused at the
door. Whenever something may have made room (arrival, end of a stream, first token, scrape, another policy)
as many requests are released as may go; `dispatch` says whose turn it is and where to.

The slot of a request is free when its stream ends (`End`); its cost is final when its usage comes
(`Usage`), in any order. A request that ended and whose usage stays away is settled from time or
estimate after `usage_grace_s`. No timer touches a slot.

A policy may change at any time (`Reconfigure`). What waits stays, whatever the new limits are, and waits by
the new timeouts; a class that is gone takes nothing more in and drains. What the change opens goes within the event.
Its `traffic` says whether anything is released (paused: nothing, whatever happens, and nothing is evicted) or taken in
(draining: nothing). An operator may take one request back (`Cancel`), wherever it is.

Parts: `policy_check` (what it may be told), `admission` (who may wait), `fair_queue` (order between tenants),
`class_queue` (order between classes), `dispatch` (whose turn, where to), `windows` (is there room), `preemption` (who
is to make room), `charging` and `estimates` (what it costs), `deadlines` (what time ends). They decide. The state is
written here, by `settlement` (what a final cost changes), by `policy_change` and by `shared` (what other replicas hold
and have had): in one event, by one caller.

Written for speed where each request comes by: an attribute that is read twice is kept, a sum that is often asked for is
public, and what an uncontended request would put into a book and take out again within one event (its deadline, its
bytes) is not put there.

Invariants (`invariants.check`, run after every event in tests): each request has one outcome; slots in flight
are the sum over released requests, never negative, and return to zero; a request is settled once;
nothing waits while it could go.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from extproc.core import absence, admission, charging, policy_change, settlement, shared
from extproc.core.adapters import Adapters
from extproc.core.ageing import Ageing
from extproc.core.choice import fallbacks
from extproc.core.class_queue import ClassQueue, note_headroom
from extproc.core.deadlines import Deadlines
from extproc.core.dispatch import By, Choice, asked, next_release
from extproc.core.drain_rate import DrainRate
from extproc.core.estimates import Estimator
from extproc.core.events import (
    Arrive,
    Cancel,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Failed,
    FirstByte,
    FirstToken,
    Reconfigure,
    Release,
    Scraped,
    ScrapeFailed,
    Synced,
    Tick,
    TurnedAway,
    Unreachable,
    Usage,
)
from extproc.core.model import INSIDE, Pick, PoolPolicy, Request, Source, State, Traffic, WindowPolicy
from extproc.core.policy_check import check_policy
from extproc.core.preemption import Preemption
from extproc.core.prefixes import Prefixes
from extproc.core.priority import engine_priority
from extproc.core.reasons import Reason
from extproc.core.sessions import Sessions
from extproc.core.token_bucket import Buckets
from extproc.core.windows import Window, make_window
from extproc.core.windows.pool_load import PoolLoad

MakeWindow = Callable[[str, WindowPolicy, float], Window]
"""(endpoint as "host:port", policy, now) -> its window."""

# As globals, for the hot path: looking a member up in its enum costs more than all else in a line.
_RANK, _PROMOTION = By.RANK, By.PROMOTION
_QUEUED, _RELEASED, _RUNNING, _ENDED, _SETTLED = (
    State.QUEUED,
    State.RELEASED,
    State.RUNNING,
    State.ENDED,
    State.SETTLED,
)
_EXPIRE_AT_ONCE = 256  # the next `Tick` is due at once for those that are left: others need not wait for all of them
_LOOK_S = 0.05  # time alone may have opened something: looked at with the next event after this


class Scheduler:
    """See the module's docstring. Not thread-safe, by design: one caller."""

    def __init__(self, policy: PoolPolicy, *, windows: MakeWindow = make_window) -> None:
        """`windows` makes the window of an endpoint that is added; one other than the policy asks for is for
        measurements. Raises ValueError for a policy that cannot be."""
        check_policy(policy)
        self._make_window = windows
        # Public to read (`dispatch`, `view`, `explanation`, `invariants`); who writes them is said above.
        self.policy = policy
        self.buckets = Buckets()
        self.classes = [ClassQueue(c, policy, self.buckets, 0.0) for c in sorted(policy.classes, key=lambda c: c.rank)]
        self.by_name = {c.policy.name: c for c in self.classes}
        self.windows: dict[str, Window] = {}
        self.requests: dict[str, Request] = {}
        self.inside: dict[str, int] = {}  # tenant -> its requests inside the engines
        self.shared: shared.SharedState | None = None  # the last word of other replicas; None: there has been none
        self.elsewhere: dict[str, int] = {}  # tenant -> slots that it holds at other replicas
        self.closed_above = math.inf  # classes of a higher rank wait for those of other replicas, see `shared`
        self.queued = 0
        self.queued_bytes = 0
        self.held_bytes: dict[str, int] = {}  # node path -> bytes of the bodies that wait under it, in all classes
        self.share_v = 0.0
        self.releases = 0
        self.released_at = -math.inf  # the last one
        self.queued_since = -math.inf  # since when something waits, if something does
        self.ageing = Ageing()
        self.counts: Counter[str] = Counter()  # what was odd: clamped usage, time that went backwards
        self.estimator = Estimator()
        self.prefixes = Prefixes()
        self.adapters = Adapters()
        self.sessions = Sessions()
        self.pool_load: PoolLoad | None = None  # Envoy chooses the endpoints; None: `choice` does
        self.drain = DrainRate()
        self.preemption = Preemption()
        self.overrun = charging.Overrun()
        self.deadlines = Deadlines()
        self.newcomer: Request | None = None  # it came with the event at hand: no deadline, no bytes held as yet
        self._opens_at = math.inf  # when the first pause of a window ends
        self.absent_since: float | None = None  # when the last endpoint went; None: one is there, see `absence`
        self._seq = 0
        self._now = -math.inf
        self._endpoints_changed = True  # whether the event at hand may have made an endpoint come or go
        self._look = True  # whether the event at hand may let something go
        self._looked_at = -math.inf
        self.looked = True  # whether what may go has been looked for with the last event
        self._handlers: dict[type, Callable[[Any, float, list[Effect]], None]] = {
            Arrive: self._arrive,
            End: self._end,
            Cancel: self._cancel,
            FirstByte: self._first_byte,
            FirstToken: self._first_token,
            Usage: self._usage,
            Unreachable: self._unreachable,
            TurnedAway: self._turned_away,
            Failed: self._failed,
            Scraped: self._scraped,
            ScrapeFailed: self._scrape_failed,
            EndpointAdded: self._add_endpoint,
            EndpointRemoved: self._remove_endpoint,
            Reconfigure: self._reconfigure,
            Synced: self._synced,
            Tick: _nothing,
        }
        self.derive()

    def derive(self) -> None:
        """What follows from the policy."""
        self.derive_open()
        policies = [c.policy for c in self.classes]
        self.paused = self.policy.traffic is Traffic.PAUSED
        self.draining = self.policy.traffic is Traffic.DRAINING
        self.q_max = float(max(p.max_waiting for p in policies))
        self.sharing = [c for c in self.classes if c.policy.min_share > 0]
        self.has_shares = bool(self.sharing)
        self.promotes = any(p.promote_after_s is not None for p in policies)
        self.has_headroom = any(p.headroom is not None for p in policies)
        gated = any(c.gates is not None for c in self.classes)
        # Whose turn it is follows from ranks, shares and caps alone, and only the first turn counts.
        self.plain = not (self.promotes or self.has_headroom or gated or self.policy.prefix_slack > 0)
        by_envoy = self.policy.pick.by is Pick.ENVOY
        if by_envoy is (self.pool_load is None):
            self.pool_load = PoolLoad(self.windows) if by_envoy else None
        for window in self.windows.values():
            window.pool_load = self.pool_load
        self.preempts = any(p.preemptible for p in policies) and any(p.preempt_after_s is not None for p in policies)

    def derive_open(self) -> None:
        """What follows from `closed_above`."""
        closed = self.closed_above
        self.open_classes = [c for c in self.classes if c.policy.rank <= closed]

    # -- the entry --------------------------------------------------------------------------------

    def apply(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at time `now` (seconds). Returns what is to be done about it.

        Raises ValueError, and changes nothing, for an event that names an unknown class or a known request id
        anew, and for a policy that cannot be; events about unknown requests or endpoints are ignored (they come
        late, or from another process). Time never goes backwards: an earlier `now` counts as the latest one."""
        if now < self._now:
            self.counts["time_went_backwards"] += 1
            now = self._now
        elif not now < math.inf:
            raise ValueError(f"now must be a number of seconds, not {now!r}")
        self._now = now
        effects: list[Effect] = []
        self._look = True
        self._handlers[type(event)](event, now, effects)
        if self.overrun.first <= now:
            settlement.charge_overruns(self, now)
        if self._opens_at <= now:
            self._note_pauses(now)
        if self.absent_since is not None or self._endpoints_changed:
            self._endpoints_changed = False
            absence.look(self, now)
        self.looked = self._look or now - self._looked_at > _LOOK_S
        if self.looked:
            self._looked_at = now
            if self.queued:
                try:
                    self._dispatch(now, effects)
                finally:  # also after a bug: what waits and is in half of the books could not be taken out of them
                    if self.newcomer is not None:
                        self._waits(self.newcomer)
        elif self.newcomer is not None:
            self._waits(self.newcomer)
        # What could go has gone, were it in its last moment. What is late may have blocked others.
        if self.deadlines.first <= now and self._expire(now, effects):
            self._dispatch(now, effects)
        if self.queued and self.preemption.candidates and not self.paused:
            evict = self.preemption.evict(self, now)
            if evict is not None:
                effects.append(evict)
        return effects

    def next_deadline(self) -> float | None:
        """When `Tick` is due at the latest; None: nothing waits for time to pass. In the past, where more expired at
        once than one event deals with."""
        due: float | None = self.deadlines.first
        if due == math.inf:
            due = None
        if self.queued and not self.paused:
            if self._opens_at < math.inf and (due is None or self._opens_at < due):
                due = self._opens_at
            for cls in self.classes if self.buckets.by_path else ():
                at = cls.queue.next_eligible_at()
                # One whose rate lets it go already waits for something else, such as a class above it.
                if at is not None and at > self._now and (due is None or at < due):
                    due = at
            if self.preemption.candidates:
                at = self.preemption.next_at(self, self._now)
                if at is not None and (due is None or at < due):
                    due = at
        return due

    # -- arrivals ---------------------------------------------------------------------------------

    def _arrive(self, event: Arrive, now: float, effects: list[Effect]) -> None:
        if event.id in self.requests:
            raise ValueError(f"request id {event.id!r} is in use")
        cls = self.by_name.get(event.cls)
        if cls is None or cls.retired:
            known = sorted(name for name, c in self.by_name.items() if not c.retired)
            raise ValueError(f"class {event.cls!r} is not one of {known}")
        self._seq += 1
        request = admission.newcomer(self, event, cls.policy, self._seq, now)
        refusal, shed = admission.admit(self, request, cls, now)
        if refusal is not None:
            request.move(State.REJECTED)
            effects.append(refusal)
            self._look = False
            return
        if shed is not None:
            self._leave_queue(self.requests[shed.id], State.SHED)
            effects.append(shed)
        self.requests[request.id] = request
        if self.queued == 0:
            self.queued_since = now
            self.drain.resume(now)
        root = cls.root
        if not root.queued:
            cls.drain.resume(now)
        self.queued += 1
        cls.put(request, self.share_v, now)
        self.newcomer = request
        # One that is not next changes nothing for those before it, and they were looked at when they came.
        is_next = bool(root.order) if root.queued == 1 else cls.queue.peek(now) is request
        self._look = is_next or shed is not None or self.policy.prefix_slack > 0

    def _waits(self, newcomer: Request) -> None:
        """What may go has gone, and `newcomer` not with it."""
        self.newcomer = None
        if newcomer.state is _QUEUED:  # else a bug stopped its release half way
            self._hold_bytes(newcomer, newcomer.body_bytes)
            at = newcomer.deadline if self.absent_since is None else absence.expires_at(self, newcomer)
            self.deadlines.set(newcomer, at)

    # -- ends -------------------------------------------------------------------------------------

    def _end(self, event: End, now: float, _: list[Effect]) -> None:
        request = self.requests.get(event.id)
        if request is None:
            return
        state = request.state
        if state is _QUEUED:
            # Others wait behind nothing but what is next.
            is_next = self.by_name[request.cls].queue.peek(now) is request
            self._leave_queue(request, State.CANCELLED)
            self._look = is_next or self.policy.prefix_slack > 0
            return
        if state is not _RELEASED and state is not _RUNNING:
            self._look = False
            return
        window = self.windows.get(request.endpoint or "")
        if window is not None:
            window.free(request, now)
            if self.pool_load is not None:
                self.pool_load.free(request.slots, now)
            if window.removed and window.in_flight == 0:
                del self.windows[window.endpoint]
        cls = self.by_name[request.cls]
        cls.queue.free(request)
        if self.has_headroom:
            note_headroom(self.classes, now)
        inside, tenant = self.inside, request.tenant
        if inside[tenant] > 1:
            inside[tenant] -= 1
        else:
            del inside[tenant]
        request.ended_at = now
        if self.preempts or request.evicted:
            self.preemption.left(request)
        if request.settled:
            request.move(_SETTLED)
            del self.requests[request.id]
            if cls.retired:
                policy_change.retire(self, cls)
            return
        request.move(_ENDED)
        self.deadlines.set(request, now + self.policy.usage_grace_s)

    def _cancel(self, event: Cancel, now: float, effects: list[Effect]) -> None:
        request = self.requests.get(event.id)
        if request is None:
            return
        if request.state is _QUEUED:
            effects.append(admission.refuse(request, Reason.CANCELLED, 1.0, now, event.message))
            self._leave_queue(request, State.CANCELLED)
        elif request.state in INSIDE and not request.evicted:
            effects.append(self.preemption.take_back(request, Reason.CANCELLED, event.message, 1, now))

    def _first_byte(self, event: FirstByte, now: float, _: list[Effect]) -> None:
        request = self.requests.get(event.id)
        if request is not None and request.state in INSIDE and request.first_byte_at is None:
            request.first_byte_at = now
            self._begun(request)
        self._look = False

    def _first_token(self, event: FirstToken, now: float, _: list[Effect]) -> None:
        request = self.requests.get(event.id)
        if request is None or request.state is not State.RELEASED:
            return
        request.move(State.RUNNING)
        request.first_token_at = now
        self._begun(request)
        window = self.windows.get(request.endpoint or "")
        if window is not None:
            window.first_token(request, now)

    def _begun(self, request: Request) -> None:
        """Its answer has begun."""
        if self.preempts:
            self.preemption.consider(request, self.by_name[request.cls].policy, self.policy)

    def _unreachable(self, event: Unreachable, now: float, _: list[Effect]) -> None:
        request = self.requests.get(event.id)
        window = self._window_of(request, event.endpoint)
        if window is not None:
            window.on_unreachable(now, broke=event.broke)
            self._endpoints_changed = True
            self._note_pauses(now)

    def _turned_away(self, event: TurnedAway, now: float, _: list[Effect]) -> None:
        request = self.requests.get(event.id)
        window = self._window_of(request, event.endpoint)
        if window is not None and request is not None:
            counted = request.state in INSIDE and request.endpoint == window.endpoint
            window.on_turned_away(request.slots if counted else 0, now)
            self._note_pauses(now)

    def _failed(self, event: Failed, now: float, _: list[Effect]) -> None:
        window = self._window_of(self.requests.get(event.id), event.endpoint)
        if window is not None:
            window.on_failed(now)
            self._note_pauses(now)

    def _note_pauses(self, now: float) -> None:
        self._opens_at = min((w.opens_at(now) for w in self.windows.values()), default=math.inf)

    def _window_of(self, request: Request | None, endpoint: str | None) -> Window | None:
        """Of the endpoint that was named, else of the one that `request` was released to."""
        if endpoint is None:
            endpoint = None if request is None else request.endpoint
        return self.windows.get(endpoint or "")

    def _usage(self, event: Usage, now: float, effects: list[Effect]) -> None:
        request = self.requests.get(event.id)
        if request is not None and not request.settled and request.state is not _QUEUED:
            settlement.settle(self, request, event, now, effects)
        self._look = settlement.lets_go(self)

    # -- endpoints --------------------------------------------------------------------------------

    def _scraped(self, event: Scraped, now: float, _: list[Effect]) -> None:
        window = self.windows.get(event.endpoint)
        if window is not None:
            lives = window.lives
            window.on_sample(event.sample, self.q_max, asked(self, now), now)
            if window.lives != lives:
                self._forget_sent(event.endpoint)
            self._endpoints_changed = True
            self.overrun.on_page(event.endpoint, event.sample)

    def _scrape_failed(self, event: ScrapeFailed, _: float, __: list[Effect]) -> None:
        window = self.windows.get(event.endpoint)
        if window is not None:
            window.on_failure(event.refused)
            self._endpoints_changed = True

    def _add_endpoint(self, event: EndpointAdded, now: float, _: list[Effect]) -> None:
        window = self.windows.get(event.endpoint)
        self._endpoints_changed = True
        if window is None:
            window = self.windows[event.endpoint] = self._make_window(event.endpoint, self.policy.window, now)
            window.pool_load = self.pool_load
        elif window.removed:
            # Streams of its earlier life still run: their books go on, all else starts anew.
            window.revive(now)
        else:
            return
        if self.policy.shared:
            window.await_word()

    def _remove_endpoint(self, event: EndpointRemoved, _: float, __: list[Effect]) -> None:
        window = self.windows.get(event.endpoint)
        if window is None:
            return
        self._forget_sent(event.endpoint)
        self.overrun.forget(event.endpoint)
        self._endpoints_changed = True
        window.removed = True
        if window.in_flight == 0:
            del self.windows[event.endpoint]

    def _forget_sent(self, endpoint: str) -> None:
        """What was sent there is in no engine's memory any more."""
        self.prefixes.forget(endpoint)
        self.adapters.forget(endpoint)
        self.sessions.forget(endpoint)

    # -- another policy ---------------------------------------------------------------------------

    def _reconfigure(self, event: Reconfigure, now: float, _: list[Effect]) -> None:
        policy_change.change(self, event.policy, now)
        self._endpoints_changed = True  # whether one hangs is a question of the policy
        self._note_pauses(now)

    def _synced(self, event: Synced, now: float, _: list[Effect]) -> None:
        shared.sync(self, event, now)

    # -- time -------------------------------------------------------------------------------------

    def _expire(self, now: float, effects: list[Effect]) -> bool:
        """Whether something may go now: a request has left the queue, or a cost has become final that holds others."""
        left = False
        for _ in range(_EXPIRE_AT_ONCE):
            request = self.deadlines.passed(now)
            if request is None:
                break
            if request.state is State.ENDED:
                settlement.settle(self, request, Usage(request.id, Source.TIME), now, effects)
                left = left or settlement.lets_go(self)
                continue
            effects.append(admission.expired(self, request, now))
            self._leave_queue(request, State.EXPIRED)
            left = True
        return left

    # -- the queue's books ------------------------------------------------------------------------

    def _leave_queue(self, request: Request, to: State) -> None:
        request.move(to)
        self.deadlines.drop(request)
        cls = self.by_name[request.cls]
        cls.queue.remove(request)
        self.queued -= 1
        self._hold_bytes(request, -request.body_bytes)
        del self.requests[request.id]
        if cls.retired:
            policy_change.retire(self, cls)

    def _hold_bytes(self, request: Request, more: int) -> None:
        self.queued_bytes += more
        held = self.held_bytes
        for path in request.path:
            total = held.get(path, 0) + more
            if total:
                held[path] = total
            else:
                held.pop(path, None)

    # -- dispatch ---------------------------------------------------------------------------------

    def _dispatch(self, now: float, effects: list[Effect]) -> None:
        while self.queued and not self.paused:
            choice = next_release(self, now)
            if choice is None:
                return
            effects.append(self._release(choice, now))

    def _release(self, choice: Choice, now: float) -> Release:
        (cls, q, counts_as, _, by), request, window, others, most = choice
        charge, policy = request.cost, self.policy
        cls.queue.pop(request, charge, now)
        request.move(_RELEASED)
        self.queued -= 1
        if request is self.newcomer:
            self.newcomer = None
        else:
            self.deadlines.drop(request)
            self._hold_bytes(request, -request.body_bytes)
        endpoint, tenant = window.endpoint, request.tenant
        number = self.releases = self.releases + 1
        self.released_at = now
        cls.released_tokens += request.prompt_tokens + request.output_tokens
        request.endpoint = endpoint
        request.released_at = now
        request.released_as = number
        inside = self.inside.get(tenant, 0)
        self.inside[tenant] = inside + 1
        if by is not _RANK:
            request.guaranteed = True
        self.ageing.dispatched(by is _PROMOTION, policy.promote_every)
        if self.pool_load is None:
            instead = fallbacks(self, window, others, q, cls.gates, now) if len(self.windows) > 1 else ()
            if request.prefix:
                self.prefixes.sent(endpoint, request.prefix, now)
            if request.adapter is not None:
                self.adapters.sent(endpoint, request.adapter, now)
            if request.session is not None:
                self.sessions.sent(request.session, endpoint)
        else:
            instead = ()
            self.pool_load.take(request.slots, now)
        request.guest = window.take(request, now, number=number, most=most)
        self.overrun.watch(request, policy.unit, window.pace_s)
        self.drain.count(now, charge)
        cls.drain.count(now, charge)
        if self.has_shares:
            self.share_v += charge
            cls.served(request, charge, self.share_v)
        if self.has_headroom:
            note_headroom(self.classes, now)
        if self.preempts:
            self.preemption.consider(request, cls.policy, policy)
        if self.elsewhere:
            inside += self.elsewhere.get(tenant, 0)
        priority = request.priority = engine_priority(counts_as, inside, policy.priority_steps)
        return Release(request.id, endpoint, priority, tenant, request.cls, now - request.arrival, instead)


def _nothing(_: object, __: float, ___: list[Effect]) -> None:
    """Time has passed: what follows every event is all there is to do."""
