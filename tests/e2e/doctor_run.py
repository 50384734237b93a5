"""`fairlane doctor` at the admin interface of a rig's Envoy."""

from __future__ import annotations

import asyncio
import json
import sys

from rig import Json, Rig


async def doctor(rig: Rig) -> tuple[int, Json]:
    """Exit code and report, with the fairlane.yaml that the service runs with."""
    command = ["doctor", "--envoy-admin", f"http://{rig.stack.addresses.envoy_admin}", "--json"]
    config = str(rig.stack.directory / "fairlane.yaml")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.cli.main", *command, "--config", config),
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
    report: Json = json.loads(out)
    return process.returncode, report


async def faults(rig: Rig) -> list[Json]:
    """Its findings, but for notes."""
    _, report = await doctor(rig)
    return [each for each in report["findings"] if each["severity"] != "note"]
