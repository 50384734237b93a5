"""An operator takes requests back: held ones, and those inside an engine where the filter says so."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
import pytest_asyncio
from admin_case import FIXED, HELD, POOL, SLOTS, WHY, Admin, Scene, connected, held
from rig import Rig, running, until

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder = tmp_path_factory.mktemp("stack")
    async with running(folder, pool={"window": FIXED}, wiring=Wiring(first_byte=True)) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    async with connected(rig) as made:
        yield made


async def test_150_of_200_held(rig: Rig, admin: Admin) -> None:
    async with held(rig, (150, "unwanted", "batch"), (50, "wanted")) as scene:
        counted = await admin.cancel('tenant = "unwanted" AND class = batch', validate_only=True)
        assert (counted.cancelled_count, counted.complete) == (150, True)
        assert (await rig.pool())["queued"] == HELD
        done = await admin.cancel('tenant = "unwanted" AND class = batch')
        assert (done.cancelled_count, done.refused_count, done.evicted_count) == (150, 150, 0)
        await rig.until_held(50)
        await scene.until_answered(150)
        for answer in scene.answers:
            assert answer.status == 503
            assert answer.error["code"] == "cancelled"
            assert WHY in answer.error["message"]
            assert answer.headers["x-fairlane-reason"] == "cancelled"
    scene.assert_answers({503: 150, 200: SLOTS + 50})
    assert {entry["headers"]["x-tenant"] for entry in await scene.sent()} == {"first", "wanted"}
    assert await rig.metric("fairlane_refused_requests_total", reason="cancelled") == 150


async def test_of_those_inside(rig: Rig, admin: Admin) -> None:
    """Only a filter that names `state` means them. The engine drops them, and their slots go to those that wait."""
    async with held(rig, (20, "next")) as scene:
        assert (await admin.cancel('tenant = "first"', validate_only=True)).cancelled_count == 0
        done = await admin.cancel('tenant = "first" AND state = released')
        assert (done.refused_count, done.evicted_count) == (0, SLOTS)
        await scene.until_sent(2 * SLOTS)
        await scene.until_answered(SLOTS)
        assert {answer.error["code"] for answer in scene.answers} == {"cancelled"}
    scene.assert_answers({503: SLOTS, 200: 20})

    async def states() -> set[str]:
        return {entry["state"] for entry in await scene.sent() if entry["headers"]["x-tenant"] == "first"}

    await until(states, lambda found: found == {"aborted"}, "the engine has dropped them")


async def test_all_of_a_paused_pool(rig: Rig, admin: Admin) -> None:
    scene = Scene(rig)
    try:
        before = (await admin.status()).revision
        await admin.set_pool(traffic="paused")
        scene.ask(HELD)
        await rig.until_held(HELD)
        assert (await admin.cancel(f"pool = {POOL} AND state = queued")).refused_count == HELD
        await scene.finish()
        scene.assert_answers({503: HELD})
        await admin.back_to(before)
    finally:
        scene.drop()
    assert not await scene.sent()


@pytest.mark.parametrize("wrong", ["", "tenat = a", "tenant = ", "waited > 5parsecs"])
async def test_a_filter_that_is_none_cancels_nothing(rig: Rig, admin: Admin, wrong: str) -> None:
    async with held(rig, (10, "stays")) as scene:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await admin.cancel(wrong)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert (await rig.pool())["queued"] == 10
    scene.assert_answers({200: SLOTS + 10})
