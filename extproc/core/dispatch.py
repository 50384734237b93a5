"""Whose turn it is, and where to. Reads the scheduler's state and changes none of it.

    classes that are behind their `min_share`, the furthest behind first;
    then classes by rank, each preceded by the next request of the class below when that has waited for
    long enough to count one class up (`promote_after_s`). Below a class of which something waits at another
    replica (`Scheduler.closed_above`) there are no turns;
    of a class, the next request in fair order, or one within `prefix_slack` of it whose prompt an endpoint
    with room has just read; None when caps and rates block all of it: the next class may try;
    of the endpoints that accept it the one with the best score, see `choice`; none: nobody goes. A lower class never
    passes a blocked higher one. Where Envoy chooses the endpoint, all of them together accept it, see
    `windows.pool_load`; then nobody overtakes, and there are no warm requests.

A class that is behind, or a request that counts one class up, has the standing queue of those it passes:
else a full one would hold it for ever. Where its own gates hold it, it does not hold up those whom it would
have passed: they may go to the endpoints that it may not use, and to no other.

A window may owe the next turn to a request that it has refused for long enough (`Window.owed`), and refuse all
others meanwhile. Such a request is asked for also where a higher class stands before it, or neither would go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from extproc.core.choice import ranked
from extproc.core.class_queue import ClassQueue
from extproc.core.model import ClassPolicy, Gates, Request, State
from extproc.core.windows import Window

if TYPE_CHECKING:
    from extproc.core.scheduler import Scheduler

_HEADS = 32  # flows looked at for a warm prefix


class By(Enum):
    """Why it is a class's turn."""

    RANK = "rank"
    SHARE = "min_share"  # it is behind
    PROMOTION = "promote_after"


_RANK, _SHARE, _PROMOTION = By.RANK, By.SHARE, By.PROMOTION  # as globals, for the hot path


class Turn(NamedTuple):
    """A class whose turn it is."""

    cls: ClassQueue
    q: float  # standing queue that it may use
    counts_as: ClassPolicy  # what the engine's priority goes by
    request: Request  # the next one in fair order
    by: By


class Choice(NamedTuple):
    """The next release."""

    turn: Turn
    request: Request
    window: Window
    others: Sequence[Window]  # those that accept it as well and are next best, as far as that was asked
    most: float | None  # what a full window may be exceeded to, for one that overtakes; None: there was room


# A named tuple's own constructor is written in Python, and takes three times as long.
_turn: Callable[[tuple[ClassQueue, float, ClassPolicy, Request, By]], Turn] = partial(tuple.__new__, Turn)
_choice: Callable[[tuple[Turn, Request, Window, Sequence[Window], float | None]], Choice] = partial(
    tuple.__new__, Choice
)


def turns(scheduler: Scheduler, now: float) -> Iterator[Turn]:
    """Classes with something that may go, in the order in which they may."""
    classes = scheduler.classes
    if scheduler.has_shares:
        behind = [c for c in scheduler.sharing if c.behind(scheduler.share_v) and c.queue.root.queued]
        behind.sort(key=lambda c: c.share_tag)
        for cls in behind:
            request = None if cls.capped() else cls.queue.peek(now)
            if request is not None:
                yield Turn(cls, scheduler.q_max, cls.policy, request, _SHARE)
    may_promote = scheduler.promotes and scheduler.ageing.due(scheduler.policy.promote_every)
    for i, cls in enumerate(classes):
        if cls.policy.rank > scheduler.closed_above:
            return
        if may_promote and i + 1 < len(classes):
            below = classes[i + 1]
            request = aged(below, now)
            if request is not None:
                yield Turn(below, max(cls.q, below.q), cls.policy, request, _PROMOTION)
        if not cls.queue.root.queued or full(scheduler, cls, now):
            continue
        request = cls.queue.peek(now)
        if request is not None:
            yield Turn(cls, cls.q, cls.policy, request, _RANK)


