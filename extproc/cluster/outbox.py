"""Flows that the others have not been told yet.

An exchange may fail, and a message has a largest size: what was not told waits here, each flow with its latest values,
the one that has waited longest first.
"""

from __future__ import annotations

from collections.abc import Iterable

from extproc.cluster import codec
from extproc.core.sharing.words import FlowReport, PoolReport

_ROOM = 4  # brackets around all of it


class Outbox:
    """Use `put`, then `take`, and `told` where that has arrived. What was taken and not told is taken again."""

    def __init__(self, largest: int) -> None:
        """`largest`: bytes of a message."""
        self._largest = largest
        self._waiting: dict[tuple[str, str, str], FlowReport] = {}
        self._taken: dict[tuple[str, str, str], FlowReport] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, reports: Iterable[PoolReport]) -> None:
        for report in reports:
            for flow in report.flows:
                self._waiting[report.pool, flow.cls, flow.tenant] = flow  # at its old place, where it has one

    def take(self) -> bytes:
        """A message; empty: there is nothing to tell."""
        self._taken = {}
        groups: set[tuple[str, str]] = set()
        room = self._largest - _ROOM
        for key, flow in self._waiting.items():
            room -= codec.size(flow)
            if key[:2] not in groups:
                groups.add(key[:2])
                room -= 6 * (len(key[0]) + len(key[1])) + 16
            if room < 0:
                break
            self._taken[key] = flow
        return codec.message((key[0], flow) for key, flow in self._taken.items())

    def told(self) -> None:
        """What was taken has arrived."""
        for key, flow in self._taken.items():
            if self._waiting.get(key) is flow:
                del self._waiting[key]
        self._taken = {}
