"""`fairlane up` as a user runs it: at a terminal, with what it prints, until Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from extproc.cli.ports import Use, check_free
from extproc.cli.stack import Addresses

pytestmark = pytest.mark.e2e

DEADLINE_S = 60


def _command(at: Addresses) -> list[str]:
    ports = {
        "envoy": at.envoy,
        "envoy-admin": at.envoy_admin,
        "grpc": at.ext_proc,
        "admin": at.admin,
        "http": at.http,
    }
    options = [f"--{name}-port={address.port}" for name, address in ports.items()]
    engines = [f"--engine-port={address.port}" for address in at.engines]
    return [str(Path(sys.executable).with_name("fairlane")), "up", *options, *engines]


@contextlib.contextmanager
def _up(at: Addresses, directory: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and what it has printed when it is ready."""
    environment = {**os.environ, "TMPDIR": str(directory)}  # one that is killed leaves its directory behind
    with (
        (directory / "err").open("wb") as err,
        subprocess.Popen(
            _command(at), stdout=subprocess.PIPE, stderr=err, text=True, cwd=directory, env=environment
        ) as process,
    ):
        try:
            assert process.stdout is not None
            said = ""
            while "Ctrl-C stops everything." not in said:
                line = process.stdout.readline()
                assert line, (directory / "err").read_text()
                said += line
            yield process, said
        finally:
            process.kill()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_its_snippet_works_and_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    at = Addresses.free()
    with _up(at, tmp_path) as (process, said):
        children = _children(process.pid)
        assert len(children) == 4  # two engines, the service, Envoy
        (curl,) = re.findall(r"^curl .*\\\n.*$", said, re.MULTILINE)
        answer = subprocess.run(["sh", "-c", curl], capture_output=True, timeout=DEADLINE_S, check=True).stdout
        events = [event.removeprefix(b"data: ") for event in answer.split(b"\n\n") if event]
        assert events[-1] == b"[DONE]"
        words = [choice["delta"].get("content") for e in events[:-1] for choice in orjson.loads(e)["choices"]]
        assert len("".join(words).split()) == 32  # as many tokens as the snippet asks for
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 0
        assert not [pid for pid in children if _alive(pid)]
    check_free([Use(a, "x", "--x") for a in (at.envoy, at.envoy_admin, at.ext_proc, at.admin, at.http, *at.engines)])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_it_takes_its_children_with_it(tmp_path: Path) -> None:
    with _up(Addresses.free(), tmp_path) as (process, _):
        children = _children(process.pid)
        process.kill()
        process.wait()
        deadline = time.monotonic() + DEADLINE_S
        while any(map(_alive, children)):
            assert time.monotonic() < deadline
            time.sleep(0.02)


@pytest.mark.parametrize(("part", "option"), [("envoy", "--envoy-port"), ("ext_proc", "--grpc-port")])
def test_a_port_in_use_is_named_with_its_option(part: str, option: str, tmp_path: Path) -> None:
    at = Addresses.free()
    taken = getattr(at, part)
    with socket.create_server(taken):
        run = subprocess.run(_command(at), capture_output=True, text=True, timeout=DEADLINE_S, cwd=tmp_path)
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert last.startswith(f"Error: port {taken.port} (")
    assert last.endswith(f"choose another with {option}")
    assert "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())
