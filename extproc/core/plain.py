"""Frozen dataclasses to plain values (what JSON has) and back.

The types of the fields are the schema: there is no second list that could fall behind. What is written can be read
back equal. Reading is strict: a key that the class does not have, one that is missing, and a value of another type
are errors that name the place.

Known types: str, int, float, bool, `X | None`, `tuple[X, ...]`, `Mapping[str, X]`, enums and dataclasses. An enum is
written as its `code` where it has one, else as its value. A float that is not finite is written as "nan", "inf" or
"-inf", since JSON has no such numbers. A float that holds a whole `int` stays one, so that texts made of it stay equal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

Plain = Any  # None, bool, int, float, str, list[Plain] or dict[str, Plain]
_Convert = Callable[[Any], Any]

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class PlainError(ValueError):
    """A value does not fit its type. The message has the place, "sample.running", and what was expected there."""

    def __init__(self, cause: str, place: tuple[str, ...] = ()) -> None:
        super().__init__(f"{'.'.join(place)}: {cause}" if place else cause)
        self.cause = cause
        self.place = place


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    encode: _Convert | None  # None: it is plain as it stands
    decode: _Convert
    default: Any  # _MISSING: it has none


_MISSING = object()


def to_plain(value: Any, *, lean: bool = False) -> dict[str, Plain]:
    """Of a dataclass. `lean` leaves out fields that have their default: for what is written often and whose defaults
    never change."""
    return _encode(value, lean)


def from_plain(cls: type[T], value: Plain) -> T:
    """A `cls` of `value`. Raises PlainError."""
    found: T = _decode_dataclass(cls, value)
    return found


def _encode(value: Any, lean: bool) -> dict[str, Plain]:
    out: dict[str, Plain] = {}
    cls: type = type(value)
    for field in _fields(cls, lean):
        found = getattr(value, field.name)
        if lean and found == field.default:
            continue
        out[field.name] = found if field.encode is None else field.encode(found)
    return out


@cache
def _fields(cls: type, lean: bool = False) -> tuple[_Field, ...]:
    hints = get_type_hints(cls)
    return tuple(
        _Field(f.name, _encoder(hints[f.name], lean), _decoder(hints[f.name]), _default(f))
        for f in dataclasses.fields(cls)
    )


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return _MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()


# -- writing --------------------------------------------------------------------------------------


def _encoder(hint: Any, lean: bool) -> _Convert | None:
    """None where the value is plain as it stands."""
    if hint in (str, int, bool):
        return None
    if hint is float:
        return _encode_float
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        inner = _encoder(_not_none(hint), lean)
        return None if inner is None else lambda value: None if value is None else inner(value)
    if origin is tuple:
        each = _encoder(args[0], lean)
        return list if each is None else lambda value: [each(item) for item in value]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        of_value = _encoder(args[1], lean)
        return dict if of_value is None else lambda value: {key: of_value(item) for key, item in value.items()}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _code
    if dataclasses.is_dataclass(hint):
        return lambda value: _encode(value, lean)
    raise TypeError(f"no plain form is known for {hint!r}")


def _encode_float(value: float) -> Plain:
    return value if math.isfinite(value) else repr(float(value))


def _code(member: Enum) -> Plain:
    return getattr(member, "code", member.value)


def _not_none(hint: Any) -> Any:
    (inner,) = (arg for arg in get_args(hint) if arg is not NoneType)
    return inner


# -- reading --------------------------------------------------------------------------------------


def _decoder(hint: Any) -> _Convert:
    simple = _SIMPLE.get(hint)
    if simple is not None:
        return simple
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        inner = _decoder(_not_none(hint))
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        return _decode_tuple(_decoder(args[0]))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _decode_mapping(_decoder(args[1]))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _decode_enum(hint)
    return lambda value: _decode_dataclass(hint, value)


def _decode_dataclass(cls: Any, value: Plain) -> Any:
    if not isinstance(value, dict):
        raise PlainError(f"expected an object, found {_short(value)}")
    fields = _fields(cls)
    found: dict[str, Any] = {}
    for field in fields:
        if field.name in value:
            found[field.name] = _at(field.name, field.decode, value[field.name])
        elif field.default is _MISSING:
            raise PlainError("is missing", (field.name,))
    if len(found) < len(value):
        unknown = sorted(set(value) - set(found))
        raise PlainError(f"is not known; known here: {', '.join(field.name for field in fields)}", (unknown[0],))
    return cls(**found)


def _at(place: str, decode: _Convert, value: Plain) -> Any:
    try:
        return decode(value)
    except PlainError as error:
        raise PlainError(error.cause, (place, *error.place)) from error


def _decode_str(value: Plain) -> str:
    if isinstance(value, str):
        return value
    raise PlainError(f"expected a text, found {_short(value)}")


def _decode_bool(value: Plain) -> bool:
    if isinstance(value, bool):
        return value
    raise PlainError(f"expected true or false, found {_short(value)}")


def _decode_int(value: Plain) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise PlainError(f"expected a whole number, found {_short(value)}")


def _decode_float(value: Plain) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    raise PlainError(f"expected a number, found {_short(value)}")


def _decode_tuple(each: _Convert) -> _Convert:
    def decode(value: Plain) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise PlainError(f"expected a list, found {_short(value)}")
        return tuple(_at(str(place), each, item) for place, item in enumerate(value))

    return decode


def _decode_mapping(of_value: _Convert) -> _Convert:
    def decode(value: Plain) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise PlainError(f"expected an object, found {_short(value)}")
        return {key: _at(repr(key), of_value, item) for key, item in value.items()}

    return decode


def _decode_enum(cls: type[Enum]) -> _Convert:
    members = {_code(member): member for member in cls}

    def decode(value: Plain) -> Enum:
        member = members.get(value) if isinstance(value, str) else None
        if member is None:
            raise PlainError(f"expected one of {', '.join(members)}, found {_short(value)}")
        return member

    return decode


def _short(value: Plain) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_SIMPLE: dict[Any, _Convert] = {str: _decode_str, bool: _decode_bool, int: _decode_int, float: _decode_float}
