"""A stack whose Envoy has what a gateway of Kubernetes would give it, and what is asked of each."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

sys.path.append(str(Path(__file__).resolve().parent.parent / "wiring"))  # what gateways make of our objects
from mesh_case import Emit, rewired
from rig import FAST_ENGINE, MODEL, Json, Rig, chat, running

from extproc.wiring.description import Wiring
from extproc.wiring.mesh.forms import Form
from extproc.wiring.parts import Data

BATCH, DEFAULT = 2_000_000, 1_000_000
CONFIG: Json = {"classes": {"batch": {"max_in_flight": 1}}, "requests": {"unknown_model": "reject"}}


@contextlib.asynccontextmanager
async def behind(
    form: Form,
    emit: Emit,
    wiring: Wiring,
    directory: Path,
    *,
    pool: Json | None = None,
    change: Callable[[Data], None] | None = None,
    **more: Any,
) -> AsyncIterator[Rig]:
    """Envoy with what the gateway makes of our objects, Fairlane, and two engines that go by priorities."""
    async with running(
        directory,
        engines=2,
        config=CONFIG,
        pool={"models": [MODEL], "window": {"start": 8}, **(pool or {})},
        engine_args=(*FAST_ENGINE, "--scheduling-policy", "priority", "--record-bodies"),
        envoy_patch=rewired(form, emit, wiring, change),
        **more,
    ) as rig:
        yield rig


async def assert_held_in_order(rig: Rig, tenant: str, priority: int) -> None:
    """Of four requests of class batch one is inside and three are held, of which one leaves; the others go in the order
    of their arrival, with `priority`."""
    headers = {"x-class": "batch"}
    async with rig.hung_engines():
        tasks = [rig.start(chat(), tenant=tenant, headers=headers)]
        await rig.until_inside(1)
        for number in range(3):
            tasks.append(rig.start(chat(), tenant=tenant, headers={**headers, "x-number": str(number)}))
            await rig.until_held(number + 1)
        tasks.pop(1).cancel()
        await rig.until_held(2)
        assert len(await rig.seen(tenant)) == 1
    assert [(await task).status for task in tasks] == [200] * 3
    entries = await rig.seen(tenant)
    assert [entry["headers"].get("x-number") for entry in entries] == [None, "1", "2"]
    assert {entry["priority"] for entry in entries} == {priority}


def upload(text: bytes = b"RIFF") -> aiohttp.FormData:
    form = aiohttp.FormData()
    form.add_field("model", MODEL)
    form.add_field("file", text, filename="a.wav", content_type="audio/wav")
    return form
