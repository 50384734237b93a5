"""How long an endpoint is left alone that refuses requests, or fails them.

It does so faster than any engine serves. So it is always the least loaded one, and all that is held would run into it,
while its page is as good as any: an engine whose model has died behind a living HTTP server, or a proxy in its place.

    refused     for want of room: it is left alone from the first one on
    failed      it answered 500 and above, or broke the connection: from the third one on without one that was served,
                for a single one may be its request's fault

A pause is 0.25 s, and twice as long after each further one that comes when it is over, 15 s at most. One that is served
ends the row and the doubling; so do ten seconds beyond the pause without one, as not every answer tells its tokens.
"""

from __future__ import annotations

import math

PAUSE_S = 0.25
LONGEST_S = 15.0
ROW = 3
QUIET_S = 10.0


class Backoff:
    """Of one endpoint. `until`: nothing is sent before; seconds, as `now`."""

    __slots__ = ("_last_at", "_pause_s", "_row", "until")

    def __init__(self) -> None:
        self.until = -math.inf
        self._pause_s = PAUSE_S
        self._row = 0  # failed without one that was served
        self._last_at = -math.inf

    def refused(self, now: float) -> None:
        self._note(now)
        self._pause(now)

    def failed(self, now: float) -> None:
        self._note(now)
        self._row += 1
        if self._row >= ROW:
            self._pause(now)

    def served(self) -> None:
        self._pause_s, self._row = PAUSE_S, 0

    def _note(self, now: float) -> None:
        if now - self._last_at > QUIET_S + self._pause_s:
            self.served()
        self._last_at = now

    def _pause(self, now: float) -> None:
        if now >= self.until:
            self.until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_S)
