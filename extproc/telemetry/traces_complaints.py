"""What OpenTelemetry says in its own logs, from before its exporter is made until nothing of it is at work any more.

That is its only way to tell what goes wrong, and it must not reach standard error: lines come again and again, some
repeat what clients sent (`tracestate`), and some the collector's credentials: an entry of OTEL_EXPORTER_OTLP_HEADERS
that cannot be read is repeated whole.

Loggers are global, and two tracers may overlap: one that hangs in its last export, and its successor. So the logger
passes lines on again when the last of them is over.

Errors of exporters may hold the values of headers, too: requests repeats one that no header can have. What is told is
without them.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import unquote

import structlog

from extproc.telemetry.printable import printable

log = structlog.get_logger()

HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")  # the first one that is set holds

_SDK = "opentelemetry"  # the loggers of all its parts
_OF_HEADERS = "opentelemetry.util.re"
_SHORTEST = 4  # characters of a value that is taken out: "1" or "on" are no credentials, and in many words
_MOST_SETTINGS = 10
_TAKEN_OUT = "***"
_BETWEEN = re.compile(r"""[^\x21-\x7e]|["'\\]""")  # so that a value is found as Python writes it, too

_lock = threading.Lock()  # over who listens


def without_credentials(text: str) -> str:
    """`text` without the values of headers for the collector; clean."""
    text = printable(text)
    for value in sorted(_values(), key=len, reverse=True):
        text = text.replace(value, _TAKEN_OUT)
    return text


def _values() -> set[str]:
    found: set[str] = set()
    for variable in HEADERS:
        for entry in os.environ.get(variable, "").split(","):
            _, equals, value = entry.partition("=")
            told = value if equals else entry
            for form in (told, unquote(told)):
                found.update(part for part in _BETWEEN.split(form) if len(part) >= _SHORTEST)
    return found


class Complaints(logging.Handler):
    """Keeps OpenTelemetry's complaints for itself, from now on until `close`."""

    _propagated: bool  # whether the logger did before the first of those that listen

    def __init__(self, *, of_settings: bool = False) -> None:
        """`of_settings`: those that no exporter makes while it sends are kept, too."""
        super().__init__(logging.WARNING)
        self._of_settings = of_settings
        self.last = "the exporter does not say why"  # of an exporter
        self.settings: list[str] = []  # templates of what others said, such as "Unsupported compression type: %s"
        self.headers = 0  # entries that cannot be read
        logger = logging.getLogger(_SDK)
        with _lock:
            others = _listening(logger)
            self._propagated = others[0]._propagated if others else logger.propagate
            logger.propagate = False
            logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == _OF_HEADERS:
            self.headers += 1
            return
        if ".grpc" in record.name or ".http" in record.name:
            self.last = without_credentials(record.getMessage())
        if self._of_settings and len(self.settings) < _MOST_SETTINGS:
            self.settings.append(without_credentials(str(record.msg)))

    def close(self) -> None:
        """All that complains is over. May be called again."""
        logger = logging.getLogger(_SDK)
        with _lock:
            if self in logger.handlers:
                logger.removeHandler(self)
                if not _listening(logger):
                    logger.propagate = self._propagated
        super().close()


def _listening(logger: logging.Logger) -> list[Complaints]:
    return [handler for handler in logger.handlers if isinstance(handler, Complaints)]


@contextmanager
def while_made() -> Iterator[None]:
    """While the exporter and what goes with it are made of the environment: what is wrong there is told, without the
    values."""
    heard = Complaints(of_settings=True)
    try:
        yield
    finally:
        heard.close()
    if heard.headers:
        variable = next((name for name in HEADERS if os.environ.get(name)), HEADERS[-1])
        log.warning(
            "otlp_headers_ignored",
            variable=variable,
            entries=heard.headers,
            cure=f"write each entry of {variable} as name=value, percent-encoded, with a comma between two: "
            "authorization=Bearer%20...; the collector is not sent what cannot be read",
        )
    for complaint in heard.settings:
        log.warning(
            "otlp_setting_ignored", complaint=complaint, cure="see the environment variables that begin with OTEL_"
        )
