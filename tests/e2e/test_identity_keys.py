"""API keys in a file that changes while requests wait, and no key in anything that Fairlane writes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from identity_case import Held, bearer, ext_proc, full, held_as, one_slot
from rig import Rig, chat, log_of, until

from extproc.cli.stack import FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

A, B, NEW, STRAY = ("sk-planted-secret-" + name for name in ("a", "b", "new", "stray"))


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


FIRST = f"{sha256(A)}: team-a\n{sha256(B)}: {{tenant: team-b, class: batch, classes: [batch]}}\n"


def put(file: Path, text: str) -> None:
    """In one step, as the documents ask for."""
    new = file.with_name("keys.new")
    new.write_text(text)
    new.replace(file)


@pytest_asyncio.fixture(loop_scope="session")
async def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yaml"
    file.write_text(FIRST)
    return file


@pytest_asyncio.fixture(loop_scope="session")
async def rig(keys: Path, tmp_path: Path) -> AsyncIterator[Rig]:
    config = {"identity": {"tenant": [{"api_key": {"file": str(keys)}}, {"header": "x-tenant"}]}}
    async with one_slot(tmp_path / "stack", lambda _: None, config=config, debug=True) as rig:
        yield rig


async def test_a_file_that_changes_while_requests_wait(rig: Rig, keys: Path) -> None:
    async def becomes(key: str, tenant: str) -> None:
        async def probe() -> str:
            return (await held_as(rig, rig.start(chat(), headers=bearer(key)))).tenant

        await until(probe, lambda found: found == tenant, f"a key is {tenant}'s")

    async with full(rig, faults=1):
        assert await held_as(rig, rig.start(chat(), headers=bearer(A))) == Held("team-a", "default")
        asked = {**bearer(B), "x-class": "interactive", "x-tenant": "team-a"}
        assert await held_as(rig, rig.start(chat(), headers=asked)) == Held("team-b", "batch")
        assert (await held_as(rig, rig.start(chat(), headers=bearer(STRAY)))).tenant == "anonymous"

        put(keys, f"{sha256(NEW)}: team-n\n")
        await becomes(NEW, "team-n")
        await becomes(A, "anonymous")  # taken away

        put(keys, f"{STRAY}: team-s\n")  # the key in the place of its digest
        await until(lambda: rig.metric("fairlane_faults_total", where="key_file"), lambda count: count == 1)
        assert (await held_as(rig, rig.start(chat(), headers=bearer(NEW)))).tenant == "team-n"
        put(keys, FIRST)
        await becomes(A, "team-a")


async def test_what_waits_when_its_key_goes_is_answered_as_who_it_was(rig: Rig, keys: Path) -> None:
    async with rig.hung_engines():
        blocker = rig.start(chat())
        await rig.until_inside(1)
        waiting = [rig.start(chat(), headers=bearer(A)) for _ in range(5)]
        await rig.until_held(5)
        put(keys, "{}")

        async def reread() -> list[Any]:
            return [entry for entry in log_of(rig.stack.child(FAIRLANE)) if entry.get("event") == "key_file_read"]

        await until(reread, lambda entries: bool(entries), "the file is read again")
        flows = (await rig.pool())["flows"]
        assert [(flow["tenant"], flow["queued"]) for flow in flows if flow["queued"]] == [("team-a", 5)]
    assert {answer.status for answer in await asyncio.gather(blocker, *waiting)} == {200}
    await rig.books_closed()


async def test_no_key_is_written_anywhere(rig: Rig, keys: Path) -> None:
    assert (await rig.post(chat(), headers=bearer(A))).status == 200
    put(keys, f"{STRAY}: team-s\n{NEW}: [\n")
    await until(lambda: rig.metric("fairlane_faults_total", where="key_file"), lambda count: count == 1)
    async with rig.http.get(f"http://{rig.service_at}/metrics") as answer:
        pages = await answer.text()
    async with rig.http.get(f"http://{rig.service_at}/status?flows=100") as answer:
        pages += await answer.text()
    log = rig.stack.child(FAIRLANE).log.read_text()
    assert "key_file_refused" in log
    for text in (log, pages):
        assert "planted" not in text
        assert sha256(A)[:16] not in text


async def test_the_engine_still_gets_the_key_that_fairlane_is_not_shown(tmp_path: Path) -> None:
    """`disallowed_headers` keeps it from us, and from us alone. A source `api_key` is blind then."""

    def envoy(config: dict[str, Any]) -> None:
        ext_proc(config)["forward_rules"] = {"disallowed_headers": {"patterns": [{"exact": "authorization"}]}}

    config = {"identity": {"tenant": [{"api_key": {"sha256": {sha256(A): "team-a"}}}]}}
    async with one_slot(tmp_path / "stack", envoy, config=config) as rig:
        async with full(rig):
            assert (await held_as(rig, rig.start(chat(), headers=bearer(A)))).tenant == "anonymous"
        assert (await rig.post(chat(), headers=bearer(A))).status == 200
        entries = await rig.seen()
        assert entries[-1]["headers"]["authorization"] == f"Bearer {A}"
