"""Mode standby with whole services: one is active, the others take over."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from replicas_case import DEADLINE_S, Replica, eventually, lease

from redis_rig import RedisServer  # isort: skip  # found through replicas_case

from extproc.cli.ports import free_ports
from extproc.edge.wire import ACCESS_LOG_SERVICE, EXT_PROC_SERVICE

# One loop for all: grpc's poller outlives the loop that it began on.
pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.slow]

Start = Callable[..., Replica]


async def two(store: RedisServer, replica: Start, **config: Any) -> tuple[Replica, Replica]:
    """The active one, and the other."""
    one = replica(store.address, "r1", "standby", **config)
    await one.ready()
    await eventually("the first is active", lambda: one.seen.active)
    other = replica(store.address, "r2", "standby", **config)
    await other.ready()
    await eventually("they know of each other", lambda: one.others == {"r2"} and other.others == {"r1"})
    return one, other


async def healthy(it: Replica) -> bool:
    return await it.health("edge") == "SERVING"


async def until_healthy(it: Replica, expected: bool = True) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while await healthy(it) is not expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_one_says_that_it_is_healthy(store: RedisServer, replica: Start) -> None:
    one, other = await two(store, replica)
    await until_healthy(one)
    for name in ("", EXT_PROC_SERVICE, ACCESS_LOG_SERVICE):
        assert await one.health("edge", name) == "SERVING"
        assert await other.health("edge", name) == "NOT_SERVING"
    assert await other.health("admin") == "SERVING"  # for people
    assert await one.get("/readyz") == (200, "ready\n")
    assert await other.get("/readyz") == (200, "ready, stands by\n")
    await eventually("it knows who is active", lambda: other.seen.active_replica == "r1")
    status = (await other.status()).cluster
    assert (status.mode, status.active, status.active_replica, status.replica) == (2, False, "r1", "r2")
    assert await one.series("fairlane_cluster_active") == {"": 1}
    assert await other.series("fairlane_cluster_active") == {"": 0}


async def test_what_comes_to_one_that_stands_by_is_served_and_counted(store: RedisServer, replica: Start) -> None:
    """All are unhealthy for a moment when the active one has died, and Envoy sends to any."""
    one, other = await two(store, replica)
    for it in (one, other):
        (call,) = await it.ask()
        assert (await it.answer(call)).HasField("request_headers")
    assert await one.series("fairlane_cluster_standby_streams_total") == {"": 0}
    assert await other.series("fairlane_cluster_standby_streams_total") == {"": 1}


async def test_one_that_stops_gives_its_place_at_once(store: RedisServer, replica: Start) -> None:
    one, other = await two(store, replica, cluster={"lease": "15s"})
    had = lease(store)
    await one.leave()
    assert had is not None
    assert b"r1" in had
    assert b"r1" not in (lease(store) or b"")
    await until_healthy(other)
    assert other.seen.active
    assert await other.get("/readyz") == (200, "ready\n")


async def test_held_requests_follow(store: RedisServer, replica: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has got the lease: what is held goes there, answers under way go on."""
    monkeypatch.setattr("extproc.replicas._NOTICED_S", 0.2)
    one, _ = await two(store, replica)
    calls = await one.ask(6)
    await eventually("four go, two wait", lambda: one.held == 2)
    now_ms = int(time.time() * 1000)
    store.ask("HSET", "{fairlane:fairlane}:1:leases", "active", f"{now_ms} 60000 {now_ms} other life")
    await until_healthy(one, False)
    assert not one.seen.active
    await eventually("nothing is held", lambda: one.held == 0)
    assert one.window.in_flight == 4
    await eventually("Envoy is told", lambda: sum(call.done() for call in calls) == 2)
    handed = [call for call in calls if call.done()]
    assert [await call.code() for call in handed] == [grpc.StatusCode.UNAVAILABLE] * 2
    # and what comes now waits as ever: Envoy has nobody better
    await one.ask(1)
    await eventually("it is held", lambda: one.held == 1)
    store.ask("HDEL", "{fairlane:fairlane}:1:leases", "active")
    await eventually("somebody is active again", lambda: one.seen.active_replica in ("r1", "r2"))


