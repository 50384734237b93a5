"""A model of vLLM's V1 scheduler: continuous batching, chunked prefill, priority, preemption by recompute.

The engine works in steps. A step begins with a choice of what to compute, takes a time that follows from that choice,
and ends with at most one new token for each sequence of the batch:

    seconds = base + per_seq * D + per_prefill_token * P + per_context_token * C

D sequences decode, P prompt tokens are computed, C tokens are in the cache of the decoding ones.

The choice, in vLLM's order:

1. Running sequences first, in the order of their admission. Each gets the tokens that it lacks: one when it decodes, a
   chunk of its prompt when it is in prefill. All share ``max_num_batched_tokens``.
2. A sequence that needs KV blocks when none is free makes room: the running sequence with the highest
   (priority, arrival) loses its blocks and goes back to the queue. That can be the asking sequence itself.
3. If nobody was preempted in this step, waiting sequences are admitted in the order (priority, arrival, serial
   number), while slots, tokens and blocks for the *whole* prompt last. The first one that does not fit ends it.

A running sequence is never preempted for its slot. Under the policy ``fcfs`` every priority counts as 0.

Invariants (``validate`` looks at them): running <= max_num_seqs; used blocks = sum over the running ones, between 0 and
the capacity; a sequence is in exactly one place; each request ends once.

Left out: prefix caching (every query misses), speculative decoding, LoRA, the way from the API server to the engine.

No clock, IO or randomness here: time is an argument ``now`` in seconds. Drive it with
``while (at := engine.next_step_at()) is not None: events = engine.step(at)``.
A step costs O(batch), a token constant work. A preemption costs another O(batch).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, unique
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Final, NamedTuple

from extproc.sim.sequence import FinishReason, Request, Sequence, State
from extproc.sim.stats import Stats

_KEY: Final = attrgetter("key")


@unique
class Policy(Enum):
    """vLLM's --scheduling-policy."""

    FCFS = "fcfs"
    PRIORITY = "priority"


@unique
class Kind(Enum):
    """What an event says."""

    FIRST_TOKEN = "first_token"  # noqa: S105 - no password
    TOKEN = "token"  # noqa: S105 - no password
    FINISHED = "finished"
    """The last token, which may be the first one too."""
    PREEMPTED = "preempted"
    """Back in the queue; no token."""


