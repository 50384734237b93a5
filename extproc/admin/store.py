"""Where revisions and audit records are kept: an SQLite file, or memory.

What it holds to:

- A commit is one transaction: the revision, the file's content that it needs, its audit record, and what is dropped
  by retention. The file is in WAL mode and synced at each commit (synchronous=FULL), so that a process or machine that
  dies at any point leaves the state before it or after it.
- After each commit the log is brought home into the file and emptied. Changes are rare, and it is two more syncs. So
  hardly anything is ever in a log that could be lost, the file alone is a whole copy, and there is never a log of
  which half is older than the file.
- Nothing here raises out of `open`. A file that cannot be used leaves a store that is `broken`: it has nothing, takes
  nothing, and `error` says why and what to do. The file stays where it is, for somebody to look at.
- SQLite finds torn pages and broken trees (`quick_check`, at `open`), and not other bytes in the middle of a value. So
  each revision has a digest of all that it says. Where the newest does not fit, which a start needs, the file is as
  broken as with a torn page. An older one that does not is told as damaged, and the others are as good as before.
- A file that is removed or replaced while it is open takes everything, and the next start finds none of it. So each
  write looks first whether the path still leads to what was opened. If not, the store is broken.
- A full or failing disk is different: it refuses a commit, says so in `error`, and the next write tries again.
- A commit names the revision that it follows. Where the file has a newer one, another process writes to it, and what
  this one has in memory is not what it would be building on: StaleError.

All methods block; call them through `asyncio.to_thread`. One connection, one lock. Not on a network file system: WAL
needs shared memory.
"""

from __future__ import annotations

import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from extproc.admin.records import AuditRecord, Note, Revision
from extproc.admin.rows import (
    AUDIT,
    REVISION,
    DamagedRowError,
    audit_of,
    audit_values,
    damaged_revision,
    marks,
    packed,
    revision_of,
    revision_values,
    unpacked,
)
from extproc.admin.state_file import FAILURES, StoreError, bring_home, connected, identity, passing, told

__all__ = ["LARGEST", "DamagedError", "StaleError", "Store", "StoreError"]

LARGEST = 2**63 - 1  # number that SQLite takes


class DamagedError(StoreError):
    """What was asked for is not as it was written. The rest is."""


class StaleError(StoreError):
    """The file has a newer revision than the one that was to be followed."""


