"""What the gateway is measured in: one engine that costs nothing, and an Envoy for each way to it.

A `Way` is an Envoy with a server of its own behind its filter: the service, or the bare floor (`wire_floor`), or none.
All ways run side by side, so that one run can measure them in turn. Every child is ended by its pid when the rig is
left, on whatever path; should this process be killed, the kernel ends them (see `child`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from extproc.cli.child import Child
from extproc.cli.ports import HostPort, free_ports
from extproc.cli.probe import until, until_answered
from extproc.cli.stack import StackError, envoy_binary
from extproc.sim.wire_load import Load, Result
from extproc.wiring.build import Addresses, build, without_fairlane
from extproc.wiring.description import Wiring
from extproc.wiring.text import as_json

_READY_S = 60.0
_ANSWER_S = 30.0  # of the service's HTTP port
_STOP_S = 10.0
_ASK_S = 0.1
_EMPTY_S = 60.0  # until the books are closed after the last request
_CLASS = "default"

Patch = Callable[[dict[str, Any]], None]


class CpuClock:
    """CPU seconds of another process, all of its threads, with the resolution of the scheduler.

    Linux gives each process a clock whose id is made of its pid; /proc/PID/stat has the same in ticks of 10 ms."""

    _PROCESS_CPU = 2  # CPUCLOCK_SCHED of linux/posix-timers.h: what has run, user and system

    def __init__(self, pid: int) -> None:
        self._id = (~pid << 3) | self._PROCESS_CPU

    def read(self) -> float:
        return time.clock_gettime(self._id)


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class WaySpec:
    """What stands behind one Envoy's filter."""

    name: str
    server: str  # "fairlane", "read" or "cancel" (of `wire_floor`), "none"
    wiring: Wiring = field(default_factory=Wiring)  # of Envoy
    config: Mapping[str, Any] = field(default_factory=dict)  # of the service, over `service_config`
    patch: Patch | None = None  # changes Envoy's configuration
    under: Sequence[str] = ()  # the command that the server is run by, as valgrind


@dataclass(frozen=True)
class Way:
    """It runs."""

    spec: WaySpec
    port: int  # Envoy's listener
    envoy: Child
    server: Child | None
    http: HostPort | None  # of the service

    def server_cpu(self) -> CpuClock:
        return CpuClock(_pid(self.server))

    def envoy_cpu(self) -> CpuClock:
        return CpuClock(_pid(self.envoy))

    def resident_bytes(self) -> int:
        """Of the server."""
        return resident_bytes(_pid(self.server))


def service_config(engine: HostPort, ports: Mapping[str, HostPort]) -> dict[str, Any]:
    """As shipped, but for a window that holds nothing back and bounds that nobody reaches."""
    return {
        "listen": {name: str(at) for name, at in ports.items()},
        "identity": {"tenant": [{"header": "x-tenant"}]},
        "classes": {_CLASS: {"rank": 0, "priority": 0, "queue_timeout": "10m", "max_queued": 100_000}},
        "default_class": _CLASS,
        "tenants": {"*": {"max_queued": 100_000}},
        "pools": [
            {
                "name": "bench",
                "models": ["*"],
                "endpoints": [str(engine)],
                "engine": "vllm",
                "window": {"start": 1_024, "max_num_seqs": 4_096},
                "max_queued": 100_000,
            }
        ],
    }


