"""What several replicas give and cost as real processes: Envoy, a store, 1 to 4 services, one simulated engine.

What is compared is measured in turn within each round, on the same engine and with the same load: one process
(`single`) beside 2, 3 and 4 that share, and, for what they cost, as many that know nothing of each other (`apart`).
Shares, room and throughput are those of the engine's own journal; CPU is that of the services' processes; what the
store was asked is what the store says.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from extproc.cli.cluster_rig import Entry, Fill, Traffic, fill, full_again, served, store_server
from extproc.cli.cluster_ways import SHARED, SINGLE, Way, Ways, pid_of
from extproc.cli.ports import HostPort
from extproc.cli.stack import FAIRLANE
from extproc.cli.wire_rig import CpuClock
from extproc.sim.fairness import jain
from extproc.sim.wire_load import Load

SLOTS = 32  # of the engine
Q = 3  # that may wait in it: `max_waiting` of the shipped class

_STEP_MS, _OUTPUT = 20, 16  # an answer is 320 ms inside the engine, so 100 requests a second fill it
_BODY = 200  # bytes
_CLIENTS = 96  # of a tenant: more than the engine takes
_CLIENTS_OF_EQUAL = 16  # of each of eight
_HEAVY, _LIGHT, _FIRST_EQUAL, _EQUAL = 0, 1, 10, 8  # numbers of tenants
_AT_FIRST = 6  # of the equal ones come to the first replica
_ENDLESS = 10_000_000  # requests of a load that is ended
_LONGEST_S = 3_600.0
_ANSWER_S = 60.0
_SETTLE_S = 2.0
_TAIL_S = 1.0
_AFTER_KILL_S = 10.0
_OVER_S, _MEANWHILE_S = 0.75, 1.5  # after a replica's end: its answers are over; the lease is not
_FULL, _BIN_S = 0.9, 0.5  # full again: so much of the slots used before, in a stretch of so many seconds

Told = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. Times in seconds."""

    counts: tuple[int, ...] = (2, 3, 4)
    rounds: int = 3  # of the shares
    warm_s: float = 4.0
    window_s: float = 12.0
    kills: int = 2
    away_s: float = 30.0  # that the store is away
    rounds_of_cost: int = 6  # the dropped one included
    cost_s: float = 5.0  # of one of them
    rate: float = 300.0  # requests a second
    busy_s: float = 10.0  # with nothing but a long answer at each replica


QUICK = Scale(
    counts=(2, 3), rounds=1, warm_s=3.0, window_s=6.0, kills=1, away_s=20.0, rounds_of_cost=3, cost_s=3.0, busy_s=5.0
)


@dataclass(frozen=True, slots=True)
class Away:
    """The store was away."""

    throughput: float  # slots used / those used in the seconds before
    engine: Fill


@dataclass(slots=True)
class Shares:
    """One way to the engine, by round; the waiting of each of its two loads."""

    ratio: list[float] = field(default_factory=list)  # of what weights 4 and 1 have had
    jain: list[float] = field(default_factory=list)  # of eight equal tenants
    waiting_max: list[int] = field(default_factory=list)  # in the engine
    waiting_999: list[int] = field(default_factory=list)
    tokens_s: list[float] = field(default_factory=list)
    used: list[float] = field(default_factory=list)  # part of the engine's slots, in the same windows
    returned_s: list[float] = field(default_factory=list)  # from a replica's end until the engine is full again
    meanwhile: list[float] = field(default_factory=list)  # part of the slots that the others use until then
    away: Away | None = None


@dataclass(slots=True, eq=False)
class Cost:
    """CPU of all services of one way."""

    ms: list[float] = field(default_factory=list)  # for each request, by round


@dataclass(frozen=True, slots=True)
class Exchanges:
    """What the replicas of one way ask the store for while each has something inside."""

    per_replica_s: float
    bytes_in: float  # of one exchange, to the store
    bytes_out: float
    store_ms: float  # CPU of the store for one
    service_ms: float  # CPU of the services for one, with all that sharing does in a period


