"""What the edge tells of itself. `telemetry` implements it; `service` hands it over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from extproc.core.events import Effect, Event
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler


class Tape(Protocol):
    """Takes down what a pool's scheduler was told and what it said, for `fairlane replay`. Never raises."""

    def write(self, event: Event, now: float, effects: Sequence[Effect], raised: str | None = None) -> None:
        """`raised`: name of the exception, where the scheduler failed over the event."""

    def close(self) -> None:
        """Nothing more comes."""


class Origin(NamedTuple):
    """Where a request comes from that is traced, as far as its scheduler is not told."""

    traceparent: str  # W3C Trace Context: of Envoy's own span where it has one, else of the client; empty: neither has
    tracestate: str
    model: str | None  # as the client said
    path: str  # without its query
    stream: bool


class SchedulerJournal(Protocol):
    """Looks at what one scheduler does. Never raises."""

    def seen(self, scheduler: Scheduler, event: Event, now: float, effects: Sequence[Effect]) -> None:
        """A scheduler has taken in an event. To be read only."""


class Journal(SchedulerJournal, Protocol):
    """What is told of single requests, in the log and as spans. Never raises."""

    tracing: bool  # whether it is to be asked what it samples

    @property
    def of_observers(self) -> SchedulerJournal:
        """For what would become of requests that pass."""

    def coming(self, request_id: str, x_request_id: str) -> None:
        """A request is about to arrive at its scheduler. `x_request_id`: what Envoy calls it; empty: nothing."""

    def samples(self, traceparent: str) -> bool:
        """Whether a request is traced, where any is: to be asked once for each, before all else is found out that
        `begin` wants. `traceparent`: as that of `Origin`."""

    def begin(self, request_id: str, origin: Origin) -> None:
        """A request is about to arrive at its scheduler, and is traced."""

    def followed(self, request_id: str) -> bool:
        """Whether it wants `first_byte` of this request."""

    def first_byte(self, request_id: str, after_s: float) -> None:
        """The first byte of its answer came so long after its first arrival. Told late, by the access log."""

    def interrupted(self, request_id: str, how: str) -> None:
        """A held request is about to end, and not because its client has left: `handed_over`, `draining`, `passed`."""

    def denied(self, reason: Reason, message: str, model: str | None, x_request_id: str) -> None:
        """A request was refused before it reached a scheduler."""


class SchedulerRecorder(Protocol):
    """Of one scheduler on the event loop."""

    def effects(self, pool: str, effects: list[Effect]) -> None:
        """What the scheduler decided."""

    def cancelled(self, pool: str) -> None:
        """A client left while its request was held."""

    def handed_over(self, pool: str) -> None:
        """A held request was let go, unanswered, for another replica to take."""

    def refused(self, reason: str) -> None:
        """A request was refused, and no effect of a scheduler says so."""

    def fault(self, where: str) -> None:
        """Something inside Fairlane went wrong."""


class Recorder(SchedulerRecorder, Protocol):
    def passed(self, why: str) -> None:
        """A request went through untouched: `unknown_model`, `not_placed`, `not_queued`, `untracked`, `observed` (Envoy
        does not wait for answers), `fault`; `off` or `observe` by the mode of its pool, `mode` where it was held when
        that changed; or its body was not read to the end: `unread`."""

    def observed(self, pool: str, cls: str, outcome: str, waited_s: float, priority: int | None = None) -> None:
        """What would have become of a request that passed, see `observer`; `priority`: that its engine would have been
        told."""

    def untracked(self) -> None:
        """A request was released, and no second stream came to follow it (profile strict)."""

    def body_edit(self, outcome: str) -> None:
        """A body was to be edited: `edited` here, or it stayed as it was, being `compressed` or `no_object`."""

    def clamped(self) -> None:
        """A request asked for a class that it may not use."""

    def choice_ignored(self, pool: str) -> None:
        """Envoy sent a request to another endpoint than the one that it was told."""

    def access_log(self, kind: str) -> None:
        """An entry came: `matched`, `matched_by_id`, `ambiguous`, `no_ticket`, `intermediate`, `other_process`,
        `malformed`."""
