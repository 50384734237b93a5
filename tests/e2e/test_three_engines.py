"""Who chooses the engine: Fairlane at the release, with others to fall back upon, or Envoy by itself. Three engines,
one of them slow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from choice_case import FAST, SLOTS, SLOW, Engine, seen_by, traffic, with_engines
from rig import Rig, chat

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

Started = tuple[Rig, list[Engine]]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["fairlane", "envoy"])
async def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, Rig, list[Engine]]]:
    by = request.param
    pool = {"pick": {"by": by}}
    kinds = (FAST, SLOW, FAST)
    directory = tmp_path_factory.mktemp("stack")
    async with with_engines(directory, kinds, pool, wiring=Wiring(pick=by)) as (rig, engines):
        yield by, rig, engines
        await rig.books_closed()


async def test_the_slow_engine_gets_less(started: tuple[str, Rig, list[Engine]]) -> None:
    """Its steps take five times as long, so with the same number inside it finishes a fifth of what the others do. Had
    it got a third of all requests like them, they would wait there."""
    by, rig, engines = started
    async with traffic(rig, "steady") as flowing:
        await flowing.more(300)
    assert set(flowing.statuses) == {200}
    first, slow, third = [await seen_by(rig, engine, "steady") for engine in engines]
    assert 0 < slow < 0.5 * min(first, third), (by, first, slow, third)
    assert min(first, third) > 0.5 * max(first, third), (by, first, slow, third)


async def test_the_client_is_shown_the_engine_that_fairlane_chose(started: tuple[str, Rig, list[Engine]]) -> None:
    by, rig, engines = started
    answer = await rig.post(chat(), tenant="shown")
    if by == "envoy":
        assert "x-fairlane-endpoint" not in answer.headers
        return
    chosen = answer.headers["x-fairlane-endpoint"]
    (engine,) = [each for each in engines if str(each.at) == chosen]
    assert await seen_by(rig, engine, "shown") == 1


async def test_a_client_cannot_choose(started: tuple[str, Rig, list[Engine]]) -> None:
    """Neither by the header that Fairlane sets nor by one that other gateways use."""
    _, rig, engines = started
    at = str(engines[1].at)
    headers = {"x-fairlane-endpoint": at, "x-gateway-destination-endpoint": at, "fairlane.endpoint": at}
    for _ in range(6):
        assert (await rig.post(chat(), tenant="forger", headers=headers)).status == 200
    assert await seen_by(rig, engines[1], "forger") < 6


async def test_more_go_in_together_than_one_engine_holds(started: tuple[str, Rig, list[Engine]]) -> None:
    """The room of all three is used: at least the slots of each."""
    _, rig, _ = started
    async with traffic(rig, "burst", at_once=60, tokens=40) as flowing:
        await rig.until(lambda pool: pool["in_flight"] >= 3 * SLOTS, "the slots of three engines are used")
        flowing.ended = True
    assert set(flowing.statuses) == {200}


async def test_an_engine_that_envoy_does_not_know(tmp_path: Path) -> None:
    """Fairlane's choice is skipped, its next one is taken; with none left Envoy decides."""
    pool = {"pick": {"by": "fairlane"}}

    def without_the_first(envoy: dict) -> None:  # type: ignore[type-arg]
        (cluster,) = [each for each in envoy["static_resources"]["clusters"] if each["name"] == "vllm"]
        del cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]

    async with with_engines(tmp_path, (FAST, FAST), pool, envoy_patch=without_the_first) as (rig, engines):
        async with traffic(rig, "all", at_once=8) as flowing:
            await flowing.more(40)
        assert set(flowing.statuses) == {200}
        assert await seen_by(rig, engines[0], "all") == 0
        assert await seen_by(rig, engines[1], "all") == len(flowing.answers)
        await rig.books_closed()
