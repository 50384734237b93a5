"""Dumps: every section is there, whole, and in portions."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest
from google.protobuf import json_format
from reads_case import E1, FakeControl, FakeRevisions, PoolCase, a_config, all_of, called_by, refused

from extproc.admin import dump
from extproc.admin.control import EngineState
from extproc.admin.reads import Reads
from extproc.admin.records import Kind, Revision
from extproc.config.overlay import FieldChange, Overlay, Setting
from extproc.config.written import written
from extproc.pb.admin.v1 import admin_pb2 as pb


async def dumped(reads: Reads, limit: int = 0) -> list[tuple[str, dict[str, Any]]]:
    with called_by():
        found = await all_of(reads.DumpState(pb.DumpStateRequest(request_limit=limit), None))
    for portion in found:
        assert portion.ByteSize() < 1_000_000  # clients take 4 MiB
    return [(portion.section, json_format.MessageToDict(portion.content)) for portion in found]


async def test_all_sections() -> None:
    config = a_config("a", slots=1)
    case = PoolCase(config, "a", observed=True)
    for i in range(3):
        case.arrive(f"r{i}", tenant=f"t{i}")
    case.arrive("o0", observed=True)
    revisions = FakeRevisions(config, Overlay((Setting(("on_fault",), "reject", revision=7),)))
    change = FieldChange(("on_fault",), None, "reject", had=False, has=True)
    revisions.history = [Revision(7, 1_700_000_000.0, Kind.CHANGE, "ann", "why", [], "ab" * 32, (change,))]
    control = FakeControl([case], engine_states=[EngineState("a", E1, "vllm", "header", None)])
    found = await dumped(Reads(control, revisions))  # type: ignore[arg-type]

    sections = [name for name, _ in found]
    assert list(dict.fromkeys(sections)) == [
        *("status", "config", "pool", "endpoints", "flows", "requests", "revisions"),
    ]
    json.dumps(found, allow_nan=False)
    assert found[0][1]["etag"] == "7-abababab"
    config_parts = {key: value for name, content in found if name == "config" for key, value in content.items()}
    assert config_parts.pop("overlay") == [{"path": ["on_fault"], "value": "reject", "revision": 7}]
    assert config_parts.pop("file")["path"] == "/etc/fairlane.yaml"
    assert config_parts == json.loads(json.dumps(written(config)))

    pools = [content for name, content in found if name == "pool"]
    assert [(each["pool"], each["observed"], each["queued"]) for each in pools] == [("a", False, 2), ("a", True, 0)]
    assert pools[0]["policy"]["window"]["controller"] == "fixed"
    endpoints = next(content for name, content in found if name == "endpoints")["endpoints"]
    assert [(each["endpoint"], each["stance"], each["in_flight"]) for each in endpoints] == [(E1, "fresh", 1)]
    assert endpoints[0]["engine"]["dialect"] == "vllm"
    flow_rows = [row["tenant"] for name, content in found if name == "flows" for row in content["flows"]]
    assert sorted(flow_rows) == ["a", "t0", "t1", "t2"]
    requests = [
        (content["observed"], row) for name, content in found if name == "requests" for row in content["requests"]
    ]
    assert [(observed, row["id"], row["state"]) for observed, row in requests] == [
        (False, "r0", "released"),
        (False, "r1", "queued"),
        (False, "r2", "queued"),
        (True, "o0", "released"),
    ]
    assert requests[0][1]["priority"] == 0
    (revision,) = found[-1][1]["revisions"]
    assert (revision["revision"], revision["kind"], revision["who"]) == (7, "CHANGE", "ann")
    assert revision["changes"] == [{"path": ["on_fault"], "after": "reject"}]
    assert revision["change_count"] == 1


async def test_portions_of_requests_and_their_limit() -> None:
    case = PoolCase(a_config(slots=1), "m")
    for i in range(1201):
        case.arrive(f"r{i}")
    reads = Reads(FakeControl([case]), FakeRevisions(a_config()))  # type: ignore[arg-type]
    sizes = [len(content["requests"]) for name, content in await dumped(reads) if name == "requests"]
    assert sizes == [500, 500, 201]
    sizes = [len(content["requests"]) for name, content in await dumped(reads, 501) if name == "requests"]
    assert sizes == [500, 1]
    with refused("INVALID_ARGUMENT", "request_limit: "):
        await dumped(reads, -1)


async def test_what_ends_while_it_is_dumped_is_left_out() -> None:
    case = PoolCase(a_config(slots=1), "m")
    for i in range(600):
        case.arrive(f"r{i}")
    reads = Reads(FakeControl([case]), FakeRevisions(a_config()))  # type: ignore[arg-type]
    rows: list[str] = []
    with called_by():
        async for portion in reads.DumpState(pb.DumpStateRequest(), None):
            if portion.section == "requests":
                rows += [row["id"] for row in json_format.MessageToDict(portion.content)["requests"]]
                case.end("r599")
                case.arrive(f"late{len(rows)}")
    assert rows == [f"r{i}" for i in range(599)]


async def test_many_tenants_are_told_in_parts() -> None:
    config = a_config(tenants={f"tenant-{i}": {"weight": 2} for i in range(1050)})
    case = PoolCase(config, "m")
    found = await dumped(Reads(FakeControl([case]), FakeRevisions(config)))  # type: ignore[arg-type]
    parts = [content["tenants"] for name, content in found if name == "config" and "tenants" in content]
    assert len(parts) == 11
    assert {name for part in parts for name in part} == set(config.tenants)


def a_revision(number: int, *values: Any) -> Revision:
    changes = tuple(FieldChange(("tenants", f"t{i}"), None, each, had=False, has=True) for i, each in enumerate(values))
    return Revision(number, 1_700_000_000.0, Kind.CHANGE, "ann", "why", [], "ab" * 32, changes)


@pytest.mark.slow
async def test_revisions_are_told_with_their_first_changes_and_the_last_hundred_of_them() -> None:
    config = a_config()
    revisions = FakeRevisions(config)
    revisions.history = [a_revision(n, *([1] * 1000)) for n in range(150, 20, -1)]
    revisions.history[1] = a_revision(149, "y" * 70_000, 2)  # nothing is told behind one that is left out
    revisions.history[2] = a_revision(148, *(["x" * 2000] * 50))
    found = await dumped(Reads(FakeControl([PoolCase(config, "m")]), revisions))  # type: ignore[arg-type]
    rows = [row for name, content in found if name == "revisions" for row in content["revisions"]]
    assert [row["revision"] for row in rows] == list(range(150, 50, -1))
    assert [len(row["changes"]) for row in rows[3:]] == [50] * 97
    assert [row["change_count"] for row in rows[:4]] == [1000, 2, 50, 1000]
    assert rows[1]["changes"] == []
    # 2,000 letters, and the names around them: path and after, tenants and t10
    assert len(rows[2]["changes"]) == 31


async def test_large_revisions_are_told_in_several_messages() -> None:
    config = a_config()
    revisions = FakeRevisions(config)
    revisions.history = [a_revision(n, *(["x" * 2000] * 50)) for n in range(30, 0, -1)]
    found = await dumped(Reads(FakeControl([PoolCase(config, "m")]), revisions))  # type: ignore[arg-type]
    parts = [[row["revision"] for row in content["revisions"]] for name, content in found if name == "revisions"]
    # 31 changes of 2,000 letters are 62,000 bytes and some, and the ninth of those goes beyond 512 KiB
    assert [len(part) for part in parts] == [9, 9, 9, 3]
    assert [number for part in parts for number in part] == list(range(30, 0, -1))


async def test_an_overlay_is_told_in_parts_and_in_its_order() -> None:
    config = a_config()
    names = [f"tenant-{i}" for i in range(1201)]
    overlay = Overlay(tuple(Setting(("tenants", name, "weight"), 2, revision=3) for name in names))
    reads = Reads(FakeControl([PoolCase(config, "m")]), FakeRevisions(config, overlay))  # type: ignore[arg-type]
    parts = [content["overlay"] for name, content in await dumped(reads) if name == "config" and "overlay" in content]
    assert [len(part) for part in parts] == [500, 500, 201]
    assert [each["path"][1] for part in parts for each in part] == names


async def test_numbers_that_are_none_are_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    case = PoolCase(a_config(), "m")
    case.arrive("r1")
    leaf = case.scheduler.by_name["interactive"].queue.leaf("a")
    assert leaf is not None
    monkeypatch.setattr(leaf, "tag", float("-inf"))
    found = await dumped(Reads(FakeControl([case]), FakeRevisions(a_config())))  # type: ignore[arg-type]
    (row,) = (row for name, content in found if name == "flows" for row in content["flows"])
    assert row["tag"] == "-inf"


async def test_over_grpc() -> None:
    """Sections arrive as they were made."""
    case = PoolCase(a_config(slots=1), "m")
    for i in range(dump.ROWS_AT_ONCE + 1):
        case.arrive(f"r{i}")
    reads = Reads(FakeControl([case]), FakeRevisions(a_config()))  # type: ignore[arg-type]

    async def dump_state(request: pb.DumpStateRequest, context: Any) -> Any:
        with called_by():
            async for portion in reads.DumpState(request, context):
                yield portion

    handler = grpc.unary_stream_rpc_method_handler(
        dump_state,
        request_deserializer=pb.DumpStateRequest.FromString,
        response_serializer=pb.DumpStateResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x.Admin", {"DumpState": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_stream(
                "/x.Admin/DumpState",
                request_serializer=pb.DumpStateRequest.SerializeToString,
                response_deserializer=pb.DumpStateResponse.FromString,
            )
            sizes = [
                len(each.content.fields["requests"].list_value.values)
                async for each in call(pb.DumpStateRequest())
                if each.section == "requests"
            ]
        assert sizes == [500, 1]
    finally:
        await server.stop(None)
