"""Files that commands write: whether they can be is looked at before the work, not after it."""

from __future__ import annotations

from pathlib import Path

import click


class _Output(click.Path):
    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(str(value), param, ctx)))
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r} to write {path.name!r} into", param, ctx)
        return path


OUTPUT = _Output(dir_okay=False, writable=True, path_type=Path)
