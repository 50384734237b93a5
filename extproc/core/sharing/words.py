"""What replicas tell each other about a pool.

Counters only grow, and are read as the latest of each replica: a report that is lost or read twice does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlowReport:
    """One tenant in one class, at one replica."""

    cls: str
    tenant: str
    usage: float  # cost that it was charged, ever; cost units, only grows
    backlog: float  # estimated cost of what it has waiting; 0 where a cap or a rate holds it
    inside: int  # slots that it holds


@dataclass(frozen=True, slots=True)
class ClassReport:
    """One class, at one replica."""

    name: str
    rank: int
    demand: int  # slots that would be taken by what waits and is held by nothing but the want of room
    backlog: float  # estimated cost of all that waits
    active: int  # slots held by tenants of the class that have something waiting in it
    served: float  # cost that was charged, ever; only grows
    weight: float  # part of the class's service that is due here: over all replicas about 1; 0 where nothing waits
    promoted: int = 0  # slots of `demand` that count one class up now


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """One endpoint ("host:port"), as seen by one replica. Slots."""

    endpoint: str
    in_flight: int  # of this replica
    freed: int  # of this replica, ever
    limit: float  # that all replicas together may hold; 0: nothing may go there
    want: float  # most that this replica asks for


@dataclass(frozen=True, slots=True)
class PoolReport:
    """A pool, at one replica. `flows`: those that have changed, and some more in turn."""

    pool: str
    classes: tuple[ClassReport, ...]
    endpoints: tuple[EndpointReport, ...]
    flows: tuple[FlowReport, ...] = ()
    released: int = 0  # requests, ever


@dataclass(frozen=True, slots=True)
class Other:
    """Another replica, as it told last. Where it told several times since the last exchange, `report.flows` are all
    that were in these, in order."""

    replica: str
    life: str  # another one where the process is another: its counters have begun anew
    report: PoolReport
    missed: bool = False  # some of what it told was gone before it was read
    age_s: float = 0.0  # of what it told last, by the store's clock


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer of one exchange."""

    sent_at: float  # when it was asked for, on the scheduler's clock
    fresh: bool  # the store did not know this replica: it is new, was away for too long, or the store was emptied
    others: tuple[Other, ...]  # that live
    claims: Mapping[str, float]  # endpoint -> slots that this replica may hold there
