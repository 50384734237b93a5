"""Names from what Envoy knows of the sender, and how those of several levels are put together.

A name that is made of claims has one level for each. A claim may say anything, so what parts the levels is escaped
inside of them: the user `a/b` of team `ml` is `ml/a%2Fb`, so that no spelling of his name makes him one of another
team. Escaping, not refusing: a request that loses its name would fall to a source that is trusted less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from google.protobuf.struct_pb2 import Value

from extproc.config.identity import usable

_EXACT = 2**53  # below it, every whole number is a double of its own


def name_of(value: Value) -> str | None:
    """The name that a value of Envoy's metadata or attributes gives; that of a list is its first one's.

    True and false are nobody's name. Nor is a whole number that a double cannot tell from its neighbour: two users
    would be one."""
    kind = value.WhichOneof("kind")
    if kind == "string_value":
        return usable(value.string_value)
    if kind == "number_value":
        number = value.number_value
        if not abs(number) < _EXACT:  # also NaN
            return None
        return str(int(number)) if number.is_integer() else str(number)
    if kind == "list_value" and value.list_value.values:
        first = value.list_value.values[0]
        return name_of(first) if first.WhichOneof("kind") != "list_value" else None
    return None


def joiner(separator: str | None) -> Callable[[Iterable[str | None]], str | None]:
    """Puts a name together of its levels, top level first; it ends before the first that is not there. None: there
    is no first one, or the whole is too long."""
    escapes = {ord(char): "".join(f"%{byte:02X}" for byte in char.encode()) for char in f"%{separator or ''}"}

    def join(levels: Iterable[str | None]) -> str | None:
        parts = []
        for level in levels:
            if level is None:
                break
            parts.append(level.translate(escapes) if separator is not None else level)
        return usable((separator or "").join(parts))

    return join
