"""Several replicas that `cluster.mode` of fairlane.yaml makes one of: that Envoy gives each its part."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.clusters import HEALTH_CHECKS, hashes
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import ClusterView, Setup

_PANIC = 50.0  # percent, Envoy's default


def _unchecked(setup: Setup) -> Iterator[Hit]:
    if setup.config.cluster.mode != "standby":
        return
    for cluster in setup.fairlane:
        checks = cluster.part.message.health_checks
        if not any(check.grpc_health_check is not None for check in checks):
            has = "health_checks, none of them by gRPC" if checks else "no health_checks"
            yield Hit(cluster.where, f"cluster.mode is standby, and cluster {cluster.name} has {has}")


def _panics(setup: Setup) -> Iterator[Hit]:
    if setup.config.cluster.mode != "standby":
        return
    for cluster in setup.fairlane:
        replicas = max(len(cluster.endpoints), setup.config.cluster.replicas)
        threshold = _threshold(cluster)
        if threshold > 100.0 / replicas:
            yield Hit(
                cluster.where,
                f"healthy_panic_threshold of cluster {cluster.name} is {threshold:g} %, and of {replicas} replicas one "
                "serves",
            )


def _threshold(cluster: ClusterView) -> float:
    """In percent."""
    common = cluster.part.message.common_lb_config
    given = common.healthy_panic_threshold if common is not None else None
    return _PANIC if given is None else given.value


def _unknown(setup: Setup) -> Iterator[Hit]:
    told = setup.config.cluster
    for cluster in setup.fairlane:
        known = len(cluster.endpoints)
        if told.mode != "single" and cluster.complete and known < told.replicas:
            shown = f"{known} endpoint{'' if known == 1 else 's'}"
            yield Hit(cluster.where, f"cluster {cluster.name} has {shown}, and cluster.replicas is {told.replicas}")


def _unspread(setup: Setup) -> Iterator[Hit]:
    if setup.config.cluster.mode != "partition":
        return
    for cluster in setup.fairlane:
        if cluster.several and not hashes(cluster):
            yield Hit(cluster.where, f"cluster.mode is partition, and cluster {cluster.name} does not hash")


CHECKS = (
    Check(
        "standby_unchecked",
        Severity.ERROR,
        "In mode standby a gRPC health check tells Envoy which replica serves; without it each standby gets its part "
        "of the requests, and there are as many orders as replicas.",
        HEALTH_CHECKS,
        _unchecked,
    ),
    Check(
        "standby_panics",
        Severity.ERROR,
        "In mode standby one replica is healthy, and with fewer than healthy_panic_threshold (50 % by default) Envoy "
        "takes all for healthy: each standby gets its part of the requests.",
        "common_lb_config: { healthy_panic_threshold: { value: 1 } }",
        _panics,
    ),
    Check(
        "replicas_unknown",
        Severity.WARNING,
        "A replica that Envoy does not know gets no requests; in mode standby it may be the one that serves, and Envoy "
        "then asks all the others.",
        "# fairlane envoy-config with --ext-proc once for each replica; or lower cluster.replicas in fairlane.yaml",
        _unknown,
    ),
    Check(
        "partition_unspread",
        Severity.ERROR,
        "In mode partition Envoy brings each model to one replica by a hash; without it every replica gets its part of "
        "every model's requests, and has an order of its own for them.",
        "# fairlane envoy-config --cluster-mode partition writes all of it, as envoy/replicas/partition-3.yaml shows",
        _unspread,
    ),
)
