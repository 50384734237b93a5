"""Several replicas of the service behind one Envoy, and a scene for a fault to strike: answers stream, others are held.

A replica keeps its own books: it shows what Envoy's load balancer gave it. So what has to hold for all of them is asked
of each, and a scene counts over all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from rig import Answer, Json, Rig, chat, log_of, running, until

from extproc.cli.child import Child
from extproc.cli.stack import FAIRLANE, ServiceAddresses

CLUSTER = "fairlane"
# A pool whose room does not depend on how fast the machine is: a scene is about something else, and its engines hang.
ROOMY = {"window": {"controller": "fixed", "fixed": 64}}

Config = dict[str, Any]


# -- Envoy's configuration ----------------------------------------------------------------------------


def cluster(config: Config, name: str = CLUSTER) -> Config:
    """A cluster of Envoy's configuration."""
    found: Config = next(c for c in config["static_resources"]["clusters"] if c["name"] == name)
    return found


def manager(config: Config) -> Config:
    """The connection manager of the listener for clients."""
    found: Config = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    return found


def ext_proc(config: Config) -> Config:
    """The filter that holds."""
    filters: list[Config] = manager(config)["http_filters"]
    found: Config = next(f for f in filters if f["name"].endswith("ext_proc"))["typed_config"]
    return found


def one_log(config: Config) -> None:
    """The access log as it is without replicas: Envoy chooses one when it opens its stream, and stays with it."""
    (log, *_) = manager(config)["access_log"]
    log["typed_config"]["common_config"]["grpc_service"]["envoy_grpc"]["cluster_name"] = CLUSTER
    manager(config)["access_log"] = [log]


# -- replicas -----------------------------------------------------------------------------------------


class Replicas:
    """A started stack with several services. `each` has one rig for each, whose books are those of that service."""

    def __init__(self, rig: Rig, services: Sequence[ServiceAddresses]) -> None:
        self.rig = rig
        self.names = [f"{FAIRLANE}-{number}" for number in range(1, len(services) + 1)]
        self.each: dict[str, Rig] = {}
        for name, service in zip(self.names, services, strict=True):
            self.each[name] = Rig(rig.stack, rig.http)
            self.each[name].service_at = service.http

    def child(self, name: str) -> Child:
        return self.rig.stack.child(name)

    async def metric(self, name: str, **labels: str) -> float:
        """Summed over the replicas."""
        return sum([await rig.metric(name, **labels) for rig in self.each.values()])

    async def until_envoy(self, healthy: int) -> None:
        """Until Envoy's health checks find so many replicas well. Its workers are told up to a second later."""
        name = f"cluster.{CLUSTER}.membership_healthy"
        await until(lambda: envoy_stat(self.rig, name), lambda count: count == healthy, f"{healthy} healthy")

    async def books_closed(self) -> None:
        for rig in self.each.values():
            await rig.books_closed()


@contextlib.asynccontextmanager
async def replicated(directory: Path, count: int = 2, **options: Any) -> AsyncIterator[Replicas]:
    """A stack with `count` services; `options` as of `rig.running`."""
    services = ServiceAddresses.free(count)
    async with running(directory, replicas=services, **options) as rig:
        rig.service_at = services[0].http
        yield Replicas(rig, services)


async def envoy_stat(rig: Rig, name: str) -> int:
    """A counter or gauge of Envoy's admin interface; 0 if it does not exist yet."""
    async with rig.http.get(f"http://{rig.stack.addresses.envoy_admin}/stats?filter=^{name}$") as answer:
        line = (await answer.text()).strip()
    return int(line.rpartition(":")[2]) if line else 0


# -- the scene ----------------------------------------------------------------------------------------

_ATTEMPTS = 500  # the load balancer may choose a full replica again and again, while the other one is new to it


