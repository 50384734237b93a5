"""The request's way through a stream: when enough is known to decide, and how it is let go.

AtHeaders   the facts came with the headers: it is held there, in silence, and Envoy replays it if this process dies.
            A body that comes afterwards in one piece is edited then.
AtBody      no facts: the headers are answered first, and it is held at its body. No replay from there on.
Duplex      the body comes in pieces while the headers wait, and is given back in pieces. Nothing is written before
            the release; Envoy replays what fits into its own buffer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from extproc.core.reasons import Reason
from extproc.edge import facts as facts_of
from extproc.edge.body_edit import append_members
from extproc.edge.exchange import Exchange
from extproc.edge.facts import Facts
from extproc.edge.recorder import Recorder
from extproc.edge.release_answer import release
from extproc.edge.replies import refuse
from extproc.edge.usage import TICKET
from extproc.edge.wire import go_on, request_body_answer, request_headers_answer, streamed_body
from extproc.pb.wire.v1 import ext_proc_pb2

PRIORITY = "x-vllm-priority"
CLASS, QUEUE_MS, ENDPOINT, TIMING = (
    "x-fairlane-class",
    "x-fairlane-queue-ms",
    "x-fairlane-endpoint",
    "x-fairlane-timing",
)
OURS = (PRIORITY, TICKET, CLASS, QUEUE_MS, ENDPOINT, TIMING)

# Envoy keeps about 64 KiB of a streamed body for a replay.
_REPLAYED_BYTES = 48 * 1024
_PIECE = 256 * 1024

_NOT_UTF8_TEXT = "the body must be UTF-8: its priority cannot be set otherwise"
_NOT_UTF8 = refuse(Reason.INVALID_REQUEST, _NOT_UTF8_TEXT)
CONTINUE_HEADERS = request_headers_answer({}, OURS)


Refused = Callable[[Reason, str], None]
"""Is told of a request that is refused: why, and what its client is told."""


@dataclass(slots=True)
class Grant:
    """What a released request takes with it."""

    headers: Mapping[str, str]
    remove: tuple[str, ...]  # names of headers
    address: str | None  # of the endpoint, see `release_answer`; None: Envoy chooses
    members: bytes  # to append to its JSON body; empty: the body stays as it is
    compressed: bool  # its header says so
    untouched: bool = False  # Envoy's Lua filter is to leave its body alone, too


class TooLargeError(Exception):
    """The body has more bytes than may be read. The message says how many it has, or had so far."""


class BufferFullError(Exception):
    """There are too many bytes of bodies in memory."""


class Buffer:
    """What all bodies together take that are here. A body counts while it is read and held, and belongs to nobody's
    queue before it is whole: without a limit a few hundred clients that never end theirs would fill the memory, and
    without shares those of one tenant would leave nothing to the others."""

    def __init__(self, most: Callable[[], int]) -> None:
        """`most`: bytes, by the configuration in force."""
        self._most = most
        self._of: dict[str, int] = {}  # tenant -> bytes
        self.used = 0  # bytes

    def take(self, tenant: str, more: int) -> None:
        """Half of it is the most for one tenant. Raises BufferFullError, and takes nothing."""
        mine = self._of.get(tenant, 0) + more
        most = self._most()
        if self.used + more > most or mine > most // 2:
            raise BufferFullError
        self._of[tenant] = mine
        self.used += more

    def free(self, tenant: str, bytes_: int) -> None:
        if not bytes_:
            return
        self.used -= bytes_
        left = self._of[tenant] - bytes_
        if left:
            self._of[tenant] = left
        else:
            del self._of[tenant]


@dataclass(frozen=True, slots=True)
class Limits:
    max_body: Callable[[], int]  # bytes, by the configuration in force
    buffer: Buffer
    tenant_of: Callable[[Facts], str]


class RequestSide(Protocol):
    async def facts(self, facts: Facts) -> Facts | None:
        """`facts` with all that will be known before the decision; None: the stream is over. Raises TooLargeError and
        BufferFullError."""

    def release(self, grant: Grant) -> Awaitable[None]: ...

    def pass_on(self) -> Awaitable[None]:
        """Let the request go as it came."""

    def close(self) -> None:
        """The stream is over."""

    def later(self, kind: str, message: ext_proc_pb2.ProcessingRequest | None, /) -> bytes | None:
        """The answer to a message of the request that comes after it was let go. `message`: None where only its kind
        was kept."""


def side_of(
    exchange: Exchange,
    first: ext_proc_pb2.ProcessingRequest,
    facts: Facts,
    recorder: Recorder,
    refused: Refused,
    limits: Limits,
) -> RequestSide:
    """The way that this stream's wiring asks for. `limits`: of bodies that are read here."""
    shape = exchange.shape
    has_body = not first.request_headers.end_of_stream
    if has_body and shape.duplex_request:
        return Duplex(exchange, recorder, refused, limits)
    if has_body and shape.whole_body and not facts.known:
        return AtBody(exchange, recorder, refused, limits)
    return AtHeaders(exchange, recorder, refused, body_follows=has_body and shape.whole_body)


