"""Which of several replicas is active, by a lease in the store.

Whoever has the lease renews it three times in its length; the others ask for it as often, and when it is about to end.
So a replica that dies is replaced within a lease, and one that gives its lease back within a third of it.

While the store cannot be asked nobody changes: the active one goes on, since another one could not become active
either. Two are active where the store has lost only one of them: until it is back, when the one without the lease
steps down. Envoy then gives both of them requests, each in an order of its own; refusing would serve nobody.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import structlog

from extproc.cluster.errors import StoreError
from extproc.cluster.store import Store
from extproc.cluster.words import Held

log = structlog.get_logger()

LEASE: Final = "active"
_IN_A_LEASE: Final = 3
_AFTER_S: Final = 0.02  # the end of another one's lease, to ask again


class Standby:
    """Belongs to one event loop. `start`, and `stop` at the end."""

    def __init__(
        self,
        store: Store,
        replica: str,
        life: str,
        *,
        lease_s: float,
        on_active: Callable[[], None],
        on_standby: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`life`: of this process. `on_standby` is not called before `on_active`: a replica begins as standby. `clock`:
        seconds."""
        self.active = False
        self.holder: str | None = None  # replica that is active, as the store has said last; None: it has not said
        self.held_since_ms = 0  # the store's clock, since 1970
        self.changes = 0  # of `active`
        self.lost_since: float | None = None
        self.error: StoreError | None = None
        self._store = store
        self._replica = replica
        self._me = f"{replica} {life}"
        self._lease_s = lease_s
        self._on_active = on_active
        self._on_standby = on_standby
        self._clock = clock
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._faults: set[str] = set()  # kinds of which the log has said something

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="cluster lease")

    async def stop(self) -> None:
        """Give the lease back, as far as the store can be asked. Calls nothing. May be called again."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping.set()
        try:
            await asyncio.wait({task})  # a renewal that is on its way would come to the store after `release`
        finally:
            task.cancel()
        self.active = False
        with suppress(StoreError):
            await self._store.release(LEASE, self._me)

    async def once(self) -> float:
        """Ask once. Returns seconds until it is to be asked again. For the loop, and for tests. Whatever fails counts
        as a lost store: a loop that ends would leave two active, or none."""
        began = self._clock()
        wait_s = self._lease_s / _IN_A_LEASE
        try:
            held = await self._store.acquire(LEASE, self._me, self._lease_s)
            self._told(held)
            self.error, self.lost_since = None, None
            if not self.active:
                wait_s = min(wait_s, held.remaining_s + _AFTER_S)
        except StoreError as error:
            self._failed(error, began)
        except Exception as error:
            self._fault(error)
            told = f"asking for the lease broke off here, which is a fault of Fairlane's: {error!r}"
            self._failed(StoreError("other", told), began)
        return max(0.0, began + wait_s - self._clock())

    def _failed(self, error: StoreError, began: float) -> None:
        if self.error is None or self.error.kind != error.kind:
            log.warning("cluster_lease_unknown", replica=self._replica, kind=error.kind, error=error.message)
        self.error = error
        if self.lost_since is None:
            self.lost_since = began

    def _fault(self, error: Exception) -> None:
        kind = type(error).__name__
        if kind not in self._faults:
            self._faults.add(kind)
            log.exception("cluster_lease_fault", replica=self._replica)

    def _told(self, held: Held) -> None:
        self.holder = held.holder.partition(" ")[0]
        self.held_since_ms = held.since_ms
        mine = held.holder == self._me
        if mine == self.active:
            return
        self.active = mine
        self.changes += 1
        log.info("cluster_active" if mine else "cluster_standby", replica=self._replica, holder=self.holder)
        try:
            (self._on_active if mine else self._on_standby)()
        except Exception as error:  # the lease goes on
            self._fault(error)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            delay = await self.once()
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._stopping.wait()
