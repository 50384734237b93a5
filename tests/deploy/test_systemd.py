"""The unit: systemd reads it, the service runs with what it takes away, and its numbers fit the configuration's."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli.main import main
from extproc.cli.ports import free_ports
from extproc.config.load import load

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "fairlane.service"
DROP_IN = UNIT.with_name("notify-reload.conf")
_SET_MDWE = 65  # prctl: what MemoryDenyWriteExecute does, by the kernel (6.3 and later)

# Refuses memory that is written and run from now on, then turns into the command.
_WITHOUT_WX = f"""
import ctypes, os, sys
if ctypes.CDLL(None).prctl({_SET_MDWE}, 1, 0, 0, 0) != 0:
    sys.exit("this kernel cannot")
os.execv(sys.argv[1], sys.argv[1:])
"""
_MAPS_WX = "import mmap; mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)"


def program(name: str, package: str) -> str:
    """Where it is. Skips where it is not, and fails in CI."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed (Debian: apt install {package})"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def settings(path: Path = UNIT) -> list[tuple[str, str]]:
    """In their order; systemd allows a key several times."""
    lines = (line for line in path.read_text().splitlines() if line and line[0] not in "#[")
    return [(key, value) for key, _, value in (line.partition("=") for line in lines)]


def setting(key: str) -> str:
    (value,) = (value for name, value in settings() if name == key)
    return value


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The unit, with a command where one is."""
    unit = tmp_path / UNIT.name
    fairlane = Path(sys.executable).parent / "fairlane"
    unit.write_text(UNIT.read_text().replace("/opt/fairlane/bin/fairlane", str(fairlane)))
    return unit


def analyze(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [program("systemd-analyze", "systemd"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_systemd_reads_it(installed: Path) -> None:
    done = analyze("verify", installed)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    installed.write_text(installed.read_text().replace("ProtectHome=yes", "ProtectHoem=yes"))
    assert "ProtectHoem" in analyze("verify", installed).stderr


def test_it_may_do_little(installed: Path) -> None:
    """Exposure of 1.5 at most, of 10."""
    assert analyze("security", "--offline=true", "--threshold=15", installed).returncode == 0
    installed.write_text(
        re.sub(r"(?m)^(PrivateUsers|ProtectSystem|CapabilityBoundingSet)=.*", "", installed.read_text())
    )
    assert analyze("security", "--offline=true", "--threshold=15", installed).returncode != 0


def test_its_numbers_fit_the_configurations() -> None:
    config = load(ROOT / "fairlane.yaml")
    assert int(setting("TimeoutStopSec")) > config.shutdown.grace + 10
    assert int(setting("LimitNOFILE")) >= 65536
    assert setting("RestartPreventExitStatus") == "2"
    state = re.search(r"# state: (\S+)", (ROOT / "fairlane.yaml").read_text())
    assert state is not None
    assert str(Path(state[1]).parent) == f"/var/lib/{setting('StateDirectory')}" == setting("WorkingDirectory")


def test_its_commands_are_ours() -> None:
    for key in ("ExecStart", "ExecStartPre"):
        program_path, command, *args = shlex.split(setting(key))
        assert program_path == "/opt/fairlane/bin/fairlane"
        assert CliRunner().invoke(main, [command, *args, "--help"]).exit_code == 0
        assert CliRunner().invoke(main, [command, *args, "--no-such-option"]).exit_code == 2
    assert setting("ExecReload") == "/bin/kill -HUP $MAINPID"


def test_the_drop_in_takes_the_place_of_the_signal() -> None:
    assert settings(DROP_IN) == [("Type", "notify-reload"), ("ReloadSignal", "SIGHUP"), ("ExecReload", "")]


# -- the service, with what the unit takes away ---------------------------------------------------


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    ports = free_ports(3)
    listen = ", ".join(
        f"{key}: '127.0.0.1:{port}'" for key, port in zip(("ext_proc", "admin", "http"), ports, strict=True)
    )
    file = tmp_path / "f.yaml"
    file.write_text(
        f"listen: {{{listen}}}\nadmin: {{state: {tmp_path}/state.db}}\nrecording: {{file: {tmp_path}/r.jsonl.gz}}\n"
        "pools: [{name: a, models: [m], endpoints: ['127.0.0.1:1']}]\n"
    )
    return [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(file), "--log-format", "json"]


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    made: list[subprocess.Popen[str]] = []
    yield made
    for process in made:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def use(process: subprocess.Popen[str], pid: int | None = None) -> None:
    """Until it serves, then each port a little, a reload, and the stop. `pid`: of the service."""
    assert process.stderr is not None
    entry = next((e for e in map(json.loads, process.stderr) if e["event"] == "serving"), None)
    assert entry is not None
    pid = pid or next(int(p) for p in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())
    for path in ("/healthz", "/metrics", "/status"):
        with urllib.request.urlopen(f"http://{entry['http']}{path}", timeout=10) as answer:
            assert answer.status == 200
    fairlane = [sys.executable, "-m", "extproc.cli.main", "ctl", "--address", entry["admin"]]
    done = subprocess.run([*fairlane, "pools"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGTERM)
    _, rest = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in rest


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_no_memory_is_written_and_run(command: list[str], processes: list[subprocess.Popen[str]]) -> None:
    """MemoryDenyWriteExecute, with uvloop and gRPC as installed here."""
    assert setting("MemoryDenyWriteExecute") == "yes"
    without = [sys.executable, "-c", _WITHOUT_WX]
    refused = subprocess.run([*without, sys.executable, "-c", _MAPS_WX], capture_output=True, text=True, timeout=30)
    if "this kernel cannot" in refused.stderr:
        pytest.skip("the kernel is older than 6.3")
    assert "PermissionError" in refused.stderr
    process = subprocess.Popen([*without, *command], stderr=subprocess.PIPE, text=True, start_new_session=True)
    processes.append(process)
    use(process, process.pid)
    assert ctypes.CDLL(None).prctl(_SET_MDWE + 1, 0, 0, 0, 0) == 0  # here it is as it was


def system_calls(group: str) -> set[str]:
    """Those of a group of systemd's, with the groups in it."""
    lines = analyze("syscall-filter", group).stdout.splitlines()
    names = [line.strip() for line in lines[1:] if line.strip() and not line.strip().startswith("#")]
    return {each for name in names for each in (system_calls(name) if name.startswith("@") else {name})}


