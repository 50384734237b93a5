"""One pool's part in a group of replicas: what to tell, and what follows from what was heard.

Once in a period `tell` says what this replica has and how many slots it wants of each endpoint, and `heard` makes the
event for the scheduler of the store's answer. Where there is none, `lost` does.

    want     the part of `division`, of what all have told last, in whole slots whose remainders take turns. A replica
             that holds nothing and has nothing inside wants nothing: its first arrival brings an exchange
    claim    what the store has granted, and no more than was wanted, nor than what the others hold leaves of the limit:
             with less than it has inside a replica does not refill what ends. So those that overtake (one at each
             replica) do not raise the claims that the next ones overtake
    until    two thirds of a lease after the exchange was asked for: before the others take it for dead, a replica that
             was frozen or cut off releases nothing more

A replica that the store does not know, or knows no more, wants no more than an even part for a third of a lease: others
may not have told of themselves yet.

Without the store a claim goes, within `SHRINK_S`, from what it was to an even part of the limit; one that is to grow
begins a lease later, when all have noticed. It is one slot at least. So all claims together are never more than the
limit and a slot for each replica. What others hold shows on the engines' pages then, as foreign load, and the windows
count it. The even part is of as many replicas as were seen of late, or are expected. A replica that was frozen, and
then finds no store, has no more than the even part at once. What the others told is forgotten after a lease.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import replace

from extproc.core.class_queue import ClassQueue
from extproc.core.dispatch import aged, full, promotions
from extproc.core.events import EndpointShare, FlowShare, Synced
from extproc.core.scheduler import Scheduler
from extproc.core.sharing.division import LEAST_WEIGHT, Claimant, ClassRule, Replica, divide, whole
from extproc.core.sharing.entitlement import Entitlement
from extproc.core.sharing.flows import Charged, Key, OtherReplica, OwnFlows
from extproc.core.sharing.lag import Lags
from extproc.core.sharing.words import ClassReport, EndpointReport, Heard, Other, PoolReport

SHRINK_S = 10.0
LATELY_S = 300.0  # for which a replica that has gone counts in an even part
_ME = ""  # among replicas
_GOLDEN = 0.6180339887498949
_DUE_S = 5e-5  # between two looks at what is due, for each group of tenants: 0.5 s with 10,000
_SMOOTH_S = 2.0
_SILENT_S, _SILENT = 0.5, 3.0  # the longest of: seconds, periods, a period and the longest exchange


class Sharing:
    """Of one pool at one replica. `now` is by the scheduler's clock, here and in `Heard.sent_at`. Not thread-safe."""

    def __init__(self, pool: str, expected: int, period_s: float, lease_s: float, timeout_s: float = 0.5) -> None:
        """`expected`: replicas, this one included; `period_s`: between two exchanges; `lease_s`: after which one that
        is silent counts as dead; `timeout_s`: after which an exchange has failed."""
        self.pool = pool
        self._expected = expected
        self._period_s = period_s
        self._lease_s = lease_s
        self._silent_s = max(_SILENT_S, _SILENT * period_s, period_s + timeout_s)
        self._own = OwnFlows()
        self._others: dict[str, OtherReplica] = {}
        self._backlog: dict[str, dict[str, float]] = {}  # class -> tenant -> cost that it has waiting elsewhere
        self._entitled: dict[str, Entitlement] = {}  # by class
        self._moved: set[Key] = set()  # flows whose backlog elsewhere has changed
        self._due: dict[str, float] = {}  # class -> part that is due to what waits here
        self._due_at: dict[str, float] = {}  # when it is looked at again
        self._lags: dict[str, Lags] = {}
        self._served: dict[str, float] = {}  # class -> cost that was charged here, ever
        self._since: dict[str, Charged] = {}  # class -> what was charged here since the last `heard`
        self._carry: dict[str, float] = {}  # endpoint -> part of a slot
        self._want: dict[str, int] = {}
        self._asked: dict[str, float] = {}  # endpoint -> slots, that the store may have granted since the last answer
        self._limits: dict[str, float] = {}  # those that the last division went by
        self._claims: dict[str, float] = {}  # of the last `Synced`
        self._last: dict[str, float] = {}  # those before the store was lost
        self._closed_above: int | None = None
        self._inside_s = 0.0  # for which a request is inside, in the mean; 0: not known
        self._freed = 0  # slots of this replica, ever
        self._freed_at = -math.inf
        self._freed_rate = 0.0
        self._sent_at = -math.inf
        self._fresh_until = math.inf  # until the store says otherwise
        self._settled_at = -math.inf
        self._lost_since: float | None = None
        self._frozen = False  # before it was
        self._seen: deque[tuple[float, int]] = deque()  # (time, replicas), falling

    # -- what goes out ----------------------------------------------------------------------------

    def tell(self, scheduler: Scheduler, now: float) -> PoolReport:
        """What all others are to know, and what this one wants."""
        for name, charged in self._own.look(scheduler.classes).items():
            self._served[name] = self._served.get(name, 0.0) + charged.all
            before = self._since.get(name, Charged(0.0, 0.0))
            self._since[name] = Charged(before.all + charged.all, before.waits + charged.waits)
        self._note_waiting(scheduler)
        classes = tuple(self._class(scheduler, cls, now) for cls in scheduler.classes)
        endpoints = self._endpoints(scheduler, classes, now)
        return PoolReport(self.pool, classes, endpoints, self._own.report(), scheduler.releases)

    def _class(self, scheduler: Scheduler, cls: ClassQueue, now: float) -> ClassReport:
        name = cls.policy.name
        demand = self._own.demand[name] + cls.queue.wide
        if cls.cap is not None:
            demand = min(demand, cls.cap - cls.held())
        promoted = 0
        if scheduler.paused or cls.retired or demand <= 0 or cls.queue.peek(now) is None:
            demand = 0
        else:
            promoted = min(demand, promotions(scheduler, cls, now))
            if full(scheduler, cls, now):
                demand = promoted  # which asks for no headroom
        return ClassReport(
            name=name,
            rank=cls.policy.rank,
            demand=demand,
            backlog=cls.root.queued_cost,
            active=self._own.active[name],
            served=self._served[name],
            weight=self._look_due(name, now) if demand else 0.0,
            promoted=promoted,
        )

    def _note_waiting(self, scheduler: Scheduler) -> None:
        """Who waits, here and elsewhere, for what is due."""
        for entitlement in self._entitled.values():
            entitlement.follow(scheduler.policy)
        moved = self._own.moved | self._moved
        self._own.moved, self._moved = set(), set()
        for name, tenant in moved:
            here = self._own.waiting.get(name, {}).get(tenant, 0.0)
            elsewhere = self._backlog.get(name, {}).get(tenant, 0.0)
            if name not in self._entitled:
                self._entitled[name] = Entitlement(scheduler.policy)
            self._entitled[name].waits(tenant, here, elsewhere)

    def _look_due(self, name: str, now: float) -> float:
        if now >= self._due_at.get(name, -math.inf) and name in self._entitled:
            self._due[name] = self._entitled[name].due_here()
            self._due_at[name] = now + _DUE_S * self._entitled[name].groups
        return self._due.get(name, 0.0)

    def _behind(self, scheduler: Scheduler, name: str) -> float:
        cls, lags = scheduler.by_name[name], self._lags.get(name)
        queued = cls.root.queued + cls.queue.wide
        if lags is None or not queued:
            return 0.0
        return lags.slots(_ME, cls.root.queued_cost / queued, self._period_s, self._inside_s)

    def _endpoints(
        self, scheduler: Scheduler, classes: tuple[ClassReport, ...], now: float
    ) -> tuple[EndpointReport, ...]:
        states = [
            EndpointReport(w.endpoint, w.in_flight, w.freed, w.common_limit(scheduler.q_max, now), 0.0)
            for w in scheduler.windows.values()
        ]
        least = self._least_limits()
        limits = [min(state.limit, least.get(state.endpoint, math.inf)) for state in states]
        self._limits = {state.endpoint: limit for state, limit in zip(states, limits, strict=True)}
        own = [state.in_flight for state in states]
        busy = scheduler.queued > 0 or any(own)
        replicas = [_replica(own, classes, busy)]
        for other in self._others.values():
            there = {e.endpoint: e.in_flight for e in other.report.endpoints}
            inside = [there.get(state.endpoint, 0) for state in states]
            waits = any(c.demand for c in other.report.classes)
            replicas.append(_replica(inside, other.report.classes, waits or any(inside)))
        rules = [
            ClassRule(c.policy.name, c.policy.min_share, self._filled(scheduler, c.q, limits, now))
            for c in scheduler.classes
        ]
        behind = {c.name: self._behind(scheduler, c.name) for c in classes if c.demand}
        division = divide(limits, replicas, rules, behind)
        told = (c for other in self._others.values() for c in other.report.classes)
        unmet = (scheduler.by_name[c.name] for c in told if c.demand and c.name in division.unmet)
        self._closed_above = min((cls.policy.rank for cls in unmet), default=None)
        parts = division.parts if busy else [0.0] * len(states)
        if now < self._fresh_until:
            even = self._even_part()
            parts = [min(p, max(o, limit * even)) for p, o, limit in zip(parts, own, limits, strict=True)]
        self._want = {state.endpoint: self._whole(state.endpoint, p) for state, p in zip(states, parts, strict=True)}
        self._asked = {e.endpoint: float(max(e.in_flight, self._want[e.endpoint])) for e in states}
        for name in self._carry.keys() - self._want.keys():
            del self._carry[name]
        return tuple(replace(state, want=float(self._want[state.endpoint])) for state in states)

    def _filled(self, scheduler: Scheduler, q: float, limits: list[float], now: float) -> float:
        """Slots of all endpoints up to which a class with standing queue `q` may fill them."""
        if q == scheduler.q_max:
            return sum(limits)
        windows = scheduler.windows.values()
        return sum(min(limit, w.common_limit(q, now)) for limit, w in zip(limits, windows, strict=True))

    def _whole(self, endpoint: str, part: float) -> int:
        carry = self._carry.get(endpoint)
        if carry is None:
            carry = ((len(self._carry) + 1) * _GOLDEN) % 1.0  # endpoints take turns, not all at once
        want, self._carry[endpoint] = whole(part, carry)
        return want

    def _least_limits(self) -> dict[str, float]:
        """By endpoint, of others with something there: one that sees less room than the others would wait for
        them to make some, and in vain."""
        least: dict[str, float] = {}
        for other in self._others.values():
            for e in other.report.endpoints:
                if e.in_flight and e.limit:
                    least[e.endpoint] = min(e.limit, least.get(e.endpoint, math.inf))
        return least

    def _even_part(self) -> float:
        return 1.0 / max(self._expected, max((count for _, count in self._seen), default=1))

    # -- what comes in ----------------------------------------------------------------------------

    def heard(self, scheduler: Scheduler, heard: Heard, now: float) -> Synced:
        """The store's answer."""
        if heard.fresh:
            self._fresh_until = now + self._lease_s / 3
        elif self._fresh_until == math.inf:
            self._fresh_until = now
        if heard.fresh or self._lost_since is not None:
            self._settled_at = now + self._lease_s / 3  # by then all others have told again
        self._own.heard()
        self._sent_at = heard.sent_at
        self._lost_since = None
        self._note_replicas(len(heard.others) + 1, now)
        charged: dict[Key, float] = {}
        waits: dict[str, dict[str, float]] = {}
        served: dict[str, float] = {}
        freed: Counter[str] = Counter()
        gone: Counter[str] = Counter()
        released = 0
        alive = set()
        for other in heard.others:
            alive.add(other.replica)
            known = self._others.get(other.replica)
            if known is None or known.life != other.life:
                if known is not None:
                    self._gone(known, charged, gone)
                known = self._others[other.replica] = OtherReplica(other.life, other.report)
            released += max(0, other.report.released - known.report.released)
            before = {e.endpoint: e.freed for e in known.report.endpoints}
            for each in other.report.endpoints:
                freed[each.endpoint] += max(0, each.freed - before.get(each.endpoint, each.freed))
            news = known.update(self._current(other), other.missed, now)
            for key, cost in news.flows.items():
                charged[key] = charged.get(key, 0.0) + cost
            for name, cost in news.waits.items():
                waits.setdefault(name, {})[other.replica] = cost
            for name, cost in news.served.items():
                served[name] = served.get(name, 0.0) + cost
        for name in self._others.keys() - alive:
            self._gone(self._others.pop(name), charged, gone)
        flows = tuple(self._flow(key, cost) for key, cost in charged.items())
        self._learn(scheduler, waits, sum(freed.values()), now)
        inside = self._inside()
        limits = self._least_limits()
        endpoints = tuple(
            EndpointShare(
                name,
                self._claim(heard, name, inside[name]),
                inside[name],
                freed[name],
                gone[name],
                max(0.0, limits.get(name, 0.0) - scheduler.q_max),
            )
            for name in scheduler.windows
        )
        self._claims = {e.endpoint: e.claim for e in endpoints}
        return Synced(
            replicas=len(heard.others) + 1,
            until=heard.sent_at + self._lease_s * 2 / 3,
            endpoints=endpoints,
            flows=flows,
            served=served,
            closed_above=self._closed_above,
            released=released,
            ageing=self._ageing(scheduler, now),
        )

    @staticmethod
    def _gone(dead: OtherReplica, charged: dict[Key, float], gone: Counter[str]) -> None:
        for key in dead.flows:
            charged.setdefault(key, 0.0)
        for each in dead.report.endpoints:
            gone[each.endpoint] += each.in_flight

    def _ageing(self, scheduler: Scheduler, now: float) -> float:
        """The part of all promotions that is due here: that of the service of the class that they are of, which is the
        first one whose turn it may be."""
        here = (cls.policy.name for cls in scheduler.classes[1:] if aged(cls, now) is not None)
        return next(map(self._part, here), 1.0)

    def _part(self, name: str) -> float:
        own = max(self._due.get(name, 0.0), LEAST_WEIGHT)
        told = (c for other in self._others.values() for c in other.report.classes)
        return own / (own + sum(max(c.weight, LEAST_WEIGHT) for c in told if c.name == name and c.demand))

    def _current(self, other: Other) -> PoolReport:
        """Of one that is silent nobody knows what it has waiting: it may be dead, and who makes room for it does so in
        vain."""
        if other.age_s <= self._silent_s:
            return other.report
        return replace(other.report, classes=tuple(replace(c, demand=0) for c in other.report.classes))

    def _claim(self, heard: Heard, endpoint: str, others: int) -> float:
        left = self._limits.get(endpoint, 0.0) - others
        return max(0.0, min(heard.claims.get(endpoint, 0.0), float(self._want.get(endpoint, 0)), left))

    def _inside(self) -> Counter[str]:
        """Slots that the others hold, by endpoint."""
        inside: Counter[str] = Counter()
        for other in self._others.values():
            for e in other.report.endpoints:
                inside[e.endpoint] += e.in_flight
        return inside

    def _flow(self, key: Key, cost: float) -> FlowShare:
        cls, tenant = key
        backlog, inside = 0.0, 0
        for other in self._others.values():
            flow = other.flows.get(key)
            if flow is not None:
                backlog += flow.backlog
                inside += flow.inside
        waiting = self._backlog.setdefault(cls, {})
        if backlog:
            waiting[tenant] = backlog
        else:
            waiting.pop(tenant, None)
        self._moved.add(key)
        return FlowShare(cls, tenant, cost, inside)

    def _learn(self, scheduler: Scheduler, waits: dict[str, dict[str, float]], freed: int, now: float) -> None:
        """What the lags go by. `waits`: class -> replica -> cost charged to those that wait there."""
        own = sum(w.freed for w in scheduler.windows.values())
        freed += max(0, own - self._freed)
        self._freed = own
        seconds = now - self._freed_at
        self._freed_at = now
        if 0.0 < seconds < math.inf:
            self._freed_rate += (1.0 - math.exp(-seconds / _SMOOTH_S)) * (freed / seconds - self._freed_rate)
        inside = sum(w.in_flight for w in scheduler.windows.values())
        inside += sum(e.in_flight for o in self._others.values() for e in o.report.endpoints)
        self._inside_s = inside / self._freed_rate if self._freed_rate > 0.0 else 0.0
        for cls in scheduler.classes:
            name = cls.policy.name
            costs = waits.get(name, {})
            costs[_ME] = self._since.pop(name, Charged(0.0, 0.0)).waits
            due = {}
            if self._own.waiting.get(name):
                due[_ME] = max(self._due.get(name, 0.0), LEAST_WEIGHT)
            for replica, other in self._others.items():
                for each in other.report.classes:
                    if each.name == name and each.demand:
                        due[replica] = max(each.weight, LEAST_WEIGHT)
            lags = self._lags.get(name)
            if lags is None:
                lags = self._lags[name] = Lags()
            if now < self._settled_at:
                lags.forget(now)
            else:
                lags.charged(due, costs, now)

    def _note_replicas(self, count: int, now: float) -> None:
        seen = self._seen
        while seen and seen[-1][1] <= count:
            seen.pop()
        seen.append((now, count))
        while seen[0][0] < now - LATELY_S:
            seen.popleft()

    # -- without the store ------------------------------------------------------------------------

    def lost(self, scheduler: Scheduler, now: float) -> Synced:
        """An exchange has failed."""
        self._own.lost()
        if self._lost_since is None:
            self._lost_since = now
            self._frozen = now - self._sent_at > self._lease_s
            # What was asked for last may have been written down, though no word of it came back.
            self._last = {name: min(claim, self._asked.get(name, 0.0)) for name, claim in self._claims.items()}
        gone = now - self._lost_since
        flows = tuple(self._forget_others()) if gone > self._lease_s else ()
        endpoints = []
        for window in scheduler.windows.values():
            even = window.limit(scheduler.q_max, now) * self._even_part()
            last = self._last.get(window.endpoint, 0.0)
            way = gone if last > even else gone - self._lease_s
            if self._frozen and last > even:
                way = SHRINK_S
            claim = last + (even - last) * min(max(way / SHRINK_S, 0.0), 1.0)
            endpoints.append(EndpointShare(window.endpoint, max(1.0, math.floor(claim)), 0))
        self._claims = {e.endpoint: e.claim for e in endpoints}
        return Synced(1, math.inf, tuple(endpoints), flows, lost_since=self._lost_since)

    def _forget_others(self) -> list[FlowShare]:
        """They may be dead. What they hold counts for no cap any more."""
        keys = [key for other in self._others.values() for key in other.flows]
        self._others = {}
        return [self._flow(key, 0.0) for key in dict.fromkeys(keys)]


def _replica(inside: list[int], classes: tuple[ClassReport, ...], busy: bool) -> Replica:
    claimants = {c.name: Claimant(c.active, c.demand, c.weight, min(c.promoted, c.demand)) for c in classes if c.demand}
    return Replica(inside, claimants, busy)
