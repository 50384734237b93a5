"""Routes: which requests are queued, what is done to them afterwards, and what a client may write into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from envoy_data_plane.envoy.config.core.v3 import HeaderValueOption
from envoy_data_plane.envoy.config.core.v3 import HeaderValueOptionHeaderAppendAction as Append
from envoy_data_plane.envoy.config.route.v3 import RetryPolicy
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManagerPathWithEscapedSlashesAction as Escaped,
)

from extproc.config.requests import QUEUED_PATHS, QueuedPaths
from extproc.wiring.doctor import matching
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, Gateway, RouteView, Setup
from extproc.wiring.doctor.stripping import stripped

PRIORITY = "x-vllm-priority"
OURS = tuple(f"x-fairlane-{name}" for name in ("ticket", "endpoint", "class", "queue-ms", "timing"))
_CLIENT_RETRIES = (
    "x-envoy-retry-on",
    "x-envoy-max-retries",
    "x-envoy-retriable-status-codes",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
)
# After these the engine may have begun, and may still be at it.
_RUNS_TWICE = ("5xx", "gateway-error", "reset", "retriable-4xx", "retriable-headers")
_BY_STATUS = "retriable-status-codes"
_TURNED_AWAY = {429, 503}  # the engine has no room, and has not begun
_ANOTHER_MAY = {"connect-failure", "refused-stream", _BY_STATUS}  # what another engine may take
_PREVIOUS_HOSTS = """retry_host_predicate:
- name: envoy.retry_host_predicates.previous_hosts
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
host_selection_retry_max_attempts: 100"""
_UPGRADING = (Body.BUFFERED, Body.STREAMED, Body.BUFFERED_PARTIAL, Body.FULL_DUPLEX_STREAMED)


# -- which are queued --------------------------------------------------------------------------------


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
    """Those with a queued route."""
    for gateway in setup.gateways:
        queued = {route.host.where for route in gateway.queued}
        yield from (table for table in tables(gateway) if table.routes[0].host.where in queued)


def _nothing_queued(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        if gateway.routes and not gateway.queued:
            yield Hit(gateway.manager.where, f"no route leads through {gateway.processors[0].name}")


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


# -- what is done afterwards -------------------------------------------------------------------------


def _policies(route: RouteView) -> Iterator[tuple[str, RetryPolicy]]:
    """The retry policy that counts: the route's own, else the virtual host's."""
    own = route.action.retry_policy if route.action is not None else None
    if own is not None:
        yield at(route.where, "route", "retry_policy"), own
    elif route.host.message.retry_policy is not None:
        yield at(route.host.where, "retry_policy"), route.host.message.retry_policy


def _runs_twice(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            for where, policy in _policies(route):
                words = [word.strip() for word in policy.retry_on.split(",")]
                found = [word for word in words if word in _RUNS_TWICE]
                if found:
                    kept = [word for word in words if word and word not in _RUNS_TWICE]
                    fix = f"retry_on: {','.join(kept) or 'connect-failure'}"
                    yield Hit(
                        where,
                        f"retry_on has {', '.join(found)}",
                        fix if _elsewhere(policy) else f"{fix}\n{_PREVIOUS_HOSTS}",
                    )
                others = [code for code in policy.retriable_status_codes if code not in _TURNED_AWAY]
                if _BY_STATUS in words and others:
                    yield Hit(
                        where,
                        f"retriable_status_codes has {', '.join(map(str, others))}",
                        "retriable_status_codes: [ 429, 503 ]",
                    )


def _elsewhere(policy: RetryPolicy) -> bool:
    """Whether a retry goes to another engine than those before."""
    return any("previous_hosts" in predicate.name for predicate in policy.retry_host_predicate)


def _same_again(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            for where, policy in _policies(route):
                wanted = any(word.strip() in _ANOTHER_MAY for word in policy.retry_on.split(","))
                if wanted and not _elsewhere(policy):
                    yield Hit(where, "retry_host_predicate has no previous_hosts")


def _hedged(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            if route.action is not None and route.action.hedge_policy is not None:
                yield Hit(at(route.where, "route"), "hedge_policy is set")
            if route.action is not None and route.action.request_mirror_policies:
                yield Hit(at(route.where, "route"), "request_mirror_policies is set")


def _upgrades(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        everywhere = [
            each.upgrade_type or "?"
            for each in gateway.manager.message.upgrade_configs
            if each.enabled is not False and not each.filters
        ]
        for route in gateway.queued:
            here = route.action.upgrade_configs if route.action is not None else []
            off = {each.upgrade_type.lower() for each in here if each.enabled is False}
            given = [*everywhere, *(each.upgrade_type for each in here if each.enabled is not False)]
            kinds = [kind for kind in dict.fromkeys(given) if kind.lower() not in off]
            bodies = [route.mode(each) for each in gateway.processors if route.runs(each)]
            if kinds and any(mode.request_body in _UPGRADING or mode.response_body in _UPGRADING for mode in bodies):
                fix = "upgrade_configs:\n" + "\n".join(
                    f"- {{ upgrade_type: {kind}, enabled: false }}" for kind in kinds
                )
                yield Hit(at(route.where, "route"), f"{', '.join(kinds)} may be upgraded to, and bodies are sent", fix)


# -- headers -----------------------------------------------------------------------------------------


def _forged(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        found = [name for name in (PRIORITY, *OURS) if not stripped(gateway, name)]
        if found:
            yield Hit(gateway.manager.where, f"not stripped from what clients send: {', '.join(found)}")


def _client_retries(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        found = [name for name in _CLIENT_RETRIES if not stripped(gateway, name)]
        if found:
            yield Hit(gateway.manager.where, f"not stripped from what clients send: {', '.join(found)}")


def _trusted_headers(setup: Setup) -> Iterator[Hit]:
    sources = [*setup.config.identity.tenant, *setup.config.identity.request_class]
    for name in dict.fromkeys(source.header for source in sources if source.header is not None):
        for gateway in setup.gateways:
            if not stripped(gateway, name):
                yield Hit(gateway.manager.where, f"fairlane.yaml believes the header {name}, which clients can send")


def _added(route: RouteView) -> Iterable[tuple[str, HeaderValueOption]]:
    for where, options in (
        (route.where, route.route.message.request_headers_to_add),
        (route.host.where, route.host.message.request_headers_to_add),
        (route.table.where, route.table.message.request_headers_to_add),
    ):
        for number, option in enumerate(options):
            yield at(where, "request_headers_to_add", number), option


def _overwritten(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            for where, option in _added(route):
                name = option.header.key.lower() if option.header is not None else ""
                if name in (PRIORITY, *OURS) and option.append_action != Append.ADD_IF_ABSENT:
                    yield Hit(where, f"{name} is added with {option.append_action.name}")


def _put_back(setup: Setup) -> Iterator[Hit]:
    off = [pool.name for pool in setup.config.pools if pool.priority_via == "off"]
    for gateway in setup.gateways if off else ():
        for route in gateway.queued:
            for where, option in _added(route):
                if option.header is None or option.header.key.lower() != PRIORITY or OURS[0] in option.header.value:
                    continue
                if option.append_action == Append.ADD_IF_ABSENT:
                    default = option.header.value if option.header.value.lstrip("-").isdigit() else "1000000"
                    fix = f"header: {{ key: {PRIORITY}, value: {_value(default)} }}"
                    yield Hit(where, f"{PRIORITY} is added to what goes to {', '.join(off)}, too", fix)


def _value(default: str) -> str:
    """For what was not released, which has no ticket."""
    return f"\"%CEL('{OURS[0]}' in request.headers ? '' : '{default}')%\""


def _removed(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            for where, names in (
                (route.where, route.route.message.request_headers_to_remove),
                (route.host.where, route.host.message.request_headers_to_remove),
                (route.table.where, route.table.message.request_headers_to_remove),
            ):
                found = [name for name in names if name.lower() == PRIORITY]
                if found:
                    kept = ", ".join(name for name in names if name.lower() != PRIORITY)
                    yield Hit(
                        where, f"request_headers_to_remove has {found[0]}", f"request_headers_to_remove: [ {kept} ]"
                    )


_STRIP = f"""early_header_mutation_extensions:
- name: envoy.http.early_header_mutation.header_mutation
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
    mutations:
    - remove: {PRIORITY}
    - remove_on_match: {{ key_matcher: {{ prefix: x-fairlane- }} }}
    - remove_on_match:
        key_matcher: {{ safe_regex: {{ regex: x-envoy-(retry-|max-retries|retriable-|hedge-|upstream-).* }} }}"""

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
        "path_spellings",
        Severity.WARNING,
        "Engines decode a path before they look at it: /v1/%63ompletions is completions to them, and would pass by the "
        "queue.",
        "normalize_path: true\nmerge_slashes: true\npath_with_escaped_slashes_action: UNESCAPE_AND_FORWARD",
        _spellings,
    ),
    Check(
        "route_retries",
        Severity.ERROR,
        "After a 5xx or a reset the request may be running: a retry runs it twice, and Fairlane counts it once. Only "
        "429 and 503, by which an engine says that it has no room, may be among the retriable_status_codes.",
        "retry_on: connect-failure",
        _runs_twice,
    ),
    Check(
        "route_retries_same",
        Severity.WARNING,
        "An engine that refuses has the fewest requests, so after Fairlane's list Envoy would choose it again.",
        _PREVIOUS_HOSTS,
        _same_again,
    ),
    Check(
        "route_copies",
        Severity.ERROR,
        "A hedged or mirrored request runs on an engine that Fairlane has not chosen, and is not counted.",
        "hedge_policy: null\nrequest_mirror_policies: []",
        _hedged,
    ),
    Check(
        "upgrades",
        Severity.ERROR,
        "Upgraded connections (websocket) hang when ext_proc sends bodies (a fault of Envoy, issue 47081).",
        "upgrade_configs:\n- { upgrade_type: websocket, enabled: false }",
        _upgrades,
    ),
    Check(
        "forged_headers",
        Severity.ERROR,
        "While Fairlane is away requests pass unscheduled, and with them a priority that the client wrote; only "
        "early_header_mutation_extensions strips it before everything else.",
        _STRIP,
        _forged,
    ),
    Check(
        "client_retries",
        Severity.WARNING,
        "Envoy obeys x-envoy-retry-on and its like from anybody: a client makes it send a request again, or cut it.",
        _STRIP,
        _client_retries,
    ),
    Check(
        "trusted_header",
        Severity.NOTE,
        "A header is believed as it stands: whoever may send it chooses its tenant or class, unless Envoy or a proxy "
        "before it sets it.",
        "# set it in Envoy from something that is known, or name another source in fairlane.yaml",
        _trusted_headers,
    ),
    Check(
        "header_overwritten",
        Severity.ERROR,
        "A route adds its headers after Fairlane: with any action but ADD_IF_ABSENT the engine gets that value alone, "
        "or both in one (`0, 1000000`), which vLLM cannot read.",
        "append_action: ADD_IF_ABSENT",
        _overwritten,
    ),
    Check(
        "priority_put_back",
        Severity.WARNING,
        "Engines of a pool with priority_via: off are told no priority, and Fairlane removes the header; a route that "
        "adds one where it is absent puts it back. What Fairlane released has a ticket: add none there.",
        f"header: {{ key: {PRIORITY}, value: {_value('1000000')} }}",
        _put_back,
    ),
    Check(
        "header_removed",
        Severity.ERROR,
        "A route removes headers after Fairlane has set them, so that the engine does not learn the priority; "
        "early_header_mutation_extensions removes the client's before.",
        "request_headers_to_remove: []",
        _removed,
    ),
)
