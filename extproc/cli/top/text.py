"""Text that a terminal shows, and does not act on, in a width that terminals agree on.

Clients choose the names of tenants and models. A name may have escape sequences, marks that turn the direction of
writing, thousands of letters, and characters whose width terminals do not agree on: joined emoji, flags, variants, skin
tones, stacks of combining marks. One of these moves everything to its right. So all that is not of a plain width is
shown as an escape, like \\x1b or \\u202e, as `fairlane ctl` does it, and more strictly. Letters of all scripts stay,
with up to two marks on each.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from rich.cells import cell_len, get_character_cell_size, set_cell_size

_MOST_MARKS = 2  # on a letter
# Of no width of their own, or of one that depends on what stands beside them.
_UNEVEN = (
    (0x1160, 0x11FF),  # vowels and endings of Hangul that join
    (0xD7B0, 0xD7FF),
    (0xFE00, 0xFE0F),  # variants
    (0x1F1E6, 0x1F1FF),  # letters that make flags
    (0x1F3FB, 0x1F3FF),  # skin tones
    (0xE0100, 0xE01EF),  # variants
)
_LONGEST = 512  # characters of a name that are looked at: more than a screen is wide


def safe(text: str, *, ascii_only: bool = False, most: int = _LONGEST) -> str:
    """In one line. What is beyond `most` characters is left out, and "..." says so."""
    left_out = len(text) > most
    if left_out:
        text = text[:most]
    if not (text.isascii() and text.isprintable()):
        text = "".join(_harmless(unicodedata.normalize("NFC", text), ascii_only))
    return f"{text}..." if left_out else text


def _harmless(text: str, ascii_only: bool) -> Iterator[str]:
    marks = _MOST_MARKS  # a mark at the beginning has no letter to stand on
    for char in text:
        if char.isascii() and char.isprintable():
            marks = 0
            yield char
        elif ascii_only or not _even(char):
            marks = _MOST_MARKS
            yield escape(char)
        elif unicodedata.combining(char) or unicodedata.category(char) == "Mn":
            marks += 1
            yield char if marks <= _MOST_MARKS else escape(char)
        else:
            marks = 0
            yield char


def _even(char: str) -> bool:
    """Whether terminals agree on its width."""
    if not char.isprintable() or any(first <= ord(char) <= last for first, last in _UNEVEN):
        return False
    category = unicodedata.category(char)
    if category in ("Mc", "Me"):
        return False
    return (get_character_cell_size(char) == 0) == (category == "Mn")


def escape(char: str) -> str:
    return char.encode("unicode_escape", "backslashreplace").decode()


def width(text: str) -> int:
    """Cells of a terminal."""
    return cell_len(text)


def cut(text: str, cells: int, ellipsis: str) -> str:
    """With the ellipsis at its end where it is wider than `cells`."""
    if width(text) <= cells:
        return text
    if cells <= len(ellipsis):
        return ellipsis[: max(0, cells)]
    return set_cell_size(text, cells - len(ellipsis)) + ellipsis


def fill(text: str, cells: int, ellipsis: str, *, right: bool = False) -> str:
    """Exactly so wide."""
    shown = cut(text, cells, ellipsis)
    blanks = " " * (cells - width(shown))
    return blanks + shown if right else shown + blanks


def wrapped(text: str, cells: int) -> list[str]:
    """Broken at blanks; a word that is wider than a line is broken anywhere."""
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        candidate = f"{line} {word}" if line else word
        if width(candidate) <= cells:
            line = candidate
            continue
        if line:
            lines.append(line)
        line = word
        while width(line) > cells:
            part = _first_cells(line, cells)
            lines.append(part)
            line = line[len(part) :]
    return [*lines, line] if line else lines


def _first_cells(text: str, cells: int) -> str:
    """As many whole characters as fit, at least one. O(cells)."""
    taken = used = 0
    for char in text:
        used += get_character_cell_size(char)
        if used > cells and taken:
            break
        taken += 1
    return text[:taken]
