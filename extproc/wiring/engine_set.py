"""Where Envoy's cluster of engines gets its endpoints: from the same source as Fairlane's pools.

Envoy takes Fairlane's choice only if it has that very `ip:port` in the cluster: both have to know the same endpoints.

    list          a STATIC cluster
    dns           strict DNS: every address of the name is an endpoint. Logical DNS has one, and ignores every choice
                  of another. Envoy asks each second, whatever the TTL: an endpoint that Fairlane knows and Envoy does
                  not is passed over, and the first one of an empty cluster is a 503. "No such name" empties the
                  cluster, a failure leaves it as it was. No cluster of Envoy's looks up SRV records.
    file          EDS by a file, which has to be in Envoy's form: one file feeds both. Envoy reads it again when a file
                  is moved into its folder, not when it is written in place.
    kubernetes    strict DNS by the name of a headless Service, whose addresses are those of its ready pods.

Until Envoy knows an endpoint, its fallback policy decides in Fairlane's place: the request is answered by another
engine, and Fairlane's log says so.

There is one cluster, so all pools' sources have to fit into it. Names and addresses do; a cluster that reads a file has
nothing beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from extproc.config.endpoints import Dns, Kubernetes
from extproc.config.scheduling import Pool
from extproc.config.units import split_host_port
from extproc.wiring.description import WiringError
from extproc.wiring.parts import ENGINES, Address, Data, Parts

Family = Literal["V4_ONLY", "V6_ONLY", "ALL"]

_FAMILIES: dict[str, Family] = {"a": "V4_ONLY", "aaaa": "V6_ONLY", "any": "ALL"}
_DNS_CLUSTER = "type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster"
_CARES = "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"
_MOST_INTERVAL_S = 1.0
_BY_HAND = "or say what Envoy is to use: --engine ip:port and --engine-name host:port, as often as needed"


@dataclass(frozen=True, slots=True)
class Lookup:
    """How names are looked up. `resolver` None: the system's."""

    family: Family = "ALL"
    interval_s: float = _MOST_INTERVAL_S
    resolver: Address | None = None


@dataclass(frozen=True, slots=True)
class EndpointFile:
    """A file with a ClusterLoadAssignment. `cluster`: the cluster_name in it."""

    path: str
    cluster: str = ENGINES


@dataclass(frozen=True, slots=True)
class EngineSet:
    """`addresses`: of IPs and names, none where there is a `file`; `notes`: what has to be so for Envoy to agree."""

    addresses: tuple[Address, ...] = ()
    lookup: Lookup | None = None
    file: EndpointFile | None = None
    notes: tuple[str, ...] = ()


def of(pools: Sequence[Pool]) -> EngineSet:
    """All pools' endpoints in one. Raises WiringError where Envoy has no such cluster."""
    sources = [(pool.name, pool.endpoints) for pool in pools]
    files = [(name, each.file) for name, each in sources if each.file is not None]
    if files:
        name, file = files[0]
        if any(each.file != file for _, each in sources):
            raise WiringError(
                f"pools: the endpoints of {name} come from a file, and Envoy's one cluster of engines cannot have "
                f"others beside it; let all pools use the same file, {_BY_HAND}"
            )
        found = EndpointFile(file.path, file.cluster or ENGINES)
        return EngineSet(file=found, notes=(_file_note(found),))
    addresses: dict[Address, None] = {}
    notes: list[str] = []
    lookups: list[Dns] = []
    for name, each in sources:
        addresses |= dict.fromkeys(map(split_host_port, each.known))
        if each.dns is not None:
            lookups.append(each.dns)
            addresses[_dns(name, each.dns)] = None
        if each.kubernetes is not None:
            address = _kubernetes(name, each.kubernetes)
            addresses[address] = None
            notes.append(_kubernetes_note(name, address))
    by_kubernetes = any(each.kubernetes is not None for _, each in sources)
    return EngineSet(tuple(addresses), _lookup(lookups, everything=by_kubernetes), notes=tuple(notes))


