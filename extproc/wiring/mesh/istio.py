"""Istio: an EnvoyFilter for an ingress gateway.

Our filters are put before the router, switched off (`disabled`), and our own routes switch them on: the other hosts of
a shared gateway pass by them without a patch. The routes for what is queued are put first in the virtual host of the
engines' host; everything else there goes by the user's own routes.

MERGE adds to lists and replaces values, and cannot take anything away nor set `false`, so what is merged here stands in
no list of Istio's own, or may stand there twice. envoy/istio/README.md says what of the complete file that leaves out.
"""

from __future__ import annotations

import copy
from typing import Any

from extproc.wiring.build import Addresses
from extproc.wiring.description import Wiring, WiringError
from extproc.wiring.mesh.pieces import pieces
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import CONNECTION_MANAGER, DIRECT, FAIRLANE, ROUTER, Address, Data, is_here

_MANAGER_TYPE = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
_FILTER_CONFIG = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
# Of the connection manager. What else is in ours is Istio's to say (addresses of clients, request ids, certificates).
_MERGED = (
    # Not stream_idle_timeout: our routes have their own, and the gateway's other hosts keep what they have.
    *("request_headers_timeout", "request_timeout", "http_protocol_options"),
    *("common_http_protocol_options", "http2_protocol_options"),
    *("normalize_path", "merge_slashes", "path_with_escaped_slashes_action"),
    *("early_header_mutation_extensions", "local_reply_config", "access_log"),
)
_LISTENER = ("tcp_keepalive", "socket_options", "per_connection_buffer_limit_bytes")
# Of the engines' cluster. Endpoints, TLS and the name are Istio's, and so are the limits of its default priority, which
# are as high as can be where no DestinationRule lowers them; of the other priority it says nothing.
_ENGINES = (
    *("connect_timeout", "upstream_connection_options", "typed_extension_protocol_options"),
    *("load_balancing_policy", "outlier_detection"),
)
_FAIRLANE = ("connect_timeout", "typed_extension_protocol_options")


def documents(wiring: Wiring, addresses: Addresses, place: Place) -> list[Data]:
    """One EnvoyFilter. Raises EnvoyFileError and WiringError."""
    if place.fairlane is not None and addresses.fairlane_tls is not None:
        raise WiringError(
            "--fairlane-ca with --fairlane-service: to a service of the mesh Envoy speaks the mesh's TLS; leave "
            "--fairlane-ca out, or give Fairlane's address by --ext-proc and the gateway a cluster of its own"
        )
    if place.fairlane is not None and wiring.mode != "single":
        raise WiringError(
            f"--fairlane-service: in the cluster mode {wiring.mode} Envoy must know the replicas apart, and Istio has "
            "one cluster for all of them; leave the service out and give each replica's name (--ext-proc)"
        )
    here = [] if place.fairlane is not None else [each for each in addresses.ext_proc if is_here(each[0])]
    if here:
        raise WiringError(
            f"Fairlane at {here[0][0]}:{here[0][1]}: in the gateway's pod there is no Fairlane; name its Service by "
            "--fairlane-service (fairlane.fairlane.svc.cluster.local:50051), or each replica by --ext-proc"
        )
    made = pieces(wiring, addresses)
    clusters = _Names(place)
    patches = [_listener_patch(made.listener), _manager_patch(made.manager, clusters)]
    patches += [_filter_patch(each, clusters) for each in made.filters]
    # Each is put before the one that is there already, so the last one comes first.
    names = [each["name"] for each in made.filters]
    patches += [_route_patch(each, names, clusters, place) for each in reversed(made.routes) if each["name"] != DIRECT]
    patches += _fairlane_patches(made.clusters, place)
    patches.append(_cluster_patch(place.engines, {**_picked(made.engines, _ENGINES), **_high(made.engines)}))
    spec: Data = {"configPatches": patches}
    if place.selector:
        spec = {"workloadSelector": {"labels": dict(place.selector)}, **spec}
    else:
        target = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": place.gateway}
        spec = {"targetRefs": [target], **spec}
    metadata = {"name": place.name, "namespace": place.namespace}
    return [{"apiVersion": "networking.istio.io/v1alpha3", "kind": "EnvoyFilter", "metadata": metadata, "spec": spec}]


