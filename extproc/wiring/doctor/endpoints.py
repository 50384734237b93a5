"""Endpoints: whether Envoy and Fairlane know the same engines, and whether Envoy obeys Fairlane's choice of one.

Envoy looks for the chosen `ip:port` in its cluster and nowhere else, and goes by its fallback policy when it is absent.
So where the endpoints come and go, both have to get them from the same source. Where Envoy has another one (a control
plane, another name) they may still be the same, which only Envoy's admin interface can tell: that is a note.
"""

from __future__ import annotations

from collections.abc import Iterator

import betterproto2
from envoy_data_plane.envoy.config.cluster.v3 import ClusterDiscoveryType
from envoy_data_plane.envoy.extensions.clusters.dns.v3 import DnsCluster
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import OverrideHost

from extproc.config.scheduling import Pool
from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.clusters import policies
from extproc.wiring.doctor.document import at, inside
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import ClusterView, Setup
from extproc.wiring.doctor.stripping import stripped
from extproc.wiring.doctor.typed import Part, Reader

ENDPOINT = "fairlane.endpoint"


# -- the choice --------------------------------------------------------------------------------------


def _override(cluster: ClusterView) -> Part[betterproto2.Message] | None:
    return next((each for each in policies(cluster) if isinstance(each.message, OverrideHost)), None)


def _chosen(setup: Setup) -> bool:
    """Whether Fairlane chooses the engine, in any pool."""
    return any(pool.pick.by == "fairlane" for pool in setup.config.pools)


def _choice_missing(setup: Setup) -> Iterator[Hit]:
    if not _chosen(setup):
        return
    for cluster in setup.engines:
        part = _override(cluster)
        if part is None:
            if cluster.several:
                yield Hit(cluster.where, f"cluster {cluster.name} has no override_host policy")
        elif isinstance(part.message, OverrideHost) and not any(
            source.metadata is not None
            and source.metadata.key == ENDPOINT
            and [segment.key for segment in source.metadata.path] == ["address"]
            for source in part.message.override_host_sources
        ):
            fix = f"override_host_sources:\n- metadata: {{ key: {ENDPOINT}, path: [ {{ key: address }} ] }}"
            yield Hit(part.where, f"override_host of cluster {cluster.name} does not read {ENDPOINT}", fix)


