"""The words of the scheduler: request, state, sample, policies.

Units: times and durations are seconds (float), sizes are bytes or tokens (int), `cost` is in weighted
tokens (see `CostWeights`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Any

# Nothing real is so long. What a client claims beyond it is clamped, and an engine's count from it on is none, so
# that one absurd figure cannot poison the order of everybody, or keep its tenant back for a day.
MAX_TOKENS = 10_000_000
MAX_SLOTS = 128
MAX_DEPTH = 5  # levels of the tree of tenants


class State(Enum):
    """Where a request is. It has exactly one end."""

    __hash__ = object.__hash__  # members are single; Enum's own is written in Python, and each event asks for some

    QUEUED = "queued"
    RELEASED = "released"  # it has a permit: it counts inside an endpoint
    RUNNING = "running"  # as RELEASED, and its first token has been seen
    ENDED = "ended"  # its slot is free, its tokens are not known yet
    SETTLED = "settled"  # its slot is free and its cost is final
    CANCELLED = "cancelled"  # the client left while it was held
    EXPIRED = "expired"  # it waited longer than its timeout
    REJECTED = "rejected"  # refused at the door
    SHED = "shed"  # refused after it had waited: its place went to somebody who had less


MOVES: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        State.QUEUED: frozenset({State.RELEASED, State.CANCELLED, State.EXPIRED, State.REJECTED, State.SHED}),
        State.RELEASED: frozenset({State.RUNNING, State.ENDED, State.SETTLED}),
        State.RUNNING: frozenset({State.ENDED, State.SETTLED}),
        State.ENDED: frozenset({State.SETTLED}),
        State.SETTLED: frozenset(),
        State.CANCELLED: frozenset(),
        State.EXPIRED: frozenset(),
        State.REJECTED: frozenset(),
        State.SHED: frozenset(),
    }
)

INSIDE = frozenset({State.RELEASED, State.RUNNING})  # it holds its slots


class InvalidMoveError(Exception):
    """A request was moved along an edge that `MOVES` does not have. Carries the request's story."""


class Source(Enum):
    """Where the final cost of a request comes from."""

    __hash__ = object.__hash__  # as in `State`

    USAGE = "usage"  # the engine's own count, from the answer
    STREAM = "stream"  # counted by our own meter as the answer passed
    TIME = "time"  # an answer without a count: time in the engine / time per output token
    ABORT = "abort"  # its client left before the answer's end: as TIME, for as long as it ran
    ESTIMATE = "estimate"  # nothing is known: the charge of the release stands
    ERROR = "error"  # refused, failed, or evicted: nothing was served, nothing is charged


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
    ttft_sum: float | None = None  # seconds to the first token, cumulative
    ttft_count: float | None = None  # requests in `ttft_sum`, cumulative
    kv_capacity_tokens: int | None = None  # tokens that fit into the KV cache of all its engines
    # Moves with each step in which the engine does something, cumulative. None: it has no such counter, or one that
    # moves only when a request is done.
    progress: float | None = None
    adapters: tuple[str, ...] | None = None  # LoRA adapters that run or wait there, sorted; None: it does not tell
    max_adapters: int | None = None  # that fit into one batch
    prefix_queries: float | None = None  # prompt tokens that were looked up in its cache, cumulative
    prefix_hits: float | None = None  # and were found there, cumulative


class Unit(Enum):
    """What service is measured in, and so what is shared fairly."""

    TOKENS = "tokens"  # weighted tokens, see `CostWeights`; the weights may be prices
    REQUESTS = "requests"  # each request costs 1: round robin
    TIME = "time"  # seconds in the engine, times slots


class Order(Enum):
    """Which request of one flow goes first. Fairness between flows is untouched."""

    FIFO = "fifo"
    SHORTEST_FIRST = "shortest_first"  # of the first 8 the one with the least cost, aged
    DEADLINE = "deadline"  # the one whose timeout is next


class Overflow(Enum):
    """Who is refused when a class or the pool is full."""

    SHED_HEAVIEST = "shed_heaviest"  # the newest request of the flow with the most waiting, lowest class first
    REJECT_NEWEST = "reject_newest"  # the newcomer


class Controller(Enum):
    """Which rule opens and closes a release window, see `extproc.core.windows`."""

    ADAPTIVE = "adaptive"  # slots, inter-token latency by Little's law, KV reckoned ahead
    FIRST = "first"  # slots and AIMD on latency; a baseline
    THRESHOLD = "threshold"  # send while the page shows fewer than `threshold` waiting; a baseline
    FIXED = "fixed"  # `fixed` requests, whatever the page shows; a baseline