class _Names:
    """Our names of clusters, and those of Istio for the same."""

    def __init__(self, place: Place) -> None:
        self._istio = {"vllm": _cluster_name(place.engines)}
        if place.fairlane is not None:
            self._istio[FAIRLANE] = _cluster_name(place.fairlane)

    def rename(self, value: Any) -> None:
        """Everywhere inside of `value`."""
        if isinstance(value, dict):
            for key in ("cluster_name", "cluster"):
                if isinstance(value.get(key), str):
                    value[key] = self._istio.get(value[key], value[key])
            value = list(value.values())
        if isinstance(value, list):
            for inner in value:
                self.rename(inner)


def _cluster_name(service: Address) -> str:
    return f"outbound|{service[1]}||{service[0]}"


def _listener_patch(listener: Data) -> Data:
    return {
        "applyTo": "LISTENER",
        "match": {"context": "GATEWAY"},
        "patch": {"operation": "MERGE", "value": _picked(listener, _LISTENER)},
    }


def _manager_patch(manager: Data, clusters: _Names) -> Data:
    merged = {"@type": _MANAGER_TYPE, **_picked(manager, _MERGED)}
    clusters.rename(merged)
    return {
        "applyTo": "NETWORK_FILTER",
        "match": {"context": "GATEWAY", "listener": {"filterChain": {"filter": {"name": CONNECTION_MANAGER}}}},
        "patch": {"operation": "MERGE", "value": {"name": CONNECTION_MANAGER, "typed_config": merged}},
    }


def _filter_patch(each: Data, clusters: _Names) -> Data:
    value = {**copy.deepcopy(each), "disabled": True}
    clusters.rename(value)
    before = {"name": CONNECTION_MANAGER, "subFilter": {"name": ROUTER}}
    return {
        "applyTo": "HTTP_FILTER",
        "match": {"context": "GATEWAY", "listener": {"filterChain": {"filter": before}}},
        "patch": {"operation": "INSERT_BEFORE", "value": value},
    }


def _route_patch(route: Data, filters: list[str], clusters: _Names, place: Place) -> Data:
    value = copy.deepcopy(route)
    own = value.get("typed_per_filter_config", {})
    # A configuration of its own switches a filter on, too.
    on = {name: own.get(name, {"@type": _FILTER_CONFIG, "config": {}}) for name in filters}
    value["typed_per_filter_config"] = on
    value["name"] = f"{place.name}-{route['name']}"
    # Istio lets every request be upgraded; where Fairlane is sent a body, such a connection would hang.
    value["route"]["upgrade_configs"] = [{"upgrade_type": "websocket", "enabled": False}]
    clusters.rename(value)
    host = {"name": f"{place.host}:{place.port}"}
    return {
        "applyTo": "HTTP_ROUTE",
        "match": {"context": "GATEWAY", "routeConfiguration": {"vhost": host}},
        "patch": {"operation": "INSERT_FIRST", "value": value},
    }


def _fairlane_patches(clusters: list[Data], place: Place) -> list[Data]:
    """Fairlane's service as Istio knows it, with the mesh's TLS; or clusters of our own, one more for each replica's
    access log."""
    ours = [each for each in clusters if each["name"].startswith(FAIRLANE)]
    if place.fairlane is not None:
        if len(ours) > 1:
            raise WiringError(
                "--fairlane-service: Istio has one cluster for all replicas, and Envoy's access log goes to one of "
                "them; leave the service out and give each replica's name (--ext-proc), or take one replica"
            )
        return [_cluster_patch(place.fairlane, {**_picked(ours[0], _FAIRLANE), **_high(ours[0])})]
    return [
        {
            "applyTo": "CLUSTER",
            "match": {"context": "GATEWAY"},
            "patch": {"operation": "ADD", "value": copy.deepcopy(each)},
        }
        for each in ours
    ]


def _cluster_patch(service: Address, value: Data) -> Data:
    match = {"context": "GATEWAY", "cluster": {"service": service[0], "portNumber": service[1]}}
    return {"applyTo": "CLUSTER", "match": match, "patch": {"operation": "MERGE", "value": value}}


def _high(cluster: Data) -> Data:
    """The limits of the priority HIGH."""
    of_both = cluster["circuit_breakers"]["thresholds"]
    return {"circuit_breakers": {"thresholds": [dict(each) for each in of_both if each["priority"] == "HIGH"]}}


def _picked(of: Data, keys: tuple[str, ...]) -> Data:
    return {key: copy.deepcopy(of[key]) for key in keys if key in of}
