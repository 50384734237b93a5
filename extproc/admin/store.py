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
  each revision has a digest of all that it says, and one that does not fit is as broken as a torn page.
- A file is made under another name and linked into place when it is whole. So one of 0 bytes was cut off: it is never
  taken for a new one. A log (`-wal`) without its file is refused too: SQLite would play it into the new file.
- A full or failing disk is different: it refuses a commit, says so in `error`, and the next write tries again.
- A commit names the revision that it follows. Where the file has a newer one, another process writes to it, and what
  this one has in memory is not what it would be building on: StaleError.

All methods block; call them through `asyncio.to_thread`. One connection, one lock. Not on a network file system: WAL
needs shared memory.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from extproc.admin.records import AuditRecord, Revision
from extproc.admin.rows import (
    AUDIT,
    REVISION,
    audit_of,
    audit_values,
    marks,
    packed,
    revision_of,
    revision_values,
    unpacked,
)

VERSION = 1  # of the tables
_APPLICATION = 0x46616972  # "Fair"
_BUSY_S = 2.0
# SQLite's messages quote the file, and one that is damaged may have anything there.
_FAILURES = (sqlite3.Error, UnicodeDecodeError)
_TABLES = f"""
BEGIN;
CREATE TABLE files (sha256 TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE revisions (
  number INTEGER PRIMARY KEY, created_at REAL NOT NULL, kind TEXT NOT NULL, who TEXT NOT NULL, reason TEXT NOT NULL,
  file_sha256 TEXT NOT NULL, expires_at REAL, rolled_back_to INTEGER NOT NULL, version TEXT NOT NULL,
  schema INTEGER NOT NULL, digest TEXT NOT NULL, overlay BLOB NOT NULL, changes BLOB NOT NULL);
CREATE TABLE audit (
  id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, who TEXT NOT NULL, role TEXT NOT NULL, peer TEXT NOT NULL,
  method TEXT NOT NULL, reason TEXT NOT NULL, outcome TEXT NOT NULL, message TEXT NOT NULL,
  validate_only INTEGER NOT NULL, revision INTEGER NOT NULL, count INTEGER NOT NULL, changes BLOB NOT NULL);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {VERSION};
COMMIT;
"""
_MOVE = (
    "move it away, with its -wal and -shm, to begin a new one; its history is lost then, the file's configuration not"
)


