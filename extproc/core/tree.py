"""The tree of tenants of one fair queue: who has a node, who may go, and who is forgotten.

Structure
    A tenant has a leaf under the groups that its path names. A name that has both requests of its own and
    names under it is a group, with a leaf of the same path in it for its own requests (weight 1 beside
    the others; weight, cap and rate of the name are the group's).

May go
    `admit` puts a node that has become eligible into its parent's order, `leave` takes it out. Caps and
    buckets are looked at when they change; time alone opens a bucket, so nodes that wait for one are in
    a heap by time, and `tell` wakes those that are due.

Other replicas
    Where several replicas share a pool, `spent` is what this one has charged, for the others to hear of, and what
    they tell is written here: `charge_foreign` what they have charged, `hold_elsewhere` the slots that they hold.
    Nothing that they tell makes a node: whom this replica does not know has neither debt nor credit here.

Forgetting
    See "forget" in `extproc.core.fair_queue` for what it must not change. `retire` is called when a leaf
    has gone idle.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from typing import Protocol

from extproc.core.model import MAX_DEPTH, TenantPolicy
from extproc.core.node import Group, Leaf, Node, check_policy, leave, place
from extproc.core.sorted_blocks import insert, remove
from extproc.core.token_bucket import Buckets

_DEBTORS = 256  # idle children in debt that a group remembers, and two more for each one that is not idle
_AT_ONCE = 64  # nodes deleted in one call at most, so that none takes long
_PLAIN = TenantPolicy()
_BOOKS = (
    "tag",
    "credit",
    "turn",
    "seq",
    "queued",
    "queued_cost",
    "queued_tokens",
    "queued_bytes",
    "in_flight",
    "open",
    "owed",
)


class Flows(Protocol):
    """What a name is allowed. `PoolPolicy` is one."""

    def path(self, tenant: str) -> tuple[str, ...]:
        """Of its nodes, from the top level down to its own, one to five."""

    def tenant(self, name: str) -> TenantPolicy:
        """Of a node, by its path."""


class Tree:
    """Nodes of one (pool, class). `FairQueue` is the operations on it."""

    def __init__(self, flows: Flows, buckets: Buckets | None) -> None:
        self.flows = flows
        self._buckets = Buckets() if buckets is None else buckets
        self.root = Group("", None, _PLAIN)  # public to read its books: each event does
        self._leaves: dict[str, Leaf] = {}
        self._waking: list[tuple[float, int, Node]] = []
        self._seq = 0  # of nodes that became backlogged
        self._wakes = 0
        self.nodes = 0  # all nodes with state, without the root
        self.wide = 0  # slots that what is queued asks for beyond one each
        # Tenant -> cost charged here since `take_spent`; true-ups may make it less than 0. Also of those for whom it is
        # 0, but of whom something else has changed: what they have queued, or inside. None: nobody asks.
        self.spent: dict[str, float] | None = None
        self.elsewhere: dict[str, int] = {}  # tenant -> slots that it holds at other replicas
        self._elsewhere_by_path: dict[str, int] = {}  # of nodes; those that are not here too

    @property
    def time(self) -> float:
        """The latest `now` that a queue of the pool was told."""
        return self._buckets.now

    @property
    def size(self) -> int:
        """Tenants that have state here."""
        return len(self._leaves)

    def leaves(self) -> Iterator[Leaf]:
        return iter(self._leaves.values())

    def leaf(self, tenant: str) -> Leaf | None:
        return self._leaves.get(tenant)

    def queued(self, tenant: str) -> int:
        """Requests of one tenant."""
        leaf = self._leaves.get(tenant)
        return 0 if leaf is None else leaf.queued

    def in_buckets(self) -> Iterator[tuple[str, Node]]:
        """Nodes of this queue that a bucket knows, and the path of that bucket. O(all of the pool); for tests."""
        for bucket in self._buckets.by_path.values():
            for node, queue in bucket.members.items():
                if queue is self and isinstance(node, Node):
                    yield bucket.path, node

    def groups(self) -> Iterator[Group]:
        """All groups, those above before those below. The root is the first."""
        found = [self.root]
        for group in found:
            found.extend(child for child in group.children.values() if isinstance(child, Group))
        return iter(found)

    # -- other replicas ---------------------------------------------------------------------------

    def take_spent(self) -> dict[str, float]:
        """What was charged since the last time, and to whom; see `spent`. Raises ValueError where nobody counts."""
        if self.spent is None:
            raise ValueError("what was charged is counted in pools that replicas share only")
        spent, self.spent = self.spent, {}
        return spent

    def charge_foreign(self, tenant: str, cost: float, now: float) -> None:
        """Other replicas have charged a tenant: its nodes here are charged as if it had been served here, and so are
        the buckets of its path."""
        self.tell(now)
        for node in self._nodes_of(tenant):
            parent = node.parent
            if parent is None or node.tag == -math.inf:
                continue
            idle = node.idle
            if idle:
                remove(parent.debtors, debt_key(node))
            step = cost / node.weight
            reached = node.tag + node.credit
            node.tag += step
            node.credit = max(0.0, node.credit - step)
            # It was its turn elsewhere. Else those that come to an idle group here would be as far behind it as it was
            # served elsewhere in the meantime.
            parent.vlast = max(parent.vlast, reached)
            if idle:
                insert(parent.debtors, debt_key(node))
            elif node.key is not None:
                place(parent, node)
            if parent.debtors:
                self.forgive(parent, parent.settled_time())
        for path in self.flows.path(tenant):
            bucket = self._buckets.get(path)
            if bucket is not None:
                self._buckets.take(bucket, cost)

    def hold_elsewhere(self, tenant: str, slots: int, now: float) -> None:
        """A tenant holds `slots` of this class at other replicas, in all. They count for the caps on its path, and in
        the root for that of the class."""
        self.tell(now)
        more = slots - self.elsewhere.get(tenant, 0)
        if not more:
            return
        if slots:
            self.elsewhere[tenant] = slots
        else:
            del self.elsewhere[tenant]
        self.root.elsewhere += more
        self._count_elsewhere(self.flows.path(tenant), more)
        nodes = self._nodes_of(tenant)
        for node in nodes:
            if node.parent is not None:
                node.elsewhere = self._elsewhere_by_path.get(node.path, 0)
        for node in nodes:
            if node.cap is not None:
                self.reconsider(node)

    def recount_elsewhere(self) -> None:
        """Paths are others now. The nodes are told as they join the tree, or by the caller."""
        self._elsewhere_by_path = {}
        for tenant, slots in self.elsewhere.items():
            self._count_elsewhere(self.flows.path(tenant), slots)

    def elsewhere_of(self, path: str) -> int:
        """Slots held at other replicas under the node of this path."""
        return self._elsewhere_by_path.get(path, 0)

    def _count_elsewhere(self, path: tuple[str, ...], more: int) -> None:
        held = self._elsewhere_by_path
        for name in path:
            total = held.get(name, 0) + more
            if total:
                held[name] = total
            else:
                held.pop(name, None)

    def _nodes_of(self, tenant: str) -> list[Node]:
        """The nodes on a tenant's path that are there, the lowest first, without the root."""
        found: list[Node] = []
        node: Node | None = self._leaves.get(tenant)
        if node is not None:
            while node is not None and node.parent is not None:
                found.append(node)
                node = node.parent
            return found
        node = self.root
        for name in self.flows.path(tenant):
            node = node.children.get(name) if isinstance(node, Group) else None
            if node is None:
                break
            found.append(node)
        found.reverse()
        return found

    # -- structure --------------------------------------------------------------------------------

    def checked_path(self, flows: Flows, tenant: str) -> tuple[str, ...]:
        """Raises ValueError where a policy on it is none. Nothing has been changed then."""
        path = flows.path(tenant)
        if not 1 <= len(path) <= MAX_DEPTH:
            raise ValueError(f"path of tenant {tenant!r} has {len(path)} levels, from 1 to {MAX_DEPTH} are possible")
        for name in path:
            check_policy(name, flows.tenant(name))
        return path

    def grow(self, tenant: str) -> Leaf:
        """A leaf for a tenant that has none, and the groups above it."""
        path = self.checked_path(self.flows, tenant)
        group = self.home_of(path, self._convert_in_order)
        leaf = Leaf(path[-1], group, self.policy(path[-1], group), tenant)
        idle = group.children.get(leaf.path)
        if idle is not None:
            # A group under which nothing goes on: only what it owes counts.
            remove(group.debtors, debt_key(idle))
            leaf.tag, leaf.seq = idle.tag, idle.seq
            self.delete(idle)
            insert(group.debtors, debt_key(leaf))
        self.add(group, leaf)
        return leaf

    def home_of(self, path: tuple[str, ...], convert: Callable[[Leaf], Group]) -> Group:
        """The group for a leaf with this path. Groups that are not there are made; a leaf in the place of one
        is turned into one by `convert`. In the place of the leaf itself there is nothing, or an idle group."""
        group = self.root
        for name in path[:-1]:
            child = group.children.get(name)
            if child is None:
                child = Group(name, group, self.policy(name, group))
                self.add(group, child)
            elif isinstance(child, Leaf):
                child = convert(child)
            assert isinstance(child, Group)  # noqa: S101 - one of the three
            group = child
        own = group.children.get(path[-1])
        if isinstance(own, Leaf):
            raise ValueError(f"path {path!r} is that of tenant {own.tenant!r}")
        return own if isinstance(own, Group) and not own.idle else group

    def policy(self, path: str, group: Group) -> TenantPolicy:
        """Of a child of `group`. Where it has the path of its group, the policy of the name is the group's."""
        return _PLAIN if group.path == path and group.parent is not None else self.flows.tenant(path)

    def add(self, group: Group, child: Node) -> None:
        group.children[child.path] = child
        self.nodes += 1
        if self.elsewhere:
            child.elsewhere = self._elsewhere_by_path.get(child.path, 0)
        if isinstance(child, Leaf):
            self._leaves[child.tenant] = child
        self.join_bucket(child)

    def convert(self, leaf: Leaf) -> Group:
        """Put a group with the books of a leaf into its place, and the leaf into the group. An idle leaf is
        gone: nothing goes on under the group, so nobody there owes anybody. The orders are the caller's."""
        parent = leaf.parent
        assert parent is not None  # noqa: S101 - a leaf is not the root
        self.delete(leaf)
        group = Group(leaf.path, parent, self.policy(leaf.path, parent))
        for name in _BOOKS:
            setattr(group, name, getattr(leaf, name))
        self.add(parent, group)
        if leaf.idle:
            return group
        leaf.parent = group
        leaf.weight, leaf.cap, leaf.burst = _PLAIN.weight, None, 0.0
        # V is 0 there. What it has been charged and may get back stays in its tag.
        leaf.tag, leaf.credit, leaf.turn = leaf.owed, 0.0, 0.0
        group.loose = leaf.owed
        self.add(group, leaf)
        return group

    def _convert_in_order(self, leaf: Leaf) -> Group:
        parent, eligible = leaf.parent, leaf.key is not None
        assert parent is not None  # noqa: S101 - a leaf is not the root
        if leaf.idle:
            remove(parent.debtors, debt_key(leaf))
        leave(parent, leaf)
        group = self.convert(leaf)
        if group.idle:
            insert(parent.debtors, debt_key(group))
        if leaf.queued:
            place(group, leaf)
        if eligible:
            place(parent, group)
        else:
            self.admit(group)
        if parent.loads is not None and group.queued:
            parent.loads.grown(group)
        return group

    def join_bucket(self, node: Node) -> None:
        """The bucket of its path, as its policy has it now."""
        group = node.parent
        assert group is not None  # noqa: S101 - the root has no policy
        self.leave_bucket(node)
        node.bucket = self._buckets.join(node.path, self.policy(node.path, group), node, self)

    def leave_bucket(self, node: Node) -> None:
        if node.bucket is not None:
            self._buckets.leave(node.bucket, node)
            node.bucket, node.wake_at = None, math.inf

    def renew(self, node: Node) -> None:
        """It is the last that became backlogged."""
        self._seq += 1
        node.seq = self._seq

    # -- who may go -------------------------------------------------------------------------------

    def tell(self, now: float) -> None:
        """It is `now`: buckets that have filled up let go again. Time that goes backwards stands still."""
        buckets = self._buckets
        if now > buckets.now:
            buckets.now = now
        waking = self._waking
        if not waking or waking[0][0] > buckets.now:
            return
        due = []
        while waking and waking[0][0] <= buckets.now:
            at, _, node = heapq.heappop(waking)
            if at == node.wake_at:
                node.wake_at = math.inf
                due.append(node)
        for node in sorted(due, key=lambda node: node.seq):
            self.reconsider(node)

    def may_go(self, node: Node) -> bool:
        """Whether a node is eligible. One that only a rate holds is woken when it lets go."""
        if not _but_for_rate(node):
            return False
        bucket = node.bucket
        if bucket is not None and bucket.ready_at > self._buckets.now:
            self._wake_later(node, bucket.ready_at)
            return False
        return True

    def admit(self, node: Node) -> bool:
        """Put a node that is eligible now into its parent's order. Whether it is there."""
        if node.key is not None:
            return True
        parent = node.parent
        if parent is None or not self.may_go(node):
            return False
        # What a limit kept from it is not saved up, but for one turn.
        node.lift_to(parent.virtual_time(), max(node.burst / node.weight, node.turn))
        place(parent, node)
        return True

    def reconsider(self, node: object) -> None:
        """A limit of a node has changed: it, and so those above it, may have become eligible or not."""
        current = node if isinstance(node, Node) else None
        while current is not None and current.parent is not None:
            parent = current.parent
            if current.key is None:
                if not self.admit(current):
                    return
            elif current.blocked(self._buckets.now) or (isinstance(current, Group) and not current.order):
                leave(parent, current)
                self.admit(current)  # not now, but it is to be woken
            else:
                return
            current = parent

    def _wake_later(self, node: Node, at: float) -> None:
        if at < node.wake_at:
            node.wake_at = at
            self._wakes += 1
            heapq.heappush(self._waking, (at, self._wakes, node))

    def next_eligible_at(self) -> float | None:
        """When a node that only its own rate holds may go again: the first such time. None: there is none."""
        waking = self._waking
        while waking:
            at, _, node = waking[0]
            bucket = node.bucket
            waits = at == node.wake_at and node.key is None and bucket is not None and _but_for_rate(node)
            if waits and bucket is not None and bucket.ready_at <= at:
                return at if at < math.inf else None
            heapq.heappop(waking)
            if at == node.wake_at:
                node.wake_at = math.inf
            if waits and bucket is not None:
                self._wake_later(node, bucket.ready_at)
        return None

    # -- forgetting -------------------------------------------------------------------------------

    def revive(self, parent: Group, node: Node) -> None:
        """A node is about to become backlogged: lift it, see `fair_queue`."""
        if node.in_flight == 0 and node.open == 0:
            if node.tag > -math.inf:
                remove(parent.debtors, debt_key(node))
            node.turn = 0.0
        self._seq += 1
        node.seq = self._seq
        node.credit = 0.0
        node.lift_to(parent.virtual_time(), node.burst / node.weight)

    def retire(self, node: Node) -> None:
        """An idle node, and those above that are idle with it, is deleted, or kept while it is in debt."""
        while node.idle:
            if isinstance(node, Group):
                self.clear(node)
            parent = node.parent
            if parent is None:
                return
            settled = parent.settled_time()
            if node.tag + node.burst / node.weight <= settled:
                self.delete(node)
            else:
                insert(parent.debtors, debt_key(node))
            if parent.debtors:
                self.forgive(parent, settled)
            node = parent

    def clear(self, group: Group) -> None:
        """The busy period of a group is over: all that is under it goes."""
        for child in list(group.children.values()):
            self.delete(child)
        group.debtors, group.loads = [], None
        group.vlast = group.loose = 0.0

    def forgive(self, parent: Group, settled: float) -> None:
        """Delete debtors that V has passed, and the least indebted where there are too many."""
        debtors = parent.debtors
        idle = sum(map(len, debtors))
        spare = idle - _DEBTORS - 2 * (len(parent.children) - idle)
        for _ in range(_AT_ONCE):
            if not debtors or (spare <= 0 and debtors[0][0][0] > settled):
                return
            node = debtors[0][0][3]
            remove(debtors, debtors[0][0])
            self.delete(node)
            spare -= 1

    def delete(self, node: Node) -> None:
        """Take a node that is in no order out of the tree and out of the tree's books, with all that is under
        it. The one way out: what is left in any of these would be served, charged or counted for ever."""
        parent = node.parent
        assert parent is not None  # noqa: S101 - not the root
        if isinstance(node, Group):
            self.clear(node)
        del parent.children[node.path]
        self.nodes -= 1
        if isinstance(node, Leaf):
            del self._leaves[node.tenant]
        self.leave_bucket(node)
        if parent.loads is not None:
            parent.loads.forget(node)


def _but_for_rate(node: Node) -> bool:
    """Whether it is eligible as far as its rate is not concerned."""
    if node.queued == 0 or (node.cap is not None and node.in_flight + node.elsewhere >= node.cap):
        return False
    return not isinstance(node, Group) or bool(node.order)


def debt_key(node: Node) -> tuple[float, int, int, Node]:
    """Of an idle node among the debtors of its parent. What it is made of does not change while it is idle."""
    return (node.tag + node.burst / node.weight, 0, node.seq, node)
