"""Engines: their windows, how reading their pages goes, and where they come from. The most samples are here: some
thirty of each endpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client.core import Metric

from extproc.core.view import PoolView
from extproc.core.windows import Stance, WindowView
from extproc.telemetry.metrics.families import Labels, Row, counter, filled, gauge, put
from extproc.telemetry.metrics.labels import label
from extproc.telemetry.metrics.sources import EndpointSetStats, ScrapeStats

_STANCES = tuple((each, each.value) for each in Stance)

_GAUGES: tuple[tuple[str, str, Callable[[WindowView], float | None]], ...] = (
    ("in_flight_slots", "Engine slots held by requests of ours", lambda w: w.in_flight),
    ("foreign_requests", "Requests inside the engine that are not ours, estimated", lambda w: w.foreign),
    ("capacity_slots", "R: requests that the engine can run at once, estimated", lambda w: w.capacity),
    ("queue_target_requests", "q: standing queue in the engine that the limit is set for", lambda w: w.queue_target),
    ("limit_slots", "Slots that may be taken, ours and foreign; 0 while nothing may go", lambda w: w.limit),
    ("room_slots", "Slots that may be taken now", lambda w: w.room),
    ("claim_slots", "Slots that this replica may hold, where several share the endpoint", lambda w: w.claim),
    ("others_slots", "Slots that other replicas hold", lambda w: None if w.claim is None else w.others),
    ("at_floor", "1 while the window is as small as it may become", lambda w: None if w.floor is None else w.at_floor),
    ("tpot_window_slots", "W: requests that the latency limit allows, while it holds", lambda w: w.tpot_window),
    ("tpot_seconds", "Seconds for an output token, between the last two scrapes", lambda w: w.tpot_s),
    ("running_requests", "Requests in the engine's batch, as scraped", lambda w: w.running),
    ("waiting_requests", "Requests in the engine's own queue, as scraped", lambda w: w.waiting),
    ("kv_usage_ratio", "KV cache in use, 0 to 1, as scraped", lambda w: w.kv_usage),
    ("scrape_age_seconds", "Seconds since the last good metrics page", lambda w: w.age_s),
)  # fmt: skip

_COUNTERS: tuple[tuple[str, str, Callable[[WindowView], float | None]], ...] = (
    ("prefix_query_tokens", "Prompt tokens that the engine looked up in its cache", lambda w: w.prefix_queries),
    ("prefix_hit_tokens", "Prompt tokens that the engine found in its cache", lambda w: w.prefix_hits),
    (
        "turned_away_requests",
        "Requests that the engine refused for want of room (429, 503, or an error in the stream)",
        lambda w: w.turned_away,
    ),
    (
        "failed_requests",
        "Requests that the engine failed: 500 and above, or a broken connection",
        lambda w: w.failed,
    ),
)


def windows(pools: list[PoolView]) -> Iterable[Metric]:
    rows: list[Row[WindowView]] = [
        (_of(pool.pool, window.endpoint), window) for pool in pools for window in pool.endpoints
    ]
    for name, text, read in _GAUGES:
        yield filled(gauge(f"endpoint_{name}", text), rows, read)
    stance = gauge("endpoint_stance", "1 for what the window goes by")
    for labels, window in rows:
        for each, name in _STANCES:
            put(stance, {**labels, "stance": name}, float(window.stance is each))
    yield stance
    for name, text, read in _COUNTERS:
        yield filled(counter(f"endpoint_{name}", text), rows, read)


def scrapes(scrapers: list[ScrapeStats]) -> Iterable[Metric]:
    rows: list[Row[ScrapeStats]] = [(_of(each.pool, each.endpoint), each) for each in scrapers]
    yield filled(counter("scrapes", "Metrics pages read"), rows, lambda each: each.scrapes)
    took = gauge("scrape_duration_seconds", "Seconds that the last scrape took")
    yield filled(took, rows, lambda each: each.last_duration_s)
    failed = counter("scrape_failures", "Metrics pages not read, by cause")
    dialect = gauge("dialect_info", "1 for the dialect in use")
    told = gauge(
        "priority_told_info",
        "1 for how the engine is told priorities: header, body, both, none; high: the highest number first",
    )
    for labels, each in rows:
        for kind, count in each.failures.items():
            put(failed, {**labels, "kind": kind}, count)
        put(dialect, {**labels, "dialect": label(each.dialect)}, 1)
        put(told, {**labels, "via": each.way.via, "first": "high" if each.way.high_first else "low"}, 1)
    yield from (failed, dialect, told)


def sets(found: list[EndpointSetStats]) -> Iterable[Metric]:
    rows: list[Row[EndpointSetStats]] = [({"pool": label(each.pool)}, each) for each in found]
    there = gauge("endpoints", "Endpoints of the pool, by the last answer")
    yield filled(there, rows, lambda each: each.endpoints)
    failed = counter("endpoint_source_failures", "Times that the pool's endpoints could not be read")
    yield filled(failed, rows, lambda each: each.failures)
    age = gauge("endpoint_source_age_seconds", "Seconds since the pool's endpoints were last known right")
    yield filled(age, rows, lambda each: each.age_s)


def _of(pool: str, endpoint: str) -> Labels:
    return {"pool": label(pool), "endpoint": label(endpoint)}
