"""Requests to the simulated engine, and the sequences that each of them becomes.

A request with ``k`` prompts and ``n`` choices becomes ``k * n`` sequences, as in vLLM. Each takes a slot of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, unique
from typing import Final


@unique
class State(Enum):
    """Where a sequence is."""

    ARRIVED = "arrived"
    """Handed in, but the engine has begun no step since; the gauges do not know it yet."""
    WAITING = "waiting"
    """In the engine's queue: never admitted, or preempted."""
    RUNNING = "running"
    """Has a slot, in prefill or decoding."""
    FINISHED = "finished"
    ABORTED = "aborted"


MOVES: Final[dict[State, frozenset[State]]] = {
    State.ARRIVED: frozenset({State.WAITING, State.ABORTED}),
    State.WAITING: frozenset({State.RUNNING, State.ABORTED}),
    State.RUNNING: frozenset({State.WAITING, State.FINISHED, State.ABORTED}),
    State.FINISHED: frozenset(),
    State.ABORTED: frozenset(),
}
"""Allowed moves. RUNNING to WAITING is a preemption."""


@unique
class FinishReason(Enum):
    """Why a sequence ended, in the words of the API."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Request:
    """One API request, reduced to what costs the engine something.

    id           unique among the requests that have not ended
    prompts      tokens of each prompt, at least one each
    max_tokens   limit of tokens for each sequence, at least 1
    n            sequences for each prompt
    priority     lower is earlier; only the policy ``priority`` looks at it
    stop_at      tokens after which each sequence would stop by itself, in the order of their index;
                 empty: none ever does (``ignore_eos``)
    """

    id: str
    prompts: tuple[int, ...]
    max_tokens: int
    n: int = 1
    priority: int = 0
    stop_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompts or min(self.prompts) < 1 or self.max_tokens < 1 or self.n < 1:
            raise ValueError(f"request {self.id}: a prompt, max_tokens and n must be at least 1")
        if self.stop_at and (len(self.stop_at) != self.size or min(self.stop_at) < 1):
            raise ValueError(
                f"request {self.id}: stop_at needs one length of at least 1 for each of {self.size} sequences"
            )

    @property
    def size(self) -> int:
        """Number of sequences."""
        return len(self.prompts) * self.n


class Sequence:
    """One row of the batch. Only the engine writes to it.

    Times are seconds on the engine's clock. ``computed`` counts tokens whose keys and values are in the cache;
    a preemption sets it back to 0, and the next prefill computes prompt and output again.
    """

    __slots__ = (
        "arrival",
        "blocks",
        "computed",
        "first_at",
        "index",
        "key",
        "last_at",
        "preempted",
        "preempted_unseen",
        "prefilling",
        "produced",
        "prompt",
        "request",
        "scheduled_at",
        "state",
        "stops",
        "target",
    )

    def __init__(self, request: Request, index: int, key: tuple[int, float, int], arrival: float) -> None:
        self.request: Final = request
        self.index: Final = index
        self.key: Final = key
        """Order of admission, and backwards of preemption: (priority, arrival, serial number)."""
        self.arrival: Final = arrival
        self.prompt: Final = request.prompts[index // request.n]
        stop_at = request.stop_at[index] if request.stop_at else None
        self.stops: Final = stop_at is not None and stop_at <= request.max_tokens
        self.target: Final = stop_at if stop_at is not None and self.stops else request.max_tokens
        """Tokens that it will have produced at its end."""
        self.state = State.ARRIVED
        self.produced = 0
        self.computed = 0
        self.blocks = 0
        self.prefilling = True
        self.preempted = 0
        self.preempted_unseen = 0
        """Preemptions since the last token: vLLM's counter learns of them with the next one."""
        self.scheduled_at: float | None = None
        self.first_at: float | None = None
        self.last_at: float | None = None

    @property
    def tokens(self) -> int:
        """Prompt and output so far."""
        return self.prompt + self.produced

    @property
    def peak(self) -> int:
        """Most tokens that it will ever have in the cache: the last token needs no keys and values."""
        return self.prompt + self.target - 1

    @property
    def reason(self) -> FinishReason:
        return FinishReason.STOP if self.stops else FinishReason.LENGTH

    def move(self, to: State) -> None:
        """Change the state, or raise with what is known of the sequence."""
        if to not in MOVES[self.state]:
            raise RuntimeError(f"{self!r} cannot become {to.value}")
        self.state = to

    def __lt__(self, other: Sequence) -> bool:
        return self.key < other.key

    def __repr__(self) -> str:
        return (
            f"<sequence {self.request.id}[{self.index}] {self.state.value} key={self.key} prompt={self.prompt} "
            f"produced={self.produced}/{self.target} computed={self.computed} blocks={self.blocks} "
            f"preempted={self.preempted}>"
        )
