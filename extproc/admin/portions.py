"""Long work on the event loop, in portions.

The scheduler has the same loop: a release waits for whatever runs before it. So what looks at many requests or flows
works for `HOLD_S` at most, and then lets everything else that is ready have its turn. That alone is not enough: fifty
readers with a portion each would hold the loop for fifty portions. Here one portion fits between two turns of the loop,
whoever works, in the order in which they asked.

Left out: a thread. The scheduler's books may be read between two events only, and copying them costs as much as
reading them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Final

HOLD_S: Final = 0.002
MOST_SCANS: Final = 2
LOOK_EVERY: Final = 32  # steps of a few microseconds: how often to ask whether the portion is over


class Portions:
    """What those have in common who work on one loop."""

    def __init__(self, hold_s: float = HOLD_S) -> None:
        self.hold_s = hold_s
        # Each scan holds a list of all requests, and the garbage collector goes through all of them now and then.
        self.scans = asyncio.Semaphore(MOST_SCANS)
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._handing_out = False

    async def turn(self) -> None:
        """Until the next portion may be worked on."""
        loop = asyncio.get_running_loop()
        mine = loop.create_future()
        self._waiting.append(mine)
        if not self._handing_out:
            self._handing_out = True
            loop.call_soon(self._hand_out, loop)
        await mine

    def _hand_out(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # else it was cancelled
                first.set_result(None)
                break
        self._handing_out = bool(self._waiting)
        if self._handing_out:
            loop.call_soon(self._hand_out, loop)


class Work:
    """One reader's work. To begin with `next`, and again whenever `over` says so."""

    def __init__(self, portions: Portions) -> None:
        self._portions = portions
        self._until = 0.0

    @property
    def over(self) -> bool:
        """Whether the portion has been used up."""
        return perf_counter() >= self._until

    async def next(self) -> None:
        await self._portions.turn()
        self._until = perf_counter() + self._portions.hold_s
