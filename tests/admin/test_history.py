"""The configuration as it is, revisions and audit records."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
import yaml
from google.protobuf import duration_pb2, json_format, struct_pb2
from writes_case import Case, a_file

from extproc.admin import history
from extproc.admin.errors import AdminError
from extproc.admin.values import plain_of, struct_of, value_of
from extproc.config.load import from_data, parse
from extproc.pb.admin.v1 import admin_pb2


def weigh(weight: float, name: str = "acme", ttl: int = 0, reason: str = "test") -> admin_pb2.SetTenantRequest:
    return admin_pb2.SetTenantRequest(
        tenant=admin_pb2.Tenant(name=name, weight=weight),
        reason=reason,
        ttl=duration_pb2.Duration(seconds=ttl) if ttl else None,
    )


async def config(case: Case, view: Any = admin_pb2.CONFIG_VIEW_UNSPECIFIED) -> admin_pb2.GetConfigResponse:
    return await case.call("GetConfig", admin_pb2.GetConfigRequest(view=view))


def as_plain(answer: admin_pb2.GetConfigResponse) -> dict[str, Any]:
    return plain_of(answer.config, "config")


# -- the configuration -----------------------------------------------------------------------------------------------


async def test_what_is_in_force_is_told_with_all_defaults_and_can_be_read_again() -> None:
    case = Case()
    await case.call("SetTenant", weigh(9))
    answer = await config(case)
    plain = as_plain(answer)
    assert plain["tenants"]["acme"]["weight"] == 9
    assert plain["classes"]["default"]["queue_timeout"] == "5m"
    assert from_data(plain) == case.config
    assert (answer.etag, answer.revision) == (case.revisions.etag, case.revisions.revision)
    assert as_plain(await config(case, admin_pb2.EFFECTIVE)) == plain


async def test_the_file_is_told_as_it_is() -> None:
    case = Case()
    await case.call("SetTenant", weigh(9))
    assert as_plain(await config(case, admin_pb2.FILE)) == a_file()


async def test_the_overlay_is_told_setting_by_setting() -> None:
    case = Case(tenants={"acme": {"weight": 2}, "gone": {"weight": 1}})
    await case.call("SetTenant", weigh(9))
    await case.call("SetTenant", weigh(11, ttl=60))
    patch = struct_pb2.Struct()
    patch.update({"tenants": {"gone": None}})
    await case.call("UpdateConfig", admin_pb2.UpdateConfigRequest(config=patch, reason="test"))
    overrides = (await config(case, admin_pb2.OVERRIDES)).overrides
    told = [
        (each.path, each.value.number_value, each.HasField("value"), each.expire_time.seconds) for each in overrides
    ]
    assert told == [
        ("tenants.acme.weight", 9, True, 0),
        ("tenants.acme.weight", 11, True, 1_800_000_060),
        ("tenants.gone", 0, False, 0),
    ]
    last = case.revisions.revision
    assert [each.revision for each in overrides] == [last - 2, last - 1, last]


async def test_a_view_of_a_newer_client_is_refused() -> None:
    wrong = await Case().invalid("GetConfig", admin_pb2.GetConfigRequest(view=9))
    assert wrong == {"view": "this server knows no number 9 of it; it knows EFFECTIVE, FILE, OVERRIDES"}


async def test_the_export_is_the_permanent_configuration() -> None:
    case = Case()
    await case.call("SetTenant", weigh(9))
    permanent = case.config
    await case.call("SetTenant", weigh(11, ttl=60))
    answer = await case.call("ExportConfig", admin_pb2.ExportConfigRequest())
    assert answer.etag == case.revisions.etag
    assert parse(answer.yaml) == permanent
    # As the file has it, not with all defaults.
    assert set(yaml.safe_load(answer.yaml)) == {"pools", "tenants"}
    first = answer.yaml.splitlines()[0]
    assert first.startswith("# ")
    assert f"revision {case.revisions.revision}" in first
    assert first.endswith("left out, since temporary: tenants.acme.weight")


async def test_a_name_cannot_end_the_exports_comment() -> None:
    case = Case()
    patch = struct_pb2.Struct()
    patch.update({"pools": {"llama": {"aliases": {"x\nlisten: {}\n#": "llama"}}}})
    request = admin_pb2.UpdateConfigRequest(config=patch, reason="test", ttl=duration_pb2.Duration(seconds=60))
    await case.call("UpdateConfig", request)
    answer = await case.call("ExportConfig", admin_pb2.ExportConfigRequest())
    assert set(yaml.safe_load(answer.yaml)) == {"pools", "tenants"}


async def test_what_is_permanent_by_leave_of_the_temporary_cannot_be_exported() -> None:
    case = Case()
    new = admin_pb2.SetClassRequest(reason="test", ttl=duration_pb2.Duration(seconds=60))
    getattr(new, "class").CopyFrom(admin_pb2.Class(name="night", rank=9, priority=9))
    await case.call("SetClass", new)
    tenant = admin_pb2.Tenant(name="acme", default_class="night")
    await case.call("SetTenant", admin_pb2.SetTenantRequest(tenant=tenant, reason="test"))
    message = await case.refused("ExportConfig", admin_pb2.ExportConfigRequest(), grpc.StatusCode.FAILED_PRECONDITION)
    assert any("night" in each for each in message.values())


# -- revisions -------------------------------------------------------------------------------------------------------


async def revisions(case: Case, size: int = 0, token: str = "") -> admin_pb2.ListRevisionsResponse:
    return await case.call("ListRevisions", admin_pb2.ListRevisionsRequest(page_size=size, page_token=token))


async def test_revisions_are_told_newest_first_and_in_pages() -> None:
    case = Case()
    for weight in (3, 4, 5):
        await case.call("SetTenant", weigh(weight, reason=f"to {weight}"))
    last = case.revisions.revision
    all_of_them = (await revisions(case)).revisions
    assert [each.revision for each in all_of_them] == list(range(last, 0, -1))
    newest = all_of_them[0]
    assert (newest.who, newest.reason, newest.kind) == ("ann", "to 5", admin_pb2.CHANGE)
    assert newest.file_sha256 == case.revisions.file.sha256
    assert newest.override_count == 1
    (change,) = newest.changes
    assert (change.path, change.before.number_value, change.after.number_value) == ("tenants.acme.weight", 4, 5)
    found, token = [], ""
    while True:
        page = await revisions(case, 2, token)
        assert len(page.revisions) <= 2
        found += [each.revision for each in page.revisions]
        token = page.next_page_token
        if not token:
            break
    assert found == [each.revision for each in all_of_them]


async def test_a_page_ends_where_its_bytes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case()
    for weight in (3, 4, 5):
        await case.call("SetTenant", weigh(weight))
    monkeypatch.setattr(history, "_PAGE_BYTES", 1)
    found, token = [], ""
    while token or not found:
        page = await revisions(case, token=token)
        assert len(page.revisions) == 1
        found += [each.revision for each in page.revisions]
        token = page.next_page_token
    assert found == list(range(case.revisions.revision, 0, -1))


async def test_an_entry_has_its_first_changes_and_more_than_are_read_at_once_make_a_page() -> None:
    case = Case()
    count = 3 * history._READ_AT_ONCE
    for number in range(count):
        tenants = {f"t{number}-{each}": {"weight": 3} for each in range(201 if number == 0 else 1)}
        patch = struct_pb2.Struct()
        patch.update({"tenants": tenants})
        await case.call("UpdateConfig", admin_pb2.UpdateConfigRequest(config=patch, reason=str(number)))
    page = (await revisions(case, count)).revisions
    assert [each.reason for each in page] == [str(number) for number in reversed(range(count))]
    assert [len(each.changes) for each in page] == [1] * (count - 1) + [200]
    told = (await records(case, page_size=count)).records
    assert [(each.reason, len(each.changes)) for each in told] == [(each.reason, len(each.changes)) for each in page]


async def test_pages_stay_where_they_are_while_revisions_come() -> None:
    case = Case()
    for weight in (3, 4, 5):
        await case.call("SetTenant", weigh(weight))
    first = await revisions(case, 2)
    await case.call("SetTenant", weigh(6))
    second = await revisions(case, 2, first.next_page_token)
    assert second.revisions[0].revision == first.revisions[-1].revision - 1


@pytest.mark.parametrize("method", ["ListRevisions", "ListAuditRecords"])
@pytest.mark.parametrize(("values", "field"), [({"page_size": -1}, "page_size"), ({"page_token": "x"}, "page_token")])
async def test_pages_that_cannot_be(method: str, values: dict[str, Any], field: str) -> None:
    request = getattr(admin_pb2, f"{method}Request")(**values)
    assert set(await Case().invalid(method, request)) == {field}


async def test_a_rollback_says_what_it_went_back_to() -> None:
    case = Case()
    before = case.revisions.revision
    await case.call("SetTenant", weigh(3))
    await case.call("Rollback", admin_pb2.RollbackRequest(revision=before, reason="back"))
    newest = (await revisions(case, 1)).revisions[0]
    assert (newest.kind, newest.rolled_back_to, newest.override_count) == (admin_pb2.ROLLBACK, before, 0)


async def test_two_revisions_are_compared() -> None:
    case = Case()
    first = case.revisions.revision
    await case.call("SetTenant", weigh(3))
    await case.call("SetTenant", weigh(4, "other"))
    both = await case.call("DiffRevisions", admin_pb2.DiffRevisionsRequest(from_revision=first))
    assert {"tenants.acme.weight", "tenants.other.weight"} <= {each.path for each in both.changes}
    assert (both.from_revision, both.to_revision) == (first, first + 2)
    last = await case.call("DiffRevisions", admin_pb2.DiffRevisionsRequest())
    assert {each.path for each in last.changes} == {"tenants.other.weight"}
    assert (last.from_revision, last.to_revision) == (first + 1, first + 2)
    turned = await case.call(
        "DiffRevisions", admin_pb2.DiffRevisionsRequest(from_revision=first + 1, to_revision=first)
    )
    (change,) = turned.changes
    assert (change.before.number_value, change.after.number_value) == (3, 2)


async def test_comparisons_that_cannot_be() -> None:
    case = Case()
    negative = admin_pb2.DiffRevisionsRequest(from_revision=-1)
    assert set(await case.invalid("DiffRevisions", negative)) == {"from_revision"}
    first = admin_pb2.DiffRevisionsRequest(to_revision=1)
    assert set(await case.invalid("DiffRevisions", first)) == {"from_revision"}
    unknown = admin_pb2.DiffRevisionsRequest(from_revision=1, to_revision=99)
    await case.refused("DiffRevisions", unknown, grpc.StatusCode.NOT_FOUND)


# -- audit -----------------------------------------------------------------------------------------------------------


async def records(case: Case, **asked: Any) -> admin_pb2.ListAuditRecordsResponse:
    return await case.call("ListAuditRecords", admin_pb2.ListAuditRecordsRequest(**asked))


async def test_audit_records_are_told_newest_first_by_whom_and_by_outcome() -> None:
    case = Case()
    await case.call("SetTenant", weigh(3), who="ann")
    await case.call("SetTenant", weigh(4), who="bob")
    await case.invalid("SetTenant", weigh(0))
    failed, bob, ann = (await records(case)).records[:3]
    assert (failed.outcome, failed.revision) == ("INVALID_ARGUMENT", 0)
    assert "weight" in failed.message
    assert (ann.who, ann.role, ann.peer, ann.method) == ("ann", admin_pb2.ADMIN, "ipv4:192.0.2.1:4711", "SetTenant")
    assert (bob.outcome, bob.count, bob.time.seconds) == ("ok", 1, 1_800_000_000)
    assert bob.revision == case.revisions.revision
    (change,) = bob.changes
    assert (change.before.number_value, change.after.number_value) == (3, 4)
    assert [each.id for each in (await records(case, who="bob")).records] == [bob.id]
    assert [each.id for each in (await records(case, failed_only=True)).records] == [failed.id]


async def test_a_page_of_the_audit_goes_on_where_it_ended_and_for_the_same_question_only() -> None:
    case = Case()
    for weight in (3, 4, 5):
        await case.call("SetTenant", weigh(weight))
    first = await records(case, page_size=2, who="ann")
    second = await records(case, page_size=2, who="ann", page_token=first.next_page_token)
    assert [each.id for each in second.records] == [first.records[-1].id - 1]
    assert not second.next_page_token
    with pytest.raises(AdminError, match="page_token"):
        await records(case, page_token=first.next_page_token)


# -- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"a": None, "b": True, "c": 1, "d": 2.5, "e": "x", "f": [1, "y", None], "g": {"h": {}}},
        {"big": 2**53 - 1, "small": 1 - 2**53, "tiny": 1e-300, "huge": 1e300},
    ],
)
def test_values_come_back_as_they_went(data: dict[str, Any]) -> None:
    back = plain_of(struct_of(data), "config")
    assert back == data
    assert {key: type(value) for key, value in back.items()} == {key: type(value) for key, value in data.items()}
    # An independent reader of the same message.
    assert json_format.MessageToDict(struct_of(data)) == data


def test_what_no_double_holds_is_text() -> None:
    assert value_of(10**400).string_value == str(10**400)
    assert value_of(2**53 + 1).string_value == str(2**53 + 1)
    assert value_of(float("nan")).string_value == "nan"


def test_what_is_nested_too_deeply_is_refused() -> None:
    struct = struct_pb2.Struct()
    inner = struct
    for _ in range(100):
        inner = inner.fields["a"].struct_value
    with pytest.raises(AdminError, match="nested in more than 24 levels"):
        plain_of(struct, "config")
