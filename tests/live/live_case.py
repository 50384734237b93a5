"""Pools at work behind what the live page reads: real schedulers on a clock of their own, real history, a real port."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

sys.path.append(str(Path(__file__).resolve().parent.parent / "admin"))  # helpers of the tests of the admin API

from reads_case import FakeControl, FakeRevisions

from extproc.admin.control import EngineState, RunningPool
from extproc.cli.ports import free_ports
from extproc.config.load import from_data
from extproc.config.model import Config
from extproc.core.events import (
    Arrive,
    Effect,
    End,
    EndpointAdded,
    Event,
    FirstToken,
    Release,
    Scraped,
    ScrapeFailed,
    Usage,
)
from extproc.core.fairness import Fairness
from extproc.core.model import Sample, Source
from extproc.core.scheduler import Scheduler
from extproc.live import Live
from extproc.telemetry.history import STEP_S, History
from extproc.telemetry.http import HttpPort
from extproc.telemetry.journal import OBSERVED

BATCH = 10  # requests that an engine runs at once
OBJECTIVES = {"interactive": 5.0, "batch": 300.0}
QUIET_PORT: Mapping[str, Any] = {"pools": list, "flows": lambda *_: []}


def a_config(*pools: str, mode: str = "enforce", **window: Any) -> Config:
    classes = {
        "interactive": {"rank": 0, "priority": 0, "queue_timeout": "120s", "wait_objective": "5s"},
        "agents": {"rank": 1, "priority": 50, "queue_timeout": "300s", "gates": {"max_kv_usage": 0.9}},
        "batch": {"rank": 2, "priority": 100, "queue_timeout": "1800s", "wait_objective": "300s"},
    }
    named = [
        {
            "name": name,
            "models": [name],
            "mode": mode,
            "endpoints": {"static": ["10.0.0.1:8000"]},
            "window": {"start": 8, **window},
        }
        for name in pools or ("llama-70b",)
    ]
    many = {"max_queued": 1_000_000, "max_queued_bytes": "1000GiB"}
    for section in (*classes.values(), *named):
        section["max_queued"] = 1_000_000
    return from_data({"classes": classes, "default_class": "interactive", "tenants": {"*": many}, "pools": named})


class Scene:
    """One pool. Its engines take what they are given, and `step` ends some of it."""

    def __init__(self, config: Config, name: str = "llama-70b", engines: int = 4) -> None:
        self.pool = next(pool for pool in config.pools if pool.name == name)
        self.config = config
        self.scheduler = Scheduler(config.pool_policy(self.pool))
        observes = self.pool.mode == "observe"
        self.passing = Scheduler(config.pool_policy(self.pool)) if observes else None  # of requests that do not wait
        self.history_name = self.pool.name + OBSERVED if observes else self.pool.name
        self.now = 0.0
        self.fairness: dict[str, Fairness] = {}
        self.leaked = 0
        self.history: History | None = None
        self.down: dict[str, str] = {}  # endpoint -> why its page cannot be read
        self.engines = [f"10.0.{number // 250}.{number % 250 + 1}:8000" for number in range(engines)]
        self._inside: deque[tuple[str, str]] = deque()  # (request, endpoint)
        self._number = 0
        for engine in self.engines:
            self.apply(EndpointAdded(engine))
        self.read()

    def apply(self, event: Event) -> Iterable[Effect]:
        effects = self.scheduler.apply(event, self.now)
        if self.history is not None:
            self.history.seen(self.history_name, effects)
        released = [(each.id, each.endpoint or "") for each in effects if isinstance(each, Release)]
        self._inside.extend(released)
        for request, _ in released:
            self.apply(FirstToken(request))
        return effects

    def arrive(self, tenant: str = "team-a", cls: str = "interactive", **fields: Any) -> str:
        self._number += 1
        request = f"r{self._number}"
        self.apply(Arrive(request, tenant, cls, **{"arrival": self.now, "body_bytes": 4096, **fields}))
        return request

    def end(self, count: int = 1) -> None:
        """The `count` that have been inside for longest."""
        for _ in range(count):
            if not self._inside:
                break
            request, _ = self._inside.popleft()
            self.apply(End(request))
            self.apply(Usage(request, Source.USAGE, prompt_tokens=900, output_tokens=250))

    def read(self) -> None:
        """The engines' pages."""
        for number, engine in enumerate(self.engines):
            if engine in self.down:
                self.apply(ScrapeFailed(engine, refused=True))
                continue
            inside = sum(at == engine for _, at in self._inside)
            running = min(inside, BATCH)
            tokens = 40.0 * self.now * BATCH
            pages = (0.021 * tokens, tokens, 0.0, tokens, 3 * tokens)
            kv_usage = min(0.97, 0.1 + 0.06 * running + 0.05 * (number % 3))
            self.apply(Scraped(engine, Sample(running, inside - running, kv_usage, *pages, started=self.now)))

    def step(self, arrivals: Mapping[tuple[str, str], int], ended: int, seconds: float = 1.0) -> None:
        self.now += seconds
        self.read()
        for (tenant, cls), count in arrivals.items():
            for _ in range(count):
                self.arrive(tenant, cls)
        self.end(ended)
        if self.history is not None and self.now % STEP_S < seconds:
            self.history.sample(self.history_name, self.scheduler, self.now)

    def engine_states(self) -> list[EngineState]:
        return [EngineState(self.pool.name, each, "vllm", "header", self.down.get(each)) for each in self.engines]

    @property
    def running(self) -> RunningPool:
        there = (self.scheduler, None) if self.passing is None else (self.passing, self.scheduler)
        return RunningPool(
            *(self.pool, *there, False, lambda: self.now, lambda *_: None),
            leaked=lambda: self.leaked,
            objectives=OBJECTIVES,
            fairness=self.fairness,
            observed_fairness=self.fairness,
        )


