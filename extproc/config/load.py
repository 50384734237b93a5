"""Reading `fairlane.yaml`, with errors that name the place and the cure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from extproc.config.model import Config


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a part of the configuration."""

    path: str  # "classes.batch.queue_timeout", "pools.llama.window.max_tpot"; empty: the whole, or several
    message: str


class ConfigError(Exception):
    """The configuration cannot be used. The message has a line per fault: where, what, and what was meant."""

    def __init__(self, message: str, faults: Sequence[Fault] = ()) -> None:
        super().__init__(message)
        self.faults = tuple(faults)


def load(path: Path) -> Config:
    """Read and validate the file. Raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    return parse(text, str(path))


def parse(text: str, name: str = "configuration") -> Config:
    """Validate the text of a file. Raises ConfigError."""
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
    return from_data(data, name)


def from_data(data: dict[str, Any], name: str = "configuration") -> Config:
    """Validate what a file holds. Raises ConfigError."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        lines = [f"{name}: {_line(fault)}" for fault in error.errors()]
        raise ConfigError("\n".join(lines)) from error


_MERGE = "tag:yaml.org,2002:merge"  # the key <<


class _Loader(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence; here that is an error."""

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


def _line(fault: Any) -> str:
    where = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        key, known = str(fault["loc"][-1]), _keys_at(fault["loc"][:-1])
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        meant = f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"
        return f"{where}: unknown key; {meant}"
    if fault["type"] == "missing":
        return f"{where}: is missing"
    message = fault["msg"].removeprefix("Value error, ")
    return f"{where}: {message}" if where else message


def _keys_at(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that the section at `loc` knows."""
    annotation: Any = Config
    for part in loc:
        annotation = _step(annotation, part)
    section = _section(annotation)
    return [] if section is None else list(_fields(section))


def _step(annotation: Any, part: str | int) -> Any:
    """What stands at `part` of a section, list or mapping."""
    if get_origin(annotation) in (list, dict):
        return get_args(annotation)[-1]
    section = _section(annotation)
    return None if section is None else _fields(section).get(str(part))


def _section(annotation: Any) -> type[BaseModel] | None:
    """The section itself, or inside Optional[...]."""
    for each in (annotation, *get_args(annotation)):
        if isinstance(each, type) and issubclass(each, BaseModel):
            return each
    return None


def _fields(section: type[BaseModel]) -> dict[str, Any]:
    return {field.alias or name: field.annotation for name, field in section.model_fields.items()}
