"""The engine dies while its answers stream, or hangs while clients give up.

Engines that die with plain requests inside, and metrics that cannot be read: `test_engine_faults`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from replicas import ROOMY, Scene
from rig import Rig, chat, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

INSIDE = 3


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    args = ("--step-base-ms", "20", "--step-per-seq-ms", "0")
    config = {"classes": {"default": {"max_in_flight": INSIDE}}}
    async with running(tmp_path_factory.mktemp("stack"), engine_args=args, config=config, pool=ROOMY) as rig:
        yield rig


async def test_killed_while_its_answers_stream(rig: Rig) -> None:
    """Their clients see a broken connection; what is held waits for the engine's return, all but the few that went
    before it was known to be gone."""
    scene = Scene([rig], "engine killed", inside=INSIDE, held=20)
    await scene.set_up()
    before = await _settled(rig)
    await rig.stack.kill("engine-1")
    for stream in scene.streams:
        with pytest.raises(aiohttp.ClientPayloadError):
            await stream
    await rig.until(lambda pool: pool["endpoints"][0]["stance"] == "down" and pool["in_flight"] == 0)
    await rig.stack.start_child("engine-1")
    statuses = [answer.status for answer in await asyncio.gather(*scene.held)]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) > len(statuses) // 2
    await rig.books_closed()
    settled = await _settled(rig) - before
    assert settled["usage"] == statuses.count(200)
    assert settled["time"] + settled["estimate"] >= INSIDE  # what ran until then was served
    assert settled.total() == INSIDE + len(statuses)


async def _settled(rig: Rig) -> Counter[str]:
    """Requests whose cost is final, by what told it. A pace that is not known yet makes an estimate out of a time."""
    sources = ("usage", "time", "estimate", "error")
    return Counter({s: int(await rig.metric("fairlane_settled_requests_total", source=s)) for s in sources})


async def test_hangs_until_its_clients_leave(rig: Rig) -> None:
    """No time-out of ours ends them; each client that leaves frees its slot at once, and the engine's too."""
    async with rig.hung_engines():
        stuck = [rig.start(chat(), tenant="stuck") for _ in range(INSIDE)]
        await rig.until_inside(INSIDE)
        waits = [rig.start(chat(), tenant="waits") for _ in range(INSIDE)]
        await rig.until_held(INSIDE)
        stuck[0].cancel()
        await rig.until_held(INSIDE - 1)
        for task in (*stuck[1:], *waits[1:]):
            task.cancel()
        await rig.until(lambda pool: pool["queued"] == 0 and pool["in_flight"] <= 1, "only one is left")
    assert (await waits[0]).status == 200
    await until(lambda: rig.seen("stuck"), lambda seen: [entry["state"] for entry in seen] == ["aborted"] * INSIDE)
    await rig.books_closed()
