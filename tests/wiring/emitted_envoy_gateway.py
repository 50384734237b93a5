"""What Envoy Gateway makes of a Gateway with one HTTP listener and of the objects that we give it.

Written after what its translator has as expected output in its own tests (1.6 to 1.9), field by field, for those fields
of its API that we use; one that we do not use is refused here, so that nothing is taken for granted.
"""

from __future__ import annotations

from typing import Any

from mesh_case import GATEWAY, NAMESPACE, At, Resources, attached, of_kind, socket

from extproc.wiring.parts import Data

_TYPE = "type.googleapis.com/envoy."
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MODES = {None: "NONE", "Buffered": "BUFFERED", "Streamed": "STREAMED"}
_BUFFER = 32_768
NAME = f"{NAMESPACE}/{GATEWAY}/http"


def emit(documents: list[Data], at: At) -> Resources:
    made = Resources()
    (clients,) = of_kind(documents, "ClientTrafficPolicy")
    made.listeners[NAME] = _listener(documents, clients["spec"], at)
    routes: list[tuple[int, int, Data]] = []
    for route in of_kind(documents, "HTTPRoute"):
        name = route["metadata"]["name"]
        traffic = attached(documents, "BackendTrafficPolicy", name)
        for number, rule in enumerate(route["spec"]["rules"]):
            cluster = f"httproute/{NAMESPACE}/{name}/rule/{number}"
            made.clusters[cluster] = _cluster(cluster, traffic or {}, http2=False)
            made.endpoints[cluster] = _endpoints(rule["backendRefs"], at)
            for place, match in enumerate(rule["matches"]):
                host = route["spec"]["hostnames"][0].replace(".", "_")
                own = _route(f"{cluster}/match/{place}/{host}", match, cluster, traffic or {}, _calls(documents, name))
                routes.append((*_weight(match), own))
    routes.sort(key=lambda each: each[:2], reverse=True)
    hosts = {host for each in of_kind(documents, "HTTPRoute") for host in each["spec"]["hostnames"]}
    (host,) = hosts
    made.routes[NAME] = {
        "name": NAME,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [
            {"name": f"{NAME}/{host.replace('.', '_')}", "domains": [host], "routes": [each for *_, each in routes]}
        ],
    }
    for policy in of_kind(documents, "EnvoyExtensionPolicy"):
        for number, call in enumerate(policy["spec"]["extProc"]):
            cluster = _call_cluster(policy["metadata"]["name"], number)
            made.clusters[cluster] = _cluster(cluster, call["backendSettings"], http2=True)
            made.endpoints[cluster] = _endpoints(call["backendRefs"], at)
    return made


def _endpoints(refs: list[Data], at: At) -> tuple[tuple[str, int], ...]:
    return tuple(end for ref in refs for end in at.services[ref.get("namespace", NAMESPACE), ref["name"]])


def _call_cluster(policy: str, number: int) -> str:
    return f"envoyextensionpolicy/{NAMESPACE}/{policy}/extproc/{number}"


def _calls(documents: list[Data], route: str) -> list[str]:
    """Names of the filters that are switched on at a route."""
    return [
        f"envoy.filters.http.ext_proc/{_call_cluster(policy['metadata']['name'], number)}"
        for policy in of_kind(documents, "EnvoyExtensionPolicy")
        if any(ref["name"] == route for ref in policy["spec"]["targetRefs"])
        for number in range(len(policy["spec"]["extProc"]))
    ]


def _weight(match: Data) -> tuple[int, int]:
    """Exact paths before patterns before prefixes, and long ones before short ones."""
    path = match["path"]
    return {"Exact": 2, "RegularExpression": 1, "PathPrefix": 0}[path["type"]], len(path["value"])


def _known(spec: Data, *names: str) -> None:
    assert set(spec) <= set(names), f"this fixture does not know {set(spec) - set(names)}"


