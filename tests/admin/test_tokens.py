"""Tokens over real connections: shown wrongly, replaced, taken away under an open stream, and guessed at."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import structlog
from access_case import Empty, Port, bearer, call, channel_to, opened, refusal, replace, write_tokens

from extproc.pb.admin.v1 import admin_pb2, admin_pb2_grpc

pytestmark = pytest.mark.asyncio(loop_scope="session")

Logs = list[MutableMapping[str, Any]]


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_tokens(tmp_path / "tokens.json", alice="admin", bob="viewer")
    return tmp_path / "tokens.json"


@pytest_asyncio.fixture(loop_scope="session")
async def port(file: Path) -> AsyncIterator[Port]:
    async with opened(tokens_file=str(file)) as found:
        yield found


@contextlib.asynccontextmanager
async def watching(port: Port) -> AsyncIterator[None]:
    task = asyncio.create_task(port.server.access.watch(lambda: port.broken.append(None), every_s=0.005))
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(wanted: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not wanted():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.002)


async def refused_at_last(channel: grpc.aio.Channel, token: str) -> None:
    deadline = time.monotonic() + 30
    with contextlib.suppress(grpc.aio.AioRpcError):
        while time.monotonic() < deadline:
            await call(channel, metadata=bearer(token))
        raise AssertionError("the token still works")


@pytest.mark.parametrize(
    ("metadata", "cause"),
    [
        ((), "no token"),
        (bearer("mallory"), "unknown token"),
        ((*bearer("alice"), *bearer("alice")), "more than one authorization"),
        ((("authorization", "Basic alice"),), "no authorization of the form: Bearer TOKEN"),
        ((("authorization", "alice"),), "no authorization of the form: Bearer TOKEN"),
        (bearer("a" * 4097), "a token of more than 4096 characters"),
        ((("token", "alice"), ("x-authorization", "Bearer alice"), ("cookie", "authorization=alice")), "no token"),
        ((("authorization-bin", b"Bearer alice"),), "no token"),
    ],
)
async def test_what_opens_nothing(metadata: Any, cause: str, port: Port, logs: Logs) -> None:
    async with channel_to(port.address) as channel:
        error = await refusal(channel, metadata=metadata)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (error.details() or "").startswith(cause)
    assert [told[1:] for told in port.denied] == [("GetStatus", cause, "", "UNAUTHENTICATED")]
    assert not port.servicer.calls
    assert "alice" not in f"{error.details()}{port.denied}{logs}"


async def test_what_else_the_metadata_says_makes_nobody(port: Port) -> None:
    """Not who it is, not from where, and not what it may."""
    forged = [
        *bearer("bob"),
        ("x-forwarded-for", "10.9.8.7"),
        ("x-forwarded-client-cert", "URI=spiffe://cluster/admin"),
        ("x509_subject_alternative_name", "admin"),
        ("peer", "unix:"),
        ("role", "admin"),
        ("name", "alice-holder"),
        ("forwarded", "for=127.0.0.1"),
    ]
    async with channel_to(port.address) as channel:
        await call(channel, metadata=forged)
        assert (await refusal(channel, "UpdateConfig", metadata=forged)).code() is grpc.StatusCode.PERMISSION_DENIED
    ((_, caller),) = port.servicer.calls
    assert (caller.name, caller.role) == ("bob-holder", "viewer")
    assert caller.peer.startswith("ipv4:127.0.0.1:")


async def test_a_socket_asks_for_tokens_too(file: Path, tmp_path: Path) -> None:
    async with opened(listen=f"unix:{tmp_path}/s", tokens_file=str(file)) as port, channel_to(port.address) as channel:
        assert (await refusal(channel)).code() is grpc.StatusCode.UNAUTHENTICATED
        await call(channel, metadata=bearer("alice"))
        assert port.servicer.calls[0][1].peer == "unix:"


async def test_a_changed_file(port: Port, file: Path) -> None:
    async with watching(port), channel_to(port.address) as channel:
        await call(channel, "Rollback", metadata=bearer("alice"))
        write_tokens(file, bob="admin", carol="viewer")
        await refused_at_last(channel, "alice")
        await call(channel, "Rollback", metadata=bearer("bob"))
        await call(channel, metadata=bearer("carol"))
        assert port.denied[-1][2] == "unknown token"
    assert not port.broken


def spoil(file: Path, how: str) -> None:
    if how == "gone":
        file.unlink()
    else:
        replace(file, '{"alice": ')


@pytest.mark.parametrize("how", ["broken", "gone"])
async def test_a_broken_file_leaves_the_tokens_and_is_told_once(how: str, port: Port, file: Path, logs: Logs) -> None:
    async with watching(port), channel_to(port.address) as channel:
        spoil(file, how)
        await until(lambda: bool(port.broken))
        await call(channel, metadata=bearer("alice"))
        write_tokens(file, carol="viewer")
        await refused_at_last(channel, "alice")
    told = [(entry["event"], entry["tokens"]) for entry in logs]
    assert told == [("token_file_refused", 2), ("token_file_read", 1)]
    assert "alice" not in str(logs[0]["error"])


class Ticking(Empty):
    """Streams go on for ever, one message at a time as the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go = asyncio.Semaphore(0)
        self.closed = 0

    async def WatchStats(self, _request: object, _context: object) -> AsyncIterator[admin_pb2.Stats]:  # noqa: N802
        try:
            while True:
                await self.may_go.acquire()
                yield admin_pb2.Stats(revision=7)
        finally:
            self.closed += 1


