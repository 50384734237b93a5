"""What an exchange costs a replica: CPU of `Sharing.tell`, `Sharing.heard` and the event, without the store's part."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from extproc.core.events import Arrive, Effect, End, EndpointAdded, Release, Scraped, Usage
from extproc.core.model import Controller, Sample, Source, WindowPolicy
from extproc.core.scheduler import Scheduler
from extproc.core.sharing.sharing import Sharing
from extproc.sim.meeting_place import MeetingPlace
from extproc.sim.workloads.workload import a_pool

_ENDPOINT = "engine:8000"
_PERIOD_S = 0.1
_SLOTS = 200
_OVER = 20  # requests that are over in a period, at each replica
_WARM_UP = 20  # exchanges


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU of one exchange at one of two replicas, in milliseconds, while so many tenants wait at each of both."""

    tenants: int
    changed: int  # tenants to whom something happens in a period
    mean_ms: float
    most_ms: float


class _Side:
    """One replica whose tenants always wait."""

    def __init__(self, name: str, tenants: int) -> None:
        window = WindowPolicy(controller=Controller.FIXED, fixed=_SLOTS)
        self.scheduler = Scheduler(replace(a_pool(window=window), shared=True))
        self.sharing = Sharing("model", 2, _PERIOD_S, 3.0)
        self.name = name
        self.inside: list[Release] = []
        self.number = 0
        self.do([self.scheduler.apply(EndpointAdded(_ENDPOINT), 0.0)])
        for each in range(tenants):
            self.arrive(f"organisation/tenant-{each}", 0.0)

    def arrive(self, tenant: str, now: float) -> None:
        self.number += 1
        self.do([self.scheduler.apply(Arrive(f"{self.name}-{self.number}", tenant, "interactive", now, 1_000), now)])

    def do(self, effects: list[list[Effect]]) -> None:
        self.inside += [effect for some in effects for effect in some if isinstance(effect, Release)]

    def period(self, now: float) -> None:
        """A page, and some requests that are over; their tenants send the next ones."""
        sample = Sample(_SLOTS, 0, 0.1, None, None, None, 0.0, 0.0, started=now)
        self.do([self.scheduler.apply(Scraped(_ENDPOINT, sample), now)])
        over, self.inside = self.inside[:_OVER], self.inside[_OVER:]
        for release in over:
            usage = Usage(release.id, Source.USAGE, 250, 0, 200)
            self.do([self.scheduler.apply(usage, now), self.scheduler.apply(End(release.id), now)])
            self.arrive(release.tenant, now)

    def exchange(self, store: MeetingPlace, now: float) -> float:
        """Seconds of CPU."""
        began = time.process_time()
        report = self.sharing.tell(self.scheduler, now)
        told = time.process_time() - began
        heard = store.exchange(self.name, self.name, report, now, now)
        began = time.process_time()
        self.do([self.scheduler.apply(self.sharing.heard(self.scheduler, heard, now), now)])
        return told + time.process_time() - began


def cost(tenants: int, exchanges: int = 100) -> Cost:
    """Of an exchange, over so many."""
    store = MeetingPlace(3.0)
    sides = [_Side("a", tenants), _Side("b", tenants)]
    spent: list[float] = []
    for number in range(_WARM_UP + exchanges):
        now = 1.0 + number * _PERIOD_S
        for side in sides:
            side.period(now)
            spent.append(side.exchange(store, now))
    kept = spent[2 * _WARM_UP :]
    return Cost(tenants, 2 * _OVER, 1000 * sum(kept) / len(kept), 1000 * max(kept))
