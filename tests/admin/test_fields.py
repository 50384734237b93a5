"""What the messages' fields stand for, and which of them a request is about."""

from __future__ import annotations

import math
from typing import Any

import grpc
import pytest
from google.protobuf import duration_pb2

from extproc.admin import fields
from extproc.admin.errors import AdminError
from extproc.config.scheduling import Class, ClassGates, Pool, Tenant
from extproc.pb.admin.v1 import admin_pb2


def told(error: AdminError) -> dict[str, str]:
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    return {each.field: each.description for each in error.violations}


def refused(message: Any, table: Any, *mask: str, where: str = "") -> dict[str, str]:
    with pytest.raises(AdminError) as caught:
        fields.choose(message, table, mask, where=where)
    return told(caught.value)


def names_of(message: Any, *but: str) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields} - set(but)


def keys_of(section: Any) -> set[str]:
    return set(section.model_fields)


# -- the tables are whole --------------------------------------------------------------------------------------------


def test_every_field_of_a_tenant_stands_for_a_key_and_every_key_has_a_field() -> None:
    assert set(fields.TENANT) == names_of(admin_pb2.Tenant, "name")
    # boost is BoostTenant's
    assert {field.key for field in fields.TENANT.values()} == {(key,) for key in keys_of(Tenant) - {"boost"}}


def test_every_field_of_a_class_stands_for_a_key_and_every_key_has_a_field() -> None:
    gates = {f"gates.{name}" for name in names_of(admin_pb2.Gates)}
    assert set(fields.CLASS) == names_of(admin_pb2.Class, "name", "gates") | gates
    keys = {(key,) for key in keys_of(Class) - {"gates"}} | {("gates", key) for key in keys_of(ClassGates)}
    assert {field.key for field in fields.CLASS.values()} == keys


def test_every_knob_of_set_pool_is_a_key_of_the_pool() -> None:
    assert set(fields.POOL) == names_of(admin_pb2.SetPoolRequest, "pool", "reason", "ttl", "etag", "validate_only")
    assert {field.key[0] for field in fields.POOL.values()} <= keys_of(Pool)


def words_of(section: Any, key: str) -> tuple[str, ...]:
    return section.model_fields[key].annotation.__args__


@pytest.mark.parametrize(
    ("enum", "section", "key"),
    [
        (admin_pb2.Overflow, Class, "overflow"),
        (admin_pb2.QueueOrder, Class, "order"),
        (admin_pb2.PoolMode, Pool, "mode"),
        (admin_pb2.PercentageOf, Pool, "percentage_of"),
        (admin_pb2.Traffic, Pool, "traffic"),
    ],
)
def test_the_enums_names_are_the_words_of_the_file(enum: Any, section: Any, key: str) -> None:
    plain = fields.word(enum)
    assert {plain(number) for number in enum.values() if number} == set(words_of(section, key))


# -- what a message asks for -----------------------------------------------------------------------------------------


def test_a_tenant_is_read_in_the_terms_of_the_file() -> None:
    tenant = admin_pb2.Tenant(
        name="acme",
        weight=2.5,
        max_queued_requests=10,
        max_queued_bytes=32 * 1024**2,
        max_queued_tokens=1000,
        max_in_flight_slots=4,
        rate_cost_per_second=100,
        rate_burst_cost=50,
        burst_cost=7,
        parent="org",
        default_class="batch",
        classes=["batch", "default"],
    )
    assert fields.choose(tenant, fields.TENANT).patch == {
        "weight": 2.5,
        "max_queued": 10,
        "max_queued_bytes": "32MiB",
        "max_queued_tokens": 1000,
        "max_in_flight": 4,
        "rate": 100,
        "rate_burst": 50,
        "burst": 7,
        "parent": "org",
        "default_class": "batch",
        "classes": ["batch", "default"],
    }


