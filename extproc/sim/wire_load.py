"""The load for the gateway's measurement: HTTP/1.1 clients that cost next to nothing.

    python -m extproc.sim.wire_load SPEC RESULT     two JSON files: a `Load`, and then a `Result`

A process of its own, so that its CPU is not counted with anybody's and its pauses delay nobody. Callbacks in place of
tasks, and of HTTP just as much as tells where an answer ends. Three shapes:

    closed    `clients` connections, each with one request at a time, sent when the one before is answered
    open      `rate` requests a second at exponential intervals, whatever has been answered (Poisson arrivals)
    at once   all of them, each on a connection of its own

Latency is from the write of the request to the last byte of the answer. In the open shape a request may be sent late
by a timer's granularity; that is the generator's fault, not the gateway's, and is told apart (`late_s`).
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, cast

from extproc.sim.wire_engine import header, loop_factory

_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_CONNECTING = 256  # connections that are opened at the same time

Leave = Literal["half", "held", "streaming"]
LEAVES: tuple[Leave, ...] = ("half", "held", "streaming")


@dataclass(frozen=True, slots=True)
class Load:
    """What to send. Times in seconds."""

    port: int  # on the loopback
    requests: int
    shape: Literal["closed", "open", "at_once"] = "closed"
    clients: int = 16
    rate: float = 0.0  # a second, of the open shape
    body_bytes: int = 2_048
    tenants: int = 8
    first_tenant: int = 0  # their names are tenant-N, tenant-N+1, ...
    apart: bool = False  # closed shape: each client is of one tenant, whose requests wait for no other's answer
    output: int = 4  # tokens that are asked for
    answer: str | None = None  # MS,CHUNKS of `wire_engine`
    leaving: float = 0.0  # share of requests whose client does not wait for the end
    patience_s: float = 0.1  # at most, of a client that leaves while it is held
    seed: int = 1
    timeout_s: float = 120.0  # for all of it


@dataclass(slots=True)
class Result:
    """What came of it."""

    seconds: float = 0.0
    answers: dict[str, int] = field(default_factory=dict)  # by status; "closed": no whole answer came
    left: dict[str, int] = field(default_factory=dict)  # clients that left, by when
    latency_s: list[float] = field(default_factory=list)  # of answers with status 200
    late_s: list[float] = field(default_factory=list)  # open shape: sent so much after its time
    unanswered: int = 0  # when the time was over

    @property
    def ok(self) -> int:
        return self.answers.get("200", 0)


def body(size: int, output: int = 4) -> bytes:
    """A chat request of `size` bytes (of 110 at least) for `output` tokens."""
    frame = b'{"model":"bench","max_tokens":%d,"stream":false,"messages":[{"role":"user","content":"%%b"}]}' % output
    return frame % (b"lorem ipsum " * (size // 12 + 1))[: max(1, size - len(frame) + 2)]


class _Client(asyncio.Protocol):
    """One connection: at most one request at a time."""

    def __init__(self, run: _Run, number: int) -> None:
        self.number = number  # of its tenant, where each client is of one
        self._run = run
        self._transport: asyncio.Transport | None = None
        self._done: Callable[[_Client, str], None] | None = None
        self._buffer = b""
        self._missing: int | None = None  # bytes of the body that have not come; -1: chunked; None: in the head
        self._status = ""
        self.leaves_on_data = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._finish("closed")

    @property
    def open(self) -> bool:
        return self._transport is not None

    def send(self, data: bytes, done: Callable[[_Client, str], None]) -> None:
        """`done` is called once, with the status, or with "closed"."""
        self._done, self._buffer, self._missing, self.leaves_on_data = done, b"", None, False
        if self._transport is None:
            self._run.loop.call_soon(self._finish, "closed")
            return
        self._transport.write(data)

    def waits_with(self, done: object) -> bool:
        """Whether the request that was sent with `done` is not over."""
        return self._done is done

    def leave(self) -> None:
        self._done = None
        if self._transport is not None:
            self._transport.abort()
            self._transport = None  # it is told of the end later; nothing may be sent until then

    def data_received(self, data: bytes) -> None:
        if self._missing is None:
            self._buffer += data
            end = self._buffer.find(_END_OF_HEAD)
            if end < 0:
                return
            head, data = self._buffer[:end], self._buffer[end + 4 :]
            self._status = head[9:12].decode("ascii", "replace")
            length = header(head, b"content-length")
            self._missing, self._buffer = (-1 if length is None else int(length)), b""
        if self.leaves_on_data:
            self._run.left(self, "streaming")
            return
        if self._missing >= 0:
            self._missing -= len(data)
            if self._missing <= 0:
                self._finish(self._status)
            return
        self._buffer = (self._buffer + data)[-len(_LAST_CHUNK) :]
        if self._buffer == _LAST_CHUNK:
            self._finish(self._status)

    def _finish(self, how: str) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(self, how)


class _Run:
    """One load, under way."""

    def __init__(self, load: Load, loop: asyncio.AbstractEventLoop) -> None:
        self.load, self.loop = load, loop
        self.result = Result()
        self._random = random.Random(load.seed)  # noqa: S311 - the same load each time is the point
        self._answers: Counter[str] = Counter()
        self._left: Counter[str] = Counter()
        self._sent = self._over = self._connected = 0
        self._finished = loop.create_future()
        text = body(load.body_bytes, load.output)
        extra = f"x-bench-answer: {load.answer}\r\n" if load.answer else ""
        tenants = load.tenants if load.body_bytes < 100_000 else 1
        self._requests = [
            (
                f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
                f"x-tenant: tenant-{number}\r\n{extra}content-length: {len(text)}\r\n\r\n"
            ).encode()
            + text
            for number in range(load.first_tenant, load.first_tenant + tenants)
        ]
        self._idle: list[_Client] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def go(self) -> Result:
        began = time.perf_counter()
        try:
            async with asyncio.timeout(self.load.timeout_s):
                if self.load.shape == "open":
                    await self._open()
                else:
                    await self._start(self.load.clients if self.load.shape == "closed" else self.load.requests)
                await self._finished
        except TimeoutError:
            self.result.unanswered = self.load.requests - self._over
        self.result.seconds = time.perf_counter() - began
        self.result.answers, self.result.left = dict(self._answers), dict(self._left)
        return self.result

    async def _start(self, clients: int) -> None:
        gate = asyncio.Semaphore(_CONNECTING)

        async def one() -> None:
            async with gate:
                client = await self._connect()
            self._next(client)

        await asyncio.gather(*(one() for _ in range(min(clients, self.load.requests))))

    async def _open(self) -> None:
        for _ in range(self.load.clients):
            self._idle.append(await self._connect())
        due = self.loop.time()
        for _ in range(self.load.requests):
            due += self._random.expovariate(self.load.rate)
            if (wait := due - self.loop.time()) > 0:
                await asyncio.sleep(wait)
            while self._idle and not self._idle[-1].open:
                self._idle.pop()
            client = self._idle.pop() if self._idle else await self._connect()
            self.result.late_s.append(max(0.0, self.loop.time() - due))
            self._send(client)

    async def _connect(self, number: int | None = None) -> _Client:
        """`number`: of the client whose connection is lost."""
        number = self._connected if number is None else number
        self._connected += 1
        _, client = await self.loop.create_connection(lambda: _Client(self, number), "127.0.0.1", self.load.port)
        return client

    def _next(self, client: _Client) -> None:
        """The next request of a client, if there is one."""
        if self._sent >= self.load.requests:
            return
        if not client.open:
            task = self.loop.create_task(self._reconnect(client.number))
            self._tasks.add(task)  # the loop keeps weak references only
            task.add_done_callback(self._tasks.discard)
            return
        self._send(client)

    async def _reconnect(self, number: int) -> None:
        if self._sent < self.load.requests:
            self._next(await self._connect(number))

    def _send(self, client: _Client) -> None:
        data = self._requests[(client.number if self.load.apart else self._sent) % len(self._requests)]
        self._sent += 1
        how = self._random.choice(LEAVES) if self.load.leaving and self._random.random() < self.load.leaving else None
        if how == "half":
            data = data[: self._random.randrange(1, len(data) - 1)]
        written = time.perf_counter()

        def done(client: _Client, status: str) -> None:
            self._answers[status] += 1
            if status == "200":
                self.result.latency_s.append(time.perf_counter() - written)
            self._count(client)

        client.send(data, done)
        client.leaves_on_data = how == "streaming"
        if how in ("half", "held"):
            self.loop.call_later(self._random.uniform(0.0, self.load.patience_s), self._impatient, client, done, how)

    def _impatient(self, client: _Client, done: object, how: str) -> None:
        if client.waits_with(done):  # else it was answered in time
            self.left(client, how)

    def left(self, client: _Client, how: str) -> None:
        client.leave()
        self._left[how] += 1
        self._count(client)

    def _count(self, client: _Client) -> None:
        self._over += 1
        if self._over >= self.load.requests and not self._finished.done():
            self._finished.set_result(None)
        elif self.load.shape == "open":
            self._idle.append(client)
        elif self.load.shape == "closed":
            self._next(client)


async def run(load: Load) -> Result:
    """Send it all. Raises OSError when nobody listens."""
    return await _Run(load, asyncio.get_running_loop()).go()


def main(spec: Path, result: Path) -> None:
    load = Load(**json.loads(spec.read_text(encoding="utf-8")))
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        done = runner.run(run(load))
    result.write_text(json.dumps(asdict(done)), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
