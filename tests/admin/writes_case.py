"""The admin API over real schedulers and real revisions in memory; what is faked is the service around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import grpc
import pytest

from extproc.admin.access import CALLER, Caller
from extproc.admin.control import ClusterState, EngineState, RecordingState, RunningPool, SourceState
from extproc.admin.errors import AdminError
from extproc.admin.portions import Portions
from extproc.admin.revisions import Revisions
from extproc.admin.servicer import Admin
from extproc.config.administration import Administration
from extproc.config.load import FileData
from extproc.config.model import Config
from extproc.core.events import (
    Arrive,
    Cancel,
    Effect,
    EndpointAdded,
    Event,
    Evict,
    Reconfigure,
    Refuse,
    Release,
    Scraped,
)
from extproc.core.model import Sample
from extproc.core.scheduler import Scheduler

E1 = "10.0.0.1:8000"
IDLE = Sample(
    running=0,
    waiting=0,
    kv_usage=None,
    itl_sum=None,
    itl_count=None,
    preemptions=None,
    generation_tokens=None,
    prompt_tokens=None,
    started=100.0,
)


def a_file(**changes: Any) -> dict[str, Any]:
    """One pool whose engine takes two requests at once, and one tenant with a weight of its own."""
    window = {"controller": "fixed", "fixed": 2, "overtake": 0}
    pool = {"name": "llama", "models": ["llama"], "endpoints": [E1], "window": window}
    return {"pools": [pool], "tenants": {"acme": {"weight": 2}}, **changes}


class FakeControl:
    """Runs the pools of a configuration, on a clock that stands still. `messages`: what cancelled clients were told."""

    def __init__(self, config: Config) -> None:
        self.serving = True
        self.started_at = 1_700_000_000.0
        self.now = 100.0
        self.messages: dict[str, str] = {}
        self.effects: list[Effect] = []
        self.config = config
        self.schedulers: dict[str, Scheduler] = {}
        self.observed: dict[str, Scheduler] = {}
        self._take(config)

    def _take(self, config: Config) -> None:
        self.config = config
        for pool in config.pools:
            known = self.schedulers.get(pool.name)
            if known is None:
                self.schedulers[pool.name] = known = Scheduler(config.pool_policy(pool))
                known.apply(EndpointAdded(E1), self.now)
                known.apply(Scraped(E1, IDLE), self.now)
            else:
                self.effects += known.apply(Reconfigure(config.pool_policy(pool)), self.now)

    def check(self, config: Config) -> None: ...

    async def prepare(self, config: Config) -> Callable[[], None]:
        return lambda: self._take(config)

    def observe(self, pool: str) -> Scheduler:
        """From now on the pool observes too."""
        (configured,) = (each for each in self.config.pools if each.name == pool)
        self.observed[pool] = Scheduler(self.config.pool_policy(configured))
        return self.observed[pool]

    def apply(self, event: Event, pool: str = "llama") -> list[Effect]:
        effects = self.schedulers[pool].apply(event, self.now)
        self.effects += effects
        return effects

    def arrive(self, *names: str, tenant: str = "acme", cls: str = "default", pool: str = "llama") -> None:
        for name in names:
            self.apply(Arrive(name, tenant, cls, arrival=self.now, body_bytes=100), pool)

    def running(self) -> Sequence[RunningPool]:
        def cancel(pool: str) -> Callable[[str, str], None]:
            def one(name: str, message: str) -> None:
                self.messages[name] = message
                self.apply(Cancel(name, message), pool)

            return one

        return [
            RunningPool(
                pool,
                self.schedulers[pool.name],
                self.observed.get(pool.name),
                retiring=False,
                now=lambda: self.now,
                cancel=cancel(pool.name),
            )
            for pool in self.config.pools
        ]

    def engines(self) -> Sequence[EngineState]:
        return ()

    def sources(self) -> Sequence[SourceState]:
        return ()

    def recording(self) -> RecordingState:
        return RecordingState(self.config.recording.file is not None, (), False)

    def cluster(self) -> ClusterState | None:
        return None

    def ticket_of(self, x_request_id: str) -> str | None:
        return x_request_id if any(x_request_id in each.requests for each in self.schedulers.values()) else None

    def named(self, kind: type[Effect]) -> set[str]:
        """Of the effects of a kind so far."""
        return {effect.id for effect in self.effects if isinstance(effect, kind)}  # type: ignore[attr-defined]

    @property
    def refused(self) -> set[str]:
        return self.named(Refuse)

    @property
    def evicted(self) -> set[str]:
        return self.named(Evict)

    @property
    def released(self) -> set[str]:
        return self.named(Release)


class Case:
    """`time`: the wall clock, seconds since 1970."""

    def __init__(self, **file: Any) -> None:
        self.time = 1_800_000_000.0
        self.revisions = Revisions.open(FileData.of(a_file(**file)), Administration(), clock=lambda: self.time)
        self.control = FakeControl(self.revisions.config)
        self.revisions.attach(self.control)
        self.portions = Portions()
        self.admin = Admin(self.control, self.revisions, self.portions)

    @property
    def config(self) -> Config:
        """In force in the service."""
        assert self.control.config == self.revisions.config
        return self.control.config

    async def call(self, method: str, request: Any, *, who: str = "ann") -> Any:
        CALLER.set(Caller(who, "admin", "ipv4:192.0.2.1:4711"))
        return await getattr(self.admin, method)(request, None)

    async def refused(self, method: str, request: Any, code: grpc.StatusCode) -> dict[str, str]:
        """What is told of each field."""
        with pytest.raises(AdminError) as caught:
            await self.call(method, request)
        assert caught.value.code is code, caught.value.message
        return {each.field: each.description for each in caught.value.violations} or {"": caught.value.message}

    async def invalid(self, method: str, request: Any) -> dict[str, str]:
        return await self.refused(method, request, grpc.StatusCode.INVALID_ARGUMENT)

    async def not_now(self, method: str, request: Any) -> str:
        return "; ".join((await self.refused(method, request, grpc.StatusCode.FAILED_PRECONDITION)).values())

    async def outcomes(self) -> list[tuple[str, str]]:
        """(method, outcome) of all audit records, the oldest first."""
        records = await self.revisions.list_audit(None, 1000)
        return [(each.author.method, each.outcome) for each in reversed(records)]