def _listener(documents: list[Data], clients: Data, at: At) -> Data:
    _known(clients, "targetRefs", "tcpKeepalive", "timeout", "path", "headers", "http1", "http2", "connection")
    made: Data = {
        "name": NAME,
        "address": socket(at.listener),
        "max_connections_to_accept_per_socket_event": 1,
        "per_connection_buffer_limit_bytes": clients.get("connection", {}).get("bufferLimit", _BUFFER),
        "default_filter_chain": {
            "name": NAME,
            "filters": [
                {
                    "name": "envoy.filters.network.http_connection_manager",
                    "typed_config": _manager(documents, clients),
                }
            ],
        },
    }
    if "tcpKeepalive" in clients:
        _known(clients["tcpKeepalive"], "probes", "idleTime", "interval")
        idle, interval = (int(clients["tcpKeepalive"][key].rstrip("s")) for key in ("idleTime", "interval"))
        made["socket_options"] = [
            {"description": "so keepalive", "level": 1, "name": 9, "int_value": 1},
            {"description": "probes", "level": 6, "name": 6, "int_value": clients["tcpKeepalive"]["probes"]},
            {"description": "idle", "level": 6, "name": 4, "int_value": idle},
            {"description": "interval", "level": 6, "name": 5, "int_value": interval},
        ]
    return made


def _manager(documents: list[Data], clients: Data) -> Data:
    _known(clients["timeout"]["http"], "requestReceivedTimeout", "requestHeadersReceivedTimeout")
    _known(clients["headers"], "requestID", "earlyRequestHeaders")
    _known(clients["http2"], "maxConcurrentStreams", "initialStreamWindowSize")
    assert clients["path"] == {"escapedSlashesAction": "UnescapeAndForward"}
    assert clients["headers"]["requestID"] == "PreserveOrGenerate"
    times = clients["timeout"]["http"]
    log = "envoy.extensions.access_loggers.file.v3.FileAccessLog"
    made: Data = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http-10080",
        "rds": {"config_source": {"ads": {}, "resource_api_version": "V3"}, "route_config_name": NAME},
        "access_log": [
            {
                "name": "envoy.access_loggers.file",
                "typed_config": {
                    "@type": f"type.googleapis.com/{log}",
                    "path": "/dev/stdout",
                    "log_format": {"json_format": {"response_code": "%RESPONSE_CODE%", "path": "%PATH(NQ)%"}},
                },
            }
        ],
        "http_filters": [
            *_filters(documents),
            {
                "name": "envoy.filters.http.router",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.filters.http.router.v3.Router",
                    "suppress_envoy_headers": True,
                },
            },
        ],
        "http2_protocol_options": {
            "initial_connection_window_size": 1_048_576,
            "initial_stream_window_size": clients["http2"].get("initialStreamWindowSize", 65_536),
            "max_concurrent_streams": clients["http2"]["maxConcurrentStreams"],
        },
        "common_http_protocol_options": {"headers_with_underscores_action": "REJECT_REQUEST"},
        "request_timeout": times["requestReceivedTimeout"],
        "server_header_transformation": "PASS_THROUGH",
        "use_remote_address": True,
        "preserve_external_request_id": True,
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "UNESCAPE_AND_FORWARD",
    }
    if "http10" in clients["http1"]:
        made["http_protocol_options"] = {"accept_http_10": True}
    if "requestHeadersReceivedTimeout" in times:
        made["request_headers_timeout"] = times["requestHeadersReceivedTimeout"]
    if "earlyRequestHeaders" in clients["headers"]:
        made["early_header_mutation_extensions"] = [_early(clients["headers"]["earlyRequestHeaders"])]
    return made


def _early(headers: Data) -> Data:
    _known(headers, "remove", "removeOnMatch")
    mutations: list[Data] = [{"remove": name} for name in headers["remove"]]
    for each in headers["removeOnMatch"]:
        matcher: Data = {
            "Prefix": {"prefix": each["value"]},
            "RegularExpression": {"safe_regex": {"regex": each["value"]}},
        }[each["type"]]
        mutations.append({"remove_on_match": {"key_matcher": matcher}})
    return {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": f"{_TYPE}extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": mutations,
        },
    }


