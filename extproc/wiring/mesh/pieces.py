"""The parts of a complete configuration that another one needs, to have Fairlane before its engines."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.wiring.build import Addresses, build
from extproc.wiring.description import Wiring
from extproc.wiring.parts import ROUTER, Data, Parts


@dataclass(frozen=True, slots=True)
class Pieces:
    """As Envoy's own API has them. To be left as they are: take a copy of what is changed."""

    filters: list[Data]  # of the HTTP connection manager, in order, all but the router
    access_log: list[Data]
    routes: list[Data]  # in order: those whose requests are queued, uploads, and all others
    fairlane: Data  # the cluster of Fairlane
    engines: Data  # the cluster of the engines
    clusters: list[Data]  # all of them: with several replicas of Fairlane there is one more for each
    manager: Data  # the HTTP connection manager, with all of it
    listener: Data  # the listener, with all of it


def pieces(wiring: Wiring, addresses: Addresses) -> Pieces:
    """Raises EnvoyFileError and WiringError."""
    parts = Parts(build(wiring, addresses).config)
    return Pieces(
        filters=[each for each in parts.filters if each["name"] != ROUTER],
        access_log=parts.manager.get("access_log", []),
        routes=parts.routes,
        fairlane=parts.fairlane,
        engines=parts.engines,
        clusters=parts.clusters,
        manager=parts.manager,
        listener=parts.listener,
    )
