"""A scheduler's whole state as plain data, to show that an event has changed nothing."""

from __future__ import annotations

from typing import Any


def state_of(value: Any, seen: dict[int, int] | None = None) -> Any:
    """All that can be reached from `value`, as plain data. What `apply` sets at its very beginning is left out."""
    seen = {} if seen is None else seen
    if value is None or isinstance(value, int | float | str | bytes):
        return repr(value)
    if id(value) in seen:
        return f"seen {seen[id(value)]}"
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return [(state_of(k, seen), state_of(v, seen)) for k, v in value.items()]
    if callable(value):
        return "a function"
    if hasattr(value, "__iter__"):
        return [state_of(each, seen) for each in value]
    names = [n for cls in type(value).__mro__ for n in getattr(cls, "__slots__", ())] + list(
        getattr(value, "__dict__", {})
    )
    return [(n, state_of(getattr(value, n), seen)) for n in names if hasattr(value, n) and n != "_look"]
