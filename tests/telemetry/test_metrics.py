"""The metrics page, read by Prometheus' own parser: names, types, labels and help as in `metrics.golden`, and values
that follow from what was told."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.events import Evict, Refuse, Release, Settled
from extproc.core.model import Source
from extproc.core.priority import PriorityWay
from extproc.core.reasons import Reason
from extproc.core.view import ClassView, PoolView
from extproc.core.windows import Stance, WindowView
from extproc.telemetry.metrics import ConfigurationStats, EndpointSetStats, Metrics, ScrapeStats

GOLDEN = Path(__file__).with_name("metrics.golden")

READ = WindowView(
    "10.0.0.1:8000",
    Stance.FRESH,
    capacity=12.5,
    foreign=2,
    in_flight=7,
    tpot_window=9.0,
    tpot_s=0.05,
    running=8,
    waiting=1,
    kv_usage=0.25,
    age_s=0.125,
    turned_away=4,
    prefix_queries=100.0,
    prefix_hits=25.0,
)
UNREAD = WindowView("10.0.0.2:8000", Stance.STARTING, 8.0, 0, 0, None, None, None, None, None, None)
POOL = PoolView(
    "sim",
    queued=5,
    queued_bytes=5000,
    in_flight=7,
    known=13,
    releases_per_s=1.5,
    classes=(ClassView("interactive", 0, 2, 4, 3), ClassView("batch", 1, 3, 3, 1)),
    endpoints=(READ, UNREAD),
    counts={"usage": 1, "page": 0},
)
SCRAPERS = [
    ScrapeStats("sim", "10.0.0.1:8000", "vllm", 40, {"timeout": 2, "refused": 0}, 0.0125, PriorityWay(header=True)),
    ScrapeStats("sim", "10.0.0.2:8000", "unknown", 0, {}, 0.0, PriorityWay(body=True, high_first=True)),
]
SETS = [EndpointSetStats("sim", endpoints=2, failures=3, age_s=0.5), EndpointSetStats("other", 0, 1, None)]


CONFIGURATION = ConfigurationStats(
    revision=7, overrides=3, file_good=False, state_read_only=True, expiries_failed=1, outcomes={"ok": 6, "ABORTED": 1}
)


def filled() -> Metrics:
    """One of everything that can be told."""
    metrics = Metrics("1.2.3")
    metrics.watch(lambda: [POOL], lambda: SCRAPERS, lambda: SETS, lambda: 12, lambda: [POOL], lambda: CONFIGURATION)
    metrics.effects(
        "sim",
        [
            Release("1", "10.0.0.1:8000", 0, "tenant-a", "interactive", 0.25),
            Release("2", "10.0.0.1:8000", 0, "tenant-b", "interactive", 0.75),
            Refuse("3", Reason.QUEUE_TIMEOUT, "why", 1, "tenant-a", "batch", 90.0),
            Settled("1", "tenant-a", "interactive", Source.USAGE, 120.0, 100.0),
            Settled("2", "tenant-a", "interactive", Source.USAGE, 0.5, 100.0),
            Settled("4", "tenant-a", "interactive", Source.ERROR, 0.0, 100.0),
        ],
    )
    metrics.cancelled("sim")
    metrics.handed_over("sim")
    metrics.passed("unknown_model")
    metrics.observed("sim", "interactive", "released_later", 2.0, 1)
    metrics.observed("sim", "interactive", "released_later", 20.0, 1)
    metrics.observed("sim", "batch", "queue_full", 0.0)
    metrics.refused("body_too_large")
    metrics.refused("queue_timeout")
    metrics.effects("sim", [Evict("5", Reason.PREEMPTED, "why", 1, "tenant-a", "batch", 3.0)])
    metrics.untracked()
    metrics.body_edit("edited")
    metrics.clamped()
    metrics.fault("stream")
    metrics.access_log("matched")
    metrics.choice_ignored("sim")
    return metrics


def ours(metrics: Metrics) -> list[Metric]:
    """Families of ours but the times at which they were made. Those of the process and of Python depend on the
    platform."""
    families = text_string_to_metric_families(generate_latest(metrics.registry).decode())
    return [f for f in families if f.name.startswith("fairlane_") and not f.name.endswith("_created")]


def values(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """(name, labels in order of their names) -> value"""
    return {
        (sample.name, *(text for _, text in sorted(sample.labels.items()))): sample.value
        for family in ours(metrics)
        for sample in family.samples
    }


def described(families: Iterable[Metric]) -> str:
    rows = []
    for family in families:
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        rows.append(f"{family.name} {family.type} {','.join(sorted(labels)) or '-'}\n    {family.documentation}\n")
    return "".join(sorted(rows))


def test_names_types_labels_and_help() -> None:
    """Dashboards and alerts are built on these: a change here is a change for users."""
    assert described(ours(filled())) == GOLDEN.read_text(encoding="utf-8")


def test_units_stand_in_the_names_as_prometheus_wants_them() -> None:
    for family in ours(filled()):
        for sample in family.samples:
            if family.type == "counter":
                assert sample.name.endswith("_total")
        assert "_ms" not in family.name
        assert family.documentation


def test_no_label_comes_from_a_client() -> None:
    text = generate_latest(filled().registry).decode()
    assert "tenant-" not in text
    assert 'ticket="' not in text


def test_what_happened_is_counted() -> None:
    seen = values(filled())
    assert seen["fairlane_released_requests_total", "interactive", "sim"] == 2
    # one refused by the scheduler and one before it
    assert seen["fairlane_refused_requests_total", "queue_timeout"] == 2
    assert seen["fairlane_refused_requests_total", "body_too_large"] == 1
    assert seen["fairlane_settled_requests_total", "interactive", "sim", "usage"] == 2
    assert seen["fairlane_settled_requests_total", "interactive", "sim", "error"] == 1
    assert seen["fairlane_settled_cost_total", "interactive", "sim"] == 120.5
    assert seen["fairlane_cancelled_requests_total", "sim"] == 1
    assert seen["fairlane_handed_over_requests_total", "sim"] == 1
    assert seen["fairlane_ignored_choices_total", "sim"] == 1
    assert seen["fairlane_endpoint_prefix_query_tokens_total", "10.0.0.1:8000", "sim"] == 100
    assert seen["fairlane_endpoint_prefix_hit_tokens_total", "10.0.0.1:8000", "sim"] == 25
    assert seen["fairlane_endpoint_turned_away_total", "10.0.0.1:8000", "sim"] == 4
    assert seen["fairlane_priority_told_info", "10.0.0.1:8000", "low", "sim", "header"] == 1
    assert seen["fairlane_priority_told_info", "10.0.0.2:8000", "high", "sim", "body"] == 1
    assert seen["fairlane_endpoints", "sim"] == 2
    assert seen["fairlane_endpoint_source_failures_total", "other"] == 1
    assert seen["fairlane_endpoint_source_age_seconds", "sim"] == 0.5
    assert ("fairlane_endpoint_source_age_seconds", "other") not in seen  # never known: absent, not 0
    assert seen["fairlane_passed_requests_total", "unknown_model"] == 1
    assert seen["fairlane_clamped_requests_total",] == 1
    assert seen["fairlane_access_log_entries_total", "matched"] == 1
    assert seen["fairlane_evicted_requests_total", "batch", "sim"] == 1
    assert seen["fairlane_untracked_requests_total",] == 1
    assert seen["fairlane_body_edits_total", "edited"] == 1
    assert seen["fairlane_open_streams",] == 12


def test_the_wait_is_a_histogram_by_outcome() -> None:
    seen = values(filled())
    name = "fairlane_queue_wait_seconds"
    assert seen[f"{name}_count", "interactive", "released", "sim"] == 2
    assert seen[f"{name}_sum", "interactive", "released", "sim"] == 1.0
    # labels in order of their names: class, le, outcome, pool
    below = {le: seen[f"{name}_bucket", "interactive", le, "released", "sim"] for le in ("0.1", "0.25", "0.5", "1.0")}
    assert below == {"0.1": 0, "0.25": 1, "0.5": 1, "1.0": 2}
    assert seen[f"{name}_bucket", "batch", "60.0", "queue_timeout", "sim"] == 0
    assert seen[f"{name}_bucket", "batch", "120.0", "queue_timeout", "sim"] == 1


def test_what_would_be_is_counted_apart() -> None:
    seen = values(filled())
    assert seen["fairlane_observed_requests_total", "interactive", "released_later", "sim"] == 2
    assert seen["fairlane_observed_requests_total", "batch", "queue_full", "sim"] == 1
    name = "fairlane_observed_wait_seconds"
    assert seen[f"{name}_sum", "interactive", "released_later", "sim"] == 22
    assert seen[f"{name}_bucket", "interactive", "2.5", "released_later", "sim"] == 1
    assert seen["fairlane_observed_priority_total", "interactive", "sim", "1"] == 2
    assert not [key for key in seen if key[0] == "fairlane_observed_priority_total" and "batch" in key]
    assert seen["fairlane_observed_held_requests", "batch", "sim"] == 3


def test_what_is_is_read_at_the_scrape() -> None:
    seen = values(filled())
    assert seen["fairlane_build_info", "1.2.3"] == 1
    assert seen["fairlane_held_requests", "batch", "sim"] == 3
    assert seen["fairlane_class_in_flight", "interactive", "sim"] == 4
    assert seen["fairlane_flows", "interactive", "sim"] == 3
    assert seen["fairlane_held_bytes", "sim"] == 5000
    endpoint = {
        "in_flight": 7, "foreign": 2, "capacity": 12.5, "tpot_window": 9, "tpot_seconds": 0.05, "running": 8,
        "waiting": 1, "kv_usage_ratio": 0.25, "scrape_age_seconds": 0.125,
    }  # fmt: skip
    for name, value in endpoint.items():
        assert seen[f"fairlane_endpoint_{name}", "10.0.0.1:8000", "sim"] == value
    assert seen["fairlane_scrapes_total", "10.0.0.1:8000", "sim"] == 40
    assert seen["fairlane_scrape_failures_total", "10.0.0.1:8000", "timeout", "sim"] == 2
    assert seen["fairlane_scrape_duration_seconds", "10.0.0.1:8000", "sim"] == 0.0125
    assert seen["fairlane_dialect_info", "vllm", "10.0.0.1:8000", "sim"] == 1


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    names = {name for name, *labels in values(filled()) if "10.0.0.2:8000" in labels}
    assert names == {
        "fairlane_endpoint_in_flight",
        "fairlane_endpoint_foreign",
        "fairlane_endpoint_capacity",
        "fairlane_endpoint_stance",
        "fairlane_scrapes_total",
        "fairlane_scrape_duration_seconds",
        "fairlane_dialect_info",
        "fairlane_endpoint_failed_total",
        "fairlane_endpoint_turned_away_total",
        "fairlane_priority_told_info",
    }


def test_the_stance_is_one_of_all() -> None:
    seen = values(filled())
    for endpoint, stance in (("10.0.0.1:8000", Stance.FRESH), ("10.0.0.2:8000", Stance.STARTING)):
        states = {s: seen["fairlane_endpoint_stance", endpoint, "sim", s.value] for s in Stance}
        assert states == {s: float(s is stance) for s in Stance}


def test_before_anything_has_happened() -> None:
    """An alert on faults needs a zero to start from."""
    assert values(Metrics("1.2.3")) == {
        ("fairlane_build_info", "1.2.3"): 1,
        ("fairlane_clamped_requests_total",): 0,
        ("fairlane_faults_total", "stream"): 0,
        ("fairlane_faults_total", "scheduler"): 0,
        ("fairlane_faults_total", "recording"): 0,
        ("fairlane_faults_total", "key_file"): 0,
        ("fairlane_faults_total", "engines"): 0,
        ("fairlane_faults_total", "observer"): 0,
        ("fairlane_faults_total", "configuration"): 0,
        ("fairlane_faults_total", "token_file"): 0,
        ("fairlane_untracked_requests_total",): 0,
        ("fairlane_open_streams",): 0,
    }


def test_the_page_is_valid_as_openmetrics() -> None:
    text = generate_openmetrics(filled().registry).decode()
    names = {family.name for family in openmetrics_families(text)}
    assert {"fairlane_released_requests", "fairlane_queue_wait_seconds", "fairlane_scrapes"} <= names


def test_two_services_in_one_process_do_not_share_counters() -> None:
    one, two = Metrics("1"), Metrics("2")
    one.clamped()
    assert values(two)["fairlane_clamped_requests_total",] == 0


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_can_be_counted(reason: Reason) -> None:
    metrics = Metrics("1")
    metrics.effects("sim", [Refuse("1", reason, "why", 1, "a", "batch", 0.0)])
    assert values(metrics)["fairlane_refused_requests_total", reason.code] == 1
