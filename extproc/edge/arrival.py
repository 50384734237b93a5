"""Arrival times, from an Envoy's clock to the scheduler's.

A replayed request comes with the time of its first arrival, which gives it its old place. But an Envoy may
run on another host, with a clock of its own. Among many requests some come fresh, within milliseconds; so
the smallest age seen over the last minute is what that Envoy's clock is behind, and is taken off.

An age below zero says nothing about other requests: either the clock is ahead, and then its fresh requests
come out right as they are, or a clock was stepped while this one request was under way. It counts as 0.
"""

from __future__ import annotations

_PERIOD_S = 30.0
_OLDEST_S = 3600.0  # Envoy holds nothing longer: an older arrival is no arrival
_MOST_PEERS = 1_000


class ArrivalClock:
    """One Envoy's clock. `now` and results are in seconds of the scheduler's clock; `epoch` is this host's
    wall clock."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._least: float | None = None  # smallest age of this period
        self._before: float | None = None  # and of the one before

    def arrival(self, claimed: float | None, epoch: float, now: float) -> float:
        """When the request came first. `claimed`: seconds since the epoch by Envoy's clock."""
        if claimed is None:
            return now
        age = epoch - claimed
        if age < 0:
            return now
        if self._since is None or now - self._since > _PERIOD_S:
            self._since, self._before, self._least = now, self._least, age
        else:
            self._least = age if self._least is None else min(self._least, age)
        # While only the first period has been seen, a large age may well be a replay.
        skew = 0.0 if self._before is None else min(self._least, self._before)
        return now - min(age - skew, _OLDEST_S)


class ArrivalClocks:
    """A clock for each Envoy that was heard lately, told apart by the host of its connection."""

    def __init__(self) -> None:
        self._clocks: dict[str, ArrivalClock] = {}  # the one that was used last is the last

    def of(self, peer: str) -> ArrivalClock:
        """`peer` as gRPC names it: ipv4:10.0.0.1:5555, ipv6:%5B::1%5D:5555, unix:/path."""
        host = _host(peer)
        clock = self._clocks.pop(host, None) or ArrivalClock()
        self._clocks[host] = clock
        if len(self._clocks) > _MOST_PEERS:
            del self._clocks[next(iter(self._clocks))]
        return clock


def _host(peer: str) -> str:
    # An Envoy has several connections, each with a port of its own.
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer
