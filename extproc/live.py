"""What the live page shows: the same data as the admin API's, as JSON.

A page is read by whoever can reach the port, so it has what a viewer may see, and nothing of any request's content.
Texts that clients chose are made legible and cut: what cannot be seen, breaks a line or turns the direction of writing
is written out.

The longest waiting flows come with what holds the next request of each. To explain one is O(flows), so there is a
budget for each snapshot; those that it is not enough for have the words of their class, and say so.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.message import Message

from extproc import __version__
from extproc.admin import flows, messages
from extproc.admin.control import ClusterState, Control, RunningPool
from extproc.admin.flows import Flow
from extproc.admin.pool_messages import PoolMessages
from extproc.admin.portions import Portions, Work
from extproc.admin.scan import find
from extproc.core.explanation import Explanation, explain
from extproc.core.view import RequestView, request_view
from extproc.pb.admin.v1 import admin_pb2 as pb
from extproc.telemetry.journal import OBSERVED

if TYPE_CHECKING:
    from extproc.admin.revisions import Revisions

LONGEST_NAME: Final = 128  # characters
LONGEST_TEXT: Final = 600
MOST_POOLS: Final = 50
MOST_ENDPOINTS: Final = 100  # of a pool
MOST_MODELS: Final = 8
FLOWS: Final = 20  # of a pool
EXPLAIN_S: Final = 0.004  # for all explanations of a snapshot

_JOINERS: Final = "\u200c\u200d"  # parts of words and of emoji, which cannot be seen and do no harm
_DIGITS: Final = re.compile(r"([0-9]+)")
_TROUBLE: Final = ("DOWN", "STALLED", "OUTAGE", "STALE", "STARTING")  # what is shown first


class Live:
    """By `telemetry.live.source.LiveSource`."""

    def __init__(
        self,
        control: Control,
        revisions: Revisions,
        history: Callable[[], dict[str, Any]],
        watchers: Callable[[], int] = int,
        portions: Portions | None = None,
    ) -> None:
        """`watchers`: pages that are open. `portions`: shared with what else looks through all flows."""
        self._control = control
        self._revisions = revisions
        self._history = history
        self._watchers = watchers
        self._portions = portions or Portions()
        self._pools = PoolMessages(control, self._portions)

    def history(self) -> dict[str, Any]:
        found = self._history()
        series: dict[str, Any] = found["pools"]
        would_be = {each.pool.name for each in self._control.running() if each.would_be is not None}
        pools = {name: told for name, told in series.items() if not name.endswith(OBSERVED) and name not in would_be}
        for name in would_be:
            if name + OBSERVED in series:
                pools[name] = series[name + OBSERVED]
        return {**found, "pools": pools}

    async def snapshot(self) -> dict[str, Any]:
        running = self._pools.running()
        shown = _busiest(running)
        told = await self._pools.told(shown)
        budget = _Budget(EXPLAIN_S, sum(_waits(each) for each in shown))
        revisions, now = self._revisions, time.time()
        return {
            "time": now,
            "uptime_s": now - self._control.started_at,
            "version": __version__,
            "revision": revisions.revision,
            "file_error": legible(revisions.file_error or "", LONGEST_TEXT),
            "serving": self._control.serving,
            "cluster": None if (seen := self._control.cluster()) is None else _cluster(seen),
            "watchers": self._watchers(),
            "held": sum(each.scheduler.queued for each in running),
            "in_flight": sum(cls.queue.in_flight for each in running for cls in each.scheduler.classes),
            "observed": sum(len(each.observed.requests) for each in running if each.observed is not None),
            "pools_left_out": len(running) - len(shown),
            "pools": [
                {**_pool(pool), **await self._endpoints(_shown(pool)), **await self._flows(each, pool, budget)}
                for each, pool in zip(shown, told, strict=True)
            ],
        }

    async def explain(self, request_id: str) -> dict[str, Any] | None:
        await self._portions.turn()
        there = find(self._control, request_id)
        if there is None:
            return None
        running, observed, request = there
        scheduler = running.observed if observed else running.scheduler
        now = running.now()
        found = None if scheduler is None else explain(scheduler, request_id, now)
        if found is None:
            return None
        return _explanation(found, request_view(request, now), running.pool.name, observed=observed)

    async def _endpoints(self, pool: pb.Pool) -> dict[str, Any]:
        """What is amiss first."""
        work = Work(self._portions)
        await work.next()
        stances: Counter[str] = Counter()
        limit, order = 0.0, []
        for endpoint in pool.endpoints:
            if work.over:
                await work.next()
            order.append((_trouble(endpoint), endpoint))
            if not endpoint.removed:
                limit += endpoint.limit
                stances[pb.Stance.Name(endpoint.stance).lower()] += 1
        order.sort(key=itemgetter(0))
        rows = []
        for _, endpoint in order[:MOST_ENDPOINTS]:
            if work.over:
                await work.next()
            rows.append(_endpoint(endpoint))
        return {"limit": _figure(limit), "endpoint_count": len(order), "stances": dict(stances), "endpoints": rows}

    async def _flows(self, running: RunningPool, pool: pb.Pool, budget: _Budget) -> dict[str, Any]:
        """Those that have something waiting, the longest waiting first."""
        waiting = _Waiting()
        found, _ = await flows.first([running], FLOWS, waiting, self._portions)
        classes = {each.name: each for each in _shown(pool).classes}
        work = Work(self._portions)
        await work.next()
        rows: list[dict[str, Any]] = []
        part_s = left_s = budget.part_s() if _waits(running) else 0.0
        for flow in found:
            if work.over:
                await work.next()
            if flow.oldest_wait_s is None or not flow.leaf.queued:
                continue
            began = perf_counter()
            rows.append(_flow(flow, running, classes.get(flow.cls) if left_s <= 0 else None))
            left_s -= perf_counter() - began
        budget.took(part_s - max(0.0, left_s))
        return {"flow_count": waiting.count, "flows": rows}


class _Budget:
    """Seconds for explanations: the same for each pool in which something waits, and what one leaves is the others'."""

    def __init__(self, seconds: float, pools: int) -> None:
        self._left_s = seconds
        self._pools = pools  # that have not had theirs

    def part_s(self) -> float:
        """Of the next pool."""
        part_s = self._left_s / max(1, self._pools)
        self._pools -= 1
        return part_s

    def took(self, seconds: float) -> None:
        self._left_s -= seconds


