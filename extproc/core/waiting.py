"""How long a request waits: cost ahead of it in fair order / measured rate of service.

    ahead   what goes before it in its class (`FairQueue.cost_ahead`), or, for one that is not queued, before the
            next request of its flow;
    rate    cost released a second, of its class over half a minute. Where nothing of the class has gone of
            late, all that waits in higher classes is ahead too, and the rate is the pool's.

The basis of Retry-After, of refusing what is hopeless, and of explanations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from extproc.core.drain_rate import bounded
from extproc.core.model import Request

if TYPE_CHECKING:
    from extproc.core.class_queue import ClassQueue
    from extproc.core.scheduler import Scheduler


def wait_s(scheduler: Scheduler, request: Request, now: float) -> float | None:
    """Seconds from now on, 1 to 600; None: nothing is known. O(siblings) for one that is queued, else O(1)."""
    ahead, rate = _ahead_and_rate(scheduler, request, now)
    return bounded(ahead, rate) if rate > 0.0 else None


def back_s(scheduler: Scheduler, request: Request, now: float) -> float:
    """When one that is refused may come back, to stand behind what its flow has waiting then. O(1)."""
    cls = scheduler.by_name[request.cls]
    return bounded(*_with_rate(scheduler, cls, _before_a_newcomer(cls, request), now))


def expected_s(scheduler: Scheduler, request: Request, now: float) -> float | None:
    """As `wait_s`, without its bounds; None: nothing is known."""
    ahead, rate = _ahead_and_rate(scheduler, request, now)
    return ahead / rate if rate > 0.0 else None


def _ahead_and_rate(scheduler: Scheduler, request: Request, now: float) -> tuple[float, float]:
    cls = scheduler.by_name[request.cls]
    ahead = cls.queue.cost_ahead(request) if request.leaf is not None else _before_a_newcomer(cls, request)
    return _with_rate(scheduler, cls, ahead, now)


def _with_rate(scheduler: Scheduler, cls: ClassQueue, ahead: float, now: float) -> tuple[float, float]:
    rate = cls.drain.cost_per_second(now)
    if rate <= 0.0:
        ahead += sum(c.queue.queued_cost for c in scheduler.classes if c.policy.rank < cls.policy.rank)
        rate = scheduler.drain.cost_per_second(now)
    return ahead, rate


def _before_a_newcomer(cls: ClassQueue, request: Request) -> float:
    """As if all flows beside its own were like its own: those who are refused are many, and looking at each of
    their siblings for each of them would cost more than serving them."""
    queue = cls.queue
    leaf = queue.leaf(request.tenant)
    own = 0.0 if leaf is None else leaf.queued_cost
    return min(queue.queued_cost, (own + request.cost) * max(1, queue.size))