class Scene:
    """Answers that stream and requests that are held, sent one after the other, so that their order is known.

    `name`: the tenant of the held ones, another for each scene of a stack; `inside`: how many requests may be inside
    the engines, over all `rigs`, each of which is one service."""

    def __init__(
        self, rigs: Iterable[Rig], name: str, *, inside: int, held: int, tokens: int = 120, short: int = 3
    ) -> None:
        self.name = name
        self.rigs = list(rigs)
        self.rig = self.rigs[0]
        self.inside = inside
        self.wanted = held
        self.tokens = tokens  # of a streamed answer
        self.short = short  # of another one
        self.received: list[bytearray] = []
        self.streams: list[asyncio.Task[None]] = []
        self.held: list[asyncio.Task[Answer]] = []

    async def set_up(self) -> None:
        """Return when so many answers stream and the rest is held, by each of the services some."""
        async with self.rig.hung_engines():  # so that the answers' time begins when all is set up
            for _ in range(_ATTEMPTS):
                if len(self.streams) == self.inside:
                    break
                await self._add_stream()
            assert len(self.streams) == self.inside, await self.count()
            while await self._too_few_held():
                headers = {"x-number": str(len(self.held))}
                self.held.append(self.rig.start(chat(self.short), tenant=self.name, headers=headers))
                await self._until_there(len(self.streams) + len(self.held))
        await until(self._streaming, lambda count: count == self.inside, "all stream")

    async def count(self) -> Counter[str]:
        """What the services have in their books."""
        pools = [await rig.pool() for rig in self.rigs]
        return Counter({key: sum(pool[key] for pool in pools) for key in ("queued", "in_flight")})

    async def move_on(self) -> None:
        """Wait until each answer that streams has got more than it has now. All of them must still stream."""
        assert not any(stream.done() for stream in self.streams)  # else this would prove nothing
        before = list(map(len, self.received))

        async def all_went_on() -> bool:
            return all(len(now) > size for now, size in zip(self.received, before, strict=True))

        await until(all_went_on, bool, "all go on")

    async def assert_all_succeed(self) -> None:
        """Every held request is answered, once; every stream is whole."""
        assert Counter([answer.status for answer in await asyncio.gather(*self.held)]) == {200: len(self.held)}
        for task in self.held:
            assert task.result().json["usage"]["completion_tokens"] == self.short
        await asyncio.gather(*self.streams)
        for received in self.received:
            assert received.endswith(b"data: [DONE]\n\n")
            assert received.count(b'"content":" ') == self.tokens
        await self.assert_each_ran_once()

    async def assert_each_ran_once(self) -> None:
        """No held request came to an engine twice, or not at all."""
        numbers = Counter([entry["headers"]["x-number"] for entry in await self.rig.seen(self.name)])
        assert numbers == {str(i): 1 for i in range(len(self.held))}

    async def _add_stream(self) -> None:
        received = bytearray()
        task = asyncio.create_task(self._read(received))
        sent = len(self.streams) + 1
        if (await self._until_there(sent))["in_flight"] == sent:
            self.received.append(received)
            self.streams.append(task)
        else:  # it met a replica that has no room left
            task.cancel()
            await self._until_there(sent - 1)

    async def _until_there(self, count: int) -> Counter[str]:
        return await until(self.count, lambda books: books.total() == count, f"{count} are there")

    async def _read(self, received: bytearray) -> None:
        async with self.rig.stream(self.tokens, tenant="streams") as answer:
            async for piece in answer.content.iter_any():
                received += piece

    async def _streaming(self) -> int:
        return sum(bool(received) for received in self.received)

    async def _too_few_held(self) -> bool:
        pools = [await rig.pool() for rig in self.rigs]
        return len(self.held) < self.wanted or any(pool["queued"] == 0 for pool in pools)


def assert_in_order(log: Iterable[Json]) -> int:
    """In one process's log, each release is that of the tenant's earliest arrival among those that wait there. Returns
    how many of the released had come later than another one of their tenant that still waits."""
    waiting: dict[str, dict[str, float]] = {}  # tenant -> ticket -> arrival, in the order of coming
    overtaking = 0
    for entry in log:
        if entry["event"] == "held":
            waiting.setdefault(entry["tenant"], {})[entry["ticket"]] = entry["arrival"]
        elif entry["event"] == "released" and entry["ticket"] in (mine := waiting.get(entry["tenant"], {})):
            assert mine[entry["ticket"]] == min(mine.values())
            overtaking += next(iter(mine)) != entry["ticket"]
            del mine[entry["ticket"]]
    return overtaking


# -- processes ----------------------------------------------------------------------------------------


def freeze(child: Child) -> None:
    """As a debugger or a starved host does: it does not run, and its connections stay open."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGSTOP)


def thaw(child: Child) -> None:
    """Let it run again; nothing to a process that was not frozen or has ended."""
    if child.pid is not None:
        os.kill(child.pid, signal.SIGCONT)


def events(child: Child, name: str) -> list[Json]:
    """What a service has logged under one name, over all of its lives."""
    return [entry for entry in log_of(child) if entry["event"] == name]
