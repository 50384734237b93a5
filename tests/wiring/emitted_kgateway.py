"""What kgateway makes of a Gateway with one HTTP listener and of the objects that we give it.

Written after what its translator has as expected output in its own tests (2.2 to 2.4), for those fields of its API
that we use; one that we do not use is refused here, so that nothing is taken for granted. The ext_proc filter stands
inside a composite filter, which runs it unless another filter has said in metadata that it is not to be.
"""

from __future__ import annotations

from mesh_case import NAMESPACE, At, Resources, attached, of_kind, socket

from extproc.wiring.parts import Data

_TYPE = "type.googleapis.com/envoy."
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_DISABLED = "dev.kgateway.disable_ext_proc"
NAME = "listener~80"
_MODES = {
    "requestHeaderMode": "request_header_mode",
    "requestBodyMode": "request_body_mode",
    "requestTrailerMode": "request_trailer_mode",
    "responseHeaderMode": "response_header_mode",
    "responseBodyMode": "response_body_mode",
    "responseTrailerMode": "response_trailer_mode",
}


def _known(spec: Data, *names: str) -> None:
    assert set(spec) <= set(names), f"this fixture does not know {set(spec) - set(names)}"


def emit(documents: list[Data], at: At) -> Resources:
    made = Resources()
    (extension,) = of_kind(documents, "GatewayExtension")
    (listener,) = of_kind(documents, "ListenerPolicy")
    made.listeners[NAME] = _listener(extension, listener["spec"]["default"], at)
    routes: list[tuple[int, int, Data]] = []
    for number, route in enumerate(of_kind(documents, "HTTPRoute")):
        name = route["metadata"]["name"]
        policy = attached(documents, "TrafficPolicy", name)
        assert policy is not None
        for place, rule in enumerate(route["spec"]["rules"]):
            (ref,) = rule["backendRefs"]
            cluster = _service_cluster(ref)
            for index, match in enumerate(rule["matches"]):
                own = f"{NAME}~host-route-{number}-httproute-{name}-{NAMESPACE}-{place}-{index}-matcher-{index}"
                routes.append((*_weight(match), _route(own, match, cluster, rule, policy)))
            made.clusters[cluster] = _cluster(documents, ref)
            made.endpoints[cluster] = _endpoints(ref, at)
    routes.sort(key=lambda each: each[:2], reverse=True)
    (host,) = {host for each in of_kind(documents, "HTTPRoute") for host in each["spec"]["hostnames"]}
    made.routes[NAME] = {
        "name": NAME,
        "ignore_port_in_host_matching": True,
        "virtual_hosts": [{"name": f"{NAME}~host", "domains": [host], "routes": [each for *_, each in routes]}],
    }
    ref = extension["spec"]["extProc"]["grpcService"]["backendRef"]
    made.clusters[_service_cluster(ref)] = _cluster(documents, ref, http2=True)
    made.endpoints[_service_cluster(ref)] = _endpoints(ref, at)
    return made


def _endpoints(ref: Data, at: At) -> tuple[tuple[str, int], ...]:
    return at.services[ref.get("namespace", NAMESPACE), ref["name"]]


def _service_cluster(ref: Data) -> str:
    return f"kube_{ref.get('namespace', NAMESPACE)}_{ref['name']}_{ref['port']}"


def _weight(match: Data) -> tuple[int, int]:
    path = match["path"]
    return {"Exact": 2, "RegularExpression": 1, "PathPrefix": 0}[path["type"]], len(path["value"])


