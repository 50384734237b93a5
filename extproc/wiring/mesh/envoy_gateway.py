"""Envoy Gateway: its own policies where they say what is needed, JSON patches on what it makes of them for the rest.

What Envoy Gateway makes (1.6 to 1.9) and this relies on:

    filter of an EnvoyExtensionPolicy   envoy.filters.http.ext_proc/envoyextensionpolicy/NAMESPACE/POLICY/extproc/N,
                                        switched off, and switched on at each route that the policy is for
    its cluster                         envoyextensionpolicy/NAMESPACE/POLICY/extproc/N
    routes                              httproute/NAMESPACE/NAME/rule/N/match/N/HOST
    their cluster                       httproute/NAMESPACE/NAME/rule/N
    listener and its routes             NAMESPACE/GATEWAY/LISTENER

Our filters are added in the same way: off, and on at the queued routes. A patch finds its place by name (jsonPath),
since the place in a list depends on what else there is. Each patch is applied and checked by itself, so each has to
leave a valid whole.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring.build import Addresses
from extproc.wiring.description import Wiring, WiringError
from extproc.wiring.mesh import objects
from extproc.wiring.mesh.objects import DIRECT, GATEWAY_API, MANY_CONNECTIONS, MANY_REQUESTS, QUEUED, UPLOADS
from extproc.wiring.mesh.pieces import Pieces, pieces
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import CONNECTION_MANAGER, ROUTER, Data

_GROUP = "gateway.envoyproxy.io"
_ENVOY = "type.googleapis.com/envoy.config."
_LISTENER, _ROUTES = f"{_ENVOY}listener.v3.Listener", f"{_ENVOY}route.v3.RouteConfiguration"
_CLUSTER = f"{_ENVOY}cluster.v3.Cluster"
_EXT_PROC = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExternalProcessor"
_ON: Data = {"@type": f"{_ENVOY}route.v3.FilterConfig", "config": {}}
_STREAMS = 1_024  # of one HTTP/2 connection; Envoy Gateway's own 100 would be used up by requests that wait


def documents(wiring: Wiring, addresses: Addresses, place: Place) -> list[Data]:
    """The objects, in the order in which they can be applied. Raises WiringError and EnvoyFileError."""
    objects.refuse("Envoy Gateway", wiring, addresses)
    if wiring.profile == "duplex":
        raise WiringError(
            "profile duplex: Envoy Gateway does not let such a request pass when Fairlane is away (failOpen); take the "
            "profile standard, or body"
        )
    made = pieces(wiring, addresses)
    fairlane = objects.fairlane(addresses, place)
    engines = objects.service(place.engines, place.namespace, "engines at")
    parted = objects.parted(wiring)
    routes = [objects.route(name, place, engines, paths) for name, paths in parted.items()]
    patches = {
        **_head("EnvoyPatchPolicy", place.name, place),
        "spec": {
            "targetRef": {"group": GATEWAY_API, "kind": "Gateway", "name": place.gateway},
            "type": "JSONPatch",
            "jsonPatches": list(_patches(made, wiring, routes, place)),
        },
    }
    return [
        *objects.grants(
            place.namespace, [(fairlane, _GROUP, "EnvoyExtensionPolicy"), (engines, GATEWAY_API, "HTTPRoute")]
        ),
        _clients(made, wiring, place),
        *_traffic(wiring, list(parted), place),
        *(_extension(name, made, wiring, fairlane, place) for name in parted),
        patches,
        *routes,
        objects.route(DIRECT, place, engines, None),
    ]


def _head(kind: str, name: str, place: Place) -> Data:
    metadata = {"name": name, "namespace": place.namespace}
    return {"apiVersion": f"{_GROUP}/v1alpha1", "kind": kind, "metadata": metadata}


# -- native policies -------------------------------------------------------------------------------------------------


def _extension(name: str, made: Pieces, wiring: Wiring, fairlane: objects.Service, place: Place) -> Data:
    """The filters that call Fairlane, for one route."""
    calls: list[Data] = []
    for each in _ext_procs(made):
        config = each["typed_config"]
        asked: Data = {"attributes": config["request_attributes"]} if "request_attributes" in config else {}
        if (name == UPLOADS and not calls) or config["processing_mode"]["request_body_mode"] == "BUFFERED":
            asked["body"] = "Buffered"
        mode: Data = {"request": asked}
        if config["processing_mode"]["response_header_mode"] == "SEND":
            streamed = config["processing_mode"]["response_body_mode"] == "STREAMED"
            mode["response"] = {"body": "Streamed"} if streamed else {}
        call: Data = {
            "backendRefs": [fairlane.seen_from(place.namespace)],
            "messageTimeout": config["message_timeout"],
            "failOpen": config["failure_mode_allow"],
            "processingMode": mode,
        }
        if "metadata_options" in config:
            told = config["metadata_options"]
            call["metadata"] = {
                "accessibleNamespaces": told["forwarding_namespaces"]["untyped"],
                "writableNamespaces": told["receiving_namespaces"]["untyped"],
            }
        call["backendSettings"] = _settings(wiring, config["grpc_service"].get("retry_policy"))
        calls.append(call)
    return {
        **_head("EnvoyExtensionPolicy", name, place),
        "spec": {"targetRefs": objects.at_routes([name]), "extProc": calls},
    }


def _settings(wiring: Wiring, retries: Data | None) -> Data:
    """Of the connection to Fairlane."""
    settings: Data = {"circuitBreaker": _limits(), "timeout": {"tcp": {"connectTimeout": "1s"}}}
    if wiring.envoy >= 38:  # before, by a patch
        settings["http2"] = {"connectionKeepalive": dict(_KEEPALIVE)}
    if retries is not None:
        settings["retry"] = {
            "numRetries": retries["num_retries"],
            "retryOn": {"triggers": retries["retry_on"].split(",")},
            "perRetry": {"backOff": {"baseInterval": "100ms", "maxInterval": "500ms"}},
        }
    return settings


_KEEPALIVE = {"interval": "3s", "timeout": "2s"}


def _limits() -> Data:
    return {
        "maxConnections": MANY_CONNECTIONS,
        "maxPendingRequests": MANY_REQUESTS,
        "maxParallelRequests": MANY_REQUESTS,
        "maxParallelRetries": MANY_REQUESTS,
    }


def _clients(made: Pieces, wiring: Wiring, place: Place) -> Data:
    headers: Data = {"requestID": "PreserveOrGenerate"}
    http2: Data = {"maxConcurrentStreams": _STREAMS}
    timeouts: Data = {"requestReceivedTimeout": made.manager["request_timeout"]}
    spec: Data = {
        "targetRefs": [
            {"group": GATEWAY_API, "kind": "Gateway", "name": place.gateway, "sectionName": place.listener},
        ],
        "tcpKeepalive": {"probes": 3, "idleTime": "30s", "interval": "10s"},
        "timeout": {"http": timeouts},
        "path": {"escapedSlashesAction": "UnescapeAndForward"},
        "headers": headers,
        "http1": {"http10": {}},
        "http2": http2,
    }
    if wiring.envoy >= 39:  # before, by a patch
        timeouts["requestHeadersReceivedTimeout"] = made.manager["request_headers_timeout"]
    if wiring.envoy >= 37:  # before, by a patch: prefixes and patterns came with Envoy Gateway 1.7
        headers["earlyRequestHeaders"] = _early(made.manager)
    else:  # a route cannot allow a larger body than its connection
        spec["connection"] = {"bufferLimit": wiring.max_body}
        http2["initialStreamWindowSize"] = max(wiring.max_body, 65_536)
    return {**_head("ClientTrafficPolicy", place.name, place), "spec": spec}


def _early(manager: Data) -> Data:
    (extension,) = manager["early_header_mutation_extensions"]
    exact: list[str] = []
    matched: list[Data] = []
    for each in extension["typed_config"]["mutations"]:
        if "remove" in each:
            exact.append(each["remove"])
            continue
        matcher = each["remove_on_match"]["key_matcher"]
        if "prefix" in matcher:
            matched.append({"type": "Prefix", "value": matcher["prefix"]})
        else:
            matched.append({"type": "RegularExpression", "value": matcher["safe_regex"]["regex"]})
    return {"remove": exact, "removeOnMatch": matched}


def _traffic(wiring: Wiring, queued: list[str], place: Place) -> Iterator[Data]:
    """To the engines. A route whose request has no time-out has no idle time-out either, by Envoy Gateway's rule."""
    common: Data = {
        "timeout": {"tcp": {"connectTimeout": "5s"}, "http": {"requestTimeout": "0s", "connectionIdleTimeout": "4s"}},
        "tcpKeepalive": {"probes": 3, "idleTime": "30s", "interval": "10s"},
        "circuitBreaker": _limits(),
        "loadBalancer": {"type": "LeastRequest"},
    }
    if wiring.pick != "fairlane":
        common["healthCheck"] = {
            "panicThreshold": 1,
            "passive": {
                "consecutiveGatewayErrors": 3,
                "consecutive5XxErrors": 5,
                "interval": "1s",
                "baseEjectionTime": "5s",
                "maxEjectionPercent": 100,
            },
        }
    retried: Data = {"triggers": ["connect-failure"]}
    if wiring.retry_turned_away:
        retried = {"triggers": ["connect-failure", "retriable-status-codes"], "httpStatusCodes": [429, 503]}
    spec = {"targetRefs": objects.at_routes(queued), **common, "retry": {"numRetries": 2, "retryOn": retried}}
    yield {**_head("BackendTrafficPolicy", QUEUED, place), "spec": spec}
    yield {
        **_head("BackendTrafficPolicy", DIRECT, place),
        "spec": {"targetRefs": objects.at_routes([DIRECT]), **common},
    }


