"""The order of the HTTP filters: requests go down the list, answers come up."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.facts import makers
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Body, Gateway, Processor, Setup

# Types of filters that say who somebody is, or refuse.
_IDENTITY = frozenset({"JwtAuthentication", "ExtAuthz", "ApiKeyAuth", "BasicAuth", "OAuth2", "Rbac"})


def _asks(gateway: Gateway) -> int:
    """Where the first filter stands that asks Fairlane."""
    return gateway.holders[0].index if gateway.holders else gateway.processors[0].index


def _facts_late(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in makers(gateway):
            if each.index > _asks(gateway):
                yield Hit(each.where, f"{each.name} stands behind {gateway.filters[_asks(gateway)].name}")


def _identity_late(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.filters:
            if each.kind in _IDENTITY and each.index > _asks(gateway):
                yield Hit(each.where, f"{each.name} stands behind {gateway.filters[_asks(gateway)].name}")


def _edit_early(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.filters:
            if "fairlane.body" in each.lua and each.index < _asks(gateway):
                yield Hit(each.where, f"{each.name} stands before {gateway.filters[_asks(gateway)].name}")


def _compressed_early(setup: Setup) -> Iterator[Hit]:
    """A compressor nearer to the router than what reads the answer."""
    for gateway in setup.gateways:
        readers = [
            each
            for each in gateway.filters
            if each.kind == "SseToMetadata"
            or (each.kind == "JsonToMetadata" and each not in makers(gateway))
            or "envoy_on_response" in each.lua
            or (isinstance(each, Processor) and any(m.response_body != Body.NONE for m in gateway.modes(each)))
        ]
        for each in gateway.filters:
            before = [other.name for other in readers if other.index < each.index]
            if each.kind == "Compressor" and before:
                yield Hit(each.where, f"{each.name} stands behind {', '.join(before)}")


def _track_first(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.processors:
            if each.tracks_only and gateway.holders and each.index < _asks(gateway):
                yield Hit(each.where, f"{each.name} stands before {gateway.holders[0].name}")


CHECKS = (
    Check(
        "facts_behind_ext_proc",
        Severity.ERROR,
        "Facts that are written behind ext_proc are not there when Fairlane is asked.",
        "# move it before the filter that asks Fairlane",
        _facts_late,
    ),
    Check(
        "identity_behind_ext_proc",
        Severity.ERROR,
        "Fairlane reads what identity filters leave in metadata; behind it they write too late, and who is refused "
        "there has waited in the queue.",
        "# move it before the facts filter",
        _identity_late,
    ),
    Check(
        "body_edit_before_ext_proc",
        Severity.ERROR,
        "The Lua filter appends what Fairlane has answered; before ext_proc there is no answer yet.",
        "# move it behind the filter that asks Fairlane",
        _edit_early,
    ),
    Check(
        "compressor_behind_usage",
        Severity.ERROR,
        "Answers come up the list of filters: what stands above a compressor sees compressed bytes and reads no token "
        "counts.",
        "# move it to the top of http_filters",
        _compressed_early,
    ),
    Check(
        "track_before_hold",
        Severity.ERROR,
        "The filter that follows the answer knows its request by the header x-fairlane-ticket, which the one that "
        "holds sets.",
        "# move it behind the filter that holds",
        _track_first,
    ),
)
