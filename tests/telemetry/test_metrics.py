"""The metrics page, read by Prometheus' own parser: names, types, labels and help as in `metrics.golden`, and values
that follow from what was told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from extproc.config.telemetry import TenantSeries
from extproc.core.events import Evict, Refuse, Release, Settled
from extproc.core.explanation import Hold
from extproc.core.fairness import Fairness
from extproc.core.model import Source, Traffic
from extproc.core.priority import PriorityWay
from extproc.core.reasons import Reason
from extproc.core.view import ClassView, PoolView
from extproc.core.windows import Stance, WindowView
from extproc.telemetry.metrics import (
    ClusterStats,
    ConfigurationStats,
    EndpointSetStats,
    Metrics,
    ScrapeStats,
    Sources,
)

GOLDEN = Path(__file__).with_name("metrics.golden")
FAIRNESS = ("fairlane_class_tag_spread", "fairlane_class_jain_index", "fairlane_class_competing_tenants")

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
    failed=3,
    queue_target=3.0,
    limit=9.5,
    floor=9.0,
    others=1,
    claim=8.0,
)
UNREAD = WindowView("10.0.0.2:8000", Stance.STARTING, 8.0, 0, 0, None, None, None, None, None, None)
INTERACTIVE = ClassView(
    "interactive",
    0,
    queued=2,
    in_flight=4,
    tenants=3,
    queued_cost=640.0,
    queued_tokens=512.0,
    released_tokens=2048.0,
    prompt_tokens=900,
    cached_tokens=300,
    output_tokens=150,
    hold="window",
    closed_gates={"max_tpot": 1, "max_kv_usage": 0},
    limits={
        "max_queued_requests": 100,
        "max_queued_bytes": 1_000_000,
        "max_queued_tokens": 50_000,
        "max_in_flight_slots": 64,
        "max_waiting_requests": 3,
        "queue_timeout_seconds": 60.0,
        "min_share_ratio": 0.02,
    },
)
BATCH = ClassView("batch", 1, 3, 3, 1, limits={"max_queued_requests": 10, "queue_timeout_seconds": 300.0})
POOL = PoolView(
    "sim",
    queued=5,
    queued_bytes=5000,
    in_flight=7,
    known=13,
    releases_per_s=1.5,
    classes=(INTERACTIVE, BATCH),
    endpoints=(READ, UNREAD),
    counts={"usage": 1, "page": 0},
    since_release_s=4.5,
    limits={"max_queued_requests": 20_000, "max_queued_bytes": 2**31},
)
IDLE = PoolView("other", 0, 0, 0, 0, 0.0, (ClassView("default", 0, 0, 0, 0),), (), traffic=Traffic.PAUSED)
SCRAPERS = [
    ScrapeStats("sim", "10.0.0.1:8000", "vllm", 40, {"timeout": 2, "refused": 0}, 0.0125, PriorityWay(header=True)),
    ScrapeStats("sim", "10.0.0.2:8000", "unknown", 0, {}, 0.0, PriorityWay(body=True, high_first=True)),
]
SETS = [EndpointSetStats("sim", endpoints=2, failures=3, age_s=0.5), EndpointSetStats("other", 0, 1, None)]


CONFIGURATION = ConfigurationStats(
    revision=7,
    overrides=3,
    file_good=False,
    state_read_only=True,
    expiries_failed=1,
    outcomes={"ok": 6, "ABORTED": 1},
    loaded_at=1.8e9,
)
CLUSTER = ClusterStats(
    mode="standby",
    name="fairlane",
    replica="fairlane-0",
    expected=3,
    active=False,
    standby_streams=5,
    store_used=True,
    replicas=2,
    lost=True,
    in_use=True,
    other_versions=1,
    exchange_age_s=4.5,
    exchanges=100,
    failures={"timeout": 3, "auth": 1},
    bad_messages=2,
    bytes_told=12_345,
    bytes_read=54_321,
)
SOURCES = Sources(
    pools=lambda: [POOL, IDLE],
    scrapers=lambda: SCRAPERS,
    sets=lambda: SETS,
    open_streams=lambda: 12,
    observers=lambda: [POOL],
    configuration=lambda: CONFIGURATION,
    fairness=lambda: {
        "sim": {"interactive": Fairness(3, 0.75, 1234.5)},
        "gone": {"interactive": Fairness(2, 1.0, 0.0)},
    },
    objectives=lambda: {"interactive": 5.0},
    leaked=lambda: {"sim": 2},
    modes=lambda: {"sim": "enforce", "other": "observe"},
    held_of=lambda pool, tenant: 2 if (pool, tenant) == ("sim", "tenant-a") else 0,
    page_watchers=lambda: 6,
    cluster=lambda: CLUSTER,
    certificates=lambda: {"ext_proc": 1.9e9, "admin": None},
)


def filled() -> Metrics:
    """One of everything that can be told."""
    metrics = Metrics("1.2.3")
    metrics.watch(SOURCES)
    metrics.configure(TenantSeries(top=0, names=["tenant-a"]))
    tell(metrics)
    metrics.fault("stream")
    metrics.lines_left_out("slow", 7)
    metrics.spans_dropped("queue_full", 9)
    metrics.loop_lag(0.02)
    metrics.loop_lag(-0.001)
    metrics.exchanged(0.02)
    return metrics


def tell(metrics: Metrics) -> None:
    """Of requests."""
    metrics.effects(
        "sim",
        [
            Release("1", "10.0.0.1:8000", 0, "tenant-a", "interactive", 0.25),
            Release("2", "10.0.0.1:8000", 1_000_001, "tenant-b", "interactive", 0.75),
            Refuse("3", Reason.QUEUE_TIMEOUT, "why", 1, "tenant-a", "batch", 90.0),
            Settled("1", "tenant-a", "interactive", Source.USAGE, 120.0, 100.0),
            Settled("2", "tenant-a", "interactive", Source.USAGE, 0.5, 100.0),
            Settled("4", "tenant-a", "interactive", Source.ERROR, 0.0, 100.0),
            Settled("6", "tenant-b", "batch", Source.TIME, 10.0, 20.0),
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
    metrics.access_log("matched")
    metrics.choice_ignored("sim")


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


def test_no_label_comes_from_a_client_but_the_tenants_that_are_named() -> None:
    for sample in (sample for family in ours(filled()) for sample in family.samples):
        assert "ticket" not in sample.labels
        assert ("tenant" in sample.labels) == sample.name.startswith("fairlane_tenant_")
        assert sample.labels.get("tenant", "other") in {"tenant-a", "other"}


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
    assert seen["fairlane_endpoint_turned_away_requests_total", "10.0.0.1:8000", "sim"] == 4
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
    assert seen["fairlane_held_tokens", "interactive", "sim"] == 512
    assert seen["fairlane_held_cost", "interactive", "sim"] == 640
    assert seen["fairlane_released_tokens_total", "interactive", "sim"] == 2048
    assert seen["fairlane_class_in_flight_slots", "interactive", "sim"] == 4
    kinds = {
        kind: seen["fairlane_settled_tokens_total", "interactive", kind, "sim"]
        for kind in ("prompt", "cached", "output")
    }
    assert kinds == {"prompt": 900, "cached": 300, "output": 150}
    assert seen["fairlane_page_watchers",] == 6
    assert seen["fairlane_config_loaded_timestamp_seconds",] == 1.8e9
    assert seen["fairlane_certificate_expiry_timestamp_seconds", "ext_proc"] == 1.9e9
    assert ("fairlane_certificate_expiry_timestamp_seconds", "admin") not in seen
    assert seen["fairlane_flows", "interactive", "sim"] == 3
    assert seen["fairlane_held_bytes", "sim"] == 5000
    endpoint = {
        "in_flight_slots": 7, "foreign_requests": 2, "capacity_slots": 12.5, "queue_target_requests": 3,
        "limit_slots": 9.5, "room_slots": 0.5, "at_floor": 1, "tpot_window_slots": 9, "tpot_seconds": 0.05,
        "running_requests": 8, "waiting_requests": 1, "kv_usage_ratio": 0.25, "scrape_age_seconds": 0.125,
        "claim_slots": 8, "others_slots": 1,
    }  # fmt: skip
    for name, value in endpoint.items():
        assert seen[f"fairlane_endpoint_{name}", "10.0.0.1:8000", "sim"] == value
    assert seen["fairlane_scrapes_total", "10.0.0.1:8000", "sim"] == 40
    assert seen["fairlane_scrape_failures_total", "10.0.0.1:8000", "timeout", "sim"] == 2
    assert seen["fairlane_scrape_duration_seconds", "10.0.0.1:8000", "sim"] == 0.0125
    assert seen["fairlane_dialect_info", "vllm", "10.0.0.1:8000", "sim"] == 1


def test_of_other_replicas() -> None:
    seen = values(filled())
    assert seen["fairlane_cluster_info", "standby", "fairlane", "fairlane-0"] == 1
    alone = {
        "active": 0, "expected_replicas": 3, "standby_streams_total": 5, "replicas": 2, "store_lost": 1, "id_in_use": 1,
        "other_versions": 1, "exchange_age_seconds": 4.5, "exchanges_total": 100, "bad_messages_total": 2,
        "exchange_seconds_count": 1, "exchange_seconds_sum": 0.02,
    }  # fmt: skip
    assert {name: seen[f"fairlane_cluster_{name}",] for name in alone} == alone
    assert seen["fairlane_cluster_exchange_failures_total", "timeout"] == 3
    assert seen["fairlane_cluster_exchange_failures_total", "auth"] == 1
    assert seen["fairlane_cluster_bytes_total", "told"] == 12_345
    assert seen["fairlane_cluster_bytes_total", "read"] == 54_321


def of_cluster(stats: ClusterStats | None) -> set[str]:
    metrics = Metrics("1.2.3")
    metrics.watch(replace(SOURCES, cluster=lambda: stats))
    return {name for name, *_ in values(metrics) if name.startswith("fairlane_cluster_")}


def test_what_no_store_says_is_absent() -> None:
    assert of_cluster(None) == set()
    told = {"info", "active", "standby_streams_total", "expected_replicas"}
    assert of_cluster(replace(CLUSTER, store_used=False)) == {f"fairlane_cluster_{name}" for name in told}
    before = of_cluster(replace(CLUSTER, exchange_age_s=None))
    assert of_cluster(CLUSTER) - before == {"fairlane_cluster_exchange_age_seconds"}


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    names = {name for name, *labels in values(filled()) if "10.0.0.2:8000" in labels}
    assert names == {
        "fairlane_endpoint_in_flight_slots",
        "fairlane_endpoint_foreign_requests",
        "fairlane_endpoint_capacity_slots",
        "fairlane_endpoint_queue_target_requests",
        "fairlane_endpoint_limit_slots",
        "fairlane_endpoint_room_slots",
        "fairlane_endpoint_stance",
        "fairlane_scrapes_total",
        "fairlane_scrape_duration_seconds",
        "fairlane_dialect_info",
        "fairlane_endpoint_failed_requests_total",
        "fairlane_endpoint_turned_away_requests_total",
        "fairlane_priority_told_info",
    }


def test_limits_that_are_not_set_are_absent() -> None:
    seen = values(filled())
    limits = {
        name.removeprefix("fairlane_class_"): value
        for (name, *labels), value in seen.items()
        if labels == ["interactive", "sim"]
    }
    assert {name: limits[name] for name in INTERACTIVE.limits} == INTERACTIVE.limits
    assert seen["fairlane_class_wait_objective_seconds", "interactive", "sim"] == 5
    names = {f"fairlane_class_{name}" for name in (*INTERACTIVE.limits, "wait_objective_seconds")}
    of_batch = {name for name, *labels in seen if labels == ["batch", "sim"] and name in names}
    assert of_batch == {"fairlane_class_max_queued_requests", "fairlane_class_queue_timeout_seconds"}
    assert seen["fairlane_pool_max_queued_requests", "sim"] == 20_000
    assert seen["fairlane_pool_max_queued_bytes", "sim"] == 2**31
    assert ("fairlane_pool_max_queued_requests", "other") not in seen


def test_what_holds_a_class() -> None:
    seen = values(filled())
    holds = {hold.value: seen["fairlane_class_hold", "interactive", hold.value, "sim"] for hold in Hold}
    assert holds == {**dict.fromkeys(holds, 0), "window": 1}
    assert {seen["fairlane_class_hold", "batch", hold.value, "sim"] for hold in Hold} == {0}
    gates = {key[1:]: value for key, value in seen.items() if key[0] == "fairlane_class_gate_closed_endpoints"}
    assert gates == {("interactive", "max_tpot", "sim"): 1, ("interactive", "max_kv_usage", "sim"): 0}
    assert seen["fairlane_queue_stalled_seconds", "sim"] == 4.5
    assert seen["fairlane_queue_stalled_seconds", "other"] == 0  # nothing waits


def test_how_fair_it_is_where_two_compete() -> None:
    seen = values(filled())
    found = {key: value for key, value in seen.items() if key[0] in FAIRNESS}
    assert found == {
        ("fairlane_class_tag_spread", "interactive", "sim"): 1234.5,
        ("fairlane_class_jain_index", "interactive", "sim"): 0.75,
        ("fairlane_class_competing_tenants", "interactive", "sim"): 3,
    }


def test_what_pools_are() -> None:
    seen = values(filled())
    infos = {key[1:] for key in seen if key[0] == "fairlane_pool_info"}  # mode, pool, traffic
    assert infos == {("enforce", "sim", "open"), ("observe", "other", "paused")}
    assert seen["fairlane_leaked_slots", "sim"] == 2
    assert ("fairlane_leaked_slots", "other") not in seen


def test_estimates_are_held_against_what_was_counted() -> None:
    """Of usage: 100 / 120 and 100 / 0.5; not of an error, whose cost is 0, nor of what was told by time."""
    seen = values(filled())
    name = "fairlane_estimate_ratio"
    assert seen[f"{name}_count", "interactive", "sim"] == 2
    assert seen[f"{name}_sum", "interactive", "sim"] == pytest.approx(100 / 120 + 200)
    assert seen[f"{name}_bucket", "interactive", "0.8", "sim"] == 0
    assert seen[f"{name}_bucket", "interactive", "0.9", "sim"] == 1
    assert seen[f"{name}_bucket", "interactive", "10.0", "sim"] == 1
    assert seen[f"{name}_count", "batch", "sim"] == 0


def test_priorities_that_were_told() -> None:
    seen = values(filled())
    assert seen["fairlane_released_priority_total", "interactive", "sim", "0"] == 1
    assert seen["fairlane_released_priority_total", "interactive", "sim", "1000001"] == 1


def test_by_tenant_only_those_that_are_named() -> None:
    seen = values(filled())
    assert seen["fairlane_tenant_released_requests_total", "sim", "tenant-a"] == 1
    assert seen["fairlane_tenant_released_requests_total", "sim", "other"] == 1
    assert seen["fairlane_tenant_refused_requests_total", "sim", "tenant-a"] == 1
    assert seen["fairlane_tenant_settled_cost_total", "sim", "tenant-a"] == 120.5
    assert seen["fairlane_tenant_settled_cost_total", "sim", "other"] == 10
    assert seen["fairlane_tenant_queue_wait_seconds_total", "sim", "tenant-a"] == 90.25
    held = {key[1:]: value for key, value in seen.items() if key[0] == "fairlane_tenant_held_requests"}
    assert held == {("sim", "tenant-a"): 2}


def test_of_telemetry_itself() -> None:
    seen = values(filled())
    assert seen["fairlane_log_lines_left_out_total", "slow"] == 7
    assert seen["fairlane_spans_dropped_total", "queue_full"] == 9
    assert seen["fairlane_loop_lag_seconds_count",] == 2
    assert seen["fairlane_loop_lag_seconds_sum",] == pytest.approx(0.02)  # a timer that is early is not late
    assert seen["fairlane_loop_lag_seconds_bucket", "0.01"] == 1
    assert seen["fairlane_loop_lag_seconds_bucket", "0.025"] == 2


def test_where_telemetry_is_off_nothing_of_requests_is_counted() -> None:
    metrics = Metrics("1", enabled=False)
    before = values(metrics)
    tell(metrics)
    metrics.fault("stream")
    after = values(metrics)
    assert after.pop(("fairlane_faults_total", "stream")) == 1
    del before["fairlane_faults_total", "stream"]
    assert after == before


def test_what_cannot_be_read_does_not_take_the_rest_of_the_page_with_it() -> None:
    def broken() -> list[PoolView]:
        raise RuntimeError("no view")

    metrics = filled()
    metrics.watch(replace(SOURCES, pools=broken))
    with capture_logs() as lines:
        seen = values(metrics)
        assert seen["fairlane_released_requests_total", "interactive", "sim"] == 2
        assert seen["fairlane_scrapes_total", "10.0.0.1:8000", "sim"] == 40
        assert ("fairlane_held_bytes", "sim") not in seen
        seen = values(metrics)
        assert values(metrics)["fairlane_faults_total", "telemetry"] - seen["fairlane_faults_total", "telemetry"] == 1
    assert [(line["event"], line["part"]) for line in lines] == [("metrics_not_read", "views")]  # once
    metrics.watch(SOURCES)
    assert ("fairlane_held_bytes", "sim") in values(metrics)


def test_the_hard_cap_on_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted stays; what is read last is left out, and that is counted."""
    metrics = filled()
    kept = sum(len(family.samples) for family in metrics.collect()) - 100
    monkeypatch.setattr("extproc.telemetry.metrics.metrics.MOST_SAMPLES", kept)
    families = list(metrics.collect())
    assert sum(len(family.samples) for family in families) == kept + 1
    left_out = families[-1].samples[0]
    assert (left_out.name, left_out.value) == ("fairlane_series_left_out_total", 99)
    assert values(metrics)["fairlane_settled_requests_total", "interactive", "sim", "error"] == 1


