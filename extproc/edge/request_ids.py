"""Envoy's request ids, for access-log entries and streams without a ticket.

A log that does not name the ticket header still has the request id; and a request that passes has no ticket. But a
client may choose the id (`x-request-id`), and two requests can share one: then neither is meant. An id is kept for as
long as its request runs, and for `_LATE_S` after it.
"""

from __future__ import annotations

_LATE_S = 10.0
_MOST_ENDED = 20_000
AMBIGUOUS = ""


class RequestIds:
    """Times are seconds of any steady clock."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}  # request id -> ticket, or AMBIGUOUS
        self._ended: dict[str, tuple[str, float]] = {}  # request id -> ticket, end; by time of the end

    def __len__(self) -> int:
        return len(self._running) + len(self._ended)

    def began(self, request_id: str, ticket: str) -> None:
        if not request_id:
            return
        shared = request_id in self._running or request_id in self._ended
        self._running[request_id] = AMBIGUOUS if shared else ticket

    def ended(self, request_id: str, now: float) -> None:
        ticket = self._running.pop(request_id, None)
        if ticket is not None:
            self._ended.pop(request_id, None)
            self._ended[request_id] = (ticket, now)
        while self._ended:
            oldest = next(iter(self._ended))
            if now - self._ended[oldest][1] <= _LATE_S and len(self._ended) <= _MOST_ENDED:
                return
            del self._ended[oldest]

    def ticket(self, request_id: str) -> str | None:
        """None: not known. AMBIGUOUS: two requests share it."""
        ticket = self._running.get(request_id)
        if ticket is not None:
            return ticket
        ended = self._ended.get(request_id)
        return None if ended is None else ended[0]
