"""With several replicas: does the one that released a request get to know its tokens?"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from replicas import one_log, replicated
from rig import FAST_ENGINE, chat, until

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BATCH = 20


async def _settled(directory: Path, envoy_patch: Callable[[dict[str, Any]], None] | None) -> tuple[int, Counter[str]]:
    """(requests, log entries by what was made of them and settled requests by what told their cost), over both
    replicas, each of which has released some."""
    async with replicated(directory, engine_args=FAST_ENGINE, envoy_patch=envoy_patch) as replicas:
        await replicas.until_envoy(healthy=2)
        sent = 0

        async def send_until_both_are_used() -> list[float]:
            nonlocal sent
            answers = await asyncio.gather(*(replicas.rig.post(chat()) for _ in range(BATCH)))
            assert Counter(answer.status for answer in answers) == {200: BATCH}
            sent += BATCH
            return [await rig.metric("fairlane_released_requests_total") for rig in replicas.each.values()]

        await until(send_until_both_are_used, lambda released: min(released) >= BATCH / 4, "both are used")
        await replicas.books_closed()
        found: Counter[str] = Counter()
        for kind in ("matched", "other_process"):
            found[kind] = int(await replicas.metric("fairlane_access_log_entries_total", kind=kind))
        for source in ("usage", "time", "estimate"):
            found[source] = int(await replicas.metric("fairlane_settled_requests_total", source=source))
        return sent, found


async def test_one_log_for_all(tmp_path: Path) -> None:
    """The log of each of Envoy's workers goes to one of the replicas. What it tells of requests of the other one is
    lost; that one reckons with the time that they took."""
    sent, found = await _settled(tmp_path, one_log)
    assert found["matched"] == found["usage"]
    assert found["other_process"] == found["time"] + found["estimate"]
    assert found["usage"] + found["time"] + found["estimate"] == sent


async def test_a_log_for_each(tmp_path: Path) -> None:
    """As it is generated for several replicas."""
    sent, found = await _settled(tmp_path, None)
    assert found == Counter(matched=sent, other_process=sent, usage=sent)