def aged(cls: ClassQueue, now: float) -> Request | None:
    """The next request of a class, where it has waited for long enough to count one class up."""
    after = cls.policy.promote_after_s
    if after is None or not cls.queue.root.queued or cls.capped():
        return None
    request = cls.queue.peek(now)
    return request if request is not None and now - request.arrival >= after else None


def promotions(scheduler: Scheduler, cls: ClassQueue, now: float) -> int:
    """Slots for those of a class that may count one class up now."""
    request = aged(cls, now)
    if request is None or cls is scheduler.classes[0]:
        return 0
    return request.slots * scheduler.ageing.due(scheduler.policy.promote_every)


def asked(scheduler: Scheduler, now: float) -> float:
    """The standing queue that the next request in line aims at, less what it takes beyond one slot."""
    if scheduler.queued:
        for turn in turns(scheduler, now):
            return max(0.0, turn.q - (turn.request.slots - 1))
    return scheduler.q_max


def full(scheduler: Scheduler, cls: ClassQueue, now: float) -> bool:
    """Whether the class holds all that it may."""
    return cls.capped() or (cls.headroom is not None and cls.held() >= room_left(scheduler, cls, now))


def room_left(scheduler: Scheduler, cls: ClassQueue, now: float) -> int:
    """Slots that a class with `headroom` may hold. With nobody above it, and nobody expected, all of them."""
    headroom = cls.headroom
    if headroom is None:
        raise ValueError(f"class {cls.policy.name!r} has no headroom set")
    capacity = sum(w.slots(now) for w in scheduler.windows.values() if not w.removed)
    return headroom.cap(capacity, now)


def next_release(scheduler: Scheduler, now: float) -> Choice | None:
    """The request that goes next, and where to; None: nothing may go."""
    if scheduler.plain:
        turn = first_turn(scheduler, now)
        if turn is not None:
            window, others, most = pick(scheduler, turn, (), now)
            if window is not None:
                return _choice((turn, turn.request, window, others, most))
        return _owed(scheduler, now)
    passed: list[Gates] = []
    groups = scheduler.policy.prefix_slack > 0 and scheduler.pool_load is None
    for turn in turns(scheduler, now):
        if groups and (choice := _warm(scheduler, turn, passed, now)) is not None:
            return choice
        window, others, most = pick(scheduler, turn, passed, now)
        if most is not None and turn.request.prefix and groups:
            # With many tenants each next one has nothing inside, and would take every place that there is.
            return None
        if window is not None:
            return Choice(turn, turn.request, window, others, most)
        if turn.by is _RANK or turn.cls.gates is None:
            break
        passed.append(turn.cls.gates)
    return _owed(scheduler, now)


def first_turn(scheduler: Scheduler, now: float) -> Turn | None:
    """The first of `turns` where no class has headroom or promotion (`Scheduler.plain`), written out: it is asked for
    three or four times for each request, and mostly in vain."""
    if scheduler.has_shares:
        v = scheduler.share_v
        behind = None
        for cls in scheduler.sharing:
            if cls.share_tag < v and cls.root.queued:
                behind = [cls] if behind is None else [*behind, cls]
        if behind is not None:
            if len(behind) > 1:
                behind.sort(key=lambda c: c.share_tag)
            for cls in behind:
                request = None if cls.capped() else cls.queue.peek(now)
                if request is not None:
                    return _turn((cls, scheduler.q_max, cls.policy, request, _SHARE))
    for cls in scheduler.open_classes:
        root = cls.root
        if root.queued and (cls.cap is None or root.in_flight + root.elsewhere < cls.cap):  # as `capped`
            request = cls.queue.peek(now)
            if request is not None:
                return _turn((cls, cls.q, cls.policy, request, _RANK))
    return None