class Store:
    """Use `Store.open`."""

    def __init__(self, path: Path | None, keep_revisions: int, keep_audit: int) -> None:
        self.path = path
        self.error: str | None = None  # why nothing can be written, or why the last write failed
        self.broken = False  # for good: nothing is in force that it may have held
        self._keep_revisions = keep_revisions
        self._keep_audit = keep_audit
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None  # device and inode of the file

    @classmethod
    def open(cls, path: Path | None, *, keep_revisions: int, keep_audit: int) -> Store:
        """`path` None: in memory. Never raises: see `error`."""
        store = cls(path, keep_revisions, keep_audit)
        try:
            store._connection = connected(path)
            store._opened = None if path is None else identity(path)
        except StoreError as error:
            store.give_up(str(error))
        except (*FAILURES, OSError) as error:
            store.give_up(told(path, error))
        return store

    def close(self) -> None:
        with self._lock:
            if self._connection is not None:
                with suppress(sqlite3.Error):  # what is committed is safe; there is nothing more to be done here
                    self._connection.close()
                self._connection = None

    # -- revisions --------------------------------------------------------------------------------

    def last(self) -> Revision | None:
        """The newest; None: there is none yet. Raises StoreError."""
        found = self.revisions(before=None, limit=1)
        return found[0] if found else None

    def revision(self, number: int) -> Revision | None:
        """Raises StoreError; DamagedError."""
        if not 0 < number <= LARGEST:
            return None
        with self._reading() as connection:
            row = connection.execute(f"SELECT {REVISION} FROM revisions WHERE number = ?", (number,)).fetchone()  # noqa: S608
            try:
                return None if row is None else revision_of(row)
            except DamagedRowError as error:
                if number == _newest(connection):
                    raise
                raise DamagedError(f"{self._place()}: {error}") from error

    def revisions(self, *, before: int | None, limit: int) -> list[Revision]:
        """Newest first, those with a lower number than `before`, which is `LARGEST` at most; damaged ones are told as
        such. Raises StoreError."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {REVISION} FROM revisions WHERE ? IS NULL OR number < ? ORDER BY number DESC LIMIT ?",  # noqa: S608
                (before, before, limit),
            ).fetchall()
            newest = _newest(connection)
            found = []
            for row in rows:
                try:
                    found.append(revision_of(row))
                except DamagedRowError:
                    if row[0] == newest:
                        raise
                    found.append(damaged_revision(row[0]))
            return found

    def file_data(self, sha256: str) -> dict[str, Any]:
        """Content of the configuration file that a revision lies over. Raises StoreError; DamagedError."""
        with self._reading() as connection:
            row = connection.execute("SELECT data FROM files WHERE sha256 = ?", (sha256,)).fetchone()
        with suppress(zlib.error, TypeError, ValueError):
            data = None if row is None else unpacked(row[0])
            if isinstance(data, dict):
                return data
        raise DamagedError(f"{self._place()}: the content of the file {sha256[:8]} is not as it was written")

    def commit(
        self,
        revision: Revision,
        file_data: dict[str, Any],
        record: AuditRecord | None,
        *,
        expected: int,
        note: Note | None = None,
    ) -> None:
        """Keep `revision`, which follows `expected` (0: the first), with `record` and `note`. Raises StoreError, with
        nothing kept; StaleError."""
        values = revision_values(revision)
        data = packed(file_data)
        audit = None if record is None else audit_values(record)
        with self._writing() as connection:
            newest = _newest(connection)
            if newest != expected:
                raise StaleError(f"{self._place()}: another process has made revision {newest} in it, after {expected}")
            connection.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (revision.file_sha256, data))
            connection.execute(f"INSERT INTO revisions ({REVISION}) VALUES ({marks(values)})", values)  # noqa: S608
            if audit is not None:
                self._insert_audit(connection, [audit])
            if note is not None:
                _put_note(connection, note)
            dropped = connection.execute(
                "DELETE FROM revisions WHERE number <= ?", (revision.number - self._keep_revisions,)
            )
            if dropped.rowcount:
                connection.execute("DELETE FROM files WHERE sha256 NOT IN (SELECT file_sha256 FROM revisions)")

    # -- what all replicas have -------------------------------------------------------------------

    def note(self, note: Note) -> None:
        """In the place of the one of the same cluster. Raises StoreError."""
        with self._writing() as connection:
            _put_note(connection, note)

    def noted(self, cluster: str) -> Note | None:
        """None: there is none, or it is not as it was written. Raises StoreError."""
        with self._reading() as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'shared'").fetchone():
                return None
            row = connection.execute("SELECT revision, document FROM shared WHERE cluster = ?", (cluster,)).fetchone()
        with suppress(zlib.error, TypeError, ValueError):
            if row is not None and isinstance(shared := unpacked(row[1]), dict):
                return Note(cluster, int(row[0]), shared)
        return None

    # -- audit ------------------------------------------------------------------------------------

    def add_audit(self, records: Sequence[AuditRecord]) -> None:
        """Raises StoreError, with none of them kept."""
        values = [audit_values(each) for each in records]
        with self._writing() as connection:
            self._insert_audit(connection, values)

    def list_audit(
        self, *, before: int | None, limit: int, who: str = "", failed_only: bool = False
    ) -> list[AuditRecord]:
        """Newest first, those with a lower id than `before`; `who`: exactly this name, empty for all. Raises
        StoreError."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT id, {AUDIT} FROM audit WHERE (? IS NULL OR id < ?) AND (? = '' OR who = ?) "  # noqa: S608
                "AND (NOT ? OR outcome <> 'ok') ORDER BY id DESC LIMIT ?",
                (before, before, who, who, failed_only, limit),
            ).fetchall()
            return [audit_of(row) for row in rows]

    def _insert_audit(self, connection: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        if not rows:
            return
        connection.executemany(f"INSERT INTO audit ({AUDIT}) VALUES ({marks(rows[0])})", rows)  # noqa: S608
        connection.execute("DELETE FROM audit WHERE id <= (SELECT max(id) FROM audit) - ?", (self._keep_audit,))

    # -- access -----------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._usable()
            try:
                yield connection
            except (sqlite3.Error, zlib.error, LookupError, TypeError, ValueError) as error:
                raise self._failed(error) from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction."""
        with self._lock:
            connection = self._usable()
            self._check_place()
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except FAILURES as error:
                raise self._failed(error) from error
            bring_home(connection)
            self.error = None

    def _check_place(self) -> None:
        """Whether what is written now is found by the next start. Raises StoreError."""
        if self.path is None:
            return
        try:
            now = identity(self.path)
        except (FileNotFoundError, NotADirectoryError):
            now, what = None, "is not there any more"
        except OSError as error:  # of the disk, or of rights that were taken away
            self.error = told(self.path, error)
            raise StoreError(self.error) from error
        else:
            what = "is another file than the one that this process opened"
        if now != self._opened:
            self.give_up(
                f"{self.path}: {what}, so a restart would not find what is changed: restart this process, which takes "
                "what is there then (a -wal file that is left alone belongs away with it); what is in force can be "
                "exported before"
            )
            raise StoreError(self.error)

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(self.error or f"{self._place()}: is closed")
        return self._connection

    def _failed(self, error: Exception) -> StoreError:
        """Where the file itself is broken nothing of it is touched any more. Else the next one may fare better."""
        text = told(self.path, error)
        if passing(error):
            self.error = text
        else:
            self.give_up(text)
        return StoreError(text)

    def give_up(self, error: str) -> None:
        """It takes nothing any more, and has nothing. `error`: cause and cure."""
        self.error = error
        self.broken = True
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _place(self) -> str:
        return "admin.state" if self.path is None else str(self.path)


def _newest(connection: sqlite3.Connection) -> int:
    """0: there is none. Raises sqlite3.Error."""
    return int(connection.execute("SELECT coalesce(max(number), 0) FROM revisions").fetchone()[0])


def _put_note(connection: sqlite3.Connection, note: Note) -> None:
    """The table is made when it is needed: older versions of Fairlane do not miss it, nor mind it. Raises
    sqlite3.Error."""
    connection.execute(
        "CREATE TABLE IF NOT EXISTS shared "
        "(cluster TEXT PRIMARY KEY, revision INTEGER NOT NULL, document BLOB NOT NULL)"
    )
    values = (note.cluster, note.revision, packed(note.shared))
    connection.execute("INSERT OR REPLACE INTO shared VALUES (?, ?, ?)", values)
