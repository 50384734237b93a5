"""Why does a request wait: in data and in a sentence.

Whose turn it is and which limits hold is told as of the last event, since nothing is decided in between, and since
asking a queue at a later time would open what that time opens: an explanation leaves no trace, or a recording could
not be replayed. Room and stances are those of now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from extproc.core import windows
from extproc.core.class_queue import ClassQueue
from extproc.core.dispatch import By, Turn, room_left, shut, turns
from extproc.core.model import INSIDE, Gates, Outage, Request, State
from extproc.core.priority import engine_priority
from extproc.core.scheduler import Scheduler
from extproc.core.waiting import wait_s
from extproc.core.windows import Stance, Window
from extproc.core.windows.pool_load import PoolLoad


class Hold(Enum):
    """What keeps a queued request where it is."""

    PAUSED = "paused"  # the pool, by an operator
    FLOW = "flow"  # its tenant's earlier requests go first
    ORDER = "order"  # other tenants are due first
    TENANT_CAP = "tenant_cap"  # of the tenant, or of a node above it
    RATE = "rate"  # of the tenant, or of a node above it
    CLASS_CAP = "class_cap"
    HEADROOM = "headroom"  # the class leaves room for higher ones
    HIGHER_CLASS = "higher_class"  # or one that is behind its `min_share`, or has been promoted
    HIGHER_CLASS_ELSEWHERE = "higher_class_elsewhere"  # at another replica that shares the pool
    GATE = "gate"  # a threshold of the class on the endpoints' signals
    WINDOW = "window"  # no endpoint has room, or this replica's part of it is used up
    NO_ENDPOINT = "no_endpoint"  # none is there, or none answers


_UNFORESEEN = (Hold.GATE, Hold.TENANT_CAP)
_STANCES = {
    Stance.DOWN: "down",
    Stance.STALLED: "stalled: it answers, but makes no progress with what it has",
    Stance.STARTING: "starting",
    Stance.OUTAGE: "without a page for half a minute (outage: hold)",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """What holds it, with the figure that was found and the one that it is held against."""

    hold: Hold
    name: str  # of the node, class, endpoint or gate
    value: float | None
    limit: float | None
    told: str  # as a sentence
    then: str  # what must happen next


@dataclass(frozen=True, slots=True)
class Explanation:
    id: str
    state: State
    hold: Hold | None  # None: it does not wait
    name: str  # of what holds it
    value: float | None
    limit: float | None
    ahead_in_flow: int  # requests of the same tenant and class
    flow_position: int  # flows that go before its own, where the tree first parts them; 0: its flow is next
    flows: int  # flows that may go there
    waited_s: float
    timeout_in_s: float
    estimated_wait_s: float | None  # None: not known, or nothing goes until somebody does something
    sentence: str
    next: str  # what must happen for it to go
    priority: int  # that its engine was told, or would be if it went now


def explain(scheduler: Scheduler, request_id: str, now: float) -> Explanation | None:
    """None: no such request. O(flows of its class + endpoints)."""
    request = scheduler.requests.get(request_id)
    if request is None:
        return None
    if request.state is not State.QUEUED:
        return _past(request, now)
    cls = scheduler.by_name[request.cls]
    place = cls.queue.place(request)
    cause = _cause(scheduler, cls, request, place.ahead_in_flow, now)
    return Explanation(
        id=request.id,
        state=request.state,
        hold=cause.hold,
        name=cause.name,
        value=cause.value,
        limit=cause.limit,
        ahead_in_flow=place.ahead_in_flow,
        flow_position=place.position,
        flows=place.flows,
        waited_s=now - request.arrival,
        timeout_in_s=request.expires_at - now,
        estimated_wait_s=_estimate_s(scheduler, request, cause.hold, now),
        sentence=cause.told,
        next=cause.then,
        priority=engine_priority(cls.policy, scheduler.inside.get(request.tenant, 0), scheduler.policy.priority_steps),
    )


def class_cause(scheduler: Scheduler, cls: ClassQueue, now: float) -> Cause | None:
    """What holds the next request of a class; None: nothing of it waits. O(endpoints + classes), and O(flows) where
    caps and rates hold all of it."""
    if not cls.root.queued:
        return None
    request = cls.queue.peek(cls.queue.time)
    if request is None:
        leaf = next(leaf for leaf in cls.queue.leaves() if leaf.queued)
        request = leaf.requests[0][0][2]
    return _cause(scheduler, cls, request, 0, now)


def closed_gates(scheduler: Scheduler, cls: ClassQueue, now: float) -> dict[str, int]:
    """Endpoints that a gate of the class is closed at, by the gate's name: of each endpoint the first one. Those that
    no endpoint closes are there too, with 0."""
    if cls.gates is None:
        return {}
    found = dict.fromkeys(_gates_of(cls.gates), 0)
    for window in scheduler.windows.values():
        gate = None if window.removed else window.gate(cls.gates, now)
        if gate is not None:
            found[gate.name] += 1
    return found


def _gates_of(gates: Gates) -> list[str]:
    limits = {
        "max_waiting": gates.max_waiting,
        "max_tpot": gates.max_tpot_s,
        "max_kv_usage": gates.max_kv_usage,
        "max_ttft": gates.max_ttft_s,
    }
    return [name for name, limit in limits.items() if limit is not None]


def _estimate_s(scheduler: Scheduler, request: Request, hold: Hold, now: float) -> float | None:
    """The rate at which requests went tells nothing while none can go, nor while its class must let others pass."""
    cls = scheduler.by_name[request.cls]
    _, all_of_it = _class_cause(scheduler, cls, cls.queue.time)
    if all_of_it is not None or hold in _UNFORESEEN or scheduler.paused or _no_endpoint(scheduler, now) is not None:
        return None
    return wait_s(scheduler, request, now)


def _past(request: Request, now: float) -> Explanation:
    told, then = f"it is with {request.endpoint} since {now - request.released_at:.1f} s", "its answer ends"
    if request.evicted:
        told, then = f"{told}, and has been evicted, for a higher class or by an operator", "its stream ends"
    if request.state not in INSIDE:
        told, then = "its answer is over; its token count has not come yet", "its token count comes, or is given up"
    waited = request.released_at - request.arrival
    priority = request.priority or 0
    return Explanation(
        request.id, request.state, None, "", None, None, 0, 0, 0, waited, 0.0, None, told, then, priority
    )


def _cause(scheduler: Scheduler, cls: ClassQueue, request: Request, ahead: int, now: float) -> Cause:
    if scheduler.paused:
        name = scheduler.policy.name
        told = f"pool {name!r} is paused (traffic of the pool)"
        return Cause(Hold.PAUSED, name, None, None, told, "an operator resumes it")
    last = cls.queue.time  # of the last event
    block = cls.queue.blocked(request, last)
    if block is not None and block.kind == "rate":
        told = f"tenant {block.path!r} has used up its rate by {-block.value:.0f} cost units"
        seconds = 0.0 if block.until is None else max(0.0, block.until - now)
        ready = f"{seconds:.1f} s pass: its rate is {block.limit:g} cost units a second"
        return Cause(Hold.RATE, block.path, block.value, block.limit, told, ready)
    if block is not None:
        told = f"tenant {block.path!r} holds {block.value:.0f} slots and may hold {block.limit:.0f} (max_in_flight)"
        return Cause(Hold.TENANT_CAP, block.path, block.value, block.limit, told, "one of its requests ends")
    if ahead:
        told = f"{ahead} earlier requests of tenant {request.tenant!r} go first"
        return Cause(Hold.FLOW, request.tenant, float(ahead), 0.0, told, "they are released")
    q, cause = _class_cause(scheduler, cls, last)
    return (
        cause or _no_endpoint(scheduler, now) or _order(cls, request, last) or _no_room(scheduler, cls, request, q, now)
    )


def _class_cause(scheduler: Scheduler, cls: ClassQueue, now: float) -> tuple[float, Cause | None]:
    """(the standing queue that the class may use, what holds all of it; None: it is its turn)."""
    name, held, cap = cls.policy.name, cls.held(), cls.policy.max_in_flight
    if cls.capped() and cap is not None:
        told = f"class {name!r} holds {held} slots and may hold {cap} (max_in_flight of the class)"
        return cls.q, Cause(Hold.CLASS_CAP, name, held, cap, told, "one of the class's requests ends")
    for turn in turns(scheduler, now):
        if turn.cls is cls:
            return turn.q, None
        if turn.by is By.RANK and turn.cls.policy.rank > cls.policy.rank:
            break
        if turn.by is By.RANK or not shut(scheduler, turn.cls.gates, now):
            return cls.q, _passed_by(turn)
    if cls.policy.rank > scheduler.closed_above:
        return cls.q, _passed_by_others(scheduler, cls)
    if cls.headroom is None:
        return cls.q, None
    left = room_left(scheduler, cls, now)
    told = (
        f"class {name!r} holds {held} slots and may hold {left}: the others stay free for higher classes, "
        f"which hold {cls.headroom.mean:.1f} on average (headroom of the class)"
    )
    return cls.q, Cause(Hold.HEADROOM, name, held, left, told, "one of the class's requests ends")


def _passed_by(turn: Turn) -> Cause:
    name, count = turn.cls.policy.name, len(turn.cls.queue)
    told = f"{count} requests of class {name!r} go first"
    if turn.by is By.SHARE:
        told = f"class {name!r} has had less than its min_share and goes first"
    elif turn.by is By.PROMOTION:
        told = f"a request of class {name!r} has waited for its promote_after and goes first"
    return Cause(Hold.HIGHER_CLASS, name, float(count), 0.0, told, "they are released")


def _passed_by_others(scheduler: Scheduler, cls: ClassQueue) -> Cause:
    above = [c.policy.name for c in scheduler.classes if c.policy.rank <= scheduler.closed_above]
    name = above[-1] if above else cls.policy.name
    told = f"requests of class {name!r} wait at another replica and go first"
    return Cause(Hold.HIGHER_CLASS_ELSEWHERE, name, None, None, told, "they are released there")


def _no_endpoint(scheduler: Scheduler, now: float) -> Cause | None:
    there = [w for w in scheduler.windows.values() if not w.removed]
    closed = {Stance.DOWN, Stance.STALLED, Stance.STARTING}
    if scheduler.policy.window.outage is Outage.HOLD:
        closed.add(Stance.OUTAGE)
    if not all(w.stance(now) in closed for w in there):
        return None
    states = ", ".join(f"{w.endpoint} is {_STANCES[w.stance(now)]}" for w in there) or "there is none"
    told = f"no endpoint can take it: {states}"
    return Cause(Hold.NO_ENDPOINT, scheduler.policy.name, None, None, told, "an endpoint answers")


def _order(cls: ClassQueue, request: Request, now: float) -> Cause | None:
    first = cls.queue.peek(now)
    if first is None or first is request:
        return None
    place = cls.queue.place(request)
    told = (
        f"tenant {first.tenant!r} has had less service and goes first; the flow of tenant {request.tenant!r} is "
        f"number {place.position + 1} of {place.flows}"
    )
    return Cause(Hold.ORDER, first.tenant, place.position, 0, told, "the flows before it have had their turn")


def _no_room(scheduler: Scheduler, cls: ClassQueue, request: Request, q: float, now: float) -> Cause:
    there = [w for w in scheduler.windows.values() if not w.removed]
    holds = [(w, None if cls.gates is None else w.gate(cls.gates, now)) for w in there]
    if holds and all(gate is not None for _, gate in holds):
        first = next(gate for _, gate in holds if gate is not None)
        told = "; ".join(f"{w.endpoint}: {_gate(gate)}" for w, gate in holds if gate is not None)
        told = f"a gate of class {request.cls!r} is closed everywhere: {told}"
        return Cause(Hold.GATE, first.name, first.value, first.limit, told, "a page shows the signal within its limit")
    if scheduler.pool_load is not None:
        return _no_room_in_all(scheduler, scheduler.pool_load, there, q, now)
    parts = [_room(w, request, q, now) if gate is None else f"{w.endpoint}: {_gate(gate)}" for w, gate in holds]
    told = "it is next; " + "; ".join(parts)
    rooms = [w for w, gate in holds if gate is None]
    hold = rooms[0].why_not(request, q, now)
    if scheduler.shared is not None and scheduler.shared.lost_since is not None:
        lost = f"for {now - scheduler.shared.lost_since:.1f} s"
        told += f"; the store has not answered {lost}: its part is what is safe without word of the other replicas"
    if hold is not None and hold.name == "share":
        then = "a request of this replica ends, or the next word from the store leaves it more of the endpoint"
        return Cause(Hold.WINDOW, hold.name, hold.value, hold.limit, told, then)
    if hold is None:
        return Cause(Hold.WINDOW, rooms[0].endpoint, None, None, told, "the next event: there is room by now")
    then = f"a request inside ends, or a page shows more room{_or_evicted(scheduler, cls, request, now)}"
    return Cause(Hold.WINDOW, hold.name, hold.value, hold.limit, told, then)


def _no_room_in_all(scheduler: Scheduler, pool_load: PoolLoad, there: Sequence[Window], q: float, now: float) -> Cause:
    """Where Envoy chooses the endpoints."""
    limit, inside = sum(w.limit(q, now) for w in there), pool_load.in_flight + pool_load.foreign
    told = (
        f"it is next; the endpoints together hold {pool_load.in_flight} of ours and {pool_load.foreign} others, limit "
        f"{limit:.1f}"
    )
    then = "a request inside ends, or a page shows more room"
    return Cause(Hold.WINDOW, scheduler.policy.name, inside, limit, told, then)


def _or_evicted(scheduler: Scheduler, cls: ClassQueue, request: Request, now: float) -> str:
    after, preemption = cls.policy.preempt_after_s, scheduler.preemption
    if after is None:
        return ""
    if preemption.leaving:
        return ", or the stream of a request that is evicted ends"
    ranks = {scheduler.by_name[r.cls].policy.rank for r in preemption.candidates.values()}
    if not any(rank > cls.policy.rank for rank in ranks):
        return ""
    left = max(0.0, request.arrival + after - now)
    return f", or in {left:.1f} s at the soonest one of a lower class is evicted for it (preempt_after of the class)"


def _gate(gate: windows.Hold) -> str:
    return f"{gate.name} is {gate.value:g}, limit {gate.limit:g}"


def _room(window: Window, request: Request, q: float, now: float) -> str:
    more = f", {window.others} of other replicas" if window.others else ""
    told = (
        f"{window.endpoint} ({window.stance(now).value}) holds {window.in_flight} of ours{more} and "
        f"{window.foreign - window.others} others, limit {window.limit(q, now):.1f}"
    )
    hold = window.why_not(request, q, now)
    if hold is None:
        return told
    note = f", {hold.note}" if hold.name == "share" and hold.note else ""
    return f"{told} ({hold.name}: {hold.value:g} of {hold.limit:g}{note})"
