"""Whether the configuration file is another than it was.

A change is seen by modification time, size and inode, so that an edit in place, a renamed copy and the changed link of
a mounted Kubernetes ConfigMap all count. No watcher of the file system is needed, and network file systems count too.
Whether another file is another configuration is for its reader to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

POLL_S = 1.0


class FileWatch:
    """Of one path. To be made before the file is read, or else a change in between is told the first time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> bool:
        """Whether the file is another than at the last call; the first time always. One `stat`. A file that is gone
        is another one too."""
        now = self._signature()
        before, self._seen = self._seen, now
        return now != before

    async def watch(self, on_change: Callable[[], Awaitable[object]], every_s: float = POLL_S) -> None:
        """Await `on_change` at once and after each change; return never. What it raises ends the watch."""
        while True:
            if await asyncio.to_thread(self.changed):
                await on_change()
            await asyncio.sleep(every_s)

    def _signature(self) -> tuple[int, ...]:
        try:
            stat = self.path.stat()
        except (OSError, ValueError) as error:  # ValueError: a path that no system has
            return (getattr(error, "errno", None) or -1,)
        return (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)
