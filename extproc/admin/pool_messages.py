"""Pools and endpoints, as the reading methods and the watchers show them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping

from extproc.admin import messages
from extproc.admin.ages import oldest_by_class
from extproc.admin.control import Control, EngineState, RunningPool, SourceState
from extproc.admin.portions import Portions, Work
from extproc.pb.admin.v1 import admin_pb2 as pb


class PoolMessages:
    """By name: pages of them fit together whatever is configured in between."""

    def __init__(self, control: Control, portions: Portions) -> None:
        self._control = control
        self.portions = portions

    def running(self) -> list[RunningPool]:
        return sorted(self._control.running(), key=lambda each: each.pool.name)

    async def told(self, pools: Iterable[RunningPool]) -> list[pb.Pool]:
        """Each as it is at one moment, but for the oldest waits and the endpoints, which are looked at in portions."""
        work = Work(self.portions)
        await work.next()
        engines, sources = self._engines(), self._sources()
        found: list[pb.Pool] = []
        for running in pools:
            told = await self._told(running, engines, sources, work)
            would_be = running.would_be
            if would_be is not None:
                told.observed.CopyFrom(await self._told(would_be, engines, sources, work))
                _with_own_figures(told.observed.endpoints, told.endpoints)
            found.append(told)
        return found

    async def _told(
        self,
        running: RunningPool,
        engines: Mapping[tuple[str, str], EngineState],
        sources: Mapping[str, SourceState],
        work: Work,
    ) -> pb.Pool:
        arrivals = await oldest_by_class(running.scheduler, work)
        now = running.now()
        waits_s = {name: now - arrival for name, arrival in arrivals.items()}
        told = messages.pool(running, waits_s, sources.get(running.pool.name))
        async for endpoint in self._endpoints(running, engines, work):
            told.endpoints.append(endpoint)
        return told

    async def endpoints(self, pools: Iterable[RunningPool]) -> list[pb.Endpoint]:
        """By pool and address. O(endpoints), in portions."""
        work = Work(self.portions)
        await work.next()
        engines = self._engines()
        found = [endpoint for running in pools async for endpoint in self._endpoints(running, engines, work)]
        found.sort(key=lambda each: (each.pool, each.address))
        return found

    async def _endpoints(
        self, running: RunningPool, engines: Mapping[tuple[str, str], EngineState], work: Work
    ) -> AsyncIterator[pb.Endpoint]:
        name = running.pool.name
        for window in list(running.scheduler.windows.values()):
            if work.over:
                await work.next()
            seen = window.view(running.now(), running.scheduler.q_max)
            engine = engines.get((name, window.endpoint))
            yield messages.endpoint(seen, name, engine, removed=window.removed)

    def _engines(self) -> dict[tuple[str, str], EngineState]:
        return {(each.pool, each.endpoint): each for each in self._control.engines()}

    def _sources(self) -> dict[str, SourceState]:
        return {each.pool: each for each in self._control.sources()}


def _with_own_figures(would_be: Iterable[pb.Endpoint], there: Iterable[pb.Endpoint]) -> None:
    """What an engine has is as its page says: an observer takes off what would not be there."""
    by_address = {endpoint.address: endpoint for endpoint in there}
    for endpoint in would_be:
        real = by_address.get(endpoint.address)
        if real is not None and real.HasField("running_count"):
            endpoint.running_count, endpoint.waiting_count = real.running_count, real.waiting_count