@dataclass(slots=True)
class Costs:
    """Of so many processes that share, of as many that share nothing, and of one, in the same rounds.

    A process takes less for each request the more of them it has, since it wakes up for several at once. So one
    process is measured at two rates."""

    single: Cost = field(default_factory=Cost)  # at the rate that the others have together
    at_part: Cost = field(default_factory=Cost)  # the same process, at the rate that each of the others has
    apart: Cost = field(default_factory=Cost)
    shared: Cost = field(default_factory=Cost)
    exchanges: Exchanges | None = None

    @property
    def to_single(self) -> float:
        return _ratio(self.shared, self.single)

    @property
    def to_part(self) -> float:
        return _ratio(self.shared, self.at_part)

    @property
    def to_apart(self) -> float:
        return _ratio(self.shared, self.apart)


@dataclass(frozen=True, slots=True)
class Result:
    """By the number of replicas; 1: one process that shares with nobody."""

    shares: dict[int, Shares]
    costs: dict[int, Costs]

    def throughput(self, count: int) -> float:
        """Slots used / those that one process uses, median over the rounds. An engine gets so much less done.

        Not by tokens: with more processes on the same cores the steps of a simulated engine are later."""
        both = zip(self.shares[count].used, self.shares[1].used, strict=True)
        return statistics.median(a / b for a, b in both)

    def tokens(self, count: int) -> float:
        """Tokens in a second / those of one process, median over the rounds."""
        both = zip(self.shares[count].tokens_s, self.shares[1].tokens_s, strict=True)
        return statistics.median(a / b for a, b in both)


def _ratio(one: Cost, other: Cost) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(one.ms, other.ms, strict=True))


