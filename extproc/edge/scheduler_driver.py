"""Ties a scheduler to the event loop: the clock, the streams that wait, one timer.

All calls come from the loop's thread. The timer is armed for the scheduler's next deadline and for
nothing else: when nothing waits, nothing wakes up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from enum import Enum

import structlog

from extproc.core.events import (
    Arrive,
    Cancel,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Evict,
    Failed,
    FirstByte,
    FirstToken,
    Reconfigure,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Synced,
    Tick,
    TurnedAway,
    Unreachable,
    Usage,
)
from extproc.core.model import PoolPolicy, Sample, State
from extproc.core.reasons import Reason
from extproc.core.scheduler import Scheduler
from extproc.core.windows import Stance
from extproc.edge.fault_lines import FaultLines
from extproc.edge.recorder import SchedulerJournal, SchedulerRecorder, Tape

log = structlog.get_logger()


class Interrupted(Enum):
    """Why a held request gets no verdict."""

    LEFT = "left"  # the client has left, or Envoy has answered it: nothing is owed
    HANDED_OVER = "handed_over"  # this process lets go of it, for another to take
    DRAINING = "draining"  # this process stops, and no other can take it
    PASSED = "passed"  # it passes as it came: its pool does not enforce any more


Outcome = Release | Refuse | Interrupted

_VERDICTS = (Release, Refuse)  # `Release | Refuse` would be put together for each effect

_FAULT_PAUSE_S = 1.0  # after a tick that failed: what it was to do may be due still, and fail again


class VerdictLostError(Exception):
    """The scheduler failed with this request's verdict in its hands."""