class Outage(Enum):
    """What a window does when its endpoint's page cannot be read for half a minute."""

    DEGRADE = "degrade"  # go on with less, clocked by completions
    HOLD = "hold"  # release nothing
    OPEN = "open"  # go on as with a fresh page


class Traffic(Enum):
    """What a pool does with requests, whatever room there is."""

    OPEN = "open"
    PAUSED = "paused"  # nothing is released: what comes waits, by its own time
    DRAINING = "draining"  # nothing more is taken in: what waits still gets its turn


class Pick(Enum):
    """Who chooses the endpoint of a request."""

    FAIRLANE = "fairlane"  # at its release, see `choice`
    ENVOY = "envoy"  # its own load balancing: Fairlane says only how many may be inside all of them together


@dataclass(frozen=True, slots=True)
class Gates:
    """Thresholds on an endpoint's own signals, beyond which a class releases nothing to it. None: no gate.

    A signal that is not known, or not fresh, closes nothing: an idle engine must open."""

    max_waiting: int | None = None  # requests in the engine's queue; closed at the threshold and above
    max_tpot_s: float | None = None  # seconds per output token; closed above
    max_kv_usage: float | None = None  # 0..1; closed above
    max_ttft_s: float | None = None  # seconds to the first token, of the last page; closed above


@dataclass(frozen=True, slots=True)
class CostWeights:
    """Cost of a token by kind. Defaults after Sheng et al., "Fairness in Serving Large Language
    Models" (OSDI'24): an output token costs twice an input token; a cached one next to nothing."""

    prompt: float = 1.0
    cached: float = 0.1
    output: float = 2.0

    def cost(self, prompt: float, output: float, cached: float = 0.0) -> float:
        if cached > prompt:
            cached = prompt
        return self.prompt * (prompt - cached) + self.cached * cached + self.output * output


