"""The words of the scheduler: request, state, sample, policies.

Units: times and durations are seconds (float), sizes are bytes or tokens (int), `cost` is in weighted
tokens (see `CostWeights`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

# Nothing real is longer; what an engine or a client claims beyond it is clamped, so that one absurd
# figure cannot poison the order of everybody.
MAX_TOKENS = 10_000_000
MAX_SLOTS = 128


class State(Enum):
    """Where a request is. It has exactly one end."""

    QUEUED = "queued"
    RELEASED = "released"  # it has a permit: it counts inside an endpoint
    ENDED = "ended"  # its slot is free, its tokens are not known yet
    SETTLED = "settled"  # its slot is free and its cost is final
    CANCELLED = "cancelled"  # the client left while it was held
    EXPIRED = "expired"  # it waited longer than its timeout
    REJECTED = "rejected"  # refused at the door


MOVES: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.QUEUED: frozenset({State.RELEASED, State.CANCELLED, State.EXPIRED, State.REJECTED}),
        State.RELEASED: frozenset({State.ENDED, State.SETTLED}),
        State.ENDED: frozenset({State.SETTLED}),
        State.SETTLED: frozenset(),
        State.CANCELLED: frozenset(),
        State.EXPIRED: frozenset(),
        State.REJECTED: frozenset(),
    }
)


class InvalidMoveError(Exception):
    """A request was moved along an edge that `MOVES` does not have. Carries the request's story."""


class Source(Enum):
    """Where the final cost of a request comes from."""

    USAGE = "usage"  # the engine's own count, from the answer
    TIME = "time"  # an answer without a count: time in the engine / time per output token
    ESTIMATE = "estimate"  # nothing is known: the charge of the release stands
    ERROR = "error"  # the engine refused or failed: nothing was served, nothing is charged


@dataclass(frozen=True, slots=True)
class Sample:
    """One reading of an endpoint's metrics page. Cumulative values are passed on as read."""

    running: int  # requests in the engine's batch
    waiting: int  # requests in the engine's own queue
    kv_usage: float | None  # 0..1; None: the engine does not tell
    itl_sum: float | None  # seconds between output tokens, cumulative
    itl_count: float | None  # output tokens in `itl_sum`, cumulative
    preemptions: float | None  # cumulative
    generation_tokens: float | None  # cumulative
    prompt_tokens: float | None  # cumulative
    started: float  # clock time at which the scrape was sent


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Cost of a token by kind. Defaults after Sheng et al., "Fairness in Serving Large Language
    Models" (OSDI'24): an output token costs twice an input token; a cached one next to nothing."""

    prompt: float = 1.0
    cached: float = 0.1
    output: float = 2.0

    def cost(self, prompt: float, output: float, cached: float = 0.0) -> float:
        cached = min(cached, prompt)
        return self.prompt * (prompt - cached) + self.cached * cached + self.output * output


@dataclass(frozen=True, slots=True)
class ClassPolicy:
    """One class of requests. A lower rank goes first."""

    name: str
    rank: int
    priority_base: int  # what the engine is told: base + the tenant's requests inside the engine
    queue_timeout_s: float
    max_waiting: int  # standing queue aimed at inside the engine; 0: none
    max_queued: int  # requests
    max_in_flight: int | None = None  # engine slots that this class may hold in the pool
    min_share: float = 0.0  # 0..1 of the dispatched cost, even while higher classes wait


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What a tenant may do. Applies in each class."""

    weight: float = 1.0
    max_queued: int = 1_000  # requests
    max_queued_bytes: int = 512 * 1024**2  # in all classes together
    max_in_flight: int | None = None  # engine slots


@dataclass(frozen=True, slots=True)
class WindowPolicy:
    """Release window of one endpoint, see `window`."""

    start: float = 8.0  # requests; R at start: larger ones overfill small engines before the first reading
    floor: float = 1.0
    ceiling: float = 4096.0
    max_tpot_s: float = 0.150  # time per output token: 7 tokens a second, for readers
    max_kv_usage: float = 0.95
    overtake: int = 1  # requests by which a tenant with nothing inside may exceed a full window
    scrape_interval_s: float = 0.25
    idle_scrape_interval_s: float = 2.0  # while nothing is held or inside
    first_scrape_grace_s: float = 2.0  # nothing is released before the first reading or this


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Everything that one scheduler (one model's pool of endpoints) is told. Validated by `config`."""

    name: str
    classes: tuple[ClassPolicy, ...]  # by rank, first to last
    tenants: Mapping[str, TenantPolicy] = field(default_factory=dict)
    default_tenant: TenantPolicy = TenantPolicy()
    weights: CostWeights = CostWeights()
    window: WindowPolicy = WindowPolicy()
    max_queued: int = 20_000  # requests
    max_queued_bytes: int = 2 * 1024**3  # the bodies lie in Envoy's memory while they wait
    usage_grace_s: float = 5.0  # how long after the end of a stream its token count may come
    priority_gap: int = 1_000  # requests of one tenant told apart inside one class

    def tenant(self, name: str) -> TenantPolicy:
        return self.tenants.get(name, self.default_tenant)


@dataclass(slots=True, eq=False)
class Request:
    """One HTTP request on its way through the pool. Written by the scheduler alone."""

    id: str
    tenant: str
    cls: str
    arrival: float  # first arrival; survives a replay
    seq: int  # order of events; breaks ties
    body_bytes: int
    prompt_tokens: float  # estimate
    output_tokens: float  # estimate
    max_output: int | None  # tokens
    slots: int  # engine slots that it takes: n choices run as n sequences
    deadline: float
    state: State = State.QUEUED
    charged: float = 0.0  # cost charged so far
    endpoint: str | None = None
    guest: int = 0  # turn of the endpoint's guests that it belongs to, see `Window.take`; 0: none
    released_at: float = 0.0
    ended_at: float | None = None
    settled: bool = False  # its cost is final, whether or not its stream has ended

    def move(self, to: State) -> None:
        if to not in MOVES[self.state]:
            raise InvalidMoveError(f"{self.state.value} -> {to.value} is no move; {self.story()}")
        self.state = to

    def story(self) -> str:
        return (
            f"request {self.id} of tenant {self.tenant!r}, class {self.cls!r}: {self.state.value}, arrived "
            f"{self.arrival:.3f}, released {self.released_at:.3f} to {self.endpoint}, charged {self.charged:.1f}"
            f"{', settled' if self.settled else ''}"
        )
