"""An engine says that it has no room. With `--retry-turned-away` Envoy asks the next one, and the request's books stay
those of one request; without it the client is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from profile_case import binary, minor
from rig import FAST_ENGINE, Json, Rig, chat, running, until

from extproc.wiring.description import Wiring

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

# One slot and no queue, and pages so rare that Fairlane does not see who takes the slot.
ENGINE = (*FAST_ENGINE, "--max-num-seqs", "1", "--max-num-queued-reqs", "1")
POOL = {"metrics": {"interval": "60s", "idle_interval": "60s"}}
RETRY = Wiring(retry_turned_away=True)


@contextlib.asynccontextmanager
async def stack(directory: Path, wiring: Wiring, engines: int = 2) -> AsyncIterator[Rig]:
    args = (*ENGINE, "--record-bodies")
    this = {"wiring": replace(wiring, envoy=minor()), "envoy_binary": binary()}
    async with running(directory, engines=engines, pool=POOL, engine_args=args, **this) as rig:
        yield rig


@contextlib.asynccontextmanager
async def full(rig: Rig, *engines: int) -> AsyncIterator[None]:
    """The slot of these engines is taken, by somebody who did not ask Fairlane."""
    for number in engines:
        await rig.faults(engine=number, hang=True)
    busy = [rig.start(chat(), tenant="busy", straight_to=rig.engines[number]) for number in engines]
    await until(lambda: rig.seen("busy"), lambda seen: len(seen) >= len(engines))
    try:
        yield
    finally:
        await rig.faults()
        assert {answer.status for answer in await asyncio.gather(*busy)} == {200}


async def next_choice(rig: Rig) -> int:
    """The engine that Fairlane will choose: of two idle ones that which was not used last."""
    answer = await rig.post(chat())
    used = [str(engine) for engine in rig.engines].index(answer.headers["x-fairlane-endpoint"])
    await rig.until_inside(0)
    return 1 - used


async def said(rig: Rig, tenant: str) -> list[list[int]]:
    """What each engine said to the tenant's requests, by its own journal."""
    found = []
    for engine in rig.engines:
        async with rig.http.get(f"http://{engine}/sim/requests") as answer:
            entries: list[Json] = await answer.json()
        found.append([entry["status"] for entry in entries if entry["headers"].get("x-tenant") == tenant])
    return found


def by(first: int, one: list[int], other: list[int]) -> list[list[int]]:
    """As `said`, where the engine that Fairlane chose first said `one`."""
    return [one, other] if first == 0 else [other, one]


async def settled(rig: Rig) -> dict[str, float]:
    sources = ("usage", "error", "time", "estimate", "abort")
    found = {source: await rig.metric("fairlane_settled_requests_total", source=source) for source in sources}
    return {source: count for source, count in found.items() if count}


async def test_another_engine_answers(tmp_path: Path) -> None:
    async with stack(tmp_path, RETRY) as rig:
        first = await next_choice(rig)
        async with full(rig, first):
            answer = await rig.post(chat(3), tenant="one")
        assert answer.status == 200
        assert answer.headers["x-fairlane-endpoint"] == str(rig.engines[first])  # Fairlane's choice
        assert "x-should-retry" not in answer.headers
        assert await said(rig, "one") == by(first, [503], [200])
        await rig.books_closed()
        assert await settled(rig) == {"usage": 2}  # that of next_choice, and this one once
        # The next ones do not go where it was turned away, though that one was not used for longer.
        for _ in range(2):
            answer = await rig.post(chat())
            assert answer.headers["x-fairlane-endpoint"] == str(rig.engines[1 - first])
        await rig.books_closed()


async def test_a_large_body_arrives_whole_at_the_second_engine(tmp_path: Path) -> None:
    async with stack(tmp_path, RETRY) as rig:
        first = await next_choice(rig)
        body = chat(2, metadata={"pad": "x" * 5_000_000})
        async with full(rig, first):
            answer = await rig.post(body, tenant="large")
        assert answer.status == 200
        at = rig.engines[1 - first]
        async with rig.http.get(f"http://{at}/sim/requests") as found:
            (entry,) = [e for e in await found.json() if e["headers"].get("x-tenant") == "large"]
        async with rig.http.get(f"http://{at}/sim/requests/{entry['seq']}/body") as found:
            assert orjson.loads(await found.read()) == body
        await rig.books_closed()


async def test_all_engines_say_no(tmp_path: Path) -> None:
    """The client hears it from the last one, and is told not to begin again: the engines have been asked twice."""
    async with stack(tmp_path, RETRY) as rig:
        await next_choice(rig)
        async with full(rig, 0, 1):
            answer = await rig.post(chat(), tenant="refused")
        assert answer.status == 503
        assert answer.json["error"]["type"] == "Service Unavailable"  # the engine's own words
        assert answer.headers["x-should-retry"] == "false"
        # The list has two; the third attempt is Envoy's own choice, and there is none that was not asked before.
        asked = await said(rig, "refused")
        assert min(map(len, asked)) >= 1
        assert len(asked[0]) + len(asked[1]) <= 3
        await rig.books_closed()
        assert await settled(rig) == {"usage": 1, "error": 1}


async def test_a_stream_that_is_shed_with_status_200_is_not_sent_again(tmp_path: Path) -> None:
    """Its headers went to the client before the error came."""
    async with stack(tmp_path, RETRY) as rig:
        first = await next_choice(rig)
        async with full(rig, first):
            await rig.faults(engine=first, hang=True, shed="stream")
            answer = await rig.post(chat(stream=True), tenant="stream")
        assert answer.status == 200
        assert b'"Service Unavailable"' in answer.body
        assert await said(rig, "stream") == by(first, [200], [])
        await rig.books_closed()
        assert await rig.metric("fairlane_endpoint_turned_away_requests_total", endpoint=str(rig.engines[first])) == 1


async def test_what_fairlane_refuses_is_not_sent_to_any_engine(tmp_path: Path) -> None:
    config = {"tenants": {"small": {"max_queued": 1}}}
    async with running(
        tmp_path, config=config, pool={"window": {"controller": "fixed", "fixed": 1}}, wiring=RETRY
    ) as rig:
        async with rig.hung_engines():
            inside = rig.start(chat(), tenant="small")
            await rig.until_inside(1)
            held = rig.start(chat(), tenant="small")
            await rig.until_held(1)
            refused = await rig.post(chat(), tenant="small")
            assert refused.status == 429
            assert len(await rig.seen("small")) == 1
        assert {answer.status for answer in await asyncio.gather(inside, held)} == {200}
        assert len(await rig.seen("small")) == 2
        await rig.books_closed()


async def test_without_the_option_the_client_is_told(tmp_path: Path) -> None:
    async with stack(tmp_path, Wiring()) as rig:
        first = await next_choice(rig)
        async with full(rig, first):
            answer = await rig.post(chat(), tenant="told")
        assert answer.status == 503
        assert "x-should-retry" not in answer.headers
        assert await said(rig, "told") == by(first, [503], [])
        await rig.books_closed()
        assert await rig.metric("fairlane_endpoint_turned_away_requests_total", endpoint=str(rig.engines[first])) == 1
