"""Much at once: large bodies and two thousand held requests, none refused and none lost."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator

import orjson
import pytest
import pytest_asyncio
from rig import Rig, chat, running

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SLOTS = 64
HELD = 2_000


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    args = ("--max-num-seqs", str(SLOTS), "--step-base-ms", "2", "--step-per-seq-ms", "0")
    config = {"classes": {"default": {"max_in_flight": SLOTS}}}
    pool = {"window": {"start": SLOTS}}
    async with running(tmp_path_factory.mktemp("stack"), engine_args=args, config=config, pool=pool) as rig:
        yield rig


@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_of_5_mb(stream: bool, rig: Rig) -> None:
    body = orjson.dumps(chat(4, stream=stream, filler=random.Random(5).randbytes(2_500_000).hex()))
    answer = await rig.post(body, tenant=f"large {stream}")
    assert answer.status == 200
    (entry,) = await rig.seen(f"large {stream}")
    assert entry["body_bytes"] == len(body) > 5_000_000
    assert entry["body_sha256"] == hashlib.sha256(body).hexdigest()


async def test_2000_held_at_once_and_all_answered(rig: Rig) -> None:
    async with rig.hung_engines():
        blockers = [rig.start(chat(), tenant="blocker") for _ in range(SLOTS)]
        await rig.until_inside(SLOTS)
        tasks = [rig.start(chat(1), tenant=f"tenant-{i % 8}") for i in range(HELD)]
        pool = await rig.until_held(HELD)
        assert pool["in_flight"] == SLOTS
        assert {flow["queued"] for flow in pool["flows"] if flow["tenant"].startswith("tenant-")} == {HELD // 8}
        assert await rig.metric("fairlane_held_requests") == HELD
    answers = await asyncio.gather(*blockers, *tasks)
    assert [answer.status for answer in answers] == [200] * (SLOTS + HELD)
    assert await rig.metric("fairlane_refused_requests_total") == 0
    assert len([e for e in await rig.seen() if e["headers"]["x-tenant"].startswith("tenant-")]) == HELD
