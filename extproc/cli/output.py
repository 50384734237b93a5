"""Files that commands write: whether they can be is looked at before the work, not after it; and what made them."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import click

from extproc import __version__


class _Output(click.Path):
    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(str(value), param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r} to write {path.name!r} into", param, ctx)
        return path


OUTPUT = _Output(dir_okay=False, writable=True, path_type=Path)


def made_by() -> dict[str, str]:
    """What is needed to find the same figures again: the command, its version, and on what it ran."""
    return {
        "command": " ".join(["fairlane", *sys.argv[1:]]),
        "fairlane": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