def _listener(extension: Data, listener: Data, at: At) -> Data:
    _known(listener, "perConnectionBufferLimitBytes", "httpSettings")
    settings = listener["httpSettings"]
    _known(
        settings, "acceptHttp10", "preserveExternalRequestId", "earlyRequestHeaderModifier", "maxHeadersCount",
        "http2ProtocolOptions",
    )  # fmt: skip
    _known(settings["earlyRequestHeaderModifier"], "remove")
    manager: Data = {
        "@type": f"{_TYPE}extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "rds": {"config_source": {"ads": {}, "resource_api_version": "V3"}, "route_config_name": NAME},
        "http_filters": [
            {
                "name": "global_disable/ext_proc",
                "disabled": True,
                "typed_config": {
                    "@type": f"{_TYPE}extensions.filters.http.set_metadata.v3.Config",
                    "metadata": [{"metadata_namespace": _DISABLED, "value": {"disable": True}}],
                },
            },
            {"name": _filter(extension), "disabled": True, "typed_config": _composite(_call(extension))},
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_TYPE}extensions.filters.http.router.v3.Router"},
            },
        ],
        "early_header_mutation_extensions": [
            {
                "name": "envoy.http.early_header_mutation.header_mutation",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                    "mutations": [{"remove": each} for each in settings["earlyRequestHeaderModifier"]["remove"]],
                },
            }
        ],
        "http_protocol_options": {"accept_http_10": settings["acceptHttp10"]},
        "preserve_external_request_id": settings["preserveExternalRequestId"],
        "merge_slashes": True,
        "normalize_path": True,
        "use_remote_address": True,
    }
    if "maxHeadersCount" in settings:
        manager["common_http_protocol_options"] = {"max_headers_count": settings["maxHeadersCount"]}
    if "http2ProtocolOptions" in settings:
        window = int(settings["http2ProtocolOptions"]["initialStreamWindowSize"])
        manager["http2_protocol_options"] = {"initial_stream_window_size": window}
    return {
        "name": NAME,
        "address": socket(at.listener),
        "per_connection_buffer_limit_bytes": listener["perConnectionBufferLimitBytes"],
        "filter_chains": [
            {
                "name": NAME,
                "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}],
            }
        ],
    }


def _filter(extension: Data) -> str:
    return f"ext_proc/{extension['metadata']['namespace']}/{extension['metadata']['name']}"


def _call(extension: Data) -> Data:
    call = extension["spec"]["extProc"]
    _known(
        call, "grpcService", "failOpen", "messageTimeout", "processingMode", "metadataOptions", "requestAttributes"
    )  # fmt: skip
    _known(call["grpcService"], "backendRef")
    made: Data = {
        "@type": f"{_TYPE}extensions.filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": _service_cluster(call["grpcService"]["backendRef"])}},
        "failure_mode_allow": call["failOpen"],
        "message_timeout": call["messageTimeout"],
        "processing_mode": {ours: call["processingMode"][theirs] for theirs, ours in _MODES.items()},
        "metadata_options": {"forwarding_namespaces": dict(call["metadataOptions"]["forwarding"])},
    }
    if "requestAttributes" in call:
        made["request_attributes"] = call["requestAttributes"]
    return made


def _composite(config: Data) -> Data:
    """The filter, unless another one has said that it is off."""
    run = {
        "name": "composite-action",
        "typed_config": {
            "@type": f"{_TYPE}extensions.filters.http.composite.v3.ExecuteFilterAction",
            "typed_config": {"name": "envoy.filters.http.ext_proc", "typed_config": config},
        },
    }
    predicate = {
        "single_predicate": {
            "input": {
                "name": "disable",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.matching.common_inputs.network.v3.DynamicMetadataInput",
                    "filter": _DISABLED,
                    "path": [{"key": "disable"}],
                },
            },
            "custom_match": {
                "name": "envoy.matching.matchers.metadata_matcher",
                "typed_config": {
                    "@type": f"{_TYPE}extensions.matching.input_matchers.metadata.v3.Metadata",
                    "value": {"bool_match": True},
                    "invert": True,
                },
            },
        }
    }
    return {
        "@type": f"{_TYPE}extensions.common.matching.v3.ExtensionWithMatcher",
        "extension_config": {
            "name": "composite_ext_proc",
            "typed_config": {"@type": f"{_TYPE}extensions.filters.http.composite.v3.Composite"},
        },
        "xds_matcher": {"matcher_list": {"matchers": [{"predicate": predicate, "on_match": {"action": run}}]}},
    }


