"""Thousands of changes, good and bad ones, while load flows and two hundred wait: nothing is lost, nothing is done
twice, and what is in force at the end is what a fresh start with the same file and database comes to."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from admin_case import FIXED, POOL, Admin, connected
from rig import Json, Rig, running, until

from extproc.cli.admin_changes import Changes
from extproc.cli.admin_load import Load
from extproc.cli.child import Child
from extproc.cli.probe import until_answered
from extproc.cli.stack import FAIRLANE, ServiceAddresses

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

CLIENTS = 216  # of which some 200 wait at most times: the engines have room for 8 to 32
CHANGES = 1_000  # of each kind
REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}


async def test_a_storm_of_changes(tmp_path: Path) -> None:
    async with running(
        tmp_path,
        engines=2,
        engine_args=("--step-base-ms", "20", "--max-num-seqs", "16", "--record-requests", "1000000"),
        pool={"window": FIXED},
    ) as rig:
        load = Load(rig.http, rig.stack.url, "storm")
        changes = Changes(6, POOL, [str(at) for at in rig.engines])
        try:
            load.start(CLIENTS)
            await rig.until(lambda found: found["queued"] >= 200, "200 held")
            async with connected(rig) as admin:
                await _storm(admin, changes)
                await admin.set(changes.calm())
                await load.stop()
                await rig.books_closed()
                in_force, policies = await _in_force(admin)
        finally:
            load.drop()
        _assert_one_answer_each(load)
        sent = Counter(entry["headers"]["x-key"] for entry in await rig.seen())
        assert max(sent.values()) == 1
        assert {each.key for each in load.done if each.status == 200} <= set(sent)
        await rig.stack.stop_child(FAIRLANE)
        async with _started_afresh(rig, tmp_path / "afresh") as at, connected(rig, at) as admin:
            config_afresh, policies_afresh = await _in_force(admin)
            assert config_afresh == in_force
            assert policies_afresh == policies


async def _storm(admin: Admin, changes: Changes) -> None:
    revision = (await admin.status()).revision
    for _ in range(CHANGES):
        good, bad = changes.good(), changes.bad()
        result = await admin.set(good)
        assert result.revision in (revision, revision + 1), good
        revision = result.revision
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await admin.set(bad)
        assert refused.value.code() in REFUSALS, bad
    assert (await admin.status()).revision == revision  # bad ones have made none


def _assert_one_answer_each(load: Load) -> None:
    assert len(load.done) == load.begun == len({each.key for each in load.done})
    # All limits were far, and this wiring shows no first byte, so that nobody is evicted.
    assert set(load.outcomes()) == {"200"}
    assert load.begun > 2 * CLIENTS


async def _in_force(admin: Admin) -> tuple[Json, dict[str, Any]]:
    """The effective configuration but for where it listens, and each scheduler's policy."""

    async def settled() -> list[Json]:
        pools = (await admin.dump())["pool"]
        return [each for each in pools if not each["observed"]]

    pools = await until(settled, lambda found: not any(each["retiring"] for each in found), "what was gone has ended")
    config = await admin.config()
    del config["listen"]
    return config, {each["pool"]: each["policy"] for each in pools}


class _started_afresh:  # noqa: N801 - a context manager
    """Another process on other ports, with the same file but for these, and the same database."""

    def __init__(self, rig: Rig, folder: Path) -> None:
        folder.mkdir()
        (self.at,) = ServiceAddresses.free(1)
        config = yaml.safe_load((rig.stack.directory / f"{FAIRLANE}.yaml").read_text(encoding="utf-8"))
        config["listen"] = {key: str(at) for key, at in self.at._asdict().items()}
        file = folder / "fairlane.yaml"
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        argv = [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file)]
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        self._child = Child("afresh", argv, log=folder / "log", directory=folder, env=env)

    async def __aenter__(self) -> object:
        self._child.start()
        try:
            await asyncio.wait_for(until_answered(self.at.http, "/readyz"), 60)
        except BaseException:
            self._child.kill()
            raise
        return self.at.admin

    async def __aexit__(self, *_: object) -> None:
        await self._child.stop(10)
        assert not self._child.failed, self._child.tail()
