"""The service is told to end while requests are held: `shutdown.held` says what becomes of these.

`hand_over`, the default: `test_restart`, and `test_fault_replicas` with another replica to take them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from replicas import ROOMY, Scene, events
from rig import Rig, running

from extproc.cli.stack import FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

INSIDE, HELD = 3, 12
ENGINE = ("--step-base-ms", "20", "--step-per-seq-ms", "0")


@contextlib.asynccontextmanager
async def _draining(directory: Path, **shutdown: Any) -> AsyncIterator[tuple[Rig, Scene]]:
    config = {"classes": {"default": {"max_in_flight": INSIDE}}, "shutdown": shutdown}
    async with running(directory, engine_args=ENGINE, config=config, pool=ROOMY, debug=True, stop_timeout_s=60) as rig:
        scene = Scene([rig], "held", inside=INSIDE, held=HELD, tokens=100)
        await scene.set_up()
        yield rig, scene
        await scene.rig.books_closed()


async def test_finish(tmp_path: Path) -> None:
    """The process that holds them lets them go in their turn, and ends after the last of their answers."""
    async with _draining(tmp_path, held="finish", grace="60s") as (rig, scene):
        await rig.stack.stop_child(FAIRLANE)
        assert rig.stack.child(FAIRLANE).exit_code == 0
        await scene.assert_all_succeed()  # while there is no other process
        (story,) = events(rig.stack.child(FAIRLANE), "draining")
        assert (story["held"], story["in_flight"]) == (HELD, INSIDE)
        await rig.stack.start_child(FAIRLANE)


async def test_finish_and_time_is_up(tmp_path: Path) -> None:
    """Those that have not gone by then are handed over; answers go on without the process."""
    async with _draining(tmp_path, held="finish", grace="1s") as (rig, scene):
        async with rig.hung_engines():
            await rig.stack.stop_child(FAIRLANE)
            assert rig.stack.child(FAIRLANE).exit_code == 0
            assert not any(task.done() for task in scene.held)
            await rig.stack.start_child(FAIRLANE)
        await scene.move_on()
        await scene.assert_all_succeed()


async def test_refuse(tmp_path: Path) -> None:
    async with _draining(tmp_path, held="refuse", grace="60s") as (rig, scene):
        async with rig.hung_engines():
            stopping = asyncio.create_task(rig.stack.stop_child(FAIRLANE))
            answers = await asyncio.gather(*scene.held)
        assert Counter((answer.status, answer.error["code"]) for answer in answers) == {(503, "draining"): HELD}
        assert min(int(answer.headers["retry-after"]) for answer in answers) > 0
        await scene.move_on()
        await asyncio.gather(*scene.streams, stopping)
        assert rig.stack.child(FAIRLANE).exit_code == 0
        assert await rig.seen("held") == []
        await rig.stack.start_child(FAIRLANE)
