"""Configurations for tests: a pool that is good, and what is said of one that is not."""

from __future__ import annotations

from typing import Any

import pytest

from extproc.config.load import ConfigError, from_data
from extproc.config.model import Config

POOL: dict[str, Any] = {"name": "sim", "models": ["m"], "endpoints": ["127.0.0.1:8001"]}


def errors(data: Any) -> list[str]:
    """One line for each fault, without the file's name."""
    with pytest.raises(ConfigError) as error:
        from_data(data, "f.yaml")
    lines = str(error.value).split("\n")
    assert all(line.startswith("f.yaml: ") for line in lines)
    return [line.removeprefix("f.yaml: ") for line in lines]


def error(pool: dict[str, Any] | None = None, **rest: Any) -> str:
    (line,) = errors({"pools": [{**POOL, **(pool or {})}], **rest})
    return line


def good(pool: dict[str, Any] | None = None, **rest: Any) -> Config:
    return from_data({"pools": [{**POOL, **(pool or {})}], **rest})
