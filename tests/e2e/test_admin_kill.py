"""The service is killed anywhere in a stream of changes, with requests held. After its restart either the old or the
new revision is in force, never a mix; what was answered is there; Envoy sends again what was held."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from admin_case import FIXED, POOL, Scene, connected
from rig import FAST_ENGINE, Rig, running

from extproc.cli.stack import FAIRLANE
from extproc.pb.admin.v1 import admin_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

ROUNDS = 6
HELD = 40


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    pool = {"window": FIXED, "traffic": "paused"}  # nothing is sent until it is opened: held is held, whoever restarts
    async with running(tmp_path_factory.mktemp("stack"), engine_args=FAST_ENGINE, pool=pool) as rig:
        yield rig


class Told:
    """What the client of the changes knows: the last number that was answered, and the one that was asked for last.

    Each change sets two settings of different parts to the same number, so that half of one would show."""

    def __init__(self) -> None:
        self.answered = self.asked = 0

    async def change(self, rig: Rig) -> None:
        """One after the other, until nobody answers."""
        async with connected(rig) as admin:
            with contextlib.suppress(grpc.aio.AioRpcError):
                while True:
                    number = self.asked = max(self.asked, self.answered) + 1
                    await admin.set(
                        {
                            "tenants": {"team-a": {"max_in_flight": number}},
                            "classes": {"batch": {"max_queued": number}},
                            "pools": {POOL: {"window": {"threshold": number}}},
                        }
                    )
                    self.answered = number


async def test_killed_anywhere(rig: Rig) -> None:
    chance, told, scene = random.Random(11), Told(), Scene(rig)
    try:
        scene.ask(HELD)
        await rig.until_held(HELD)
        for _ in range(ROUNDS):
            before = told.answered
            changing = asyncio.create_task(told.change(rig))
            wanted = before + chance.randint(1, 20)
            while told.answered < wanted:
                await asyncio.sleep(0)
                assert not changing.done(), "a change failed, and nobody has killed anything"
            await asyncio.sleep(chance.random() * 0.01)  # anywhere in a change
            await rig.stack.kill(FAIRLANE)
            await changing
            await rig.stack.start_child(FAIRLANE)
            await _assert_old_or_new(rig, told)
            await rig.until_held(HELD)
        async with connected(rig) as admin:
            await admin.set_pool(traffic="open")
        await scene.finish()
    finally:
        scene.drop()
    scene.assert_answers({200: HELD})
    await rig.books_closed()


async def _assert_old_or_new(rig: Rig, told: Told) -> None:
    async with connected(rig) as admin:
        config = await admin.config()
        (pool,) = config["pools"] if isinstance(config["pools"], list) else config["pools"].values()
        found = {
            int(config["tenants"]["team-a"]["max_in_flight"]),
            int(config["classes"]["batch"]["max_queued"]),
            int(pool["window"]["threshold"]),
        }
        assert len(found) == 1, found
        (number,) = found
        assert number in (told.answered, told.asked)
        status = await admin.status()
        assert not status.state.read_only
        last = (await admin.stub.ListRevisions(pb.ListRevisionsRequest(page_size=1))).revisions[0]
        assert last.revision == status.revision
        told.answered = told.asked = number
