"""compose.yaml as `docker compose` reads it: with its variables filled in, and one profile chosen."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "compose.yaml"

_VARIABLE = re.compile(r"\$(?:(?P<escaped>\$)|\{(?P<name>[A-Z_]+):-(?P<default>[^}]*)\})")


def read(given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`given`: environment variables."""
    return _filled(yaml.safe_load(FILE.read_text()), given or {})


def of_profile(profile: str, given: Mapping[str, str] | None = None) -> dict[str, dict[str, Any]]:
    """The services that run with this profile."""
    services = read(given)["services"]
    return {name: s for name, s in services.items() if profile in s.get("profiles", [profile])}


def docker_compose() -> str:
    """Where it is. Skips where it is not, and fails in CI."""
    found = shutil.which("docker-compose")
    if found is None:
        reason = "docker-compose is not installed (Debian: apt install docker-compose)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def _filled(value: Any, given: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(inner, given) for key, inner in value.items()}
    if isinstance(value, list):
        return [_filled(inner, given) for inner in value]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda m: "$" if m["escaped"] else given.get(m["name"]) or m["default"], value)
    return value
