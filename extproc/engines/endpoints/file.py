"""Endpoints from a file that is read again when it changes. `listing` has what may stand in it.

A change is seen by modification time, size and inode, looked at each second, so that an edit in place, a renamed copy
and the changed link of a mounted Kubernetes ConfigMap all count; the watchers of operating systems miss the last or do
not work on network file systems. Envoy sees a file only when another is renamed to it, or when the link of a mounted
directory changes that `watched_directory` names: do it in that way where one file feeds both.

A file is taken whole or not at all. One that is broken, gone, or written to while it is read leaves the endpoints as
they were. Half a list is a good list too, so a file that is written in place is left alone until it has been still for
a second, or has not been for five; one that takes another's place by renaming is read at once.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from extproc.config.endpoints import File
from extproc.engines.endpoints import listing
from extproc.engines.endpoints.source import Endpoint, Source, SourceError

POLL_S: Final = 1.0
_LONGEST_UNREST: Final = 5  # looks
_MAX_BYTES: Final = max(listing.MAX_YAML_BYTES, listing.MAX_JSON_BYTES)

_Signature = tuple[int, ...]


class FileSource(Source):
    """One file. `poll_s`: seconds between two looks."""

    def __init__(self, config: File, pool: str, clock: Callable[[], float], poll_s: float = POLL_S) -> None:
        super().__init__(f"file {config.path}", pool, clock)
        self._path = Path(config.path)
        self._cluster = config.cluster
        self._poll_s = poll_s
        self._tried: _Signature | None = None  # of the file as it was last read, or tried to be
        self._seen: _Signature | None = None  # of the file at the last look
        self._unrest = 0  # looks in a row that found it changed in place

    async def _round(self) -> float:
        now = await asyncio.to_thread(self._look)
        if now == self._tried:
            if self.last_error is None:
                self._succeeded()
            self._tell()  # what is broken is not read again, and may not have been said yet
        elif self._is_restless(now):
            self._unrest += 1
        else:
            self._unrest, self._tried = 0, now
            self._found(Endpoint(address) for address in await asyncio.to_thread(self._read))
        self._seen = now
        return self._poll_s

    def _pause_after_failure(self, in_row: int) -> float:  # noqa: ARG002  what is broken is not read again anyway
        return self._poll_s

    def _is_restless(self, now: _Signature) -> bool:
        """Whether somebody may be in the middle of writing: it is the file of the last look and has changed, or is new
        where there was none."""
        if self._seen is None or now == self._seen or self._unrest >= _LONGEST_UNREST:
            return False
        return len(now) > 1 and (len(self._seen) == 1 or now[:2] == self._seen[:2])

    def _look(self) -> _Signature:
        try:
            return _signature(self._path.stat())
        except (OSError, ValueError) as error:
            return (getattr(error, "errno", None) or -1,)

    def _read(self) -> list[str]:
        """Raises SourceError."""
        try:
            if not self._path.is_file() and self._path.exists():
                # to open a pipe would be to wait for its writer
                raise SourceError(f"{self._path}: is a directory or another thing that is no file: name the file")
            with self._path.open("rb") as file:
                before = _signature(os.fstat(file.fileno()))
                data = file.read(_MAX_BYTES + 1)
                settled = before == _signature(os.fstat(file.fileno()))
        except (OSError, ValueError) as error:
            self._tried = None  # the cause may go without a trace in the file
            cause = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"{self._path}: cannot be read: {cause}; it is looked for each second") from None
        if not settled:
            raise SourceError(f"{self._path}: was written to while it was read; write a new file and rename it")
        if len(data) > _MAX_BYTES:
            raise SourceError(f"{self._path}: is larger than {_MAX_BYTES // 1024**2} MiB: is it the right file?")
        try:
            return listing.addresses(data, self._cluster)
        except SourceError as error:
            raise SourceError(f"{self._path}: {error}") from None


def _signature(stat: os.stat_result) -> _Signature:
    return (stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size)