# -- patches ---------------------------------------------------------------------------------------------------------


def _patches(made: Pieces, wiring: Wiring, routes: list[Data], place: Place) -> Iterator[Data]:
    """On what is made of these routes and their policies."""
    queued = [route["metadata"]["name"] for route in routes]
    at = f"{place.namespace}/{place.gateway}/{place.listener}"
    calls = _ext_procs(made)
    first = made.filters.index(calls[0])
    before = made.filters[:first]
    after = [each for each in made.filters[first:] if each not in calls]
    for each in before:
        yield _patch(_LISTENER, at, f"$..http_filters[?(@.name=='{_filter(QUEUED, 0, place)}')]", "", _off(each))
    for each in after:
        yield _patch(_LISTENER, at, f"$..http_filters[?(@.name=='{ROUTER}')]", "", _off(each))
    for name in queued:
        for number, each in enumerate(calls):
            own = f"$..http_filters[?(@.name=='{_filter(name, number, place)}')]"
            for path, value in _call(each["typed_config"]):
                yield _patch(_LISTENER, at, own, f"/typed_config/{path}", value)
    manager = f"$..filters[?(@.name=='{CONNECTION_MANAGER}')]"
    for path, value in _manager(made, wiring, place):
        yield _patch(_LISTENER, at, manager, f"/typed_config/{path}", value)
    for name, route in zip(queued, routes, strict=True):
        own = f'$..routes[?(@.name=~"^httproute/{place.namespace}/{name}/")]'
        for path, value in _route(made, wiring, [*before, *after]):
            yield _patch(_ROUTES, at, own, f"/{path}", value)
        for number in range(len(route["spec"]["rules"])):
            yield from _engines(made, wiring, f"httproute/{place.namespace}/{name}/rule/{number}")
        for number in range(len(calls)):
            yield from _connection(made, wiring, _cluster(name, number, place))


