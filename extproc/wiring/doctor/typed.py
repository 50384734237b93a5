"""Configuration as typed messages, one for each `@type`.

envoy-data-plane parses a whole bootstrap at once, but then one extension that it does not know, or one bad value, makes
all of it unreadable; and it unpacks an `Any` only if the module of its type has been imported. So a message is made of
each object that has an `@type` by itself, without those inside it; they are read where somebody asks for them. What
cannot be read is a hit, never an exception. Unknown members (of a newer Envoy) are left out, and said.
"""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar

import betterproto2

from extproc.wiring.doctor.finding import Hit

M = TypeVar("M", bound=betterproto2.Message, covariant=True)
T = TypeVar("T", bound=betterproto2.Message)

_TYPE_NAME = re.compile(r"([a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)\.([A-Z][A-Za-z0-9]*)\Z")
# Istio and others wrap a message that their own control plane does not know into one of these.
_WRAPPERS = frozenset({"udpa.type.v1.TypedStruct", "xds.type.v3.TypedStruct"})


@dataclass(frozen=True, slots=True)
class Part(Generic[M]):
    """A message, where it stands, and the text that it was read from."""

    where: str
    message: M
    raw: Mapping[str, Any]


class Reader:
    """Reads parts and keeps what it could not read. Every object is read once."""

    def __init__(self) -> None:
        self.not_checked: dict[str, Hit] = {}  # by place
        self.invalid: dict[str, Hit] = {}

    def read(self, cls: type[T], raw: object, where: str) -> Part[T] | None:
        """`raw` as a message of the class; None: it is no such message."""
        if not isinstance(raw, Mapping):
            self.invalid[where] = Hit(where, f"a {cls.__name__} is expected here, not {_shown(raw)}")
            return None
        try:
            bare = {key: value for key, value in _without_types(raw).items() if key != "@type"}
            return Part(where, self._message(cls, bare, where), raw)
        except Exception as error:  # the library raises what its depths raise, pydantic's errors among them
            reason = " ".join(str(error).replace("For further information visit", "see").split())
            self.invalid[where] = Hit(where, f"is no {cls.__name__}: {reason or type(error).__name__}")
            return None

    def read_any(self, raw: object, where: str) -> Part[betterproto2.Message] | None:
        """A message of the type that it names; None: not known here, or not readable."""
        if type_name(raw) in _WRAPPERS and isinstance(raw, Mapping) and isinstance(raw.get("value"), Mapping):
            raw, where = {**raw["value"], "@type": raw.get("type_url", "")}, f"{where}.value"
        name = type_name(raw)
        cls = class_of(name)
        if cls is None:
            self.not_checked[where] = Hit(where, f"of a type that is not known here: {name or 'no @type is given'}")
            return None
        return self.read(cls, raw, where)

    def read_as(self, cls: type[T], raw: object, where: str) -> Part[T] | None:
        """A message that names the type of the class; None, in silence, if it names another one."""
        part = self.read_any(raw, where)
        return Part(part.where, part.message, part.raw) if part is not None and isinstance(part.message, cls) else None

    def _message(self, cls: type[T], bare: Mapping[str, Any], where: str) -> T:
        message, unknown = _parsed(cls, json.dumps(bare, default=str))
        if unknown is not None:
            self.not_checked[where] = Hit(where, f"holds what is not known here: {unknown}")
        return message  # type: ignore[return-value]


@lru_cache(maxsize=1024)
def _parsed(cls: type[betterproto2.Message], text: str) -> tuple[betterproto2.Message, str | None]:
    """The message, and a member that it does not know. Kept, since many checks ask for the same part and routes are
    much alike; nobody changes a message."""
    data = json.loads(text)
    try:
        return cls.from_dict(data), None
    except KeyError as error:
        return cls.from_dict(data, ignore_unknown_fields=True), str(error.args[0]).rstrip(".")


def type_name(raw: object) -> str:
    """`envoy.config.cluster.v3.Cluster`; empty where none is given."""
    given = raw.get("@type") if isinstance(raw, Mapping) else None
    return given.rpartition("/")[2] if isinstance(given, str) else ""


def class_of(name: str) -> type[betterproto2.Message] | None:
    match = _TYPE_NAME.match(name)
    if match is None:
        return None
    try:
        found = getattr(importlib.import_module(f"envoy_data_plane.{match[1]}"), match[2], None)
    except ImportError:
        return None
    return found if isinstance(found, type) and issubclass(found, betterproto2.Message) else None


def _without_types(value: Any) -> Any:
    """`value` without the objects inside it that have an `@type` of their own, or should."""
    if isinstance(value, Mapping):
        return {
            key: _without_types(inner) for key, inner in value.items() if key != "typed_config" and not _is_typed(inner)
        }
    if isinstance(value, list):
        return [_without_types(inner) for inner in value if not _is_typed(inner)]
    return str(value) if isinstance(value, str) else value


def _is_typed(value: object) -> bool:
    return isinstance(value, Mapping) and "@type" in value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
