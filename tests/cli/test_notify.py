"""sd_notify: what the service manager is told, by a socket of the test's."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from extproc.cli.ports import free_ports
from extproc.notify import Notifier

pytestmark = pytest.mark.slow


class Manager:
    """The manager's end."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(20)

    def message(self) -> dict[str, str]:
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def until(self, key: str) -> dict[str, str]:
        end = time.monotonic() + 20
        while key not in (found := self.message()):
            assert time.monotonic() < end, f"{key} was not told"
        return found


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify"))
    yield made
    made.socket.close()


@pytest.fixture
def logs() -> Iterator[list[dict[str, object]]]:
    with structlog.testing.capture_logs() as entries:
        yield entries


def test_what_is_told(tmp_path: Path, manager: Manager, logs: list[dict[str, object]]) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    assert notifier.watchdog_s is None
    notifier.ready("serving\nat  a:1")
    assert manager.message() == {"READY": "1", "STATUS": "serving at a:1"}
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.reloading()
    told = manager.message()
    assert (told["RELOADING"], told["STATUS"]) == ("1", "reading the configuration again")
    assert before <= int(told["MONOTONIC_USEC"]) <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    notifier.stopping("x" * 500, 40.5)
    told = manager.message()
    assert (told["STOPPING"], told["EXTEND_TIMEOUT_USEC"], len(told["STATUS"])) == ("1", "40500000", 203)
    assert logs == []


@pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
def test_an_abstract_socket(logs: list[dict[str, object]]) -> None:
    name = f"fairlane-test-{os.getpid()}-{time.monotonic_ns()}"
    manager = Manager("\0" + name)
    Notifier({"NOTIFY_SOCKET": "@" + name}).ready("x")
    assert manager.message()["READY"] == "1"
    manager.socket.close()
    assert logs == []


@pytest.mark.parametrize("environ", [None, {}, {"NOTIFY_SOCKET": ""}, {"WATCHDOG_USEC": "1000"}])
async def test_nobody_to_tell(environ: dict[str, str] | None, logs: list[dict[str, object]]) -> None:
    notifier = Notifier(environ)
    notifier.ready("x")
    notifier.reloading()
    notifier.stopping("x", 1.0)
    async with asyncio.timeout(5):
        await notifier.watchdog()  # returns: nothing wakes up
    assert logs == []


BAD = ["relative", "@", "/", "/no/such", "FILE", "/" + "x" * 5000, "@" + "x" * 5000, "/\udcff", "vsock:2:1"]


@pytest.mark.parametrize("name", BAD, ids=lambda each: ascii(each)[:20])
def test_a_socket_that_does_not_work_is_told_once(name: str, tmp_path: Path, logs: list[dict[str, object]]) -> None:
    (tmp_path / "file").touch()
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "file") if name == "FILE" else name})
    for _ in range(3):
        notifier.ready("x")
    (line,) = logs
    assert (line["event"], line["log_level"]) == ("notify_failed", "warning")
    assert str(line["error"]).isprintable()
    assert len(str(line["error"])) < 400


def test_a_manager_that_reads_nothing_holds_nobody_up(tmp_path: Path, manager: Manager) -> None:
    """Its queue is full after some messages; then each costs a tenth of a second, and is lost."""
    notifier = Notifier({"NOTIFY_SOCKET": str(tmp_path / "notify")})
    manager.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 0)
    began = time.monotonic()
    with structlog.testing.capture_logs() as entries:
        while not entries:
            notifier.ready("x" * 200)
    assert entries[0]["event"] == "notify_failed"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("said", "seconds", "lines"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0, 0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 30.0, 0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None, 0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "garbage"}, None, 0),
        ({"WATCHDOG_USEC": ""}, None, 0),
        *(({"WATCHDOG_USEC": text}, None, 1) for text in ("garbage", "-1", "0", "1.5", "²", "9" * 20, "9" * 5000)),
    ],
    ids=lambda each: str(each)[:60],
)
def test_whom_a_sign_of_life_is_asked_of(
    said: dict[str, str], seconds: float | None, lines: int, logs: list[dict[str, object]]
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/x", **said}).watchdog_s == seconds
    assert len(logs) == lines


# -- of the service -------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    ext_proc, admin, http = free_ports(3)
    file = tmp_path / "f.yaml"
    file.write_text(
        f"listen: {{ext_proc: '127.0.0.1:{ext_proc}', admin: '127.0.0.1:{admin}', http: '127.0.0.1:{http}'}}\n"
        "pools: [{name: a, models: [m], endpoints: ['127.0.0.1:1']}]\nshutdown: {grace: 7s}\n"
    )
    return [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file)]


def test_a_service_and_its_manager(command: list[str], tmp_path: Path, manager: Manager) -> None:
    """Ready when it serves, reloading and ready again at SIGHUP with what became of it, a sign of life all the time
    and none from a process that stands, stopping when it is told to."""
    environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
    file = Path(command[-1])
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environ)
    try:
        ready = manager.until("READY")
        at = next(line for line in file.read_text().split("'") if line.startswith("127."))
        assert ready["STATUS"] == f"serving at {at}, revision 1"
        with socket.create_connection((at.split(":")[0], int(at.split(":")[1])), timeout=5):
            pass  # it is bound

        file.write_text(file.read_text() + "on_fault: panic\n")
        process.send_signal(signal.SIGHUP)
        assert "MONOTONIC_USEC" in manager.until("RELOADING")
        assert "the configuration file is refused: " in manager.until("READY")["STATUS"]

        for _ in range(3):
            assert manager.until("WATCHDOG") == {"WATCHDOG": "1"}
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        manager.socket.settimeout(0.5)  # more than four times as long as between two
        with pytest.raises(TimeoutError):
            for _ in range(10):  # what it had sent before
                manager.message()
        manager.socket.settimeout(20)
        process.send_signal(signal.SIGCONT)
        manager.until("WATCHDOG")

        process.send_signal(signal.SIGTERM)
        stopping = manager.until("STOPPING")
        assert stopping["STATUS"] == "draining: 0 held, 0 inside"
        assert int(stopping["EXTEND_TIMEOUT_USEC"]) > 7_000_000
        _, rest = process.communicate(timeout=20)
        assert process.returncode == 0
        assert b"notify_failed" not in rest
    finally:
        process.kill()
        process.communicate()


def test_a_manager_that_is_not_there(command: list[str], tmp_path: Path) -> None:
    environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": "100000"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, env=environ, text=True)
    try:
        assert process.stderr is not None
        found = []
        for line in process.stderr:
            found.append(json.loads(line)["event"])
            if {"serving", "notify_failed"} <= set(found):
                break
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=20)
        assert process.returncode == 0
        assert found.count("notify_failed") + rest.count('"notify_failed"') == 1
    finally:
        process.kill()
        process.communicate()
