"""Structured logs on standard error: JSON, or lines for people on a terminal.

Lines hold names that clients chose (of tenants, of models). None of these may end a line, forge another one, drive the
reader's terminal, or be no Unicode: JSON escapes all but ASCII, and of the lines for people everything is escaped that
cannot be printed, in a traceback line by line. A lone surrogate becomes six plain characters, since strict readers of
JSON refuse it.

Never logged: prompts, keys, headers of clients. So a traceback tells places and no local variables: among those are
whole messages.

What libraries say through `logging` (asyncio and gRPC of exceptions that nobody caught) comes the same way, from level
warning on, whatever our own level is: the debug lines of some hold what clients send.

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
import traceback
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger


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
    root.addHandler(_OfLibraries(logging.WARNING))


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
    """What libraries say through `logging`."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = record.getMessage()
        except (TypeError, ValueError):
            text = str(record.msg)  # what it was to be filled with does not fit
        log = structlog.get_logger()
        told = log.error if record.levelno >= logging.ERROR else log.warning
        told(text, logger=record.name, **({"exc_info": record.exc_info} if record.exc_info else {}))


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
            event[key] = _printable(value)
    return event


def _printable(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _write_traceback(out: TextIO, exc_info: ExcInfo) -> None:
    """Set in, so that no message of an exception looks like a line of its own."""
    for line in "".join(traceback.format_exception(*exc_info)).rstrip("\n").split("\n"):
        out.write(f"\n  {_printable(line)}")
