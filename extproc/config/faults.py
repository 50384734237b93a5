"""What is wrong with a configuration, by place; and how places are written.

A place is the tuple of the names that lead to it, whatever is in them: ("tenants", "acme.com", "weight"). As text they
are joined with dots, and a name that has more than letters, digits, '_', '-' and '*' stands in backquotes, as in
AIP-161: tenants.`acme.com`.weight. A backquote inside is written twice. Pools, a list in the file, go by their names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Path = tuple[str, ...]

_PLAIN = re.compile(r"[A-Za-z0-9_*-]+")
_PART = re.compile(r"`((?:[^`]|``)*)`|([^.`]+)")
_LONGEST_TEXT = 4096  # characters
_SHOWN = 200  # characters
_NO_PATH = (
    "is no path: names with dots between them, like classes.batch.queue_timeout; one that has dots itself stands in "
    "backquotes, like tenants.`acme.com`.weight"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a part of the configuration."""

    path: str  # "classes.batch.queue_timeout", "pools.llama.window.max_tpot"; empty: the whole, or several
    message: str


class ConfigError(Exception):
    """The configuration cannot be used. The message has a line per fault: where, what, and what was meant."""

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


def error_of(faults: Sequence[Fault]) -> ConfigError:
    """With a line for each fault."""
    return ConfigError("\n".join(f"{f.path}: {f.message}" if f.path else f.message for f in faults), faults)


def path_text(path: Path) -> str:
    """A place as text; `parse_path` reads it."""
    return ".".join(part if _PLAIN.fullmatch(part) else "`" + part.replace("`", "``") + "`" for part in path)


def parse_path(text: str) -> Path:
    """A place from its text. Names without dots and backquotes may stand as they are. Raises ConfigError."""
    parts, at = [], 0
    while text and len(text) <= _LONGEST_TEXT:
        match = _PART.match(text, at)
        if match is None:
            break
        parts.append(match[2] if match[1] is None else match[1].replace("``", "`"))
        at = match.end()
        if at == len(text):
            return tuple(parts)
        if text[at] != ".":
            break
        at += 1
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    raise error_of([Fault(shown, _NO_PATH)] if text else [Fault("", "a path is empty")])
