"""How it stands with the store and the other replicas, for status and metrics. Times are by the own monotonic clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from extproc.cluster.errors import StoreError


@dataclass(frozen=True, slots=True)
class Seen:
    """Another replica that lives."""

    replica: str
    life: str
    exchanged_at: float
    info: Mapping[str, Any]  # empty where it could not be read


@dataclass(slots=True)
class State:
    """Of one `Exchange`."""

    replica: str
    life: str
    heard_at: float | None = None  # when the last answer was asked for
    lost_since: float | None = None  # since when every exchange has failed
    error: StoreError | None = None  # of the last exchange
    in_use: bool = False  # another process has this replica's id
    peers: tuple[Seen, ...] = ()  # by id
    versions: tuple[str, ...] = ()  # of the format that other replicas of this cluster speak
    configuration: int = 0  # number of the one in the store
    exchanges: int = 0  # with an answer
    failures: int = 0
    last_s: float = 0.0  # that the last exchange took
    missed: int = 0  # answers that lacked messages which nobody has any more
    bad: int = 0  # documents, messages and records that could not be read
    waiting: int = 0  # flows that the others have not been told yet
    bytes_told: int = 0
    bytes_read: int = 0
    last_bytes: tuple[int, int] = field(default=(0, 0))  # told and read in the last exchange

    @property
    def ok(self) -> bool:
        """Whether the store has answered, and the last exchange did not fail."""
        return self.heard_at is not None and self.error is None
