"""Audit records: one for each change, collected ones for attempts at the door."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from revisions_case import ALICE, T0, Clock, until
from structlog.testing import capture_logs

from extproc.admin.access import address_of
from extproc.admin.audit import MOST_KINDS, OTHERS, Audit
from extproc.admin.records import AuditRecord, Author
from extproc.admin.store import Store
from extproc.config.overlay import FieldChange


@pytest.fixture
def store() -> Iterator[Store]:
    store = Store.open(None, keep_revisions=10, keep_audit=10_000)
    yield store
    store.close()


def kept(store: Store) -> list[AuditRecord]:
    """Oldest first."""
    return store.list_audit(before=None, limit=10_000)[::-1]


async def test_a_record_is_kept_and_logged_with_who_what_why_whence_and_outcome(store: Store) -> None:
    log = Audit(store, clock=Clock())
    changes = (
        FieldChange(("tenants", "acme.com", "weight"), 1, 2, had=True, has=True),
        FieldChange(("classes", "old"), {"rank": 3}, None, had=True, has=False),
    )
    with capture_logs() as lines:
        await log.add(log.new(ALICE, "more for acme", changes=changes, revision=7))
    (record,) = kept(store)
    assert record == AuditRecord(T0, ALICE, "more for acme", "ok", changes, revision=7, id=1)
    assert lines == [
        {
            "event": "audit",
            "log_level": "info",
            "who": "alice",
            "role": "admin",
            "peer": "ipv4:192.0.2.1:4711",
            "method": "UpdateConfig",
            "reason": "more for acme",
            "outcome": "ok",
            "message": "",
            "validate_only": False,
            "revision": 7,
            "count": 1,
            "changes": [
                {"path": "tenants.`acme.com`.weight", "before": 1, "after": 2},
                {"path": "classes.old", "before": {"rank": 3}},
            ],
        }
    ]
    assert log.outcomes == {"ok": 1}


async def test_a_log_line_has_the_first_changes_of_many_and_the_store_all(store: Store) -> None:
    log = Audit(store)
    changes = [FieldChange(("tenants", f"t{n}", "weight"), None, n, had=False, has=True) for n in range(60)]
    with capture_logs() as lines:
        await log.add(log.new(ALICE, "many", changes=changes))
    assert len(lines[0]["changes"]) == 50 and lines[0]["more_changes"] == 10
    assert len(kept(store)[0].changes) == 60


async def test_texts_of_strangers_are_cut_and_cleaned(store: Store) -> None:
    log = Audit(store)
    await log.add(log.new(Author("a" * 999, "", "p\x1b[31m", "M"), "r\ud800\u202e", message="one\ntwo" + "x" * 9999))
    (record,) = kept(store)
    assert record.author.name == "a" * 256
    assert record.author.peer == "p\ufffd[31m"
    assert record.reason == "r\ufffd\ufffd"
    assert record.message.startswith("one\ntwo") and len(record.message) == 4000


async def test_attempts_from_one_address_with_one_cause_are_one_record_with_a_count(store: Store) -> None:
    clock = Clock()
    log = Audit(store, clock=clock)
    for port in range(500):
        log.denied(f"ipv4:192.0.2.7:{port}", "SetPool" if port else "GetStatus", "no such token", "")
    log.denied("ipv6:[2001:db8::1]:99", "GetStatus", "no such token", "")
    log.denied("ipv4:192.0.2.7:1", "GetStatus", "no token", "")
    clock.now += 30
    log.denied("ipv4:192.0.2.7:1", "SetPool", "viewer may not", "carol", "PERMISSION_DENIED")
    log.denied("ipv4:192.0.2.7:2", "SetPool", "viewer may not", "carol", "PERMISSION_DENIED")
    log.denied("ipv4:192.0.2.7:2", "Rollback", "viewer may not", "carol", "PERMISSION_DENIED")
    assert kept(store) == []
    with capture_logs() as lines:
        await log.flush()
    found = [(each.author.peer, each.author.method, each.message, each.author.name, each.count) for each in kept(store)]
    assert found == [
        ("ipv4:192.0.2.7", "GetStatus", "no such token", "", 500),
        ("ipv6:[2001:db8::1]", "GetStatus", "no such token", "", 1),
        ("ipv4:192.0.2.7", "GetStatus", "no token", "", 1),
        ("ipv4:192.0.2.7", "SetPool", "viewer may not", "carol", 2),
        ("ipv4:192.0.2.7", "Rollback", "viewer may not", "carol", 1),
    ]
    assert [each.at for each in kept(store)] == [T0, T0, T0, T0 + 30, T0 + 30]  # of the first of them
    assert [line["count"] for line in lines] == [500, 1, 1, 2, 1]
    assert log.outcomes == {"UNAUTHENTICATED": 502, "PERMISSION_DENIED": 3}
    await log.flush()
    assert len(kept(store)) == 5


async def test_kinds_beyond_the_bound_count_as_others(store: Store) -> None:
    log = Audit(store)
    for number in range(MOST_KINDS + 250):
        log.denied(f"ipv4:10.0.{number // 250}.{number % 250}:1", "GetStatus", "no token", "")
    log.denied("ipv4:10.0.0.0:1", "GetStatus", "no token", "")  # one of the first
    await log.flush()
    records = kept(store)
    assert len(records) == MOST_KINDS + 1
    assert (records[-1].author.peer, records[-1].count) == (OTHERS, 250)
    assert records[0].count == 2
    assert sum(each.count for each in records) == MOST_KINDS + 251


async def test_the_minute_ends_by_itself_and_only_while_there_is_something(store: Store) -> None:
    log = Audit(store, collect_s=0.001)
    assert log._timer is None
    log.denied("unix:", "GetStatus", "no token", "")
    log.denied("unix:/run/x.sock", "GetStatus", "no token", "")
    await until(lambda: bool(kept(store)))
    assert [each.count for each in kept(store)] == [2]
    assert log._timer is None
    log.denied("unix:", "GetStatus", "no token", "")
    await until(lambda: len(kept(store)) == 2)
    await log.flush()
    assert len(kept(store)) == 2


async def test_a_store_that_takes_nothing_loses_no_log_line(store: Store) -> None:
    log = Audit(store)
    store.close()
    with capture_logs() as lines:
        await log.add(log.new(ALICE, "why", outcome="INVALID_ARGUMENT", message="no"))
        log.denied("unix:", "GetStatus", "no token", "")
        await log.flush()
    assert [line["event"] for line in lines] == ["audit", "audit_not_kept", "audit", "audit_not_kept"]
    assert log.outcomes == {"INVALID_ARGUMENT": 1, "UNAUTHENTICATED": 1}


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:192.0.2.1:4711", "ipv4:192.0.2.1"),
        ("ipv6:[::1]:4711", "ipv6:[::1]"),
        ("ipv6:%5B::1%5D:4711", "ipv6:%5B::1%5D"),
        ("unix:", "unix:"),
        ("unix:/run/admin.sock", "unix:"),
        ("", ""),
        ("odd", "odd"),
    ],
)
def test_the_address_of_a_peer(peer: str, address: str) -> None:
    assert address_of(peer) == address
