"""A recording is begun and ended while requests wait, and another configuration is tried on it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml
from admin_case import FIXED, POOL, SLOTS, WHY, Admin, connected, held
from click.testing import CliRunner, Result
from rig import FAST_ENGINE, Rig, running, until

from extproc.cli.main import main
from extproc.pb.admin.v1 import admin_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder = tmp_path_factory.mktemp("stack")
    async with running(folder, engine_args=FAST_ENGINE, pool={"window": FIXED}) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    async with connected(rig) as made:
        yield made


async def _command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, list(arguments))


@pytest.mark.parametrize("hashed", [False, True], ids=["plain", "hashed"])
async def test_what_was_recorded_live_is_replayed(rig: Rig, admin: Admin, tmp_path: Path, hashed: bool) -> None:
    at = str(rig.stack.addresses.admin)
    name = f"try-{hashed}"
    async with held(rig, (30, "team-a")) as scene:
        more = ["--hash-tenants"] if hashed else []
        begun = await _command("ctl", "--address", at, "record", "start", "--name", name, "--reason", WHY, *more)
        assert begun.exit_code == 0, begun.output
        recording = (await admin.status()).recording
        assert recording.active
        (file,) = map(Path, recording.files)
        scene.ask(20, "team-b")
        await rig.until_held(50)
    scene.assert_answers({200: 54})
    await rig.books_closed()
    ended = await _command("ctl", "--address", at, "record", "stop", "--reason", WHY)
    assert ended.exit_code == 0, ended.output
    await until(lambda: _recording(admin), lambda found: not found.active, "it has ended")

    settings = tmp_path / "other.yaml"
    pool = {"name": POOL, "models": ["*"], "endpoints": ["127.0.0.1:8001"]}
    settings.write_text(yaml.safe_dump({"pools": [pool], "tenants": {"team-b": {"weight": 4}}}), encoding="utf-8")
    figures = tmp_path / "figures.json"
    replayed = await _command("replay", str(file), "--config", str(settings), "--json", str(figures))
    assert replayed.exit_code == 0, replayed.output
    assert json.loads(figures.read_text(encoding="utf-8"))
    # It begins with requests under way, which are not played, so that event by event it cannot be the same.
    assert f"{SLOTS + 30} requests that end or go in it were held or inside at its start" in replayed.output
    exact = await _command("replay", str(file), "--exact")
    assert "the recording starts in mid-life" in exact.output


async def _recording(admin: Admin) -> pb.RecordingStatus:
    return (await admin.status()).recording
