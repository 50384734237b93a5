"""One of two engines hangs as a real one does: health and pages answer, gauges stand, and no token is made. It is
found, left alone with the reason, asked for a token, and taken again when it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from rig import Rig, chat, log_of, running

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

POOL: dict[str, Any] = {"window": {"stalled_after": "1s"}, "metrics": {"interval": "100ms", "idle_interval": "200ms"}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tmp_path_factory.mktemp("stack"), engines=2, pool=POOL) as rig:
        yield rig


def stances(pool: dict[str, Any]) -> list[str]:
    return [endpoint["stance"] for endpoint in pool["endpoints"]]


async def test_it_is_closed_and_the_other_one_takes_all_and_it_comes_back(rig: Rig) -> None:
    hung = str(rig.engines[0])
    await rig.faults(engine=0, hang=True)
    try:
        # Until it holds one that does not end: the other engine may be chosen first.
        stuck: list[asyncio.Task[Any]] = []
        while not any(e["in_flight"] for e in (await rig.pool())["endpoints"] if e["endpoint"] == hung):
            stuck.append(rig.start(chat(), tenant="stuck"))
            await rig.until(lambda pool: pool["queued"] == 0)
        await rig.until(lambda pool: "stalled" in stances(pool), "it is found")
        served = [await rig.post(chat(), tenant=f"t{i % 3}") for i in range(12)]
        assert [answer.status for answer in served] == [200] * 12
        assert {answer.headers["x-fairlane-endpoint"] for answer in served} == {str(rig.engines[1])}
        assert await rig.metric("fairlane_endpoint_stance", endpoint=hung, stance="stalled") == 1
    finally:
        await rig.faults(engine=0)
    await rig.until(lambda pool: set(stances(pool)) == {"fresh"}, "it is taken again")
    assert [(await task).status for task in stuck] == [200] * len(stuck)
    await rig.books_closed()
    service = next(child for child in rig.stack.children if child.name == "fairlane")
    told = [line for line in log_of(service) if line["event"] == "endpoint stance changed" and line["endpoint"] == hung]
    assert (told[0]["stance"], told[0]["level"]) == ("stalled", "warning")
