"""The SQLite file of revisions and audit records: made whole, opened, looked at, and told when it fails.

A file is made under another name and linked into place when it is whole. So one of 0 bytes was cut off: it is never
taken for a new one. A log (`-wal`) without its file is refused too: SQLite would play it into the new file.

What cannot be used stays where it is, for somebody to look at.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

VERSION = 1  # of the tables
_APPLICATION = 0x46616972  # "Fair"
BUSY_S = 2.0
# SQLite's messages quote the file, and one that is damaged may have anything there.
FAILURES = (sqlite3.Error, UnicodeDecodeError)
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


def connected(path: Path | None) -> sqlite3.Connection:
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
    connection = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # Text that is no UTF-8 any more is the damage of one row: it does not fit the row's digest.
        connection.text_factory = lambda content: content.decode("utf-8", "replace")
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


def passing(error: Exception) -> bool:
    """Whether it is of the disk or of another process, and not of what the file holds."""
    return isinstance(error, sqlite3.OperationalError)


def told(path: Path | None, error: Exception) -> str:
    place = "admin.state" if path is None else str(path)
    if isinstance(error, PermissionError):
        return f"{place}: {error.strerror}: let the user of this process read and write it and its folder"
    if isinstance(error, OSError):
        return f"{place}: {error.strerror or error}: set admin.state to a place that can be written"
    text = str(error)
    if passing(error):
        cures = {
            "full": "make room on its disk",
            "readonly": "let the user of this process write it and its folder",
            "unable to open": "let the user of this process write it and its folder",
            "locked": "another process holds it: give each an admin.state of its own",
        }
        cure = next((cure for part, cure in cures.items() if part in text), "look at its disk")
        return f"{place}: cannot be used now ({text}): {cure}"
    return f"{place}: is damaged ({text}): {_MOVE}"


def bring_home(connection: sqlite3.Connection) -> None:
    """What was committed from the log into the file, and empty the log. Where somebody reads, it is left for the next
    time; so is what goes wrong, since it is committed all the same."""
    with suppress(*FAILURES):
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    with suppress(*FAILURES):
        connection.execute(f"PRAGMA busy_timeout = {int(BUSY_S * 1000)}")


def identity(path: Path) -> tuple[int, int]:
    """Raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino
