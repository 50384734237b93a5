"""The configuration file while the service runs: what cannot be read delays nobody, and what did not fit is tried
again."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from revisions_case import Case, FakeControl, data, patch, rollback, until
from structlog.testing import capture_logs

from extproc.admin import reloads, revisions
from extproc.admin.errors import AdminError
from extproc.admin.records import Kind
from extproc.admin.revisions import Revisions
from extproc.config.administration import Administration
from extproc.config.load import FileData, read_again, read_file
from extproc.config.model import Config

WITHOUT_BATCH = {**data(), "classes": {"interactive": {"rank": 0, "priority": 0}}}
NEEDS_BATCH = {"tenants": {"acme": {"default_class": "batch"}}}
OTHERWISE = {"tenants": {"acme": {"default_class": "interactive"}}}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


@pytest.mark.slow
async def test_a_pipe_in_the_place_of_the_file_delays_no_change_and_no_stop(case: Case) -> None:
    opened = case.open()
    running = asyncio.create_task(opened.run())
    case.file.unlink()
    os.mkfifo(case.file)  # nobody writes to it
    await until(lambda: opened.file_error is not None)
    assert opened.file_error is not None and "is no regular file by now" in opened.file_error
    assert (await patch(opened, {"on_fault": "reject"})).revision == 2
    case.file.unlink()
    case.write({**data(), "shutdown": {"grace": "7s"}})
    await until(lambda: opened.file_error is None)
    assert opened.config.shutdown.grace == 7
    running.cancel()
    await asyncio.wait([running])
    await opened.close()


async def test_a_reading_that_hangs_delays_no_change_and_no_stop(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, mount = threading.Event(), threading.Event()

    def hung(path: Path, known: Any) -> FileData:
        reading.set()
        mount.wait(20)
        return read_again(path, known)

    monkeypatch.setattr(reloads, "read_again", hung)
    opened = case.open()
    reload = asyncio.create_task(opened.reload("SIGHUP"))
    await until(reading.is_set)
    assert (await patch(opened, {"on_fault": "reject"})).revision == 2
    await opened.close()
    case.control.serving = False
    case.write({**data(), "shutdown": {"grace": "7s"}})
    mount.set()
    assert not await reload  # too late
    assert opened.config.shutdown.grace != 7


async def test_a_change_that_hangs_delays_the_stop_for_some_seconds_only(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "_CLOSE_S", 0.01)
    opened = case.open()
    preparing, go_on = asyncio.Event(), asyncio.Event()
    prepare = case.control.prepare

    async def hung(config: Config) -> Callable[[], None]:
        preparing.set()
        await go_on.wait()
        return await prepare(config)

    case.control.prepare = hung  # type: ignore[method-assign]
    change = asyncio.create_task(patch(opened, {"on_fault": "reject"}))
    await preparing.wait()
    with capture_logs() as lines:
        await opened.close()
    assert [line["event"] for line in lines] == ["change_not_finished"]
    go_on.set()
    with pytest.raises(AdminError, match="is closed") as error:
        await change
    assert error.value.code is grpc.StatusCode.FAILED_PRECONDITION
    assert case.open().config.on_fault == "pass"


async def test_what_came_through_a_pipe_is_not_read_again(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, Case(tmp_path).file.read_bytes())
    os.close(writer)
    file = read_file(Path(f"/dev/fd/{reader}"))
    os.close(reader)
    opened = Revisions.open(file, Administration())
    opened.attach(FakeControl(opened.config))
    running = asyncio.create_task(opened.run())
    with capture_logs() as lines:
        assert not await opened.reload("SIGHUP")
    assert [line["event"] for line in lines] == ["config_file_not_read_again"]
    assert opened.file_error is None  # nothing is wrong with what is in force
    running.cancel()
    await asyncio.wait([running])
    await opened.close()


async def _freed(opened: Revisions, how: str, case: Case) -> None:
    if how == "change":
        await patch(opened, OTHERWISE)
    elif how == "mask":
        await patch(opened, {}, mask=[("tenants",)])
    elif how == "rollback":
        await rollback(opened, 1)
    else:
        case.clock.now += 31
        await opened.expire()


@pytest.mark.parametrize("how", ["change", "mask", "rollback", "expiry"])
async def test_a_file_that_did_not_fit_is_taken_when_the_cause_is_gone(case: Case, how: str) -> None:
    opened = case.open()
    await patch(opened, NEEDS_BATCH, ttl_s=30 if how == "expiry" else None)
    case.write(WITHOUT_BATCH)
    with capture_logs() as lines:
        assert not await opened.reload("SIGHUP")
        await patch(opened, {"tenants": {"acme": {"max_queued": 7}}})  # does not help
        assert opened.file_error is not None and "was changed live (2 settings)" in opened.file_error
        assert "batch" in opened.config.classes
        await _freed(opened, how, case)
    assert (opened.file_error, "batch" in opened.config.classes) == (None, False)
    assert case.control.config == opened.config
    events = Counter(line["event"] for line in lines)
    assert (events["config_file_refused"], events["config_file_good_again"]) == (1, 1)
    newest = (await opened.list_revisions(None, 1))[0]
    assert (newest.kind, newest.file_sha256) == (Kind.FILE_RELOAD, opened.file.sha256)
    await opened.close()


async def test_a_file_that_did_not_fit_and_is_gone_by_now_is_not_taken(case: Case) -> None:
    opened = case.open()
    await patch(opened, NEEDS_BATCH)
    case.write(WITHOUT_BATCH)
    assert not await opened.reload("SIGHUP")
    case.file.write_text("pools: [")
    assert not await opened.reload("SIGHUP")
    await patch(opened, OTHERWISE)
    assert "batch" in opened.config.classes
    case.write(WITHOUT_BATCH)
    assert await opened.reload("SIGHUP")
    await opened.close()


async def test_a_new_file_frees_an_expiry_that_was_held_back(case: Case) -> None:
    opened = case.open()
    extra = {"rank": 5, "priority": 9_000_000}
    await patch(opened, {"classes": {"extra": extra}}, ttl_s=30)
    await patch(opened, {"tenants": {"acme": {"default_class": "extra"}}})
    case.clock.now += 31
    await opened.expire()
    assert len(opened.expiries()) == 1  # a tenant needs it
    case.write({**data(), "classes": {**data()["classes"], "extra": {**extra, "max_waiting": 3}}})
    assert await opened.reload("SIGHUP")
    assert opened.expiries() == ()
    assert opened.config.classes["extra"].max_waiting == 3
    assert case.control.config == opened.config
    await opened.close()


async def test_a_service_that_cannot_go_by_a_file_is_asked_again_by_a_signal(case: Case) -> None:
    opened = case.open()
    case.write({**data(), "on_fault": "reject"})
    case.control.refuses = "the key file is missing"
    assert not await opened.reload("SIGHUP")
    case.control.refuses = None
    assert await opened.reload("SIGHUP")
    assert opened.config.on_fault == "reject"
    await opened.close()


async def test_a_storm_of_signals_is_a_few_readings(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = case.open()
    readings = 0

    def counted(path: Path, known: Any) -> FileData:
        nonlocal readings
        readings += 1
        return read_again(path, known)

    monkeypatch.setattr(reloads, "read_again", counted)
    first = asyncio.create_task(opened.reload("SIGHUP"))
    await until(lambda: readings == 1)
    case.write({**data(), "on_fault": "reject"})
    storm = [asyncio.create_task(opened.reload("SIGHUP")) for _ in range(100)]
    assert await asyncio.gather(first, *storm) == [True] * 101
    assert readings == 2
    assert opened.config.on_fault == "reject"  # whoever asks after a change has it when it is answered
    await opened.close()
