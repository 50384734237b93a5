"""The scheduler the slow way: flat lists, everything by scanning, nothing kept that can be counted. For tests.

It covers what can be said in a few lines each: classes by rank, caps, standing of tenants by tags, `min_share`,
promotion, limits and shedding, timeouts, preemption, endpoints, policies that change, pauses, what operators take back.
Room is `fixed` - in flight. Left out, with tests of their own: trees, rates, windows that learn, gates, headroom,
prefixes, charges while a request runs.

Costs are what the request says: a `Job` brings its estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from extproc.core.model import ClassPolicy, Order, Overflow, PoolPolicy, TenantPolicy, Traffic

GRACE_S = 2.0  # WindowPolicy.first_scrape_grace_s
Effect = tuple[object, ...]


@dataclass(eq=False)
class Job:
    id: str
    tenant: str
    cls: str
    arrival: float
    cost: float
    slots: int
    body_bytes: int
    timeout_s: float
    seq: int = 0
    deadline: float = 0.0
    came: float = 0.0
    state: str = "queued"  # queued, inside, ended
    endpoint: Endpoint | None = None
    charged: float = 0.0
    settled: bool = False
    share_turn: int = 0
    tells_first_byte: bool = False
    begun: bool = False  # a byte or a token of its answer has been seen
    guaranteed: bool = False
    evicted: bool = False
    released_as: int = 0


@dataclass(eq=False)
class Flow:
    """A tenant in a class."""

    policy: TenantPolicy
    tag: float = -math.inf
    credit: float = 0.0
    turn: float = 0.0
    seq: int = 0
    eligible: bool = False

    def lift(self, v: float, allowance: float) -> None:
        self.tag = max(self.tag, v - allowance)
        self.credit = max(self.credit, v - self.tag)


@dataclass(eq=False)
class Class:
    policy: ClassPolicy
    flows: dict[str, Flow] = field(default_factory=dict)
    vlast: float = 0.0
    seq: int = 0
    share_tag: float = 0.0
    share_turn: int = 1
    retired: bool = False


@dataclass(eq=False)
class Endpoint:
    name: str
    added_at: float
    removed: bool = False
    down: bool = False
    attempted: bool = False
    read: bool = False
    last_take: int = 0


class ReferenceScheduler:
    def __init__(self, policy: PoolPolicy) -> None:
        self.policy = policy
        self.classes = [Class(p) for p in sorted(policy.classes, key=lambda p: p.rank)]
        self.jobs: list[Job] = []
        self.endpoints: list[Endpoint] = []
        self.absent_since: float | None = None
        self.now = -math.inf
        self.seq = self.releases = 0
        self.promoted_at = -math.inf
        self.share_v = 0.0
        self.evicted_at = -math.inf
        self.in_vain: tuple[Job | None, float] = (None, 0.0)  # evicting does not help it, until then
        self.out: list[Effect] = []

    # -- counts -----------------------------------------------------------------------------------------

    def cls(self, name: str) -> Class:
        return next(c for c in self.classes if c.policy.name == name)

    def queued(self, cls: Class | None = None, tenant: str | None = None) -> list[Job]:
        return [
            j
            for j in self.jobs
            if j.state == "queued" and (cls is None or j.cls == cls.policy.name) and tenant in (None, j.tenant)
        ]

    def slots(self, cls: Class, tenant: str | None = None) -> int:
        return sum(
            j.slots
            for j in self.jobs
            if j.state == "inside" and j.cls == cls.policy.name and tenant in (None, j.tenant)
        )

    def open(self, cls: Class, tenant: str) -> list[Job]:
        return [
            j
            for j in self.jobs
            if j.state != "queued" and not j.settled and (j.cls, j.tenant) == (cls.policy.name, tenant)
        ]

    def in_flight(self, endpoint: Endpoint) -> int:
        return sum(j.slots for j in self.jobs if j.state == "inside" and j.endpoint is endpoint)

    def inside(self, tenant: str) -> int:
        return sum(j.state == "inside" and j.tenant == tenant for j in self.jobs)

    # -- events -----------------------------------------------------------------------------------------

    def run(self, event: Callable[[], None], now: float) -> list[Effect]:
        """One event and what follows from it."""
        self.now = max(self.now, now)
        self.out = []
        event()
        if any(not e.removed and not e.down for e in self.endpoints):
            self.absent_since = None
        elif self.absent_since is None:
            self.absent_since = self.now
        self.dispatch()
        if self.expire():
            self.dispatch()
        self.preempt()
        return self.out

    def tick(self) -> None:
        pass

    def arrive(self, job: Job) -> None:
        self.seq += 1
        job.seq = self.seq
        job.came = self.now
        job.arrival = min(job.arrival, self.now)
        cls = self.cls(job.cls)
        if self.policy.traffic is Traffic.DRAINING:
            self.out.append(("refuse", job.id, "draining"))
            return
        full = self.full(job, cls)
        if full:
            victim = self.victim(job, cls, full)
            if victim is None:
                self.out.append(("refuse", job.id, full[0]))
                return
            self.out.append(("refuse", victim.id, "shed"))
            self.leave(victim)
        if not self.queued(cls):
            cls.share_tag = max(cls.share_tag, self.share_v)
        self.put(cls, job)
        job.deadline = job.arrival + min(job.timeout_s, cls.policy.queue_timeout_s)

    def end(self, name: str) -> None:
        for job in [j for j in self.jobs if j.id == name]:
            if job.state == "queued":
                self.leave(job)
            elif job.state == "inside":
                job.state = "ended"
                job.deadline = self.now + self.policy.usage_grace_s
                self.close(job)
                self.may_go(self.cls(job.cls), job.tenant)
                self.drop_endpoints()
                self.tidy(job.cls)

    def cancel(self, name: str) -> None:
        for job in [j for j in self.jobs if j.id == name]:
            if job.state == "queued":
                self.leave(job)
                self.out.append(("refuse", job.id, "cancelled"))
            elif job.state == "inside" and not job.evicted:
                job.evicted = True
                self.out.append(("evict", job.id))

    def begin(self, name: str) -> None:
        for job in self.jobs:
            job.begun = job.begun or (job.id == name and job.state == "inside")

    def usage(self, name: str, cost: Callable[[Job], float], source: str) -> None:
        for job in [j for j in self.jobs if j.id == name and j.state != "queued" and not j.settled]:
            self.settle(job, cost(job), source)

    def settle(self, job: Job, cost: float, source: str) -> None:
        if job.evicted:
            cost, source = 0.0, "error"
        more, cls = cost - job.charged, self.cls(job.cls)
        job.charged, job.settled = cost, True
        flow = cls.flows[job.tenant]
        flow.tag += more / flow.policy.weight
        flow.credit = max(0.0, flow.credit - max(0.0, more / flow.policy.weight))
        if any(c.policy.min_share > 0 for c in self.classes):
            self.share_v += more
            if cls.policy.min_share > 0 and job.share_turn == cls.share_turn and not job.evicted:
                cls.share_tag += more / cls.policy.min_share
        self.close(job)
        self.tidy(job.cls)
        self.out.append(("settled", job.id, cost, source))

    def add_endpoint(self, name: str) -> None:
        found = [e for e in self.endpoints if e.name == name]
        if not found:
            self.endpoints.append(Endpoint(name, self.now))
        elif found[0].removed:
            e = found[0]
            e.removed = e.down = e.attempted = e.read = False
            e.added_at = self.now

    def remove_endpoint(self, name: str) -> None:
        for endpoint in self.endpoints:
            if endpoint.name == name:
                endpoint.removed = True
        self.drop_endpoints()

    def scraped(self, name: str, *, possible: bool) -> None:
        """`possible`: it is a page that can be, and no older than the last."""
        for endpoint in self.endpoints:
            if endpoint.name == name:
                endpoint.attempted = True
                if possible:
                    endpoint.read, endpoint.down = True, False

    def scrape_failed(self, name: str, *, refused: bool) -> None:
        for endpoint in self.endpoints:
            if endpoint.name == name:
                endpoint.attempted = True
                endpoint.down = endpoint.down or refused

    def reconfigure(self, policy: PoolPolicy) -> None:
        vs = {c: self.v(c) for c in self.classes}
        self.policy, self.in_vain = policy, (None, 0.0)
        policies = {p.name: p for p in policy.classes}
        for cls in self.classes:
            new = policies.pop(cls.policy.name, None)
            cls.retired = new is None
            if new is None:
                continue
            if new.queue_timeout_s != cls.policy.queue_timeout_s:
                for job in self.queued(cls):
                    job.deadline = job.arrival + min(job.timeout_s, new.queue_timeout_s)
            before, cls.policy = cls.policy.min_share, new
            if new.min_share > 0 and new.min_share != before:
                cls.share_tag = self.share_v + (cls.share_tag - self.share_v) * before / new.min_share
                cls.share_turn += 1
        self.classes = sorted([*self.classes, *(Class(p) for p in policies.values())], key=lambda c: c.policy.rank)
        for cls in list(self.classes):
            for tenant, flow in cls.flows.items():
                assert flow.policy.weight == policy.tenant(tenant).weight, "weights are not changed here"
                flow.policy = policy.tenant(tenant)
                held, flow.eligible = not flow.eligible, False
                if self.unheld(cls, tenant):
                    flow.eligible = True
                    if held:
                        flow.lift(vs[cls], flow.turn)
            self.tidy(cls.policy.name)

    # -- the queue of a class -----------------------------------------------------------------------------

    def unheld(self, cls: Class, tenant: str) -> bool:
        cap = cls.flows[tenant].policy.max_in_flight
        return bool(self.queued(cls, tenant)) and (cap is None or self.slots(cls, tenant) < cap)

    def may_go(self, cls: Class, tenant: str) -> None:
        """Whether the tenant may go has perhaps changed. What a limit kept from it is not saved up, but for a turn."""
        flow, may = cls.flows[tenant], self.unheld(cls, tenant)
        if may and not flow.eligible:
            flow.lift(self.v(cls), flow.turn)
        flow.eligible = may

    def first(self, cls: Class) -> str | None:
        names = [t for t, flow in cls.flows.items() if flow.eligible]
        return min(names, key=lambda t: (cls.flows[t].tag, self.slots(cls, t), cls.flows[t].seq), default=None)

    def v(self, cls: Class) -> float:
        first = self.first(cls)
        return cls.vlast if first is None else cls.flows[first].tag + cls.flows[first].credit

    def put(self, cls: Class, job: Job) -> None:
        flow = cls.flows.setdefault(job.tenant, Flow(self.policy.tenant(job.tenant)))
        if not self.queued(cls, job.tenant):
            if not self.slots(cls, job.tenant) and not self.open(cls, job.tenant):
                flow.turn = 0.0
            cls.seq += 1
            flow.seq, flow.credit = cls.seq, 0.0
            flow.lift(self.v(cls), 0.0)
        self.jobs.append(job)
        self.may_go(cls, job.tenant)

    def next_of(self, cls: Class) -> Job | None:
        first = self.first(cls)
        if first is None:
            return None
        by_deadline = cls.policy.order is Order.DEADLINE
        return min(self.queued(cls, first), key=lambda j: (j.deadline if by_deadline else j.arrival, j.seq))

    def leave(self, job: Job) -> None:
        """A queued one goes without being served."""
        self.jobs.remove(job)
        cls = self.cls(job.cls)
        self.may_go(cls, job.tenant)
        self.tidy(job.cls)

    def close(self, job: Job) -> None:
        if job.settled and job.state == "ended":
            self.jobs.remove(job)

    def tidy(self, name: str) -> None:
        """Busy periods that are over are forgotten, and classes that are gone."""
        cls = self.cls(name)
        if not any(j.cls == name for j in self.jobs):
            cls.flows, cls.vlast = {}, 0.0
            if cls.retired:
                self.classes.remove(cls)

    # -- the door ---------------------------------------------------------------------------------------

    def full(self, job: Job, cls: Class) -> tuple[str, bool] | None:
        """(reason, whether the class is full) of the first limit that is hit."""
        if len(self.queued(cls, job.tenant)) >= self.policy.tenant(job.tenant).max_queued:
            return "tenant_limit", False
        class_full = len(self.queued(cls)) >= cls.policy.max_queued
        pool_full = len(self.queued()) >= self.policy.max_queued
        return ("queue_full", class_full) if class_full or pool_full else None

    def victim(self, job: Job, cls: Class, full: tuple[str, bool]) -> Job | None:
        reason, class_full = full
        if reason == "tenant_limit" or cls.policy.overflow is Overflow.REJECT_NEWEST:
            return None
        if (class_full and len(self.queued(cls)) > cls.policy.max_queued) or len(
            self.queued()
        ) > self.policy.max_queued:
            return None  # one less is not enough
        waiting = [c for c in self.classes if self.queued(c) and c.policy.rank >= cls.policy.rank]
        candidate = cls if class_full else waiting[-1] if waiting else None
        if candidate is None or not self.queued(candidate):
            return None
        loads = {t: self.load(candidate, t) for t in candidate.flows if self.queued(candidate, t)}
        heaviest = max(loads, key=lambda t: (loads[t], candidate.flows[t].seq))
        if candidate is cls:
            own = self.load(cls, job.tenant) + job.cost / self.policy.tenant(job.tenant).weight
            if heaviest == job.tenant or loads[heaviest] <= own:
                return None
        by_deadline = candidate.policy.order is Order.DEADLINE
        return max(self.queued(candidate, heaviest), key=lambda j: (j.deadline if by_deadline else j.arrival, j.seq))

    def load(self, cls: Class, tenant: str) -> float:
        return sum(j.cost for j in self.queued(cls, tenant)) / self.policy.tenant(tenant).weight

    # -- time -------------------------------------------------------------------------------------------

    def expires(self, job: Job) -> float:
        if job.state == "ended" or self.absent_since is None:
            return job.deadline
        return min(job.deadline, max(job.came, self.absent_since) + self.policy.no_endpoint_timeout_s)

    def expire(self) -> bool:
        """What is late goes, in the order of its deadlines. Whether that may let something else go."""
        left = False
        shares = any(c.policy.min_share > 0 for c in self.classes)
        late = [j for j in self.jobs if j.state != "inside" and self.expires(j) <= self.now]
        for job in sorted(late, key=lambda j: (self.expires(j), j.seq)):
            if job.state == "ended":
                self.settle(job, job.cost, "estimate")
                left = left or shares
                continue
            by_pool = self.expires(job) < job.deadline
            why = "queue_timeout" if self.absent_since is None else "no_capacity"
            if self.policy.traffic is Traffic.PAUSED and not by_pool:
                why = "paused"
            self.out.append(("refuse", job.id, why))
            self.leave(job)
            left = True
        return left

    # -- dispatch ---------------------------------------------------------------------------------------

    def turns_now(self) -> list[tuple[Class, ClassPolicy, Job, str]]:
        return [] if self.policy.traffic is Traffic.PAUSED else self.turns()

    def turns(self) -> list[tuple[Class, ClassPolicy, Job, str]]:
        """(class, what its priority goes by, next request, why out of turn), in order."""
        behind = [c for c in self.classes if c.policy.min_share > 0 and c.share_tag < self.share_v]
        behind.sort(key=lambda c: c.share_tag)
        found = [(cls, cls.policy, self.next_of(cls), "behind") for cls in behind]
        rested = self.releases + 1 - self.promoted_at >= self.policy.promote_every
        for i, cls in enumerate(self.classes):
            below = self.classes[i + 1] if i + 1 < len(self.classes) else None
            if below is not None and below.policy.promote_after_s is not None and rested:
                job = self.next_of(below)
                if job is not None and self.now - job.arrival >= below.policy.promote_after_s:
                    found.append((below, cls.policy, job, "promoted"))
            found.append((cls, cls.policy, self.next_of(cls), ""))
        return [(c, p, job, why) for c, p, job, why in found if job is not None and not self.capped(c)]

    def capped(self, cls: Class) -> bool:
        cap = cls.policy.max_in_flight
        return cap is not None and self.slots(cls) >= cap

    def accepts(self, endpoint: Endpoint, gone: int = 0) -> bool:
        """`gone`: of its slots that are taken to be free."""
        if endpoint.removed or endpoint.down:
            return False
        starting = not endpoint.read and not endpoint.attempted and self.now - endpoint.added_at < GRACE_S
        return not starting and self.in_flight(endpoint) - gone < max(1, self.policy.window.fixed)

    def dispatch(self) -> None:
        while turns := self.turns_now():
            cls, counts_as, job, why = turns[0]
            open_ones = [e for e in self.endpoints if self.accepts(e)]
            if not open_ones:
                return
            endpoint = min(open_ones, key=lambda e: (self.in_flight(e), e.last_take))
            self.release(cls, counts_as, job, endpoint)
            job.guaranteed = why != ""
            if why == "promoted":
                self.promoted_at = self.releases

    def release(self, cls: Class, counts_as: ClassPolicy, job: Job, endpoint: Endpoint) -> None:
        priority = counts_as.priority_base + min(self.inside(job.tenant), self.policy.priority_steps - 1)
        flow = cls.flows[job.tenant]
        step = job.cost / flow.policy.weight
        cls.vlast = max(cls.vlast, flow.tag + flow.credit)
        flow.tag += step
        flow.credit, flow.turn = max(0.0, flow.credit - step), step
        job.state, job.endpoint, job.charged = "inside", endpoint, job.cost
        flow.eligible = self.unheld(cls, job.tenant)
        self.releases += 1
        endpoint.last_take = job.released_as = self.releases
        if any(c.policy.min_share > 0 for c in self.classes):
            self.share_v += job.cost
            if cls.policy.min_share > 0:
                if cls.share_tag > self.share_v:
                    cls.share_tag, cls.share_turn = self.share_v, cls.share_turn + 1
                cls.share_tag += job.cost / cls.policy.min_share
                job.share_turn = cls.share_turn
        self.out.append(("release", job.id, endpoint.name, priority))

    # -- preemption -------------------------------------------------------------------------------------

    def candidates(self) -> list[Job]:
        """The latest release first."""
        found = [
            j
            for j in self.jobs
            if j.state == "inside" and self.cls(j.cls).policy.preemptible
            if not (j.guaranteed or j.evicted or j.settled)
            if self.policy.preempt_after_first_byte or (j.tells_first_byte and not j.begun)
        ]
        return sorted(found, key=lambda j: -j.released_as)

    def preempt_at(self) -> float:
        """When time alone makes somebody leave, or may."""
        turns = self.turns_now()
        if not turns or turns[0][0].policy.preempt_after_s is None or not self.candidates():
            return math.inf
        at = max(turns[0][2].arrival + turns[0][0].policy.preempt_after_s, self.next_eviction())
        return at if at > self.now else math.inf

    def next_eviction(self) -> float:
        return self.evicted_at + 1.0 / self.policy.preempt_per_s

    def preempt(self) -> None:
        turns = self.turns_now()
        if not turns or self.now < self.next_eviction() or not self.candidates():
            return
        cls, _, job, _ = turns[0]
        after = cls.policy.preempt_after_s
        if after is None or self.now < job.arrival + after:
            return
        if self.in_vain[0] is job and self.now < self.in_vain[1]:
            return
        leaving = {e: sum(j.slots for j in self.jobs if j.evicted and j.endpoint is e and j.state == "inside")
                   for e in self.endpoints}  # fmt: skip
        if any(self.accepts(e, leaving[e]) for e in self.endpoints):
            return
        together: dict[Endpoint, list[Job]] = {e: [] for e in self.endpoints}
        for victim in self.candidates():
            endpoint = victim.endpoint
            assert endpoint is not None
            if self.cls(victim.cls).policy.rank <= cls.policy.rank or len(together[endpoint]) == 4:
                continue
            together[endpoint].append(victim)
            if self.accepts(endpoint, leaving[endpoint] + sum(j.slots for j in together[endpoint])):
                first = together[endpoint][0]
                first.evicted = True
                self.evicted_at = self.now
                self.out.append(("evict", first.id))
                return
        self.in_vain = (job, self.now + 0.1)

    def drop_endpoints(self) -> None:
        self.endpoints = [e for e in self.endpoints if not e.removed or self.in_flight(e)]
