"""Several replicas of one cluster in a process: each with a state file, a clock and a service of its own that changes
are put in force in. What is faked is the store, and the exchange, which is as fast as the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from revisions_case import Case, Clock, FakeControl, data, until

from extproc.admin.revisions import Revisions
from extproc.cluster.configuration import SharedConfiguration
from extproc.cluster.errors import StoreError
from extproc.config.shared import SharedRevision

CLUSTER = "fairlane"


@dataclass
class FakeStore:
    """`lost`: nobody reaches it. `swallows`: the next write is done, and its answer is lost. `between`: called once,
    before the next write."""

    number: int = 0
    document: bytes = b""
    lost: bool = False
    swallows: bool = False
    between: Callable[[], None] | None = None
    gets: int = 0
    puts: int = 0  # that were done

    async def config_get(self) -> tuple[int, bytes]:
        await asyncio.sleep(0)
        self._check()
        self.gets += 1
        return self.number, self.document

    async def config_put(self, expected: int, document: bytes) -> int | None:
        between, self.between = self.between, None
        if between is not None:
            between()
        await asyncio.sleep(0)
        self._check()
        if expected != self.number:
            return None
        self.number, self.document = self.number + 1, document
        self.puts += 1
        if self.swallows:
            self.swallows = False
            self.lost = True
            self._check()
        return self.number

    def _check(self) -> None:
        if self.lost:
            raise StoreError("timeout", "127.0.0.1:6379 does not answer: look whether it runs")

    def empty(self) -> None:
        self.number, self.document = 0, b""

    @property
    def revision(self) -> SharedRevision:
        return SharedRevision.from_bytes(self.document)


@dataclass
class Replica:
    name: str
    case: Case
    revisions: Revisions
    shared: SharedConfiguration

    @property
    def control(self) -> FakeControl:
        return self.case.control

    def weight(self, tenant: str = "acme") -> float:
        config = self.revisions.config
        assert self.control.config == config
        return config.tenant(tenant).weight

    @property
    def told(self) -> dict[str, Any]:
        return self.shared.info()["configuration"]

    async def kinds(self) -> list[str]:
        """Oldest first."""
        return [each.kind.value for each in await self.revisions.list_revisions(None, 100)][::-1]


@dataclass
class Cluster:
    """`clock`: the store's. `apart`: replicas that hear nothing of the others, nor they of them."""

    folder: Path
    store: FakeStore = field(default_factory=FakeStore)
    clock: Clock = field(default_factory=Clock)
    replicas: dict[str, Replica] = field(default_factory=dict)
    apart: set[str] = field(default_factory=set)
    _soon: bool = False

    async def start(self, name: str, *, ahead_s: float = 0.0, file: dict[str, Any] | None = None) -> Replica:
        """As a process does it; one that was there before finds what it has left. `ahead_s`: of its clock."""
        folder = self.folder / name
        new = not folder.exists()
        folder.mkdir(exist_ok=True)
        case = Case(folder, clock=Clock(), begin=False)
        case.clock = _Ahead(self.clock, ahead_s)
        if new or file is not None:
            case.write(file or data())
        shared = SharedConfiguration(self.store, CLUSTER, name, wake=self.exchange_soon, clock=case.clock, wait_s=20)
        self.replicas[name] = replica = Replica(name, case, case.open(), shared)
        await replica.revisions.join(shared)
        return replica

    async def stop(self, name: str) -> None:
        replica = self.replicas.pop(name)
        await replica.revisions.close()

    async def close(self) -> None:
        for name in list(self.replicas):
            await self.stop(name)

    def exchange_soon(self) -> None:
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self.exchange)

    def exchange(self) -> None:
        """One of each replica."""
        self._soon = False
        for replica in list(self.replicas.values()):
            if self.store.lost or replica.name in self.apart:
                replica.shared.lost("127.0.0.1:6379 does not answer: look whether it runs")
                continue
            infos = {
                name: other.shared.info()
                for name, other in self.replicas.items()
                if name != replica.name and name not in self.apart
            }
            replica.shared.heard(self.store.number, infos, self.clock() * 1000)

    async def settled(self, condition: Callable[[], bool]) -> None:
        def met() -> bool:
            self.exchange_soon()
            return condition()

        await until(met)

    async def quiet(self) -> None:
        """Nobody has anything to read, or is about to."""
        idle = 0

        def met() -> bool:
            nonlocal idle
            each_is = (
                not each.revisions._news and not each.revisions._turn.locked() for each in self.replicas.values()
            )
            idle = idle + 1 if all(each_is) else 0
            return idle > 3

        await self.settled(met)

    async def all_have(self, weight: float) -> None:
        await self.settled(lambda: all(each.weight() == weight for each in self.replicas.values()))


class _Ahead(Clock):
    """A clock that is wrong."""

    def __init__(self, of: Clock, ahead_s: float) -> None:
        super().__init__()
        self._of = of
        self._ahead_s = ahead_s

    def __call__(self) -> float:
        return self._of() + self._ahead_s
