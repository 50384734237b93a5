"""Pools and their classes, as their views say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import Metric

from extproc.core.explanation import Hold
from extproc.core.fairness import Fairness
from extproc.core.view import ClassView, PoolView
from extproc.telemetry.metrics.families import Labels, Row, alone, counter, filled, gauge, put
from extproc.telemetry.metrics.labels import label
from extproc.telemetry.metrics.sources import Sources

_HOLDS = tuple(each.value for each in Hold)

_GAUGES: tuple[tuple[str, str, Callable[[ClassView], float]], ...] = (
    ("held_requests", "Requests that wait", lambda c: c.queued),
    ("held_tokens", "Tokens of requests that wait, prompt and output, estimated", lambda c: c.queued_tokens),
    ("held_cost", "Cost of requests that wait, estimated, in the pool's cost units", lambda c: c.queued_cost),
    ("class_in_flight_slots", "Engine slots held", lambda c: c.in_flight),
    ("flows", "Tenants with state", lambda c: c.tenants),
)  # fmt: skip

_CLASS_LIMITS = {  # by the name in the view
    "max_queued_requests": "Limit: requests that may wait",
    "max_queued_bytes": "Limit: bytes of bodies that may wait",
    "max_queued_tokens": "Limit: tokens that may wait, estimated",
    "max_in_flight_slots": "Limit: engine slots that may be held",
    "max_waiting_requests": "Standing queue inside the engine that is aimed at, in requests",
    "queue_timeout_seconds": "Limit: seconds that a request may wait",
    "min_share_ratio": "Share of the dispatched cost that it gets at least, 0 to 1",
}
_POOL_LIMITS = {
    "max_queued_requests": "Limit: requests that may wait in the pool",
    "max_queued_bytes": "Limit: bytes of bodies that may wait in the pool",
}
_FAIRNESS: tuple[tuple[str, str, Callable[[Fairness], float]], ...] = (
    (
        "class_tag_spread",
        "Largest less smallest service tag of the tenants that compete, in cost units / weight",
        lambda f: f.spread,
    ),
    (
        "class_jain_index",
        "Jain's index of the service of the last minute, of the tenants that compete: 1 is equal, 1/n is one alone",
        lambda f: f.jain,
    ),
    (
        "class_competing_tenants",
        "Tenants that had requests waiting all of the last minute, where there are two at least",
        lambda f: f.tenants,
    ),
)


def families(pools: list[PoolView], sources: Sources) -> Iterable[Metric]:
    by_pool: list[Row[PoolView]] = [({"pool": label(pool.pool)}, pool) for pool in pools]
    by_class = _by_class(pools)
    for name, text, read in _GAUGES:
        yield filled(gauge(name, text), by_class, read)
    size = gauge("held_bytes", "Bytes of bodies of requests that wait")
    yield filled(size, by_pool, lambda pool: pool.queued_bytes)
    tokens = counter("released_tokens", "Tokens of requests sent on, prompt and output, estimated")
    yield filled(tokens, by_class, lambda cls: cls.released_tokens)
    yield _settled_tokens(by_class)
    yield from _limits(by_pool, by_class)
    yield from _of_now(by_pool, by_class)
    yield from _told(pools, sources)


def observed(pools: list[PoolView]) -> Iterable[Metric]:
    """Of requests that pass."""
    held = gauge("observed_held_requests", "Requests that passed and would wait")
    yield filled(held, _by_class(pools), lambda cls: cls.queued)


def process(sources: Sources) -> Iterable[Metric]:
    """Of all pools together."""
    streams = gauge("open_streams", "Streams of Envoy's filters; 0 when nothing is under way")
    yield alone(streams, sources.open_streams())
    yield alone(gauge("page_watchers", "Live pages that are open"), sources.page_watchers())


def _by_class(pools: list[PoolView]) -> list[Row[ClassView]]:
    return [(_of(pool, cls.name), cls) for pool in pools for cls in pool.classes]


def _settled_tokens(by_class: list[Row[ClassView]]) -> Metric:
    family = counter(
        "settled_tokens",
        "Tokens of settled requests, as counted; cached: those of the prompt that the engine had in its cache",
    )
    for labels, cls in by_class:
        put(family, {**labels, "kind": "prompt"}, cls.prompt_tokens)
        put(family, {**labels, "kind": "cached"}, cls.cached_tokens)
        put(family, {**labels, "kind": "output"}, cls.output_tokens)
    return family


def _limits(by_pool: list[Row[PoolView]], by_class: list[Row[ClassView]]) -> Iterable[Metric]:
    """One that is not set has no sample."""
    for name, text in _CLASS_LIMITS.items():
        limit = gauge(f"class_{name}", text)
        yield filled(limit, by_class, lambda cls, name=name: cls.limits.get(name))  # type: ignore[misc]
    for name, text in _POOL_LIMITS.items():
        limit = gauge(f"pool_{name}", text)
        yield filled(limit, by_pool, lambda pool, name=name: pool.limits.get(name))  # type: ignore[misc]


def _of_now(by_pool: list[Row[PoolView]], by_class: list[Row[ClassView]]) -> Iterable[Metric]:
    hold = gauge("class_hold", "1 for what holds the next request of the class; all 0 when nothing waits")
    gates = gauge("class_gate_closed_endpoints", "Endpoints that a gate of the class is closed at, where it is set")
    for labels, cls in by_class:
        for each in _HOLDS:
            put(hold, {**labels, "hold": each}, float(cls.hold == each))
        for gate, closed in cls.closed_gates.items():
            put(gates, {**labels, "gate": gate}, closed)
    yield from (hold, gates)
    stalled = gauge(
        "queue_stalled_seconds",
        "Seconds that something has waited and nothing was released; 0 when nothing waits, or nothing may go",
    )
    yield filled(stalled, by_pool, lambda pool: pool.since_release_s or 0.0)
    absurd = counter("absurd_values", "Claims of engines and clocks that cannot be, clamped or dropped")
    for labels, pool in by_pool:
        for kind, count in pool.counts.items():
            put(absurd, {**labels, "kind": kind}, count)
    yield absurd


def _told(pools: list[PoolView], sources: Sources) -> Iterable[Metric]:
    """What others than the scheduler know of them."""
    modes, leaked, objectives, fairness = sources.modes(), sources.leaked(), sources.objectives(), sources.fairness()
    info = gauge("pool_info", "1, with the pool's mode, and whether its traffic is open")
    slots = gauge("leaked_slots", "Requests in the books whose stream is over: 0, or a fault of Fairlane")
    objective = gauge("class_wait_objective_seconds", "Seconds that a request should wait at most")
    for pool in pools:
        where = {"pool": label(pool.pool)}
        put(info, {**where, "mode": modes.get(pool.pool, ""), "traffic": pool.traffic.value}, 1)
        if pool.pool in leaked:
            put(slots, where, leaked[pool.pool])
        for cls in pool.classes:
            if cls.name in objectives:
                put(objective, _of(pool, cls.name), objectives[cls.name])
    yield from (info, slots, objective)
    rows = _fairness_rows(pools, fairness)
    for name, text, read in _FAIRNESS:
        yield filled(gauge(name, text), rows, read)


def _fairness_rows(pools: list[PoolView], found: Mapping[str, Mapping[str, Fairness]]) -> list[Row[Fairness]]:
    return [(_of(pool, cls), fairness) for pool in pools for cls, fairness in found.get(pool.pool, {}).items()]


def _of(pool: PoolView, cls: str) -> Labels:
    return {"pool": label(pool.pool), "class": label(cls)}
