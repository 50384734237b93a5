"""One function for each choice: it changes the base file's parts and says what is different now, and why.

The order is that of `build`: a profile first, since it decides which filter follows the answer; what Fairlane is told
about the wiring last, since it sums up the others.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator

from extproc.config.requests import QUEUED_PATHS
from extproc.wiring import base_file
from extproc.wiring.description import Wiring
from extproc.wiring.parts import EXT_PROC, FACTS, UPLOADS, USAGE_JSON, USAGE_SSE, Data, Parts, say

HOLD, TRACK = "fairlane.hold", "fairlane.track"
FACTS_LUA, SPREAD_LUA = "fairlane.facts.lua", "fairlane.spread.lua"
APPEND_LUA, USAGE_LUA = "fairlane.append.lua", "fairlane.usage.lua"

_WINDOWS = (65_535, 2**31 - 1)  # bytes that HTTP/2 allows
_MATCH_LIMIT = 60  # characters of paths in one pattern: RE2 allows 100 instructions, and the rest needs some


def profile(parts: Parts, wiring: Wiring) -> Iterator[str]:
    match wiring.profile:
        case "strict":
            yield from _strict(parts)
        case "body":
            for mode in parts.modes():
                mode["request_body_mode"] = "BUFFERED"
            yield (
                "The request body goes to Fairlane in one piece (request_body_mode BUFFERED), so that it can read the "
                "prompt and edit the body. Where the facts filter read the model, the request is held before, with "
                "nothing written, and outlives Fairlane; else it is held at its body and passes unscheduled when "
                "Fairlane dies."
            )
        case "duplex":
            for mode in parts.modes():
                # Envoy wants the trailers' mode with it.
                mode.update(request_body_mode="FULL_DUPLEX_STREAMED", request_trailer_mode="SEND")
            yield (
                "The request body goes to Fairlane in pieces (request_body_mode FULL_DUPLEX_STREAMED), as some "
                "gateways do it and no other way. A request is held with its body read: when Fairlane dies, bodies "
                "over about 60 KB are lost with it (500), since fail-open works only before the first piece. Envoy "
                "does not limit what it reads ahead, and the engine gets the body chunked."
            )
    if wiring.body_in_fairlane:
        _no_overrides(parts)


def _strict(parts: Parts) -> Iterator[str]:
    """A filter that fails closed would cut answers when Fairlane dies; so one holds, and another one follows."""
    hold = parts.filter(EXT_PROC)
    track = {
        "@type": hold["@type"],
        "grpc_service": {"envoy_grpc": dict(hold["grpc_service"]["envoy_grpc"])},
        # Fairlane answers at once; the default of 200 ms is short for a machine under load.
        "message_timeout": "10s",
        "failure_mode_allow": True,
        "processing_mode": {**hold["processing_mode"], "request_body_mode": "NONE"},
    }
    parts.rename(EXT_PROC, HOLD)
    parts.add(TRACK, track, before=parts.after(HOLD))
    hold["failure_mode_allow"] = False
    for mode in parts.modes():
        mode["response_trailer_mode"] = "SKIP"
    parts.manager["local_reply_config"]["mappers"].append(copy.deepcopy(_UNAVAILABLE))
    yield (
        "Two ext_proc filters. fairlane.hold fails closed: what Fairlane did not release does not reach an engine; "
        "after two minutes of attempts the client gets 503 fairlane_unavailable. Fairlane leaves it at the release. "
        "fairlane.track fails open and stays to the end of the answer, so that the death of Fairlane cuts none. Both "
        "reach the same replica; the header x-fairlane-ticket tells it which request is followed."
    )


# What a filter that fails closed answers is 500, and nothing else in this file answers so.
_UNAVAILABLE: Data = {
    "filter": {
        "status_code_filter": {
            "comparison": {"op": "EQ", "value": {"default_value": 500, "runtime_key": "llm.fairlane_unavailable"}}
        }
    },
    "status_code": 503,
    "headers_to_add": [
        {"header": {"key": "x-fairlane-reason", "value": "fairlane_unavailable"}},
        {"header": {"key": "retry-after", "value": "5"}},
    ],
    "body_format_override": {
        "content_type": "application/json",
        "text_format_source": {
            "inline_string": '{"error": {"message": "The queue in front of the engines could not be reached.", '
            '"type": "service_unavailable", "param": null, "code": "fairlane_unavailable"}}'
        },
    },
}


def facts(parts: Parts, wiring: Wiring) -> Iterator[str]:
    if wiring.facts_used == "none":
        parts.drop(FACTS)
        yield "No facts filter: Fairlane reads model and lengths out of the body."
    if wiring.facts_used == "lua":
        parts.add_lua(FACTS_LUA, base_file.lua("facts"), before=parts.after(FACTS))
        yield (
            "fairlane.facts.lua adds the length of the text without data: URIs, the number of images and prompts, and "
            "hashes of the prompt's beginnings, so that estimates and prefix affinity work with the body in Envoy."
        )


def identity(parts: Parts, wiring: Wiring) -> Iterator[str]:
    holder = parts.filter(parts.holder)
    asked, told = holder["request_attributes"], holder["metadata_options"]["forwarding_namespaces"]["untyped"]
    if wanted := [each for each in wiring.attributes if each not in asked]:
        asked += wanted
        yield f"Fairlane is told of the client's certificate: {', '.join(wanted)}."
    if wanted := [each for each in wiring.namespaces if each not in told]:
        told += wanted
        yield f"Fairlane is told the dynamic metadata of {', '.join(wanted)}."


def spread(parts: Parts, wiring: Wiring) -> Iterator[str]:
    """The word by which `build` has a replica chosen, which says the rest."""
    if wiring.spread_used == "model":
        parts.add_lua(SPREAD_LUA, base_file.lua("spread"), before=parts.holder)
    return iter(())


_UNSCHEDULED = "local UNSCHEDULED = '{}'"


def append(parts: Parts, wiring: Wiring) -> Iterator[str]:
    if not wiring.append:
        return
    source = base_file.lua("append")
    if wiring.unscheduled_priority is not None:
        source = source.replace(
            _UNSCHEDULED.format(""), _UNSCHEDULED.format(f'"priority":{wiring.unscheduled_priority}')
        )
    parts.add_lua(APPEND_LUA, source, before=parts.after(parts.follower))
    yield (
        "fairlane.append.lua appends `priority` (and stream_options, where fairlane.yaml wants it) to the JSON body, "
        "for engines that do not read the header. Every other byte stays as it was sent."
    )


def usage(parts: Parts, wiring: Wiring) -> Iterator[str]:
    if wiring.usage == "access_log":
        return
    parts.drop(USAGE_SSE)
    parts.drop(USAGE_JSON)
    del parts.manager["access_log"]
    if wiring.usage == "estimate":
        yield (
            "No token counts: no usage filters and no access log for Fairlane, which estimates what an answer cost "
            "from its length in time."
        )
        return
    for mode in parts.modes(parts.follower):
        mode["response_body_mode"] = "STREAMED"
    yield (
        "Token counts out of the stream: the answer goes through Fairlane (response_body_mode STREAMED), about 0.4 ms "
        "of its processor time for each chunk; no usage filters and no access log for it."
    )


def first_byte(parts: Parts, wiring: Wiring) -> Iterator[str]:
    if not wiring.response_headers_sent:
        return
    for mode in parts.modes(parts.follower):
        mode["response_header_mode"] = "SEND"
    if wiring.first_byte:
        yield (
            "Fairlane is sent the answer's headers (response_header_mode SEND), so that it knows which requests it may "
            "still preempt."
        )


def version(parts: Parts, wiring: Wiring) -> Iterator[str]:
    """What an older Envoy has not."""
    if wiring.envoy <= 37 and parts.has(USAGE_SSE):
        following = parts.after(USAGE_SSE)
        parts.drop(USAGE_SSE)
        parts.add_lua(USAGE_LUA, base_file.lua("usage"), before=following)
        yield (
            f"Envoy 1.{wiring.envoy} has no sse_to_metadata: fairlane.usage.lua reads the token counts of streams "
            "instead, at some processor time of Envoy's for each chunk."
        )
    if wiring.envoy <= 36:
        keepalive = parts.listener.pop("tcp_keepalive")
        parts.listener["socket_options"] = [
            {"level": level, "name": name, "int_value": value, "state": "STATE_PREBIND"}
            for level, name, value in (
                (1, 9, 1),  # SOL_SOCKET, SO_KEEPALIVE
                (6, 4, keepalive["keepalive_time"]),  # IPPROTO_TCP, TCP_KEEPIDLE
                (6, 5, keepalive["keepalive_interval"]),  # TCP_KEEPINTVL
                (6, 6, keepalive["keepalive_probes"]),  # TCP_KEEPCNT
            )
        ]
        yield (
            f"Envoy 1.{wiring.envoy} has no tcp_keepalive for listeners: the same is set as socket_options, by Linux's "
            "numbers; take them out on another system."
        )
        # Of the two protocols each has its own place, and neither does for the other.
        parts.listener["per_connection_buffer_limit_bytes"] = wiring.max_body
        window = min(max(wiring.max_body, _WINDOWS[0]), _WINDOWS[1])
        parts.manager["http2_protocol_options"] = {"initial_stream_window_size": window}
        yield (
            f"Envoy 1.{wiring.envoy} does not let a route buffer more than its connection may: the listener's buffer "
            "and the HTTP/2 window have the size of the largest body, so a client can make Envoy read that much ahead."
        )


# A released request has a ticket. If it has no priority then, its engine is to be told none.
_UNTOLD = "%CEL('x-fairlane-ticket' in request.headers ? '' : '{}')%"


def routes(parts: Parts, wiring: Wiring) -> Iterator[str]:
    for route in parts.queued:
        route["request_body_buffer_limit"] = wiring.max_body
        if wiring.default_priority is None:
            del route["request_headers_to_add"]
        else:
            route["request_headers_to_add"][0]["header"]["value"] = _UNTOLD.format(wiring.default_priority)
    if wiring.default_priority is None:
        yield "No x-vllm-priority on what passes unscheduled: the pools do not take their priority from the header."
    if set(wiring.queued) != set(QUEUED_PATHS):
        _queue(parts, wiring.queued)
        yield "Other paths are queued: requests.queued of fairlane.yaml."


def retries(parts: Parts, wiring: Wiring) -> Iterator[str]:
    """What an engine turned away goes to the next one. Only the engine's own answer counts: what Fairlane refuses never
    gets to the router, and a connection that broke is no status."""
    if not wiring.retry_turned_away:
        return
    for route in parts.queued:
        policy = route["route"]["retry_policy"]
        policy["retry_on"] += ",retriable-status-codes"
        policy["retriable_status_codes"] = list(_TURNED_AWAY)
        route["response_headers_to_add"].append(copy.deepcopy(_NO_CLIENT_RETRY))
    yield (
        "An engine that answers 429 or 503 has not begun: Envoy asks the next of Fairlane's list, two more at most, as "
        "long as nothing was sent to the client. When all of them say no, x-should-retry: false keeps OpenAI's clients "
        "from asking them all over again."
    )


_TURNED_AWAY = (429, 503)
_NO_CLIENT_RETRY: Data = {
    "header": {
        "key": "x-should-retry",
        # Empty, and so not added, for what Envoy sent only once or answers by itself (no engine took the connection).
        "value": "%CEL(response.code in [429, 503] && response.code_details == 'via_upstream' "
        "&& upstream.request_attempt_count > 1 ? 'false' : '')%",
    },
    "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
}


def pick(parts: Parts, wiring: Wiring) -> Iterator[str]:
    if wiring.pick == "fairlane":
        return
    parts.engines["outlier_detection"] = copy.deepcopy(_EJECTION)
    parts.engines["common_lb_config"] = {
        "healthy_panic_threshold": {"value": 1},
        # Else a second engine that is out gets requests for up to a second more.
        "update_merge_window": "0s",
    }
    yield (
        "Where Envoy chooses, an engine that refuses at once is the least busy one and would get most requests. "
        "outlier_detection leaves it out after three failures in a row (502, 503, 504, a broken connection; five of "
        "any 5xx), for 5 s at first and 15 s at most. With all of them out (healthy_panic_threshold: fewer than 1 %) "
        "all are used again. An engine that has no room answers 503 too: the others get its share for these seconds."
    )
    if wiring.pick == "mixed":
        return
    # What decides in the base file where Fairlane names no endpoint, decides always.
    (override,) = parts.engines["load_balancing_policy"]["policies"]
    fallback = override["typed_extension_config"]["typed_config"]["fallback_policy"]
    parts.engines["load_balancing_policy"] = fallback
    yield "Envoy chooses the engine, the one with the fewest requests (no override_host): pick.by envoy in every pool."


_EJECTION: Data = {
    "consecutive_gateway_failure": 3,
    "enforcing_consecutive_gateway_failure": 100,  # percent; the default is 0
    "consecutive_5xx": 5,
    "enforcing_success_rate": 0,  # 500 is often the fault of a request, and some tenants have many of these
    "interval": "1s",  # between two looks at who may come back
    "base_ejection_time": "5s",  # times the number of ejections in a row
    "max_ejection_time": "15s",
    "max_ejection_percent": 100,
}


def _queue(parts: Parts, paths: tuple[str, ...]) -> None:
    """Routes and access log for these paths instead of the base file's."""
    by_name = {route["name"]: route for route in parts.queued}
    uploads = by_name.get(UPLOADS)
    uploaded = [path for path in paths if re.search(r"/audio/(transcriptions|translations)$", path)]
    groups = [(by_name["queued"], group) for group in _groups([path for path in paths if path not in uploaded])]
    groups += [(uploads or by_name["queued"], group) for group in _groups(uploaded)]
    made, patterns = [], []
    for number, (model, group) in enumerate(groups, 1):
        pattern = "|".join(_pattern(path) for path in group)
        route = copy.deepcopy(model)
        route["name"] = f"queued-{number}"
        route["match"]["safe_regex"]["regex"] = pattern
        made.append(route)
        patterns.append(rf"({pattern})(\?.*)?")
    parts.routes[:] = [*made, *(route for route in parts.routes if route not in by_name.values())]
    if "access_log" in parts.manager:
        conditions = parts.manager["access_log"][0]["filter"]["and_filter"]["filters"]
        conditions[1:] = [_any_path(patterns)]


