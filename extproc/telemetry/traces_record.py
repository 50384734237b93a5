"""What is kept of one sampled request until its spans are made: plain values, no spans.

A span object costs as much as all else that happens to a request, so none is made on the event loop. What a client may
make long is cut here, before it is kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

MOST_SHOWN = 128  # characters of a name
_MOST_TOLD = 512  # characters of a sentence
_MOST_FAULTS = 16  # of one request: each is a try


class Held(NamedTuple):
    """What held the request's class from `at` on."""

    at: float  # seconds on the scheduler's clock, as all times here
    kind: str  # a `core.explanation.Hold`
    name: str
    value: float | None
    limit: float | None
    told: str
    then: str


class Fault(NamedTuple):
    """An endpoint did not take the request, or failed it."""

    at: float
    name: str  # of the span's event
    endpoint: str | None


class Refused(NamedTuple):
    """It was refused, or taken back from its engine."""

    at: float
    code: str  # of a `core.reasons.Reason`
    message: str


class Settled(NamedTuple):
    at: float
    source: str
    cost: float  # in the pool's unit of service
    estimate: float


@dataclass(slots=True, eq=False)
class Record:
    """Written by the event loop alone, and by nobody once it is handed on."""

    id: str
    traceparent: str
    tracestate: str
    model: str | None
    path: str
    stream: bool
    pool: str = ""
    tenant: str = ""
    cls: str = ""
    by_envoy: bool = False  # Envoy chooses the endpoint: that of the release is for the books alone
    arrival: float | None = None  # None: its scheduler has not been told yet
    queued_at: float = 0.0  # when it came here; later than `arrival` after a replay
    max_output: int | None = None  # tokens
    choices: int = 1
    waits: bool = False
    held: Held | None = None  # when it came; None: it went at once, or nobody knows
    holds: tuple[Held, ...] = ()  # after that, as far as they are another's turn
    verdict_at: float | None = None  # None: there was none
    endpoint: str | None = None  # "host:port"; None: it was never released
    served_by: str | None = None  # where that is known to be another endpoint
    priority: int = 0
    refused: Refused | None = None  # at the door or in the queue
    evicted: Refused | None = None
    first_byte_at: float | None = None
    first_token_at: float | None = None
    faults: list[Fault] = field(default_factory=list)
    prompt_tokens: int | None = None  # as counted by the engine, or by the meter
    cached_tokens: int = 0
    output_tokens: int | None = None
    settled: Settled | None = None
    ended_at: float | None = None  # of its stream

    def fault(self, at: float, name: str, endpoint: str | None) -> None:
        if len(self.faults) < _MOST_FAULTS:
            self.faults.append(Fault(at, name, endpoint))


def cut(name: str) -> str:
    return name[:MOST_SHOWN]


def told(sentence: str) -> str:
    return sentence[:_MOST_TOLD]
