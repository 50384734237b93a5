"""One child process of a local stack: started, watched and ended by its pid alone.

A child has a session of its own, so that Ctrl-C at the terminal reaches the supervisor only, which then stops the
children in the right order. On Linux the kernel kills it when the supervisor ends in whatever way (PR_SET_PDEATHSIG).
That is asked for by a few lines of Python that then turn into the command (same pid, so signals reach the command
itself), not by a function between fork and exec: that one could deadlock in a process with gRPC's threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from extproc.cli.probe import until

# argv: the supervisor's pid, the command. The check comes second: the supervisor may have ended in between.
_TIE = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the supervisor has ended")
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""
_TAIL_BYTES = 64 * 1024


class Child:
    """A command that can be started, ended and started again. Not tied to an event loop; not for several threads."""

    def __init__(self, name: str, argv: Sequence[str], *, log: Path, directory: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.argv = list(argv)
        self.log = log  # standard output and error; appended to at each start
        self._directory = directory
        self._env = dict(env)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_on_purpose = False

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        return self._process.pid if self._process is not None and self.running else None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As subprocess gives it: negative for a signal. None while running and before the first start."""
        return None if self._process is None else self._process.poll()

    @property
    def failed(self) -> bool:
        """Has ended, and nobody asked it to."""
        return self._process is not None and not self.running and not self._ended_on_purpose

    def start(self) -> None:
        """Start the command. Raises RuntimeError when it runs already, OSError when there is no such program."""
        if self.running:
            raise RuntimeError(f"{self.name} runs already (pid {self.pid})")
        # The kernel watches the thread that started the child, so only the main thread's children are tied.
        tied = sys.platform == "linux" and threading.current_thread() is threading.main_thread()
        tie = [sys.executable, "-I", "-S", "-c", _TIE, str(os.getpid())] if tied else []
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                [*tie, *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=self._env,
                start_new_session=True,
            )
        self._ended_on_purpose = False

    async def stop(self, timeout_s: float) -> bool:
        """SIGTERM, and SIGKILL after `timeout_s`. Does nothing when it is not running. False: it had to be killed."""
        self._signal(signal.SIGTERM)
        ended = await until(lambda: not self.running, timeout_s)
        self.kill()
        return ended

    def kill(self) -> None:
        """SIGKILL, and wait for the end. Does nothing when it is not running."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def tail(self, lines: int = 20) -> str:
        """The last lines of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(text.splitlines()[-lines:])

    def _signal(self, number: signal.Signals) -> None:
        self._ended_on_purpose = True
        if self._process is not None and self.running:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)
