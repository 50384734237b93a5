"""The state in force, and the one way in which it changes.

The next state is worked out and validated in a thread, the service makes ready for it, one transaction keeps it with
its audit record, and then it is put in force within one turn of the event loop. The transaction is the point: a process
that dies before it starts with the old state, and after it with the new one.

Not every state can be kept. Changes are refused then. What has to happen all the same, an expiry or a new file, happens
in memory only, since a restart comes to the same: the file and the expiries are known there too. The number in the etag
stays behind then.

Another process may keep its revisions in the same file: the one that this one takes the place of, for a while. A change
that finds newer revisions there than its own is not made. What they say is put in force here too, so that whoever asked
can look and decide again; what has to happen is tried again at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NoReturn

import grpc
import structlog

from extproc import __version__
from extproc.admin.audit import Audit
from extproc.admin.change import Change, Made, Result, worked_out
from extproc.admin.consequences import in_use
from extproc.admin.control import Control
from extproc.admin.errors import AdminError, Violation, invalid_config
from extproc.admin.in_force import Candidate, InForce
from extproc.admin.records import AuditRecord, Kind, Note, Revision, service
from extproc.admin.store import StaleError, Store, StoreError
from extproc.config.faults import ConfigError, Fault
from extproc.config.overlay import Overlay, diff

log = structlog.get_logger()

_ATTEMPTS = 3  # at what has to happen, while another process makes revisions too


class _OvertakenError(Exception):
    """Another process has made a revision meanwhile."""

    def __init__(self, change: Change, stale: StaleError) -> None:
        super().__init__(str(stale))
        self.change = change  # as it is to be tried again
        self.stale = stale


class Ledger:
    """One change at a time: whoever calls it sees to that."""

    def __init__(self, store: Store, begun: InForce, clock: Callable[[], float]) -> None:
        """`clock`: seconds since 1970."""
        self.store = store
        self.audit = Audit(store, clock=clock)
        self.now = begun
        self.clock = clock
        self.control: Control | None = None  # where changes are put in force; without it nothing can be changed
        self._started = begun.config

    @property
    def serving(self) -> bool:
        return self.control is not None and self.control.serving

    async def refused(self, change: Change, error: Exception) -> None:
        """Keep a record of what could not be carried out."""
        admin = isinstance(error, AdminError)
        outcome = error.code.name if isinstance(error, AdminError) else grpc.StatusCode.INTERNAL.name
        await self.audit.add(
            self.audit.new(
                change.author,
                change.reason,
                outcome=outcome,
                message=str(error) if admin else type(error).__name__,
                validate_only=change.validate_only,
            )
        )

    async def carry_out(self, change: Change) -> Result:
        """Make the change, or only see what it would do (`validate_only`), and keep a record of it. Raises AdminError,
        with no record kept."""
        for left in reversed(range(_ATTEMPTS)):
            try:
                return await self._carry_out(change)
            except _OvertakenError as error:
                change, stale = error.change, error.stale
                await self._catch_up(stale)
                if not (change.must and left):
                    break
        told = f"{stale}: that is in force here too now; read it again, and decide again"
        raise AdminError(grpc.StatusCode.ABORTED, told) from stale

    async def _carry_out(self, change: Change) -> Result:
        """Raises AdminError; _OvertakenError."""
        now = self.now
        if change.etag and change.etag != now.etag:
            told = f"{now.etag} is in force, not {change.etag}: read it again, and decide again"
            raise AdminError(grpc.StatusCode.ABORTED, f"etag: {told}", [Violation("etag", told)])
        if self.store.broken and not change.must:
            raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, f"nothing can be changed: {self.store.error}")
        expires_at = None if change.ttl_s is None else self.clock() + change.ttl_s
        found, commit, warnings = await self._prepared(change, expires_at)
        result = _result(now, found, change.validate_only, warnings, expires_at)
        record = self.audit.new(change.author, change.reason, changes=found.changes, validate_only=change.validate_only)
        if change.validate_only or found.same:
            await self.audit.add(replace(record, message="" if found.changes else "it was so already"))
            return result
        if change.publish is not None:
            change = await change.publish(found)
        told = "" if change.shared is None else f"cluster revision {change.shared.revision}"
        record = replace(record, revision=found.state.number, message=told)
        try:
            kept = await self._keep(change, found, record, expires_at)
        except StaleError as error:
            raise _OvertakenError(change, error) from error
        state = found.state if kept else replace(found.state, number=now.number)
        self.audit.tell(record if kept else replace(record, revision=0, message="could not be kept"))
        try:
            commit()
        except Exception as error:
            await self._take_back(state, error)
        self.now = state
        return replace(result, revision=state.number, etag=state.etag)

    async def look(self, change: Change) -> Result:
        """What the change would do to what is in force now. It needs no turn, and makes nothing ready: nothing is read
        or made for somebody who only asks. No record is kept. Raises AdminError."""
        now = self.now
        with _refusing(change):
            made, found = await asyncio.to_thread(worked_out, now, change, None, self._started)
            if self.control is not None and not found.same_config:
                await asyncio.to_thread(self.control.check, found.state.config)
        return _result(now, found, True, self._warnings(now, change, made, found), None)

    async def _prepared(
        self, change: Change, expires_at: float | None
    ) -> tuple[Candidate, Callable[[], None], tuple[Fault, ...]]:
        """With what puts it in force, and the warnings. Raises AdminError."""
        commit = _nothing
        with _refusing(change):
            made, found = await asyncio.to_thread(worked_out, self.now, change, expires_at, self._started)
            if self.control is not None and not found.same_config:
                commit = await self.control.prepare(found.state.config)
        return found, commit, self._warnings(self.now, change, made, found)

    def _warnings(self, now: InForce, change: Change, made: Made, found: Candidate) -> tuple[Fault, ...]:
        warnings = [*change.warnings, *made.warnings, *found.warnings]
        if self.control is not None:
            warnings += in_use(now.config, found.state.config, self.control.running())
        if self.store.path is None and not found.same:
            warnings.append(Fault("admin.state", "is not set: changes are gone when the process ends"))
        return tuple(warnings)

    async def _keep(self, change: Change, found: Candidate, record: AuditRecord, expires_at: float | None) -> bool:
        """Raises AdminError where it cannot be, and need not be; StaleError."""
        state = found.state
        revision = Revision(
            number=state.number,
            created_at=record.at,
            kind=change.kind,
            who=record.author.name,
            reason=record.reason,
            overlay=state.overlay.to_plain(),
            file_sha256=state.file.sha256,
            changes=found.changes,
            expires_at=expires_at,
            rolled_back_to=change.rolled_back_to,
            version=__version__,
        )
        try:
            note = None if change.shared is None else Note.of(change.shared_by, state.number, change.shared)
            await asyncio.to_thread(
                self.store.commit, revision, state.file.data, record, expected=state.number - 1, note=note
            )
        except StaleError:
            raise
        except StoreError as error:
            if change.must:
                log.error("revision_not_kept", kind=change.kind.value, error=str(error), note="in force all the same")
                return False
            raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        return True

    async def _catch_up(self, stale: StaleError) -> None:
        """Go by the last revision that another process has made, over the file as it is known here. Raises
        AdminError."""
        number = self.now.number

        def make(_now: InForce, _number: int, _expires_at: float | None) -> Made:
            nonlocal number
            last = self.store.last()
            if last is None:
                return Made(self.now.overlay)
            number = last.number
            return Made(Overlay.from_plain(last.overlay))

        try:
            found, commit, _ = await self._prepared(Change(Kind.CHANGE, service("catch up"), "", make), None)
        except AdminError as error:
            told = f"{stale}; it cannot be in force here ({error.message}): restart this process"
            raise AdminError(grpc.StatusCode.ABORTED, told) from error
        commit()
        self.now = replace(found.state, number=number)
        log.warning("caught_up", revision=number, changes=len(found.changes), note="another process changed it")

    async def _take_back(self, state: InForce, cause: Exception) -> NoReturn:
        """`state` is kept, and could not be put in force, which must not happen. The one before it becomes a revision
        again. Raises AdminError."""
        before = self.now
        log.error("commit_failed", revision=state.number, exc_info=cause)
        number = state.number
        try:
            if self.control is not None:
                (await self.control.prepare(before.config))()
        except Exception as error:
            log.error("commit_not_taken_back", revision=number, exc_info=error, note="restart it")
        changes = diff(state.data, before.data)
        author = service("take back")
        reason = f"revision {number} could not be put in force"
        record = self.audit.new(author, reason, changes=changes, revision=number + 1)
        revision = Revision(
            number=number + 1,
            created_at=record.at,
            kind=Kind.ROLLBACK,
            who=author.name,
            reason=reason,
            overlay=before.overlay.to_plain(),
            file_sha256=before.file.sha256,
            changes=changes,
            rolled_back_to=before.number,
            version=__version__,
        )
        try:
            await asyncio.to_thread(self.store.commit, revision, before.file.data, record, expected=number)
            number += 1
            self.audit.tell(record)
        except StoreError as error:
            log.error("commit_not_taken_back", revision=number, error=str(error), note="a restart brings it back")
        self.now = replace(before, number=number)
        raise AdminError(
            grpc.StatusCode.INTERNAL, f"{reason} ({type(cause).__name__}, see the log), and was taken back"
        ) from cause


def _result(
    now: InForce, found: Candidate, validate_only: bool, warnings: tuple[Fault, ...], expires_at: float | None
) -> Result:
    """Before it is in force."""
    number = now.number if found.same else found.state.number
    return Result(number, now.etag, validate_only, found.changes, warnings, expires_at)


@contextmanager
def _refusing(change: Change) -> Iterator[None]:
    """Raises AdminError for what is no configuration, or cannot be read."""
    try:
        yield
    except ConfigError as error:
        raise invalid_config(error, change.unfit) from error
    except StoreError as error:
        raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error


def _nothing() -> None: ...
