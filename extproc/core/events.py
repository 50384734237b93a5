"""What goes into the scheduler and what comes out. Times are an argument of `Scheduler.apply`.

None of these is changed once it is made: a recording keeps them, and so may whoever is told of them. The type checker
holds them to that (`_value`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

from extproc.core.model import PoolPolicy, Sample, Source
from extproc.core.reasons import Reason

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def _value(cls: type[T]) -> type[T]:
    """A frozen dataclass to the type checker. At run time it is not frozen: a frozen one sets each field by a call,
    which takes three times as long, and each request makes five of these."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


@_value
class Arrive:
    """A request has arrived and wants a place in the queue."""

    id: str
    tenant: str
    cls: str
    arrival: float  # when it first came, seconds on the scheduler's clock; earlier than now after a replay
    body_bytes: int
    max_output: int | None = None  # tokens, as the client asked
    n: int = 1  # choices; each takes a slot
    timeout_s: float | None = None  # may only shorten the class's
    prompt_tokens: int | None = None  # where the edge can count better than bytes / 4
    prefix: tuple[int, ...] = ()  # chained hashes of the prompt's beginnings, shortest first
    first_byte_seen: bool = False  # the edge will tell its `FirstByte`: until then it may be evicted
    adapter: str | None = None  # LoRA adapter that it asks for
    session: int | None = None  # hash of the conversation that it belongs to


@_value
class End:
    """The request's stream is over: answered, failed, or left by its client, held or running."""

    id: str


@_value
class Cancel:
    """An operator takes the request back: a held one is refused, one inside is evicted. `message` is for its client."""

    id: str
    message: str


@_value
class FirstByte:
    """The first byte of the answer, the response's headers, is on its way to the client. No token need have been
    made: engines answer a stream before they have read its prompt."""

    id: str


@_value
class FirstToken:
    """The request's first token has been seen. Not every profile shows it."""

    id: str


@_value
class Usage:
    """What the request really took. May come before or after `End`. `endpoint`: where it was served, if that is known
    to be another than its release named."""

    id: str
    source: Source
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    output_tokens: int | None = None
    endpoint: str | None = None


@_value
class Unreachable:
    """The endpoint that the request was sent to did not take the connection, or `broke` it. `endpoint`: which one,
    where that is known to be another than its release named."""

    id: str
    broke: bool = False
    endpoint: str | None = None


@_value
class TurnedAway:
    """The engine answered that it has no room: 429 or 503, or 200 and an error of that kind in the stream. `endpoint`:
    which one, where it is known to be another than that of the request's release."""

    id: str
    endpoint: str | None = None


@_value
class Failed:
    """The engine failed the request: it answered 500 or above but for want of room, or an error of that kind in the
    stream. `endpoint`: as in `TurnedAway`."""

    id: str
    endpoint: str | None = None


@_value
class Scraped:
    """An endpoint's metrics page was read."""

    endpoint: str
    sample: Sample


@_value
class ScrapeFailed:
    """An endpoint's metrics page could not be read. `refused`: nothing listens there any more."""

    endpoint: str
    refused: bool


@_value
class EndpointAdded:
    endpoint: str  # "host:port"


@_value
class EndpointRemoved:
    """No more releases to it. What runs there keeps its books until its streams end."""

    endpoint: str


@_value
class Reconfigure:
    """The pool's policy is another from now on, also for what waits and runs."""

    policy: PoolPolicy


@_value
class Tick:
    """Time has passed: `Scheduler.next_deadline` is due."""


@_value
class EndpointShare:
    """What several replicas have at one endpoint. Slots."""

    endpoint: str
    claim: float  # that this replica may hold
    others: int  # that the others hold
    freed: int = 0  # by the others, since the last such event
    gone: int = 0  # that others held who have died since: the engine may run these requests on
    known: float = 0.0  # that the engine runs at once, as far as the others have seen; 0: none has anything there


@_value
class FlowShare:
    """What one tenant has in one class at the other replicas."""

    cls: str
    tenant: str
    usage: float  # cost charged there since the last such event; less than 0 never
    inside: int  # slots that it holds there


@_value
class Synced:
    """What the other replicas hold, have had and have waiting, and what this one may hold; see `extproc.core.sharing`.
    The first one tells the scheduler that there are others: without it nothing of this counts."""

    replicas: int  # that live, this one included
    until: float  # when the claims are over, on the scheduler's clock; nothing is released after it. Infinite: never
    endpoints: tuple[EndpointShare, ...]  # all of the pool
    flows: tuple[FlowShare, ...] = ()  # those that have changed
    served: Mapping[str, float] = field(default_factory=dict)  # class -> cost charged by the others since the last one
    closed_above: int | None = None  # something of this rank waits elsewhere: classes with a higher one release nothing
    lost_since: float | None = None  # the store has not answered since then: the claims are what is safe without it
    released: int = 0  # requests, by the others since the last one
    ageing: float = 1.0  # part of the pool's promotions that is due here, 0..1


Event = (
    Arrive
    | End
    | Cancel
    | FirstByte
    | FirstToken
    | Usage
    | Unreachable
    | TurnedAway
    | Failed
    | Scraped
    | ScrapeFailed
    | EndpointAdded
    | EndpointRemoved
    | Reconfigure
    | Synced
    | Tick
)


@_value
class Release:
    """Send the request on to `endpoint`, telling the engine `priority` (lower runs first). Where that one does not take
    the connection, one of `fallbacks` may have it, the best first."""

    id: str
    endpoint: str
    priority: int
    tenant: str
    cls: str
    waited_s: float
    fallbacks: tuple[str, ...] = ()


@_value
class Refuse:
    """Answer the request with `reason`. `retry_after_s` is from the measured drain rate."""

    id: str
    reason: Reason
    message: str
    retry_after_s: int
    tenant: str
    cls: str
    waited_s: float


@_value
class Evict:
    """Take the released request back from its engine: answer its client with `reason`, and end its stream. Its slots
    count as taken until its `End`; nothing is charged for it. Where its answer has begun already there may be nobody
    left to tell."""

    id: str
    reason: Reason
    message: str
    retry_after_s: int
    tenant: str
    cls: str
    inside_s: float  # since its release


@_value
class Settled:
    """The request's cost is final. For the books; nothing is to be done."""

    id: str
    tenant: str
    cls: str
    source: Source
    cost: float
    estimate: float


Effect = Release | Refuse | Evict | Settled
