"""The ext_proc filter itself: what it sends to Fairlane, and what it takes from it."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring import derive
from extproc.wiring.doctor import matching
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import WIRING, Body, Processor, Setup

_ATTRIBUTES = ("request.time", "request.id", "request.size")
_STREAMED = (Body.STREAMED, Body.FULL_DUPLEX_STREAMED)
_KEPT_OPEN = (Body.BUFFERED, Body.STREAMED)


def _request_headers(setup: Setup) -> Iterator[Hit]:
    for _, _each, mode in setup.modes():
        if not mode.request_headers:
            yield Hit(mode.where, "request_header_mode is SKIP")


def _request_body(setup: Setup) -> Iterator[Hit]:
    for _, each, mode in setup.modes():
        if not each.tracks_only and mode.request_body in (Body.STREAMED, Body.BUFFERED_PARTIAL, Body.GRPC):
            yield Hit(mode.where, f"request_body_mode is {mode.request_body.name}")


def _response_trailers(setup: Setup) -> Iterator[Hit]:
    for gateway, each, mode in setup.modes():
        kept = mode.request_body in _KEPT_OPEN or mode.response_body in _STREAMED
        tracked = any(other.tracks_only for other in gateway.processors)
        if not mode.response_trailers and not kept and not (each.holds_only and tracked):
            yield Hit(mode.where, "response_trailer_mode is not SEND")


def _stream_usage(setup: Setup) -> Iterator[Hit]:
    for _, _each, mode in setup.modes():
        if mode.response_body in _STREAMED and not mode.response_headers:
            yield Hit(mode.where, f"response_body_mode is {mode.response_body.name}, response_header_mode SKIP")


def _response_headers(setup: Setup) -> Iterator[Hit]:
    for _, each, mode in setup.modes():
        if mode.response_headers and mode.response_body == Body.NONE and "first-byte" not in each.words:
            yield Hit(mode.where, "response_header_mode is not SKIP")


def _first_byte(setup: Setup) -> Iterator[Hit]:
    for _, each, mode in setup.modes():
        # The one that holds says it for the one that follows.
        if "first-byte" in each.words and "hold" not in each.words and not mode.response_headers:
            yield Hit(mode.where, f"{WIRING} says first-byte, but response_header_mode is SKIP")


def _preemption(setup: Setup) -> Iterator[Hit]:
    classes = [name for name, each in setup.config.classes.items() if getattr(each, "preemptible", False)]
    late = [p for p in setup.config.pools if getattr(getattr(p, "preemption", None), "after_first_byte", False)]
    if not classes or len(late) == len(setup.config.pools):
        return
    for gateway in setup.gateways:
        silent = [each for each in gateway.processors if "first-byte" not in each.words]
        if silent:
            where = silent[-1].at
            yield Hit(where, f"class {', '.join(classes)} is preemptible, and {WIRING} does not say first-byte")


def _two_full_duplex(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        duplex = [
            each
            for each in gateway.processors
            if any(m.request_body == Body.FULL_DUPLEX_STREAMED for m in gateway.modes(each))
        ]
        for each in duplex[1:]:
            yield Hit(each.at, f"{duplex[0].name} and {each.name} both have FULL_DUPLEX_STREAMED")


def _attributes(setup: Setup) -> Iterator[Hit]:
    for gateway, each in setup.holders():
        reads_body = any(mode.request_body != Body.NONE for mode in gateway.modes(each))
        wanted = [name for name in _ATTRIBUTES if not (reads_body and name == "request.size")]
        wanted += derive.wiring(setup.config, profile="body").attributes
        missing = [name for name in wanted if name not in each.config.request_attributes]
        if missing:
            every = list(dict.fromkeys([*each.config.request_attributes, *missing]))
            yield Hit(
                each.at, f"request_attributes lacks {', '.join(missing)}", f"request_attributes: [{', '.join(every)}]"
            )


def _node_attribute(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.processors:
            given = each.config.request_attributes
            if any(name.startswith("xds.node") or name == "xds" for name in given):
                kept = ", ".join(name for name in given if not name.startswith("xds"))
                yield Hit(each.at, "request_attributes asks for xds.node", f"request_attributes: [{kept}]")


def _facts_not_forwarded(setup: Setup) -> Iterator[Hit]:
    for gateway, each in setup.holders():
        if any(mode.request_body == Body.NONE for mode in gateway.modes(each)):
            yield from _not_forwarded(each, ["fairlane.request"])


def _identity_not_forwarded(setup: Setup) -> Iterator[Hit]:
    sources = [*setup.config.identity.tenant, *setup.config.identity.request_class]
    namespaces = list(dict.fromkeys(s.metadata.namespace for s in sources if s.metadata is not None))
    for _, each in setup.holders():
        yield from _not_forwarded(each, namespaces)


def _not_forwarded(each: Processor, wanted: list[str]) -> Iterator[Hit]:
    options = each.config.metadata_options
    group = options.forwarding_namespaces if options is not None else None
    given = list(group.untyped) if group is not None else []
    missing = [name for name in wanted if name not in given]
    if missing:
        fix = f"metadata_options:\n  forwarding_namespaces: {{ untyped: [ {', '.join([*given, *missing])} ] }}"
        yield Hit(each.at, f"metadata_options.forwarding_namespaces.untyped lacks {', '.join(missing)}", fix)


def _not_received(setup: Setup) -> Iterator[Hit]:
    for gateway, each in setup.holders():
        wanted = ["fairlane.endpoint"]
        if any("fairlane.body" in other.lua for other in gateway.filters):
            wanted.append("fairlane.body")
        options = each.config.metadata_options
        group = options.receiving_namespaces if options is not None else None
        given = list(group.untyped) if group is not None else []
        missing = [name for name in wanted if name not in given]
        if missing:
            fix = f"metadata_options:\n  receiving_namespaces: {{ untyped: [ {', '.join([*given, *missing])} ] }}"
            yield Hit(each.at, f"metadata_options.receiving_namespaces.untyped lacks {', '.join(missing)}", fix)


def _headers_not_forwarded(setup: Setup) -> Iterator[Hit]:
    config = setup.config
    wanted = [":method", ":path"]
    for source in (*config.identity.tenant, *config.identity.request_class):
        name = source.header or (source.api_key.header if source.api_key is not None else None)
        if name is not None:
            wanted.append(name.lower())
    for gateway in setup.gateways:
        for each in gateway.processors:
            rules = each.config.forward_rules
            needed = ["x-fairlane-ticket"] if each.tracks_only else list(dict.fromkeys(wanted))
            allowed = rules.allowed_headers if rules is not None else None
            denied = rules.disallowed_headers if rules is not None else None
            missing = [
                name
                for name in needed
                if (denied is not None and matching.some(matching.string(m, name) for m in denied.patterns))
                or (allowed is not None and matching.some(matching.string(m, name) for m in allowed.patterns) is False)
            ]
            if missing:
                yield Hit(each.at, f"forward_rules keeps {', '.join(missing)} from Fairlane")


def _mutations_refused(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        rules = each.config.mutation_rules
        if rules is None:
            continue
        refused = rules.disallow_expression.regex if rules.disallow_expression is not None else None
        names = ("x-vllm-priority", "x-fairlane-ticket", "x-fairlane-endpoint")
        if rules.disallow_all or (refused is not None and any(matching.full_match(refused, name) for name in names)):
            yield Hit(each.at, "mutation_rules refuses the headers that Fairlane sets")


def _immediate_response(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        if each.config.disable_immediate_response:
            yield Hit(each.at, "disable_immediate_response is on")


def _observability(setup: Setup) -> Iterator[Hit]:
    for _, each in setup.holders():
        if each.config.observability_mode:
            yield Hit(each.at, "observability_mode is on")


def _hold_word(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in (each for each in gateway.processors if not each.alone):
            word = "track" if each.tracks_only else "hold"
            if word not in each.words:
                fix = f"grpc_service:\n  initial_metadata: [ {{ key: {WIRING}, value: {word} }} ]"
                yield Hit(each.at, f"{WIRING} does not say {word}, and two filters ask Fairlane", fix)


def _graceful_close(setup: Setup) -> Iterator[Hit]:
    runtime = setup.bootstrap.message.layered_runtime if setup.bootstrap is not None else None
    where = setup.bootstrap.where if setup.bootstrap is not None else ""
    flag = "envoy.reloadable_features.ext_proc_graceful_grpc_close"
    for number, layer in enumerate(runtime.layers if runtime is not None else ()):
        values = layer.static_layer.to_dict() if layer.static_layer is not None else {}
        if _flag(values, flag) in (True, "true"):
            yield Hit(at(where, "layered_runtime", "layers", number, "static_layer"), f"{flag} is on", f"{flag}: false")


def _flag(values: object, name: str) -> object:
    """A runtime value, whether it is written in one key or in several levels."""
    if isinstance(values, dict):
        if name in values:
            return values[name]
        head, dot, rest = name.partition(".")
        while dot:
            if head in values:
                return _flag(values[head], rest)
            more, dot, rest = rest.partition(".")
            head = f"{head}.{more}"
    return None


CHECKS = (
    Check(
        "request_headers_skipped",
        Severity.ERROR,
        "Fairlane schedules by the request's headers, and is not asked without them.",
        "processing_mode: { request_header_mode: SEND }",
        _request_headers,
    ),
    Check(
        "request_body_mode",
        Severity.ERROR,
        "Only NONE, BUFFERED and FULL_DUPLEX_STREAMED let a request be held whole; in the others its body goes on in "
        "pieces.",
        "processing_mode: { request_body_mode: NONE }",
        _request_body,
    ),
    Check(
        "response_trailers_skipped",
        Severity.ERROR,
        "Without response trailers Envoy closes the stream when the request goes on, and Fairlane takes the slot on "
        "the engine for free while the answer still runs.",
        "processing_mode: { response_trailer_mode: SEND }",
        _response_trailers,
    ),
    Check(
        "stream_usage_headers",
        Severity.ERROR,
        "The token count is read from the answer's body by its content type, which stands in the response headers.",
        "processing_mode: { response_header_mode: SEND }",
        _stream_usage,
    ),
    Check(
        "response_headers_sent",
        Severity.NOTE,
        "Response headers are sent by default and cost a message for each request, which Fairlane needs only to see "
        "the first byte (fairlane-wiring: first-byte) or to read the body.",
        "processing_mode: { response_header_mode: SKIP }",
        _response_headers,
    ),
    Check(
        "first_byte_skipped",
        Severity.ERROR,
        "The first byte of an answer is seen by its response headers; without them no request is known to be before "
        "its first byte.",
        "processing_mode: { response_header_mode: SEND }",
        _first_byte,
    ),
    Check(
        "preemption_not_wired",
        Severity.WARNING,
        "A preemptible request is evicted before its first byte only, and Fairlane does not see the first byte.",
        f"processing_mode: {{ response_header_mode: SEND }}\n"
        f"grpc_service:\n  initial_metadata: [ {{ key: {WIRING}, value: first-byte }} ]",
        _preemption,
    ),
    Check(
        "two_full_duplex",
        Severity.ERROR,
        "Two filters with FULL_DUPLEX_STREAMED in one chain cut bodies short (a fault of Envoy, issue 43983).",
        "processing_mode: { request_body_mode: NONE }",
        _two_full_duplex,
    ),
    Check(
        "request_attributes",
        Severity.WARNING,
        "request.time gives a replayed request its place back, request.size stands for the prompt's length, request.id "
        "finds a log entry without ticket, and a certificate is told by attributes of its connection.",
        "request_attributes: [ request.time, request.id, request.size, source.address ]",
        _attributes,
    ),
    Check(
        "node_attribute",
        Severity.WARNING,
        "xds.node describes the whole Envoy and is 80 KB for each request.",
        "request_attributes: [ request.time, request.id, request.size, source.address ]",
        _node_attribute,
    ),
    Check(
        "facts_not_forwarded",
        Severity.ERROR,
        "ext_proc sends only the metadata that forwarding_namespaces names, and without the facts Fairlane knows "
        "neither the model nor the length of a request.",
        "metadata_options:\n  forwarding_namespaces: { untyped: [ fairlane.request ] }",
        _facts_not_forwarded,
    ),
    Check(
        "identity_not_forwarded",
        Severity.ERROR,
        "ext_proc sends only the metadata that forwarding_namespaces names, and a source of fairlane.yaml reads "
        "another one: all its requests are anonymous.",
        "metadata_options:\n  forwarding_namespaces: { untyped: [ fairlane.request, envoy.filters.http.jwt_authn ] }",
        _identity_not_forwarded,
    ),
    Check(
        "endpoint_not_received",
        Severity.ERROR,
        "Envoy takes metadata only in the namespaces that receiving_namespaces names, and Fairlane's choice of an "
        "engine is one.",
        "metadata_options:\n  receiving_namespaces: { untyped: [ fairlane.endpoint, fairlane.body ] }",
        _not_received,
    ),
    Check(
        "headers_not_forwarded",
        Severity.ERROR,
        "Fairlane chooses tenant, class and route by these headers, and gets only what forward_rules lets through.",
        "# let them through: forward_rules.allowed_headers, forward_rules.disallowed_headers",
        _headers_not_forwarded,
    ),
    Check(
        "mutations_refused",
        Severity.ERROR,
        "Priority, ticket and endpoint are headers that Fairlane sets, and Envoy drops what mutation_rules refuses.",
        "mutation_rules: { disallow_all: false, disallow_expression: null }",
        _mutations_refused,
    ),
    Check(
        "immediate_response_off",
        Severity.ERROR,
        "429, 503 and every other refusal of Fairlane are immediate responses; without them the request goes on to an "
        "engine, or fails where the filter fails closed.",
        "disable_immediate_response: false",
        _immediate_response,
    ),
    Check(
        "observability_mode",
        Severity.ERROR,
        "In observability_mode Envoy does not wait for an answer, so nothing is held.",
        "observability_mode: false",
        _observability,
    ),
    Check(
        "wiring_words",
        Severity.ERROR,
        "Two filters of one request look alike to Fairlane: fairlane-wiring says which one holds and which follows the "
        "answer.",
        f"grpc_service:\n  initial_metadata: [ {{ key: {WIRING}, value: hold }} ]",
        _hold_word,
    ),
    Check(
        "graceful_close",
        Severity.WARNING,
        "With ext_proc_graceful_grpc_close Fairlane hears a second late that a client has left, and holds its place.",
        "envoy.reloadable_features.ext_proc_graceful_grpc_close: false",
        _graceful_close,
    ),
)
