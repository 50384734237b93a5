"""Adds up the series of one page by what they mean.

What a signal is read from is written as a sum of sample names, each with at most one label that chooses series:

    "vllm:num_requests_waiting + vllm:num_requests_swapped"
    'sglang:realtime_tokens_total{mode="prefill_compute|prefill_cache"}'     either of two values

A dialect gives several such sums for a signal, the preferred one first. The first of which every name has a series on
the page is used, and no other is looked at, also where its values turn out to be worthless: two generations of names
need not mean the same. Labels are never used by position: their order has changed before.

Which series count is a matter of their labels:

- Series that differ only in a label of `copies` (the process or the rank that reports) tell of the same thing, and the
  largest of them counts. So does one of two series with all labels alike, which a page must not have.
- Where a count is broken down by a label and the empty value of this label stands for all of them, only that counts.
- All others are added.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from extproc.engines.exposition import Samples

Names = tuple[str, ...]
"""Sums of sample names in the notation above, the preferred one first."""

Pairs = tuple[tuple[str, str], ...]
"""As `Names`, of two figures that make sense together only."""

_MAX_REQUESTS: Final = 1e9  # no engine holds so many; garbage such as -1 read as unsigned does
_MAX_SHARE: Final = 1.5  # rounding and known faults stay below; a percentage does not, and is of no known unit
_TERM: Final = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([a-zA-Z_]\w*)="([^"]*)"\})?')


@dataclass(frozen=True, slots=True)
class Term:
    """The series of one sample name, or those of them that have one of `values` in `label`."""

    name: str
    label: str | None = None
    values: frozenset[str] = frozenset()

    def series(self, page: Samples) -> list[tuple[dict[str, str], float]]:
        found = page.get(self.name, [])
        if self.label is None:
            return found
        return [(labels, value) for labels, value in found if labels.get(self.label) in self.values]


@functools.lru_cache(maxsize=1024)
def terms(text: str) -> tuple[Term, ...]:
    """The terms of a sum. Raises ValueError where it is not in the notation: a mistake in a dialect."""
    found = []
    for part in text.split(" + "):
        match = _TERM.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is no sample name")
        values = frozenset() if match[2] is None else frozenset(match[3].split("|"))
        found.append(Term(match[1], match[2], values))
    return tuple(found)


def is_there(text: str, page: Samples) -> bool:
    """Whether each name of a sum has a series on the page."""
    return all(term.series(page) for term in terms(text))


@dataclass(slots=True)
class Tally:
    """What one page gives, with account of the names used and of the values that cannot be true."""

    page: Samples
    copies: frozenset[str]
    breakdown: str | None
    names: dict[str, str] = field(default_factory=dict)  # signal -> the sum that gave it
    ignored: dict[str, int] = field(default_factory=dict)  # signal -> values dropped

    def total(self, signal: str, names: Names) -> float | None:
        """Added up over all series. None: not on the page, or one of them cannot be true: a sum over only some of the
        engines is not what the signal means."""
        return self._sum(signal, names, math.inf, None)

    def count(self, signal: str, names: Names) -> int | None:
        """As `total`, of requests."""
        value = self._sum(signal, names, _MAX_REQUESTS, self.breakdown)
        return None if value is None else round(value)

    def share(self, signal: str, names: Names) -> float | None:
        """The largest of ratios, 0..1: one full rank stalls its share of the requests. Above 1 it is clamped, and only
        a series that cannot be true is dropped: engines have reported both (vLLM issues 20302 and 28792)."""
        used = self._used(signal, names)
        if used is None:
            return None
        values = [value for term in terms(used) for _, value in term.series(self.page)]
        good = [value for value in values if 0 <= value <= _MAX_SHARE]  # not true of NaN
        self._ignore(signal, len(values) - len(good))
        return min(1.0, max(good)) if good else None

    def least(self, signal: str, names: Names) -> int | None:
        """The least of whole numbers above zero."""
        used = self._used(signal, names)
        if used is None:
            return None
        values = [value for term in terms(used) for _, value in term.series(self.page)]
        good = [round(value) for value in values if 1 <= value < _MAX_REQUESTS]
        self._ignore(signal, len(values) - len(good))
        return min(good, default=None)

    def pair(self, signal: str, pairs: Pairs) -> tuple[float | None, float | None]:
        """Both figures of the first pair that is there; both None unless both can be true. The name of the first stands
        for the pair."""
        for first, second in pairs:
            if is_there(first, self.page) and is_there(second, self.page):
                after = self.total(signal, (second,))
                before = self.total(signal, (first,))
                return (None, None) if before is None or after is None else (before, after)
        return None, None

    def _used(self, signal: str, names: Names) -> str | None:
        for text in names:
            if is_there(text, self.page):
                self.names[signal] = text
                return text
        return None

    def _sum(self, signal: str, names: Names, below: float, breakdown: str | None) -> float | None:
        used = self._used(signal, names)
        if used is None:
            return None
        values = [value for term in terms(used) for value in self._each(term, breakdown)]
        bad = sum(not 0 <= value < below for value in values)  # true of NaN as well
        self._ignore(signal, bad)
        return None if bad else sum(values)

    def _each(self, term: Term, breakdown: str | None) -> Iterator[float]:
        """A value for each thing that the series tell of."""
        found = term.series(self.page)
        if len(found) == 1:
            yield found[0][1]
            return
        if breakdown is not None and any(not labels.get(breakdown) for labels, _ in found):
            found = [(labels, value) for labels, value in found if not labels.get(breakdown)]
        largest: dict[frozenset[tuple[str, str]], float] = {}
        for labels, value in found:
            thing = frozenset(item for item in labels.items() if item[0] not in self.copies)
            before = largest.get(thing, value)
            largest[thing] = value if value > before or math.isnan(value) else before
        yield from largest.values()

    def _ignore(self, signal: str, values: int) -> None:
        if values:
            self.ignored[signal] = self.ignored.get(signal, 0) + values


def whole(labels: Mapping[str, str], key: str) -> int | None:
    """A label's value as a whole number, if it is one."""
    text = labels.get(key, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None
