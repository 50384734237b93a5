"""Hierarchical start-tag queue with true-up: the fair order of one class.

Theory
    Start-time fair queueing (Goyal, Vin, Cheng: "Start-time Fair Queueing", SIGCOMM 1996) gives each
    flow a tag S, serves the smallest, and advances it by cost/weight. The virtual token counter
    (Sheng et al., OSDI'24) shows that the cost of a request need not be known before it is served:
    charge an estimate at release, true it up when the engine has counted. Both are one tree here; a
    node's children share its service in proportion to their weights.

Definitions
    S       tag of a node: service received / weight, in cost units.
    V       virtual time of a parent: smallest tag among its eligible children, else `vlast`, the tag
            of the last child it served.
    lift    a node that becomes backlogged starts at max(S, V - burst/weight): what it did not use is
            not saved up (beyond `burst`), what it owes is not forgiven.
    eligible: something is queued under it, and no cap on it is reached.

Invariants (`check`)
    1. `pop` returns None if and only if every queued leaf is blocked by a cap on its path.
    2. Tags of backlogged siblings differ by no more than the largest charge / smallest weight, plus
       what is in flight and not yet trued up.
    3. Counts on a node are the sums over its leaves; they end at zero.
    4. A leaf that is neither queued nor in flight is kept only while it is in debt (S > V), and only
       the most indebted 10,000: names that come once and never again do not move V, so it would
       never pass them all.

Left out: refresh charging of requests that run past their estimate, orders within a leaf other than
first come first served, prefix grouping.

Cost: O(depth * log fan-out) for each operation. Heap entries are never changed in place; a node's
`version` tells its live entry from stale ones, and a heap is rebuilt when most of it is stale.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator

from extproc.core.model import Request, State

_SLACK = 64  # stale heap entries that are not worth a rebuild
_MAX_DEBTORS = 10_000  # idle tenants remembered for their debt; beyond it the smallest debts are forgiven


class Node:
    """A tenant (leaf) or a group of tenants. Fields are as in the module's docstring."""

    __slots__ = (
        "burst",
        "cap",
        "children",
        "dead",
        "debtors",
        "fifo",
        "heap",
        "in_flight",
        "key",
        "name",
        "open",
        "parent",
        "queued",
        "seq",
        "tag",
        "version",
        "vlast",
        "weight",
    )  # fmt: skip

    def __init__(self, name: str, parent: Node | None, seq: int, weight: float, cap: int | None, burst: float) -> None:
        if not (weight > 0 and math.isfinite(weight)):
            raise ValueError(f"weight of {name!r} must be a positive number, not {weight!r}")
        self.name = name
        self.parent = parent
        self.seq = seq
        self.weight = weight
        self.cap = cap
        self.burst = burst
        self.tag = 0.0
        self.vlast = 0.0
        self.queued = 0  # requests
        self.in_flight = 0  # slots
        self.open = 0  # requests released whose cost is not final
        self.version = 0
        self.key: tuple[float, int] | None = None  # of the live entry in the parent's heap
        self.heap: list[tuple[float, int, int, int, Node]] = []  # (tag, in flight, seq, version, child)
        self.debtors: list[tuple[float, int, Node]] = []  # idle children in debt, by tag
        self.children: dict[str, Node] = {}
        self.fifo: list[tuple[float, int, Request]] = []  # leaf only: (arrival, seq, request)
        self.dead = 0  # entries of `fifo` that are no longer queued

    def eligible(self) -> bool:
        if self.queued == 0 or (self.cap is not None and self.in_flight >= self.cap):
            return False
        return not self.children or self.first() is not None

    def first(self) -> Node | None:
        """Eligible child with the smallest tag; ties go to the one with fewer slots in flight."""
        heap = self.heap
        while heap and heap[0][4].version != heap[0][3]:
            heapq.heappop(heap)
        return heap[0][4] if heap else None

    def virtual_time(self) -> float:
        child = self.first()
        return child.tag if child is not None else self.vlast

    def path(self) -> Iterator[Node]:
        """This node and its ancestors, without the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class FairQueue:
    """Requests of one (pool, class), in fair order over tenants."""

    def __init__(self, policy: Callable[[str], tuple[float, int | None]]) -> None:
        """`policy(tenant)` gives (weight, cap on slots in flight) of a tenant seen for the first time."""
        self._policy = policy
        self._root = Node("", None, 0, 1.0, None, 0.0)
        self._seq = 0

    def __len__(self) -> int:
        return self._root.queued

    @property
    def in_flight(self) -> int:
        """Slots held by requests of this class."""
        return self._root.in_flight

    @property
    def size(self) -> int:
        """Tenants that have state here."""
        return len(self._root.children)

    def leaves(self) -> Iterator[Node]:
        return iter(self._root.children.values())

    def leaf(self, tenant: str) -> Node | None:
        return self._root.children.get(tenant)

    def queued(self, tenant: str) -> int:
        leaf = self._root.children.get(tenant)
        return 0 if leaf is None else leaf.queued

    # -- the operations of the paper -------------------------------------------------------------

    def put(self, request: Request) -> None:
        leaf = self._leaf(request.tenant)
        heapq.heappush(leaf.fifo, (request.arrival, request.seq, request))
        node: Node | None = leaf
        for node in leaf.path():
            if node.queued == 0:
                self._lift(node)
            node.queued += 1
        self._root.queued += 1
        self._reheap(leaf)

    def peek(self) -> Request | None:
        """The request that `pop` would give, or None when caps block all that is queued."""
        node = self._root
        while node.children:
            child = node.first()
            if child is None:
                return None
            node = child
        return self._head(node) if node is not self._root else None

    def pop(self, charge: float) -> Request | None:
        """Take the next request in fair order and charge its path with `charge` cost units."""
        request = self.peek()
        if request is None:
            return None
        leaf = self._root.children[request.tenant]
        heapq.heappop(leaf.fifo)
        request.charged = charge
        for node in leaf.path():
            parent = node.parent
            assert parent is not None  # noqa: S101 - path() leaves out the root
            parent.vlast = max(parent.vlast, node.tag)
            node.tag += charge / node.weight
            node.queued -= 1
            node.in_flight += request.slots
            node.open += 1
        self._root.queued -= 1
        self._root.in_flight += request.slots
        self._reheap(leaf)
        self._forget_debtors(self._root)
        return request

    def remove(self, request: Request) -> None:
        """A queued request leaves without being served. Its entry is dropped later."""
        leaf = self._root.children[request.tenant]
        leaf.dead += 1
        for node in leaf.path():
            node.queued -= 1
        self._root.queued -= 1
        if leaf.dead > _SLACK + leaf.queued:
            leaf.fifo = [entry for entry in leaf.fifo if entry[2].state is State.QUEUED and entry[2] is not request]
            heapq.heapify(leaf.fifo)
            leaf.dead = 0
        self._reheap(leaf)
        self._maybe_forget(leaf)

    def free(self, request: Request) -> None:
        """The slots of a released request are free again."""
        leaf = self._root.children[request.tenant]
        for node in leaf.path():
            node.in_flight -= request.slots
        self._root.in_flight -= request.slots
        self._reheap(leaf)
        self._maybe_forget(leaf)

    def settle(self, request: Request, cost: float) -> None:
        """True the charge of a released request up, or down, to `cost`. Once."""
        leaf = self._root.children[request.tenant]
        delta = cost - request.charged
        request.charged = cost
        for node in leaf.path():
            node.tag += delta / node.weight
            node.open -= 1
        self._reheap(leaf)
        self._maybe_forget(leaf)

    # -- inside -----------------------------------------------------------------------------------

    def _leaf(self, tenant: str) -> Node:
        leaf = self._root.children.get(tenant)
        if leaf is None:
            weight, cap = self._policy(tenant)
            self._seq += 1
            leaf = Node(tenant, self._root, self._seq, weight, cap, burst=0.0)
            self._root.children[tenant] = leaf
        return leaf

    def _lift(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None  # noqa: S101 - path() leaves out the root
        node.tag = max(node.tag, parent.virtual_time() - node.burst / node.weight)

    @staticmethod
    def _head(leaf: Node) -> Request | None:
        fifo = leaf.fifo
        while fifo and fifo[0][2].state is not State.QUEUED:
            heapq.heappop(fifo)
            leaf.dead -= 1
        return fifo[0][2] if fifo else None

    @staticmethod
    def _reheap(node: Node) -> None:
        """Bring the entries of a node and its ancestors up to date after any change."""
        for child in node.path():
            parent = child.parent
            assert parent is not None  # noqa: S101 - path() leaves out the root
            key = (child.tag, child.in_flight) if child.eligible() else None
            if key == child.key:
                continue
            child.version += 1
            child.key = key
            if key is not None:
                heapq.heappush(parent.heap, (*key, child.seq, child.version, child))
            if len(parent.heap) > _SLACK + 2 * len(parent.children):
                parent.heap = [entry for entry in parent.heap if entry[4].version == entry[3]]
                heapq.heapify(parent.heap)

    def _maybe_forget(self, leaf: Node) -> None:
        """Delete an idle leaf out of debt; note one in debt, to look again when V has passed it."""
        parent = leaf.parent
        if parent is None or leaf.queued or leaf.in_flight or leaf.open:
            return
        if leaf.tag <= self._settled_time(parent) - leaf.burst / leaf.weight:
            parent.children.pop(leaf.name, None)
            leaf.version += 1
        else:
            self._seq += 1
            heapq.heappush(parent.debtors, (leaf.tag, self._seq, leaf))
            if len(parent.debtors) > _SLACK + 2 * len(parent.children):
                live = {entry[2].name: entry for entry in parent.debtors if self._is_debt(entry[0], entry[2])}
                parent.debtors = list(live.values())
                heapq.heapify(parent.debtors)
            self._forget_debtors(parent)
        if not parent.children:
            # Nobody is left to be fair to: start over, so that tags stay small and exact.
            parent.vlast = 0.0
            parent.heap.clear()
            parent.debtors.clear()

    def _forget_debtors(self, parent: Node) -> None:
        now = self._settled_time(parent)
        while parent.debtors and (parent.debtors[0][0] <= now or len(parent.debtors) > _MAX_DEBTORS):
            tag, _, leaf = heapq.heappop(parent.debtors)
            if self._is_debt(tag, leaf):
                del parent.children[leaf.name]
                leaf.version += 1

    @staticmethod
    def _is_debt(tag: float, leaf: Node) -> bool:
        """Whether an entry of `debtors` is live: its leaf is known and idle, and owes just this."""
        idle = not (leaf.queued or leaf.in_flight or leaf.open)
        return idle and leaf.tag == tag and leaf.parent is not None and leaf.parent.children.get(leaf.name) is leaf

    @staticmethod
    def _settled_time(parent: Node) -> float:
        """A virtual time that a later refund to a sibling can hardly take back."""
        return min(parent.vlast, parent.virtual_time())

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold. O(tenants + queued); for tests."""
        for name in ("queued", "in_flight", "open"):
            total = sum(getattr(leaf, name) for leaf in self.leaves())
            if name != "open" and total != getattr(self._root, name):
                raise AssertionError(f"{name}: leaves {total}, root {getattr(self._root, name)}")
        for leaf in self.leaves():
            live = sum(entry[2].state is State.QUEUED for entry in leaf.fifo)
            if live != leaf.queued or len(leaf.fifo) - live != leaf.dead:
                raise AssertionError(f"{leaf.name}: {live} live of {len(leaf.fifo)}, counted {leaf.queued}+{leaf.dead}")
            if min(leaf.queued, leaf.in_flight, leaf.open) < 0 or not math.isfinite(leaf.tag):
                raise AssertionError(f"{leaf.name}: queued {leaf.queued}, in flight {leaf.in_flight}, tag {leaf.tag}")
        blocked = all(leaf.queued == 0 or not leaf.eligible() for leaf in self.leaves())
        if (self.peek() is None) != blocked:
            raise AssertionError("peek() is None must hold exactly when every queued leaf is blocked")
