"""Counters and histograms of what each request is counted by.

prometheus-client's own take locks and make checks, which cost four times as much. All that counts here does so on the
event loop's thread; what may be counted from another one is a Counter of prometheus-client's.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

from extproc.telemetry.metrics.labels import label

OTHER = "other"


class Budget:
    """Samples that may still be begun: the hard cap on what is counted. `left_out` counts what it has refused."""

    def __init__(self, samples: int) -> None:
        self._left = samples
        self.left_out = 0

    def take(self, samples: int) -> bool:
        """False: there is no room for them."""
        if samples > self._left:
            self.left_out += 1
            return False
        self._left -= samples
        return True

    def give_back(self, samples: int) -> None:
        self._left += samples


class Count:
    """One sample of a counter."""

    __slots__ = ("created", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self.created = time.time()


class Counts:
    """A counter. `most`: so many values of the last label, for the same values of the others; those that come later are
    counted together, as `other`. None: as many as come."""

    def __init__(self, name: str, text: str, labels: Sequence[str], budget: Budget, most: int | None = None) -> None:
        """`name` without its prefix. Without labels it begins at 0; else each label set when it is first asked for."""
        self._name, self._text, self._labels = f"fairlane_{name}", text, labels
        self._budget = budget
        self._most = most
        self._of: dict[tuple[str, ...], Count] = {}
        if not labels:
            self.of(())

    def add(self, labels: tuple[str, ...]) -> None:
        count = self._of.get(labels) or self._begun(labels)
        count.value += 1

    def of(self, labels: tuple[str, ...]) -> Count:
        """To be kept where it is needed often. One that the cap leaves out counts for nothing."""
        return self._of.get(labels) or self._begun(labels)

    def _begun(self, labels: tuple[str, ...]) -> Count:
        if self._most is not None and sum(known[:-1] == labels[:-1] for known in self._of) >= self._most:
            labels = (*labels[:-1], OTHER)
            if labels in self._of:
                return self._of[labels]
        made = Count()
        if self._budget.take(2):
            self._of[labels] = made
        return made

    def family(self) -> CounterMetricFamily:
        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for labels, count in self._of.items():
            family.add_metric([label(each) for each in labels], count.value, created=count.created)
        return family


class Distribution:
    """One label set of a histogram."""

    __slots__ = ("bounds", "created", "fell", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.fell = [0] * (len(bounds) + 1)  # into each bucket, the last of which has no end
        self.total = 0.0
        self.created = time.time()

    def add(self, value: float) -> None:
        self.fell[bisect_left(self.bounds, value)] += 1
        self.total += value


class Histogram:
    """Of what is not negative."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float], budget: Budget) -> None:
        """`name` without its prefix; `bounds`: of the buckets, each within its bucket, the least first. Begins as
        `Counts` does."""
        self._name, self._text, self._labels = f"fairlane_{name}", text, labels
        self._budget = budget
        self._bounds = tuple(float(bound) for bound in bounds)  # to compare with an int takes longer
        self._of: dict[tuple[str, ...], Distribution] = {}
        if not labels:
            self.of(())

    def add(self, labels: tuple[str, ...], value: float) -> None:
        self.of(labels).add(value)

    def of(self, labels: tuple[str, ...]) -> Distribution:
        """As that of `Counts`."""
        found = self._of.get(labels)
        if found is None:
            found = Distribution(self._bounds)
            if self._budget.take(len(self._bounds) + 4):  # +Inf, count, sum, created
                self._of[labels] = found
        return found

    def family(self) -> HistogramMetricFamily:
        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        bounds = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        for labels, found in self._of.items():
            shown = [label(each) for each in labels]
            family.add_metric(shown, list(zip(bounds, accumulate(found.fell), strict=True)), found.total)
            family.add_sample(f"{self._name}_created", dict(zip(self._labels, shown, strict=True)), found.created)
        return family
