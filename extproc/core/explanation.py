"""Why does a request wait: in data and in a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extproc.core.model import Request, State
from extproc.core.scheduler import Scheduler
from extproc.core.window import Stance, Window


class Hold(Enum):
    """What keeps a queued request where it is."""

    FLOW = "flow"  # its tenant's earlier requests go first
    ORDER = "order"  # other tenants are due first
    TENANT_CAP = "tenant_cap"
    CLASS_CAP = "class_cap"
    HIGHER_CLASS = "higher_class"
    WINDOW = "window"  # no endpoint has room
    NO_ENDPOINT = "no_endpoint"  # none is there, or none answers


@dataclass(frozen=True, slots=True)
class Explanation:
    id: str
    state: State
    hold: Hold | None  # None: it does not wait
    ahead_in_flow: int  # requests of the same tenant and class
    waited_s: float
    timeout_in_s: float
    estimated_wait_s: float
    sentence: str


def explain(scheduler: Scheduler, request_id: str, now: float) -> Explanation | None:
    """None: no such request. O(requests of its flow + endpoints)."""
    request = scheduler.requests.get(request_id)
    if request is None:
        return None
    if request.state is not State.QUEUED:
        told = f"it is with {request.endpoint} since {now - request.released_at:.1f} s"
        if request.state is State.ENDED:
            told = "its answer is over; its token count has not come yet"
        return Explanation(request.id, request.state, None, 0, request.released_at - request.arrival, 0.0, 0.0, told)
    hold, ahead, told = _hold(scheduler, request, now)
    waits = sum(len(c.queue) for c in scheduler.classes if c.policy.rank <= _rank(scheduler, request))
    return Explanation(
        id=request.id,
        state=request.state,
        hold=hold,
        ahead_in_flow=ahead,
        waited_s=now - request.arrival,
        timeout_in_s=request.deadline - now,
        estimated_wait_s=scheduler.drain.wait_s(waits, now),
        sentence=told,
    )


def _rank(scheduler: Scheduler, request: Request) -> int:
    return next(c.policy.rank for c in scheduler.classes if c.policy.name == request.cls)


def _hold(scheduler: Scheduler, request: Request, now: float) -> tuple[Hold, int, str]:
    cls = next(c for c in scheduler.classes if c.policy.name == request.cls)
    leaf = cls.queue.leaf(request.tenant)
    earlier = (
        [e for e in leaf.fifo if e[2].state is State.QUEUED and e[:2] < (request.arrival, request.seq)] if leaf else []
    )
    ahead = len(earlier)
    if leaf is not None and leaf.cap is not None and leaf.in_flight >= leaf.cap:
        told = f"tenant {request.tenant!r} holds {leaf.in_flight} slots and may hold {leaf.cap} (max_in_flight)"
        return Hold.TENANT_CAP, ahead, told
    if ahead:
        return Hold.FLOW, ahead, f"{ahead} earlier requests of tenant {request.tenant!r} go first"
    if cls.capped():
        told = f"class {request.cls!r} holds {cls.queue.in_flight} slots and may hold {cls.policy.max_in_flight}"
        return Hold.CLASS_CAP, ahead, f"{told} (max_in_flight of the class)"
    for other, _ in scheduler.order():
        if other is cls:
            break
        if not other.capped() and other.queue.peek() is not None:
            told = f"{len(other.queue)} requests of class {other.policy.name!r} go first"
            return Hold.HIGHER_CLASS, ahead, told
    windows = [w for w in scheduler.windows.values() if not w.removed]
    if all(w.stance(now) in (Stance.DOWN, Stance.STARTING) for w in windows):
        states = ", ".join(f"{w.endpoint} is {w.stance(now).value}" for w in windows) or "there is none"
        return Hold.NO_ENDPOINT, ahead, f"no endpoint can take it: {states}"
    first = cls.queue.peek()
    if first is not None and first is not request:
        return Hold.ORDER, ahead, f"tenant {first.tenant!r} has had less service and goes first"
    q = float(cls.policy.max_waiting)
    return Hold.WINDOW, ahead, "it is next; " + "; ".join(_room(w, q, now) for w in windows)


def _room(window: Window, q: float, now: float) -> str:
    return (
        f"{window.endpoint} ({window.stance(now).value}) holds {window.in_flight} of ours and {window.foreign} others, "
        f"limit {window.limit(q, now):.1f}"
    )
