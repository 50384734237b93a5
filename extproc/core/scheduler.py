"""One pool's scheduler: the only writer of its state. Events in, effects out.

`apply(event, now)` is everything. An arrival is queued in its class's fair order or refused at the
door. Whenever something may have made room (arrival, end of a stream, scrape) `_dispatch` releases as
many as fit:

    classes in order of rank, but one that is behind its `min_share` first;
    the class's next request in fair order; None when caps block all of it: the next class may try;
    the endpoint with the most room that accepts it; none: stop. A lower class never passes a blocked
    higher one.

`min_share` is a start-tag queue over guarantees, see `class_queue`: a backlogged class whose tag is
below V is behind.

The slot of a request is free when its stream ends (`End`); its cost is final when its usage comes
(`Usage`), in any order. A request that ended and whose usage stays away is settled from time or
estimate after `usage_grace_s`. No timer touches a slot.

Invariants (`check`, run after every event in tests): each request has one outcome; slots in flight are
the sum over released requests, never negative, and return to zero; a request is settled once;
nothing waits while it could go.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable

from extproc.core.admission import over_limit
from extproc.core.class_queue import ClassQueue
from extproc.core.drain_rate import DrainRate, with_jitter
from extproc.core.estimates import Estimator
from extproc.core.events import (
    Arrive,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Tick,
    Unreachable,
    Usage,
)
from extproc.core.model import (
    MAX_SLOTS,
    MAX_TOKENS,
    PoolPolicy,
    Request,
    Source,
    State,
)
from extproc.core.priority import engine_priority
from extproc.core.reasons import Reason
from extproc.core.window import Stance, Window

_SLACK = 256  # stale deadlines that are not worth a rebuild


class Scheduler:
    """See the module's docstring. Not thread-safe, by design: one caller."""

    def __init__(self, policy: PoolPolicy) -> None:
        # Public to read (`view`, `explanation`, `invariants`), written here alone.
        self.policy = policy
        self.classes = [ClassQueue(c, policy) for c in sorted(policy.classes, key=lambda c: c.rank)]
        self._by_name = {c.policy.name: c for c in self.classes}
        self._q_max = float(max(c.policy.max_waiting for c in self.classes))
        self._share_v = 0.0
        self.windows: dict[str, Window] = {}
        self.requests: dict[str, Request] = {}
        self._deadlines: list[tuple[float, int, Request]] = []
        self.inside: Counter[str] = Counter()  # tenant -> its requests inside the engines
        self.queued = 0
        self.queued_bytes = 0
        self.tenant_bytes: Counter[str] = Counter()  # of the bodies that wait
        self._seq = 0
        self._releases = 0
        self._estimator = Estimator()
        self.drain = DrainRate()

    # -- the entry --------------------------------------------------------------------------------

    def apply(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at time `now` (seconds). Returns what is to be done about it.

        Raises ValueError for an event that names an unknown class or a known request id anew; events
        about unknown requests or endpoints are ignored (they come late, or from another process)."""
        effects: list[Effect] = []
        match event:
            case Arrive():
                self._arrive(event, now, effects)
            case End():
                self._end(event, now)
            case Usage():
                self._usage(event, now, effects)
            case Unreachable():
                self._unreachable(event, now)
            case Scraped():
                window = self.windows.get(event.endpoint)
                if window is not None:
                    window.on_sample(event.sample, self._q_max, self._asked(), now)
            case ScrapeFailed():
                window = self.windows.get(event.endpoint)
                if window is not None:
                    window.on_failure(event.refused)
            case EndpointAdded():
                self._add_endpoint(event.endpoint, now)
            case EndpointRemoved():
                self._remove_endpoint(event.endpoint)
            case Tick():
                pass
        self._dispatch(now, effects)
        # What could go has gone, were it in its last moment. What is late may have blocked others.
        if self._expire(now, effects):
            self._dispatch(now, effects)
        return effects

    def next_deadline(self) -> float | None:
        """When `Tick` is due at the latest; None: nothing waits for time to pass."""
        deadlines = self._deadlines
        while deadlines and not _is_due_for(deadlines[0][2], deadlines[0][0]):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    # -- events -----------------------------------------------------------------------------------

    def _arrive(self, event: Arrive, now: float, effects: list[Effect]) -> None:
        if event.id in self.requests:
            raise ValueError(f"request id {event.id!r} is in use")
        cls = self._by_name.get(event.cls)
        if cls is None:
            raise ValueError(f"class {event.cls!r} is not one of {sorted(self._by_name)}")
        limit = over_limit(event, cls, self.policy, self.queued, self.queued_bytes, self.tenant_bytes[event.tenant])
        if limit is not None:
            effects.append(self._refuse(event, limit.reason, limit.waiting, now, limit.message))
            return
        timeout = cls.policy.queue_timeout_s
        if event.timeout_s is not None:
            timeout = min(timeout, max(0.0, event.timeout_s))
        n = min(max(1, event.n), MAX_SLOTS)
        max_output = None if event.max_output is None else min(max(1, event.max_output), MAX_TOKENS)
        prompt = self._estimator.prompt_tokens(event.tenant, event.body_bytes)
        self._seq += 1
        arrival = event.arrival if event.arrival < now else now  # now also where it is no number
        request = Request(
            id=event.id,
            tenant=event.tenant,
            cls=event.cls,
            arrival=arrival,
            seq=self._seq,
            body_bytes=event.body_bytes,
            prompt_tokens=prompt,
            output_tokens=self._estimator.output_tokens(event.tenant, event.cls, prompt, max_output, n),
            max_output=max_output,
            slots=n,
            deadline=arrival + timeout,
        )
        self.requests[request.id] = request
        if self.queued == 0:
            self.drain.resume(now)
        self._count_queued(request, 1)
        cls.put(request, self._share_v)
        self._set_deadline(request, request.deadline)

    def _refuse(self, of: Arrive | Request, reason: Reason, ahead: int, now: float, message: str) -> Refuse:
        retry = with_jitter(self.drain.wait_s(ahead, now), of.id)
        return Refuse(of.id, reason, message, retry, of.tenant, of.cls, max(0.0, now - of.arrival))

    def _end(self, event: End, now: float) -> None:
        request = self.requests.get(event.id)
        if request is None:
            return
        if request.state is State.QUEUED:
            self._leave_queue(request, State.CANCELLED)
            return
        if request.state is not State.RELEASED:
            return
        window = self.windows.get(request.endpoint or "")
        if window is not None:
            window.free(request.slots, now, guest=request.guest)
            if window.removed and window.in_flight == 0:
                del self.windows[window.endpoint]
        self._by_name[request.cls].queue.free(request)
        self.inside[request.tenant] -= 1
        if self.inside[request.tenant] == 0:
            del self.inside[request.tenant]
        if request.settled:
            request.move(State.SETTLED)
            del self.requests[request.id]
            return
        request.move(State.ENDED)
        request.ended_at = now
        self._set_deadline(request, now + self.policy.usage_grace_s)

    def _unreachable(self, event: Unreachable, now: float) -> None:
        request = self.requests.get(event.id)
        window = None if request is None else self.windows.get(request.endpoint or "")
        if window is not None:
            window.on_unreachable(now, broke=event.broke)

    def _usage(self, event: Usage, now: float, effects: list[Effect]) -> None:
        request = self.requests.get(event.id)
        if request is not None and not request.settled and request.state in (State.RELEASED, State.ENDED):
            self._settle(request, event, now, effects)

    def _settle(self, request: Request, usage: Usage, now: float, effects: list[Effect]) -> None:
        source, estimate = usage.source, request.charged
        prompt, output = _tokens(usage.prompt_tokens), _tokens(usage.output_tokens)
        if source is Source.USAGE and prompt is None and output is None:
            source = Source.TIME  # it says that it counts, and does not
        if source is Source.USAGE:
            self._estimator.observe(
                request.tenant, request.cls, request.body_bytes, request.prompt_tokens, prompt, output, request.slots
            )
        if source is Source.ERROR:
            cost = 0.0
        elif source is Source.ESTIMATE:
            cost = request.charged
        else:
            produced: float | None = output
            if produced is None:
                produced = self._output_by_time(request, now)
            if produced is None:
                produced = request.output_tokens
                source = Source.ESTIMATE if source is Source.TIME else source
            read = request.prompt_tokens if prompt is None else float(prompt)
            cost = self.policy.weights.cost(read, produced, _tokens(usage.cached_tokens) or 0)
        self._by_name[request.cls].queue.settle(request, cost)
        request.settled = True
        if request.state is State.ENDED:
            request.move(State.SETTLED)
            del self.requests[request.id]
        effects.append(Settled(request.id, request.tenant, request.cls, source, cost, estimate))

    def _output_by_time(self, request: Request, now: float) -> float | None:
        """Tokens that fit into the time it had, at the endpoint's pace; never more than was asked for."""
        window = self.windows.get(request.endpoint or "")
        if window is None or not window.tpot_s:
            return None
        until = now if request.ended_at is None else request.ended_at
        most = MAX_TOKENS if request.max_output is None else request.max_output
        return min((until - request.released_at) / window.tpot_s, float(most)) * request.slots

    # -- endpoints --------------------------------------------------------------------------------

    def _add_endpoint(self, endpoint: str, now: float) -> None:
        window = self.windows.get(endpoint)
        if window is None:
            self.windows[endpoint] = Window(endpoint, self.policy.window, now)
        elif window.removed:
            # Streams of its earlier life still run: their books go on, all else starts anew.
            window.revive(now)

    def _remove_endpoint(self, endpoint: str) -> None:
        window = self.windows.get(endpoint)
        if window is None:
            return
        window.removed = True
        if window.in_flight == 0:
            del self.windows[endpoint]

    # -- time -------------------------------------------------------------------------------------

    def _set_deadline(self, request: Request, at: float) -> None:
        request.deadline = at
        self._seq += 1
        heapq.heappush(self._deadlines, (at, self._seq, request))
        if len(self._deadlines) > _SLACK + 2 * len(self.requests):
            self._deadlines = [entry for entry in self._deadlines if _is_due_for(entry[2], entry[0])]
            heapq.heapify(self._deadlines)

    def _expire(self, now: float, effects: list[Effect]) -> bool:
        """Whether a request has left the queue."""
        left = False
        while (due := self.next_deadline()) is not None and due <= now:
            request = heapq.heappop(self._deadlines)[2]
            if request.state is State.ENDED:
                self._settle(request, Usage(request.id, Source.TIME), now, effects)
                continue
            cls = self._by_name[request.cls]
            ahead = len(cls.queue)
            waited = f"waited {now - request.arrival:.1f} s"
            limit = f"class {request.cls!r} allows {cls.policy.queue_timeout_s:g} s (queue_timeout of the class)"
            if any(w.stance(now) is not Stance.DOWN for w in self.windows.values() if not w.removed):
                refusal = self._refuse(request, Reason.QUEUE_TIMEOUT, ahead, now, f"{waited}, and {limit}")
            else:
                message = f"{waited} while no endpoint of pool {self.policy.name!r} answered; {limit}"
                refusal = self._refuse(request, Reason.NO_CAPACITY, ahead, now, message)
            self._leave_queue(request, State.EXPIRED)
            effects.append(refusal)
            left = True
        return left

    def _leave_queue(self, request: Request, to: State) -> None:
        request.move(to)
        self._by_name[request.cls].queue.remove(request)
        self._count_queued(request, -1)
        del self.requests[request.id]

    def _count_queued(self, request: Request, by: int) -> None:
        self.queued += by
        self.queued_bytes += by * request.body_bytes
        self.tenant_bytes[request.tenant] += by * request.body_bytes
        if not self.tenant_bytes[request.tenant]:
            del self.tenant_bytes[request.tenant]

    # -- dispatch ---------------------------------------------------------------------------------

    def order(self) -> Iterable[tuple[ClassQueue, float]]:
        """Backlogged classes in the order in which they may go, each with its standing queue."""
        waiting = [c for c in self.classes if len(c.queue) > 0]
        behind = sorted((c for c in waiting if c.behind(self._share_v)), key=lambda c: c.share_tag)
        # Its turn counts as the highest class's: else a full standing queue would starve it for ever.
        yield from ((c, self._q_max) for c in behind)
        yield from ((c, float(c.policy.max_waiting)) for c in waiting)

    def _asked(self) -> float:
        """The standing queue that the next request in line aims at, less what it takes beyond one slot."""
        for cls, q in self.order():
            request = None if cls.capped() else cls.queue.peek()
            if request is not None:
                return max(0.0, q - (request.slots - 1))
        return self._q_max

    def _dispatch(self, now: float, effects: list[Effect]) -> None:
        while self.queued and self._release_one(now, effects):
            pass

    def _release_one(self, now: float, effects: list[Effect]) -> bool:
        for cls, q in self.order():
            if cls.capped():
                continue
            request = cls.queue.peek()
            if request is None:
                continue
            window, most = self._pick(request, q, now)
            if window is None:
                return False
            effects.append(self._release(request, cls, window, most, now))
            return True
        return False

    def _pick(self, request: Request, q: float, now: float) -> tuple[Window | None, float | None]:
        """The accepting endpoint that is least full in proportion to its window; among equals, the one that has not
        been used for longest. A tenant with nothing inside may exceed a full window by `overtake`, and where all are
        overfull, go to one that holds fewer than `overtake` such guests: then with what `Window.take` is to be told."""
        windows = self.windows.values()
        open_ones = [w for w in windows if w.accepts(request.slots, q, now)]
        # A class without a standing queue of its own has nobody to overtake.
        overtakes = not open_ones and q > 0 and request.tenant not in self.inside
        overtake = self.policy.window.overtake
        if overtakes and overtake:
            open_ones = [w for w in windows if w.may_overtake(request.slots, q, overtake, now)]
        if not open_ones:
            return None, None
        best = min(open_ones, key=lambda w: (w.load / max(1.0, w.limit(q, now)), w.load, w.last_take))
        return best, best.limit(q, now) + overtake if overtakes else None

    def _release(self, request: Request, cls: ClassQueue, window: Window, most: float | None, now: float) -> Release:
        charge = self.policy.weights.cost(request.prompt_tokens, request.output_tokens)
        popped = cls.queue.pop(charge)
        if popped is not request:
            raise AssertionError(f"peek and pop disagree: {request.story()}")
        request.move(State.RELEASED)
        request.endpoint = window.endpoint
        request.released_at = now
        self._count_queued(request, -1)
        priority = engine_priority(cls.policy, self.inside.get(request.tenant, 0), self.policy.priority_gap)
        self.inside[request.tenant] += 1
        self._releases += 1
        request.guest = window.take(request.slots, now, number=self._releases, most=most)
        self.drain.count(now)
        self._share_v += charge
        cls.served(charge, self._share_v)
        return Release(
            id=request.id,
            endpoint=window.endpoint,
            priority=priority,
            tenant=request.tenant,
            cls=request.cls,
            waited_s=now - request.arrival,
        )


def _is_due_for(request: Request, at: float) -> bool:
    """Whether a deadline entry is live: the request still waits for just this one."""
    if request.deadline != at:
        return False
    return request.state is State.QUEUED or (request.state is State.ENDED and not request.settled)


def _tokens(count: int | None) -> int | None:
    """A count that an engine claims, within reason; negative ones are no count."""
    return None if count is None or count < 0 else min(count, MAX_TOKENS)
