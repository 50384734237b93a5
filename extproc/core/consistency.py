"""The invariants of the fair queue, checked the slow way."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from extproc.core.leaf_order import key_of
from extproc.core.model import Order
from extproc.core.node import Group, Leaf, Node
from extproc.core.sorted_blocks import iterate
from extproc.core.tree import debt_key

if TYPE_CHECKING:
    from extproc.core.fair_queue import FairQueue

_WHOLE = ("queued", "queued_bytes", "in_flight", "open")
_SUMS = ("queued_cost", "queued_tokens", "owed")


def check(queue: FairQueue, order: Order) -> None:
    """Raises AssertionError, naming the node and what is wrong."""
    groups = list(queue.groups())
    nodes = [child for group in groups for child in group.children.values()]
    leaves = [node for node in nodes if isinstance(node, Leaf)]
    _equal("nodes", queue.nodes, len(nodes))
    _equal("leaves", {leaf.tenant: leaf for leaf in leaves}, {leaf.tenant: leaf for leaf in queue.leaves()})
    known = {(path, node) for path, node in queue.in_buckets()}
    for path, node in known - {(node.path, node) for node in nodes if node.bucket is not None}:
        raise AssertionError(f"bucket of {path!r} has a node {node.path!r} that is not in the tree, or not in a bucket")
    for node in nodes:
        rated = node.parent is not None and queue.policy(node.path, node.parent).rate is not None
        _equal(
            f"{node.path} has a bucket, is known there",
            (node.bucket is not None, (node.path, node) in known),
            (rated, rated),
        )
    for leaf in leaves:
        keys = list(iterate(leaf.requests))
        _equal(f"queued of {leaf.path}", leaf.queued, len(keys))
        _sorted(f"requests of {leaf.path}", keys)
        for key in keys:
            _equal(f"key of {key[2].id}", key, key_of(key[2], order))
            _equal(f"leaf of {key[2].id}", key[2].leaf, leaf)
    wide = sum(key[2].slots - 1 for leaf in leaves for key in iterate(leaf.requests))
    _equal("slots asked for beyond one each", queue.wide, wide)
    _elsewhere(queue, nodes)
    now = queue.time
    queue.tell(now)  # another queue of the pool may have been told a later time
    for group in groups:
        _group(group, now)
    held = all(_held(leaf, now) for leaf in leaves if leaf.queued)
    _equal("peek() is None, and all that is queued is held", queue.peek(now) is None, held)


def _elsewhere(queue: FairQueue, nodes: Sequence[Node]) -> None:
    """Slots at other replicas, of those that are here."""
    by_path: Counter[str] = Counter()
    for tenant, slots in queue.elsewhere.items():
        by_path.update(dict.fromkeys(queue.flows.path(tenant), slots))
    _equal("slots elsewhere", queue.root.elsewhere, sum(queue.elsewhere.values()))
    for node in nodes:
        _equal(f"slots of {node.path} elsewhere", node.elsewhere, by_path[node.path])


def _group(group: Group, now: float) -> None:
    children = list(group.children.values())
    name = group.path or "the root"
    if group.parent is not None and group.idle and children:
        raise AssertionError(f"{name} is idle and has children {[c.path for c in children]}")
    for field in _WHOLE:
        if field != "open" or group.parent is not None:
            _equal(f"{field} of {name}", getattr(group, field), sum(getattr(c, field) for c in children))
    for field in _SUMS:
        if field != "owed" or group.parent is not None:
            _close(f"{field} of {name}", getattr(group, field), sum(getattr(c, field) for c in children))
    # A cost is right to 1e-6, and that is more where it is divided by less than 1.
    least = min((child.weight for child in children), default=1.0)
    loose = sum(child.owed / child.weight for child in children)
    _close(f"loose of {name}", group.loose, loose, 1e-6 / min(least, 1.0))
    _sorted(f"order of {name}", list(iterate(group.order)))
    _sorted(f"debtors of {name}", list(iterate(group.debtors)))
    for child in children:
        _equal(f"parent of {child.path}", child.parent, group)
        if not math.isfinite(child.tag) or min(child.queued, child.in_flight, child.open, child.credit) < 0:
            raise AssertionError(f"books of {child.path}: tag {child.tag}, queued {child.queued}, open {child.open}")
        if child.key is not None:
            _equal(f"key of {child.path}", (child.key[0], child.key[2], child.key[3]), (child.tag, child.seq, child))
            if child.key[1] > child.in_flight:
                raise AssertionError(f"key of {child.path} has {child.key[1]} in flight, there are {child.in_flight}")
        _equal(f"{child.path} is in the order", child.key is not None, _eligible(child, now))
    _equal(f"order of {name}", _members(group.order), {c for c in children if c.key is not None})
    idle = [child for child in children if child.idle]
    _equal(f"debtors of {name}", _members(group.debtors), set(idle))
    for child in idle:
        if debt_key(child) not in list(iterate(group.debtors)):
            raise AssertionError(f"{child.path} is not among the debtors of {name} under its key")


def _eligible(node: Node, now: float) -> bool:
    if node.queued == 0 or node.blocked(now):
        return False
    return isinstance(node, Leaf) or any(_eligible(c, now) for c in getattr(node, "children", {}).values())


def _held(leaf: Leaf, now: float) -> bool:
    node: Node = leaf
    while node.parent is not None:
        if node.blocked(now):
            return True
        node = node.parent
    return False


def _members(blocks: list[list[tuple[float, int, int, Node]]]) -> set[Node]:
    return {key[3] for key in iterate(blocks)}


def _sorted(what: str, keys: Sequence[tuple[Any, ...]]) -> None:
    if any(a >= b for a, b in itertools.pairwise(keys)):
        raise AssertionError(f"{what} are not sorted")


def _equal(what: str, seen: object, expected: object) -> None:
    if seen != expected:
        raise AssertionError(f"{what}: {seen}, expected {expected}")


def _close(what: str, seen: float, expected: float, within: float = 1e-6) -> None:
    if not math.isclose(seen, expected, rel_tol=1e-9, abs_tol=within):
        raise AssertionError(f"{what}: {seen}, expected {expected}")
