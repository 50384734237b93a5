"""The answer's way through a stream, where the wiring sends any of it here: first byte, first token, usage."""

from __future__ import annotations

from extproc.core.events import Failed, TurnedAway, Usage
from extproc.core.model import Source
from extproc.edge.exchange import Exchange
from extproc.edge.gate import Queue
from extproc.edge.no_room import CODES, says_failure
from extproc.edge.shape import FIRST_BYTE, NONE
from extproc.edge.sse_meter import Meter
from extproc.edge.wire import go_on, headers_of, response_body_answer, streamed_body
from extproc.pb.wire.v1 import ext_proc_pb2

_UPSTREAM_TIME = "x-envoy-upstream-service-time"  # Envoy adds it to what comes from an upstream, unless told not to


class ResponseSide:
    """Follows one answer. `place`: the request in the books; None: it is none of ours, and nothing is read."""

    def __init__(self, exchange: Exchange, place: Queue | None) -> None:
        self._duplex = exchange.shape.duplex_response
        self._unlogged = exchange.shape.unlogged
        self._metered = place is not None and exchange.shape.response_body != NONE
        self._first_byte = place is not None and FIRST_BYTE in exchange.shape.words
        self._place = place
        self._meter: Meter | None = None
        self._ended = False
        self._code = 0
        self._by_engine = False  # the answer came from it, and not from Envoy itself
        self._token_seen = False

    def answers(self, kind: str, message: ext_proc_pb2.ProcessingRequest) -> list[bytes]:
        """What Envoy waits for after a message of the response."""
        if kind == "response_headers":
            self._on_headers(message.response_headers)
        elif kind == "response_body":
            body = message.response_body
            return [self._piece(body.body, body.end_of_stream)]
        elif kind == "response_trailers" and self._meter is not None and not self._ended:
            self._ended = True
            rest = self._meter.feed(b"", True)
            if rest and self._duplex:
                return [streamed_body("response_body", rest, False), go_on(kind) or b""]
        answer = go_on(kind)
        return [] if answer is None else [answer]

    def _on_headers(self, message: ext_proc_pb2.HttpHeaders) -> None:
        place = self._place
        if place is None:
            return
        if self._first_byte:
            place.driver.first_byte(place.event.id)
        if not self._metered:
            return
        headers = headers_of(message)
        status = headers.get(":status", "")
        self._code = int(status) if status.isdigit() else 0
        self._by_engine = _UPSTREAM_TIME in headers
        if not message.end_of_stream:
            self._meter = Meter(
                headers.get("content-type", ""),
                headers.get("content-encoding", ""),
                drop_usage_chunk=place.usage_injected,
            )

    def _piece(self, body: bytes, last: bool) -> bytes:
        meter = self._meter
        if meter is None:
            if self._duplex:
                return streamed_body("response_body", body, last)
            return go_on("response_body") or b""
        self._ended = last
        out = meter.feed(body, last)
        if meter.first_token and not self._token_seen and self._place is not None:
            self._token_seen = True
            self._place.driver.first_token(self._place.event.id)
        if self._duplex:
            return streamed_body("response_body", out, last)
        return (go_on("response_body") or b"") if out is body else response_body_answer(out)

    def fault(self) -> TurnedAway | Failed | None:
        """The engine has refused or failed the request, and no access log will tell."""
        if self._place is None or not self._unlogged:
            return None
        name = self._place.event.id
        if (self._meter is not None and self._meter.result.no_room) or (self._by_engine and self._code in CODES):
            return TurnedAway(name)
        return Failed(name) if self._by_engine and says_failure(self._code) else None

    def usage(self) -> Usage | None:
        """What was counted; None: nothing was, and others may know more."""
        if self._meter is None or self._place is None:
            return None
        name, counted = self._place.event.id, self._meter.result
        if counted.error or self._code >= 400:
            return Usage(name, Source.ERROR, counted.prompt_tokens)
        if counted.output_tokens is not None:
            return Usage(name, Source.STREAM, counted.prompt_tokens, counted.cached_tokens or 0, counted.output_tokens)
        if not self._ended:
            return Usage(name, Source.ABORT, counted.prompt_tokens)
        return None
