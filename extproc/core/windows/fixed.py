"""A fixed number of requests, whatever the page shows, and also without one once its grace is over. A baseline.

Foreign load is not counted, and nothing is learnt. An endpoint that is down takes nothing here either.
"""

from __future__ import annotations

from extproc.core.windows.base import Window
from extproc.core.windows.view import Hold, Stance


class Fixed(Window):
    name = "fixed"
    counts_foreign = False

    def _reset(self) -> None:
        self.capacity = float(self.policy.fixed)

    def _bound(self) -> None:
        self.capacity = float(self.policy.fixed)

    def _limit(self, _q: float, _stance: Stance, /) -> float:
        return self.capacity

    def _full(self, inside: int, _q: float, _stance: Stance, /) -> Hold:
        return Hold("fixed", inside, self.capacity, "requests")
