"""What a request costs in the pool's unit of service: before it runs, while it runs, and at its end.

    tokens      prompt * w_prompt + cached * w_cached + output * w_output   (see `CostWeights`)
    requests    1
    time        seconds in the engine * slots

At release the estimate is charged. A request that runs past it goes on being charged (`Overrun`): else one
long answer would be served for nothing until it ends. Its tokens are not seen, so they are reckoned from the
engine's pace and the time for which it runs: since its first token, or, where that is not seen either, since a page
showed that nothing waited in the engine. Time that it may have spent in the engine's own queue does not count. Charging
for it feeds on itself: a tenant that is kept back has fewer requests inside, those get the better priorities, and
the others' requests wait in the engine, and are charged, for ever longer. At the end its charge is trued up to
what it really took, or, where nobody tells, to what fits into the time that it had.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from extproc.core.events import Usage
from extproc.core.model import INSIDE, MAX_TOKENS, PoolPolicy, Request, Sample, Source, Unit
from extproc.core.node import MAX_COST
from extproc.core.sorted_blocks import insert, remove

_Watch = tuple[float, int, Request, float | None]  # (when it is due, breaks ties, it, since when it runs)

_AGAIN = 0.5  # of the time that it has run: an answer of any length is looked at a few times only
_PACE_S = 0.05  # seconds per output token, while no engine has told its own
_SOONEST_S = 0.1
_LAG_S = 1.0  # gauges of a busy vLLM show a burst after 0.4-0.9 s

# As globals: looking a member up in its enum costs more than all else in a line.
_TIME, _ESTIMATE, _ERROR = Source.TIME, Source.ESTIMATE, Source.ERROR
_TOKENS, _REQUESTS, _SECONDS = Unit.TOKENS, Unit.REQUESTS, Unit.TIME
COUNTED = frozenset({Source.USAGE, Source.STREAM})  # sources that know the tokens of a whole answer


class Counts(NamedTuple):
    """What an engine claims that a request took, without what cannot be."""

    prompt: int | None  # tokens
    cached: int  # tokens
    output: int | None  # tokens
    absurd: bool  # something could not be


def counted(usage: Usage) -> Counts:
    prompt, cached, output = usage.prompt_tokens, usage.cached_tokens, usage.output_tokens
    absurd = False
    if prompt is not None and not 0 <= prompt < MAX_TOKENS:
        prompt, absurd = None, True
    if output is not None and not 0 <= output < MAX_TOKENS:
        output, absurd = None, True
    if not 0 <= cached < MAX_TOKENS:
        absurd = True  # more than the whole prompt counts as the whole prompt
        cached = max(0, cached)
    return Counts(prompt, cached, output, absurd)


def estimated(policy: PoolPolicy, prompt: float, output: float, seconds: float, slots: int) -> float:
    """Cost of a request that is expected to take so much. `output`: of all its choices; `seconds`: in the engine."""
    if policy.unit is _TOKENS:
        cost = policy.weights.cost(prompt, output)
        return cost if cost < MAX_COST else MAX_COST
    return 1.0 if policy.unit is _REQUESTS else seconds * slots


def final(
    policy: PoolPolicy, request: Request, source: Source, counts: Counts, pace_s: float | None, now: float
) -> tuple[float, Source]:
    """(cost, where it comes from). `source`: as the edge says; `pace_s`: seconds per output token at its endpoint;
    None: not known."""
    prompt, cached, output, _ = counts
    if request.evicted:
        source = _ERROR
    if source in COUNTED and prompt is None and output is None:
        source = _TIME  # it says that it counts, and does not
    if source is _ERROR:
        return 0.0, source
    if source is _ESTIMATE:
        return request.charged, source
    if policy.unit is _REQUESTS:
        return 1.0, source
    if policy.unit is _SECONDS:
        return _inside_s(request, now) * request.slots, source
    produced: float | None = output
    if produced is None:
        if pace_s:
            seconds = _inside_s(request, now)
            produced = min(seconds / pace_s, float(_most(request))) * request.slots
        else:
            produced = request.output_tokens
            source = _ESTIMATE if source is _TIME else source
    read = request.prompt_tokens if prompt is None else float(prompt)
    # Where the order is bent for warm prompts, what is saved is everybody's: were it the tenant's, its next ones
    # would be due sooner for having been warm, and again.
    cost = policy.weights.cost(read, produced, 0 if policy.prefix_slack > 0 else cached)
    return (cost if cost < MAX_COST else MAX_COST), source


def _inside_s(request: Request, now: float) -> float:
    """Time that it has been in the engine, or was."""
    return max(0.0, (now if request.ended_at is None else request.ended_at) - request.released_at)


def _most(request: Request) -> int:
    return MAX_TOKENS if request.max_output is None else request.max_output


class Overrun:
    """The requests inside, by the time at which their charge is used up. Looked at when something happens
    anyway; it wakes nobody. What is settled leaves at once: most end long before they are due, and would be kept in
    memory until then."""

    __slots__ = ("_due", "_seq", "_unqueued_at", "first")

    def __init__(self) -> None:
        self.first = math.inf  # when the next one is to be looked at; kept, since each event asks
        self._due: list[list[_Watch]] = []
        self._unqueued_at: dict[str, float] = {}  # endpoint -> when nothing waited in it, last
        self._seq = 0

    def __len__(self) -> int:
        return sum(map(len, self._due))

    def on_page(self, endpoint: str, sample: Sample) -> None:
        """A page of `endpoint` was read."""
        if sample.waiting == 0:
            self._unqueued_at[endpoint] = sample.started - _LAG_S

    def forget(self, endpoint: str) -> None:
        self._unqueued_at.pop(endpoint, None)

    def watch(self, request: Request, unit: Unit, pace_s: float | None) -> None:
        """`request` has been released. `pace_s`: seconds per output token of its engine; None: not known."""
        if unit is _REQUESTS:
            return
        expected_s = request.cost if unit is _SECONDS else request.output_tokens * (pace_s or _PACE_S)
        self._put(request, request.released_at + expected_s / request.slots, None)

    def drop(self, request: Request) -> None:
        """It is charged no more."""
        watch = request.watch
        if watch is not None:
            request.watch = None
            due = self._due
            remove(due, watch)
            if watch[0] == self.first:
                self.first = due[0][0][0] if due else math.inf

    def due(self, now: float) -> tuple[Request, float] | None:
        """The next request that is to be charged again, and since when it runs; None: there is no other."""
        while self.first <= now:
            _, _, request, since = self._due[0][0]
            self.drop(request)
            if request.state not in INSIDE:
                continue
            if request.first_token_at is not None:
                since = request.first_token_at
            elif since is None:
                unqueued_at = self._unqueued_at.get(request.endpoint or "", -math.inf)
                since = unqueued_at if unqueued_at >= request.released_at else None
            self._put(request, now + _AGAIN * (now - request.released_at), since)
            if since is not None:
                return request, since
        return None

    def _put(self, request: Request, at: float, since: float | None) -> None:
        seq = self._seq = self._seq + 1
        soonest = request.released_at + _SOONEST_S
        if at < soonest:
            at = soonest
        request.watch = watch = (at, seq, request, since)
        insert(self._due, watch)
        if at < self.first:
            self.first = at


def so_far(request: Request, policy: PoolPolicy, pace_s: float | None, since: float, now: float) -> float:
    """What a request that runs `since` then has cost until now, as far as time tells. `pace_s`: as in `watch`."""
    if policy.unit is _SECONDS:
        return (now - request.released_at) * request.slots
    if not pace_s:
        return 0.0
    produced = min((now - since) / pace_s, float(_most(request))) * request.slots
    return min(policy.weights.cost(request.prompt_tokens, produced), MAX_COST)
