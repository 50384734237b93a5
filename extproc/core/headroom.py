"""Room that a class leaves for the arrivals of higher classes.

    B = R - 1 - quantile(Poisson(mean slots held by higher classes), 1 - epsilon)

R is the pool's running capacity. If requests of higher classes come at random and each holds its slots for
a while, the number of slots X that they hold is Poisson distributed (the occupancy of an M/G/infinity queue). Their
next arrival finds a slot if X + B + 1 <= R: with probability 1 - epsilon or more. (The design has R - quantile, one
slot more, which that arrival then lacks: 6 % of them for epsilon 5 % and a mean of 9.5.) With nobody above, and
nobody seen of late, B = R.

The mean is measured, exponentially weighted over a minute, and over what has been seen so far while that is less.
"""

from __future__ import annotations

import math
from statistics import NormalDist

_TAU_S = 60.0
_EXACT_UNTIL = 200.0  # mean beyond which the quantile is approximated, to within one slot
_STEP_S = 0.1  # between two looks at the quantile
_NOBODY = 0.001  # mean below which nobody above is expected
_MOST = 1e6  # slots of a pool


class Headroom:
    """`epsilon`, 0..1: how often an arrival of a higher class may find no slot."""

    __slots__ = ("_at", "_kept", "_kept_at", "_seen", "_sum", "_weight", "epsilon")

    def __init__(self, epsilon: float, now: float) -> None:
        self.epsilon = epsilon
        self._sum = 0.0
        self._weight = 0.0  # 0..1: how much of the kernel has data
        self._seen = 0
        self._at = now
        self._kept = 0  # slots kept free, as of `_kept_at`
        self._kept_at = -math.inf

    def change(self, epsilon: float) -> None:
        """Another `epsilon` from now on; what was measured stays."""
        self.epsilon = epsilon
        self._kept_at = -math.inf

    @property
    def mean(self) -> float:
        """Slots that higher classes hold, smoothed, as of the last `note`."""
        return self._mean(self._sum, self._weight)

    def note(self, slots: int, now: float) -> None:
        """Higher classes hold `slots` from now on."""
        if now > self._at:
            self._sum, self._weight = self._until(now)
            self._at = now
        if now - self._kept_at >= _STEP_S:
            self._kept, self._kept_at = self._keep(self.mean), now
        self._seen = slots

    def cap(self, capacity: float, now: float) -> int:
        """Slots that the class may hold, of a pool that runs `capacity` (infinite where no window knows it). Leaves no
        trace: an explanation asks too, and what it asks is in no recording."""
        kept = self._kept if now - self._kept_at < _STEP_S else self._keep(self._mean(*self._until(now)))
        return max(0, math.floor(min(capacity, _MOST)) - kept)

    def _until(self, now: float) -> tuple[float, float]:
        part = 1.0 - math.exp((self._at - now) / _TAU_S) if now > self._at else 0.0
        return self._sum + part * (self._seen - self._sum), self._weight + part * (1.0 - self._weight)

    def _mean(self, total: float, weight: float) -> float:
        return total / weight if weight > 0.0 else float(self._seen)

    def _keep(self, mean: float) -> int:
        return poisson_quantile(mean, 1.0 - self.epsilon) + 1 if mean > _NOBODY else 0


def poisson_quantile(mean: float, p: float) -> int:
    """The smallest k with P(X <= k) >= p, for X Poisson distributed with `mean`; 0 <= p < 1."""
    if mean <= 0.0:
        return 0
    if mean > _EXACT_UNTIL:
        # Cornish-Fisher: the normal quantile, and a term for the skew.
        z = NormalDist().inv_cdf(p) if p > 0.0 else -math.sqrt(mean)
        return max(0, math.ceil(mean + z * math.sqrt(mean) + (z * z - 1.0) / 6.0 - 0.5))
    k, term = 0, math.exp(-mean)
    below = term
    while below < p and k < 10 * _EXACT_UNTIL:
        k += 1
        term *= mean / k
        below += term
    return k
