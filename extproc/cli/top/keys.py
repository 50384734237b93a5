"""Bytes of a terminal as keys.

A key is a character, or one of the names of `_NAMED`. Terminals send arrows as ESC [ A or as ESC O A, by their mode. A
lone ESC is the key Esc; whether more follows is known when some time has passed, which is the caller's to measure.
"""

from __future__ import annotations

import codecs

ESC_WAIT_S = 0.1  # a sequence is sent at once; a network may tear it

_NAMED = {
    "A": "up", "B": "down", "H": "home", "F": "end", "Z": "back-tab",
    "1~": "home", "7~": "home", "4~": "end", "8~": "end", "5~": "page-up", "6~": "page-down",
}  # fmt: skip
_PLAIN = {"\r": "enter", "\n": "enter", "\t": "tab", " ": "space"}
_LONGEST = 32  # characters of a sequence


class Keys:
    """Fed with what comes. A sequence that has begun is kept until its end is there."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""

    @property
    def waits(self) -> bool:
        """The beginning of a sequence is there, or the key Esc."""
        return bool(self._text)

    def feed(self, data: bytes) -> list[str]:
        self._text += self._decoder.decode(data)
        found = []
        while self._text:
            key, used = _first(self._text)
            if not used:
                break
            self._text = self._text[used:]
            if key:
                found.append(key)
        return found

    def end(self) -> list[str]:
        """Nothing has followed for ESC_WAIT_S: an ESC was the key Esc, and the rest of a torn sequence is dropped."""
        torn, self._text = self._text, ""
        return ["esc"] if torn == "\x1b" else []


def _first(text: str) -> tuple[str, int]:
    """The first key, and how many characters it took; none: more must come. An unknown sequence is no key."""
    if text[0] != "\x1b":
        key = _PLAIN.get(text[0], text[0])
        return (key if key.isprintable() else ""), 1
    if len(text) == 1:
        return "", 0
    if text[1] == "\x1b":
        return "esc", 1
    if text[1] == "O":
        return ("", 0) if len(text) == 2 else (_NAMED.get(text[2], ""), 3)
    if text[1] != "[":
        return "esc", 1
    for place in range(2, min(len(text), _LONGEST)):
        if "@" <= text[place] <= "~":
            return _NAMED.get(text[2 : place + 1], ""), place + 1
    return ("", len(text)) if len(text) >= _LONGEST else ("", 0)