def _filters(documents: list[Data]) -> list[Data]:
    made = []
    for policy in of_kind(documents, "EnvoyExtensionPolicy"):
        for number, call in enumerate(policy["spec"]["extProc"]):
            _known(
                call, "backendRefs", "messageTimeout", "failOpen", "processingMode", "metadata", "backendSettings"
            )  # fmt: skip
            cluster = _call_cluster(policy["metadata"]["name"], number)
            config: Data = {
                "@type": f"{_TYPE}extensions.filters.http.ext_proc.v3.ExternalProcessor",
                "grpc_service": {
                    "envoy_grpc": {"authority": "fairlane.fairlane:50051", "cluster_name": cluster},
                    "timeout": "10s",
                },
                "message_timeout": call["messageTimeout"],
                "failure_mode_allow": call["failOpen"],
                "processing_mode": _mode(call["processingMode"]),
            }
            if "attributes" in call["processingMode"]["request"]:
                config["request_attributes"] = call["processingMode"]["request"]["attributes"]
            if "metadata" in call:
                config["metadata_options"] = {
                    "forwarding_namespaces": {"untyped": call["metadata"]["accessibleNamespaces"]},
                    "receiving_namespaces": {"untyped": call["metadata"]["writableNamespaces"]},
                }
            if retry := call["backendSettings"].get("retry"):
                off = retry["perRetry"]["backOff"]
                config["grpc_service"]["retry_policy"] = {
                    "num_retries": retry["numRetries"],
                    "retry_back_off": {
                        "base_interval": _seconds(off["baseInterval"]),
                        "max_interval": _seconds(off["maxInterval"]),
                    },
                    "retry_on": ",".join(retry["retryOn"]["triggers"]),
                }
            made.append({"name": f"envoy.filters.http.ext_proc/{cluster}", "disabled": True, "typed_config": config})
    return sorted(made, key=lambda each: str(each["name"]))


def _mode(mode: Data) -> Data:
    _known(mode, "request", "response")
    made = dict.fromkeys(("request_header_mode", "response_header_mode", "request_trailer_mode"), "SKIP")
    made |= {"response_trailer_mode": "SKIP", "request_body_mode": "NONE", "response_body_mode": "NONE"}
    for side in ("request", "response"):
        if side in mode:
            made[f"{side}_header_mode"] = "SEND"
            made[f"{side}_body_mode"] = _MODES[mode[side].get("body")]
    return dict(made)


def _seconds(duration: str) -> str:
    return f"{int(duration.removesuffix('ms')) / 1000:.3f}s" if duration.endswith("ms") else duration


