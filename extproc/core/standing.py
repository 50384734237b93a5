"""Where queued requests stand: who is next, what holds one, and what goes before it.

For grouping by prefix, explanations and estimates; nothing is changed here."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.core import leaf_order
from extproc.core.model import Order, Request
from extproc.core.node import Group, Leaf, Node
from extproc.core.sorted_blocks import iterate, rank
from extproc.core.tree import Flows


@dataclass(frozen=True, slots=True)
class Block:
    """A limit of a node that is reached. `kind` is the name of the setting."""

    kind: str  # max_in_flight, rate, max_queued, max_queued_tokens
    path: str  # of the node
    value: float  # slots held; cost units in the bucket, below 0: in debt; requests or tokens queued
    limit: float  # slots; cost units a second; requests; tokens
    until: float | None = None  # when a rate lets go; None: not a matter of time


@dataclass(frozen=True, slots=True)
class Place:
    """0 is next."""

    ahead_in_flow: int  # requests of the same tenant that go first
    position: int  # flows that go first: at the first level of the tree, from the top, where some do
    flows: int  # flows that could go, at that level


def heads(group: Group, order: Order, now: float, slack: float, most: int, found: list[Request]) -> None:
    """See `FairQueue.heads`. Of more than `most` with the same tag any may be left out, but not the first."""
    first = group.first()
    if first is None:
        return
    near: list[tuple[float, int, int, Node]] = []
    for tag, _, seq, child in iterate(group.order):
        if tag > first.tag + slack or len(near) >= most:
            break
        near.append((tag, child.in_flight if child is not first else -1, seq, child))
    for _, _, _, child in sorted(near):
        if len(found) >= most:
            return
        if isinstance(child, Group):
            heads(child, order, now, slack, most, found)
        elif isinstance(child, Leaf):
            found.append(leaf_order.first(child.requests, order, now))


def blocked(leaf: Leaf, now: float) -> Block | None:
    node: Node = leaf
    while node.parent is not None:
        if node.cap is not None and node.in_flight + node.elsewhere >= node.cap:
            return Block("max_in_flight", node.path, node.in_flight + node.elsewhere, node.cap)
        bucket = node.bucket
        if bucket is not None and bucket.ready_at > now:
            return Block("rate", node.path, bucket.level_at(now), bucket.rate, bucket.ready_at)
        node = node.parent
    return None


def place(leaf: Leaf, request: Request, order: Order, now: float) -> Place:
    ahead = len(leaf_order.ahead(leaf.requests, request, order, now))
    standing = (0, 1)
    for node in reversed(_path(leaf)):
        parent = node.parent
        if parent is None:
            continue
        before = rank(parent.order, (node.tag, 0 if node.key is None else node.key[1], node.seq, node))
        standing = (before, sum(map(len, parent.order)) + (node.key is None))
        if before:
            break
    return Place(ahead, *standing)


def cost_ahead(leaf: Leaf, request: Request, order: Order, now: float) -> float:
    """At each level: a sibling that is behind gets what it has queued, at most until it is level with the
    node at the moment of the request's turn."""
    total = sum(earlier.cost for earlier in leaf_order.ahead(leaf.requests, request, order, now))
    for node in _path(leaf):
        parent = node.parent
        if parent is None:
            continue
        turn = node.tag + total / node.weight
        for tag, _, _, sibling in iterate(parent.order):
            if tag >= turn:
                break
            if sibling is not node:
                total += min(sibling.queued_cost, (turn - tag) * sibling.weight)
    return total


def over_limit(root: Group, flows: Flows, path: tuple[str, ...], tokens: float) -> Block | None:
    found: Block | None = None  # the lowest so far
    node: Node | None = root
    for name in path:
        node = node.children.get(name) if isinstance(node, Group) else None
        policy = flows.tenant(name)
        queued, most = 0 if node is None else node.queued, policy.max_queued_tokens
        if queued >= policy.max_queued:
            found = Block("max_queued", name, queued, policy.max_queued)
        # As with bytes, one that is too large for the limit may wait alone.
        elif most is not None and node is not None and node.queued_tokens and node.queued_tokens + tokens > most:
            found = Block("max_queued_tokens", name, node.queued_tokens, most)
    return found


def _path(leaf: Leaf) -> list[Node]:
    """From the leaf up, without the root."""
    nodes: list[Node] = []
    node: Node = leaf
    while node.parent is not None:
        nodes.append(node)
        node = node.parent
    return nodes
