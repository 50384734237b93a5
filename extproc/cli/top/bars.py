"""A window as a bar: requests of ours, those of others, room, and what is beyond the limit.

Its whole length is the limit, or what is inside where that is more. Everything that is there has one cell at least.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.text import Text


@dataclass(frozen=True)
class Look:
    """Signs that the terminal can show."""

    unicode: bool = True

    @property
    def ellipsis(self) -> str:
        return "…" if self.unicode else "~"

    @property
    def down(self) -> str:
        return "▼" if self.unicode else "v"

    @property
    def up(self) -> str:
        return "▲" if self.unicode else "^"

    @property
    def marker(self) -> str:
        return "▶ " if self.unicode else "> "

    @property
    def dot(self) -> str:
        return " · " if self.unicode else " | "

    @property
    def bar(self) -> tuple[str, str, str, str]:
        """Ours, foreign, room, beyond the limit."""
        return ("█", "▒", "·", "!") if self.unicode else ("#", "o", ".", "!")


OURS, FOREIGN, ROOM, BEYOND = "green", "yellow", "dim", "bold red"


def bar(ours: float, foreign: float, limit: float, cells: int, look: Look) -> Text:
    """`cells` wide, with its frame. What is over the limit takes the place of the last that is inside."""
    ours, foreign, limit = (_amount(value) for value in (ours, foreign, limit))
    length = max(0, cells - 2)
    used = ours + foreign
    whole = max(limit, used)
    beyond = _cells(used - limit, whole, length) if used > limit else 0
    taken = length if used >= limit and used else max(0, min(_cells(used, whole, length), length - 1))
    inside = taken - beyond
    of_foreign = min(_cells(foreign, whole, length), inside)
    if ours and of_foreign == inside > 1:
        of_foreign -= 1
    signs = look.bar
    made = Text("[" if cells > 1 else "")
    made.append(signs[0] * (inside - of_foreign), OURS)
    made.append(signs[1] * of_foreign, FOREIGN)
    made.append(signs[3] * beyond, BEYOND)
    made.append(signs[2] * (length - taken), ROOM)
    return made.append("]" if cells > 1 else "")


def _amount(value: float) -> float:
    """What is no number, or has no end, has no length."""
    return value if math.isfinite(value) and value > 0 else 0.0


def _cells(part: float, whole: float, length: int) -> int:
    if not part or not whole:
        return 0
    return min(length, max(1, round(part / whole * length)))
