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

_DEEPEST = 64  # levels; the file's own shape has six
_MOST_VIOLATIONS = 100


def plain_of(struct: struct_pb2.Struct, field: str) -> dict[str, Plain]:
    """`field`: of the request, for errors. Raises AdminError."""
    violations: list[Violation] = []
    plain = _mapping(struct, (field,), violations)
    if violations:
        raise refused(violations[:_MOST_VIOLATIONS])
    return plain


def struct_of(data: Mapping[Any, Any]) -> struct_pb2.Struct:
    return struct_pb2.Struct(fields={str(key): value_of(value) for key, value in data.items()})


def value_of(plain: Any) -> struct_pb2.Value:
    if plain is None:
        return struct_pb2.Value(null_value=struct_pb2.NULL_VALUE)
    if isinstance(plain, bool):
        return struct_pb2.Value(bool_value=plain)
    if (isinstance(plain, int) and abs(plain) <= 2**53) or (isinstance(plain, float) and math.isfinite(plain)):
        return struct_pb2.Value(number_value=plain)
    if isinstance(plain, Mapping):
        return struct_pb2.Value(struct_value=struct_of(plain))
    if isinstance(plain, list | tuple):
        return struct_pb2.Value(list_value=struct_pb2.ListValue(values=[value_of(each) for each in plain]))
    return struct_pb2.Value(string_value=str(plain))


def field_changes(changes: Iterable[FieldChange]) -> list[pb.FieldChange]:
    return [
        pb.FieldChange(
            path=path_text(each.path),
            before=value_of(each.before) if each.had else None,
            after=value_of(each.after) if each.has else None,
        )
        for each in changes
    ]


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
