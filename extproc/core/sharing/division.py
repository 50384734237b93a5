"""How the slots of a pool's endpoints are divided between replicas. A function of what each of them has told.

Definitions, for one pool; a slot is one of an engine, those of its standing queue included:

    limit       of an endpoint: slots that all replicas together may hold
    steady      slots that a replica holds there for tenants that have nothing waiting. They are not up for division:
                who asks for no more than that has what it wants
    room        limit - steady, of all endpoints: what those share that wait
    active      slots that a replica holds for tenants that wait, by class
    demand      slots more that it would take for a class
    weight      the part of a class's service that is due to a replica, see `entitlement`
    promoted    slots of its demand that count one class up now: the next request has waited for `promote_after`, and
                its turn has come, one dispatch in `promote_every` of all replicas

Rules
    1. Each class with a `min_share` that waits may have that part of the room; then class by class in the order of
       ranks, each as much of what is left as it can use, over all replicas, up to its own limit: one without a
       standing queue leaves that of the others free. So a higher class that waits anywhere takes from a lower one
       everywhere, as far as it needs. What is promoted of the next class comes before each.
    2. Within a class each replica keeps what is active. What is free goes by weight to those with demand; what one
       cannot use goes to the others, by weight. Where there is less than is active, all give up the same part of it.
       Then each asks for so many slots more, or less, as it is behind or ahead, see `lag`. Who has something that is
       promoted keeps what is active, and has slots for it besides.
    3. What nobody can use is spread evenly over the replicas that are busy: their next arrivals need not ask first.
    4. A replica's part of each endpoint is its steady slots there, and of the room there the part that it has of all.

Parts are fractions. `whole` makes slots of them, whose remainders take turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

LEAST_WEIGHT = 1e-6  # of one that waits: others do not know yet that it does


class Claimant(NamedTuple):
    """One class at one replica. Slots; `weight` 0..1."""

    active: int
    demand: int
    weight: float
    promoted: int = 0

    @property
    def kept(self) -> int:
        """What it has before the class above."""
        return self.active + self.promoted if self.promoted else 0


_NOBODY = Claimant(0, 0, 0.0)


class Replica(NamedTuple):
    """What one replica has told. Slots."""

    in_flight: Sequence[int]  # by endpoint
    classes: Mapping[str, Claimant]  # those with something waiting
    busy: bool = True  # it holds or has inside something


class ClassRule(NamedTuple):
    """What of a class's policy counts here."""

    name: str
    min_share: float
    limit: float = math.inf  # slots, of all endpoints, that it may fill up to: with its own standing queue, or without


class Division(NamedTuple):
    """The outcome, for one replica."""

    parts: list[float]  # slots, by endpoint
    unmet: frozenset[str]  # classes that could use more than there is


def divide(
    limits: Sequence[float], replicas: Sequence[Replica], classes: Sequence[ClassRule], behind: Mapping[str, float]
) -> Division:
    """What the first of `replicas` may have. `limits` by endpoint; `classes` in the order of their ranks; `behind`:
    slots by class, see `lag`. O(replicas * (classes + endpoints))."""
    me = replicas[0]
    steady = [_steady(replica) for replica in replicas]
    rooms = [
        max(0.0, limit - sum(part * r.in_flight[e] for part, r in zip(steady, replicas, strict=True)))
        for e, limit in enumerate(limits)
    ]
    room = sum(rooms)
    amounts, left = share_out(room, replicas, classes, sum(limits) - room)
    got = 0.0
    unmet = set()
    for cls in classes:
        name = cls.name
        claimants = [r.classes.get(name, _NOBODY) for r in replicas]
        amount = amounts[name]
        if amount < sum(c.active + c.demand for c in claimants) - 0.5:
            unmet.add(name)
        mine = claimants[0]
        if mine is not _NOBODY:
            least, part = _part(amount, claimants)
            got += min(max(least, part + behind.get(name, 0.0)), mine.active + mine.demand)
    if me.busy:
        got += left / sum(r.busy for r in replicas)
    of_room = got / room if room > 0.0 else 0.0
    parts = [steady[0] * own + of_room * there for own, there in zip(me.in_flight, rooms, strict=True)]
    return Division(parts, frozenset(unmet))


def share_out(
    room: float, replicas: Sequence[Replica], classes: Sequence[ClassRule], steady: float = 0.0
) -> tuple[dict[str, float], float]:
    """(slots of each class over all replicas, slots that nobody can use). `steady`: slots that are not up for
    division."""
    claimants = {c.name: [r.classes.get(c.name, _NOBODY) for r in replicas] for c in classes}
    most = {name: sum(c.active + c.demand for c in each) for name, each in claimants.items()}
    amounts = dict.fromkeys(most, 0.0)
    left = room
    for cls in classes:
        amounts[cls.name] = min(cls.min_share * room, most[cls.name], left)
        left -= amounts[cls.name]

    def give(name: str, asked: float, limit: float) -> None:
        nonlocal left
        more = min(max(0.0, asked - amounts[name]), left, max(0.0, limit - steady - (room - left)))
        amounts[name] += more
        left -= more

    for cls, below in zip_longest(classes, classes[1:]):
        if below is not None:
            give(below.name, sum(c.kept for c in claimants[below.name]), max(cls.limit, below.limit))
        give(cls.name, most[cls.name], cls.limit)
    return amounts, left


def _part(amount: float, claimants: Sequence[Claimant]) -> tuple[float, float]:
    """(the least, what is due by weight) of `amount` for the first of `claimants`."""
    mine = claimants[0]
    active, promoted = sum(c.active for c in claimants), sum(c.promoted for c in claimants)
    if amount >= active + promoted:
        weights = [max(c.weight, LEAST_WEIGHT) for c in claimants]
        free = fill(amount - active - promoted, weights, [c.demand - c.promoted for c in claimants])[0]
        return mine.kept, mine.active + mine.promoted + free
    kept = sum(c.kept for c in claimants)
    if mine.promoted:
        least = mine.kept * min(1.0, amount / kept)
        return least, least
    others = sum(c.active for c in claimants if not c.promoted)
    return 0.0, mine.active * max(0.0, amount - kept) / others if others else 0.0


def fill(amount: float, weights: Sequence[float], most: Sequence[float]) -> list[float]:
    """`amount` by weight, to each at most `most`: what one does not take goes to the others by weight. Exact."""
    given = [0.0] * len(most)
    order = sorted((i for i, each in enumerate(most) if each > 0.0), key=lambda i: most[i] / weights[i])
    weight = sum(weights[i] for i in order)
    for i in order:
        if amount <= 0.0:
            break
        given[i] = min(most[i], amount * weights[i] / weight) if weight > 0.0 else 0.0
        amount -= given[i]
        weight -= weights[i]
    return given


def whole(part: float, carry: float) -> tuple[int, float]:
    """(slots, what is carried on). So that over several periods it is `part` in the mean."""
    slots = math.floor(part + carry + 1e-9)
    return slots, min(max(part + carry - slots, 0.0), 1.0)


def _steady(replica: Replica) -> float:
    """The part of its slots that is not up for division, 0..1."""
    inside = sum(replica.in_flight)
    if not inside:
        return 0.0
    return max(0.0, 1.0 - sum(c.active for c in replica.classes.values()) / inside)
