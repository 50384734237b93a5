"""Many streams at once that come to nothing: what is left of them is nothing."""

from __future__ import annotations

import asyncio

import pytest
from envoy_by_messages import Start, request, until

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

MANY = 10_000


async def test_streams_that_are_opened_and_closed_at_once(start: Start) -> None:
    """Some say nothing, some send their headers; all are gone a moment later, held or not."""
    edge, envoy = await start(tenants={"*": {"max_queued": MANY}})
    first, _ = await envoy.released()
    streams = [envoy.stream() for _ in range(MANY)]
    talking = streams[::2]
    await asyncio.gather(*(stream.send(request()) for stream in talking))
    for stream in streams:
        stream.cancel()
    # The connection still works, and what comes now waits for nothing but its turn.
    last = envoy.stream()
    await last.send(request(headers={"x-tenant": "last"}))
    await until(lambda: "last" in {r.tenant for r in edge.driver.scheduler.requests.values()}, within_s=60)
    await until(lambda: edge.held == 1, "all that were held are gone", within_s=60)
    await until(lambda: edge.processor.open == 2, within_s=60)
    await first.end()
    await last.answer()
    await last.end()
    edge.check_empty()
    assert edge.recorder.count("fault") == 0
    held = edge.recorder.count("cancelled")
    assert held + edge.recorder.count("release") + edge.recorder.count("refuse") <= len(talking) + 2
