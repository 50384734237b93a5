"""Text that a client may have chosen, as it may stand in a line, on a terminal and in UTF-8."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` without what breaks a line, a terminal or UTF-8: such characters stand as Python writes them."""
    if text.isprintable():  # so no lone surrogate is in it
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
