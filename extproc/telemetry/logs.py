"""Structured logs on standard error: JSON, or lines for people on a terminal."""

from __future__ import annotations

import logging
import sys

import structlog


def set_up(level: str, json: bool) -> None:
    """`level` as in `logging`. Never logged: prompts, keys, headers of clients. So a traceback tells places and no
    local variables: among those are whole messages."""
    renderer: structlog.types.Processor
    if json:
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    processors: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if json:
        tracebacks = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        processors.append(structlog.processors.ExceptionRenderer(tracebacks))
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