@pytest.mark.parametrize("change", [{"carol": "viewer"}, {"alice": "viewer"}])
async def test_an_open_stream_ends_when_its_token_does(change: dict[str, str], file: Path) -> None:
    servicer = Ticking()
    async with opened(servicer, tokens_file=str(file)) as port, watching(port), channel_to(port.address) as channel:
        stream = admin_pb2_grpc.AdminStub(channel).WatchStats(
            admin_pb2.WatchStatsRequest(), metadata=bearer("alice"), timeout=60
        )
        servicer.may_go.release()
        assert (await stream.read()).revision == 7
        write_tokens(file, **change)
        await until(lambda: len(port.server.access._tokens or ()) == 1)
        servicer.may_go.release()
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await stream.read()
        assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "token was taken away or has another role now" in (error.value.details() or "")
        assert servicer.closed == 1
        ((_, *told),) = port.denied
        cause = "its token was taken away or has another role now"
        assert told == ["WatchStats", cause, "alice-holder", "UNAUTHENTICATED"]


async def test_too_many_wrong_ones_lock_nobody_out(port: Port) -> None:
    async with channel_to(port.address) as channel:
        codes = [(await refusal(channel, metadata=bearer(f"guess-{n}"))).code() for n in range(105)]
        await call(channel, metadata=bearer("alice"))
        missing = await refusal(channel)
    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 100 + [grpc.StatusCode.RESOURCE_EXHAUSTED] * 5
    assert missing.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert missing.details() == "no token; too many failed attempts from this address"
    assert len(port.denied) == 106


@pytest.mark.slow
async def test_ten_thousand_wrong_tokens(port: Port) -> None:
    """None gets in, memory stays, and a right one is answered in the middle of them."""
    codes: Counter[grpc.StatusCode] = Counter()

    async def guess(channel: grpc.aio.Channel, first: int, count: int) -> None:
        for number in range(first, first + count):
            codes[(await refusal(channel, metadata=bearer(f"guess-{number}"))).code()] += 1

    async with channel_to(port.address) as channel:
        await guess(channel, 0, 1000)
        port.denied.clear()
        gc.collect()
        before = sys.getallocatedblocks()
        for part in range(9):
            await asyncio.gather(*(guess(channel, 1000 * (part + 1) + 100 * each, 100) for each in range(10)))
            await call(channel, metadata=bearer("alice"))
            assert len(port.denied) == 1000
            port.denied.clear()
        gc.collect()
        after = sys.getallocatedblocks()
    assert codes == {grpc.StatusCode.UNAUTHENTICATED: 100, grpc.StatusCode.RESOURCE_EXHAUSTED: 9900}
    assert len(port.servicer.calls) == 9
    assert after - before < 900  # blocks of memory: one for ten attempts
