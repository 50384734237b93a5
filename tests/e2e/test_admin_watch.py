"""Fifty watchers that do not read, while requests come and go: nobody waits for them, nothing is kept for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from admin_case import FIXED, Admin, connected
from google.protobuf import duration_pb2
from rig import FAST_ENGINE, Rig, running, until

from extproc.cli.admin_load import Load
from extproc.cli.stack import FAIRLANE
from extproc.cli.wire_rig import resident_bytes
from extproc.pb.admin.v1 import admin_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

WATCHERS = 50
CLIENTS = 64
REQUESTS = 3_000
GROWTH = 24 * 1024**2  # bytes; a sample kept for each watcher and each 100 ms would be more


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    window = {**FIXED, "fixed": 16}
    async with running(tmp_path_factory.mktemp("stack"), engine_args=FAST_ENGINE, pool={"window": window}) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    async with connected(rig) as made:
        yield made


def _watch(admin: Admin, **more: int) -> grpc.aio.UnaryStreamCall:
    interval = duration_pb2.Duration(nanos=more.get("ms", 100) * 1_000_000)
    call: grpc.aio.UnaryStreamCall = admin.stub.WatchStats(pb.WatchStatsRequest(interval=interval))
    return call


async def _watchers(admin: Admin) -> int:
    return (await admin.status()).watcher_count


async def test_who_does_not_read_delays_nobody(rig: Rig, admin: Admin) -> None:
    load = Load(rig.http, rig.stack.url, "watched")
    try:
        load.start(CLIENTS)
        # Whatever the first requests and the first watcher make the process load is there before it is measured.
        await _served(load, 500)
        first = _watch(admin)
        await first.read()
        first.cancel()
        pid = rig.stack.child(FAIRLANE).pid
        assert pid is not None
        before = resident_bytes(pid)
        calls = [_watch(admin) for _ in range(WATCHERS)]
        await until(lambda: _watchers(admin), lambda count: count == WATCHERS, "all watch")
        await _served(load, len(load.done) + REQUESTS)
        assert resident_bytes(pid) - before < GROWTH
        # One of them reads at last: it is still served.
        assert (await asyncio.wait_for(calls[0].read(), 30)).pools[0].name == "sim"
        for call in calls:
            call.cancel()
        await until(lambda: _watchers(admin), lambda count: count == 0, "all have ended")
        await load.stop()
    finally:
        load.drop()
    assert set(load.outcomes()) == {"200"}
    await rig.books_closed()


async def test_they_end_with_the_service(rig: Rig, admin: Admin) -> None:
    calls = [_watch(admin, ms=500) for _ in range(WATCHERS)]
    await until(lambda: _watchers(admin), lambda count: count == WATCHERS, "all watch")
    await rig.stack.stop_child(FAIRLANE)
    assert rig.stack.child(FAIRLANE).exit_code == 0
    for call in calls:
        assert await asyncio.wait_for(_end_of(call), 30) in (grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE)
    await rig.stack.start_child(FAIRLANE)
    await rig.books_closed()


async def _end_of(call: grpc.aio.UnaryStreamCall) -> grpc.StatusCode:
    """Status with which it has ended, once what was on its way to it is read."""
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for _ in call:
            pass
    return await call.code()


async def _served(load: Load, count: int) -> None:
    async def done() -> int:
        return len(load.done)

    await until(done, lambda found: found >= count, f"{count} answered", within_s=90)
