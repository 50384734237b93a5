"""Structured logs on standard error: JSON, or lines for people on a terminal.

Lines hold names that clients chose (of tenants, of models). None of these may end a line, forge another one, drive the
reader's terminal, or be no Unicode: JSON escapes all but ASCII, and of the lines for people everything is escaped that
cannot be printed, in a traceback line by line. A lone surrogate becomes six plain characters, since strict readers of
JSON refuse it.

Never logged: prompts, keys, headers of clients. So a traceback tells places and no local variables: among those are
whole messages.

What libraries say through `logging` (asyncio and gRPC of exceptions that nobody caught) comes the same way, from level
warning on, whatever our own level is: the debug lines of some hold what clients send. So do some errors of aiohttp's
server: of those, only what the library wrote itself is told, the kind of the exception, and places. Anybody who reaches
a port may make a library complain, so each library has so many lines and no more.

Who reads may go away, or have no room: then lines are lost, and nothing else. One that reads no more and keeps its end
of the pipe open holds the process up when the pipe is full, as with any program; left out is a thread that would wait
in its place, since a crash would lose the lines that tell of it.
"""

from __future__ import annotations

import json as json_of
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from extproc.telemetry.printable import printable

_IN_A_ROW = 10  # lines of a library
_LINES_PER_S = 1.0  # of it, after those
_MOST_LIBRARIES = 100  # that have an allowance of their own
_OTHERS = "others"
_HTTP = "aiohttp"
_MOST_CAUSES = 10  # of an exception, that are looked at
_MOST_PLACES = 8  # of an exception, the innermost ones


def set_up(level: str, json: bool) -> None:
    """`level` as in `logging`. May be called again."""
    if sys.stderr is None:  # it was closed when the process began
        # Else the next socket would have its number, 2, and libuv (uvloop) aborts when it is to close that.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sink = _Sink(sys.stderr)
    renderer: list[Processor]
    if json:
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        renderer = [
            structlog.processors.ExceptionRenderer(tracebacks),
            structlog.processors.JSONRenderer(serializer=_as_json),
        ]
    else:
        console = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback)
        renderer = [_escape, console]
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=lambda *_: sink,
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    for handler in root.handlers[:]:
        if isinstance(handler, _OfLibraries):
            root.removeHandler(handler)
            handler.close()
    root.addHandler(_OfLibraries())


class _Sink:
    """Where rendered lines go. Never raises; may be used by several threads."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lock = threading.Lock()

    def msg(self, line: str) -> None:
        with self._lock:
            try:
                self._write(line)
            except (OSError, ValueError):  # nobody reads any more, no room on the disk; or the file is closed
                return

    def _write(self, line: str) -> None:
        try:
            self._file.write(line + "\n")
        except UnicodeEncodeError:
            self._file.write(line.encode("ascii", "backslashreplace").decode() + "\n")
        self._file.flush()

    debug = info = warning = error = critical = exception = msg


class _OfLibraries(logging.Handler):
    """What libraries say through `logging`: of each of them so many lines in a row, then so many a second. The next
    line that is told comes after one with the count of those that were not."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        super().__init__(logging.WARNING)
        self._clock = clock
        self._libraries: dict[str, _Allowance] = {}

    def emit(self, record: logging.LogRecord) -> None:
        name = record.name.partition(".")[0]
        if name not in self._libraries and len(self._libraries) >= _MOST_LIBRARIES:
            name = _OTHERS
        now = self._clock()
        allowance = self._libraries.setdefault(name, _Allowance(now))
        if not allowance.take(now):
            return
        self._tell_left_out(name, allowance)
        fields: dict[str, Any] = {}
        if _of_clients(record):
            text, fields = _without_texts(record)
        else:
            try:
                text = record.getMessage()
            except (TypeError, ValueError):
                text = str(record.msg)  # what it was to be filled with does not fit
            if record.exc_info:
                fields["exc_info"] = record.exc_info
        log = structlog.get_logger()
        told = log.error if record.levelno >= logging.ERROR else log.warning
        told(text, logger=record.name, **fields)

    def close(self) -> None:
        """Tell what nobody was told yet."""
        for name, allowance in self._libraries.items():
            self._tell_left_out(name, allowance)
        super().close()

    @staticmethod
    def _tell_left_out(name: str, allowance: _Allowance) -> None:
        left_out, allowance.left_out = allowance.left_out, 0
        if left_out:
            structlog.get_logger().warning("library_lines_left_out", logger=name, lines=left_out)


class _Allowance:
    """Lines that a library may write: `_IN_A_ROW`, and one more each second up to that many again."""

    __slots__ = ("_lines", "_since", "left_out")

    def __init__(self, now: float) -> None:
        self._lines = float(_IN_A_ROW)
        self._since = now
        self.left_out = 0

    def take(self, now: float) -> bool:
        self._lines = min(float(_IN_A_ROW), self._lines + (now - self._since) * _LINES_PER_S)
        self._since = now
        if self._lines < 1.0:
            self.left_out += 1
            return False
        self._lines -= 1.0
        return True


def _of_clients(record: logging.LogRecord) -> bool:
    """Whether it may repeat what somebody sent: so do the server's lines, and exceptions of its parser wherever they
    come to light."""
    error = record.exc_info[1] if record.exc_info else None
    for _ in range(_MOST_CAUSES):
        if error is None:
            break
        if type(error).__module__.partition(".")[0] == _HTTP:
            return True
        error = error.__cause__ or error.__context__
    return record.name.partition(".")[0] == _HTTP


def _without_texts(record: logging.LogRecord) -> tuple[str, dict[str, Any]]:
    """(what is said, what else is told): what the library wrote itself, kinds of exceptions, and places."""
    text = str(record.msg).partition("\n")[0]  # what it is to be filled with is left out, and what asyncio adds
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return text, {}
    places = traceback.extract_tb(error.__traceback__)[-_MOST_PLACES:]
    return text, {
        "exc_type": type(error).__name__,
        "places": [f"{Path(place.filename).name}:{place.lineno} {place.name}" for place in places],
    }


def _as_json(event: EventDict, **options: Any) -> str:
    return json_of.dumps(_unicode(event), **options)


def _unicode(value: Any) -> Any:
    """The same without lone surrogates, at any depth."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_unicode(key): _unicode(each) for key, each in value.items()}
    return [_unicode(each) for each in value] if isinstance(value, list | tuple) else value


def _escape(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """What is deeper than this is shown as Python would write it, and that is escaped."""
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = printable(value)
    return event


def _write_traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Set in, so that no message of an exception looks like a line of its own."""
    for line in "".join(traceback.format_exception(*exc_info)).rstrip("\n").split("\n"):
        out.write(f"\n  {printable(line)}")
