"""One ext_proc stream: reading, writing, and waiting in silence.

While a request is held, one read is under way all the time: its end tells that the client has left, or that Envoy has
answered by itself. It costs one future for each held request, and none for a request that goes at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from extproc.core.events import Evict
from extproc.edge.driver import Interrupted, Outcome
from extproc.edge.lenient import request_message
from extproc.edge.replies import refuse
from extproc.edge.shape import Shape
from extproc.pb.wire.v1 import ext_proc_pb2

if TYPE_CHECKING:
    from extproc.edge.gate import Queue

# What grpc.aio hands over: serialised messages, or its EOF marker.
Context = Any
Metadata = Iterable[tuple[str, str | bytes]]

_OF_THE_REQUEST = frozenset({"request_body", "request_trailers"})
_MOST_EARLY = 1_000  # messages of one held request; no wiring of Envoy sends more than the pieces of a body


def _kind(raw: Any) -> str:
    """Of a serialised message; empty: the end of the stream, or nothing that can be read."""
    if raw is grpc.aio.EOF:
        return ""
    try:
        return request_message(raw).WhichOneof("request") or ""
    except DecodeError:
        return ""


class Exchange:
    """What is owed on the stream, and what is known of it."""

    __slots__ = (
        "answered",
        "context",
        "early",
        "interrupted",
        "last_word",
        "metadata",
        "opening",
        "place",
        "reader",
        "replayable",
        "shape",
        "speaking",
        "writing",
    )

    def __init__(self, context: Context, shape: Shape, metadata: Metadata) -> None:
        self.context = context
        self.shape = shape
        self.metadata = metadata  # of the stream, until it waits; gRPC makes it anew whenever it is asked
        self.opening: ext_proc_pb2.ProcessingRequest | None = None  # the first message, until it waits
        self.answered = False  # the request was let go or answered, or there is nobody who waits for it
        self.replayable = True  # Envoy would send it to another replica, should this stream break now
        self.writing = False
        self.last_word: bytes | None = None  # the answer to an evicted request: nothing is written after it
        self.speaking: asyncio.Task[None] | None = None  # writes it
        self.interrupted = Interrupted.LEFT  # how it ended, where it was held to the end
        self.place: Queue | None = None  # in the books, once it is there
        self.reader: asyncio.Future[Any] | None = None  # the read that runs while the request is held
        self.early: list[str] = []  # kinds of messages of the request that came while it was held

    async def read(self) -> ext_proc_pb2.ProcessingRequest | None:
        """The next message; None: the stream is over. Raises DecodeError."""
        reader, self.reader = self.reader, None
        raw = await (self.context.read() if reader is None else reader)
        return None if raw is grpc.aio.EOF else request_message(raw)

    async def write(self, raw: bytes) -> None:
        """grpc.aio takes one write at a time, so what has to be said from outside waits for this one's end."""
        if self.last_word is not None:
            return
        self.writing = True
        try:
            await self.context.write(raw)
        finally:
            self.writing = False
        if self.last_word is not None:
            await self._say_it()

    def answer(self, raw: bytes) -> Awaitable[None]:
        """The last that is owed to the request."""
        self.answered = True
        return self.write(raw)

    async def hold(self, waiter: asyncio.Future[Outcome]) -> Outcome:
        """Wait for the verdict in silence."""
        self._listen(waiter)
        return await waiter

    @property
    def gone(self) -> bool:
        """Whether nobody is left to answer."""
        reader = self.reader
        if reader is None or not reader.done():
            return bool(self.context.done())
        return reader.cancelled() or reader.exception() is not None or reader.result() is grpc.aio.EOF

    def close(self) -> None:
        if self.reader is not None and not self.reader.done():
            self.reader.cancel()

    def evict(self, effect: Evict) -> None:
        """Answer a request that was released in the place of its own answer. Envoy obeys at any time."""
        self.last_word = refuse(effect.reason, effect.message, effect.retry_after_s)
        if not self.writing:
            self.speaking = asyncio.ensure_future(self._say_it())

    async def _say_it(self) -> None:
        with contextlib.suppress(Exception):  # it has just ended by itself
            await self.context.write(self.last_word)

    def _listen(self, waiter: asyncio.Future[Outcome]) -> None:
        self.reader = asyncio.ensure_future(self.context.read())
        self.reader.add_done_callback(partial(self._heard, waiter))

    def _heard(self, waiter: asyncio.Future[Outcome], reader: asyncio.Future[Any]) -> None:
        # A read fails with its stream, perhaps when nobody waits for it any more: asyncio would log that.
        if reader.cancelled() or reader.exception() is not None:
            if not waiter.done():
                waiter.set_result(Interrupted.LEFT)
            return
        if waiter.done():
            return  # whoever reads next finds it
        kind = _kind(reader.result())
        if kind in _OF_THE_REQUEST and len(self.early) < _MOST_EARLY:
            # Envoy need not wait for the answer to the headers; and it may send the end of a body twice.
            self.early.append(kind)
            self._listen(waiter)
        else:
            waiter.set_result(Interrupted.LEFT)
