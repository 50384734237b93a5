"""Figures at regular times, to many watchers.

For each interval that somebody watches at there is one sampler, which runs as long as somebody does. Its sample is
one message, built once for all of its watchers. A watcher that has taken the last one waits for the next; one that
is slow finds the newest, and has missed those between. So nothing is ever kept for a watcher, however slow it is: the
one message that gRPC is sending it is all.

Samplers of different intervals share what they take: a sample that is younger than `_YOUNG_S` is taken again, so 200
watchers with an interval of their own each cost as much as one with the shortest.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import grpc
from google.protobuf import duration_pb2

from extproc.admin import messages
from extproc.admin.errors import AdminError, invalid
from extproc.admin.pool_messages import PoolMessages
from extproc.pb.admin.v1 import admin_pb2 as pb

MOST_WATCHERS: Final = 200
SHORTEST_S: Final = 0.1
LONGEST_S: Final = 3600.0
DEFAULT_S: Final = 1.0
_YOUNG_S: Final = 0.05


class SampleError(Exception):
    """A bug; what caused it is its cause."""


class _Sample:
    """Of all pools, and of each alone where that is asked for."""

    def __init__(self, stats: pb.Stats, taken_at: float) -> None:
        self.taken_at = taken_at  # on the loop's clock
        self._by_pool = {"": stats}

    def of(self, pool: str) -> pb.Stats:
        found = self._by_pool.get(pool)
        if found is None:
            stats = self._by_pool[""]
            pools = [each for each in stats.pools if each.name == pool]
            found = self._by_pool[pool] = pb.Stats(time=stats.time, revision=stats.revision, pools=pools)
        return found


class _Sampler:
    """At one interval, from its first watcher to its last."""

    def __init__(self) -> None:
        self.watchers = 0
        self.number = 0  # of the newest sample
        self.newest: _Sample | None = None
        self.failure: Exception | None = None
        self.closed = False
        self.task: asyncio.Task[None] | None = None
        self._next = asyncio.Event()

    def publish(self, sample: _Sample) -> None:
        self.newest = sample
        self.number += 1
        self._wake()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._wake()

    def close(self) -> None:
        self.closed = True
        self._wake()

    async def after(self, number: int) -> _Sample:
        """The newest one, once there is one after `number`. Raises AdminError when all is over."""
        while self.number == number or self.newest is None or self.closed:
            if self.closed:
                raise _over()
            if self.failure is not None:
                raise SampleError("the figures could not be taken") from self.failure
            await self._next.wait()
        return self.newest

    def _wake(self) -> None:
        woken, self._next = self._next, asyncio.Event()
        woken.set()


class Watch:
    """All watchers of one process."""

    def __init__(self, pools: PoolMessages, revision: Callable[[], int]) -> None:
        self._pools = pools
        self._revision = revision
        self._samplers: dict[float, _Sampler] = {}
        self._last: _Sample | None = None
        self._taking: asyncio.Lock = asyncio.Lock()
        self._closed = False

    @property
    def watchers(self) -> int:
        return sum(sampler.watchers for sampler in self._samplers.values())

    @property
    def samplers(self) -> int:
        """Of intervals that somebody watches at."""
        return len(self._samplers)

    async def watch(self, interval_s: float, pool: str) -> AsyncIterator[pb.Stats]:
        """The first at once. `pool`: empty: all. Raises AdminError when there are too many, and when all is over."""
        if self._closed:
            raise _over()
        if self.watchers >= MOST_WATCHERS:
            raise AdminError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                f"{MOST_WATCHERS} watchers are the most; one of them must leave first, or poll GetPool instead",
            )
        sampler = self._join(interval_s)
        try:
            number = sampler.number
            yield (await self._sample()).of(pool)
            while True:
                await sampler.after(number)
                await self._pools.portions.turn()  # gRPC writes it out at once: not all of them in one turn
                sample, number = await sampler.after(number), sampler.number
                yield sample.of(pool)
        finally:
            self._leave(interval_s, sampler)

    def close(self) -> None:
        """Ends all: the server stops."""
        self._closed = True
        for sampler in self._samplers.values():
            if sampler.task is not None:
                sampler.task.cancel()
            sampler.close()

    def _join(self, interval_s: float) -> _Sampler:
        sampler = self._samplers.get(interval_s)
        if sampler is None:
            sampler = self._samplers[interval_s] = _Sampler()
            sampler.task = asyncio.create_task(self._run(interval_s, sampler), name=f"stats each {interval_s:g} s")
        sampler.watchers += 1
        return sampler

    def _leave(self, interval_s: float, sampler: _Sampler) -> None:
        sampler.watchers -= 1
        if not sampler.watchers:
            if sampler.task is not None:
                sampler.task.cancel()
            if self._samplers.get(interval_s) is sampler:
                del self._samplers[interval_s]

    async def _run(self, interval_s: float, sampler: _Sampler) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        try:
            while True:
                due = max(due + interval_s, loop.time())
                await asyncio.sleep(due - loop.time())
                sampler.publish(await self._sample())
        except Exception as error:
            # Whoever joins from now on begins anew.
            if self._samplers.get(interval_s) is sampler:
                del self._samplers[interval_s]
            sampler.fail(error)

    async def _sample(self) -> _Sample:
        loop = asyncio.get_running_loop()
        async with self._taking:
            last = self._last
            if last is None or loop.time() - last.taken_at >= _YOUNG_S:
                pools = await self._pools.told(self._pools.running())
                stats = pb.Stats(time=messages.timestamp(time.time()), revision=self._revision(), pools=pools)
                last = self._last = _Sample(stats, loop.time())
            return last


def interval_of(asked: duration_pb2.Duration | None) -> float:
    """Seconds. None: the default. Raises AdminError."""
    if asked is None:
        return DEFAULT_S
    seconds = messages.seconds_of(asked)
    if not SHORTEST_S <= seconds <= LONGEST_S or not math.isfinite(seconds):
        raise invalid("interval", f"must be from {SHORTEST_S:g} s to {LONGEST_S:g} s, not {seconds:g} s")
    return seconds


def _over() -> AdminError:
    return AdminError(grpc.StatusCode.UNAVAILABLE, "the service stops; watch another replica, or come back")
