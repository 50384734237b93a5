"""What the service runs by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from extproc.telemetry.metrics.families import alone, counter, filled, gauge, put
from extproc.telemetry.metrics.labels import label
from extproc.telemetry.metrics.sources import ConfigurationStats


def families(stats: ConfigurationStats | None) -> Iterable[Metric]:
    if stats is None:
        return
    gauges = (
        ("config_revision", "Revision of the configuration in force", stats.revision),
        ("config_overrides", "Settings that were changed live and are not in the file", stats.overrides),
        (
            "config_file_good",
            "1; 0 when the file as it is now cannot be used, and the one before it goes on",
            stats.file_good,
        ),
        ("config_expiries_failed", "Temporary changes that are over and could not be undone", stats.expiries_failed),
        (
            "state_read_only",
            "1 when the file of changes cannot be used, so that nothing can be changed live",
            stats.state_read_only,
        ),
    )
    for name, text, value in gauges:
        yield alone(gauge(name, text), value)
    loaded = gauge("config_loaded_timestamp_seconds", "Unix time, in seconds, at which the file in force was read")
    yield loaded if stats.loaded_at is None else alone(loaded, stats.loaded_at)
    changes = counter(
        "config_changes", "Changes and attempts in the audit, by outcome: ok, dry_run, or the gRPC status"
    )
    for outcome, count in sorted(stats.outcomes.items()):
        put(changes, {"outcome": label(outcome)}, count)
    yield changes


def certificates(expiries: Mapping[str, float | None]) -> Iterable[Metric]:
    """`expiries`: of the ports with TLS, Unix time; None: not known."""
    text = "Unix time, in seconds, at which the certificate of a port expires"
    rows = (({"port": port}, moment) for port, moment in sorted(expiries.items()))
    yield filled(gauge("certificate_expiry_timestamp_seconds", text), rows, lambda moment: moment)
