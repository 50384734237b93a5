"""Configuration as plain data, and as google.protobuf.Struct and Value.

A Struct has doubles for numbers, so a whole one is read as an integer: the file's counts are. What a double cannot hold
is written as text."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import struct_pb2

from extproc.admin.errors import Violation
from extproc.admin.fields import refused
from extproc.config.overlay import FieldChange, Plain, path_text, plain_number
from extproc.pb.admin.v1 import admin_pb2 as pb

_DEEPEST = 24  # levels; the file's own shape has six, and protobuf reads no more than 33
_MOST_VIOLATIONS = 100


def plain_of(struct: struct_pb2.Struct, field: str) -> dict[str, Plain]:
    """`field`: of the request, for errors. Raises AdminError."""
    violations: list[Violation] = []
    plain = _mapping(struct, (field,), violations)
    if violations:
        raise refused(violations[:_MOST_VIOLATIONS])
    return plain


def struct_of(data: Mapping[Any, Any]) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    fill(struct, data)
    return struct


def value_of(plain: Any) -> struct_pb2.Value:
    value = struct_pb2.Value()
    _set(value, plain)
    return value


def fill(struct: struct_pb2.Struct, data: Mapping[Any, Any]) -> None:
    """Put `data` into one that is empty. Where it is: protobuf copies a message into another in one go, which holds all
    threads for as long as it takes."""
    for key, value in data.items():
        _set(struct.fields[str(key)], value)


def _set(value: struct_pb2.Value, plain: Any) -> None:
    if plain is None:
        value.null_value = struct_pb2.NULL_VALUE
    elif isinstance(plain, bool):
        value.bool_value = plain
    elif (isinstance(plain, int) and abs(plain) <= 2**53) or (isinstance(plain, float) and math.isfinite(plain)):
        value.number_value = plain
    elif isinstance(plain, Mapping):
        value.struct_value.SetInParent()
        fill(value.struct_value, plain)
    elif isinstance(plain, list | tuple):
        value.list_value.SetInParent()
        for each in plain:
            _set(value.list_value.values.add(), each)
    else:
        value.string_value = str(plain)


def field_changes(changes: Iterable[FieldChange]) -> list[pb.FieldChange]:
    return [field_change(each) for each in changes]


def field_change(change: FieldChange) -> pb.FieldChange:
    return pb.FieldChange(
        path=path_text(change.path),
        before=value_of(change.before) if change.had else None,
        after=value_of(change.after) if change.has else None,
    )


def _mapping(struct: struct_pb2.Struct, path: tuple[str, ...], violations: list[Violation]) -> dict[str, Plain]:
    return {key: _plain(value, (*path, key), violations) for key, value in struct.fields.items()}


def _plain(value: struct_pb2.Value, path: tuple[str, ...], violations: list[Violation]) -> Plain:
    if len(path) > _DEEPEST:
        violations.append(Violation(path_text(path[:8]), f"is nested in more than {_DEEPEST} levels"))
        return None
    match value.WhichOneof("kind"):
        case "null_value":
            return None
        case "bool_value":
            return value.bool_value
        case "string_value":
            return value.string_value
        case "number_value" if math.isfinite(value.number_value):
            return plain_number(value.number_value)
        case "number_value":
            violations.append(Violation(path_text(path), f"must be a finite number, not {value.number_value}"))
        case "struct_value":
            return _mapping(value.struct_value, path, violations)
        case "list_value":
            return [_plain(each, (*path, str(i)), violations) for i, each in enumerate(value.list_value.values)]
        case _:
            violations.append(Violation(path_text(path), "has no value; null is one"))
    return None
