"""Runs the model in real time: one timer, set to the engine's next step. An idle engine sets none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from extproc.sim.engine import Engine, Event
from extproc.sim.sequence import Request

Sink = Callable[[Event], None]
"""Gets each event of one request, within the step. Must not block or raise."""

_TIMER_SLACK: Final = 0.002
"""Seconds. Timers are a millisecond coarse. A step late by less counts as punctual, to keep the pace right."""


class Driver:
    """Feeds one engine and hands out its events. Belongs to the running event loop; not thread-safe.

    A busy machine makes steps late. The next step counts from the late one, so lost time is never caught up.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine: Final = engine
        self._loop: Final = asyncio.get_running_loop()
        self._sinks: Final[dict[str, Sink]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._now = time.monotonic()
        self._hung = False

    def submit(self, request: Request, sink: Sink) -> None:
        """Hand a request to the engine. Raises ValueError as ``Engine.add`` does."""
        self.engine.add(request, self._clock())
        self._sinks[request.id] = sink
        self._arm()

    def drop(self, request_id: str) -> None:
        """Forget a request; abort it if it has not ended. Its sink gets nothing any more."""
        if self._sinks.pop(request_id, None) is not None:
            self.engine.abort(request_id, self._clock())

    def hang(self, hung: bool) -> None:
        """Stop stepping, or go on."""
        self._hung = hung
        self._arm()

    def close(self) -> None:
        """Step no more."""
        self._hung = True
        self._sinks.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _clock(self) -> float:
        """Monotonic seconds, never before what the engine was told last."""
        self._now = max(self._now, time.monotonic())
        return self._now

    def _arm(self) -> None:
        if self._timer is not None or self._hung:
            return
        due = self.engine.next_step_at()
        if due is not None:
            self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        due = self.engine.next_step_at()
        if due is None or self._hung:
            return
        now = time.monotonic()
        if now - due < _TIMER_SLACK:
            now = due
        self._now = max(self._now, now)
        try:
            for event in self.engine.step(self._now):
                if (sink := self._sinks.get(event.request_id)) is not None:
                    sink(event)
        finally:
            self._arm()
