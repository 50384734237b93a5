"""What a simulated run is made of besides its jobs: engines, how they are seen, and what goes wrong with them."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.sim.engine import EngineOptions


@dataclass(frozen=True, slots=True)
class Lag:
    """How old a page is, in seconds, drawn evenly for each."""

    least: float = 0.0
    most: float = 0.0
    preemptions_s: float = 0.0  # the counter of preemptions is this much older


@dataclass(frozen=True, slots=True)
class WayIn:
    """From the gateway into the engine's queue, in seconds. `each` is taken for one request after the other."""

    least: float = 0.0
    most: float = 0.0
    each: float = 0.0


@dataclass(frozen=True, slots=True)
class Engines:
    """Replicas of one engine, and how they are seen."""

    options: EngineOptions
    count: int = 1
    lag: Lag = Lag()
    way_in: WayIn = WayIn()
    exit_s: float = 0.0
    scrape_s: float = 0.25
    tells_kv_capacity: bool = True
    prefix_cache_tokens: int = 0  # 0: no prefix cache
    prefix_tokens: int = 0  # tokens that each hash of a job's prefix stands for


@dataclass(frozen=True, slots=True)
class Outage:
    """Pages cannot be read. `endpoint`: number of the engine; None: all."""

    since: float
    until: float
    endpoint: int | None = None


@dataclass(frozen=True, slots=True)
class Restart:
    """All that is inside is lost; for `away_s` nothing listens there. Counters begin at zero."""

    at: float
    away_s: float = 0.0
    endpoint: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """The engine has another size from now on."""

    at: float
    options: EngineOptions
    endpoint: int = 0


@dataclass(frozen=True, slots=True)
class Join:
    """An endpoint is added, the next one by number or one that has parted."""

    at: float
    endpoint: int


@dataclass(frozen=True, slots=True)
class Part:
    """An endpoint is taken out; what runs there goes on."""

    at: float
    endpoint: int


Fault = Outage | Restart | Resize | Join | Part


@dataclass(frozen=True, slots=True)
class Look:
    """The engine as it truly is at a time. Counters are cumulative."""

    at: float
    running: int
    waiting: int
    kv_usage: float
    itl_sum: float
    itl_count: float
    preemptions: float
