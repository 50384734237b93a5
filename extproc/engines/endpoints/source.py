"""A set of endpoints that changes while Fairlane runs, and what every source of one has in common.

A source is asked in rounds: a question to DNS, a look at a file, a watch of the Kubernetes API. A round that fails
changes nothing: engines do not die because a name server does, and a pool that were emptied by it would turn away
requests that could be served. A round that finds an empty set does empty it: that is what "scaled to zero" looks like.
Engines that are gone without their source knowing are found by their metrics, as all dead engines are.

Before the first good round the set is not known, and `on_change` is not called.

To exchange an endpoint costs the rest of Fairlane about a millisecond of the one thread that serves requests: a reader
of metrics ends, another begins. A source that exchanges a thousand each second would take it whole. So after an
exchange the next one waits 10 ms for each endpoint that went or came, up to 10 s, and of what is found in between the
latest set is handed on then. The first set has nothing to wait for, nor has one after a change of ten or fewer: no
source finds more than ten sets a second.

A failure is said once, again when its cause changes, and at most once a minute; every one is counted.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

MOST: Final = 10_000  # endpoints of one source
TELL_AGAIN_S: Final = 60.0
CHANGED_PER_S: Final = 100  # endpoints, each that goes or comes counted
FEW_CHANGED: Final = 10
LONGEST_HOLD_S: Final = 10.0
_LONGEST_MESSAGE: Final = 1000  # characters; what it quotes is somebody else's


@dataclass(frozen=True, slots=True)
class Endpoint:
    address: str  # ip:port, in the form in which Envoy writes it
    identity: str = ""  # another text: another engine behind the same address; "": the source cannot tell


OnChange = Callable[[tuple[Endpoint, ...]], object]


class EndpointSet(Protocol):
    """The endpoints of one pool."""

    @property
    def name(self) -> str:
        """For logs."""

    @property
    def last_error(self) -> str | None:
        """Cause and cure, as long as the last round failed; None when it did not."""

    @property
    def last_success_at(self) -> float | None:
        """When the set was last known to be right, by the clock given; None: never yet."""

    @property
    def failures(self) -> int:
        """Rounds that failed so far."""

    async def run(self, on_change: OnChange) -> None:
        """Run until cancelled. `on_change` gets the whole set, each address once: as soon as it is known, and when it
        has changed. It is called in the loop and must not block."""


class SourceError(Exception):
    """A round failed. The message names cause and cure."""


class Source(ABC):
    """Runs the rounds of one source. To be used from one event loop; times in seconds, by `clock`."""

    def __init__(self, name: str, pool: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.last_error: str | None = None
        self.last_success_at: float | None = None
        self.failures = 0
        self.faults = 0  # exceptions of `on_change` or our own: mistakes in the code
        self.endpoints: tuple[Endpoint, ...] | None = None  # as handed on; None: not known yet
        self._latest: tuple[Endpoint, ...] | None = None  # as found
        self._hold: asyncio.TimerHandle | None = None  # until the next exchange may be
        self._clock = clock
        self._on_change: OnChange = _nobody
        self._failed_in_row = 0
        self._told: str | None = None  # the failure that the log speaks of last; None: all is well
        self._told_at = float("-inf")
        self._log = structlog.get_logger(pool=pool, source=name)

    async def run(self, on_change: OnChange) -> None:
        self._on_change = on_change
        try:
            while True:
                pause_s = await self._guarded_round()
                await asyncio.sleep(pause_s)
        finally:
            if self._hold is not None:
                self._hold.cancel()

    async def _guarded_round(self) -> float:
        try:
            return await self._round()
        except SourceError as error:
            return self._failed(str(error))
        except Exception as error:
            self.faults += 1
            self._log.exception("fault while looking for endpoints", exc_info=error)
            return self._failed(f"a fault of Fairlane's own, to be reported: {error!r}")

    @abstractmethod
    async def _round(self) -> float:
        """One round, which calls `_found` for what it found. Seconds until the next one. Raises SourceError."""

    @abstractmethod
    def _pause_after_failure(self, in_row: int) -> float:
        """Seconds until the next round; `in_row`: rounds that failed without a good one between, 1 or more."""

    def _found(self, endpoints: Iterable[Endpoint]) -> None:
        """The set is this, in this order. Of several with one address the first counts."""
        found: dict[str, Endpoint] = {}
        for each in endpoints:
            found.setdefault(each.address, each)
        self._succeeded()
        self._latest = tuple(found.values())
        if self._hold is None:
            self._exchange()

    def _exchange(self) -> None:
        """Hand on the latest set, if it is another than the last one."""
        self._hold = None
        new, old = self._latest, self.endpoints
        if new is None or new == old:
            return
        self._log.info("endpoints", count=len(new), before=None if old is None else len(old))
        self.endpoints = new
        changed = len(set(new) ^ set(old)) if old is not None else 0
        if changed > FEW_CHANGED:
            hold_s = min(changed / CHANGED_PER_S, LONGEST_HOLD_S)
            self._hold = asyncio.get_running_loop().call_later(hold_s, self._exchange)
        try:
            self._on_change(new)
        except Exception as error:
            self.faults += 1
            self._log.exception("fault while endpoints were exchanged", exc_info=error)

    def _succeeded(self) -> None:
        """The set is known to be as it was."""
        self.last_success_at = self._clock()
        self.last_error = None
        self._failed_in_row = 0
        if self._told is not None:
            self._log.info("endpoints can be read again")
            self._told = None

    def _failed(self, message: str) -> float:
        self.failures += 1
        self._failed_in_row += 1
        self.last_error = message if len(message) <= _LONGEST_MESSAGE else f"{message[:_LONGEST_MESSAGE]}..."
        self._tell()
        return self._pause_after_failure(self._failed_in_row)

    def _tell(self) -> None:
        """Say the failure of the last round, if there is one and it is time to."""
        now = self._clock()
        if self.last_error in (None, self._told) or now - self._told_at < TELL_AGAIN_S:
            return
        self._told, self._told_at = self.last_error, now
        keeps = (
            "the pool has no endpoints until this is mended"
            if self.endpoints is None
            else "the endpoints stay as they were"
        )
        self._log.warning("endpoints not read", cause=self.last_error, count=len(self.endpoints or ()), note=keeps)


def _nobody(_: tuple[Endpoint, ...]) -> None:
    """Before `run`."""
