"""Configurations made from the base file: every address and every choice is in them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from wiring_case import (
    ADMIN,
    ENGINES,
    EXT_PROC,
    FAIRLANE,
    LISTENER,
    REPLICAS,
    STANDARD,
    addresses,
    cluster,
    filters,
    inside,
    made,
    modes,
    routes,
    sockets,
    words,
)

from extproc.wiring import base_file
from extproc.wiring.base_file import EnvoyFileError
from extproc.wiring.build import Addresses, Built, build, without_fairlane
from extproc.wiring.description import Pick, Wiring, WiringError
from extproc.wiring.text import as_json

# -- addresses ------------------------------------------------------------------------------------


def test_every_address_is_replaced() -> None:
    config = made()
    assert sorted(sockets(config)) == sorted([LISTENER, ADMIN, FAIRLANE, *ENGINES])
    assert sockets(config["admin"]) == [ADMIN]
    assert sockets(config["static_resources"]["listeners"]) == [LISTENER]
    assert sockets(cluster(config, "fairlane")) == [FAIRLANE]
    assert sockets(cluster(config, "vllm")) == ENGINES


def test_the_base_file_has_the_default_addresses_and_is_the_standard_profile() -> None:
    """What the comment at its head promises; and made from nothing but defaults it comes out as it is."""
    base = yaml.safe_load(base_file.path().read_text())
    assert sorted(port for _, port in sockets(base)) == [8001, 8002, 9901, 10000, 50051]
    built = build(Wiring(), Addresses())
    assert built == Built(base, (), ())


def test_host_names_make_a_cluster_that_looks_them_up() -> None:
    config = build(Wiring(), addresses(engines=[("engine-1", 8001)], ext_proc=[("::1", 50_051)])).config
    assert cluster(config, "vllm")["type"] == "STRICT_DNS"
    assert cluster(config, "fairlane")["type"] == "STATIC"


def test_no_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one engine"):
        addresses(engines=[])
    with pytest.raises(ValueError, match="at least one address of Fairlane"):
        addresses(ext_proc=[])


def test_several_replicas_are_asked_for_their_health() -> None:
    config = build(Wiring(), addresses(ext_proc=REPLICAS)).config
    assert sockets(cluster(config, "fairlane")) == REPLICAS
    (check,) = cluster(config, "fairlane")["health_checks"]
    assert check["no_traffic_interval"] == "1s"  # Envoy's default is 60 s
    assert "lb_policy" not in cluster(config, "fairlane")
    assert "health_checks" not in cluster(made(), "fairlane")


@pytest.mark.slow
def test_both_filters_of_strict_reach_the_same_replica() -> None:
    """The hash of the cluster and the initial metadata, neither of which does anything without the other."""
    config = build(Wiring(profile="strict"), addresses(ext_proc=REPLICAS)).config
    assert cluster(config, "fairlane")["lb_policy"] == "RING_HASH"
    for name in ("fairlane.hold", "fairlane.track"):
        pin = {"key": "x-request-id", "value": "%REQ(x-request-id)%"}
        assert pin in filters(config)[name]["grpc_service"]["initial_metadata"]
    assert list(inside(config, "hash_policy")) == [[{"header": {"header_name": "x-request-id"}}]]
    assert list(inside(cluster(config, "fairlane"), "hash_policy")) != []
    with pytest.raises(WiringError, match="take one replica, or a later Envoy"):
        build(Wiring(profile="strict", envoy=36), addresses(ext_proc=REPLICAS))


# -- profiles -------------------------------------------------------------------------------------


def test_strict_holds_closed_and_follows_open() -> None:
    config = made(profile="strict")
    assert list(filters(config)) == ["fairlane.facts", "fairlane.hold", "fairlane.track", *STANDARD[2:]]
    hold, track = filters(config)["fairlane.hold"], filters(config)["fairlane.track"]
    assert (hold["failure_mode_allow"], track["failure_mode_allow"]) == (False, True)
    silent = {"request_trailer_mode": "SKIP", "response_header_mode": "SKIP", "response_body_mode": "NONE"}
    silent |= {"request_header_mode": "SEND", "request_body_mode": "NONE"}
    assert hold["processing_mode"] == {**silent, "response_trailer_mode": "SKIP"}
    assert track["processing_mode"] == {**silent, "response_trailer_mode": "SEND"}
    assert "retry_policy" in hold["grpc_service"]
    assert "retry_policy" not in track["grpc_service"]  # it would wait two minutes before an engine is asked
    assert (words(config, "fairlane.hold"), words(config, "fairlane.track")) == ("hold", "track,no-trailers")
    mapper = next(inside(config, "mappers"))[-1]
    assert mapper["status_code"] == 503
    assert '"code": "fairlane_unavailable"' in mapper["body_format_override"]["text_format_source"]["inline_string"]


def test_direct_routes_pass_by_every_filter_of_ours() -> None:
    for choices in ({}, {"profile": "strict"}, {"facts": "lua", "append": True}, {"envoy": 36}, {"usage": "stream"}):
        config = made(**choices)
        ours = [name for name in filters(config) if name != "envoy.filters.http.router"]
        assert sorted(routes(config)["direct"]["typed_per_filter_config"]) == sorted(ours)


def test_uploads_bring_their_body_where_the_others_do_not() -> None:
    for profile, name in (("standard", EXT_PROC), ("strict", "fairlane.hold")):
        config = made(profile=profile)
        own = routes(config)["queued-uploads"]["typed_per_filter_config"]
        assert list(own) == [name]
        mode = own[name]["overrides"]["processing_mode"]
        assert mode == {**modes(config, name), "request_body_mode": "BUFFERED"}
    for profile in ("body", "duplex"):
        assert "typed_per_filter_config" not in routes(made(profile=profile))["queued-uploads"]


def test_body_and_duplex() -> None:
    body, duplex = made(profile="body"), made(profile="duplex")
    assert modes(body, EXT_PROC) == {**modes(made(), EXT_PROC), "request_body_mode": "BUFFERED"}
    changed = {"request_body_mode": "FULL_DUPLEX_STREAMED", "request_trailer_mode": "SEND"}
    assert modes(duplex, EXT_PROC) == {**modes(made(), EXT_PROC), **changed}
    assert list(filters(body)) == STANDARD
    assert list(filters(duplex)) == STANDARD[1:]  # the facts filter would hold the whole body back
    assert list(filters(made(profile="body", facts="none"))) == STANDARD[1:]


# -- usage, facts, body edit, first byte ----------------------------------------------------------


@pytest.mark.parametrize("profile", ["standard", "strict", "body", "duplex"])
def test_usage_by_stream_or_not_at_all(profile: str) -> None:
    stream, estimate = made(profile=profile, usage="stream"), made(profile=profile, usage="estimate")
    name = "fairlane.track" if profile == "strict" else EXT_PROC
    for config in (stream, estimate):
        assert "access_log" not in json.dumps(config)
        assert not {"fairlane.usage.sse", "fairlane.usage.json"} & set(filters(config))
    sent = {"response_header_mode": "SEND", "response_body_mode": "STREAMED"}
    assert modes(stream, name) == {**modes(made(profile=profile), name), **sent}
    assert modes(estimate, name) == modes(made(profile=profile), name)
    assert "first-byte" in str(words(stream, name))
    assert "first-byte" not in str(words(estimate, name))


def test_an_answer_to_an_upload_is_read_like_any_other() -> None:
    own = routes(made(usage="stream"))["queued-uploads"]["typed_per_filter_config"][EXT_PROC]
    mode = own["overrides"]["processing_mode"]
    assert (mode["response_header_mode"], mode["response_body_mode"]) == ("SEND", "STREAMED")


FILES = ("facts", "append")


def test_the_lua_filters_stand_where_they_work() -> None:
    lua = made(facts="lua", append=True, unscheduled_priority=1_000_000)
    assert list(filters(lua)) == [
        "fairlane.facts",
        "fairlane.facts.lua",
        EXT_PROC,
        "fairlane.append.lua",
        *STANDARD[2:],
    ]
    strict = list(filters(made(profile="strict", append=True)))
    assert strict[strict.index("fairlane.track") + 1] == "fairlane.append.lua"
    inline = {name: filters(lua)[f"fairlane.{name}.lua"]["default_source_code"]["inline_string"] for name in FILES}
    assert inline["facts"] == base_file.lua("facts")
    # What Fairlane has said nothing of gets the default priority, as it does by the header.
    default = "UNSCHEDULED = '\"priority\":1000000'"
    assert inline["append"] == base_file.lua("append").replace("UNSCHEDULED = ''", default)
    silent = made(facts="lua", append=True)
    assert filters(silent)["fairlane.append.lua"]["default_source_code"]["inline_string"] == base_file.lua("append")


def test_the_first_byte_is_shown_where_preemption_needs_it() -> None:
    assert (modes(made(first_byte=True), EXT_PROC)["response_header_mode"], words(made(first_byte=True), EXT_PROC)) == (
        "SEND",
        "first-byte,no-trailers",
    )
    strict = made(profile="strict", first_byte=True)
    assert modes(strict, "fairlane.track")["response_header_mode"] == "SEND"
    assert modes(strict, "fairlane.hold")["response_header_mode"] == "SKIP"
    assert words(strict, "fairlane.track") == "track,first-byte,no-trailers"


def test_identity_is_asked_for() -> None:
    attribute, namespace = "connection.uri_san_peer_certificate", "my.filter"
    config = filters(made(attributes=(attribute,), namespaces=(namespace, "envoy.filters.http.jwt_authn")))[EXT_PROC]
    assert config["request_attributes"] == ["request.time", "request.id", "request.size", "source.address", attribute]
    assert config["metadata_options"]["forwarding_namespaces"]["untyped"] == [
        "fairlane.request",
        "envoy.filters.http.jwt_authn",
        "envoy.filters.http.ext_authz",
        namespace,
    ]


# -- versions -------------------------------------------------------------------------------------


def test_what_an_older_envoy_lacks_is_done_another_way_and_said() -> None:
    for envoy, said in ((40, 0), (39, 0), (38, 0), (37, 1), (36, 3)):
        built = build(Wiring(envoy=envoy), addresses())
        assert len(built.degraded) == said
        names = list(filters(built.config))
        assert ("fairlane.usage.sse" in names) == (envoy >= 38)
        assert ("fairlane.usage.lua" in names) == (envoy < 38)
        assert "fairlane.usage.json" in names
    listener = build(Wiring(envoy=36), addresses()).config["static_resources"]["listeners"][0]
    assert "tcp_keepalive" not in listener
    # Linux: SOL_SOCKET 1, SO_KEEPALIVE 9; IPPROTO_TCP 6, TCP_KEEPIDLE 4, TCP_KEEPINTVL 5, TCP_KEEPCNT 6
    options = [(o["level"], o["name"], o["int_value"]) for o in listener["socket_options"]]
    assert options == [(1, 9, 1), (6, 4, 30), (6, 5, 10), (6, 6, 3)]
    assert build(Wiring(envoy=37, usage="stream"), addresses()).degraded == ()


@pytest.mark.parametrize(("size", "window"), [(1000, 65_535), (24 * 2**20, 24 * 2**20), (2**32 - 1, 2**31 - 1)])
def test_large_bodies_on_an_old_envoy(size: int, window: int) -> None:
    listener = made(envoy=36, max_body=size)["static_resources"]["listeners"][0]
    assert listener["per_connection_buffer_limit_bytes"] == size
    assert list(inside(listener, "initial_stream_window_size")) == [window]
    assert list(inside(made(envoy=37), "per_connection_buffer_limit_bytes")) == []


# -- routes ---------------------------------------------------------------------------------------


def matched(config: dict[str, Any], path: str) -> str:
    return next(
        name
        for name, route in routes(config).items()
        if "prefix" in route["match"] or re.fullmatch(route["match"]["safe_regex"]["regex"], path)
    )


def logged(config: dict[str, Any], path: str) -> bool:
    patterns = [
        m["safe_regex"]["regex"]
        for m in inside(next(inside(config, "access_log")), "string_match")
        if "safe_regex" in m
    ]
    return any(re.fullmatch(pattern, path) for pattern in patterns)


DEFAULT = Wiring().queued
OTHERS = ("/v1/models", "/health", "/v1/completions/", "/xgenerate", "/generate_", "/v1/audio/other", "/tokenize")
OWN = (
    "/v1/completions",
    "*/chat/completions",
    "/v1/audio/translations",
    "/a.b",
    *(f"/long/path/{i}" for i in range(9)),
)


@pytest.mark.parametrize("choices", [{}, {"queued": OWN}, {"queued": OWN, "profile": "strict"}])
def test_what_is_queued_is_logged_and_nothing_else(choices: dict[str, Any]) -> None:
    """The log's patterns also see the query string."""
    config = made(**choices)
    queued = [path.replace("*", "/any/prefix") for path in choices.get("queued", DEFAULT)]
    for path in queued:
        assert matched(config, path) != "direct"
        assert logged(config, path)
        assert logged(config, path + "?a=/b")
    for path in (*OTHERS, "/axb"):
        assert matched(config, path) == "direct", path
        assert not logged(config, path)


