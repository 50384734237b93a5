"""Kubernetes objects that a gateway by the Gateway API needs, whichever gateway it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from extproc.wiring.build import Addresses
from extproc.wiring.description import Wiring, WiringError
from extproc.wiring.mesh.place import Place
from extproc.wiring.parts import Address, Data, is_here, is_ip

GATEWAY_API = "gateway.networking.k8s.io"
QUEUED, UPLOADS, DIRECT = "fairlane-queued", "fairlane-uploads", "fairlane-direct"
"""Names of the HTTPRoutes: what is queued, what is queued with its body in Fairlane, and all else."""

MANY_REQUESTS, MANY_CONNECTIONS = 1_000_000, 100_000
"""For circuit breakers: how much is inside is Fairlane's decision."""

_MATCHES, _RULES = 64, 16  # what an HTTPRoute may have
_UPLOAD = re.compile(r"/audio/(transcriptions|translations)$")
_LABEL = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
_SERVICE = re.compile(rf"(?P<name>{_LABEL})(\.(?P<namespace>{_LABEL})(\.svc(\.[a-z0-9.-]+)?)?)?")


@dataclass(frozen=True, slots=True)
class Service:
    """A port of a Service."""

    name: str
    namespace: str
    port: int

    def seen_from(self, namespace: str) -> Data:
        """As a backendRef of an object in `namespace`."""
        there: Data = {} if namespace == self.namespace else {"namespace": self.namespace}
        return {"name": self.name, **there, "port": self.port}


def service(at: Address, namespace: str, what: str) -> Service:
    """The Service that a name in the cluster's DNS stands for: `fairlane`, `fairlane.ns`, `fairlane.ns.svc` and so on.

    Raises WiringError."""
    match = None if is_ip(at[0]) else _SERVICE.fullmatch(at[0].lower().rstrip("."))
    if match is None:
        raise WiringError(
            f"{what} {at[0]}:{at[1]}: a gateway of Kubernetes reaches it by a Service; name that, as "
            f"service.namespace.svc:{at[1]}"
        )
    return Service(match["name"], match["namespace"] or namespace, at[1])


def fairlane(addresses: Addresses, place: Place) -> Service:
    """Raises WiringError where Fairlane is not one Service."""
    if place.fairlane is None and len(addresses.ext_proc) != 1:
        raise WiringError(
            f"{len(addresses.ext_proc)} addresses of Fairlane: this gateway knows one Service of it; name that alone "
            "(--fairlane-service; plain Envoy can be told of each replica)"
        )
    at = place.fairlane or addresses.ext_proc[0]
    if is_here(at[0]):
        raise WiringError(
            f"Fairlane at {at[0]}:{at[1]}: in the gateway's pod there is no Fairlane; name its Service by "
            "--fairlane-service, as fairlane.fairlane.svc:50051"
        )
    return service(at, place.namespace, "Fairlane at")


def refuse(form: str, wiring: Wiring, addresses: Addresses) -> None:
    """What no gateway of this kind can be told. Raises WiringError."""
    if wiring.spread_used != "requests":
        raise WiringError(
            f"spread {wiring.spread_used}: {form} balances over the pods of one Service by itself and takes no hash "
            "from the filter; run one replica of Fairlane, or take plain Envoy"
        )
    if wiring.mode == "standby":
        raise WiringError(
            f"cluster mode standby: {form} does not ask the pods of one Service whether they serve, so standbys would "
            "get their part of the requests; run one replica of Fairlane, or take plain Envoy"
        )
    if addresses.fairlane_tls is not None:
        raise WiringError(
            f"--fairlane-ca: {form} takes certificates from ConfigMaps and Secrets, not from files of Envoy's; leave "
            "it out, and make a BackendTLSPolicy for Fairlane's Service"
        )


def parted(wiring: Wiring) -> dict[str, list[str]]:
    """Paths by the name of their route. Uploads are forms, which nobody but Fairlane reads: where bodies stay in Envoy
    they need another body mode."""
    if wiring.body_in_fairlane:
        return {QUEUED: list(wiring.queued)}
    uploads = [path for path in wiring.queued if _UPLOAD.search(path)]
    others = [path for path in wiring.queued if path not in uploads]
    return {name: paths for name, paths in ((QUEUED, others), (UPLOADS, uploads)) if paths}


def route(name: str, place: Place, backend: Service, paths: Sequence[str] | None, **rule: object) -> Data:
    """An HTTPRoute. `paths`: POST to these; None: everything; `rule`: what else each of its rules has. Raises
    WiringError for more paths than one can have."""
    if paths is not None and len(paths) > _MATCHES * _RULES:
        raise WiringError(f"queued: an HTTPRoute takes {_MATCHES * _RULES} paths, and there are {len(paths)}")
    to = [backend.seen_from(place.namespace)]
    return {
        "apiVersion": f"{GATEWAY_API}/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": name, "namespace": place.namespace},
        "spec": {
            "parentRefs": [{"name": place.gateway, "sectionName": place.listener}],
            "hostnames": [place.host],
            "rules": [{"matches": matches, "backendRefs": to, **rule} for matches in _matches(paths)],
        },
    }


def _matches(paths: Sequence[str] | None) -> Iterator[list[Data]]:
    if paths is None:
        yield [{"path": {"type": "PathPrefix", "value": "/"}}]
        return
    for first in range(0, len(paths), _MATCHES):
        yield [{"path": _path(path), "method": "POST"} for path in paths[first : first + _MATCHES]]


def _path(path: str) -> Data:
    if path.startswith("*"):
        return {"type": "RegularExpression", "value": ".*" + re.escape(path[1:])}
    return {"type": "Exact", "value": path}


def grants(namespace: str, wanted: Sequence[tuple[Service, str, str]]) -> list[Data]:
    """A ReferenceGrant for each Service of another namespace. `wanted`: with the group and kind of who refers to it
    from `namespace`."""
    return [
        {
            "apiVersion": f"{GATEWAY_API}/v1beta1",
            "kind": "ReferenceGrant",
            "metadata": {"name": f"{each.name}-from-{namespace}", "namespace": each.namespace},
            "spec": {
                "from": [{"group": group, "kind": kind, "namespace": namespace}],
                "to": [{"group": "", "kind": "Service", "name": each.name}],
            },
        }
        for each, group, kind in wanted
        if each.namespace != namespace
    ]


def at_routes(names: Sequence[str]) -> list[Data]:
    """Target references to HTTPRoutes."""
    return [{"group": GATEWAY_API, "kind": "HTTPRoute", "name": name} for name in names]
