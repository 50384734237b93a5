"""A request that has not begun to answer makes room for a more urgent one: 503, and the engine drops it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from rig import FAST_ENGINE, Rig, chat, running, until

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

CLASSES = {"batch": {"preemptible": True, "min_share": 0}, "interactive": {"preempt_after": "200ms"}}
ONE_SLOT = {"window": {"controller": "fixed", "fixed": 1, "overtake": 0}}
BATCH, INTERACTIVE = {"x-class": "batch"}, {"x-class": "interactive"}


def preempting(directory: Path, profile: str = "standard", **pool: Any) -> Any:
    return running(
        directory,
        engine_args=FAST_ENGINE,
        config={"classes": CLASSES},
        pool={**ONE_SLOT, **pool},
        wiring=Wiring(profile=profile, first_byte=True),  # type: ignore[arg-type]
    )


async def evicted(rig: Rig) -> float:
    return await rig.metric("fairlane_evicted_requests_total")


@pytest.mark.parametrize("profile", ["standard", "strict"])
async def test_a_batch_request_makes_room(tmp_path: Path, profile: str) -> None:
    async with preempting(tmp_path, profile) as rig:
        async with rig.hung_engines():
            low = rig.start(chat(5), tenant="low", headers=BATCH)
            await rig.until_inside(1)
            high = rig.start(chat(5), tenant="high", headers=INTERACTIVE)
            refused = await low
        assert refused.status == 503
        assert refused.error["code"] == "preempted"
        assert "preempt_after" in refused.error["message"]
        assert refused.headers["retry-after"].isdigit()
        assert refused.headers["x-fairlane-reason"] == "preempted"
        assert (await high).status == 200
        await rig.books_closed()
        assert await evicted(rig) == 1
        assert await rig.metric("fairlane_settled_cost_total", **{"class": "batch"}) == 0  # it pays nothing
        (entry,) = await rig.seen("low")
        assert entry["state"] == "aborted"  # the engine does not go on with it


async def test_an_answer_that_has_begun_is_not_cut(tmp_path: Path) -> None:
    async with preempting(tmp_path) as rig:
        async with rig.stream(300, tenant="low", headers=BATCH) as answer:
            await answer.content.readuntil(b"\n\n")
            high = rig.start(chat(2), tenant="high", headers=INTERACTIVE)
            whole = await answer.read()
        assert whole.endswith(b"data: [DONE]\n\n")
        assert (await high).status == 200
        assert await evicted(rig) == 0
        await rig.books_closed()


async def test_unless_it_is_configured(tmp_path: Path) -> None:
    """The client sees its stream break; the engine stops."""
    async with preempting(tmp_path, preemption={"per_second": 5, "after_first_byte": True}) as rig:
        async with rig.stream(30_000, tenant="low", headers=BATCH) as answer:
            await answer.content.readuntil(b"\n\n")
            assert (await rig.post(chat(2), tenant="high", headers=INTERACTIVE)).status == 200
        assert await evicted(rig) == 1
        await rig.books_closed()


async def test_no_more_at_once_than_is_allowed(tmp_path: Path) -> None:
    """Three slots of batch, three interactive requests, and one eviction each 100 s: two of them wait for an end."""
    window = {"window": {"controller": "fixed", "fixed": 3, "overtake": 0}}
    async with preempting(tmp_path, **window, preemption={"per_second": 0.01}) as rig:
        async with rig.hung_engines():
            low = [rig.start(chat(2), tenant="low", headers=BATCH) for _ in range(3)]
            await rig.until_inside(3)
            high = [rig.start(chat(2), tenant="high", headers=INTERACTIVE) for _ in range(3)]
            done, _ = await asyncio.wait(low, return_when=asyncio.FIRST_COMPLETED)
            assert [task.result().status for task in done] == [503]
            await rig.until_held(2)
        assert sorted(answer.status for answer in await asyncio.gather(*low)) == [200, 200, 503]
        assert {answer.status for answer in await asyncio.gather(*high)} == {200}
        assert await evicted(rig) == 1
        await rig.books_closed()


async def test_a_wiring_that_does_not_show_first_bytes_evicts_nobody(tmp_path: Path) -> None:
    config = {"classes": CLASSES}
    async with running(tmp_path, engine_args=FAST_ENGINE, config=config, pool=ONE_SLOT) as rig:
        async with rig.hung_engines():
            low = rig.start(chat(2), headers=BATCH)
            await rig.until_inside(1)
            high = rig.start(chat(2), headers=INTERACTIVE)
            await rig.until_held(1)
            # Eight pages at 250 ms: ten times what it would take.
            pages = await rig.metric("fairlane_scrapes_total")
            await until(lambda: rig.metric("fairlane_scrapes_total"), lambda seen: seen >= pages + 8, "time has passed")
        assert {(await low).status, (await high).status} == {200}
        assert await evicted(rig) == 0
        await rig.books_closed()
