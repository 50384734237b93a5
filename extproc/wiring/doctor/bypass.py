"""Ways to an engine that pass Fairlane by: other listeners, filter chains and virtual hosts.

Several listeners are common (one for people, one for monitoring), and a route to `/health` or `/metrics` of an engine
harms nobody. So a way counts only if it surely takes a path that fairlane.yaml queues. Left out: internal listeners,
which nobody but Envoy itself can reach, and routes that take their cluster from a header.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.queued import Table, tables
from extproc.wiring.doctor.setup import Setup


def _engines(setup: Setup) -> set[str]:
    """Clusters that lead to an engine, under whatever name."""
    known = {address for pool in setup.config.pools for address in pool.endpoints.known}
    known.update(address for cluster in setup.engines for address in cluster.endpoints)
    own = {name for gateway in setup.gateways for route in gateway.queued for name in route.clusters}
    return own | {each.name for each in setup.clusters.values() if known.intersection(each.endpoints)}


def _unasked(setup: Setup) -> Iterator[Table]:
    """Virtual hosts without a queued route."""
    for gateway in setup.others:
        if gateway.listener.message.internal_listener is None:
            yield from tables(gateway)
    for gateway in setup.gateways:
        if gateway.queued:  # else nothing is queued at all, which has its own check
            queued = {route.host.where for route in gateway.queued}
            yield from (table for table in tables(gateway) if table.routes[0].host.where not in queued)


def _by_route(setup: Setup) -> Iterator[Hit]:
    if not setup.gateways:
        return  # nothing asks Fairlane, which has its own check
    engines = _engines(setup)
    paths = [path for path in setup.config.requests.queued if path.startswith("/")]
    for table in _unasked(setup):
        passing: dict[str, list[str]] = {}
        for path in paths:
            route = table.taken_by(path)
            if route is not None and engines.intersection(route.clusters):
                passing.setdefault(route.where, []).append(path)
        for where, found in passing.items():
            yield Hit(where, f"leads to an engine, for {', '.join(found)}, and does not ask Fairlane")


def _by_proxy(setup: Setup) -> Iterator[Hit]:
    if not setup.gateways:
        return
    engines = _engines(setup)
    for part in setup.proxies:
        weighted = part.message.weighted_clusters.clusters if part.message.weighted_clusters is not None else []
        found = [name for name in (part.message.cluster, *(each.name for each in weighted)) if name in engines]
        if found:
            yield Hit(part.where, f"leads by TCP to an engine, cluster {', '.join(found)}, and does not ask Fairlane")


def _passed_by(setup: Setup) -> Iterator[Hit]:
    yield from _by_route(setup)
    yield from _by_proxy(setup)


CHECKS = (
    Check(
        "queue_bypassed",
        Severity.WARNING,
        "What reaches an engine by another listener, filter chain or virtual host is in no queue: it goes before "
        "everything that waits, and Fairlane counts nothing of it.",
        "# put the gateway's filters there too, or let it lead elsewhere; paths that nobody queues may stay",
        _passed_by,
    ),
)
