"""Changes of the configuration that reach all replicas of a cluster, or say which have not taken them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
from peers_case import Cluster, Replica
from revisions_case import ALICE, T0, Case, data, patch, rollback
from structlog.testing import capture_logs

from extproc.admin.errors import AdminError
from extproc.admin.records import SCHEMA, Author
from extproc.admin.store import StoreError
from extproc.admin.writes import change_result
from extproc.config.overlay import Overlay, Setting
from extproc.config.shared import ReplicaTaken, SharedRevision

BOB = Author("bob", "operator", "ipv4:192.0.2.2:4711", "SetTenant")
MINUTES = 60.0


def of_weight(weight: float, tenant: str = "acme") -> dict[str, Any]:
    return {"tenants": {tenant: {"weight": weight}}}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    await cluster.close()


@pytest.fixture
async def three(cluster: Cluster) -> tuple[Replica, Replica, Replica]:
    a, b, c = [await cluster.start(name) for name in ("a", "b", "c")]
    cluster.exchange()
    return a, b, c


async def refused(code: grpc.StatusCode, attempt: Any) -> str:
    with pytest.raises(AdminError) as error:
        await attempt
    assert error.value.code is code, error.value.message
    return error.value.message


# -- a change ------------------------------------------------------------------------------------


async def test_a_change_is_in_force_everywhere_when_it_is_told(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, _, _ = three
    result = await patch(a.revisions, of_weight(3), reason="acme pays more")
    assert [each.weight() for each in three] == [3, 3, 3]
    assert result.shared is not None
    assert (result.shared.revision, result.revision) == (1, 2)
    assert result.replicas == tuple(ReplicaTaken(name, True) for name in "abc")
    assert (cluster.store.number, cluster.store.revision.id) == (1, result.shared.id)
    assert [each.told["revision"] for each in three] == [1, 1, 1]


async def test_it_stands_in_each_history_under_the_name_of_its_author(three: tuple[Replica, ...]) -> None:
    a, b, _ = three
    await patch(a.revisions, of_weight(3), reason="acme pays more")
    revision = (await b.revisions.list_revisions(None, 1))[0]
    assert (revision.number, revision.kind.value, revision.who) == (2, "CHANGE", "alice")
    assert revision.reason == "acme pays more (from replica a, cluster revision 1)"
    assert [each.path for each in revision.changes] == [("tenants", "acme", "weight")]
    record = (await b.revisions.list_audit(None, 1))[0]
    assert record.author == Author("alice", "admin", "replica a", "UpdateConfig")
    assert (record.outcome, record.revision, record.message) == ("ok", 2, "cluster revision 1")
    here = (await a.revisions.list_audit(None, 1))[0]
    assert (here.author, here.reason, here.message) == (ALICE, "acme pays more", "cluster revision 1")


async def test_changes_at_different_replicas_lie_over_each_other(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, b, c = three
    await patch(a.revisions, of_weight(3))
    await patch(b.revisions, of_weight(5, "other"))
    await patch(c.revisions, of_weight(4))
    for each in three:
        assert (each.weight(), each.weight("other")) == (4, 5)
    assert cluster.store.revision.revision == 3


async def test_a_replica_that_has_not_heard_of_a_change_builds_on_it_all_the_same(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    cluster.apart |= {"a", "b"}
    await patch(a.revisions, of_weight(3))
    assert b.weight() == 2
    await patch(b.revisions, of_weight(5, "other"))
    assert (b.weight(), b.weight("other")) == (3, 5)
    stale = "2-" + b.revisions.etag.partition("-")[2]
    await patch(a.revisions, of_weight(9, "third"))
    told = await refused(grpc.StatusCode.ABORTED, patch(b.revisions, of_weight(7), etag=stale))
    assert "etag" in told


async def test_of_two_changes_at_once_one_is_told_to_look_again(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, _, _ = three
    store = cluster.store

    def b_is_faster() -> None:
        mine = SharedRevision(
            revision=1,
            id="b1",
            overlay=Overlay((Setting(("tenants", "acme", "weight"), 8, False, 2),)),
            who="bob",
            role="operator",
            method="SetTenant",
            reason="bob's",
            kind="CHANGE",
            replica="b",
            at=T0,
            schema=SCHEMA,
        )
        store.number, store.document = 1, mine.to_bytes()

    store.between = b_is_faster
    told = await refused(grpc.StatusCode.ABORTED, patch(a.revisions, of_weight(3)))
    assert "replica b has made cluster revision 1 (bob: bob's) meanwhile" in told
    assert "decide again" in told
    assert a.weight() == 8  # in force here when it is told
    assert [each.who for each in await a.revisions.list_revisions(None, 9)] == ["bob", "fairlane"]
    outcomes = [(each.author.name, each.outcome) for each in await a.revisions.list_audit(None, 2)]
    assert set(outcomes) == {("alice", "ABORTED"), ("bob", "ok")}
    await patch(a.revisions, of_weight(3))
    await cluster.all_have(3)


async def test_two_real_changes_at_once(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, b, _ = three
    done = await asyncio.gather(
        patch(a.revisions, of_weight(3)), patch(b.revisions, of_weight(4)), return_exceptions=True
    )
    failed = [each for each in done if isinstance(each, BaseException)]
    for error in failed:
        assert isinstance(error, AdminError)
        assert error.code is grpc.StatusCode.ABORTED
    assert cluster.store.puts == 2 - len(failed)
    last = cluster.store.revision.overlay.settings[-1].value
    await cluster.all_have(last)  # type: ignore[arg-type]


async def test_what_would_be_asks_no_store(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, _, _ = three
    before = (cluster.store.gets, cluster.store.puts)
    result = await patch(a.revisions, of_weight(3), validate_only=True)
    await a.revisions.part(of_weight(4), None)
    assert (result.shared, result.replicas) == (None, ())
    assert (cluster.store.gets, cluster.store.puts) == before


async def test_what_was_so_already_is_not_written(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, _, _ = three
    await patch(a.revisions, of_weight(3))
    result = await patch(a.revisions, of_weight(3))
    assert (result.changes, result.shared, cluster.store.puts) == ((), None, 1)


async def test_what_cannot_be_is_refused_before_it_is_written(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, _, _ = three
    await refused(grpc.StatusCode.INVALID_ARGUMENT, patch(a.revisions, of_weight(-1)))
    assert cluster.store.puts == 0


async def test_a_rollback_reaches_all(three: tuple[Replica, ...]) -> None:
    a, b, c = three
    await patch(a.revisions, of_weight(3))
    await patch(a.revisions, of_weight(9, "other"))
    result = await rollback(b.revisions, 2)
    assert [each.taken for each in result.replicas] == [True, True, True]
    for each in three:
        assert each.weight() == 3
        assert "other" not in each.revisions.config.tenants
    assert (await b.kinds())[-1] == "ROLLBACK"
    newest = (await c.revisions.list_revisions(None, 1))[0]
    assert (newest.kind.value, newest.rolled_back_to) == ("CHANGE", 0)  # numbers are each replica's own
    assert "from replica b" in newest.reason


async def test_a_recording_is_of_the_process_that_was_asked(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, b, _ = three
    result = await patch(a.revisions, {"recording": {"file": "/tmp/a.jsonl.gz"}})
    assert (result.shared, cluster.store.puts) == (None, 0)
    (warning,) = result.warnings
    assert warning.path == "recording"
    assert "of this process" in warning.message
    result = await patch(a.revisions, {"recording": {"keep": 7}, **of_weight(3)})
    assert result.shared is not None
    assert [each.path for each in result.shared.overlay.settings] == [("tenants", "acme", "weight")]
    assert any("of this process" in each.message for each in result.warnings)
    assert (b.weight(), b.revisions.config.recording.file) == (3, None)
    await patch(b.revisions, of_weight(4))
    await cluster.all_have(4)
    assert (a.revisions.config.recording.file, a.revisions.config.recording.keep) == ("/tmp/a.jsonl.gz", 7)


async def test_the_answer_of_the_api_has_it_all(cluster: Cluster) -> None:
    a, _ = await cluster.start("a"), await cluster.start("b", file=without_batch())
    cluster.exchange()
    told = change_result(await patch(a.revisions, {"tenants": {"acme": {"default_class": "batch"}}}))
    assert (told.cluster_revision, [(each.replica, each.taken) for each in told.replicas]) == (
        1,
        [("a", True), ("b", False)],
    )
    assert "there is no class 'batch'" in told.replicas[1].error
    told = change_result(await patch(a.revisions, of_weight(3), validate_only=True))
    assert (told.cluster_revision, list(told.replicas)) == (0, [])


# -- expiries ------------------------------------------------------------------------------------


async def test_each_ends_a_change_by_itself_and_nobody_writes(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, b, _ = three
    await patch(a.revisions, of_weight(3), ttl_s=600)
    (pending,) = b.revisions.expiries()
    assert (pending.revision, pending.expires_at) == (2, T0 + 600)
    cluster.clock.now += 601
    for each in three:
        await each.revisions.expire()
    assert [each.weight() for each in three] == [2, 2, 2]
    assert await b.kinds() == ["START", "CHANGE", "EXPIRY"]
    await cluster.quiet()
    assert cluster.store.puts == 1
    await patch(b.revisions, of_weight(5, "other"))
    assert {each.path[:2] for each in cluster.store.revision.overlay.settings} == {("tenants", "other")}
    assert [each.weight() for each in three] == [2, 2, 2]


async def test_who_comes_later_does_not_take_what_is_over(cluster: Cluster) -> None:
    a = await cluster.start("a")
    await patch(a.revisions, of_weight(3), ttl_s=600)
    await patch(a.revisions, of_weight(5, "other"))
    cluster.clock.now += 601
    b = await cluster.start("b")
    assert (b.weight(), b.weight("other")) == (2, 5)


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [-10 * MINUTES, 10 * MINUTES])
async def test_a_wrong_clock_ends_a_change_with_all_others(cluster: Cluster, ahead_s: float) -> None:
    a, b, c = (
        await cluster.start("a"),
        await cluster.start("b", ahead_s=ahead_s),
        await cluster.start("c"),
    )
    cluster.exchange()
    await patch(a.revisions, of_weight(3), ttl_s=300)
    await patch(b.revisions, of_weight(7, "other"), ttl_s=300)
    cluster.clock.now += 250
    for each in (a, b, c):
        await each.revisions.expire()
        assert (each.weight(), each.weight("other")) == (3, 7)
    await patch(b.revisions, of_weight(9, "third"))
    cluster.clock.now += 55
    for each in (a, b, c):
        await each.revisions.expire()
        assert (each.weight(), each.weight("other"), each.weight("third")) == (2, 1, 9)
    assert "CHANGE" not in (await c.kinds())[-1:]  # an expiry is the last: nothing is taken twice


# -- a store that is lost ------------------------------------------------------------------------


async def test_without_a_store_it_is_in_force_here_and_offered_later(
    three: tuple[Replica, ...], cluster: Cluster
) -> None:
    a, b, _ = three
    cluster.store.lost = True
    cluster.exchange()
    result = await patch(a.revisions, of_weight(3))
    assert (a.weight(), b.weight()) == (3, 2)
    assert [(each.replica, each.taken) for each in result.replicas] == [("a", True), ("b", False), ("c", False)]
    assert "does not answer" in result.replicas[1].error
    assert "offered to them when the store is back" in " ".join(each.message for each in result.warnings)
    await patch(a.revisions, of_weight(7, "other"))
    cluster.store.lost = False
    await cluster.all_have(3)
    assert [each.weight("other") for each in three] == [7, 7, 7]
    assert (cluster.store.puts, cluster.store.revision.who) == (1, "alice")
    assert await a.kinds() == ["START", "CHANGE", "CHANGE"]


async def test_what_others_have_made_meanwhile_wins_and_ours_is_set_aside(
    three: tuple[Replica, ...], cluster: Cluster
) -> None:
    a, b, _ = three
    await patch(a.revisions, of_weight(3))
    await cluster.quiet()
    cluster.apart.add("a")
    cluster.exchange()
    cluster.store.lost = True
    await patch(a.revisions, of_weight(50), reason="mine")
    cluster.store.lost = False
    await patch(b.revisions, of_weight(4), author=BOB, reason="bob's")
    assert [each.weight() for each in three] == [50, 4, 4]
    cluster.apart.clear()
    with capture_logs() as logs:
        await cluster.all_have(4)
        await cluster.quiet()
    assert [each["event"] for each in logs if each["log_level"] == "warning"] == ["changes_set_aside"]
    newest, mine = (await a.revisions.list_revisions(None, 2))[:2]
    assert (mine.reason, mine.number) == ("mine", 3)
    assert newest.who == "bob"
    assert newest.reason == "bob's (from replica b, cluster revision 2); sets aside revision 3 of this replica"
    record = (await a.revisions.list_audit(None, 1))[0]
    assert (record.author.name, record.outcome, record.reason) == ("alice", "ABORTED", "mine")
    assert "repeat what is still meant" in record.message
    await rollback(a.revisions, 3)  # it is there to go back to
    assert [each.weight() for each in three] == [50, 50, 50]


async def test_a_write_whose_answer_is_lost_is_done_once(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, _, _ = three
    cluster.store.swallows = True
    result = await patch(a.revisions, of_weight(3))
    assert a.weight() == 3
    assert [each.taken for each in result.replicas] == [True, False, False]
    cluster.store.lost = False
    await cluster.all_have(3)
    await cluster.quiet()
    assert (cluster.store.puts, await a.kinds()) == (1, ["START", "CHANGE"])
    assert len(await a.revisions.list_audit(None, 9, who="alice")) == 1
    await patch(a.revisions, of_weight(4))
    assert cluster.store.revision.revision == 2


async def test_a_store_that_was_emptied_is_given_the_latest_again(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, b, _ = three
    await patch(a.revisions, of_weight(3))
    cluster.apart.add("b")  # and does not hear of the next one
    await patch(a.revisions, of_weight(4))
    await cluster.quiet()
    assert b.weight() == 3
    cluster.apart = {"a", "c"}
    cluster.store.empty()
    await cluster.settled(lambda: cluster.store.number == 1)
    assert cluster.store.revision.revision == 1  # by the only one that is there
    cluster.apart.clear()
    await cluster.all_have(4)
    assert cluster.store.revision.revision == 2
    assert await a.kinds() == ["START", "CHANGE", "CHANGE"]
    await patch(b.revisions, of_weight(5))
    assert [each.weight() for each in three] == [5, 5, 5]
    assert cluster.store.revision.revision == 3


async def test_what_is_known_is_not_read_again(three: tuple[Replica, ...], cluster: Cluster) -> None:
    a, _, _ = three
    await patch(a.revisions, of_weight(3))
    await cluster.quiet()
    known = cluster.store.gets
    for _ in range(20):
        cluster.exchange()
        await asyncio.sleep(0)
    assert (cluster.store.gets, cluster.store.puts) == (known, 1)


async def test_a_store_that_went_back_in_time_is_given_the_latest_again(
    three: tuple[Replica, ...], cluster: Cluster
) -> None:
    a, _, _ = three
    await patch(a.revisions, of_weight(3))
    old = (cluster.store.number, cluster.store.document)
    await patch(a.revisions, of_weight(4))
    cluster.store.number, cluster.store.document = old
    await cluster.settled(lambda: cluster.store.revision.revision == 2)
    assert [each.weight() for each in three] == [4, 4, 4]
    assert cluster.store.puts == 3


# -- what does not fit ---------------------------------------------------------------------------


def without_batch() -> dict[str, Any]:
    content = data()
    del content["classes"]["batch"]
    return content


async def test_a_replica_that_it_does_not_fit_says_so_and_the_others_go_on(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b", file=without_batch())
    cluster.exchange()
    with capture_logs() as logs:
        result = await patch(a.revisions, {"tenants": {"acme": {"default_class": "batch"}}})
        await cluster.quiet()
    first, second = result.replicas
    assert (first, second.replica, second.taken) == (ReplicaTaken("a", True), "b", False)
    assert "there is no class 'batch'" in second.error
    assert sum(each["event"] == "cluster_revision_refused" for each in logs) == 1
    assert (b.told["refused"], b.told["revision"]) == (cluster.store.revision.id, 0)
    assert await b.kinds() == ["START"]
    failed = (await b.revisions.list_audit(None, 9, failed_only=True))[0]
    assert (failed.author.name, failed.outcome) == ("alice", "INVALID_ARGUMENT")

    told = await refused(grpc.StatusCode.FAILED_PRECONDITION, patch(b.revisions, of_weight(9)))
    assert "cluster revision 1" in told
    assert "mend the file here, or make the change at another replica" in told
    assert cluster.store.puts == 1

    b.case.write(data())
    assert await b.revisions.reload("mended")
    assert b.revisions.config.tenant("acme").default_class == "batch"
    assert (b.told["revision"], b.told["error"]) == (1, "")
    await patch(b.revisions, of_weight(9))
    assert a.weight() == 9


async def test_what_fits_nobody_any_more_stops_nobody(cluster: Cluster) -> None:
    a = await cluster.start("a")
    await patch(a.revisions, {"tenants": {"acme": {"default_class": "batch"}}})
    await cluster.stop("a")
    a = await cluster.start("a", file=without_batch())
    b = await cluster.start("b", file=without_batch())
    cluster.exchange()
    assert (await a.kinds())[-1] == "SET_ASIDE"
    assert a.told["refused"] == b.told["refused"] == cluster.store.revision.id
    result = await patch(b.revisions, of_weight(9))
    assert [each.taken for each in result.replicas] == [True, True]
    assert (a.weight(), a.told["error"], cluster.store.revision.revision) == (9, "", 2)


@pytest.mark.slow
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"[]", b'{"format": 1}', b"{" * 100_000, b'{"format": "1"}'])
async def test_garbage_in_the_store_is_told_and_written_over(
    three: tuple[Replica, ...], cluster: Cluster, content: bytes
) -> None:
    a, _, _ = three
    await patch(a.revisions, of_weight(3))
    cluster.store.number, cluster.store.document = 7, content
    with capture_logs() as logs:
        await cluster.settled(lambda: cluster.store.document != content)
    assert "cluster_configuration_unreadable" in [each["event"] for each in logs]
    assert (cluster.store.revision.revision, cluster.store.number) == (1, 8)
    await cluster.settled(lambda: not any(each.told["error"] for each in three))
    assert [each.weight() for each in three] == [3, 3, 3]


async def test_garbage_that_nobody_has_anything_for_is_written_over_by_the_next_change(cluster: Cluster) -> None:
    cluster.store.number, cluster.store.document = 7, b"hello"
    a = await cluster.start("a")
    assert "the next change takes its place" in a.told["error"]
    await patch(a.revisions, of_weight(3))
    assert (cluster.store.number, a.told["error"]) == (8, "")


@pytest.mark.parametrize("newer", ["format", "schema"])
async def test_what_a_newer_version_has_written_is_left_alone(cluster: Cluster, newer: str) -> None:
    a = await cluster.start("a")
    await patch(a.revisions, of_weight(3))
    plain = json.loads(cluster.store.document) | {newer: 2, "revision": 2, "id": "new", "version": "9.0"}
    cluster.store.number, cluster.store.document = 2, json.dumps(plain).encode()
    await cluster.settled(lambda: "newer Fairlane" in a.told["error"])
    b = await cluster.start("b")
    assert "newer Fairlane" in b.told["error"]
    # That another one has it is what makes it worth to be left alone.
    a.shared.heard(2, {"c": {"configuration": {"revision": 2, "id": "new", "refused": "", "error": ""}}}, T0 * 1000)
    told = await refused(grpc.StatusCode.FAILED_PRECONDITION, patch(a.revisions, of_weight(4)))
    assert "newer Fairlane" in told
    assert cluster.store.number == 2
    assert a.weight() == 3


# -- starts --------------------------------------------------------------------------------------


async def test_a_replica_that_starts_takes_what_all_have(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await patch(a.revisions, of_weight(3))
    await cluster.stop("b")
    await patch(a.revisions, of_weight(4))
    b = await cluster.start("b")
    assert b.weight() == 4
    assert await b.kinds() == ["START", "CHANGE", "CHANGE"]
    c = await cluster.start("c")
    assert (c.weight(), await c.kinds()) == (4, ["START", "CHANGE"])
    await cluster.stop("b")
    b = await cluster.start("b")
    assert await b.kinds() == ["START", "CHANGE", "CHANGE"]  # it knows what it has


async def test_all_restarted_with_an_emptied_store(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await patch(a.revisions, of_weight(3), ttl_s=600)
    await patch(b.revisions, of_weight(5, "other"))
    await cluster.close()
    cluster.store.empty()
    b = await cluster.start("b")
    a = await cluster.start("a")
    assert (cluster.store.revision.revision, cluster.store.puts) == (2, 3)
    for each in (a, b):
        assert (each.weight(), each.weight("other")) == (3, 5)


async def test_what_changes_nothing_here_is_known_after_a_restart_too(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b", file=with_weight(3))
    cluster.exchange()
    await patch(a.revisions, of_weight(3))
    assert await b.kinds() == ["START"]  # its file says so
    await cluster.quiet()
    await cluster.stop("b")
    await cluster.stop("a")
    cluster.store.empty()
    b = await cluster.start("b")
    await cluster.quiet()
    assert cluster.store.number > 0  # it knew what to offer
    assert b.told["id"] == cluster.store.revision.id


async def test_a_change_from_before_there_was_a_cluster_is_given_to_it(cluster: Cluster) -> None:
    (cluster.folder / "a").mkdir()
    case = await _alone(cluster, of_weight(3))
    a = await cluster.start("a")
    assert (cluster.store.revision.who, cluster.store.revision.reason) == ("alice", "a test")
    b = await cluster.start("b")
    assert (a.weight(), b.weight()) == (3, 3)
    assert case.database.exists()


async def test_a_change_from_without_the_cluster_is_set_aside_where_others_have_moved_on(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await patch(a.revisions, of_weight(3))
    await cluster.stop("a")
    await _alone(cluster, of_weight(77))
    again = await cluster.start("a")
    assert (again.weight(), cluster.store.puts) == (77, 2)  # nobody has changed anything: it is offered
    await cluster.all_have(77)
    await cluster.stop("a")
    await _alone(cluster, of_weight(88))
    await patch(b.revisions, of_weight(4))
    with capture_logs() as logs:
        again = await cluster.start("a")
    assert (again.weight(), b.weight()) == (4, 4)
    assert "changes_set_aside" in [each["event"] for each in logs]


async def _alone(cluster: Cluster, change: dict[str, Any]) -> Case:
    """A process on replica a's state file that belongs to no cluster."""
    case = Case(cluster.folder / "a", clock=cluster.clock, begin=not (cluster.folder / "a" / "fairlane.yaml").exists())
    revisions = case.open()
    await patch(revisions, change)
    await revisions.close()
    return case


