"""The alert rules: they parse, fire when they should, go by metrics that are exposed, and have a runbook entry each."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest
import yaml
from promql import ROOT, RULES, alerts, exposed, promtool, rules, unknown

UNIT_TESTS = RULES.with_name("fairlane.rules.test.yaml")


def run(*arguments: str, seconds: float = 100.0) -> str:
    done = subprocess.run(
        [promtool(), *arguments], cwd=RULES.parent, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_parse() -> None:
    assert f"{len(rules())} rules found" in run("check", "rules", RULES.name)


def test_the_example_configuration_parses() -> None:
    assert "SUCCESS" in run("check", "config", "prometheus.yaml")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_rules_fire_when_they_should() -> None:
    assert "SUCCESS" in run("test", "rules", UNIT_TESTS.name, seconds=390.0)


def test_each_alert_is_tested_to_fire_and_to_be_silent() -> None:
    fires: Counter[str] = Counter()
    silent: Counter[str] = Counter()
    for case in yaml.safe_load(UNIT_TESTS.read_text())["tests"]:
        for check in case["alert_rule_test"]:
            (fires if check.get("exp_alerts") else silent)[check["alertname"]] += 1
    names = {alert["alert"] for alert in alerts()}
    assert set(fires) == names
    assert set(silent) == names


def test_rules_go_by_what_is_exposed() -> None:
    metrics = exposed()
    assert [fault for rule in rules() for fault in unknown(rule["expr"], metrics)] == []


def test_recorded_series_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for alert in alerts() for name in re.findall(r"\b\w+:\w+:\w+\b", alert["expr"])}
    assert used == recorded


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(alert: dict) -> None:
    assert alert["alert"].startswith("Fairlane")
    assert alert["labels"].keys() == {"severity"}
    assert alert["labels"]["severity"] in ("page", "ticket", "info")
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{alert['alert'].lower()}"


def test_each_alert_has_a_runbook_entry_and_each_entry_an_alert() -> None:
    headings = re.findall(r"^#+ (Fairlane[A-Z]\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sorted(headings) == sorted(alert["alert"] for alert in alerts())


def test_a_query_that_names_what_is_not_there_is_found() -> None:
    metrics = {"fairlane_held_requests": {"pool", "class"}}
    assert list(unknown('sum by (pool) (fairlane_held_requests{class="a"})', metrics)) == []
    assert list(unknown("fairlane_held", metrics)) == ["metric fairlane_held"]
    assert list(unknown('fairlane_held_requests{tenant="a"}', metrics)) == ["label tenant of fairlane_held_requests"]
    assert list(unknown("sum by (zone) (fairlane_held_requests)", metrics)) == [
        "label zone in sum by (zone) (fairlane_held_requests)"
    ]
