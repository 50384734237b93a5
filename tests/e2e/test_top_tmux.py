"""`fairlane top` in a real terminal: tmux, with a shell in it, against a real admin port in a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

_SERVER = Path(__file__).parent.parent / "cli" / "top_server.py"
_FAIRLANE = Path(sys.executable).parent / "fairlane"
_DEADLINE_S = 30.0
HOSTILE = '"evil\\u001b[2J\\u202e\\n\\ud83d\\udc68\\u200d\\ud83d\\udc69"'  # as JSON


@pytest.fixture(scope="module", autouse=True)
def _tmux_is_there() -> None:
    if shutil.which("tmux") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("tmux is missing, and CI must have it")
        pytest.skip("tmux is missing: apt install tmux")


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what}")
        time.sleep(0.05)  # between two looks


class Server:
    """`top_server.py`."""

    def __init__(self, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_SERVER), str(port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._process.pid
        ready = self._read()
        if not ready.startswith("ready "):
            self.end()
            raise AssertionError(f"the server says {ready!r}")
        self.port = int(ready.split()[1])

    def do(self, *lines: str) -> None:
        assert self._process.stdin is not None
        for line in lines:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
            assert self._read() == "done"

    def asked(self) -> int:
        """How often it has been asked for flows."""
        assert self._process.stdin is not None
        self._process.stdin.write("asked\n")
        self._process.stdin.flush()
        return int(self._read())

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(_DEADLINE_S)

    def end(self) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class Screen:
    """A tmux server with one window, in which a shell runs."""

    def __init__(self, folder: Path, address: str) -> None:
        self._socket = str(folder / "tmux")
        self._conf = folder / "tmux.conf"
        self._conf.write_text("set -g status off\nset -g default-terminal screen-256color\n")
        shell = folder / "bashrc"
        shell.write_text("PS1='shell> '\n")
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("FAIRLANE_", "TMUX"))},
            "FAIRLANE_ADDRESS": address,
            "LC_ALL": "C.UTF-8",
            "TERM": "xterm-256color",
        }
        self.tmux("new-session", "-d", "-s", "top", "-x", "80", "-y", "24", f"exec bash --rcfile {shell}")
        self._pid = int(self.tmux("display-message", "-p", "#{pid}"))

    def end(self) -> None:
        """By its id. The shell and what it runs get a hangup with their terminal."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", self._socket, "-f", str(self._conf), *arguments],
            env=self._env, capture_output=True, text=True, timeout=_DEADLINE_S, check=True,
        )  # fmt: skip
        return done.stdout

    def text(self) -> str:
        return self.tmux("capture-pane", "-p", "-t", "top")

    def keys(self, *keys: str) -> None:
        self.tmux("send-keys", "-t", "top", *keys)

    def run(self, line: str) -> None:
        self.tmux("send-keys", "-t", "top", "-l", line)
        self.keys("Enter")

    def resize(self, columns: int, lines: int) -> None:
        self.tmux("resize-window", "-t", "top", "-x", str(columns), "-y", str(lines))

    def until(self, condition: Callable[[str], object], what: str) -> str:
        found = ""

        def look() -> object:
            nonlocal found
            found = self.text()
            return condition(found)

        try:
            until(look, what)
        except AssertionError as error:
            raise AssertionError(f"{error} on the screen:\n{found}") from None
        return found

    def stty(self) -> str:
        """What `stty -a` says in this shell."""
        self.run("clear; stty -a; echo d''one")
        found = self.until(lambda text: re.search(r"^done$", text, re.M), "end of stty")
        return found[found.index("speed") : found.index("done")]

    def pid(self) -> int:
        """Of what the shell runs."""
        (shell,) = self.tmux("list-panes", "-t", "top", "-F", "#{pane_pid}").split()
        (pid,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        return int(pid)

    def top(self, *options: str) -> None:
        self.run(f"clear; {_FAIRLANE} top --interval 200ms {' '.join(options)}; echo exit''code $?")


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def screen(tmp_path: Path, server: Server) -> Iterator[Screen]:
    started = Screen(tmp_path, f"127.0.0.1:{server.port}")
    try:
        started.until(lambda text: "shell>" in text, "shell")
        yield started
    finally:
        started.end()


def flows_of(text: str) -> list[str]:
    """First words of the rows below the flows' head."""
    lines = text.splitlines()
    (head,) = (place for place, line in enumerate(lines) if line.strip().startswith("tenant"))
    return [line[2:].split()[0] for line in lines[head + 1 : -1] if line[2:].split()]


def restored(screen: Screen, before: str) -> None:
    assert screen.stty() == before
    assert screen.tmux("display-message", "-p", "-t", "top", "#{alternate_on} #{cursor_flag} #{wrap_flag}") == "0 1 1\n"


def test_a_session(server: Server, screen: Screen) -> None:
    server.do(
        'arrive "team-a" batch 30',
        'arrive "zeta" interactive 9',
        f"arrive {HOSTILE} batch 3",
        'arrive "q" batch 6 qwen',
    )
    before = screen.stty()
    screen.top()

    # the figures: 4 of 30 are inside, the rest waits
    text = screen.until(lambda text: "held 40" in text, "figures")
    assert "in flight 8" in text.splitlines()[0]
    assert "[██" in text
    assert flows_of(text)[:2] == ["team-a", "zeta"]
    assert "evil\\x1b[2J" in text, text
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) == 24

    # they follow
    server.do('arrive "zeta" interactive 30')
    screen.until(lambda text: "held 70" in text and flows_of(text)[0] == "zeta", "newer figures")

    # sorted by tenant, and the other way round
    screen.keys("<", "<")
    screen.until(lambda text: "tenant▲" in text and flows_of(text)[0].startswith("evil"), "tenants in order")
    screen.keys("r")
    screen.until(lambda text: "tenant▼" in text and flows_of(text)[0] == "zeta", "tenants in the other order")

    # paused: what the service does is not shown
    screen.keys("Space")
    still = screen.until(lambda text: "PAUSED" in text, "word that it is paused")
    server.do('arrive "aaa" batch 100')
    asked = server.asked()
    # 5 s and more, each 200 ms: long enough to take the figures for old ones
    until(lambda: server.asked() > asked + 25, "figures that are not shown")
    assert screen.text() == still
    screen.keys("p")
    screen.until(lambda text: "PAUSED" not in text and "held 170" in text, "figures that go on")

    # the row is chosen by name: it stays chosen where it goes
    screen.keys("Down")
    screen.until(lambda text: "▶ team-a" in text, "choice")
    screen.keys("r")
    screen.until(lambda text: "tenant▲" in text and "▶ team-a" in text, "the same choice at another row")
    screen.keys("Enter")
    text = screen.until(lambda text: "team-a / batch" in text and "flows before" in text, "explanation")
    assert "of class 'interactive' go first" in text
    assert "estimated wait" in text
    screen.keys("Escape")
    screen.until(lambda text: "flows before" not in text, "panel closed")

    # one pool, and the help
    screen.keys("2")
    screen.until(lambda text: flows_of(text) == ["q"], "the other pool")
    screen.keys("?")
    screen.until(lambda text: "any key closes the help" in text, "help")
    screen.keys("x", "0")

    # other sizes
    screen.resize(120, 40)
    text = screen.until(lambda text: len(text.splitlines()) == 40 and "spread" in text, "wider picture")
    screen.resize(60, 12)
    text = screen.until(lambda text: len(text.splitlines()) == 12 and "q quit" in text.splitlines()[11], "small one")
    screen.resize(30, 8)
    screen.until(lambda text: "too small: 30x8" in text, "word that it is too small")
    screen.resize(80, 24)
    screen.until(lambda text: "held 170" in text, "figures again")

    screen.keys("q")
    screen.until(lambda text: "exitcode 0" in text, "end")
    restored(screen, before)