class StoreError(Exception):
    """It cannot be read or written. The message names cause and cure."""


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

    @classmethod
    def open(cls, path: Path | None, *, keep_revisions: int, keep_audit: int) -> Store:
        """`path` None: in memory. Never raises: see `error`."""
        store = cls(path, keep_revisions, keep_audit)
        try:
            store._connection = _connected(path)
        except StoreError as error:
            store._give_up(str(error))
        except (*_FAILURES, OSError) as error:
            store._give_up(_told(path, error))
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
        """Raises StoreError."""
        found = self.revisions(before=number + 1, limit=1)
        return found[0] if found and found[0].number == number else None

    def revisions(self, *, before: int | None, limit: int) -> list[Revision]:
        """Newest first, those with a lower number than `before`. Raises StoreError."""
        with self._reading() as connection:
            rows = connection.execute(
                f"SELECT {REVISION} FROM revisions WHERE ? IS NULL OR number < ? ORDER BY number DESC LIMIT ?",  # noqa: S608
                (before, before, limit),
            ).fetchall()
            return [revision_of(row) for row in rows]

    def file_data(self, sha256: str) -> dict[str, Any]:
        """Content of the configuration file that a revision lies over. Raises StoreError."""
        with self._reading() as connection:
            row = connection.execute("SELECT data FROM files WHERE sha256 = ?", (sha256,)).fetchone()
            data = None if row is None else unpacked(row[0])
            if not isinstance(data, dict):
                raise ValueError(f"the content of the file {sha256[:8]} is not there")
            return data

    def commit(
        self, revision: Revision, file_data: dict[str, Any], record: AuditRecord | None, *, expected: int
    ) -> None:
        """Keep `revision`, which follows `expected` (0: the first), with `record`. Raises StoreError, with nothing
        kept; StaleError."""
        values = revision_values(revision)
        data = packed(file_data)
        audit = None if record is None else audit_values(record)
        with self._writing() as connection:
            newest = connection.execute("SELECT coalesce(max(number), 0) FROM revisions").fetchone()[0]
            if newest != expected:
                raise StaleError(f"{self._place()}: another process has made revision {newest} in it, after {expected}")
            connection.execute("INSERT OR IGNORE INTO files VALUES (?, ?)", (revision.file_sha256, data))
            connection.execute(f"INSERT INTO revisions ({REVISION}) VALUES ({marks(values)})", values)  # noqa: S608
            if audit is not None:
                self._insert_audit(connection, [audit])
            dropped = connection.execute(
                "DELETE FROM revisions WHERE number <= ?", (revision.number - self._keep_revisions,)
            )
            if dropped.rowcount:
                connection.execute("DELETE FROM files WHERE sha256 NOT IN (SELECT file_sha256 FROM revisions)")

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
            try:
                connection.execute("BEGIN IMMEDIATE")
                try:
                    yield connection
                    connection.execute("COMMIT")
                    _bring_home(connection)
                except BaseException:
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
                    raise
            except _FAILURES as error:
                raise self._failed(error) from error
            self.error = None

    def _usable(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreError(self.error or f"{self._place()}: is closed")
        return self._connection

    def _failed(self, error: Exception) -> StoreError:
        """Where the file itself is broken nothing of it is touched any more. Else the next one may fare better."""
        told = _told(self.path, error)
        if _passing(error):
            self.error = told
        else:
            self._give_up(told)
        return StoreError(told)

    def _give_up(self, error: str) -> None:
        self.error = error
        self.broken = True
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.close()
            self._connection = None

    def _place(self) -> str:
        return "admin.state" if self.path is None else str(self.path)


def _bring_home(connection: sqlite3.Connection) -> None:
    """What was committed from the log into the file, and empty the log. Where somebody reads, it is left for the next
    time; so is what goes wrong, since it is committed all the same."""
    with suppress(*_FAILURES):
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    connection.execute(f"PRAGMA busy_timeout = {int(_BUSY_S * 1000)}")


# -- the file -------------------------------------------------------------------------------------


def _connected(path: Path | None) -> sqlite3.Connection:
    """Raises StoreError, sqlite3.Error, OSError."""
    if path is None:
        connection = _connection(":memory:")
        connection.executescript(_TABLES)
        return connection
    if not path.parent.is_dir():
        raise StoreError(f"{path}: there is no folder {path.parent}: make it, or set admin.state to another place")
    if not path.exists():
        _make(path)
    if not path.is_file():
        raise StoreError(f"{path}: is no regular file: set admin.state to another place")
    if path.stat().st_size == 0:
        raise StoreError(f"{path}: is empty, so it was cut off: {_MOVE}")
    with suppress(OSError):  # of another owner, who may have good reasons
        path.chmod(0o600)
    connection = _connection(str(path))
    try:
        _check(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _connection(name: str) -> sqlite3.Connection:
    connection = sqlite3.connect(name, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """A whole file appears at `path`, or none. Raises StoreError, sqlite3.Error, OSError."""
    for tail in ("-wal", "-shm"):
        if Path(f"{path}{tail}").exists():
            raise StoreError(f"{path}: is not there, and {path.name}{tail} is: put it back, or move that away too")
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        connection = _connection(str(new))
        try:
            connection.executescript(_TABLES)
        finally:
            connection.close()
        with suppress(FileExistsError):  # another process was faster: its file is as good
            path.hardlink_to(new)
    finally:
        new.unlink()
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Raises StoreError, sqlite3.Error."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != _APPLICATION:
        raise StoreError(f"{path}: is a database of something else: set admin.state to another place")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version < VERSION:
        raise StoreError(f"{path}: is damaged (its tables are of version {version}): {_MOVE}")
    if version > VERSION:
        raise StoreError(
            f"{path}: was written by a newer Fairlane (tables {version}, this one knows {VERSION}): run that one, or "
            "set admin.state to another place"
        )
    connection.execute("PRAGMA journal_mode = WAL")
    found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise StoreError(f"{path}: is damaged ({' '.join(str(found).split())}): {_MOVE}")


def _passing(error: Exception) -> bool:
    """Whether it is of the disk or of another process, and not of what the file holds."""
    return isinstance(error, sqlite3.OperationalError) and "decode" not in str(error)  # text that is no UTF-8


def _told(path: Path | None, error: Exception) -> str:
    place = "admin.state" if path is None else str(path)
    if isinstance(error, PermissionError):
        return f"{place}: {error.strerror}: let the user of this process read and write it and its folder"
    if isinstance(error, OSError):
        return f"{place}: {error.strerror or error}: set admin.state to a place that can be written"
    text = str(error)
    if _passing(error):
        cures = {
            "full": "make room on its disk",
            "readonly": "let the user of this process write it and its folder",
            "unable to open": "let the user of this process write it and its folder",
            "locked": "another process holds it: give each an admin.state of its own",
        }
        cure = next((cure for part, cure in cures.items() if part in text), "look at its disk")
        return f"{place}: cannot be used now ({text}): {cure}"
    return f"{place}: is damaged ({text}): {_MOVE}"