class SchedulerDriver:
    """Raises nothing but what the scheduler raises for a fault of its own."""

    def __init__(
        self,
        policy: PoolPolicy,
        endpoints: Iterable[str],
        loop: asyncio.AbstractEventLoop,
        recorder: SchedulerRecorder,
        tape: Tape | None = None,
        journal: SchedulerJournal | None = None,
        interrupted: Callable[[str, str], None] | None = None,
    ):
        """`tape`: writes down all that happens; None: nobody does. `journal`: likewise, of single requests.
        `interrupted`: is told of a held request that ends, though its client has not left, and how."""
        self.name = policy.name
        self.scheduler = Scheduler(policy)
        self._tape = tape
        self._journal = journal
        self._interrupted = interrupted
        self._streams: set[str] = set()  # requests whose stream has come and is not over
        self._loop = loop
        self._recorder = recorder
        self._waiters: dict[str, asyncio.Future[Outcome]] = {}
        self.verbose = log.is_enabled_for(logging.DEBUG)  # to ask for each request costs more than most of its steps
        # That must leave, and that nobody has told yet: their stream comes, or goes on, in a moment.
        self._evicted: dict[str, Evict] = {}
        self._evict: dict[str, Callable[[Evict], object]] = {}  # how to tell a request inside that it must leave
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")
        self._faults = FaultLines("scheduler_fault", self.now)
        self._changed = asyncio.Event()  # set at the end of each stream
        self.on_busy: Callable[[], None] | None = None  # as that of `add_endpoint`, for the pool as a whole
        self._on_busy: dict[str, Callable[[], None]] = {}
        self._on_release: dict[str, Callable[[], None]] = {}
        for endpoint in endpoints:
            self._apply(EndpointAdded(endpoint))

    def add_endpoint(
        self, endpoint: str, on_busy: Callable[[], None] | None = None, on_release: Callable[[], None] | None = None
    ) -> None:
        """`on_busy` is called when a request comes to an idle pool, or is the first that has to wait: readings are old
        then; `on_release` when one is released to the endpoint. An endpoint that is added again begins anew."""
        if on_busy is not None:
            self._on_busy[endpoint] = on_busy
        if on_release is not None:
            self._on_release[endpoint] = on_release
        self._apply_safely(EndpointAdded(endpoint))

    def remove_endpoint(self, endpoint: str) -> None:
        """What runs there goes on."""
        self._on_busy.pop(endpoint, None)
        self._on_release.pop(endpoint, None)
        self._apply_safely(EndpointRemoved(endpoint))

    @property
    def endpoints(self) -> tuple[str, ...]:
        """That releases may go to, as far as the set of endpoints is concerned."""
        return tuple(endpoint for endpoint, window in self.scheduler.windows.items() if not window.removed)

    def stance(self, endpoint: str) -> Stance | None:
        """None: it is no endpoint of the pool."""
        window = self.scheduler.windows.get(endpoint)
        return None if window is None or window.removed else window.stance(self.now())

    def busy_at(self, endpoint: str) -> bool:
        """Whether the endpoint's readings matter now: something is held, or runs there, also of other replicas."""
        scheduler = self.scheduler
        window = scheduler.windows.get(endpoint)
        return scheduler.queued > 0 or (window is not None and (window.in_flight > 0 or window.others > 0))

    # The scheduler's clock. Not the loop's: some loops keep theirs in whole milliseconds.
    now = staticmethod(time.monotonic)

    @property
    def busy(self) -> bool:
        """Whether anything is held or inside the engines."""
        return bool(self.scheduler.requests)

    def leaked(self) -> int:
        """Requests that the books have and whose stream is over: 0, or a fault. O(tenants inside)."""
        scheduler = self.scheduler
        return max(0, scheduler.queued + sum(scheduler.inside.values()) - len(self._streams))

    async def emptied(self) -> None:
        """Until nothing is held or inside the engines."""
        while self.scheduler.queued or self.scheduler.inside:
            self._changed.clear()
            await self._changed.wait()

    def arrive(self, event: Arrive) -> asyncio.Future[Outcome]:
        """The future is done at once when the request may go at once, or is refused. It raises
        VerdictLostError after a fault."""
        idle, held = not self.busy, self.scheduler.queued > 0
        waiter: asyncio.Future[Outcome] = self._loop.create_future()
        self._streams.add(event.id)
        self._waiters[event.id] = waiter
        try:
            self._apply(event)
        except BaseException:
            self._waiters.pop(event.id, None)
            self._apply_safely(End(event.id))  # it may stand in the books already, and its client has not left
            self._tell_the_lost()
            raise
        if idle or (not held and self.scheduler.queued > 0):
            for call in self._on_busy.values():
                call()
            if self.on_busy is not None:
                self.on_busy()
        return waiter

    def end(self, request_id: str, how: Interrupted = Interrupted.LEFT) -> None:
        """The request's stream is over; `how`: where it was held to the end. Never raises: it is called from
        clean-up."""
        self._streams.discard(request_id)
        waiter = self._waiters.pop(request_id, None)
        if waiter is not None:
            waiter.cancel()
        self._evict.pop(request_id, None)
        self._evicted.pop(request_id, None)
        request = self.scheduler.requests.get(request_id)
        if request is not None and request.state is State.QUEUED:
            if how is not Interrupted.LEFT and self._interrupted is not None:
                self._interrupted(request_id, how.value)
            match how:
                case Interrupted.LEFT:
                    self._recorder.cancelled(self.name)
                case Interrupted.HANDED_OVER:
                    self._recorder.handed_over(self.name)
                case Interrupted.DRAINING:
                    self._recorder.refused(Reason.DRAINING.code)
        self._apply_safely(End(request_id))
        self._changed.set()

    def on_evict(self, request_id: str, call: Callable[[Evict], object]) -> None:
        """`call` when the request, which is inside, must leave; at once, if it must already. Until its `end`."""
        effect = self._evicted.pop(request_id, None)
        if effect is not None:
            call(effect)
        else:
            self._evict[request_id] = call

    def cancel(self, request_id: str, message: str) -> None:
        """An operator takes the request back, `message` is for its client. One that is not known is ignored."""
        self._apply_safely(Cancel(request_id, message))

    def first_byte(self, request_id: str) -> None:
        """The first byte of the answer is on its way to the client."""
        self._apply_safely(FirstByte(request_id))

    def first_token(self, request_id: str) -> None:
        self._apply_safely(FirstToken(request_id))

    def usage(self, event: Usage) -> None:
        self._apply_safely(event)

    def endpoint_fault(self, event: Unreachable | TurnedAway | Failed) -> None:
        self._apply_safely(event)

    def scraped(self, endpoint: str, sample: Sample) -> None:
        self._apply_safely(Scraped(endpoint, sample))

    def scrape_failed(self, endpoint: str, refused: bool) -> None:
        self._apply_safely(ScrapeFailed(endpoint, refused))

    def synced(self, event: Synced) -> None:
        """What the other replicas have, and what this one may hold."""
        self._apply_safely(event)

    def reconfigure(self, policy: PoolPolicy) -> None:
        """The pool goes on by another policy, with all that waits and runs. Raises ValueError, and changes nothing,
        where that cannot be."""
        self._apply(Reconfigure(policy))

    def set_tape(self, tape: Tape | None) -> Tape | None:
        """Another one writes down what happens from now on, or nobody. Returns the one before, which is still open."""
        before, self._tape = self._tape, tape
        return before

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._tape is not None:
            self._tape.close()

    # -- inside -----------------------------------------------------------------------------------

    def _apply_safely(self, event: Event) -> bool:
        try:
            self._apply(event)
        except Exception:
            self._recorder.fault("scheduler")
            self._faults.exception(pool=self.name, event_type=type(event).__name__)
            self._tell_the_lost()
            return False
        return True

    def _tell_the_lost(self) -> None:
        """A fault loses effects: who has left the queue without a verdict would wait for ever."""
        for name, waiter in list(self._waiters.items()):
            request = self.scheduler.requests.get(name)
            if request is None or request.state is not State.QUEUED:
                del self._waiters[name]
                if not waiter.done():
                    waiter.set_exception(VerdictLostError(name))

    def _apply(self, event: Event) -> None:
        effects = self._taped(event) if self._tape is not None else self.scheduler.apply(event, self.now())
        for effect in effects:
            if self.verbose and isinstance(effect, Release):
                log.debug("released", ticket=effect.id, tenant=effect.tenant, endpoint=effect.endpoint)
            if isinstance(effect, _VERDICTS):
                if isinstance(effect, Release) and (told := self._on_release.get(effect.endpoint)) is not None:
                    told()
                waiter = self._waiters.pop(effect.id, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(effect)
            elif isinstance(effect, Evict):
                call = self._evict.pop(effect.id, None)
                if call is not None:
                    call(effect)
                else:
                    self._evicted[effect.id] = effect
        if effects:
            self._recorder.effects(self.name, effects)
        if self._journal is not None:
            self._journal.seen(self.scheduler, event, self.now(), effects)
        self._arm()

    def _taped(self, event: Event) -> list[Effect]:
        now, tape = self.now(), self._tape
        assert tape is not None  # noqa: S101 - the caller has looked
        try:
            effects = self.scheduler.apply(event, now)
        except Exception as error:
            tape.write(event, now, (), raised=type(error).__name__)
            raise
        tape.write(event, now, effects)
        return effects

    def _arm(self, pause_s: float = 0.0) -> None:
        due = self.scheduler.next_deadline()
        if due is None or due >= self._timer_at:
            return  # a timer that fires early finds nothing due and arms the next
        if pause_s:
            due = max(due, self.now() + pause_s)
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - self.now()), self._fire)

    def _fire(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._arm(0.0 if self._apply_safely(Tick()) else _FAULT_PAUSE_S)
