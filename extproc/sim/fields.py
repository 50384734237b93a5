"""Reading fields of a JSON body as leniently as vLLM does, and refusing them in its words.

vLLM's models are pydantic's in lax mode: ``"7"``, ``1.0`` and ``true`` are integers, ``"yes"`` is a boolean.
"""

from __future__ import annotations

import re
import reprlib
from typing import Any, Final

JsonObject = dict[str, Any]

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
# Python refuses to convert more than 4,300 digits.
_INTEGER: Final = re.compile(r"\s*[+-]?\d{1,4000}(\.0+)?\s*", re.ASCII)
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "on", "t", "true", "y", "yes"), True),
    **dict.fromkeys(("0", "off", "f", "false", "n", "no"), False),
}


class ApiError(Exception):
    """The request is answered with an error. ``kind`` and ``param`` as in vLLM's error object."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status: Final = status
        self.kind: Final = kind
        self.param: Final = param

    def body(self) -> JsonObject:
        return {"error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}}


def invalid(problem: str, name: str | None, message: str, value: object = None) -> ApiError:
    """A refusal by the body's model. ``reprlib`` because the value may be large or deep."""
    loc = f"body.{name}" if name else "body"
    detail = f"{{'type': '{problem}', 'loc': '{loc}', 'msg': '{message}', 'input': {reprlib.repr(value)}}}"
    return ApiError(400, f"1 validation error:\n  {detail}", "Bad Request", loc)


def integer(body: JsonObject, name: str, default: int) -> int:
    """The field as an integer; absent gives the default, null is refused."""
    if name not in body:
        return default
    value = body[name]
    if isinstance(value, int):  # a bool too
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        text = "Input should be a valid integer, got a number with a fractional part"
        raise invalid("int_from_float", name, text, value)
    if isinstance(value, str):
        if _INTEGER.fullmatch(value):
            return int(value.split(".")[0])
        text = "Input should be a valid integer, unable to parse string as an integer"
        raise invalid("int_parsing", name, text, value)
    raise invalid("int_type", name, "Input should be a valid integer", value)


def optional_integer(body: JsonObject, name: str) -> int | None:
    """The field as an integer; None when absent or null."""
    return None if body.get(name) is None else integer(body, name, 0)


def boolean(body: JsonObject, name: str) -> bool:
    """The field as a boolean; absent and null are False."""
    value = body.get(name)
    if value is None:
        return False
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and (known := _BOOLEANS.get(value.lower())) is not None:
        return known
    raise invalid("bool_parsing", name, "Input should be a valid boolean, unable to interpret input", value)


def string(body: JsonObject, name: str) -> str | None:
    """The field as a string; None when absent or null."""
    value = body.get(name)
    if value is None or isinstance(value, str):
        return value
    raise invalid("string_type", name, "Input should be a valid string", value)
