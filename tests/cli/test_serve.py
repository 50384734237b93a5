"""`fairlane serve` as a process: exit codes, signals, and what stands on standard error."""

from __future__ import annotations

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from extproc.cli.main import main
from extproc.cli.ports import free_ports
from extproc.edge.wire import EXT_PROC_SERVICE
from extproc.pb.wire.v1 import ext_proc_pb2

pytestmark = pytest.mark.slow

SECRETS = ("sk-live-5f2e", "tell me about my illness")


class Served:
    def __init__(self, folder: Path) -> None:
        self.ports = dict(zip(("ext_proc", "admin", "http"), free_ports(3), strict=True))
        self.file = folder / "fairlane.yaml"
        self.write("shutdown: {grace: 30s}\n")
        self.process: subprocess.Popen[str] | None = None

    def write(self, more: str, engine: str = "127.0.0.1:1") -> None:
        """Nothing listens at that engine."""
        listen = ", ".join(f"{key}: '127.0.0.1:{port}'" for key, port in self.ports.items())
        pools = f"[{{name: a, models: [m], endpoints: ['{engine}']}}]"
        self.file.write_text(f"listen: {{{listen}}}\npools: {pools}\n{more}")

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "extproc.cli.main", "serve", "--config", str(self.file), *args]

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*args), capture_output=True, text=True, timeout=30)

    def start(self, *args: str) -> None:
        """Until it serves."""
        self.process = subprocess.Popen(self.command(*args), stderr=subprocess.PIPE, text=True)
        assert self.event("serving")

    def event(self, name: str) -> dict[str, Any]:
        """The next line of the log that tells of it."""
        assert self.process is not None
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if line.startswith("{") and (entry := json.loads(line))["event"] == name:
                return dict(entry)
        raise AssertionError(f"it ended without {name}")

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=20)
        return self.process.returncode, rest


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.communicate()


@pytest.mark.usefixtures("hangups")
def test_a_bad_configuration(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.cli.foreground.set_up", lambda *_, **__: None)
    served.write("on_fault: panic\n")
    done = CliRunner().invoke(main, ["serve", "--config", str(served.file)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"{served.file}: on_fault: Input should be 'pass' or 'reject'\n"


@pytest.mark.slow
def test_a_port_that_is_taken(served: Served) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", served.ports["http"]))
        taken.listen()
        done = served.run()
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.strip().splitlines()[-1]
    where = f"127.0.0.1:{served.ports['http']} (listen.http)"
    assert last.startswith(f"fairlane cannot start: {where} cannot be bound: ")
    assert "Traceback" not in done.stderr
    assert "never retrieved" not in done.stderr


@pytest.mark.slow
def test_sigterm_stops_it_and_no_secret_was_logged(served: Served) -> None:
    served.start("--log-level", "debug")
    message = ext_proc_pb2.ProcessingRequest()
    for name, value in ((":method", b"POST"), (":path", b"/v1/completions")):
        message.request_headers.headers.headers.add(key=name, raw_value=value)
    message.request_headers.headers.headers.add(key="authorization", raw_value=f"Bearer {SECRETS[0]}".encode())
    message.metadata_context.filter_metadata["fairlane.request"].update({"model": "m", "prompt": SECRETS[1]})
    with grpc.insecure_channel(f"127.0.0.1:{served.ports['ext_proc']}") as channel:
        call = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")(iter([message.SerializeToString() + b"\xff"]))
        assert len(list(call)) == 1  # it passed, after a fault that is in the log
        fault = json.dumps(served.event("stream_malformed"))
        code, rest = served.stop()
    assert code == 0
    assert [json.loads(line)["event"] for line in rest.splitlines() if line.startswith("{")][-1] == "stopped"
    assert "Traceback" not in rest
    for secret in SECRETS:
        assert secret not in fault + rest


class Engine(http.server.BaseHTTPRequestHandler):
    """A metrics page that has room."""

    def do_GET(self) -> None:
        page = b"vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"
        self.send_response(200)
        self.send_header("content-length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def engine() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Engine) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_answers_under_way(served: Served, engine: str) -> None:
    served.write("shutdown: {grace: 1h}\n", engine)
    served.start()
    message = ext_proc_pb2.ProcessingRequest()
    for name, value in ((":method", b"POST"), (":path", b"/v1/completions")):
        message.request_headers.headers.headers.add(key=name, raw_value=value)
    message.metadata_context.filter_metadata["fairlane.request"].update({"model": "m"})
    end = threading.Event()

    def messages() -> Iterator[bytes]:
        yield message.SerializeToString()
        end.wait(20)

    with grpc.insecure_channel(f"127.0.0.1:{served.ports['ext_proc']}") as channel:
        call = channel.stream_stream(f"/{EXT_PROC_SERVICE}/Process")(messages())
        next(call)
        assert served.process is not None
        served.process.send_signal(signal.SIGINT)
        draining = served.event("draining")
        assert (draining["held"], draining["in_flight"]) == (0, 1)
        assert not call.done()
        code, rest = served.stop(signal.SIGTERM)
        assert call.code() is not grpc.StatusCode.OK
        end.set()
    assert code == 0
    assert "Traceback" not in rest


@pytest.fixture
def hangups() -> Iterator[None]:
    """Children begin with signals that end them, whatever this process was told; and what a command in this process
    sets is taken back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signal_is_ignored(pid: int, number: int) -> bool:
    (mask,) = (line.split()[1] for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "SigIgn" in line)
    return bool(int(mask, 16) >> (number - 1) & 1)


@pytest.mark.usefixtures("hangups")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_hangups_while_it_starts_do_not_end_it(served: Served) -> None:
    process = served.process = subprocess.Popen(served.command(), stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 20
    while not signal_is_ignored(process.pid, signal.SIGHUP):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.001)
    ready = threading.Event()

    def hang_up() -> None:
        while not ready.wait(0.001):
            process.send_signal(signal.SIGHUP)

    hanging_up = threading.Thread(target=hang_up)
    hanging_up.start()
    try:
        assert served.event("serving")
    finally:
        ready.set()
        hanging_up.join()
    code, rest = served.stop()
    assert code == 0
    assert "Traceback" not in rest


@pytest.mark.usefixtures("hangups")
def test_a_configuration_that_comes_through_a_pipe(served: Served) -> None:
    """As a shell has it: serve --config <(cat fairlane.yaml)."""
    reader, writer = os.pipe()
    os.write(writer, served.file.read_bytes())
    os.close(writer)
    served.file = Path(f"/dev/fd/{reader}")
    process = served.process = subprocess.Popen(served.command(), stderr=subprocess.PIPE, text=True, pass_fds=(reader,))
    os.close(reader)
    assert served.event("serving")
    process.send_signal(signal.SIGHUP)
    assert served.event("config_file_not_read_again")["level"] == "warning"
    code, rest = served.stop()
    assert code == 0
    assert "config_file_refused" not in rest


def test_a_pipe_in_the_place_of_the_file_and_a_stop(served: Served) -> None:
    served.start()
    served.file.unlink()
    os.mkfifo(served.file)
    assert "is no regular file by now" in served.event("config_file_refused")["error"]
    assert served.stop()[0] == 0
