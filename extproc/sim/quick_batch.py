"""The quick engine's batch and queue: who has a slot, who gets what in a step, who loses his blocks.

Nothing is kept per token. With the steps numbered through, a decoding sequence is known by the number of the step that
gives its last token, ``end``. After step n, when it gets a token in every one,

    produced(n) = target - (end - n)        computed(n) = peak - (end - n)

Ends come from a heap of ``end``; blocks from the count of sequences by the phase in which they ask for one.

Two facts about the rules make a step cheap:

- At most one running sequence lacks more of its prompt than it gets in the step, and it is the last one of the running
  list: nobody is admitted before a running prompt has got all that it lacks.
- So every decoding sequence gets its token in every step. The exception: a sequence that needs a block and is itself
  the one to be preempted ends the pass, and those behind it get nothing in this step.

A step costs O(log n) for each end and each admission, and O(batch) when it is short of blocks.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from extproc.sim.engine import EngineOptions, Kind, Policy
from extproc.sim.prefix_cache import Beginning, PrefixCache
from extproc.sim.quick_counters import Counters
from extproc.sim.sequence import FinishReason, Request, Sequence, State
from extproc.sim.stretch import Growth, Stretch


class Event(NamedTuple):
    """One thing that happened to one sequence (its index in the request), at the end of a step."""

    at: float
    """Seconds."""
    kind: Kind
    """FIRST_TOKEN, FINISHED (which may be the first token too) or PREEMPTED; never TOKEN."""
    request_id: str
    sequence: int
    tokens: int
    """What the sequence has produced so far."""
    reason: FinishReason | None = None
    last: bool = False
    """The whole request has ended with it."""
    cached: int = 0
    """Prompt tokens of the sequence that were found in the prefix cache when it was last admitted."""


class Row(Sequence):
    """A sequence that nobody touches while it decodes.

    ``produced``, ``computed``, ``blocks`` and ``last_at`` are right only while ``end`` is 0.
    """

    __slots__ = ("admitted", "beginnings", "cached", "end", "siblings")

    def __init__(
        self,
        request: Request,
        index: int,
        key: tuple[int, float, int],
        siblings: list[Row],
        beginnings: tuple[Beginning, ...],
    ) -> None:
        super().__init__(request, index, key, key[1])
        self.siblings: Final = siblings
        """All of the same request, itself included."""
        self.beginnings: Final = beginnings
        self.cached = 0
        self.admitted = 0
        """Place in the running list."""
        self.end = 0
        """Number of the step that gives its last token, while it decodes; else 0."""

    def produced_after(self, step: int) -> int:
        return self.target - (self.end - step) if self.end else self.produced

    def computed_after(self, step: int) -> int:
        return self.peak - (self.end - step) if self.end else self.computed


class Batch:
    """Writes its events to ``events``. Calls come in the order ``begin``, then ``book`` or ``drop``, then ``end``."""

    def __init__(self, options: EngineOptions, events: list[Event], cache: PrefixCache | None) -> None:
        self.options = options
        self.counters: Final = Counters()
        self.running: Final[dict[Row, None]] = {}  # in the order of admission
        self.waiting = 0
        self.step = 0
        """Steps that have ended."""
        self._events: Final = events
        self._cache: Final = cache
        self._queue: list[tuple[int, float, int, Row]] = []
        self._free = options.kv_blocks
        self._admitted = 0
        self._growth: Final = Growth(options.block_size)
        self._context = 0  # tokens in the cache of the decoding ones when the step under way began
        self._ends: Final[list[tuple[int, int, Row]]] = []  # stale when the row's end or place is another one
        self._partial: Row | None = None  # the one that will still lack some of its prompt after this step
        self._taking = 0  # decoding ones that get a token in the step under way
        self._chunks: Final[list[tuple[Row, int]]] = []  # prompt tokens computed in it
        self._skipped: Final[set[Row]] = set()  # decoding ones that get nothing in it
        self._late: Final[dict[Row, float]] = {}  # of those the time of the last token, until the next one

    # -- what goes in and out --------------------------------------------------------------------------------------

    def enqueue(self, row: Row) -> None:
        row.move(State.WAITING)
        heappush(self._queue, (*row.key, row))
        self.waiting += 1

    def drop(self, row: Row) -> None:
        """An aborted one gives its place back, maybe while a step is under way. That takes as long as it would have."""
        if row.state is State.RUNNING:
            in_step = bool(row.end) and row not in self._skipped
            self._taking -= in_step
            self._skipped.discard(row)
            self._late.pop(row, None)
            self._leave(row, extra=in_step)
        elif row.state is State.WAITING:
            self.waiting -= 1
        row.move(State.ABORTED)
        if len(self._queue) > 2 * self.waiting + 64:
            self._queue = [entry for entry in self._queue if entry[3].state is State.WAITING]
            heapify(self._queue)

    def apply(self, options: EngineOptions) -> None:
        """Other sizes and times, between two steps."""
        self._free += options.kv_blocks - self.options.kv_blocks
        self.options = options

    # -- the end of a step -----------------------------------------------------------------------------------------

    def book(self, steps: int, seconds: float) -> None:
        """So many steps in which everybody decodes have ended, and the next one like them has begun."""
        self.counters.steps(self._taking, steps, seconds)
        self._context += self._taking * steps
        self._free -= self._growth.need(self.step + 1, steps - 1)
        self.step += steps
        self._show()
        self._free -= self._growth.need(self.step, 1)

    def end(self, began: float, at: float) -> None:
        """The step under way has ended."""
        self.step += 1
        self._context += self._taking
        self.counters.steps(self._taking, 1, at - began)
        if self._late:
            self._catch_up(began)
        ends = self._ends
        while ends and ends[0][0] <= self.step:
            end, admitted, row = heappop(ends)
            if row.end == end and row.admitted == admitted:
                self._finish(row, at)
        for row, computed in self._chunks:
            if row.state is State.RUNNING:
                row.computed += computed
                if row.computed == row.tokens:
                    self._end_prefill(row, at)
        self._chunks.clear()
        self._taking = 0
        self._show()

    def _show(self) -> None:
        counters = self.counters
        counters.running, counters.waiting = len(self.running), self.waiting
        counters.kv_usage = 1.0 - self._free / self.options.kv_blocks

    def _catch_up(self, began: float) -> None:
        """Those that got nothing in this step are a step behind; the others have got the token that they missed."""
        for row, last_at in list(self._late.items()):
            if row in self._skipped:
                self._growth.drop(row.end - row.peak)
                row.end += 1
                self._growth.add(row.end - row.peak)
                heappush(self._ends, (row.end, row.admitted, row))
            else:
                self.counters.itl_sum += began - last_at
                del self._late[row]
        self._skipped.clear()

    def _end_prefill(self, row: Row, at: float) -> None:
        self.counters.prefilled(row.prompt, row.arrival, row.last_at, row.preempted_unseen, at)
        row.preempted_unseen = 0
        row.produced += 1
        row.last_at = at
        if row.produced == row.target:
            self._finish(row, at)
            return
        if row.first_at is None:
            row.first_at = at
            self._events.append(Event(at, Kind.FIRST_TOKEN, row.request.id, row.index, 1, cached=row.cached))
        row.end = self.step + row.target - row.produced
        heappush(self._ends, (row.end, row.admitted, row))
        self._growth.add(row.end - row.peak)
        self._context += row.computed

    def _finish(self, row: Row, at: float) -> None:
        self._leave(row)
        row.produced = row.target
        row.move(State.FINISHED)
        last = all(r.state is State.FINISHED for r in row.siblings)
        name = row.request.id
        self._events.append(Event(at, Kind.FINISHED, name, row.index, row.target, row.reason, last, row.cached))

    # -- the beginning of a step -----------------------------------------------------------------------------------

    def begin(self, at: float) -> Stretch:
        """Choose what the next step computes. Returns the steps up to the next one that can change anything.

        There must be a sequence, waiting or running.
        """
        while True:  # again when one preempts itself and nobody stands before it, as in the other engine
            crowded = self._schedule(at)
            if self._taking or self._chunks:
                break
        o, taking = self.options, self._taking
        first = (
            o.step_base
            + o.step_per_seq * taking
            + o.step_per_prefill_token * sum(new for _, new in self._chunks)
            + o.step_per_context_token * (self._context - sum(r.computed_after(self.step) for r in self._skipped))
        )
        if crowded or self._chunks or self._late or self._partial is not None:
            return Stretch(at, 1, first, 0.0)
        ends = self._ends
        while ends[0][2].end != ends[0][0] or ends[0][2].admitted != ends[0][1]:
            heappop(ends)
        steps = 1 + self._growth.lasts(self.step + 1, self._free, ends[0][0] - self.step - 1)
        return Stretch(at, steps, first, o.step_per_context_token * taking)

    def _schedule(self, at: float) -> bool:
        """One pass: who gets what in this step. Says whether anybody was preempted."""
        need, chunk, more = self._growth.need(self.step, 1), 0, 0
        if (partial := self._partial) is not None:
            chunk, more = self._chunk(partial)
        if need + more > self._free:
            self._make_room(at)
            return True
        self._free -= need
        self._taking = self._growth.total
        if partial is not None:
            self._continue(partial, chunk, more)
        self._admit(self.options.max_num_batched_tokens - self._taking - chunk, at)
        return False

    def _chunk(self, row: Row) -> tuple[int, int]:
        """Prompt tokens for the one in the middle of its prompt, and the blocks that it needs for them."""
        chunk = min(row.tokens - row.computed, self.options.max_num_batched_tokens - self._growth.total)
        return chunk, self._blocks(row.computed + chunk) - row.blocks

    def _continue(self, row: Row, chunk: int, more: int) -> None:
        self._free -= more
        row.blocks += more
        self._chunks.append((row, chunk))
        if row.computed + chunk == row.tokens:
            self._partial = None

    def _make_room(self, at: float) -> None:
        """A pass with too few free blocks: in the order of the running list, each preempts until it has its block."""
        while self._free < 0:  # after a change of size
            self._preempt(self._victim(), at)
        given: set[Row] = set()
        size, step = self.options.block_size, self.step
        for row in [r for r in self.running if r.end and r.computed_after(step) % size == 0]:
            if row.state is not State.RUNNING:
                continue
            while not self._free:
                victim = self._victim()
                self._preempt(victim, at, extra=victim in given)
                if victim is row:
                    self._skip_behind(row, at)
                    return
            self._free -= 1
            given.add(row)
        if (partial := self._partial) is not None:
            chunk, more = self._chunk(partial)
            while more > self._free:
                victim = self._victim()
                self._preempt(victim, at, extra=victim in given)
                if victim is partial:
                    break
            else:
                self._continue(partial, chunk, more)
        self._taking = self._growth.total

    def _skip_behind(self, row: Row, at: float) -> None:
        """Those behind a sequence that has preempted itself get nothing in this pass."""
        behind = [r for r in self.running if r.end and r.admitted > row.admitted]
        self._taking = self._growth.total - len(behind)
        if self._taking:  # else there is another pass
            self._skipped.update(behind)
            for r in behind:
                self._late.setdefault(r, at)

    def _admit(self, budget: int, at: float) -> None:
        while self.waiting and budget > 0 and len(self.running) < self.options.max_num_seqs:
            while self._queue[0][3].state is not State.WAITING:
                heappop(self._queue)
            row = self._queue[0][3]
            if self._blocks(row.tokens) > self._free:
                return
            heappop(self._queue)
            self.waiting -= 1
            row.computed = row.cached = self._cached(row)
            if row.scheduled_at is None:
                row.scheduled_at = at
                self.counters.prefix_cache_queries += row.prompt
                self.counters.prefix_cache_hits += row.cached
            new = min(row.tokens - row.cached, budget)
            if new < row.tokens - row.cached:
                self._partial = row
            row.blocks = self._blocks(row.cached + new)
            self._free -= row.blocks
            row.move(State.RUNNING)
            self._admitted += 1
            row.admitted = self._admitted
            self.running[row] = None
            self._chunks.append((row, new))
            budget -= new

    def _cached(self, row: Row) -> int:
        """Tokens found in the prefix cache: whole blocks, and never the last token, which must be computed.

        The prompt counts as cached from its admission on. Nobody can look before it is computed: the next one is
        admitted when this one has got all of its chunks.
        """
        if self._cache is None or not row.beginnings:
            return 0
        found = min(self._cache.take(row.beginnings), row.prompt - 1)
        return found - found % self.options.block_size

    def _preempt(self, row: Row, at: float, *, extra: bool = False) -> None:
        """Back to the queue. ``extra``: it has got a block for this step already."""
        if row.end:
            row.produced = row.produced_after(self.step)
            row.last_at = self._late.pop(row, at)
        self._leave(row)
        self._free += extra
        row.computed = 0
        row.preempted += 1
        row.preempted_unseen += 1
        self.enqueue(row)
        self._events.append(Event(at, Kind.PREEMPTED, row.request.id, row.index, row.produced))

    def _victim(self) -> Row:
        if self.options.policy is Policy.FCFS:
            return next(reversed(self.running))  # admitted in the order of their keys
        return max(self.running, key=lambda row: row.key)

    # -- places and blocks -----------------------------------------------------------------------------------------

    def _leave(self, row: Row, *, extra: bool = False) -> None:
        """Give back the slot and the blocks. ``extra``: there are blocks for one token more than it had computed."""
        if row.end:
            computed = row.computed_after(self.step)
            self._growth.drop(row.end - row.peak)
            self._context -= computed
            self._free += self._blocks(computed + extra)
            row.end = 0
        else:
            self._free += row.blocks
            if row is self._partial:
                self._partial = None
        row.blocks = 0
        del self.running[row]

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.options.block_size)

    def validate(self) -> None:
        """Look at the invariants; for tests. Raises RuntimeError with what is wrong."""
        decoding = [row for row in self.running if row.end]
        phases = [0] * self.options.block_size
        for row in decoding:
            phases[(row.end - row.peak) % self.options.block_size] += 1
        computed = {row: row.computed_after(self.step) for row in decoding}
        blocks = sum(
            self._blocks(computed[row] + (row not in self._skipped)) if row.end else row.blocks for row in self.running
        )
        checks = {
            "states": all(row.state is State.RUNNING for row in self.running),
            "queue": self.waiting == sum(entry[3].state is State.WAITING for entry in self._queue),
            "blocks": blocks == self.options.kv_blocks - self._free,
            "phases": (phases, len(decoding)) == (self._growth.counts, self._growth.total),
            "context": self._context == sum(computed.values()),
            "taking": not self.running or self._taking == len(decoding) - len(self._skipped),
            "skipped": self._skipped <= self._late.keys() <= set(decoding),
            "partial": self._partial is None or self._partial is next(reversed(self.running)),
        }
        if wrong := [name for name, good in checks.items() if not good]:
            raise RuntimeError(f"broken: {', '.join(wrong)}; running {list(self.running)}")
