"""A node of the tree of tenants: a tenant's own requests (`Leaf`) or what is under one name (`Group`).

The fields are those of the theory, see `extproc.core.fair_queue`. A node keeps the books of all that is
under it: what is queued, what holds slots, and what has been charged and may still be trued up.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from typing import Any

from extproc.core.model import Request, TenantPolicy
from extproc.core.shedding import Loads
from extproc.core.sorted_blocks import FULL, first_of, remove
from extproc.core.token_bucket import Bucket, check_rate

# Beyond these a tag would swallow the charges of everybody else: a float has 15 digits.
MAX_COST = 1e12
_WEIGHTS = (1e-6, 1e6)

ChildKey = tuple[float, int, int, "Node"]  # (tag, slots in flight as far as ties needed it, seq, child)
RequestKey = tuple[float, int, Request]


class Node:
    """Not the root: has a parent, whose service it shares with its siblings."""

    __slots__ = (
        "bucket",
        "burst",
        "cap",
        "credit",
        "elsewhere",
        "in_flight",
        "key",
        "open",
        "owed",
        "parent",
        "path",
        "queued",
        "queued_bytes",
        "queued_cost",
        "queued_tokens",
        "seq",
        "tag",
        "turn",
        "wake_at",
        "weight",
    )  # fmt: skip

    def __init__(self, path: str, parent: Group | None, policy: TenantPolicy) -> None:
        self.path = path
        self.parent = parent
        self.weight = policy.weight
        self.cap = policy.max_in_flight
        self.burst = policy.burst
        self.bucket: Bucket | None = None
        self.tag = -math.inf  # S; nothing is known of it, so it owes nothing
        self.credit = 0.0  # how far below V it was lifted and has not been served since; in units of tags
        self.turn = 0.0  # its last charge, in units of tags
        self.seq = 0  # renewed when it becomes backlogged
        self.key: ChildKey | None = None  # in the order of the parent; None: it is not eligible
        self.wake_at = math.inf  # when its bucket is looked at again
        self.queued = 0  # requests
        self.queued_cost = 0.0  # estimated
        self.queued_tokens = 0.0  # estimated, prompt and output
        self.queued_bytes = 0
        self.in_flight = 0  # slots
        self.elsewhere = 0  # slots held at other replicas; they count for its cap alone
        self.open = 0  # requests released whose cost is not final
        self.owed = 0.0  # cost that those have been charged, and that may be given back

    @property
    def idle(self) -> bool:
        return not (self.queued or self.in_flight or self.open)

    def blocked(self, now: float) -> bool:
        """Whether its own cap or rate holds it."""
        if self.cap is not None and self.in_flight + self.elsewhere >= self.cap:
            return True
        return self.bucket is not None and self.bucket.ready_at > now

    def lift_to(self, v: float, allowance: float) -> None:
        """To `v`, less an allowance. What it owes is kept; what it gets ahead of `v` is noted as credit."""
        if self.tag < v - allowance:
            self.tag = v - allowance
        if self.tag + self.credit < v:
            self.credit = v - self.tag


class Leaf(Node):
    """One tenant's queue."""

    __slots__ = ("requests", "tenant")

    def __init__(self, path: str, parent: Group, policy: TenantPolicy, tenant: str) -> None:
        super().__init__(path, parent, policy)
        self.tenant = tenant
        self.requests: list[list[RequestKey]] = []


class Group(Node):
    """An organisation or a team; the root, which has no parent."""

    __slots__ = ("children", "debtors", "loads", "loose", "order", "vlast")

    def __init__(self, path: str, parent: Group | None, policy: TenantPolicy) -> None:
        super().__init__(path, parent, policy)
        # A leaf may have the path of its group: the requests of the name itself.
        self.children: dict[str, Node] = {}
        self.order: list[list[ChildKey]] = []  # eligible children by tag
        self.vlast = 0.0  # largest tag served
        self.loose = 0.0  # what the open charges have put onto the children's tags, and true-ups may take off again
        self.debtors: list[list[ChildKey]] = []  # idle children in debt, by tag + burst/weight
        self.loads: Loads[Node] | None = None  # children by what is queued under them, while something is shed

    def first(self) -> Node | None:
        """The eligible child with the smallest tag; of those with the same, the one with fewer slots in flight.

        Slots in flight change with every end of a stream, and matter in ties alone. So a key begins with
        none, and the true number is put in where a tie asks for it."""
        order = self.order
        while order:
            block = order[0]
            key = block[0]
            child = key[3]
            if child.in_flight == key[1]:
                return child
            if len(block) > 1:
                second = block[1]
            elif len(order) > 1:
                second = order[1][0]
            else:
                return child
            if second[0] != key[0]:
                return child
            place(self, child, child.in_flight)
        return None

    def virtual_time(self) -> float:
        """V: what the child whose turn it is has had, less what it was given ahead; else `vlast`."""
        child = self.first()
        return self.vlast if child is None else child.tag + child.credit

    def settled_time(self) -> float:
        """A bound below V that V will not pass downwards, see "forget" in `fair_queue`."""
        return min(self.vlast, self.virtual_time()) - self.loose


def place(parent: Group, child: Node, slots: int = 0) -> None:
    """Bring the key of an eligible child in its parent's order up to date.

    `sorted_blocks.remove` and `insert` written out: half of the time of a cycle is spent here."""
    order = parent.order
    key = child.key
    if key is not None:
        i = 0
        block = order[0]
        if block[0] is key:  # it has just been served
            del block[0]
        else:
            if len(order) > 1:
                i = bisect_right(order, key, key=first_of) - 1
                block = order[i]
            del block[bisect_left(block, key)]
        if not block:
            del order[i]
    child.key = key = (child.tag, slots, child.seq, child)
    if not order:
        order.append([key])
        return
    block = order[-1]
    if key < block[-1]:
        i = 0
        if len(order) > 1:
            i = bisect_right(order, key, key=first_of) - 1
            if i < 0:
                i = 0
            block = order[i]
        insort(block, key)
        if len(block) > FULL:
            order.insert(i + 1, block[FULL >> 1 :])
            del block[FULL >> 1 :]
    elif len(block) < FULL:
        block.append(key)
    else:
        order.append([key])


def leave(parent: Group, child: Node) -> None:
    """Take a child that is not eligible any more out of its parent's order."""
    if child.key is not None:
        remove(parent.order, child.key)
        child.key = None


def check_policy(path: str, policy: TenantPolicy) -> None:
    """Raises ValueError, naming the node and the value, for what would spoil the order."""
    _number("weight", path, policy.weight, *_WEIGHTS)
    _number("burst", path, policy.burst, 0.0, MAX_COST)
    if policy.max_in_flight is not None:
        _number("max_in_flight", path, policy.max_in_flight, 0, math.inf)
    check_rate(path, policy)


def _number(what: str, path: str, value: Any, least: float, most: float) -> None:
    if not (isinstance(value, int | float) and least <= value <= most):
        raise ValueError(f"{what} of {path!r} must be a number from {least:g} to {most:g}, not {value!r}")
