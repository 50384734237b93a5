"""Engines that come and go while requests are held, by a watched file, through the real Envoy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rig import Json, Rig, chat, running, until

pytestmark = pytest.mark.e2e

NO_ENDPOINT_S = 3.0


def put(path: Path, *engines: object) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps({"endpoints": [str(engine) for engine in engines]}))
    fresh.rename(path)


async def until_known(rig: Rig, *engines: object) -> None:
    def wanted(pool: Json) -> bool:
        return sorted(each["endpoint"] for each in pool["endpoints"]) == sorted(map(str, engines))

    await rig.until(wanted, f"the endpoints are {engines}")


async def test_from_none_to_two_and_back(tmp_path: Path) -> None:
    path = tmp_path / "engines.json"
    stack = tmp_path / "stack"
    stack.mkdir()
    pool = {"endpoints": {"file": str(path)}, "no_endpoint_timeout": f"{NO_ENDPOINT_S:g}s"}
    async with running(stack, engines=2, pool=pool) as rig:
        one, other = rig.engines

        # the file is not there yet: what comes is held, and answered by the first engine
        held = rig.start(chat())
        await rig.until_held(1)
        put(path, one)
        assert (await held).status == 200

        # exchanged for another
        put(path, other)
        await until_known(rig, other)
        assert (await rig.post(chat())).status == 200

        # an answer under way goes on although its engine is none of the pool's any more
        async with rig.stream(400) as answer:
            put(path)
            await until_known(rig)
            assert b"[DONE]" in await answer.read()

        # none: held for so long, and then turned away; what waits no longer than that is answered
        refused = await rig.post(chat())
        assert refused.status == 503
        assert "no_endpoint_timeout" in refused.error["message"]
        held = rig.start(chat())
        await rig.until_held(1)
        put(path, one, other)
        assert (await held).status == 200

        # broken: nothing changes
        before = await rig.metric("fairlane_endpoint_source_failures_total")
        fresh = path.with_name(path.name + ".new")
        fresh.write_text("{")
        fresh.rename(path)

        async def failures() -> float:
            return await rig.metric("fairlane_endpoint_source_failures_total")

        await until(failures, lambda count: count > before)
        await until_known(rig, one, other)
        assert (await rig.post(chat())).status == 200
        await rig.books_closed()
