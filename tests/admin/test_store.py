"""The store by itself: what a commit keeps, what retention drops, what opens read-only."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extproc.admin import state_file
from extproc.admin.records import AuditRecord, Author, Kind, Revision
from extproc.admin.store import LARGEST, DamagedError, StaleError, Store, StoreError
from extproc.config.overlay import FieldChange

BOB = Author("bob", "operator", "unix:", "SetTenant")
FILE = {"pools": [{"name": "llama"}], "x": 1.5}


def opened(path: Path | None, *, keep_revisions: int = 1000, keep_audit: int = 1000) -> Store:
    return Store.open(path, keep_revisions=keep_revisions, keep_audit=keep_audit)


def revision(number: int, **fields: Any) -> Revision:
    return Revision(
        number=number,
        created_at=fields.pop("created_at", 100.5),
        kind=fields.pop("kind", Kind.CHANGE),
        who="bob",
        reason=fields.pop("reason", "why ✓"),
        overlay=fields.pop("overlay", [{"path": ["tenants", "a.b", "weight"], "value": number, "revision": number}]),
        file_sha256=fields.pop("file_sha256", "aa"),
        **fields,
    )


def record(**fields: Any) -> AuditRecord:
    return AuditRecord(at=7.0, author=BOB, reason="why", outcome=fields.pop("outcome", "ok"), **fields)


def commit(store: Store, number: int, **fields: Any) -> None:
    store.commit(revision(number, **fields), FILE, record(revision=number), expected=number - 1)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "state.db" if request.param == "file" else None


def test_what_was_committed_is_read_back_equal(path: Path | None) -> None:
    store = opened(path)
    assert store.error is None and store.last() is None
    changes = (
        FieldChange(("tenants", "a.b", "weight"), None, 2, had=False, has=True),
        FieldChange(("pools", "llama", "window", "stalled_after"), "30s", None, had=True, has=True),
        FieldChange(("tenants", "old"), {"weight": 1}, None, had=True, has=False),
    )
    first = revision(
        1, kind=Kind.ROLLBACK, changes=changes, expires_at=107.25, rolled_back_to=4, version="1.2", created_at=1
    )
    store.commit(first, FILE, record(changes=changes, revision=1), expected=0)
    if path is not None:
        store.close()
        store = opened(path)
    assert store.last() == first
    assert store.revision(1) == first
    assert store.revision(2) is None
    assert store.file_data("aa") == FILE
    assert store.list_audit(before=None, limit=9) == [record(changes=changes, revision=1, id=1)]
    store.close()


def test_a_commit_that_follows_another_revision_than_the_last_keeps_nothing(tmp_path: Path) -> None:
    one, other = opened(tmp_path / "state.db"), opened(tmp_path / "state.db")
    commit(one, 1)
    with pytest.raises(StaleError, match="another process has made revision 1"):
        commit(other, 1, reason="other")
    assert [each.reason for each in other.revisions(before=None, limit=9)] == ["why ✓"]
    assert len(other.list_audit(before=None, limit=9)) == 1
    assert other.error is None  # nothing is wrong with the file
    commit(other, 2)
    with pytest.raises(StaleError):
        commit(one, 2)
    one.close()
    other.close()


def test_retention_drops_the_oldest_and_the_files_that_only_they_needed(path: Path | None) -> None:
    store = opened(path, keep_revisions=3, keep_audit=5)
    for number in range(1, 9):
        commit(store, number, file_sha256="old" if number <= 6 else "new")
    assert [each.number for each in store.revisions(before=None, limit=99)] == [8, 7, 6]
    assert store.file_data("old") == store.file_data("new") == FILE
    commit(store, 9, file_sha256="new")
    assert store.file_data("new") == FILE
    assert [each.id for each in store.list_audit(before=None, limit=99)] == [9, 8, 7, 6, 5]
    with pytest.raises(StoreError):
        store.file_data("old")
    store.close()


def test_audit_records_by_page_name_and_outcome(path: Path | None) -> None:
    store = opened(path)
    eve = Author("eve", "", "ipv4:192.0.2.9", "SetPool")
    store.add_audit([record(), AuditRecord(9.0, eve, "", "PERMISSION_DENIED", message="no", count=3), record()])
    store.add_audit([])
    assert [each.id for each in store.list_audit(before=None, limit=2)] == [3, 2]
    assert [each.id for each in store.list_audit(before=2, limit=2)] == [1]
    assert [each.author for each in store.list_audit(before=None, limit=9, who="eve")] == [eve]
    (failed,) = store.list_audit(before=None, limit=9, failed_only=True)
    assert (failed.outcome, failed.count, failed.message) == ("PERMISSION_DENIED", 3, "no")
    store.close()


def test_the_file_is_its_owners_in_wal_mode_and_synced(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    before = os.umask(0)
    try:
        store = opened(path)
        commit(store, 1)
    finally:
        os.umask(before)
    for each in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
        assert stat.S_IMODE(each.stat().st_mode) == 0o600
    assert Path(f"{path}-wal").stat().st_size == 0  # all is in the file
    connection = store._connection
    assert connection is not None
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert connection.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    store.close()
    assert [each.name for each in tmp_path.iterdir()] == ["state.db"]


# -- what cannot be used -------------------------------------------------------------------------


def read_only(path: Path) -> str:
    """Opens, refuses everything, and says why."""
    store = opened(path)
    assert store.broken
    assert store.error is not None and store.error.startswith(str(path))
    for attempt in (store.last, lambda: commit(store, 1), lambda: store.add_audit([record()])):
        with pytest.raises(StoreError) as refused:
            attempt()
        assert str(refused.value) == store.error
    store.close()
    return store.error


def test_no_folder(tmp_path: Path) -> None:
    assert "there is no folder" in read_only(tmp_path / "none" / "state.db")


def test_a_folder_in_its_place(tmp_path: Path) -> None:
    assert "is no regular file" in read_only(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert "let the user of this process" in read_only(tmp_path / "state.db")


def test_no_database(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.write_bytes(b"something else entirely\n" * 1000)
    assert "file is not a database" in read_only(path)
    assert path.read_bytes().startswith(b"something else entirely")


def test_a_database_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (x)")
    other.close()
    assert "database of something else" in read_only(path)


def test_an_empty_file_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    path.touch()
    assert "was cut off" in read_only(path)
    assert path.stat().st_size == 0


def test_a_log_without_its_file_is_not_played_into_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    Path(f"{path}-wal").write_bytes(b"log")
    assert "state.db-wal is" in read_only(path)
    assert not path.exists()


def test_a_newer_version(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    opened(path).close()
    with sqlite3.connect(path) as newer:
        newer.execute("PRAGMA user_version = 2")
    newer.close()
    assert "newer Fairlane (tables 2, this one knows 1)" in read_only(path)


def test_damage_that_sqlite_cannot_even_quote(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    opened(path).close()
    content = path.read_bytes()
    assert b"tablefilesfiles" in content
    path.write_bytes(
        content.replace(b"tablefilesfiles", b"table\xc1ilesfiles").replace(b"CREATE TABLE files", b"X" * 18)
    )
    assert "codec can't decode" in read_only(path)


def test_a_value_that_is_another_than_was_written_is_found(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = opened(path)
    commit(store, 1)
    store.close()
    with sqlite3.connect(path) as hand:
        hand.execute("UPDATE revisions SET reason = 'another'")
    hand.close()
    store = opened(path)
    assert not store.broken  # as far as SQLite can tell
    with pytest.raises(StoreError, match="revision 1 is not as it was written"):
        store.last()
    assert store.broken
    with pytest.raises(StoreError, match="revision 1 is not as it was written"):
        commit(store, 2)
    store.close()


def by_hand(path: Path, statement: str) -> None:
    hand = sqlite3.connect(path, isolation_level=None)
    hand.execute(statement)
    hand.close()


DAMAGE = (
    "UPDATE revisions SET reason = 'another' WHERE number = 2",
    "UPDATE revisions SET who = x'ff00fe' WHERE number = 2",  # a blob
    "UPDATE revisions SET who = CAST(x'ff00fe' AS TEXT) WHERE number = 2",  # no UTF-8
    "UPDATE revisions SET overlay = x'00' WHERE number = 2",
    "UPDATE revisions SET created_at = 'never' WHERE number = 2",
    "UPDATE revisions SET changes = 7 WHERE number = 2",
)


@pytest.mark.parametrize("statement", DAMAGE)
def test_an_old_revision_that_is_damaged_is_told_as_such_and_the_others_are_good(
    tmp_path: Path, statement: str
) -> None:
    path = tmp_path / "state.db"
    store = opened(path)
    for number in (1, 2, 3):
        commit(store, number)
    by_hand(path, statement)
    found = store.revisions(before=None, limit=9)
    assert [each.number for each in found] == [3, 2, 1]
    assert [each.kind for each in found] == [Kind.CHANGE, Kind.DAMAGED, Kind.CHANGE]
    assert [found[0], found[2]] == [revision(3), revision(1)]
    with pytest.raises(DamagedError, match="revision 2 is not as it was written"):
        store.revision(2)
    commit(store, 4)
    assert store.error is None and store.last() == revision(4)
    store.close()


@pytest.mark.parametrize("read", [lambda s: s.revision(2), lambda s: s.revisions(before=None, limit=9)])
def test_the_newest_revision_that_is_damaged_breaks_it(tmp_path: Path, read: Callable[[Store], object]) -> None:
    path = tmp_path / "state.db"
    store = opened(path)
    commit(store, 1)
    commit(store, 2)
    by_hand(path, DAMAGE[0])
    with pytest.raises(StoreError, match="revision 2 is not as it was written") as told:
        read(store)
    assert store.broken and not isinstance(told.value, DamagedError)
    store.close()


@pytest.mark.parametrize("statement", ["DELETE FROM files WHERE sha256 = 'old'", "UPDATE files SET data = x'00'"])
def test_the_content_of_a_file_that_is_damaged(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "state.db"
    store = opened(path)
    commit(store, 1, file_sha256="old")
    commit(store, 2)
    by_hand(path, statement)
    with pytest.raises(DamagedError, match="the content of the file old is not as it was written"):
        store.file_data("old")
    assert not store.broken
    store.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET changes = x'00' WHERE id = 2",
        "UPDATE audit SET who = x'ff' WHERE id = 2",
        "UPDATE audit SET count = 'many' WHERE id = 2",
    ],
)
def test_an_audit_record_that_is_damaged(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "state.db"
    store = opened(path)
    store.add_audit([record(), record(), record()])
    by_hand(path, statement)
    found = store.list_audit(before=None, limit=9)
    assert [(each.id, each.outcome) for each in found] == [(3, "ok"), (2, "DATA_LOSS"), (1, "ok")]
    assert not store.broken
    store.close()


@pytest.mark.parametrize("number", [0, -1, -(2**63) - 1, LARGEST, LARGEST + 1, 10**30])
def test_numbers_that_no_revision_has(path: Path | None, number: int) -> None:
    store = opened(path)
    commit(store, 1)
    assert store.revision(number) is None
    assert store.error is None
    store.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_gone_or_replaced_takes_nothing_any_more(tmp_path: Path, replaced: bool) -> None:
    path, copy = tmp_path / "state.db", tmp_path / "copy.db"
    store = opened(path)
    commit(store, 1)
    if replaced:
        shutil.copy(path, copy)
        copy.replace(path)
    else:
        path.unlink()
    says = "is another file than" if replaced else "is not there any more"
    for attempt in (lambda: store.add_audit([record()]), lambda: commit(store, 2), store.last):
        with pytest.raises(StoreError, match=says):
            attempt()
    assert store.broken
    assert store.error is not None and "restart this process" in store.error
    store.close()
    if replaced:
        again = opened(path)
        assert again.last() == revision(1)
        again.close()


def test_what_fails_after_a_commit_is_not_told_as_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = opened(path)
    connection = store._connection
    assert connection is not None
    denied = []

    def deny_pragmas(action: int, *names: str | None) -> int:
        if action != sqlite3.SQLITE_PRAGMA:
            return sqlite3.SQLITE_OK
        denied.append(names[:2])
        return sqlite3.SQLITE_DENY

    connection.set_authorizer(deny_pragmas)
    commit(store, 1)
    assert ("busy_timeout", "2000") in denied
    assert store.error is None and store.last() == revision(1)
    store.close()


def test_a_full_disk_refuses_a_commit_and_the_next_one_tries_again(tmp_path: Path) -> None:
    store = opened(tmp_path / "state.db")
    commit(store, 1)
    connection = store._connection
    assert connection is not None
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count = {pages}")  # SQLite's own way to be full
    noise = [os.urandom(8).hex() for _ in range(100_000)]  # does not pack
    with pytest.raises(StoreError, match="make room on its disk"):
        commit(store, 2, overlay=noise)
    assert store.error is not None and not store.broken
    last = store.last()
    assert last is not None and last.number == 1
    connection.execute("PRAGMA max_page_count = 1000000")
    commit(store, 2, overlay=noise)
    assert store.error is None
    last = store.last()
    assert last is not None and last.overlay == noise
    store.close()


def test_a_reader_delays_nothing_but_the_log(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = opened(path)
    commit(store, 1)
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM revisions").fetchone() == (1,)
    commit(store, 2)
    assert Path(f"{path}-wal").stat().st_size > 0
    reader.execute("COMMIT")
    commit(store, 3)
    assert Path(f"{path}-wal").stat().st_size == 0
    reader.close()
    store.close()


def test_a_file_that_another_process_holds_refuses_for_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_file, "BUSY_S", 0.01)
    path = tmp_path / "state.db"
    store = opened(path)
    commit(store, 1)
    assert store._connection is not None
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process holds it"):
        commit(store, 2)
    other.execute("ROLLBACK")
    other.close()
    commit(store, 2)
    assert store.error is None
    store.close()


def test_what_yaml_has_and_json_has_not_is_kept_as_text_and_lists() -> None:
    store = opened(None)
    odd = {"key": b"bytes", "set": {"b", "a"}, "number": float("inf")}
    store.commit(revision(1), odd, None, expected=0)
    assert store.file_data("aa") == {"key": "bytes", "set": ["a", "b"], "number": float("inf")}
    store.close()
