"""What a request's cost changes when it becomes final, and while it grows past its estimate.

    settle      once for each request that was released, when its usage comes, or when that has stayed away for too
                long: its charge is trued up in its class's fair order and in the order between classes, the estimates
                and the window learn from it, and where its stream is over it is forgotten
    overruns    what runs past its estimate goes on being charged, see `charging.Overrun`

`charging` says what it costs; here the books are written. A part of the scheduler: called by it alone, within an event.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core import charging, policy_change
from extproc.core.events import Effect, Settled, Usage
from extproc.core.model import Request, Source, State, Unit

if TYPE_CHECKING:
    from extproc.core.class_queue import ClassQueue
    from extproc.core.scheduler import Scheduler

# As globals, for the hot path: looking a member up in its enum costs more than all else in a line.
_ENDED, _SETTLED = State.ENDED, State.SETTLED
_TIME, _ERROR = Unit.TIME, Source.ERROR


def settle(scheduler: Scheduler, request: Request, usage: Usage, now: float, effects: list[Effect]) -> None:
    """`request` was released, and is not settled."""
    tenant, name, policy = request.tenant, request.cls, scheduler.policy
    counts = charging.counted(usage)
    if counts.absurd:
        scheduler.counts["absurd_usage"] += 1
    cls, window = scheduler.by_name[name], scheduler.windows.get(request.endpoint or "")
    pace_s = None if window is None else window.pace_s
    cost, source = charging.final(policy, request, usage.source, counts, pace_s, now)
    if source in charging.COUNTED:
        prompt, output = counts.prompt, counts.output
        if prompt is not None:
            cls.prompt_tokens += prompt
            cls.cached_tokens += min(prompt, counts.cached)
        if output is not None:
            cls.output_tokens += output
        scheduler.estimator.observe(
            tenant, name, request.body_bytes, request.prompt_tokens, prompt, output, request.slots, request.max_output
        )
        if window is not None and output is not None:
            window.observed(request, prompt, output)
        served = window if usage.endpoint is None else scheduler.windows.get(usage.endpoint)
        if served is not None:
            served.served()
    if policy.unit is _TIME and source is not _ERROR:
        seconds = (now if request.ended_at is None else request.ended_at) - request.released_at
        scheduler.estimator.observe_seconds(tenant, name, request.prompt_tokens, seconds)
    more = cost - request.charged
    cls.queue.settle(request, cost)
    if scheduler.has_shares:
        _true_up_share(scheduler, request, cls, more)
    request.settled = True
    scheduler.overrun.drop(request)
    if scheduler.preempts:
        scheduler.preemption.consider(request, cls.policy, policy)
    if request.state is _ENDED:
        request.move(_SETTLED)
        scheduler.deadlines.drop(request)
        del scheduler.requests[request.id]
        if cls.retired:
            policy_change.retire(scheduler, cls)
    effects.append(Settled(request.id, tenant, name, source, cost, request.cost))


def lets_go(scheduler: Scheduler) -> bool:
    """Whether a cost that becomes final can let something go: through a rate or a class's share alone."""
    return scheduler.has_shares or bool(scheduler.buckets.by_path)


def charge_overruns(scheduler: Scheduler, now: float) -> None:
    """Charge what runs past its estimate, as far as that is due."""
    while (overrun := scheduler.overrun.due(now)) is not None:
        request, since = overrun
        window = scheduler.windows.get(request.endpoint or "")
        pace = None if window is None else window.pace_s
        cost = charging.so_far(request, scheduler.policy, pace, since, now)
        if cost > request.charged:
            cls = scheduler.by_name[request.cls]
            if scheduler.has_shares:
                _true_up_share(scheduler, request, cls, cost - request.charged)
            cls.queue.refresh(request, cost)


def _true_up_share(scheduler: Scheduler, request: Request, cls: ClassQueue, more: float) -> None:
    scheduler.share_v += more
    if not request.evicted:  # else its class would be behind, and take the slot that it has just left
        cls.trued_up(request, more)
