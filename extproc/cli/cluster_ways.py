"""The ways that `bench cluster` measures: each a stack of its own, with one or more services, all to one engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp

from extproc.cli.child import Child
from extproc.cli.cluster_rig import Entry, StoreServer, doors
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until, until_answered
from extproc.cli.stack import FAIRLANE, Addresses, ServiceAddresses, Stack, StackError, StackOptions
from extproc.cli.wire_rig import CpuClock
from extproc.config.cluster import Mode
from extproc.sim.wire_load import Load, Result
from extproc.wiring.description import Wiring

PERIOD_MS = 100
SINGLE: Mode = "single"
SHARED: Mode = "shared"

_EMPTY_S = 60.0  # until the books are closed after the last request
_STOP_S = 3.0
_ASK_S = 0.05


@dataclass(frozen=True, slots=True)
class Way:
    """A running stack."""

    name: str
    stack: Stack
    doors: Sequence[HostPort]

    @property
    def services(self) -> list[Child]:
        return [child for child in self.stack.children if child.name.startswith(FAIRLANE)]

    def cpu_s(self) -> float:
        return sum(CpuClock(pid_of(child)).read() for child in self.services)


class Ways:
    """One engine at a time, and ways to it."""

    def __init__(
        self, directory: Path, http: aiohttp.ClientSession, store: StoreServer, weights: Mapping[str, float]
    ) -> None:
        """`weights`: of tenants."""
        self.directory = directory
        self.http = http
        self.store = store
        self.weights = weights
        self._children: list[Child] = []
        self._loads = 0

    async def engine(self, name: str, module: str, *arguments: str) -> HostPort:
        """Start one. `{port}` in an argument is its port."""
        at = HostPort("127.0.0.1", free_ports(1)[0])
        child = self.child(name, module, *(each.replace("{port}", str(at.port)) for each in arguments))
        ready = asyncio.create_task(until_answered(at, "/health"))
        try:
            await until(lambda: ready.done() or child.failed, _EMPTY_S)
            if not ready.done():
                raise StackError(f"the engine does not start; the last lines of its log:\n{child.tail()}")
        finally:
            ready.cancel()
            await asyncio.gather(ready, return_exceptions=True)
        return at

    @contextlib.asynccontextmanager
    async def way(
        self, name: str, count: int, mode: Mode, engine: HostPort, pool: Mapping[str, Any]
    ) -> AsyncIterator[Way]:
        """A running stack of `count` services. `pool`: more of its one pool. Raises StackError."""
        at = [HostPort("127.0.0.1", port) for port in free_ports(count)]
        store = None if mode == SINGLE else {"addresses": [str(self.store.at)]}
        cluster = {"mode": mode, "name": name.replace(" ", "-"), "replicas": count, "store": store}
        cluster["period"] = f"{PERIOD_MS}ms"
        pools = [{"name": "bench", "models": ["*"], "endpoints": [str(engine)], "max_queued": 100_000, **pool}]
        options = StackOptions(
            addresses=Addresses.free(0)._replace(engines=(engine,)),
            replicas=ServiceAddresses.free(count),
            simulate=False,
            config={
                "cluster": cluster,
                "pools": pools,
                "tenants": {name: {"weight": weight} for name, weight in self.weights.items()},
            },
            wiring=Wiring(mode=mode),
            envoy_patch=doors(at),
            directory=self.directory / name.replace(" ", "-"),
        )
        async with Stack(options) as stack:
            yield Way(name, stack, at)

    def begin(self, at: HostPort, load: Load) -> tuple[Child, Path]:
        """Start a load, and go on."""
        self._loads += 1
        spec, result = (self.directory / f"load-{self._loads}.{kind}" for kind in ("spec", "result"))
        spec.write_text(json.dumps({**asdict(load), "port": at.port}), encoding="utf-8")
        return self.child(f"load-{self._loads}", "extproc.sim.wire_load", str(spec), str(result)), result

    async def finish(self, running: tuple[Child, Path], load: Load) -> Result:
        """Wait for a load's end. Raises StackError when it fails, or anything but an answer comes."""
        child, file = running
        await until(lambda: not child.running, load.timeout_s + _EMPTY_S)
        if child.exit_code != 0:
            raise StackError(f"the load failed; the last lines of its log:\n{child.tail()}")
        self._children.remove(child)
        result = Result(**json.loads(file.read_text(encoding="utf-8")))
        if result.ok != load.requests:
            raise StackError(f"{load.requests} requests gave {result.answers}, {result.unanswered} unanswered")
        return result

    def drop(self, *loads: tuple[Child, Path]) -> None:
        """End loads; their clients leave."""
        for child, _ in loads:
            if child.failed:
                raise StackError(f"the load failed; the last lines of its log:\n{child.tail()}")
            child.kill()
            self._children.remove(child)

    async def until_empty(self, way: Way) -> None:
        """Nothing is held by those that run, or inside. Raises StackError."""
        deadline = time.monotonic() + _EMPTY_S
        for service, child in zip(way.stack.options.replicas, way.services, strict=True):
            while child.running and (books := await self._books(service)) != 0:
                if time.monotonic() > deadline:
                    raise StackError(f"{way.name}: {books} requests are not over within {_EMPTY_S:g} s")
                await asyncio.sleep(_ASK_S)

    async def _books(self, service: ServiceAddresses) -> int:
        async with self.http.get(f"http://{service.http}/status?flows=0") as answer:
            pool = (await answer.json())["pools"][0]
        return int(pool["queued"]) + int(pool["in_flight"])

    async def journal(self, engine: HostPort) -> list[Entry]:
        async with self.http.get(f"http://{engine}/sim/requests") as answer:
            entries: list[Entry] = await answer.json()
        return entries

    async def forget(self, engine: HostPort) -> None:
        async with self.http.delete(f"http://{engine}/sim/requests") as answer:
            await answer.read()

    def child(self, name: str, module: str, *arguments: str) -> Child:
        # SAFEPATH: with -m the working directory would come first on the import path
        env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        argv = [sys.executable, "-m", module, *arguments]
        child = Child(name, argv, log=self.directory / f"{name}.log", directory=self.directory, env=env)
        self._children.append(child)
        child.start()
        return child

    async def stop(self) -> None:
        """End what was started here and still runs."""
        await asyncio.gather(*(child.stop(_STOP_S) for child in self._children))


def pid_of(child: Child) -> int:
    """Raises StackError when it does not run."""
    if child.pid is None:
        raise StackError(f"{child.name} has ended; the last lines of its log:\n{child.tail()}")
    return child.pid