async def test_without_a_store_it_starts_and_stands_by(replica: Start, store: RedisServer) -> None:
    """Envoy finds nobody healthy then, and sends to all."""
    it = replica(f"127.0.0.1:{free_ports(1)[0]}", "r1", "standby")
    await it.ready()
    await eventually("it has asked", lambda: it.seen.failures > 0)
    assert (await healthy(it), it.seen.active, it.seen.active_replica) == (False, False, "")
    assert await it.series("fairlane_cluster_store_lost") == {"": 1}
    (call,) = await it.ask()
    assert (await it.answer(call)).HasField("request_headers")


async def test_without_a_store_the_active_one_goes_on(
    tmp_path: Path, store: RedisServer, replica: Start, logs: list[Any]
) -> None:
    own = RedisServer(tmp_path / "own")
    own.start()
    try:
        one, other = await two(own, replica)
        await until_healthy(one)
        own.kill()
        await eventually("both see it", lambda: one.seen.lost_s is not None and other.seen.lost_s is not None)
        # for longer than the lease
        await eventually("it is away", lambda: min(one.seen.lost_s or 0, other.seen.lost_s or 0) > 1.5)
        assert (one.seen.active, other.seen.active) == (True, False)
        assert (await healthy(one), await healthy(other)) == (True, False)
        assert await one.series("fairlane_cluster_store_lost") == {"": 1}
        status = (await one.status()).cluster
        assert status.store_lost
        assert "no connection to the store" in status.store_error
        assert any(entry["event"] == "cluster_store_lost" for entry in logs)
        own.start()
        await eventually("it is back", lambda: one.seen.lost_s is None and other.seen.lost_s is None)
        await eventually("they know each other", lambda: one.others == {"r2"} and other.others == {"r1"})
        await eventually("one is active", lambda: one.seen.active != other.seen.active)
    finally:
        own.kill()


@contextmanager
def process(folder: Path, name: str, store: str, engine: int) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A real one, and its address for Envoy."""
    ext_proc, admin, http = (f"127.0.0.1:{port}" for port in free_ports(3))
    config = {
        "listen": {"ext_proc": ext_proc, "admin": admin, "http": http},
        "pools": [{"name": "sim", "models": ["*"], "endpoints": [f"127.0.0.1:{engine}"]}],
        "cluster": {
            "mode": "standby",
            "replica": name,
            "lease": "1s",
            "timeout": "400ms",
            "store": {"addresses": [store]},
        },
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    with (folder / f"{name}.log").open("wb") as log:
        command = [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file)]
        running = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield running, ext_proc
        finally:
            running.kill()
            running.wait()


async def test_one_that_is_killed_is_replaced(tmp_path: Path, store: RedisServer, engine: Any) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    async def says(channel: grpc.aio.Channel) -> int:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        except grpc.aio.AioRpcError:
            return -1
        status: int = answer.status
        return status

    serving, standing_by = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    with ExitStack() as stack:
        processes = [stack.enter_context(process(tmp_path, name, store.address, engine.port)) for name in ("a", "b")]
        channels = [
            grpc.aio.insecure_channel(at, options=(("grpc.use_local_subchannel_pool", 1),)) for _, at in processes
        ]
        try:
            async with asyncio.timeout(DEADLINE_S):
                while sorted(found := [await says(each) for each in channels]) != sorted((serving, standing_by)):
                    assert all(each.poll() is None for each, _ in processes), (tmp_path / "a.log").read_text()
                    await asyncio.sleep(0.02)
                active = found.index(serving)
                processes[active][0].kill()
                while await says(channels[1 - active]) != serving:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            for channel in channels:
                await channel.close()
