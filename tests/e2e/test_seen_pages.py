"""A hundred live pages are open, and half of them take nothing: requests flow, the other half goes on to be told, and
nothing of it stays, neither when they leave nor when the service stops meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import orjson
import pytest
from rig import Answer, Rig, chat, running, until

from extproc.cli.stack import FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

REQUESTS = 300
TOGETHER = 30
READERS, STUCK = 50, 50
WATCHERS = "fairlane_page_watchers"
AT_ONCE_S = 15  # for a stop with nothing to wait for, on a machine that is busy
GRACE_S = 60  # which a stop must not take


class Reader:
    """A page that reads. `times`: of the snapshots that it has got."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.times: list[float] = []
        self.ended = asyncio.create_task(self._read(answer))

    async def _read(self, answer: aiohttp.ClientResponse) -> None:
        """Until the service ends it."""
        async for line in answer.content:
            if line.startswith(b'data: {"time":'):
                self.times.append(orjson.loads(line.removeprefix(b"data: "))["time"])


@contextlib.asynccontextmanager
async def readers(rig: Rig) -> AsyncIterator[list[Reader]]:
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for _ in range(READERS):
            answer = await stack.enter_async_context(rig.http.get(f"http://{rig.service_at}/events"))
            assert answer.status == 200
            found.append(Reader(answer))
        try:
            yield found
        finally:
            for reader in found:
                reader.ended.cancel()
            await asyncio.gather(*(reader.ended for reader in found), return_exceptions=True)


@contextlib.contextmanager
def stuck(rig: Rig) -> Iterator[None]:
    """As many that never read. Their own room is little, but the system keeps some megabytes for each on the way: what
    becomes of one where that is full, too, is a matter of minutes, and of `test_live_feed.py`."""
    with contextlib.ExitStack() as stack:
        for _ in range(STUCK):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.connect(rig.service_at)
            sock.sendall(f"GET /events HTTP/1.1\r\nhost: {rig.service_at}\r\n\r\n".encode())
        yield


def come_and_go(rig: Rig, request: str) -> None:
    """One that has gone before it can be answered, as a page that is loaded anew."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
        sock.connect(rig.service_at)
        sock.sendall(f"{request} HTTP/1.1\r\nhost: {rig.service_at}\r\n\r\n".encode())


async def flow(rig: Rig) -> Counter[int]:
    """The requests, so many at a time; their status codes."""
    turns = asyncio.Semaphore(TOGETHER)

    async def one(number: int) -> Answer:
        async with turns:
            return await rig.post(chat(), tenant=f"team-{number % 40}")

    return Counter(answer.status for answer in await asyncio.gather(*map(one, range(REQUESTS))))


async def until_told(pages: list[Reader], more: int) -> None:
    """Each has got so many more."""
    wanted = {reader: len(reader.times) + more for reader in pages}

    async def behind() -> int:
        return sum(len(reader.times) < count for reader, count in wanted.items())

    await until(behind, lambda count: count == 0, f"{more} more snapshots for each")
    for reader in pages:
        assert reader.times == sorted(set(reader.times))  # each is newer than the one before


async def until_watched(rig: Rig, count: int) -> None:
    await until(lambda: rig.metric(WATCHERS), lambda watchers: watchers == count, f"{count} pages")


def files_of(rig: Rig) -> int:
    """Open files and connections of the service."""
    return len(list(Path(f"/proc/{rig.stack.child(FAIRLANE).pid}/fd").iterdir()))


async def test_half_of_them_never_read(tmp_path: Path) -> None:
    async with running(tmp_path, config={"shutdown": {"grace": f"{GRACE_S}s"}}) as rig:
        assert await flow(rig) == {200: REQUESTS}  # the connections that it takes are open from here on
        await until_watched(rig, 0)
        before = files_of(rig)
        with stuck(rig):
            async with readers(rig) as pages:
                await until_watched(rig, READERS + STUCK)
                await until_told(pages, 1)
                told = [len(reader.times) for reader in pages]
                assert await flow(rig) == {200: REQUESTS}
                await until_told(pages, 2)
                assert max(told) < min(len(reader.times) for reader in pages)
                await until_watched(rig, READERS + STUCK)  # none has been let go
                assert not any(reader.ended.done() for reader in pages)
            await until_watched(rig, STUCK)
            assert await flow(rig) == {200: REQUESTS}
        await until_watched(rig, 0)
        assert await rig.metric("fairlane_released_requests_total") == 3 * REQUESTS
        assert await rig.metric("fairlane_refused_requests_total") == 0

        async def files() -> int:
            return files_of(rig)

        await until(files, lambda count: count <= before + 5, "their connections are closed")  # not one by one: 100
        await rig.books_closed()


async def test_those_that_have_gone_before_their_answer(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        for request in ("GET /events", "HEAD /events", "GET /metrics", "GET /status", "GET /", "GET /explain?id=x"):
            for _ in range(20):
                come_and_go(rig, request)
            await until_watched(rig, 0)  # each of them has had its turn
        assert (await rig.post(chat())).status == 200
        await rig.books_closed()


async def test_a_stop_while_all_are_open(tmp_path: Path) -> None:
    async with running(tmp_path, config={"shutdown": {"grace": f"{GRACE_S}s"}}) as rig:
        assert (await rig.post(chat())).status == 200
        with stuck(rig):
            async with readers(rig) as pages:
                await until_watched(rig, READERS + STUCK)
                await until_told(pages, 2)
                await rig.books_closed()
                service = rig.stack.child(FAIRLANE)
                began = time.monotonic()
                assert await service.stop(timeout_s=30)  # not killed
                assert time.monotonic() - began < AT_ONCE_S
                assert service.exit_code == 0
                async with asyncio.timeout(10):
                    await asyncio.gather(*(reader.ended for reader in pages))  # whole: nothing is cut off
        rig.assert_clean_logs()
        assert "live page" not in service.log.read_text()  # a task of that name that nobody has ended
