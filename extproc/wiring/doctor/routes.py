"""Routes: what is done to requests after their release, and what a client may write into them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envoy_data_plane.envoy.config.core.v3 import HeaderValueOption
from envoy_data_plane.envoy.config.core.v3 import HeaderValueOptionHeaderAppendAction as Append
from envoy_data_plane.envoy.config.route.v3 import RetryPolicy

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, RouteView, Setup
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