class Place:
    """What the page reads: scenes, their history, and a port that serves them."""

    def __init__(self, *scenes: Scene, began: float | None = None) -> None:
        """`began`: seconds since 1970 at which the scenes' clocks were at 0."""
        self.scenes = list(scenes)
        self.control = FakeControl(self.scenes)  # type: ignore[arg-type]  # it asks each for `running` only
        self.revisions = FakeRevisions(scenes[0].config)
        self.began = time.time() if began is None else began
        self.kept = History(lambda: self.began + self.scenes[0].now)
        for scene in scenes:
            scene.history = self.kept
        self.live = Live(self.control, self.revisions, self.kept.plain)  # type: ignore[arg-type]
        self.number = free_ports(1)[0]
        self.http: HttpPort | None = None

    def refresh(self) -> None:
        self.control.engine_states = [state for scene in self.scenes for state in scene.engine_states()]

    async def start(self) -> None:
        self.refresh()
        self.http = HttpPort(CollectorRegistry(), lambda: True, live=self.live, **QUIET_PORT)
        await self.http.start("127.0.0.1", self.number)

    async def stop(self) -> None:
        if self.http is not None:
            await self.http.stop()
            self.http = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.number}"


@contextlib.asynccontextmanager
async def serving(*scenes: Scene, began: float | None = None) -> AsyncIterator[Place]:
    place = Place(*scenes, began=began)
    await place.start()
    try:
        yield place
    finally:
        await place.stop()


LOAD = {
    ("team-search", "interactive"): 2,
    ("team-support", "interactive"): 1,
    ("agents/nightly", "agents"): 1,
    ("agents/review", "agents"): 1,
    ("batch/embeddings", "batch"): 5,
    ("batch/evals", "batch"): 2,
    ("batch/labels", "batch"): 1,
}


def worked(scene: Scene, place: Place, seconds: int = 840) -> None:
    """A quarter of an hour of waves, the last of which is not over."""
    for second in range(seconds):
        busy = (second // 120) % 2 == 0
        arrivals = {key: count if busy or key[1] == "interactive" else 0 for key, count in LOAD.items()}
        scene.step(arrivals, ended=10 if busy else 8)
    place.refresh()