def test_the_server_goes_and_comes_back(server: Server, screen: Screen) -> None:
    server.do('arrive "team-a" batch 10')
    screen.top()
    screen.until(lambda text: "held 6" in text, "figures")
    server.kill()
    text = screen.until(lambda text: "SERVER GONE since" in text, "word that it is gone")
    assert "next try in" in text
    assert "held 6" in text  # the last figures stay
    assert flows_of(text) == ["team-a"]
    again = Server(server.port)
    try:
        again.do('arrive "team-b" batch 14')
        screen.until(lambda text: "SERVER GONE" not in text and "held 10" in text, "figures of the next one")
    finally:
        again.end()
    screen.until(lambda text: "SERVER GONE" in text, "word that it is gone again")
    screen.keys("q")
    screen.until(lambda text: "exitcode 0" in text, "end")


def test_a_server_that_hangs(server: Server, screen: Screen) -> None:
    server.do('arrive "team-a" batch 10')
    screen.resize(160, 24)
    screen.top("--timeout", "1s")
    screen.until(lambda text: "held 6" in text, "figures")
    os.kill(server.pid, signal.SIGSTOP)
    screen.until(lambda text: "SERVER GONE" in text and "has not answered within" in text, "word that it is gone")
    os.kill(server.pid, signal.SIGCONT)
    screen.until(lambda text: "SERVER GONE" not in text and "NO NEW" not in text, "figures again")
    screen.keys("q")
    screen.until(lambda text: "exitcode 0" in text, "end")


