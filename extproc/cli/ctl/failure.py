"""How a command fails: one message, a line for each thing that is wrong, and an exit code to go by.

Texts from the service quote names that its clients have chosen; what a terminal would act on is shown as escapes.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import IO, Any

import click


class Exit(enum.IntEnum):
    """Exit codes. What click refuses by itself (an option that is not there) is USAGE too."""

    DONE = 0
    REFUSED = 1  # a value that cannot be, a state in which it cannot be done, no such pool
    USAGE = 2
    UNREACHABLE = 3  # no answer, or none in time
    NOT_ALLOWED = 4
    CHANGED = 5  # somebody else made a change meanwhile: read again, decide again


# Of a command that was interrupted, or whose reader has gone: 128 and the number of the signal, as shells have it.
INTERRUPTED = 130
READER_GONE = 141


class Failure(click.ClickException):
    """Printed on standard error, never as a traceback."""

    def __init__(self, message: str, code: Exit = Exit.REFUSED, details: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.exit_code = int(code)  # type: ignore[misc]  # click looks at the instance
        self.details = tuple(details)

    def show(self, file: IO[Any] | None = None) -> None:
        first, *more = self.message.splitlines() or [""]
        lines = [f"Error: {first}", *(f"  {line}" for line in (*more, *self.details))]
        for line in lines:
            click.echo(escaped(line), file=file, err=file is None)


def escaped(text: str) -> str:
    """What a terminal may act on (control characters, and such as turn the direction of writing) as \\x1b, \\u202e."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)
