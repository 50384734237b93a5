"""The plain rule: release while the last page shows fewer than `threshold` requests waiting, and nothing else.

A baseline. Its known fault: between two pages nothing changes, so everything that waits leaves at once. The page is
believed however old it is; without any page yet (or in an outage whose policy is to degrade) it goes by `floor`.
"""

from __future__ import annotations

from extproc.core.windows.base import Window
from extproc.core.windows.view import Hold, Stance


class Threshold(Window):
    name = "threshold"
    counts_foreign = False

    def _reset(self) -> None:
        self.capacity = self.policy.ceiling

    def _bound(self) -> None:
        self.capacity = self.policy.ceiling

    def _limit(self, _q: float, stance: Stance, /) -> float:
        if self._last is None or stance is Stance.OUTAGE:
            return max(1.0, self.policy.floor)
        # Closed: 1, since an endpoint with nothing of ours inside takes one.
        return float("inf") if self._last.waiting < self.policy.threshold else 1.0

    def _full(self, _inside: int, _q: float, _stance: Stance, /) -> Hold:
        waiting = 0 if self._last is None else self._last.waiting
        return Hold("threshold", waiting, self.policy.threshold, "requests")
