"""Prometheus metrics. What happens is counted as it happens; what is, is read at the scrape.

No label comes from a client: pools, classes, endpoints and reasons are all configured or fixed.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from extproc.core.events import Effect, Evict, Refuse, Release, Settled
from extproc.core.priority import PriorityWay
from extproc.core.view import PoolView
from extproc.core.windows import Stance, WindowView

_WAIT_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class ScrapeStats:
    """What one endpoint's scraper has done, as far as metrics tell."""

    pool: str
    endpoint: str
    dialect: str
    scrapes: int
    failures: Mapping[str, int]  # by kind
    last_duration_s: float
    way: PriorityWay
    last_failure: str | None = None  # cause and cure, where the last page could not be read


@dataclass(frozen=True, slots=True)
class EndpointSetStats:
    """Where one pool's endpoints come from, as far as metrics tell."""

    pool: str
    endpoints: int
    failures: int
    age_s: float | None  # since it was last known to be right; None: never yet
    last_error: str | None = None  # cause and cure, where it could not be read at last


@dataclass(frozen=True, slots=True)
class ConfigurationStats:
    """What the service runs by, as far as metrics tell."""

    revision: int
    overrides: int  # settings of the overlay
    file_good: bool  # False: the file as it is now cannot be used, and the one before it goes on
    state_read_only: bool  # nothing can be changed live
    expiries_failed: int  # temporary settings that are over, and could not be undone
    outcomes: Mapping[str, int]  # of changes and attempts


class _Counts:
    """A counter for what every request is counted by. prometheus-client's own takes locks and makes checks, which cost
    four times as much; all that counts here does so on the loop's thread."""

    def __init__(self, name: str, text: str, labels: list[str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._of: dict[tuple[str, ...], list[float]] = {}  # labels -> value, time of its first count

    def add(self, labels: tuple[str, ...], amount: float = 1.0) -> None:
        value = self._of.get(labels)
        if value is None:
            value = self._of[labels] = [0.0, time.time()]
        value[0] += amount

    def family(self) -> Metric:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, (value, created) in self._of.items():
            family.add_metric(labels, value, created=created)
        return family


class _Waits:
    """A histogram of seconds, likewise."""

    def __init__(self, name: str, text: str, labels: list[str]) -> None:
        self._name, self._text, self._labels = name, text, labels
        # labels -> how many fell into each bucket, the last of which has no end; sum and time of the first
        self._of: dict[tuple[str, ...], tuple[list[int], list[float]]] = {}

    def add(self, labels: tuple[str, ...], seconds: float) -> None:
        found = self._of.get(labels)
        if found is None:
            found = self._of[labels] = ([0] * (len(_WAIT_BUCKETS) + 1), [0.0, time.time()])
        found[0][bisect_left(_WAIT_BUCKETS, seconds)] += 1
        found[1][0] += seconds

    def family(self) -> Metric:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in _WAIT_BUCKETS), "+Inf"]
        for labels, (counts, (total, created)) in self._of.items():
            family.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
            family.add_sample(f"{self._name}_created", dict(zip(self._labels, labels, strict=True)), created)
        return family


