"""Which environment variable is to blame for a fault of the configuration, and what is said of it.

A fault at or below the place of a variable is the variable's: whoever is told looks there and not into the file. One of
a section of which a variable said a part may be either's: the message has both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from extproc.config.environment import Place, Variable, shown_name
from extproc.config.units import shown

_MOST_NAMED = 3  # variables
_MOST_TEXTS = 1000  # that are looked at in a value
_LEAST_HIDDEN = 6  # characters: shorter ones stand in words of the message, too
_INSTEAD = "the value given"


class Blame:
    """Of a configuration that variables have said parts of; false: none have."""

    def __init__(self, places: Mapping[Place, Variable] | None = None) -> None:
        self._places = places or {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def said(self, loc: tuple[str | int, ...]) -> str | None:
        """The name of the variable that said what stands there."""
        variable = self._at(loc)
        return None if variable is None else shown_name(variable.name)

    def has_part(self, place: tuple[str | int, ...], kind: str, data: Mapping[str, Any]) -> str:
        """To be said behind a fault of a whole section: the variables that have said a part of it. `place`: pools by
        number or name. `kind`: pydantic's, of the fault."""
        if kind == "missing":
            place = place[:-1]
        if not place:
            return ""
        found = [
            shown_name(variable.name) for at, variable in self._places.items() if _related(_named(at, data), place, at)
        ]
        if not found:
            return ""
        more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
        return f" (said in part by {', '.join(found[:_MOST_NAMED])}{more})"

    def without_value(self, message: str, error: Any) -> str:
        """A message of pydantic's about a variable's value, without what it quotes of it: that may be a secret."""
        if self._at(error["loc"]) is None:
            return message
        value = error.get("input")
        if isinstance(value, str):
            for quoted in (repr(value), shown(value)):
                message = message.replace(quoted, _INSTEAD)
        texts = sorted((each for each in _texts(value) if len(each) >= _LEAST_HIDDEN), key=len, reverse=True)
        for text in texts:
            for quoted in (repr(text), shown(text), text):
                message = message.replace(quoted, _INSTEAD)
        return message + "; in quotes it is text" if error["type"] == "string_type" else message

    def _at(self, loc: tuple[str | int, ...]) -> Variable | None:
        if not self._places:
            return None
        ends = range(len(loc), 0, -1)
        return next((self._places[loc[:end]] for end in ends if loc[:end] in self._places), None)


def _related(named: tuple[str, ...], place: tuple[str | int, ...], at: Place) -> bool:
    """Whether one is in the other."""
    texts = tuple(map(str, place))
    return any(each[: len(texts)] == texts[: len(each)] for each in (named, tuple(map(str, at))))


def _named(place: Place, data: Mapping[str, Any]) -> tuple[str, ...]:
    """With a pool by its name, where it has one."""
    parts = [str(part) for part in place]
    if place[0] == "pools" and len(place) > 1:
        try:
            name = data["pools"][place[1]]["name"]
        except (LookupError, TypeError):
            name = None
        parts[1] = name if isinstance(name, str) else parts[1]
    return tuple(parts)


def _texts(value: Any) -> Iterator[str]:
    """Texts in it, keys among them; no more than so many, since anchors of YAML multiply."""
    waiting, seen = [value], 0
    while waiting and seen < _MOST_TEXTS:
        each = waiting.pop()
        seen += 1
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting += [part for pair in each.items() for part in pair]
        elif isinstance(each, list):
            waiting += each[:_MOST_TEXTS]
