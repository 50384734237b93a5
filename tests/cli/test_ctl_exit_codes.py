"""How `fairlane ctl` fails: the exit code, the message, and a line for each thing that is wrong. Never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from ctl_case import Service, run

from extproc.admin.errors import AdminError, Violation, invalid, invalid_config
from extproc.config.load import ConfigError, Fault
from extproc.pb.admin.v1 import admin_pb2 as pb

Code = grpc.StatusCode


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as started:
        yield started


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        (Code.INVALID_ARGUMENT, 1),
        (Code.FAILED_PRECONDITION, 1),
        (Code.NOT_FOUND, 1),
        (Code.RESOURCE_EXHAUSTED, 1),
        (Code.INTERNAL, 1),
        (Code.UNKNOWN, 1),
        (Code.UNIMPLEMENTED, 1),
        (Code.UNAVAILABLE, 3),
        (Code.DEADLINE_EXCEEDED, 3),
        (Code.UNAUTHENTICATED, 4),
        (Code.PERMISSION_DENIED, 4),
        (Code.ABORTED, 5),
    ],
)
@pytest.mark.parametrize("arguments", [("pools",), ("pause", "llama", "--reason", "r"), ("watch",)])
def test_the_code_of_each_status(service: Service, code: Code, exit_code: int, arguments: tuple[str, ...]) -> None:
    error = AdminError(code, "because of this")
    for method in ("ListPools", "SetPool", "WatchStats"):
        service.answers[method] = [error] if method == "WatchStats" else error
    result = service.run(*arguments)
    assert result.exit_code == exit_code
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    if code is not Code.DEADLINE_EXCEEDED:
        assert "because of this" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_single_violation_is_told_once(service: Service) -> None:
    service.answers["SetTenant"] = invalid("tenant.weight", "must be above 0, not -1")
    result = service.run("tenant", "a", "--weight", "-1", "--reason", "r")
    assert (result.exit_code, result.stderr) == (1, "Error: tenant.weight: must be above 0, not -1\n")


def test_a_violation_whose_text_is_in_the_message_is_told_once(service: Service) -> None:
    """The service tells of the place in the configuration, and of the field of the request."""
    said = "configuration: tenants.a.weight: must be above 0"
    service.answers["SetTenant"] = AdminError(
        Code.INVALID_ARGUMENT, said, [Violation("tenant.weight", "must be above 0")]
    )
    assert service.run("tenant", "a", "--weight", "-1", "--reason", "r").stderr == f"Error: {said}\n"
    service.answers["SetTenant"] = AdminError(Code.INVALID_ARGUMENT, "bad", [Violation("tenant.weight", "bad")])
    assert service.run("tenant", "a", "--weight", "-1", "--reason", "r").stderr.splitlines() == [
        "Error: bad",
        "  tenant.weight: bad",
    ]


def test_each_violation_has_a_line(service: Service) -> None:
    faults = [Fault("classes.batch.rank", "must not be negative"), Fault("tenants.a", "unknown key")]
    lines = "\n".join(f"{fault.path}: {fault.message}" for fault in faults)
    service.answers["UpdateConfig"] = invalid_config(ConfigError(lines, faults))
    assert service.run("set", "a.b=1", "--reason", "r").stderr.splitlines() == [
        "Error: classes.batch.rank: must not be negative",
        "  tenants.a: unknown key",
    ]
    service.answers["UpdateConfig"] = AdminError(
        Code.FAILED_PRECONDITION, "it does not fit", [Violation(f.path, f.message) for f in faults]
    )
    assert service.run("set", "a.b=1", "--reason", "r").stderr.splitlines() == [
        "Error: it does not fit",
        "  classes.batch.rank: must not be negative",
        "  tenants.a: unknown key",
    ]


def test_a_call_that_is_not_known_says_what_may_be_the_case(service: Service) -> None:
    service.answers["ListPools"] = AdminError(Code.UNIMPLEMENTED, "Method not found!")
    assert "has no ListPools: it is older than this `fairlane ctl`, or" in service.run("pools").stderr


def test_a_change_without_an_answer_may_have_been_made(service: Service) -> None:
    never = AdminError(Code.UNAVAILABLE, "gone")
    service.answers = {"SetPool": never, "ListPools": never}
    assert "may have been done" in service.run("pause", "llama", "--reason", "r").stderr
    assert "may have been done" not in service.run("pause", "llama", "--dry-run").stderr
    assert "may have been done" not in service.run("pools").stderr


def test_a_service_that_does_not_answer(service: Service) -> None:
    over = threading.Event()

    def slow(_: Any) -> pb.ListPoolsResponse:
        over.wait(30)
        return pb.ListPoolsResponse()

    service.answers["ListPools"] = slow
    try:
        result = service.run("--timeout", "50ms", "pools")
    finally:
        over.set()
    assert result.exit_code == 3
    assert result.stderr == f"Error: {service.address} has not answered within 0.05s (--timeout)\n"


def test_a_stream_that_breaks_off_has_told_what_came(service: Service) -> None:
    service.answers["WatchStats"] = [pb.Stats(pools=[pb.Pool(name="llama")]), AdminError(Code.UNAVAILABLE, "stopping")]
    result = service.run("watch")
    assert result.exit_code == 3
    assert len(result.stdout.splitlines()) == 1
    assert "stopping" in result.stderr


def test_no_dump_is_left_of_a_stream_that_breaks_off(service: Service, tmp_path: Path) -> None:
    service.answers["DumpState"] = [pb.DumpStateResponse(section="status"), AdminError(Code.UNAVAILABLE, "stopping")]
    file = tmp_path / "dump.jsonl"
    file.write_text("the one before")
    assert service.run("dump", str(file)).exit_code == 3
    assert file.read_text() == "the one before"
    assert [each.name for each in tmp_path.iterdir()] == ["dump.jsonl"]


def test_a_folder_that_is_not_there(service: Service, tmp_path: Path) -> None:
    result = service.run("dump", str(tmp_path / "no" / "dump"))
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("sttaus",),
        ("pool",),
        ("set",),
        ("set", "classes.batch.rank"),
        ("set", "=5"),
        ("set", "a.b=[1"),
        ("set", "a.b=1", "a.b=2"),
        ("set", "a={b: 1}", "a.b=2"),
        ("set", "a.b=2", "a={b: 1}"),
        ("set", "a..b=1"),
        ("set", "a.b=.nan"),
        ("set", "a.b=9007199254740993"),
        ("set", "a.b={1: 2}"),
        ("set", "a.b=!!binary aGVsbG8="),
        ("unset", ".a"),
        ("tenant", "a"),
        ("tenant", "a", "--weight", "heavy"),
        ("tenant", "a", "--max-queued-bytes", "5"),
        ("tenant", "a", "--max-queued", "99999999999999999999"),
        ("tenant", "a", "--unset", "wieght"),
        ("tenant", "a", "--weight", "1", "--unset", "weight"),
        ("class", "a", "--overflow", "explode"),
        ("class", "a", "--queue-timeout", "1e9s"),
        ("class", "a", "--queue-timeout", "-5s"),
        ("class", "a", "--rank", "99999999999"),
        ("mode", "llama", "obsreve"),
        ("boost", "a", "2"),  # for how long?
        ("boost", "a", "much", "--for", "5m"),
        ("cancel", "--yes"),
        ("cancel", "--filter", " ", "--yes"),
        ("cancel", "--filter", "tenant = a"),  # no terminal to ask on
        ("rollback", "0"),
        ("rollback", "last"),
        ("explain",),
        ("explain", "a", "--x-request-id", "b"),
        ("requests", "--limit", "0"),
        ("config", "apply"),
        ("config", "get", "--view", "all"),
        ("completion", "tcsh"),
        ("record", "start", "--max-size", "much"),
        ("record", "start", "--max-size", "9007199254740992GiB"),
        ("dump", "-", "--requests", "2147483648"),
        ("pool", "\udcff"),  # what Python makes of a byte that is no UTF-8
        ("set", "a.b=\udcff"),
        ("requests", "--filter", "tenant = \udcff"),
    ],
)
def test_wrong_usage_asks_nothing(service: Service, arguments: tuple[str, ...]) -> None:
    takes_reason = arguments[0] in {"set", "unset", "tenant", "class", "mode", "boost", "cancel", "rollback"}
    result = service.run(*arguments, *(("--reason", "r") if takes_reason else ()))
    assert result.exit_code == 2, result.output
    assert "Error: " in result.stderr
    assert "Traceback" not in result.stderr
    assert service.asked == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("set", "classes.batch.rank=5"),
        ("unset", "classes.batch.rank"),
        ("tenant", "a", "--weight", "2"),
        ("class", "a", "--rank", "2"),
        ("mode", "llama", "off"),
        ("pause", "llama"),
        ("resume", "llama"),
        ("drain", "llama"),
        ("boost", "a", "2", "--for", "5m"),
        ("cancel", "--filter", "tenant = a", "--yes"),
        ("rollback", "3"),
        ("record", "start"),
        ("record", "stop"),
    ],
)
def test_every_change_needs_a_reason(service: Service, arguments: tuple[str, ...]) -> None:
    for more in ((), ("--reason", ""), ("--reason", "  ")):
        result = service.run(*arguments, *more)
        assert result.exit_code == 2
        assert "needs a --reason" in result.stderr
    assert service.asked == []


def test_a_fault_of_its_own_is_a_message_too(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.cli.ctl.pools.pool_row", lambda _: 1 / 0)
    service.answers["ListPools"] = pb.ListPoolsResponse(pools=[pb.Pool()])
    result = service.run("pools")
    assert result.exit_code == 1
    assert result.stderr == "Error: this is a fault of Fairlane's own: ZeroDivisionError: division by zero\n"


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("watch", "-o", "json"), ("dump", "-")])
def test_ctrl_c_is_quiet(service: Service, arguments: tuple[str, ...]) -> None:
    """`watch` is meant to end so; anything else has not done what it should. A shell may start the tests with SIGINT
    ignored (a job in the background), which children inherit, and Python leaves as it is: so it is set back."""
    service.answers["WatchStats"] = [pb.Stats(revision=1)]
    service.answers["DumpState"] = [pb.DumpStateResponse(section="status")]
    service.holds = True
    begin = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('extproc.cli.main', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", begin, "ctl", "--address", service.address, *arguments]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith(b"{")
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == (0 if arguments[0] == "watch" else 130)
            assert process.stderr.read() == b""
        finally:
            process.kill()


def test_nothing_from_a_terminal_that_is_not_there() -> None:
    """An unknown group, and help, need no service."""
    assert run("config").exit_code in (0, 2)  # click 8.2 and later: 2, with the help
    assert run("config", "--help").exit_code == 0