class _Waiting:
    """The order of flows by how long they have waited. Counts those that wait, of all that it is asked about."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, flow: Flow) -> tuple[Any, ...]:
        if flow.oldest_wait_s is None:
            return (0.0,)
        self.count += 1
        return -1.0, -flow.oldest_wait_s, flow.tenant, flow.cls


def legible(text: str, most: int = LONGEST_NAME) -> str:
    """At most `most` characters of it, and an ellipsis; what cannot be printed is written as in Python."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() or c in _JOINERS else ascii(c)[1:-1] for c in cut)


def _cluster(seen: ClusterState) -> dict[str, Any]:
    return {
        "mode": seen.mode,
        "name": seen.name,
        "replica": seen.replica,
        "active": seen.active,
        "active_replica": legible(seen.active_replica),
        "replicas": len(seen.replicas),
        "expected": seen.expected,
        "store_used": seen.store_used,
        "store_lost_s": _figure(seen.lost_s),
        "error": legible(seen.error, LONGEST_TEXT),
    }


def _busiest(running: list[RunningPool]) -> list[RunningPool]:
    """Those with most waiting, where there are too many for a page; by name."""
    if len(running) <= MOST_POOLS:
        return running
    busiest = sorted(running, key=lambda each: -(each.would_be or each).scheduler.queued)[:MOST_POOLS]
    return sorted(busiest, key=lambda each: each.pool.name)


def _waits(running: RunningPool) -> bool:
    """Whether something does, or would."""
    would_be = running.would_be
    return running.scheduler.queued > 0 or (would_be is not None and would_be.scheduler.queued > 0)


def _shown(pool: pb.Pool) -> pb.Pool:
    """Of a pool that only observes, what would be: nothing waits in it."""
    return pool.observed if pool.HasField("observed") else pool


def _pool(told: pb.Pool) -> dict[str, Any]:
    pool = _shown(told)
    return {
        "name": legible(pool.name),
        "mode": pb.PoolMode.Name(pool.mode).lower(),
        "percentage": pool.percentage,
        "percentage_of": pb.PercentageOf.Name(pool.percentage_of).lower(),
        "traffic": pb.Traffic.Name(pool.traffic).lower(),
        "models": [legible(model) for model in pool.models[:MOST_MODELS]],
        "models_left_out": max(0, len(pool.models) - MOST_MODELS),
        "retiring": pool.retiring,
        "held": pool.queued_count,
        "held_bytes": pool.queued_bytes,
        "in_flight": pool.in_flight_slots,
        "observed": told.observed_count,
        "would_be": pool is not told,
        "released_per_s": _figure(pool.releases_per_second),
        "since_release_s": _seconds(pool, "since_release"),
        "leaked": told.leaked_slots,
        "source": legible(pool.endpoint_source, LONGEST_TEXT),
        "source_error": legible(pool.endpoint_source_error, LONGEST_TEXT),
        "classes": [_class(each) for each in pool.classes],
    }


def _trouble(endpoint: pb.Endpoint) -> tuple[bool, int, list[tuple[int, str]]]:
    """What is shown first: what is amiss; last what is no endpoint any more. Numbers go by their size."""
    stance = pb.Stance.Name(endpoint.stance)
    parts = [(len(part) if part.isdigit() else 0, part) for part in _DIGITS.split(endpoint.address)]
    return endpoint.removed, _TROUBLE.index(stance) if stance in _TROUBLE else len(_TROUBLE), parts


