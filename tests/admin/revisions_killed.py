"""Kills a process that changes the configuration without end, again and again, and looks at what a start finds.

    python revisions_killed.py random FOLDER ROUNDS SEED
    python revisions_killed.py statements FOLDER

At random points of a life; or, one after the other, before each SQL statement of a change and between the transaction
and putting it in force.

Every change gives three parts of the configuration one and the same value, so that a mix of two states shows. Before a
change its maker writes down which value goes with the revision to come, and after it that it is done. Prints JSON: the
numbers of rounds that found the last change that was done, and the one after it; and what was wrong."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog
from revisions_case import Case, data, patch, rollback

from extproc.admin.records import Kind
from extproc.config.model import Config

MOST_CHANGES = 5000  # of a process that nobody kills
LONGEST_S = 0.05  # of a life after its first change
TTL_S = 1e6


class Diary:
    """Lines of numbers; what is written is the operating system's at once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, *numbers: int) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(map(str, numbers)) + "\n")

    def lines(self) -> list[list[int]]:
        text = self.path.read_text() if self.path.exists() else ""
        return [[int(number) for number in line.split()] for line in text.splitlines()]


class Folder:
    def __init__(self, path: Path) -> None:
        self.case = Case(path)
        self.case.clock.now = 0.0
        self.meant = Diary(path / "meant")  # revision, value
        self.done = Diary(path / "done")  # revision

    def value(self, revision: int) -> int:
        return dict(self.meant.lines())[revision]  # type: ignore[arg-type]


def parts(value: int) -> dict[str, dict[str, dict[str, int]]]:
    return {
        "tenants": {"acme": {"weight": value}, "zeta": {"max_queued": value}},
        "classes": {"batch": {"max_queued": value}},
    }


def values(config: Config) -> set[float]:
    return {config.tenant("acme").weight, config.tenants["zeta"].max_queued, config.classes["batch"].max_queued}


def begin(folder: Folder) -> None:
    content = data()
    content["tenants"] |= parts(1)["tenants"]
    content["classes"]["batch"]["max_queued"] = 1
    folder.case.write(content)
    folder.meant.write(1, 1)
    folder.done.write(1)
    folder.case.open()._ledger.store.close()


async def change_for_ever(folder: Folder, dice: random.Random, parent: int) -> None:
    case, meant, done = folder.case, folder.meant, folder.done
    revisions = case.open()
    for _ in range(MOST_CHANGES):
        if os.getppid() != parent:
            return
        last = revisions.revision
        new = last + 1
        match dice.choice(["set", "set", "for a while", "back", "file"]):
            case "set":
                meant.write(new, new)
                await patch(revisions, parts(new))
            case "for a while":  # the newest expires first
                meant.write(new, new)
                await patch(revisions, parts(new), ttl_s=TTL_S - new)
                done.write(new)
                meant.write(new + 1, folder.value(last))
                case.clock.now = TTL_S - new
                await revisions.expire()
                case.clock.now = 0.0
            case "back":
                target = dice.randint(max(1, last - 5), last)
                meant.write(new, folder.value(target))
                await rollback(revisions, target)
            case "file":
                meant.write(new, folder.value(last))
                (case.folder / "new.yaml").write_text(case.file.read_text() + "#\n")
                (case.folder / "new.yaml").replace(case.file)
                assert await revisions.reload("another")
        done.write(revisions.revision)


def a_life(folder: Folder, dice: random.Random) -> None:
    """Of a process, until it is killed."""
    before, parent = len(folder.done.lines()), os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(change_for_ever(folder, dice, parent))
        finally:
            os._exit(1)
    try:
        deadline = time.monotonic() + 30
        while len(folder.done.lines()) == before and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, LONGEST_S))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def a_change(folder: Folder, steps: int) -> str:
    """Of a process that kills itself before the step after `steps`. The last step that it came to."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(change_once(folder, steps, write))
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read().splitlines()
    os.waitpid(pid, 0)
    return told[-1]


async def change_once(folder: Folder, steps: int, pipe: int) -> None:
    left = steps

    def step(name: str) -> None:
        nonlocal left
        os.write(pipe, " ".join(name.split()[:3]).encode() + b"\n")
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    revisions = folder.case.open()
    connection = revisions._ledger.store._connection
    assert connection is not None
    connection.set_trace_callback(step)
    prepare = folder.case.control.prepare

    async def prepared(config: Config) -> Callable[[], None]:
        commit = await prepare(config)

        def commit_later() -> None:
            step("in force")
            commit()
            step("done")

        return commit_later

    folder.case.control.prepare = prepared  # type: ignore[method-assign]
    new = revisions.revision + 1
    folder.meant.write(new, new)
    await patch(revisions, parts(new))


def look(folder: Folder) -> tuple[int, list[str]]:
    """What a start finds: how many changes beyond the last that was done, and what is wrong."""
    (done,) = folder.done.lines()[-1]
    revisions = folder.case.open()
    store = revisions._ledger.store
    last = store.last()
    assert last is not None
    # This start makes a revision of its own where the file was replaced, and the process did not get to read it.
    found = last.number - 1 if last.kind is Kind.START and last.number > done else last.number
    wrong = [store.error] if store.error else []
    if found not in (done, done + 1):
        wrong.append(f"revision {found} where {done} was done")
    elif values(revisions.config) != {folder.value(found)}:
        wrong.append(f"revision {found} has {sorted(values(revisions.config))}, not {folder.value(found)}")
    folder.meant.write(last.number, folder.value(found))
    folder.done.write(last.number)
    store.close()
    return found - done, wrong


def at_random(folder: Folder, rounds: int, seed: int) -> Iterator[tuple[str, int, list[str]]]:
    dice = random.Random(seed)
    for _ in range(rounds):
        a_life(folder, dice)
        yield "random", *look(folder)


def at_each_statement(folder: Folder) -> Iterator[tuple[str, int, list[str]]]:
    for steps in range(100):
        step = a_change(folder, steps)
        yield step, *look(folder)
        if step == "done":
            return


def main(way: str, path: str, *numbers: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    folder = Folder(Path(path))
    begin(folder)
    rounds = at_random(folder, *map(int, numbers)) if way == "random" else at_each_statement(folder)
    found = [{"step": step, "beyond": beyond, "wrong": wrong} for step, beyond, wrong in rounds]
    json.dump({"rounds": found, "revisions": folder.done.lines()[-1][0]}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
