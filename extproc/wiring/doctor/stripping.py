"""Which headers of a client are gone before any filter and before routing."""

from __future__ import annotations

from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import HeaderMutation

from extproc.wiring.doctor import matching
from extproc.wiring.doctor.document import at, listed
from extproc.wiring.doctor.setup import Gateway
from extproc.wiring.doctor.typed import Reader


def stripped(gateway: Gateway, name: str) -> bool:
    """Whether a client's header of that name never gets past the connection manager."""
    manager, reader, name = gateway.manager, Reader(), name.lower()
    for place, raw in listed(manager.raw, "early_header_mutation_extensions", manager.where):
        part = reader.read_as(HeaderMutation, raw.get("typed_config"), at(place, "typed_config"))
        for each in part.message.mutations if part is not None else ():
            if each.remove is not None and each.remove.lower() == name:
                return True
            found = each.remove_on_match.key_matcher if each.remove_on_match is not None else None
            if found is not None and matching.string(found, name):
                return True
    return False
