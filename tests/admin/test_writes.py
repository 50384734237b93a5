"""The changing methods: what each request becomes in the configuration, and how what is wrong is told."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from access_case import call, channel_to, opened, refusal
from google.protobuf import duration_pb2, field_mask_pb2, struct_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from writes_case import E1, Case

from extproc.admin.errors import AdminError
from extproc.admin.guard import NEEDS
from extproc.core.events import Arrive
from extproc.pb.admin.v1 import admin_pb2


def a_struct(**data: Any) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(data)
    return struct


def a_mask(*paths: str) -> field_mask_pb2.FieldMask:
    return field_mask_pb2.FieldMask(paths=paths)


def seconds(value: int) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=value)


def update(*mask: str, reason: str = "test", **data: Any) -> admin_pb2.UpdateConfigRequest:
    return admin_pb2.UpdateConfigRequest(
        config=a_struct(**data) if data else None, update_mask=a_mask(*mask) if mask else None, reason=reason
    )


def set_tenant(name: str, *mask: str, reason: str = "test", **values: Any) -> admin_pb2.SetTenantRequest:
    return admin_pb2.SetTenantRequest(
        tenant=admin_pb2.Tenant(name=name, **values), update_mask=a_mask(*mask) if mask else None, reason=reason
    )


def set_class(name: str, *mask: str, **values: Any) -> admin_pb2.SetClassRequest:
    request = admin_pb2.SetClassRequest(reason="test", update_mask=a_mask(*mask) if mask else None)
    getattr(request, "class").CopyFrom(admin_pb2.Class(name=name, **values))
    return request


def paths(result: admin_pb2.ChangeResult) -> set[str]:
    return {change.path for change in result.changes}


# -- any part of the configuration -----------------------------------------------------------------------------------


async def test_a_part_of_the_file_is_changed_in_its_own_shape() -> None:
    case = Case()
    result = await case.call(
        "UpdateConfig", update(classes={"batch": {"queue_timeout": "10m"}}, pools={"llama": {"window": {"fixed": 5}}})
    )
    assert paths(result) == {"classes.batch.queue_timeout", "pools.llama.window.fixed"}
    assert case.config.classes["batch"].queue_timeout == 600.0
    assert case.config.pools[0].window.fixed == 5
    assert result.revision == case.revisions.revision
    assert result.etag == case.revisions.etag


async def test_null_takes_a_tenant_away_and_a_mask_gives_it_back() -> None:
    case = Case()
    await case.call("UpdateConfig", update(tenants={"acme": None}))
    assert "acme" not in case.config.tenants
    result = await case.call("UpdateConfig", update("tenants.acme"))
    assert case.config.tenants["acme"].weight == 2
    (change,) = result.changes
    assert not change.HasField("before")
    assert change.after.number_value == 2


async def test_a_name_with_dots_is_quoted_in_masks_and_in_answers() -> None:
    case = Case()
    result = await case.call("UpdateConfig", update(tenants={"acme.com": {"weight": 3}}))
    assert paths(result) == {"tenants.`acme.com`.weight"}
    await case.call("UpdateConfig", update("tenants.`acme.com`.weight", tenants={"acme.com": {"weight": 4}}))
    assert case.config.tenants["acme.com"].weight == 4


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (update(), "config"),
        (update("a..b", tenants={"acme": {"weight": 2}}), "update_mask"),
        (update("*", tenants={"acme": {"weight": 3}}), "update_mask"),
        (update(tenants={"": {"weight": 3}}), "tenants"),
        (update(tenants={"a\u202eb": {"weight": 3}}), "tenants"),
        (update(tenants={"acme": {"parent": "a\nb"}}), "tenants.acme.parent"),
        (update(tenants={"acme": {"weight": math.nan}}), "config.tenants.acme.weight"),
        (update(tenants={"acme": {"weight": 0}}), "tenants.acme.weight"),
        (update(tenants={"acme": {"wieght": 1}}), "tenants.acme.wieght"),
        (update(listen={"admin": "127.0.0.1:1"}), "listen.admin"),
        (update(reason="", tenants={"acme": {"weight": 3}}), "reason"),
        (update(reason="a\x00", tenants={"acme": {"weight": 3}}), "reason"),
    ],
)
async def test_what_cannot_be_is_told_by_its_place_and_audited_once(
    request_: admin_pb2.UpdateConfigRequest, field: str
) -> None:
    case = Case()
    assert set(await case.invalid("UpdateConfig", request_)) == {field}
    assert case.config.tenants["acme"].weight == 2
    assert (await case.outcomes()).count(("UpdateConfig", "INVALID_ARGUMENT")) == 1


async def test_a_star_as_mask_is_told_what_to_do_instead_and_the_tenant_of_that_name_is_none() -> None:
    case = Case(tenants={"acme": {"weight": 2}, "*": {"weight": 4}})
    wrong = await case.invalid("UpdateConfig", update("*", tenants={"acme": {"weight": 3}}))
    assert "leave update_mask out" in wrong["update_mask"]
    await case.call("UpdateConfig", update("tenants.*", tenants={"*": {"weight": 5}}))
    assert case.config.tenants["*"].weight == 5


async def test_a_pool_goes_by_its_name_in_the_message_too() -> None:
    case = Case()
    request = update(pools={"llama": {"percentage": 101}})
    with pytest.raises(AdminError, match=r"\Apools\.llama\.percentage: [^\n]*\Z") as caught:
        await case.call("UpdateConfig", request)
    assert [each.field for each in caught.value.violations] == ["pools.llama.percentage"]
    set_pool = admin_pb2.SetPoolRequest(pool="llama", percentage=101, reason="test")
    with pytest.raises(AdminError, match=r"\Apools\.llama\.percentage: "):
        await case.call("SetPool", set_pool)


async def test_a_value_that_says_nothing_is_no_null() -> None:
    case = Case()
    request = update(tenants={"acme": {"weight": 3}})
    request.config.fields["tenants"].struct_value.fields["acme"].struct_value.fields["boost"].Clear()
    wrong = await case.invalid("UpdateConfig", request)
    assert wrong == {"config.tenants.acme.boost": "has no value; null is one"}


async def test_lists_and_whole_numbers_come_through() -> None:
    case = Case()
    data = {"tenants": {"acme": {"classes": ["batch", "default"], "max_queued": 7, "weight": 2.5}}}
    await case.call("UpdateConfig", update(**data))
    assert case.revisions.data["tenants"]["acme"] == {"classes": ["batch", "default"], "max_queued": 7, "weight": 2.5}
    assert isinstance(case.revisions.data["tenants"]["acme"]["max_queued"], int)


async def test_an_answer_lists_no_more_changes_than_a_client_takes() -> None:
    case = Case()
    names = [f"t{number}" for number in range(2500)]
    result = await case.call("UpdateConfig", update(tenants={name: {"weight": 3} for name in names}))
    assert len(result.changes) == 2000
    assert "500 more changes are not listed here" in {warning.message for warning in result.warnings}
    assert all(case.config.tenants[name].weight == 3 for name in names)


async def test_a_key_that_needs_a_restart_says_so() -> None:
    wrong = await Case().invalid("UpdateConfig", update(pools={"llama": {"cost": {"unit": "requests"}}}))
    assert "restart" in wrong["pools.llama.cost.unit"]


async def test_two_operators_at_once() -> None:
    case = Case()
    etag = case.revisions.etag
    first, second = set_tenant("acme", weight=3), set_tenant("acme", weight=4)
    first.etag = second.etag = etag
    await case.call("SetTenant", first)
    assert "etag" in await case.refused("SetTenant", second, grpc.StatusCode.ABORTED)
    assert case.config.tenants["acme"].weight == 3


async def test_a_dry_run_changes_nothing() -> None:
    case = Case()
    request = set_tenant("acme", weight=3)
    request.validate_only = True
    result = await case.call("SetTenant", request)
    assert result.validate_only
    assert paths(result) == {"tenants.acme.weight"}
    assert case.config.tenants["acme"].weight == 2


async def test_a_time_to_live_is_told_and_undoes_the_change() -> None:
    case = Case()
    request = set_tenant("acme", weight=3)
    request.ttl.CopyFrom(seconds(60))
    result = await case.call("SetTenant", request)
    assert result.expire_time.seconds == 1_800_000_060
    case.time += 61
    await case.revisions.expire()
    assert case.config.tenants["acme"].weight == 2


@pytest.mark.parametrize(
    "ttl", [seconds(0), seconds(-1), seconds(10**9), duration_pb2.Duration(seconds=1, nanos=-1), seconds(10**12)]
)
async def test_a_time_to_live_that_cannot_be(ttl: duration_pb2.Duration) -> None:
    request = set_tenant("acme", weight=3)
    request.ttl.CopyFrom(ttl)
    assert set(await Case().invalid("SetTenant", request)) == {"ttl"}


# -- tenants and classes ---------------------------------------------------------------------------------------------


async def test_a_tenant_is_set_by_the_fields_that_are_there() -> None:
    case = Case()
    result = await case.call("SetTenant", set_tenant("acme", max_in_flight_slots=3, max_queued_bytes=1024**2))
    assert paths(result) == {"tenants.acme.max_in_flight", "tenants.acme.max_queued_bytes"}
    acme = case.config.tenants["acme"]
    assert (acme.weight, acme.max_in_flight, acme.max_queued_bytes) == (2, 3, 1024**2)


async def test_a_tenant_without_settings_begins_with_those_that_it_has_now() -> None:
    case = Case(tenants={"*": {"weight": 5, "max_queued": 11}})
    result = await case.call("SetTenant", set_tenant("new", weight=1))
    new = case.config.tenants["new"]
    assert (new.weight, new.max_queued) == (1, 11)
    assert "tenants.new" in {warning.path for warning in result.warnings}


async def test_a_mask_gives_a_field_back_to_the_file() -> None:
    case = Case()
    await case.call("SetTenant", set_tenant("acme", weight=9, max_queued_requests=5))
    await case.call("SetTenant", set_tenant("acme", "weight"))
    acme = case.config.tenants["acme"]
    assert (acme.weight, acme.max_queued) == (2, 5)


async def test_a_star_gives_back_all_that_is_not_set() -> None:
    case = Case()
    await case.call("SetTenant", set_tenant("acme", weight=9, max_queued_requests=5))
    await case.call("SetTenant", set_tenant("acme", "*", burst_cost=3))
    acme = case.config.tenants["acme"]
    assert (acme.weight, acme.max_queued, acme.burst) == (2, 1000, 3)


async def test_a_star_sets_a_tenant_that_is_not_there_yet() -> None:
    case = Case()
    await case.call("SetTenant", set_tenant("new", "*", weight=7))
    assert case.config.tenants["new"].weight == 7


async def test_to_give_back_what_nobody_has_is_an_error() -> None:
    wrong = await Case().invalid("SetTenant", set_tenant("acne", "weight"))
    assert "did you mean acme?" in wrong["tenant"]


@pytest.mark.parametrize(
    ("values", "fields"),
    [
        ({"weight": 0}, {"tenant.weight"}),
        ({"weight": -1}, {"tenant.weight"}),
        ({"weight": math.nan}, {"tenant.weight"}),
        ({"weight": 1e9}, {"tenant.weight"}),
        (
            {"max_queued_requests": 0, "rate_cost_per_second": -1},
            {"tenant.max_queued_requests", "tenant.rate_cost_per_second"},
        ),
        ({"max_queued_bytes": -5}, {"tenant.max_queued_bytes"}),
        ({"rate_burst_cost": 5}, {"tenant"}),  # without a rate
        ({}, {"tenant"}),
    ],
)
async def test_what_is_wrong_with_a_tenant_is_told_by_the_requests_fields(
    values: dict[str, Any], fields: set[str]
) -> None:
    case = Case()
    assert set(await case.invalid("SetTenant", set_tenant("acme", **values))) == fields
    assert (await case.outcomes()).count(("SetTenant", "INVALID_ARGUMENT")) == 1


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\u202eb", "x" * 257])
async def test_names_that_cannot_be(name: str) -> None:
    case = Case()
    assert set(await case.invalid("SetTenant", set_tenant(name, weight=1))) == {"tenant.name"}
    assert set(await case.invalid("SetClass", set_class(name, rank=1))) == {"class.name"}
    assert set(await case.invalid("SetPool", admin_pb2.SetPoolRequest(pool=name, reason="test"))) == {"pool"}
    boost = admin_pb2.BoostTenantRequest(tenant=name, factor=2, reason="test", ttl=seconds(60))
    assert set(await case.invalid("BoostTenant", boost)) == {"tenant"}


async def test_a_class_is_set_and_applies_to_what_waits() -> None:
    case = Case()
    case.control.arrive("a", "b", "c")
    await case.call("SetClass", set_class("default", queue_timeout=seconds(30), idle_only=False))
    assert case.config.classes["default"].queue_timeout == 30.0
    assert case.control.schedulers["llama"].requests["c"].expires_at == 130.0


async def test_a_new_class_needs_what_every_class_needs() -> None:
    case = Case()
    wrong = await case.invalid("SetClass", set_class("night", queue_timeout=seconds(60)))
    assert "rank, priority" in wrong["class"]
    await case.call("SetClass", set_class("night", rank=9, priority=9_000_000, idle_only=True))
    assert case.config.classes["night"].when == "idle"


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"queue_timeout": seconds(10**9)}, "class.queue_timeout"),
        ({"queue_timeout": seconds(-1)}, "class.queue_timeout"),
        ({"headroom_probability": 1.0}, "class.headroom_probability"),
        ({"min_share_ratio": math.nan}, "class.min_share_ratio"),
        ({"overflow": 9}, "class.overflow"),
        ({"gates": admin_pb2.Gates(max_kv_usage_ratio=2)}, "class.gates.max_kv_usage_ratio"),
        ({"gates": admin_pb2.Gates(max_waiting_requests=0)}, "class.gates.max_waiting_requests"),
        ({"rank": 0}, "classes"),  # another has it
    ],
)
async def test_what_is_wrong_with_a_class_is_told_by_the_requests_fields(values: dict[str, Any], field: str) -> None:
    case = Case()
    assert set(await case.invalid("SetClass", set_class("batch", **values))) == {field}


async def test_a_threshold_that_lets_a_lower_class_pass_a_higher_one_is_a_warning() -> None:
    case = Case()
    result = await case.call("SetClass", set_class("batch", max_waiting_requests=50))
    assert case.config.classes["batch"].max_waiting == 50
    assert any("batch" in warning.message for warning in result.warnings)


# -- pools -----------------------------------------------------------------------------------------------------------


async def test_pause_and_resume() -> None:
    case = Case()
    await case.call("SetPool", admin_pb2.SetPoolRequest(pool="llama", traffic=admin_pb2.PAUSED, reason="test"))
    case.control.arrive("a")
    assert not case.control.released
    await case.call("SetPool", admin_pb2.SetPoolRequest(pool="llama", traffic=admin_pb2.OPEN, reason="test"))
    assert case.control.released == {"a"}


async def test_mode_and_percentage() -> None:
    case = Case()
    request = admin_pb2.SetPoolRequest(
        pool="llama", mode=admin_pb2.OBSERVE, percentage=25, percentage_of=admin_pb2.REQUESTS, reason="test"
    )
    result = await case.call("SetPool", request)
    assert paths(result) == {"pools.llama.mode", "pools.llama.percentage", "pools.llama.percentage_of"}
    pool = case.config.pools[0]
    assert (pool.mode, pool.percentage, pool.percentage_of, pool.traffic) == ("observe", 25.0, "requests", "open")
    zero = admin_pb2.SetPoolRequest(pool="llama", percentage=0, reason="test")
    await case.call("SetPool", zero)
    assert case.config.pools[0].percentage == 0.0


async def test_a_pool_that_is_not_there() -> None:
    case = Case()
    request = admin_pb2.SetPoolRequest(pool="lama", traffic=admin_pb2.PAUSED, reason="test")
    wrong = await case.refused("SetPool", request, grpc.StatusCode.NOT_FOUND)
    assert wrong["pool"] == "there is no pool 'lama'; did you mean llama?"
    assert (await case.outcomes())[-1] == ("SetPool", "NOT_FOUND")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({}, ""),
        ({"percentage": 101}, "percentage"),
        ({"percentage": math.nan}, "percentage"),
        ({"mode": 9}, "mode"),
        ({"traffic": -1}, "traffic"),
    ],
)
async def test_what_is_wrong_with_a_pool(values: dict[str, Any], field: str) -> None:
    request = admin_pb2.SetPoolRequest(pool="llama", reason="test", **values)
    assert set(await Case().invalid("SetPool", request)) == {field}


# -- boosts ----------------------------------------------------------------------------------------------------------


def boost(tenant: str = "acme", factor: float = 3.0, ttl: int | None = 60) -> admin_pb2.BoostTenantRequest:
    return admin_pb2.BoostTenantRequest(
        tenant=tenant, factor=factor, reason="test", ttl=None if ttl is None else seconds(ttl)
    )


async def test_a_boost_multiplies_the_weight_for_a_while() -> None:
    case = Case()
    result = await case.call("BoostTenant", boost())
    assert not any(w.message.startswith("nothing is known") for w in result.warnings)
    assert case.config.tenant("acme").policy().weight == 6.0
    case.time += 61
    await case.revisions.expire()
    assert case.config.tenant("acme").policy().weight == 2.0


async def test_a_boost_of_somebody_unknown_is_done_with_a_warning() -> None:
    case = Case()
    result = await case.call("BoostTenant", boost("nobody"))
    assert case.config.tenant("nobody").policy().weight == 3.0
    assert any(w.message.startswith("nothing is known of this tenant") for w in result.warnings)


async def test_who_has_a_request_here_is_known() -> None:
    case = Case()
    case.control.arrive("a", tenant="newcomer")
    result = await case.call("BoostTenant", boost("newcomer"))
    assert not any(w.message.startswith("nothing is known") for w in result.warnings)
    observed = case.control.observe("llama")
    observed.apply(Arrive("x", "watched", "default", arrival=100.0, body_bytes=1), 100.0)
    result = await case.call("BoostTenant", boost("watched"))
    assert not any(w.message.startswith("nothing is known") for w in result.warnings)


async def test_a_node_above_tenants_is_known_where_names_have_levels() -> None:
    case = Case(identity={"separator": "/"})
    case.control.arrive("a", tenant="org/team/ann")
    result = await case.call("BoostTenant", boost("org/team"))
    assert not any(w.message.startswith("nothing is known") for w in result.warnings)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (boost(factor=0), "factor"),
        (boost(factor=-1), "factor"),
        (boost(factor=math.nan), "factor"),
        (boost(factor=math.inf), "factor"),
        (boost(factor=2e6), "factor"),
        (boost(ttl=None), "ttl"),
        (boost(ttl=0), "ttl"),
    ],
)
async def test_boosts_that_cannot_be(request_: admin_pb2.BoostTenantRequest, field: str) -> None:
    assert set(await Case().invalid("BoostTenant", request_)) == {field}


# -- recordings ------------------------------------------------------------------------------------------------------


def start(name: str = "night", **values: Any) -> admin_pb2.StartRecordingRequest:
    return admin_pb2.StartRecordingRequest(name=name, reason="test", **values)


STOP = admin_pb2.StopRecordingRequest(reason="test")


async def test_a_recording_begins_and_ends() -> None:
    case = Case(recording={"directory": "/var/lib/x"})
    await case.call("StartRecording", start(hash_tenants=True, max_file_bytes=1024**2, keep_files=2))
    recording = case.config.recording
    assert (recording.file, recording.tenants) == ("/var/lib/x/night.jsonl.gz", "hashed")
    assert (recording.max_size, recording.keep) == (1024**2, 2)
    assert "already" in await case.not_now("StartRecording", start("other"))
    await case.call("StopRecording", STOP)
    assert case.config.recording.file is None
    assert not case.revisions.overlay.settings
    assert await case.not_now("StopRecording", STOP) == "nothing is recording"


async def test_without_a_folder_the_cure_is_told() -> None:
    assert "recording.directory" in await Case().not_now("StartRecording", start())


async def test_a_name_is_made_where_none_is_given() -> None:
    case = Case(recording={"directory": "/d"})
    await case.call("StartRecording", start(""))
    name = (case.config.recording.file or "").removeprefix("/d/")
    assert name.startswith("traffic-20")
    assert name.endswith("Z.jsonl.gz")


async def test_an_ending_that_is_there_is_not_appended_again() -> None:
    case = Case(recording={"directory": "/d"})
    await case.call("StartRecording", start("night.jsonl.gz"))
    assert case.config.recording.file == "/d/night.jsonl.gz"


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "-x", "a" * 82, "a b", "a\n", "å"])
async def test_names_of_recordings_that_cannot_be(name: str) -> None:
    case = Case(recording={"directory": "/d"})
    assert set(await case.invalid("StartRecording", start(name))) == {"name"}


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"max_file_bytes": -1}, "max_file_bytes"),
        ({"max_file_bytes": 1}, "max_file_bytes"),  # the configuration wants 64 KiB
        ({"keep_files": -1}, "keep_files"),
        ({"keep_files": 10**6}, "keep_files"),
    ],
)
async def test_sizes_of_recordings_that_cannot_be(values: dict[str, int], field: str) -> None:
    case = Case(recording={"directory": "/d"})
    assert set(await case.invalid("StartRecording", start(**values))) == {field}


async def test_what_the_file_hashes_stays_hashed() -> None:
    case = Case(recording={"directory": "/d", "tenants": "hashed", "keep": 9})
    await case.call("StartRecording", start())
    assert (case.config.recording.tenants, case.config.recording.keep) == ("hashed", 9)


async def test_a_recording_of_the_file_can_be_stopped_and_begun_again() -> None:
    case = Case(recording={"directory": "/d", "file": "/d/always.jsonl.gz"})
    await case.call("StopRecording", STOP)
    assert case.config.recording.file is None
    await case.call("StartRecording", start("special"))
    assert case.config.recording.file == "/d/special.jsonl.gz"
    await case.call("StopRecording", STOP)
    assert case.config.recording.file is None


async def test_a_recording_with_a_time_to_live_can_be_stopped_before() -> None:
    case = Case(recording={"directory": "/d"})
    await case.call("UpdateConfig", update(recording={"keep": 7}))
    await case.call("StartRecording", start(ttl=seconds(600), hash_tenants=True))
    await case.call("StopRecording", STOP)
    recording = case.config.recording
    assert (recording.file, recording.tenants, recording.keep) == (None, "plain", 7)


# -- validation and rollback -----------------------------------------------------------------------------------------


async def test_a_part_is_validated_and_nothing_changes() -> None:
    case = Case()
    kept = len(await case.revisions.list_audit(None, 10))
    result = await case.call(
        "ValidateConfig", admin_pb2.ValidateConfigRequest(config=a_struct(tenants={"acme": {"weight": 9}}))
    )
    assert result.validate_only
    assert paths(result) == {"tenants.acme.weight"}
    assert case.config.tenants["acme"].weight == 2
    wrong = admin_pb2.ValidateConfigRequest(config=a_struct(tenants={"acme": {"weight": 0}}))
    assert set(await case.invalid("ValidateConfig", wrong)) == {"tenants.acme.weight"}
    assert len(await case.revisions.list_audit(None, 10)) == kept  # it is a question, whoever may read may ask it


async def test_a_whole_file_is_validated() -> None:
    case = Case()
    yaml = f"pools: [{{name: llama, models: [llama], endpoints: ['{E1}'], window: {{controller: fixed, fixed: 3}}}}]"
    result = await case.call("ValidateConfig", admin_pb2.ValidateConfigRequest(yaml=yaml))
    assert paths(result) == {"pools.llama.window.fixed", "pools.llama.window.overtake", "tenants.acme.weight"}
    assert case.config.pools[0].window.fixed == 2
    assert await case.invalid("ValidateConfig", admin_pb2.ValidateConfigRequest(yaml="pools: ["))


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (admin_pb2.ValidateConfigRequest(), "config"),
        (admin_pb2.ValidateConfigRequest(yaml="pools: []", config=a_struct(on_fault="pass")), "yaml"),
    ],
)
async def test_a_validation_is_of_one_thing(request_: admin_pb2.ValidateConfigRequest, field: str) -> None:
    assert set(await Case().invalid("ValidateConfig", request_)) == {field}


async def test_a_change_is_taken_back() -> None:
    case = Case()
    before = case.revisions.revision
    await case.call("SetTenant", set_tenant("acme", weight=9))
    result = await case.call("Rollback", admin_pb2.RollbackRequest(revision=before, reason="too much"))
    assert paths(result) == {"tenants.acme.weight"}
    assert case.config.tenants["acme"].weight == 2
    unknown = admin_pb2.RollbackRequest(revision=999, reason="test")
    await case.refused("Rollback", unknown, grpc.StatusCode.NOT_FOUND)
    assert set(await case.invalid("Rollback", admin_pb2.RollbackRequest(reason="test"))) == {"revision"}


async def test_to_go_back_to_a_recording_is_told() -> None:
    case = Case(recording={"directory": "/d"})
    await case.call("StartRecording", start())
    recorded = case.revisions.revision
    await case.call("StopRecording", STOP)
    for dry in (True, False):
        request = admin_pb2.RollbackRequest(revision=recorded, reason="test", validate_only=dry)
        warnings = (await case.call("Rollback", request)).warnings
        (message,) = (each.message for each in warnings if each.path == "recording.file")
        assert message.startswith("it records again, into /d/night.jsonl.gz: files of that name")
    assert case.config.recording.file == "/d/night.jsonl.gz"
    back = await case.call("Rollback", admin_pb2.RollbackRequest(revision=1, reason="test"))
    assert "recording.file" in paths(back)
    assert "recording.file" not in {each.path for each in back.warnings}


# -- what holds for all ----------------------------------------------------------------------------------------------


async def test_a_request_of_a_newer_client_is_refused_and_audited() -> None:
    case = Case()
    unknown = b"\xa0\x38\x01"  # field 900
    tenant = admin_pb2.Tenant.FromString(admin_pb2.Tenant(name="acme", weight=9).SerializeToString() + unknown)
    request = admin_pb2.SetTenantRequest(tenant=tenant, reason="test")
    wrong = await case.invalid("SetTenant", request)
    assert "field number 900" in wrong[""]
    assert case.config.tenants["acme"].weight == 2
    assert (await case.outcomes())[-1] == ("SetTenant", "INVALID_ARGUMENT")


async def test_who_did_it_is_in_the_audit() -> None:
    case = Case()
    await case.call("SetTenant", set_tenant("acme", weight=9, reason="she asked"), who="bob")
    (record,) = await case.revisions.list_audit(None, 1)
    assert (record.author.name, record.author.role, record.author.method) == ("bob", "admin", "SetTenant")
    assert (record.author.peer, record.reason) == ("ipv4:192.0.2.1:4711", "she asked")


async def test_while_it_drains_nothing_is_changed_and_requests_can_be_cancelled() -> None:
    case = Case()
    case.control.arrive("a", "b", "c")
    case.control.serving = False
    assert "draining" in await case.not_now("SetTenant", set_tenant("acme", weight=9))
    answer = await case.call("CancelRequests", admin_pb2.CancelRequestsRequest(filter="id = c", reason="test"))
    assert answer.refused_count == 1


async def test_the_service_has_every_method_of_its_description() -> None:
    admin = Case().admin
    described = {method.name for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}
    assert described == set(NEEDS)
    for name in described:
        assert name in vars(admin), name


async def test_every_method_over_the_wire_answers_or_says_what_is_wrong() -> None:
    case = Case()
    async with opened(case.admin) as port, channel_to(port.address) as channel:
        result = await call(channel, "SetTenant", request=set_tenant("acme", weight=3))
        assert paths(result) == {"tenants.acme.weight"}
        error = await refusal(channel, "SetTenant", request=set_tenant("acme", weight=0))
        (detail,) = rpc_status.from_call(error).details
        violations = error_details_pb2.BadRequest.FromString(detail.value).field_violations
        assert [each.field for each in violations] == ["tenant.weight"]
        (record,) = await case.revisions.list_audit(None, 1)
        assert (record.author.name, record.author.role, record.outcome) == ("local", "admin", "INVALID_ARGUMENT")
        # With nothing in them, methods that change something must refuse; none may break.
        for name, needs in NEEDS.items():
            if name in ("WatchStats", "DumpState"):
                continue
            try:
                await call(channel, name)
                assert needs == "viewer", name
            except grpc.aio.AioRpcError as failed:
                assert failed.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION), name
        assert case.revisions.revision == result.revision