@pytest.mark.e2e
@pytest.mark.slow
def test_its_system_calls_pass_the_filter(
    command: list[str], tmp_path: Path, processes: list[subprocess.Popen[str]]
) -> None:
    allowed: set[str] = set()
    for key, value in settings():
        if key == "SystemCallFilter":
            groups = {each for name in value.lstrip("~").split() for each in system_calls(name)}
            allowed = allowed - groups if value.startswith("~") else allowed | groups
    assert "execve" in allowed and "mount" not in allowed
    if os.geteuid() == 0:
        allowed.add("fchown")  # SQLite's, which gives a file to the owner of another; root alone can, and it alone asks
    trace = tmp_path / "trace"
    traced = [program("strace", "strace"), "-f", "-qq", "-o", str(trace), *command]
    process = subprocess.Popen(traced, stderr=subprocess.PIPE, text=True, start_new_session=True)
    processes.append(process)
    use(process)
    text = trace.read_text(errors="replace")
    assert set(re.findall(r"^\d+ +(\w+)\(", text, re.MULTILINE)) - allowed == set()
    families = set(re.findall(r"^\d+ +socket\((AF_\w+)", text, re.MULTILINE))
    assert families - set(setting("RestrictAddressFamilies").split()) <= {
        "AF_NETLINK"
    }  # for interfaces: may be refused
