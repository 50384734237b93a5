"""Figures to the pages that are open, as server-sent events.

While somebody reads, one task takes a snapshot a second and encodes it once; the same bytes go to all. A reader that
has sent the last one waits for the next; one that is slow finds the newest, and has missed those between. So nothing is
kept for a reader but what its connection has taken already, and nobody waits for it. One that does not take 64 KB in
`_STUCK_S` is let go. So that this is seen soon, its connection has little room: else the kernel alone takes some 1.7 MB
from us before a write has to wait, which is minutes of snapshots.

Readers are woken a few in each turn of the loop: writing to a hundred of them takes some milliseconds, for which a
release would have to wait.

Two kinds of events: "history" (the last minutes, once at the beginning; later on the end of it, every few seconds) and
"snapshot". The points of a history have their time, and those of the last minute come with each: a reader that has
missed some loses none.
"""

from __future__ import annotations

import asyncio
import socket
from bisect import bisect_right
from typing import Any, Final

import orjson
import structlog
from aiohttp import web

from extproc.telemetry.live.assets import HEADERS
from extproc.telemetry.live.source import LiveSource

log = structlog.get_logger()

MOST_READERS: Final = 200
INTERVAL_S: Final = 1.0
_POINTS_EACH: Final = 5  # snapshots
_POINTS_S: Final = 60.0
_AT_ONCE: Final = 4  # readers that are woken in one turn of the loop
_STUCK_S: Final = 30.0
_PIECE: Final = 64 * 1024  # bytes
_SENT: Final = 64 * 1024  # bytes that the kernel takes ahead; Linux doubles it for its own needs
_UNSENT: Final = 16 * 1024  # bytes that wait for the kernel before a write has to wait
_RETRY: Final = b"retry: 2000\n\n"


class _Reader:
    def __init__(self, request: web.Request, stuck_s: float) -> None:
        self.woken = asyncio.Event()
        self.writing = False
        self._request = request
        self._stuck_s = stuck_s

    def narrow(self) -> None:
        """Little room on the way. Raises ConnectionError when it has gone."""
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError
        try:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SENT)
        except OSError as error:
            raise ConnectionResetError from error
        transport.set_write_buffer_limits(_UNSENT)

    async def write(self, response: web.StreamResponse, frame: bytes) -> None:
        """Raises ConnectionError when it has gone, TimeoutError when it takes nothing."""
        self.writing = True
        rest = memoryview(frame)
        while rest:
            async with asyncio.timeout(self._stuck_s):
                await response.write(rest[:_PIECE])
                await self._request.writer.drain()  # `write` by itself waits from 64 KB on only
            rest = rest[_PIECE:]
        self.writing = False

    def abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()


class Feed:
    """All pages of one process."""

    def __init__(
        self,
        source: LiveSource,
        *,
        interval_s: float = INTERVAL_S,
        most: int = MOST_READERS,
        stuck_s: float = _STUCK_S,
    ) -> None:
        self._source = source
        self._interval_s = interval_s
        self._most = most
        self._stuck_s = stuck_s
        self._readers: set[_Reader] = set()
        self._task: asyncio.Task[None] | None = None
        self._newest = b""
        self._history: tuple[float, bytes] | None = None  # when it was encoded, by the loop's clock
        self._failing = False
        self._closed = False

    @property
    def readers(self) -> int:
        return len(self._readers)

    @property
    def running(self) -> bool:
        """Whether it takes snapshots."""
        return self._task is not None

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """The answer to one page, until it leaves or all ends."""
        if self._closed:
            return _unavailable("the service stops\n")
        if len(self._readers) >= self._most:
            return _unavailable(f"{self._most} live pages are open, the most there may be: close one of them\n")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream; charset=utf-8"})
        if request.method == "HEAD":
            return response
        reader = _Reader(request, self._stuck_s)
        self._readers.add(reader)
        try:
            reader.narrow()
            await response.prepare(request)
            await reader.write(response, _RETRY + await self._all_history())
            if self._newest:
                await reader.write(response, self._newest)
            self._begin()
            while not self._closed:
                await reader.woken.wait()
                reader.woken.clear()
                await reader.write(response, self._newest)
            await response.write_eof()
        except ConnectionError:
            pass  # it has gone
        except TimeoutError:
            reader.abort()
        finally:
            self._readers.discard(reader)
            if not self._readers:
                self._end()
        return response

    def close(self) -> None:
        """Ends all, also those that take nothing."""
        self._closed = True
        self._end()
        for reader in self._readers:
            reader.woken.set()
            if reader.writing:
                reader.abort()

    def _begin(self) -> None:
        if self._task is None and not self._closed:
            self._task = asyncio.create_task(self._run(), name="live page")

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._newest, self._history = b"", None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due, number = loop.time(), 0
        while True:
            try:
                frame = await _snapshot_frame(await self._source.snapshot())
                number += 1
                if number % _POINTS_EACH == 0:
                    frame = await self._points() + frame
                self._newest, self._failing = frame, False
                await self._wake()
            except Exception:
                if not self._failing:  # once, not each second
                    log.exception("live_page_failed")
                self._failing = True
            due = max(due + self._interval_s, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _wake(self) -> None:
        for number, reader in enumerate(list(self._readers), start=1):
            reader.woken.set()
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _all_history(self) -> bytes:
        """Encoded for all who come within a second."""
        now = asyncio.get_running_loop().time()
        if self._history is None or now - self._history[0] >= self._interval_s:
            self._history = now, await _history_frames(self._source.history(), None)
        return self._history[1]

    async def _points(self) -> bytes:
        return await _history_frames(self._source.history(), _POINTS_S)


async def _snapshot_frame(snapshot: dict[str, Any]) -> bytes:
    """Pool by pool: fifty of them with a hundred endpoints each take some milliseconds to encode."""
    pools = []
    for pool in snapshot.get("pools", ()):
        pools.append(orjson.Fragment(orjson.dumps(pool)))
        await asyncio.sleep(0)
    return _frame("snapshot", {**snapshot, "pools": pools})


async def _history_frames(history: dict[str, Any], last_s: float | None) -> bytes:
    """One event for each pool: what has happened in many of them takes a while to encode."""
    frames = []
    for name, series in history["pools"].items():
        times = series["t"]
        first = 0 if last_s is None or not times else bisect_right(times, times[-1] - last_s)
        told = {key: _from(values, first) for key, values in series.items()} if first else series
        frames.append(_frame("history", {"step_s": history["step_s"], "pools": {name: told}}))
        await asyncio.sleep(0)
    return b"".join(frames)


def _from(values: Any, first: int) -> Any:
    if isinstance(values, dict):
        return {key: _from(each, first) for key, each in values.items()}
    return values[first:]


def _frame(event: str, data: dict[str, Any]) -> bytes:
    """JSON as orjson writes it has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), orjson.dumps(data))


def _unavailable(text: str) -> web.Response:
    return web.Response(status=503, text=text, headers={**HEADERS, "Retry-After": "10"})
