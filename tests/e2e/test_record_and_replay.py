"""What a running Fairlane writes down can be replayed: event by event, and as traffic under another configuration."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rig import chat, running

from extproc.cli.main import main

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

_POOL = "sim"
_SECRET = "the-text-of-a-prompt"


async def _traffic(folder: Path, config: dict[str, object]) -> None:
    """Twelve requests of two tenants, one of which leaves while it is held."""
    async with running(
        folder, config=config, engine_args=("--max-num-seqs", "2"), pool={"window": {"start": 1}}
    ) as rig:
        body = chat(8, messages=[{"role": "user", "content": _SECRET}])
        asked = [rig.start(body, tenant=tenant) for tenant in ("team-a", "team-b") for _ in range(6)]
        await rig.until(lambda pool: pool["queued"] > 0, "some are held")
        asked.pop().cancel()
        assert {answer.status for answer in await asyncio.gather(*asked)} == {200}
        await rig.books_closed()


@pytest.mark.parametrize("tenants", ["plain", "hashed"])
async def test_a_recording_of_production_is_replayed(tmp_path: Path, tenants: str) -> None:
    config: dict[str, object] = {"recording": {"file": str(tmp_path / "traffic.jsonl"), "tenants": tenants}}
    await _traffic(tmp_path / "stack", config)
    recording = tmp_path / f"traffic.{_POOL}.jsonl"
    text = recording.read_text()
    assert _SECRET not in text
    assert ("team-a" in text) == (tenants == "plain")

    exact = await asyncio.to_thread(CliRunner().invoke, main, ["replay", str(recording), "--exact"])
    assert exact.exit_code == 0, exact.output

    settings = tmp_path / "other.yaml"
    pool = {"name": _POOL, "models": ["*"], "endpoints": ["127.0.0.1:8001"]}
    settings.write_text(yaml.safe_dump({"pools": [pool], "tenants": {"team-a": {"weight": 4}}}))
    figures = tmp_path / "figures.json"
    arguments = ["replay", str(recording), "--config", str(settings), "--json", str(figures)]
    replayed = await asyncio.to_thread(CliRunner().invoke, main, arguments)
    assert replayed.exit_code == 0, replayed.output
    assert json.loads(figures.read_text())