class AtHeaders:
    def __init__(self, exchange: Exchange, recorder: Recorder, refused: Refused, *, body_follows: bool) -> None:
        self._exchange = exchange
        self._recorder = recorder
        self._refused = refused
        self._body_follows = body_follows
        self._members = b""
        self._compressed = False

    async def facts(self, facts: Facts) -> Facts | None:
        return facts

    def release(self, grant: Grant) -> Awaitable[None]:
        append = None
        if self._body_follows:
            self._members, self._compressed = grant.members, grant.compressed
        elif grant.members or grant.untouched:
            append = grant.members.decode()
        return self._exchange.answer(release(grant.headers, grant.address, append, grant.remove))

    def pass_on(self) -> Awaitable[None]:
        return self._exchange.answer(CONTINUE_HEADERS)

    def later(self, kind: str, message: ext_proc_pb2.ProcessingRequest | None) -> bytes | None:
        if kind == "request_body" and message is not None and self._members:
            members, self._members = self._members, b""
            body = message.request_body.body
            if _is_wide(body):
                self._refused(Reason.INVALID_REQUEST, _NOT_UTF8_TEXT)
                return _NOT_UTF8
            edited = _edited(body, members, self._compressed, self._recorder)
            if edited is not None:
                return request_body_answer({}, body=edited)
        return go_on(kind)

    def close(self) -> None:
        pass


class AtBody:
    def __init__(self, exchange: Exchange, recorder: Recorder, refused: Refused, limits: Limits) -> None:
        self._exchange = exchange
        self._recorder = recorder
        self._refused = refused
        self._limits = limits
        self._tenant = ""
        self._taken = 0  # bytes of the buffer
        self._asked = False  # the headers were answered, so that the body comes
        self._owing = False  # the body has come, and was not answered
        self._body = b""

    async def facts(self, facts: Facts) -> Facts | None:
        exchange = self._exchange
        exchange.replayable = False
        self._asked = True
        await exchange.write(CONTINUE_HEADERS)
        message = await exchange.read()
        while message is not None and message.WhichOneof("request") == "request_trailers":
            await exchange.write(go_on("request_trailers") or b"")
            message = await exchange.read()
        if message is None:
            return None
        if message.WhichOneof("request") != "request_body":
            await exchange.write(go_on(message.WhichOneof("request") or "") or b"")
            return None  # Envoy has answered the client itself
        self._owing = True
        body = message.request_body.body
        self._tenant = self._limits.tenant_of(facts)
        self._limits.buffer.take(self._tenant, len(body))
        self._body, self._taken = body, len(body)
        if len(body) > self._limits.max_body():
            raise TooLargeError(f"the body has {len(body)} bytes")
        return facts_of.with_body(facts, body)

    async def release(self, grant: Grant) -> None:
        body, self._owing = self._body, False
        self.close()
        if grant.members and _is_wide(body):
            self._refused(Reason.INVALID_REQUEST, _NOT_UTF8_TEXT)
            await self._exchange.answer(_NOT_UTF8)
            return
        edited = _edited(body, grant.members, grant.compressed, self._recorder) if grant.members else None
        await self._exchange.answer(request_body_answer(grant.headers, grant.remove, grant.address, edited))

    async def pass_on(self) -> None:
        self.close()
        if not self._asked:
            await self._exchange.answer(CONTINUE_HEADERS)
        elif self._owing:
            self._owing = False
            await self._exchange.answer(go_on("request_body") or b"")
        else:
            self._exchange.answered = True  # the body's own answer follows when it comes

    def later(self, kind: str, _: ext_proc_pb2.ProcessingRequest | None) -> bytes | None:
        return go_on(kind)

    def close(self) -> None:
        self._body = b""
        self._limits.buffer.free(self._tenant, self._taken)
        self._taken = 0


