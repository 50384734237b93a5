"""A process that dies in the middle of a change, and a database that was damaged: a start finds one whole state."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from revisions_case import Case, patch, rollback

from extproc.admin import store
from extproc.admin.errors import AdminError
from extproc.config.model import Config

KILLED = Path(__file__).with_name("revisions_killed.py")
REFUSALS = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.DATA_LOSS,
}


def killed(*arguments: object) -> dict[str, Any]:
    run = subprocess.run(
        [sys.executable, KILLED, *map(str, arguments)], stdout=subprocess.PIPE, check=True, timeout=110
    )
    found: dict[str, Any] = json.loads(run.stdout)
    assert [each["wrong"] for each in found["rounds"] if each["wrong"]] == []
    return found


@pytest.mark.slow
def test_before_the_commit_the_old_state_is_found_and_after_it_the_new_one(tmp_path: Path) -> None:
    found = killed("statements", tmp_path)
    steps = [each["step"] for each in found["rounds"]]  # the one that it died before
    assert steps[0] == "BEGIN IMMEDIATE" and steps[-2:] == ["in force", "done"]
    old = steps.index("COMMIT") + 1
    assert [each["beyond"] for each in found["rounds"]] == [0] * old + [1] * (len(steps) - old)


@pytest.mark.slow
def test_at_random_points_the_old_or_the_new_state_is_found(tmp_path: Path) -> None:
    found = killed("random", tmp_path, 5, 1)
    assert {each["beyond"] for each in found["rounds"]} <= {0, 1}
    assert found["revisions"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_at_many_random_points_the_old_or_the_new_state_is_found(tmp_path: Path, seed: int) -> None:
    found = killed("random", tmp_path, 60, f"1{seed}")
    assert {each["beyond"] for each in found["rounds"]} == {0, 1}
    assert found["revisions"] > 60


# -- damage --------------------------------------------------------------------------------------


def begin(folder: Path, *, log: bool) -> dict[int, Config]:
    """A database with a history, and what was in force at each revision. `log`: as a killed process leaves it, and with
    all of it in the write-ahead log, where the last change would be at most."""
    original = folder / "original"
    original.mkdir()
    case = Case(original)

    async def history() -> dict[int, Config]:
        revisions = case.open()
        bring_home = store.bring_home
        if log:
            store.bring_home = lambda _connection: None
        states = {1: revisions.config}
        for number in range(2, 14):
            if number % 5 == 0:
                await rollback(revisions, number - 2)
            else:
                many = {f"tenant {each}": {"weight": number + each / 7} for each in range(40)}
                await patch(revisions, {"tenants": many, "classes": {"batch": {"max_queued": number}}})
            states[revisions.revision] = revisions.config
        if log:
            shutil.copytree(original, folder / "killed")
        store.bring_home = bring_home
        await revisions.close()
        return states

    states = asyncio.run(history())
    if not log:
        shutil.copytree(original, folder / "killed")
    return states


def damage(path: Path, dice: random.Random) -> str:
    """Somewhere in one of the files."""
    content = bytearray(path.read_bytes())
    at = dice.randrange(len(content))
    way = dice.choice(["cut", "zeros", "noise", "bit", "page"])
    match way:
        case "cut":
            del content[at:]
        case "zeros":
            content[at : at + 512] = bytes(len(content[at : at + 512]))
        case "noise":
            content[at : at + 200] = dice.randbytes(len(content[at : at + 200]))
        case "bit":
            content[at] ^= 1 << dice.randrange(8)
        case "page":  # one in the place of another
            page, other = at // 4096 * 4096, dice.randrange(len(content)) // 4096 * 4096
            content[page : page + 4096] = content[other : other + 4096]
    path.write_bytes(content)
    return way


def after(case: Case, states: dict[int, Config]) -> str:
    """Open what was damaged, and use it. What was found."""

    async def use() -> str:
        revisions = case.open()
        found, number = revisions.config, revisions.revision
        if revisions.state.read_only:
            assert (found, number) == (states[1], 0)  # the file's
        else:
            assert found == states[number]
        try:
            result = await patch(revisions, {"tenants": {"tenant 3": {"weight": 99}}})
            assert result.revision == number + 1
            assert revisions.config.tenant("tenant 3").weight == 99
        except AdminError as error:
            assert error.code in REFUSALS
            assert revisions.config == found
        for attempt in (revisions.list_revisions(None, 99), revisions.list_audit(None, 99), revisions.diff(3, 4)):
            try:
                await attempt
            except AdminError as error:
                assert error.code in REFUSALS
        await revisions.close()
        return "file" if number == 0 else "last" if number == max(states) else "older"

    return asyncio.run(use())


def rounds(folder: Path, count: int, seed: int, *, log: bool) -> Counter[str]:
    states = begin(folder, log=log)
    dice, found = random.Random(seed), Counter[str]()
    for _ in range(count):
        copy = folder / "copy"
        shutil.copytree(folder / "killed", copy)
        case = Case(copy, begin=False)
        files = [path for path in sorted(copy.iterdir()) if path.name.startswith("state.db") and path.stat().st_size]
        damage(dice.choice(files), dice)
        found[after(case, states)] += 1
        shutil.rmtree(copy)
    return found


@pytest.mark.parametrize("log", [False, True], ids=["closed", "killed"])
@pytest.mark.slow
def test_a_damaged_database_is_read_only_or_a_whole_state(tmp_path: Path, log: bool) -> None:
    found = rounds(tmp_path, 40, 1, log=log)
    assert set(found) >= ({"older", "last"} if log else {"file", "last"})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("log", [False, True], ids=["closed", "killed"])
def test_databases_with_much_damage(tmp_path: Path, log: bool, seed: int) -> None:
    found = rounds(tmp_path, 400, 100 + seed, log=log)
    assert found["last"] > 20
