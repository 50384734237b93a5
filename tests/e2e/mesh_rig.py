"""A stack whose Envoy has what a gateway of Kubernetes would give it, and what is asked of each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

sys.path.append(str(Path(__file__).resolve().parent.parent / "wiring"))  # what gateways make of our objects
from mesh_case import Emit, rewired
from rig import FAST_ENGINE, MODEL, Json, Rig, running

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


async def doctor(rig: Rig) -> list[Json]:
    """Findings about the Envoy that runs, but for notes."""
    command = ["doctor", "--envoy-admin", f"http://{rig.stack.addresses.envoy_admin}", "--json"]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.cli.main", *command, "--config", str(rig.stack.directory / "fairlane.yaml")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=rig.stack.directory,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode in (0, 1), err.decode()
    return [each for each in json.loads(out)["findings"] if each["severity"] != "note"]


def upload(text: bytes = b"RIFF") -> aiohttp.FormData:
    form = aiohttp.FormData()
    form.add_field("model", MODEL)
    form.add_field("file", text, filename="a.wav", content_type="audio/wav")
    return form