class Duplex:
    def __init__(self, exchange: Exchange, recorder: Recorder, refused: Refused, limits: Limits) -> None:
        self._exchange = exchange
        self._recorder = recorder
        self._refused = refused
        self._limits = limits
        self._tenant = ""
        self._taken = 0  # bytes of the buffer
        self._body = bytearray()
        self._ended = False  # the whole body is here
        self._trailers = False  # and trailers came after it
        self._passing = False  # it goes on piece by piece, as it comes

    async def facts(self, facts: Facts) -> Facts | None:
        self._tenant = self._limits.tenant_of(facts)
        while not self._ended:
            message = await self._exchange.read()
            if message is None:
                return None
            kind = message.WhichOneof("request") or ""
            if kind == "request_body":
                piece = message.request_body.body
                self._body += piece  # first: should there be no room, it may have to be given back all the same
                self._ended = message.request_body.end_of_stream
                self._limits.buffer.take(self._tenant, len(piece))
                self._taken += len(piece)
                self._exchange.replayable = len(self._body) <= _REPLAYED_BYTES
                if len(self._body) > self._limits.max_body():
                    raise TooLargeError(f"the body has more than {len(self._body)} bytes")
            elif kind == "request_trailers":
                self._ended = self._trailers = True
            else:
                self.close()
                await self._exchange.write(go_on(kind) or b"")
                return None  # Envoy has answered the client itself
        return facts_of.with_body(facts, bytes(self._body))

    async def release(self, grant: Grant) -> None:
        if grant.members and _is_wide(self._body):
            self.close()
            self._refused(Reason.INVALID_REQUEST, _NOT_UTF8_TEXT)
            await self._exchange.answer(_NOT_UTF8)
            return
        edited = _edited(bytes(self._body), grant.members, grant.compressed, self._recorder) if grant.members else None
        await self._exchange.write(release(grant.headers, grant.address, None, grant.remove))
        await self._give_back(bytes(self._body) if edited is None else edited)

    async def pass_on(self) -> None:
        await self._exchange.write(CONTINUE_HEADERS)
        await self._give_back(bytes(self._body))

    async def _give_back(self, body: bytes) -> None:
        exchange = self._exchange
        exchange.answered = True
        self._passing = not self._ended
        self._body = bytearray()
        last = self._ended and not self._trailers
        for start in range(0, len(body) or int(last), _PIECE):
            piece = body[start : start + _PIECE]
            await exchange.write(streamed_body("request_body", piece, last and start + _PIECE >= len(body)))
        if self._trailers:
            await exchange.write(go_on("request_trailers") or b"")
        self.close()

    def close(self) -> None:
        self._body = bytearray()
        self._limits.buffer.free(self._tenant, self._taken)
        self._taken = 0

    def later(self, kind: str, message: ext_proc_pb2.ProcessingRequest | None) -> bytes | None:
        if not self._passing or message is None:
            return None  # the body has ended before: Envoy 1.35 to 1.37 send the end of a large one twice
        if kind == "request_body":
            body = message.request_body
            self._passing = not body.end_of_stream
            return streamed_body("request_body", body.body, body.end_of_stream)
        self._passing = False
        return go_on(kind)


def _is_wide(body: bytes | bytearray) -> bool:
    """Whether it is UTF-16 or UTF-32, which Python's json reads and nothing can be appended to: a client's own priority
    would count."""
    start = bytes(body[:2])
    return 0 in start or start in (b"\xff\xfe", b"\xfe\xff")


def _edited(body: bytes, members: bytes, compressed: bool, recorder: Recorder) -> bytes | None:
    """What is an object as it stands is edited, whatever its header says: an engine reads it as one, too."""
    edited = append_members(body, members)
    recorder.body_edit("edited" if edited is not None else "compressed" if compressed else "no_object")
    return edited
