"""Three simulated engines, each of its own kind, and steady traffic through them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from rig import Answer, Json, Rig, chat, running, until

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until_answered

SLOTS = 4
FAST = ("--step-base-ms", "6", "--step-per-seq-ms", "0", "--step-per-prefill-token-ms", "0")
SLOW = ("--step-base-ms", "30", "--step-per-seq-ms", "0", "--step-per-prefill-token-ms", "0")
METRICS = {"interval": "100ms", "idle_interval": "200ms", "timeout": "500ms"}


class Engine:
    """A simulated engine that can be killed and started again at the same address."""

    def __init__(self, number: int, args: Iterable[str], directory: Path, at: HostPort | None = None) -> None:
        self.at = at or HostPort("127.0.0.1", free_ports(1)[0])
        listen = ("--host", self.at.host, "--port", str(self.at.port), "--max-num-seqs", str(SLOTS))
        argv = [sys.executable, "-m", "extproc.cli.main", "sim", "engine", *listen, *args]
        name = f"own-engine-{number}"
        env = {**os.environ, "PYTHONSAFEPATH": "1"}
        self.child = Child(name, argv, log=directory / f"{name}.log", directory=directory, env=env)

    async def start(self) -> None:
        self.child.start()
        await until_answered(self.at, "/health")

    def kill(self) -> None:
        self.child.kill()


@contextlib.asynccontextmanager
async def with_engines(
    directory: Path, kinds: Sequence[Iterable[str]], pool: Json, **more: Any
) -> AsyncIterator[tuple[Rig, list[Engine]]]:
    """A stack before engines with these options."""
    engines: list[Engine] = []
    try:
        for number, args in enumerate(kinds, 1):
            engines.append(Engine(number, args, directory))
            await engines[-1].start()
        async with running(
            directory, engines=[engine.at for engine in engines], pool={"metrics": METRICS, **pool}, **more
        ) as rig:
            yield rig, engines
    finally:
        for engine in engines:
            engine.kill()


class Traffic:
    """So many requests at a time, until it is ended. `answers`: all that came, in their order."""

    def __init__(self, rig: Rig, tenant: str, at_once: int, tokens: int = 8) -> None:
        self.answers: list[Answer] = []
        self.ended = False
        self._rig, self._tenant, self._tokens = rig, tenant, tokens
        self._flows = [asyncio.create_task(self._flow()) for _ in range(at_once)]

    async def _flow(self) -> None:
        while not self.ended:
            self.answers.append(await self._rig.post(chat(self._tokens), tenant=self._tenant))

    @property
    def statuses(self) -> Counter[int]:
        return Counter(answer.status for answer in self.answers)

    async def more(self, count: int) -> None:
        """Until so many more are answered."""
        wanted = len(self.answers) + count

        async def answered() -> int:
            return len(self.answers)

        await until(answered, lambda found: found >= wanted, f"{count} more answers of {self._tenant}")

    async def end(self) -> None:
        """No new ones; until all are answered."""
        self.ended = True
        await asyncio.gather(*self._flows)

    def cancel(self) -> None:
        for flow in self._flows:
            flow.cancel()


@contextlib.asynccontextmanager
async def traffic(rig: Rig, tenant: str, at_once: int = 24, tokens: int = 8) -> AsyncIterator[Traffic]:
    flowing = Traffic(rig, tenant, at_once, tokens)
    try:
        yield flowing
        await flowing.end()
    finally:
        flowing.cancel()


async def seen_by(rig: Rig, engine: Engine, tenant: str) -> int:
    """Requests of the tenant that the engine was sent since its start."""
    async with rig.http.get(f"http://{engine.at}/sim/requests") as answer:
        return sum(entry["headers"].get("x-tenant") == tenant for entry in await answer.json())


async def set_faults(rig: Rig, engine: Engine, **faults: Any) -> None:
    async with rig.http.put(f"http://{engine.at}/sim/faults", json=faults) as answer:
        assert answer.status == 200, await answer.text()


async def inside(rig: Rig, engine: Engine) -> int:
    """Requests that the engine has and has not answered. Its page would not tell while it hangs."""
    async with rig.http.get(f"http://{engine.at}/sim/requests") as answer:
        return sum(entry["ended_at"] is None for entry in await answer.json())


def of(pool: Json, engine: Engine) -> Json:
    """The engine's endpoint as /status shows it."""
    found: Json = next(each for each in pool["endpoints"] if each["endpoint"] == str(engine.at))
    return found
