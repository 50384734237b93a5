"""What Envoy takes out of the request's body for Fairlane, and what puts something into it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
)

from extproc.wiring.doctor import matching
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, Filter, Gateway, RouteView, Setup
from extproc.wiring.doctor.source import Misread

FACTS = "fairlane.request"
# What Fairlane reads, and where clients write it.
SELECTORS: dict[str, tuple[str, ...]] = {
    "model": ("model",),
    "stream": ("stream",),
    "max_tokens": ("max_tokens",),
    "max_completion_tokens": ("max_completion_tokens",),
    "max_output_tokens": ("max_output_tokens",),
    "max_new_tokens": ("parameters", "max_new_tokens"),
    "include_usage": ("stream_options", "include_usage"),
    "n": ("n",),
}
_TGI = ("/generate", "/generate_stream")
CONTENT_TYPES = "allow_content_types_regex: { regex: '(?i)application/([a-z0-9.+-]+\\+)?json[ \\t]*(;.*)?' }"
# In a line of Lua that is no comment.
_DEFAULT_PRIORITY = re.compile(r'^(?!\s*--).*"priority":\s*-?[0-9]', re.MULTILINE)
_NAMES = ("key", "name", "exact", "prefix", "suffix", "contains", "regex", "value", "metadata_namespace", "header")


def rule(selectors: Sequence[str], namespace: str, key: str, more: str = "") -> str:
    """A rule as it is written."""
    path = ", ".join(f"{{ key: {_quoted(each)} }}" for each in selectors)
    return f"- selectors: [ {path} ]\n  on_present: {{ metadata_namespace: {namespace}, key: {_quoted(key)}{more} }}"


def _quoted(text: str) -> str:
    return f'"{text}"' if text in ("n", "y") else text


def has_rule(rules: Sequence[JsonToMetadataRule], selectors: Sequence[str], namespace: str, key: str) -> bool:
    return any(
        [each.key for each in one.selectors] == list(selectors)
        and one.on_present is not None
        and one.on_present.metadata_namespace == namespace
        and one.on_present.key == key
        for one in rules
    )


def writes(each: Filter) -> Sequence[JsonToMetadataRule]:
    """The rules by which a filter writes facts of requests."""
    message = each.part.message if each.part is not None else None
    if not isinstance(message, JsonToMetadata) or message.request_rules is None:
        return ()
    rules = message.request_rules.rules
    ours = [one for one in rules if one.on_present is not None and one.on_present.metadata_namespace == FACTS]
    return rules if ours else ()


def makers(gateway: Gateway) -> list[Filter]:
    """Filters that write facts."""
    return [each for each in gateway.filters if writes(each) or f'"{FACTS}"' in each.lua]


def _without_body(gateway: Gateway) -> list[RouteView]:
    """Queued routes whose body stays in Envoy."""
    return [
        route
        for route in gateway.queued
        if any(route.runs(each) and route.mode(each).request_body == Body.NONE for each in gateway.holders)
    ]


def _facts_missing(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        if _without_body(gateway) and not makers(gateway):
            yield Hit(gateway.chain, f"no filter writes metadata {FACTS}, and the body stays in Envoy")


def _facts_disabled(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        found = makers(gateway)
        for route in _without_body(gateway):
            if found and not any(route.runs(each) for each in found):
                yield Hit(
                    route.where,
                    f"{found[0].name} is disabled on a route that is queued",
                    f"# take {found[0].name} out of typed_per_filter_config of the route, its virtual host and its "
                    "table",
                )


def _facts_selectors(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        found = makers(gateway)
        parsed = [each for each in found if writes(each)]
        if not found or not _without_body(gateway):
            continue
        rules = [one for each in parsed for one in writes(each)]
        programs = [each.lua for each in found if each.lua]
        missing = [
            name
            for name, selectors in SELECTORS.items()
            if not has_rule(rules, selectors, FACTS, name)
            and not (not parsed and any(f'"{selectors[-1]}"' in program for program in programs))
            and (name != "max_new_tokens" or any(path in _TGI for path in setup.config.requests.queued))
        ]
        if missing:
            where = at(parsed[0].where, "typed_config", "request_rules", "rules") if parsed else found[0].where
            fix = "\n".join(rule(SELECTORS[name], FACTS, name) for name in missing)
            yield Hit(where, f"{', '.join(missing)}: not read", fix)


def _facts_error(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.filters:
            rules = writes(each)
            told = any(
                one.on_error is not None and one.on_error.metadata_namespace == FACTS and one.on_error.key == "error"
                for one in rules
            )
            if rules and not told:
                yield Hit(at(each.where, "typed_config", "request_rules", "rules", 0), "no rule has an on_error")


def accepts(rules: JsonToMetadataMatchRules, content_type: str) -> bool:
    """Whether the filter reads a body of that type."""
    if rules.allow_content_types_regex is not None:
        return matching.full_match(rules.allow_content_types_regex.regex, content_type) is not False
    return content_type in (rules.allow_content_types or ["application/json"])


def _content_type(setup: Setup) -> Iterator[Hit]:
    common = "application/json; charset=utf-8"
    for gateway in setup.gateways:
        for each in gateway.filters:
            message = each.part.message if each.part is not None else None
            if not isinstance(message, JsonToMetadata):
                continue
            for name in ("request_rules", "response_rules"):
                rules: JsonToMetadataMatchRules | None = getattr(message, name)
                if rules is not None and _ours(rules) and not accepts(rules, common):
                    yield Hit(at(each.where, "typed_config", name), f"{common!r} is not read")


def _ours(rules: JsonToMetadataMatchRules) -> bool:
    return any(
        one.on_present is not None and one.on_present.metadata_namespace.startswith("fairlane.") for one in rules.rules
    )


def _body_edit(setup: Setup) -> Iterator[Hit]:
    config = setup.config
    pools = [pool.name for pool in config.pools if pool.tells_in_body]
    wanted = [f"the engines of pool {name} read their priority in the body" for name in pools]
    wanted += [
        f"pool {pool.name} has aliases, which engines are told by their own name"
        for pool in config.pools
        if pool.aliases
    ]
    wanted += ["requests.include_usage is inject"] if config.requests.include_usage == "inject" else []
    if not wanted:
        return
    for gateway in setup.gateways:
        if not edited(gateway):
            yield Hit(gateway.chain, f"{'; '.join(wanted)}, and no filter edits the body")


def edited(gateway: Gateway) -> bool:
    """Whether what Fairlane wants in a body gets there."""
    return not _without_body(gateway) or any("fairlane.body" in each.lua for each in gateway.filters)


def _body_priority(setup: Setup) -> Iterator[Hit]:
    pools = [pool.name for pool in setup.config.pools if pool.tells_in_body]
    for gateway in setup.gateways:
        defaults = [each for each in gateway.filters if _DEFAULT_PRIORITY.search(each.lua)]
        for each in gateway.holders:
            bare = any(route.runs(each) and not any(map(route.runs, defaults)) for route in gateway.queued)
            if pools and bare and edited(gateway) and each.config.failure_mode_allow and not each.holds_only:
                yield Hit(
                    each.at,
                    f"the engines of pool {', '.join(pools)} read their priority in the body, failure_mode_allow is "
                    "on, and no Lua filter has a default priority",
                )


def _usage_chunk(setup: Setup) -> Iterator[Hit]:
    if setup.config.requests.include_usage != "inject":
        return
    for gateway in setup.gateways:
        counted = all(
            any(
                route.runs(each) and route.mode(each).response_body in (Body.STREAMED, Body.FULL_DUPLEX_STREAMED)
                for each in gateway.processors
            )
            for route in gateway.queued
        )
        if gateway.logs and edited(gateway) and not counted:
            yield Hit(gateway.chain, "requests.include_usage is inject, and answers do not go through Fairlane")


def _booleans(setup: Setup) -> Iterator[Hit]:
    found = list(_misread(setup.raw.raw, setup.raw.where))
    for where, key, text in found:
        shown = "true" if text in "yY" else "false"
        yield Hit(where, f"{key}: {text} is {shown} to Envoy", f'{key}: "{text}"')


def _misread(value: object, where: str) -> Iterator[tuple[str, str, str]]:
    """(place of the object, its key, the text) of each text that Envoy takes for a boolean."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, Misread):
                yield where, str(key), inner
            elif isinstance(inner, bool) and key in _NAMES:
                yield where, str(key), {True: "true", False: "false"}[inner]
            elif isinstance(inner, dict | list):
                yield from _misread(inner, at(where, str(key)))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            if isinstance(inner, Misread):
                yield where, f"[{number}]", inner
            else:
                yield from _misread(inner, at(where, number))


