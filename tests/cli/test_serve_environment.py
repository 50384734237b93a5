"""`fairlane serve` and what the process finds around it: variables, signals, closed files, being process 1."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from click.testing import CliRunner

from extproc.cli.main import main
from extproc.cli.ports import free_ports
from extproc.pb.admin.v1 import admin_pb2 as pb
from extproc.pb.admin.v1 import admin_pb2_grpc

pytestmark = pytest.mark.slow

POOLS = "[{name: a, models: [m], endpoints: ['127.0.0.1:1']}]"  # nothing listens there
SERVE = [sys.executable, "-m", "extproc.cli.main", "serve"]
unshare = pytest.mark.skipif(
    sys.platform != "linux"
    or shutil.which("unshare") is None
    or subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True).returncode != 0,
    reason="no process namespace can be made here",
)


class Process:
    def __init__(self, folder: Path) -> None:
        ports = zip(("EXT_PROC", "ADMIN", "HTTP"), free_ports(3), strict=True)
        self.environ = {f"FAIRLANE__LISTEN__{key}": f"127.0.0.1:{port}" for key, port in ports}
        self.environ["FAIRLANE__POOLS"] = POOLS
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, *args: str, before: tuple[str, ...] = (), **options: Any) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **self.environ}
        options = {"stderr": subprocess.PIPE, **options}
        self.process = subprocess.Popen(
            [*before, *SERVE, *args], env=environ, cwd=self.folder, text=True, start_new_session=True, **options
        )
        return self.process

    def event(self, name: str) -> dict[str, Any]:
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{") and (entry := json.loads(line))["event"] == name:
                return dict(entry)
        raise AssertionError(f"it ended without {name}")

    def admin(self) -> grpc.Channel:
        return grpc.insecure_channel(self.environ["FAIRLANE__LISTEN__ADMIN"])

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=20)
        return self.process.returncode, rest or ""


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    yield made
    if made.process is not None:
        if made.process.poll() is None:
            os.killpg(made.process.pid, signal.SIGKILL)
        made.process.wait(timeout=20)
        if made.process.stderr is not None:
            made.process.stderr.close()


# -- variables ------------------------------------------------------------------------------------


def test_no_file_is_needed(it: Process) -> None:
    """As in a container. What was taken is told by name; what others set, such as Kubernetes, is not."""
    it.environ |= {"FAIRLANE_PORT": "tcp://10.0.0.1:50051", "FAIRLANE_LISTEN__HTTP": "x", "FAIRLANE_LOG_LEVEL": "info"}
    it.start()
    ignored = it.event("environment_variable_ignored")
    assert (ignored["variable"], ignored["level"]) == ("FAIRLANE_LISTEN__HTTP", "warning")
    serving = it.event("serving")
    assert serving["http"] == it.environ["FAIRLANE__LISTEN__HTTP"]
    assert serving["environment"] == sorted(name for name in it.environ if name.startswith("FAIRLANE__"))
    assert it.process is not None
    it.process.send_signal(signal.SIGHUP)  # there is nothing to read again
    code, rest = it.end()
    assert (code, "Traceback" in rest) == (0, False)


def test_a_changed_file_keeps_the_environment_over_it(it: Process) -> None:
    """And the admin API has both as the file: export does not lose what a variable said."""
    file = it.folder / "own.yaml"
    file.write_text("shutdown: {grace: 1s, held: refuse}\nrequests: {malformed: reject}\n")
    it.environ |= {
        "FAIRLANE_CONFIG": str(file),
        "FAIRLANE__SHUTDOWN__GRACE": "2s",
        "FAIRLANE__TENANTS": "{a: {weight: 2}}",
    }
    it.start()
    it.event("serving")
    with it.admin() as channel:
        stub = admin_pb2_grpc.AdminStub(channel)

        def exported() -> dict[str, Any]:
            return dict(yaml.safe_load(stub.ExportConfig(pb.ExportConfigRequest(), timeout=10).yaml))

        assert exported()["shutdown"] == {"grace": "2s", "held": "refuse"}
        assert exported()["tenants"] == {"a": {"weight": 2}}
        file.write_text("shutdown: {grace: 9s, held: finish}\n")
        assert it.process is not None
        it.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 20
        while exported()["shutdown"] != {"grace": "2s", "held": "finish"}:
            assert time.monotonic() < end
        assert "requests" not in exported()

        # A file that is to be looked at is looked at as it would be taken: with the variables over it.
        text = "shutdown: {grace: 9s, held: finish}\n"
        answer = stub.ValidateConfig(pb.ValidateConfigRequest(yaml=text), timeout=10)
        assert list(answer.changes) == []

        file.write_text("on_fault: panic\n")
        it.process.send_signal(signal.SIGHUP)
        refused = it.event("config_file_refused")
        assert refused["error"] == f"{file}: on_fault: Input should be 'pass' or 'reject'"
    assert it.end()[0] == 0


def test_a_bad_variable_is_a_bad_configuration(it: Process) -> None:
    it.environ |= {"FAIRLANE__LISTEN__HTPP": "a:1", "FAIRLANE__SHUTDOWN__GRACE": "sk-live-5f2e"}
    process = it.start(stdout=subprocess.PIPE)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(
        "FAIRLANE__LISTEN__HTPP: there is no key htpp in listen; did you mean FAIRLANE__LISTEN__HTTP?"
    )
    assert "sk-live" not in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("environ", "said", "code"),
    [
        ({"FAIRLANE__POOLS": POOLS}, "the environment with FAIRLANE__POOLS: good. Pools: a (1 endpoints).", 0),
        ({"FAIRLANE__POOLS": "[]"}, "FAIRLANE__POOLS: pools: List should have at least 1 item", 2),
        ({"FAIRLANE__ON_FAULT": "pass"}, "the environment: pools: is missing", 2),
        ({"FAIRLANE_ON_FAULT": "pass"}, "fairlane.yaml: cannot be read: ", 2),
        ({"FAIRLANE__POOLS": POOLS, "FAIRLANE_SHUTDOWN_GRACE": "1s"}, "is FAIRLANE__SHUTDOWN__GRACE meant?", 0),
        ({"FAIRLANE__POOLS": POOLS, "FAIRLANE_CONFIG": "/no/such"}, "/no/such: cannot be read: ", 2),
        ({"FAIRLANE__POOLS": POOLS, "FAIRLANE_CONFIG": os.devnull}, "/dev/null with FAIRLANE__POOLS: good.", 0),
    ],
    ids=str,
)
def test_check_config_says_what_serve_would(
    environ: dict[str, str], said: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, ["check-config"], env=environ)
    assert (result.exit_code, said in result.output) == (code, True), result.output


# -- signals and exit codes -----------------------------------------------------------------------


def handles_sigterm(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


def wait_for_handlers(pid: int) -> None:
    end = time.monotonic() + 20
    while not handles_sigterm(pid):
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_while_it_starts(it: Process, number: int) -> None:
    """Most of the start are imports."""
    process = it.start()
    wait_for_handlers(process.pid)
    code, rest = it.end(number)
    assert (code, "Traceback" in rest, '"serving"' in rest) == (0, False, False)


def test_signals_without_end(it: Process) -> None:
    """Two end it; more change nothing, also in the moment in which the process goes."""
    process = it.start()
    it.event("serving")
    over = threading.Event()

    def tell() -> None:
        while not over.is_set():
            process.send_signal(signal.SIGTERM)
            time.sleep(0.0005)

    telling = threading.Thread(target=tell)
    telling.start()
    try:
        _, rest = process.communicate(timeout=20)
    finally:
        over.set()
        telling.join()
    assert (process.returncode, "Traceback" in rest) == (0, False)


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", ">&- 2>&- <&-"])
def test_files_that_are_closed(it: Process, closed: str) -> None:
    """Of the three that every process has."""
    process = it.start("--config", os.devnull, before=("sh", "-c", f'exec "$@" {closed}', "sh"))
    with it.admin() as channel:
        stub = admin_pb2_grpc.AdminStub(channel)
        stub.GetConfig(pb.GetConfigRequest(), timeout=20, wait_for_ready=True)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == 0


def test_a_reader_of_the_log_that_goes_away(it: Process) -> None:
    """SIGPIPE ends nothing."""
    process = it.start("--log-level", "debug")
    it.event("serving")
    assert process.stderr is not None
    process.stderr.close()
    process.send_signal(signal.SIGHUP)
    with it.admin() as channel:
        admin_pb2_grpc.AdminStub(channel).GetConfig(pb.GetConfigRequest(), timeout=20)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0


def test_the_version_is_told_at_once() -> None:
    """By what it imports: figures of seconds depend on the machine."""
    script = "import sys; sys.argv[1:] = ['--version']\nfrom extproc.cli.main import main\n"
    script += "try: main()\nfinally: print(sorted({name.partition('.')[0] for name in sys.modules}))\n"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    loaded = set(yaml.safe_load(done.stdout.splitlines()[-1]))
    assert loaded.isdisjoint({"grpc", "aiohttp", "pydantic", "structlog", "yaml", "google", "orjson", "asyncio"})


# -- process 1 ------------------------------------------------------------------------------------


def inner_pid(process: subprocess.Popen[str]) -> int:
    """Of the process that unshare has made, as it is seen from here."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    end = time.monotonic() + 20
    while not (found := children.read_text().split()):
        assert time.monotonic() < end
        time.sleep(0.001)
    return int(found[0])


UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@unshare
def test_process_1_is_stopped_and_leaves_no_zombies(it: Process) -> None:
    process = it.start(before=UNSHARE)
    it.event("serving")
    pid = inner_pid(process)
    # A shell in the container that goes before what it has begun: that becomes a child of process 1.
    enter = ["nsenter", "--target", str(pid), "--pid", "--mount"]
    subprocess.run([*enter, "sh", "-c", "sleep 0.05 & exit 0"], check=True, timeout=20)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    end = time.monotonic() + 20
    while children.read_text().strip():
        assert time.monotonic() < end, "an orphan is still there"
        time.sleep(0.001)
    os.kill(pid, signal.SIGTERM)
    _, rest = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in rest) == (0, False)


@unshare
def test_process_1_is_stopped_while_it_starts(it: Process) -> None:
    """The kernel gives process 1 no signal that it has no handler for."""
    process = it.start(before=UNSHARE)
    pid = inner_pid(process)
    wait_for_handlers(pid)
    os.kill(pid, signal.SIGTERM)
    _, rest = process.communicate(timeout=20)
    assert (process.returncode, "Traceback" in rest, '"serving"' in rest) == (0, False, False)