async def test_a_start_without_a_store_goes_by_what_is_kept(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await patch(a.revisions, of_weight(3))
    await cluster.stop("b")
    await patch(a.revisions, of_weight(4))
    cluster.store.lost = True
    b = await cluster.start("b")
    assert b.weight() == 3
    cluster.store.lost = False
    await cluster.all_have(4)


async def test_a_damaged_note_is_no_matter(cluster: Cluster) -> None:
    a = await cluster.start("a")
    await patch(a.revisions, of_weight(3))
    await cluster.stop("a")
    with closing(sqlite3.connect(cluster.folder / "a" / "state.db")) as database, database:
        database.execute("UPDATE shared SET document = ?", (b"x",))
    a = await cluster.start("a")
    assert (a.weight(), a.told["revision"], cluster.store.puts) == (3, 1, 1)
    assert await a.kinds() == ["START", "CHANGE"]


# -- what goes wrong here ------------------------------------------------------------------------


async def test_what_is_written_and_cannot_be_kept_here_is_in_force_all_the_same(
    three: tuple[Replica, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, _ = three

    def full(*_: object, **__: object) -> None:
        raise StoreError("state.db: cannot be used now (database or disk is full): make room on its disk")

    monkeypatch.setattr(a.revisions._ledger.store, "commit", full)
    result = await patch(a.revisions, of_weight(3))
    assert [each.taken for each in result.replicas] == [True, True, True]
    assert (a.weight(), b.weight(), a.revisions.revision) == (3, 3, 1)


@pytest.mark.slow
async def test_what_cannot_be_put_in_force_is_taken_back_everywhere(
    three: tuple[Replica, ...], cluster: Cluster
) -> None:
    a, _, _ = three
    await patch(a.revisions, of_weight(3))
    a.control.breaks = True
    await refused(grpc.StatusCode.INTERNAL, patch(a.revisions, of_weight(4)))
    await cluster.all_have(3)
    assert (cluster.store.revision.revision, cluster.store.revision.who) == (3, "fairlane")
    assert "could not be put in force at replica a" in cluster.store.revision.reason


async def test_another_process_with_the_same_state_file_loses_no_change(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await _alone(cluster, of_weight(6, "other"))
    result = await patch(a.revisions, of_weight(3))
    assert [each.taken for each in result.replicas] == [True, True]
    assert (a.weight(), b.weight()) == (3, 3)


async def test_what_is_too_large_is_refused(
    three: tuple[Replica, ...], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, _ = three
    monkeypatch.setattr("extproc.config.shared.LARGEST", 100)
    told = await refused(grpc.StatusCode.FAILED_PRECONDITION, patch(a.revisions, of_weight(3)))
    assert "write them into the file" in told
    assert (a.weight(), cluster.store.puts) == (2, 0)


# -- files that differ ---------------------------------------------------------------------------


async def test_what_one_file_says_already_is_not_lost_to_the_others(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await patch(a.revisions, of_weight(3))
    a.case.write(with_weight(3))
    assert await a.revisions.reload("exported")
    assert a.revisions.overlay == Overlay()
    await patch(a.revisions, of_weight(5, "other"))
    assert (b.weight(), b.weight("other")) == (3, 5)
    await patch(b.revisions, of_weight(4))
    assert (a.weight(), b.weight()) == (4, 4)
    await patch(a.revisions, {}, mask=[("tenants", "acme", "weight")])
    assert (a.weight(), b.weight()) == (3, 2)  # each by its file


def with_weight(weight: float) -> dict[str, Any]:
    content = data()
    content["tenants"]["acme"]["weight"] = weight
    return content


async def test_what_all_files_say_is_dropped_when_all_have_read_it(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await patch(a.revisions, of_weight(3))
    a.case.write(with_weight(3))
    assert await a.revisions.reload("exported")
    await cluster.quiet()
    assert len(cluster.store.revision.overlay.settings) == 1  # b still needs it
    b.case.write(with_weight(3))
    assert await b.revisions.reload("exported")
    await cluster.settled(lambda: not cluster.store.revision.overlay.settings)
    await cluster.settled(lambda: a.told == b.told)
    assert (cluster.store.revision.who, cluster.store.revision.revision) == ("fairlane", 2)
    c = await cluster.start("c", file=with_weight(4))
    assert (a.weight(), b.weight(), c.weight()) == (3, 3, 4)


async def test_a_file_that_takes_a_value_and_leaves_it_again_leaves_the_change_in_force(cluster: Cluster) -> None:
    a, b = await cluster.start("a"), await cluster.start("b")
    cluster.exchange()
    await patch(a.revisions, of_weight(3))
    for weight in (3, 7):
        a.case.write(with_weight(weight))
        assert await a.revisions.reload("edited")
    assert (a.weight(), b.weight(), cluster.store.puts) == (3, 3, 1)
    assert (await a.revisions.list_revisions(None, 1))[0].reason == "cluster revision 1 over what has changed here"


async def test_settings_keep_the_revision_that_set_them_here(three: tuple[Replica, ...]) -> None:
    a, b, _ = three
    await patch(a.revisions, of_weight(3))
    await patch(a.revisions, of_weight(5, "other"))
    found = {each.path[1]: each.revision for each in b.revisions.overlay.settings}
    assert found == {"acme": 2, "other": 3}
