"""The engine model of ``extproc.sim.engine`` for virtual time: same rules, same results, but work per change only.

Between two changes every decoding sequence gets one token per step. A change is an end, an admission, a chunk of a
prompt, a preemption, an abort, or an arrival. So the engine plans a *stretch* of steps up to the next change that it
can foresee, and works out the step at its end one by one (a *boundary*). What lies between has a closed form, see
``extproc.sim.stretch``; what a step does is in ``extproc.sim.quick_batch``.

Added to the other engine: a prefix cache, a change of size, a restart. Left out: histograms, single tokens.

Time: a call with ``now`` works off the boundaries before ``now``. What arrives or leaves at the very moment at which a
step ends is there for the next step, unless ``advance(now)``, ``page(now)`` or ``tokens(id, now)`` has begun that one.
"""

from __future__ import annotations

import math
from typing import Final

from extproc.sim.engine import EngineOptions, Policy
from extproc.sim.prefix_cache import Beginning, PrefixCache
from extproc.sim.quick_batch import Batch, Event, Row
from extproc.sim.quick_counters import Page
from extproc.sim.sequence import Request, State
from extproc.sim.stretch import Stretch

__all__ = ["Beginning", "Event", "Page", "QuickEngine"]


class QuickEngine:
    """The model. One writer; ``now`` in seconds, never backwards. ``prefix_cache_tokens`` 0: no prefix cache."""

    def __init__(self, options: EngineOptions, *, prefix_cache_tokens: int = 0) -> None:
        self.boundaries = 0
        """Steps worked out one by one so far."""
        self._cache: Final = PrefixCache(prefix_cache_tokens) if prefix_cache_tokens else None
        self._events: Final[list[Event]] = []
        self._now = -math.inf
        self._start(options)

    def _start(self, options: EngineOptions) -> None:
        self._batch = Batch(options, self._events, self._cache)
        self._resized: EngineOptions | None = None  # from the next step on
        self._live: dict[str, list[Row]] = {}  # of each request that has not ended
        self._arrived: list[Row] = []
        self._serial = 0
        self._opens: float | None = None  # when an idle engine begins its next step
        self._stretch: Stretch | None = None  # from the step under way to the next boundary

    # -- what callers ask ------------------------------------------------------------------------------------------

    @property
    def options(self) -> EngineOptions:
        """Size and speed of the step under way."""
        return self._batch.options

    @property
    def unfinished(self) -> int:
        """Sequences that have not ended."""
        return self.running + self.waiting

    @property
    def running(self) -> int:
        """Sequences with a slot, truly, as of the last call: without the dip of the gauge at the end of a step."""
        return len(self._batch.running)

    @property
    def waiting(self) -> int:
        """Sequences without a slot as of the last call, those included that have only just arrived."""
        return self._batch.waiting + len(self._arrived)

    def next_event_at(self) -> float | None:
        """A time before which nothing happens: ``advance`` to it, and ask again. None when the engine is idle.

        ``advance`` may find nothing at that time, e.g. when it was for a chunk of a prompt or for an arrival.
        Events that other calls have come across and nobody has fetched yet count: their time can have passed.
        """
        return self._events[0].at if self._events else self._boundary_at()

    def advance(self, now: float) -> list[Event]:
        """Go on to ``now``. What happened since the last call, in order, each with its own time."""
        self._reach(now, inclusive=True)
        events = self._events.copy()
        self._events.clear()
        return events

    def page(self, now: float) -> Page:
        """What the metrics page says at ``now``: the state at the end of the last step until then."""
        self._reach(now, inclusive=True)
        self._book(now, inclusive=True)
        return self._batch.counters.page(self.options.kv_tokens)

    def tokens(self, request_id: str, now: float) -> int:
        """Tokens produced so far by a request that has not ended; 0 for others."""
        self._reach(now, inclusive=True)
        self._book(now, inclusive=True)
        return sum(row.produced_after(self._batch.step) for row in self._live.get(request_id, ()))

    # -- what goes in ----------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float, beginnings: tuple[Beginning, ...] = ()) -> None:
        """Hand in a request. It is looked at when the next step begins: at once if the engine is idle.

        ``beginnings``: of each of its prompts, shortest first, for the prefix cache.
        Raises ValueError for an id in use, and for a request that the KV cache could never hold.
        """
        self._reach(now, inclusive=False)
        if request.id in self._live:
            raise ValueError(f"request id {request.id} is in use")
        priority = request.priority if self.options.policy is Policy.PRIORITY else 0
        rows: list[Row] = []
        for index in range(request.size):
            rows.append(Row(request, index, (priority, now, self._serial + index + 1), rows, beginnings))
        largest, most = max(row.peak for row in rows), (self._resized or self.options).kv_tokens
        if largest > most:
            raise ValueError(f"request {request.id} needs {largest} KV tokens of {most}")
        self._serial += len(rows)
        self._live[request.id] = rows
        self._arrived += rows
        if self._stretch is None:
            self._opens = now
        self._cut(now)

    def abort(self, request_id: str, now: float) -> bool:
        """Drop a request in any state. False when it had ended already.

        Its slots and blocks are free for the next step; a step under way takes as long as it would have.
        """
        self._reach(now, inclusive=False)
        rows = self._live.pop(request_id, None)
        if rows is None:
            return False
        self._cut(now)
        for row in rows:
            if row.state is not State.FINISHED:
                self._batch.drop(row)
        self._arrived = [row for row in self._arrived if row.state is State.ARRIVED]
        if not self._arrived:
            self._opens = None
        return True

    def resize(self, options: EngineOptions, now: float) -> None:
        """Other slots, blocks and step times from the next step on. Nobody loses a slot; blocks are taken back.

        Raises ValueError when the policy or the block size is another one, and when what is in the engine could never
        end: a request too large for the KV cache, more sequences running than tokens in a step.
        """
        self._reach(now, inclusive=False)
        if (options.policy, options.block_size) != (self.options.policy, self.options.block_size):
            raise ValueError("policy and block size cannot change")
        largest = max((row.peak for rows in self._live.values() for row in rows), default=0)
        if largest > options.kv_tokens or self.running > options.max_num_batched_tokens:
            raise ValueError(f"{options} is too small: {self.running} are running, the largest has {largest} tokens")
        self._cut(now)
        self._resized = options
        if self._stretch is None:
            self._resize()

    def restart(self, now: float) -> list[str]:
        """The process dies and a new one is there. All requests are lost (their ids), counters begin at 0.

        Events from before are still handed out.
        """
        self._reach(now, inclusive=False)
        lost = list(self._live)
        if self._cache is not None:
            self._cache.clear()
        self._start(self._resized or self.options)
        return lost

    # -- time ------------------------------------------------------------------------------------------------------

    def _boundary_at(self) -> float | None:
        return self._opens if self._stretch is None else self._stretch.end(self._stretch.steps)

    def _reach(self, now: float, *, inclusive: bool) -> None:
        """Work off the boundaries before ``now``, and those at ``now`` if wanted."""
        if now < self._now:
            raise ValueError(f"time goes backwards: {now} after {self._now}")
        self._now = now
        while (at := self._boundary_at()) is not None and (at < now or (inclusive and at == now)):
            self.boundaries += 1
            if self._stretch is not None:
                self._end(self._stretch)
            self._begin(at)

    def _end(self, stretch: Stretch) -> None:
        batch, most = self._batch, stretch.steps - 1
        if most:
            batch.book(most, stretch.end(most) - stretch.start)
        known = len(self._events)
        batch.end(stretch.end(most), stretch.end(stretch.steps))
        for event in self._events[known:]:
            if event.last:
                del self._live[event.request_id]

    def _begin(self, at: float) -> None:
        for row in self._arrived:
            self._batch.enqueue(row)
        self._arrived.clear()
        self._opens = None
        self._resize()
        self._stretch = self._batch.begin(at) if self.unfinished else None

    def _resize(self) -> None:
        if self._resized is not None:
            self._batch.apply(self._resized)
            self._resized = None

    def _book(self, now: float, *, inclusive: bool) -> None:
        """Count the steps of the stretch that have ended by ``now``."""
        if (stretch := self._stretch) is not None and (steps := stretch.ended(now, inclusive=inclusive)):
            self._batch.book(steps, stretch.end(steps) - stretch.start)
            self._stretch = stretch.after(steps)

    def _cut(self, now: float) -> None:
        """Something changes: the step under way is the last one of its stretch."""
        self._book(now, inclusive=False)
        if self._stretch is not None:
            self._stretch = self._stretch.only_first()

    def validate(self) -> None:
        """Look at the invariants; for tests. Raises RuntimeError with what is wrong."""
        self._batch.validate()
        rows = [row for rows in self._live.values() for row in rows if row.state is not State.FINISHED]
        checks = {
            "unfinished": self.unfinished == len(rows),
            "running": {row for row in rows if row.state is State.RUNNING} == set(self._batch.running),
            "idle": (self._boundary_at() is not None) or not rows,
        }
        if wrong := [name for name, good in checks.items() if not good]:
            raise RuntimeError(f"broken: {', '.join(wrong)}; not ended {rows}")
