"""The flows of the pools, the first few by some order.

All of them are looked at, in portions. What is kept is those that are first so far, and a thousand more at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple

from extproc.admin import messages
from extproc.admin.ages import oldest_arrival
from extproc.admin.control import RunningPool
from extproc.admin.errors import invalid
from extproc.admin.portions import LOOK_EVERY, Portions, Work
from extproc.config.schema import meant
from extproc.core.node import Leaf
from extproc.pb.admin.v1 import admin_pb2 as pb

DEFAULT_ORDER: Final = "queued_count desc"
_AT_ONCE: Final = 1000  # flows that are added before they are put in order


class Flow(NamedTuple):
    """One tenant in one class. `oldest_wait_s`: None: nothing is held."""

    pool: str
    tenant: str
    cls: str
    queued: int  # requests
    in_flight: int  # slots
    tag: float
    weight: float
    oldest_wait_s: float | None
    leaf: Leaf
    observed: bool = False  # its requests pass, and this is what would be

    def message(self) -> pb.Flow:
        found = pb.Flow(
            pool=self.pool,
            tenant=self.tenant,
            queued_count=self.queued,
            in_flight_slots=self.in_flight,
            tag=self.tag,
            weight=self.weight,
            oldest_wait=messages.duration(self.oldest_wait_s),
            observed=self.observed,
            next_request_id=self.leaf.requests[0][0][2].id if self.leaf.queued else "",
        )
        setattr(found, "class", self.cls)
        return found


Key = Callable[[Flow], tuple[Any, ...]]

_FIELDS: Final[dict[str, Callable[[Flow], Any]]] = {
    "tenant": lambda flow: flow.tenant,
    "class": lambda flow: flow.cls,
    "queued_count": lambda flow: flow.queued,
    "in_flight_slots": lambda flow: flow.in_flight,
    "tag": lambda flow: flow.tag,
    "weight": lambda flow: flow.weight,
    "oldest_wait": lambda flow: -1.0 if flow.oldest_wait_s is None else flow.oldest_wait_s,
}
_TEXTS: Final = ("tenant", "class")


class _Down:
    """A text, the last of the alphabet first."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Down) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __lt__(self, other: _Down) -> bool:
        return other.text < self.text


def order_of(order_by: str) -> Key:
    """By AIP-132: "queued_count desc, tenant". What is equal goes by pool, tenant and class. Raises AdminError."""
    parts: list[Callable[[Flow], Any]] = []
    for part in (order_by.strip() or DEFAULT_ORDER).split(","):
        name, _, way = " ".join(part.split()).partition(" ")
        get = _FIELDS.get(name)
        if get is None:
            raise invalid("order_by", f"{name[:60]!r} is no field of a flow; {meant(name, _FIELDS)}")
        if way not in ("", "asc", "desc"):
            raise invalid("order_by", f"after {name} may stand desc, or nothing, not {way[:60]!r}")
        if len(parts) == len(_FIELDS):
            raise invalid("order_by", "names more fields than there are")
        parts.append(get if way != "desc" else _descending(name, get))
    return lambda flow: (*(part(flow) for part in parts), flow.pool, flow.tenant, flow.cls)


def _descending(name: str, get: Callable[[Flow], Any]) -> Callable[[Flow], Any]:
    return (lambda flow: _Down(get(flow))) if name in _TEXTS else (lambda flow: -get(flow))


async def first(pools: Iterable[RunningPool], most: int, key: Key, portions: Portions) -> tuple[list[Flow], int]:
    """(the first `most`, how many there are)."""
    work = Work(portions)
    await work.next()
    best: list[tuple[tuple[Any, ...], Flow]] = []
    total = 0
    for running, observed in _looked_at(pools):
        name = running.pool.name
        for cls in list(running.scheduler.classes):
            order = cls.policy.order
            for leaf in list(cls.queue.leaves()):
                if total % LOOK_EVERY == 0 and work.over:
                    await work.next()
                arrival = oldest_arrival(leaf, order)
                wait_s = None if arrival is None else running.now() - arrival
                flow = Flow(
                    *(name, leaf.tenant, cls.policy.name, leaf.queued, leaf.in_flight, leaf.tag, leaf.weight),
                    oldest_wait_s=wait_s,
                    leaf=leaf,
                    observed=observed,
                )
                best.append((key(flow), flow))
                total += 1
                if total % _AT_ONCE == 0:
                    _cut(best, most)
    _cut(best, most)
    return [flow for _, flow in best], total


def _looked_at(pools: Iterable[RunningPool]) -> Iterator[tuple[RunningPool, bool]]:
    for running in pools:
        yield running, False
        would_be = running.would_be
        if would_be is not None:
            yield would_be, True


def _cut(best: list[tuple[tuple[Any, ...], Flow]], most: int) -> None:
    best.sort(key=itemgetter(0))  # all but the last ones are in order already: a merge
    del best[most:]
