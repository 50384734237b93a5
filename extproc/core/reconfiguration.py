"""Another policy for a fair queue in which requests wait and run.

Nothing is lost: what is queued stays queued, what is charged stays charged. With V as it was just before:

    weight   S becomes V + (S - V) * old/new: what a node owes, and what may be given back to it, is the
             same in cost units.
    cap, rate  hold from now on. A node above its new cap goes on running and is not eligible until it has
             come below. A node that nothing holds any more is lifted, as always (`fair_queue`: lift).
    path     the tenant's leaf moves with all its books: the groups that it leaves get back what it has
             been charged and is not yet settled, and the groups that it joins are charged it, so that its
             true-ups come out right there. Groups that become backlogged, or are new, are lifted before.
             Its own tag is V of its new group (0 for a new one) plus its debt, max(0, S - V) in its old
             group, in cost units. What it had ahead is gone.
    order    the requests of each leaf are sorted anew.

O(all): every order is built anew. Forgetting is exact only from one change to the next.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from extproc.core.leaf_order import key_of
from extproc.core.model import Order
from extproc.core.node import Group, Leaf, Node, check_policy
from extproc.core.sorted_blocks import build, iterate
from extproc.core.tree import debt_key

if TYPE_CHECKING:
    from extproc.core.tree import Flows, Tree

Times = dict[Group, float]


def reconfigure(tree: Tree, flows: Flows, before: Order, order: Order) -> None:
    """Raises ValueError, and changes nothing, where a policy is none."""
    paths = {leaf.tenant: tree.checked_path(flows, leaf.tenant) for leaf in tree.leaves()}
    if len(set(paths.values())) < len(paths):
        raise ValueError("two tenants have the same path")
    groups = list(tree.groups())
    for group in groups[1:]:
        check_policy(group.path, flows.tenant(group.path))

    times = {group: group.virtual_time() for group in groups}
    held = {node for group in groups for node in group.children.values() if node.queued and node.key is None}
    moving = [leaf for leaf in tree.leaves() if _home(leaf) != paths[leaf.tenant]]
    debts = {leaf: max(0.0, leaf.tag - times[_parent(leaf)]) * leaf.weight for leaf in moving}
    tree.flows = flows
    tree.recount_elsewhere()
    for group in groups:
        group.order, group.debtors, group.loads = [], [], None
        for child in group.children.values():
            child.key = None
            if child not in debts:
                _apply_policy(tree, child, times[group])
    moving.sort(key=lambda leaf: leaf.seq)
    for leaf in moving:
        _detach(tree, leaf)
    for leaf in moving:
        _attach(tree, leaf, paths[leaf.tenant], debts[leaf], times, held)
        held.discard(leaf)
    if order is not before or order is Order.DEADLINE:
        for leaf in tree.leaves():
            leaf.requests = build([key_of(key[2], order) for key in iterate(leaf.requests)])
    for group in reversed(list(tree.groups())):
        _rebuild(tree, group, times, held)


def _home(leaf: Leaf) -> tuple[str, ...]:
    """The path that a leaf has now, as `Flows.path` would give it."""
    names = [leaf.path]
    group = leaf.parent
    while group is not None and group.parent is not None:
        if not (len(names) == 1 and group.path == leaf.path):
            names.append(group.path)
        group = group.parent
    return tuple(reversed(names))


def _parent(node: Node) -> Group:
    assert node.parent is not None  # noqa: S101 - not asked of the root
    return node.parent


def _apply_policy(tree: Tree, node: Node, v: float) -> None:
    policy = tree.policy(node.path, _parent(node))
    ratio = node.weight / policy.weight
    if ratio != 1.0:
        node.tag = v + (node.tag - v) * ratio
        node.credit *= ratio
        node.turn *= ratio
    node.weight, node.cap, node.burst = policy.weight, policy.max_in_flight, policy.burst
    node.elsewhere = tree.elsewhere_of(node.path)
    tree.join_bucket(node)


def _detach(tree: Tree, leaf: Leaf) -> None:
    node: Node = leaf
    while node.parent is not None:
        node = node.parent
        _add_books(node, leaf, -1)
        if node.parent is not None:
            node.tag -= leaf.owed / node.weight
    tree.delete(leaf)


def _attach(tree: Tree, leaf: Leaf, path: tuple[str, ...], debt: float, times: Times, held: set[Node]) -> None:
    group = tree.home_of(path, lambda other: _convert(tree, other, held))
    policy = tree.policy(path[-1], group)
    leaf.path, leaf.parent = path[-1], group
    leaf.weight, leaf.cap, leaf.burst = policy.weight, policy.max_in_flight, policy.burst
    idle = group.children.get(leaf.path)
    if idle is not None:
        # Leaves that are under it owe nobody anything: nothing goes on there.
        tree.delete(idle)
    tree.add(group, leaf)
    tree.renew(leaf)
    leaf.tag, leaf.credit, leaf.turn = times.get(group, group.vlast) + debt / leaf.weight, 0.0, 0.0
    node: Node = group
    while node.parent is not None:
        parent = node.parent
        if (leaf.queued and not node.queued) or node.tag == -math.inf:
            tree.renew(node)
            node.lift_to(times.get(parent, parent.vlast), node.burst / node.weight)
        _add_books(node, leaf, 1)
        node.tag += leaf.owed / node.weight
        node = parent
    _add_books(node, leaf, 1)


def _convert(tree: Tree, leaf: Leaf, held: set[Node]) -> Group:
    group = tree.convert(leaf)
    if leaf in held:
        held.remove(leaf)
        held.add(group)
    return group


def _add_books(node: Node, leaf: Leaf, sign: int) -> None:
    node.queued += sign * leaf.queued
    node.queued_bytes += sign * leaf.queued_bytes
    node.in_flight += sign * leaf.in_flight
    node.open += sign * leaf.open
    node.queued_cost = node.queued_cost + sign * leaf.queued_cost if node.queued else 0.0
    node.queued_tokens = node.queued_tokens + sign * leaf.queued_tokens if node.queued else 0.0
    node.owed = node.owed + sign * leaf.owed if node.open else 0.0


def _rebuild(tree: Tree, group: Group, times: Times, held: set[Node]) -> None:
    """Its orders, from its children, whose own are right already."""
    if group.idle:
        tree.clear(group)
        return
    order, debtors = [], []
    v = times.get(group, group.vlast)
    for child in group.children.values():
        if child.idle:
            debtors.append(debt_key(child))
        elif tree.may_go(child):
            if child in held:
                child.lift_to(v, max(child.burst / child.weight, child.turn))
            child.key = (child.tag, 0, child.seq, child)
            order.append(child.key)
    group.order, group.debtors = build(order), build(debtors)
    group.loose = sum(child.owed / child.weight for child in group.children.values())
    tree.forgive(group, group.settled_time())
