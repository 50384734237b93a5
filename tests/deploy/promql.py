"""Expressions of the rules and the dashboard, against the metrics that Fairlane exposes (the golden file)."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "fairlane.rules.yaml"
DASHBOARD = ROOT / "deploy" / "grafana" / "fairlane.json"
GOLDEN = ROOT / "tests" / "telemetry" / "metrics.golden"

OF_THE_SCRAPE = {"job", "instance"}  # labels that Prometheus adds
# Metrics of others, and their labels: of Prometheus, of the process, of Envoy (as its admin page has them).
OF_OTHERS: dict[str, set[str]] = {
    "up": set(),
    "process_start_time_seconds": set(),
    "process_cpu_seconds_total": set(),
    "process_resident_memory_bytes": set(),
    "envoy_http_ext_proc_failure_mode_allowed": {"envoy_http_conn_manager_prefix"},
    "envoy_cluster_upstream_rq_pending_overflow": {"envoy_cluster_name"},
}
_PARTS = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}
_METRIC = re.compile(r"\b((?:fairlane|process|envoy)_\w+|up)\b(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on|group_left)\s*\(([^)]*)\)")


def promtool() -> str:
    """Where it is. Skips where it is not, and fails in CI."""
    found = shutil.which("promtool")
    if found is None:
        reason = "promtool is not installed (Debian: apt install prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def exposed() -> dict[str, set[str]]:
    """Every name that a query may have -> its labels."""
    found = dict(OF_OTHERS)
    for line in GOLDEN.read_text().splitlines():
        if line.startswith(" "):
            continue
        name, kind, labels = line.split()
        for part in _PARTS[kind]:
            found[name + part] = set() if labels == "-" else set(labels.split(","))
        if kind == "histogram":
            found[name + "_bucket"] = found[name + "_bucket"] | {"le"}
    return found


def unknown(expr: str, metrics: dict[str, set[str]]) -> Iterator[str]:
    """What `expr` names and nobody exposes: metrics, and labels that none of its metrics has."""
    bare = re.sub(r"\b\w+:\w+:\w+\b(\{[^}]*\})?", "", expr)  # recorded series are checked where they are recorded
    there = set(OF_THE_SCRAPE)
    for name, selector in _METRIC.findall(_GROUPING.sub("", bare)):
        if name not in metrics:
            yield f"metric {name}"
            continue
        labels = metrics[name] | OF_THE_SCRAPE
        there |= labels
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            if label not in labels:
                yield f"label {label} of {name}"
    if bare != expr:
        return  # what recorded series have is not known here
    for grouping in _GROUPING.findall(bare):
        for label in filter(None, (part.strip() for part in grouping.split(","))):
            if label not in there:
                yield f"label {label} in {expr}"


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def panels() -> list[dict[str, Any]]:
    """Those that show something, also of closed rows."""
    found: list[dict[str, Any]] = []
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        found += panel["panels"] if panel["type"] == "row" else [panel]
    return found


def filled(expr: str) -> str:
    """An expression of the dashboard as Grafana sends it, with everything chosen."""
    return re.sub(r"\$(job|instance|pool|class|endpoint)\b", ".*", expr).replace("$__rate_interval", "1m")
