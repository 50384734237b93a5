"""What the simulated engine was sent: the last requests with their headers, for tests and for a look at the wire.

Bounded in requests and, if bodies are kept, in bytes. Not part of vLLM.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, unique
from typing import Any, Final

from extproc.sim.engine import Engine
from extproc.sim.sequence import State


@unique
class Outcome(Enum):
    """How a request ended."""

    FINISHED = "finished"
    ABORTED = "aborted"
    """The client left."""
    REFUSED = "refused"
    """Answered with an error; ``status`` says which."""


@dataclass(slots=True)
class Entry:
    """One request to a generating endpoint. Times are Unix seconds."""

    seq: int
    path: str
    arrived_at: float
    headers: dict[str, str]
    """Names in lower case; of a repeated header all values, joined by a comma and a space."""
    body_sha256: str
    body_bytes: int
    request_id: str | None = None
    """The engine's id, once it was handed in."""
    priority: int | None = None
    outcome: Outcome | None = None
    status: int | None = None
    tokens: int = 0
    first_token_at: float | None = None
    ended_at: float | None = None

    def end(self, outcome: Outcome, now: float, *, status: int | None, tokens: int = 0) -> None:
        self.outcome, self.ended_at, self.status, self.tokens = outcome, now, status, tokens


class Journal:
    """The last ``limit`` requests in the order of their arrival, and the last ``body_limit`` bytes of their bodies."""

    def __init__(self, limit: int, body_limit: int = 0) -> None:
        self._entries: Final[deque[Entry]] = deque(maxlen=limit)
        self._bodies: Final[dict[int, bytes]] = {}
        self._body_limit = body_limit
        self._body_bytes = 0
        self._seq = 0

    def add(self, path: str, headers: Mapping[str, str], body: bytes, now: float) -> Entry:
        """Record a request. ``headers`` may hold a name more than once (a multidict)."""
        self._seq += 1
        joined: dict[str, str] = {}
        for name, value in headers.items():
            name, value = name.lower(), printable(value)
            joined[name] = f"{joined[name]}, {value}" if name in joined else value
        entry = Entry(self._seq, path, now, joined, hashlib.sha256(body).hexdigest(), len(body))
        self._entries.append(entry)
        if len(body) <= self._body_limit:
            self._bodies[entry.seq] = body
            self._body_bytes += len(body)
            while self._body_bytes > self._body_limit:
                self._body_bytes -= len(self._bodies.pop(next(iter(self._bodies))))
        return entry

    def body(self, seq: int) -> bytes | None:
        """The raw body; None when it is not kept, or no more."""
        return self._bodies.get(seq)

    def clear(self) -> None:
        """Forget all; numbers go on."""
        self._entries.clear()
        self._bodies.clear()
        self._body_bytes = 0

    def dump(self, engine: Engine) -> list[dict[str, Any]]:
        """The entries as JSON objects, with state and tokens as they are now."""
        return [_dump(entry, engine) for entry in self._entries]


def _dump(entry: Entry, engine: Engine) -> dict[str, Any]:
    state, tokens = State.WAITING.value, entry.tokens
    if entry.outcome is not None:
        state = entry.outcome.value
    elif entry.request_id is not None:
        # None: about to be handed in, or just finished
        now = State.WAITING if entry.first_token_at is None else State.RUNNING
        state = (engine.state(entry.request_id) or now).value
        tokens = engine.tokens(entry.request_id)
    return {
        "seq": entry.seq,
        "path": entry.path,
        "arrived_at": entry.arrived_at,
        "headers": entry.headers,
        "body_sha256": entry.body_sha256,
        "body_bytes": entry.body_bytes,
        "request_id": entry.request_id,
        "priority": entry.priority,
        "state": state,
        "status": entry.status,
        "tokens": tokens,
        "first_token_at": entry.first_token_at,
        "ended_at": entry.ended_at,
    }


def printable(value: str) -> str:
    """A header's value without the surrogates that stand for bytes that are no UTF-8."""
    return value.encode("utf-8", "replace").decode()
