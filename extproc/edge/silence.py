"""Streams on which nothing has come yet.

Envoy sends the request's headers as it opens a stream, so the first message is there at once, and a timer for each
stream would be set and taken back a moment later. One for all is enough: it goes off when the oldest is due, and is
set again only where others still wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from extproc.edge.exchange import Context


class Silence:
    """`limit_s`: seconds that a stream may say nothing; `over` is called with each that says nothing for longer."""

    def __init__(self, limit_s: float, over: Callable[[Context], None]) -> None:
        self._limit_s = limit_s
        self._over = over
        self._due: dict[Context, float] = {}  # the oldest first
        self._timer: asyncio.TimerHandle | None = None

    def begins(self, stream: Context, most: int) -> Context | None:
        """The one that has been silent for longest and is to make room, where there are `most` of them. It is not told
        of again."""
        crowded_out = None
        if len(self._due) >= most:
            crowded_out = next(iter(self._due))
            del self._due[crowded_out]
        self._due[stream] = time.monotonic() + self._limit_s
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._sweep)
        return crowded_out

    def ends(self, stream: Context) -> None:
        """It has spoken, or is over."""
        self._due.pop(stream, None)

    def _sweep(self) -> None:
        now, self._timer = time.monotonic(), None
        for stream, due in list(self._due.items()):
            if due > now:
                self._timer = asyncio.get_running_loop().call_later(due - now, self._sweep)
                return
            del self._due[stream]
            self._over(stream)
