"""What `fairlane bench admin` measures, on one running stack: a real Envoy, the service, two simulated engines.

Effects are timed where they are seen: when an engine got a request, by its own journal, and when a client got its
answer. Both have the clock of this machine, so nothing is added by asking again and again whether it has happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import grpc
import orjson
from google.protobuf import duration_pb2

from extproc.cli.admin_changes import Changes
from extproc.cli.admin_knobs import HELD, POOL, ROOM, SLOTS, Change, Knob, of_pool, window
from extproc.cli.admin_load import Load
from extproc.cli.stack import FAIRLANE, Stack, StackError
from extproc.cli.wire_rig import CpuClock, resident_bytes
from extproc.pb.admin.v1 import admin_pb2, admin_pb2_grpc

_WHY: Final = "a benchmark"
_PATIENCE_S: Final = 60.0
_AGAIN_S: Final = 0.01
_CLIENTS: Final = 4  # beside watchers: too few to wait for each other
_REFUSALS: Final = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION)


@dataclass(frozen=True, slots=True)
class Turned:
    """Milliseconds since the call began, over the repeats."""

    name: str
    effects: int
    call_median: float  # until the call had its answer
    first_median: float  # until the first of the requests had moved
    first_max: float
    last_median: float
    last_max: float


@dataclass(frozen=True, slots=True)
class Storm:
    good: int
    bad: int
    requests: int
    outcomes: dict[str, int]
    lost: int
    twice: int
    faults: int
    took_s: float
    change_ms: float  # median of a good one


@dataclass(frozen=True, slots=True)
class Watched:
    """Medians of the rounds, all kinds in turn."""

    watchers: int
    interval_s: float  # at which they watch
    requests: int
    cpu_ms: float  # of the service for each request
    wait_ms: float  # median from the request's arrival to its release
    wait_ms_p99: float
    answer_ms: float  # median at the client
    growth_mib: float  # of the service's memory since the first round


class Bench:
    """Everything is asked of one stack, one thing after the other."""

    def __init__(self, stack: Stack, http: aiohttp.ClientSession, stub: Any) -> None:
        self._stack = stack
        self._http = http
        self._stub = stub
        self._loads = 0

    # -- knobs ------------------------------------------------------------------------------------

    async def turn(self, knob: Knob, repeats: int) -> Turned:
        """Raises StackError when its effect does not come."""
        calls, firsts, lasts = [], [], []
        for _ in range(repeats):
            call_s, effects = await self._turn(knob)
            calls.append(call_s)
            firsts.append(effects[0])
            lasts.append(effects[-1])
        median = statistics.median
        return Turned(
            knob.name, knob.effects, 1e3 * median(calls), 1e3 * median(firsts), 1e3 * max(firsts), 1e3 * median(lasts),
            1e3 * max(lasts),
        )  # fmt: skip

    async def _turn(self, knob: Knob) -> tuple[float, list[float]]:
        """(seconds of the call, seconds until each effect in order)."""
        engines = self._stack.addresses.engines
        before = (await self._stub.GetStatus(admin_pb2.GetStatusRequest())).revision
        await self._set(of_pool(endpoints=[str(engines[0])]))
        await self._forget()
        if knob.before:
            await self._set(knob.before)
        load = self._load(tenants=knob.tenants, classes=("default",), tokens=2)
        try:
            async with self._hung():
                load.start(HELD + knob.inside)
                load.once = True
                await self._until(self._queued, lambda count: count == HELD, f"{HELD} held")
                sent_before = set(await self._sent(load))
                began, wall = time.perf_counter(), time.time()
                await self._do(knob)
                call_s = time.perf_counter() - began
                if knob.refuses:
                    await self._until(
                        _now(lambda: len(load.done)), lambda count: count >= knob.effects, f"{knob.name}: answers"
                    )
                    times = [each.answered_at for each in load.done]
                else:
                    wanted = len(sent_before) + knob.effects
                    entries = await self._until(
                        lambda: self._sent(load), lambda found: len(found) >= wanted, f"{knob.name}: releases"
                    )
                    times = [at for key, at in entries.items() if key not in sent_before]
                await self._stub.Rollback(admin_pb2.RollbackRequest(revision=before, reason=_WHY))
                await self._set(ROOM)
            await load.stop()
        finally:
            load.drop()
        await self._stub.Rollback(admin_pb2.RollbackRequest(revision=before, reason=_WHY))
        await self._closed()
        return call_s, sorted(at - wall for at in times)

    async def _do(self, knob: Knob) -> None:
        if isinstance(knob.change, str):
            await self._stub.CancelRequests(admin_pb2.CancelRequestsRequest(filter=knob.change, reason=_WHY))
        elif knob.change:
            await self._set(knob.change)
        else:
            await self._set(of_pool(endpoints=[str(at) for at in self._stack.addresses.engines]))

    # -- changes by chance ------------------------------------------------------------------------

    async def storm(self, changes: int, seed: int = 6) -> Storm:
        """So many good ones, and as many bad ones."""
        made = Changes(seed, POOL, [str(at) for at in self._stack.addresses.engines])
        await self._set(window(fixed=SLOTS))
        await self._forget()
        load, began = self._load(tokens=4), time.perf_counter()
        good = bad = 0
        took: list[float] = []
        try:
            load.start(HELD + 16)
            await self._until(self._queued, lambda count: count >= HELD - 16, "the queue is long")
            for _ in range(changes):
                one = time.perf_counter()
                await self._set(made.good())
                took.append(time.perf_counter() - one)
                good += 1
                try:
                    await self._set(made.bad())
                except grpc.aio.AioRpcError as error:
                    if error.code() not in _REFUSALS:
                        raise
                    bad += 1
            await self._set(made.calm())
            await load.stop()
        finally:
            load.drop()
        await self._closed()
        sent = Counter[str]()
        for engine in self._stack.addresses.engines:
            sent.update(key for key, _ in await self._journal(str(engine)))
        return Storm(
            good=good,
            bad=bad,
            requests=load.begun,
            outcomes=dict(load.outcomes()),
            lost=load.begun - len({each.key for each in load.done if each.status}),
            twice=sum(sent[each.key] > 1 for each in load.done),
            faults=int(await self._metric("fairlane_faults_total")),
            took_s=time.perf_counter() - began,
            change_ms=1e3 * statistics.median(took),
        )

    # -- watchers ---------------------------------------------------------------------------------

    async def watched(self, kinds: Sequence[tuple[int, float]], rounds: int, round_s: float) -> list[Watched]:
        """`kinds`: (watchers that do not read, seconds between their samples), in turn in each round."""
        await self._set(ROOM)
        found: dict[tuple[int, float], list[_Round]] = {kind: [] for kind in kinds}
        await self._round(round_s)
        first = resident_bytes(self._pid)
        for _ in range(rounds):
            for (count, interval_s), each in found.items():
                async with self._watchers(count, interval_s):
                    each.append(await self._round(round_s))
        return [_watched(*kind, each, first) for kind, each in found.items()]

    async def _round(self, round_s: float) -> _Round:
        load, cpu = self._load(tokens=2), CpuClock(self._pid)
        before = cpu.read()
        try:
            load.start(_CLIENTS)
            await asyncio.sleep(round_s)
            await load.stop()
        finally:
            load.drop()
        await self._closed()
        done = [each for each in load.done if each.status == 200]
        if len(done) < 10:
            raise StackError(f"{len(done)} requests in {round_s:g} s: {dict(load.outcomes())}")
        waits = [each.waited_s for each in done if each.waited_s is not None]
        cpu_s, took = (cpu.read() - before) / len(done), [each.took_s for each in done]
        return _Round(len(done), cpu_s, waits, took, resident_bytes(self._pid))

    @contextlib.asynccontextmanager
    async def _watchers(self, count: int, interval_s: float) -> AsyncIterator[None]:
        interval = duration_pb2.Duration()
        interval.FromMilliseconds(round(1e3 * interval_s))
        calls = [self._stub.WatchStats(admin_pb2.WatchStatsRequest(interval=interval)) for _ in range(count)]
        try:
            await self._until(self._watching, lambda found: found == count, f"{count} watch")
            yield
        finally:
            for call in calls:
                call.cancel()
            await self._until(self._watching, lambda found: found == 0, "nobody watches")

    async def _watching(self) -> int:
        return int((await self._stub.GetStatus(admin_pb2.GetStatusRequest())).watcher_count)

    # -- the stack --------------------------------------------------------------------------------

    @property
    def _pid(self) -> int:
        pid = self._stack.child(FAIRLANE).pid
        if pid is None:
            raise StackError("the service does not run")
        return pid

    def _load(self, **options: Any) -> Load:
        self._loads += 1
        return Load(self._http, self._stack.url, f"load-{self._loads}", **options)

    async def _set(self, change: Change) -> None:
        request = admin_pb2.UpdateConfigRequest(reason=_WHY)
        request.config.update(change)
        await self._stub.UpdateConfig(request)

    @contextlib.asynccontextmanager
    async def _hung(self) -> AsyncIterator[None]:
        """Engines make no step meanwhile."""
        await self._hang(True)
        try:
            yield
        finally:
            await self._hang(False)

    async def _hang(self, hang: bool) -> None:
        for engine in self._stack.addresses.engines:
            async with self._http.put(f"http://{engine}/sim/faults", data=orjson.dumps({"hang": hang})) as answer:
                answer.raise_for_status()

    async def _sent(self, load: Load) -> dict[str, float]:
        """Requests of `load` that engines got, by when."""
        mine = f"{load.name}-"
        found: dict[str, float] = {}
        for engine in self._stack.addresses.engines:
            found.update((key, at) for key, at in await self._journal(str(engine)) if key.startswith(mine))
        return found

    async def _forget(self) -> None:
        """The engines' journals are empty: they are asked for again and again, and that is to cost little."""
        for engine in self._stack.addresses.engines:
            async with self._http.delete(f"http://{engine}/sim/requests") as answer:
                answer.raise_for_status()

    async def _journal(self, engine: str) -> list[tuple[str, float]]:
        async with self._http.get(f"http://{engine}/sim/requests") as answer:
            entries = orjson.loads(await answer.read())
        return [(each["headers"].get("x-key", ""), each["arrived_at"]) for each in entries]

    async def _status(self) -> list[dict[str, Any]]:
        async with self._http.get(f"http://{self._stack.addresses.http}/status?flows=0") as answer:
            pools: list[dict[str, Any]] = orjson.loads(await answer.read())["pools"]
        return pools

    async def _queued(self) -> int:
        return sum(pool["queued"] for pool in await self._status())

    async def _closed(self) -> None:
        """Nothing is held, inside or awaited any more."""

        async def known() -> int:
            return sum(pool["queued"] + pool["known"] for pool in await self._status())

        await self._until(known, lambda count: count == 0, "all books closed")

    async def _metric(self, name: str) -> float:
        async with self._http.get(f"http://{self._stack.addresses.http}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))

    async def _until(self, probe: Callable[[], Awaitable[Any]], wanted: Callable[[Any], bool], what: str) -> Any:
        """Raises StackError when it does not come about."""
        deadline = time.monotonic() + _PATIENCE_S
        while not wanted(found := await probe()):
            if time.monotonic() > deadline:
                raise StackError(f"not within {_PATIENCE_S:g} s: {what}")
            await asyncio.sleep(_AGAIN_S)
        return found


@dataclass(frozen=True, slots=True)
class _Round:
    requests: int
    cpu_s: float  # of the service for each request
    waits: list[float]  # seconds
    took: list[float]
    resident_bytes: int


def _watched(watchers: int, interval_s: float, rounds: list[_Round], first_bytes: int) -> Watched:
    median = statistics.median
    return Watched(
        watchers=watchers,
        interval_s=interval_s,
        requests=sum(each.requests for each in rounds),
        cpu_ms=1e3 * median(each.cpu_s for each in rounds),
        wait_ms=1e3 * median(median(each.waits) for each in rounds),
        wait_ms_p99=1e3 * median(statistics.quantiles(each.waits, n=100)[98] for each in rounds),
        answer_ms=1e3 * median(median(each.took) for each in rounds),
        growth_mib=(rounds[-1].resident_bytes - first_bytes) / 1024**2,
    )


def _now(value: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def probe() -> Any:
        return value()

    return probe


@contextlib.asynccontextmanager
async def bench(stack: Stack) -> AsyncIterator[Bench]:
    """For a stack that runs."""
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=300)
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as http,
        grpc.aio.insecure_channel(str(stack.addresses.admin)) as channel,
    ):
        stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        yield Bench(stack, http, stub)