def test_the_stance_is_one_of_all() -> None:
    seen = values(filled())
    for endpoint, stance in (("10.0.0.1:8000", Stance.FRESH), ("10.0.0.2:8000", Stance.STARTING)):
        states = {s: seen["fairlane_endpoint_stance", endpoint, "sim", s.value] for s in Stance}
        assert states == {s: float(s is stance) for s in Stance}


def test_before_anything_has_happened() -> None:
    """An alert on faults needs a zero to start from."""
    seen = values(Metrics("1.2.3"))
    lag = [key for key in seen if key[0].startswith("fairlane_loop_lag_seconds")]
    assert {seen.pop(key) for key in lag} == {0}
    refused = {key[1] for key in seen if key[0] == "fairlane_refused_requests_total"}
    assert refused == {reason.code for reason in Reason}
    passed = [key for key in seen if key[0] in ("fairlane_passed_requests_total", "fairlane_refused_requests_total")]
    assert {seen.pop(key) for key in passed} == {0}
    assert seen == {
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
        ("fairlane_faults_total", "telemetry"): 0,
        ("fairlane_faults_total", "cluster"): 0,
        ("fairlane_untracked_requests_total",): 0,
        ("fairlane_open_streams",): 0,
        ("fairlane_page_watchers",): 0,
        ("fairlane_series_left_out_total",): 0,
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
