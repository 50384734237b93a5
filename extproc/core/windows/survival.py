"""How long answers turn out against their estimates: the survival function of output / estimate.

S(x) is the share of the last 512 finished requests whose ratio is above x; while there are fewer than 32 of them the
rest counts as exactly 1. The function and not the mean remaining length: by means every request is expected to live
on, which leaves a quarter of the KV cache unused when lengths are exponential.

Requests that finish first are the short ones, so for some seconds after a start S is too optimistic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

FINISHED = 512
_PAD = 32


class Survival:
    """What is `observed` counts from the next `refresh` on: sorting for each request would cost more than it tells."""

    __slots__ = ("_changed", "_recent", "area", "longest", "ratios")

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=FINISHED)
        self._changed = False
        self.ratios = [1.0] * _PAD  # sorted
        self.longest = 1.0  # no ratio in use or observed is above it
        self.area = 1.0  # the largest x * S(x)

    def observe(self, ratio: float) -> None:
        self._recent.append(ratio)
        self._changed = True
        if ratio > self.longest:
            self.longest = ratio

    def refresh(self) -> None:
        if not self._changed:
            return
        self._changed = False
        ratios = [*self._recent, *[1.0] * (_PAD - len(self._recent))]
        ratios.sort()
        count = len(ratios)
        self.ratios = ratios
        self.longest = ratios[-1]
        self.area = max(ratio * (count - i) for i, ratio in enumerate(ratios)) / count

    def above(self, x: float) -> float:
        """S(x)."""
        return 1.0 - bisect_right(self.ratios, x) / len(self.ratios)
