"""How Envoy was wired for one stream: what it sends, and what the stream stands for.

The body modes come with the first message. What the messages cannot tell, the wiring says in words: the gRPC initial
metadata of the filter, key `fairlane-wiring`.

    hold          the filter only holds; another one, `track`, follows the response (profile strict)
    track         the stream follows a request that was released on a `hold` stream
    first-byte    response headers are sent here, so the first byte of an answer is seen
    no-trailers   the upstream cannot send trailers, so after the answer to the headers no message comes any more
    no-access-log no entry will say what a request took: what is not counted by the end of its stream is estimated then
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from extproc.pb.wire.v1 import ext_proc_pb2

WIRING = "fairlane-wiring"
HOLD, TRACK, FIRST_BYTE = "hold", "track", "first-byte"
NO_TRAILERS, NO_ACCESS_LOG = "no-trailers", "no-access-log"

_Modes = ext_proc_pb2.ProcessingMode
NONE = _Modes.BODY_SEND_MODE_NONE
_WHOLE = (_Modes.BODY_SEND_MODE_BUFFERED, _Modes.BODY_SEND_MODE_BUFFERED_PARTIAL)
_DUPLEX = _Modes.BODY_SEND_MODE_FULL_DUPLEX_STREAMED


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one filter; there are few of them, so each is made once."""

    request_body: int  # ProcessingMode.BodySendMode
    response_body: int
    observed: bool  # Envoy does not wait for answers
    words: frozenset[str]
    whole_body: bool  # the request's body comes in one piece
    duplex_request: bool  # it comes in pieces, and is to be given back in pieces
    duplex_response: bool
    bodiless: bool  # no body comes here
    quiet: bool  # after the answer to the request headers nothing is to be read
    unlogged: bool  # no access log tells what a request took


_known: dict[tuple[int, int, bool, str], Shape] = {}
_MOST = 64  # wirings in use at a time; the words are an Envoy's, not a client's


def shape_of(message: ext_proc_pb2.ProcessingRequest | None, metadata: Any) -> Shape:
    """`message`: the first of the stream, None where it cannot be read; `metadata`: the stream's initial metadata, as
    grpc gives it."""
    message = message or ext_proc_pb2.ProcessingRequest()
    modes = message.protocol_config
    request_body, response_body = modes.request_body_mode, modes.response_body_mode
    words = ""
    for key, value in metadata or ():
        if key == WIRING and isinstance(value, str):
            words = value
    key = (request_body, response_body, message.observability_mode, words)
    shape = _known.get(key)
    if shape is None:
        shape = _made(*key)
        if len(_known) < _MOST:
            _known[key] = shape
    return shape


def _made(request_body: int, response_body: int, observed: bool, text: str) -> Shape:
    words = frozenset(word.strip() for word in text.split(","))
    return Shape(
        request_body=request_body,
        response_body=response_body,
        observed=observed,
        words=words,
        whole_body=request_body in _WHOLE,
        duplex_request=request_body == _DUPLEX,
        duplex_response=response_body == _DUPLEX,
        bodiless=request_body == response_body == NONE,
        quiet=NO_TRAILERS in words and FIRST_BYTE not in words and request_body == response_body == NONE,
        unlogged=NO_ACCESS_LOG in words,
    )
