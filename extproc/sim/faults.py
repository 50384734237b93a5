"""Faults that a test can switch on in a live engine. Not part of vLLM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any

from extproc.sim.fields import ApiError


@unique
class MetricsFault(Enum):
    """What becomes of the metrics page."""

    OK = "ok"
    DOWN = "down"
    """500."""
    HTML = "html"
    """200 with a page of HTML, as a proxy in the way answers."""
    EMPTY = "empty"
    """200 without a body, as vLLM answers a filtered request with several API servers."""
    HALF = "half"
    """The first half of the page, cut within a line."""
    SLOW = "slow"
    """The whole page after ``seconds``."""


@unique
class ShedFault(Enum):
    """How a stream is told that --max-num-queued-reqs is reached."""

    STATUS = "status"
    """503."""
    STREAM = "stream"
    """200 and an error event, as vLLM answers in a burst."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults that are on. ``hang``: the engine makes no step; health and gauges stay as they are."""

    metrics: MetricsFault = MetricsFault.OK
    seconds: float = 1.0
    hang: bool = False
    shed: ShedFault = ShedFault.STATUS

    @classmethod
    def from_json(cls, given: Any) -> Faults:
        """Read the body of PUT /sim/faults; what it leaves out is as without faults. Raises ApiError."""
        if not isinstance(given, dict):
            raise ApiError(400, "faults: an object is expected")
        if unknown := sorted(set(given) - {"metrics", "seconds", "hang", "shed"}):
            raise ApiError(400, f"faults: unknown {', '.join(unknown)}; known are metrics, seconds, hang, shed")
        try:
            metrics = MetricsFault(given.get("metrics", "ok"))
            shed = ShedFault(given.get("shed", "status"))
        except ValueError as error:
            raise ApiError(400, f"faults: {error}") from None
        seconds, hang = given.get("seconds", 1.0), given.get("hang", False)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise ApiError(400, "faults: seconds must be a number")
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ApiError(400, "faults: seconds must not be negative")
        if not isinstance(hang, bool):
            raise ApiError(400, "faults: hang must be true or false")
        return cls(metrics, float(seconds), hang, shed)

    def to_json(self) -> dict[str, Any]:
        return {
            "metrics": self.metrics.value,
            "seconds": self.seconds,
            "hang": self.hang,
            "shed": self.shed.value,
        }
