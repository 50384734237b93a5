"""An engine that has no room, in a profile whose answers pass through Fairlane and no access log tells of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from rig import FAST_ENGINE, Rig, chat, running, until

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

# One slot and no queue, and pages so rare that Fairlane does not see who takes the slot.
ENGINE = (*FAST_ENGINE, "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
POOL = {"metrics": {"interval": "60s", "idle_interval": "60s"}}


async def turned_away(rig: Rig) -> float:
    return await rig.metric("fairlane_endpoint_turned_away_requests_total", pool="sim")


@pytest.mark.parametrize("way", ["status", "stream"])
async def test_what_the_engine_refuses_is_counted(tmp_path: Path, way: str) -> None:
    async with running(tmp_path, pool=POOL, engine_args=ENGINE, wiring=Wiring(usage="stream")) as rig:
        await rig.faults(hang=True, shed=way)
        busy = rig.start(chat(), tenant="busy", straight_to=rig.engines[0])
        await until(lambda: rig.seen("busy"), bool)
        answer = await rig.post(chat(stream=True))
        assert answer.status == (503 if way == "status" else 200)
        assert b'"code":503' in answer.body.replace(b" ", b"")
        await until(lambda: turned_away(rig), lambda count: count == 1)
        await rig.faults()
        assert (await busy).status == 200
        await rig.books_closed()
        assert await rig.metric("fairlane_settled_requests_total", source="error") == 1


async def test_what_envoy_answers_for_a_dead_engine_is_not(tmp_path: Path) -> None:
    async with running(tmp_path, pool=POOL, engine_args=ENGINE, wiring=Wiring(usage="stream")) as rig:
        rig.stack.child("engine-1").kill()
        assert (await rig.post(chat())).status == 503
        await rig.until_inside(0)
        assert await rig.metric("fairlane_settled_requests_total", source="error") == 1
        assert await turned_away(rig) == 0
