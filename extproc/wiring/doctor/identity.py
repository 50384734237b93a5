"""Who sends a request: whether anything in Envoy writes what the sources of fairlane.yaml read."""

from __future__ import annotations

import json
from collections.abc import Iterator

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import Filter, Gateway, Processor, Setup

# Namespaces that belong to one filter each. Any filter may write others, so nothing is said of those.
_WRITERS = {
    "envoy.filters.http.jwt_authn": "JwtAuthentication",
    "envoy.filters.http.ext_authz": "ExtAuthz",
}


def _filter_missing(setup: Setup) -> Iterator[Hit]:
    sources = [*setup.config.identity.tenant, *setup.config.identity.request_class]
    read = dict.fromkeys(source.metadata.namespace for source in sources if source.metadata is not None)
    for gateway in setup.gateways:
        for namespace in read:
            if namespace in _WRITERS and not any(_writes(gateway, each, namespace) for each in gateway.filters):
                yield Hit(gateway.chain, f"fairlane.yaml reads metadata {namespace}, and no filter here writes it")


def _writes(gateway: Gateway, each: Filter, namespace: str) -> bool:
    """Whether a filter writes into the namespace, or may: Lua and set_metadata name it, and one that cannot be read
    here may be anything. A filter that asks Fairlane names it too, in order to send it."""
    if isinstance(each, Processor) or (gateway.queued and not any(route.runs(each) for route in gateway.queued)):
        return False
    return each.part is None or each.kind == _WRITERS[namespace] or namespace in json.dumps(each.part.raw, default=str)


CHECKS = (
    Check(
        "identity_filter_missing",
        Severity.WARNING,
        "A source of fairlane.yaml reads metadata that only an identity filter writes; without the filter it never "
        "gives a name, and if no other source does, everybody is anonymous.",
        "# jwt_authn or ext_authz before the facts filter (docs/identity.md), or no such source in fairlane.yaml",
        _filter_missing,
    ),
)