class Event(NamedTuple):
    """One thing that happened to one sequence (its index in the request). ``tokens``: what it has produced so far."""

    kind: Kind
    request_id: str
    sequence: int
    tokens: int
    reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Size and speed. Times in seconds. The defaults are those of a small engine."""

    max_num_seqs: int = 8
    max_num_batched_tokens: int = 2048
    policy: Policy = Policy.FCFS
    block_size: int = 16
    kv_blocks: int = 65_536
    step_base: float = 0.022
    step_per_seq: float = 0.0006
    step_per_prefill_token: float = 0.00012
    step_per_context_token: float = 0.0

    def __post_init__(self) -> None:
        if min(self.max_num_seqs, self.block_size, self.kv_blocks) < 1:
            raise ValueError("max_num_seqs, block_size and kv_blocks must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(f"max_num_batched_tokens must be at least max_num_seqs ({self.max_num_seqs})")
        times = (self.step_base, self.step_per_seq, self.step_per_prefill_token, self.step_per_context_token)
        if not all(math.isfinite(t) and t >= 0 for t in times) or not any(times[:2]):
            raise ValueError("step times must be finite and not negative, and a decoding step must take time")

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * self.block_size


class _Live:
    """A request that has not ended."""

    __slots__ = ("open", "sequences")

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences: Final = sequences
        self.open = len(sequences)


class Engine:
    """The model. One writer, no locks; every call that takes ``now`` wants it not to go backwards."""

    def __init__(self, options: EngineOptions) -> None:
        self.options: Final = options
        self.stats: Final = Stats()
        self._live: Final[dict[str, _Live]] = {}
        self._arrived: list[Sequence] = []
        # A heap; entries of aborted sequences stay until they surface or outnumber the others.
        self._queue: list[Sequence] = []
        self._waiting = 0
        self._running: list[Sequence] = []
        self._unfinished = 0
        self._free_blocks = options.kv_blocks
        self._batch: dict[Sequence, int] | None = None
        self._due = 0.0
        self._now = -math.inf
        self._serial = 0

    # -- what callers ask ------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> int:
        """Sequences that have not ended. vLLM's --max-num-queued-reqs limits this number."""
        return self._unfinished

    def state(self, request_id: str) -> State | None:
        """RUNNING when any sequence of the request runs, else WAITING; None when it has ended or never was."""
        live = self._live.get(request_id)
        if live is None:
            return None
        return State.RUNNING if any(s.state is State.RUNNING for s in live.sequences) else State.WAITING

    def tokens(self, request_id: str) -> int:
        """Tokens produced so far by a request that has not ended; 0 for others."""
        live = self._live.get(request_id)
        return sum(s.produced for s in live.sequences) if live else 0

    def next_step_at(self) -> float | None:
        """When ``step`` is to be called next. None: nothing to do until the next ``add``."""
        if self._batch is None and not self._unfinished:
            return None
        return self._due

    # -- what goes in ----------------------------------------------------------------------------------------------

    def add(self, request: Request, now: float) -> None:
        """Hand in a request. It is looked at when the next step begins: at once if the engine is idle.

        Raises ValueError for an id in use, and for a request that the KV cache could never hold.
        """
        if request.id in self._live:
            raise ValueError(f"request id {request.id} is in use")
        self._advance(now)
        priority = request.priority if self.options.policy is Policy.PRIORITY else 0
        first = self._serial + 1
        sequences = [Sequence(request, i, (priority, now, first + i), now) for i in range(request.size)]
        largest = max(s.peak for s in sequences)
        if largest > self.options.kv_tokens:
            raise ValueError(f"request {request.id} needs {largest} KV tokens of {self.options.kv_tokens}")
        self._serial += len(sequences)
        if self._batch is None and not self._unfinished:
            self._due = now
        self._live[request.id] = _Live(sequences)
        self._arrived.extend(sequences)
        self._unfinished += len(sequences)

    def abort(self, request_id: str, now: float) -> bool:
        """Drop a request in any state. False when it had ended already.

        Its slots and blocks are free for the next step; a step under way takes as long as it would have.
        """
        live = self._live.pop(request_id, None)
        if live is None:
            return False
        self._advance(now)
        for sequence in live.sequences:
            if sequence.state is State.FINISHED:
                continue
            if sequence.state is State.RUNNING:
                self._running.remove(sequence)
                self._release(sequence)
            elif sequence.state is State.WAITING:
                self._waiting -= 1
            sequence.move(State.ABORTED)
            self._unfinished -= 1
        if len(self._queue) > 2 * self._waiting + 64:
            self._queue = [s for s in self._queue if s.state is State.WAITING]
            heapify(self._queue)
        if not self._unfinished:
            self._arrived.clear()
        return True

    def step(self, now: float) -> list[Event]:
        """End the step under way, begin the next. ``now`` may be late; the next step counts from it.

        Raises ValueError when called before ``next_step_at()``, or when that is None.
        """
        due = self.next_step_at()
        if due is None or now < due:
            raise ValueError(f"step at {now} but the next one is due at {due}")
        self._advance(now)
        events: list[Event] = []
        if self._batch is not None:
            self._end_step(self._batch, now, events)
        self._begin_step(now, events)
        return events

    # -- the end of a step -----------------------------------------------------------------------------------------

    def _end_step(self, batch: dict[Sequence, int], now: float, events: list[Event]) -> None:
        stats, processed, finished = self.stats, 0, False
        for sequence, computed in batch.items():
            if sequence.state is not State.RUNNING:
                continue  # aborted while the step ran
            sequence.computed += computed
            if sequence.computed < sequence.tokens:
                continue  # a chunk of a prompt
            processed += stats.token(sequence, now)
            sequence.prefilling = False
            sequence.produced += 1
            sequence.last_at = now
            kind, reason = Kind.TOKEN, None
            if sequence.first_at is None:
                sequence.first_at = now
                kind = Kind.FIRST_TOKEN
            if sequence.produced == sequence.target:
                kind, reason, finished = Kind.FINISHED, sequence.reason, True
                self._finish(sequence, now)
            events.append(Event(kind, sequence.request.id, sequence.index, sequence.produced, reason))
        if finished:
            self._running = [s for s in self._running if s.state is State.RUNNING]
        stats.steps += 1
        stats.iteration_tokens.observe(processed)
        stats.running = len(self._running)
        stats.waiting = self._waiting
        stats.kv_usage = 1.0 - self._free_blocks / self.options.kv_blocks

    def _finish(self, sequence: Sequence, now: float) -> None:
        sequence.move(State.FINISHED)
        self.stats.finished(sequence, now)
        self._release(sequence)
        self._unfinished -= 1
        live = self._live[sequence.request.id]
        live.open -= 1
        if not live.open:
            del self._live[sequence.request.id]

    # -- the beginning of a step -----------------------------------------------------------------------------------

    def _begin_step(self, now: float, events: list[Event]) -> None:
        for sequence in self._arrived:
            if sequence.state is State.ARRIVED:
                sequence.move(State.WAITING)
                self._enqueue(sequence)
        self._arrived.clear()
        self._batch = None
        if not self._unfinished:
            return
        # The pass can come out empty when a sequence preempts itself. vLLM then makes an empty step at once; here the
        # pass is repeated. It ends: each empty pass has one running sequence less, and alone a sequence always fits.
        while not (batch := self._schedule(now, events)):
            pass
        self._batch = batch
        self._due = now + self._seconds(batch)

    def _schedule(self, now: float, events: list[Event]) -> dict[Sequence, int]:
        batch: dict[Sequence, int] = {}
        budget, preempted = self._continue_running(batch, events)
        if not preempted:
            self._admit(batch, budget, now)
        return batch

    def _continue_running(self, batch: dict[Sequence, int], events: list[Event]) -> tuple[int, bool]:
        """Give the running ones their tokens. Returns what is left of the budget, and whether anybody was preempted."""
        budget, preempted, position = self.options.max_num_batched_tokens, False, 0
        while position < len(self._running) and budget > 0:
            sequence = self._running[position]
            new = min(sequence.tokens - sequence.computed, budget)
            while not self._allocate(sequence, sequence.computed + new):
                victim = max(self._running, key=_KEY)
                preempted = True
                if victim in batch:  # it stands before this one, which moves up
                    budget += batch.pop(victim)
                    position -= 1
                self._running.remove(victim)
                self._preempt(victim, events)
                if victim is sequence:
                    return budget, True  # as vLLM: those behind it get nothing in this step
            batch[sequence] = new
            budget -= new
            position += 1
        return budget, preempted

    def _admit(self, batch: dict[Sequence, int], budget: int, now: float) -> None:
        while self._waiting and budget > 0 and len(self._running) < self.options.max_num_seqs:
            while self._queue[0].state is not State.WAITING:
                heappop(self._queue)
            sequence = self._queue[0]
            if self._blocks(sequence.tokens) > self._free_blocks:
                return
            heappop(self._queue)
            self._waiting -= 1
            new = min(sequence.tokens, budget)
            self._allocate(sequence, new)
            sequence.move(State.RUNNING)
            if sequence.scheduled_at is None:
                sequence.scheduled_at = now
                self.stats.prefix_cache_queries += sequence.prompt
            self._running.append(sequence)
            batch[sequence] = new
            budget -= new

    def _preempt(self, sequence: Sequence, events: list[Event]) -> None:
        self._release(sequence)
        sequence.move(State.WAITING)
        sequence.computed = 0
        sequence.prefilling = True
        sequence.preempted += 1
        sequence.preempted_unseen += 1
        self._enqueue(sequence)
        events.append(Event(Kind.PREEMPTED, sequence.request.id, sequence.index, sequence.produced))

    def _seconds(self, batch: dict[Sequence, int]) -> float:
        decoding = prefill = context = 0
        for sequence, new in batch.items():
            if sequence.prefilling:
                prefill += new
            else:
                decoding += 1
                context += sequence.computed
        o = self.options
        return (
            o.step_base
            + o.step_per_seq * decoding
            + o.step_per_prefill_token * prefill
            + o.step_per_context_token * context
        )

    # -- places and blocks -----------------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        heappush(self._queue, sequence)
        self._waiting += 1

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.options.block_size)

    def _allocate(self, sequence: Sequence, tokens: int) -> bool:
        """Give the sequence blocks for so many tokens; False, and nothing changed, when they are not there."""
        more = self._blocks(tokens) - sequence.blocks
        if more > self._free_blocks:
            return False
        self._free_blocks -= more
        sequence.blocks += more
        return True

    def _release(self, sequence: Sequence) -> None:
        self._free_blocks += sequence.blocks
        sequence.blocks = 0

    def _advance(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time goes backwards: {now} after {self._now}")
        self._now = now

    def validate(self) -> None:
        """Look at the invariants; for tests. Raises RuntimeError with what is wrong."""
        used = sum(s.blocks for s in self._running)
        live = [s for v in self._live.values() for s in v.sequences if s.state is not State.FINISHED]
        checks = {
            "slots": len(self._running) <= self.options.max_num_seqs,
            "blocks": 0 <= used == self.options.kv_blocks - self._free_blocks <= self.options.kv_blocks,
            "blocks of a sequence": all(s.blocks >= self._blocks(s.computed) for s in self._running),
            "unfinished": self._unfinished == len(live),
            "running": {s for s in live if s.state is State.RUNNING} == set(self._running),
            "waiting": self._waiting == sum(s.state is State.WAITING for s in live),
            "queue": {s for s in self._queue if s.state is State.WAITING}
            == {s for s in live if s.state is State.WAITING},
            "batch": self._batch is None or all(s.blocks for s in self._batch if s.state is State.RUNNING),
        }
        if wrong := [name for name, good in checks.items() if not good]:
            raise RuntimeError(f"broken: {', '.join(wrong)}; running {self._running}, live {live}")
