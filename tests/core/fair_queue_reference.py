"""The fair queue the slow way: what the theory says, by scanning everything. For tests.

No heaps, no keys, nothing is forgotten but at the end of a busy period, counts are taken from the lists of
requests. One `Pool` has the clock and the buckets that its queues share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from extproc.core.model import Order, PoolPolicy, Request, TenantPolicy

Key = tuple[str, ...]
ROOT: Key = ()


@dataclass
class Bucket:
    rate: float
    burst: float
    level: float
    at: float

    def now(self, now: float) -> float:
        return min(self.burst, self.level + self.rate * max(0.0, now - self.at))

    def take(self, amount: float, now: float) -> None:
        self.level, self.at = min(self.burst, self.now(now) - amount), max(now, self.at)

    def ready_at(self) -> float:
        """From when it is positive, or full."""
        if self.level > 0 or self.level >= self.burst:
            return -math.inf
        empty_until = self.at - self.level / self.rate
        return math.nextafter(empty_until, math.inf) if self.burst else empty_until


@dataclass
class Pool:
    now: float = 0.0
    buckets: dict[str, Bucket] = field(default_factory=dict)
    queues: list[ReferenceQueue] = field(default_factory=list)


@dataclass(eq=False)
class Node:
    key: Key
    policy: TenantPolicy
    tag: float = -math.inf
    credit: float = 0.0
    turn: float = 0.0
    seq: int = 0
    vlast: float = 0.0

    def lift(self, v: float, allowance: float) -> None:
        self.tag = max(self.tag, v - allowance)
        self.credit = max(self.credit, v - self.tag)


@dataclass(eq=False)
class Run:
    """A request that was popped."""

    request: Request
    charged: float
    freed: bool = False
    settled: bool = False


class ReferenceQueue:
    def __init__(self, pool: Pool, flows: PoolPolicy, order: Order) -> None:
        self.pool, self.flows, self.order = pool, flows, order
        self.nodes: dict[Key, Node] = {ROOT: Node(ROOT, TenantPolicy())}
        self.leaf_of: dict[str, Key] = {}  # tenants that have a leaf
        self.queued: list[Request] = []
        self.runs: list[Run] = []
        self.eligible: set[Key] = set()
        self.seq = 0
        pool.queues.append(self)

    # -- what the lists say ---------------------------------------------------------------------------

    def under(self, key: Key, request: Request) -> bool:
        return self.leaf_of[request.tenant][: len(key)] == key

    def waiting(self, key: Key) -> list[Request]:
        return [r for r in self.queued if self.under(key, r)]

    def open(self, key: Key) -> list[Run]:
        return [run for run in self.runs if not run.settled and self.under(key, run.request)]

    def slots(self, key: Key) -> int:
        return sum(run.request.slots for run in self.runs if not run.freed and self.under(key, run.request))

    def owed(self, key: Key) -> float:
        return sum(run.charged for run in self.open(key))

    def idle(self, key: Key) -> bool:
        return not (self.waiting(key) or self.open(key) or self.slots(key))

    def children(self, key: Key) -> list[Node]:
        return [node for node in self.nodes.values() if len(node.key) == len(key) + 1 and node.key[:-1] == key]

    def chain(self, key: Key) -> list[Node]:
        """From the leaf up, without the root."""
        return [self.nodes[key[:n]] for n in range(len(key), 0, -1)]

    def bucket(self, node: Node) -> Bucket | None:
        return None if node.policy.rate is None else self.pool.buckets[node.key[-1]]

    def held(self, node: Node) -> bool:
        cap, bucket = node.policy.max_in_flight, self.bucket(node)
        return (cap is not None and self.slots(node.key) >= cap) or (
            bucket is not None and bucket.ready_at() > self.pool.now
        )

    def may_go(self, node: Node) -> bool:
        if not self.waiting(node.key) or self.held(node):
            return False
        return node.key in self.leaf_of.values() or any(self.may_go(child) for child in self.children(node.key))

    def turns(self, key: Key) -> list[Node]:
        """Eligible children in fair order."""
        nodes = [node for node in self.children(key) if node.key in self.eligible]
        return sorted(nodes, key=lambda n: (n.tag, self.slots(n.key), n.seq))

    def v(self, key: Key) -> float:
        turns = self.turns(key)
        return turns[0].tag + turns[0].credit if turns else self.nodes[key].vlast

    # -- nodes ------------------------------------------------------------------------------------

    def policy_of(self, key: Key) -> TenantPolicy:
        return TenantPolicy() if len(key) > 1 and key[-1] == key[-2] else self.flows.tenant(key[-1])

    def make(self, key: Key) -> Node:
        node = self.nodes[key] = Node(key, self.policy_of(key))
        self.join(node)
        return node

    def join(self, node: Node) -> None:
        rate, burst, now = node.policy.rate, node.policy.rate_burst, self.pool.now
        if rate is not None:
            bucket = self.pool.buckets.setdefault(node.key[-1], Bucket(rate, burst, burst, now))
            if (bucket.rate, bucket.burst) != (rate, burst):
                missing = bucket.burst - bucket.now(now)
                bucket.rate, bucket.burst, bucket.level, bucket.at = rate, burst, burst - missing, now

    def settle_in(self, tenant: str, path: Key, converted: Callable[[Key], None]) -> Key:
        """The key of a leaf with this path. Nodes in between are made."""
        key = ROOT
        for name in path[:-1]:
            key = (*key, name)
            if key not in self.nodes:
                self.make(key)
            elif key in self.leaf_of.values():
                converted(key)
        key = (*key, path[-1])
        if key in self.nodes and key not in self.leaf_of.values() and not self.idle(key):
            key = (*key, path[-1])
        self.leaf_of[tenant] = key
        return key

    def convert(self, key: Key) -> None:
        """A leaf becomes a group, its queue a leaf in it."""
        tenant = next(t for t, k in self.leaf_of.items() if k == key)
        owed, idle, waits = self.owed(key), self.idle(key), bool(self.waiting(key))
        if idle:
            del self.leaf_of[tenant]
            return
        own = (*key, key[-1])
        self.leaf_of[tenant] = own
        leaf = self.make(own)
        leaf.tag, leaf.seq = owed, self.nodes[key].seq
        if waits:
            self.eligible.add(own)

    def renew(self, node: Node) -> None:
        self.seq += 1
        node.seq = self.seq

    # -- operations -------------------------------------------------------------------------------

    def tell(self, now: float) -> None:
        self.pool.now = max(now, self.pool.now)
        waits = [n for n in self.nodes.values() if n.key and n.key not in self.eligible and self.waiting(n.key)]
        for node in sorted(waits, key=lambda n: n.seq):
            self.update(node.key)

    def update(self, key: Key) -> None:
        """Nodes from here up may have become eligible, or not."""
        for node in self.chain(key):
            # One level after the other: a group may go when a child has been let in.
            leaf = node.key in self.leaf_of.values()
            may = self.may_go(node) and (leaf or bool(self.turns(node.key)))
            if may and node.key not in self.eligible:
                node.lift(self.v(node.key[:-1]), max(node.policy.burst / node.policy.weight, node.turn))
                self.eligible.add(node.key)
            elif not may:
                self.eligible.discard(node.key)

    def put(self, request: Request, now: float) -> None:
        self.tell(now)
        if request.tenant not in self.leaf_of:
            path = self.flows.path(request.tenant)
            key = self.settle_in(request.tenant, path, self.convert)
            if key not in self.nodes:
                self.make(key)
        key = self.leaf_of[request.tenant]
        for n in range(1, len(key)):
            if key[:n] not in self.nodes:
                self.make(key[:n])
        for node in self.chain(key):
            if not self.waiting(node.key):
                if self.idle(node.key):
                    node.turn = 0.0
                self.renew(node)
                node.credit = 0.0
                node.lift(self.v(node.key[:-1]), node.policy.burst / node.policy.weight)
        self.queued.append(request)
        self.update(key)

    def head(self, key: Key, now: float) -> Request | None:
        while key not in self.leaf_of.values():
            turns = self.turns(key)
            if not turns:
                return None
            key = turns[0].key
        return self.in_order(key, now)[0]

    def peek(self, now: float) -> Request | None:
        self.tell(now)
        return self.head(ROOT, now)

    def in_order(self, key: Key, now: float) -> list[Request]:
        waiting = self.waiting(key)
        if self.order is Order.DEADLINE:
            return sorted(waiting, key=lambda r: (r.deadline, r.seq))
        waiting.sort(key=lambda r: (r.arrival, r.seq))
        if self.order is Order.SHORTEST_FIRST:
            near = sorted(waiting[:8], key=lambda r: (r.cost / (1 + max(0.0, now - r.arrival) / 10), r.arrival, r.seq))
            return near + waiting[8:]
        return waiting

    def heads(self, now: float, slack: float, key: Key = ROOT) -> Iterator[Request]:
        turns = self.turns(key)
        for node in turns:
            if node.tag <= turns[0].tag + slack:
                if node.key in self.leaf_of.values():
                    yield self.in_order(node.key, now)[0]
                else:
                    yield from self.heads(now, slack, node.key)

    def pop(self, request: Request, charge: float, now: float) -> None:
        self.tell(now)
        key = self.leaf_of[request.tenant]
        self.queued.remove(request)
        self.runs.append(Run(request, charge))
        for node in self.chain(key):
            parent, step = self.nodes[node.key[:-1]], charge / node.policy.weight
            parent.vlast = max(parent.vlast, node.tag + node.credit)
            node.tag += step
            node.credit = max(0.0, node.credit - step)
            node.turn = step
        self.update(key)
        self.take(key, charge)

    def take(self, key: Key, amount: float) -> None:
        for node in self.chain(key):
            bucket = self.bucket(node)
            if bucket is not None:
                bucket.take(amount, self.pool.now)
                for queue in self.pool.queues:
                    for other in [n for n in queue.nodes.values() if n.key and n.key[-1] == node.key[-1]]:
                        if queue.bucket(other) is not None:
                            queue.update(other.key)

    def run_of(self, request: Request) -> Run:
        return next(run for run in self.runs if run.request is request)

    def free(self, request: Request) -> None:
        self.run_of(request).freed = True
        self.update(self.leaf_of[request.tenant])
        self.rest(request)

    def true_up(self, request: Request, cost: float, *, final: bool) -> None:
        run, key = self.run_of(request), self.leaf_of[request.tenant]
        more = cost - run.charged
        if not final and more <= 0:
            return
        run.charged, run.settled = cost, final
        for node in self.chain(key):
            node.tag += more / node.policy.weight
            node.credit = max(0.0, node.credit - max(0.0, more / node.policy.weight))
        self.take(key, more)
        self.rest(request)

    def remove(self, request: Request) -> None:
        self.queued.remove(request)
        self.update(self.leaf_of[request.tenant])
        self.rest(request)

    def rest(self, request: Request) -> None:
        """Busy periods that are over."""
        self.runs = [run for run in self.runs if not (run.freed and run.settled)]
        key = self.leaf_of[request.tenant]
        for n in range(len(key) - 1, -1, -1):
            if self.idle(key[:n]):
                self.clear(key[:n])

    def clear(self, key: Key) -> None:
        for other in [k for k in self.nodes if len(k) > len(key) and k[: len(key)] == key]:
            del self.nodes[other]
        self.leaf_of = {t: k for t, k in self.leaf_of.items() if k in self.nodes}
        self.nodes[key].vlast = 0.0

    # -- another policy ---------------------------------------------------------------------------

    def reconfigure(self, flows: PoolPolicy, order: Order, kept: set[Key]) -> None:
        """`kept`: nodes that the queue under test has. Others must be idle and not in debt, and go."""
        for node in [n for n in self.nodes.values() if n.key and n.key not in kept]:
            assert self.idle(node.key) and node.tag <= self.v(node.key[:-1])
            del self.nodes[node.key]
        self.leaf_of = {t: k for t, k in self.leaf_of.items() if k in self.nodes}
        times = {key: self.v(key) for key in self.nodes}
        held = {n.key for n in self.nodes.values() if self.waiting(n.key) and n.key not in self.eligible}
        self.flows, self.order = flows, order
        self.eligible = set()
        moving = [t for t, key in self.leaf_of.items() if self.home(key) != flows.path(t)]
        moving.sort(key=lambda t: self.nodes[self.leaf_of[t]].seq)
        leaves = {t: self.nodes[self.leaf_of[t]] for t in moving}
        debts = {t: max(0.0, n.tag - times[n.key[:-1]]) * n.policy.weight for t, n in leaves.items()}
        for node in self.nodes.values():
            if node.key and node not in leaves.values():
                v, new = times[node.key[:-1]], self.policy_of(node.key)
                ratio = node.policy.weight / new.weight
                node.tag, node.credit, node.turn = v + (node.tag - v) * ratio, node.credit * ratio, node.turn * ratio
                node.policy = new
                self.join(node)
        books = {t: self.owed(n.key) for t, n in leaves.items()}
        outside = {t: ([r for r in self.queued if r.tenant == t], [r for r in self.runs if r.request.tenant == t])
                   for t in moving}  # fmt: skip
        for t, leaf in leaves.items():
            for node in self.chain(leaf.key)[1:]:
                node.tag -= books[t] / node.policy.weight
            del self.nodes[leaf.key]
            del self.leaf_of[t]
        self.queued = [r for r in self.queued if r.tenant not in leaves]
        self.runs = [r for r in self.runs if r.request.tenant not in leaves]
        for t in leaves:

            def convert(key: Key) -> None:
                self.convert(key)
                own = (*key, key[-1])
                self.eligible.discard(own)

            key = self.settle_in(t, flows.path(t), convert)
            self.clear_idle(key)
            parent = self.nodes[key[:-1]]
            node = self.make(key)
            self.renew(node)
            node.tag = times.get(key[:-1], parent.vlast) + debts[t] / node.policy.weight
            for above in self.chain(key)[1:]:
                v = times.get(above.key[:-1], self.nodes[above.key[:-1]].vlast)
                if (outside[t][0] and not self.waiting(above.key)) or above.tag == -math.inf:
                    self.renew(above)
                    above.lift(v, above.policy.burst / above.policy.weight)
                above.tag += books[t] / above.policy.weight
            self.queued += outside[t][0]
            self.runs += outside[t][1]
        self.leaf_of = {t: k for t, k in self.leaf_of.items() if k in self.nodes}
        for key in sorted(self.nodes, key=len, reverse=True):
            if key in self.nodes and key not in self.leaf_of.values() and self.idle(key):
                self.clear(key)
        for node in sorted(self.nodes.values(), key=lambda n: len(n.key), reverse=True):
            if node.key and self.may_go(node):
                if node.key in held and node not in leaves.values():
                    v = times.get(node.key[:-1], self.nodes[node.key[:-1]].vlast)
                    node.lift(v, max(node.policy.burst / node.policy.weight, node.turn))
                self.eligible.add(node.key)

    def clear_idle(self, key: Key) -> None:
        if key in self.nodes:
            self.clear(key)
            del self.nodes[key]

    def home(self, key: Key) -> Key:
        return key[:-1] if len(key) > 1 and key[-1] == key[-2] else key
