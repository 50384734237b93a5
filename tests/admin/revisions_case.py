"""A service that changes are put in force in, without a service; a clock; a configuration to begin with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from extproc.admin.control import ClusterState, EngineState, RecordingState, RunningPool, SourceState
from extproc.admin.records import Author
from extproc.admin.revisions import Result, Revisions
from extproc.config.administration import Administration
from extproc.config.faults import ConfigError, Fault
from extproc.config.load import FileData, read_file
from extproc.config.model import Config

ALICE = Author("alice", "admin", "ipv4:192.0.2.1:4711", "UpdateConfig")
T0 = 1_800_000_000.0  # seconds since 1970


def data() -> dict[str, Any]:
    return {
        "pools": [{"name": "llama", "models": ["llama-3"], "endpoints": ["10.0.0.1:8000"]}],
        "classes": {
            "interactive": {"rank": 0, "priority": 0},
            "batch": {"rank": 1, "priority": 1_000_000, "queue_timeout": "10m", "max_waiting": 0},
        },
        "default_class": "interactive",
        "tenants": {"acme": {"weight": 2}, "*": {"max_queued": 50}},
    }


async def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - there is no event for most of them
            await asyncio.sleep(0.001)


@dataclass
class Clock:
    now: float = T0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeControl:
    """Holds the configuration that was put in force last; may refuse one."""

    config: Config | None = None
    serving: bool = True
    started_at: float = T0
    refuses: str | None = None  # message of the fault that every configuration has
    breaks: bool = False  # the next commit raises
    checked: list[Config] = field(default_factory=list)
    prepared: list[Config] = field(default_factory=list)
    committed: list[Config] = field(default_factory=list)
    pools: list[RunningPool] = field(default_factory=list)

    def check(self, config: Config) -> None:
        if self.refuses is not None:
            raise ConfigError(self.refuses, [Fault("identity", self.refuses)])
        self.checked.append(config)

    async def prepare(self, config: Config) -> Callable[[], None]:
        if self.refuses is not None:
            raise ConfigError(self.refuses, [Fault("identity", self.refuses)])
        self.prepared.append(config)

        def commit() -> None:
            if self.breaks:
                self.breaks = False
                raise RuntimeError("no")
            self.committed.append(config)
            self.config = config

        return commit

    def running(self) -> Sequence[RunningPool]:
        return self.pools

    def engines(self) -> Sequence[EngineState]:
        return ()

    def sources(self) -> Sequence[SourceState]:
        return ()

    def recording(self) -> RecordingState:
        return RecordingState(False, (), False)

    def cluster(self) -> ClusterState | None:
        return None

    def ticket_of(self, x_request_id: str) -> str | None:  # noqa: ARG002
        return None


@dataclass
class Case:
    """A folder with a configuration file and a database, as one process after the other finds them."""

    folder: Path
    clock: Clock = field(default_factory=Clock)
    control: FakeControl = field(default_factory=FakeControl)
    begin: bool = True  # False: the folder is as others left it

    def __post_init__(self) -> None:
        if self.begin:
            self.write(data())

    @property
    def file(self) -> Path:
        return self.folder / "fairlane.yaml"

    @property
    def database(self) -> Path:
        return self.folder / "state.db"

    def write(self, content: dict[str, Any]) -> None:
        new = self.folder / "new.yaml"
        new.write_text(yaml.safe_dump(content, sort_keys=False))
        new.replace(self.file)

    def open(self, *, keep_revisions: int = 1000, keep_audit: int = 100_000) -> Revisions:
        """As a process that starts."""
        admin = Administration(state=str(self.database), keep_revisions=keep_revisions, keep_audit=keep_audit)
        revisions = Revisions.open(read_file(self.file), admin, clock=self.clock)
        self.control.config = revisions.config
        revisions.attach(self.control)
        return revisions


def in_memory(clock: Clock | None = None, control: FakeControl | None = None) -> Revisions:
    """Without a file and a database."""
    revisions = Revisions.open(FileData.of(data()), Administration(), clock=clock or Clock())
    revisions.attach(control or FakeControl(revisions.config))
    return revisions


async def patch(revisions: Revisions, change: dict[str, Any], **options: Any) -> Result:
    """Of the configuration; for good unless `ttl_s` says otherwise."""
    return await revisions.patch(
        options.pop("author", ALICE),
        change,
        options.pop("mask", None),
        reason=options.pop("reason", "a test"),
        ttl_s=options.pop("ttl_s", None),
        etag=options.pop("etag", ""),
        validate_only=options.pop("validate_only", False),
        **options,
    )


async def rollback(revisions: Revisions, number: int, **options: Any) -> Result:
    return await revisions.rollback(
        ALICE,
        number,
        reason=options.pop("reason", "a test"),
        ttl_s=options.pop("ttl_s", None),
        etag=options.pop("etag", ""),
        validate_only=options.pop("validate_only", False),
    )
