"""How fast the queue drains, in requests and in cost: the basis of Retry-After and of the estimated wait."""

from __future__ import annotations

import math

_TAU_S = 30.0
_UNKNOWN_S = 5.0  # told while nothing has been measured
_BOUNDS_S = (1.0, 600.0)


class DrainRate:
    """Releases and their cost per second, exponentially weighted over half a minute."""

    def __init__(self) -> None:
        self._mass = 0.0
        self._cost = 0.0
        self._at = 0.0
        self._since: float | None = None

    def count(self, now: float, cost: float = 0.0) -> None:
        """One request of `cost` units was released."""
        if self._since is None:
            self._since = self._at = now
        at = self._at
        if now > at:
            keep = math.exp((at - now) / _TAU_S)
            self._mass = self._mass * keep + 1.0
            self._cost = self._cost * keep + cost
            self._at = now
        else:
            self._mass += 1.0
            self._cost += cost

    def resume(self, now: float) -> None:
        """Something waits again after the queue was empty: what was idle for long tells nothing of how
        fast it drains, and would make the first ones refused stay away for minutes."""
        if now - self._at > _TAU_S:
            self._since, self._mass, self._cost = None, 0.0, 0.0

    def per_second(self, now: float) -> float:
        """Requests a second; 0: not known."""
        return self._mass * self._scale(now)

    def cost_per_second(self, now: float) -> float:
        """Cost units a second; 0: not known."""
        return self._cost * self._scale(now)

    def _scale(self, now: float) -> float:
        if self._since is None or now <= self._since:
            return 0.0
        seen = 1.0 - math.exp(-(now - self._since) / _TAU_S)  # share of the kernel that has data
        return math.exp(-max(0.0, now - self._at) / _TAU_S) / (_TAU_S * seen)

    def wait_s(self, ahead: float, now: float) -> float:
        """Seconds until `ahead` requests have gone, within bounds that a client can use."""
        return bounded(ahead, self.per_second(now))


def bounded(ahead: float, rate: float) -> float:
    """`ahead` / `rate` seconds, between 1 and 600; 5 where no rate is known."""
    low, high = _BOUNDS_S
    return _UNKNOWN_S if rate <= 0.0 else min(max(ahead / rate, low), high)


def with_jitter(seconds: float, key: str) -> int:
    """Whole seconds, spread over -0..+25 % by `key`, so that refused clients do not return together.

    The spread is taken from the key and not drawn: the same events give the same effects."""
    spread = sum(key.encode()) * 2654435761 % 1024 / 1024
    return max(1, math.ceil(seconds * (1.0 + 0.25 * spread)))
