"""All metrics of one process, in a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import structlog
from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import Metric

from extproc.config.telemetry import TenantSeries
from extproc.telemetry.metrics import cluster, configuration, endpoints, pools
from extproc.telemetry.metrics.counts import Budget, Histogram
from extproc.telemetry.metrics.families import alone, counter, gauge, put
from extproc.telemetry.metrics.requests import RequestCounts
from extproc.telemetry.metrics.sources import Sources
from extproc.telemetry.metrics.tenants import TenantCounts

log = structlog.get_logger()

T = TypeVar("T")

# The hard cap: samples that are counted, of them all and of tenants besides; and samples of a page.
MOST_COUNTED = 20_000
MOST_OF_TENANTS = 8_000
MOST_SAMPLES = 50_000

_LAG_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_EXCHANGE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_WHERE = (  # faults come up
    "stream", "scheduler", "recording", "key_file", "engines", "observer", "configuration", "token_file", "telemetry",
    "cluster",
)  # fmt: skip
_OF_REQUESTS = (  # methods
    "effects", "cancelled", "handed_over", "passed", "observed", "untracked", "body_edit", "refused", "clamped",
    "choice_ignored", "access_log",
)  # fmt: skip


def _nothing(*_: object) -> None:
    pass


class Metrics(RequestCounts):
    """Counts what the edge and the schedulers tell, and reads their state when scraped. All but `fault`,
    `spans_dropped` and `lines_left_out` is to be called from the event loop's thread, a scrape too."""

    def __init__(self, version: str, *, enabled: bool = True) -> None:
        """`enabled`: False: nothing of requests is counted."""
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._version = version
        self._sources = Sources()
        self._left_out = 0  # of pages
        self._unread: set[str] = set()  # parts that could not be read at the last scrape
        self._budgets = (Budget(MOST_COUNTED), Budget(MOST_OF_TENANTS))
        self._by_tenant = TenantCounts(TenantSeries(), self._budgets[1])
        super().__init__(self._budgets[0], self._by_tenant)
        self._lag = Histogram(
            "loop_lag_seconds", "Seconds by which the event loop came late to a timer", (), _LAG_S, self._budgets[0]
        )
        self._exchanges = Histogram(
            "cluster_exchange_seconds", "Seconds that an exchange with the store took, which was answered", (),
            _EXCHANGE_S, self._budgets[0],
        )  # fmt: skip
        self._faults = Counter(
            "fairlane_faults", "Faults inside Fairlane, by where they came up", ["where"], registry=self.registry
        )
        self._lines = Counter(
            "fairlane_log_lines_left_out", "Log lines of requests that were not written, for there were too many",
            ["kind"], registry=self.registry,
        )  # fmt: skip
        self._spans = Counter(
            "fairlane_spans_dropped", "Spans that did not reach the collector", ["reason"], registry=self.registry
        )
        for where in _WHERE:  # an alert on faults needs a zero to start from
            self._faults.labels(where)
        self._enabled = enabled
        if not enabled:  # replaced and not asked each time: this is for measuring what counting costs
            for name in _OF_REQUESTS:
                setattr(self, name, _nothing)
        self.registry.register(self)

    def watch(self, sources: Sources) -> None:
        """Where to read state at a scrape."""
        self._sources = sources

    def configure(self, tenants: TenantSeries) -> None:
        """Which tenants have series of their own from now on."""
        self._by_tenant.configure(tenants)

    def fault(self, where: str) -> None:
        self._faults.labels(where).inc()

    def lines_left_out(self, kind: str, count: int) -> None:
        self._lines.labels(kind).inc(count)

    def spans_dropped(self, reason: str, count: int) -> None:
        self._spans.labels(reason).inc(count)

    def loop_lag(self, seconds: float) -> None:
        self._lag.add((), max(0.0, seconds))

    def exchanged(self, seconds: float) -> None:
        """The store has answered after so long."""
        self._exchanges.add((), max(0.0, seconds))

    def collect(self) -> Iterable[Metric]:
        """What is not counted but read comes last, so that it is what a page that is too long goes without."""
        left = MOST_SAMPLES
        for family in self._collected():
            beyond = max(0, len(family.samples) - left)
            if beyond:
                self._left_out += beyond
                del family.samples[-beyond:]
            left -= len(family.samples)
            yield family
        left_out = counter(
            "series_left_out", "Counts and samples that the hard cap on series has left out, each time that it did"
        )
        yield alone(left_out, self._left_out + sum(budget.left_out for budget in self._budgets))

    def _collected(self) -> Iterable[Metric]:
        sources = self._sources
        build = gauge("build_info", "1, with the version as label")
        put(build, {"version": self._version}, 1)
        yield from (build, self._lag.family())
        if self._enabled:
            yield from self.families()
        yield from self._part("process", lambda: pools.process(sources))
        yield from self._part("configuration", lambda: configuration.families(sources.configuration()))
        yield from self._part("cluster", lambda: self._cluster(sources))
        yield from self._part("certificates", lambda: configuration.certificates(sources.certificates()))
        views = list(self._part("views", sources.pools))
        yield from self._part("pools", lambda: pools.families(views, sources))
        yield from self._part("observers", lambda: pools.observed(list(sources.observers())))
        names = [view.pool for view in views]
        if self._enabled:
            yield from self._part("tenants", lambda: self._by_tenant.families(names, sources.held_of))
        yield from self._part("sets", lambda: endpoints.sets(list(sources.sets())))
        yield from self._part("windows", lambda: endpoints.windows(views))
        yield from self._part("scrapers", lambda: endpoints.scrapes(list(sources.scrapers())))

    def _cluster(self, sources: Sources) -> Iterable[Metric]:
        stats = sources.cluster()
        yield from cluster.families(stats)
        if stats is not None and stats.store_used:
            yield self._exchanges.family()

    def _part(self, part: str, read: Callable[[], Iterable[T]]) -> Iterator[T]:
        """As far as it can be read: the rest of the page is needed then all the more."""
        try:
            yield from read()
        except Exception:
            self.fault("telemetry")
            if part not in self._unread:  # and not at each scrape
                log.exception("metrics_not_read", part=part)
            self._unread.add(part)
        else:
            self._unread.discard(part)
