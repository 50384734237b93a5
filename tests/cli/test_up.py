"""`fairlane up` as a command: its options, its errors, what it prints, and how it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli.ports import Use, check_free
from extproc.cli.stack import Addresses, Stack, StackOptions, UnixSocket
from extproc.cli.up import _of_file, _welcome, up


@pytest.fixture
def addresses() -> Addresses:
    return Addresses.free()


def test_up_reports_a_port_in_use_in_one_line(addresses: Addresses) -> None:
    with socket.create_server(addresses.http):
        result = CliRunner().invoke(up, up_arguments(addresses))
    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: port {addresses.http.port} (Fairlane's metrics and health) on 127.0.0.1 is in use: "
        "stop what listens there or choose another with --http-port"
    )


def test_up_says_that_variables_have_no_effect(addresses: Addresses, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLANE__TELEMETRY__TRACES__SAMPLE", "1")
    monkeypatch.setenv("FAIRLANE__X\x1b[2J", "")
    with socket.create_server(addresses.http):
        result = CliRunner().invoke(up, up_arguments(addresses))
    first, second = result.output.splitlines()[:2]
    assert first.startswith("Warning: FAIRLANE__TELEMETRY__TRACES__SAMPLE has no effect") and "--config FILE" in first
    assert second.startswith("Warning: FAIRLANE__X\\x1b[2J has no effect")


def test_up_takes_ports_from_a_file_or_from_options_but_not_both(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("pools: [{name: a, models: ['*'], endpoints: ['127.0.0.1:8001']}]")
    result = CliRunner().invoke(up, ["--config", str(file), "--http-port", "9999"])
    assert result.exit_code == 2
    assert "--http-port cannot be given with --config" in result.output


def test_up_simulates_no_engine_on_another_machine(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("pools: [{name: a, models: ['*'], endpoints: ['10.0.0.7:8000']}]")
    result = CliRunner().invoke(up, ["--config", str(file)])
    assert result.exit_code == 1
    assert "engines on other machines (10.0.0.7:8000): give --no-sim" in result.output


def test_up_passes_on_what_is_wrong_with_the_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("pool: []")
    result = CliRunner().invoke(up, ["--config", str(file)])
    assert result.exit_code == 1
    assert "pool: unknown key; did you mean pools?" in result.output


def test_up_takes_a_socket_for_the_admin_port_and_says_how_to_reach_it(tmp_path: Path) -> None:
    """A relative one is below the stack's directory, in which the service runs."""
    file = tmp_path / "mine.yaml"
    for listen, shown in (("a b.sock", "'unix:/run/f/a b.sock'"), ("/x/admin.sock", "unix:/x/admin.sock")):
        pool = "{name: a, models: ['*'], endpoints: ['127.0.0.1:8001']}"
        file.write_text(f"listen: {{admin: 'unix:{listen}'}}\npools: [{pool}]\n")
        addresses = _of_file(file, Addresses(), simulate=True)
        stack = Stack(StackOptions(addresses=addresses, config_file=file, directory=Path("/run/f")))
        assert f"Operate     fairlane ctl --address {shown} status" in _welcome(stack)
        assert f"(the live page; in a terminal: fairlane top --address {shown})" in _welcome(stack)
        assert f"admin gRPC unix:{listen}" in _welcome(stack)
        assert addresses.admin == UnixSocket(listen)


@pytest.mark.parametrize(
    ("started", "called"),
    [
        (".venv/bin/fairlane", ".venv/bin/fairlane"),
        ("{cwd}/a b/fairlane", "'a b/fairlane'"),
        ("/usr/bin/fairlane", "fairlane"),
        ("../elsewhere/fairlane", "fairlane"),
        ("extproc/cli/main.py", "fairlane"),  # python -m
    ],
)
def test_up_prints_commands_that_the_next_terminal_finds(
    started: str, called: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started.replace("{cwd}", str(tmp_path)), "up"])
    said = _welcome(Stack(StackOptions(directory=Path("/run/f"))))
    assert f"Operate     {called} ctl status" in said
    assert f"in a terminal: {called} top)" in said


def up_arguments(at: Addresses) -> list[str]:
    arguments = ["--envoy-port", at.envoy.port, "--envoy-admin-port", at.envoy_admin.port, "--grpc-port"]
    arguments += [at.ext_proc.port, "--admin-port", at.admin.port, "--http-port", at.http.port]
    for engine in at.engines:
        arguments += ["--engine-port", engine.port]
    return [str(argument) for argument in arguments]


@pytest.mark.e2e
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_runs_what_it_prints_and_stops_with_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    at = Addresses.free()
    program = [sys.executable, "-m", "extproc.cli.main", "up", *up_arguments(at)]
    with (
        (tmp_path / "err").open("wb") as err,
        subprocess.Popen(program, stdout=subprocess.PIPE, stderr=err, text=True, cwd=tmp_path) as process,
    ):
        try:
            assert process.stdout is not None
            said = ""
            while "Ctrl-C stops everything." not in said:
                line = process.stdout.readline()
                assert line, (tmp_path / "err").read_text()
                said += line
            curl = said[said.index("curl -N") : said.index("or with the openai package")]
            python = said[said.index("from openai import") : said.index("Ctrl-C")]
            answer = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60, check=True).stdout
            assert answer.endswith("data: [DONE]\n\n")
            written = subprocess.run(
                [sys.executable, "-c", python], capture_output=True, text=True, timeout=60, check=True
            ).stdout
            assert len(written.split()) == 32  # the simulated engine writes one word for each token
            process.send_signal(number)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
    check_free([Use(a, "x", "--x") for a in (at.envoy, at.envoy_admin, at.ext_proc, at.admin, at.http, *at.engines)])