def _class(seen: pb.ClassStats) -> dict[str, Any]:
    return {
        "name": legible(seen.name),
        "rank": seen.rank,
        "held": seen.queued_count,
        "in_flight": seen.in_flight_slots,
        "tenants": seen.tenant_count,
        "retiring": seen.retiring,
        "oldest_wait_s": _seconds(seen, "oldest_wait"),
        "objective_s": _seconds(seen, "wait_objective"),
        "hold": seen.hold,
        "sentence": legible(seen.sentence, LONGEST_TEXT),
        "next": legible(seen.next, LONGEST_TEXT),
        "gates": [{"name": gate.name, "closed": gate.closed_count} for gate in seen.gates],
        "released_per_s": _figure(seen.releases_per_second),
        "jain": _optional(seen, "jain_index"),
        "spread": _optional(seen, "tag_spread"),
        "competing": seen.competing_count,
    }


def _endpoint(seen: pb.Endpoint) -> dict[str, Any]:
    return {
        "address": legible(seen.address),
        "stance": pb.Stance.Name(seen.stance).lower(),
        "ours": seen.in_flight_slots,
        "foreign": seen.foreign_count,
        "capacity": _figure(seen.capacity),
        "queue_target": _figure(seen.queue_target),
        "limit": _figure(seen.limit),
        "room": _figure(seen.room),
        "running": _optional(seen, "running_count"),
        "waiting": _optional(seen, "waiting_count"),
        "kv": _optional(seen, "kv_usage_ratio"),
        "tpot_s": _seconds(seen, "time_per_output_token", digits=5),
        "page_age_s": _seconds(seen, "page_age"),
        "dialect": legible(seen.dialect),
        "priority_told": seen.priority_told,
        "last_error": legible(seen.last_error, LONGEST_TEXT),
        "turned_away": seen.turned_away_count,
        "failed": seen.failed_count,
        "at_floor": seen.at_floor,
        "removed": seen.removed,
        "others": seen.others_slots,
        "claim": _optional(seen, "claim_slots"),
    }


def _flow(flow: Flow, running: RunningPool, words: pb.ClassStats | None) -> dict[str, Any]:
    """`words`: to be told in place of an explanation of its own. O(1) then, else O(flows)."""
    now = running.now()
    request_id = flow.leaf.requests[0][0][2].id
    row = {
        "key": blake2b(f"{flow.cls}\0{flow.tenant}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest(),
        "tenant": legible(flow.tenant),
        "cls": legible(flow.cls),
        "held": flow.queued,
        "in_flight": flow.in_flight,
        "oldest_wait_s": _figure(flow.oldest_wait_s),
        "weight": _figure(flow.weight),
        "id": request_id,
    }
    scheduler = running.observed if flow.observed else running.scheduler
    found = None if words is not None or scheduler is None else explain(scheduler, request_id, now)
    if found is not None:
        hold, sentence, then, own = "" if found.hold is None else found.hold.value, found.sentence, found.next, True
    elif words is not None:
        hold, sentence, then, own = words.hold, words.sentence, words.next, False
    else:
        hold, sentence, then, own = "", "", "", True
    return {
        **row,
        "hold": hold,
        "sentence": legible(sentence, LONGEST_TEXT),
        "next": legible(then, LONGEST_TEXT),
        "own": own,
    }


def _explanation(found: Explanation, seen: RequestView, pool: str, *, observed: bool) -> dict[str, Any]:
    return {
        "id": legible(seen.id),
        "pool": legible(pool),
        "tenant": legible(seen.tenant),
        "cls": legible(seen.cls),
        "state": seen.state.name.lower(),
        "observed": observed,  # it passed as it came; the rest is what would be
        "waited_s": _figure(seen.waited_s),
        "inside_s": _figure(seen.inside_s),
        "timeout_in_s": _figure(seen.timeout_in_s),
        "estimated_wait_s": _figure(found.estimated_wait_s),
        "endpoint": legible(seen.endpoint or ""),
        "cost": _figure(seen.cost),
        "body_bytes": seen.body_bytes,
        "slots": seen.slots,
        "adapter": legible(seen.adapter or ""),
        "hold": "" if found.hold is None else found.hold.value,
        "name": legible(found.name),
        "value": _figure(found.value),
        "limit": _figure(found.limit),
        "ahead_in_flow": found.ahead_in_flow,
        "flow_position": found.flow_position,
        "flows": found.flows,
        "priority": found.priority,
        "sentence": legible(found.sentence, LONGEST_TEXT),
        "next": legible(found.next, LONGEST_TEXT),
    }


def _figure(value: float | None) -> float | None:
    """Digits that nobody sees are bytes all the same. NaN and infinity become null in JSON."""
    return None if value is None else round(value, 3)


def _optional(message: Message, field: str) -> float | int | None:
    value: float | int | None = getattr(message, field) if message.HasField(field) else None
    return round(value, 4) if isinstance(value, float) else value


def _seconds(message: Message, field: str, digits: int = 3) -> float | None:
    return round(messages.seconds_of(getattr(message, field)), digits) if message.HasField(field) else None
