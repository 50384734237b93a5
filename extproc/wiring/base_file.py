"""The files that ship: `envoy/envoy.yaml` and the Lua filters beside it, as package data in a wheel, at the root in
a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_PACKAGED = Path(__file__).parent / "data"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml's is ten times as fast, where it is built in
_CHECKOUT = Path(__file__).parents[2] / "envoy"


class EnvoyFileError(Exception):
    """A shipped file is missing, unreadable or lacks a part that has to be filled in."""


def path(name: str = "envoy.yaml") -> Path:
    """Where a shipped file is. Raises EnvoyFileError."""
    for candidate in (_PACKAGED / name, _CHECKOUT / name):
        if candidate.is_file():
            return candidate
    raise EnvoyFileError(f"{name} is missing: looked in {_PACKAGED} and {_CHECKOUT}; install fairlane again")


def load(source: Path | None = None) -> dict[str, Any]:
    """The configuration as data. `source`: another file than the shipped one. Raises EnvoyFileError."""
    source = source or path()
    try:
        data = yaml.load(source.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - both are safe
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise EnvoyFileError(f"{source}: cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise EnvoyFileError(f"{source}: expected a mapping, found {type(data).__name__}")
    return data


def lua(name: str) -> str:
    """The source of a filter: facts, spread, append or usage. Raises EnvoyFileError."""
    source = path(f"lua/{name}.lua")
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EnvoyFileError(f"{source}: cannot be read: {error}") from error
