"""What `fairlane ctl` prints: plain columns, tables on a terminal, JSON and YAML; and that no name can reach a terminal
unescaped."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
import yaml
from ctl_case import Service
from google.protobuf import duration_pb2, timestamp_pb2
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from extproc.admin.errors import AdminError
from extproc.cli.ctl import cells
from extproc.cli.ctl.failure import escaped
from extproc.cli.ctl.output import Printer, drawn, whole_numbers
from extproc.pb.admin.v1 import admin_pb2 as pb

EVIL = "\x1b[2Jteam\n\x07\u202ea"  # clears the screen, breaks the line, rings, and writes backwards
SHOWN = r"\x1b[2Jteam\n\x07\u202ea"


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as started:
        yield started


def pool(name: str = "llama", **more: Any) -> pb.Pool:
    values = {"mode": pb.ENFORCE, "percentage": 100, "traffic": pb.OPEN, "queued_count": 12, "queued_bytes": 2560}
    return pb.Pool(name=name, **{**values, "in_flight_slots": 3, "releases_per_second": 1.25, **more})


def test_columns_are_plain_and_stable(service: Service) -> None:
    long = "a-pool-with-a-name-of-some-length-" * 5
    service.answers["ListPools"] = pb.ListPoolsResponse(
        pools=[pool(), pool(long, mode=pb.OBSERVE, percentage=12.5, percentage_of=pb.TENANTS, queued_bytes=0)]
    )
    result = service.run("pools")
    heads = "MODE                      TRAFFIC  QUEUED   BYTES  IN FLIGHT  RELEASED/S  OBSERVED  ENDPOINTS"
    first = "enforce                   open         12  2.5KiB          3        1.25         0          0"
    other = "observe 12.5% of tenants  open         12      0B          3        1.25         0          0"
    names = [name.ljust(len(long)) for name in ("POOL", "llama", long)]
    assert result.stdout.splitlines() == [
        f"{name}  {row}" for name, row in zip(names, (heads, first, other), strict=True)
    ]
    assert result.stderr == ""


def test_an_empty_table_is_its_heads(service: Service) -> None:
    assert service.run("requests").stdout.split()[:3] == ["ID", "POOL", "TENANT"]


def test_what_is_not_set_is_a_dash(service: Service) -> None:
    service.answers["ListEndpoints"] = pb.ListEndpointsResponse(
        endpoints=[pb.Endpoint(address="10.0.0.1:80", pool="a")]
    )
    heads, row = (line.split() for line in service.run("endpoints").stdout.splitlines())
    assert heads[:3] == ["ENDPOINT", "POOL", "STANCE"]
    # stance, in flight, capacity, foreign, running, waiting, kv, tpot, page age, failed, turned away, ...
    assert row == ["10.0.0.1:80", "a", "-", "0", "0", "0", "-", "-", "-", "-", "-", "0", "0", "-", "-", "-"]


def test_json_has_the_names_of_the_api_and_all_fields(service: Service) -> None:
    service.answers["ListPools"] = pb.ListPoolsResponse(pools=[pool()])
    (shown,) = json.loads(service.run("pools", "-o", "json").stdout)["pools"]
    assert shown["queued_count"] == "12"  # protobuf writes 64-bit integers as texts
    assert shown["mode"] == "ENFORCE"
    assert shown["percentage"] == 100
    assert shown["observed_count"] == "0"
    assert shown["retiring"] is False
    assert yaml.safe_load(service.run("pools", "--output", "yaml").stdout)["pools"] == [shown]
    assert json.loads(service.run("pools", env={"FAIRLANE_OUTPUT": "json"}).stdout)["pools"] == [shown]


def test_names_do_nothing_to_a_terminal(service: Service) -> None:
    flow = pb.Flow(pool="llama", tenant=EVIL, queued_count=1)
    service.answers["ListFlows"] = pb.ListFlowsResponse(flows=[flow])
    result = service.run("flows")
    assert SHOWN in result.stdout
    assert len(result.stdout.splitlines()) == 2
    for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
        shown = service.run("flows", "-o", form).stdout
        assert shown.isascii()
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert read(shown)["flows"][0]["tenant"] == EVIL


def test_errors_do_nothing_to_a_terminal(service: Service) -> None:
    service.answers["GetPool"] = AdminError(grpc.StatusCode.NOT_FOUND, f"there is no pool {EVIL}")
    result = service.run("pool", "x")
    assert result.exit_code == 1
    assert result.stderr == "Error: there is no pool \\x1b[2Jteam\n  \\x07\\u202ea\n"  # a message may have lines


@given(st.text())
@settings(derandomize=True, deadline=None)
def test_what_is_escaped_can_be_printed(text: str) -> None:
    shown = escaped(text)
    assert shown.isprintable()
    if text.isprintable():
        assert shown == text


def test_a_terminal_gets_a_drawn_table_with_the_same_cells() -> None:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=60).print(drawn(("tenant", "queued"), [("[red]a", "5"), (EVIL, "1")]))
    shown = out.getvalue()
    assert "[red]a" in shown  # markup is text
    assert SHOWN in shown
    assert "\x07" not in shown


def test_a_block_is_escaped_on_a_terminal_and_as_it_is_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    Printer("table", terminal=True).block("a: \u202eb\nc: d\n")
    assert capsys.readouterr().out == "a: \\u202eb\nc: d\n"
    Printer("table", terminal=False).block("a: \u202eb\nc: d\n")
    assert capsys.readouterr().out == "a: \u202eb\nc: d\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0ms"),
        (0.25, "250ms"),
        (0.9999, "1.0s"),
        (12.34, "12.3s"),
        (59.96, "1m00s"),
        (312, "5m12s"),
        (3599.6, "1h00m"),
        (3900, "1h05m"),
        (360000, "100h00m"),
        (-5, "-5.0s"),
    ],
)
def test_seconds(value: float, text: str) -> None:
    assert cells.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-1, "-"),
        (0, "0B"),
        (1023, "1023B"),
        (1024, "1KiB"),
        (1536, "1.5KiB"),
        (512 * 1024**2, "512MiB"),
        (2**60, "1048576TiB"),
    ],
)
def test_sizes(value: int, text: str) -> None:
    assert cells.size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.0, "3"),
        (0.123456, "0.1235"),
        (123456.7, "123457"),
        (-1.0, "-"),
        (float("nan"), "-"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    assert cells.number(value) == text


def test_times_are_utc_and_what_is_no_time_is_a_dash() -> None:
    at = pb.Revision(create_time=timestamp_pb2.Timestamp(seconds=1_700_000_000))
    assert cells.time(at, "create_time") == "2023-11-14 22:13:20Z"
    assert cells.time(at, "expire_time") == "-"
    assert cells.time(pb.Revision(create_time=timestamp_pb2.Timestamp(seconds=2**62)), "create_time") == "-"
    assert cells.duration(pb.Request(waited=duration_pb2.Duration(seconds=5)), "waited") == "5.0s"


def test_an_enum_of_a_newer_service_is_its_number() -> None:
    assert cells.word(pb.Pool(mode=pb.OFF), "mode") == "off"
    assert cells.word(pb.Pool(), "mode") == "-"
    message = pb.Pool()
    message.ParseFromString(b"\x10\x63")  # field 2 is 99
    assert cells.word(message, "mode") == "99"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("5m", "5m"),
        ("null", "'null'"),  # as it would have to be written
        (None, "null"),
        (3.0, "3"),
        (0.5, "0.5"),
        (True, "true"),
        (["a", 1.0], "[a, 1]"),
        ({"weight": 3.0}, "{weight: 3}"),
        ("a" * 500, "a" * 500),
    ],
)
def test_values_are_yaml_in_a_line(data: Any, text: str) -> None:
    assert cells.flow(data) == text
    assert yaml.safe_load(text) == data


def test_whole_numbers_are_integers_at_any_depth() -> None:
    assert repr(whole_numbers({"a": [1.0, 1.5, {"b": 2.0}], "c": True})) == "{'a': [1, 1.5, {'b': 2}], 'c': True}"


# ---- watch


def stats(second: int, **more: Any) -> pb.Stats:
    return pb.Stats(time=timestamp_pb2.Timestamp(seconds=1_700_000_000 + second), revision=7, pools=[pool(**more)])


def test_watch_in_lines(service: Service) -> None:
    service.answers["WatchStats"] = [stats(0), stats(1, queued_count=11)]
    lines = service.run("watch").stdout.splitlines()
    assert [line.split()[:5] for line in lines] == [
        ["2023-11-14", "22:13:20Z", "llama", "mode=enforce", "traffic=open"],
        ["2023-11-14", "22:13:21Z", "llama", "mode=enforce", "traffic=open"],
    ]
    assert "queued=12" in lines[0]
    assert "queued=11" in lines[1]


def test_watch_as_json_is_a_line_each_and_as_yaml_a_document(service: Service) -> None:
    service.answers["WatchStats"] = [stats(0), stats(1), stats(2)]
    shown = [json.loads(line) for line in service.run("watch", "-o", "json").stdout.splitlines()]
    assert [each["time"] for each in shown] == [f"2023-11-14T22:13:2{n}Z" for n in range(3)]
    assert list(yaml.safe_load_all(service.run("watch", "-o", "yaml").stdout)) == shown


def test_watch_ends_after_a_count_and_asks_for_pool_and_interval(service: Service) -> None:
    service.answers["WatchStats"] = [stats(n) for n in range(10)]
    assert len(service.run("watch", "llama", "--interval", "250ms", "--count", "3").stdout.splitlines()) == 3
    (request,) = (request for method, request in service.asked if method == "WatchStats")
    assert request == pb.WatchStatsRequest(pool="llama", interval=duration_pb2.Duration(nanos=250_000_000))


def test_watch_goes_on_where_an_old_connection_has_ended(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    over = AdminError(grpc.StatusCode.UNAVAILABLE, "old")
    service.answers["WatchStats"] = [stats(0), stats(1), over]
    assert service.run("watch").exit_code == 3  # it was not old
    monkeypatch.setattr("extproc.cli.ctl.watch._AGED_S", 0.0)
    done = service.run("watch", "--count", "5")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 5


# ---- as a process


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_fault(service: Service) -> None:
    flows = [pb.Flow(pool="llama", tenant=f"tenant-{n}") for n in range(5000)]
    service.answers["ListFlows"] = pb.ListFlowsResponse(flows=flows)
    command = [sys.executable, "-m", "extproc.cli.main", "ctl", "--address", service.address, "flows"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(4) == b"POOL"
            process.stdout.close()
            assert process.wait(60) == 141
            assert process.stderr.read() == b""
        finally:
            process.kill()


@pytest.mark.slow
def test_on_a_terminal_tables_are_drawn_and_a_reason_is_asked_for(service: Service) -> None:
    service.answers["ListPools"] = pb.ListPoolsResponse(pools=[pool()])
    status, shown = on_terminal(service, "pools")
    assert status == 0
    assert "─────" in shown
    assert "llama" in shown
    status, shown = on_terminal(service, "pause", "llama", typed="too hot\n")
    assert status == 0
    assert shown.startswith("Reason: ")
    assert service.asked[-1] == ("SetPool", pb.SetPoolRequest(pool="llama", traffic=pb.PAUSED, reason="too hot"))


def on_terminal(service: Service, *arguments: str, typed: str = "") -> tuple[int, str]:
    """Exit code, and what a terminal was sent."""
    ours, theirs = os.openpty()
    os.write(ours, typed.encode())  # the terminal keeps it until it is read
    command = [sys.executable, "-m", "extproc.cli.main", "ctl", "--address", service.address, *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        try:
            os.close(theirs)
            shown = b""
            with contextlib.suppress(OSError):  # EIO: nobody has it open any more
                while piece := os.read(ours, 65536):
                    shown += piece
            return process.wait(60), shown.decode().removeprefix(typed.replace("\n", "\r\n"))
        finally:
            process.kill()
            os.close(ours)


def test_it_is_fast_to_say_what_there_is() -> None:
    """Neither gRPC nor pydantic nor rich are imported for a help text."""
    script = "import sys; sys.argv[1:] = ['ctl', '--help']\n"
    script += "from extproc.cli.main import main\n"
    script += "try: main()\n"
    script += "finally: print({'grpc', 'pydantic', 'rich', 'aiohttp'} & set(sys.modules), file=sys.stderr)\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stderr == "set()\n"
    assert done.stdout.startswith("Usage: ")
