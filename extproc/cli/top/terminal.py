"""The terminal: how it was is how it is left, whatever ends the command.

The picture is on the alternate screen, without a cursor, and without the wrapping of long lines, so that a character
that the terminal draws wider than we think cannot push all that is below. Keys come one by one and are not echoed;
signals stay the terminal's (Ctrl-C, Ctrl-Z), since `kill` sends the same ones.

A line is written when it has changed: no flicker, and little to send.
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, Final

from rich.console import Console
from rich.text import Text

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # alternate screen, no cursor, no wrapping, empty
_LEAVE: Final = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_UNKNOWN: Final = (80, 24)
_WIDER: Final = 2000  # than any line: rich must not wrap


def can_show(environ: Mapping[str, str]) -> bool:
    """Whether both ends are terminals on which the cursor can be placed."""
    streams = (sys.stdin, sys.stdout)
    return environ.get("TERM", "dumb") != "dumb" and all(each is not None and each.isatty() for each in streams)


def knows_unicode(environ: Mapping[str, str], encoding: str | None) -> bool:
    """Whether more than ASCII can be shown. `encoding`: of the output. Python takes UTF-8 for the locale C, which says
    nothing of the terminal: LC_ALL=C means what it says. The console of Linux has UTF-8, and few of the signs."""
    if environ.get("TERM") in ("dumb", "linux") or environ.get("LC_ALL") in ("C", "POSIX"):
        return False
    return (encoding or "").lower().replace("-", "").replace("_", "") == "utf8"


class Terminal:
    """Of the standard input and output. `with terminal.shown(): ...`"""

    def __init__(self) -> None:
        self.keys = sys.stdin.fileno()
        self._out = sys.stdout.fileno()
        self._console = Console(file=io.StringIO(), force_terminal=True, width=_WIDER, highlight=False, markup=False)
        self._was: list[Any] | None = None  # attributes before; None: it is as it was
        self._lines: list[Text] = []  # on the screen

    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        try:
            found = os.get_terminal_size(self._out)
        except OSError:
            return _UNKNOWN
        return (found.columns, found.lines) if found.columns and found.lines else _UNKNOWN

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        try:
            self.enter()
            yield
        finally:
            self.leave()

    def enter(self) -> None:
        self._was = termios.tcgetattr(self.keys)
        mode = termios.tcgetattr(self.keys)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self.keys, termios.TCSANOW, mode)
        self._write(_ENTER)
        self._lines = []

    def leave(self) -> None:
        """Cannot fail: the terminal may be gone."""
        was, self._was = self._was, None
        if was is None:
            return
        with contextlib.suppress(OSError):
            self._write(_LEAVE)
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(self.keys, termios.TCSANOW, was)

    def forget(self) -> None:
        """What is on the screen: it has another size."""
        self._lines = []
        self._write("\x1b[0m\x1b[2J")

    def paint(self, lines: Sequence[Text], columns: int) -> None:
        """A line as wide as the screen leaves the cursor on its last character, which clearing the rest would take."""
        out = []
        for row, line in enumerate(lines):
            if row >= len(self._lines) or self._lines[row] != line or self._lines[row].style != line.style:
                rest = "\x1b[K" if line.cell_len < columns else ""
                out.append(f"\x1b[{row + 1};1H{self._styled(line)}\x1b[0m{rest}")
        out += [f"\x1b[{row + 1};1H\x1b[K" for row in range(len(lines), len(self._lines))]
        self._lines = [line.copy() for line in lines]
        if out:
            self._write("".join(out))

    def _styled(self, line: Text) -> str:
        with self._console.capture() as capture:
            self._console.print(line, end="", soft_wrap=True)
        return capture.get()

    def _write(self, text: str) -> None:
        data = memoryview(text.encode("utf-8", "replace"))
        while data:
            data = data[os.write(self._out, data) :]


class Signals:
    """Those that came, in order. `with Signals(wake) as signals: ...`; `wake` gets a byte for each.

    The second that ends the command does so at once: the first may wait for a terminal that takes nothing."""

    ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    _OTHERS: Final = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)

    def __init__(self, wake: socket.socket) -> None:
        self._wake = wake
        self._came: list[int] = []
        self._before: dict[int, Any] = {}
        self._ending = False

    def __enter__(self) -> Signals:
        self._fd = signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        for number in (*self.ENDS, *self._OTHERS):
            self._before[number] = signal.signal(number, self._on)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._fd)

    def taken(self) -> list[int]:
        came, self._came = self._came, []
        return came

    def stop(self) -> None:
        """Stop as Ctrl-Z does, until somebody continues it."""
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, self._on)

    def _on(self, number: int, _: FrameType | None) -> None:
        if number in self.ENDS:
            if self._ending:
                raise SystemExit(128 + number)
            self._ending = True
        self._came.append(number)
