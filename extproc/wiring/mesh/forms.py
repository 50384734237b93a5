"""In which form Envoy, or what configures it, is told of Fairlane. `fairlane envoy-config --form` has these names."""

from __future__ import annotations

from collections.abc import Callable

from extproc.wiring.build import Addresses, build
from extproc.wiring.description import Wiring
from extproc.wiring.mesh import envoy_gateway, istio, kgateway, xds
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import Data

Form = Callable[[Wiring, Addresses, Place], list[Data]]
"""YAML documents, in the order in which they are to be applied. Raises EnvoyFileError and WiringError."""


def static(wiring: Wiring, addresses: Addresses, place: Place) -> list[Data]:  # noqa: ARG001 - a Form has it
    """One complete configuration."""
    return [build(wiring, addresses).config]


FORMS: dict[str, Form] = {
    "static": static,
    "xds": xds.documents,
    "istio": istio.documents,
    "envoy-gateway": envoy_gateway.documents,
    "kgateway": kgateway.documents,
}
