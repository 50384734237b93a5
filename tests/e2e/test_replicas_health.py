"""What the files of envoy/replicas do with replicas that serve, stand by, end and are all away: real Envoy, and servers
that say of their health what a test wants.

The servers answer each request at once, or hold it; which of them was asked is what counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from envoy_file import Config, envoy_of_replicas
from recorded import recording, serving
from replicas import cluster
from rig import CHAT, chat, until

from extproc.cli.ports import HostPort
from extproc.edge import server
from extproc.pb.wire.v1 import ext_proc_pb2

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEVERAL = 60  # requests, of which each of three replicas gets some where all are asked: the odds against are 1e-10


@dataclass
class Replica:
    """An ext_proc server without a queue. `asked`: requests that it has seen; while `holding`, it answers none."""

    port: int = 0
    asked: int = 0
    holding: asyncio.Event = field(default_factory=asyncio.Event)
    edge: server.EdgeServer | None = None

    async def process(self, requests: Any, _context: Any) -> AsyncIterator[bytes]:
        async for message in requests:
            if ext_proc_pb2.ProcessingRequest.FromString(message).HasField("request_headers"):
                self.asked += 1
                await self.holding.wait()
                answer = ext_proc_pb2.ProcessingResponse()
                answer.request_headers.SetInParent()
                yield answer.SerializeToString()

    async def stream(self, requests: Any, _context: Any) -> bytes:
        """The access log."""
        async for _ in requests:
            pass
        return b""

    async def start(self, *, healthy: bool) -> None:
        self.edge = server.build(f"127.0.0.1:{self.port}", self, self)  # type: ignore[arg-type]
        self.port = self.edge.port
        await self.edge.server.start()
        await self.serves(healthy)

    async def serves(self, healthy: bool) -> None:
        assert self.edge is not None
        await self.edge.set_serving(healthy)

    async def end(self) -> None:
        """At once, with all of its connections."""
        if self.edge is not None:
            await self.edge.server.stop(None)
            self.edge = None


@dataclass
class Scene:
    replicas: list[Replica]
    at: HostPort
    admin: HostPort
    http: aiohttp.ClientSession

    async def post(self) -> int:
        async with self.http.post(f"http://{self.at}{CHAT}", json=chat()) as answer:
            await answer.read()
            return answer.status

    async def asked(self, count: int = SEVERAL) -> list[int]:
        """How many of so many requests each replica was asked about. All are answered."""
        before = [each.asked for each in self.replicas]
        statuses = Counter(await asyncio.gather(*(self.post() for _ in range(count))))
        assert statuses == {200: count}
        return [each.asked - was for each, was in zip(self.replicas, before, strict=True)]

    async def until_envoy(self, healthy: int) -> None:
        async def known() -> int:
            url = f"http://{self.admin}/stats?filter=^cluster.fairlane.membership_healthy$"
            async with self.http.get(url) as answer:
                return int((await answer.text()).rpartition(":")[2])

        await until(known, lambda count: count == healthy, f"{healthy} healthy")

    async def until_serving(self, wanted: list[bool]) -> None:
        """Until Envoy's health checks know which of them serve: a number alone may be that of before."""

        async def known() -> list[bool]:
            async with self.http.get(f"http://{self.admin}/clusters?format=json") as answer:
                clusters = (await answer.json())["cluster_statuses"]
            hosts = next(each["host_statuses"] for each in clusters if each["name"] == "fairlane")
            failed = {
                each["address"]["socket_address"]["port_value"]: each["health_status"].get("failed_active_health_check")
                for each in hosts
            }
            return [not failed[each.port] for each in self.replicas]

        await until(known, lambda serving: serving == wanted, f"{wanted} serve")


