"""Clusters: Fairlane's replicas and how a dead one is found, and how the engines are spoken to."""

from __future__ import annotations

from collections.abc import Iterator

import betterproto2
from envoy_data_plane.envoy.config.cluster.v3 import ClusterLbPolicy
from envoy_data_plane.envoy.config.core.v3 import Http2ProtocolOptions, KeepaliveSettings

from extproc.wiring.doctor.check import Check
from extproc.wiring.doctor.document import at, inside, listed
from extproc.wiring.doctor.finding import Hit, Severity
from extproc.wiring.doctor.setup import WIRING, ClusterView, Gateway, Setup
from extproc.wiring.doctor.typed import Part, Reader

_HASHING = (ClusterLbPolicy.RING_HASH, ClusterLbPolicy.MAGLEV)
_FROZEN_S = 30.0  # a frozen replica is to be found sooner than this
_SLOW_S = 10.0
_ENGINE_IDLE_S = 5.0  # vLLM's server closes an idle connection then
HEALTH_CHECKS = (
    "health_checks:\n- { timeout: 1s, interval: 1s, no_traffic_interval: 1s, unhealthy_threshold: 2, "
    "healthy_threshold: 1, grpc_health_check: {} }"
)


def _http2(cluster: ClusterView) -> Http2ProtocolOptions | None:
    """How the cluster speaks HTTP/2; None: it does not."""
    message, options = cluster.part.message, cluster.options
    if options is None:
        return message.http2_protocol_options
    explicit, auto = options.message.explicit_http_config, options.message.auto_config
    if explicit is not None:
        return explicit.http2_protocol_options
    if auto is not None:
        return auto.http2_protocol_options or Http2ProtocolOptions()
    same = options.message.use_downstream_protocol_config
    return (same.http2_protocol_options or Http2ProtocolOptions()) if same is not None else None


def policies(cluster: ClusterView) -> list[Part[betterproto2.Message]]:
    """Of load balancing, those that could be read."""
    raw, where = cluster.part.raw, at(cluster.where, "load_balancing_policy")
    reader, found = Reader(), []
    for place, each in listed(inside(raw, "load_balancing_policy"), "policies", where):
        config = inside(each, "typed_extension_config").get("typed_config")
        part = reader.read_any(config, at(place, "typed_extension_config", "typed_config"))
        if part is not None:
            found.append(part)
    return found


def hashes(cluster: ClusterView) -> bool:
    """Whether it chooses a replica by what a stream carries."""
    kinds = {type(each.message).__name__ for each in policies(cluster)}
    return bool(kinds & {"RingHash", "Maglev"}) or cluster.part.message.lb_policy in _HASHING


def _pins(gateway: Gateway) -> bool:
    """Whether streams carry something to choose a replica by."""
    return any(h.key != WIRING for each in gateway.processors for h in each.service.initial_metadata)


