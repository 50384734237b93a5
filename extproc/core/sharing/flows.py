"""What tenants have had, have waiting and have inside: of this replica, to be told, and of the others, as they told it.

A tenant in a class is a flow. Its usage is the cost charged to it, and only grows: a true-up downwards is told as no
growth until charges have made up for it. What a reader has not heard for once it learns with the next number.

A replica tells of a flow when it has been charged, when its slots have changed, when it begins or ceases to wait, and
when what it has waiting has changed by an eighth; of some more in turn, so that a loss heals. One with nothing waiting
and nothing inside is told once more and forgotten, here and by all readers. If it comes again its usage begins at 0. So
of a flow that a reader does not know it takes as new no more than its class, as a whole, was charged there since the
last report.

Cost: a report looks at those tenants that something has happened to, and at `AT_ONCE` of each class in turn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from extproc.core.class_queue import ClassQueue
from extproc.core.node import Leaf, Node
from extproc.core.sharing.words import FlowReport, PoolReport

AT_ONCE = 100  # tenants of a class that are looked at for a report
CHANGED = 1_000  # flows in a report, and
IN_TURN = 32  # more that have not changed
_CHANGED_BY = 0.125  # part of what waits
_DOUBT_S = 60.0  # after a report was missed, for a flow that is not told of again

Key = tuple[str, str]  # class, tenant


class Charged(NamedTuple):
    """Cost."""

    all: float
    waits: float  # to those of them that have something waiting, or had it at the last look


@dataclass(slots=True)
class _Own:
    """A flow of this replica. Cost units, slots."""

    charged: float = 0.0  # may go back
    usage: float = 0.0  # may not
    backlog: float = 0.0
    inside: int = 0
    demand: int = 0
    told: FlowReport | None = None

    @property
    def idle(self) -> bool:
        return not self.backlog and not self.inside

    def changed(self) -> bool:
        told = self.told
        if told is None or told.usage != self.usage or told.inside != self.inside:
            return True
        return abs(self.backlog - told.backlog) > _CHANGED_BY * min(self.backlog, told.backlog)


class OwnFlows:
    """Of this replica, of all classes of a pool."""

    def __init__(self) -> None:
        # By class, of those that have something waiting and are held by no limit of their own:
        self.waiting: dict[str, dict[str, float]] = {}  # tenant -> cost
        self.active: Counter[str] = Counter()  # slots that they hold
        self.demand: Counter[str] = Counter()  # slots that they would take
        self.moved: set[Key] = set()  # those whose cost in `waiting` has changed; the reader empties it
        self._flows: dict[Key, _Own] = {}
        self._pending: dict[Key, None] = {}  # those that have changed, in order
        self._told: list[Key] = []  # in the last report
        self._turn: Iterator[Key] = iter(())
        self._looks: dict[str, Iterator[Leaf]] = {}  # class -> those that are to be looked at

    def __len__(self) -> int:
        return len(self._flows)

    def look(self, classes: Sequence[ClassQueue]) -> dict[str, Charged]:
        """Take in what has happened. Returns what was charged since the last look, by class."""
        found = {}
        names = {cls.policy.name for cls in classes}
        for key in [k for k in self._flows if k[0] not in names] if self._looks.keys() - names else ():
            self._note(*key, None)
        self._looks = {name: leaves for name, leaves in self._looks.items() if name in names}
        for cls in classes:
            name, queue = cls.policy.name, cls.queue
            spent = queue.take_spent()
            charged = waits = 0.0
            for tenant, cost in spent.items():
                leaf = queue.leaf(tenant)
                if cost:
                    own = self._flows.get((name, tenant))
                    if own is None:
                        own = self._flows[name, tenant] = _Own()
                    own.charged += cost
                    grown = own.charged - own.usage
                    if grown > 0.0:
                        own.usage = own.charged
                        charged += grown
                    waited = own.backlog > 0.0
                    self._note(name, tenant, leaf)
                    if waited or own.backlog:
                        waits += max(grown, 0.0)
                else:
                    self._note(name, tenant, leaf)
            for leaf in self._some(cls):
                self._note(name, leaf.tenant, queue.leaf(leaf.tenant))
            found[name] = Charged(charged, waits)
        return found

    def _some(self, cls: ClassQueue) -> list[Leaf]:
        """In turn: a rate or a cap may have begun or ceased to hold them, of which nothing else tells."""
        looks = self._looks.get(cls.policy.name, iter(()))
        some = list(islice(looks, AT_ONCE))
        if len(some) < AT_ONCE:
            self._looks[cls.policy.name] = rest = iter(list(cls.queue.leaves()))
            some += islice(rest, AT_ONCE - len(some))
        return some

    def _note(self, cls: str, tenant: str, leaf: Leaf | None) -> None:
        key = (cls, tenant)
        own = self._flows.get(key)
        backlog = 0.0 if leaf is None or not leaf.queued or not _eligible(leaf) else max(leaf.queued_cost, 1e-9)
        inside = 0 if leaf is None else leaf.in_flight
        if own is None:
            if not backlog and not inside:
                return
            own = self._flows[key] = _Own()
        if own.backlog:
            self.active[cls] -= own.inside
            self.demand[cls] -= own.demand
            own.demand = 0
        if backlog and leaf is not None:
            self.waiting.setdefault(cls, {})[tenant] = backlog
            own.demand = leaf.queued
            if leaf.cap is not None:
                own.demand = min(own.demand, leaf.cap - inside - leaf.elsewhere)
            self.active[cls] += inside
            self.demand[cls] += own.demand
        elif own.backlog:
            del self.waiting[cls][tenant]
        if backlog != own.backlog:
            self.moved.add(key)
        own.backlog, own.inside = backlog, inside
        if own.changed():
            self._pending[key] = None

    def report(self) -> tuple[FlowReport, ...]:
        """What is to be told now."""
        keys = list(islice(self._pending, CHANGED))
        for key in keys:
            del self._pending[key]
        for _ in range(2):
            keys += [key for key in islice(self._turn, IN_TURN) if key in self._flows and key not in self._pending]
            if len(keys) >= IN_TURN or not self._flows:
                break
            self._turn = iter(list(self._flows))
        keys = list(dict.fromkeys(keys))
        told = []
        for key in keys:
            own = self._flows[key]
            own.told = FlowReport(*key, own.usage, own.backlog, own.inside)
            told.append(own.told)
        self._told = keys
        return tuple(told)

    def heard(self) -> None:
        """The last report has arrived: those that it called idle are known to be."""
        for key in self._told:
            own = self._flows.get(key)
            if own is not None and own.idle and own.told is not None and not own.changed():
                del self._flows[key]
        self._told = []

    def lost(self) -> None:
        """The last report may not have arrived: its flows are told of again."""
        self._pending = dict.fromkeys([k for k in self._told if k in self._flows]) | self._pending
        self._told = []


def _eligible(leaf: Leaf) -> bool:
    """Whether no cap or rate on its path holds it."""
    node: Node = leaf
    while node.parent is not None:
        if node.key is None:
            return False
        node = node.parent
    return True


class News(NamedTuple):
    """Of one other replica since the last time. Cost."""

    flows: dict[Key, float]  # those that were told of -> what they were charged
    served: dict[str, float]  # class -> what it was charged
    waits: dict[str, float]  # class -> what those of it that wait, or waited, were charged


@dataclass(slots=True)
class OtherReplica:
    """What one other replica has told. Cost units, slots."""

    life: str
    report: PoolReport
    flows: dict[Key, FlowReport] = field(default_factory=dict)
    doubted: dict[Key, float] = field(default_factory=dict)  # flow -> since when; a report with it may have been missed

    def update(self, report: PoolReport, missed: bool, now: float) -> News:
        """Take in what it has told, and forget what came before."""
        before = {c.name: c.served for c in self.report.classes}
        served = {c.name: max(0.0, c.served - before[c.name]) for c in report.classes if c.name in before}
        if missed:
            self.doubted = {key: self.doubted.get(key, now) for key in self.flows}
        charged: dict[Key, float] = {}
        waits: dict[str, float] = {}
        flows, doubted = self.flows, self.doubted
        for flow in report.flows:
            key = (flow.cls, flow.tenant)
            known = flows.get(key)
            if known is not None and flow.usage >= known.usage:
                new = flow.usage - known.usage
            else:
                new = min(flow.usage, served.get(flow.cls, 0.0))
            charged[key] = charged.get(key, 0.0) + new
            if flow.backlog or (known is not None and known.backlog):
                waits[flow.cls] = waits.get(flow.cls, 0.0) + new
            if flow.backlog or flow.inside:
                flows[key] = flow
            else:
                flows.pop(key, None)
            if doubted:
                doubted.pop(key, None)
        if doubted:
            for key in [k for k, since in doubted.items() if now - since > _DOUBT_S]:
                del doubted[key]
                if flows.pop(key, None) is not None:
                    charged.setdefault(key, 0.0)
        self.report = report
        return News(charged, served, waits)
