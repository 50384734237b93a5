"""The way of a request: one ext_proc stream, from its header message to its end.

    read the header message -> decide -> wait in silence -> write the one answer -> wait for the end

Nothing is written while a request is held: so long as that is so, Envoy replays it to another replica,
or to this one when it is back. The stream's end is the end of the HTTP response, or of the client; it
comes as EOF or as cancellation, and both mean the same. Whatever happens, the books are closed once, in
one `finally`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import grpc
import structlog

from extproc.core.events import Refuse, Release
from extproc.core.reasons import Reason
from extproc.edge import facts as facts_of
from extproc.edge.driver import Verdict
from extproc.edge.gate import Deny, Gate, Pass, Queue
from extproc.edge.recorder import Recorder
from extproc.edge.replies import refuse
from extproc.edge.usage import TICKET
from extproc.edge.wire import go_on, request_headers_answer
from extproc.pb.wire.v1 import ext_proc_pb2

log = structlog.get_logger()

PRIORITY = "x-vllm-priority"
CLASS, QUEUE_MS, ENDPOINT = "x-fairlane-class", "x-fairlane-queue-ms", "x-fairlane-endpoint"
_OURS = (PRIORITY, TICKET, CLASS, QUEUE_MS, ENDPOINT)

# What grpc.aio hands over: serialised messages, or its EOF marker.
Context = Any


@dataclass(slots=True)
class _Exchange:
    """One stream, and what is owed on it."""

    context: Context
    answered: bool = False  # the one answer was written, or there is nobody who waits for it
    place: Queue | None = None  # in the books, once it is there
    reader: asyncio.Task[Any] | None = None  # the read that runs while the request is held

    async def answer(self, raw: bytes) -> None:
        self.answered = True
        await self.context.write(raw)


class ExternalProcessor:
    """The handler of `Process`. One instance serves all streams."""

    def __init__(self, gate: Gate, recorder: Recorder) -> None:
        self._gate = gate
        self._recorder = recorder
        self._held: set[asyncio.Future[Verdict]] = set()
        self._handing_over = False

    async def process(self, _: object, context: Context) -> None:
        first = await context.read()
        if first is grpc.aio.EOF:
            return
        exchange = _Exchange(context)
        try:
            await self._serve(exchange, first)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception:
            if context.done():
                return  # Envoy went away between the verdict and the answer: there is nobody to tell
            self._recorder.fault("stream")
            log.exception("stream_fault", answered=exchange.answered)
            if not exchange.answered:
                await self._fail(exchange)
        finally:
            if exchange.reader is not None and not exchange.reader.done():
                exchange.reader.cancel()
            if exchange.place is not None:
                exchange.place.driver.end(exchange.place.event.id, handed_over=self._handing_over)

    async def _serve(self, exchange: _Exchange, first: bytes) -> None:
        message = ext_proc_pb2.ProcessingRequest.FromString(first)
        if message.WhichOneof("request") != "request_headers":
            # A wiring that does not send request headers: nothing to schedule by, and no answer to them is owed.
            self._recorder.passed("not_placed")
            exchange.answered = True
            await self._follow(exchange.context, first)
            return
        match self._gate.decide(facts_of.read(message), exchange.context.peer()):
            case Deny(reason, text, param):
                self._recorder.refused(reason.code)
                await exchange.answer(refuse(reason, text, None, param))
            case Pass(why):
                self._recorder.passed(why)
                await exchange.answer(request_headers_answer({}, _OURS))
                await self._follow(exchange.context)
            case Queue() as place:
                await self._queue(exchange, place)

    async def _queue(self, exchange: _Exchange, place: Queue) -> None:
        """Wait for the verdict, tell it, and stay until the stream ends."""
        context, event = exchange.context, place.event
        exchange.place = place
        waiter = place.driver.arrive(event)
        if not waiter.done():
            log.debug("held", ticket=event.id, tenant=event.tenant, arrival=event.arrival)
            exchange.reader = asyncio.ensure_future(context.read())
            exchange.reader.add_done_callback(_seen)
            if not await self._hold(waiter, exchange.reader):
                if self._handing_over and not exchange.reader.done():
                    await context.abort(grpc.StatusCode.UNAVAILABLE, "handed over to another replica")
                exchange.answered = True  # the client has left, or Envoy has answered it: nothing is owed
                return
        verdict = waiter.result()
        if isinstance(verdict, Refuse):
            await exchange.answer(refuse(verdict.reason, verdict.message, verdict.retry_after_s))
            return
        await exchange.answer(_release(verdict))
        await self._follow(context, exchange.reader)

    def hand_over(self) -> None:
        """Let go of all that is held, unanswered: Envoy takes it to another replica."""
        self._handing_over = True
        for waiter in list(self._held):
            waiter.cancel()

    async def _hold(self, waiter: asyncio.Future[Verdict], reader: asyncio.Task[Any]) -> bool:
        """Wait for the verdict. False: there is nobody left to give it to, or it will not come here."""
        if self._handing_over:
            return False
        self._held.add(waiter)
        try:
            await asyncio.wait((waiter, reader), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._held.discard(waiter)
        return waiter.done() and not waiter.cancelled()

    async def _follow(self, context: Context, pending: bytes | asyncio.Task[Any] | None = None) -> None:
        """Answer whatever Envoy asks with "go on", until the stream ends."""
        while True:
            if isinstance(pending, bytes):
                raw: Any = pending
            else:
                raw = await (pending if pending is not None else context.read())
            pending = None
            if raw is grpc.aio.EOF:
                return
            answer = go_on(ext_proc_pb2.ProcessingRequest.FromString(raw).WhichOneof("request") or "")
            if answer is not None:
                await context.write(answer)

    async def _fail(self, exchange: _Exchange) -> None:
        """A fault of ours: by configuration the request passes as it came, or is refused."""
        if self._gate.config.on_fault == "reject":
            self._recorder.refused(Reason.FAULT.code)
            await exchange.answer(refuse(Reason.FAULT, "Fairlane failed on this request (on_fault: reject)", 1))
            return
        self._recorder.passed("fault")
        await exchange.answer(request_headers_answer({}, _OURS))


def _release(verdict: Release) -> bytes:
    return request_headers_answer(
        {
            PRIORITY: str(verdict.priority),
            TICKET: verdict.id,
            CLASS: verdict.cls,
            QUEUE_MS: str(round(verdict.waited_s * 1000)),
            ENDPOINT: verdict.endpoint,
        },
        endpoint=verdict.endpoint,
    )


def _seen(reader: asyncio.Task[Any]) -> None:
    """A read fails with its stream, perhaps when nobody waits for it any more: asyncio would log that."""
    if not reader.cancelled():
        reader.exception()
