"""An ingress gateway's configuration as Istio makes it, and what an EnvoyFilter does to it.

`gateway` is written after what istiod 1.29 and 1.30 generate for one Gateway with two hosts. Left out is what a plain
Envoy has not: the filters istio.metadata_exchange, istio.alpn and istio.stats, and the mesh's TLS. Endpoints stand in
the clusters, where Istio has EDS; routes in the listener, where it has RDS.

`apply` follows Istio's own semantics (pilot/pkg/networking/core/envoyfilter, pkg/proto/merge): a merge replaces values
and durations, merges messages, adds to lists, replaces entries of maps, and cannot set what is the default of its type.
"""

from __future__ import annotations

import copy
from typing import Any

Json = dict[str, Any]

ENGINES, FAIRLANE = ("vllm.llm.svc.cluster.local", 8000), ("fairlane.fairlane.svc.cluster.local", 50051)
HOST, OTHER = "llm.example.com", "other.example.com"
_TYPE = "type.googleapis.com/envoy.extensions"
_HCM = "envoy.filters.network.http_connection_manager"
_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
# Fields that are maps in Envoy's API: an entry is replaced as a whole.
_MAPS = {"typed_per_filter_config", "typed_extension_protocol_options", "filter_metadata"}
_RETRY: Json = {
    "retry_on": "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
    "num_retries": 2,
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {"@type": f"{_TYPE}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
        }
    ],
    "host_selection_retry_max_attempts": "5",
}


def name_of(service: tuple[str, int]) -> str:
    return f"outbound|{service[1]}||{service[0]}"


def gateway(plain: Json) -> Json:
    """A gateway that serves the engines of a complete configuration, without Fairlane. Its addresses are kept."""
    resources = plain["static_resources"]
    clusters = {each["name"]: each["load_assignment"]["endpoints"] for each in resources["clusters"]}
    return {
        "admin": plain["admin"],
        "static_resources": {
            "listeners": [_listener(resources["listeners"][0]["address"])],
            "clusters": [
                _cluster(ENGINES, clusters["vllm"]),
                _cluster(FAIRLANE, clusters["fairlane"], http2=True),
            ],
        },
    }


def _listener(address: Json) -> Json:
    manager: Json = {
        "@type": f"{_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "outbound_0.0.0.0_8080",
        "route_config": {
            "name": "http.8080",
            "virtual_hosts": [_virtual_host(HOST), _virtual_host(OTHER)],
            "validate_clusters": False,
        },
        "server_name": "istio-envoy",
        "use_remote_address": True,
        "forward_client_cert_details": "SANITIZE_SET",
        "set_current_client_cert_details": {"subject": True, "cert": True, "dns": True, "uri": True},
        "http_protocol_options": {},
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "normalize_path": True,
        "path_with_escaped_slashes_action": "KEEP_UNCHANGED",
        "http_filters": [
            {"name": "envoy.filters.http.grpc_stats", "typed_config": _grpc_stats()},
            {"name": "envoy.filters.http.fault", "typed_config": {"@type": f"{_TYPE}.filters.http.fault.v3.HTTPFault"}},
            {"name": "envoy.filters.http.cors", "typed_config": {"@type": f"{_TYPE}.filters.http.cors.v3.Cors"}},
            {"name": "envoy.filters.http.router", "typed_config": {"@type": f"{_TYPE}.filters.http.router.v3.Router"}},
        ],
    }
    chain = {"filters": [{"name": _HCM, "typed_config": manager}]}
    return {
        "name": "0.0.0.0_8080",
        "address": address,
        "traffic_direction": "OUTBOUND",
        "filter_chains": [chain],
        "continue_on_listener_filters_timeout": True,
        "listener_filters_timeout": "0s",
    }


def _grpc_stats() -> Json:
    return {"@type": f"{_TYPE}.filters.http.grpc_stats.v3.FilterConfig", "emit_filter_state": True}


def _virtual_host(host: str) -> Json:
    """One route, as of a VirtualService without timeout and retries of its own."""
    action: Json = {"cluster": name_of(ENGINES), "timeout": "0s", "retry_policy": copy.deepcopy(_RETRY)}
    route = {
        "name": "models",
        "match": {"prefix": "/", "case_sensitive": True},
        "route": {**action, "max_grpc_timeout": "0s"},
        "decorator": {"operation": "vllm.llm.svc.cluster.local:8000/*"},
    }
    return {
        "name": f"{host}:80",
        "domains": [host] if host == OTHER else [host, "*"],  # so that a test need not say Host
        "routes": [route],
        "include_request_attempt_count": True,
    }


