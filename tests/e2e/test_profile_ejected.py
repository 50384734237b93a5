"""Where Envoy chooses, an engine that fails at once is the least busy one. It is left out (outlier_detection), as long
as there is another."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from choice_case import FAST, Engine, seen_by, set_faults, traffic, with_engines
from profile_case import binary, minor
from rig import Json, Rig, chat, running, until

from extproc.cli.ports import HostPort
from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

FULL = (*FAST, "--max-num-queued-reqs", "1")
POOL = {"pick": {"by": "envoy"}}
WIRING = Wiring(pick="envoy")
FEW = 0.15  # of all requests: an engine is out after three, and is tried again after 5 s and then seldom


@contextlib.asynccontextmanager
async def stack(directory: Path, kinds: list[tuple[str, ...]]) -> AsyncIterator[tuple[Rig, list[Engine]]]:
    this: Json = {"wiring": replace(WIRING, envoy=minor()), "envoy_binary": binary()}
    async with with_engines(directory, kinds, POOL, **this) as found:
        yield found


@contextlib.asynccontextmanager
async def full(rig: Rig, engines: list[Engine]) -> AsyncIterator[None]:
    """They answer 503 to all that comes, since each has one request inside that does not end."""
    for engine in engines:
        await set_faults(rig, engine, hang=True)
    busy = [rig.start(chat(), tenant="busy", straight_to=engine.at) for engine in engines]
    for engine in engines:
        await until(lambda at=engine: seen_by(rig, at, "busy"), lambda count: count == 1, "it is full")  # type: ignore[misc]
    try:
        yield
    finally:
        for engine in engines:
            await set_faults(rig, engine)
        await asyncio.gather(*busy)


@pytest.mark.parametrize("bad", [1, 2])
async def test_the_others_get_what_a_full_engine_would_refuse(bad: int, tmp_path: Path) -> None:
    """Also where most are out: they are not used for all that (healthy_panic_threshold)."""
    async with stack(tmp_path, [FULL] * bad + [FAST] * (3 - bad)) as (rig, engines):
        async with full(rig, engines[:bad]), traffic(rig, "steady") as flowing:
            await flowing.more(300)
        assert set(flowing.statuses) <= {200, 503}
        assert flowing.statuses[503] < FEW * len(flowing.answers)
        await rig.books_closed()


async def test_full_engines_are_asked_if_there_are_no_others_and_come_back(tmp_path: Path) -> None:
    async with stack(tmp_path, [FULL, FULL]) as (rig, engines):
        async with full(rig, engines):
            for _ in range(10):
                answer = await rig.post(chat(), tenant="refused")
                assert answer.status == 503
                assert answer.json["error"]["type"] == "Service Unavailable"  # the engine's own words
        for engine in engines:
            assert await seen_by(rig, engine, "refused") > 0

        async def served_by_all() -> bool:
            assert (await rig.post(chat(), tenant="later")).status == 200
            return all([await seen_by(rig, engine, "later") > 0 for engine in engines])

        await until(served_by_all, lambda found: found, "both are used again")
        await rig.books_closed()


async def test_an_engine_that_breaks_connections(tmp_path: Path) -> None:
    """It takes each connection, and closes it when the request is there."""

    async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(closing, "127.0.0.1", 0)
    broken = HostPort("127.0.0.1", server.sockets[0].getsockname()[1])
    good = [Engine(number, FAST, tmp_path) for number in (1, 2)]
    this: Json = {"wiring": replace(WIRING, envoy=minor()), "envoy_binary": binary()}
    try:
        for engine in good:
            await engine.start()
        async with running(tmp_path, engines=[broken, *(each.at for each in good)], pool=POOL, **this) as rig:
            async with traffic(rig, "steady") as flowing:
                await flowing.more(300)
            assert set(flowing.statuses) <= {200, 503}
            assert flowing.statuses[503] < FEW * len(flowing.answers)
            await rig.books_closed()
    finally:
        for engine in good:
            engine.kill()
        server.close()
