"""What commands of the pages are run beside: `fairlane up`, and for operators a pool `llama` where requests wait."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from click.testing import CliRunner
from commands_table import ENDLESS, GIVEN
from shell_blocks import ROOT, Command, without_comment

from extproc.cli.main import main
from extproc.cli.ports import free_ports

DEADLINE_S = 30.0
_CLOSED = "Ctrl-C stops everything."
# Of the checkout; commands may write into their folders, so they have copies.
_FILES = ("fairlane.yaml", "constraints.txt", "envoy", "deploy", "docs")


class Done(NamedTuple):
    code: int
    output: str  # standard output and error


def until(reached: Callable[[], Any], what: str) -> Any:
    """Ask again and again until the answer is true, and return it."""
    ends = time.monotonic() + DEADLINE_S
    while not (found := reached()):
        assert time.monotonic() < ends, f"not within {DEADLINE_S:g} s: {what}"
        time.sleep(0.02)
    return found


class Place:
    """A folder that looks like the checkout, and what the addresses and paths of the pages are there.

    `instead`: text of a command -> text that is run. Nothing else of a command is changed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.instead: dict[str, str] = {"/opt/fairlane/bin/": "", "/etc/fairlane/": ""}
        self.environment = {"HOME": str(folder), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for name in _FILES:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name)
            elif source.exists():
                shutil.copy(source, folder / name)
        (folder / ".venv").symlink_to(Path(sys.executable).parents[1])

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def translated(self, text: str) -> str:
        for written, here in self.instead.items():
            text = text.replace(written, here)
        return text

    def run(self, command: Command | str) -> Done:
        """As a shell does. A `fairlane` without a shell's signs runs in this process, which is faster."""
        text = command if isinstance(command, str) else command.text
        for written, here in ({} if isinstance(command, str) else GIVEN.get(command.page, {})).items():
            text = text.replace(written, here)
        text = self.translated(text)
        line = " ".join(without_comment(text).replace("\\\n", " ").split()).removeprefix(".venv/bin/")
        for begins, awaited in ENDLESS.items():
            if line.startswith(begins):
                return self._run_for_a_while(text, awaited)
        if line.startswith("fairlane ") and not _needs_a_shell(line):
            return self._run_here(shlex.split(text.replace("\\\n", " "), comments=True)[1:])
        done = subprocess.run(
            ["bash", "-c", text],
            cwd=self.folder,
            env={**os.environ, **self.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE_S,
        )
        return Done(done.returncode, done.stdout)

    def _run_here(self, words: list[str]) -> Done:
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(main, words, env=self.environment)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Done(done.exit_code, done.output)

    def _run_for_a_while(self, text: str, awaited: str) -> Done:
        """Until it has said something like that; then Ctrl-C."""
        log = self.folder / "endless.log"
        with log.open("w") as out, started(["bash", "-c", f"exec {text}"], self, out) as process:
            until(lambda: process.poll() is not None or re.search(awaited, log.read_text()), f"{text!r} says something")
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.wait(DEADLINE_S)
        code = process.returncode
        return Done(0 if code in (130, -signal.SIGINT) else code, log.read_text())


def _needs_a_shell(line: str) -> bool:
    rest = re.sub(r"'[^']*'", "", line)
    return bool(re.search(r"[$`\n]", rest) or re.search(r"[|&;<>*?~]", re.sub(r'"[^"]*"', "", rest)))


@contextlib.contextmanager
def started(command: list[str], place: Place, out: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in the place, in a group of its own; the group ends with the block."""
    process = subprocess.Popen(
        command,
        cwd=place.folder,
        env={**os.environ, **place.environment, "TMPDIR": str(place.folder), "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)  # `fairlane up` ends what it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(DEADLINE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class Up:
    """`fairlane up`, as `make up` runs it, with the file of the checkout on free ports."""

    def __init__(self, place: Place, *options: str, **config: Any) -> None:
        self.place = place
        self._connections: list[http.client.HTTPConnection] = []
        envoy, envoy_admin, ext_proc, admin, page, *engines = free_ports(7)
        self.envoy, self.page, self.admin = (f"127.0.0.1:{port}" for port in (envoy, page, admin))
        shipped = yaml.safe_load((ROOT / "fairlane.yaml").read_text())
        listen = {"ext_proc": f"127.0.0.1:{ext_proc}", "admin": self.admin, "http": self.page}
        at = [f"127.0.0.1:{port}" for port in engines]
        pool = {**shipped["pools"][0], "endpoints": at, **config.pop("pool", {})}
        place.write("fairlane.yaml", yaml.safe_dump({**shipped, "listen": listen, "pools": [pool], **config}))
        place.instead |= {
            "127.0.0.1:10000": self.envoy,
            "127.0.0.1:9901": f"127.0.0.1:{envoy_admin}",
            "127.0.0.1:19000": f"127.0.0.1:{envoy_admin}",  # that of Envoy Gateway's Envoy
            "127.0.0.1:9090": self.page,
            "127.0.0.1:50051": f"127.0.0.1:{ext_proc}",
            "127.0.0.1:50052": self.admin,
        }
        place.environment["FAIRLANE_ADDRESS"] = self.admin  # what a command asks that names no address
        self._command = ["fairlane", "up", "--config", "fairlane.yaml", *options]
        self._command += ["--envoy-port", str(envoy), "--envoy-admin-port", str(envoy_admin)]

    @contextlib.contextmanager
    def running(self) -> Iterator[Up]:
        log = self.place.folder / "up.log"
        with log.open("w") as out, started(self._command, self.place, out) as process:
            until(lambda: process.poll() is not None or _CLOSED in log.read_text(), "the stack is there")
            assert process.poll() is None, log.read_text()
            yield self

    def post(self, tenant: str, kind: str, tokens: int, **headers: str) -> None:
        """One request, in the background, to its end or to that of the stack."""
        body = {"model": "sim-7b", "max_tokens": tokens, "messages": [{"role": "user", "content": "Hello"}]}
        sent = {"content-type": "application/json", "x-tenant": tenant, "x-class": kind, **headers}
        connection = http.client.HTTPConnection(self.envoy)
        connection.connect()
        self._connections.append(connection)

        def ask() -> None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection.request("POST", "/v1/chat/completions", json.dumps(body), sent)
                connection.getresponse().read()

        threading.Thread(target=ask, daemon=True).start()

    def leave(self) -> None:
        """All who ask go away, and so does what they asked for."""
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)
        self._connections.clear()

    def requests(self, filter_: str) -> list[dict[str, Any]]:
        """As `fairlane ctl requests` lists them."""
        done = self.place.run(f"fairlane ctl requests --limit 1000 --filter {shlex.quote(filter_)} --output json")
        assert done.code == 0, done.output
        found: list[dict[str, Any]] = json.loads(done.output).get("requests", [])
        return found


class Operators(Up):
    """A pool `llama` of two engines with one slot each, and requests that wait. `BEFORE` names its methods."""

    LONG = 4000  # tokens: for longer than the test takes

    def held(self) -> None:
        """Requests of three tenants, of which most wait."""
        self.enforced()
        for _ in range(2):
            self.post("acme.com", "default", self.LONG)
        until(lambda: len(self.requests("state = released OR state = running")) >= 2, "the engines are full")
        self.post("team-a", "interactive", self.LONG, **{"x-request-id": REQUEST_ID})
        for _ in range(18):
            self.post("team-b", "batch", self.LONG)
        until(lambda: len(self.requests('tenant = "team-b" AND state = queued AND waited > 1s')) > 9, "requests wait")

    def observed(self) -> None:
        """Requests that would wait in a pool that only looks: more than two windows that have doubled would let go."""
        for _ in range(30):
            self.post("team-a", "interactive", self.LONG)
        for _ in range(30):
            self.post("team-b", "batch", self.LONG)
        until(lambda: self.requests(_WOULD_WAIT), "some would wait")

    def enforced(self) -> None:
        """An open pool that enforces, with nothing in it."""
        self.leave()
        for line in ("mode llama enforce", "resume llama"):
            done = self.place.run(f"fairlane ctl {line} --reason test")
            assert done.code == 0, done.output
        until(lambda: not self.requests("body_bytes >= 0"), "nothing is there")

    def served(self) -> None:
        """Some answers while a recording runs."""
        for _ in range(4):
            self.post("team-a", "interactive", 2)
        until(lambda: not self.requests("body_bytes >= 0"), "they are answered")

    def changed(self) -> None:
        """The changes that the page has made by then."""
        for line in ("set classes.batch.queue_timeout=20m", "tenant team-b --max-in-flight 4 --for 10m"):
            done = self.place.run(f"fairlane ctl {line} --reason test")
            assert done.code == 0, done.output

    def refused(self) -> None:
        """A change that comes too late, and one that is taken back."""
        self.changed()
        late = self.place.run("fairlane ctl set classes.batch.queue_timeout=30m --etag 1-aaaa --reason 'a try'")
        assert late.code == 5, late.output
        back = self.place.run("fairlane ctl rollback 1 --reason back")
        assert back.code == 0, back.output

    def with_tickets(self, text: str) -> str:
        """The command with requests that there are in place of those that the page names."""
        if OBSERVED_TICKET in text:
            (*_, newest) = self.requests(_WOULD_WAIT)
            return text.replace(OBSERVED_TICKET, newest["id"])
        if TICKET in text:
            (*_, newest) = self.requests('state = queued AND observed = false AND tenant = "team-b"')
            return text.replace(TICKET, newest["id"])
        return text


# A second: until pages tell of those who came at once, what waits may still go.
_WOULD_WAIT = 'observed = true AND state = queued AND tenant = "team-b" AND waited > 1s'
TICKET, OBSERVED_TICKET = "04909f4a-llama-a6", "04909f4a-llama~-18b"
REQUEST_ID = "4c1a3a0e-1c39-4a0b-8a67-5a1b2e7f0b11"
EVENING = "classes: {batch: {queue_timeout: 30m}}\npools: {llama: {window: {max_tpot: 100ms}}}\n"


@contextlib.contextmanager
def beside_up(folder: Path) -> Iterator[Up]:
    """For the README and most pages. Its recordings are whole when the block has ended."""
    place = Place(folder)
    up = Up(place, recording={"file": str(folder / "traffic.jsonl.gz")})
    shutil.copy(folder / "fairlane.yaml", folder / "new.yaml")
    shipped = yaml.safe_load((folder / "fairlane.yaml").read_text())
    by_envoy = {**shipped, "pools": [{**shipped["pools"][0], "pick": {"by": "envoy"}}]}
    place.write("by-envoy.yaml", yaml.safe_dump(by_envoy))
    made = place.run("fairlane envoy-config --config fairlane.yaml --output envoy.yaml")
    assert made.code == 0, made.output
    rows = [f"{i * 0.05:g},{100 + i},{20 + i % 7},team-{'ab'[i % 2]}" for i in range(60)]
    place.write("traffic.csv", "\n".join(["arrival_s,prompt_tokens,output_tokens,user", *rows, ""]))
    with up.running():
        yield up


@contextlib.contextmanager
def beside_llama(folder: Path) -> Iterator[Operators]:
    """For the pages for operators: with a file of state, a folder for recordings, and three more
    services, one at a Unix socket, one that asks for certificates, and one for tokens."""
    place = Place(folder)
    batch = {**yaml.safe_load((ROOT / "fairlane.yaml").read_text())["classes"]["batch"], "queue_timeout": "3500s"}
    classes = {**yaml.safe_load((ROOT / "fairlane.yaml").read_text())["classes"], "batch": batch}
    up = Operators(
        place,
        "--max-num-seqs=1",
        pool={"name": "llama", "models": ["*"], "window": {"start": 1, "max_num_seqs": 1}},
        classes=classes,
        admin={"state": str(folder / "state.db")},
        recording={"directory": str(folder)},
    )
    place.write("evening.yaml", EVENING)
    unix = folder / "admin.sock"
    by_certificate, by_token = (f"localhost:{port}" for port in free_ports(2))
    place.instead |= {
        "/run/fairlane/admin.sock": str(unix),
        "fairlane.example:50052 --ca ca.pem --certificate": f"{by_certificate} --ca ca.pem --certificate",
        "fairlane.example:50052": by_token,
    }
    place.instead |= {" --pool sim": " --pool llama"}  # the page shows it for the pool of `make up`
    token = secrets.token_hex(32)
    place.write(".fairlane-token", token)
    tokens = {hashlib.sha256(token.encode()).hexdigest(): {"name": "alice", "role": "operator"}}
    place.write("tokens.yaml", yaml.safe_dump(tokens))
    _certificates(place)
    tls = {"certificate": "admin.pem", "key": "admin.key"}
    shown = {"tls": {**tls, "client_ca": "ca.pem"}, "certificates": [{"san": "alice@example.com", "role": "viewer"}]}
    with (
        up.running(),
        _service(place, "socket", f"unix:{unix}"),
        _service(place, "by-certificate", by_certificate, **shown),
        _service(place, "by-token", by_token, tls=tls, tokens_file="tokens.yaml"),
    ):
        up.held()
        yield up


@contextlib.contextmanager
def _service(place: Place, name: str, admin: str, **administration: Any) -> Iterator[None]:
    ext_proc, page, engine = (f"127.0.0.1:{port}" for port in free_ports(3))
    pool = {"name": "llama", "models": ["*"], "endpoints": [engine]}
    listen = {"ext_proc": ext_proc, "admin": admin, "http": page}
    file = place.write(f"{name}.yaml", yaml.safe_dump({"listen": listen, "admin": administration, "pools": [pool]}))
    log = place.folder / f"{name}.log"
    with log.open("w") as out, started(["fairlane", "serve", "--config", file.name], place, out) as process:
        until(lambda: process.poll() is not None or _ready(f"http://{page}/readyz"), f"the service {name} is there")
        assert process.poll() is None, log.read_text()
        yield


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _certificates(place: Place) -> None:
    from cryptography import x509

    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "tests/transport")
        pki = importlib.import_module("pki")
    authority = pki.Authority()
    place.write("ca.pem", authority.pem.decode())
    pairs = {"admin": authority.issue(), "alice": authority.issue(x509.RFC822Name("alice@example.com"))}
    for name, pair in pairs.items():
        place.write(f"{name}.pem", pair.certificate.decode())
        place.write(f"{name}.key", pair.key.decode())