def _groups(paths: list[str]) -> Iterator[list[str]]:
    group: list[str] = []
    for path in paths:
        if group and sum(map(len, group)) + len(path) > _MATCH_LIMIT:
            yield group
            group = []
        group.append(path)
    if group:
        yield group


def _pattern(path: str) -> str:
    return ".*" + re.escape(path[1:]) if path.startswith("*") else re.escape(path)


def _any_path(patterns: list[str]) -> Data:
    each: list[Data] = [
        {"header_filter": {"header": {"name": ":path", "string_match": {"safe_regex": {"regex": pattern}}}}}
        for pattern in patterns
    ]
    return each[0] if len(each) == 1 else {"or_filter": {"filters": each}}


def words(parts: Parts, wiring: Wiring) -> Iterator[str]:
    """What Fairlane cannot see in the messages."""
    service = parts.filter(parts.follower)["grpc_service"]
    spoken = ["no-trailers"]  # the base file's engines speak HTTP/1.1, and Envoy drops its trailers
    if wiring.usage != "access_log":
        spoken.append("no-access-log")  # so that it does not wait for an entry
    if wiring.response_headers_sent:
        spoken.insert(0, "first-byte")
    if wiring.profile == "strict":
        spoken.insert(0, "track")
        # The one that holds decides who may be evicted later, though the other one sees the first byte.
        say(
            parts.filter(parts.holder)["grpc_service"],
            ["hold", "first-byte"] if wiring.response_headers_sent else ["hold"],
        )
    say(service, spoken)
    return iter(())


def _no_overrides(parts: Parts) -> None:
    """Every route has the filter's own mode, which brings the body to Fairlane."""
    for route in parts.queued:
        route.get("typed_per_filter_config", {}).pop(EXT_PROC, None)
        if not route.get("typed_per_filter_config", True):
            del route["typed_per_filter_config"]