def pick(
    scheduler: Scheduler, turn: Turn, passed: Sequence[Gates], now: float
) -> tuple[Window | None, Sequence[Window], float | None]:
    """The accepting endpoint with the best score, and the next best of them, see `choice`. A tenant with nothing inside
    may exceed a full window by `overtake`, and where all are overfull, go to one that holds fewer than `overtake` such
    guests: then with what `Window.take` is to be told. `passed`: gates of those who would have gone before, had these
    not been closed."""
    cls, q, _, request, _ = turn
    gates = cls.gates
    windows = scheduler.windows.values()
    if scheduler.pool_load is not None:
        there = [w for w in windows if is_open(w, gates, passed, now)]
        return scheduler.pool_load.place(request, q, now, there), (), None
    there = []
    for w in windows:
        if (gates is not None or passed) and not is_open(w, gates, passed, now):
            continue
        if w.accepts(request, q, now):
            there.append(w)
    if len(there) > 1:
        best, *others = ranked(scheduler, request, there, q, now)
        return best, others, None
    if there:
        return there[0], (), None
    overtake = scheduler.policy.window.overtake
    # A class without a standing queue of its own has nobody to overtake.
    if not overtake or q <= 0 or request.tenant in scheduler.inside or request.tenant in scheduler.elsewhere:
        return None, (), None
    full: Window | None = None
    full_key: tuple[float, float, int] | None = None
    for w in windows:
        if not is_open(w, gates, passed, now):
            continue
        if w.may_overtake(request, q, overtake, now) and (full_key is None or _fullness(w, q, now) < full_key):
            full, full_key = w, _fullness(w, q, now)
    return full, (), None if full is None else full.limit(q, now) + overtake


def is_open(window: Window, gates: Gates | None, passed: Sequence[Gates], now: float) -> bool:
    """Whether no gate is closed there, but those of all who would have gone before are."""
    if gates is not None and window.gate(gates, now) is not None:
        return False
    return not passed or all(window.gate(other, now) is not None for other in passed)


def shut(scheduler: Scheduler, gates: Gates | None, now: float) -> bool:
    """Whether a class's gates are closed at each endpoint."""
    there = [w for w in scheduler.windows.values() if not w.removed]
    return gates is not None and bool(there) and all(w.gate(gates, now) is not None for w in there)


def _fullness(window: Window, q: float, now: float) -> tuple[float, float, int]:
    limit, load = window.limit(q, now), window.in_flight + window.foreign
    return load / (limit if limit > 1.0 else 1.0), load, window.last_take


def _owed(scheduler: Scheduler, now: float) -> Choice | None:
    """A request that a window holds all others back for, and that it takes now."""
    for window in scheduler.windows.values():
        request = window.owed(now)
        if request is None or request.state is not State.QUEUED:
            continue
        cls = scheduler.by_name[request.cls]
        if full(scheduler, cls, now) or cls.queue.peek(now) is not request:
            continue
        if is_open(window, cls.gates, (), now) and _takes(scheduler, window, request, cls.q, now):
            return Choice(Turn(cls, cls.q, cls.policy, request, _RANK), request, window, (), None)
    return None


def _takes(scheduler: Scheduler, window: Window, request: Request, q: float, now: float) -> bool:
    if scheduler.pool_load is None:
        return window.accepts(request, q, now)
    return scheduler.pool_load.place(request, q, now, [window]) is not None


def _warm(scheduler: Scheduler, turn: Turn, passed: Sequence[Gates], now: float) -> Choice | None:
    """Among the flows within the slack, the request whose prompt prefix an endpoint with room has read last."""
    best: Choice | None = None
    best_match = (0, float("-inf"))
    heads = turn.cls.queue.heads(now, scheduler.policy.prefix_slack, _HEADS)
    for request in heads if turn.by is not _PROMOTION else heads[:1]:
        if not request.prefix:
            continue
        for window in scheduler.windows.values():
            match = scheduler.prefixes.match(window.endpoint, request.prefix, now)
            if match <= best_match:
                continue
            if is_open(window, turn.cls.gates, passed, now) and window.accepts(request, turn.q, now):
                best, best_match = Choice(turn, request, window, (), None), match
    return best