@pytest.mark.parametrize(("number", "code"), [("INT", 0), ("TERM", 143), ("HUP", 129), ("QUIT", 131)])
def test_signals_leave_the_terminal_as_it_was(screen: Screen, number: str, code: int) -> None:
    before = screen.stty()
    screen.top()
    screen.until(lambda text: "q quit" in text, "picture")
    os.kill(screen.pid(), getattr(signal, f"SIG{number}"))
    screen.until(lambda text: f"exitcode {code}" in text, "end")
    restored(screen, before)


def test_ctrl_c_ends_it_and_ctrl_z_stops_it(screen: Screen) -> None:
    before = screen.stty()
    screen.top()
    screen.until(lambda text: "q quit" in text, "picture")
    screen.keys("C-z")
    screen.until(lambda text: "Stopped" in text, "word of the shell that it is stopped")
    restored(screen, before)
    screen.run("fg")
    screen.until(lambda text: "q quit" in text, "picture again")
    screen.keys("C-c")
    screen.until(lambda text: "q quit" not in text and "shell>" in text, "shell")
    restored(screen, before)


def test_it_ends_with_its_terminal(screen: Screen) -> None:
    screen.top()
    screen.until(lambda text: "q quit" in text, "picture")
    stat = Path(f"/proc/{screen.pid()}/stat")
    screen.end()

    def ended() -> bool:
        """Nobody may have asked for its exit code."""
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"

    until(ended, "end")


def test_without_a_service_it_says_so_and_leaves_the_screen_alone(server: Server, screen: Screen) -> None:
    server.kill()
    screen.top()
    text = screen.until(lambda text: "exitcode 3" in text, "exit code")
    assert "cannot reach 127.0.0.1" in text


def test_little_is_written_while_little_changes(server: Server, screen: Screen, tmp_path: Path) -> None:
    """Of a picture of 24 lines, those that have changed: here the clock and ages."""
    server.do('arrive "team-a" batch 10')
    sent = tmp_path / "sent"
    screen.tmux("pipe-pane", "-t", "top", f"cat > {sent}")
    screen.top()
    screen.until(lambda text: "held 6" in text, "figures")
    begun = sent.stat().st_size
    first = screen.text().splitlines()[0]
    seen = {first}

    def five_clocks(text: str) -> bool:
        seen.add(text.splitlines()[0])
        return len(seen) >= 5

    screen.until(five_clocks, "clock that goes on")
    assert sent.stat().st_size - begun < 5 * 1500  # a whole picture has more than 2500 bytes
    screen.keys("q")
    screen.until(lambda text: "exitcode 0" in text, "end")
