"""The section `recording` of `fairlane.yaml`: traffic and decisions written to a file, for `fairlane replay`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from extproc.config.section import Section
from extproc.config.units import Bytes

_LEAST = 64 * 1024


class Recording(Section):
    """Off unless `file` is given."""

    file: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    directory: Annotated[str, Field(min_length=1, max_length=4096)] | None = None  # for `fairlane ctl record start`
    max_size: Bytes = 64 * 1024**2
    keep: Annotated[int, Field(ge=1, le=1000)] = 4  # files for each pool, the one being written among them
    tenants: Literal["plain", "hashed"] = "plain"

    @field_validator("file", "directory")
    @classmethod
    def _path(cls, value: str | None) -> str | None:
        if value is not None and "\0" in value:
            raise ValueError("must be a path, and has a zero character")
        return value

    @field_validator("max_size")
    @classmethod
    def _room(cls, value: int) -> int:
        if value < _LEAST:
            raise ValueError("must be at least 64KiB: every file begins with the pool's whole policy")
        return value

    def present(self, pools: Iterable[str]) -> list[Path]:
        """Files of an earlier recording of the same name. A new one puts them aside, and drops what is more than
        `keep`: to begin one in mid-life, ask for another name. Raises OSError where nobody may look."""
        paths = [path for path in map(self.file_of, pools) if path is not None]
        return [path for path in paths if path.exists() or path.with_name(f"{path.name}.1").exists()]

    def file_of(self, pool: str) -> Path | None:
        """Each pool has a file of its own: `traffic.jsonl.gz` is `traffic.<pool>.jsonl.gz`. None: recording is off."""
        if self.file is None:
            return None
        path = Path(self.file)
        stem, dot, rest = path.name.partition(".")
        if not stem:  # ".traffic" is all name
            return path.with_name(f"{path.name}.{pool}")
        return path.with_name(f"{stem}.{pool}{dot}{rest}")
