"""When an endpoint's next page is asked for.

    regular     `interval_s` after the last one was, while something is held or inside the endpoint
    stretched   so many times `interval_s` in its place, where other replicas read the engine's pages too
    idle        `idle_interval_s` after it otherwise
    wake        a request has come: an idle pause ends, though not before a regular one would
    early       requests were released: as soon as a page can show them

No page comes before the engine has had as long a rest as the last page took, whatever the reason: rendering one costs
vLLM's API server time that it serves tokens with. Pauses vary by a tenth, so that endpoints do not march in step.

When can a page show a release? Measured on vLLM: the gauge of a single request moves after 43-78 ms on an idle engine
and 64-111 ms on a busy one; of a burst of 100, `running` moves after 110-414 ms, `waiting` after 196-533, and all are
counted after 397-910. So

- a page that is asked for sooner than some 110 ms after a release shows the time before it, and is worth nothing:
  `SHOWS_S`. With an interval of that size or less nothing comes early at all;
- one request more or less is found out by the next regular page, 250 ms later at most. Only several at once (`BURST`,
  since the last page) can fill an engine's slots between two pages, and only they are worth a page of their own;
- what of a burst is late shows by and by, on the regular pages: one early page for each burst, and none within
  `EARLY_EVERY_S`, the time that a burst takes to show. Under a steady stream of many requests a second an early page a
  second is thus all that is added. Where pages are stretched so is the second, as many times;
- a release that ends an idle pause need not be a burst: the last page may be seconds old.

There is no timer but the one that ends the pause, and it is set anew only to come sooner. Idle pauses end at full
quarters of a second, all endpoints' together: waking up for each of a hundred endpoints by itself doubled the CPU of a
page.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Final

SHOWS_S: Final = 0.11
BURST: Final = 4
EARLY_EVERY_S: Final = 1.0
JITTER: Final = 0.1  # of a pause
IDLE_TICK_S: Final = 0.25


class Rhythm:
    """Of one endpoint, in one event loop. Seconds, by the loop's clock."""

    def __init__(self, interval_s: float, idle_interval_s: float) -> None:
        self._interval_s = interval_s
        self._idle_interval_s = idle_interval_s
        self._asked_at = 0.0
        # since the page was asked for
        self._woken = False
        self._released = 0
        self._early_at: float | None = None  # when a page can show what was released
        self._early_after = float("-inf")
        self._stretch = 1.0
        # of the pause under way
        self._ends: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._idle = False
        self._regular_at = 0.0
        self._rested_at = 0.0

    def asked(self) -> None:
        """A page is asked for now."""
        self._asked_at = asyncio.get_running_loop().time()
        self._woken = False
        self._released = 0
        self._early_at = None

    def wake(self) -> None:
        self._woken = True
        if self._ends is not None and self._idle:
            self._set(self._regular_at)

    def released(self) -> None:
        """One request was released to the endpoint."""
        self._released += 1
        if self._released == BURST:
            now = asyncio.get_running_loop().time()
            if now >= self._early_after:
                self._early_after = now + EARLY_EVERY_S * self._stretch
                self._early_at = now + SHOWS_S
                if self._ends is not None:
                    self._set(max(self._early_at, self._rested_at))
        elif self._released == 1 and self._ends is not None and self._idle:
            self._set(max(asyncio.get_running_loop().time() + SHOWS_S, self._regular_at))

    async def pause(self, busy: bool, stretch: float = 1.0) -> None:
        """Until the next page is to be asked for. `busy`: something is held or inside the endpoint. `stretch`: 1 or
        more."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        spread = 1.0 + random.uniform(-JITTER, JITTER)  # noqa: S311  no secret
        self._idle = not busy
        self._stretch = stretch
        interval_s = self._interval_s * (stretch if busy else 1.0)  # what ends an idle pause has no recent page
        self._rested_at = now + (now - self._asked_at)
        self._regular_at = max(self._asked_at + interval_s * spread, self._rested_at)
        due = self._regular_at
        if self._idle and not self._woken and not self._released:
            idle_until = self._asked_at + self._idle_interval_s * spread
            due = max(math.ceil(idle_until / IDLE_TICK_S) * IDLE_TICK_S, due)
        if self._early_at is not None:
            due = min(due, max(self._early_at, self._rested_at))
        self._ends = loop.create_future()
        self._arm(due)
        try:
            await self._ends
        finally:
            self._ends = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _set(self, due: float) -> None:
        if due < self._due:
            self._arm(due)

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due = due
        self._timer = asyncio.get_running_loop().call_at(due, self._ring)

    def _ring(self) -> None:
        if self._ends is not None and not self._ends.done():
            self._ends.set_result(None)
