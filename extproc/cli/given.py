"""The configuration that `serve` and `check-config` are given: a file, environment variables, or both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from extproc.config.environment import Environment
from extproc.config.load import FileData, read_file

DEFAULT = Path("fairlane.yaml")


def given(path: Path | None, environ: Mapping[str, str]) -> FileData:
    """`path`: None: the file of the usual name, or no file where that one is not there and variables say something.
    Raises ConfigError."""
    environment = Environment.of(environ)
    if path is None and environment.variables and not DEFAULT.exists():
        return FileData.none(environment)
    return read_file(path or DEFAULT, environment)
