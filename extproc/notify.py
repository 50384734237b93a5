"""What the service manager is told: systemd's protocol, sd_notify(3).

A datagram of lines to the Unix socket that NOTIFY_SOCKET names (with @ in front: an abstract one). Where it names none,
nothing is told, and nothing wakes up. A socket that does not work is told once in the log, and costs nothing else.

WATCHDOG_USEC asks for a sign of life. It comes from the event loop, twice as often as asked for: a loop that hangs
gives none, and the manager starts the process anew. WATCHDOG_PID says whom it is asked of.

Left out: vsock addresses, which systemd uses for virtual machines, and the barrier, which is for processes that end at
once after telling.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping
from typing import Final

import structlog

log = structlog.get_logger()

_SEND_S = 0.1  # at most, for one message: the loop stands meanwhile
_LONGEST_STATUS = 200  # characters
_LONGEST_WATCHDOG_S: Final = 366 * 86_400.0


class Notifier:
    """Of one process. Nothing here raises."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        """None: nobody is told anything."""
        self._address: str | None = None
        self._failed = False
        self.watchdog_s: float | None = None  # within which a sign of life is expected
        if not environ:
            return
        name = environ.get("NOTIFY_SOCKET")
        if not name:
            return
        if name[0] not in "/@" or len(name) == 1:
            self._fail(f"{_shown(name)} is neither the path of a socket nor an abstract one, which begins with @")
            return
        self._address = "\0" + name[1:] if name[0] == "@" else name
        self.watchdog_s = _watchdog_s(environ)

    def ready(self, status: str) -> None:
        """The ports are bound and served; or a reload is over."""
        self._send("READY=1", _status(status))

    def reloading(self) -> None:
        """`ready` has to follow."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send("RELOADING=1", f"MONOTONIC_USEC={now_us}", _status("reading the configuration again"))

    def stopping(self, status: str, within_s: float) -> None:
        """`within_s`: how long it may take, whatever the manager's own time-out."""
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={int(within_s * 1e6)}", _status(status))

    async def watchdog(self) -> None:
        """Give signs of life; return at once where nobody expects any, else never."""
        if self.watchdog_s is None:
            return
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.settimeout(_SEND_S)
                sender.sendto("\n".join(lines).encode("utf-8", "replace"), os.fsencode(self._address))
        except (OSError, ValueError) as error:
            self._fail(f"{_shown(self._address)}: {error}")

    def _fail(self, error: str) -> None:
        if not self._failed:
            self._failed = True
            log.warning("notify_failed", error=error, note="NOTIFY_SOCKET; the service goes on without it")


def _status(text: str) -> str:
    line = " ".join(text.split())
    return "STATUS=" + (line if len(line) <= _LONGEST_STATUS else line[:_LONGEST_STATUS] + "...")


def _watchdog_s(environ: Mapping[str, str]) -> float | None:
    microseconds, pid = environ.get("WATCHDOG_USEC"), environ.get("WATCHDOG_PID")
    if not microseconds or (pid and pid != str(os.getpid())):
        return None
    good = microseconds.isascii() and microseconds.isdigit() and len(microseconds) <= 20
    seconds = int(microseconds) / 1e6 if good else 0.0
    if not 0 < seconds <= _LONGEST_WATCHDOG_S:
        log.warning(
            "notify_failed", error="WATCHDOG_USEC is no number of microseconds", note="no sign of life is given"
        )
        return None
    return seconds


def _shown(name: str) -> str:
    text = ascii(name.replace("\0", "@", 1))[1:-1]
    return text if len(text) <= _LONGEST_STATUS else text[:_LONGEST_STATUS] + "..."
