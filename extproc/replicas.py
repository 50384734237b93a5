"""Ties a process to the other replicas of its cluster, as `cluster.mode` says.

    standby     who has the lease in the store is active. The others say that they are not healthy (on the names that
                Envoy asks for), and serve what comes all the same: Envoy sends it where nobody is healthy
    shared      each pool's scheduler is told what the others have, and what this one may hold (`core.sharing`)
    partition, single    Envoy says who gets what

Where a store is given, the replicas know of each other in each mode, and live changes of the configuration reach all of
them. Without an answer of the store nothing stops: see `Sharing.lost` and `Standby`.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from extproc.admin.control import ClusterState, ReplicaState
from extproc.admin.revisions import Revisions
from extproc.cluster.configuration import KEY, SharedConfiguration
from extproc.cluster.exchange import Exchange
from extproc.cluster.news import News
from extproc.cluster.standby import Standby
from extproc.cluster.state import State
from extproc.cluster.store import Store, StoreError
from extproc.config.cluster import Cluster
from extproc.core.sharing.sharing import Sharing
from extproc.core.sharing.words import PoolReport
from extproc.edge.driver import PoolDriver
from extproc.edge.fault_lines import FaultLines
from extproc.edge.server import EdgeServer
from extproc.edge.stream import ExternalProcessor
from extproc.pools import Pools
from extproc.telemetry.metrics import ClusterStats, Metrics

log = structlog.get_logger()

# From the moment in which a replica says that it is not healthy until Envoy has heard it: two health checks a second
# apart, and the time-out of one. What is let go before that would come back here.
_NOTICED_S: Final = 3.0
_RELEASE_S: Final = 0.5  # that a drain waits for the store to take the lease back
_LONGEST_ID: Final = 63
_LONGEST_ERROR: Final = 500
_NO_ID: Final = re.compile(r"[^A-Za-z0-9._-]+")


class ReplicasError(Exception):
    """The process cannot be one of several. The message names the cause and the cure."""


class Replicas:
    """To be used from one event loop. `start`, `drain` and `stop`, in this order."""

    def __init__(
        self,
        settings: Cluster,
        pools: Pools,
        processor: ExternalProcessor,
        metrics: Metrics,
        *,
        version: str,
        revision: Callable[[], int],
    ) -> None:
        """`version`: of this process; `revision`: of its configuration. Nothing is asked of the store yet. Raises
        ReplicasError."""
        self.replica = settings.replica or _made_up()
        self._settings = settings
        self._processor = processor
        self._draining = False
        self._edge: EdgeServer | None = None
        self._turning: asyncio.Task[None] | None = None  # to active, or to standby
        self._releasing: asyncio.Task[None] | None = None  # the lease
        self._failures: Counter[str] = Counter()  # kind -> exchanges
        self._store: Store | None = None
        self._standby: Standby | None = None
        processor.standby = settings.mode == "standby"
        if settings.store is None:
            return
        try:
            self._store = Store(settings.store, settings.name, settings.timeout)
        except StoreError as error:
            raise ReplicasError(error.message) from error
        self._configuration = SharedConfiguration(
            self._store,
            settings.name,
            self.replica,
            expected=settings.replicas,
            wake=lambda: self._exchange.wake(),
        )
        member = _Member(settings, pools, metrics, self._configuration, self._info(version, revision), self._failures)
        self._member = member
        self._exchange = Exchange(
            self._store,
            member,
            self.replica,
            period_s=settings.period,
            lease_s=settings.lease,
            observe=metrics.exchanged,
            clock=PoolDriver.now,
        )
        self._began = PoolDriver.now()
        if settings.mode == "standby":
            self._standby = Standby(
                self._store,
                self.replica,
                self._exchange.state.life,
                lease_s=settings.lease,
                on_active=lambda: self._turn(active=True),
                on_standby=lambda: self._turn(active=False),
                clock=PoolDriver.now,
            )
        if settings.mode == "shared":
            pools.when_busy(self._exchange.wake)

    @property
    def active(self) -> bool:
        """False: another replica is the one that requests should come to, as far as is known."""
        return self._standby is None or self._standby.active

    async def join(self, revisions: Revisions) -> None:
        """Have the live changes that the others have. Before the process serves. Raises nothing."""
        if self._store is not None:
            await revisions.join(self._configuration)

    def start(self, edge: EdgeServer) -> None:
        """Take part from now on. `edge`: whose health says that this one is active."""
        settings = self._settings
        if settings.mode != "single" or self._store is not None:
            log.info("cluster", mode=settings.mode, name=settings.name, replica=self.replica)
        self._edge = edge
        if self._store is not None:
            self._exchange.start()
        if self._standby is not None:
            self._standby.start()

    def drain(self) -> None:
        """Nothing is taken in from now on: nothing is asked for that is not inside. The health of `edge` is the
        caller's."""
        self._draining = True
        if self._turning is not None:
            self._turning.cancel()
        if self._store is not None:
            self._member.draining = True
            self._exchange.wake()

    async def release(self) -> None:
        """Give the lease back, so that another one is active when the held requests come there. Waits no longer than
        some time: the store may be lost."""
        if self._standby is not None:
            self._releasing = asyncio.create_task(self._standby.stop(), name="lease given back")
            await asyncio.wait((self._releasing,), timeout=_RELEASE_S)

    async def stop(self) -> None:
        """Give back all that is left."""
        if self._releasing is not None:
            await self._releasing
        if self._store is not None:
            await self._exchange.stop()
            await self._store.close()

    # -- what is seen -----------------------------------------------------------------------------

    def state(self) -> ClusterState | None:
        """None: it is the only one, and asks no store."""
        settings = self._settings
        if settings.mode == "single" and self._store is None:
            return None
        told = ClusterState(settings.mode, settings.name, self.replica, settings.replicas, active=self.active)
        if self._store is None:
            return told
        state, now = self._exchange.state, PoolDriver.now()
        lost_since, error = self._lost(state)
        own = _replica_state(self.replica, 0.0, {**self._member.info(), **self._configuration.info()})
        return replace(
            told,
            active_replica="" if self._standby is None else self._standby.holder or "",
            store_used=True,
            lost_s=None if lost_since is None else now - lost_since,
            error="" if error is None else error.message,
            exchange_age_s=None if state.heard_at is None else now - state.heard_at,
            exchanges=state.exchanges + state.failures,
            failures=state.failures,
            replicas=(own, *(_replica_state(each.replica, now - each.exchanged_at, each.info) for each in state.peers)),
            in_use=state.in_use,
            other_versions=state.versions,
        )

    def stats(self) -> ClusterStats | None:
        """For metrics."""
        seen = self.state()
        if seen is None:
            return None
        told = ClusterStats(
            seen.mode, seen.name, seen.replica, seen.expected, seen.active, self._processor.standby_streams
        )
        if self._store is None:
            return told
        state = self._exchange.state
        return replace(
            told,
            store_used=True,
            replicas=len(seen.replicas),
            lost=seen.lost_s is not None,
            in_use=seen.in_use,
            other_versions=len(seen.other_versions),
            exchange_age_s=seen.exchange_age_s,
            exchanges=seen.exchanges,
            failures=dict(self._failures),
            bad_messages=state.bad,
            bytes_told=state.bytes_told,
            bytes_read=state.bytes_read,
        )

    def _lost(self, state: State) -> tuple[float | None, StoreError | None]:
        """Since when the store has not answered; and its last error."""
        if state.lost_since is not None or state.error is not None:
            return state.lost_since, state.error
        if state.heard_at is None:
            return self._began, None  # it has not been heard of yet
        if self._standby is not None and self._standby.error is not None:
            return self._standby.lost_since, self._standby.error
        return None, None

    def _info(self, version: str, revision: Callable[[], int]) -> Callable[[], dict[str, Any]]:
        return lambda: {"version": version, "revision": revision(), "mode": self._settings.mode, "active": self.active}

    # -- who is active ----------------------------------------------------------------------------

    def _turn(self, *, active: bool) -> None:
        if self._draining:
            return
        if self._turning is not None:
            self._turning.cancel()
        self._processor.standby = not active
        self._turning = asyncio.create_task(self._turned(active), name="active" if active else "standby")

    async def _turned(self, active: bool) -> None:
        """Health first, so that Envoy looks elsewhere; then what is held goes there, too. Answers under way go on."""
        if self._edge is not None:
            await self._edge.set_serving(active)
        if not active:
            await asyncio.sleep(_NOTICED_S)
            self._processor.hand_over()


