"""Replicas in one cluster, behind one Envoy that has a way to each: a load for each, and what the engine saw of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Self

import orjson
from replicas import Replicas, replicated
from rig import CHAT, Json, Rig, chat, until

from extproc.cli.cluster_rig import Fill, StoreServer, doors, fill, served, store_server
from extproc.cli.ports import HostPort, free_ports
from extproc.config.cluster import Mode
from extproc.sim.fairness import jain
from extproc.wiring.description import Wiring

SLOTS = 16  # of the engine
Q = 3  # that may wait inside the engine: `max_waiting` of the shipped class
STEP_MS = 20
TOKENS = 10  # of an answer: 200 ms inside the engine
ENGINE = (
    *("--max-num-seqs", str(SLOTS), "--step-base-ms", str(STEP_MS), "--step-per-seq-ms", "0"),
    *("--step-per-prefill-token-ms", "0", "--record-requests", "200000"),
)
POOL: Json = {"window": {"max_num_seqs": SLOTS}}
PERIOD_S = 0.1


class Load:
    """Clients of one tenant at one address, each of which sends again when it was answered, until `end`."""

    def __init__(self, rig: Rig, url: str, tenant: str, *, headers: Mapping[str, str] | None = None) -> None:
        self.rig = rig
        self.url = url
        self.tenant = tenant
        self.headers = {"content-type": "application/json", "x-tenant": tenant, **(headers or {})}
        self.sent = 0
        self.statuses: Counter[int] = Counter()
        self.failed: list[str] = []  # bodies of answers that are none
        self._clients: list[asyncio.Task[None]] = []
        self._ended = False

    def start(self, clients: int, *, tokens: int = TOKENS, streams: bool = False) -> None:
        self._clients += [asyncio.create_task(self._client(tokens, streams)) for _ in range(clients)]

    async def end(self) -> None:
        """Nothing more is sent; return when all is answered."""
        self._ended = True
        await asyncio.gather(*self._clients)

    async def leave(self) -> None:
        """As clients do that are killed. Does nothing when it has ended."""
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    @property
    def answered(self) -> int:
        return self.statuses[200]

    async def more(self, count: int) -> None:
        """Until so many more are answered."""
        wanted = self.answered + count

        async def answered() -> int:
            return self.answered

        await until(answered, lambda now: now >= wanted, f"{count} more answers of {self.tenant}", within_s=60)

    def assert_all_succeeded(self) -> None:
        assert set(self.statuses) == {200}, (self.statuses, self.failed[:3])

    async def _client(self, tokens: int, streams: bool) -> None:
        while not self._ended:
            self.sent += 1
            body = orjson.dumps(chat(tokens, stream=streams))
            headers = {**self.headers, "x-number": str(self.sent)}
            async with self.rig.http.post(self.url + CHAT, data=body, headers=headers) as answer:
                text = await answer.read()
            self.statuses[answer.status] += 1
            if answer.status != 200:
                self.failed.append(text.decode(errors="replace"))
            elif streams:
                assert text.endswith(b"data: [DONE]\n\n"), text[-200:]
                assert text.count(b'"content":" ') == tokens


class Cluster:
    """A started stack. `door(n)`: the way to replica n, counted from 0; `rig.stack.url` is that to any."""

    def __init__(self, replicas: Replicas, store: StoreServer | None, at: list[HostPort]) -> None:
        self.replicas = replicas
        self.rig = replicas.rig
        self.names = replicas.names
        self._store = store
        self._at = at
        self._loads: list[Load] = []

    @property
    def store(self) -> StoreServer:
        assert self._store is not None
        return self._store

    def door(self, number: int) -> HostPort:
        return self._at[number]

    def url(self, number: int) -> str:
        return f"http://{self.door(number)}"

    def load(self, number: int | None, tenant: str, clients: int, **more: Any) -> Load:
        """Start one; `number` None: at any replica."""
        headers = more.pop("headers", None)
        url = self.rig.stack.url if number is None else self.url(number)
        made = Load(self.rig, url, tenant, headers=headers)
        self._loads.append(made)
        made.start(clients, **more)
        return made

    async def quiet(self) -> None:
        """Loads end, and all that was sent is over."""
        loads, self._loads = self._loads, []
        await asyncio.gather(*(load.leave() for load in loads))
        for name, rig in self.replicas.each.items():
            if self.replicas.child(name).running:
                await rig.until(lambda pool: pool["queued"] == pool["in_flight"] == 0, f"{name} is empty")

    async def metric_of(self, number: int, name: str, **labels: str) -> float:
        return await self.replicas.each[self.names[number]].metric(name, **labels)

    async def until_metric(
        self, name: str, wanted: Callable[[float], bool], *numbers: int, within_s: float = 30
    ) -> None:
        """Until a metric is as wanted at each of these replicas; none named: at all that run."""
        for number in numbers or range(len(self.names)):
            if self.replicas.child(self.names[number]).running:
                what = f"{name} at {self.names[number]}"
                await until(lambda n=number: self.metric_of(n, name), wanted, what, within_s)  # type: ignore[misc]

    async def until_replicas(self, count: int) -> None:
        """Until each knows of so many."""
        await self.until_metric("fairlane_cluster_replicas", lambda value: value == count)

    async def entries(self) -> list[Json]:
        return await self.rig.seen()

    async def watch(self, seconds: float) -> Watched:
        """Let time pass, and say what the engine did in it."""
        since = time.time()
        await asyncio.sleep(seconds)  # a stretch of time that is measured, no synchronisation
        return await self.watched(since, time.time())

    async def watched(self, since: float, until: float) -> Watched:
        """Of a stretch of time that is over; answers that were under way at its end are waited for."""
        last = {entry["seq"] for entry in await self.entries() if entry["arrived_at"] < until}

        async def open_() -> list[Json]:
            return [e for e in await self.entries() if e["seq"] in last and e["ended_at"] is None]

        await until_none(open_)
        entries = await self.entries()
        return Watched(served(entries, since, until), fill(entries, SLOTS, since, until))


async def until_none(probe: Callable[[], Any]) -> None:
    await until(probe, lambda found: not found, "all answers of the time are over")


class Watched:
    """What an engine did in a stretch of time."""

    def __init__(self, tokens: Mapping[str, float], fill: Fill) -> None:
        self.tokens = tokens
        self.fill = fill

    @property
    def total(self) -> float:
        return sum(self.tokens.values())

    def jain(self, tenants: list[str]) -> float:
        return jain([self.tokens.get(tenant, 0.0) for tenant in tenants])

    def __repr__(self) -> str:
        return f"{dict(self.tokens)}, {self.fill}"


class SlowWay:
    """A way to the store that can be slow: each piece of what either side says is `delay_s` late."""

    def __init__(self, at: HostPort) -> None:
        self.at = at
        self.delay_s = 0.0
        self._store: HostPort | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def to(self, store: HostPort) -> HostPort:
        """Where the store is; where to find it by this way."""
        self._store = store
        return self.at

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, self.at.host, self.at.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._store is not None
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            there = await asyncio.open_connection(self._store.host, self._store.port)
            try:
                await self._until_one_ends(self._pass(reader, there[1]), self._pass(there[0], writer))
            finally:
                there[1].close()
        except OSError:
            pass  # the store is away: so is its other end
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _until_one_ends(self, *ways: Coroutine[Any, Any, None]) -> None:
        tasks = [asyncio.create_task(way) for way in ways]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while piece := await reader.read(65_536):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            writer.write(piece)
            await writer.drain()


@contextlib.asynccontextmanager
async def clustered(
    directory: Path,
    count: int,
    *,
    mode: Mode = "shared",
    cluster: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
    store_at: Callable[[HostPort], HostPort] | None = None,
    **options: Any,
) -> AsyncIterator[Cluster]:
    """`count` replicas and their store, all of whom know each other. `cluster`: more of that section; `store_at`: where
    the replicas find the store, given where it is; `options` as of `rig.running`."""
    at = [HostPort("127.0.0.1", port) for port in free_ports(count)]
    async with store_server(directory / "store") as store:
        address = store.at if store_at is None else store_at(store.at)
        section = {
            "mode": mode,
            "replicas": count,
            "period": f"{round(PERIOD_S * 1e3)}ms",
            "store": {"addresses": [str(address)]},
            **(cluster or {}),
        }
        options = {"engine_args": ENGINE, "pool": POOL, "wiring": Wiring(mode=mode), **options}
        async with replicated(
            directory / "stack", count, config={**(config or {}), "cluster": section}, envoy_patch=doors(at), **options
        ) as replicas:
            made = Cluster(replicas, store, at)
            await replicas.until_envoy(healthy=1 if mode == "standby" else count)
            await made.until_replicas(count)
            try:
                yield made
            finally:
                await made.quiet()
