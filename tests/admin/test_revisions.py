"""Changes of the configuration: validated whole, kept, put in force, and taken back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from revisions_case import ALICE, T0, Case, Clock, FakeControl, data, in_memory, patch, rollback, until
from structlog.testing import capture_logs

from extproc.admin.control import RunningPool
from extproc.admin.errors import AdminError
from extproc.admin.records import Kind
from extproc.admin.revisions import Revisions
from extproc.config.administration import Administration
from extproc.config.faults import ConfigError, Fault
from extproc.config.load import FileData, from_data, read_file
from extproc.config.model import Config
from extproc.core.events import Arrive
from extproc.core.scheduler import Scheduler

WEIGHT_3 = {"tenants": {"acme": {"weight": 3}}}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def weight(revisions: Revisions, tenant: str = "acme") -> float:
    return revisions.config.tenant(tenant).weight


async def kinds(revisions: Revisions) -> list[str]:
    """Oldest first."""
    return [each.kind.value for each in await revisions.list_revisions(None, 100)][::-1]


async def refused(code: grpc.StatusCode, attempt: Any) -> AdminError:
    with pytest.raises(AdminError) as error:
        await attempt
    assert error.value.code is code, error.value.message
    return error.value


# -- a change ------------------------------------------------------------------------------------


async def test_a_change_is_kept_put_in_force_and_told(case: Case) -> None:
    revisions = case.open()
    sha = revisions.file.sha256[:8]
    assert (revisions.revision, revisions.etag) == (1, f"1-{sha}")
    result = await patch(revisions, WEIGHT_3, reason="acme pays more", etag=f"1-{sha}")
    assert (result.revision, result.etag, result.validate_only) == (2, f"2-{sha}", False)
    (change,) = result.changes
    assert (change.path, change.before, change.after) == (("tenants", "acme", "weight"), 2, 3)
    assert case.control.committed == [revisions.config]
    assert weight(revisions) == 3
    newest, first = await revisions.list_revisions(None, 9)
    assert (first.kind, first.number, first.changes) == (Kind.START, 1, ())
    assert (newest.kind, newest.who, newest.reason) == (Kind.CHANGE, "alice", "acme pays more")
    assert (newest.created_at, newest.expires_at) == (T0, None)
    assert newest.changes == result.changes
    record = (await revisions.list_audit(None, 1))[0]
    assert (record.author, record.outcome, record.revision) == (ALICE, "ok", 2)
    assert record.changes == result.changes
    await revisions.close()
    assert weight(case.open()) == 3


async def test_it_is_kept_before_it_is_in_force(case: Case) -> None:
    revisions = case.open()
    seen = []
    prepare = case.control.prepare

    async def watched(config: Config) -> Callable[[], None]:
        commit = await prepare(config)

        def look() -> None:
            last = revisions._ledger.store.last()
            assert last is not None
            seen.append((last.number, weight(revisions)))
            commit()

        return look

    case.control.prepare = watched  # type: ignore[method-assign]
    await patch(revisions, WEIGHT_3)
    assert seen == [(2, 2.0)]
    await revisions.close()


async def test_what_changes_nothing_makes_no_revision(case: Case) -> None:
    revisions = case.open()
    for change in ({"tenants": {"acme": {"weight": 2}}}, {"tenants": {}}, {}):
        result = await patch(revisions, change)
        assert (result.revision, result.changes) == (1, ())
    await patch(revisions, WEIGHT_3)
    assert (await patch(revisions, WEIGHT_3)).revision == 2
    assert await kinds(revisions) == ["START", "CHANGE"]
    outcomes = [(each.outcome, each.message, each.revision) for each in await revisions.list_audit(None, 9)]
    again = ("ok", "it was so already", 0)
    assert outcomes == [again, ("ok", "", 2), again, again, again, ("ok", "", 1)]
    assert len(case.control.committed) == 1
    await revisions.close()


async def test_a_longer_time_to_live_is_a_change_of_no_value(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3, ttl_s=10)
    result = await patch(revisions, WEIGHT_3, ttl_s=60)
    assert (result.revision, result.changes, result.expires_at) == (3, (), T0 + 60)
    case.clock.now += 11
    await revisions.expire()
    assert weight(revisions) == 3
    case.clock.now += 50
    await revisions.expire()
    assert weight(revisions) == 2
    await revisions.close()


async def test_validate_only_says_what_would_be_and_does_nothing(case: Case) -> None:
    revisions = case.open()
    result = await patch(revisions, WEIGHT_3, validate_only=True, ttl_s=60)
    assert (result.revision, result.etag, result.validate_only) == (2, revisions.etag, True)
    assert (len(result.changes), result.expires_at) == (1, T0 + 60)
    await refused(grpc.StatusCode.INVALID_ARGUMENT, patch(revisions, {"tenants": {"acme": 1}}, validate_only=True))
    assert (revisions.revision, weight(revisions), case.control.committed) == (1, 2, [])
    records = await revisions.list_audit(None, 2)
    assert [(each.outcome, each.validate_only) for each in records] == [("INVALID_ARGUMENT", True), ("ok", True)]
    assert revisions.audit.outcomes == {"dry_run": 2}
    await revisions.close()


async def test_a_mask_gives_back_to_the_file(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, {"tenants": {"acme": {"weight": 3, "max_queued": 9}}})
    mask = [("tenants", "acme", "weight")]
    await patch(revisions, {"tenants": {"acme": {"max_queued": 7}}}, mask=mask)  # what the mask has not is left alone
    acme = revisions.config.tenant("acme")
    assert (acme.weight, acme.max_queued) == (2, 9)
    await revisions.close()


async def test_a_tenant_begins_with_the_settings_that_it_had(case: Case) -> None:
    revisions = case.open()
    result = await patch(revisions, {"tenants": {"zeta": {"weight": 5}}}, mask=[("tenants", "zeta", "weight")])
    zeta = revisions.config.tenant("zeta")
    assert (zeta.weight, zeta.max_queued) == (5, 50)  # of "*"
    assert [each.path for each in result.warnings] == ["tenants.zeta"]
    await revisions.close()


async def test_what_is_for_a_while_is_not_copied_into_what_is_for_good(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, {"tenants": {"*": {"max_queued": 7}}}, ttl_s=60)
    await patch(revisions, {"tenants": {"zeta": {"weight": 5}}})
    assert revisions.config.tenant("zeta").max_queued == 50
    await revisions.close()


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["", " ", "x" * 1001, "a\nb", "a\x1b[31m", "a\u202eb"])
async def test_a_bad_reason(reason: str) -> None:
    revisions = in_memory()
    error = await refused(grpc.StatusCode.INVALID_ARGUMENT, patch(revisions, WEIGHT_3, reason=reason))
    assert [each.field for each in error.violations] == ["reason"]
    assert (await revisions.list_audit(None, 1))[0].outcome == "INVALID_ARGUMENT"
    assert revisions.revision == 1
    await revisions.close()


async def test_a_reason_in_any_language() -> None:
    revisions = in_memory()
    assert (await patch(revisions, WEIGHT_3, reason="実験のため　です 👩‍🔬")).revision == 2
    await revisions.close()


@pytest.mark.parametrize("ttl_s", [0, 0.999, -1, 366 * 86400 + 1, float("nan"), float("inf")])
async def test_a_bad_time_to_live(ttl_s: float) -> None:
    revisions = in_memory()
    error = await refused(grpc.StatusCode.INVALID_ARGUMENT, patch(revisions, WEIGHT_3, ttl_s=ttl_s))
    assert [each.field for each in error.violations] == ["ttl"]
    await revisions.close()


async def test_two_operators_at_once(case: Case) -> None:
    revisions = case.open()
    etag = revisions.etag
    one, other = await asyncio.gather(
        patch(revisions, WEIGHT_3, etag=etag),
        patch(revisions, {"tenants": {"acme": {"weight": 4}}}, etag=etag),
        return_exceptions=True,
    )
    assert not isinstance(one, BaseException) and one.revision == 2
    assert isinstance(other, AdminError) and other.code is grpc.StatusCode.ABORTED
    assert one.etag in other.message
    assert weight(revisions) == 3
    await revisions.close()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"classes": {"batch": {"queue_timeout": "2h"}}}, "classes.batch.queue_timeout"),
        ({"tenants": {"acme": {"weigth": 3}}}, "tenants.acme.weigth"),
        ({"tenants": {"gone": None}}, "tenants.gone"),
        ({"listen": {"admin": "0.0.0.0:1"}}, "listen.admin"),
        ({"pools": {"llama": {"cost": {"unit": "time"}}}}, "pools.llama.cost.unit"),
        ({"requests": {"max_body": "64MiB"}}, "requests.max_body"),
    ],
)
async def test_what_cannot_be_names_the_place_and_nothing_happens(
    case: Case, change: dict[str, Any], path: str
) -> None:
    revisions = case.open()
    both = {**WEIGHT_3, **change}
    error = await refused(grpc.StatusCode.INVALID_ARGUMENT, patch(revisions, both))
    assert [each.field for each in error.violations] == [path]
    assert (revisions.revision, weight(revisions), case.control.prepared) == (1, 2, [])
    record = (await revisions.list_audit(None, 1))[0]
    assert (record.outcome, record.message, record.changes) == ("INVALID_ARGUMENT", error.message, ())
    await revisions.close()


async def test_what_the_running_service_cannot_do_is_refused_with_its_reason(case: Case) -> None:
    revisions = case.open()
    case.control.refuses = "keys.yaml: cannot be read"
    error = await refused(grpc.StatusCode.INVALID_ARGUMENT, patch(revisions, WEIGHT_3))
    assert [(each.field, each.description) for each in error.violations] == [("identity", "keys.yaml: cannot be read")]
    assert (revisions.revision, weight(revisions)) == (1, 2)
    await revisions.close()


async def test_a_draining_service_changes_nothing(case: Case) -> None:
    revisions = case.open()
    case.control.serving = False
    await refused(grpc.StatusCode.FAILED_PRECONDITION, patch(revisions, WEIGHT_3))
    await refused(grpc.StatusCode.FAILED_PRECONDITION, rollback(revisions, 1))
    changed = data()
    changed["tenants"]["acme"]["weight"] = 9
    case.write(changed)
    assert not await revisions.reload("SIGHUP")
    assert weight(revisions) == 2
    await revisions.close()


async def test_what_must_not_happen_in_preparing_is_audited_and_raised(case: Case) -> None:
    revisions = case.open()

    async def broken(_config: Config) -> Callable[[], None]:
        raise RuntimeError("secret")

    case.control.prepare = broken  # type: ignore[method-assign]
    with pytest.raises(RuntimeError):
        await patch(revisions, WEIGHT_3)
    record = (await revisions.list_audit(None, 1))[0]
    assert (record.outcome, record.message) == ("INTERNAL", "RuntimeError")
    assert revisions.revision == 1
    await revisions.close()


async def test_a_commit_that_raises_is_taken_back_by_a_revision(case: Case) -> None:
    revisions = case.open()
    case.control.breaks = True
    with capture_logs() as lines:
        error = await refused(grpc.StatusCode.INTERNAL, patch(revisions, WEIGHT_3))
    assert "revision 2 could not be put in force" in error.message
    assert (revisions.revision, weight(revisions)) == (3, 2)
    assert case.control.config == revisions.config
    newest = (await revisions.list_revisions(None, 1))[0]
    assert (newest.kind, newest.rolled_back_to) == (Kind.ROLLBACK, 1)
    assert "commit_failed" in [line["event"] for line in lines]
    assert [each.outcome for each in await revisions.list_audit(None, 3)] == ["INTERNAL", "ok", "ok"]
    assert (await patch(revisions, WEIGHT_3)).revision == 4
    await revisions.close()
    assert weight(case.open()) == 3


# -- the client goes -----------------------------------------------------------------------------


async def test_a_change_whose_client_goes_in_the_middle_happens_whole(case: Case) -> None:
    revisions = case.open()
    preparing, go_on = asyncio.Event(), asyncio.Event()
    prepare = case.control.prepare

    async def slow(config: Config) -> Callable[[], None]:
        preparing.set()
        await go_on.wait()
        return await prepare(config)

    case.control.prepare = slow  # type: ignore[method-assign]
    first = asyncio.create_task(patch(revisions, WEIGHT_3))
    await preparing.wait()
    waiting = asyncio.create_task(patch(revisions, {"tenants": {"acme": {"weight": 9}}}))
    third = asyncio.create_task(patch(revisions, {"tenants": {"acme": {"max_queued": 5}}}))
    await asyncio.sleep(0)
    first.cancel()
    waiting.cancel()
    await asyncio.wait([first, waiting])
    assert first.cancelled() and waiting.cancelled()
    assert revisions.revision == 1
    go_on.set()
    assert (await third).revision == 3
    acme = revisions.config.tenant("acme")
    assert (acme.weight, acme.max_queued) == (3, 5)  # the one that only waited was dropped
    await revisions.close()


async def test_closing_waits_for_the_change_that_is_under_way(case: Case) -> None:
    revisions = case.open()
    change = asyncio.create_task(patch(revisions, WEIGHT_3))
    await asyncio.sleep(0)
    await revisions.close()
    assert (await change).revision == 2
    assert weight(case.open()) == 3


async def test_many_at_once_come_one_after_the_other(case: Case) -> None:
    revisions = case.open()
    await asyncio.gather(*(patch(revisions, {"tenants": {f"t{n}": {"weight": n}}}) for n in range(1, 21)))
    assert revisions.revision == 21
    assert [weight(revisions, f"t{n}") for n in range(1, 21)] == list(range(1, 21))
    assert case.control.committed[-1] == revisions.config
    await revisions.close()


# -- expiry --------------------------------------------------------------------------------------


async def test_a_change_for_a_while_undoes_itself(case: Case) -> None:
    revisions = case.open()
    result = await patch(revisions, {**WEIGHT_3, "classes": {"batch": {"max_queued": 5}}}, ttl_s=30)
    assert result.expires_at == T0 + 30
    (pending,) = revisions.expiries()
    assert (pending.revision, pending.expires_at, pending.error) == (2, T0 + 30, "")
    assert sorted(pending.paths) == [("classes", "batch", "max_queued"), ("tenants", "acme", "weight")]
    case.clock.now = T0 + 29.9
    await revisions.expire()
    assert weight(revisions) == 3
    case.clock.now = T0 + 30
    await revisions.expire()
    assert weight(revisions) == 2
    assert case.control.config == revisions.config == from_data(data())
    assert (revisions.expiries(), revisions.overlay.settings) == ((), ())
    newest = (await revisions.list_revisions(None, 1))[0]
    assert (newest.kind, newest.who, newest.reason) == (Kind.EXPIRY, "fairlane", "what revision 2 set is over")
    await revisions.close()


@pytest.mark.slow
async def test_the_timer_does_it_in_time_and_goes_by_the_wall_clock(case: Case) -> None:
    revisions = case.open()
    running = asyncio.create_task(revisions.run())
    await patch(revisions, WEIGHT_3, ttl_s=1)
    case.clock.now += 1  # no later than the timer
    await until(lambda: weight(revisions) == 2)
    await patch(revisions, WEIGHT_3, ttl_s=1)
    case.clock.now -= 1000  # somebody set it
    await until(lambda: revisions._expiries._timer is not None)
    case.clock.now += 2000
    await revisions.expire()
    assert weight(revisions) == 2
    assert revisions._expiries._timer is None
    running.cancel()
    await asyncio.wait([running])
    await revisions.close()


async def test_an_expiry_that_would_leave_no_configuration_is_held_back(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, {"classes": {"extra": {"rank": 5, "priority": 9_000_000}}}, ttl_s=30)
    await patch(revisions, WEIGHT_3, ttl_s=30)
    await patch(revisions, {"tenants": {"acme": {"default_class": "extra"}}})
    case.clock.now += 31
    with capture_logs() as lines:
        await revisions.expire()
        await revisions.expire()
    assert weight(revisions) == 2  # the one that can expire does
    (pending,) = revisions.expiries()
    assert (pending.revision, pending.paths) == (
        2,
        (("classes", "extra", "rank"), ("classes", "extra", "priority")),
    )
    assert "extra" in pending.error
    assert [line["event"] for line in lines if line["log_level"] == "error"] == ["expiry_held_back"]
    failed = await revisions.list_audit(None, 9, failed_only=True)
    assert [(each.author.method, each.outcome) for each in failed] == [("expiry", "INVALID_ARGUMENT")]
    # another change that does not help
    await patch(revisions, {"tenants": {"acme": {"max_queued": 7}}})
    assert len(revisions.expiries()) == 1
    # a restart neither
    await revisions.close()
    revisions = case.open()
    assert "extra" in revisions.config.classes
    await revisions.expire()
    assert len(revisions.expiries()) == 1
    # and one that does
    await patch(revisions, {"tenants": {"acme": {"default_class": "batch"}}})
    assert (revisions.expiries(), "extra" in revisions.config.classes) == ((), False)
    assert case.control.config == revisions.config
    assert (await kinds(revisions))[-2:] == ["CHANGE", "EXPIRY"]
    await revisions.close()


async def test_what_expired_while_nothing_ran_is_undone_at_the_start(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3, ttl_s=30)
    await patch(revisions, {"tenants": {"acme": {"max_queued": 7}}}, ttl_s=300)
    await revisions.close()
    case.clock.now += 31
    changed = data()
    changed["tenants"]["acme"]["rate"] = 1000
    case.write(changed)
    revisions = case.open()
    acme = revisions.config.tenant("acme")
    assert (acme.weight, acme.max_queued, acme.rate) == (2, 7, 1000)
    assert await kinds(revisions) == ["START", "CHANGE", "CHANGE", "EXPIRY", "START"]
    start, expiry = await revisions.list_revisions(None, 2)
    assert [each.path for each in expiry.changes] == [("tenants", "acme", "weight")]
    assert [each.path for each in start.changes] == [("tenants", "acme", "rate")]
    await revisions.close()


# -- rollback ------------------------------------------------------------------------------------


async def test_rollback_takes_the_overlay_of_a_revision_over_the_file_as_it_is_now(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3)
    await patch(revisions, {"tenants": {"acme": {"max_queued": 7}}, "on_fault": "reject"})
    changed = data()
    changed["tenants"]["acme"]["rate"] = 1000
    case.write(changed)
    assert await revisions.reload("SIGHUP")
    result = await rollback(revisions, 2, reason="it was better")
    acme = revisions.config.tenant("acme")
    assert (acme.weight, acme.max_queued, acme.rate, revisions.config.on_fault) == (3, 1000, 1000, "pass")
    assert result.revision == 5
    newest = (await revisions.list_revisions(None, 1))[0]
    assert (newest.kind, newest.rolled_back_to) == (Kind.ROLLBACK, 2)
    assert [each.path for each in await revisions.diff(2, 5)] == [("tenants", "acme", "rate")]
    assert (await rollback(revisions, 2)).revision == 5  # it is so already
    await rollback(revisions, 3)
    assert revisions.config.tenant("acme").max_queued == 7
    await revisions.close()


async def test_rollback_brings_nothing_back_that_has_expired_since(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3, ttl_s=30)
    await patch(revisions, {"tenants": {"acme": {"max_queued": 7}}}, ttl_s=300)
    await rollback(revisions, 1)
    case.clock.now += 100
    await rollback(revisions, 3)
    acme = revisions.config.tenant("acme")
    assert (acme.weight, acme.max_queued) == (2, 7)
    assert [each.expires_at for each in revisions.expiries()] == [T0 + 300]
    await revisions.close()


async def test_rollback_for_a_while(case: Case) -> None:
    revisions = case.open()
    before = revisions.config
    await patch(
        revisions,
        {
            "tenants": {"acme": {"weight": 3}, "zeta": {"weight": 2}, "*": None},
            "pools": {"second": {"models": ["x"], "endpoints": ["10.0.0.2:8000"]}},
        },
    )
    after = revisions.config
    result = await rollback(revisions, 1, ttl_s=60)
    assert result.expires_at == T0 + 60
    assert case.control.config == revisions.config == before
    case.clock.now += 60
    await revisions.expire()
    assert case.control.config == revisions.config == after
    await revisions.close()


async def test_rollback_to_what_is_not_kept(case: Case) -> None:
    revisions = case.open(keep_revisions=10)
    for number in range(3, 15):
        await patch(revisions, {"tenants": {"acme": {"weight": number}}})
    for number in (3, 99):
        error = await refused(grpc.StatusCode.NOT_FOUND, rollback(revisions, number))
        assert f"revision {number} is not kept" in error.message
    assert (await rollback(revisions, 4)).revision == 14
    assert weight(revisions) == 5
    await revisions.close()


async def test_rollback_to_settings_of_an_older_schema_names_each_and_does_nothing(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3)
    store = revisions._ledger.store
    last = store.last()
    assert last is not None
    old = [
        {"path": ["tenants", "acme", "weight"], "value": 3, "revision": 3},
        {"path": ["tenants", "acme", "share"], "value": 3, "revision": 3},
        {"path": ["fairness"], "value": {"by": "tokens"}, "revision": 3},
    ]
    older = replace(last, number=3, overlay=old, schema=0)
    store.commit(older, revisions.file.data, None, expected=2)
    store.commit(replace(last, number=4), revisions.file.data, None, expected=3)
    await revisions.close()
    revisions = case.open()
    error = await refused(grpc.StatusCode.FAILED_PRECONDITION, rollback(revisions, 3))
    assert sorted(each.field for each in error.violations) == ["fairness", "tenants.acme.share"]
    assert (revisions.revision, weight(revisions)) == (4, 3)
    await revisions.close()


# -- the file ------------------------------------------------------------------------------------


async def test_a_new_file_is_taken_under_the_overlay_and_folds_what_it_says_too(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, {"tenants": {"acme": {"weight": 3, "max_queued": 7}}})
    changed = data()
    changed["tenants"]["acme"]["weight"] = 3
    changed["on_fault"] = "reject"
    case.write(changed)
    assert await revisions.reload("SIGHUP")
    acme = revisions.config.tenant("acme")
    assert (acme.weight, acme.max_queued, revisions.config.on_fault) == (3, 7, "reject")
    assert [each.path for each in revisions.overlay.settings] == [("tenants", "acme", "max_queued")]
    newest = (await revisions.list_revisions(None, 1))[0]
    assert (newest.kind, newest.reason) == (Kind.FILE_RELOAD, "SIGHUP")
    assert [each.path for each in newest.changes] == [("on_fault",)]
    assert case.control.config == revisions.config
    assert revisions.etag == f"3-{revisions.file.sha256[:8]}"
    assert await revisions.reload("SIGHUP")
    assert revisions.revision == 3
    await revisions.close()


def _with(**parts: Any) -> dict[str, Any]:
    return {**data(), **parts}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{pools: [", "is not YAML"),
        ("", "found nothing"),
        (_with(pools=[]), "pools"),
        (_with(listen={"admin": "127.0.0.1:1"}), "needs a restart"),
        (_with(default_class="batch", classes={"batch": {"rank": 1, "priority": 0}}), "was changed live"),
    ],
)
async def test_a_bad_file_is_kept_out_and_told_once(case: Case, content: Any, says: str) -> None:
    revisions = case.open()
    await patch(revisions, {"default_class": "interactive", "tenants": {"acme": {"default_class": "interactive"}}})
    before = (revisions.etag, revisions.config)
    good = case.file.read_text()
    if isinstance(content, str):
        case.file.write_text(content)
    else:
        case.write(content)
    with capture_logs() as lines:
        assert not await revisions.reload("SIGHUP")
        assert not await revisions.reload("SIGHUP")
    assert (revisions.etag, revisions.config) == before
    assert revisions.file_error is not None and says in revisions.file_error
    assert [line["event"] for line in lines] == ["config_file_refused", "audit"]
    assert (await revisions.list_audit(None, 1))[0].author.method == "reload"
    case.file.write_text(good)
    assert await revisions.reload("SIGHUP")
    assert revisions.file_error is None
    assert revisions.revision == 2
    await revisions.close()


async def test_a_file_that_is_gone_is_a_bad_one(case: Case) -> None:
    revisions = case.open()
    case.file.unlink()
    assert not await revisions.reload("SIGHUP")
    assert revisions.file_error is not None and "cannot be read" in revisions.file_error
    case.write(data())
    assert await revisions.reload("SIGHUP")
    await revisions.close()


@pytest.mark.slow
async def test_a_changed_file_is_seen_without_a_signal(case: Case) -> None:
    revisions = case.open()
    running = asyncio.create_task(revisions.run())
    case.write(_with(on_fault="reject"))
    await until(lambda: revisions.config.on_fault == "reject")
    case.write(_with(on_fault="nothing"))
    await until(lambda: revisions.file_error is not None)
    case.write(data())
    await until(lambda: revisions.config.on_fault == "pass")
    running.cancel()
    await asyncio.wait([running])
    await revisions.close()


async def test_an_overlay_that_does_not_fit_the_file_any_more_is_set_aside_at_the_start(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, {"tenants": {"acme": {"default_class": "batch"}}, "on_fault": "reject"})
    await revisions.close()
    case.write(_with(classes={"interactive": {"rank": 0, "priority": 0}}))
    with capture_logs() as lines:
        revisions = case.open()
    assert "overlay_set_aside" in [line["event"] for line in lines]
    assert revisions.config.on_fault == "pass"  # whole, not in part
    assert revisions.overlay.settings == ()
    newest = (await revisions.list_revisions(None, 1))[0]
    assert (newest.kind, newest.number) == (Kind.SET_ASIDE, 3)
    assert "settings of revision 2 do not fit" in newest.reason
    state = revisions.state
    assert (state.error, state.read_only) == (newest.reason, False)
    error = await refused(grpc.StatusCode.FAILED_PRECONDITION, rollback(revisions, 2))
    assert [each.field for each in error.violations] == ["tenants.acme"]
    case.write(data())
    assert await revisions.reload("SIGHUP")
    await rollback(revisions, 2)
    assert (revisions.config.on_fault, revisions.config.tenant("acme").default_class) == ("reject", "batch")
    assert revisions.state.error == ""
    await revisions.close()


def test_a_file_that_is_no_configuration_does_not_start(case: Case) -> None:
    case.write(_with(pools=[]))
    with pytest.raises(ConfigError, match="pools"):
        case.open()


async def test_would_a_whole_file_be_taken(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3)
    result = await revisions.whole_file(case.file.read_text() + "on_fault: reject\n")
    assert (result.validate_only, result.revision, result.etag) == (True, 3, revisions.etag)
    assert [each.path for each in result.changes] == [("on_fault",)]
    for text in ("pools: [", "pools: []", case.file.read_text() + "on_falt: reject\n"):
        await refused(grpc.StatusCode.INVALID_ARGUMENT, revisions.whole_file(text))
    error = await refused(
        grpc.StatusCode.INVALID_ARGUMENT,
        revisions.whole_file(case.file.read_text() + "admin: {keep_audit: 200}\n"),
    )
    assert "admin.keep_audit" in [each.field for each in error.violations]
    assert (revisions.revision, revisions.config.on_fault) == (2, "pass")
    await revisions.close()


# -- where it cannot be kept ---------------------------------------------------------------------


async def test_a_broken_state_leaves_the_file_in_force_and_refuses_changes(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3)
    await revisions.close()
    case.database.write_bytes(b"\0" * 8192)
    with capture_logs() as lines:
        revisions = case.open()
    assert "state_unusable" in [line["event"] for line in lines]
    assert (revisions.revision, weight(revisions)) == (0, 2)
    state = revisions.state
    assert (state.path, state.read_only) == (str(case.database), True)
    for attempt in (patch(revisions, WEIGHT_3), rollback(revisions, 1), revisions.list_revisions(None, 1)):
        error = await refused(grpc.StatusCode.FAILED_PRECONDITION, attempt)
        assert state.error in error.message
    case.write(_with(on_fault="reject"))
    assert await revisions.reload("SIGHUP")  # the file is the truth
    assert revisions.config.on_fault == "reject"
    assert case.control.config == revisions.config
    await revisions.close()


async def test_a_state_that_breaks_on_the_way_keeps_what_is_in_force(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3, ttl_s=30)
    revisions._ledger.store.give_up("state.db: is damaged")
    await refused(grpc.StatusCode.FAILED_PRECONDITION, patch(revisions, {"on_fault": "reject"}))
    assert (revisions.revision, weight(revisions), revisions.state.read_only) == (2, 3, True)
    case.clock.now += 31
    await revisions.expire()  # it was said that it would
    assert weight(revisions) == 2
    assert case.control.config == revisions.config
    await revisions.close()


async def test_a_full_disk_refuses_one_change_and_takes_the_next(case: Case) -> None:
    revisions = case.open()
    connection = revisions._ledger.store._connection
    assert connection is not None
    many = {"tenants": {f"tenant {n}": {"weight": 1 + n / 7} for n in range(300)}}
    connection.execute(f"PRAGMA max_page_count = {connection.execute('PRAGMA page_count').fetchone()[0]}")
    error = await refused(grpc.StatusCode.FAILED_PRECONDITION, patch(revisions, many))
    assert "make room on its disk" in error.message
    assert (revisions.revision, case.control.committed) == (1, [])
    connection.execute("PRAGMA max_page_count = 1000000")
    assert (await patch(revisions, many)).revision == 2
    assert not revisions.state.read_only
    await revisions.close()


async def test_another_process_on_the_same_state(case: Case) -> None:
    one = case.open()
    other = case.open()  # has the control from now on
    await patch(one, WEIGHT_3, ttl_s=30)
    error = await refused(grpc.StatusCode.ABORTED, patch(other, {"on_fault": "reject"}))
    assert "another process has made revision 2" in error.message
    assert (other.revision, other.config.on_fault, weight(other)) == (2, "pass", 3)  # as the one has it
    assert case.control.config == other.config
    assert (await patch(other, {"on_fault": "reject"})).revision == 3
    case.clock.now += 31
    await one.expire()  # must happen, so it takes over the other's change
    assert (one.revision, one.config.on_fault, weight(one)) == (4, "reject", 2)
    await other.expire()
    assert (other.revision, other.config) == (4, one.config)
    assert await kinds(other) == ["START", "CHANGE", "CHANGE", "EXPIRY"]
    case.write(_with(shutdown={"held": "refuse"}))
    assert await other.reload("SIGHUP")
    assert await one.reload("SIGHUP")
    assert one.config == other.config
    assert one.config.shutdown.held == "refuse"
    await one.close()
    await other.close()


async def test_a_start_is_kept_only_when_it_serves(case: Case) -> None:
    one = case.open()
    await patch(one, WEIGHT_3)
    case.write(_with(on_fault="reject"))
    admin = Administration(state=str(case.database))
    other = await asyncio.to_thread(Revisions.open, read_file(case.file), admin, clock=case.clock, keeps=False)
    assert (other.config.on_fault, weight(other)) == ("reject", 3)
    assert await kinds(one) == ["START", "CHANGE"]
    other.attach(case.control)
    await other.keep()
    assert await kinds(one) == ["START", "CHANGE", "START"]
    await one.close()
    await other.close()


async def test_a_change_between_reading_and_serving_is_taken_over(case: Case) -> None:
    one = case.open()
    case.write(_with(on_fault="reject"))
    admin = Administration(state=str(case.database))
    other = await asyncio.to_thread(Revisions.open, read_file(case.file), admin, clock=case.clock, keeps=False)
    await patch(one, WEIGHT_3)
    other.attach(case.control)
    await other.keep()
    assert (other.revision, other.config.on_fault, weight(other)) == (3, "reject", 3)
    assert await kinds(other) == ["START", "CHANGE", "START"]
    assert case.control.config == other.config
    assert (await patch(other, {"shutdown": {"held": "refuse"}})).revision == 4
    await one.close()
    await other.close()


async def test_a_change_between_reading_and_serving_that_does_not_fit_is_set_aside(case: Case) -> None:
    one = case.open()
    case.write(_with(classes={"interactive": {"rank": 0, "priority": 0}}))
    admin = Administration(state=str(case.database))
    other = await asyncio.to_thread(Revisions.open, read_file(case.file), admin, clock=case.clock, keeps=False)
    await patch(one, {"classes": {"batch": {"queue_timeout": "11m"}}})
    other.attach(case.control)
    await other.keep()
    assert await kinds(other) == ["START", "CHANGE", "SET_ASIDE"]
    assert list(other.config.classes) == ["interactive"]
    assert "do not fit the file" in other.state.error
    await one.close()
    await other.close()


async def test_a_start_with_nothing_to_keep_sees_what_was_made_meanwhile(case: Case) -> None:
    one = case.open()
    admin = Administration(state=str(case.database))
    other = await asyncio.to_thread(Revisions.open, read_file(case.file), admin, clock=case.clock, keeps=False)
    await patch(one, WEIGHT_3)
    other.attach(case.control)
    await other.keep()
    assert (other.revision, weight(other)) == (2, 3)
    await one.close()
    await other.close()


@pytest.mark.slow
async def test_what_another_process_set_for_a_while_ends_here_too(case: Case) -> None:
    one = case.open()
    other = case.open()
    running = asyncio.create_task(other.run())
    await asyncio.sleep(0)
    await patch(one, WEIGHT_3, ttl_s=1)
    await refused(grpc.StatusCode.ABORTED, patch(other, {"on_fault": "reject"}))
    assert weight(other) == 3
    case.clock.now += 2
    await until(lambda: weight(other) == 2)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await one.close()
    await other.close()


async def test_another_process_whose_changes_do_not_fit_the_file_here(case: Case) -> None:
    one = case.open()
    case.write(_with(classes={"interactive": {"rank": 0, "priority": 0}}))
    other = case.open()
    await refused(grpc.StatusCode.ABORTED, patch(one, {"tenants": {"acme": {"default_class": "batch"}}}))
    await patch(one, {"tenants": {"acme": {"default_class": "batch"}}})
    error = await refused(grpc.StatusCode.ABORTED, patch(other, {"on_fault": "reject"}))
    assert "restart this process" in error.message
    assert (other.revision, other.config.on_fault) == (2, "pass")
    await one.close()
    await other.close()


async def test_without_a_state_changes_are_in_memory_and_say_so() -> None:
    clock = Clock()
    revisions = in_memory(clock)
    assert revisions.state.path == "" and not revisions.state.read_only
    result = await patch(revisions, WEIGHT_3, ttl_s=5)
    assert [each.path for each in result.warnings] == ["admin.state"]
    await rollback(revisions, 1)
    assert weight(revisions) == 2
    assert await kinds(revisions) == ["START", "CHANGE", "ROLLBACK"]
    assert not await revisions.reload("SIGHUP")  # there is no file
    await revisions.close()


# -- warnings and history ------------------------------------------------------------------------


async def test_warnings_are_of_the_change_and_not_of_what_was_so_before(case: Case) -> None:
    revisions = case.open()
    result = await patch(
        revisions, {"classes": {"batch": {"max_waiting": 9}}}, extra_warnings=[Fault("tenant", "never seen")]
    )
    assert [each.path for each in result.warnings] == ["tenant", "classes.batch.max_waiting"]
    assert (await patch(revisions, WEIGHT_3)).warnings == ()
    await revisions.close()


async def test_what_is_taken_away_while_it_is_in_use(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, {"classes": {"extra": {"rank": 5, "priority": 9_000_000}}, "tenants": {"zeta": {}}})
    await patch(revisions, {"pools": {"second": {"models": ["x"], "endpoints": ["10.0.0.2:8000"]}}})
    for pool in revisions.config.pools:
        scheduler = Scheduler(revisions.config.pool_policy(pool))
        case.control.pools.append(RunningPool(pool, scheduler, None, False, lambda: 0.0, lambda _id, _why: None))
    second = case.control.pools[1].scheduler
    for number in range(3):
        second.apply(Arrive(f"r{number}", "zeta" if number else "acme", "extra", 0.0, 100), 0.0)
    change = {"pools": {"second": None}, "classes": {"extra": None}, "tenants": {"zeta": None}}
    result = await patch(revisions, change, validate_only=True)
    assert [(each.path, each.message.split()[0]) for each in result.warnings] == [
        ("pools.second", "3"),
        ("classes.extra", "3"),
        ("tenants.zeta", "2"),
    ]
    case.control.pools.clear()
    assert (await patch(revisions, change, validate_only=True)).warnings == ()
    await revisions.close()


async def test_differences_between_revisions_are_of_what_was_in_force(case: Case) -> None:
    revisions = case.open()
    await patch(revisions, WEIGHT_3)
    case.write(_with(on_fault="reject"))
    await revisions.reload("SIGHUP")
    await patch(revisions, {"tenants": {"acme": {"weight": 4}}})

    async def between(from_: int, to: int) -> set[tuple[Any, ...]]:
        return {(*each.path, each.before, each.after) for each in await revisions.diff(from_, to)}

    assert await between(1, 4) == {("on_fault", None, "reject"), ("tenants", "acme", "weight", 2, 4)}
    assert await between(4, 1) == {("on_fault", "reject", None), ("tenants", "acme", "weight", 4, 2)}
    assert await between(2, 3) == {("on_fault", None, "reject")}
    assert await between(4, 4) == set()
    await refused(grpc.StatusCode.NOT_FOUND, revisions.diff(1, 9))
    assert [each.number for each in await revisions.list_revisions(3, 1)] == [2]
    await revisions.close()


async def test_the_configuration_of_a_start_without_a_file() -> None:
    file = FileData.of(data())
    revisions = Revisions.open(file, Administration())
    assert (revisions.file, revisions.config) == (file, from_data(data()))
    revisions.attach(FakeControl())
    running = asyncio.create_task(revisions.run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])
    await revisions.close()
