"""Each check finds what it is for, and that alone, in the shipped configuration with one thing spoilt; and where its
fix can be merged, merging it makes the configuration clean again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from doctor_case import Envoy, Json, apply, classes, config, findings, pool, spoilt

from extproc.wiring.doctor import examine
from extproc.wiring.doctor.finding import Finding
from extproc.wiring.doctor.setup import Answer
from extproc.wiring.doctor.source import Source
from extproc.wiring.doctor.table import CHECKS

pytestmark = pytest.mark.slow

MANAGER = "static_resources.listeners[0].filter_chains[0].filters[0].typed_config"
EXT_PROC = f"{MANAGER}.http_filters[1].typed_config"
ROUTE = f"{MANAGER}.route_config.virtual_hosts[0].routes[0]"


Spoil = Callable[[Envoy], Any]


@dataclass(frozen=True)
class Case:
    id: str
    spoil: Spoil
    where: str  # the end of the place
    what: str  # a part of what is said
    config: Json = field(default_factory=dict)
    mends: bool = True  # the fix can be merged


def one_by_name(envoy: Envoy) -> None:
    envoy.endpoints("vllm").pop()
    envoy.cluster("vllm")["type"] = "LOGICAL_DNS"


def as_shipped(_: Envoy) -> None:
    """The fault is in fairlane.yaml."""


def case(
    name: str, spoil: Callable[[Envoy], Any], where: str, what: str, *, mends: bool = True, **changes: Any
) -> Case:
    return Case(name, spoil, where, what, changes, mends)


def replicas(envoy: Envoy, **more: Any) -> None:
    """A second replica of Fairlane, looked after as it should be."""
    second = {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 50061}}}}
    envoy.endpoints("fairlane").append(second)
    check = {
        "timeout": "1s",
        "interval": "1s",
        "no_traffic_interval": "1s",
        "unhealthy_threshold": 2,
        "healthy_threshold": 1,
        "grpc_health_check": {},
    }
    envoy.cluster("fairlane").update({"health_checks": [check], **more})


def three(envoy: Envoy) -> None:
    """Two more."""
    replicas(envoy)
    replicas(envoy)
    envoy.endpoints("fairlane")[2]["endpoint"]["address"]["socket_address"]["port_value"] = 50071


def by_http(envoy: Envoy) -> None:
    """The check asks whether the process is there, which a standby is."""
    (check,) = envoy.cluster("fairlane")["health_checks"]
    del check["grpc_health_check"]
    check["http_health_check"] = {"path": "/readyz"}


def by_header(envoy: Envoy) -> None:
    """What a hash would be made of."""
    (options,) = envoy.cluster("fairlane")["typed_extension_protocol_options"].values()
    options["hash_policy"] = [{"header": {"header_name": "x-pool"}}]


def lua(envoy: Envoy, name: str, code: str, index: int) -> None:
    kind = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua"
    config = {"@type": kind, "default_source_code": {"inline_string": code}}
    envoy.filters.insert(index, {"name": name, "typed_config": config})


def jwt(envoy: Envoy, index: int) -> None:
    kind = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication"
    envoy.filters.insert(index, {"name": "jwt", "typed_config": {"@type": kind}})


def move(envoy: Envoy, name: str, index: int) -> None:
    moved = envoy.filter(name)
    envoy.filters.remove(moved)
    envoy.filters.insert(index, moved)


def drop(rules: list[Json], *selectors: str) -> None:
    def path(one: Json) -> list[str]:
        return [each["key"] for each in one.get("rule", one)["selectors"]]

    rules[:] = [one for one in rules if path(one) != list(selectors)]


def mutations(envoy: Envoy) -> list[Json]:
    found: list[Json] = envoy.manager["early_header_mutation_extensions"][0]["typed_config"]["mutations"]
    return found


def override(envoy: Envoy) -> Json:
    policies = envoy.cluster("vllm")["load_balancing_policy"]["policies"]
    found: Json = policies[0]["typed_extension_config"]["typed_config"]
    return found


def threshold(envoy: Envoy, cluster: str, number: int) -> Json:
    found: Json = envoy.cluster(cluster)["circuit_breakers"]["thresholds"][number]
    return found


def one_mode(envoy: Envoy, **changes: str) -> None:
    """The same mode on every route."""
    envoy.route("queued-uploads").pop("typed_per_filter_config")
    envoy.ext_proc["processing_mode"].update(changes)


def with_stream(envoy: Envoy, **changes: str) -> None:
    one_mode(envoy, response_body_mode="STREAMED", response_header_mode="SEND", **changes)


def wiring(envoy: Envoy, word: str) -> None:
    envoy.ext_proc["grpc_service"]["initial_metadata"] = [{"key": "fairlane-wiring", "value": word}]


def second_filter(envoy: Envoy, word: str, **changes: Any) -> Json:
    """As in the profile strict, but both filters say what is given."""
    first = envoy.filter("envoy.filters.http.ext_proc")
    second = {"name": "track", "typed_config": {**first["typed_config"], "message_timeout": "10s", **changes}}
    service = {**first["typed_config"]["grpc_service"], "initial_metadata": [{"key": "fairlane-wiring", "value": word}]}
    second["typed_config"]["grpc_service"] = service
    envoy.filters.insert(2, second)
    envoy.route("queued-uploads").pop("typed_per_filter_config")
    disabled = {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": True}
    envoy.route("direct")["typed_per_filter_config"]["track"] = disabled
    first["typed_config"].update(failure_mode_allow=False)
    first["typed_config"]["processing_mode"] = {**first["typed_config"]["processing_mode"]}
    first["typed_config"]["processing_mode"]["response_trailer_mode"] = "SKIP"
    wiring(envoy, "hold")
    return second


def forward(envoy: Envoy, *namespaces: str) -> None:
    envoy.ext_proc["metadata_options"]["forwarding_namespaces"]["untyped"] += namespaces


def claims(namespace: str) -> Json:
    return {"tenant": [{"metadata": {"namespace": namespace, "path": ["sub"]}}], "class": []}


def past(envoy: Envoy, *, prefix: str = "/", cluster: str = "vllm") -> Json:
    """A filter chain that does not ask Fairlane."""
    manager = {key: envoy.manager[key] for key in ("@type", "stat_prefix")}
    route = {"match": {"prefix": prefix}, "route": {"cluster": cluster}}
    manager["http_filters"] = [envoy.filters[-1]]
    manager["route_config"] = {"virtual_hosts": [{"name": "a", "domains": ["*"], "routes": [route]}]}
    return {"filters": [{"name": "http", "typed_config": manager}]}


def second_listener(envoy: Envoy, internal: bool = False, **more: str) -> None:
    listener = {"name": "second", "filter_chains": [past(envoy, **more)]}
    listener |= {"internal_listener": {}} if internal else OTHER_PORT
    envoy.data["static_resources"]["listeners"].append(listener)


def tcp_listener(envoy: Envoy) -> None:
    kind = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy"
    proxy = {"name": "tcp", "typed_config": {"@type": kind, "stat_prefix": "tcp", "cluster": "vllm"}}
    envoy.data["static_resources"]["listeners"].append(
        {"name": "tcp", "filter_chains": [{"filters": [proxy]}], **OTHER_PORT}
    )


def second_chain(envoy: Envoy) -> None:
    match = {"filter_chain_match": {"source_type": "SAME_IP_OR_LOOPBACK"}}
    envoy.listener["filter_chains"].append(match | past(envoy))


OTHER_PORT = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 10001}}}
PAST = ".filters[0].typed_config.route_config.virtual_hosts[0].routes[0]"
JWT, AUTHZ = "envoy.filters.http.jwt_authn", "envoy.filters.http.ext_authz"
APPEND = 'function envoy_on_request(h) h:streamInfo():dynamicMetadata():get("fairlane.body") end'
HASH = {"lb_policy": "RING_HASH"}
STORE = {"addresses": ["127.0.0.1:6379"]}
STANDBY: Json = {"mode": "standby", "store": STORE}
SHARED: Json = {"mode": "shared", "store": STORE}
PINNED = {"key": "x-pool", "value": "%REQ(x-pool)%"}

CASES = [
    # clocks
    case("message_timeout", lambda e: e.ext_proc.pop("message_timeout"), EXT_PROC, "0.2s by default"),
    case("message_timeout", lambda e: e.ext_proc.update(message_timeout="3500s"), EXT_PROC, "is 3500s, and a request"),
    case(
        "stream_idle_timeout",
        lambda e: (
            e.manager.pop("stream_idle_timeout"),
            [e.route(name)["route"].pop("idle_timeout") for name in ("queued", "queued-tgi", "queued-uploads")],
        ),
        MANAGER,
        "300s by default",
    ),
    case("route_idle_timeout", lambda e: e.route()["route"].update(idle_timeout="60s"), f"{ROUTE}.route", "is 60s"),
    case("route_timeout", lambda e: e.route()["route"].pop("timeout"), f"{ROUTE}.route", "15s by default"),
    case("route_timeout", lambda e: e.route()["route"].update(timeout="599s"), f"{ROUTE}.route", "is 599s"),
    case(
        "per_try_timeout",
        lambda e: e.route()["route"]["retry_policy"].update(per_try_timeout="30s"),
        "route.retry_policy",
        "per_try_timeout is 30s",
    ),
    case(
        "max_stream_duration",
        lambda e: e.manager["common_http_protocol_options"].update(max_stream_duration="3600s"),
        f"{MANAGER}.common_http_protocol_options",
        "is 3600s",
    ),
    case(
        "max_stream_duration",
        lambda e: e.route()["route"].update(max_stream_duration={"max_stream_duration": "60s"}),
        f"{ROUTE}.route.max_stream_duration",
        "is 60s",
    ),
    case(
        "max_stream_duration",
        lambda e: e.options("fairlane").update(common_http_protocol_options={"max_stream_duration": "60s"}),
        "common_http_protocol_options",
        "of Fairlane's cluster is 60s",
    ),
    case(
        "grpc_timeout",
        lambda e: e.ext_proc["grpc_service"].update(timeout="1s"),
        "grpc_service",
        "timeout is 1s",
        mends=False,
    ),
    case("request_timeout", lambda e: e.manager.pop("request_timeout"), MANAGER, "is off"),
    # limits
    case(
        "fairlane_circuit_breaker",
        lambda e: threshold(e, "fairlane", 0).update(max_requests=19_999),
        "clusters[0]",
        "priority DEFAULT: max_requests is 19999, and 20000 requests",
    ),
    case(
        "fairlane_circuit_breaker",
        lambda e: threshold(e, "fairlane", 1).pop("max_retries"),
        "clusters[0]",
        "priority HIGH: max_retries is 3 by default",
    ),
    case(
        "engine_circuit_breaker",
        lambda e: threshold(e, "vllm", 0).pop("max_connections"),
        "clusters[1]",
        "max_connections is 1024 by default",
    ),
    case("body_limit", lambda e: e.route().pop("request_body_buffer_limit"), ROUTE, "1 MiB by default"),
    case("body_limit", lambda e: e.route().update(request_body_buffer_limit=1000), ROUTE, "1000 bytes of a body"),
    case(
        "body_limit_http2",
        lambda e: (
            e.route().pop("request_body_buffer_limit"),
            e.listener.update(per_connection_buffer_limit_bytes=32 * 1024**2),
        ),
        ROUTE,
        "the route has no limit",
    ),
    case(
        "grpc_message_limit",
        lambda e: e.ext_proc["grpc_service"]["envoy_grpc"].update(max_receive_message_length=4 * 1024**2),
        "grpc_service.envoy_grpc",
        "is 4194304, and requests.max_body is 33554432",
    ),
    case("max_headers_count", lambda e: e.manager.pop("common_http_protocol_options"), MANAGER, "100 by default"),
    case(
        "downstream_connections",
        lambda e: e.data["overload_manager"]["resource_monitors"][0]["typed_config"].update(
            max_active_downstream_connections=10
        ),
        "resource_monitors[0].typed_config",
        "is 10, and 20000 requests",
    ),
    # the filter
    case(
        "request_headers_skipped",
        lambda e: one_mode(e, request_header_mode="SKIP"),
        EXT_PROC,
        "request_header_mode is SKIP",
    ),
    case("request_body_mode", lambda e: one_mode(e, request_body_mode="STREAMED"), EXT_PROC, "is STREAMED"),
    case(
        "response_trailers_skipped",
        lambda e: one_mode(e, response_trailer_mode="SKIP"),
        EXT_PROC,
        "response_trailer_mode is not SEND",
    ),
    case(
        "stream_usage_headers",
        lambda e: one_mode(e, response_body_mode="STREAMED"),
        EXT_PROC,
        "STREAMED, response_header_mode SKIP",
    ),
    case(
        "response_headers_sent",
        lambda e: one_mode(e, response_header_mode="DEFAULT"),
        EXT_PROC,
        "response_header_mode is not SKIP",
    ),
    case("first_byte_skipped", lambda e: (one_mode(e), wiring(e, "first-byte")), EXT_PROC, "says first-byte, but"),
    case(
        "preemption_not_wired",
        lambda e: one_mode(e),
        EXT_PROC,
        "class interactive, default, batch is preemptible",
        classes=classes(preemptible=True),
    ),
    case(
        "request_attributes",
        lambda e: e.ext_proc["request_attributes"].remove("request.time"),
        EXT_PROC,
        "lacks request.time",
    ),
    case(
        "request_attributes",
        as_shipped,
        EXT_PROC,
        "lacks connection.uri_san_peer_certificate",
        identity={"tenant": [{"certificate": {}}], "class": []},
    ),
    case(
        "node_attribute", lambda e: e.ext_proc["request_attributes"].append("xds.node"), EXT_PROC, "asks for xds.node"
    ),
    case(
        "facts_not_forwarded",
        lambda e: e.ext_proc["metadata_options"]["forwarding_namespaces"]["untyped"].remove("fairlane.request"),
        EXT_PROC,
        "lacks fairlane.request",
    ),
    case(
        "identity_not_forwarded",
        as_shipped,
        EXT_PROC,
        "lacks my.claims",
        identity={"tenant": [{"metadata": {"namespace": "my.claims", "path": ["sub"]}}], "class": []},
    ),
    case(
        "endpoint_not_received",
        lambda e: e.ext_proc["metadata_options"].pop("receiving_namespaces"),
        EXT_PROC,
        "lacks fairlane.endpoint",
    ),
    case(
        "endpoint_not_received",
        lambda e: (
            lua(e, "append", APPEND, 2),
            e.ext_proc["metadata_options"]["receiving_namespaces"].update(untyped=["fairlane.endpoint"]),
        ),
        EXT_PROC,
        "lacks fairlane.body",
    ),
    case(
        "headers_not_forwarded",
        lambda e: e.ext_proc.update(forward_rules={"disallowed_headers": {"patterns": [{"prefix": "x-t"}]}}),
        EXT_PROC,
        "keeps x-tenant from Fairlane",
        mends=False,
    ),
    case(
        "headers_not_forwarded",
        lambda e: e.ext_proc.update(forward_rules={"allowed_headers": {"patterns": [{"exact": "x-tenant"}]}}),
        EXT_PROC,
        "keeps :method, :path, x-class from Fairlane",
        mends=False,
    ),
    case(
        "headers_not_forwarded",
        lambda e: e.ext_proc.update(forward_rules={"disallowed_headers": {"patterns": [{"exact": "authorization"}]}}),
        EXT_PROC,
        "keeps authorization from Fairlane",
        mends=False,
        identity={"tenant": [{"api_key": {"header": "Authorization", "sha256": {"0" * 64: "team-a"}}}], "class": []},
    ),
    case("mutations_refused", lambda e: e.ext_proc.update(mutation_rules={"disallow_all": True}), EXT_PROC, "refuses"),
    case(
        "mutations_refused",
        lambda e: e.ext_proc.update(mutation_rules={"disallow_expression": {"regex": "x-.*"}}),
        EXT_PROC,
        "refuses",
    ),
    case("immediate_response_off", lambda e: e.ext_proc.update(disable_immediate_response=True), EXT_PROC, "is on"),
    case("observability_mode", lambda e: e.ext_proc.update(observability_mode=True), EXT_PROC, "is on"),
    case(
        "wiring_words",
        lambda e: second_filter(e, "follow"),
        "http_filters[2].typed_config",
        "does not say track",
    ),
    case(
        "graceful_close",
        lambda e: e.data.update(
            layered_runtime={
                "layers": [
                    {
                        "name": "static",
                        "static_layer": {"envoy": {"reloadable_features": {"ext_proc_graceful_grpc_close": True}}},
                    }
                ]
            }
        ),
        "layered_runtime.layers[0].static_layer",
        "is on",
        mends=False,
    ),
    case(
        "graceful_close",
        lambda e: e.data.update(
            layered_runtime={
                "layers": [
                    {
                        "name": "static",
                        "static_layer": {"envoy.reloadable_features.ext_proc_graceful_grpc_close": True},
                    }
                ]
            }
        ),
        "layered_runtime.layers[0].static_layer",
        "is on",
    ),
    # when Fairlane is away
    case("retry_policy_missing", lambda e: e.ext_proc["grpc_service"].pop("retry_policy"), EXT_PROC, "no retry_policy"),
    case(
        "retry_policy_misplaced",
        lambda e: e.ext_proc["grpc_service"]["envoy_grpc"].update(
            retry_policy=e.ext_proc["grpc_service"].pop("retry_policy")
        ),
        EXT_PROC,
        "in envoy_grpc",
    ),
    case(
        "retry_on",
        lambda e: e.ext_proc["grpc_service"]["retry_policy"].update(retry_on="connect-failure,unavailable"),
        "grpc_service.retry_policy",
        "lacks refused-stream, reset, reset-before-request",
    ),
    case(
        "retry_span",
        lambda e: e.ext_proc["grpc_service"]["retry_policy"].pop("num_retries"),
        "grpc_service.retry_policy",
        "num_retries is 1",
    ),
    case(
        "retry_previous_hosts",
        lambda e: (replicas(e), e.ext_proc["grpc_service"]["retry_policy"].pop("retry_host_predicate")),
        "grpc_service.retry_policy",
        "no previous_hosts",
    ),
    case("answers_cut", lambda e: e.ext_proc.update(failure_mode_allow=False), EXT_PROC, "failure_mode_allow is off"),
    case(
        "hold_fails_open",
        lambda e: (second_filter(e, "track"), e.ext_proc.update(failure_mode_allow=True)),
        EXT_PROC,
        "failure_mode_allow is on",
    ),
    case("on_fault_fails_open", as_shipped, EXT_PROC, "on_fault is reject", mends=False, on_fault="reject"),
    case(
        "full_duplex_fails_open",
        lambda e: one_mode(e, request_body_mode="FULL_DUPLEX_STREAMED", request_trailer_mode="SEND"),
        EXT_PROC,
        "with FULL_DUPLEX_STREAMED",
        mends=False,
    ),
    # facts and body
    case(
        "facts_missing",
        lambda e: e.filters.remove(e.filter("fairlane.facts")),
        f"{MANAGER}.http_filters",
        "no filter writes metadata fairlane.request",
        mends=False,
    ),
    case(
        "facts_disabled",
        lambda e: e.route().update(
            typed_per_filter_config={
                "fairlane.facts": {
                    "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
                    "disabled": True,
                }
            }
        ),
        ROUTE,
        "fairlane.facts is disabled",
        mends=False,
    ),
    case("facts_selectors", lambda e: drop(e.facts, "n"), "request_rules.rules", "n: not read"),
    case(
        "facts_selectors",
        lambda e: (drop(e.facts, "max_tokens"), drop(e.facts, "stream_options", "include_usage")),
        "request_rules.rules",
        "max_tokens, include_usage: not read",
    ),
    case("facts_on_error", lambda e: e.facts[0].pop("on_error"), "request_rules.rules[0]", "no rule has an on_error"),
    case(
        "json_content_type",
        lambda e: e.filter("fairlane.facts")["typed_config"]["request_rules"].pop("allow_content_types_regex"),
        "request_rules",
        "charset=utf-8' is not read",
    ),
    case(
        "body_edit_missing",
        as_shipped,
        f"{MANAGER}.http_filters",
        "the engines of pool sim read their priority in the body",
        mends=False,
        pools=pool(priority_via="body"),
    ),
    case(
        "body_edit_missing",
        as_shipped,
        f"{MANAGER}.http_filters",
        "the engines of pool sim read their priority in the body",
        mends=False,
        pools=pool(engine="sglang", priority_via="auto"),
    ),
    case(
        "body_edit_missing",
        as_shipped,
        f"{MANAGER}.http_filters",
        "pool sim has aliases",
        mends=False,
        pools=pool(aliases={"gpt-4o": "sim-7b"}),
    ),
    case(
        "body_priority_fails_open",
        lambda e: lua(e, "append", APPEND, 2),
        EXT_PROC,
        "the engines of pool sim read their priority in the body",
        mends=False,
        pools=pool(priority_via="both"),
    ),
    case(
        "usage_chunk_shown",
        lambda e: lua(e, "append", APPEND, 2),
        f"{MANAGER}.http_filters",
        "include_usage is inject",
        mends=False,
        requests={"include_usage": "inject"},
    ),
    # identity
    case(
        "identity_filter_missing",
        lambda e: forward(e, JWT),
        f"{MANAGER}.http_filters",
        "reads metadata envoy.filters.http.jwt_authn",
        mends=False,
        identity=claims(JWT),
    ),
    case(
        "identity_filter_missing",
        lambda e: (jwt(e, 0), forward(e, AUTHZ)),
        f"{MANAGER}.http_filters",
        "reads metadata envoy.filters.http.ext_authz",
        mends=False,
        identity=claims(AUTHZ),
    ),
    # token counts
    case(
        "usage_json_missing",
        lambda e: e.filters.remove(e.filter("fairlane.usage.json")),
        "http_filters",
        "of JSON answers",
        mends=False,
    ),
    case(
        "usage_sse_missing",
        lambda e: e.filters.remove(e.filter("fairlane.usage.sse")),
        "http_filters",
        "of streams",
        mends=False,
    ),
    case(
        "usage_disabled",
        lambda e: e.route().update(
            typed_per_filter_config={
                "fairlane.usage.sse": {
                    "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig",
                    "disabled": True,
                }
            }
        ),
        ROUTE,
        "fairlane.usage.sse is disabled",
        mends=False,
    ),
    case("usage_json_selectors", lambda e: drop(e.json, "error", "code"), "response_rules.rules", "error.code"),
    case(
        "usage_sse_selectors",
        lambda e: drop(e.sse, "response", "usage", "output_tokens"),
        "content_parser.typed_config.rules",
        "response.usage.output_tokens",
    ),
    case(
        "usage_first_match",
        lambda e: e.sse[0].update(stop_processing_after_matches=1),
        "rules[0]",
        "stop_processing_after_matches is 1",
    ),
    case("access_log_missing", lambda e: e.manager.pop("access_log"), MANAGER, "no gRPC access log"),
    case(
        "access_log_ticket",
        lambda e: e.log["typed_config"].pop("additional_request_headers_to_log"),
        "access_log[0].typed_config",
        "x-fairlane-ticket is not logged",
    ),
    case(
        "access_log_late",
        lambda e: [
            e.log["typed_config"]["common_config"].pop(name) for name in ("buffer_size_bytes", "buffer_flush_interval")
        ],
        "common_config",
        "for 1s or up to 16384 bytes",
    ),
    case(
        "access_log_filter",
        lambda e: e.log["filter"]["and_filter"]["filters"][1]["or_filter"]["filters"].pop(2),
        "access_log[0].filter",
        "leaves out /generate, /generate_stream",
        mends=False,
    ),
    # order
    case(
        "facts_behind_ext_proc",
        lambda e: move(e, "fairlane.facts", 1),
        "http_filters[1]",
        "behind envoy.filters.http.ext_proc",
        mends=False,
    ),
    case("identity_behind_ext_proc", lambda e: jwt(e, 2), "http_filters[2]", "jwt stands behind", mends=False),
    case(
        "body_edit_before_ext_proc",
        lambda e: lua(e, "append", APPEND, 0),
        "http_filters[0]",
        "append stands before",
        mends=False,
    ),
    case(
        "compressor_behind_usage",
        lambda e: e.filters.insert(
            4,
            {
                "name": "gzip",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor"},
            },
        ),
        "http_filters[4]",
        "gzip stands behind fairlane.usage.sse, fairlane.usage.json",
        mends=False,
    ),
    case(
        "track_before_hold",
        lambda e: (second_filter(e, "track"), move(e, "track", 1)),
        "http_filters[1]",
        "track stands before",
        mends=False,
    ),
    # clusters
    case(
        "fairlane_not_http2",
        lambda e: e.options("fairlane").update(explicit_http_config={"http_protocol_options": {}}),
        'HttpProtocolOptions"]',
        "does not speak HTTP/2",
        mends=False,
    ),
    case(
        "keepalive",
        lambda e: e.options("fairlane")["explicit_http_config"]["http2_protocol_options"].pop("connection_keepalive"),
        'HttpProtocolOptions"]',
        "none",
    ),
    case(
        "health_checks_missing",
        lambda e: (replicas(e), e.cluster("fairlane").pop("health_checks")),
        "clusters[0]",
        "2 endpoints and no health_checks",
    ),
    case(
        "closes_on_health_failure",
        lambda e: e.cluster("fairlane").update(close_connections_on_host_health_failure=True),
        "clusters[0]",
        "of cluster fairlane is on",
    ),
    case(
        "health_checks_rare",
        lambda e: (replicas(e), e.cluster("fairlane")["health_checks"][0].pop("no_traffic_interval")),
        "health_checks[0]",
        "60s by default",
    ),
    case(
        "ring_hash_without_metadata",
        lambda e: (replicas(e, **HASH), by_header(e)),
        EXT_PROC,
        "cluster fairlane hashes",
    ),
    case(
        "hash_policy_missing",
        lambda e: (replicas(e, **HASH), e.ext_proc["grpc_service"].update(initial_metadata=[PINNED])),
        'v3.HttpProtocolOptions"]',
        "no hash_policy by the header x-pool",
    ),
    case(
        "metadata_without_ring_hash",
        lambda e: (replicas(e), by_header(e), e.ext_proc["grpc_service"].update(initial_metadata=[PINNED])),
        "clusters[0]",
        "does not hash",
    ),
    case(
        "replicas_not_pinned",
        lambda e: (second_filter(e, "track"), replicas(e)),
        "clusters[0]",
        "two filters ask it",
        mends=False,
    ),
    case(
        "panic_threshold",
        lambda e: e.cluster("fairlane").update(common_lb_config={"healthy_panic_threshold": {"value": 0}}),
        "healthy_panic_threshold",
        "is 0",
    ),
    # several replicas
    case(
        "standby_unchecked",
        lambda e: (replicas(e), e.cluster("fairlane").pop("health_checks")),
        "clusters[0]",
        "no health_checks",
        cluster=STANDBY,
    ),
    case(
        "standby_unchecked",
        lambda e: (replicas(e), by_http(e)),
        "clusters[0]",
        "none of them by gRPC",
        cluster=STANDBY,
    ),
    case(
        "standby_panics",
        three,
        "clusters[0]",
        "is 50 %, and of 3 replicas",
        cluster={**STANDBY, "replicas": 3},
    ),
    case(
        "standby_panics",
        lambda e: replicas(e, common_lb_config={"healthy_panic_threshold": {"value": 51}}),
        "clusters[0]",
        "is 51 %, and of 2 replicas",
        cluster=STANDBY,
    ),
    case("replicas_unknown", as_shipped, "clusters[0]", "1 endpoint, and", mends=False, cluster=SHARED),
    case(
        "replicas_unknown",
        replicas,
        "clusters[0]",
        "2 endpoints, and cluster.replicas is 3",
        mends=False,
        cluster={**SHARED, "replicas": 3},
    ),
    case(
        "partition_unspread",
        replicas,
        "clusters[0]",
        "does not hash",
        mends=False,
        cluster={"mode": "partition"},
    ),
    case(
        "endpoint_choice_missing",
        lambda e: e.cluster("vllm").pop("load_balancing_policy"),
        "clusters[1]",
        "no override_host policy",
        mends=False,
    ),
    case(
        "endpoint_choice_missing",
        lambda e: override(e)["override_host_sources"][0]["metadata"].update(key="other"),
        "typed_extension_config.typed_config",
        "does not read fairlane.endpoint",
    ),
    case(
        "endpoint_choice_by_header",
        lambda e: override(e)["override_host_sources"].append({"header": "x-pick"}),
        "typed_extension_config.typed_config",
        "takes the header x-pick",
    ),
    case(
        "engine_not_ejected",
        as_shipped,
        "clusters[1]",
        "cluster vllm has no outlier_detection, and sim pick.by envoy",
        pools=pool(pick={"by": "envoy"}),
    ),
    case("endpoints_differ", lambda e: e.endpoints("vllm").pop(), "clusters[1]", "is 127.0.0.1:8002", mends=False),
    case(
        "endpoints_differ",
        as_shipped,
        "clusters[1]",
        "127.0.0.1:8002 of cluster vllm is in no pool",
        mends=False,
        pools=pool(endpoints=["127.0.0.1:8001"]),
    ),
    case("endpoint_logical_dns", one_by_name, "clusters[1]", "LOGICAL_DNS", pools=pool(endpoints=["127.0.0.1:8001"])),
    case(
        "endpoints_fixed",
        as_shipped,
        "clusters[1]",
        "pool sim has the addresses of engines.example, and vllm a list that does not change",
        mends=False,
        pools=pool(endpoints={"dns": {"name": "engines.example", "port": 8001}}),
    ),
    case(
        "endpoints_unknown",
        lambda e: e.endpoints("vllm")[0]["endpoint"]["address"]["socket_address"].update(address="engine-1"),
        "clusters[1]",
        "by name",
        mends=False,
    ),
    case(
        "engine_idle_timeout",
        lambda e: e.options("vllm").pop("common_http_protocol_options"),
        'HttpProtocolOptions"]',
        "1h by default",
    ),
    case(
        "no_trailers_over_http2",
        lambda e: (
            wiring(e, "no-trailers"),
            e.options("vllm").update(explicit_http_config={"http2_protocol_options": {}}),
        ),
        EXT_PROC,
        "cluster vllm speaks HTTP/2",
        mends=False,
    ),
    # routes
    case(
        "path_not_queued",
        lambda e: e.host["routes"].remove(e.route("queued-tgi")),
        "routes[2]",
        "/generate, /generate_stream: queued by fairlane.yaml",
        mends=False,
    ),
    case(
        "path_not_in_config",
        as_shipped,
        "routes[1]",
        "/generate_stream: queued here",
        mends=False,
        requests={"queued": [*(p for p in config().requests.queued if p != "/generate_stream")]},
    ),
    case(
        "ext_proc_not_needed",
        lambda e: e.host["routes"].insert(3, {"match": {"prefix": "/admin"}, "route": {"cluster": "vllm"}}),
        "routes[3]",
        "envoy.filters.http.ext_proc runs on a route that no path of requests.queued reaches",
    ),
    case(
        "ext_proc_not_needed",
        as_shipped,
        "routes[1]",
        "reaches; it takes /generate, /generate_stream",
        requests={"queued": [*(p for p in config().requests.queued if not p.startswith("/generate"))]},
    ),
    case(
        "path_spellings",
        lambda e: [e.manager.pop(name) for name in ("merge_slashes", "path_with_escaped_slashes_action")],
        MANAGER,
        "merge_slashes, path_with_escaped_slashes_action: not set",
    ),
    case(
        "route_retries",
        lambda e: e.route()["route"]["retry_policy"].update(retry_on="connect-failure,5xx"),
        "route.retry_policy",
        "has 5xx",
    ),
    case(
        "route_retries",
        lambda e: (
            e.host.update(retry_policy={"retry_on": "reset,gateway-error"}),
            e.route()["route"].pop("retry_policy"),
        ),
        "virtual_hosts[0].retry_policy",
        "has reset, gateway-error",
    ),
    case(
        "route_retries",
        lambda e: e.route()["route"]["retry_policy"].update(
            retry_on="connect-failure,retriable-status-codes", retriable_status_codes=[429, 500, 503]
        ),
        "route.retry_policy",
        "retriable_status_codes has 500",
    ),
    case(
        "route_retries_same",
        lambda e: e.route()["route"]["retry_policy"].pop("retry_host_predicate"),
        "route.retry_policy",
        "no previous_hosts",
    ),
    case(
        "route_copies",
        lambda e: e.route()["route"].update(request_mirror_policies=[{"cluster": "vllm"}]),
        "route",
        "request_mirror_policies is set",
    ),
    case(
        "upgrades",
        lambda e: e.manager.update(upgrade_configs=[{"upgrade_type": "websocket"}]),
        "routes[2].route",
        "websocket may be upgraded to",
    ),
    case("forged_headers", lambda e: mutations(e).pop(0), MANAGER, "x-vllm-priority"),
    case("forged_headers", lambda e: mutations(e).pop(1), MANAGER, "x-fairlane-ticket"),
    case("client_retries", lambda e: mutations(e).pop(2), MANAGER, "x-envoy-retry-on"),
    case(
        "header_overwritten",
        lambda e: e.route()["request_headers_to_add"][0].pop("append_action"),
        "request_headers_to_add[0]",
        "APPEND_IF_EXISTS_OR_ADD",
    ),
    case(
        "priority_put_back",
        lambda e: e.route()["request_headers_to_add"][0]["header"].update(value="7"),
        "request_headers_to_add[0]",
        "is added to what goes to sim, too",
        pools=pool(priority_via="off"),
    ),
    case(
        "header_removed",
        lambda e: e.route().update(request_headers_to_remove=["x-other", "X-Vllm-Priority"]),
        ROUTE,
        "has X-Vllm-Priority",
    ),
    # ways past Fairlane
    case(
        "queue_bypassed",
        lambda e: second_listener(e),
        f"listeners[1].filter_chains[0]{PAST}",
        "for /v1/chat/completions, ",
        mends=False,
    ),
    case(
        "queue_bypassed",
        lambda e: second_chain(e),
        f"listeners[0].filter_chains[1]{PAST}",
        "for /v1/chat/completions, ",
        mends=False,
    ),
    case(
        "queue_bypassed",
        lambda e: e.manager["route_config"]["virtual_hosts"].append(
            {"name": "b", "domains": ["b.example"], "routes": [e.route("direct")]}
        ),
        "virtual_hosts[1].routes[0]",
        "leads to an engine",
        mends=False,
    ),
    case(
        "queue_bypassed",
        tcp_listener,
        "listeners[1].filter_chains[0].filters[0].typed_config",
        "by TCP to an engine, cluster vllm",
        mends=False,
    ),
    # what was looked at
    case("cluster_unknown", lambda e: e.data["static_resources"]["clusters"].pop(0), EXT_PROC, "fairlane", mends=False),
    case(
        "invalid",
        lambda e: e.cluster("vllm").update(connect_timeout="soon"),
        "clusters[1]",
        "soon",
        mends=False,
    ),
]


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.id)
def test_it_is_found_alone_and_its_fix_mends_it(each: Case) -> None:
    envoy, fairlane = spoilt(each.spoil), config(**each.config)
    found = findings(envoy, fairlane)
    assert {one.id for one in found} - {"access_log_replicas"} == {each.id}, found
    assert any(one.where.endswith(each.where) and each.what in one.what for one in found), found
    if each.mends:
        for one in found:
            if one.id == each.id:
                apply(envoy, one)
        left = {one.id for one in findings(envoy, fairlane)}
        assert left <= {"access_log_replicas"}, left


# Their own tests below, or in the other modules of the doctor.
ELSEWHERE = {
    "two_full_duplex",
    "yaml_boolean",
    "usage_estimated",
    "access_log_replicas",
    "nothing_queued",
    "trusted_header",
    "health_check_single",
    "ext_proc_missing",
    "not_checked",
    "envoy_version",
    "engines_not_asked",
    "engine_unreachable",
    "engine_too_old",
    "engine_policy",
    "engine_policy_unknown",
    "tls_missing",
    "tls_unexpected",
    "tls_no_certificate",
    "tls_unverified",
    "tls_any_name",
}


def test_every_check_has_a_case() -> None:
    tried = {each.id for each in CASES}
    assert not tried & ELSEWHERE
    assert {check.id for check in CHECKS} == tried | ELSEWHERE
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def ids(envoy: Envoy, **more: Any) -> set[str]:
    return {each.id for each in findings(envoy, **more)}


def everything(envoy: Envoy) -> list[Finding]:
    """With those that the shipped pair has."""
    return list(examine(Source("e", envoy.data), config()).findings)


def test_retries_of_what_an_engine_turned_away_are_no_fault() -> None:
    def turned_away(envoy: Envoy) -> None:
        policy = envoy.route()["route"]["retry_policy"]
        policy.update(retry_on="connect-failure,retriable-status-codes", retriable_status_codes=[429, 503])

    assert ids(spoilt(turned_away)) == set()


def test_nobody_chooses_but_envoy() -> None:
    """Neither a policy for the choice nor one that fits is needed where no pool lets Fairlane choose."""
    envoy = spoilt(lambda e: e.cluster("vllm").pop("load_balancing_policy"))
    by_envoy = {"pick": {"by": "envoy"}}
    assert ids(envoy, fairlane=config(pools=pool(**by_envoy))) == {"engine_not_ejected"}
    envoy.cluster("vllm")["outlier_detection"] = {}
    assert ids(envoy, fairlane=config(pools=pool(**by_envoy))) == set()
    mixed = [*pool(**by_envoy), {**pool()[0], "name": "other", "models": ["other"]}]
    assert ids(envoy, fairlane=config(pools=mixed)) == {"endpoint_choice_missing"}


def test_logical_dns_in_its_newer_form() -> None:
    def logical(envoy: Envoy) -> None:
        cluster = envoy.cluster("vllm")
        del cluster["type"]
        kind = "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster"
        config = {"@type": kind, "all_addresses_in_single_endpoint": True}
        cluster["cluster_type"] = {"name": "envoy.clusters.dns", "typed_config": config}

    envoy = spoilt(logical)
    (found,) = findings(envoy)
    assert found.id == "endpoint_logical_dns"
    apply(envoy, found)
    assert findings(envoy) == []


def test_the_shipped_pair_is_clean() -> None:
    assert findings(Envoy()) == []


def test_two_filters_that_take_bodies_in_pieces() -> None:
    duplex = {"request_body_mode": "FULL_DUPLEX_STREAMED", "request_trailer_mode": "SEND"}

    def spoil(envoy: Envoy) -> None:
        mode = {**envoy.ext_proc["processing_mode"], **duplex}
        second_filter(envoy, "track", processing_mode=mode)
        envoy.ext_proc["processing_mode"].update(duplex)

    assert "two_full_duplex" in ids(spoilt(spoil))


def test_nothing_leads_through_the_filter() -> None:
    def spoil(envoy: Envoy) -> None:
        envoy.filter("envoy.filters.http.ext_proc")["disabled"] = True
        envoy.route("queued-uploads").pop("typed_per_filter_config")

    found = findings(spoilt(spoil))
    assert [each.id for each in found] == ["nothing_queued"]


def test_a_filter_that_is_off_may_be_turned_on_by_a_route() -> None:
    kind = "type.googleapis.com/envoy.config.route.v3.FilterConfig"
    processor = "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute"

    def spoil(envoy: Envoy) -> None:
        envoy.filter("envoy.filters.http.ext_proc")["disabled"] = True
        on = {"@type": kind, "config": {"@type": processor, "overrides": {}}}
        for name in ("queued", "queued-tgi"):
            envoy.route(name)["typed_per_filter_config"] = {"envoy.filters.http.ext_proc": on}
        envoy.route("direct")["typed_per_filter_config"].pop("envoy.filters.http.ext_proc")

    assert findings(spoilt(spoil)) == []


def test_no_counts_at_all_is_a_choice() -> None:
    def spoil(envoy: Envoy) -> None:
        envoy.manager.pop("access_log")
        for name in ("fairlane.usage.sse", "fairlane.usage.json"):
            envoy.filters.remove(envoy.filter(name))
            envoy.route("direct")["typed_per_filter_config"].pop(name)

    assert ids(spoilt(spoil)) == {"usage_estimated"}
    assert ids(spoilt(lambda envoy: (spoil(envoy), with_stream(envoy)))) == set()  # Fairlane counts


def test_a_log_that_reaches_one_of_several_replicas() -> None:
    assert ids(spoilt(replicas)) == {"access_log_replicas"}


def test_a_log_for_each_replica() -> None:
    def spoil(envoy: Envoy) -> None:
        replicas(envoy)
        logs = []
        for number, endpoint in enumerate(envoy.endpoints("fairlane")):
            name = f"queue-{number}"
            one = {**envoy.cluster("fairlane"), "name": name}
            one["load_assignment"] = {"cluster_name": name, "endpoints": [{"lb_endpoints": [endpoint]}]}
            envoy.data["static_resources"]["clusters"].append(one)
            log = json.loads(json.dumps(envoy.log))
            log["typed_config"]["common_config"]["grpc_service"] = {"envoy_grpc": {"cluster_name": name}}
            logs.append(log)
        envoy.manager["access_log"] = logs

    assert ids(spoilt(spoil)) == set()


def test_one_replica_without_a_health_check() -> None:
    """A note, for the shipped file too; its cure is taken."""
    envoy = Envoy()
    (found,) = [each for each in everything(envoy) if each.id == "health_check_single"]
    assert (found.severity.value, found.where) == ("note", "static_resources.clusters[0]")
    assert found.what == "cluster fairlane has one endpoint and no health_checks"
    apply(envoy, found)
    assert "health_check_single" not in {each.id for each in everything(envoy)}
    assert "health_check_single" not in {each.id for each in everything(spoilt(replicas))}


def test_standbys_that_envoy_is_told_of() -> None:
    """Of two, one is 50 %: that is no panic. With a threshold of 1 % nor is it one of any number."""
    assert ids(spoilt(replicas), fairlane=config(cluster=STANDBY)) == {"access_log_replicas"}
    low = {"common_lb_config": {"healthy_panic_threshold": {"value": 1}}}
    many = spoilt(lambda e: (three(e), e.cluster("fairlane").update(low)))
    assert ids(many, fairlane=config(cluster={**STANDBY, "replicas": 3})) == {"access_log_replicas"}


def test_replicas_whose_addresses_are_not_in_the_file_may_be_all_there() -> None:
    def by_name(envoy: Envoy) -> None:
        envoy.cluster("fairlane")["type"] = "STRICT_DNS"
        socket = envoy.endpoints("fairlane")[0]["endpoint"]["address"]["socket_address"]
        socket["address"] = "fairlane-pods.fairlane.svc"

    assert "replicas_unknown" not in ids(spoilt(by_name), fairlane=config(cluster=SHARED))


def test_an_identity_filter_that_is_there_or_may_be() -> None:
    jwt_claims = config(identity=claims(JWT))

    def told(spoil: Spoil) -> bool:
        envoy = spoilt(lambda e: (forward(e, JWT), spoil(e)))
        return "identity_filter_missing" in ids(envoy, fairlane=jwt_claims)

    assert told(as_shipped)
    assert not told(lambda e: jwt(e, 0))
    assert not told(lambda e: lua(e, "claims", f'h:streamInfo():dynamicMetadata():set("{JWT}", "sub", "a")', 0))
    assert not told(lambda e: e.filters.insert(0, {"name": "jwt", "config_discovery": {}}))
    assert told(lambda e: (jwt(e, 0), e.filter("jwt").update(disabled=True)))


def test_other_ways_that_harm_nobody() -> None:
    assert ids(spoilt(lambda e: second_listener(e, prefix="/metrics"))) == set()
    assert ids(spoilt(lambda e: second_listener(e, cluster="fairlane"))) == set()
    assert ids(spoilt(lambda e: second_listener(e, internal=True))) == set()


def test_an_engine_by_another_name() -> None:
    def spoil(envoy: Envoy) -> None:
        other = json.loads(json.dumps({**envoy.cluster("vllm"), "name": "direct"}))
        envoy.data["static_resources"]["clusters"].append(other)
        second_listener(envoy, cluster="direct")

    assert ids(spoilt(spoil)) == {"queue_bypassed"}


def test_a_body_priority_that_nothing_lets_pass() -> None:
    """Profile strict: the filter that holds fails closed."""

    def spoil(envoy: Envoy) -> None:
        second_filter(envoy, "track")
        lua(envoy, "append", APPEND, 3)

    assert ids(spoilt(spoil), fairlane=config(pools=pool(priority_via="body"))) == set()


def test_a_default_for_the_body_priority() -> None:
    by_body = config(pools=pool(priority_via="body"))
    for line, found in (("local U = '\"priority\":1000000'", set()), ('-- "priority":1', {"body_priority_fails_open"})):
        envoy = spoilt(lambda e, more=line: lua(e, "append", f"{more}\n{APPEND}", 2))  # type: ignore[misc]
        assert ids(envoy, fairlane=by_body) == found


def test_an_extra_chunk_that_fairlane_takes_out_again() -> None:
    inject = config(requests={"include_usage": "inject"})
    assert ids(spoilt(lambda e: (lua(e, "append", APPEND, 2), with_stream(e))), fairlane=inject) == set()


def test_headers_are_not_believed_where_envoy_strips_them() -> None:
    envoy = spoilt(lambda e: mutations(e).append({"remove": "X-Tenant"}))
    report = examine(Source("e", envoy.data), config())
    said = [each.what for each in report.findings if each.id == "trusted_header"]
    assert said == ["fairlane.yaml believes the header x-class, which clients can send"]


def test_the_margin_of_the_longest_hold() -> None:
    """message_timeout has to be above the longest queue_timeout, not only to reach it."""
    for timeout, found in (("300s", {"message_timeout"}), ("301s", set())):
        envoy = spoilt(lambda e, t=timeout: e.ext_proc.update(message_timeout=t))  # type: ignore[misc]
        assert ids(envoy, fairlane=config(classes=classes(queue_timeout="5m"))) == found


def test_versions() -> None:
    assert ids(Envoy(), version="abc/1.40.0/Clean/RELEASE/BoringSSL") == set()
    assert ids(Envoy(), version="abc/1.37.0/Clean/RELEASE/BoringSSL") == {"envoy_version"}
    assert ids(Envoy(), version="abc/1.29.1/Clean/RELEASE/BoringSSL") == {"envoy_version"}


def engines(**answers: Answer) -> dict[str, Answer]:
    return {"127.0.0.1:8001": answers["first"], "127.0.0.1:8002": answers["second"]}


def test_engines_that_were_asked() -> None:
    good = Answer(version="0.32.0", policy="priority")
    assert ids(Envoy(), answers=engines(first=good, second=good)) == set()
    fcfs = Answer(version="0.32.0", policy="fcfs")
    (found,) = findings(Envoy(), answers=engines(first=good, second=fcfs))
    assert (found.id, found.where) == ("engine_policy", "pools: sim: 127.0.0.1:8002")
    away = Answer(error="Connection refused")
    unknown = Answer(version="0.32.0")
    assert ids(Envoy(), answers=engines(first=away, second=unknown)) == {"engine_unreachable", "engine_policy_unknown"}
    old = Answer(version="0.27.1", policy="priority")
    assert ids(Envoy(), answers=engines(first=old, second=good)) == {"engine_too_old"}
    off = config(pools=pool(priority_via="off"))
    assert ids(Envoy(), fairlane=off, answers=engines(first=fcfs, second=away)) == set()