@contextlib.asynccontextmanager
async def scene(
    directory: Path, name: str, *healthy: bool, change: Callable[[Config], None] | None = None
) -> AsyncIterator[Scene]:
    """The file of that name, and a replica for each of `healthy`."""
    replicas = [Replica() for _ in healthy]
    async with contextlib.AsyncExitStack() as stack:
        for each, serves in zip(replicas, healthy, strict=True):
            each.holding.set()
            stack.push_async_callback(each.end)
            await each.start(healthy=serves)
        engine = await stack.enter_async_context(serving())
        engine.answer = recording(b'{"choices": []}')
        ports = [each.port for each in replicas]
        at, admin = await stack.enter_async_context(
            envoy_of_replicas(directory, name, ports, [engine.at.port], change=change)
        )
        timeout = aiohttp.ClientTimeout(total=100)
        http = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)
        )
        found = Scene(replicas, at, admin, http)
        await found.until_serving(list(healthy))
        yield found


# -- one of several serves -----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
async def test_the_one_that_serves_gets_everything(count: int, tmp_path: Path) -> None:
    healthy = [False] * count
    healthy[1] = True
    async with scene(tmp_path, f"standby-{count}", *healthy) as it:
        assert await it.asked() == [SEVERAL if each else 0 for each in healthy]


async def test_another_one_takes_over(tmp_path: Path) -> None:
    async with scene(tmp_path, "standby-3", True, False, False) as it:
        assert await it.asked() == [SEVERAL, 0, 0]
        await it.replicas[0].serves(False)
        await it.replicas[2].serves(True)
        await it.until_serving([False, False, True])
        assert await it.asked() == [0, 0, SEVERAL]


async def test_when_none_says_that_it_serves_all_are_asked_and_no_request_fails(tmp_path: Path) -> None:
    async with scene(tmp_path, "standby-3", False, False, False) as it:
        asked = await it.asked()
        assert sum(asked) == SEVERAL
        assert all(asked), "each gets some"


async def test_with_envoys_own_threshold_the_standbys_get_their_part(tmp_path: Path) -> None:
    """Why the files have one: 1 of 3 is below 50 %."""

    def as_envoy_would(config: Config) -> None:
        del cluster(config)["common_lb_config"]["healthy_panic_threshold"]

    async with scene(tmp_path, "standby-3", True, False, False, change=as_envoy_would) as it:
        assert all(await it.asked())


async def test_what_the_active_one_held_goes_to_the_next_when_it_ends(tmp_path: Path) -> None:
    """While nobody has taken its place a standby is asked too, and answers."""
    async with scene(tmp_path, "standby-2", True, False) as it:
        active, standby = it.replicas
        active.holding.clear()
        held = [asyncio.create_task(it.post()) for _ in range(SEVERAL)]

        async def seen() -> int:
            return active.asked

        await until(seen, lambda count: count == SEVERAL, "all are held")
        await active.end()
        assert Counter(await asyncio.gather(*held)) == {200: SEVERAL}
        assert standby.asked == SEVERAL
        await standby.serves(True)
        await it.until_serving([False, True])
        assert await it.asked() == [0, SEVERAL]


# -- all of them serve ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3])
async def test_shared_all_that_serve_are_asked_and_those_that_end_are_not(count: int, tmp_path: Path) -> None:
    async with scene(tmp_path, f"shared-{count}", *([True] * count)) as it:
        assert all(await it.asked())
        await it.replicas[0].serves(False)  # as one does that is told to end
        await it.until_serving([False] + [True] * (count - 1))
        first, *others = await it.asked()
        assert first == 0
        assert all(others)
        for each in it.replicas[1:-1]:
            await each.serves(False)
        await it.until_envoy(healthy=1)
        assert (await it.asked())[-1] == SEVERAL
        await it.replicas[-1].serves(False)
        await it.until_envoy(healthy=0)
        assert sum(await it.asked()) == SEVERAL


@pytest.mark.parametrize("count", [2, 3])
async def test_partition_a_model_has_one_replica_and_moves_with_it(count: int, tmp_path: Path) -> None:
    async with scene(tmp_path, f"partition-{count}", *([True] * count)) as it:
        first = await it.asked()
        assert sorted(first) == [0] * (count - 1) + [SEVERAL]
        home = first.index(SEVERAL)
        await it.replicas[home].end()
        meanwhile = await it.asked()
        assert sorted(meanwhile) == [0] * (count - 1) + [SEVERAL]
        assert meanwhile[home] == 0
        await it.replicas[home].start(healthy=True)
        await it.until_envoy(healthy=count)
        assert await it.asked() == first