def _connection(made: Pieces, wiring: Wiring, cluster: str) -> Iterator[Data]:
    """To Fairlane."""
    yield _patch(_CLUSTER, cluster, None, "/circuit_breakers/thresholds/-", _high(made.fairlane))
    if wiring.envoy < 38:
        options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        path = f"/typed_extension_protocol_options/{options}/explicit_http_config/http2_protocol_options"
        yield _patch(_CLUSTER, cluster, None, f"{path}/connection_keepalive", dict(_KEEPALIVE))


def _ext_procs(made: Pieces) -> list[Data]:
    return [each for each in made.filters if each["typed_config"]["@type"] == _EXT_PROC]


def _cluster(policy: str, number: int, place: Place) -> str:
    return f"envoyextensionpolicy/{place.namespace}/{policy}/extproc/{number}"


def _filter(policy: str, number: int, place: Place) -> str:
    return f"envoy.filters.http.ext_proc/{_cluster(policy, number, place)}"


def _off(each: Data) -> Data:
    return {"name": each["name"], "disabled": True, "typed_config": each["typed_config"]}


def _patch(kind: str, name: str, json_path: str | None, path: str, value: object) -> Data:
    where = {} if json_path is None else {"jsonPath": json_path}
    where |= {"path": path} if path else {}
    return {"type": kind, "name": name, "operation": {"op": "add", **where, "value": value}}