def _not_http2(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        if _http2(cluster) is None:
            yield Hit(cluster.options_at, f"cluster {cluster.name} does not speak HTTP/2")


def _keepalive(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        http2 = _http2(cluster)
        if http2 is None:
            continue
        keepalive = http2.connection_keepalive
        seconds = _found_after(keepalive)
        if keepalive is None or seconds > _FROZEN_S:
            said = "none" if keepalive is None or seconds == 0 else f"a frozen replica is found after {seconds:g}s"
            yield Hit(cluster.options_at, f"connection_keepalive of cluster {cluster.name}: {said}")


def _found_after(keepalive: KeepaliveSettings | None) -> float:
    parts = (keepalive.interval, keepalive.timeout) if keepalive is not None else ()
    return sum(each.total_seconds() for each in parts if each is not None)


def _health_checks(setup: Setup) -> Iterator[Hit]:
    if setup.config.cluster.mode == "standby":  # see `standby_unchecked`
        return
    for cluster in setup.fairlane:
        if len(cluster.endpoints) > 1 and not cluster.part.message.health_checks:
            count = len(cluster.endpoints)
            yield Hit(cluster.where, f"cluster {cluster.name} has {count} endpoints and no health_checks")


def _health_check_single(setup: Setup) -> Iterator[Hit]:
    if setup.config.cluster.mode == "standby":
        return
    for cluster in setup.fairlane:
        if len(cluster.endpoints) == 1 and not cluster.part.message.health_checks:
            yield Hit(cluster.where, f"cluster {cluster.name} has one endpoint and no health_checks")


def _closes_on_failure(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        if cluster.part.message.close_connections_on_host_health_failure:
            yield Hit(cluster.where, f"close_connections_on_host_health_failure of cluster {cluster.name} is on")


def _health_checks_rare(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        for number, check in enumerate(cluster.part.message.health_checks):
            interval = check.no_traffic_interval
            if cluster.several and (interval is None or interval.total_seconds() > _SLOW_S):
                shown = "60s by default" if interval is None else f"{interval.total_seconds():g}s"
                yield Hit(at(cluster.where, "health_checks", number), f"no_traffic_interval is {shown}")


def _hash_without_metadata(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        if hashes(cluster):
            for gateway in setup.gateways:
                if not _pins(gateway):
                    yield Hit(
                        gateway.processors[0].at, f"cluster {cluster.name} hashes, and the filter sends nothing to hash"
                    )


def _hash_policy(setup: Setup) -> Iterator[Hit]:
    sent = [
        header.key.lower()
        for gateway in setup.gateways
        for each in gateway.processors
        for header in each.service.initial_metadata
        if header.key != WIRING
    ]
    for cluster in setup.fairlane:
        if not sent or not hashes(cluster):
            continue
        policies = cluster.options.message.hash_policy if cluster.options is not None else []
        names = [policy.header.header_name.lower() for policy in policies if policy.header is not None]
        if not any(name in sent for name in names):
            fix = f"hash_policy: [ {{ header: {{ header_name: {sent[0]} }} }} ]"
            yield Hit(cluster.options_at, f"cluster {cluster.name}: no hash_policy by the header {sent[0]}", fix)


def _metadata_without_hash(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        if cluster.several and not hashes(cluster) and any(_pins(gateway) for gateway in setup.gateways):
            yield Hit(cluster.where, f"cluster {cluster.name} does not hash, and ext_proc sends initial_metadata")


def _not_pinned(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        two = any(len(gateway.processors) > 1 for gateway in setup.gateways)
        if two and len(cluster.endpoints) > 1 and not hashes(cluster):
            yield Hit(cluster.where, f"cluster {cluster.name} has several endpoints, and two filters ask it")


def _panic(setup: Setup) -> Iterator[Hit]:
    for cluster in setup.fairlane:
        common = cluster.part.message.common_lb_config
        threshold = common.healthy_panic_threshold if common is not None else None
        if threshold is not None and threshold.value == 0:
            place = at(cluster.where, "common_lb_config", "healthy_panic_threshold")
            yield Hit(place, f"healthy_panic_threshold of cluster {cluster.name} is 0")


# -- engines -----------------------------------------------------------------------------------------


def _engine_idle(setup: Setup) -> Iterator[Hit]:
    if all(pool.engine == "llamacpp" for pool in setup.config.pools):
        return
    for cluster in setup.engines:
        options = cluster.options.message if cluster.options is not None else None
        common = options.common_http_protocol_options if options is not None else None
        idle = common.idle_timeout if common is not None else None
        if idle is None or not 0 < idle.total_seconds() < _ENGINE_IDLE_S:
            shown = "1h by default" if idle is None else f"{idle.total_seconds():g}s"
            yield Hit(cluster.options_at, f"idle_timeout of cluster {cluster.name} is {shown}")


def _trailers_unread(setup: Setup) -> Iterator[Hit]:
    for gateway in setup.gateways:
        for each in gateway.processors:
            if "no-trailers" not in each.words:
                continue
            names = dict.fromkeys(name for route in gateway.queued for name in route.clusters)
            for name in names:
                cluster = setup.clusters.get(name)
                if cluster is not None and _http2(cluster) is not None:
                    yield Hit(each.at, f"{WIRING} says no-trailers, and cluster {name} speaks HTTP/2")


CHECKS = (
    Check(
        "fairlane_not_http2",
        Severity.ERROR,
        "ext_proc is gRPC, which needs HTTP/2; over HTTP/1.1 every request fails or passes unscheduled.",
        "explicit_http_config:\n  http2_protocol_options:\n    connection_keepalive: { interval: 3s, timeout: 2s }",
        _not_http2,
    ),
    Check(
        "keepalive",
        Severity.WARNING,
        "A frozen Fairlane, or one whose machine vanished, is found by connection_keepalive alone; until then its held "
        "requests wait for nothing.",
        "explicit_http_config:\n  http2_protocol_options:\n    connection_keepalive: { interval: 3s, timeout: 2s }",
        _keepalive,
    ),
    Check(
        "health_checks_missing",
        Severity.WARNING,
        "Without health checks new requests go on to a replica that is shutting down or frozen.",
        HEALTH_CHECKS,
        _health_checks,
    ),
    Check(
        "health_check_single",
        Severity.NOTE,
        "Without a health check a single Fairlane that is frozen or draining is found by keepalive alone, when "
        "requests wait for it already, and Envoy's membership_healthy does not show it.",
        HEALTH_CHECKS,
        _health_check_single,
    ),
    Check(
        "closes_on_health_failure",
        Severity.ERROR,
        "A replica that ends says that it does not serve, and still has answers to follow; with this Envoy closes its "
        "connections at the failed check, and it loses sight of requests that are still running.",
        "close_connections_on_host_health_failure: false",
        _closes_on_failure,
    ),
    Check(
        "health_checks_rare",
        Severity.WARNING,
        "A cluster that had no request yet is checked at no_traffic_interval only, 60 s by default.",
        "no_traffic_interval: 1s",
        _health_checks_rare,
    ),
    Check(
        "ring_hash_without_metadata",
        Severity.ERROR,
        "Ring hash chooses a replica by what the stream's initial_metadata carries, and without it chooses at random.",
        "grpc_service:\n  initial_metadata: [ { key: x-pool, value: '%REQ(x-pool)%' } ]",
        _hash_without_metadata,
    ),
    Check(
        "hash_policy_missing",
        Severity.ERROR,
        "The hash of ext_proc's stream is made by the hash_policy in the HttpProtocolOptions of Fairlane's cluster "
        "(Envoy 1.37 and later), over the stream's initial_metadata; that of a route sends only its own requests.",
        "hash_policy: [ { header: { header_name: x-pool } } ]   # the key that initial_metadata has",
        _hash_policy,
    ),
    Check(
        "metadata_without_ring_hash",
        Severity.WARNING,
        "initial_metadata pins a request to a replica only if the cluster hashes by it; else it does nothing.",
        "lb_policy: RING_HASH",
        _metadata_without_hash,
    ),
    Check(
        "replicas_not_pinned",
        Severity.ERROR,
        "The filter that follows the answer has to reach the replica that has held the request, or a slot is freed "
        "early there and unknown here.",
        "lb_policy: RING_HASH   # and the same initial_metadata in both filters",
        _not_pinned,
    ),
    Check(
        "panic_threshold",
        Severity.ERROR,
        "At 0 Envoy answers no_healthy_upstream when all replicas are away, which is not retried: what was held is "
        "lost.",
        "value: 1",
        _panic,
    ),
    Check(
        "engine_idle_timeout",
        Severity.WARNING,
        "vLLM closes an idle connection after 5 s, and a request that meets the closing connection gets 503; let Envoy "
        "be first.",
        "common_http_protocol_options: { idle_timeout: 4s }",
        _engine_idle,
    ),
    Check(
        "no_trailers_over_http2",
        Severity.ERROR,
        "With no-trailers Fairlane does not read on after its answer; trailers of an engine that speaks HTTP/2 would "
        "wait for it.",
        "# leave no-trailers out of fairlane-wiring",
        _trailers_unread,
    ),
)
