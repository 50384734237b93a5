"""Ways from a client to an engine: Fairlane, and the designs that it is compared with.

The scheduler is the same code in all of them. A way is a change of its policy, other names for tenants and classes, and
the order that the engine itself keeps.

    direct FIFO        no gateway; the engine takes requests as they come (vLLM's --scheduling-policy fcfs)
    direct priority    no gateway's window; each request carries the number of `scheduling.md` 5 (class base + the
                       tenant's requests inside the engine), and the engine sorts by it
    gateway FIFO       a release window, and before it one queue for all
    round robin        a release window, and before it a queue per tenant, served in turn by number of requests: the
                       article's notion of fair
    threshold          fair by cost, released while the metrics page shows fewer than 3 waiting: the article's rule
    first              fair by cost, through the first window controller
    fixed N            fair by cost, N requests inside the engine at a time
    saturation         as an endpoint picker does: everything is released while the page shows fewer than 5 waiting and
                       less than 80 % of the KV cache in use; strict between classes, in turn between tenants
    fair               Fairlane as it is
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from extproc.core.model import Controller, Gates, PoolPolicy, TenantPolicy, Unit
from extproc.core.scheduler import MakeWindow
from extproc.core.windows import make_window
from extproc.sim.engine import EngineOptions, Policy

_SATURATED_WAITING = 5
_SATURATED_KV = 0.8


def _as_it_is(policy: PoolPolicy) -> PoolPolicy:
    return policy


@dataclass(frozen=True)
class Way:
    """See the module's docstring. `one_queue`: tenants and classes are not told apart. `windows`: other windows than
    the policy's controller gives, to measure one of their parts."""

    name: str
    gateway: bool = True
    priorities: bool = True  # the engine sorts by the number that it is told
    one_queue: bool = False
    change: Callable[[PoolPolicy], PoolPolicy] = _as_it_is
    windows: MakeWindow = make_window

    def engine(self, options: EngineOptions) -> EngineOptions:
        """The engine as this way wants it."""
        return replace(options, policy=Policy.PRIORITY if self.priorities else Policy.FCFS)


def _one_class(policy: PoolPolicy) -> PoolPolicy:
    """The first class alone, with everybody in it as one tenant: what held for one tenant holds for nobody now."""
    first = min(policy.classes, key=lambda c: c.rank)
    most = TenantPolicy(max_queued=policy.max_queued, max_queued_bytes=policy.max_queued_bytes)
    return replace(policy, classes=(first,), tenants={}, default_tenant=most, separator=None, prefix_slack=0.0)


def _by_requests(policy: PoolPolicy) -> PoolPolicy:
    return replace(policy, unit=Unit.REQUESTS, prefix_slack=0.0)


def _controller(controller: Controller, **fields: int) -> Callable[[PoolPolicy], PoolPolicy]:
    def change(policy: PoolPolicy) -> PoolPolicy:
        window = replace(policy.window, controller=controller, **fields)  # type: ignore[arg-type]
        return replace(policy, window=window, prefix_slack=0.0)

    return change


def _by_page(threshold: int, gates: Gates | None = None) -> Callable[[PoolPolicy], PoolPolicy]:
    """Released by what the page shows alone: no headroom, which asks how many slots there are."""

    def change(policy: PoolPolicy) -> PoolPolicy:
        classes = tuple(replace(c, headroom=None, gates=gates or c.gates) for c in policy.classes)
        return replace(_controller(Controller.THRESHOLD, threshold=threshold)(policy), classes=classes)

    return change


def _saturation(policy: PoolPolicy) -> PoolPolicy:
    return _by_requests(_by_page(_SATURATED_WAITING, Gates(max_kv_usage=_SATURATED_KV))(policy))


FAIR = Way("fair")
DIRECT_FIFO = Way("direct FIFO", gateway=False, priorities=False)
DIRECT_PRIORITY = Way("direct priority", gateway=False)
GATEWAY_FIFO = Way("gateway FIFO", priorities=False, one_queue=True, change=_one_class)
ROUND_ROBIN = Way("round robin", change=_by_requests)
THRESHOLD = Way("threshold", change=_by_page(3))
FIRST = Way("first", change=_controller(Controller.FIRST))
SATURATION = Way("saturation", change=_saturation)


def fixed(n: int) -> Way:
    """`n` requests inside each engine, whatever its page shows."""
    return Way(f"fixed {n}", change=_controller(Controller.FIXED, fixed=n))


BASELINES = (DIRECT_FIFO, DIRECT_PRIORITY, GATEWAY_FIFO, ROUND_ROBIN, THRESHOLD)
"""In every workload's table, before `FAIR`."""