def apply(parts: Parts, lookup: Lookup | None, file: EndpointFile | None) -> Iterator[str]:
    """Make the engines' cluster, which has its addresses, look up names or read a file; says what is different and
    why."""
    cluster = parts.engines
    if file is not None:
        # Whoever gets endpoints in this way has to say who it is, though no file asks.
        parts.config.setdefault("node", {"id": "fairlane", "cluster": "fairlane"})
        del cluster["load_assignment"]
        cluster["type"] = "EDS"
        cluster["eds_cluster_config"] = {
            "service_name": file.cluster,
            "eds_config": {
                "resource_api_version": "V3",
                "path_config_source": {
                    "path": file.path,
                    # Without it a ConfigMap's file, which is a link by way of a link, would be read once only.
                    "watched_directory": {"path": str(PurePath(file.path).parent)},
                },
            },
        }
        yield f"The engines come from {file.path} (EDS), which Fairlane reads too, and change with it."
    elif cluster["type"] == "STRICT_DNS":
        if lookup is not None:
            # What type: STRICT_DNS is short for; its own settings for this are deprecated.
            del cluster["type"]
            cluster["cluster_type"] = {"name": "envoy.clusters.dns", "typed_config": _dns_cluster(lookup)}
        yield (
            "The engines' names are looked up again and again (strict DNS), and every address of a name is an "
            "endpoint that Fairlane may choose."
        )


def _dns_cluster(lookup: Lookup) -> Data:
    found: Data = {
        "@type": _DNS_CLUSTER,
        "dns_lookup_family": lookup.family,
        "dns_refresh_rate": f"{lookup.interval_s:g}s",
    }
    if lookup.resolver is not None:
        host, port = lookup.resolver
        found["typed_dns_resolver_config"] = {
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": {
                "@type": _CARES,
                "resolvers": [{"socket_address": {"address": host, "port_value": port}}],
            },
        }
    return found


def _dns(pool: str, dns: Dns) -> Address:
    if dns.record == "srv" or dns.port is None:
        raise WiringError(
            f"pools: the endpoints of {pool} are SRV records ({dns.name}), and Envoy has no cluster that looks them "
            "up. Take a name with A or AAAA records and one port for all, let both read one file in Envoy's form, "
            f"{_BY_HAND}"
        )
    return dns.name, dns.port


def _kubernetes(pool: str, kubernetes: Kubernetes) -> Address:
    if kubernetes.service is None or not isinstance(kubernetes.port, int):
        lacking = "a selector, and no Service" if kubernetes.service is None else "no number as its port"
        raise WiringError(
            f"pools: the endpoints of {pool} have {lacking}. Envoy does not ask Kubernetes; it looks up the name of a "
            "headless Service at one port: give endpoints.kubernetes.service and .port, the number that the pods "
            f"listen on, {_BY_HAND} (engines.my-namespace.svc:8000)"
        )
    namespace = f".{kubernetes.namespace}.svc" if kubernetes.namespace is not None else ""
    return f"{kubernetes.service}{namespace}", kubernetes.port


def _lookup(asked: Sequence[Dns], *, everything: bool) -> Lookup | None:
    """One for the whole cluster; None: there are no names."""
    resolvers = {each.resolver for each in asked}
    if len(resolvers) > 1:
        given = ", ".join(str(each or "the system's") for each in resolvers)
        raise WiringError(
            f"pools: names are looked up by different resolvers ({given}), and Envoy's one cluster of engines has one; "
            "let all pools use the same"
        )
    families: set[Family] = {_FAMILIES[each.record] for each in asked}
    if everything:
        families.add("ALL")
    if not families:
        return None
    family: Family = families.pop() if len(families) == 1 else "ALL"
    (resolver,) = resolvers or {None}
    interval_s = min([_MOST_INTERVAL_S, *(each.interval for each in asked)])
    return Lookup(family, interval_s, split_host_port(resolver) if resolver is not None else None)


def _file_note(file: EndpointFile) -> str:
    return (
        f"{file.path} has to be there when Envoy starts, in Envoy's form: resources with a ClusterLoadAssignment whose "
        f"cluster_name is {file.cluster}. Replace it by a new file of that name (mv): Envoy does not see it written."
    )


def _kubernetes_note(pool: str, address: Address) -> str:
    return (
        f"Envoy finds the engines of {pool} by the name {address[0]}: its Service has to be headless (clusterIP: None) "
        "and without publishNotReadyAddresses, and the name has to be known where Envoy runs. A control plane that "
        "gives Envoy the pods by EDS (a mesh) does as well, and sooner."
    )