class Rig:
    """The running parts."""

    def __init__(self, directory: Path, http: aiohttp.ClientSession, ready_s: float = _READY_S) -> None:
        """`ready_s`: within which each part must be up."""
        self.directory = directory
        self.http = http
        self._ready_s = ready_s
        self.ways: dict[str, Way] = {}
        self._children: list[Child] = []
        self._loads = 0
        self._engine = HostPort("127.0.0.1", free_ports(1)[0])

    async def start(self, specs: Sequence[WaySpec], collector: int | None = None) -> None:
        """`collector`: the port of one for spans; None: there is none. Raises StackError."""
        if collector is not None:
            self._child("collector", _module("extproc.cli.wire_collector", str(collector)))
            await self._until(_connected(HostPort("127.0.0.1", collector)), "the collector does not start")
        self._child("engine", _module("extproc.sim.wire_engine", str(self._engine.port)))
        await self._ready(self._engine, "/health")
        for spec in specs:
            self.ways[spec.name] = await self._way(spec)

    async def stop(self) -> None:
        """In the order: those that ask before those that are asked."""
        try:
            await asyncio.gather(*(c.stop(_STOP_S) for c in self._children if "envoy" in c.name or "load" in c.name))
            await asyncio.gather(*(c.stop(_STOP_S) for c in self._children))
        finally:
            for child in self._children:
                child.kill()

    async def load(self, way: str, load: Load) -> Result:
        """Run one load in a process of its own. Raises StackError when a part ends."""
        return await self.finish(self.begin(way, load))

    def begin(self, way: str, load: Load) -> tuple[Child, Path, Load]:
        """Start a load, and go on."""
        self._loads += 1
        spec, result = (self.directory / f"load-{self._loads}.{kind}" for kind in ("spec", "result"))
        spec.write_text(json.dumps({**asdict(load), "port": self.ways[way].port}), encoding="utf-8")
        child = self._child(f"load-{self._loads}", _module("extproc.sim.wire_load", str(spec), str(result)))
        return child, result, load

    async def finish(self, running: tuple[Child, Path, Load]) -> Result:
        """Wait for a load's end."""
        child, file, load = running
        others = [each for each in self._children if each is not child and not each.name.startswith("load")]
        await until(lambda: not child.running or any(each.failed for each in others), load.timeout_s + self._ready_s)
        for each in others:
            if each.failed:
                raise StackError(f"{each.name} ended; the last lines of its log:\n{each.tail()}")
        if child.exit_code != 0:
            raise StackError(f"the load failed; the last lines of its log:\n{child.tail()}")
        self._children.remove(child)
        return Result(**json.loads(file.read_text(encoding="utf-8")))

    # -- the service and the engine ---------------------------------------------------------------

    async def pool(self, way: str) -> dict[str, Any]:
        """The service's one pool, as /status shows it."""
        async with self.http.get(f"http://{self.ways[way].http}/status?flows=0") as answer:
            pool: dict[str, Any] = (await answer.json())["pools"][0]
        return pool

    async def until_pool(self, way: str, wanted: Callable[[dict[str, Any]], bool], within_s: float) -> dict[str, Any]:
        """The pool when it is as wanted, or when the time is over."""
        deadline = time.monotonic() + within_s
        while not wanted(pool := await self.pool(way)) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_ASK_S)
        return pool

    async def until_empty(self, way: str) -> dict[str, Any]:
        return await self.until_pool(way, lambda p: p["queued"] == p["in_flight"] == 0, _EMPTY_S)

    async def metric(self, way: str, name: str) -> float:
        """The sum of a metric's samples."""
        async with self.http.get(f"http://{self.ways[way].http}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    async def hold_engine(self) -> None:
        await self._tell_engine("hold")

    async def free_engine(self) -> None:
        await self._tell_engine("free")

    async def _tell_engine(self, what: str) -> None:
        async with self.http.get(f"http://{self._engine}/{what}") as answer:
            await answer.read()

    # -- inside -----------------------------------------------------------------------------------

    async def _way(self, spec: WaySpec) -> Way:
        envoy_port, envoy_admin, *others = (HostPort("127.0.0.1", port) for port in free_ports(5))
        ports = dict(zip(("ext_proc", "admin", "http"), others, strict=True))
        server = http = None
        if spec.server == "fairlane":
            http = ports["http"]
            file = self.directory / f"{spec.name}.yaml"
            config = merged(service_config(self._engine, ports), spec.config)
            file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
            command = ["--config", str(file), "--log-level", "info"]
            server = self._child(f"{spec.name}-fairlane", [*spec.under, *_module("extproc.cli.wire_service", *command)])
            await self._ready(http, "/readyz")
        elif spec.server != "none":
            command = [str(ports["ext_proc"].port), str(self._engine), spec.server]
            server = self._child(f"{spec.name}-floor", [*spec.under, *_module("extproc.cli.wire_floor", *command)])
            await self._until(_connected(ports["ext_proc"]), f"nothing listens at {ports['ext_proc']}")
        at = Addresses(listener=envoy_port, admin=envoy_admin, ext_proc=[ports["ext_proc"]], engines=[self._engine])
        config = build(spec.wiring, at).config if spec.server != "none" else without_fairlane(at)
        if spec.patch is not None:
            spec.patch(config)
        written = self.directory / f"{spec.name}-envoy.json"
        written.write_text(as_json(config), encoding="utf-8")  # Envoy reads JSON whatever the file's name
        quiet = ("--disable-hot-restart", "--log-level", "error")
        argv = [str(envoy_binary()), "--config-path", str(written), "--concurrency", "2", *quiet]
        envoy = self._child(f"{spec.name}-envoy", argv)
        await self._ready(envoy_admin, "/ready")
        return Way(spec, envoy_port.port, envoy, server, http)

    def _child(self, name: str, argv: list[str]) -> Child:
        # SAFEPATH: with -m the working directory would come first on the import path
        env = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
        child = Child(name, argv, log=self.directory / f"{name}.log", directory=self.directory, env=env)
        self._children.append(child)
        child.start()
        return child

    async def _ready(self, at: HostPort, path: str) -> None:
        await self._until(until_answered(at, path), f"nothing answers at {at}{path}")

    async def _until(self, what: Coroutine[Any, Any, None], else_: str) -> None:
        """Wait for `what`. Raises StackError when a child ends meanwhile, or when it takes too long."""
        waited = asyncio.create_task(what)
        try:
            await until(lambda: waited.done() or any(c.failed for c in self._children), self._ready_s)
            for child in self._children:
                if child.failed:
                    raise StackError(f"{child.name} ended; the last lines of its log:\n{child.tail()}")
            if not waited.done():
                raise StackError(else_)
        finally:
            waited.cancel()
            await asyncio.gather(waited, return_exceptions=True)


@contextlib.asynccontextmanager
async def rig(
    directory: Path, *specs: WaySpec, collector: int | None = None, ready_s: float = _READY_S
) -> AsyncIterator[Rig]:
    """The parts, running; see `Rig` and `Rig.start`. Raises StackError."""
    timeout = aiohttp.ClientTimeout(total=max(_ANSWER_S, ready_s))
    async with aiohttp.ClientSession(timeout=timeout) as http:
        made = Rig(directory, http, ready_s)
        try:
            await made.start(specs, collector)
            yield made
        finally:
            await made.stop()


async def _connected(at: HostPort) -> None:
    """Until somebody listens there."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(at.host, at.port)
            writer.close()
            return
        await asyncio.sleep(_ASK_S)


def merged(base: Any, over: Any) -> Any:
    """Mappings key by key, lists of mappings item by item; everything else is replaced."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        return {**base, **{key: merged(base.get(key), value) for key, value in over.items()}}
    if isinstance(base, list) and isinstance(over, list) and len(base) == len(over):
        return [merged(*pair) for pair in zip(base, over, strict=True)]
    return over


def _module(name: str, *args: str) -> list[str]:
    return [sys.executable, "-m", name, *args]


def _pid(child: Child | None) -> int:
    if child is None or child.pid is None:
        raise StackError(f"{child.name if child else 'a server'} does not run")
    return child.pid
