"""A fair queue with the moves that the scheduler makes around it. Time stands still unless a test moves it."""

from __future__ import annotations

import itertools
from typing import Any

from extproc.core.fair_queue import Buckets, FairQueue
from extproc.core.model import Order, PoolPolicy, Request, State, TenantPolicy


def flows(tenants: dict[str, Any] | None = None, separator: str | None = "/", **default: Any) -> PoolPolicy:
    """A policy. Tenants as policies or as dicts of their fields; the rest are fields of the default."""
    own = {name: t if isinstance(t, TenantPolicy) else TenantPolicy(**t) for name, t in (tenants or {}).items()}
    return PoolPolicy(name="p", classes=(), tenants=own, separator=separator, default_tenant=TenantPolicy(**default))


class Bench:
    def __init__(
        self,
        tenants: dict[str, Any] | None = None,
        order: Order = Order.FIFO,
        *,
        checked: bool = True,
        buckets: Buckets | None = None,
        **default: Any,
    ) -> None:
        self.checked = checked  # invariants after each service, at a cost that grows with what is queued
        self.queue = FairQueue(flows(tenants, **default), order, buckets)
        self.now = 0.0
        self._seq = itertools.count(1)

    def put(
        self, tenant: str, arrival: float | None = None, slots: int = 1, cost: float = 1.0, deadline: float = 1e9
    ) -> Request:
        seq = next(self._seq)
        request = Request(
            id=f"{tenant}#{seq}",
            tenant=tenant,
            cls="c",
            arrival=self.now if arrival is None else arrival,
            seq=seq,
            body_bytes=10,
            prompt_tokens=cost,
            output_tokens=0.0,
            max_output=None,
            slots=slots,
            deadline=deadline,
            cost=cost,
        )
        self.queue.put(request, self.now)
        return request

    def head(self) -> Request | None:
        return self.queue.peek(self.now)

    def pop(self, charge: float = 1.0) -> Request | None:
        request = self.head()
        if request is not None:
            self.pop_this(request, charge)
        return request

    def pop_this(self, request: Request, charge: float = 1.0) -> None:
        self.queue.pop(request, charge, self.now)
        request.move(State.RELEASED)
        self._check()

    def take(self, charge: float = 1.0) -> Request:
        request = self.pop(charge)
        assert request is not None
        return request

    def settle(self, request: Request, cost: float) -> None:
        self.queue.settle(request, cost)
        request.settled = True
        self._check()

    def free(self, request: Request) -> None:
        self.queue.free(request)
        self._check()

    def finish(self, request: Request, cost: float) -> None:
        self.free(request)
        self.settle(request, cost)

    def serve(self, charge: float, cost: float | None = None) -> str:
        """One request from queue to end. Returns its tenant."""
        request = self.take(charge)
        self.finish(request, charge if cost is None else cost)
        return request.tenant

    def order(self, charge: float, times: int) -> str:
        return "".join(self.serve(charge) for _ in range(times))

    def cancel(self, request: Request) -> None:
        request.move(State.CANCELLED)
        self.queue.remove(request)
        self._check()

    def keep_busy(self) -> Request:
        """Something that runs on, so that no busy period ends. It is charged nothing."""
        self.put("running")
        request = self.take(0.0)
        assert request.tenant == "running"
        return request

    def tag(self, tenant: str) -> float:
        leaf = self.queue.leaf(tenant)
        assert leaf is not None
        return leaf.tag

    def _check(self) -> None:
        if self.checked:
            self.queue.check()
