"""The way of a request: one ext_proc stream, from its header message to its end.

    read the header message -> decide -> wait in silence -> write the one answer -> wait for the end

Nothing is written while a request is held: so long as that is so, Envoy replays it to another replica,
or to this one when it is back. The stream's end is the end of the HTTP response, or of the client; it
comes as EOF or as cancellation, and both mean the same. Whatever happens, the books are closed once, in
one `finally`.

Other wirings differ in where the request is held (`request_side`), in what of the answer comes by (`response_side`),
and in whether the stream that holds also follows the answer (`tracking`); `shape` reads which it is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace

import grpc
import structlog
from google.protobuf.message import DecodeError

from extproc.core.events import Refuse, Release, Usage
from extproc.core.model import Source
from extproc.core.reasons import Reason
from extproc.edge import facts as facts_of
from extproc.edge.body_edit import members
from extproc.edge.crowd import Crowd
from extproc.edge.driver import Interrupted, Outcome
from extproc.edge.exchange import Context, Exchange, Metadata
from extproc.edge.facts import Facts
from extproc.edge.fault_lines import FaultLines
from extproc.edge.gate import TRACE_HEADERS, Deny, Gate, Pass, Queue
from extproc.edge.lenient import request_message
from extproc.edge.observer import Observer
from extproc.edge.recorder import Journal, Origin, Recorder
from extproc.edge.replies import refuse
from extproc.edge.request_side import (
    CLASS,
    CONTINUE_HEADERS,
    ENDPOINT,
    PRIORITY,
    QUEUE_MS,
    TIMING,
    AtHeaders,
    Buffer,
    BufferFullError,
    Grant,
    Limits,
    RequestSide,
    TooLargeError,
    side_of,
)
from extproc.edge.response_side import ResponseSide
from extproc.edge.shape import FIRST_BYTE, HOLD, TRACK, shape_of
from extproc.edge.silence import Silence
from extproc.edge.tracking import Tracking
from extproc.edge.usage import TICKET
from extproc.edge.ways import number
from extproc.edge.wire import go_on, headers_of
from extproc.pb.wire.v1 import ext_proc_pb2

log = structlog.get_logger()

_REQUEST_ID = "x-request-id"
_FAULT_TEXT = "Fairlane failed on this request (on_fault: reject)"
_SILENT_TEXT = "too many streams say nothing (requests.max_streams)"
_SILENCE_S = 60.0  # a stream that has said nothing for so long is closed


class ExternalProcessor:
    """The handler of `Process`. One instance serves all streams."""

    def __init__(self, gate: Gate, tracking: Tracking, recorder: Recorder, journal: Journal | None = None) -> None:
        self._gate = gate
        self._journal = journal
        self._tracking = tracking
        self._recorder = recorder
        self._held: dict[asyncio.Future[Outcome], Exchange] = {}
        self._ends: set[asyncio.Future[None]] = set()  # of streams that are only waited out
        self._letting_go: Interrupted | None = None
        buffer = Buffer(lambda: gate.rules.config.requests.max_buffered)
        self._limits = Limits(lambda: gate.rules.config.requests.max_body, buffer, gate.tenant_of)
        self._silence = Silence(_SILENCE_S, self._hang_up)
        self._hanging_up: set[asyncio.Task[None]] = set()
        self.standby = False  # another replica is the one that requests should come to: those that do not are counted
        self.standby_streams = 0
        self._crowd = Crowd(lambda: gate.rules.config.requests.max_streams)
        self._faults, self._malformed = FaultLines("stream_fault"), FaultLines("stream_malformed")

    async def process(self, _: object, context: Context) -> None:
        crowd = self._crowd
        crowded_out = self._silence.begins(context, crowd.most())
        if crowded_out is not None:
            self._hang_up(crowded_out, grpc.StatusCode.UNAVAILABLE, _SILENT_TEXT)
        try:
            first = await context.read()
        finally:
            self._silence.ends(context)
        if first is grpc.aio.EOF:
            return
        message: ext_proc_pb2.ProcessingRequest | DecodeError | None
        try:
            message = request_message(first)
        except DecodeError as error:
            message = error  # dealt with below, like any other fault
        del first  # what waits keeps as little as may be
        metadata = context.invocation_metadata() or ()
        shape = shape_of(None if isinstance(message, DecodeError) else message, metadata)
        exchange = Exchange(context, shape, metadata)
        side: RequestSide | None = None
        unread: ext_proc_pb2.ProcessingRequest | None = None
        stays = True
        crowd.open += 1
        self.standby_streams += self.standby
        try:
            if isinstance(message, DecodeError):
                raise message
            if message.WhichOneof("request") != "request_headers" or shape.observed:
                # It does not send request headers, or does not wait for answers: nothing to schedule by.
                self._recorder.passed("observed" if shape.observed else "not_placed")
                exchange.answered, unread, stays = True, message, not crowd.full
            elif TRACK in shape.words:
                stays = await self._track(exchange, message)
            else:
                facts = facts_of.read(message, self._gate.rules.headers)
                side = side_of(exchange, message, facts, self._recorder, self._refused, self._limits)
                exchange.opening, message = message, None
                stays = await self._serve(exchange, side, facts)
            # It ends here and not further in, since most streams are cancelled: each coroutine on the way out costs.
            if stays and shape.quiet and exchange.reader is None and unread is None:
                await self._end()
            elif stays:
                await self._follow(exchange, side, unread)
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            if context.done():
                return  # Envoy went away between the verdict and the answer: there is nobody to tell
            self._recorder.fault("stream")
            if isinstance(error, DecodeError):  # who sends such bytes is no Envoy, and may send them without end
                self._malformed.warning(peer=context.peer(), answered=exchange.answered)
            else:
                self._faults.exception(answered=exchange.answered)
            if not exchange.answered:
                with contextlib.suppress(grpc.aio.UsageError, DecodeError):  # the stream is over, or talks nonsense
                    await self._fail(exchange, side)
        finally:
            crowd.open -= 1
            exchange.close()
            if side is not None:
                side.close()
            self._close(exchange)

    def _close(self, exchange: Exchange) -> None:
        """The request's books. Once: whoever comes first."""
        place, exchange.place = exchange.place, None
        if place is not None:
            if exchange.shape.unlogged:
                place.driver.usage(Usage(place.event.id, Source.TIME))  # nobody will say more
            self._gate.close(place, exchange.interrupted)

    @property
    def open(self) -> int:
        """Streams, but those that have said nothing yet."""
        return self._crowd.open

    def _hang_up(
        self,
        context: Context,
        code: grpc.StatusCode = grpc.StatusCode.DEADLINE_EXCEEDED,
        why: str = f"no message within {_SILENCE_S:g} s",
    ) -> None:
        """A stream on which no message comes would stay for ever."""

        async def abort() -> None:
            with contextlib.suppress(Exception):  # it has ended, or has spoken after all
                await context.abort(code, why)

        task = asyncio.ensure_future(abort())
        self._hanging_up.add(task)
        task.add_done_callback(self._hanging_up.discard)

    async def _track(self, exchange: Exchange, message: ext_proc_pb2.ProcessingRequest) -> bool:
        """The second stream of a request, after the one that held it. Whether it is to be followed to its end."""
        exchange.answered = True
        headers = headers_of(message.request_headers, (TICKET, _REQUEST_ID))
        place = self._tracking.claim(headers.get(TICKET, ""))
        if place is None and TICKET not in headers:
            place = self._tracking.claim_observed(headers.get(_REQUEST_ID, ""))
        if place is None:
            self._recorder.passed("untracked")
        else:
            exchange.place = place
            self._released(exchange, place)
        await exchange.write(go_on("request_headers") or b"")
        return place is not None or not self._crowd.crowded

    async def _serve(self, exchange: Exchange, side: RequestSide, facts: Facts) -> bool:
        """Until the request was let go or answered. Whether its stream is to be followed to its end."""
        gate = self._gate
        rules = gate.rules
        if not gate.queues(facts):
            self._recorder.passed("not_queued")
            return await self._pass(exchange, side)
        if self._crowd.full and not isinstance(side, AtHeaders):  # its body is not asked for
            return await self._unread(exchange, side, gate.too_many_streams(), facts)
        try:
            complete = await side.facts(facts)
        except TooLargeError as error:
            return await self._unread(exchange, side, gate.too_large(str(error)), facts)
        except BufferFullError:
            return await self._unread(exchange, side, gate.buffer_full(), facts)
        except asyncio.CancelledError:
            self._recorder.passed("unread")
            raise
        if complete is None:
            self._recorder.passed("unread")
            exchange.answered = True
            return True
        first, exchange.opening = exchange.opening, None
        if gate.rules is not rules and first is not None:  # meanwhile another configuration; it may go by other headers
            complete = replace(complete, headers=headers_of(first.request_headers, gate.rules.headers))
        del first
        if complete is not facts:
            facts.forget()
        match gate.decide(
            complete,
            exchange.context.peer(),
            FIRST_BYTE in exchange.shape.words,
            full=self._crowd.full,
            crowded=self._crowd.crowded,
        ):
            case Queue(driver=Observer() as observer) as place:
                return await self._observe(exchange, side, place, observer)
            case Queue() as place:
                return await self._queue(exchange, side, place, complete)
            case Pass(why):
                self._recorder.passed(why)
                return await self._pass(exchange, side)
            case Deny() as deny:
                await self._refuse(exchange, deny, complete)
                return False

    async def _observe(self, exchange: Exchange, side: RequestSide, place: Queue, observer: Observer) -> bool:
        """It passes as it came, and beside that it is found out what would have become of it. Whether the stream is to
        be followed to its end."""
        self._recorder.passed("observe")
        observer.watch(place.event)
        if HOLD in exchange.shape.words:
            self._tracking.expect(place)
            await side.pass_on()
            return False
        exchange.place = place
        await side.pass_on()
        return True

    async def _unread(self, exchange: Exchange, side: RequestSide, deny: Deny, facts: Facts) -> bool:
        """Its body cannot be read. Whether its stream is to be followed to its end."""
        if not self._gate.rules.enforces:
            self._recorder.passed("unread")
            await side.pass_on()
            return True
        await self._refuse(exchange, deny, facts)
        return False

    async def _pass(self, exchange: Exchange, side: RequestSide) -> bool:
        """Let it go as it came. Whether its stream is to be followed to its end: not where there are many and no body
        comes by, as Envoy then goes on without."""
        await side.pass_on()
        return not (exchange.shape.bodiless and self._crowd.crowded)

    async def _refuse(self, exchange: Exchange, deny: Deny, facts: Facts) -> None:
        self._refused(deny.reason, deny.message, facts)
        await exchange.answer(refuse(deny.reason, deny.message, 1, deny.param))

    async def _queue(self, exchange: Exchange, side: RequestSide, place: Queue, facts: Facts) -> bool:
        """Wait for the verdict, and tell it. Whether the stream is to be followed to its end."""
        event = place.event
        exchange.place = place
        if self._journal is not None:
            self._journal.coming(event.id, place.request_id)
            if self._journal.tracing:
                trace = _trace(exchange.metadata, facts)
                parent = trace.get("traceparent", "")
                if self._journal.samples(parent):
                    state = trace.get("tracestate", "")
                    self._journal.begin(event.id, Origin(parent, state, facts.model, facts.path, facts.stream))
        exchange.metadata = ()  # it may wait long, among many
        waiter = place.driver.arrive(event)
        if waiter.done():
            outcome = waiter.result()
        else:
            if place.driver.verbose:
                log.debug("held", ticket=event.id, tenant=event.tenant, arrival=event.arrival)
            facts.forget()  # it may have 60 KB of headers
            outcome = await self._hold(exchange, waiter)
        match outcome:
            case Release() if exchange.gone:
                self._never_sent(place)
            case Release():
                if HOLD in exchange.shape.words:
                    # Before the answer: Envoy ends the stream as soon as it has that, perhaps during the write.
                    exchange.place = None
                    self._tracking.expect(place)
                    await side.release(self._grant(outcome, place, facts))
                    return False
                self._released(exchange, place)
                await side.release(self._grant(outcome, place, facts))
                return True
            case Refuse():
                await exchange.answer(refuse(outcome.reason, outcome.message, outcome.retry_after_s))
            case Interrupted.HANDED_OVER:
                exchange.interrupted = outcome
                await exchange.context.abort(grpc.StatusCode.UNAVAILABLE, "handed over to another replica")
            case Interrupted.DRAINING:
                exchange.interrupted = outcome
                await exchange.answer(refuse(Reason.DRAINING, "this gateway is shutting down (shutdown.held)", 1))
            case Interrupted.PASSED:
                await side.pass_on()
                return True
            case Interrupted.LEFT:
                exchange.answered = True
                self._close(exchange)
                return True
        return False

    def _refused(self, reason: Reason, message: str, facts: Facts | None = None) -> None:
        self._recorder.refused(reason.code)
        if self._journal is not None:
            model, request_id = (None, "") if facts is None else (facts.model, facts.request_id)
            self._journal.denied(reason, message, model, request_id)

    def _never_sent(self, place: Queue) -> None:
        """It was released, and its stream was over by then: no engine has seen it, so it costs nothing."""
        place.driver.usage(Usage(place.event.id, Source.ERROR))

    def let_go(self, how: Interrupted) -> None:
        """End all holding. HANDED_OVER: in silence, so that Envoy takes the request to another replica; what Envoy
        could not send again is refused. DRAINING: all are refused."""
        self._letting_go = how
        for waiter, exchange in list(self._held.items()):
            if not waiter.done():
                waiter.set_result(self._way_out(exchange))

    def hand_over(self) -> None:
        """Another replica is the one that requests should wait at: those go there, in silence, that Envoy can send
        again. The others stay, and so does what comes from now on."""
        for waiter, exchange in list(self._held.items()):
            if not waiter.done() and exchange.replayable:
                waiter.set_result(Interrupted.HANDED_OVER)

    def let_pass(self, pool: str) -> None:
        """Let go whatever is held in `pool` and would not be by the configuration in force. It passes as it came."""
        for waiter, exchange in list(self._held.items()):
            place = exchange.place
            if place is None or place.pool.name != pool or waiter.done() or exchange.gone or self._gate.holds(place):
                continue  # gone: its stream is about to say so
            waiter.set_result(Interrupted.PASSED)
            exchange.interrupted = Interrupted.PASSED
            self._recorder.passed("mode")
            self._close(exchange)

    def _way_out(self, exchange: Exchange) -> Interrupted:
        handed_over = self._letting_go is Interrupted.HANDED_OVER and exchange.replayable
        return Interrupted.HANDED_OVER if handed_over else Interrupted.DRAINING

    async def _hold(self, exchange: Exchange, waiter: asyncio.Future[Outcome]) -> Outcome:
        if self._letting_go is not None:
            return self._way_out(exchange)
        self._held[waiter] = exchange
        try:
            return await exchange.hold(waiter)
        finally:
            del self._held[waiter]

    def _released(self, exchange: Exchange, place: Queue) -> None:
        """It may have to leave: for a more urgent class, or because an operator says so."""
        if not place.observed:
            place.driver.on_evict(place.event.id, exchange.evict)

    def _grant(self, verdict: Release, place: Queue, facts: Facts) -> Grant:
        rules = self._gate.rules
        ways, wait_ms = rules.ways.get(place.pool.name, place.ways), verdict.waited_s * 1000
        headers = {
            TICKET: verdict.id,
            CLASS: verdict.cls,
            QUEUE_MS: str(round(wait_ms)),
            TIMING: f"queue;dur={wait_ms:.1f}",
        }
        address: str | None = None
        remove: tuple[str, ...] = ()
        if place.pool.pick.by == "envoy":
            way, remove = ways.common, (ENDPOINT,)
        else:
            way, address = ways.of(verdict.endpoint), verdict.endpoint
            headers[ENDPOINT] = address
            if verdict.fallbacks:
                address = ",".join((address, *verdict.fallbacks))
        told = number(way, verdict.priority)
        if way.header:
            headers[PRIORITY] = str(told)
        else:
            remove = (*remove, PRIORITY)
        edit = b""
        if way.body or place.usage_injected or place.model is not None:
            edit = members(told if way.body else None, place.usage_injected, place.model)
        untouched = rules.lua_appends and not (way.header or way.body)
        return Grant(headers, remove, address, edit, facts.compressed, untouched)

    async def _follow(
        self,
        exchange: Exchange,
        side: RequestSide | None,
        message: ext_proc_pb2.ProcessingRequest | None = None,
    ) -> None:
        """Answer whatever Envoy asks, until the stream ends."""
        response = ResponseSide(exchange, exchange.place)
        try:
            for kind in exchange.early:
                answer = go_on(kind) if side is None else side.later(kind, None)
                if answer is not None:
                    await exchange.write(answer)
            message = message or await exchange.read()
            while message is not None:
                kind = message.WhichOneof("request") or ""
                if kind.startswith("response"):
                    answers = response.answers(kind, message)
                else:
                    one = go_on(kind) if side is None else side.later(kind, message)
                    answers = [] if one is None else [one]
                if not exchange.shape.observed:
                    for answer in answers:
                        await exchange.write(answer)
                message = await exchange.read()
        finally:
            fault = response.fault()
            if fault is not None and exchange.place is not None:
                exchange.place.driver.endpoint_fault(fault)
            counted = response.usage()
            if counted is not None and exchange.place is not None:
                exchange.place.driver.usage(counted)

    async def _end(self) -> None:
        """Until Envoy cancels the stream. Reading for that costs a tenth of a millisecond of CPU, and the wiring says
        that there is nothing to be read. The set keeps the future, and so this task, from being collected."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ends.add(end)
        try:
            await end
        finally:
            self._ends.discard(end)

    async def _fail(self, exchange: Exchange, side: RequestSide | None) -> None:
        """A fault of ours: by configuration the request passes as it came, or is refused."""
        if self._gate.rules.config.on_fault == "reject":
            self._refused(Reason.FAULT, _FAULT_TEXT)
            await exchange.answer(refuse(Reason.FAULT, _FAULT_TEXT, 1))
            return
        self._recorder.passed("fault")
        if side is None:
            await exchange.answer(CONTINUE_HEADERS)
            return
        await side.pass_on()
        self._close(exchange)  # if it runs all the same, the next scrape counts it as foreign load
        await self._follow(exchange, side)


def _trace(metadata: Metadata, facts: Facts) -> Mapping[str, str]:
    """What has the trace headers of a request. Envoy puts the trace of its own span for this stream into the stream's
    metadata, where it traces."""
    for key, _ in metadata:
        if key == "traceparent":
            return {key: str(value) for key, value in metadata if key in TRACE_HEADERS}
    return facts.headers
