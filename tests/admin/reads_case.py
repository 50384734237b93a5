"""Pools whose schedulers are on a clock of their own, behind what stands in for the running service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from extproc.admin.access import CALLER, Caller
from extproc.admin.control import ClusterState, EngineState, RecordingState, RunningPool, SourceState
from extproc.admin.errors import AdminError
from extproc.config.load import FileData, from_data
from extproc.config.model import Config
from extproc.config.overlay import Overlay
from extproc.core.events import Arrive, End, EndpointAdded, Event, Scraped, Usage
from extproc.core.model import Sample, Source
from extproc.core.scheduler import Scheduler

E1 = "10.0.0.1:8000"
VIEWER = Caller("ann", "viewer", "ipv4:192.0.2.1:4711")

IDLE = Sample(0, 0, None, None, None, None, None, None, started=0.0)


def a_config(*pools: str, slots: int = 1, **changes: Any) -> Config:
    """Pools of one endpoint with `slots` places each, whatever its page shows."""
    classes = {
        "interactive": {"rank": 0, "priority": 0, "queue_timeout": "60s"},
        "batch": {"rank": 2, "priority": 100, "queue_timeout": "600s"},
    }
    named = [
        {
            "name": name,
            "models": [f"model-of-{name}"],
            "endpoints": {"static": [E1]},
            "window": {"controller": "fixed", "fixed": slots, "overtake": 0, "start": 1},
            "max_queued": 1_000_000,
            "max_queued_bytes": "1000GiB",
        }
        for name in pools or ("m",)
    ]
    tenants = {"*": {"max_queued": 1_000_000, "max_queued_bytes": "1000GiB"}}
    for cls in classes.values():
        cls["max_queued"] = 1_000_000
    data = {"classes": classes, "default_class": "interactive", "tenants": tenants, "pools": named} | changes
    return from_data(data)


class PoolCase:
    """One pool; `now` is moved by the test. Its endpoint has been read once, idle."""

    def __init__(self, config: Config, name: str, *, observed: bool = False) -> None:
        self.now = 100.0
        self.config = config
        self.pool = next(pool for pool in config.pools if pool.name == name)
        policy = config.pool_policy(self.pool)
        self.scheduler = Scheduler(policy)
        self.observed = Scheduler(policy) if observed else None
        self.retiring = False
        self.cancelled: list[tuple[str, str]] = []
        for scheduler in (self.scheduler, self.observed):
            if scheduler is not None:
                scheduler.apply(EndpointAdded(E1), self.now)
                scheduler.apply(Scraped(E1, IDLE), self.now)

    def apply(self, event: Event, *, observed: bool = False) -> None:
        scheduler = self.observed if observed else self.scheduler
        assert scheduler is not None
        scheduler.apply(event, self.now)

    def arrive(self, request: str, tenant: str = "a", cls: str = "interactive", **fields: Any) -> None:
        observed = fields.pop("observed", False)
        self.apply(
            Arrive(request, tenant, cls, **({"arrival": self.now, "body_bytes": 1024} | fields)), observed=observed
        )

    def end(self, request: str, *, observed: bool = False) -> None:
        """It is over and out of the books."""
        self.apply(End(request), observed=observed)
        self.apply(Usage(request, Source.USAGE, prompt_tokens=1, output_tokens=1), observed=observed)

    @property
    def running(self) -> RunningPool:
        return RunningPool(
            self.pool,
            self.scheduler,
            self.observed,
            self.retiring,
            lambda: self.now,
            lambda request, message: self.cancelled.append((request, message)),
        )


@dataclass
class FakeControl:
    cases: list[PoolCase]
    serving: bool = True
    started_at: float = 1_700_000_000.0
    engine_states: Sequence[EngineState] = ()
    source_states: Sequence[SourceState] = ()
    tickets: dict[str, str] = field(default_factory=dict)
    cluster_state: ClusterState | None = None

    def check(self, config: Config) -> None: ...

    async def prepare(self, _: Config) -> Callable[[], None]:
        raise AssertionError("reading prepares nothing")

    def running(self) -> list[RunningPool]:
        return [case.running for case in self.cases]

    def engines(self) -> Sequence[EngineState]:
        return self.engine_states

    def sources(self) -> Sequence[SourceState]:
        return self.source_states

    def recording(self) -> RecordingState:
        return RecordingState(True, ("/var/lib/fairlane/a.jsonl.gz",), stopped_by_error=False)

    def cluster(self) -> ClusterState | None:
        return self.cluster_state

    def ticket_of(self, x_request_id: str) -> str | None:
        return self.tickets.get(x_request_id)


class FakeRevisions:
    """By the interface of `Revisions`; what is in force is given."""

    def __init__(self, config: Config, overlay: Overlay | None = None) -> None:
        self.config = config
        self.overlay = overlay or Overlay()
        self.file = FileData(Path("/etc/fairlane.yaml"), {}, "ab" * 32, 1_700_000_001.5)
        self.file_error: str | None = None
        self.revision = 7
        self.etag = "7-abababab"
        self.state = SimpleNamespace(path="", read_only=False, error="")
        self.pending: list[Any] = []
        self.history: list[Any] = []

    def expiries(self) -> list[Any]:
        return self.pending

    async def list_revisions(self, before: int | None, limit: int) -> list[Any]:
        return [each for each in self.history if before is None or each.number < before][:limit]


@contextlib.contextmanager
def called_by(caller: Caller = VIEWER) -> Iterator[None]:
    token = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(token)


@contextlib.contextmanager
def refused(code: str, *parts: str) -> Iterator[None]:
    """The body is refused by that status, with these words in the message."""
    try:
        yield
    except AdminError as error:
        assert error.code.name == code, error
        for part in parts:
            assert part in error.message, error.message
    else:
        raise AssertionError(f"expected {code}")


async def all_of(stream: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in stream]
