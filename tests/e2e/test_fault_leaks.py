"""No fault leaves anything behind, neither a task nor a stream. Seen from inside: the service runs in the test's own
process, behind the real Envoy and an engine that is a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from replicas import ROOMY
from rig import Answer, Rig, chat, running, until

from extproc.cli.probe import answers
from extproc.cli.stack import ENVOY, FAIRLANE
from extproc.config.load import load
from extproc.edge.exchange import Exchange
from extproc.service import Service

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

INSIDE, CROWD = 3, 40
ENGINE = ("--step-base-ms", "10", "--step-per-seq-ms", "0")
CONFIG = {"classes": {"default": {"max_in_flight": INSIDE}}}
LOG_STREAMS = 2  # one for each of Envoy's workers, once that one has something to say


@contextlib.asynccontextmanager
async def _within(directory: Path) -> AsyncIterator[Rig]:
    """A stack whose service is none of its children."""
    async with running(directory, engine_args=ENGINE, config=CONFIG, pool=ROOMY) as rig:
        await rig.stack.stop_child(FAIRLANE)
        stop, hurry = asyncio.Event(), asyncio.Event()
        service = asyncio.create_task(Service(load(directory / "fairlane.yaml")).run(stop, hurry))
        try:
            await until(lambda: answers(rig.service_at, "/readyz"), bool, "it is ready")
            yield rig
        finally:
            stop.set()
            hurry.set()
            await service


def _streams() -> int:
    """What the service has in memory for the streams of requests."""
    gc.collect()
    return sum(isinstance(thing, Exchange) for thing in gc.get_objects())


async def _left() -> int:
    return _streams()


async def _clients_leave(rig: Rig, crowd: list[asyncio.Task[Answer]]) -> None:
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)


async def _envoy_is_killed(rig: Rig, crowd: list[asyncio.Task[Answer]]) -> None:
    await rig.stack.kill(ENVOY)
    for outcome in await asyncio.gather(*crowd, return_exceptions=True):
        assert isinstance(outcome, aiohttp.ClientError)
    await rig.stack.start_child(ENVOY)


async def _engine_is_killed(rig: Rig, crowd: list[asyncio.Task[Answer]]) -> None:
    await rig.stack.kill("engine-1")
    await rig.until(lambda pool: pool["endpoints"][0]["stance"] == "down" and pool["in_flight"] == 0)
    await rig.stack.start_child("engine-1")
    assert {answer.status for answer in await asyncio.gather(*crowd)} <= {200, 503}


async def _nothing_happens(rig: Rig, crowd: list[asyncio.Task[Answer]]) -> None:
    await rig.faults()
    assert {answer.status for answer in await asyncio.gather(*crowd)} == {200}


async def test_nothing_is_left(tmp_path: Path) -> None:
    async with _within(tmp_path) as rig:
        least = 0
        for fault in (_nothing_happens, _clients_leave, _envoy_is_killed, _engine_is_killed, _nothing_happens):
            await rig.faults(hang=True)
            crowd = [rig.start(chat(), tenant=f"crowd-{i % 7}") for i in range(CROWD)]
            await rig.until(lambda pool: pool["queued"] + pool["in_flight"] == CROWD, "all are there")
            assert _streams() == CROWD
            await fault(rig, crowd)
            await rig.faults()
            await rig.until(lambda pool: pool["queued"] == pool["in_flight"] == pool["known"] == 0, "all books closed")
            await until(_left, lambda count: count == 0, f"{fault.__name__}: no stream is left")
            tasks = len(asyncio.all_tasks())
            least = least or tasks
            assert tasks <= least + LOG_STREAMS, fault.__name__