_FACTS_FILTER = "\n".join(
    [
        "# before ext_proc",
        "- name: fairlane.facts",
        "  typed_config:",
        '    "@type": type.googleapis.com/envoy.extensions.filters.http.json_to_metadata.v3.JsonToMetadata',
        "    request_rules:",
        f"      {CONTENT_TYPES}",
        "      rules:",
        *(
            f"      {line}"
            for name, selectors in SELECTORS.items()
            for line in rule(selectors, FACTS, name).splitlines()
        ),
    ]
)

CHECKS = (
    Check(
        "yaml_boolean",
        Severity.ERROR,
        "Envoy's YAML reader takes an unquoted y, n, yes, no, on or off for a boolean, so that the file is refused or "
        "another member is read (`n` is how many answers a client asks for).",
        'key: "n"',
        _booleans,
    ),
    Check(
        "facts_missing",
        Severity.ERROR,
        "Where the body stays in Envoy, Fairlane knows model, length and kind of a request only from a filter before "
        "ext_proc that writes them into metadata.",
        _FACTS_FILTER,
        _facts_missing,
    ),
    Check(
        "facts_disabled",
        Severity.ERROR,
        "A route that is queued without facts is scheduled as a request of no known model or length.",
        "# take the facts filter out of typed_per_filter_config of the route",
        _facts_disabled,
    ),
    Check(
        "facts_selectors",
        Severity.WARNING,
        "Fairlane does not know what is not read: without the model a request is placed by chance, without the lengths "
        "its cost is a guess.",
        "\n".join(rule(selectors, FACTS, name) for name, selectors in SELECTORS.items()),
        _facts_selectors,
    ),
    Check(
        "facts_on_error",
        Severity.WARNING,
        "A missing member and a body that is no JSON look the same unless one rule says on_error.",
        f"on_error: {{ metadata_namespace: {FACTS}, key: error, value: json }}",
        _facts_error,
    ),
    Check(
        "json_content_type",
        Severity.WARNING,
        "A plain list of content types is compared with the whole header, and many clients and engines write "
        "`application/json; charset=utf-8`.",
        CONTENT_TYPES,
        _content_type,
    ),
    Check(
        "body_edit_missing",
        Severity.ERROR,
        "Where the body stays in Envoy, a Lua filter behind ext_proc writes what Fairlane wants in it "
        "(envoy/lua/append.lua); without it the engine reads the client's own value.",
        "# fairlane envoy-config --config fairlane.yaml writes it, as envoy/standard-lua.yaml shows",
        _body_edit,
    ),
    Check(
        "body_priority_fails_open",
        Severity.NOTE,
        "Envoy strips a priority that a client writes into a header, not one in the body: what passes while Fairlane "
        "is away carries the client's own, unless the Lua filter appends a default (UNSCHEDULED in "
        "envoy/lua/append.lua).",
        "# profile standard of fairlane envoy-config, which sets it; or strict, which lets nothing pass; or\n"
        "# priority_via: header in fairlane.yaml (vLLM 0.28 and later)",
        _body_priority,
    ),
    Check(
        "usage_chunk_shown",
        Severity.NOTE,
        "With include_usage: inject a stream ends with a chunk of token counts, which Fairlane takes out again where "
        "it reads the answer; with counts by the access log clients see it, asked for or not.",
        "# fairlane envoy-config --usage stream (response_body_mode STREAMED), or include_usage: leave",
        _usage_chunk,
    ),
)