async def real(directory: Path, scale: Scale, tell: Told) -> Result:
    """Raises StackError: a part does not start or ends, or a request is not answered."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as http, store_server(directory / "store") as store:
        ways = Ways(directory, http, store, {f"tenant-{_HEAVY}": 4})
        try:
            shares = await _shares(ways, scale, tell)
            costs = {count: await _cost(ways, count, scale, tell) for count in scale.counts}
        finally:
            await ways.stop()
    return Result(shares, costs)


# -- shares ---------------------------------------------------------------------------------------


async def _shares(ways: Ways, scale: Scale, tell: Told) -> dict[int, Shares]:
    engine = await ways.engine(
        *("engine", "extproc.cli.main", "sim", "engine", "--port", "{port}", "--model", "bench"),
        *("--max-num-seqs", str(SLOTS), "--step-base-ms", str(_STEP_MS), "--step-per-seq-ms", "0"),
        *("--step-per-prefill-token-ms", "0", "--record-requests", "1000000"),
    )
    pool = {"window": {"max_num_seqs": SLOTS}}
    found = {count: Shares() for count in (1, *scale.counts)}
    async with contextlib.AsyncExitStack() as open_:
        running = {}
        for count in found:
            mode = SINGLE if count == 1 else SHARED
            running[count] = await open_.enter_async_context(ways.way(f"{mode} {count}", count, mode, engine, pool))
        bench = _Shares(ways, engine, scale)
        for number in range(scale.rounds):
            for count, way in running.items():
                tell(f"shares: round {number + 1} of {scale.rounds}, {way.name}")
                await bench.weights(way, found[count])
                await bench.equal(way, found[count])
        for count in scale.counts:
            tell(f"shares: {running[count].name}, a replica is killed, the store is away")
            for _ in range(scale.kills):
                await bench.kill_one(running[count], found[count])
            await bench.lose_the_store(running[count], found[count])
    return found


class _Shares:
    """Measures one way after another."""

    def __init__(self, ways: Ways, engine: HostPort, scale: Scale) -> None:
        self._ways = ways
        self._engine = engine
        self._scale = scale

    async def weights(self, way: Way, found: Shares) -> None:
        """A tenant of weight 4 at the first replica, one of weight 1 at the last."""
        loads = ((way.doors[0], _load(_HEAVY, 1)), (way.doors[-1], _load(_LIGHT, 1)))
        entries, since, until = await self._window(way, *loads)
        tokens = served(entries, since, until)
        found.ratio.append(_of(tokens, _HEAVY) / max(1.0, _of(tokens, _LIGHT)))
        found.tokens_s.append(sum(tokens.values()) / (until - since))
        found.used.append(self._note(found, entries, since, until).used)

    async def equal(self, way: Way, found: Shares) -> None:
        """Eight tenants of one weight, most of them at the first replica, the others at the last."""
        first = (way.doors[0], _load(_FIRST_EQUAL, _AT_FIRST))
        last = (way.doors[-1], _load(_FIRST_EQUAL + _AT_FIRST, _EQUAL - _AT_FIRST))
        entries, since, until = await self._window(way, first, last)
        tokens = served(entries, since, until)
        found.jain.append(jain([_of(tokens, _FIRST_EQUAL + number) for number in range(_EQUAL)]))
        self._note(found, entries, since, until)

    async def kill_one(self, way: Way, found: Shares) -> None:
        """The last one, with its part of the engine's room."""
        async with self._all_busy(way):
            since = time.time()
            await way.stack.kill(f"{FAIRLANE}-{len(way.doors)}")
            await asyncio.sleep(_AFTER_KILL_S)
            until = time.time()
        entries = await self._ways.journal(self._engine)
        before = fill(entries, SLOTS, since - _SETTLE_S, since).used
        found.returned_s.append(full_again(entries, SLOTS, since, until, part=_FULL * before, bin_s=_BIN_S))
        begin = since + _OVER_S
        found.meanwhile.append(fill(entries, SLOTS, begin, begin + _MEANWHILE_S).used)
        await way.stack.start_child(f"{FAIRLANE}-{len(way.doors)}")
        await asyncio.sleep(_SETTLE_S)

    async def lose_the_store(self, way: Way, found: Shares) -> None:
        scale, store = self._scale, self._ways.store
        async with self._all_busy(way):
            before = time.time()
            await asyncio.sleep(scale.window_s)
            lost = time.time()
            store.kill()
            await asyncio.sleep(scale.away_s)
            back = time.time()
            await store.start()
        entries = await self._ways.journal(self._engine)
        without = fill(entries, SLOTS, lost, back)
        found.away = Away(without.used / fill(entries, SLOTS, before, lost).used, without)
        await asyncio.sleep(_SETTLE_S)

    @contextlib.asynccontextmanager
    async def _all_busy(self, way: Way) -> AsyncIterator[None]:
        """A tenant at each replica, all of one weight, each with more than the engine takes."""
        await self._ways.forget(self._engine)
        loads = [self._ways.begin(at, _load(_FIRST_EQUAL + number, 1)) for number, at in enumerate(way.doors)]
        await asyncio.sleep(self._scale.warm_s)
        yield
        self._ways.drop(*loads)
        await self._ways.until_empty(way)

    async def _window(self, way: Way, *loads: tuple[HostPort, Load]) -> tuple[list[Entry], float, float]:
        """Let loads run for a while. The journal, and the stretch of time that counts."""
        await self._ways.forget(self._engine)
        running = [self._ways.begin(at, load) for at, load in loads]
        await asyncio.sleep(self._scale.warm_s)
        since = time.time()
        await asyncio.sleep(self._scale.window_s)
        until = time.time()
        await asyncio.sleep(_TAIL_S)  # what is inside at the end of the stretch counts for its part
        self._ways.drop(*running)
        await self._ways.until_empty(way)
        return await self._ways.journal(self._engine), since, until

    def _note(self, found: Shares, entries: list[Entry], since: float, until: float) -> Fill:
        engine = fill(entries, SLOTS, since, until)
        found.waiting_max.append(engine.waiting_max)
        found.waiting_999.append(engine.waiting_999)
        return engine


