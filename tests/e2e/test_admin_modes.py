"""A pool is switched between enforce, observe and off, and for a part of it, while two hundred wait and load flows."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from admin_case import FIXED, HELD, POOL, SLOTS, Admin, Scene, connected, held
from rig import FAST_ENGINE, Rig, running, until

from extproc.cli.admin_load import Load
from extproc.config.scheduling import Pool
from extproc.edge.rollout import mode_for
from extproc.pb.admin.v1 import admin_pb2 as pb
from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

OURS = ("x-fairlane-class", "x-fairlane-queue-ms", "x-fairlane-endpoint", "x-vllm-priority")


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["standard", "strict"])
async def shared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> AsyncIterator[Rig]:
    # Nothing is said of priorities to an engine by Envoy itself, so that what Fairlane says shows.
    wiring = Wiring(profile=request.param, default_priority=None)
    folder = tmp_path_factory.mktemp("stack")
    async with running(folder, engine_args=FAST_ENGINE, pool={"window": FIXED}, wiring=wiring) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    async with connected(rig) as made:
        yield made
        await made.pool(mode=pb.ENFORCE, percentage=100)


async def _observed(rig: Rig) -> float:
    return await rig.metric("fairlane_observed_requests_total")


async def test_there_and_back_under_load(rig: Rig, admin: Admin) -> None:
    load = Load(rig.http, rig.stack.url, "modes")
    before = await _observed(rig)
    passed = await rig.metric("fairlane_passed_requests_total", why="observe")
    try:
        load.start(HELD + SLOTS)
        for _ in range(2):
            for mode in (pb.ENFORCE, pb.OBSERVE, pb.ENFORCE, pb.OFF, pb.ENFORCE):
                await admin.pool(mode=mode)
                await _more(load)
        await rig.until(lambda found: found["queued"] > HELD // 2, "they are held again")
        await load.stop()
    finally:
        load.drop()
    assert load.outcomes() == {"200": load.begun}
    sent = Counter(entry["headers"].get("x-key") for entry in await rig.seen())
    assert max(sent[each.key] for each in load.done) == 1
    # What passed and was observed has one outcome each.
    count = await rig.metric("fairlane_passed_requests_total", why="observe") - passed
    assert count > 0
    await until(lambda: _observed(rig), lambda found: found - before == count, "all outcomes are told")
    await rig.books_closed()


@pytest.mark.parametrize("mode", [pb.OBSERVE, pb.OFF], ids=["observe", "off"])
async def test_what_waits_is_let_go_as_it_came(rig: Rig, admin: Admin, mode: pb.PoolMode) -> None:
    async with held(rig, (HELD, "a")) as scene:
        await admin.pool(mode=mode)
        entries = await scene.until_sent(SLOTS + HELD)
        for entry in entries[SLOTS:]:
            assert not [name for name in OURS if name in entry["headers"]]
        await admin.pool(mode=pb.ENFORCE)
        scene.ask(HELD, "b")  # the engine is full of what has passed, but the pool goes by its own books
        await rig.until_held(HELD)
    scene.assert_answers({200: SLOTS + 2 * HELD})
    await rig.books_closed()


@pytest.mark.parametrize("percentage_of", [pb.TENANTS, pb.REQUESTS], ids=["tenants", "requests"])
async def test_a_part_of_it(rig: Rig, admin: Admin, percentage_of: pb.PercentageOf) -> None:
    """0 % holds nobody, 30 % some, 100 % all. Who is held of tenants is known beforehand."""
    async with held(rig) as scene:
        await admin.pool(percentage=30, percentage_of=percentage_of)
        for number in range(HELD):
            scene.ask(1, f"tenant-{number}")
        partly = await _held_of(rig, scene, SLOTS + HELD)
        if percentage_of == pb.TENANTS:
            assert partly == sum(_is_in(f"tenant-{number}") for number in range(HELD))
        assert 0 < partly < HELD / 2
        await admin.pool(percentage=0)
        await scene.until_sent(SLOTS + HELD)
        await rig.until_held(0)
        await admin.pool(percentage=100)
        for number in range(HELD):
            scene.ask(1, f"tenant-{number}")
        await rig.until_held(HELD)
    scene.assert_answers({200: SLOTS + 2 * HELD})
    await rig.books_closed()


async def test_why_an_observed_one_would_wait(rig: Rig, admin: Admin) -> None:
    async with held(rig, inside=0) as scene:
        await admin.pool(mode=pb.OBSERVE)
        scene.ask(SLOTS + 6, "a")
        await scene.until_sent(SLOTS + 6)
        await until(lambda: _listed(admin), lambda found: len(found) == SLOTS + 6, "all are listed")
        waiting = [each for each in await _listed(admin) if each.state == pb.QUEUED]
        assert len(waiting) == 6
        told = await admin.stub.ExplainRequest(pb.ExplainRequestRequest(id=waiting[-1].id))
        assert told.request.observed
        assert told.hold
        assert told.sentence
        # It is not ours to take back.
        assert (await rig.pool())["queued"] == 0
    scene.assert_answers({200: SLOTS + 6})
    await rig.books_closed()


async def _listed(admin: Admin) -> list[pb.Request]:
    answer = await admin.stub.ListRequests(pb.ListRequestsRequest(filter="observed = true"))
    return list(answer.requests)


def _is_in(tenant: str) -> bool:
    pool: dict[str, Any] = {"name": POOL, "models": ["*"], "endpoints": ["127.0.0.1:1"], "percentage": 30}
    return mode_for(Pool.model_validate(pool), tenant, "") == "enforce"


async def _held_of(rig: Rig, scene: Scene, count: int) -> int:
    """Once each of `count` is either held or has been sent."""

    async def both() -> tuple[int, int]:
        return (await rig.pool())["queued"], len(await scene.sent())

    waiting, _ = await until(both, lambda found: sum(found) == count, f"{count} are held or sent")
    return waiting


async def _more(load: Load) -> None:
    """Some requests later: something has come and gone in this mode."""
    wanted = len(load.done) + 20

    async def done() -> int:
        return len(load.done)

    await until(done, lambda found: found >= wanted, "requests come and go")
