"""What a replica and the store say to each other in one exchange. Documents and messages are opaque here: `codec` has
what is in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ask:
    """For slots at one endpoint."""

    key: str  # pool and endpoint
    in_flight: int
    want: float
    limit: float  # for the claims of all replicas together


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to which message a replica has read. `epoch` is another one where the store has lost the messages."""

    epoch: str
    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """From a replica."""

    replica: str
    life: str  # of the process: another one with the same replica id has another
    seq: int  # of this life's exchanges: larger each time
    lease_s: float  # how long this counts
    document: bytes  # takes the place of the last one
    message: bytes = b""  # read once by each of the others; empty: none
    asks: tuple[Ask, ...] = ()  # claims that are not asked for again are given up
    cursor: Cursor | None = None  # of the last answer


@dataclass(frozen=True, slots=True)
class Peer:
    """Another replica that lives."""

    replica: str
    life: str
    age_s: float  # of its last exchange
    document: bytes
    messages: tuple[bytes, ...] = ()  # since the cursor, the oldest first


@dataclass(frozen=True, slots=True)
class Answer:
    """From the store."""

    time_ms: int  # the store's clock, since 1970
    born: int  # the exchange at which the store did not know this life, or no more: the last such one
    fresh: bool  # that was this one
    claims: Mapping[str, float]  # key -> slots
    peers: tuple[Peer, ...]
    cursor: Cursor
    missed: bool = False  # messages since the cursor were gone before they were read
    versions: tuple[str, ...] = ()  # of the format, that other replicas of the same cluster speak
    configuration: int = 0  # number of the one in the store; 0: there is none
    garbage: tuple[str, ...] = ()  # records that somebody else must have written: dropped
    bytes_told: int = 0
    bytes_read: int = 0


@dataclass(frozen=True, slots=True)
class InUse:
    """Nothing was written: another process has this replica id."""

    life: str
    remaining_s: float  # of its lease, unless it renews it


@dataclass(frozen=True, slots=True)
class Held:
    """A lease, after it was asked for."""

    holder: str
    remaining_s: float
    since_ms: int  # the store's clock, since 1970
