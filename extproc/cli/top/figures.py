"""What the service said last, and how the flows of it are sorted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from extproc.pb.admin.v1 import admin_pb2 as pb


class FlowKey(NamedTuple):
    """One tenant in one class of one pool."""

    pool: str
    tenant: str
    cls: str


def key_of(flow: pb.Flow) -> FlowKey:
    return FlowKey(flow.pool, flow.tenant, getattr(flow, "class"))


@dataclass(frozen=True)
class Figures:
    """One picture's worth."""

    stats: pb.Stats
    status: pb.Status
    flows: Sequence[pb.Flow]
    flow_count: int  # with those that were not asked for
    taken_at: float  # seconds of the monotonic clock of this process


@dataclass(frozen=True)
class Lost:
    """The service does not answer."""

    since: float  # seconds of the monotonic clock
    clock: str  # the same, as a clock on the wall shows it
    words: str
    again_at: float | None = None  # None: it is tried now


@dataclass(frozen=True)
class Told:
    """Why the next request of a flow waits; or, without an explanation, why that cannot be said."""

    key: FlowKey
    explanation: pb.Explanation | None = None
    words: str = ""


@dataclass(frozen=True)
class Seen:
    """All that a picture is made of, but for the keys' choices. `now`: seconds of the monotonic clock. `newest_at`: of
    the same, when figures came last, where those that are shown are older: paused."""

    figures: Figures
    now: float
    interval_s: float
    address: str
    lost: Lost | None = None
    told: Told | None = None
    newest_at: float | None = None

    @property
    def age_s(self) -> float:
        """Since the service has said something."""
        return max(0.0, self.now - (self.figures.taken_at if self.newest_at is None else self.newest_at))

    @property
    def old(self) -> bool:
        """Nothing has come for three times as long as it should take, and three seconds at least."""
        return self.lost is not None or self.age_s > max(3.0, 3 * self.interval_s)


class Order(NamedTuple):
    """By a column of the flows. `field`: of the API's `order_by`."""

    field: str
    down: bool  # what a reader wants first is the largest
    value: Callable[[pb.Flow], Any]


def _wait_s(flow: pb.Flow) -> float:
    return float(flow.oldest_wait.ToNanoseconds()) / 1e9 if flow.HasField("oldest_wait") else -1.0


ORDERS: dict[str, Order] = {
    "tenant": Order("tenant", False, lambda flow: flow.tenant),
    "class": Order("class", False, lambda flow: getattr(flow, "class")),
    "queued": Order("queued_count", True, lambda flow: flow.queued_count),
    "in-flight": Order("in_flight_slots", True, lambda flow: flow.in_flight_slots),
    "oldest": Order("oldest_wait", True, _wait_s),
    "weight": Order("weight", True, lambda flow: flow.weight),
    "tag": Order("tag", False, lambda flow: flow.tag),
}


def order_by(name: str, down: bool) -> str:
    """As the API takes it."""
    return f"{ORDERS[name].field} desc" if down else ORDERS[name].field


def sorted_flows(flows: Sequence[pb.Flow], name: str, down: bool, pool: str) -> list[pb.Flow]:
    """Those of a pool (empty: of all) as the service sorts them: what is equal goes by pool, tenant and class. The
    flows at hand are sorted at once; which are the first of all is known when the service has answered."""
    found = sorted((flow for flow in flows if pool in ("", flow.pool)), key=key_of)
    found.sort(key=ORDERS[name].value, reverse=down)
    return found
