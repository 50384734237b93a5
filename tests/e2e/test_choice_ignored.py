"""An Envoy that cannot do as it is told, since its cluster lacks the chosen engine: it is counted and said once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from rig import chat, log_of, running, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


def without_the_last_engine(envoy: dict[str, Any]) -> None:
    (cluster,) = [c for c in envoy["static_resources"]["clusters"] if c["name"] != "fairlane"]
    (group,) = cluster["load_assignment"]["endpoints"]
    assert len(group["lb_endpoints"]) == 2
    del group["lb_endpoints"][1:]


async def test_an_engine_that_envoy_does_not_know(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2, envoy_patch=without_the_last_engine) as rig:
        for _ in range(6):
            assert (await rig.post(chat())).status == 200
        await rig.books_closed()

        async def ignored() -> float:
            return await rig.metric("fairlane_ignored_choices_total", pool="sim")

        await until(ignored, lambda count: count >= 1)
        known, unknown = (str(engine) for engine in rig.engines)
        (warning,) = [entry for entry in log_of(rig.stack.child("fairlane")) if entry["event"] == "choice_ignored"]
        assert (warning["pool"], warning["chosen"], warning["used"]) == ("sim", unknown, known)


async def test_an_envoy_that_does_as_it_is_told(tmp_path: Path) -> None:
    async with running(tmp_path, engines=2) as rig:
        for _ in range(4):
            assert (await rig.post(chat())).status == 200
        await rig.books_closed()
        assert await rig.metric("fairlane_ignored_choices_total") == 0
