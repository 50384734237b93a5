"""Values as they are written on the command line: durations and sizes in the notation of `fairlane.yaml`, parts of the
configuration as YAML.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from extproc.config import faults

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_LONGEST_S = 366 * 24 * 3600.0
_SIZE = re.compile(r"(\d+)(B|KiB|MiB|GiB)", re.ASCII)
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_EXACT = 2**53  # a Struct has its numbers as doubles
_MOST_NODES = 1_000_000  # nine lines of anchors are a list of 9^9 entries
_DEEPEST = 64


class _Duration(click.ParamType[float]):
    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = _DURATION.fullmatch(str(value))
        if match is None:
            self.fail(f"{str(value)!r} is no duration with its unit, like 250ms, 30s, 5m or 1h", param, ctx)
        seconds = float(match[1]) * _SECONDS[match[2]]
        if seconds > _LONGEST_S:
            self.fail(f"{str(value)!r} is longer than anything here can last (366 days)", param, ctx)
        return seconds


class _Size(click.ParamType[int]):
    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value))
        if match is None or len(match[1]) > len(str(_EXACT)):
            self.fail(f"{str(value)!r} is no size with its unit, like 32MiB or 2GiB", param, ctx)
        size = int(match[1]) * _BYTES[match[2]]
        if size > _EXACT:
            self.fail(f"{str(value)!r} is more than anything here can have", param, ctx)
        return size


DURATION = _Duration()  # seconds
SIZE = _Size()  # bytes


class _Loader(yaml.SafeLoader):
    """The safe loader without dates: the file has none, and 2026-01-01 may be a tenant. And off is a mode of a pool:
    what is no `true` or `false` is no switch."""


_BOOL = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:timestamp", _BOOL)]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF"))


def parse_yaml(text: str, source: str) -> Any:
    """What the text holds, fit to be sent. Raises click.UsageError, which names `source`."""
    try:
        value = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
        _check(value, source, [0], 0)
    # the others: a tag such as !!int before what is none
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError) as error:
        raise click.UsageError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise click.UsageError(f"{source} is nested too deeply") from None
    return value


def parse_setting(text: str) -> tuple[tuple[str, ...], Any]:
    """`classes.batch.queue_timeout=10m` as its path and value. Raises click.UsageError."""
    at = _first_equals(text)
    if at is None:
        raise click.UsageError(f"expected PATH=VALUE, like classes.batch.queue_timeout=10m, not {text!r}")
    return parse_path(text[:at]), parse_yaml(text[at + 1 :], f"the value of {text[:at]}")


def parse_path(text: str) -> tuple[str, ...]:
    """Names with dots between them; one that has a dot itself in backquotes. Raises click.UsageError."""
    try:
        path = faults.parse_path(text)
    except faults.ConfigError as error:
        raise click.UsageError(f"{text!r} is no path: {error}") from None
    if "`" not in text and any(name[:1] == name[-1:] and name[:1] in ('"', "'") for name in path):
        raise click.UsageError(f"{text!r}: leave the quotes out; a name that has them stands in backquotes")
    return path


def path_text(path: tuple[str, ...]) -> str:
    """As `parse_path` reads it."""
    return faults.path_text(path)


def nested(settings: list[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    """All of them in the shape of the file. Raises click.UsageError where one is beneath another."""
    whole: dict[str, Any] = {}
    taken: dict[tuple[str, ...], bool] = {}  # whether it was named itself
    for path, value in settings:
        if path in taken or any(taken.get(path[:length]) for length in range(1, len(path))):
            raise click.UsageError(f"{path_text(path)} is set twice, or something above it is")
        at = whole
        for length, name in enumerate(path[:-1], 1):
            taken[path[:length]] = False
            at = at.setdefault(name, {})
        at[path[-1]] = value
        taken[path] = True
    return whole


def read_text(file: str, option: str) -> str:
    """Of a file, or with "-" of standard input. Raises click.UsageError."""
    try:
        if file == "-":
            return sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise click.UsageError(f"{option}: {file} is not UTF-8") from None
    except OSError as error:
        raise click.UsageError(f"{option}: {file} cannot be read: {error.strerror or error}") from None


def _first_equals(text: str) -> int | None:
    quoted = False
    for at, character in enumerate(text):
        if character == "`":
            quoted = not quoted
        elif character == "=" and not quoted:
            return at if at else None
    return None


def _check(value: Any, source: str, nodes: list[int], depth: int) -> None:
    nodes[0] += 1
    if nodes[0] > _MOST_NODES or depth > _DEEPEST:
        raise click.UsageError(f"{source} is too large or nested too deeply")
    if isinstance(value, Mapping):
        for key, beneath in value.items():
            if not isinstance(key, str):
                raise click.UsageError(f"{source} has the key {key!r}: keys are texts, quote it")
            _check(beneath, source, nodes, depth + 1)
    elif isinstance(value, list):
        for beneath in value:
            _check(beneath, source, nodes, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise click.UsageError(f"{source} has {value}: a number is needed")
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT:
        raise click.UsageError(f"{source} has a number beyond 2^53, which cannot be sent exactly")
    elif value is not None and not isinstance(value, bool | int | str):
        raise click.UsageError(f"{source} has what is no text, number, list or mapping: quote it")
