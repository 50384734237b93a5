"""Limits under the number and the size of the requests that are held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from envoy_data_plane.envoy.config.cluster.v3 import CircuitBreakersThresholds
from envoy_data_plane.envoy.config.core.v3 import RoutingPriority
from envoy_data_plane.envoy.extensions.resource_monitors.downstream_connections.v3 import DownstreamConnectionsConfig

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at, inside, listed
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, ClusterView, Gateway, RouteView, Setup
from extproc.wiring.doctor.typed import Reader

# Envoy's, where nothing is said.
_DEFAULTS = {"max_requests": 1024, "max_pending_requests": 1024, "max_connections": 1024, "max_retries": 3}
_BUFFER = 1024**2
_MANY = dict.fromkeys(_DEFAULTS, 1_000_000) | {"max_connections": 100_000}
_HEADERS = 100  # Envoy's max_headers_count
_ROOM_FOR_HEADERS = 200

_READS_ALL = ("JsonToMetadata", "Buffer")
_PRIORITIES = (RoutingPriority.DEFAULT, RoutingPriority.HIGH)


def _breakers_fix() -> str:
    values = ", ".join(f"{name}: {value}" for name, value in _MANY.items())
    lines = [f"  - {{ priority: {priority.name}, {values} }}" for priority in _PRIORITIES]
    return "\n".join(["circuit_breakers:", "  thresholds:", *lines])


def _too_small(setup: Setup, cluster: ClusterView, names: Iterable[str]) -> Iterator[Hit]:
    """A hit for each priority."""
    breakers = cluster.part.message.circuit_breakers
    given = breakers.thresholds if breakers is not None else []
    for priority in _PRIORITIES:
        own = next((each for each in given if each.priority == priority), CircuitBreakersThresholds())
        values = {name: getattr(own, name) for name in names}
        small = {
            name: f"{_DEFAULTS[name]} by default" if value is None else str(value)
            for name, value in values.items()
            if (_DEFAULTS[name] if value is None else value) < setup.held
        }
        if small:
            said = ", ".join(f"{name} is {text}" for name, text in small.items())
            yield Hit(
                cluster.where,
                f"cluster {cluster.name}, priority {priority.name}: {said}, "
                f"and {setup.held_shown} (max_queued of the pools)",
            )


def _fairlane_breakers(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        yield from _too_small(setup, cluster, ("max_requests", "max_pending_requests", "max_retries"))


def _engine_breakers(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.engines:
        yield from _too_small(setup, cluster, ("max_requests", "max_pending_requests", "max_connections"))


def _limit(gateway: Gateway, route: RouteView) -> tuple[int, str]:
    """What may be buffered of a request's body, and by which setting."""
    message, host = route.route.message, route.host.message
    for owner, whose in ((message, "the route"), (host, "the virtual host")):
        for name in ("request_body_buffer_limit", "per_request_buffer_limit_bytes"):
            value: int | None = getattr(owner, name)
            if value is not None:
                return value, f"{name} of {whose}"
    own = gateway.listener.message.per_connection_buffer_limit_bytes
    if own is None:
        return _BUFFER, "per_connection_buffer_limit_bytes, 1 MiB by default"
    return own, "per_connection_buffer_limit_bytes of the listener"


def _buffers(gateway: Gateway, route: RouteView) -> bool:
    """Whether a filter waits for the whole body."""
    if any(route.runs(each) and (each.kind in _READS_ALL or ":body(" in each.lua) for each in gateway.filters):
        return True
    return any(route.runs(each) and route.mode(each).request_body == Body.BUFFERED for each in gateway.holders)


def _body_limit(setup: Setup) -> Iterator[Hit]:
    needed = setup.config.requests.max_body
    for gateway in setup.gateways:
        for route in gateway.queued:
            limit, whose = _limit(gateway, route)
            if _buffers(gateway, route) and limit < needed:
                what = f"{limit} bytes of a body are read ({whose}), and requests.max_body is {needed}"
                yield Hit(route.where, what, f"request_body_buffer_limit: {needed}")


