"""What is counted by tenant: of those that the configuration names, of the top ones, and of all others together.

    named    has series of its own now. All that is counted of another one goes to `other`, at the event, and stays
             there: so `other` never goes down, and neither does any series
    top      those with the most cost of late, `telemetry.tenants.top` of them beside the names of the configuration.
             While there are places left, whoever comes takes one; who has them is looked at anew once a minute at most,
             when something is settled. Nothing wakes up for it
    of late  cost fades by half in five minutes. A tenant in the top stays until another has a quarter more: series that
             come and go are of little use
    gone     one that drops out loses its series. When it returns they begin at 0, with another time of creation

Bounded, whatever comes: so many tenants are told apart within a minute, those that come later only if they come again
in the next; from one minute to the next only the best are kept; series have a cap, beyond which a named tenant counts
as `other`. A tenant whose name is `other` is one of those.

Left out: a sketch that finds heavy ones among millions (Space-Saving). A table of one minute does for what a process
serves.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, Metric

from extproc.config.telemetry import TenantSeries
from extproc.telemetry.metrics.counts import OTHER, Budget
from extproc.telemetry.metrics.families import gauge, put
from extproc.telemetry.metrics.labels import label

_LOOK_S = 60.0
_HALF_LIFE_S = 300.0
_STAYS = 1.25  # times what another one has
_MOST_CANDIDATES = 5_000  # told apart within a minute: the look at all of them holds a request up
_KEPT = 4  # times the places, from one minute to the next
_SAMPLES = 8  # of a tenant in a pool: four counters, each with its time of creation


@dataclass(slots=True)
class _Row:
    """A tenant in a pool, or all others there."""

    created: float  # Unix time
    released: int = 0
    refused: int = 0
    cost: float = 0.0
    wait_s: float = 0.0


_COUNTERS: tuple[tuple[str, str, Callable[[_Row], float]], ...] = (
    ("tenant_released_requests", "Requests sent on to an engine, by tenant", lambda row: row.released),
    (
        "tenant_refused_requests",
        "Requests that found a place in no queue or lost it, by tenant",
        lambda row: row.refused,
    ),
    (
        "tenant_settled_cost",
        "Cost of settled requests, in the pool's cost units, by tenant",
        lambda row: row.cost,
    ),
    (
        "tenant_queue_wait_seconds",
        "Seconds that requests have waited until their release or refusal, added up, by tenant",
        lambda row: row.wait_s,
    ),
)


class TenantCounts:
    def __init__(self, settings: TenantSeries, budget: Budget, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._budget = budget
        self._clock = clock
        self._looked_at = clock()
        self._names: set[str] = set()  # of the configuration
        self._top: set[str] = set()
        self._labels: dict[str, str] = {}  # named tenant -> its label
        self._rows: dict[tuple[str, str], _Row] = {}  # pool, label
        self._row_of: dict[tuple[str, str], _Row] = {}  # pool, named tenant: the same rows, found by one look
        self._minute: dict[str, float] = {}  # cost since the last look
        self._lately: dict[str, float] = {}  # cost before that, faded
        self.configure(settings)

    def configure(self, settings: TenantSeries) -> None:
        """Others are named from now on. Who stays named keeps its series."""
        self._settings = settings
        self._names = set(settings.names) - {OTHER}
        self._look(self._clock())

    def released(self, pool: str, tenant: str, waited_s: float) -> None:
        row = self._row_of.get((pool, tenant)) or self._row(pool, tenant)
        row.released += 1
        row.wait_s += waited_s

    def refused(self, pool: str, tenant: str, waited_s: float) -> None:
        row = self._row(pool, tenant)
        row.refused += 1
        row.wait_s += waited_s

    def settled(self, pool: str, tenant: str, cost: float) -> None:
        row = self._row_of.get((pool, tenant)) or self._row(pool, tenant)
        row.cost += cost
        minute = self._minute
        try:
            minute[tenant] += cost
        except KeyError:
            if len(minute) < _MOST_CANDIDATES:
                minute[tenant] = cost
        now = self._clock()
        if now >= self._looked_at + _LOOK_S:
            self._look(now)

    def families(self, pools: Iterable[str], held_of: Callable[[str, str], int]) -> Iterable[Metric]:
        """`held_of`: how many requests a pool holds of a tenant."""
        for name, text, read in _COUNTERS:
            family = CounterMetricFamily(f"fairlane_{name}", text, labels=("pool", "tenant"))
            for (pool, tenant), row in self._rows.items():
                family.add_metric((label(pool), tenant), read(row), created=row.created)
            yield family
        held: dict[tuple[str, str], int] = {}
        for pool in pools:
            for tenant, shown in self._labels.items():
                count = held_of(pool, tenant)
                if count or (pool, shown) in self._rows:
                    held[pool, shown] = held.get((pool, shown), 0) + count
        waiting = gauge("tenant_held_requests", "Requests that wait, of tenants with series of their own")
        for (pool, tenant), count in held.items():
            put(waiting, {"pool": label(pool), "tenant": tenant}, count)
        yield waiting

    def _row(self, pool: str, tenant: str) -> _Row:
        shown = self._labels.get(tenant)
        if shown is None:
            shown = self._label_of_new(tenant)
        row = self._rows.get((pool, shown)) or self._begun(pool, shown)
        if tenant in self._labels:  # so there are as many as there are rows, and no more
            self._row_of[pool, tenant] = row
        return row

    def _label_of_new(self, tenant: str) -> str:
        if len(self._top) >= self._settings.top or tenant == OTHER:
            return OTHER
        self._top.add(tenant)
        shown = self._labels[tenant] = label(tenant)
        return shown

    def _begun(self, pool: str, shown: str) -> _Row:
        if shown != OTHER and not self._budget.take(_SAMPLES):
            return self._rows.get((pool, OTHER)) or self._begun(pool, OTHER)
        row = self._rows[pool, shown] = _Row(time.time())
        return row

    def _look(self, now: float) -> None:
        """Who is in the top? O(candidates)."""
        fading = 0.5 ** (max(0.0, now - self._looked_at) / _HALF_LIFE_S)
        lately = {tenant: cost * fading for tenant, cost in self._lately.items()}
        for tenant, cost in self._minute.items():
            lately[tenant] = lately.get(tenant, 0.0) + cost
        for tenant in self._top:
            lately.setdefault(tenant, 0.0)
        places = self._settings.top
        able = [tenant for tenant in lately if tenant not in self._names and tenant != OTHER]
        best = heapq.nlargest(_KEPT * places, able, key=lambda tenant: self._score(tenant, lately[tenant]))
        self._lately = {tenant: lately[tenant] for tenant in best}
        self._minute = {}
        self._looked_at = now
        self._top = set(best[:places])
        self._labels = {tenant: label(tenant) for tenant in (*self._names, *best[:places])}
        labels = set(self._labels.values())
        gone = [key for key in self._rows if key[1] != OTHER and key[1] not in labels]
        for key in gone:
            del self._rows[key]
        self._row_of.clear()
        self._budget.give_back(_SAMPLES * len(gone))

    def _score(self, tenant: str, cost: float) -> float:
        if not math.isfinite(cost):
            return 0.0
        return cost * _STAYS if tenant in self._top else cost
