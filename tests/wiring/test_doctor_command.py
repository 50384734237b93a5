"""`fairlane doctor`: exit codes, the two forms of output, and what it says when it cannot read something."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from doctor_case import ENVOY, FAIRLANE, Envoy

from extproc.cli.main import main
from extproc.cli.ports import free_ports

pytestmark = pytest.mark.slow


def doctor(*args: str | Path, config: Path = FAIRLANE) -> Result:
    return CliRunner().invoke(main, ["doctor", "--config", str(config), *map(str, args)])


def spoilt(directory: Path) -> Path:
    envoy, file = Envoy(), directory / "envoy.json"
    del envoy.ext_proc["message_timeout"]
    file.write_text(json.dumps(envoy.data))
    return file


def test_clean() -> None:
    result = doctor("--envoy", ENVOY)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"{ENVOY}: clean: 4 notes"


def test_a_finding_for_people(tmp_path: Path) -> None:
    result = doctor("--envoy", spoilt(tmp_path))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[:5] == [
        "error message_timeout",
        "  where  static_resources.listeners[0].filter_chains[0].filters[0].typed_config.http_filters[1].typed_config",
        "  what   message_timeout is 0.2s by default, and a request may be held for 3500s (the longest queue_timeout)",
        "  why    ext_proc's message_timeout runs while a request is held; when it ends the request passes "
        "unscheduled, or gets 504 where the filter fails closed.",
        "  fix    message_timeout: 3600s   # the most that Envoy takes",
    ]
    assert lines[-1].endswith("envoy.json: not clean: 1 error, 4 notes")
    assert "\x1b" not in result.stdout  # no terminal, no colours


def test_a_finding_for_machines(tmp_path: Path) -> None:
    result = doctor("--envoy", spoilt(tmp_path), "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert (report["clean"], report["envoy_version"]) == (False, None)
    first = report["findings"][0]
    assert set(first) == {"id", "severity", "where", "what", "why", "fix"}
    assert (first["id"], first["severity"]) == ("message_timeout", "error")


@pytest.mark.parametrize("args", [[], ["--envoy", "a", "--envoy-admin", "b"]])
def test_one_of_the_two(args: list[str]) -> None:
    result = doctor(*args)
    assert result.exit_code == 2
    assert "give either --envoy FILE or --envoy-admin URL" in result.stderr


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"a: [", "is neither YAML nor JSON"),
        (b"pools: []", "is no configuration of Envoy"),
        (b"\xff", "in UTF-8"),
        (b"listeners: null", "is no configuration of Envoy"),
        (b'[{"@type":"x"},null]', "expected a mapping"),
        (b'{"static_resources": 3}', "static_resources is 3; write a mapping there"),
        (b"static_resources: {listeners: null}", "static_resources.listeners is null; write a list there"),
        (b'{"static_resources": {"listeners": [{"@type":"x"},null]}}', "static_resources.listeners[0] is of the type"),
        (b'{"configs": [{"@type":"x"},null]}', "save all that /config_dump"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, reason: str) -> None:
    file = tmp_path / "e.yaml"
    file.write_bytes(content)
    result = doctor("--envoy", file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"{file}: ")
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_files_that_are_missing(tmp_path: Path) -> None:
    assert "cannot be read: No such file" in doctor("--envoy", tmp_path / "none").stderr
    result = doctor("--envoy", ENVOY, config=tmp_path / "none")
    assert result.exit_code == 2
    assert "none: cannot be read" in result.stderr


def test_an_admin_interface_that_is_away() -> None:
    (port,) = free_ports(1)
    result = doctor("--envoy-admin", f"127.0.0.1:{port}")
    assert result.exit_code == 2
    assert f"http://127.0.0.1:{port}/config_dump" in result.stderr
    assert "cannot be reached: [Errno" in result.stderr
    assert "or save its /config_dump and use --envoy FILE" in result.stderr


@pytest.mark.parametrize("url", ["ftp://a", "http://", "127.0.0.1:99999", "http://[::1", "not a host"])
def test_addresses_that_are_none(url: str) -> None:
    result = doctor("--envoy-admin", url)
    assert result.exit_code == 2
    assert "admin interface" in result.stderr


class _Pages(BaseHTTPRequestHandler):
    pages: dict[str, str]

    def do_GET(self) -> None:
        page = self.pages.get(self.path.partition("?")[0])
        self.send_response(404 if page is None else 200)
        self.end_headers()
        self.wfile.write((page or "no").encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def pages() -> Iterator[dict[str, str]]:
    """A server that has these pages, and its address as the page ''."""
    served: dict[str, str] = {}
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (_Pages,), {"pages": served}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    served[""] = f"127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_something_else_answers(pages: dict[str, str]) -> None:
    result = doctor("--envoy-admin", pages[""])
    assert result.exit_code == 2
    assert "answered 404; is this Envoy's admin interface?" in result.stderr
    pages["/config_dump"] = "<html>hello</html>"
    assert "expected a mapping" in doctor("--envoy-admin", pages[""]).stderr


def test_the_version_of_a_running_envoy(pages: dict[str, str]) -> None:
    pages["/config_dump"] = json.dumps(Envoy().data)
    pages["/server_info"] = json.dumps({"version": "0123abc/1.37.2/Clean/RELEASE/BoringSSL"})
    result = doctor("--envoy-admin", f"http://{pages['']}/", "--json")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["envoy_version"]) == (0, "1.37.2")
    assert "envoy_version" in {each["id"] for each in report["findings"]}


def test_engines_are_asked(tmp_path: Path, pages: dict[str, str]) -> None:
    port = int(pages[""].rpartition(":")[2])
    (away,) = free_ports(1)
    envoy, fairlane = Envoy(), tmp_path / "fairlane.yaml"
    for each, number in zip(envoy.endpoints("vllm"), (port, away), strict=True):
        each["endpoint"]["address"]["socket_address"]["port_value"] = number
    file = tmp_path / "envoy.json"
    file.write_text(json.dumps(envoy.data))
    fairlane.write_text(FAIRLANE.read_text().replace(":8001", f":{port}").replace(":8002", f":{away}"))
    pages["/version"] = '{"version": "0.32.0"}'
    pages["/server_info"] = '{"vllm_config": {"scheduler_config": {"policy": "fcfs"}}}'
    result = doctor("--envoy", file, "--check-engines", "--json", config=fairlane)
    found = {each["id"]: each for each in json.loads(result.stdout)["findings"]}
    assert result.exit_code == 1
    assert found["engine_policy"]["where"] == f"pools: sim: 127.0.0.1:{port}"
    assert found["engine_unreachable"]["where"] == f"pools: sim: 127.0.0.1:{away}"
    assert "engines_not_asked" not in found


def test_the_other_commands_do_not_wait_for_it() -> None:
    """Envoy's messages take more than a second to load."""
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from extproc.cli.main import main\n"
        "CliRunner().invoke(main, ['--help'])\n"
        "CliRunner().invoke(main, ['doctor', '--help'])\n"
        "print(any(name.startswith('envoy_data_plane') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"
