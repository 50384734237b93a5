"""Which flow has the most waiting: who is shed first when a queue is full.

Load of a node: estimated cost queued under it / weight. The heaviest flow is found from the top: the
heaviest organisation, in it the heaviest team, and so on down to a tenant. In this way ten thousand names
of one organisation with one request each are heavier than a tenant of another with ten.

While nothing is shed this costs nothing. The first question builds the order of the children asked about
(O(n log n), once for each time of overload); it is dropped when the queue is empty again. A load that
falls is not followed at once: an entry is never less than the truth, and is corrected when it comes to
the end. Each correction takes back what a release or a removal has done, so the cost is O(log n)
amortised.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from extproc.core.sorted_blocks import build, insert, remove


class Loaded(Protocol):
    """What is asked about a node."""

    weight: float
    seq: int
    queued: int
    queued_cost: float


N = TypeVar("N", bound=Loaded)


class Loads(Generic[N]):
    """Siblings by load. Of equal ones the flow that came last is the heaviest."""

    __slots__ = ("_keys", "_order")

    def __init__(self, nodes: Iterable[N]) -> None:
        keys = [(node.queued_cost / node.weight, node.seq, node) for node in nodes if node.queued]
        self._keys = {key[2]: key for key in keys}
        self._order = build(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def grown(self, node: N) -> None:
        """More is queued under it."""
        key = self._keys.get(node)
        if key is None or node.queued_cost / node.weight > key[0]:
            self._set(node)

    def forget(self, node: N) -> None:
        key = self._keys.pop(node, None)
        if key is not None:
            remove(self._order, key)

    def heaviest(self) -> N | None:
        while self._order:
            key = self._order[-1][-1]
            node = key[2]
            if node.queued == 0:
                self.forget(node)
            elif node.queued_cost / node.weight < key[0]:
                self._set(node)
            else:
                return node
        return None

    def _set(self, node: N) -> None:
        self.forget(node)
        key = (node.queued_cost / node.weight, node.seq, node)
        self._keys[node] = key
        insert(self._order, key)
