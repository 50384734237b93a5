"""What a change would do, for those who may only read: it delays nobody, and makes nothing be read or made."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import grpc
import pytest
from revisions_case import Case, patch, rollback, until

from extproc.admin import ledger, revisions
from extproc.admin.change import Change, Made
from extproc.admin.errors import AdminError
from extproc.admin.in_force import Candidate, InForce
from extproc.admin.records import Kind
from extproc.config.model import Config

REJECT = {"on_fault": "reject"}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


async def test_it_prepares_nothing(case: Case) -> None:
    opened = case.open()
    assert (await opened.part(REJECT, None)).changes
    assert (await opened.whole_file(case.file.read_text() + "on_fault: reject\n")).changes
    assert [each.on_fault for each in case.control.checked] == ["reject", "reject"]
    assert case.control.prepared == []
    case.control.refuses = "that needs a restart"
    with pytest.raises(AdminError, match="that needs a restart") as error:
        await opened.part(REJECT, None)
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    await opened.close()


async def test_long_looks_delay_no_change_and_are_one_part_and_one_file_at_a_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    looking = most = 0
    lock = threading.Lock()
    worked_out = ledger.worked_out

    def slow(now: InForce, change: Change, expires_at: float | None, started: Config) -> tuple[Made, Candidate]:
        nonlocal looking, most
        if change.author.method != "ValidateConfig":
            return worked_out(now, change, expires_at, started)
        with lock:
            looking += 1
            most = max(most, looking)
        go_on.wait(20)
        try:
            return worked_out(now, change, expires_at, started)
        finally:
            with lock:
                looking -= 1

    monkeypatch.setattr(ledger, "worked_out", slow)
    opened = case.open()
    gone = asyncio.create_task(opened.part(REJECT, None))
    text = case.file.read_text() + "on_fault: reject\n"
    files = [asyncio.create_task(opened.whole_file(text)) for _ in range(3)]
    parts = [asyncio.create_task(opened.part(REJECT, None)) for _ in range(3)]
    await until(lambda: looking == 2)
    gone.cancel()  # its thread goes on, and it counts until that ends
    assert (await patch(opened, {"shutdown": {"grace": "7s"}})).revision == 2
    assert looking == 2
    go_on.set()
    results = await asyncio.gather(*files, *parts)
    assert most == 2
    # the first file was begun with before the change, and the answer is of what was in force then
    assert [(each.revision, each.etag[0]) for each in results] == [(2, "1")] + [(3, "2")] * 5
    assert all(("on_fault",) in [change.path for change in each.changes] for each in results)
    await opened.close()


@pytest.mark.slow
async def test_a_file_that_is_too_large_is_told_before_it_is_parsed(case: Case) -> None:
    opened = case.open()
    most = revisions.LONGEST_FILE
    text = case.file.read_text()
    fill = most - len(text)
    assert (await opened.whole_file(text + "#" * fill)).changes == ()
    with pytest.raises(AdminError, match=r"has 1048577 bytes, and 1048576 is the most here: .*check-config") as error:
        await opened.whole_file(text + "#" * (fill - 2) + "\u2713")  # 3 bytes
    assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [each.field for each in error.value.violations] == ["yaml"]
    await opened.close()


# -- what was -------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**30, -1])
async def test_numbers_that_nothing_has(case: Case, number: int) -> None:
    opened = case.open()
    for attempt in (rollback(opened, number), opened.diff(1, number), opened.diff(number, 1)):
        with pytest.raises(AdminError) as error:
            await attempt
        assert error.value.code is grpc.StatusCode.NOT_FOUND
    await opened.close()


@pytest.mark.parametrize("number", [2**63, 10**30, -1])
async def test_page_tokens_that_were_made_up(case: Case, number: int) -> None:
    opened = case.open()
    for attempt in (opened.list_revisions(number, 5), opened.list_audit(number, 5)):
        with pytest.raises(AdminError, match="page_token") as error:
            await attempt
        assert error.value.code is grpc.StatusCode.INVALID_ARGUMENT
    await opened.close()


async def test_an_old_revision_that_is_damaged_leaves_the_rest_at_work(case: Case) -> None:
    opened = case.open()
    await patch(opened, REJECT)
    await patch(opened, {"on_fault": "pass"})
    connection = opened._ledger.store._connection
    assert connection is not None
    connection.execute("UPDATE revisions SET reason = 'another' WHERE number = 2")
    assert [each.kind for each in await opened.list_revisions(None, 9)] == [Kind.CHANGE, Kind.DAMAGED, Kind.START]
    for attempt in (rollback(opened, 2), opened.diff(2, 3)):
        with pytest.raises(AdminError, match="revision 2 is not as it was written") as error:
            await attempt
        assert error.value.code is grpc.StatusCode.DATA_LOSS
    assert (await rollback(opened, 1)).revision == 4
    assert not opened.state.read_only
    await opened.close()
    assert case.open().revision == 4


@pytest.mark.parametrize("statement", ["UPDATE revisions SET reason = 'another'", "UPDATE files SET data = x'00'"])
async def test_what_was_in_force_and_is_damaged_leaves_the_file_alone(case: Case, statement: str) -> None:
    opened = case.open()
    await patch(opened, REJECT)
    connection = opened._ledger.store._connection
    assert connection is not None
    connection.execute(statement)
    await opened.close()
    opened = case.open()
    assert (opened.revision, opened.config.on_fault, opened.state.read_only) == (0, "pass", True)
    with pytest.raises(AdminError, match="move it away") as error:
        await patch(opened, REJECT)
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    await opened.close()


async def test_a_state_that_is_gone_acknowledges_nothing(case: Case) -> None:
    opened = case.open()
    await patch(opened, REJECT)
    case.database.unlink()
    with pytest.raises(AdminError, match="is not there any more") as error:
        await patch(opened, {"on_fault": "pass"})
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert (opened.revision, opened.config.on_fault, opened.state.read_only) == (2, "reject", True)
    assert case.control.config == opened.config
    await opened.close()
