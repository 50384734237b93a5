"""kgateway: its own policies and nothing else, since it takes no patches of Envoy's configuration.

What it has no object for decides the wiring:

    no filters of ours      nobody but Fairlane can read the body (profile body or duplex, facts none) and the tokens
                            (usage stream, or estimate)
    no metadata from us     Envoy chooses the engine (pick envoy)
    no words to Fairlane    it takes what is true of every wiring: an answer may have trailers, an access log may come,
                            nothing can be preempted
    no header only where    what passes unscheduled has no priority of ours
    one is absent
    no retry_on for calls   a held request does not outlive Fairlane: it passes unscheduled

Objects are those of kgateway 2.2 and later (Envoy 1.36 and later).
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring.build import Addresses
from extproc.wiring.description import Wiring, WiringError
from extproc.wiring.mesh import objects
from extproc.wiring.mesh.objects import DIRECT, GATEWAY_API, MANY_CONNECTIONS, MANY_REQUESTS, QUEUED
from extproc.wiring.mesh.pieces import Pieces, pieces
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import EXT_PROC, Data, named

_GROUP = "gateway.kgateway.dev"
_REQUEST_FACTS = "fairlane.request"  # written by filters of ours, which are not here

# By name, since there are no prefixes; a list takes 16.
STRIPPED = (
    "x-vllm-priority",
    "x-fairlane-ticket",
    "x-fairlane-class",
    "x-fairlane-queue-ms",
    "x-fairlane-timing",
    "x-fairlane-endpoint",
    "x-dynamo-request-priority",
    "x-dynamo-request-strict-priority",
    "x-envoy-retry-on",
    "x-envoy-retry-grpc-on",
    "x-envoy-max-retries",
    "x-envoy-retriable-status-codes",
    "x-envoy-retriable-header-names",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-rq-per-try-timeout-ms",
)


def documents(wiring: Wiring, addresses: Addresses, place: Place) -> list[Data]:
    """The objects, in the order in which they can be applied. Raises WiringError and EnvoyFileError."""
    objects.refuse("kgateway", wiring, addresses)
    _refuse(wiring)
    made = pieces(wiring, addresses)
    fairlane = objects.fairlane(addresses, place)
    engines = objects.service(place.engines, place.namespace, "engines at")
    paths = list(wiring.queued)
    return [
        *objects.grants(place.namespace, [(fairlane, _GROUP, "GatewayExtension"), (engines, GATEWAY_API, "HTTPRoute")]),
        *_connections(wiring, fairlane, engines),
        _listener(made, wiring, place),
        _extension(made, wiring, fairlane, place),
        *_policies(wiring, place),
        objects.route(QUEUED, place, engines, paths, filters=[_shown(made)]),
        objects.route(DIRECT, place, engines, None),
    ]


def _refuse(wiring: Wiring) -> None:
    if not wiring.body_in_fairlane or wiring.facts_used != "none":
        raise WiringError(
            f"profile {wiring.profile}, facts {wiring.facts_used}: kgateway takes no filter that reads the body in "
            "Envoy, so it has to come to Fairlane; take --profile body --facts none, or --profile duplex"
        )
    if wiring.usage == "access_log":
        raise WiringError(
            "usage access_log: kgateway takes no filter that reads the tokens in Envoy; take --usage stream, or "
            "--usage estimate"
        )
    if wiring.pick != "envoy":
        raise WiringError(
            f"pick {wiring.pick}: kgateway does not let Fairlane name the engine; set pick: {{by: envoy}} in every "
            "pool of fairlane.yaml"
        )


def _head(kind: str, name: str, namespace: str) -> Data:
    return {"apiVersion": f"{_GROUP}/v1alpha1", "kind": kind, "metadata": {"name": name, "namespace": namespace}}


def _connections(wiring: Wiring, fairlane: objects.Service, engines: objects.Service) -> Iterator[Data]:
    """To Fairlane, and to the engines. Each stands beside its Service."""
    limits = {
        "maxConnections": MANY_CONNECTIONS,
        "maxPendingRequests": MANY_REQUESTS,
        "maxRequests": MANY_REQUESTS,
        "maxRetries": MANY_REQUESTS,
    }
    own: Data = {"connectTimeout": "1s", "circuitBreakers": limits}
    if wiring.envoy >= 38:  # kgateway 2.4
        own["http2ProtocolOptions"] = {"connectionKeepalive": {"interval": "3s", "timeout": "2s"}}
    theirs: Data = {
        "connectTimeout": "5s",
        "circuitBreakers": dict(limits),
        "tcpKeepalive": {"keepAliveProbes": 3, "keepAliveTime": "30s", "keepAliveInterval": "10s"},
        "commonHttpProtocolOptions": {"idleTimeout": "4s"},
        "loadBalancer": {"leastRequest": {}, "healthyPanicThreshold": 1, "updateMergeWindow": "0s"},
        "outlierDetection": {
            "consecutive5xx": 5,
            "interval": "1s",
            "baseEjectionTime": "5s",
            "maxEjectionPercent": 100,
        },
    }
    for service, spec in ((fairlane, own), (engines, theirs)):
        target = {"group": "", "kind": "Service", "name": service.name}
        yield {
            **_head("BackendConfigPolicy", f"fairlane-to-{service.name}", service.namespace),
            "spec": {"targetRefs": [target], **spec},
        }


def _listener(made: Pieces, wiring: Wiring, place: Place) -> Data:
    settings: Data = {
        "acceptHttp10": True,
        "preserveExternalRequestId": True,
        "earlyRequestHeaderModifier": {"remove": list(STRIPPED)},
    }
    listener: Data = {"perConnectionBufferLimitBytes": wiring.max_body, "httpSettings": settings}
    if wiring.envoy >= 37:  # kgateway 2.3
        settings["maxHeadersCount"] = made.manager["common_http_protocol_options"]["max_headers_count"]
    if wiring.envoy >= 38:  # kgateway 2.4
        settings["http2ProtocolOptions"] = {"initialStreamWindowSize": str(max(wiring.max_body, 65_536))}
    target = {"group": GATEWAY_API, "kind": "Gateway", "name": place.gateway}
    return {
        **_head("ListenerPolicy", place.name, place.namespace),
        "spec": {"targetRefs": [target], "default": listener},
    }


_MODES = {
    "request_header_mode": "requestHeaderMode",
    "request_body_mode": "requestBodyMode",
    "request_trailer_mode": "requestTrailerMode",
    "response_header_mode": "responseHeaderMode",
    "response_body_mode": "responseBodyMode",
    "response_trailer_mode": "responseTrailerMode",
}


def _extension(made: Pieces, wiring: Wiring, fairlane: objects.Service, place: Place) -> Data:
    config = named(made.filters, EXT_PROC)["typed_config"]
    told = config["metadata_options"]["forwarding_namespaces"]["untyped"]
    call: Data = {
        "grpcService": {"backendRef": fairlane.seen_from(place.namespace)},
        "failOpen": config["failure_mode_allow"],
        "messageTimeout": config["message_timeout"],
        "processingMode": {ours: config["processing_mode"][theirs] for theirs, ours in _MODES.items()},
        "metadataOptions": {"forwarding": {"untyped": [each for each in told if each != _REQUEST_FACTS]}},
    }
    if wiring.envoy >= 38:  # kgateway 2.4
        call["requestAttributes"] = config["request_attributes"]
    return {**_head("GatewayExtension", place.name, place.namespace), "spec": {"type": "ExtProc", "extProc": call}}


def _policies(wiring: Wiring, place: Place) -> Iterator[Data]:
    timeouts = {"request": "0s", "streamIdle": "0s"}
    retry: Data = {"retryOn": ["connect-failure"], "attempts": 2}
    if wiring.retry_turned_away:
        retry["statusCodes"] = [429, 503]
    queued: Data = {
        "targetRefs": objects.at_routes([QUEUED]),
        "extProc": {"extensionRef": {"name": place.name}},
        "timeouts": timeouts,
        "retry": retry,
    }
    yield {**_head("TrafficPolicy", QUEUED, place.namespace), "spec": queued}
    direct = {"targetRefs": objects.at_routes([DIRECT]), "timeouts": dict(timeouts)}
    yield {**_head("TrafficPolicy", DIRECT, place.namespace), "spec": direct}


def _shown(made: Pieces) -> Data:
    """What the queue did, for the client: copies of headers that Fairlane sets on the request."""
    (route, *_) = made.routes
    kinds: dict[str, list[Data]] = {"set": [], "add": []}
    for each in route["response_headers_to_add"]:
        kind = "set" if each["append_action"] == "OVERWRITE_IF_EXISTS_OR_ADD" else "add"
        if each["header"]["value"].startswith("%REQ("):
            kinds[kind].append({"name": each["header"]["key"], "value": each["header"]["value"]})
    return {
        "type": "ResponseHeaderModifier",
        "responseHeaderModifier": {kind: headers for kind, headers in kinds.items() if headers},
    }
