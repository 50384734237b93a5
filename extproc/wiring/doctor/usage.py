"""How Fairlane learns what a request really cost: token counts out of the answer, by way of the access log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from envoy_data_plane.envoy.extensions.content_parsers.json.v3 import JsonContentParser, JsonContentParserRuleConfig
from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import JsonToMetadata, JsonToMetadataRule
from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import SseToMetadata

from extproc.wiring.doctor import matching
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at, inside
from extproc.wiring.doctor.facts import CONTENT_TYPES, has_rule, rule
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, Filter, Gateway, LogView, RouteView, Setup
from extproc.wiring.doctor.typed import Reader

USAGE = "fairlane.usage"
TICKET = "x-fairlane-ticket"
_NUMBER = ", type: NUMBER"

_Selector = tuple[tuple[str, ...], str]
_BOTH: tuple[_Selector, ...] = (
    (("usage", "prompt_tokens"), "prompt_tokens"),
    (("usage", "completion_tokens"), "completion_tokens"),
    (("usage", "prompt_tokens_details", "cached_tokens"), "cached_tokens"),
    (("usage", "input_tokens"), "prompt_tokens"),
    (("usage", "output_tokens"), "completion_tokens"),
    (("usage", "cache_read_input_tokens"), "cache_read_tokens"),
    (("usage", "cache_creation_input_tokens"), "cache_creation_tokens"),
    (("error", "code"), "error_code"),
    (("error", "type"), "error_type"),
)
JSON: tuple[_Selector, ...] = (
    *_BOTH,
    (("usage", "input_tokens_details", "cached_tokens"), "cached_tokens"),
    (("usage", "total_tokens"), "total_tokens"),
)
SSE: tuple[_Selector, ...] = (
    *_BOTH,
    (("response", "usage", "input_tokens"), "prompt_tokens"),
    (("response", "usage", "output_tokens"), "completion_tokens"),
    (("response", "usage", "input_tokens_details", "cached_tokens"), "cached_tokens"),
    (("message", "usage", "input_tokens"), "prompt_tokens"),
    (("message", "usage", "cache_read_input_tokens"), "cache_read_tokens"),
    (("message", "usage", "cache_creation_input_tokens"), "cache_creation_tokens"),
)
TGI: _Selector = (("details", "generated_tokens"), "completion_tokens")

# An entry is of use before the tenant's next request is chosen.
_LATEST_S = 0.25
_FLUSH_S = 1.0  # Envoy's defaults
_COLLECTED = 16 * 1024
_SMALL = 1024


def _rule(selector: _Selector) -> str:
    path, key = selector
    return rule(path, USAGE, key, "" if key.startswith("error") else _NUMBER)


def _wrapped(selector: _Selector) -> str:
    first, second = _rule(selector).splitlines()
    return f"- rule:\n    {first.removeprefix('- ')}\n  {second}"


def _json_rules(each: Filter) -> Sequence[JsonToMetadataRule]:
    message = each.part.message if each.part is not None else None
    if not isinstance(message, JsonToMetadata) or message.response_rules is None:
        return ()
    return message.response_rules.rules if _ours(message.response_rules.rules) else ()


def _sse_rules(each: Filter) -> Sequence[JsonContentParserRuleConfig]:
    if each.part is None or not isinstance(each.part.message, SseToMetadata):
        return ()
    raw = inside(each.part.raw, "response_rules", "content_parser").get("typed_config")
    parser = Reader().read_as(JsonContentParser, raw, "")
    rules = parser.message.rules if parser is not None else []
    return rules if _ours([one.rule for one in rules if one.rule is not None]) else ()


def _ours(rules: Sequence[JsonToMetadataRule]) -> bool:
    return any(one.on_present is not None and one.on_present.metadata_namespace == USAGE for one in rules)


def _lua(each: Filter) -> bool:
    return f'"{USAGE}"' in each.lua and "envoy_on_response" in each.lua


def readers(gateway: Gateway) -> list[Filter]:
    """Filters that read token counts out of answers."""
    return [each for each in gateway.filters if _json_rules(each) or _sse_rules(each) or _lua(each)]


def _counted_in_stream(gateway: Gateway, route: RouteView) -> bool:
    """Fairlane reads the answer itself."""
    return any(
        route.runs(each) and route.mode(each).response_body in (Body.STREAMED, Body.FULL_DUPLEX_STREAMED)
        for each in gateway.processors
    )


def _by_log(gateway: Gateway) -> list[RouteView]:
    """Queued routes whose token counts come by the access log, where anything reads them."""
    if not gateway.logs and not readers(gateway):
        return []  # estimates only
    return [route for route in gateway.queued if not _counted_in_stream(gateway, route)]


def _estimated(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        if (
            not gateway.logs
            and not readers(gateway)
            and any(not _counted_in_stream(gateway, route) for route in gateway.queued)
        ):
            yield Hit(gateway.chain, "nothing reads token counts")


def _json_missing(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        if _by_log(gateway) and not any(_json_rules(each) for each in gateway.filters):
            yield Hit(gateway.chain, f"no filter reads token counts of JSON answers into metadata {USAGE}")


def _sse_missing(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        if _by_log(gateway) and not any(_sse_rules(each) or _lua(each) for each in gateway.filters):
            yield Hit(gateway.chain, f"no filter reads token counts of streams into metadata {USAGE}")


def _disabled(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for route in _by_log(gateway):
            for each in readers(gateway):
                if not route.runs(each):
                    yield Hit(
                        route.where,
                        f"{each.name} is disabled on a route that is queued",
                        f"# take {each.name} out of typed_per_filter_config of the route, its virtual host and its "
                        "table",
                    )


def _json_selectors(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.filters:
            rules = _json_rules(each)
            missing = [one for one in _wanted(setup, JSON) if rules and not has_rule(rules, one[0], USAGE, one[1])]
            if missing:
                place = at(each.where, "typed_config", "response_rules", "rules")
                yield Hit(place, f"{_listed(missing)}: not read", "\n".join(map(_rule, missing)))


def _sse_selectors(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.filters:
            rules = [one.rule for one in _sse_rules(each) if one.rule is not None]
            missing = [one for one in _wanted(setup, SSE) if rules and not has_rule(rules, one[0], USAGE, one[1])]
            if missing:
                place = at(each.where, "typed_config", "response_rules", "content_parser", "typed_config", "rules")
                yield Hit(place, f"{_listed(missing)}: not read", "\n".join(map(_wrapped, missing)))


def _wanted(setup: Setup, selectors: tuple[_Selector, ...]) -> tuple[_Selector, ...]:
    tgi = any(path.startswith("/generate") for path in setup.config.requests.queued)
    return (*selectors, TGI) if tgi else selectors


def _listed(selectors: Sequence[_Selector]) -> str:
    return ", ".join(".".join(path) for path, _ in selectors)


def _first_match(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.filters:
            for number, one in enumerate(_sse_rules(each)):
                if one.stop_processing_after_matches:
                    place = at(each.where, "typed_config.response_rules.content_parser.typed_config.rules", number)
                    yield Hit(place, f"stop_processing_after_matches is {one.stop_processing_after_matches}")


# -- the access log ----------------------------------------------------------------------------------


def _log_missing(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        if _by_log(gateway) and not gateway.logs:
            yield Hit(gateway.manager.where, "no gRPC access log goes to Fairlane's cluster")


def _log_ticket(setup: Setup) -> Iterator[Hit]:
    for _, log in _logs(setup):
        named = [name.lower() for name in log.config.additional_request_headers_to_log]
        if TICKET not in named:
            fix = f"additional_request_headers_to_log: [ {', '.join([*named, TICKET])} ]"
            yield Hit(at(log.where, "typed_config"), f"{TICKET} is not logged", fix)


def _log_late(setup: Setup) -> Iterator[Hit]:
    for _, log in _logs(setup):
        common = log.config.common_config
        interval = common.buffer_flush_interval if common is not None else None
        size = common.buffer_size_bytes if common is not None else None
        seconds = _FLUSH_S if interval is None or interval == timedelta(0) else interval.total_seconds()
        collected = _COLLECTED if size is None else size
        if seconds > _LATEST_S and collected > _SMALL:
            place = at(log.where, "typed_config", "common_config")
            yield Hit(place, f"entries are collected for {seconds:g}s or up to {collected} bytes")


def _log_filter(setup: Setup) -> Iterator[Hit]:
    for gateway, log in _logs(setup):
        matches = [route.route.message.match for route in _by_log(gateway)]
        lost = [
            path
            for path in setup.config.requests.queued
            if path.startswith("/")
            and any(match is not None and matching.route(match, path) for match in matches)
            and matching.access_log(log.entry.filter, path) is False
        ]
        if lost:
            yield Hit(at(log.where, "filter"), f"leaves out {', '.join(lost)}")


def _logs(setup: Setup) -> Iterator[tuple[Gateway, LogView]]:
    for gateway in setup.gateways:
        for log in gateway.logs:
            yield gateway, log


def _log_of_several(setup: Setup) -> Iterator[Hit]:
    for _, log in _logs(setup):
        cluster = setup.clusters.get(log.cluster)
        if cluster is not None and len(cluster.endpoints) > 1:
            yield Hit(log.where, f"cluster {cluster.name} has {len(cluster.endpoints)} endpoints")


_LOG = f"""access_log:
- name: fairlane
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
    additional_request_headers_to_log: [ {TICKET} ]
    common_config:
      log_name: fairlane
      transport_api_version: V3
      grpc_service: {{ envoy_grpc: {{ cluster_name: fairlane }} }}
      buffer_size_bytes: 1
      buffer_flush_interval: 0.05s"""


def _indented(text: str, by: int) -> list[str]:
    return [" " * by + line for line in text.splitlines()]


_JSON_FILTER = "\n".join(
    [
        "# before the router",
        "- name: fairlane.usage.json",
        "  typed_config:",
        '    "@type": type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata',
        "    response_rules:",
        f"      {CONTENT_TYPES}",
        "      rules:",
        *(line for one in JSON for line in _indented(_rule(one), 6)),
    ]
)
_SSE_FILTER = "\n".join(
    [
        "# before the router; Envoy before 1.38 has no such filter: take envoy/lua/usage.lua there",
        "- name: fairlane.usage.sse",
        "  typed_config:",
        '    "@type": type.googleapis.com/envoy.extensions.filters.http.sse_to_metadata.v3.SseToMetadata',
        "    response_rules:",
        "      max_event_size: 1048576",
        "      content_parser:",
        "        name: envoy.content_parsers.json",
        "        typed_config:",
        '          "@type": type.googleapis.com/envoy.extensions.content_parsers.json.v3.JsonContentParser',
        "          rules:",
        *(line for one in SSE for line in _indented(_wrapped(one), 10)),
    ]
)

CHECKS = (
    Check(
        "usage_estimated",
        Severity.NOTE,
        "Without token counts what a request cost is estimated from its time in the engine.",
        "# usage filters and an access log as in envoy/envoy.yaml, or response_body_mode STREAMED",
        _estimated,
    ),
    Check(
        "usage_json_missing",
        Severity.WARNING,
        "Requests whose answer is JSON are charged by an estimate unless a filter puts the counts into metadata.",
        _JSON_FILTER,
        _json_missing,
    ),
    Check(
        "usage_sse_missing",
        Severity.WARNING,
        "Requests whose answer is a stream are charged by an estimate unless a filter puts the counts into metadata.",
        _SSE_FILTER,
        _sse_missing,
    ),
    Check(
        "usage_disabled",
        Severity.WARNING,
        "A queued route without the usage filters is charged by an estimate.",
        "# take the usage filters out of typed_per_filter_config of the route",
        _disabled,
    ),
    Check(
        "usage_json_selectors",
        Severity.WARNING,
        "Chat and completions, responses, messages and errors each name their members otherwise, and what is not read "
        "is not counted.",
        "\n".join(map(_rule, JSON)),
        _json_selectors,
    ),
    Check(
        "usage_sse_selectors",
        Severity.WARNING,
        "Chat and completions, responses, messages and errors each name their members otherwise in their events; an "
        "engine that sheds load within a stream answers 200 and says so in an event only.",
        "\n".join(map(_wrapped, SSE)),
        _sse_selectors,
    ),
    Check(
        "usage_first_match",
        Severity.WARNING,
        "Counts grow from event to event, and the last one is the bill; a rule that stops at its first match keeps the "
        "first one.",
        "stop_processing_after_matches: 0",
        _first_match,
    ),
    Check(
        "access_log_missing",
        Severity.ERROR,
        "The counts that the filters read reach Fairlane by Envoy's gRPC access log, and only so.",
        _LOG,
        _log_missing,
    ),
    Check(
        "access_log_ticket",
        Severity.ERROR,
        "An entry finds its request by the header x-fairlane-ticket; a request id may be chosen by the client.",
        f"additional_request_headers_to_log: [ {TICKET} ]",
        _log_ticket,
    ),
    Check(
        "access_log_late",
        Severity.WARNING,
        "By default entries are collected for a second or up to 16 KiB, and a tenant's account is wrong meanwhile.",
        "buffer_size_bytes: 1\nbuffer_flush_interval: 0.05s",
        _log_late,
    ),
    Check(
        "access_log_filter",
        Severity.ERROR,
        "What is queued and not logged is charged by an estimate: the log's filter and the queued routes have to take "
        "the same paths.",
        "# the same patterns as in the queued routes; in the log :path has its query: '/v1/completions(\\?.*)?'",
        _log_filter,
    ),
    Check(
        "access_log_replicas",
        Severity.NOTE,
        "The access log goes to one of the replicas, and only the one that released a request can charge it: what "
        "another one released is charged by an estimate.",
        "# an access log for each replica, each by a cluster of its own; or response_body_mode STREAMED",
        _log_of_several,
    ),
)
