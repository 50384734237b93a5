"""Requests that were released on one stream and are followed on another (profile strict); or that passed there, and are
observed.

The stream that holds ends with the release, so that a death of this process cannot cut the answer; the second filter's
stream opens a moment later and lives as long as the answer. In between, only the access log could tell that the
client has left. Where neither comes within `_CLAIM_S`, the request has ended, or runs unseen: it is taken out of the
books, and if it does run after all the next scrape counts it as foreign load.

What was released carries its ticket. What passed carries nothing of ours, and is found by Envoy's request id.
"""

from __future__ import annotations

import asyncio

from extproc.edge.gate import Gate, Queue
from extproc.edge.recorder import Recorder
from extproc.edge.request_ids import AMBIGUOUS

_CLAIM_S = 2.0  # it comes within milliseconds, unless this process is busy for longer


class Tracking:
    def __init__(self, gate: Gate, recorder: Recorder) -> None:
        self._gate = gate
        self._recorder = recorder
        self._waiting: dict[str, tuple[Queue, asyncio.TimerHandle]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def expect(self, place: Queue) -> None:
        """`place` was released, or passes and is observed, and its own stream is over."""
        timer = asyncio.get_running_loop().call_later(_CLAIM_S, self._unclaimed, place.event.id)
        self._waiting[place.event.id] = (place, timer)

    def claim(self, ticket: str) -> Queue | None:
        """The request that a second stream follows from now on; None: it is not known here (any more)."""
        place, timer = self._waiting.pop(ticket, (None, None))
        if timer is not None:
            timer.cancel()
        return place

    def claim_observed(self, request_id: str) -> Queue | None:
        """As `claim`, of one that passed: by Envoy's request id."""
        ticket = self._gate.request_ids.ticket(request_id)
        waiting = self._waiting.get(ticket or AMBIGUOUS)
        return None if ticket is None or waiting is None or not waiting[0].observed else self.claim(ticket)

    def over(self, ticket: str) -> None:
        """The access log says that the request has ended."""
        place = self.claim(ticket)
        if place is not None:
            self._gate.close(place)

    def close(self) -> None:
        for _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _unclaimed(self, ticket: str) -> None:
        if not self._waiting[ticket][0].observed:
            self._recorder.untracked()
        self.over(ticket)
