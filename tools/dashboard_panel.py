"""What a panel of the dashboard is, and the queries that panels are made of.

Queries see the variables of the dashboard through the selectors below. Rates go by `$__rate_interval`, which fits the
scrape interval that the data source is configured with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SERVICE = 'job=~"$job", instance=~"$instance"'
POOL = f'{SERVICE}, pool=~"$pool"'
CLASS = f'{POOL}, class=~"$class"'
ENDPOINT = f'{POOL}, endpoint=~"$endpoint"'

RATE = "[$__rate_interval]"


@dataclass(frozen=True)
class Query:
    expr: str
    legend: str = ""
    instant: bool = False  # a table of what is now


@dataclass(frozen=True)
class Panel:
    title: str
    description: str
    unit: str  # Grafana's id of it
    queries: tuple[Query, ...]
    kind: str = "timeseries"
    width: int = 8  # of 24
    height: int = 8
    stacked: bool = False
    dashed: str = ""  # series whose names match are limits: dashed, and on top of no stack
    most: float | None = None  # of the axis
    thresholds: tuple[tuple[float | None, str], ...] = ((None, "green"),)  # from which value, colour
    mappings: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # value -> text, colour
    repeat: str = ""  # a variable: one panel for each of its values
    more: Mapping[str, Any] = field(default_factory=dict)  # options of the kind


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False


def rate(metric: str, selector: str, by: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{selector}}}{RATE}))" if by else f"sum(rate({metric}{{{selector}}}{RATE}))"


def sum_of(metric: str, selector: str, by: str = "") -> str:
    return f"sum by ({by}) ({metric}{{{selector}}})" if by else f"sum({metric}{{{selector}}})"


def quantile(share: float, metric: str, selector: str, by: str = "") -> str:
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {rate(metric + '_bucket', selector, labels)})"


def lines(title: str, description: str, unit: str, *queries: tuple[str, str], **more: Any) -> Panel:
    """Lines over time. `queries`: expression and legend."""
    return Panel(title, description, unit, tuple(Query(expr, legend) for expr, legend in queries), **more)


def number(title: str, description: str, unit: str, expr: str, **more: Any) -> Panel:
    return Panel(title, description, unit, (Query(expr, title),), kind="stat", width=3, height=4, **more)


def table(title: str, description: str, *exprs: str, **more: Any) -> Panel:
    return Panel(title, description, "none", tuple(Query(e, instant=True) for e in exprs), kind="table", **more)
