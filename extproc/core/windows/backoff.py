"""How long an endpoint is left alone that refuses requests, or fails them.

It does so faster than any engine serves. So it is always the least loaded one, and all that is held would run into it,
while its page is as good as any: an engine whose model has died behind a living HTTP server, or a proxy in its place.

    refused     for want of room: it is left alone from the first one on
    failed      it answered 500 and above, or broke the connection: from the third one on in a row

A row, and its pause, are over with a request that is served; and a row of failures with a page on which the engine has
made progress, too: it is the requests that are bad then, and one client that sends such ones must not take the engine
from all others. (Of a refusal progress says nothing: a full engine makes most of it.) Where neither is told, a row is
over after ten seconds beyond its pause.

A pause is 0.25 s, and twice as long after each further one that comes when it is over, 15 s at most.
"""

from __future__ import annotations

import math

PAUSE_S = 0.25
LONGEST_S = 15.0
REFUSED, FAILED = 1, 3  # in a row, until it is left alone
QUIET_S = 10.0


class Backoff:
    """Of one endpoint, for one of the two causes. `until`: nothing is sent before; seconds, as `now`."""

    __slots__ = ("_in_row", "_last_at", "_least", "_pause_s", "until")

    def __init__(self, least: int) -> None:
        """`least`: how many in a row begin the first pause."""
        self.until = -math.inf
        self._least = least
        self._pause_s = PAUSE_S
        self._in_row = 0
        self._last_at = -math.inf

    def note(self, now: float) -> None:
        """One more."""
        if now - self._last_at > QUIET_S + self._pause_s:
            self.over()
        self._last_at = now
        self._in_row += 1
        if self._in_row >= self._least and now >= self.until:
            self.until = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_S)

    def over(self) -> None:
        """The row has ended, and its pause with it."""
        self.until, self._pause_s, self._in_row = -math.inf, PAUSE_S, 0