def _route(name: str, match: Data, cluster: str, traffic: Data, calls: list[str]) -> Data:
    path = match["path"]
    matched: Data = {
        "Exact": {"path": path["value"]},
        "RegularExpression": {"safe_regex": {"regex": path["value"]}},
        "PathPrefix": {"prefix": path["value"]} if path["value"] == "/" else {"path_separated_prefix": path["value"]},
    }[path["type"]]
    if "method" in match:
        matched["headers"] = [{"name": ":method", "string_match": {"exact": match["method"]}}]
    action: Data = {"cluster": cluster, "upgrade_configs": [{"upgrade_type": "websocket"}]}
    times = traffic.get("timeout", {}).get("http", {})
    if "requestTimeout" in times:
        action["timeout"] = times["requestTimeout"]
        action["idle_timeout"] = "0s" if times["requestTimeout"] == "0s" else "3600s"
    if "retry" in traffic:
        _known(traffic["retry"], "numRetries", "retryOn")
        action["retry_policy"] = {
            "num_retries": traffic["retry"]["numRetries"],
            "retry_on": ",".join(traffic["retry"]["retryOn"]["triggers"]),
            "host_selection_retry_max_attempts": "5",
            "retry_host_predicate": [
                {
                    "name": "envoy.retry_host_predicates.previous_hosts",
                    "typed_config": {"@type": f"{_TYPE}extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
                }
            ],
        }
        if codes := traffic["retry"]["retryOn"].get("httpStatusCodes"):
            action["retry_policy"]["retriable_status_codes"] = codes
    made: Data = {"name": name, "match": matched, "route": action}
    if calls:
        on = {"@type": f"{_TYPE}config.route.v3.FilterConfig", "config": {}}
        made["typed_per_filter_config"] = {call: dict(on) for call in calls}
    return made


def _cluster(name: str, settings: Data, *, http2: bool) -> Data:
    _known(
        settings, "targetRefs", "circuitBreaker", "timeout", "http2", "retry", "tcpKeepalive", "loadBalancer",
        "healthCheck",
    )  # fmt: skip
    limits = settings.get("circuitBreaker", {})
    threshold: dict[str, Any] = {"max_retries": limits.get("maxParallelRetries", 1_024)}
    for theirs, ours in (
        ("maxConnections", "max_connections"),
        ("maxPendingRequests", "max_pending_requests"),
        ("maxParallelRequests", "max_requests"),
    ):
        if theirs in limits:
            threshold[ours] = limits[theirs]
    made: Data = {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"ads": {}, "resource_api_version": "V3"}, "service_name": name},
        "circuit_breakers": {"thresholds": [threshold]},
        "common_lb_config": {},
        "connect_timeout": settings.get("timeout", {}).get("tcp", {}).get("connectTimeout", "10s"),
        "dns_lookup_family": "V4_PREFERRED",
        "ignore_health_on_host_removal": True,
        "per_connection_buffer_limit_bytes": _BUFFER,
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": {
                        "name": "envoy.load_balancing_policies.least_request",
                        "typed_config": {
                            "@type": f"{_TYPE}extensions.load_balancing_policies.least_request.v3.LeastRequest",
                            "locality_lb_config": {"locality_weighted_lb_config": {}},
                        },
                    }
                }
            ]
        },
    }
    options: Data = {"@type": f"type.googleapis.com/{_OPTIONS}"}
    if http2:
        protocol: Data = {"initial_connection_window_size": 1_048_576, "initial_stream_window_size": 65_536}
        if alive := settings.get("http2", {}).get("connectionKeepalive"):
            protocol["connection_keepalive"] = dict(alive)
        options["explicit_http_config"] = {"http2_protocol_options": protocol}
    else:
        options["explicit_http_config"] = {"http_protocol_options": {}}
    if idle := settings.get("timeout", {}).get("http", {}).get("connectionIdleTimeout"):
        options["common_http_protocol_options"] = {"idle_timeout": idle}
    made["typed_extension_protocol_options"] = {_OPTIONS: options}
    if alive := settings.get("tcpKeepalive"):
        made["upstream_connection_options"] = {
            "tcp_keepalive": {
                "keepalive_probes": alive["probes"],
                "keepalive_time": int(alive["idleTime"].rstrip("s")),
                "keepalive_interval": int(alive["interval"].rstrip("s")),
            }
        }
    if health := settings.get("healthCheck"):
        _known(health, "panicThreshold", "passive")
        made["common_lb_config"]["healthy_panic_threshold"] = {"value": health["panicThreshold"]}
        passive = health["passive"]
        made["outlier_detection"] = {
            "consecutive_gateway_failure": passive["consecutiveGatewayErrors"],
            "enforcing_consecutive_gateway_failure": 100,
            "consecutive_5xx": passive["consecutive5XxErrors"],
            "interval": passive["interval"],
            "base_ejection_time": passive["baseEjectionTime"],
            "max_ejection_percent": passive["maxEjectionPercent"],
        }
    return made
