"""How far replicas are behind what is due to them in a class, and how many slots that is.

    behind   of a replica: cost that was due to those that wait there, less what they were charged. A request is charged
             when it goes, so this is known at once, however long answers take. What is older than ten minutes fades
    zero     together replicas are neither behind nor ahead: what one that ceases to wait leaves over is spread over the
             others by what is due to them. Else all might be ahead, and leave room that nobody uses
    slots    requests' worth of `behind`. One slot more for a period brings one request at once, and one more each time
             that a request is over: 1 + 2 * period / time inside, since others hear of it a period later. So where
             requests are short and periods long, less is asked for

One queue would give each slot that becomes free to the tenant that has had least. So do replicas: who is ahead does not
refill so many of its slots, who is behind asks for so many more, and who is neither keeps what it has. What a slot
brings need not be known: long prompts here and long answers there come out right in cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

_FADES_S = 600.0


class Lags:
    """Of one class, as one replica sees them."""

    __slots__ = ("_at", "behind")

    def __init__(self) -> None:
        self.behind: dict[str, float] = {}  # replica where something waits -> cost
        self._at = -math.inf  # when it was last told

    def charged(self, due: Mapping[str, float], costs: Mapping[str, float], now: float) -> None:
        """`due`: the parts that are due to those that wait, by replica where something waits. `costs`: what they were
        charged since the last time, by replica."""
        kept = math.exp(-(now - self._at) / _FADES_S)
        self._at = now
        parts = sum(due.values())
        if parts <= 0.0:
            self.behind = {}
            return
        total = sum(costs.get(replica, 0.0) for replica in due)
        behind = {
            replica: kept * self.behind.get(replica, 0.0) + total * part / parts - costs.get(replica, 0.0)
            for replica, part in due.items()
        }
        left = sum(behind.values()) / parts
        self.behind = {replica: cost - left * due[replica] for replica, cost in behind.items()}

    def forget(self, now: float) -> None:
        """Nobody knows what others had meanwhile."""
        self.behind = {}
        self._at = now

    def slots(self, replica: str, each: float, period_s: float, inside_s: float) -> float:
        """`each`: cost of a request, by slot. `inside_s`: for how long one is inside; 0: not known."""
        if each <= 0.0 or inside_s <= 0.0:
            return 0.0
        return self.behind.get(replica, 0.0) / (each * (1.0 + 2.0 * period_s / inside_s))
