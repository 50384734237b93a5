"""Each command of `fairlane ctl`: what it asks the service, and what it tells of the answer."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import Result
from ctl_case import Service
from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2

from extproc.cli.ctl.knobs import CLASS, TENANT
from extproc.cli.ctl.main import ctl
from extproc.cli.ctl.notation import parse_path, parse_setting
from extproc.config.scheduling import Class, ClassGates, Tenant
from extproc.pb.admin.v1 import admin_pb2 as pb

WHY = ("--reason", "incident 7")
NOON = timestamp_pb2.Timestamp(seconds=1_700_000_000)  # 2023-11-14 22:13:20Z


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as started:
        yield started


def seconds(value: int) -> duration_pb2.Duration:
    return duration_pb2.Duration(seconds=value)


def struct(**values: Any) -> struct_pb2.Struct:
    made = struct_pb2.Struct()
    made.update(values)
    return made


def value(plain: Any) -> struct_pb2.Value:
    return struct(v=plain).fields["v"]


def change(path: str, **sides: Any) -> pb.FieldChange:
    return pb.FieldChange(path=path, **{side: value(plain) for side, plain in sides.items()})


def good(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.stdout


# ---- what a command asks

REQUESTS: list[tuple[tuple[str, ...], str, Any]] = [
    (("status",), "GetStatus", pb.GetStatusRequest()),
    (("pools",), "ListPools", pb.ListPoolsRequest(page_size=1000)),
    (("pool", "llama"), "GetPool", pb.GetPoolRequest(pool="llama")),
    (("endpoints", "--pool", "llama"), "ListEndpoints", pb.ListEndpointsRequest(pool="llama", page_size=1000)),
    (("flows",), "ListFlows", pb.ListFlowsRequest(top_k=20)),
    (
        ("flows", "--pool", "a", "--top", "3", "--order-by", "tag"),
        "ListFlows",
        pb.ListFlowsRequest(pool="a", top_k=3, order_by="tag"),
    ),
    (("requests",), "ListRequests", pb.ListRequestsRequest(page_size=100)),
    (
        ("requests", "--filter", "waited > 30s", "--limit", "7"),
        "ListRequests",
        pb.ListRequestsRequest(filter="waited > 30s", page_size=7),
    ),
    (("explain", "17"), "ExplainRequest", pb.ExplainRequestRequest(id="17")),
    (("explain", "--x-request-id", "u"), "ExplainRequest", pb.ExplainRequestRequest(x_request_id="u")),
    (
        ("set", "pools.llama.window.max_tpot=120ms", "classes.batch.rank=5"),
        "UpdateConfig",
        pb.UpdateConfigRequest(
            config=struct(
                pools={"llama": {"window": {"max_tpot": "120ms"}}},
                classes={"batch": {"rank": 5}},
            )
        ),
    ),
    (
        ("set", "tenants.`acme.com`.weight=2.5", "tenants.team-a=null", "tenants.b={weight: 1, classes: [batch]}"),
        "UpdateConfig",
        pb.UpdateConfigRequest(
            config=struct(
                tenants={"acme.com": {"weight": 2.5}, "team-a": None, "b": {"weight": 1, "classes": ["batch"]}}
            )
        ),
    ),
    (  # a value with =, one that looks like a date, an empty one
        ("set", "pools.a.aliases.`x=y`=b=c", "tenants.a.parent=2026-01-01", "pools.a.window.stalled_after="),
        "UpdateConfig",
        pb.UpdateConfigRequest(
            config=struct(
                pools={"a": {"aliases": {"x=y": "b=c"}, "window": {"stalled_after": None}}},
                tenants={"a": {"parent": "2026-01-01"}},
            )
        ),
    ),
    (
        ("unset", "tenants.`acme.com`", "classes.batch.rank"),
        "UpdateConfig",
        pb.UpdateConfigRequest(config=struct(), update_mask={"paths": ["tenants.`acme.com`", "classes.batch.rank"]}),
    ),
    (
        ("tenant", "team-a", "--weight", "3", "--max-queued-bytes", "2MiB", "--class", "a", "--class", "b"),
        "SetTenant",
        pb.SetTenantRequest(
            tenant=pb.Tenant(name="team-a", weight=3, max_queued_bytes=2 * 1024**2, classes=["a", "b"]),
            update_mask={"paths": ["weight", "max_queued_bytes", "classes"]},
        ),
    ),
    (
        ("tenant", "team-a", "--unset", "max-queued", "--unset", "rate"),
        "SetTenant",
        pb.SetTenantRequest(
            tenant=pb.Tenant(name="team-a"),
            update_mask={"paths": ["max_queued_requests", "rate_cost_per_second"]},
        ),
    ),
    (
        ("class", "batch", "--queue-timeout", "10m", "--when", "always", "--overflow", "reject_newest"),
        "SetClass",
        pb.SetClassRequest(
            **{"class": pb.Class(name="batch", queue_timeout=seconds(600), idle_only=False, overflow=pb.REJECT_NEWEST)},
            update_mask={"paths": ["queue_timeout", "overflow", "idle_only"]},
        ),
    ),
    (
        ("class", "batch", "--gate-max-tpot", "0s", "--gate-max-waiting", "0", "--preemptible", "true"),
        "SetClass",
        pb.SetClassRequest(
            **{
                "class": pb.Class(
                    name="batch",
                    gates=pb.Gates(max_waiting_requests=0, max_time_per_output_token=seconds(0)),
                    preemptible=True,
                )
            },
            update_mask={"paths": ["gates.max_waiting_requests", "gates.max_time_per_output_token", "preemptible"]},
        ),
    ),
    (("mode", "llama", "observe"), "SetPool", pb.SetPoolRequest(pool="llama", mode=pb.OBSERVE)),
    (
        ("mode", "llama", "enforce", "--percentage", "0", "--of", "requests"),
        "SetPool",
        pb.SetPoolRequest(pool="llama", mode=pb.ENFORCE, percentage=0, percentage_of=pb.REQUESTS),
    ),
    (("pause", "llama"), "SetPool", pb.SetPoolRequest(pool="llama", traffic=pb.PAUSED)),
    (("resume", "llama"), "SetPool", pb.SetPoolRequest(pool="llama", traffic=pb.OPEN)),
    (("drain", "llama"), "SetPool", pb.SetPoolRequest(pool="llama", traffic=pb.DRAINING)),
    (("rollback", "12"), "Rollback", pb.RollbackRequest(revision=12)),
    (("record", "start"), "StartRecording", pb.StartRecordingRequest()),
    (
        ("record", "start", "--name", "n", "--hash-tenants", "--max-size", "1MiB", "--keep", "2"),
        "StartRecording",
        pb.StartRecordingRequest(name="n", hash_tenants=True, max_file_bytes=1024**2, keep_files=2),
    ),
    (("record", "stop"), "StopRecording", pb.StopRecordingRequest()),
    (("record", "status"), "GetStatus", pb.GetStatusRequest()),
    (("config", "get"), "GetConfig", pb.GetConfigRequest(view=pb.EFFECTIVE)),
    (("config", "get", "--view", "overrides"), "GetConfig", pb.GetConfigRequest(view=pb.OVERRIDES)),
    (("config", "diff"), "GetConfig", pb.GetConfigRequest(view=pb.OVERRIDES)),
    (("config", "export"), "ExportConfig", pb.ExportConfigRequest()),
    (("history",), "ListRevisions", pb.ListRevisionsRequest(page_size=20)),
    (("diff",), "DiffRevisions", pb.DiffRevisionsRequest()),
    (("diff", "3"), "DiffRevisions", pb.DiffRevisionsRequest(from_revision=3)),
    (("diff", "3", "5"), "DiffRevisions", pb.DiffRevisionsRequest(from_revision=3, to_revision=5)),
    (
        ("audit", "--who", "alice", "--failed", "--limit", "5"),
        "ListAuditRecords",
        pb.ListAuditRecordsRequest(page_size=5, who="alice", failed_only=True),
    ),
]
CHANGES = {"UpdateConfig", "SetTenant", "SetClass", "SetPool", "Rollback", "StartRecording", "StopRecording"}


@pytest.mark.parametrize(("arguments", "method", "request_"), REQUESTS, ids=lambda each: str(each)[:40])
@pytest.mark.parametrize("form", ["table", "json"])
def test_what_it_asks(service: Service, arguments: tuple[str, ...], method: str, request_: Any, form: str) -> None:
    expected = type(request_)()
    expected.CopyFrom(request_)
    if method in CHANGES:
        expected.reason = "incident 7"
        arguments = (*arguments, *WHY)
    good(service.run("--output", form, *arguments))
    assert service.asked == [(method, expected)]


@pytest.mark.parametrize(
    ("arguments", "method", "request_"),
    [each for each in REQUESTS if each[1] in CHANGES],
    ids=lambda each: str(each)[:40],
)
def test_terms_of_a_change(service: Service, arguments: tuple[str, ...], method: str, request_: Any) -> None:
    expected = type(request_)()
    expected.CopyFrom(request_)
    expected.reason, expected.etag, expected.validate_only = "dry run", "7-ab", True
    terms = ["--etag", "7-ab", "--dry-run"]
    if method != "StopRecording":
        terms += ["--for", "10m"]
        expected.ttl.seconds = 600
    good(service.run(*arguments, *terms))
    assert service.asked == [(method, expected)]


def test_a_boost_and_its_time(service: Service) -> None:
    good(service.run("boost", "team-a", "2.5", "--for", "1h", *WHY))
    expected = pb.BoostTenantRequest(tenant="team-a", factor=2.5, reason="incident 7", ttl=seconds(3600))
    assert service.asked == [("BoostTenant", expected)]


def test_every_command_has_help(service: Service) -> None:
    import click

    names = ctl.list_commands(click.Context(ctl))
    assert {each[0][0] for each in REQUESTS} <= set(names)
    for name in names:
        assert good(service.run(name, "--help")).startswith("Usage: ")


def test_every_setting_of_a_tenant_and_a_class_has_an_option() -> None:
    """By the keys of the file and by the fields of the API."""
    gates = {f"gate_{name}" for name in ClassGates.model_fields}
    assert {knob.key for knob in CLASS} == set(Class.model_fields) - {"gates"} | gates
    # a boost is for a while, by a command of its own; classes are repeated
    assert {knob.key for knob in TENANT} == set(Tenant.model_fields) - {"boost", "classes"} | {"class"}
    fields = {f"gates.{field.name}" for field in pb.Gates.DESCRIPTOR.fields}
    fields |= {field.name for field in pb.Class.DESCRIPTOR.fields} - {"name", "gates"}
    assert {knob.field for knob in CLASS} == fields
    assert {knob.field for knob in TENANT} == {field.name for field in pb.Tenant.DESCRIPTOR.fields} - {"name"}


# ---- what a change tells


def result_of(**more: Any) -> pb.ChangeResult:
    return pb.ChangeResult(
        revision=13, etag="13-ab", changes=[change("classes.batch.queue_timeout", before="5m", after="10m")], **more
    )


def test_a_change_tells_what_it_did_and_how_it_is_taken_back(service: Service) -> None:
    service.answers["SetPool"] = result_of(
        warnings=[pb.Warning(path="classes", message="batch may pass default"), pb.Warning(message="in memory")],
        expire_time=NOON,
    )
    done = service.run("pause", "llama", "--for", "5m", *WHY)
    assert done.stdout.splitlines() == [
        "classes.batch.queue_timeout: 5m -> 10m",
        "Revision 13 is in force.",
        "It undoes itself at 2023-11-14 22:13:20Z.",
        "To take it back: fairlane ctl rollback 12",
    ]
    assert done.stderr.splitlines() == ["Warning: classes: batch may pass default", "Warning: in memory"]
    whole = json.loads(service.run("pause", "llama", "-o", "json", *WHY).stdout)
    assert whole["changes"] == [{"path": "classes.batch.queue_timeout", "before": "5m", "after": "10m"}]
    assert whole["revision"] == "13"


def test_a_dry_run_and_a_change_that_changes_nothing_say_so(service: Service) -> None:
    service.answers["SetPool"] = result_of(validate_only=True)
    assert good(service.run("pause", "llama", "--dry-run")).splitlines() == [
        "classes.batch.queue_timeout: 5m -> 10m",
        "Nothing has been changed: it would be good.",
    ]
    service.answers["SetPool"] = pb.ChangeResult(revision=12, validate_only=True)
    assert good(service.run("pause", "llama", "--dry-run")) == "It would change nothing.\n"
    service.answers["SetPool"] = pb.ChangeResult(revision=12)
    told = good(service.run("pause", "llama", *WHY))
    assert told == "No value has changed: it was so already. Revision 12 is in force.\n"
    service.answers["SetPool"] = pb.ChangeResult(revision=12, expire_time=NOON)
    told = good(service.run("pause", "llama", *WHY))
    assert told.splitlines()[1] == "What was set for a while undoes itself at 2023-11-14 22:13:20Z."


def test_off_is_a_mode_and_no_switch() -> None:
    assert parse_setting("pools.sim.mode=off") == (("pools", "sim", "mode"), "off")
    assert parse_setting("classes.batch.preemptible=true") == (("classes", "batch", "preemptible"), True)


def test_quotes_of_the_file_have_no_place_in_a_path() -> None:
    assert parse_path("tenants.*.weight") == ("tenants", "*", "weight")
    assert parse_path("""tenants.`"*"`.weight""") == ("tenants", '"*"', "weight")
    with pytest.raises(click.UsageError, match="leave the quotes out"):
        parse_path("""tenants."*".weight""")


def test_how_changes_are_written(service: Service) -> None:
    service.answers["DiffRevisions"] = pb.DiffRevisionsResponse(
        from_revision=3,
        to_revision=4,
        changes=[
            change("tenants.`acme.com`", after={"weight": 3}),
            change("tenants.old", before={"weight": 1.5, "classes": ["batch"]}),
            change("pools.a.window.stalled_after", before="30s", after=None),
        ],
    )
    assert good(service.run("diff")).splitlines() == [
        "PATH                          BEFORE                           AFTER",
        "tenants.`acme.com`            -                                {weight: 3}",
        "tenants.old                   {classes: [batch], weight: 1.5}  -",
        "pools.a.window.stalled_after  30s                              null",
    ]
    service.answers["DiffRevisions"] = pb.DiffRevisionsResponse(from_revision=3, to_revision=4)
    assert service.run("diff").stderr == "Revisions 3 and 4 are the same.\n"


# ---- lists in pages


def test_pages_are_read_until_there_is_enough(service: Service) -> None:
    def pages(request: pb.ListRequestsRequest) -> pb.ListRequestsResponse:
        first = int(request.page_token or 0)
        count = min(request.page_size, 4)  # a service may give less than it was asked for
        found = [pb.Request(id=str(n)) for n in range(first, min(first + count, 10))]
        following = first + len(found)
        return pb.ListRequestsResponse(requests=found, next_page_token=str(following) if following < 10 else "")

    def ids(*arguments: str) -> list[str]:
        shown = json.loads(good(service.run("requests", "-o", "json", *arguments)))
        return [each["id"] for each in shown["requests"]]

    service.answers["ListRequests"] = pages
    assert ids("--limit", "6") == list("012345")
    assert [request.page_size for _, request in service.asked] == [6, 2]
    assert ids("--all") == list("0123456789")
    assert ids("--limit", "10") == list("0123456789")
    assert "and there are more: --limit, --all" in service.run("requests", "--limit", "6").stderr
    assert service.run("requests", "--limit", "10").stderr == ""


# ---- reads


def test_status_warns_of_what_is_wrong(service: Service) -> None:
    service.answers["GetStatus"] = pb.Status(
        version="1.0",
        serving=True,
        revision=7,
        file=pb.FileStatus(path="/etc/f.yaml", good=False, error="pools: is missing"),
        state=pb.StateStatus(path="/var/s.db", read_only=True, error="it is torn"),
        expiries=[pb.PendingExpiry(revision=6, expire_time=NOON, paths=["a.b", "c"], error="does not fit")],
        caller="alice",
        caller_role=pb.OPERATOR,
    )
    done = service.run("status")
    lines = good(done).splitlines()
    assert "revision   7" in lines
    assert "you are    alice (operator)" in lines
    assert lines[-1].split() == ["2023-11-14", "22:13:20Z", "6", "a.b,", "c", "does", "not", "fit"]
    assert done.stderr.splitlines() == [
        "Warning: the file cannot be used as it is now, and the one before it goes on: pools: is missing",
        "Warning: nothing can be changed: it is torn",
    ]


def test_an_explanation_begins_with_its_sentence(service: Service) -> None:
    service.answers["ExplainRequest"] = pb.Explanation(
        request=pb.Request(id="17", tenant="a", state=pb.QUEUED, waited=seconds(12)),
        hold="tenant_cap",
        name="a",
        value=4,
        limit=4,
        sentence="It waits for a slot of its tenant.",
        next="One of the tenant's requests must end.",
        flow_position=2,
        flow_count=9,
    )
    lines = good(service.run("explain", "17")).splitlines()
    assert lines[:2] == ["It waits for a slot of its tenant.", "One of the tenant's requests must end."]
    assert "held by         tenant_cap (a)" in lines
    assert "value           4 of 4" in lines
    assert "flows before    2 of 9" in lines
    assert "priority        -" in lines


def test_a_pool_with_its_classes_and_endpoints(service: Service) -> None:
    service.answers["GetPool"] = pb.Pool(
        name="llama",
        mode=pb.ENFORCE,
        percentage=100,
        traffic=pb.PAUSED,
        classes=[pb.ClassStats(name="batch", rank=2, queued_count=5, oldest_wait=seconds(90))],
        endpoints=[pb.Endpoint(address="10.0.0.1:80", stance=pb.FRESH, running_count=0, kv_usage_ratio=0.25)],
    )
    lines = [line.split() for line in good(service.run("pool", "llama")).splitlines()]
    assert ["traffic", "paused"] in lines
    assert ["batch", "2", "5", "0", "0", "1m30s", "-", "-", "-", "no"] in lines
    assert lines[-1][:10] == ["10.0.0.1:80", "fresh", "0", "0", "0", "0", "0", "0", "-", "0.25"]
    assert not {"leaked", "nothing", "observed:"} & {line[0] for line in lines if line}


def test_a_pool_says_what_holds_each_class(service: Service) -> None:
    """What the runbooks of docs/operations.md look for: the hold and its sentence, gates, room, leaks, a standstill."""
    service.answers["GetPool"] = pb.Pool(
        name="llama",
        mode=pb.ENFORCE,
        percentage=100,
        traffic=pb.OPEN,
        since_release=seconds(31),
        leaked_slots=2,
        classes=[
            pb.ClassStats(
                name="chat",
                queued_count=3,
                oldest_wait=seconds(40),
                wait_objective=seconds(5),
                hold="window",
                sentence="no endpoint has room",
                next="a request inside ends",
            ),
            pb.ClassStats(
                name="batch",
                rank=1,
                queued_count=1,
                oldest_wait=seconds(7),
                hold="gate",
                sentence="the gate max_tpot is closed",
                gates=[pb.Gate(name="max_tpot", closed_count=2), pb.Gate(name="max_waiting")],
            ),
            pb.ClassStats(name="idle", rank=2),
        ],
        endpoints=[
            pb.Endpoint(
                address="10.0.0.1:80",
                pool="llama",
                stance=pb.FRESH,
                in_flight_slots=6,
                limit=8.5,
                room=1.25,
                capacity=8,
                failed_count=3,
                turned_away_count=4,
            )
        ],
    )
    assert good(service.run("pool", "llama")).splitlines() == [
        "pool                  llama",
        "mode                  enforce",
        "traffic               open",
        "models                -",
        "queued                0 (0B)",
        "in flight             0",
        "known                 0",
        "released/s            0",
        "nothing released for  31.0s",
        "leaked slots          2 (no stream holds them: a fault of Fairlane)",
        "observed              0",
        "endpoints             -",
        "",
        "CLASS  RANK  QUEUED  IN FLIGHT  TENANTS  OLDEST WAIT  OBJECTIVE  HELD BY  GATES CLOSED   RETIRING",
        "chat      0       3          0        0        40.0s       5.0s  window   -              no",
        "batch     1       1          0        0         7.0s          -  gate     max_tpot at 2  no",
        "idle      2       0          0        0            -          -  -        -              no",
        "chat: no endpoint has room; goes when: a request inside ends",
        "batch: the gate max_tpot is closed",
        "",
        "ENDPOINT     POOL   STANCE  IN FLIGHT  LIMIT  ROOM  CAPACITY  FOREIGN  RUNNING  WAITING  KV  TPOT  PAGE AGE"
        "  FAILED  TURNED AWAY  ENGINE  PRIORITY BY  LAST ERROR",
        "10.0.0.1:80  llama  fresh           6    8.5  1.25         8        0        -        -   -     -         -"
        "       3            4  -       -            -",
    ]


@pytest.mark.parametrize(("waited", "told"), [(30, False), (31, True)])
def test_a_pool_that_releases_now_and_then_is_no_news(service: Service, waited: int, told: bool) -> None:
    service.answers["GetPool"] = pb.Pool(name="llama", since_release=seconds(waited))
    assert ("nothing released for" in good(service.run("pool", "llama"))) == told


def test_a_pool_that_observes_shows_what_would_be(service: Service) -> None:
    held = pb.ClassStats(name="chat", queued_count=4, hold="window", sentence="no endpoint has room", next="one ends")
    service.answers["GetPool"] = pb.Pool(
        name="llama",
        mode=pb.OBSERVE,
        percentage=100,
        observed_count=9,
        classes=[pb.ClassStats(name="chat")],
        observed=pb.Pool(
            name="llama",
            queued_count=4,
            classes=[held],
            endpoints=[pb.Endpoint(address="10.0.0.1:80", pool="llama", stance=pb.FRESH, limit=2)],
        ),
    )
    lines = good(service.run("pool", "llama")).splitlines()
    mark = lines.index("observed: requests pass as they come, and this is what would be if they waited their turn")
    before, after = lines[:mark], lines[mark:]
    assert "would be" not in "".join(before)
    assert "HELD BY" in "".join(before)
    assert "queued      4 (0B)" in after
    (heads,) = (line for line in after if line.startswith("CLASS"))
    assert "WOULD BE HELD BY" in heads
    assert "chat would be held: no endpoint has room; goes when: one ends" in after
    assert after[-1].startswith("10.0.0.1:80")


@pytest.mark.parametrize("terminal", [False, True])
def test_hostile_names_in_a_pool_are_escaped(service: Service, monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    evil = "a\x1b[2J\nb\u202e"
    stats = pb.ClassStats(name=evil, hold=evil, sentence=evil, next=evil, gates=[pb.Gate(name=evil, closed_count=1)])
    part = pb.Pool(name=evil, models=[evil], endpoint_source=evil, endpoint_source_error=evil, classes=[stats])
    part.endpoints.append(pb.Endpoint(address=evil, pool=evil, last_error=evil))
    told = pb.Pool()
    told.CopyFrom(part)
    told.observed.CopyFrom(part)
    service.answers["GetPool"] = told
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: terminal, raising=False)
    shown = good(service.run("pool", "llama", env={"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "400"}))
    assert all(line.isprintable() for line in shown.splitlines())
    name = r"a\x1b[2J\nb\u202e"
    assert f"{name}: {name}; goes when: {name}" in shown.splitlines()
    assert f"{name} would be held: {name}; goes when: {name}" in shown.splitlines()


@pytest.mark.parametrize("name", ["dump.jsonl", "dump.jsonl.gz", "-"])
def test_a_dump_is_a_line_for_each_portion(service: Service, tmp_path: Path, name: str) -> None:
    service.answers["DumpState"] = [
        pb.DumpStateResponse(section="status", content=struct(revision=7)),
        pb.DumpStateResponse(section="requests", content=struct(requests=[{"id": "1"}])),
    ]
    file = name if name == "-" else str(tmp_path / name)
    done = service.run("dump", file, "--requests", "5")
    shown = good(done)
    if name != "-":
        content = Path(file).read_bytes()
        shown = (gzip.decompress(content) if name.endswith(".gz") else content).decode()
        assert Path(file).stat().st_mode & 0o777 == 0o600
        assert done.stderr == f"2 portions in {file}\n"
    assert [json.loads(line) for line in shown.splitlines()] == [
        {"section": "status", "content": {"revision": 7}},
        {"section": "requests", "content": {"requests": [{"id": "1"}]}},
    ]
    assert service.asked[-1] == ("DumpState", pb.DumpStateRequest(request_limit=5))


# ---- configuration


def test_a_configuration_is_shown_as_the_file_has_it(service: Service) -> None:
    data = {"classes": {"batch": {"rank": 2, "queue_timeout": "10m", "headroom": None}}, "pools": [{"name": "é"}]}
    service.answers["GetConfig"] = pb.GetConfigResponse(config=struct(**data), revision=7)
    shown = good(service.run("config", "get"))
    assert yaml.safe_load(shown) == data
    assert "rank: 2\n" in shown  # not 2.0


@pytest.mark.parametrize("command", [("config", "get"), ("config", "get", "--view", "overrides"), ("diff",)])
def test_what_turns_the_direction_of_writing_is_escaped_where_people_read(
    service: Service, command: tuple[str, ...]
) -> None:
    evil = "a\u202eb\u2066c\u200fd"
    service.answers["GetConfig"] = pb.GetConfigResponse(
        config=struct(pools=[{"name": "a", "aliases": {evil: "é"}}]),
        overrides=[pb.Override(path=f"tenants.`{evil}`.x", value=value(evil))],
    )
    change = pb.FieldChange(path=f"tenants.`{evil}`.x", before=value(evil), after=value(1))
    service.answers["DiffRevisions"] = pb.DiffRevisionsResponse(changes=[change])
    shown = good(service.run(*command))
    assert all(line.isprintable() for line in shown.splitlines())
    assert r"a\u202e" in shown.lower()
    if command == ("config", "get"):
        assert yaml.safe_load(shown) == {"pools": [{"name": "a", "aliases": {evil: "é"}}]}


def test_overrides_against_the_file(service: Service) -> None:
    overrides = [
        pb.Override(path="pools.llama.window.max_tpot", value=value("120ms"), revision=5, expire_time=NOON),
        pb.Override(path="tenants.`acme.com`.weight", value=value(3), revision=6),
        pb.Override(path="tenants.old", revision=6),
        pb.Override(path="default_class", value=value("batch"), revision=7),
    ]
    file = struct(
        pools=[{"name": "llama", "window": {"max_tpot": "150ms"}}],
        tenants={"acme.com": {"weight": 1}, "old": {"weight": 2}},
    )

    def answer(request: pb.GetConfigRequest) -> pb.GetConfigResponse:
        if request.view == pb.FILE:
            return pb.GetConfigResponse(config=file)
        return pb.GetConfigResponse(overrides=overrides)

    service.answers["GetConfig"] = answer
    assert good(service.run("config", "diff")).splitlines() == [
        "PATH                         FILE         IN FORCE  REVISION  EXPIRES",
        "pools.llama.window.max_tpot  150ms        120ms            5  2023-11-14 22:13:20Z",
        "tenants.`acme.com`.weight    1            3                6  -",
        "tenants.old                  {weight: 2}  -                6  -",
        "default_class                -            batch            7  -",
    ]
    lines = good(service.run("config", "get", "--view", "overrides")).splitlines()
    assert lines[3].split("  ")[0] == "tenants.old"
    assert "(taken away)" in lines[3]


@pytest.mark.parametrize("source", ["file", "stdin"])
def test_a_part_is_merged(service: Service, tmp_path: Path, source: str) -> None:
    text = "pools: [{name: llama, window: {max_tpot: 120ms}}]\ntenants: {a: null}\n"
    file = tmp_path / "patch.yaml"
    file.write_text(text)
    where = str(file) if source == "file" else "-"
    good(service.run("config", "apply", "-f", where, *WHY, input=text if source == "stdin" else None))
    expected = pb.UpdateConfigRequest(
        config=struct(pools=[{"name": "llama", "window": {"max_tpot": "120ms"}}], tenants={"a": None}),
        reason="incident 7",
    )
    assert service.asked == [("UpdateConfig", expected)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping"),
        ("- a", "expected a mapping"),
        ("{}", "expected a mapping"),
        ("a: [", "is not YAML"),
        ("a: {1: 2}", "keys are texts"),
        ("a: .inf", "a number is needed"),
        ("a: " + "[" * 500, "nested too deeply"),
        ("a: " + "[" * 70 + "]" * 70, "nested too deeply"),
        (
            "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]),
            "too large",
        ),
        ("a: !!python/object:os.system x", "is not YAML"),
    ],
)
@pytest.mark.slow
def test_what_is_no_part_of_a_file(service: Service, text: str, message: str) -> None:
    for command in (("apply", *WHY), ("validate", "--patch")):
        done = service.run("config", *command, "-f", "-", input=text)
        assert done.exit_code == 2
        assert message in " ".join(done.stderr.split())
    assert service.asked == []


def test_files_that_cannot_be_read(service: Service, tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"a: \xe9")
    for file in (str(tmp_path / "none"), str(tmp_path), str(tmp_path / "latin")):
        assert service.run("config", "apply", "-f", file, *WHY).exit_code == 2
        assert service.run("config", "validate", "-f", file).exit_code == 2
    assert service.asked == []


def test_a_whole_file_is_validated_as_it_stands(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("pools: [ # not even YAML: that is for the service to say\n")
    service.answers["ValidateConfig"] = pb.ChangeResult(validate_only=True)
    assert good(service.run("config", "validate", "-f", str(file))) == "It would change nothing.\n"
    assert service.asked == [("ValidateConfig", pb.ValidateConfigRequest(yaml=file.read_text()))]


def test_an_export_is_what_the_service_says(service: Service, tmp_path: Path) -> None:
    text = "# revision 7\npools:\n- name: é\n"
    service.answers["ExportConfig"] = pb.ExportConfigResponse(yaml=text, etag="7-ab")
    assert good(service.run("config", "export")) == text
    good(service.run("config", "export", "--file", str(tmp_path / "out.yaml")))
    assert (tmp_path / "out.yaml").read_text(encoding="utf-8") == text
    assert json.loads(good(service.run("config", "export", "-o", "json"))) == {"yaml": text, "etag": "7-ab"}


# ---- history and audit


def test_history_is_a_line_for_each_revision(service: Service) -> None:
    service.answers["ListRevisions"] = pb.ListRevisionsResponse(
        revisions=[
            pb.Revision(revision=3, create_time=NOON, kind=pb.ROLLBACK, who="bob", reason="no", rolled_back_to=1),
            pb.Revision(
                revision=2,
                create_time=NOON,
                kind=pb.CHANGE,
                who="alice",
                reason="more\nroom",
                changes=[change("a.b", before=1, after=2), change("c", after=3)],
            ),
        ],
        next_page_token="x",
    )
    done = service.run("history", "--limit", "2")
    assert good(done).splitlines() == [
        "REVISION  TIME                  KIND           WHO    REASON      CHANGES                   EXPIRES",
        "       3  2023-11-14 22:13:20Z  rollback to 1  bob    no          -                         -",
        "       2  2023-11-14 22:13:20Z  change         alice  more\\nroom  a.b: 1 -> 2 (and 1 more)  -",
    ]
    assert "there are more" in done.stderr


def test_audit_tells_who_and_what_came_of_it(service: Service) -> None:
    service.answers["ListAuditRecords"] = pb.ListAuditRecordsResponse(
        records=[
            pb.AuditRecord(
                time=NOON, who="eve", peer="10.0.0.9", method="SetPool", outcome="PERMISSION_DENIED", count=40
            ),
            pb.AuditRecord(time=NOON, who="bob", role=pb.ADMIN, method="SetPool", outcome="ok", validate_only=True),
        ]
    )
    lines = good(service.run("audit")).splitlines()
    assert lines[1].split()[2:] == ["eve", "-", "10.0.0.9", "SetPool", "PERMISSION_DENIED", "40", "-", "-", "-", "-"]
    assert "ok (dry run)" in lines[2]


# ---- cancel


def cancelled(refused: int, evicted: int, complete: bool = True) -> pb.CancelRequestsResponse:
    return pb.CancelRequestsResponse(
        cancelled_count=refused + evicted, refused_count=refused, evicted_count=evicted, complete=complete
    )


def test_cancel_goes_on_until_all_are_done(service: Service) -> None:
    answers = [cancelled(5, 1, False), cancelled(4, 0, False), cancelled(1, 1)]
    service.answers["CancelRequests"] = lambda _: answers.pop(0)
    told = good(service.run("cancel", "--filter", "tenant = a", "--yes", *WHY))
    assert told == "Cancelled 12 requests: 10 had waited, 2 were inside an engine.\n"
    assert service.asked == [("CancelRequests", pb.CancelRequestsRequest(filter="tenant = a", reason="incident 7"))] * 3


def test_cancel_that_gets_nowhere_says_so(service: Service) -> None:
    answers = [cancelled(5, 0, False), cancelled(0, 0, False)]
    service.answers["CancelRequests"] = lambda _: answers.pop(0)
    done = service.run("cancel", "--filter", "tenant = a", "--yes", *WHY)
    assert done.exit_code == 1
    assert done.stdout.startswith("Cancelled 5 requests")
    assert "call again" in done.stderr


def test_a_dry_run_of_cancel_counts(service: Service) -> None:
    service.answers["CancelRequests"] = cancelled(3, 0)
    told = good(service.run("cancel", "--filter", "tenant = a", "--dry-run"))
    assert told == "Would cancel 3 requests, 0 of them inside an engine.\n"
    ((_, request),) = service.asked
    assert request.validate_only


@pytest.mark.parametrize(("typed", "exit_code", "calls"), [("y\n", 0, 2), ("n\n", 1, 1), ("\n", 1, 1)])
def test_cancel_asks_on_a_terminal(
    service: Service, monkeypatch: pytest.MonkeyPatch, typed: str, exit_code: int, calls: int
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    service.answers["CancelRequests"] = cancelled(3, 1)
    done = service.run("cancel", "--filter", "tenant = a", *WHY, input=typed)
    assert "Cancel 4 requests, 1 of them inside an engine? [y/N]" in done.stderr
    assert done.exit_code == exit_code
    assert [request.validate_only for _, request in service.asked] == [True, False][:calls]


def test_a_reason_is_asked_for_on_a_terminal(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    assert service.run("pause", "llama", input="too hot\n").exit_code == 0
    assert service.asked[0][1].reason == "too hot"
