"""What the HTTP port does not answer: counted, and told in one line a minute.

aiohttp logs every request that it cannot read as an error with a traceback, and the exception's text holds the first
bytes of what was wrong. So whoever reaches the port could write credentials into the log, and fill the disk. Here
nothing is told of what a client has sent, not even as the text of an exception: only how often, and of what kind.

An error of our own is told with its type and the place where it was raised, since its text may hold what a client sent.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import traceback
from collections import Counter
from pathlib import PurePath
from typing import Final, Literal

import structlog
from aiohttp import web
from aiohttp.http import HttpProcessingError

log = structlog.get_logger()

EVERY_S: Final = 60.0

Why = Literal["malformed", "not_whole", "too_many_connections", "foreign_host", "foreign_origin", "no_tls"]


class Refusals:
    """To be used from one event loop. `logger`: for aiohttp."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        self.logger = logging.Logger("http")  # no child of the root's
        self.logger.addHandler(_OfServer(self))
        self._every_s = every_s
        self._counts: Counter[str] = Counter()
        self._reasons: dict[str, str] = {}  # the newest
        self._failures = 0
        self._failure: dict[str, str] = {}  # the newest
        self._timer: asyncio.TimerHandle | None = None  # while it runs, nothing is told

    def count(self, why: Why) -> None:
        self._counts[why] += 1
        self._tell_in_time()

    def no_tls(self, error: ssl.SSLError) -> None:
        """A handshake that failed: a certificate that is missing or not good, or no TLS at all. OpenSSL's word for it
        holds nothing of what was sent."""
        self._reasons = {"no_tls_reason": error.reason or "unknown"}
        self.count("no_tls")

    def failed(self, error: BaseException | None) -> None:
        """An error of our own."""
        self._failures += 1
        self._failure = {"error": type(error).__name__, "at": _place(error)}
        self._tell_in_time()

    def close(self) -> None:
        """Tells the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._tell()

    def _tell_in_time(self) -> None:
        if self._timer is None:
            self._tell()
            self._timer = asyncio.get_running_loop().call_later(self._every_s, self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        if self._counts or self._failures:
            self._tell_in_time()

    def _tell(self) -> None:
        if self._counts:
            log.warning("http_requests_refused", count=self._counts.total(), **self._counts, **self._reasons)
            self._counts.clear()
            self._reasons = {}
        if self._failures:
            log.error("http_requests_failed", count=self._failures, **self._failure)
            self._failures = 0


class _OfServer(logging.Handler):
    """What aiohttp says of single requests."""

    def __init__(self, refusals: Refusals) -> None:
        super().__init__()
        self._refusals = refusals

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            self._refusals.count("malformed")
        else:
            self._refusals.failed(error)


def _place(error: BaseException | None) -> str:
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    return f"{PurePath(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
