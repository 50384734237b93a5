"""Several replicas: whether this one takes part, and how it reaches the store by which they meet."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric

from extproc.telemetry.metrics.families import alone, counter, filled, gauge, put
from extproc.telemetry.metrics.labels import label
from extproc.telemetry.metrics.sources import ClusterStats


def families(stats: ClusterStats | None) -> Iterable[Metric]:
    if stats is None:
        return
    info = gauge("cluster_info", "1, with the mode, the name of the cluster, and the id of this replica")
    put(info, {"mode": stats.mode, "name": label(stats.name), "replica": label(stats.replica)}, 1)
    yield info
    yield alone(gauge("cluster_active", "1 while this replica takes traffic; 0 while it stands by"), stats.active)
    passed = counter("cluster_standby_streams", "Streams that came while this replica stood by, and were served")
    yield alone(passed, stats.standby_streams)
    yield alone(gauge("cluster_expected_replicas", "Replicas that there should be, as configured"), stats.expected)
    if not stats.store_used:
        return
    gauges = (
        ("cluster_replicas", "Replicas that live, by the last answer of the store, this one included", stats.replicas),
        ("cluster_store_lost", "1 while the store does not answer", stats.lost),
        ("cluster_id_in_use", "1 while another process has the id of this replica", stats.in_use),
        ("cluster_other_versions", "Versions in the store whose replicas do not see this one", stats.other_versions),
    )
    for name, text, value in gauges:
        yield alone(gauge(name, text), value)
    age = gauge("cluster_exchange_age_seconds", "Seconds since the store's last answer")
    yield filled(age, [({}, stats)], lambda each: each.exchange_age_s)
    yield alone(counter("cluster_exchanges", "Exchanges with the store, failed ones too"), stats.exchanges)
    failed = counter("cluster_exchange_failures", "Exchanges with the store that failed, by cause")
    for kind, count in stats.failures.items():
        put(failed, {"kind": label(kind)}, count)
    yield failed
    yield alone(
        counter("cluster_bad_messages", "Messages of other replicas that could not be read"), stats.bad_messages
    )
    told = counter("cluster_bytes", "Bytes told to the store, and read from it")
    put(told, {"direction": "told"}, stats.bytes_told)
    put(told, {"direction": "read"}, stats.bytes_read)
    yield told
