"""Reading `fairlane.yaml`, with errors that name the place and the cure."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from extproc.config.faults import ConfigError, Fault, path_text
from extproc.config.faults import Path as Place
from extproc.config.model import Config
from extproc.config.schema import keys, meant, step

__all__ = ["ConfigError", "Fault", "FileData", "from_data", "load", "parse", "parse_data", "read_again", "read_file"]


@dataclass(frozen=True, slots=True)
class FileData:
    """What a file holds, before anything is said about whether it can be used."""

    path: Path | None  # None: there is no file
    data: dict[str, Any]  # to be left as it is
    sha256: str  # of the bytes, in hex
    loaded_at: float = field(default_factory=time.time)  # seconds since 1970
    again: bool = True  # False: it came through a pipe or the like, which has it once

    @classmethod
    def of(cls, data: dict[str, Any]) -> FileData:
        """Without a file."""
        return cls(None, data, hashlib.sha256(yaml.safe_dump(data, sort_keys=False).encode()).hexdigest())


def load(path: Path) -> Config:
    """Read and validate the file. Raises ConfigError."""
    return from_data(read_file(path).data, str(path))


def read_file(path: Path) -> FileData:
    """Read the file, without validating what it holds. A pipe is waited for, and read to its end. Raises
    ConfigError."""
    content, again = _content(path, wait=True)
    return _parsed(path, content, again)


def read_again(path: Path, known: Sequence[FileData]) -> FileData:
    """Read the file as it is now. What is one of `known` by its bytes is not parsed: the known one is returned. It
    waits for no writer: what is no regular file by now is refused. Raises ConfigError."""
    content, again = _content(path, wait=False)
    sha256 = hashlib.sha256(content).hexdigest()
    return next((each for each in known if each.sha256 == sha256), None) or _parsed(path, content, again)


def _content(path: Path, *, wait: bool) -> tuple[bytes, bool]:
    """And whether it is a regular file. Raises ConfigError."""
    try:
        with open(path, "rb", opener=None if wait else _open_at_once) as file:
            before = os.fstat(file.fileno())
            regular = stat.S_ISREG(before.st_mode)
            if not (regular or wait):
                raise ConfigError(f"{path}: is no regular file by now: put one there, by renaming it")
            content = file.read(_LARGEST + 1)
            after = os.fstat(file.fileno())
    except (OSError, ValueError) as error:  # ValueError: a path that no system has
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: is larger than {_LARGEST // 1024**2} MiB")
    if regular and (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise ConfigError(f"{path}: was written to while it was read; write a new file and rename it")
    return content, regular


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _parsed(path: Path, content: bytes, again: bool) -> FileData:
    """Raises ConfigError."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return FileData(path, parse_data(text, str(path)), hashlib.sha256(content).hexdigest(), again=again)


def parse(text: str, name: str = "configuration") -> Config:
    """Validate the text of a file. Raises ConfigError."""
    return from_data(parse_data(text, name), name)


def parse_data(text: str, name: str = "configuration") -> dict[str, Any]:
    """What the text of a file holds, without validating it. Raises ConfigError."""
    try:
        data = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader that refuses duplicate keys
    # ValueError: 2026-99-99 has the form of a date; the others: a tag such as !!int before what is none
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        raise ConfigError(f"{name}: is not YAML: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: is nested too deeply") from error
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise ConfigError(f"{name}: expected a mapping with at least the key pools, found {found}")
    return data


def from_data(data: Mapping[str, Any], name: str | None = "configuration") -> Config:
    """Validate what a file holds. `name`: of the file, in messages; None: it is no file that anybody looks into, and
    pools are told by their names. Raises ConfigError."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        faults = [_fault(each, data) for each in found[:_MOST_FAULTS]]
        if len(found) > _MOST_FAULTS:
            faults.append(Fault("", f"and {len(found) - _MOST_FAULTS} more faults"))
        if name is None:
            lines = [f"{each.path}: {each.message}" if each.path else each.message for each in faults]
        else:
            lines = [f"{name}: {_line(each)}" for each in found[:_MOST_FAULTS]]
            lines += [f"{name}: {each.message}" for each in faults[_MOST_FAULTS:]]
        raise ConfigError("\n".join(lines), faults) from error


_MOST_LEVELS = 64
_LARGEST = 64 * 1024**2  # bytes
_LONGEST_MESSAGE = 1000  # characters
_MOST_FAULTS = 100  # more are of one cause
_MERGE = "tag:yaml.org,2002:merge"  # the key <<


class _Loader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence; here that is an error. And nesting has a bound of its own,
    since what may follow it down is deeper in the stack at times."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _MOST_LEVELS:
            raise RecursionError
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} stands there twice", key_node.start_mark
                )
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep)


def _refuse(_: yaml.SafeLoader, node: yaml.Node) -> None:
    raise yaml.constructor.ConstructorError(None, None, f"{node.tag} has no place here", node.start_mark)


# What these make is no data that JSON has too, and pydantic would take some of it for lists and texts.
for _tag in ("binary", "omap", "pairs", "set"):
    _Loader.add_constructor(f"tag:yaml.org,2002:{_tag}", _refuse)


def _line(error: Any) -> str:
    """Pools by their place in the list, as the reader of a file counts them."""
    where = ".".join(str(part) for part in error["loc"])
    return f"{where}: {_message(error)}" if where else _message(error)


def _fault(error: Any, data: Mapping[str, Any]) -> Fault:
    message = _message(error)
    path, message = (_named_path(error["loc"], data), message) if error["loc"] else _said_place(message, data)
    return Fault(path_text(path), message)


def _named_path(loc: tuple[str | int, ...], data: Mapping[str, Any]) -> Place:
    """Pools by name, where they have one."""
    parts = [str(part) for part in loc]
    if loc[0] == "pools" and len(loc) > 1:
        try:
            name = data["pools"][loc[1]]["name"]
        except (LookupError, TypeError):
            name = None
        parts[1] = name if isinstance(name, str) else parts[1]
    return tuple(parts)


def _said_place(message: str, data: Mapping[str, Any]) -> tuple[Place, str]:
    """What is wrong with several sections together has no place but the one that its message begins with:
    "tenants: acme: ..."."""
    section, colon, rest = message.partition(": ")
    if not colon or section not in keys(Config):
        return (), message
    found = data.get(section)
    names = {
        "tenants": list(found) if isinstance(found, dict) else [],
        "pools": [pool.get("name") for pool in found if isinstance(pool, dict)] if isinstance(found, list) else [],
    }.get(section, [])
    begins = [name for name in names if isinstance(name, str) and rest.startswith(f"{name}: ")]
    if begins:
        name = max(begins, key=len)
        return (section, name), rest.removeprefix(f"{name}: ")
    place, colon, more = rest.partition(": ")
    if section == "identity" and colon and " " not in place:
        return (section, *place.split(".")), more
    return (section,), rest


def _message(error: Any) -> str:
    loc = error["loc"]
    if error["type"] == "extra_forbidden":
        return f"unknown key; {meant(str(loc[-1]), _keys_at(loc[:-1]))}"
    if error["type"] == "missing":
        return "is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."


def _keys_at(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the section at `loc` knows."""
    annotation: Any = Config
    for part in loc:
        annotation = step(annotation, part)
    return keys(annotation)
