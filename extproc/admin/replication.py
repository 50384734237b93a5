"""Live changes that all replicas of a cluster have.

The store of the cluster has one overlay, with a revision of the cluster and the id of the change that made it. A change
that an operator makes here is written there in the place of the one before it (compare and set), then kept and put in
force here; the others hear of it with their next exchange and take it, each as a revision of its own history. So of two
changes at once one is refused, with nothing done.

Written first, since that is what may fail for reasons that are nobody's fault. From then on the change is carried
through: where it cannot be kept here it is in force in memory, and a restart takes it from the store. Where it cannot
be put in force here, which must not happen, the overlay before it is written again.

- Before a change the store is read, so that the change lies over what all have.
- A store that is lost stops nobody. The change is in force here, the answer says that the others do not have it, and it
  is offered when the store is back. If others have written meanwhile, theirs is taken and ours is set aside: it stays
  in the history, and the audit says so to the one who made it.
- What does not fit here (the file is another, the version older) is not taken. This replica says so in its info, and is
  changed no more as long as others have what it has not: its changes would undo theirs.
- A store that was emptied, or goes back in time, is given the latest again by whoever has it.
- Expiries are each replica's own: all know them.
- Settings of one process (`config.shared.LOCAL`) stay here.

What is in force is always the file with what all have, over it. Files should be the same everywhere. While a new one is
rolled out they are not, and what one file says already is still needed over the others (`config.shared.published`). It
is dropped for all when all that live have the same file.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import Final

import grpc
import structlog

from extproc import __version__
from extproc.admin.change import Change, Made, Result
from extproc.admin.errors import AdminError
from extproc.admin.in_force import Candidate, InForce
from extproc.admin.ledger import Ledger
from extproc.admin.peers import Peers
from extproc.admin.records import SCHEMA, Author, Kind, Note, service
from extproc.admin.remembered import Remembered, as_here, remembered
from extproc.admin.store import StoreError
from extproc.config.faults import ConfigError, Fault
from extproc.config.overlay import Overlay
from extproc.config.shared import (
    LOCAL,
    ConflictError,
    LostError,
    NewerError,
    ReplicaTaken,
    SharedRevision,
    folded_away,
    published,
    same_settings,
    shared_part,
)

log = structlog.get_logger()

_ATTEMPTS: Final = 3  # while others write too


class Replication:
    """Of one ledger. All but `acknowledged` is to be called in the turn of a change."""

    def __init__(self, ledger: Ledger, peers: Peers) -> None:
        self._ledger = ledger
        self._peers = peers
        self._taken: SharedRevision | None = None  # in force here
        self._pending: SharedRevision | None = None  # in force here, and not in the store as far as known
        self._own: list[int] = []  # revisions here that `_pending` comes of
        self._refused: SharedRevision | None = None  # does not fit here
        self._error = ""  # why; or what is wrong with what is in the store
        self._newer = False  # what is in the store must be left alone
        self._tried: InForce | None = None  # what it did not fit

    async def begin(self) -> None:
        """Find out what this replica had at last, and take what all have. A store that is lost delays it only."""
        ledger = self._ledger
        try:
            known = await asyncio.to_thread(remembered, ledger.store, self._peers.cluster, ledger.now, ledger.clock())
        except StoreError as error:
            log.warning("replication_not_remembered", error=str(error))
            known = Remembered()
        self._taken = known.taken
        if known.since:
            newest = known.since[0]
            change = Change(newest.kind, Author(newest.who, "", "", newest.kind.value.lower()), newest.reason, _nothing)
            revision = 1 if known.taken is None else known.taken.revision + 1
            self._pending = self._new(change, shared_part(ledger.now.overlay), revision)
            self._own = [each.number for each in reversed(known.since)]
        self._tell()
        await self.look()

    # -- changes ----------------------------------------------------------------------------------

    async def carry_out(self, change: Change) -> Result:
        """A change by an operator, for all replicas. Raises AdminError."""
        ledger = self._ledger
        if change.validate_only:
            return await ledger.carry_out(change)
        lost = await self.look()
        self._check_refused()
        base, before = self._refused or self._taken, ledger.now
        offered: SharedRevision | None = None
        written = False

        async def publish(found: Candidate) -> Change:
            nonlocal offered, written, lost
            mine = found.state.overlay
            if same_settings(shared_part(mine), shared_part(before.overlay), alike_s=0):
                return replace(change, publish=None)  # it is of this process alone
            shared = self._taken.overlay if base is self._taken and self._taken is not None else None
            overlay = published(mine, before.overlay, shared)
            offered = self._new(change, overlay, 1 + (0 if base is None else base.revision))
            if not lost:
                lost = await self._written(offered)
                written = not lost
            if not written:
                return replace(change, publish=None)
            return replace(
                change,
                publish=None,
                make=lambda *_: Made(mine),
                must=True,
                shared=offered,
                shared_by=self._peers.cluster,
            )

        try:
            result = await ledger.carry_out(replace(change, publish=publish))
        except AdminError as error:
            if error.code is grpc.StatusCode.ABORTED and await self._overtaken(before):
                raise self._conflict() from error
            if written and error.code is grpc.StatusCode.INTERNAL and offered is not None:
                await self._put_back(offered, before.overlay)
            raise
        warnings = list(result.warnings)
        if any(each.path[0] in LOCAL for each in result.changes):
            names = ", ".join(sorted(LOCAL))
            warnings.append(Fault(names, "is of this process: other replicas do not take it, ask each"))
        if offered is None:
            return replace(result, warnings=tuple(warnings))
        if written:
            self._has(offered)
        else:
            self._pending = offered
            self._own.append(result.revision)
            told = (
                f"cannot be asked ({lost}): the others have not taken it; it is offered to them when the store is back"
            )
            warnings.append(Fault("cluster.store", told))
        return replace(result, warnings=tuple(warnings), shared=offered)

    async def acknowledged(self, revision: SharedRevision) -> tuple[ReplicaTaken, ...]:
        """What became of a change at all replicas. Waits for them for some time: not to be called in anybody's turn."""
        return await self._peers.acknowledged(revision)

    def _new(self, change: Change, overlay: Overlay, revision: int) -> SharedRevision:
        author = change.author
        return SharedRevision(
            revision=revision,
            id=secrets.token_hex(8),
            overlay=overlay,
            who=author.name,
            role=author.role,
            method=author.method,
            reason=change.reason,
            kind=change.kind.value,
            replica=self._peers.replica,
            at=self._ledger.clock(),
            schema=SCHEMA,
            version=__version__,
        )

    async def _written(self, revision: SharedRevision) -> str:
        """Why the store is lost; empty: it is written. Raises AdminError."""
        try:
            await self._peers.write(revision)
        except LostError as error:
            return str(error)
        except ConflictError as error:
            raise AdminError(grpc.StatusCode.ABORTED, str(error)) from error
        except ConfigError as error:
            raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from error
        return ""

    async def _overtaken(self, before: InForce) -> bool:
        """Whether what all have is another than a moment ago; it is in force here then."""
        known = self._taken
        await self.look()
        return self._ledger.now is not before and self._taken is not known

    def _conflict(self) -> AdminError:
        taken = self._taken
        what = "" if taken is None else f" cluster revision {taken.revision} ({taken.who}: {taken.reason})"
        where = "" if taken is None else f" {taken.replica}"
        told = (
            f"replica{where} has made{what} meanwhile: that is in force here too now; read it again, and decide again"
        )
        return AdminError(grpc.StatusCode.ABORTED, told)

    def _check_refused(self) -> None:
        """Raises AdminError where a change here would undo what others have."""
        refused = self._refused
        if self._newer:
            raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, f"nothing can be changed here: {self._error}")
        if refused is not None and self._peers.highest() >= refused.revision:
            told = (
                f"other replicas have cluster revision {refused.revision}, by {refused.who} at {refused.replica}, "
                f"which does not fit here ({self._error}): mend the file here, or make the change at another replica"
            )
            raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, told)

    async def _put_back(self, failed: SharedRevision, overlay: Overlay) -> None:
        """`failed` is written, and could not be put in force here. The others are to leave it too."""
        shared = None if self._taken is None else self._taken.overlay
        back = replace(
            failed,
            revision=failed.revision + 1,
            id=secrets.token_hex(8),
            overlay=published(overlay, overlay, shared),
            who="fairlane",
            role="",
            method="take back",
            reason=f"cluster revision {failed.revision} could not be put in force at replica {failed.replica}",
            kind=Kind.ROLLBACK.value,
        )
        try:
            await self._peers.write(back)
        except (LostError, ConflictError, ConfigError) as error:
            log.error("cluster_revision_not_taken_back", revision=failed.revision, error=str(error))
            return
        self._has(back)
        await self._note(back)

    # -- what the others do -----------------------------------------------------------------------

    async def look(self) -> str:
        """Take what is in the store, or give it what is here. Why the store is lost; empty: it is not. Raises
        nothing."""
        for _ in range(_ATTEMPTS):
            try:
                found = await self._peers.read()
            except LostError as error:
                return str(error)
            except ConfigError as error:
                self._unreadable(error)
                found = None
            else:
                self._newer = False
            if self._newer:
                return ""
            try:
                await self._settle(found)
            except ConflictError:
                continue
            except LostError as error:
                return str(error)
            return ""
        return "other replicas write all the time"

    async def keep_up(self) -> None:
        """After something else has changed here, a new file: what all have lies over it as over the one before. What
        did not fit is tried again."""
        self._tell()
        if self._refused is not None:
            if self._tried is not self._ledger.now:
                await self._take(self._refused)
        elif self._taken is not None and self._pending is None:
            overlay = await asyncio.to_thread(as_here, self._taken.overlay, self._ledger.now, self._ledger.clock())
            if not same_settings(overlay, self._ledger.now.overlay):
                await self._take(self._taken)

    async def _settle(self, there: SharedRevision | None) -> None:
        """`there`: in the store. Raises ConflictError, LostError."""
        latest = self._pending or self._taken
        if there is None:
            if latest is not None and self._peers.highest() <= latest.revision:
                await self._offer(latest)
        elif there.same_as(self._pending):  # it was written, and nobody heard
            self._has(there)
            await self._note(there)
        elif there.same_as(self._taken):
            if self._pending is not None:
                await self._offer(self._pending)
            else:
                self._has(there)
                await self.keep_up()
                await self._fold(there)
        elif self._taken is not None and latest is not None and there.revision < self._taken.revision:
            await self._offer(latest)
        elif not there.same_as(self._refused):
            await self._take(there)
        else:
            await self.keep_up()

    async def _fold(self, there: SharedRevision) -> None:
        """What all files say by now is dropped from what all have, as each has dropped it. Raises ConflictError,
        LostError."""
        overlay = self._ledger.now.overlay
        if self._refused is not None or not self._peers.agree() or not folded_away(there.overlay, overlay):
            return
        change = Change(Kind.CHANGE, service("fold"), "the file says it now", _nothing)
        await self._offer(self._new(change, shared_part(overlay), there.revision + 1))

    async def _offer(self, mine: SharedRevision) -> None:
        """Raises ConflictError, LostError."""
        try:
            await self._peers.write(mine)
        except ConfigError as error:
            log.error("cluster_revision_not_offered", revision=mine.revision, error=str(error))
            return
        log.info("cluster_revision_offered", revision=mine.revision, who=mine.who, reason=mine.reason)
        self._has(mine)
        await self._note(mine)

    def _has(self, shared: SharedRevision) -> None:
        """It is in force here and in the store."""
        self._taken, self._pending, self._refused = shared, None, None
        self._own, self._error = [], ""
        self._tell()

    def _tell(self) -> None:
        self._peers.tell(self._taken, self._refused, self._error, self._ledger.now.file.sha256)

    async def _take(self, there: SharedRevision) -> bool:
        """Whether it is in force here now."""
        ledger, before = self._ledger, self._ledger.now
        aside = self._set_aside(there)
        author = Author(there.who, there.role, f"replica {there.replica}", there.method)
        reason = f"{there.reason} (from replica {there.replica}, cluster revision {there.revision})"
        if there.same_as(self._taken):
            author, reason = service("keep up"), f"cluster revision {there.revision} over what has changed here"
        if aside:
            reason += f"; sets aside {aside}"
        change = Change(
            Kind.CHANGE,
            author,
            reason,
            lambda now, *_: Made(as_here(there.overlay, now, ledger.clock())),
            must=True,
            shared=there,
            shared_by=self._peers.cluster,
        )
        try:
            if there.schema > SCHEMA:
                told = f"its settings are those of a newer Fairlane ({there.version}): update this replica"
                raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, told)
            await ledger.carry_out(change)
        except Exception as error:  # whatever it is, what was in force goes on
            await self._refuse(there, change, error)
            return False
        if ledger.now is before:
            await self._note(there)
        mine = self._pending
        self._has(there)
        log.info("cluster_revision_taken", revision=there.revision, replica=there.replica, who=there.who)
        if aside and mine is not None:
            await self._tell_set_aside(mine, aside, there)
        return True

    async def _refuse(self, there: SharedRevision, change: Change, error: Exception) -> None:
        """Told once for each thing that is wrong."""
        expected = isinstance(error, AdminError)
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        known = there.same_as(self._refused) and message == self._error
        self._refused, self._error, self._tried = there, message, self._ledger.now
        self._tell()
        if known:
            return
        log.error(
            "cluster_revision_refused",
            revision=there.revision,
            replica=there.replica,
            error=message,
            note="what was in force here goes on",
            exc_info=None if expected else error,
        )
        await self._ledger.refused(change, error)

    def _unreadable(self, error: ConfigError) -> None:
        """Of what is in the store."""
        self._newer = isinstance(error, NewerError)
        message = str(error)
        if message != self._error:
            log.error("cluster_configuration_unreadable", error=message)
        self._error = message
        self._tell()

    # -- what was made here alone -----------------------------------------------------------------

    def _set_aside(self, there: SharedRevision) -> str:
        """Which revisions of this replica are in force no more once `there` is; empty: none."""
        now = self._ledger.now
        if self._pending is None or same_settings(as_here(there.overlay, now, self._ledger.clock()), now.overlay):
            return ""
        numbers = ", ".join(map(str, self._own))
        return f"revision {numbers} of this replica" if numbers else "what this replica had"

    async def _tell_set_aside(self, mine: SharedRevision, aside: str, there: SharedRevision) -> None:
        message = (
            f"{aside} was made while the store was lost or not asked, and replica {there.replica} has made cluster "
            f"revision {there.revision}: that one is in force; look into the history, and repeat what is still meant"
        )
        log.warning("changes_set_aside", revisions=aside, cluster_revision=there.revision, replica=there.replica)
        audit = self._ledger.audit
        author = Author(mine.who, mine.role, "", "set aside")
        await audit.add(audit.new(author, mine.reason, outcome=grpc.StatusCode.ABORTED.name, message=message))

    async def _note(self, shared: SharedRevision) -> None:
        """Remember for the next start that this is in force here."""
        note = Note.of(self._peers.cluster, self._ledger.now.number, shared)
        try:
            await asyncio.to_thread(self._ledger.store.note, note)
        except StoreError as error:
            log.warning("cluster_revision_not_noted", revision=shared.revision, error=str(error))


def _nothing(now: InForce, _number: int, _expires_at: float | None) -> Made:
    return Made(now.overlay)
