"""One request under way: takes its events from the engine, and writes its stream.

A streamed token goes straight from the engine's step to the socket: waking a task for each token would cost more than
the token. The price: a slow client's answer piles up in the socket's buffer. It is bounded by max_tokens, and vLLM,
which queues outputs without limit, does not wait for slow clients either.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final

from extproc.sim.answer import Answer
from extproc.sim.engine import Event, Kind
from extproc.sim.journal import Entry


class Exchange:
    """Waits for the last tokens of a request. Call it with each event; await ``done``."""

    def __init__(self, answer: Answer, entry: Entry) -> None:
        self.answer: Final = answer
        self.done: Final[asyncio.Future[None]] = asyncio.get_running_loop().create_future()
        self._entry: Final = entry
        self._ends: Final[dict[int, Event]] = {}
        self._size: Final = answer.call.size

    @property
    def ends(self) -> list[Event]:
        """The last event of each sequence, in the order of the sequences."""
        return [self._ends[i] for i in range(self._size)]

    @property
    def completion_tokens(self) -> int:
        """Tokens of the sequences that have ended."""
        return sum(end.tokens for end in self._ends.values())

    def __call__(self, event: Event) -> None:
        if event.kind is Kind.PREEMPTED:
            return  # the client sees a pause, nothing else
        first = self._entry.first_token_at is None
        if first:
            self._entry.first_token_at = time.time()
        last = False
        if event.reason is not None:
            self._ends[event.sequence] = event
            last = len(self._ends) == self._size
        self._token(event, first=first, last=last)
        if last and not self.done.done():
            self.done.set_result(None)

    def _token(self, event: Event, *, first: bool, last: bool) -> None:
        """Nothing to send before all is there."""


class Stream(Exchange):
    """Writes each token to the client's socket as it comes."""

    def __init__(self, answer: Answer, entry: Entry, transport: asyncio.Transport, *, chunked: bool) -> None:
        super().__init__(answer, entry)
        self._transport: Final = transport
        self._chunked: Final = chunked

    def _token(self, event: Event, *, first: bool, last: bool) -> None:
        if self._transport.is_closing():
            return  # the handler's cancellation is on its way
        data = self.answer.opening() if first else b""
        data += self.answer.token(event)
        if last:
            data += self.answer.closing(self.completion_tokens)
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