def test_a_class_is_read_in_the_terms_of_the_file() -> None:
    cls = admin_pb2.Class(
        name="batch",
        rank=2,
        priority=-5,
        queue_timeout=duration_pb2.Duration(seconds=300),
        max_waiting_requests=0,
        min_share_ratio=0.25,
        overflow=admin_pb2.REJECT_NEWEST,
        order=admin_pb2.SHORTEST_FIRST,
        headroom_probability=0.01,
        idle_only=True,
        refuse_hopeless=False,
        gates=admin_pb2.Gates(
            max_waiting_requests=2,
            max_time_per_output_token=duration_pb2.Duration(nanos=120_000_000),
            max_kv_usage_ratio=0.5,
            max_time_to_first_token=duration_pb2.Duration(seconds=1, nanos=500_000_000),
        ),
        preemptible=True,
        preempt_after=duration_pb2.Duration(seconds=2),
    )
    assert fields.choose(cls, fields.CLASS).patch == {
        "rank": 2,
        "priority": -5,
        "queue_timeout": "5m",
        "max_waiting": 0,
        "min_share": 0.25,
        "overflow": "reject_newest",
        "order": "shortest_first",
        "headroom": 0.01,
        "when": "idle",
        "hopeless": "wait",
        "gates": {"max_waiting": 2, "max_tpot": "120ms", "max_kv_usage": 0.5, "max_ttft": "1500ms"},
        "preemptible": True,
        "preempt_after": "2s",
    }


def test_what_is_read_is_what_the_configuration_takes() -> None:
    cls = admin_pb2.Class(
        rank=1, priority=7, queue_timeout=duration_pb2.Duration(seconds=90), max_queued_bytes=1025, idle_only=True
    )
    read = Class.model_validate(fields.choose(cls, fields.CLASS).patch)
    assert (read.queue_timeout, read.max_queued_bytes, read.when) == (90.0, 1025, "idle")


def test_without_a_mask_only_what_is_set_is_asked_for() -> None:
    chosen = fields.choose(admin_pb2.Tenant(name="acme", weight=0.0), fields.TENANT)
    assert chosen == fields.Chosen({"weight": 0}, (("weight",),))


def test_a_mask_asks_for_what_it_names_and_nothing_else() -> None:
    tenant = admin_pb2.Tenant(name="acme", weight=2, max_in_flight_slots=3)
    chosen = fields.choose(tenant, fields.TENANT, ["max_in_flight_slots", "parent"])
    assert chosen == fields.Chosen({"max_in_flight": 3}, (("max_in_flight",), ("parent",)))


def test_a_star_asks_for_all() -> None:
    chosen = fields.choose(admin_pb2.Tenant(name="acme", weight=2), fields.TENANT, ["*"])
    assert chosen.patch == {"weight": 2}
    assert set(chosen.keys) == {field.key for field in fields.TENANT.values()}


def test_a_message_inside_is_asked_for_whole_or_by_its_fields() -> None:
    cls = admin_pb2.Class(gates=admin_pb2.Gates(max_waiting_requests=1, max_kv_usage_ratio=0.5))
    whole = fields.choose(cls, fields.CLASS, ["gates"])
    assert whole.patch == {"gates": {"max_waiting": 1, "max_kv_usage": 0.5}}
    assert len(whole.keys) == 4
    one = fields.choose(cls, fields.CLASS, ["gates.max_waiting_requests"])
    assert one == fields.Chosen({"gates": {"max_waiting": 1}}, (("gates", "max_waiting"),))


def test_a_field_that_a_mask_names_twice_counts_once() -> None:
    chosen = fields.choose(admin_pb2.Tenant(weight=2), fields.TENANT, ["weight", "weight"])
    assert chosen.keys == (("weight",),)


# -- what cannot be --------------------------------------------------------------------------------------------------


