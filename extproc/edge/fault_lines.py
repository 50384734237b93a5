"""Lines in the log about what goes wrong at the edge.

Whoever reaches the port can cause them, thousands a second, and a traceback has a dozen lines. So there are a few in a
row, then one a second; the next one that is told has the number of those that were not, `untold`. The counter
`fairlane_faults_total` has them all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import structlog

log = structlog.get_logger()

_IN_A_ROW = 5
_PER_S = 1.0


class FaultLines:
    """Of one kind of fault. Keeps two numbers and no timer."""

    __slots__ = ("_clock", "_event", "_left", "_since", "_untold")

    def __init__(self, event: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`event`: the name of its lines. `clock`: seconds."""
        self._event = event
        self._clock = clock
        self._left = float(_IN_A_ROW)
        self._since = -math.inf
        self._untold = 0

    def exception(self, **fields: Any) -> None:
        """For a fault of ours, while it is handled: with its traceback."""
        if self._may():
            log.exception(self._event, **fields, untold=self._told())

    def warning(self, **fields: Any) -> None:
        """For a fault of somebody else: where in our code it came to light tells nothing."""
        if self._may():
            log.warning(self._event, **fields, untold=self._told())

    def _may(self) -> bool:
        now = self._clock()
        self._left = min(float(_IN_A_ROW), self._left + (now - self._since) * _PER_S)
        self._since = now
        if self._left < 1.0:
            self._untold += 1
            return False
        self._left -= 1.0
        return True

    def _told(self) -> int:
        untold, self._untold = self._untold, 0
        return untold
