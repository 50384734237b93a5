"""The dashboard: what is generated, its layout, and its queries against the metrics that are exposed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from promql import DASHBOARD, ROOT, exposed, filled, panels, promtool, unknown

# Shown by panels under names of their own, or of no use in a chart.
NOT_SHOWN = {"fairlane_estimate_ratio_count", "fairlane_estimate_ratio_sum"}


def board() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())


def queries() -> list[str]:
    events = [event["expr"] for event in board()["annotations"]["list"]]
    return [target["expr"] for panel in panels() for target in panel["targets"]] + events


def test_the_file_is_what_is_generated() -> None:
    code = "import gen_dashboard, sys; sys.stdout.write(gen_dashboard.text())"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "tools", capture_output=True, text=True, timeout=60, check=True
    ).stdout
    assert made == DASHBOARD.read_text(), "run: python tools/gen_dashboard.py"


def test_ids_are_unique() -> None:
    ids = [panel["id"] for panel in [*board()["panels"], *panels()]]
    rows = {panel["id"] for panel in board()["panels"] if panel["type"] == "row"}
    inside = {panel["id"] for panel in panels()}
    assert not rows & inside
    assert len(rows | inside) == len(set(ids))
    assert len(panels()) == len(inside)


def test_panels_do_not_overlap() -> None:
    taken: dict[tuple[int, int], int] = {}
    rows = [panel for panel in board()["panels"] if panel["type"] == "row" and not panel["collapsed"]]
    shown = [panel for panel in board()["panels"] if panel["type"] != "row"]
    for panel in [*rows, *shown]:
        place = panel["gridPos"]
        assert 0 <= place["x"] <= 24 - place["w"], panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["id"]) == panel["id"], panel["title"]


@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith("."), panel["title"]
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])


def test_titles_are_unique() -> None:
    titles = [panel["title"] for panel in panels()]
    assert len(titles) == len(set(titles))


def test_queries_parse(tmp_path: Path) -> None:
    rules = [{"record": f"q:{number}", "expr": filled(expr)} for number, expr in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(
        [promtool(), "check", "rules", str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert f"{len(rules)} rules found" in done.stdout, done.stdout + done.stderr


def test_queries_go_by_what_is_exposed() -> None:
    metrics = exposed()
    assert [fault for expr in queries() for fault in unknown(expr, metrics)] == []


def test_what_is_exposed_is_shown() -> None:
    everything = " ".join(queries())
    families = defaultdict(list)
    for name in exposed():
        if name.startswith("fairlane_") and name not in NOT_SHOWN:
            families[name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum")].append(name)
    assert [family for family, names in families.items() if not any(name in everything for name in names)] == []


def test_variables_are_read_from_what_is_exposed() -> None:
    metrics = exposed()
    variables = {each["name"]: each for each in board()["templating"]["list"]}
    assert list(variables) == ["datasource", "job", "instance", "pool", "class", "endpoint"]
    for name, variable in variables.items():
        if name != "datasource":
            expr, label = variable["definition"].removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
            assert label == name
            assert list(unknown(f"sum by ({label}) ({filled(expr)})", metrics)) == []
