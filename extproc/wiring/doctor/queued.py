"""Which requests are queued: routes that ask Fairlane, and the paths that fairlane.yaml queues."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManagerPathWithEscapedSlashesAction as Escaped,
)

from extproc.config.requests import QUEUED_PATHS, QueuedPaths
from extproc.wiring.doctor import facts, matching, usage
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Filter, Gateway, Processor, RouteView, Setup

_OFF = '{ "@type": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true }'
_SHIPPED = ("fairlane.facts", "envoy.filters.http.ext_proc", "fairlane.usage.sse", "fairlane.usage.json")


class Table(NamedTuple):
    """The routes of one virtual host."""

    gateway: Gateway
    routes: list[RouteView]

    def taken_by(self, path: str) -> RouteView | None:
        """The route that surely takes a POST to `path`; None: none does, or one may that cannot be told."""
        for route in self.routes:
            match = route.route.message.match
            verdict = matching.route(match, path) if match is not None else None
            if verdict is None:
                return None
            if verdict:
                return route
        return None


def tables(gateway: Gateway) -> list[Table]:
    hosts: dict[str, list[RouteView]] = {}
    for route in gateway.routes:
        hosts.setdefault(route.host.where, []).append(route)
    return [Table(gateway, routes) for routes in hosts.values()]


def _tables(setup: Setup) -> Iterator[Table]:
    """Those with a route that asks Fairlane."""
    for gateway in setup.gateways:
        asking = {route.host.where for route in gateway.asking}
        yield from (table for table in tables(gateway) if table.routes[0].host.where in asking)


def _nothing_queued(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        name = gateway.processors[0].name
        if gateway.routes and not gateway.asking:
            yield Hit(gateway.manager.where, f"no route leads through {name}")
        elif gateway.routes and not gateway.queued:
            fix = f"# a route with {name} on for paths of requests.queued, or name there what its routes take"
            yield Hit(gateway.manager.where, f"no path of requests.queued reaches a route with {name} on", fix)


def _not_queued_here(setup: Setup) -> Iterator[Hit]:
    paths = [path for path in setup.config.requests.queued if path.startswith("/")]
    for table in _tables(setup):
        passing: dict[str, tuple[RouteView, list[str]]] = {}
        for path in paths:
            route = table.taken_by(path)
            if route is not None and route.action is not None and route not in table.gateway.queued:
                passing.setdefault(route.where, (route, []))[1].append(path)
        for route, found in passing.values():
            fix = f"# a route with {table.gateway.holders[0].name} on, before this one, for {', '.join(found)}"
            yield Hit(route.where, f"{', '.join(found)}: queued by fairlane.yaml, but this route passes them by", fix)


def _not_queued_there(setup: Setup) -> Iterator[Hit]:
    known = QueuedPaths(setup.config.requests.queued)
    for table in _tables(setup):
        for route in table.routes:
            if route not in table.gateway.queued:
                continue
            exact = route.route.message.match.path if route.route.message.match is not None else None
            candidates = dict.fromkeys([*QUEUED_PATHS, *([exact] if exact is not None else [])])
            found = [path for path in candidates if path not in known and table.taken_by(path) is route]
            if found:
                yield Hit(route.where, f"{', '.join(found)}: queued here, but not in requests.queued of fairlane.yaml")


def _not_needed(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for table in tables(gateway):
            for route in table.routes:
                if route not in gateway.asking or route in gateway.queued:
                    continue
                engines = [path for path in QUEUED_PATHS if table.taken_by(path) is route]
                what = f"{gateway.holders[0].name} runs on a route that no path of requests.queued reaches"
                ours = [each for each in gateway.filters if route.runs(each) and _is_ours(gateway, each)]
                yield Hit(
                    route.where,
                    f"{what}; it takes {', '.join(engines)}" if engines else what,
                    _switched_off(_line(route, each) for each in ours)
                    + ("\n# or name them in requests.queued" if engines else ""),
                )


def _is_ours(gateway: Gateway, each: Filter) -> bool:
    """Whether it is there for Fairlane alone."""
    known = [*facts.makers(gateway), *usage.readers(gateway)]
    return isinstance(each, Processor) or each in known or "fairlane." in each.lua


def _line(route: RouteView, each: Filter) -> str:
    override = route.overrides.get(each.name)
    own = override is not None and override.where.startswith(route.where)
    return f"{each.name}: {_OFF}{'   # in place of what stands there' if own else ''}"


def _switched_off(lines: Iterable[str]) -> str:
    return "\n".join(["typed_per_filter_config:", *(f"  {line}" for line in lines)])


def _spellings(setup: Setup) -> Iterator[Hit]:
    wanted = Escaped.UNESCAPE_AND_FORWARD, Escaped.UNESCAPE_AND_REDIRECT, Escaped.REJECT_REQUEST
    for gateway in setup.gateways:
        manager = gateway.manager.message
        missing = [
            *(["normalize_path"] if manager.normalize_path is not True else []),
            *(["merge_slashes"] if not manager.merge_slashes else []),
            *(["path_with_escaped_slashes_action"] if manager.path_with_escaped_slashes_action not in wanted else []),
        ]
        # a table without a way past the queue needs none of them
        if missing and any(route.action is not None and route not in gateway.queued for route in gateway.routes):
            yield Hit(gateway.manager.where, f"{', '.join(missing)}: not set")


CHECKS = (
    Check(
        "nothing_queued",
        Severity.ERROR,
        "A route asks Fairlane only if it forwards requests and does not disable the filter.",
        "# take the filter out of typed_per_filter_config of the routes that are to be queued",
        _nothing_queued,
    ),
    Check(
        "path_not_queued",
        Severity.ERROR,
        "What passes by goes to an engine whenever it comes, and Fairlane does not count it.",
        "# a route with the filter on, before this one",
        _not_queued_here,
    ),
    Check(
        "path_not_in_config",
        Severity.WARNING,
        "Fairlane lets pass what requests.queued does not name: such a request is asked for, and not held.",
        "# name it in requests.queued, or disable the filter on a route for it",
        _not_queued_there,
    ),
    Check(
        "ext_proc_not_needed",
        Severity.WARNING,
        "Nothing is held there, yet every request costs a stream to Fairlane and waits for its answer; and where the "
        "facts filter runs, a JSON body larger than Envoy's buffer gets 413.",
        _switched_off(f"{name}: {_OFF}" for name in _SHIPPED),
        _not_needed,
    ),
    Check(
        "path_spellings",
        Severity.WARNING,
        "Engines decode a path before they look at it: /v1/%63ompletions is completions to them, and would pass by the "
        "queue.",
        "normalize_path: true\nmerge_slashes: true\npath_with_escaped_slashes_action: UNESCAPE_AND_FORWARD",
        _spellings,
    ),
)
