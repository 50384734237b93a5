"""Writes deploy/grafana/fairlane.json from the rows in `dashboard_traffic` and `dashboard_service`.

A test compares the two.

The JSON is Grafana's (11 and later). Panels flow from left to right within their row, 24 columns wide. The data source
is a variable, so that the file can be imported as it is.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from dashboard_panel import POOL, SERVICE, Panel, Row
from dashboard_service import ENGINES, OPERATIONS, REPLICAS, WINDOWS
from dashboard_traffic import CLASSES, FAIRNESS, OBSERVED, OVERVIEW, TOKENS

FILE = Path(__file__).parent.parent / "deploy" / "grafana" / "fairlane.json"
_WIDTH = 24
_ROWS = (OVERVIEW, WINDOWS, CLASSES, FAIRNESS, TOKENS, ENGINES, OPERATIONS, REPLICAS, OBSERVED)
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

# name, label, what its values are read from
_VARIABLES = (
    ("job", "Job", "label_values(fairlane_build_info, job)"),
    ("instance", "Instance", 'label_values(fairlane_build_info{job=~"$job"}, instance)'),
    ("pool", "Pool", f"label_values(fairlane_pool_info{{{SERVICE}}}, pool)"),
    ("class", "Class", f"label_values(fairlane_held_requests{{{POOL}}}, class)"),
    ("endpoint", "Endpoint", f"label_values(fairlane_endpoint_stance{{{POOL}}}, endpoint)"),
)

# name, colour, expression, text
_EVENTS = (
    (
        "Configuration",
        "blue",
        f"changes(fairlane_config_revision{{{SERVICE}}}[2m]) > 0",
        "configuration changed at {{instance}}",
    ),
    ("Restarts", "red", f"changes(process_start_time_seconds{{{SERVICE}}}[2m]) > 0", "{{instance}} started"),
)


def dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y, number = 0, 0
    for row in _ROWS:
        number += 1
        header, inside, y, number = _row(row, y, number)
        panels += [header] if row.collapsed else [header, *inside]
    return {
        "annotations": {"list": [_event(*event) for event in _EVENTS]},
        "description": "Fair priority queues in front of LLM engines: what waits, why, and what is served. "
        "Alerts and what to do about them: docs/operations.md.",
        "editable": True,
        "graphTooltip": 1,  # one cross-hair for all panels
        "links": [],
        "panels": panels,
        "refresh": "30s",
        "schemaVersion": 39,
        "tags": ["fairlane", "llm"],
        "templating": {"list": [_datasource(), *(_variable(*each) for each in _VARIABLES)]},
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "title": "Fairlane",
        "uid": "fairlane",
        "version": 1,
    }


def text() -> str:
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def _row(row: Row, y: int, number: int) -> tuple[dict[str, Any], list[dict[str, Any]], int, int]:
    """(its header, its panels, the first line below it, the last id used)."""
    header: dict[str, Any] = {
        "collapsed": row.collapsed,
        "gridPos": {"h": 1, "w": _WIDTH, "x": 0, "y": y},
        "id": number,
        "title": row.title,
        "type": "row",
    }
    top, x, line, panels = y + 1, 0, 0, []
    for panel in row.panels:
        if x + panel.width > _WIDTH:
            top, x, line = top + line, 0, 0
        number += 1
        panels.append(_panel(panel, number, {"h": panel.height, "w": panel.width, "x": x, "y": top}))
        x, line = x + panel.width, max(line, panel.height)
    header["panels"] = panels if row.collapsed else []
    return header, panels, y + 1 if row.collapsed else top + line, number


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "datasource": _SOURCE,
        "description": panel.description,
        "fieldConfig": {"defaults": _defaults(panel), "overrides": _overrides(panel)},
        "gridPos": place,
        "id": number,
        "options": {**_OPTIONS[panel.kind], **panel.more},
        "targets": [
            {
                "datasource": _SOURCE,
                "editorMode": "code",
                "expr": query.expr,
                "format": {"table": "table", "heatmap": "heatmap"}.get(panel.kind, "time_series"),
                "instant": query.instant,
                "legendFormat": query.legend or "__auto",
                "range": not query.instant,
                "refId": chr(ord("A") + index),
            }
            for index, query in enumerate(panel.queries)
        ],
        "title": panel.title,
        "type": panel.kind,
    }
    if panel.kind == "table":
        made["transformations"] = [
            {"id": "merge", "options": {}},
            {"id": "organize", "options": {"excludeByName": {"Time": True, "__name__": True}}},
        ]
    if panel.repeat:
        made |= {"repeat": panel.repeat, "repeatDirection": "h", "maxPerRow": _WIDTH // panel.width}
    return made


def _defaults(panel: Panel) -> dict[str, Any]:
    defaults: dict[str, Any] = {
        "color": {"mode": "thresholds" if panel.kind in ("stat", "state-timeline") else "palette-classic"},
        "mappings": [
            {"type": "value", "options": {value: {"text": told, "color": colour, "index": index}}}
            for index, (value, (told, colour)) in enumerate(panel.mappings.items())
        ],
        "thresholds": {
            "mode": "absolute",
            "steps": [{"color": colour, "value": value} for value, colour in panel.thresholds],
        },
        "unit": panel.unit,
    }
    if panel.kind == "timeseries":
        defaults["min"] = 0
        defaults["custom"] = {
            "drawStyle": "line",
            "fillOpacity": 25 if panel.stacked else 5,
            "lineWidth": 1,
            "showPoints": "never",
            "spanNulls": False,
            "stacking": {"group": "A", "mode": "normal" if panel.stacked else "none"},
        }
    if panel.most is not None:
        defaults["max"] = panel.most
    return defaults


def _overrides(panel: Panel) -> list[dict[str, Any]]:
    if not panel.dashed:
        return []
    words = "|".join(re.escape(word) for word in panel.dashed.split("|"))
    properties = {
        "custom.lineStyle": {"dash": [8, 8], "fill": "dash"},
        "custom.fillOpacity": 0,
        "custom.stacking": {"group": "B", "mode": "none"},
    }
    return [
        {
            "matcher": {"id": "byRegexp", "options": rf"/\b({words})\b/"},
            "properties": [{"id": name, "value": value} for name, value in properties.items()],
        }
    ]


def _datasource() -> dict[str, Any]:
    return {
        "label": "Data source",
        "name": "datasource",
        "options": [],
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "type": "datasource",
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "datasource": _SOURCE,
        "definition": query,
        "includeAll": True,
        "label": label,
        "multi": True,
        "name": name,
        "options": [],
        "query": {"qryType": 1, "query": query, "refId": name},
        "refresh": 2,  # whenever the time range changes
        "regex": "",
        "sort": 1,
        "type": "query",
    }


def _event(name: str, colour: str, expr: str, told: str) -> dict[str, Any]:
    return {
        "datasource": _SOURCE,
        "enable": True,
        "expr": expr,
        "iconColor": colour,
        "name": name,
        "step": "60s",
        "textFormat": "",
        "titleFormat": told,
    }


_LEGEND = {"calcs": ["lastNotNull", "max"], "displayMode": "table", "placement": "bottom", "showLegend": True}
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": _LEGEND, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        "colorMode": "value",
        "graphMode": "area",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "value",
    },
    "state-timeline": {
        "alignValue": "left",
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False},
        "mergeValues": True,
        "rowHeight": 0.8,
        "showValue": "auto",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "steps": 64},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "showColorScale": True, "yHistogram": False},
        "yAxis": {"axisPlacement": "left", "unit": "s"},
    },
    "table": {"cellHeight": "sm", "showHeader": True},
}


if __name__ == "__main__":
    FILE.write_text(text())
