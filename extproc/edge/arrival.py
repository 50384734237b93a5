"""Arrival times, from Envoy's clock to the scheduler's.

A replayed request comes with the time of its first arrival, which gives it its old place. But Envoy may
run on another host, with a clock of its own. Among many requests some come fresh, within milliseconds;
so the smallest age seen over the last minute is the difference between the clocks, and is taken off.
A clock that is ahead shows at once, as an age below zero.
"""

from __future__ import annotations

_PERIOD_S = 30.0
_OLDEST_S = 3600.0  # Envoy holds nothing longer: an older arrival is no arrival


class ArrivalClock:
    """`now` and results are in seconds of the scheduler's clock; `epoch` is this host's wall clock."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._least: float | None = None  # smallest age of this period
        self._before: float | None = None  # and of the one before

    def arrival(self, claimed: float | None, epoch: float, now: float) -> float:
        """When the request came first. `claimed`: seconds since the epoch by Envoy's clock."""
        if claimed is None:
            return now
        age = epoch - claimed
        if self._since is None or now - self._since > _PERIOD_S:
            self._since, self._before, self._least = now, self._least, age
        else:
            self._least = age if self._least is None else min(self._least, age)
        # While only this process's first period has been seen, a large age may well be a replay.
        skew = min(self._least, 0.0) if self._before is None else min(self._least, self._before)
        return now - min(max(0.0, age - skew), _OLDEST_S)