def _choice_by_header(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.engines:
        part = _override(cluster)
        if part is None or not isinstance(part.message, OverrideHost):
            continue
        for source in part.message.override_host_sources:
            if source.header and not all(stripped(gateway, source.header) for gateway in setup.gateways):
                yield Hit(part.where, f"override_host of cluster {cluster.name} takes the header {source.header}")


def _logical_dns(setup: Setup) -> Iterator[Hit]:
    if not _chosen(setup):
        return
    for cluster in setup.engines:
        if cluster.part.message.type == ClusterDiscoveryType.LOGICAL_DNS:
            yield Hit(cluster.where, f"cluster {cluster.name} is of the type LOGICAL_DNS")
        part = _extension(cluster)
        if part is not None and isinstance(part.message, DnsCluster) and part.message.all_addresses_in_single_endpoint:
            fix = "all_addresses_in_single_endpoint: false"
            yield Hit(part.where, f"all_addresses_in_single_endpoint of cluster {cluster.name} is on", fix)


def _extension(cluster: ClusterView) -> Part[betterproto2.Message] | None:
    """Where the cluster is of none of the built-in types."""
    config = inside(cluster.part.raw, "cluster_type").get("typed_config")
    return Reader().read_any(config, at(cluster.where, "cluster_type", "typed_config")) if config is not None else None


def _not_ejected(setup: Setup) -> Iterator[Hit]:
    by_envoy = [pool.name for pool in setup.config.pools if pool.pick.by == "envoy"]
    for cluster in setup.engines if by_envoy else ():
        if cluster.several and cluster.part.message.outlier_detection is None:
            yield Hit(
                cluster.where, f"cluster {cluster.name} has no outlier_detection, and {by_envoy[0]} pick.by envoy"
            )


# -- the same endpoints ------------------------------------------------------------------------------


def _endpoints_differ(setup: Setup) -> Iterator[Hit]:
    engines = setup.engines
    if not engines:
        return
    listed_here = {address for cluster in engines for address in cluster.endpoints}
    pools = setup.config.pools
    wanted = [address for pool in pools for address in pool.endpoints.known]
    if all(cluster.complete for cluster in engines):
        missing = [address for address in wanted if address not in listed_here]
        if missing:
            names = ", ".join(cluster.name for cluster in engines)
            yield Hit(engines[0].where, f"no endpoint of {names} is {', '.join(missing)}, as pools[].endpoints has it")
    if any(_dynamic(pool) for pool in pools):
        return  # what the file does not name, the pool's source may
    for cluster in engines:
        unknown = [address for address in cluster.endpoints if cluster.complete and address not in wanted]
        if unknown:
            yield Hit(cluster.where, f"{', '.join(unknown)} of cluster {cluster.name} is in no pool of fairlane.yaml")


def _endpoints_fixed(setup: Setup) -> Iterator[Hit]:
    engines = setup.engines
    for pool in setup.config.pools:
        if _dynamic(pool) and pool.pick.by == "fairlane" and engines and all(each.complete for each in engines):
            names = ", ".join(cluster.name for cluster in engines)
            yield Hit(engines[0].where, f"pool {pool.name} has {_named(pool)}, and {names} a list that does not change")


def _endpoints_unknown(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.engines:
        if not cluster.complete and not any(_same_source(pool, cluster) for pool in setup.config.pools):
            yield Hit(cluster.where, f"cluster {cluster.name} gets its addresses by name or from a control plane")


def _dynamic(pool: Pool) -> bool:
    return pool.endpoints.static is None


def _named(pool: Pool) -> str:
    """What its endpoints come from, in words."""
    if pool.endpoints.dns is not None:
        return f"the addresses of {pool.endpoints.dns.name}"
    if pool.endpoints.file is not None:
        return f"the endpoints in {pool.endpoints.file.path}"
    return "endpoints of Kubernetes"


def _same_source(pool: Pool, cluster: ClusterView) -> bool:
    """Whether the cluster surely has the pool's endpoints, now and later."""
    dns, file, kubernetes = pool.endpoints.dns, pool.endpoints.file, pool.endpoints.kubernetes
    names = [_split(address) for address in cluster.endpoints]
    if dns is not None:
        return (dns.name.lower().removesuffix("."), dns.port) in names
    if file is not None:
        eds = cluster.part.message.eds_cluster_config
        source = eds.eds_config.path_config_source if eds is not None and eds.eds_config is not None else None
        return source is not None and source.path == file.path
    if kubernetes is not None and kubernetes.service is not None:
        # The rest of the name depends on where Envoy runs, and a named port's number is not known here.
        wanted = [kubernetes.service, *([kubernetes.namespace] if kubernetes.namespace is not None else [])]
        fits = [port for host, port in names if host.split(".")[: len(wanted)] == wanted]
        return bool(fits) and (not isinstance(kubernetes.port, int) or kubernetes.port in fits)
    return False


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.lower().removesuffix("."), int(port)


CHECKS = (
    Check(
        "endpoint_choice_missing",
        Severity.ERROR,
        "Fairlane counts a request at the engine that it has chosen; without override_host by its metadata Envoy "
        "chooses another one.",
        "# load_balancing_policy of the engines' cluster as in envoy/envoy.yaml: override_host with metadata "
        "fairlane.endpoint, path address, and a fallback_policy; or in fairlane.yaml, for every pool, "
        "pick: { by: envoy }",
        _choice_missing,
    ),
    Check(
        "endpoint_choice_by_header",
        Severity.ERROR,
        "A client can send a header, and so choose an engine, unless early_header_mutation_extensions strips it.",
        "override_host_sources:\n- metadata: { key: fairlane.endpoint, path: [ { key: address } ] }",
        _choice_by_header,
    ),
    Check(
        "endpoint_logical_dns",
        Severity.ERROR,
        "A cluster of logical DNS has one endpoint, whatever its name resolves to; every other choice of Fairlane is "
        "ignored.",
        "type: STRICT_DNS",
        _logical_dns,
    ),
    Check(
        "engine_not_ejected",
        Severity.WARNING,
        "Where Envoy chooses, an engine that refuses at once or breaks connections is the least busy one, and gets "
        "most requests; outlier_detection leaves it out. Without the other two settings Envoy goes on using engines "
        "that are out when most of them are, or for up to a second.",
        "outlier_detection: { consecutive_gateway_failure: 3, enforcing_consecutive_gateway_failure: 100, "
        "enforcing_success_rate: 0, interval: 1s, base_ejection_time: 5s, max_ejection_time: 15s, "
        "max_ejection_percent: 100 }\n"
        "common_lb_config: { healthy_panic_threshold: { value: 1 }, update_merge_window: 0s }",
        _not_ejected,
    ),
    Check(
        "endpoints_differ",
        Severity.ERROR,
        "An address that the cluster has not is ignored, and Envoy chooses by itself; one that fairlane.yaml has not "
        "gets requests that nobody counts.",
        "# the same ip:port in load_assignment and in pools[].endpoints",
        _endpoints_differ,
    ),
    Check(
        "endpoints_fixed",
        Severity.ERROR,
        "An endpoint that comes later is known to Fairlane and not to Envoy, which ignores the choice of it.",
        "# a cluster with the pool's own source, as fairlane envoy-config --config fairlane.yaml writes it",
        _endpoints_fixed,
    ),
    Check(
        "endpoints_unknown",
        Severity.NOTE,
        "Envoy matches Fairlane's choice by ip:port, so pools[].endpoints has to have what the names resolve to.",
        "# compare pools[].endpoints with /clusters of Envoy's admin interface",
        _endpoints_unknown,
    ),
)
