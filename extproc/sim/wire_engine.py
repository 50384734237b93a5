"""An engine that costs next to nothing: what stands behind Envoy when the gateway is measured.

`python -m extproc.sim.wire_engine PORT`. HTTP/1.1 with keep-alive, just as much of it as Envoy speaks:

    POST anything    answered at once as JSON, with usage; with the header `x-bench-answer: MS,CHUNKS` as a stream of
                     so many events, one each MS milliseconds, the last with usage
    GET /metrics     vLLM's names: what runs, nothing waiting, an empty KV cache
    GET /hold, /free from now on no POST is answered; all that were kept are, and those to come
    anything else    200, "{}"

The simulated engine (`sim.server`) models a batch and checks what it is sent. It takes several times the CPU of the
gateway for each request, which on two cores would be measured as the gateway's latency.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import cast

_END_OF_HEAD = b"\r\n\r\n"
_USAGE = b'"usage":{"prompt_tokens":8,"completion_tokens":4,"total_tokens":12}'
_CHOICE = b'{"index":0,"message":{"role":"assistant","content":"four words of answer"},"finish_reason":"stop"}'
_JSON_BODY = b'{"id":"bench","object":"chat.completion","model":"bench","choices":[' + _CHOICE + b"]," + _USAGE + b"}"
_EVENT = b'data: {"id":"bench","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'
_LAST_EVENT = b'data: {"id":"bench","object":"chat.completion.chunk","choices":[],' + _USAGE + b"}\n\ndata: [DONE]\n\n"
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def _plain(body: bytes, content_type: bytes = b"application/json") -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (content_type, len(body)) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


_ANSWER, _EMPTY = _plain(_JSON_BODY), _plain(b"{}")


def header(head: bytes, name: bytes) -> bytes | None:
    """The value of the first header `name` (lower case) in a message's head, or None."""
    at = head.lower().find(b"\r\n" + name + b":")
    if at < 0:
        return None
    start = at + len(name) + 3
    end = head.find(b"\r\n", start)
    return head[start : end if end >= 0 else len(head)].strip()


class Engine:
    """What the connections share."""

    def __init__(self) -> None:
        self.running = 0
        self.answered = 0
        self.kept: set[Connection] | None = None  # None: answers go out at once

    def hold(self) -> None:
        self.kept = self.kept if self.kept is not None else set()

    def free(self) -> None:
        kept, self.kept = self.kept or set(), None
        for connection in kept:
            connection.answer()

    def metrics(self) -> bytes:
        tokens = 4 * self.answered
        return (
            f"vllm:num_requests_running {self.running}\nvllm:num_requests_waiting 0\nvllm:kv_cache_usage_perc 0.0\n"
            f"vllm:generation_tokens_total {tokens}\nvllm:prompt_tokens_total {2 * tokens}\n"
        ).encode()


class Connection(asyncio.Protocol):
    """One connection. HTTP/1.1 without pipelining: a request is answered before the next one comes."""

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop = engine, loop
        self._head = b""
        self._missing: int | None = None  # bytes of the body that have not come; None: the head is not complete
        self._timer: asyncio.TimerHandle | None = None
        self._running = False  # a POST that has not been answered
        self._how: bytes | None = None  # the answer that the client wants
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        if self._engine.kept is not None:
            self._engine.kept.discard(self)
        self._ended()

    def data_received(self, data: bytes) -> None:
        if self._missing is None:
            self._head += data
            end = self._head.find(_END_OF_HEAD)
            if end < 0:
                return
            data, self._head = self._head[end + 4 :], self._head[:end]
            self._missing = int(header(self._head, b"content-length") or b"0")
        self._missing -= len(data)  # the bytes themselves are of no interest
        if self._missing <= 0:
            self._missing = None
            head, self._head = self._head, b""
            self._request(head)

    def _request(self, head: bytes) -> None:
        engine = self._engine
        method, path, _ = head.split(b" ", 2)
        if method == b"POST":
            self._running = True
            engine.running += 1
            self._how = header(head, b"x-bench-answer")
            if engine.kept is not None:
                engine.kept.add(self)
            else:
                self.answer()
        elif path == b"/metrics":
            self._write(_plain(engine.metrics(), b"text/plain; version=0.0.4"))
        else:
            calls: dict[bytes, Callable[[], None]] = {b"/hold": engine.hold, b"/free": engine.free}
            calls.get(path, lambda: None)()
            self._write(_EMPTY)

    def answer(self) -> None:
        if self._how is None:
            self._ended()
            self._write(_ANSWER)
            return
        each_ms, _, chunks = self._how.partition(b",")
        self._write(_STREAM_HEAD)
        self._next(int(each_ms) / 1000, int(chunks))

    def _next(self, each_s: float, left: int) -> None:
        if left > 0:
            self._write(_chunk(_EVENT))
            self._timer = self._loop.call_later(each_s, self._next, each_s, left - 1)
            return
        self._timer = None
        self._ended()
        self._write(_chunk(_LAST_EVENT) + b"0\r\n\r\n")

    def _ended(self) -> None:
        if self._running:
            self._running = False
            self._engine.running -= 1
            self._engine.answered += 1

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


async def serve(port: int) -> None:
    """On the loopback, until cancelled."""
    loop = asyncio.get_running_loop()
    engine = Engine()
    server = await loop.create_server(lambda: Connection(engine, loop), "127.0.0.1", port, backlog=4096)
    async with server:
        await server.serve_forever()


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: the less the load takes, the more is left for what is measured."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(serve(int(sys.argv[1])))
