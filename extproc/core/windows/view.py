"""What a release window says about itself: its stance, what holds a request back, and its figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Stance(Enum):
    """What the window goes by."""

    STARTING = "starting"  # not read yet
    FRESH = "fresh"
    STALE = "stale"
    OUTAGE = "outage"
    DOWN = "down"  # the endpoint refuses or breaks connections
    STALLED = "stalled"  # it answers, and makes no progress with what it has


@dataclass(frozen=True, slots=True)
class Hold:
    """The part of a window, or the gate, that holds a request back: `value` has reached or passed `limit`, in `unit`.

    Names: "slots" (R + q), "latency" (W), "kv", "prefill", "prefill_turn", "kv_turn" (a large one is due first),
    "foreign", "share" (this replica's part of an endpoint that several share), "stance", "backoff" (it has refused or
    failed requests), "fixed", "threshold"; of gates "max_waiting", "max_tpot", "max_kv_usage", "max_ttft"."""

    name: str
    value: float
    limit: float
    unit: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class WindowView:
    """The window's state, for status, metrics and explanations. None: unknown, or the controller has no such part."""

    endpoint: str
    stance: Stance
    capacity: float  # R: requests that the engine can run at once, estimated
    foreign: int  # requests that are not of this process: of other replicas, and of nobody that is known
    in_flight: int
    tpot_window: float | None  # W: requests that latency allows; None: latency sets no limit
    tpot_s: float | None  # mean time per output token between the last two pages that had any
    running: int | None
    waiting: int | None
    kv_usage: float | None
    age_s: float | None  # since the last good page
    controller: str = "first"
    guests: int = 0  # slots let into an overfull window
    ttft_s: float | None = None  # mean time to first token on the last page that had any
    margin: float | None = None  # m: share of the latency limit that is aimed at
    itl_s: float | None = None  # y: inter-token latency, smoothed
    decoding: float | None = None  # n: requests that decode, smoothed
    prefill_s: float | None = None  # c: seconds that a prompt token adds to a step
    below_step: bool = False  # the latency limit is below the engine's own step time
    prefill_limit: float | None = None  # P: prompt tokens that may be unanswered
    unanswered: int | None = None  # requests released that have no first token yet
    unanswered_tokens: float | None = None  # their prompt tokens
    answers: str | None = None  # what tells of first tokens, see `windows.prefill`
    kv_expected: float | None = None  # most KV tokens that the engine is expected to hold, at any point ahead
    kv_ceiling: float | None = None  # KV tokens that the window plans with
    absurd: int = 0  # pages or figures dropped, because no engine can mean them
    prefix_queries: float | None = None  # prompt tokens looked up in the engine's cache, by its last page
    prefix_hits: float | None = None  # and found there
    turned_away: int = 0  # requests that the engine refused for want of room
    failed: int = 0  # requests that it failed: 500 and above, or a connection that broke
    turned_away_limit: float | None = None  # requests that may be inside since then; None: no such limit
    queue_target: float = 0.0  # q: standing queue that the limit was asked for
    limit: float = 0.0  # slots that may be taken, ours and foreign ones together; 0 while nothing may go
    floor: float | None = None  # R at its least; None: the controller has none
    others: int = 0  # of `foreign`: slots that other replicas hold
    claim: float | None = None  # slots that this replica may hold; None: it shares with nobody

    @property
    def room(self) -> float:
        """Slots that may be taken now."""
        limit = self.limit - self.foreign
        return max(0.0, (limit if self.claim is None else min(limit, self.claim)) - self.in_flight)

    @property
    def at_floor(self) -> bool:
        """Whether the window is as small as it may become."""
        return self.floor is not None and min(self.capacity, self.tpot_window or self.capacity) <= self.floor