class Metrics:
    """Counts what the edge and the schedulers tell, and reads their state when scraped."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self._pools: Callable[[], Iterable[PoolView]] = tuple
        self._scrapers: Callable[[], Iterable[ScrapeStats]] = tuple
        self._sets: Callable[[], Iterable[EndpointSetStats]] = tuple
        self._open_streams: Callable[[], int] = int
        self._configuration: Callable[[], ConfigurationStats | None] = lambda: None
        self._observers: Callable[[], Iterable[PoolView]] = tuple
        self._version = version
        self._released = _Counts("fairlane_released_requests", "Requests sent on to an engine", ["pool", "class"])
        self._wait = _Waits(
            "fairlane_queue_wait_seconds",
            "Time from a request's first arrival to its release or refusal",
            ["pool", "class", "outcome"],
        )
        self._refused = Counter(
            "fairlane_refused_requests", "Requests answered without an engine", ["reason"], registry=self.registry
        )
        self._cancelled = Counter(
            "fairlane_cancelled_requests", "Requests whose client left while held", ["pool"], registry=self.registry
        )
        self._handed_over = Counter(
            "fairlane_handed_over_requests",
            "Held requests let go at a shutdown, for another replica to take",
            ["pool"],
            registry=self.registry,
        )
        self._settled = _Counts(
            "fairlane_settled_requests",
            "Requests whose cost is final, by where it came from",
            ["pool", "class", "source"],
        )
        self._cost = _Counts("fairlane_settled_cost", "Cost of settled requests, in weighted tokens", ["pool", "class"])
        self._passed = Counter(
            "fairlane_passed_requests", "Requests let through without scheduling", ["why"], registry=self.registry
        )
        self._observed = _Counts(
            "fairlane_observed_requests",
            "Requests that passed, by what would have become of them",
            ["pool", "class", "outcome"],
        )
        self._observed_wait = _Waits(
            "fairlane_observed_wait_seconds",
            "Time that requests that passed would have waited, or had until their answer was over",
            ["pool", "class", "outcome"],
        )
        self._observed_priority = _Counts(
            "fairlane_observed_priority",
            "Requests that passed and would have been released, by the priority that the engine would have been told",
            ["pool", "class", "priority"],
        )
        self._untracked = Counter(
            "fairlane_untracked_requests",
            "Released requests whose second stream did not come (profile strict): a client that left in between, or a "
            "tracking filter that is missing",
            registry=self.registry,
        )
        self._body_edits = Counter(
            "fairlane_body_edits", "Request bodies that were to be edited, by outcome", ["outcome"],
            registry=self.registry,
        )  # fmt: skip
        self._evicted = Counter(
            "fairlane_evicted_requests",
            "Requests inside an engine that made room for a more urgent class, or that an operator took back",
            ["pool", "class"],
            registry=self.registry,
        )
        self._clamped = Counter(
            "fairlane_clamped_requests", "Requests that asked for a class they may not use", registry=self.registry
        )
        self._faults = Counter(
            "fairlane_faults", "Faults inside Fairlane, by where they came up", ["where"], registry=self.registry
        )
        self._choices_ignored = Counter(
            "fairlane_ignored_choices",
            "Requests that Envoy sent to another endpoint than Fairlane had chosen: its list of endpoints is another",
            ["pool"],
            registry=self.registry,
        )
        self._access_log = _Counts(
            "fairlane_access_log_entries", "Access-log entries by what was made of them", ["kind"]
        )
        for where in (
            "stream",
            "scheduler",
            "recording",
            "key_file",
            "engines",
            "observer",
            "configuration",
            "token_file",
        ):
            self._faults.labels(where)
        self.registry.register(self)

    def watch(
        self,
        pools: Callable[[], Iterable[PoolView]],
        scrapers: Callable[[], Iterable[ScrapeStats]],
        sets: Callable[[], Iterable[EndpointSetStats]],
        open_streams: Callable[[], int],
        observers: Callable[[], Iterable[PoolView]] = tuple,
        configuration: Callable[[], ConfigurationStats | None] = lambda: None,
    ) -> None:
        """Where to read state at a scrape. `observers`: of what passes, and is not held."""
        self._pools, self._scrapers, self._sets, self._open_streams = pools, scrapers, sets, open_streams
        self._observers, self._configuration = observers, configuration

    # -- the edge's recorder ----------------------------------------------------------------------

    def effects(self, pool: str, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Release():
                    self._released.add((pool, effect.cls))
                    self._wait.add((pool, effect.cls, "released"), effect.waited_s)
                case Settled():
                    self._settled.add((pool, effect.cls, effect.source.value))
                    self._cost.add((pool, effect.cls), effect.cost)
                case Refuse():
                    self._refused.labels(effect.reason.code).inc()
                    self._wait.add((pool, effect.cls, effect.reason.code), effect.waited_s)
                case Evict():
                    self._evicted.labels(pool, effect.cls).inc()

    def cancelled(self, pool: str) -> None:
        self._cancelled.labels(pool).inc()

    def handed_over(self, pool: str) -> None:
        self._handed_over.labels(pool).inc()

    def passed(self, why: str) -> None:
        self._passed.labels(why).inc()

    def observed(self, pool: str, cls: str, outcome: str, waited_s: float, priority: int | None = None) -> None:
        self._observed.add((pool, cls, outcome))
        self._observed_wait.add((pool, cls, outcome), waited_s)
        if priority is not None:
            self._observed_priority.add((pool, cls, str(priority)))

    def untracked(self) -> None:
        self._untracked.inc()

    def body_edit(self, outcome: str) -> None:
        self._body_edits.labels(outcome).inc()

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def clamped(self) -> None:
        self._clamped.inc()

    def fault(self, where: str) -> None:
        self._faults.labels(where).inc()

    def choice_ignored(self, pool: str) -> None:
        self._choices_ignored.labels(pool).inc()

    def access_log(self, kind: str) -> None:
        self._access_log.add((kind,))

    # -- read at the scrape -----------------------------------------------------------------------

    def collect(self) -> Iterable[Metric]:
        counts = (self._released, self._wait, self._settled, self._cost, self._access_log)
        for counted in (*counts, self._observed, self._observed_wait, self._observed_priority):
            yield counted.family()
        build = GaugeMetricFamily("fairlane_build_info", "1, with the version as label", labels=["version"])
        build.add_metric([self._version], 1)
        yield build
        streams = GaugeMetricFamily("fairlane_open_streams", "Streams of Envoy's filters; 0 when nothing is under way")
        streams.add_metric([], self._open_streams())
        yield streams
        yield from _pool_metrics(list(self._pools()))
        held = GaugeMetricFamily(
            "fairlane_observed_held_requests", "Requests that passed and would wait", labels=["pool", "class"]
        )
        for pool in self._observers():
            for cls in pool.classes:
                held.add_metric([pool.pool, cls.name], cls.queued)
        yield held
        yield from _scrape_metrics(list(self._scrapers()))
        yield from _set_metrics(list(self._sets()))
        configuration = self._configuration()
        if configuration is not None:
            yield from _configuration_metrics(configuration)


def _configuration_metrics(stats: ConfigurationStats) -> Iterable[Metric]:
    gauges = (
        ("config_revision", "Revision of the configuration in force", stats.revision),
        ("config_overrides", "Settings that were changed live and are not in the file", stats.overrides),
        (
            "config_file_good",
            "1; 0 when the file as it is now cannot be used, and the one before it goes on",
            stats.file_good,
        ),
        ("config_expiries_failed", "Temporary changes that are over and could not be undone", stats.expiries_failed),
        (
            "state_read_only",
            "1 when the file of changes cannot be used, so that nothing can be changed live",
            stats.state_read_only,
        ),
    )
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"fairlane_{name}", text)
        gauge.add_metric([], float(value))
        yield gauge
    changes = CounterMetricFamily(
        "fairlane_config_changes", "Changes and attempts in the audit, by outcome: ok, dry_run, or the gRPC status",
        labels=["outcome"],
    )  # fmt: skip
    for outcome, count in sorted(stats.outcomes.items()):
        changes.add_metric([outcome], count)
    yield changes


def _pool_metrics(pools: list[PoolView]) -> Iterable[Metric]:
    held = GaugeMetricFamily("fairlane_held_requests", "Requests that wait", labels=["pool", "class"])
    slots = GaugeMetricFamily("fairlane_class_in_flight", "Engine slots held", labels=["pool", "class"])
    flows = GaugeMetricFamily("fairlane_flows", "Tenants with state", labels=["pool", "class"])
    size = GaugeMetricFamily("fairlane_held_bytes", "Bodies of requests that wait", labels=["pool"])
    absurd = CounterMetricFamily(
        "fairlane_absurd_values",
        "Claims of engines and clocks that cannot be, clamped or dropped",
        labels=["pool", "kind"],
    )
    for pool in pools:
        size.add_metric([pool.pool], pool.queued_bytes)
        for kind, count in pool.counts.items():
            absurd.add_metric([pool.pool, kind], count)
        for cls in pool.classes:
            held.add_metric([pool.pool, cls.name], cls.queued)
            slots.add_metric([pool.pool, cls.name], cls.in_flight)
            flows.add_metric([pool.pool, cls.name], cls.tenants)
    yield from (held, slots, flows, size, absurd)

    gauges: tuple[tuple[str, str, Callable[[WindowView], float | None]], ...] = (
        ("in_flight", "Engine slots held by requests of ours", lambda e: e.in_flight),
        ("foreign", "Requests inside the engine that are not ours, estimated", lambda e: e.foreign),
        ("capacity", "Estimated running capacity R of the engine", lambda e: e.capacity),
        ("tpot_window", "Window by time per output token, while it has been over its limit", lambda e: e.tpot_window),
        ("tpot_seconds", "Time per output token between the last two scrapes", lambda e: e.tpot_s),
        ("running", "Requests in the engine's batch, as scraped", lambda e: e.running),
        ("waiting", "Requests in the engine's own queue, as scraped", lambda e: e.waiting),
        ("kv_usage_ratio", "KV cache in use, as scraped", lambda e: e.kv_usage),
        ("scrape_age_seconds", "Age of the last good metrics page", lambda e: e.age_s),
    )
    for name, text, read in gauges:
        gauge = GaugeMetricFamily(f"fairlane_endpoint_{name}", text, labels=["pool", "endpoint"])
        yield _of_endpoints(gauge, pools, read)
    stance = GaugeMetricFamily(
        "fairlane_endpoint_stance", "1 for what the window goes by", labels=["pool", "endpoint", "stance"]
    )
    for pool in pools:
        for endpoint in pool.endpoints:
            for each in Stance:
                stance.add_metric([pool.pool, endpoint.endpoint, each.value], float(endpoint.stance is each))
    yield stance
    counts: tuple[tuple[str, str, Callable[[WindowView], float | None]], ...] = (
        ("prefix_query_tokens", "Prompt tokens that the engine looked up in its cache", lambda e: e.prefix_queries),
        ("prefix_hit_tokens", "Prompt tokens that the engine found in its cache", lambda e: e.prefix_hits),
        (
            "turned_away",
            "Requests that the engine refused for want of room (429, 503, or an error in the stream)",
            lambda e: e.turned_away,
        ),
        ("failed", "Requests that the engine failed: 500 and above, or a broken connection", lambda e: e.failed),
    )
    for name, text, read in counts:
        counter = CounterMetricFamily(f"fairlane_endpoint_{name}", text, labels=["pool", "endpoint"])
        yield _of_endpoints(counter, pools, read)


def _of_endpoints(
    family: GaugeMetricFamily | CounterMetricFamily,
    pools: list[PoolView],
    read: Callable[[WindowView], float | None],
) -> Metric:
    """`family`, with a value for each endpoint that has one."""
    for pool in pools:
        for endpoint in pool.endpoints:
            value = read(endpoint)
            if value is not None:
                family.add_metric([pool.pool, endpoint.endpoint], value)
    return family


def _scrape_metrics(scrapers: list[ScrapeStats]) -> Iterable[Metric]:
    done = CounterMetricFamily("fairlane_scrapes", "Metrics pages read", labels=["pool", "endpoint"])
    failed = CounterMetricFamily(
        "fairlane_scrape_failures", "Metrics pages not read, by cause", labels=["pool", "endpoint", "kind"]
    )
    took = GaugeMetricFamily("fairlane_scrape_duration_seconds", "Last scrape", labels=["pool", "endpoint"])
    dialect = GaugeMetricFamily(
        "fairlane_dialect_info", "1 for the dialect in use", labels=["pool", "endpoint", "dialect"]
    )
    for scraper in scrapers:
        where = [scraper.pool, scraper.endpoint]
        done.add_metric(where, scraper.scrapes)
        took.add_metric(where, scraper.last_duration_s)
        dialect.add_metric([*where, scraper.dialect], 1)
        for kind, count in scraper.failures.items():
            failed.add_metric([*where, kind], count)
    yield from (done, failed, took, dialect)
    told = GaugeMetricFamily(
        "fairlane_priority_told_info",
        "1 for how the engine is told priorities: header, body, both, none; high: the highest number first",
        labels=["pool", "endpoint", "via", "first"],
    )
    for scraper in scrapers:
        way = scraper.way
        told.add_metric([scraper.pool, scraper.endpoint, way.via, "high" if way.high_first else "low"], 1)
    yield told


def _set_metrics(sets: list[EndpointSetStats]) -> Iterable[Metric]:
    there = GaugeMetricFamily("fairlane_endpoints", "Endpoints of the pool, by the last answer", labels=["pool"])
    failed = CounterMetricFamily(
        "fairlane_endpoint_source_failures", "Times that the pool's endpoints could not be read", labels=["pool"]
    )
    age = GaugeMetricFamily(
        "fairlane_endpoint_source_age_seconds", "Since the pool's endpoints were last known right", labels=["pool"]
    )
    for each in sets:
        there.add_metric([each.pool], each.endpoints)
        failed.add_metric([each.pool], each.failures)
        if each.age_s is not None:
            age.add_metric([each.pool], each.age_s)
    yield from (there, failed, age)