def test_uploads_keep_their_body_mode_among_paths_of_ones_own() -> None:
    config = made(queued=OWN)
    for path, per_filter in (("/v1/audio/translations", [EXT_PROC]), ("/v1/completions", [])):
        assert list(routes(config)[matched(config, path)].get("typed_per_filter_config", {})) == per_filter


def test_sizes_and_the_priority_of_what_passes_unscheduled() -> None:
    config = made(max_body=5, default_priority=7)
    without = made(default_priority=None)
    for name, route in routes(config).items():
        if name != "direct":
            assert route["request_body_buffer_limit"] == 5
            (added,) = route["request_headers_to_add"]
            value = "%CEL('x-fairlane-ticket' in request.headers ? '' : '7')%"  # none for what Fairlane released
            assert added["header"] == {"key": "x-vllm-priority", "value": value}
            assert added["append_action"] == "ADD_IF_ABSENT"
            assert "request_headers_to_add" not in routes(without)[name]


def test_half_a_body_and_old_clients() -> None:
    """A body that stops in the middle does not hold its connection for ever, and HTTP/1.0 is answered."""
    manager = made()["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["request_timeout"] == "300s"
    assert manager["http_protocol_options"] == {"accept_http_10": True}


# -- who chooses, and what an engine turns away ---------------------------------------------------


def test_envoy_may_choose_by_itself() -> None:
    (policy,) = cluster(made(pick="envoy"), "vllm")["load_balancing_policy"]["policies"]
    assert policy["typed_extension_config"]["name"] == "envoy.load_balancing_policies.least_request"
    assert "override_host" in json.dumps(cluster(made(), "vllm"))


@pytest.mark.parametrize("pick", ["envoy", "mixed"])
def test_envoy_leaves_out_engines_that_fail_where_it_chooses(pick: Pick) -> None:
    chosen = cluster(made(pick=pick), "vllm")
    assert chosen["outlier_detection"]["enforcing_consecutive_gateway_failure"] == 100
    assert chosen["outlier_detection"]["max_ejection_percent"] == 100
    assert 0 < chosen["common_lb_config"]["healthy_panic_threshold"]["value"] <= 1  # not before all of them are out
    assert chosen["common_lb_config"]["update_merge_window"] == "0s"
    assert ("override_host" in json.dumps(chosen)) == (pick == "mixed")
    assert "outlier_detection" not in cluster(made(), "vllm")  # there Fairlane's list counts, whatever the health


def test_what_an_engine_turns_away_goes_to_another_one() -> None:
    config = made(retry_turned_away=True, queued=(*DEFAULT, "/own"))
    for name, route in routes(config).items():
        if name == "direct":
            assert "retry_policy" not in route["route"]
            continue
        policy = route["route"]["retry_policy"]
        assert policy["retry_on"] == "connect-failure,retriable-status-codes"
        assert policy["retriable_status_codes"] == [429, 503]
        assert policy["num_retries"] == 2
        assert policy["retry_host_predicate"][0]["name"] == "envoy.retry_host_predicates.previous_hosts"
        assert [h["header"]["key"] for h in route["response_headers_to_add"]].count("x-should-retry") == 1
    assert "x-should-retry" not in json.dumps(made())
    assert list(inside(made(), "retriable_status_codes")) == []


# -- without Fairlane -----------------------------------------------------------------------------


def test_without_fairlane_nothing_of_it_is_left_but_the_header_guard() -> None:
    config = without_fairlane(addresses())
    assert sorted(sockets(config)) == sorted([LISTENER, ADMIN, *ENGINES])
    assert list(filters(config)) == ["envoy.filters.http.router"]
    for gone in ("access_log", "grpc_service", "response_headers_to_add", "typed_per_filter_config"):
        assert list(inside(config, gone)) == []
    assert "ext_proc" not in as_json(config)
    assert "override_host" not in as_json(config)
    assert "load_balancing_policy" not in cluster(config, "vllm")  # round robin, Envoy's default


def test_with_and_without_fairlane_the_same_routes_match() -> None:
    """The comparison of the demo must not differ in anything but Fairlane."""
    with_it, without = ([r["match"] for r in routes(c).values()] for c in (made(), without_fairlane(addresses())))
    assert with_it == without


def test_building_leaves_no_trace_in_the_next_one() -> None:
    without_fairlane(addresses())
    made(profile="strict", envoy=36, queued=("/x",))
    assert made() == build(Wiring(), addresses()).config
    assert sockets(cluster(made(), "fairlane")) == [FAIRLANE]


# -- broken files ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("a: [", "cannot be read"),
        ("- a", "expected a mapping, found list"),
        ("a: 1", "has not the expected form: KeyError 'static_resources'"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, written: str, said: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(written)
    with pytest.raises(EnvoyFileError) as caught:
        made(file)
    assert str(file) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("part", ["vllm", "fairlane", "llm", EXT_PROC, "fairlane.usage.sse"])
def test_a_missing_part_is_named(tmp_path: Path, part: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(re.sub(rf"- name: {re.escape(part)}\n", "- name: other\n", base_file.path().read_text()))
    with pytest.raises(EnvoyFileError, match=f"nothing is named '{re.escape(part)}'"):
        made(file, usage="stream")


def test_a_missing_file_is_named() -> None:
    with pytest.raises(EnvoyFileError, match=r"lua/none\.lua is missing: looked in .*; install fairlane again"):
        base_file.lua("none")
