"""The configuration's file is changed on disk while two hundred wait: queues stay, a bad file changes nothing, and what
operators have set lies over the new one. And pools come and go with requests in them."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import yaml
from admin_case import FIXED, HELD, POOL, SLOTS, Admin, connected, held, tenants
from rig import FAST_ENGINE, Json, Rig, log_of, running, until

from extproc.cli.admin_load import Load
from extproc.cli.stack import FAIRLANE
from extproc.pb.admin.v1 import admin_pb2 as pb

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.asyncio(loop_scope="session")]

SECOND = "second"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    folder = tmp_path_factory.mktemp("stack")
    async with running(folder, engine_args=FAST_ENGINE, pool={"window": FIXED}) as rig:
        yield rig


@pytest_asyncio.fixture(loop_scope="session")
async def rig(shared: Rig) -> AsyncIterator[Rig]:
    yield shared
    await _books_closed(shared)


async def _books_closed(rig: Rig) -> None:
    """As `Rig.books_closed`, and the only errors in the log are about files that are bad."""
    await rig.until(lambda found: found["queued"] == found["in_flight"] == found["known"] == 0, "all books closed")
    assert await rig.metric("fairlane_faults_total") == 0
    errors = {line["event"] for line in log_of(rig.stack.child(FAIRLANE)) if line["level"] == "error"}
    assert errors <= {"config_file_refused"}


@pytest_asyncio.fixture(loop_scope="session")
async def admin(rig: Rig) -> AsyncIterator[Admin]:
    """File and overlay are as they were after each test."""
    path = rig.stack.directory / f"{FAIRLANE}.yaml"
    text = path.read_text(encoding="utf-8")
    async with connected(rig) as made:
        yield made
        _put(rig, text)
        before = await made.status()
        await until(made.status, lambda found: found.file.good, "the file is good")
        if before.override_count:
            await made.set({}, mask=["tenants", "classes", "pools"])
        await until(lambda: _slots(made), lambda found: found == SLOTS, "the file is in force")


async def _slots(admin: Admin) -> int:
    return int(_pool_of(await admin.config())["window"]["fixed"])


def _pool_of(config: Json, name: str = POOL) -> Json:
    found: Json = next(pool for pool in config["pools"] if pool["name"] == name)
    return found


def _put(rig: Rig, text: str) -> None:
    """As editors and Kubernetes do: another file takes the place."""
    path = rig.stack.directory / f"{FAIRLANE}.yaml"
    new = path.with_name("new.yaml")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _rewrite(rig: Rig, change: Callable[[Any], None]) -> None:
    config = yaml.safe_load((rig.stack.directory / f"{FAIRLANE}.yaml").read_text(encoding="utf-8"))
    change(config)
    _put(rig, yaml.safe_dump(config, sort_keys=False))


def _hang_up(rig: Rig) -> None:
    pid = rig.stack.child(FAIRLANE).pid
    assert pid is not None
    os.kill(pid, signal.SIGHUP)


def _room(slots: int) -> Callable[[Any], None]:
    def change(config: Any) -> None:
        config["pools"][0]["window"]["fixed"] = slots

    return change


@pytest.mark.parametrize("told", [False, True], ids=["looked at", "SIGHUP"])
async def test_a_new_file_holds_for_what_waits(rig: Rig, admin: Admin, told: bool) -> None:
    async with held(rig, (HELD, "a")) as scene:
        _rewrite(rig, _room(3 * SLOTS))
        if told:
            _hang_up(rig)
        await scene.until_sent(3 * SLOTS)
        assert (await rig.pool())["queued"] == HELD - 2 * SLOTS
        last = (await admin.stub.ListRevisions(pb.ListRevisionsRequest(page_size=1))).revisions[0]
        assert last.kind == pb.FILE_RELOAD
        assert {each.path for each in last.changes} == {f"pools.{POOL}.window.fixed"}
    scene.assert_answers({200: SLOTS + HELD})
    await _books_closed(rig)


def _bad_weight(config: Any) -> None:
    config["tenants"]["a"] = {"weight": 0}


def _other_port(config: Any) -> None:
    config["listen"]["http"] = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_bad_weight, ("tenants.a.weight",)),
        (_other_port, ("listen.http", "restart")),
        (None, ()),
    ],
    ids=["bad value", "needs a restart", "no YAML"],
)
async def test_a_bad_file_changes_nothing(
    rig: Rig, admin: Admin, change: Callable[[Any], None] | None, words: tuple[str, ...]
) -> None:
    async with held(rig, (HELD, "a")) as scene:
        revision = (await admin.status()).revision

        def both(config: Any) -> None:
            _room(3 * SLOTS)(config)
            assert change is not None
            change(config)

        if change is None:
            _put(rig, "pools: [\n")
        else:
            _rewrite(rig, both)
        _hang_up(rig)
        found = await until(admin.status, lambda status: not status.file.good, "it is found bad")
        assert all(word in found.file.error for word in words), found.file.error
        assert found.revision == revision
        assert await rig.metric("fairlane_config_file_good") == 0
        assert len(await scene.sent()) == SLOTS
        # What operators do goes on meanwhile.
        await admin.set({"pools": {POOL: {"window": {"fixed": 2 * SLOTS}}}})
        await scene.until_sent(2 * SLOTS)
    scene.assert_answers({200: SLOTS + HELD})


async def test_the_overlay_lies_over_the_new_file(rig: Rig, admin: Admin) -> None:
    """And what the file says by now is no override any more."""
    async with held(rig, (HELD // 2, "a"), (HELD // 2, "b")) as scene:
        await admin.set({"tenants": {"b": {"weight": 5}}})
        before = (await admin.status()).override_count
        assert before > 0
        _rewrite(rig, _room(SLOTS + 12))
        await scene.until_sent(SLOTS + 12)
        assert tenants((await scene.sent())[SLOTS:]) == Counter(a=2, b=10)
        config = await admin.config()

        def fold(written: Any) -> None:
            written["tenants"]["b"] = config["tenants"]["b"]

        _rewrite(rig, fold)
        await until(admin.status, lambda status: status.override_count == 0, "it is folded back")
        assert (await admin.config())["tenants"]["b"]["weight"] == 5
    scene.assert_answers({200: SLOTS + HELD})


async def test_under_load(rig: Rig, admin: Admin) -> None:
    """Ten files, one after the other, while requests come and go."""
    load = Load(rig.http, rig.stack.url, "reload")
    try:
        load.start(HELD)
        for number in range(10):
            _rewrite(rig, _room(SLOTS + 1 + number))
            _hang_up(rig)
            await until(lambda: _slots(admin), lambda found, n=number: found == SLOTS + 1 + n, "it is in force")
        await load.stop()
    finally:
        load.drop()
    assert load.outcomes() == {"200": load.begun}
    sent = Counter(entry["headers"].get("x-key") for entry in await rig.seen())
    assert max(sent[each.key] for each in load.done) == 1
    await _books_closed(rig)


async def test_a_pool_comes_and_goes_with_requests_in_it(rig: Rig, admin: Admin) -> None:
    """It takes the model that it names; when it is gone, what it holds gets its turn, and newcomers go elsewhere."""
    async with held(rig, (HELD // 2, "before")) as scene:
        endpoint = str(rig.engines[0])
        await admin.set({"pools": {SECOND: {"models": ["sim-7b"], "endpoints": [endpoint], "window": FIXED}}})
        scene.ask(HELD // 2 + SLOTS, "second")
        await until(lambda: _queued(admin), lambda found: found == {POOL: 100, SECOND: 100}, "it holds its own")
        await admin.set({"pools": {SECOND: None}})
        pools = {pool.name: pool for pool in (await admin.stub.ListPools(pb.ListPoolsRequest())).pools}
        assert pools[SECOND].retiring
        scene.ask(10, "after")
        await until(lambda: _queued(admin), lambda found: found == {POOL: 110, SECOND: 100}, "newcomers go elsewhere")
    scene.assert_answers({200: HELD + 2 * SLOTS + 10})
    await until(lambda: _queued(admin), lambda found: set(found) == {POOL}, "it is gone")
    await _books_closed(rig)


async def _queued(admin: Admin) -> dict[str, int]:
    return {pool.name: pool.queued_count for pool in (await admin.stub.ListPools(pb.ListPoolsRequest())).pools}