@dataclass(frozen=True, slots=True)
class PickPolicy:
    """How an endpoint is chosen among those that have room, see `choice`. Each weight is for a score of 0..1."""

    by: Pick = Pick.FAIRLANE
    load: float = 1.0  # less for one whose window is fuller
    prefix: float = 0.5  # the share of the prompt that it is likely to have in its cache
    adapter: float = 1.0  # it has the LoRA adapter loaded
    session: float = 0.5  # the session's last request went there
    kv_usage: float = 0.25  # less for one whose KV cache is fuller


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
    max_queued_bytes: int | None = None
    max_queued_tokens: int | None = None  # estimated, prompt and output
    overflow: Overflow = Overflow.SHED_HEAVIEST
    order: Order = Order.FIFO
    promote_after_s: float | None = None  # a request that has waited longer counts one class up
    headroom: float | None = None  # 0..1; a request of a higher class finds no slot with at most this probability
    idle_only: bool = False  # go only where nothing waits in the engine's own queue
    gates: Gates = Gates()
    fail_fast: bool = False  # refuse at the door what would wait longer than its timeout
    preemptible: bool = False  # its requests may be evicted for those of a higher class, see `preemption`
    preempt_after_s: float | None = None  # one that has waited longer for room may have one of a lower class evicted


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """What a node of the tree (an organisation, a team, a tenant) may do. Applies in each class, but
    for `rate` and `max_queued_bytes`, which hold for all classes together."""

    weight: float = 1.0  # share among its siblings
    max_queued: int = 1_000  # requests
    max_queued_bytes: int = 512 * 1024**2
    max_in_flight: int | None = None  # engine slots
    max_queued_tokens: int | None = None  # estimated, prompt and output
    burst: float = 0.0  # cost that may be saved up while nothing waits
    rate: float | None = None  # cost units a second; beyond it requests wait
    rate_burst: float = 0.0  # cost units that may be used at once before `rate` holds
    parent: str | None = None  # path of the node that it hangs under, in place of its name's own prefix


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
    controller: Controller = Controller.ADAPTIVE
    outage: Outage = Outage.DEGRADE
    max_num_seqs: int | None = None  # slots of the engine, where known: no engine shows them
    threshold: int = 3  # of Controller.THRESHOLD: requests waiting
    fixed: int = 32  # of Controller.FIXED: requests
    stalled_after_s: float | None = 30.0  # running, and no progress for so long: it hangs; None: never


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
    priority_steps: int = 4  # requests of one tenant that the engine tells apart, see `priority`
    unit: Unit = Unit.TOKENS
    separator: str | None = None  # parts "org/team/user" into levels; None: names are taken whole
    promote_every: int = 8  # dispatches for each promotion at most, so that ageing cannot turn the order round
    prefix_slack: float = 0.0  # cost by which a tenant may be passed for a warm prefix; 0: no grouping
    preempt_per_s: float = 1.0  # evictions a second at most
    preempt_after_first_byte: bool = False  # evict also what has begun to answer, or may have
    pick: PickPolicy = PickPolicy()
    no_endpoint_timeout_s: float = 300.0  # how long a request waits while no endpoint is there, see `absence`
    traffic: Traffic = Traffic.OPEN
    shared: bool = False  # with other replicas: nothing goes before the first `Synced`

    def tenant(self, name: str) -> TenantPolicy:
        """Of a node by its path, e.g. "acme/ml/alice": its own, else that of "acme/ml/*", else the default."""
        found = self.tenants.get(name)
        if found is None and self.separator is not None:
            parent, separator, _ = name.rpartition(self.separator)
            found = self.tenants.get(parent + separator + "*") if separator else None
        return found or self.default_tenant

    def path(self, tenant: str) -> tuple[str, ...]:
        """Paths of the nodes from the top level down to the tenant itself, `MAX_DEPTH` of them at most: of a longer
        one the levels in the middle are left out. Raises ValueError where parents run in a circle."""
        if self.separator is None and tenant not in self.tenants:
            return (tenant,)  # it has no parent; most have none, and each request asks
        path = [tenant]
        while (above := self._above(path[-1])) is not None:
            if above in path:
                raise ValueError(f"the parents of {tenant!r} run in a circle: {' -> '.join([*path, above])}")
            path.append(above)
        path.reverse()
        return tuple(path) if len(path) <= MAX_DEPTH else (*path[: MAX_DEPTH - 1], tenant)

    def _above(self, name: str) -> str | None:
        """Path of the node that a node hangs under; None: it is at the top level."""
        own = self.tenants.get(name)
        if own is not None and own.parent is not None:
            return own.parent
        separator = self.separator
        if separator is None or separator not in name:
            return None
        # Not one level at a time: clients make names with thousands of them.
        return separator.join(name.split(separator, MAX_DEPTH - 1)[:-1]) or None


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
    deadline: float  # by its class's timeout, or its own
    cost: float = 0.0  # estimate, set before it is queued
    timeout_s: float = math.inf  # as the client asked; the class's may be shorter
    prefix: tuple[int, ...] = ()  # chained hashes of the prompt's beginnings, shortest first
    adapter: str | None = None  # LoRA adapter that it asks for
    session: int | None = None  # hash of the conversation that it belongs to
    queued_at: float = 0.0  # when it came here; later than `arrival` after a replay
    expires_at: float = 0.0  # what `Deadlines` has it under
    path: tuple[str, ...] = ()  # of the nodes in the tree of tenants that it counts for, see `PoolPolicy.path`
    tells_first_byte: bool = False  # the edge will say when the first byte of the answer is out
    leaf: Any = None  # its place in the fair queue; the queue's own
    watch: Any = None  # its place among what runs; `charging.Overrun`'s own
    state: State = State.QUEUED
    charged: float = 0.0  # cost charged so far
    endpoint: str | None = None
    guest: int = 0  # turn of the endpoint's guests that it belongs to, see `Window.take`; 0: none
    share_turn: int = 0  # turn of its class's `min_share` that it was charged in, see `ClassQueue.served`
    released_at: float = 0.0
    released_as: int = 0  # number of its release
    ended_at: float | None = None
    first_token_at: float | None = None
    settled: bool = False  # its cost is final, whether or not its stream has ended
    first_byte_at: float | None = None  # when it was
    guaranteed: bool = False  # it went by its class's `min_share` or `promote_after_s`
    evicted: bool = False  # it has to leave the engine; its stream may not have ended yet
    priority: int | None = None  # that its engine was told; None: it has not been released

    def move(self, to: State) -> None:
        if to not in MOVES[self.state]:
            raise InvalidMoveError(f"{self.state.value} -> {to.value} is no move; {self.story()}")
        self.state = to

    def story(self) -> str:
        return (
            f"request {self.id} of tenant {self.tenant!r}, class {self.cls!r}: {self.state.value}, arrived "
            f"{self.arrival:.3f}, released {self.released_at:.3f} to {self.endpoint}, charged {self.charged:.1f}"
            f"{', settled' if self.settled else ''}{', evicted' if self.evicted else ''}"
        )
