"""Same events, same effects: a simulated run with every option of the scheduler in use, recorded and played."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from extproc.core.events import Arrive, Effect, Event, Refuse, Release, Settled
from extproc.core.model import ClassPolicy, Controller, Gates, Order, PoolPolicy, TenantPolicy, WindowPolicy
from extproc.core.player import Player
from extproc.core.recording import Clock, Header, Names, Reader, header_to_plain, record_to_plain
from extproc.core.scheduler import Scheduler
from extproc.sim import shapes
from extproc.sim.jobs import Job
from extproc.sim.scene import Engines, Lag, Outage, Restart
from extproc.sim.virtual import run

pytestmark = pytest.mark.slow

POLICY = PoolPolicy(
    "m",
    (
        ClassPolicy("interactive", 0, 0, 20.0, 3, 60, gates=Gates(max_kv_usage=0.9), fail_fast=True),
        ClassPolicy(
            "default", 1, 1_000_000, 60.0, 3, 60, min_share=0.1, order=Order.SHORTEST_FIRST, promote_after_s=5.0
        ),
        ClassPolicy("batch", 2, 2_000_000, 100.0, 0, 40, min_share=0.02, headroom=0.05, order=Order.DEADLINE),
    ),
    tenants={
        "a": TenantPolicy(weight=2.0, rate=300.0, rate_burst=2000.0),
        "b": TenantPolicy(max_in_flight=2),
        "org": TenantPolicy(weight=3.0, max_queued=50),
        "org/*": TenantPolicy(burst=500.0),
        "c": TenantPolicy(parent="org"),
    },
    separator="/",
    prefix_slack=2000.0,
    window=WindowPolicy(controller=Controller.ADAPTIVE),
)


def some_jobs(rng: random.Random, count: int) -> list[Job]:
    return [
        Job(
            at=rng.uniform(0.0, 20.0),
            tenant=rng.choice(["a", "b", "c", "d", "org/x", "org/y"]),
            prompt=rng.randint(10, 900),
            output=rng.randint(1, 200),
            cls=rng.choice(["interactive", "default", "batch"]),
            max_output=rng.choice([None, 256]),
            n=rng.choice([1, 1, 1, 3]),
            prefix=tuple(range(1, rng.randint(1, 4))),
            patience_s=rng.choice([None, None, 8.0]),
        )
        for _ in range(count)
    ]


@pytest.mark.parametrize("names", [Names(), Names("00ff", "/")], ids=["plain", "hashed"])
def test_a_recorded_run_plays_the_same(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Event, float, Sequence[Effect]]] = []
    apply = Scheduler.apply

    def tap(self: Scheduler, event: Event, now: float) -> list[Effect]:
        effects = apply(self, event, now)
        seen.append((event, now, effects))
        return effects

    engines = Engines(shapes.E1, 2, lag=Lag(0.05, 0.4), prefix_cache_tokens=5_000, prefix_tokens=16)
    faults = [Outage(5.0, 12.0), Restart(14.0, 2.0, 1)]
    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "apply", tap)
        done = run(some_jobs(random.Random(2), 300), POLICY, engines, 300.0, faults=faults, until_done=True)
    assert {type(effect) for _, _, effects in seen for effect in effects} == {Release, Refuse, Settled}
    assert sum(isinstance(event, Arrive) for event, _, _ in seen) == 300
    header = Header(
        "0.1.0", "r", 1, "m", Clock(0.0, 0.0), (), names.policy(done.policy), names.salt, names.separator
    )  # fmt: skip
    lines = [header_to_plain(header), *(record_to_plain(event, now, effects, names) for event, now, effects in seen)]
    reader = Reader([json.dumps(line) + "\n" for line in lines])
    play = Player(reader.header).play_all(reader)
    assert play.same, play.first and play.first.text()
    assert play.events == len(seen)
