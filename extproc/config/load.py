"""Reading `fairlane.yaml`, with errors that name the place and the cure.

What environment variables say (`environment`) is laid over the file where it is read, and belongs to it from then on.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from extproc.config import strict_yaml
from extproc.config.blame import Blame
from extproc.config.environment import NOTHING, Environment, Laid
from extproc.config.faults import ConfigError, Fault, path_text
from extproc.config.faults import Path as Place
from extproc.config.model import Config
from extproc.config.schema import keys, meant, step

__all__ = ["ConfigError", "Fault", "FileData", "from_data", "load", "parse", "parse_data", "read_again", "read_file"]


@dataclass(frozen=True, slots=True)
class FileData:
    """What a file holds with the environment over it, before anything is said about whether it can be used."""

    path: Path | None  # None: there is no file
    data: dict[str, Any]  # to be left as it is
    sha256: str  # of the bytes, and of the variables where there are any; in hex
    loaded_at: float = field(default_factory=time.time)  # seconds since 1970
    again: bool = True  # False: it came through a pipe or the like, which has it once
    environment: Environment = NOTHING
    laid: Laid | None = None  # `data`, with the places of the variables
    title: str = "configuration"  # in messages, where there is no file

    @classmethod
    def of(cls, data: dict[str, Any], environment: Environment = NOTHING) -> FileData:
        """Without a file. Raises ConfigError for variables that name nothing."""
        text = yaml.safe_dump(data, sort_keys=False)
        laid = environment.over(data)
        sha256 = environment.sha256(hashlib.sha256(text.encode()).hexdigest())
        return cls(None, laid.data, sha256, environment=environment, laid=laid)

    @classmethod
    def none(cls, environment: Environment) -> FileData:
        """Variables alone. Raises ConfigError for those that name nothing."""
        return replace(cls.of({}, environment), title="the environment")

    def config(self) -> Config:
        """Raises ConfigError."""
        blame = Blame(None if self.laid is None else self.laid.places)
        return _config(self.data, str(self.path or self.title), blame)


def load(path: Path, environ: Mapping[str, str] | None = None) -> Config:
    """Read and validate the file. `environ`: with variables that lie over it. Raises ConfigError."""
    return read_file(path, NOTHING if environ is None else Environment.of(environ)).config()


def read_file(path: Path, environment: Environment = NOTHING) -> FileData:
    """Read the file, without validating what it holds. A pipe is waited for, and read to its end. It may be empty where
    variables say all. Raises ConfigError."""
    content, again = _content(path, wait=True)
    return _parsed(path, content, again, environment)


def read_again(path: Path, known: Sequence[FileData]) -> FileData:
    """Read the file as it is now, with the environment of the first one of `known`, which it takes the place of. What
    is one of them by its bytes is not parsed: the known one is returned. It waits for no writer: what is no regular
    file by now is refused. Raises ConfigError."""
    content, again = _content(path, wait=False)
    environment = known[0].environment if known else NOTHING
    sha256 = environment.sha256(hashlib.sha256(content).hexdigest())
    return next((each for each in known if each.sha256 == sha256), None) or _parsed(path, content, again, environment)


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


def _parsed(path: Path, content: bytes, again: bool, environment: Environment) -> FileData:
    """Raises ConfigError."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    data = _data(text, str(path))
    if data is None and environment.variables:
        data = {}
    laid = environment.over(_mapping(data, str(path)))
    sha256 = environment.sha256(hashlib.sha256(content).hexdigest())
    return FileData(path, laid.data, sha256, again=again, environment=environment, laid=laid)


def parse(text: str, name: str = "configuration") -> Config:
    """Validate the text of a file. Raises ConfigError."""
    return from_data(parse_data(text, name), name)


def parse_data(text: str, name: str = "configuration") -> dict[str, Any]:
    """What the text of a file holds, without validating it. Raises ConfigError."""
    return _mapping(_data(text, name), name)


def _data(text: str, name: str) -> Any:
    """Raises ConfigError."""
    try:
        return strict_yaml.read(text)
    except RecursionError as error:
        raise ConfigError(f"{name}: is nested too deeply") from error
    except strict_yaml.ERRORS as error:
        raise ConfigError(f"{name}: is not YAML: {' '.join(str(error).split())}") from error


def _mapping(data: Any, name: str) -> dict[str, Any]:
    """Raises ConfigError."""
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise ConfigError(f"{name}: expected a mapping with at least the key pools, found {found}")
    return data


def from_data(data: Mapping[str, Any], name: str | None = "configuration") -> Config:
    """Validate what a file holds. `name`: of the file, in messages; None: it is no file that anybody looks into, and
    pools are told by their names. Raises ConfigError."""
    return _config(data, name, Blame())


def _config(data: Mapping[str, Any], name: str | None, blame: Blame) -> Config:
    """Raises ConfigError."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=bool(blame))
        faults = [_fault(each, data, blame) for each in found[:_MOST_FAULTS]]
        if len(found) > _MOST_FAULTS:
            faults.append(Fault("", f"and {len(found) - _MOST_FAULTS} more faults"))
        if name is None:
            lines = [f"{each.path}: {each.message}" if each.path else each.message for each in faults]
        else:
            lines = [_line(each, data, name, blame) for each in found[:_MOST_FAULTS]]
            lines += [f"{name}: {each.message}" for each in faults[_MOST_FAULTS:]]
        raise ConfigError("\n".join(lines), faults) from error


_LARGEST = 64 * 1024**2  # bytes
_LONGEST_MESSAGE = 1000  # characters
_MOST_FAULTS = 100  # more are of one cause


def _line(error: Any, data: Mapping[str, Any], name: str, blame: Blame) -> str:
    """Pools by their place in the list, as the reader of a file counts them."""
    where = ".".join(str(part) for part in error["loc"])
    message = _message(error, blame)
    told = _one_line(f"{where}: {message}" if where else message)
    variable = blame.said(error["loc"])
    if variable is not None:
        return f"{variable}: {told}"
    place = error["loc"] or _said_place(message, data)[0]
    return f"{name}: {told}{blame.has_part(place, error['type'], data)}"


def _one_line(text: str) -> str:
    """Names may have anything in them, ends of lines too."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _fault(error: Any, data: Mapping[str, Any], blame: Blame) -> Fault:
    message = _message(error, blame)
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


def _message(error: Any, blame: Blame) -> str:
    loc = error["loc"]
    if error["type"] == "extra_forbidden":
        return f"unknown key; {meant(str(loc[-1]), _keys_at(loc[:-1]))}"
    if error["type"] == "missing":
        return "is missing"
    message = blame.without_value(str(error["msg"]).removeprefix("Value error, "), error)
    return message if len(message) <= _LONGEST_MESSAGE else message[:_LONGEST_MESSAGE] + "..."


def _keys_at(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the section at `loc` knows."""
    annotation: Any = Config
    for part in loc:
        annotation = step(annotation, part)
    return keys(annotation)