def _load(first: int, tenants: int) -> Load:
    clients = _CLIENTS * tenants if tenants == 1 else _CLIENTS_OF_EQUAL * tenants
    return Load(
        *(0, _ENDLESS),
        clients=clients,
        body_bytes=_BODY,
        tenants=tenants,
        first_tenant=first,
        apart=True,
        output=_OUTPUT,
        timeout_s=_LONGEST_S,
    )


def _of(tokens: dict[str, float], number: int) -> float:
    return tokens.get(f"tenant-{number}", 0.0)


# -- cost -----------------------------------------------------------------------------------------


async def _cost(ways: Ways, count: int, scale: Scale, tell: Told) -> Costs:
    """Of `count` processes that share, of as many that do not, and of one. The first round is thrown away."""
    engine = await ways.engine(f"quick-engine-{count}", "extproc.sim.wire_engine", "{port}")
    pool = {"window": {"start": 1_024, "max_num_seqs": 4_096}}  # nothing is held back
    found = Costs()
    async with contextlib.AsyncExitStack() as open_:
        enter = open_.enter_async_context
        single = await enter(ways.way(f"cost single {count}", 1, SINGLE, engine, pool))
        apart = await enter(ways.way(f"cost apart {count}", count, SINGLE, engine, pool))
        shared = await enter(ways.way(f"cost shared {count}", count, SHARED, engine, pool))
        rows = (
            (found.single, single, scale.rate),
            (found.at_part, single, scale.rate / count),
            (found.apart, apart, scale.rate),
            (found.shared, shared, scale.rate),
        )
        for number in range(scale.rounds_of_cost):
            tell(f"cost: {count} replicas, round {number + 1} of {scale.rounds_of_cost}")
            for cost, way, rate in rows:
                requests = round(scale.cost_s * rate)
                load = Load(0, requests, shape="open", rate=rate, seed=number)
                before = way.cpu_s()
                await ways.finish(ways.begin(way.stack.addresses.envoy, load), load)
                if number > 0:
                    cost.ms.append((way.cpu_s() - before) * 1e3 / requests)
        tell(f"cost: {count} replicas, exchanges")
        found.exchanges = await _exchanges(ways, count, apart, shared, scale)
    return found


async def _exchanges(ways: Ways, count: int, apart: Way, shared: Way, scale: Scale) -> Exchanges:
    """Beside those that share nothing, so that what is done in either is not counted."""
    without = await _busy(ways, apart, scale)
    with_it = await _busy(ways, shared, scale)
    exchanges = max(1, with_it.traffic.exchanges)
    return Exchanges(
        per_replica_s=exchanges / scale.busy_s / count,
        bytes_in=with_it.traffic.bytes_in / exchanges,
        bytes_out=with_it.traffic.bytes_out / exchanges,
        store_ms=1e3 * with_it.store_s / exchanges,
        service_ms=1e3 * (with_it.services_s - without.services_s) / exchanges,
    )


@dataclass(frozen=True, slots=True)
class _Spent:
    services_s: float  # CPU
    store_s: float
    traffic: Traffic


async def _busy(ways: Ways, way: Way, scale: Scale) -> _Spent:
    """Some seconds with one long answer at each replica, and nothing else."""
    load = Load(0, 1, shape="at_once", answer=f"{round((scale.busy_s + _TAIL_S + _SETTLE_S) * 1e3)},1")
    answers = [ways.begin(door, load) for door in way.doors]
    await asyncio.sleep(_SETTLE_S)
    store = CpuClock(pid_of(ways.store.child))
    traffic, services_s, store_s = Traffic.of(await ways.store.info()), way.cpu_s(), store.read()
    await asyncio.sleep(scale.busy_s)
    spent = way.cpu_s() - services_s, store.read() - store_s
    traffic = Traffic.of(await ways.store.info()).since(traffic)
    for answer in answers:
        await ways.finish(answer, load)
    return _Spent(*spent, traffic)
