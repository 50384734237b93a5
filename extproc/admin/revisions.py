"""Changes of the configuration, one after the other, each whole or not at all.

A revision is an overlay over a file. Whoever asks for a change, it goes through the ledger; here is whose turn it is,
what operators may ask for, and what the service does by itself: it undoes what expires and takes a new file.

Once a change has its turn it is carried through, also where the client has gone. One that still waits for its turn is
dropped with its client.

A new file is taken if it is a configuration by itself and with the overlay. One that is none is kept out, and the one
before it goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, TypeVar

import grpc
import structlog

from extproc.admin import past
from extproc.admin.audit import Audit
from extproc.admin.change import Change, Made, Result, of_file, of_patch
from extproc.admin.control import Control
from extproc.admin.errors import AdminError
from extproc.admin.expiries import Expiries, PendingExpiry
from extproc.admin.in_force import InForce, leading_to
from extproc.admin.ledger import Ledger
from extproc.admin.records import AuditRecord, Author, Kind, Revision, service
from extproc.admin.start import begin
from extproc.admin.store import Store, StoreError
from extproc.config.administration import Administration
from extproc.config.faults import ConfigError, Fault, Path
from extproc.config.file_watch import FileWatch
from extproc.config.load import FileData, parse_data, read_file
from extproc.config.model import Config
from extproc.config.overlay import FieldChange, Overlay

__all__ = ["Author", "PendingExpiry", "Result", "Revisions", "State"]

log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class State:
    """Of the place where changes are kept."""

    path: str  # empty: in memory
    read_only: bool
    error: str  # why; or that an overlay was set aside, until the next change


class Revisions:
    """Use `Revisions.open`. All but `open` belongs to the event loop."""

    def __init__(self, store: Store, begun: InForce, clock: Callable[[], float]) -> None:
        self.file_error: str | None = None  # why the file as it is now is not in force
        self._ledger = Ledger(store, begun, clock)
        self._set_aside_by, self._set_aside = _set_aside(store)
        self._expiries = Expiries(self._ledger, self._wake)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()  # the loop itself holds them weakly
        self._running = False

    @classmethod
    def open(cls, file: FileData, admin: Administration, *, clock: Callable[[], float] = time.time) -> Revisions:
        """Blocks. `clock`: seconds since 1970. Raises ConfigError where the file is no configuration."""
        path = None if admin.state is None else FilePath(admin.state)
        store = Store.open(path, keep_revisions=admin.keep_revisions, keep_audit=admin.keep_audit)
        try:
            return cls(store, begin(store, file, clock()), clock)
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

    async def run(self) -> None:
        """Undo what expires and take a changed file; return never. To be cancelled before `close`."""
        self._running = True
        self._expiries.arm()
        try:
            if self._ledger.now.file.path is None:
                await asyncio.Event().wait()
            else:
                await FileWatch(self._ledger.now.file.path).watch(lambda: self.reload("the file changed"))
        finally:
            self._running = False
            self._expiries.disarm()

    async def close(self) -> None:
        """After the change that has its turn. What was collected for the audit is kept."""
        async with self._turn:
            self._expiries.disarm()
            await self.audit.flush()
            await asyncio.to_thread(self._ledger.store.close)

    async def reload(self, why: str) -> bool:
        """Read the file again. Whether it is in force now; if not, `file_error` says why, and what was goes on. Raises
        nothing."""
        return await self._in_turn(lambda: self._reload(why))

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

        def make(now: InForce, number: int, expires_at: float | None) -> Made:
            return of_patch(now, patch, mask, number=number, expires_at=expires_at)

        change = Change(Kind.CHANGE, author, reason, make, ttl_s, etag, validate_only, tuple(extra_warnings))
        return await self._in_turn(lambda: self._asked(change))

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
        return await self._in_turn(lambda: self._asked(change))

    async def part(self, patch: Mapping[str, Any], mask: Sequence[Path] | None) -> Result:
        """What `patch` would do. Nothing does, and no record is kept: whoever may read may ask. Raises AdminError."""

        def make(now: InForce, number: int, expires_at: float | None) -> Made:
            return of_patch(now, patch, mask, number=number, expires_at=expires_at)

        change = Change(Kind.CHANGE, service("ValidateConfig"), "", make, validate_only=True)
        return await self._in_turn(lambda: self._ledger.look(change))

    async def whole_file(self, text: str) -> Result:
        """Whether a file of this text would be taken, and what it would change. Nothing does. Raises AdminError."""

        def make(now: InForce, _number: int, _expires_at: float | None) -> Made:
            return of_file(now, FileData.of(parse_data(text, "yaml")))

        change = Change(Kind.FILE_RELOAD, service("ValidateConfig"), "", make, validate_only=True)
        return await self._in_turn(lambda: self._ledger.look(change))

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
        """Alone, and to its end also where the one who waits for it goes away."""
        await self._turn.acquire()
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._turn_over)
        return await asyncio.shield(task)

    def _turn_over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._turn.release()
        if not task.cancelled():
            task.exception()  # may have nobody left to be told, and is in the audit

    async def _asked(self, change: Change) -> Result:
        """A change by an operator."""
        try:
            change.check()
            if not self._ledger.serving:
                raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, "it is draining: change what takes its place")
            result = await self._ledger.carry_out(change)
        except Exception as error:
            await self._ledger.refused(change, error)
            raise
        if not change.validate_only:
            await self._changed()
        return result

    async def _changed(self) -> None:
        if self._expiries.held_back:
            await self._expiries.undo()
        if self._running:
            self._expiries.arm()

    # -- what it does by itself -------------------------------------------------------------------

    async def _expire(self) -> None:
        await self._expiries.undo()
        if self._running:
            self._expiries.arm()

    def _wake(self) -> None:
        task = asyncio.get_running_loop().create_task(self.expire())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self, why: str) -> bool:
        now = self._ledger.now
        if now.file.path is None or not self._ledger.serving:
            return False
        try:
            file = await asyncio.to_thread(read_file, now.file.path)
            if file.sha256 != now.file.sha256:
                change = Change(
                    Kind.FILE_RELOAD, service("reload"), why, lambda state, *_: of_file(state, file), must=True
                )
                await self._ledger.carry_out(change)
                await self._changed()
        except Exception as error:  # whatever it is, what was in force goes on
            await self._file_refused(why, error)
            return False
        if self.file_error is not None:
            log.info("config_file_good_again", path=str(now.file.path))
        self.file_error = None
        return True

    async def _file_refused(self, why: str, error: Exception) -> None:
        """Told once for each thing that is wrong."""
        expected = isinstance(error, ConfigError | AdminError)
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        if message == self.file_error:
            return
        self.file_error = message
        log.error(
            "config_file_refused",
            path=str(self._ledger.now.file.path),
            error=message,
            note="what was in force goes on",
            exc_info=None if expected else error,
        )
        code = error.code if isinstance(error, AdminError) else grpc.StatusCode.INVALID_ARGUMENT
        await self.audit.add(self.audit.new(service("reload"), why, outcome=code.name, message=message))


def _set_aside(store: Store) -> tuple[int, str]:
    """The revision that set an overlay aside, and why, where it is the last one. Blocks."""
    try:
        last = store.last()
    except StoreError:
        return -1, ""
    return (last.number, last.reason) if last is not None and last.kind is Kind.SET_ASIDE else (-1, "")
