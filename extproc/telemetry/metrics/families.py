"""Families of metrics, filled from rows of what is.

A row's labels are one dict, which all of its samples share: it is not to be changed once it is in a family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.samples import Sample

T = TypeVar("T")
Family = GaugeMetricFamily | CounterMetricFamily
F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily)

Labels = dict[str, str]
Row = tuple[Labels, T]  # its labels, and what they say where it is


def gauge(name: str, text: str) -> GaugeMetricFamily:
    """`name` without its prefix."""
    return GaugeMetricFamily(f"fairlane_{name}", text)


def counter(name: str, text: str) -> CounterMetricFamily:
    """`name` without its prefix and without `_total`."""
    return CounterMetricFamily(f"fairlane_{name}", text)


def put(family: Family, labels: Labels, value: float) -> None:
    family.samples.append(Sample(_sample_name(family), labels, value))


def filled(family: F, rows: Iterable[Row[T]], read: Callable[[T], float | None]) -> F:
    """`family` with a sample for each row that has a value; None: it has none."""
    name = _sample_name(family)
    for labels, row in rows:
        value = read(row)
        if value is not None:
            family.samples.append(Sample(name, labels, value))
    return family


def alone(family: F, value: float) -> F:
    """`family` with one sample, without labels."""
    put(family, {}, value)
    return family


def _sample_name(family: Family) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name