def _call(config: Data) -> Iterator[tuple[str, object]]:
    """Of a filter that calls Fairlane, what its policy cannot say."""
    yield "processing_mode/response_trailer_mode", config["processing_mode"]["response_trailer_mode"]
    if said := config["grpc_service"].get("initial_metadata"):
        yield "grpc_service/initial_metadata", said
    if "retry_policy" in config["grpc_service"]:
        for key in ("retry_host_predicate", "host_selection_retry_max_attempts"):
            yield f"grpc_service/retry_policy/{key}", config["grpc_service"]["retry_policy"][key]
    if "forward_rules" in config:
        yield "forward_rules", config["forward_rules"]


def _manager(made: Pieces, wiring: Wiring, place: Place) -> Iterator[tuple[str, object]]:
    """Of the connection manager."""
    manager = made.manager
    if wiring.envoy < 39:
        yield "request_headers_timeout", manager["request_headers_timeout"]
    if wiring.envoy < 37:
        yield "early_header_mutation_extensions", manager["early_header_mutation_extensions"]
    yield "common_http_protocol_options/max_headers_count", manager["common_http_protocol_options"]["max_headers_count"]
    yield "local_reply_config", manager["local_reply_config"]
    for log in made.access_log:
        common = log["typed_config"]["common_config"]
        service = {"envoy_grpc": {"cluster_name": _cluster(QUEUED, 0, place)}}
        config = {**log["typed_config"], "common_config": {**common, "grpc_service": service}}
        yield "access_log/-", {**log, "typed_config": config}


def _route(made: Pieces, wiring: Wiring, filters: list[Data]) -> Iterator[tuple[str, object]]:
    """Of a queued route."""
    (route, *_) = made.routes
    for each in filters:
        yield f"typed_per_filter_config/{each['name']}", dict(_ON)
    for key in ("request_headers_to_add", "response_headers_to_add"):
        if key in route:
            yield key, route[key]
    if wiring.envoy >= 37:
        yield "request_body_buffer_limit", route["request_body_buffer_limit"]
    yield "route/upgrade_configs", []  # upgraded requests hang where bodies are sent to Fairlane
    policy = route["route"]["retry_policy"]
    yield "route/retry_policy/host_selection_retry_max_attempts", policy["host_selection_retry_max_attempts"]


def _high(cluster: Data) -> Data:
    """The circuit breaker for routes of high priority, which no policy sets."""
    (found,) = (each for each in cluster["circuit_breakers"]["thresholds"] if each["priority"] == "HIGH")
    return dict(found)


def _engines(made: Pieces, wiring: Wiring, cluster: str) -> Iterator[Data]:
    yield _patch(_CLUSTER, cluster, None, "/circuit_breakers/thresholds/-", _high(made.engines))
    if wiring.pick != "envoy":
        yield _patch(_CLUSTER, cluster, None, "/load_balancing_policy", made.engines["load_balancing_policy"])
    if wiring.pick != "fairlane":
        yield _patch(_CLUSTER, cluster, None, "/common_lb_config/update_merge_window", "0s")
