"""A scheduler on a clock of its own, for scenarios: it keeps what came out, and checks after each event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from extproc.core import invariants
from extproc.core.events import (
    Arrive,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    FirstToken,
    Reconfigure,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Tick,
    Usage,
)
from extproc.core.model import ClassPolicy, Controller, CostWeights, PoolPolicy, Sample, Source, WindowPolicy
from extproc.core.scheduler import Scheduler

E1 = "10.0.0.1:8000"
E2 = "10.0.0.2:8000"


def a_class(name: str = "interactive", rank: int = 0, **changes: Any) -> ClassPolicy:
    """A class whose limits are out of the way, with a standing queue of 3."""
    values = {"priority_base": rank * 1_000_000, "queue_timeout_s": 60.0, "max_waiting": 3, "max_queued": 1_000_000}
    return ClassPolicy(name=name, rank=rank, **(values | changes))


def two_classes(**changes: Any) -> tuple[ClassPolicy, ClassPolicy]:
    """`interactive`, and below it `batch`, without a standing queue unless asked for."""
    return a_class(), a_class("batch", 2, **({"max_waiting": 0} | changes))


def a_pool(*classes: ClassPolicy, start: float = 4.0, overtake: int = 0, **changes: Any) -> PoolPolicy:
    """A pool whose endpoints start at R = `start`. No overtaking unless asked for."""
    window = changes.pop("window", None) or WindowPolicy(start=start, overtake=overtake)
    return PoolPolicy(name="m", classes=classes or (a_class(),), window=window, **changes)


def a_fixed_pool(*classes: ClassPolicy, slots: int = 1, overtake: int = 0, **changes: Any) -> PoolPolicy:
    """A pool whose endpoints take `slots` each, whatever their pages show: room is `slots` - in flight."""
    window = WindowPolicy(controller=Controller.FIXED, fixed=slots, overtake=overtake)
    return PoolPolicy(name="m", classes=classes or (a_class(),), window=window, **changes)


def a_sample(running: int, waiting: int, started: float, **changes: Any) -> Sample:
    """A page that tells the two gauges and nothing else, unless asked for."""
    values: dict[str, Any] = {
        "kv_usage": None,
        "itl_sum": None,
        "itl_count": None,
        "preemptions": None,
        "generation_tokens": None,
        "prompt_tokens": None,
    }
    return Sample(running=running, waiting=waiting, started=started, **(values | changes))


class Case:
    """`now` is moved by the test; a page is fresh for 1.25 s. Each endpoint has been read once, idle,
    unless `read` is False. `checked`: invariants after each event, which long runs cannot afford."""

    def __init__(
        self,
        policy: PoolPolicy | None = None,
        *,
        endpoints: Sequence[str] = (E1,),
        read: bool = True,
        checked: bool = True,
    ) -> None:
        self.now = 100.0
        self.checked = checked
        self.scheduler = Scheduler(policy or a_pool())
        self.events: list[tuple[Event, float]] = []
        self.effects: list[Effect] = []
        for endpoint in endpoints:
            self.apply(EndpointAdded(endpoint))
            if read:
                self.page(endpoint)

    def apply(self, event: Event) -> list[Effect]:
        self.events.append((event, self.now))
        effects = self.scheduler.apply(event, self.now)
        self.effects += effects
        if self.checked:
            invariants.check(self.scheduler, self.now)
        return effects

    def arrive(self, request: str, tenant: str = "a", cls: str = "interactive", **fields: Any) -> list[Effect]:
        values: dict[str, Any] = {"arrival": self.now, "body_bytes": 1024} | fields
        return self.apply(Arrive(request, tenant, cls, **values))

    def end(self, request: str) -> list[Effect]:
        return self.apply(End(request))

    def usage(self, request: str, prompt: int | None, output: int | None, **fields: Any) -> list[Effect]:
        return self.apply(
            Usage(request, fields.pop("source", Source.USAGE), prompt_tokens=prompt, output_tokens=output, **fields)
        )

    def first_token(self, request: str) -> list[Effect]:
        return self.apply(FirstToken(request))

    def reconfigure(self, policy: PoolPolicy) -> list[Effect]:
        return self.apply(Reconfigure(policy))

    def page(self, endpoint: str = E1, running: int = 0, waiting: int = 0, **fields: Any) -> list[Effect]:
        return self.apply(Scraped(endpoint, a_sample(running, waiting, fields.pop("started", self.now), **fields)))

    def scrape_fails(self, endpoint: str = E1, *, refused: bool) -> list[Effect]:
        return self.apply(ScrapeFailed(endpoint, refused))

    def add(self, endpoint: str) -> list[Effect]:
        return self.apply(EndpointAdded(endpoint))

    def remove(self, endpoint: str) -> list[Effect]:
        return self.apply(EndpointRemoved(endpoint))

    def tick(self, seconds: float = 0.0) -> list[Effect]:
        self.now += seconds
        return self.apply(Tick())

    def tag(self, tenant: str, cls: str = "interactive") -> float:
        leaf = next(c for c in self.scheduler.classes if c.policy.name == cls).queue.leaf(tenant)
        assert leaf is not None
        return leaf.tag


def drain(case: Case, inside: list[str], steps: int) -> list[str]:
    """End the oldest of `inside`, again and again. Returns what was released, in order; `inside` is kept up."""
    order: list[str] = []
    for _ in range(steps):
        gone = released(case.end(inside.pop(0)))
        order += gone
        inside += gone
    return order


def fill(case: Case, count: int, tenant: str = "filler", cls: str = "interactive") -> list[str]:
    """Put `count` requests inside the engine. Fails if they do not fit."""
    names = [f"fill-{cls}-{i}" for i in range(count)]
    effects = [effect for name in names for effect in case.arrive(name, tenant, cls)]
    assert released(effects) == names
    return names


def released(effects: Sequence[Effect]) -> list[str]:
    return [e.id for e in effects if isinstance(e, Release)]


def refused(effects: Sequence[Effect]) -> list[tuple[str, str]]:
    return [(e.id, e.reason.code) for e in effects if isinstance(e, Refuse)]


def the_refusal(effects: Sequence[Effect]) -> Refuse:
    (refusal,) = effects
    assert isinstance(refusal, Refuse)
    return refusal


def settled(effects: Sequence[Effect]) -> list[tuple[str, float]]:
    return [(e.id, e.cost) for e in effects if isinstance(e, Settled)]


# A body of 1024 bytes is 256 prompt tokens, and nothing is known of the output but the prior of 256.
FIRST_CHARGE = CostWeights().cost(256, 256)