def _route(name: str, match: Data, cluster: str, rule: Data, policy: Data) -> Data:
    _known(policy, "targetRefs", "extProc", "timeouts", "retry")
    path = match["path"]
    matched: Data = {
        "Exact": {"path": path["value"]},
        "RegularExpression": {"safe_regex": {"regex": path["value"]}},
        "PathPrefix": {"prefix": path["value"]} if path["value"] == "/" else {"path_separated_prefix": path["value"]},
    }[path["type"]]
    if "method" in match:
        matched["headers"] = [{"name": ":method", "string_match": {"exact": match["method"]}}]
    action: Data = {
        "cluster": cluster,
        "cluster_not_found_response_code": "INTERNAL_SERVER_ERROR",
        "timeout": policy["timeouts"]["request"],
        "idle_timeout": policy["timeouts"]["streamIdle"],
    }
    if "retry" in policy:
        action["retry_policy"] = {
            "num_retries": policy["retry"]["attempts"],
            "retry_on": ",".join(policy["retry"]["retryOn"]),
            "retry_back_off": {"base_interval": "0.025s"},
        }
        if codes := policy["retry"].get("statusCodes"):
            action["retry_policy"]["retriable_status_codes"] = codes
            action["retry_policy"]["retry_on"] += ",retriable-status-codes"
    made: Data = {"name": name, "match": matched, "route": action}
    for each in rule.get("filters", ()):
        assert each["type"] == "ResponseHeaderModifier"
        modifier = each["responseHeaderModifier"]
        _known(modifier, "set", "add")
        added = [(header, {}) for header in modifier.get("add", ())]
        added += [(header, {"append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}) for header in modifier.get("set", ())]
        made["response_headers_to_add"] = [
            {"header": {"key": header["name"], "value": header["value"]}, **how} for header, how in added
        ]
    if "extProc" in policy:
        _known(policy["extProc"], "extensionRef")
        own = f"ext_proc/{NAMESPACE}/{policy['extProc']['extensionRef']['name']}"
        per_route = {"@type": f"{_TYPE}extensions.filters.http.ext_proc.v3.ExtProcPerRoute", "overrides": {}}
        made["typed_per_filter_config"] = {own: per_route}
    return made


def _cluster(documents: list[Data], ref: Data, *, http2: bool = False) -> Data:
    """`http2`: its Service's port has the appProtocol kubernetes.io/h2c."""
    name, namespace = _service_cluster(ref), ref.get("namespace", NAMESPACE)
    (spec,) = (
        each["spec"]
        for each in of_kind(documents, "BackendConfigPolicy")
        if each["metadata"]["namespace"] == namespace
        and any(
            target == {"group": "", "kind": "Service", "name": ref["name"]} for target in each["spec"]["targetRefs"]
        )
    )
    _known(
        spec, "targetRefs", "connectTimeout", "circuitBreakers", "http2ProtocolOptions", "tcpKeepalive",
        "commonHttpProtocolOptions", "loadBalancer", "outlierDetection",
    )  # fmt: skip
    limits = spec["circuitBreakers"]
    made: Data = {
        "name": name,
        "type": "EDS",
        "eds_cluster_config": {"eds_config": {"ads": {}, "resource_api_version": "V3"}},
        "connect_timeout": spec["connectTimeout"],
        "ignore_health_on_host_removal": True,
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": limits["maxConnections"],
                    "max_pending_requests": limits["maxPendingRequests"],
                    "max_requests": limits["maxRequests"],
                    "max_retries": limits["maxRetries"],
                }
            ]
        },
    }
    protocol: Data = {}
    if alive := spec.get("http2ProtocolOptions", {}).get("connectionKeepalive"):
        protocol["connection_keepalive"] = dict(alive)
    options: Data = {
        "@type": f"type.googleapis.com/{_OPTIONS}",
        "explicit_http_config": {"http2_protocol_options": protocol} if http2 else {"http_protocol_options": {}},
    }
    if "commonHttpProtocolOptions" in spec:
        options["common_http_protocol_options"] = {"idle_timeout": spec["commonHttpProtocolOptions"]["idleTimeout"]}
    made["typed_extension_protocol_options"] = {_OPTIONS: options}
    if balancer := spec.get("loadBalancer"):
        _known(balancer, "leastRequest", "healthyPanicThreshold", "updateMergeWindow")
        made["lb_policy"] = "LEAST_REQUEST"
        made["common_lb_config"] = {
            "healthy_panic_threshold": {"value": balancer["healthyPanicThreshold"]},
            "update_merge_window": balancer["updateMergeWindow"],
        }
    if alive := spec.get("tcpKeepalive"):
        made["upstream_connection_options"] = {
            "tcp_keepalive": {
                "keepalive_probes": alive["keepAliveProbes"],
                "keepalive_time": int(alive["keepAliveTime"].rstrip("s")),
                "keepalive_interval": int(alive["keepAliveInterval"].rstrip("s")),
            }
        }
    if found := spec.get("outlierDetection"):
        made["outlier_detection"] = {
            "consecutive_5xx": found["consecutive5xx"],
            "interval": found["interval"],
            "base_ejection_time": found["baseEjectionTime"],
            "max_ejection_percent": found["maxEjectionPercent"],
        }
    return made
