"""Whole services that are replicas of one cluster, in the test's process, with a real store and an engine that has a
metrics page and nothing else."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))  # helpers of other tests
sys.path.append(str(Path(__file__).resolve().parents[1] / "cluster"))

from redis_rig import RedisServer
from service_case import Engine, Running

from extproc.admin.control import ClusterState
from extproc.core.windows import WindowView
from extproc.pb.admin.v1 import admin_pb2, admin_pb2_grpc
from extproc.pb.wire.v1 import ext_proc_pb2

DEADLINE_S = 60.0
SLOTS = 4  # of the engine's window


async def eventually(what: str, look: Callable[[], Any]) -> None:
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not look():  # noqa: ASYNC110 - the other side tells nobody
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {DEADLINE_S:.0f} s") from None


class Replica(Running):
    """One of a cluster. Its engine's window is what the test says."""

    def __init__(self, engine: Engine, store: str, replica: str | None, mode: str, **config: Any) -> None:
        cluster = {
            "mode": mode,
            "replica": replica,
            "timeout": "400ms",
            "lease": "1s",
            "store": {"addresses": [store]},
            **config.pop("cluster", {}),
        }
        window = {"controller": "fixed", "fixed": SLOTS, "overtake": 0, "start": 1}
        pool = {"window": window, **config.pop("pool", {})}
        metrics = {"interval": "100ms", "idle_interval": "200ms"}
        shutdown = {"grace": "20s"}
        super().__init__(engine, cluster=cluster, pool=pool, metrics=metrics, **{"shutdown": shutdown, **config})
        self.calls: list[Any] = []

    async def ready(self, within_s: float = DEADLINE_S) -> None:
        await super().ready(within_s)

    @property
    def seen(self) -> ClusterState:
        """Of the cluster, by this one."""
        found = self.service.cluster()
        assert found is not None
        return found

    @property
    def others(self) -> set[str]:
        """Replicas that it knows."""
        return {each.replica for each in self.seen.replicas} - {self.seen.replica}

    @property
    def window(self) -> WindowView:
        return self.service.pools()[0].endpoints[0]

    async def ask(self, count: int = 1) -> list[Any]:
        """Requests, whose streams stay open."""
        made = [await self.request() for _ in range(count)]
        self.calls += made
        return made

    async def answer(self, call: Any) -> Any:
        """What a stream is told."""
        async with asyncio.timeout(DEADLINE_S):
            raw = await call.read()
        return raw if raw is grpc.aio.EOF else ext_proc_pb2.ProcessingResponse.FromString(raw)

    async def status(self) -> admin_pb2.Status:
        stub = admin_pb2_grpc.AdminStub(self.channels["admin"])
        return await stub.GetStatus(admin_pb2.GetStatusRequest())

    async def series(self, name: str) -> dict[str, float]:
        """Samples of a metric: labels -> value."""
        lines = (await self.get("/metrics"))[1].splitlines()
        found = [line.rsplit(" ", 1) for line in lines if line.startswith((f"{name} ", f"{name}{{"))]
        return {labels.removeprefix(name): float(value) for labels, value in found}

    def cancel(self) -> None:
        for call in self.calls:
            call.cancel()

    async def leave(self) -> None:
        """Stops as on SIGTERM; what runs is over at once."""
        self.stop.set()
        await eventually("it drains", lambda: not self.service.serving)
        self.cancel()
        async with asyncio.timeout(DEADLINE_S):
            await self.task


def lease(server: RedisServer, cluster: str = "fairlane") -> bytes | None:
    """As it stands in the store: time, length and beginning in ms, holder."""
    found = server.ask("HGET", f"{{fairlane:{cluster}}}:1:leases", "active")
    assert found is None or isinstance(found, bytes)
    return found