def test_a_mask_that_names_no_field_is_refused_with_what_was_meant() -> None:
    wrong = refused(admin_pb2.Tenant(), fields.TENANT, "wieght")
    assert wrong == {"update_mask": "there is no field 'wieght' to set; did you mean weight?"}
    assert "known here: weight," in refused(admin_pb2.Tenant(), fields.TENANT, "")["update_mask"]
    # The name says which tenant it is.
    assert "there is no field 'name'" in refused(admin_pb2.Tenant(), fields.TENANT, "name")["update_mask"]
    assert "update_mask" in refused(admin_pb2.Tenant(), fields.TENANT, "gates.")


def test_all_that_is_wrong_is_told_at_once() -> None:
    tenant = admin_pb2.Tenant(weight=math.nan, max_queued_bytes=-1, parent="a\nb", rate_cost_per_second=math.inf)
    assert refused(tenant, fields.TENANT, where="tenant") == {
        "tenant.weight": "must be a finite number, not nan",
        "tenant.max_queued_bytes": "must not be negative, and is -1",
        "tenant.parent": "has what cannot be printed: control characters, or such as turn the direction of writing",
        "tenant.rate_cost_per_second": "must be a finite number, not inf",
    }


@pytest.mark.parametrize(
    ("duration", "fault"),
    [
        (duration_pb2.Duration(seconds=-1), "must not be negative, and is -1 s"),
        (duration_pb2.Duration(nanos=-1), "must not be negative, and is -1e-09 s"),
        (duration_pb2.Duration(seconds=1, nanos=-1), "is no duration: 1 s and -1 ns"),
        (duration_pb2.Duration(seconds=10**12), "is no duration: 1000000000000 s and 0 ns"),
        (duration_pb2.Duration(nanos=10**9), "is no duration: 0 s and 1000000000 ns"),
    ],
)
def test_what_is_no_duration_is_refused(duration: duration_pb2.Duration, fault: str) -> None:
    wrong = refused(admin_pb2.Class(queue_timeout=duration), fields.CLASS, where="class")
    assert wrong == {"class.queue_timeout": fault}


@pytest.mark.parametrize(
    ("seconds", "nanos", "text"),
    [
        (0, 0, "0s"),
        (0, 1, "0.000000001s"),
        (0, 250_000_000, "250ms"),
        (0, 1_500_000, "0.0015s"),
        (59, 0, "59s"),
        (60, 0, "1m"),
        (90, 0, "90s"),
        (7200, 0, "2h"),
        (10, 500_000, "10.0005s"),
        (10**9, 0, "1000000000s"),  # which the configuration refuses
    ],
)
def test_a_duration_is_written_without_loss(seconds: int, nanos: int, text: str) -> None:
    assert fields.duration(duration_pb2.Duration(seconds=seconds, nanos=nanos)) == text


@pytest.mark.parametrize(("size", "text"), [(0, "0B"), (1023, "1023B"), (1024, "1KiB"), (3 * 1024**3, "3GiB")])
def test_a_size_is_written_without_loss(size: int, text: str) -> None:
    assert fields.size(size) == text


def test_an_enum_of_a_newer_client_is_refused_with_what_is_known() -> None:
    wrong = refused(admin_pb2.Class(overflow=77), fields.CLASS, where="class")
    assert wrong == {"class.overflow": "this server knows no number 77 of it; it knows shed_heaviest, reject_newest"}


def test_a_message_with_fields_that_are_not_known_is_refused() -> None:
    newer = admin_pb2.SetTenantRequest(tenant=admin_pb2.Tenant(name="acme"))
    fields.check_known(newer)
    # field 900, varint 1
    unknown = b"\xa0\x38\x01"
    outer = admin_pb2.SetTenantRequest.FromString(newer.SerializeToString() + unknown)
    with pytest.raises(AdminError, match=r"field number 900 of fairlane\.admin\.v1\.SetTenantRequest; is the client"):
        fields.check_known(outer)
    inner = admin_pb2.SetTenantRequest(
        tenant=admin_pb2.Tenant.FromString(admin_pb2.Tenant(name="acme").SerializeToString() + unknown)
    )
    with pytest.raises(AdminError, match=r"field number 900 of fairlane\.admin\.v1\.Tenant"):
        fields.check_known(inner)
