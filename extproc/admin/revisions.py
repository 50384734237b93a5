"""Changes of the configuration, one after the other, each whole or not at all.

A revision is an overlay over a file. Whoever asks for a change, it goes through the ledger; here is whose turn it is,
what operators may ask for, and what the service does by itself: it undoes what expires and takes a new file.

Once a change has its turn it is carried through, also where the client has gone. One that still waits for its turn is
dropped with its client.

Who only asks what a change would do needs no turn: it is worked out over what is in force then. One part and one whole
file at a time: each keeps a thread busy, and Python gives it time that the event loop waits for. Two files at once
would not be done sooner than one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any, TypeVar

import grpc
import structlog

from extproc.admin import past
from extproc.admin.audit import Audit
from extproc.admin.change import Change, Made, Result, of_file, of_patch
from extproc.admin.control import Control
from extproc.admin.errors import AdminError, invalid
from extproc.admin.expiries import Expiries, PendingExpiry
from extproc.admin.in_force import InForce, leading_to
from extproc.admin.ledger import Ledger
from extproc.admin.peers import Peers
from extproc.admin.records import AuditRecord, Author, Kind, Revision, service
from extproc.admin.reloads import Reloads
from extproc.admin.replication import Replication
from extproc.admin.start import ATTEMPTS, Begun, begin, begin_and_keep, keep
from extproc.admin.store import StaleError, Store, StoreError
from extproc.config.administration import Administration
from extproc.config.faults import Fault, Path
from extproc.config.load import FileData, parse_data
from extproc.config.model import Config
from extproc.config.overlay import FieldChange, Overlay

__all__ = ["Author", "PendingExpiry", "Result", "Revisions", "State"]

log = structlog.get_logger()

LONGEST_FILE = 1024**2  # bytes of a file that is sent to be looked at
_CLOSE_S = 5.0  # for a change that is under way
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class State:
    """Of the place where changes are kept."""

    path: str  # empty: in memory
    read_only: bool
    error: str  # why; or that an overlay was set aside, until the next change


class Revisions:
    """Use `Revisions.open`. All but `open` belongs to the event loop."""

    def __init__(self, store: Store, begun: Begun, clock: Callable[[], float]) -> None:
        self._begun = begun
        self._ledger = Ledger(store, begun.state, clock)
        self._set_aside_by, self._set_aside = _set_aside(store, begun)
        self._expiries = Expiries(self._ledger, self._wake)
        self._reloads = Reloads(self._ledger, self._in_turn, self._changed)
        self._replication: Replication | None = None  # None: no other replica has the same live changes
        self._news = False  # of other replicas, that wait for their turn
        self._turn = asyncio.Lock()
        self._part, self._whole_file = asyncio.Lock(), asyncio.Lock()  # whose turn it is to be looked at
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself holds them weakly
        self._running = False

    @classmethod
    def open(
        cls,
        file: FileData,
        admin: Administration,
        *,
        clock: Callable[[], float] = time.time,
        keeps: bool = True,
    ) -> Revisions:
        """Blocks. `clock`: seconds since 1970. `keeps`: write down at once what is in force now; else by `keep`. Raises
        ConfigError where the file is no configuration."""
        path = None if admin.state is None else FilePath(admin.state)
        store = Store.open(path, keep_revisions=admin.keep_revisions, keep_audit=admin.keep_audit)
        try:
            return cls(store, (begin_and_keep if keeps else begin)(store, file, clock()), clock)
        except BaseException:
            store.close()
            raise

    # -- what is in force -------------------------------------------------------------------------

    @property
    def audit(self) -> Audit:
        """For what is no change of the configuration, or was refused before it came here."""
        return self._ledger.audit

    @property
    def config(self) -> Config:
        return self._ledger.now.config

    @property
    def file(self) -> FileData:
        """As it was read when it was taken last."""
        return self._ledger.now.file

    @property
    def file_error(self) -> str | None:
        """Why the file as it is now is not in force."""
        return self._reloads.error

    @property
    def overlay(self) -> Overlay:
        return self._ledger.now.overlay

    @property
    def data(self) -> dict[str, Any]:
        """The file's with the overlay. To be left as it is."""
        return self._ledger.now.data

    @property
    def revision(self) -> int:
        """0: none could be kept."""
        return self._ledger.now.number

    @property
    def etag(self) -> str:
        return self._ledger.now.etag

    @property
    def state(self) -> State:
        store = self._ledger.store
        set_aside = self._set_aside if self._ledger.now.number == self._set_aside_by else ""
        return State("" if store.path is None else str(store.path), store.error is not None, store.error or set_aside)

    def expiries(self) -> tuple[PendingExpiry, ...]:
        """The next one first."""
        return self._expiries.pending()

    # -- at work ----------------------------------------------------------------------------------

    def attach(self, control: Control) -> None:
        """The service that changes are put in force in. Nothing can be changed before."""
        self._ledger.control = control

    async def keep(self) -> None:
        """Write down what is in force since the start, now that the process serves; once, after `attach`. Raises
        ConfigError where what another process has made meanwhile cannot be in force here."""
        await self._in_turn(self._keep)

    async def _keep(self) -> None:
        ledger = self._ledger
        for _ in range(ATTEMPTS):
            try:
                ledger.now = await asyncio.to_thread(keep, ledger.store, self._begun)
                return
            except StaleError as error:
                log.warning("begun_anew", cause=str(error))
            # As if it had begun a moment later: with what the other has made, set aside if it does not fit.
            begun = await asyncio.to_thread(begin, ledger.store, ledger.now.file, ledger.clock())
            if ledger.control is not None and begun.state.config != ledger.now.config:
                (await ledger.control.prepare(begun.state.config))()
            self._begun, ledger.now = begun, begun.state
            self._set_aside_by, self._set_aside = await asyncio.to_thread(_set_aside, ledger.store, begun)
        log.error("state_not_kept", note="another process makes revisions all the time")

    async def join(self, peers: Peers) -> None:
        """Have the live changes of all replicas from now on; once, after `keep`. What they have is in force here when
        it returns, unless the store is lost or it does not fit. Raises nothing."""
        self._replication = Replication(self._ledger, peers)
        peers.follow(self._hear)
        await self._in_turn(self._join)

    async def _join(self) -> None:
        if self._replication is not None:
            await self._replication.begin()
            await self._changed()

    def _hear(self) -> None:
        """The others may have something new."""
        if not self._news:
            self._news = True
            self._later(self._in_turn(self._look))

    async def _look(self) -> None:
        self._news = False
        if self._replication is not None and self._ledger.serving:
            before = self._ledger.now
            await self._replication.look()
            if self._ledger.now is not before:
                await self._changed()

    async def run(self) -> None:
        """Undo what expires and take a changed file; return never. To be cancelled before `close`."""
        self._running = True
        self._expiries.arm()
        try:
            await self._reloads.watch()
        finally:
            self._running = False
            self._expiries.disarm()

    async def close(self) -> None:
        """After the change that has its turn, which is waited for some seconds. What was collected for the audit is
        kept."""
        has_turn = False
        try:
            async with asyncio.timeout(_CLOSE_S):
                has_turn = await self._turn.acquire()
        except TimeoutError:
            log.error("change_not_finished", note="it is not kept; look at the disks of the files that it needs")
        self._expiries.disarm()
        try:
            await self.audit.flush()
            await asyncio.to_thread(self._ledger.store.close)
        finally:
            if has_turn:
                self._turn.release()

    async def reload(self, why: str) -> bool:
        """Read the file again. Whether it is in force now; if not, `file_error` says why, and what was goes on. Raises
        nothing."""
        return await self._reloads.reload(why)

    async def expire(self) -> None:
        """Undo what is over by now. `run` does it in time."""
        await self._in_turn(self._expire)

    # -- changes ----------------------------------------------------------------------------------

    async def patch(
        self,
        author: Author,
        patch: Mapping[str, Any],
        mask: Sequence[Path] | None,
        *,
        reason: str,
        ttl_s: float | None,
        etag: str,
        validate_only: bool,
        extra_warnings: Sequence[Fault] = (),
    ) -> Result:
        """Change the configuration, see `Overlay.patched`; in the audit also where it is refused. Raises AdminError."""

        make = _patching(patch, mask)
        change = Change(Kind.CHANGE, author, reason, make, ttl_s, etag, validate_only, tuple(extra_warnings))
        return await self._acknowledged(await self._in_turn(lambda: self._asked(change)))

    async def rollback(
        self,
        author: Author,
        revision: int,
        *,
        reason: str,
        ttl_s: float | None,
        etag: str,
        validate_only: bool,
    ) -> Result:
        """Take the overlay of an earlier revision, without what has expired since, over the file as it is now; in the
        audit also where it is refused. Raises AdminError."""

        def make(now: InForce, number: int, expires_at: float | None) -> Made:
            then, _ = past.overlay_at(self._ledger.store, now, revision).expired(self._ledger.clock())
            if expires_at is None:
                return Made(then.folded(now.file.data))
            return Made(leading_to(then.over(now.file.data), now, revision=number, expires_at=expires_at))

        change = Change(
            Kind.ROLLBACK,
            author,
            reason,
            make,
            ttl_s,
            etag,
            validate_only,
            rolled_back_to=revision,
            unfit=grpc.StatusCode.FAILED_PRECONDITION,
        )
        return await self._acknowledged(await self._in_turn(lambda: self._asked(change)))

    async def part(self, patch: Mapping[str, Any], mask: Sequence[Path] | None) -> Result:
        """What `patch` would do. Nothing does, and no record is kept: whoever may read may ask. Raises AdminError."""

        change = Change(Kind.CHANGE, service("ValidateConfig"), "", _patching(patch, mask), validate_only=True)
        return await self._whole(self._part, lambda: self._ledger.look(change))

    async def whole_file(self, text: str) -> Result:
        """Whether a file of this text would be taken, and what it would change. Nothing does. Raises AdminError."""
        size = len(text.encode())
        if size > LONGEST_FILE:
            told = f"has {size} bytes, and {LONGEST_FILE} is the most here: `fairlane check-config` takes more"
            raise invalid("yaml", told)

        def make(now: InForce, _number: int, _expires_at: float | None) -> Made:
            return of_file(now, FileData.of(parse_data(text, "yaml"), now.file.environment))

        change = Change(Kind.FILE_RELOAD, service("ValidateConfig"), "", make, validate_only=True)
        return await self._whole(self._whole_file, lambda: self._ledger.look(change))

    # -- history ----------------------------------------------------------------------------------

    async def list_revisions(self, before: int | None, limit: int) -> list[Revision]:
        """Newest first, with lower numbers than `before`. Raises AdminError."""
        return await past.revisions(self._ledger.store, before, limit)

    async def list_audit(
        self, before: int | None, limit: int, *, who: str = "", failed_only: bool = False
    ) -> list[AuditRecord]:
        """Newest first, with lower ids than `before`. Raises AdminError."""
        return await past.audit(self._ledger.store, before, limit, who=who, failed_only=failed_only)

    async def diff(self, from_: int, to: int) -> tuple[FieldChange, ...]:
        """Between the configurations that were in force at two revisions. Raises AdminError."""
        return await past.difference(self._ledger.store, self._ledger.now, from_, to)

    # -- the way of a change ----------------------------------------------------------------------

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Alone."""
        return await self._whole(self._turn, work)

    async def _whole(self, turn: asyncio.Lock, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """To its end also where the one who waits for it goes away, and its turn is over then and not before."""
        await turn.acquire()
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)

        def over(_: object) -> None:
            self._tasks.discard(task)
            turn.release()
            if not task.cancelled():
                task.exception()  # may have nobody left to be told, and is in the audit

        task.add_done_callback(over)
        return await asyncio.shield(task)

    async def _asked(self, change: Change) -> Result:
        """A change by an operator."""
        before = self._ledger.now
        try:
            change.check()
            if not self._ledger.serving:
                raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, "it is draining: change what takes its place")
            result = await (self._replication or self._ledger).carry_out(change)
        except Exception as error:
            await self._ledger.refused(change, error)
            if self._ledger.now is not before:  # what another process has made is in force
                await self._changed()
            raise
        if not change.validate_only:
            await self._changed()
        return result

    async def _acknowledged(self, result: Result) -> Result:
        """With what has become of it at other replicas, which have some time to say so."""
        if self._replication is None or result.shared is None:
            return result
        return replace(result, replicas=await self._replication.acknowledged(result.shared))

    async def _changed(self) -> None:
        """What could not be before is tried again."""
        if self._expiries.held_back:
            await self._expiries.undo()
        await self._take_refused()

    async def _take_refused(self) -> None:
        if self._replication is not None:
            await self._replication.keep_up()
        if await self._reloads.try_again() and self._expiries.held_back:
            await self._expiries.undo()
        if self._running:
            self._expiries.arm()

    # -- what it does by itself -------------------------------------------------------------------

    async def _expire(self) -> None:
        await self._expiries.undo()
        await self._take_refused()

    def _wake(self) -> None:
        self._later(self.expire())

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _patching(patch: Mapping[str, Any], mask: Sequence[Path] | None) -> Callable[[InForce, int, float | None], Made]:
    def make(now: InForce, number: int, expires_at: float | None) -> Made:
        return of_patch(now, patch, mask, number=number, expires_at=expires_at)

    return make


def _set_aside(store: Store, begun: Begun) -> tuple[int, str]:
    """The revision that set an overlay aside, and why, where it is the last one. Blocks."""
    try:
        last = begun.words[-1].revision if begun.words else store.last()
    except StoreError:
        return -1, ""
    return (last.number, last.reason) if last is not None and last.kind is Kind.SET_ASIDE else (-1, "")
