"""The loop in which a replica tells the others of itself and hears of them, one round trip at a time.

While the replica is busy there is an exchange each period; otherwise a few in a lease, which is all that wakes an idle
process. `wake` brings the next one forward to a period after the last. One that is late is not left out: the next
follows at once.

A failure is told to the member each time, and the next exchange is as usual. Nothing that the member does can end the
loop: without it its claims would run out.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, Protocol

import structlog

from extproc.cluster import codec
from extproc.cluster.codec import CodecError
from extproc.cluster.errors import StoreError
from extproc.cluster.news import News, Told, key
from extproc.cluster.outbox import Outbox
from extproc.cluster.state import Seen, State
from extproc.cluster.store import LARGEST_MESSAGE, Store
from extproc.cluster.words import Answer, Ask, Cursor, InUse, Peer, Tell
from extproc.core.sharing.words import FlowReport, PoolReport

log = structlog.get_logger()

_IDLE_S: Final = 1.0  # between two exchanges of an idle replica, at most
_IN_A_LEASE: Final = 3
_MOST_TOLD: Final = 1000  # replicas of whose bad messages the log has said something


class Member(Protocol):
    """This replica. Called from the loop, never while another call runs, and quick."""

    def tell(self) -> tuple[Sequence[PoolReport], Mapping[str, Any]]:
        """Of each pool, and what else the others are to know: JSON, as small as can be."""

    def heard(self, news: News) -> None: ...

    def lost(self, error: StoreError) -> None:
        """This exchange has failed. With `in_use` nothing was told, and nothing will be."""

    def busy(self) -> bool:
        """Whether anything is held or inside, here or at others as far as it matters here."""


class Exchange:
    """Belongs to one event loop. `start`, and `stop` at the end."""

    def __init__(
        self,
        store: Store,
        member: Member,
        replica: str,
        *,
        period_s: float,
        lease_s: float,
        life: str | None = None,
        observe: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`life`: of this process, made at random if None. `observe`: is told the seconds of each exchange that has an
        answer. `clock`: the scheduler's, seconds."""
        self.state = State(replica, life or secrets.token_hex(8))
        self._store = store
        self._member = member
        self._period_s = period_s
        self._lease_s = lease_s
        self._idle_s = max(period_s, min(_IDLE_S, lease_s / _IN_A_LEASE))
        self._observe = observe
        self._clock = clock
        self._outbox = Outbox(LARGEST_MESSAGE)
        self._cursor: Cursor | None = None
        self._seq = 0
        self._answered = 0  # the last one whose answer came
        self._began = clock()  # the last exchange
        self._woken = asyncio.Event()
        self._stopping = False
        self._task: asyncio.Task[None] | None = None
        self._complained: set[str] = set()
        self._faults: set[tuple[str, str]] = set()  # of which the log has said something: where, and of what kind

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="cluster exchange")

    async def stop(self) -> None:
        """Give everything back, as far as the store can be asked. May be called again."""
        task, self._task = self._task, None
        if task is None:
            return
        self._stopping = True
        self._woken.set()
        try:
            await asyncio.wait({task})  # an exchange that is on its way would come to the store after `leave`
        finally:
            task.cancel()
        if not self.state.in_use:
            with suppress(StoreError):
                await self._store.leave(self.state.replica, self.state.life)

    def wake(self) -> None:
        """There is something to tell, or to ask for."""
        self._woken.set()

    async def once(self) -> None:
        """One exchange. For the loop, and for tests."""
        self._began = self._clock()
        try:
            tell = self._tell()
            sent_at = self._clock()
            answer = await self._store.exchange(tell)
            self.state.last_s = self._clock() - sent_at
            if isinstance(answer, InUse):
                raise self._is_in_use(answer)
            self._heard(answer, sent_at)
        except StoreError as error:
            self._failed(error)
        except CodecError as error:
            self._failed(StoreError("other", str(error)))
        except Exception as error:
            self._fault("exchange", error)
            self._failed(StoreError("other", f"an exchange broke off here, which is a fault of Fairlane's: {error!r}"))

    async def _run(self) -> None:
        while not self._stopping:
            await self.once()
            await self._wait()

    async def _wait(self) -> None:
        due = self._began + (self._period_s if self._busy() else self._idle_s)
        while not self._stopping and (delay := due - self._clock()) > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._woken.wait()
            if self._woken.is_set():
                self._woken.clear()
                due = min(due, self._began + self._period_s)
        self._woken.clear()

    def _busy(self) -> bool:
        try:
            return self._member.busy()
        except Exception as error:
            self._fault("busy", error)
            return True

    def _tell(self) -> Tell:
        reports, info = self._member.tell()
        self._outbox.put(reports)
        self._seq += 1
        return Tell(
            replica=self.state.replica,
            life=self.state.life,
            seq=self._seq,
            lease_s=self._lease_s,
            document=codec.document(reports, info),
            message=self._outbox.take(),
            asks=tuple(
                Ask(key(report.pool, each.endpoint), each.in_flight, each.want, each.limit)
                for report in reports
                for each in report.endpoints
            ),
            cursor=self._cursor,
        )

    # -- what comes in ----------------------------------------------------------------------------

    def _heard(self, answer: Answer, sent_at: float) -> None:
        state = self.state
        self._outbox.told()
        self._cursor = answer.cursor
        if state.lost_since is not None:
            log.info("cluster_store_back", replica=state.replica, lost_s=round(self._clock() - state.lost_since, 3))
        state.lost_since, state.error, state.in_use = None, None, False
        state.heard_at = sent_at
        state.exchanges += 1
        state.missed += answer.missed
        state.waiting = len(self._outbox)
        state.last_bytes = answer.bytes_told, answer.bytes_read
        state.bytes_told += answer.bytes_told
        state.bytes_read += answer.bytes_read
        state.configuration = answer.configuration
        self._observe(state.last_s)
        for name in answer.garbage:
            self._bad(f"the record of {name!r} in the store is not one: another program has written it", name)
        told = [each for each in map(self._read, answer.peers) if each is not None]
        self._note(answer, {each.replica: each for each in told}, sent_at)
        # The answer that said so may have been lost.
        fresh, self._answered = answer.born > self._answered, self._seq
        self._member.heard(
            News(sent_at, answer.time_ms, fresh, answer.missed, tuple(told), answer.claims, answer.configuration)
        )

    def _read(self, peer: Peer) -> Told | None:
        """None: it lives, and nobody knows what it says."""
        try:
            info, reports = codec.read_document(peer.document, peer.replica)
        except CodecError as error:
            self._bad(str(error), f"{peer.replica} {peer.life}")
            return None
        flows: dict[str, list[FlowReport]] = {}
        for message in peer.messages:
            try:
                for pool, flow in codec.read_message(message, peer.replica):
                    flows.setdefault(pool, []).append(flow)
            except CodecError as error:
                self._bad(str(error), f"{peer.replica} {peer.life}")
        for pool, found in flows.items():
            if pool in reports:
                reports[pool] = replace(reports[pool], flows=tuple(found))
        return Told(peer.replica, peer.life, peer.age_s, info, reports)

    def _note(self, answer: Answer, told: Mapping[str, Told], sent_at: float) -> None:
        state = self.state
        before = {each.replica for each in state.peers}
        state.peers = tuple(
            Seen(
                peer.replica,
                peer.life,
                sent_at - peer.age_s,
                told[peer.replica].info if peer.replica in told else {},
            )
            for peer in sorted(answer.peers, key=lambda peer: peer.replica)
        )
        now = {each.replica for each in state.peers}
        if now != before:
            log.info(
                "cluster_replicas", replica=state.replica, others=sorted(now), came=sorted(now - before),
                went=sorted(before - now),
            )  # fmt: skip
        if answer.versions != state.versions:
            state.versions = answer.versions
            if answer.versions:
                log.warning(
                    "cluster_other_version",
                    replica=state.replica,
                    versions=list(answer.versions),
                    note="replicas of this cluster speak another version of what is kept in the store; each version "
                    "shares only with its own kind, so bring all to one version soon",
                )

    def _bad(self, what: str, whose: str) -> None:
        self.state.bad += 1
        if whose not in self._complained and len(self._complained) < _MOST_TOLD:
            self._complained.add(whose)
            log.warning("cluster_bad_message", replica=self.state.replica, error=what)

    # -- what fails -------------------------------------------------------------------------------

    def _is_in_use(self, answer: InUse) -> StoreError:
        return StoreError(
            "in_use",
            f"another process has the replica id {self.state.replica!r}: give each its own cluster.replica. Where it "
            f"is this one's predecessor, its lease ends within {answer.remaining_s:.1f} s",
        )

    def _failed(self, error: StoreError) -> None:
        state = self.state
        state.failures += 1
        if state.lost_since is None:
            state.lost_since = self._began
        if state.error is None or state.error.kind != error.kind:
            log.warning("cluster_store_lost", replica=state.replica, kind=error.kind, error=error.message)
        state.error = error
        state.in_use = error.kind == "in_use"
        state.waiting = len(self._outbox)
        try:
            self._member.lost(error)
        except Exception as fault:
            self._fault("lost", fault)

    def _fault(self, where: str, error: Exception) -> None:
        """Said once: what fails in each period would fill the log."""
        kind = type(error).__name__
        if (where, kind) not in self._faults:
            self._faults.add((where, kind))
            log.exception("cluster_exchange_fault", replica=self.state.replica, where=where, kind=kind)
