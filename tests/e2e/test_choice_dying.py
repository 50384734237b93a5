"""Three engines, one slow and one that dies in mid run and comes back: nothing is lost but what was inside it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from choice_case import FAST, SLOTS, SLOW, Engine, inside, of, seen_by, set_faults, traffic, with_engines
from rig import Json, Rig, until

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

KINDS = (FAST, SLOW, FAST)
START = 2
STANDING = 3  # requests that may wait in an engine, of the class that the traffic is in


async def test_fairlane_chooses(tmp_path: Path) -> None:
    """It hangs, so that what was sent to it stays there and can be counted; others go on meanwhile."""
    metrics = {"interval": "500ms", "idle_interval": "500ms"}  # seldom, so that a first page can be seen as such
    pool = {"pick": {"by": "fairlane"}, "window": {"start": START}, "metrics": metrics}
    async with with_engines(tmp_path, KINDS, pool) as (
        rig,
        engines,
    ):
        dying = engines[2]
        async with traffic(rig, "steady") as flowing:
            await flowing.more(60)
            await set_faults(rig, dying, hang=True)
            await _full(rig, dying)
            await flowing.more(30)
            before = of(await rig.pool(), dying)
            # the widest its window was: it narrows while nothing comes back, which recalls nobody
            widest = max(SLOTS, math.ceil(before["capacity"])) + STANDING
            assert before["in_flight"] <= widest
            dying.kill()
            await _stance(rig, dying, "down")
            await flowing.more(60)
            lost = flowing.statuses[503]
            assert before["in_flight"] <= lost <= widest  # what was inside it, and nothing else
            await _returns(rig, dying)
            await flowing.more(60)
        assert flowing.statuses == {200: len(flowing.answers) - lost, 503: lost}
        assert await seen_by(rig, dying, "steady") > 0
        await rig.books_closed()


async def test_envoy_chooses(tmp_path: Path) -> None:
    """Nobody but Envoy knows what went to the engine that hangs; so it is counted there when nothing else is left."""
    wiring = Wiring(pick="envoy")
    async with with_engines(tmp_path, KINDS, {"pick": {"by": "envoy"}}, wiring=wiring) as (rig, engines):
        dying = engines[2]
        async with traffic(rig, "before") as flowing:
            await flowing.more(60)
            await set_faults(rig, dying, hang=True)
            await until(lambda: inside(rig, dying), lambda count: count >= 2, "some are in the engine that hangs")
            flowing.ended = True
            await rig.until(lambda pool: pool["queued"] == 0, "nothing waits any more")
            held = (await _settled(rig, dying))["in_flight"]
            dying.kill()
        assert flowing.statuses == {200: len(flowing.answers) - held, 503: held}
        async with traffic(rig, "after") as flowing:
            await _stance(rig, dying, "down")
            await flowing.more(60)
            await dying.start()
            await _stance(rig, dying, "fresh")
            await until(lambda: seen_by(rig, dying, "after"), lambda count: count > 5, "it is used again")
        assert set(flowing.statuses) == {200}
        await rig.books_closed()


async def _full(rig: Rig, engine: Engine) -> None:
    """Until hardly any more come, since its window is nearly full: while others were answered, and its page was read
    again, as many stayed inside, and Fairlane counts as many. The first pages still show what there was before it
    hung, and may widen the window."""
    found = -1
    for _ in range(20):
        before, found = found, await inside(rig, engine)
        if found > 0 and found == before == of(await rig.pool(), engine)["in_flight"]:
            return
        answered = await rig.metric("fairlane_settled_requests_total")
        pages = await _pages(rig, engine)
        await _settle(rig, answered + 20)
        await until(lambda: _pages(rig, engine), lambda count: count >= pages + 3, "its page is read again")  # noqa: B023
    raise AssertionError(f"its window does not fill: {found} inside")


async def _pages(rig: Rig, engine: Engine) -> float:
    return await rig.metric("fairlane_scrapes_total", endpoint=str(engine.at))


async def _settle(rig: Rig, count: float) -> None:
    await until(lambda: rig.metric("fairlane_settled_requests_total"), lambda found: found >= count, f"{count} settled")


async def _settled(rig: Rig, engine: Engine) -> Json:
    """Everything is answered but what the engine has."""

    async def both() -> tuple[Json, int]:
        return await rig.pool(), await inside(rig, engine)

    pool, _ = await until(both, lambda found: found[0]["in_flight"] == found[1] > 0, "the rest is answered")
    return pool


async def _stance(rig: Rig, engine: Engine, wanted: str) -> None:
    await rig.until(lambda pool: of(pool, engine)["stance"] == wanted, wanted)


async def _returns(rig: Rig, engine: Engine) -> None:
    """It is let in again little by little, though many wait: a trial at most before its first page, then by a window
    that knows nothing of what the engine took before."""
    engine.child.start()
    most = 0

    async def look() -> Json:
        nonlocal most
        found = of(await rig.pool(), engine)
        if found["stance"] != "fresh":
            most = max(most, found["in_flight"])
        return found

    first = await until(look, lambda found: found["stance"] == "fresh", "it is back")
    assert most <= 1
    assert first["capacity"] < SLOTS
    assert first["in_flight"] <= START + STANDING  # it had 7 before: its slots, and 3 that wait
    await until(lambda: seen_by(rig, engine, "steady"), lambda count: count > 20, "it is used again")