def _body_limit_of_the_listener(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in gateway.queued:
            limit, whose = _limit(gateway, route)
            needed = setup.config.requests.max_body
            if _buffers(gateway, route) and limit >= needed and "of the listener" in whose:
                yield Hit(
                    route.where, f"the route has no limit; {whose} is {limit}", f"request_body_buffer_limit: {needed}"
                )


def _grpc_message(setup: Setup) -> Iterator[Hit]:
    needed = setup.config.requests.max_body
    for _, each, mode in setup.modes():
        service = each.service.envoy_grpc
        limit = service.max_receive_message_length if service is not None else None
        if mode.request_body == Body.BUFFERED and limit is not None and limit <= needed:
            place = at(each.at, "grpc_service", "envoy_grpc")
            what = f"max_receive_message_length is {limit}, and requests.max_body is {needed}"
            yield Hit(place, what, f"max_receive_message_length: {needed + 1024**2}")


def _headers(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        options = gateway.manager.message.common_http_protocol_options
        count = options.max_headers_count if options is not None else None
        if (_HEADERS if count is None else count) < _ROOM_FOR_HEADERS:
            shown = f"{_HEADERS} by default" if count is None else str(count)
            yield Hit(gateway.manager.where, f"max_headers_count is {shown}")


def _connections(setup: Setup) -> Iterator[Hit]:
    raw = setup.bootstrap.raw if setup.bootstrap is not None else {}
    where = setup.bootstrap.where if setup.bootstrap is not None else ""
    reader = Reader()
    for place, monitor in listed(inside(raw, "overload_manager"), "resource_monitors", at(where, "overload_manager")):
        part = reader.read_any(monitor.get("typed_config"), at(place, "typed_config"))
        if part is not None and isinstance(part.message, DownstreamConnectionsConfig):
            most = part.message.max_active_downstream_connections
            if most < setup.held:
                yield Hit(
                    part.where,
                    f"max_active_downstream_connections is {most}, and {setup.held_shown}",
                    f"max_active_downstream_connections: {2 * setup.held}",
                )


CHECKS = (
    Check(
        "fairlane_circuit_breaker",
        Severity.ERROR,
        "Every held request is an active request of Fairlane's cluster, and every replayed one a retry: beyond the "
        "limit (1,024 by default, 3 for retries) Envoy answers 500.",
        _breakers_fix(),
        _fairlane_breakers,
    ),
    Check(
        "engine_circuit_breaker",
        Severity.WARNING,
        "How much an engine gets is Fairlane's decision; a limit here answers 503 to what was released.",
        _breakers_fix(),
        _engine_breakers,
    ),
    Check(
        "body_limit",
        Severity.ERROR,
        "The facts filter and body mode BUFFERED read the whole body: what is larger than the buffer is answered 413 "
        "by Envoy, though Fairlane would take it.",
        "request_body_buffer_limit: 33554432   # requests.max_body of fairlane.yaml",
        _body_limit,
    ),
    Check(
        "body_limit_http2",
        Severity.WARNING,
        "The listener's limit alone still gave 413 over HTTP/2; the route's own counts for both.",
        "request_body_buffer_limit: 33554432   # requests.max_body of fairlane.yaml",
        _body_limit_of_the_listener,
    ),
    Check(
        "grpc_message_limit",
        Severity.ERROR,
        "A body that Fairlane has edited comes back in one message; one longer than max_receive_message_length is not "
        "taken, and the request goes on unedited, or fails where the filter fails closed.",
        "max_receive_message_length: 34603008   # more than requests.max_body of fairlane.yaml",
        _grpc_message,
    ),
    Check(
        "max_headers_count",
        Severity.WARNING,
        "Fairlane adds headers; if a client comes near the limit (100 by default) ext_proc refuses them and the client "
        "gets a bare 500.",
        "common_http_protocol_options: { max_headers_count: 500 }",
        _headers,
    ),
    Check(
        "downstream_connections",
        Severity.WARNING,
        "A client that waits over HTTP/1.1 keeps its connection, and beyond the overload manager's limit new ones are "
        "closed.",
        "max_active_downstream_connections: 100000",
        _connections,
    ),
)