class _Member:
    """What this replica tells, and what it makes of what it hears. By `cluster.exchange.Member`."""

    def __init__(
        self,
        settings: Cluster,
        pools: Pools,
        metrics: Metrics,
        configuration: SharedConfiguration,
        info: Callable[[], dict[str, Any]],
        failures: Counter[str],
    ) -> None:
        self.draining = False
        self.info = info
        self._settings = settings
        self._pools = pools
        self._metrics = metrics
        self._configuration = configuration
        self._failures = failures
        self._shares = settings.mode == "shared"
        self._sharing: dict[str, tuple[PoolDriver, Sharing]] = {}  # by pool, of the last `tell`
        self._untold: set[str] = set()  # of these, what could not be told then
        self._other_modes: dict[str, str] = {}  # of replicas of which it has been said
        self._faults = FaultLines("cluster_fault", PoolDriver.now)

    def tell(self) -> tuple[Sequence[PoolReport], Mapping[str, Any]]:
        info = {**self.info(), **self._configuration.info()}
        if not self._shares:
            return (), info
        now, before, reports = PoolDriver.now(), self._sharing, []
        self._sharing, self._untold = {}, set()
        for running in self._pools:
            name, driver = running.pool.name, running.driver
            known = before.get(name)
            if known is None or known[0] is not driver:
                known = driver, self._new(name)
            self._sharing[name] = known
            try:
                report = known[1].tell(driver.scheduler, now)
            except Exception:
                self._untold.add(name)
                self._failed(name, now)
                continue
            reports.append(_leaving(report) if self.draining and not driver.scheduler.queued else report)
        return reports, info

    def heard(self, news: News) -> None:
        now = PoolDriver.now()
        for name, (driver, sharing) in self._sharing.items():
            if name in self._untold:
                continue
            try:
                driver.synced(sharing.heard(driver.scheduler, news.of(name), now))
            except Exception:
                self._failed(name, now)
        infos = news.infos
        self._configuration.heard(news.configuration, infos, news.time_ms)
        self._compare(infos)

    def lost(self, error: StoreError) -> None:
        self._failures[error.kind] += 1
        now = PoolDriver.now()
        for name in self._sharing:
            self._alone(name, now)
        self._configuration.lost(error.message)

    def busy(self) -> bool:
        if self._configuration.busy:
            return True
        return self._shares and any(
            running.driver.scheduler.queued or running.driver.scheduler.inside for running in self._pools
        )

    def _new(self, pool: str) -> Sharing:
        settings = self._settings
        return Sharing(pool, settings.replicas, settings.period, settings.lease, settings.timeout)

    def _failed(self, pool: str, now: float) -> None:
        """A fault of ours at one pool: it goes on as without the store, and the others as ever."""
        self._metrics.fault("cluster")
        self._faults.exception(pool=pool)
        self._alone(pool, now)

    def _alone(self, pool: str, now: float) -> None:
        driver, sharing = self._sharing[pool]
        try:
            driver.synced(sharing.lost(driver.scheduler, now))
        except Exception:
            self._metrics.fault("cluster")
            self._faults.exception(pool=pool)

    def _compare(self, infos: Mapping[str, Mapping[str, Any]]) -> None:
        """Replicas of one cluster that go by different modes do not do what either of these promises."""
        own = self._settings.mode
        found = {
            replica: mode
            for replica, info in infos.items()
            if isinstance(mode := info.get("mode"), str) and mode != own
        }
        for replica, mode in found.items():
            if self._other_modes.get(replica) != mode:
                log.warning(
                    "cluster_modes_differ",
                    mode=own,
                    other=replica,
                    other_mode=mode[:_LONGEST_ID],
                    note="replicas of one cluster need one cluster.mode: give those of another mode a cluster.name of "
                    "their own, or restart them",
                )
        self._other_modes = found


def _leaving(report: PoolReport) -> PoolReport:
    """Of a replica that takes nothing more in: the others may have what it does not hold."""
    kept = tuple(replace(each, want=min(each.want, float(each.in_flight))) for each in report.endpoints)
    return replace(report, endpoints=kept)


def _replica_state(replica: str, age_s: float, info: Mapping[str, Any]) -> ReplicaState:
    """`info`: by another process, which may be another version."""
    shared = info.get(KEY)
    changes = shared if isinstance(shared, Mapping) else {}
    return ReplicaState(
        replica,
        age_s,
        _text(info.get("version"), _LONGEST_ID),
        _number(info.get("revision")),
        _number(changes.get("revision")),
        _text(changes.get("error"), _LONGEST_ERROR),
        _text(info.get("mode"), _LONGEST_ID),
    )


def _text(value: object, longest: int) -> str:
    return value[:longest] if isinstance(value, str) else ""


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else 0


def _made_up() -> str:
    """An id that no other process has."""
    end = "-" + secrets.token_hex(4)
    host = _NO_ID.sub("-", socket.gethostname()).strip("-") or "fairlane"
    return host[: _LONGEST_ID - len(end)] + end