def _cluster(service: tuple[str, int], endpoints: list[Json], *, http2: bool = False) -> Json:
    name, most = name_of(service), 4294967295
    found: Json = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "10s",
        "lb_policy": "LEAST_REQUEST",
        "common_lb_config": {},
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": most,
                    "max_pending_requests": most,
                    "max_requests": most,
                    "max_retries": most,
                    "track_remaining": True,
                }
            ]
        },
        "load_assignment": {"cluster_name": name, "endpoints": endpoints},
    }
    if http2:
        options = {"@type": f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions"}
        http = {"http2_protocol_options": {"max_concurrent_streams": 1073741824}}
        found["typed_extension_protocol_options"] = {_OPTIONS: {**options, "explicit_http_config": http}}
    return found


# -- the semantics ------------------------------------------------------------------------------------


def apply(envoy_filter: Json, config: Json) -> Json:
    """The configuration with the patches of an EnvoyFilter in it. A patch that finds no place is an AssertionError:
    Istio would leave it out in silence."""
    config = copy.deepcopy(config)
    for patch in envoy_filter["spec"]["configPatches"]:
        assert patch["match"]["context"] == "GATEWAY"
        done = _BY[patch["applyTo"]](config["static_resources"], patch["match"], copy.deepcopy(patch["patch"]))
        assert done, f"no place for {patch['applyTo']} {patch['match']}"
    return config


def merge(into: Any, value: Any) -> None:
    """As Istio's merge of two messages of one type."""
    for key, new in value.items():
        old = into.get(key)
        if isinstance(new, dict) and isinstance(old, dict) and key not in _MAPS:
            assert new.get("@type") == old.get("@type"), "Any of two types"
            merge(old, new)
        elif isinstance(new, dict) and isinstance(old, dict):
            old.update(new)
        elif isinstance(new, list) and isinstance(old, list):
            old.extend(new)
        elif new not in (False, 0, "") or old is None:
            into[key] = new


def _managers(resources: Json) -> list[Json]:
    chains = [chain for listener in resources["listeners"] for chain in listener["filter_chains"]]
    return [each for chain in chains for each in chain["filters"] if each["name"] == _HCM]


def _listener_patch(resources: Json, match: Json, patch: Json) -> bool:
    assert set(match) == {"context"}  # every listener
    assert patch["operation"] == "MERGE"
    for each in resources["listeners"]:
        merge(each, copy.deepcopy(patch["value"]))
    return bool(resources["listeners"])


def _network_filter(resources: Json, match: Json, patch: Json) -> bool:
    assert match["listener"]["filterChain"]["filter"] == {"name": _HCM}
    assert patch["operation"] == "MERGE"
    found = _managers(resources)
    for each in found:
        merge(each["typed_config"], patch["value"]["typed_config"])
    return bool(found)


def _http_filter(resources: Json, match: Json, patch: Json) -> bool:
    wanted = match["listener"]["filterChain"]["filter"]["subFilter"]["name"]
    assert patch["operation"] == "INSERT_BEFORE"
    done = False
    for each in _managers(resources):
        filters = each["typed_config"]["http_filters"]
        places = [index for index, one in enumerate(filters) if one["name"] == wanted]
        if places:
            filters.insert(places[0], copy.deepcopy(patch["value"]))
            done = True
    return done


def _http_route(resources: Json, match: Json, patch: Json) -> bool:
    assert patch["operation"] == "INSERT_FIRST"
    assert set(match["routeConfiguration"]["vhost"]) == {"name"}  # no route: at the beginning
    done = False
    for each in _managers(resources):
        for host in each["typed_config"]["route_config"]["virtual_hosts"]:
            if host["name"] == match["routeConfiguration"]["vhost"]["name"]:
                host["routes"].insert(0, copy.deepcopy(patch["value"]))
                done = True
    return done


def _cluster_patch(resources: Json, match: Json, patch: Json) -> bool:
    if patch["operation"] == "ADD":
        resources["clusters"].append(patch["value"])
        return True
    assert patch["operation"] == "MERGE"
    wanted = name_of((match["cluster"]["service"], match["cluster"]["portNumber"]))
    found = [each for each in resources["clusters"] if each["name"] == wanted]
    for each in found:
        merge(each, patch["value"])
    return bool(found)


_BY = {
    "LISTENER": _listener_patch,
    "NETWORK_FILTER": _network_filter,
    "HTTP_FILTER": _http_filter,
    "HTTP_ROUTE": _http_route,
    "CLUSTER": _cluster_patch,
}
