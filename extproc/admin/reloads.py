"""The configuration file, read again while the service runs.

A new file is taken if it is a configuration by itself and with what was changed live. One that is none is kept out, and
the one before it goes on. One that only does not fit what is in force now is tried again after each change.

Reading and parsing need no turn: a file of a hung mount delays no change. Nor do they wait for a writer: a pipe in the
place of the file is refused. What was no regular file at the start has been read to its end, and is never read again.

Whoever asks while a reading is under way shares the next one with all others who do. So signals without end cost one
reading at a time, and operators have their turn after each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path

import grpc
import structlog

from extproc.admin.change import Change, Made
from extproc.admin.errors import AdminError
from extproc.admin.in_force import InForce
from extproc.admin.ledger import Ledger
from extproc.admin.records import Kind, service
from extproc.config.faults import ConfigError
from extproc.config.file_watch import FileWatch
from extproc.config.load import FileData, read_again

log = structlog.get_logger()


class Reloads:
    """For one ledger."""

    def __init__(
        self,
        ledger: Ledger,
        in_turn: Callable[[Callable[[], Coroutine[object, object, bool]]], Awaitable[bool]],
        changed: Callable[[], Awaitable[None]],
    ) -> None:
        """`in_turn`: carries out a change alone. `changed`: called after one, still in its turn."""
        self.error: str | None = None  # why the file as it is now is not in force
        self._ledger = ledger
        self._in_turn = in_turn
        self._changed = changed
        self._refused: FileData | None = None  # a configuration by itself
        self._tried: InForce | None = None  # what it did not fit
        self._reading = asyncio.Lock()
        self._next: asyncio.Task[bool] | None = None  # has not begun to read
        self._tasks: set[asyncio.Task[bool]] = set()  # the loop itself holds them weakly

    async def watch(self) -> None:
        """Read the file at once and when it changes; return never."""
        file = self._ledger.now.file
        if file.path is None or not file.again:
            await asyncio.Event().wait()
        else:
            await FileWatch(file.path).watch(lambda: self.reload("the file changed"))

    async def reload(self, why: str) -> bool:
        """Read the file as it is from now on. Whether it is in force then; if not, `error` says why. Raises nothing."""
        if self._next is None:
            self._next = task = asyncio.get_running_loop().create_task(self._reload(why))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(self._next)

    async def try_again(self) -> bool:
        """Take the file that did not fit, if something else is in force than then. Whether that was done. In the turn
        of its caller."""
        if self._refused is None or self._tried is self._ledger.now:
            return False
        return await self._take("what is in force changed", self._refused, again=True)

    async def _reload(self, why: str) -> bool:
        async with self._reading:
            self._next = None
            file = self._ledger.now.file
            if file.path is None or not self._ledger.serving:
                return False
            if not file.again:
                log.warning(
                    "config_file_not_read_again",
                    path=str(file.path),
                    note="it came through a pipe; start from a regular file, or change it by the admin API",
                )
                return False
            known = [file] if self._refused is None else [file, self._refused]
            try:
                found = await asyncio.to_thread(_read, file.path, known)
            except Exception as error:  # whatever it is, what was in force goes on
                self._refused = None
                await self._refuse(why, error)
                return False
            return await self._in_turn(lambda: self._reloaded(why, found))

    async def _reloaded(self, why: str, file: FileData) -> bool:
        before = self._ledger.now
        taken = await self._take(why, file)
        if self._ledger.now is not before:
            await self._changed()
        return taken

    async def _take(self, why: str, file: FileData, *, again: bool = False) -> bool:
        """Whether it is in force now."""
        if not self._ledger.serving:
            return False
        try:
            if file.sha256 != self._ledger.now.file.sha256:
                change = Change(Kind.FILE_RELOAD, service("reload"), why, lambda now, *_: _over(now, file), must=True)
                await self._ledger.carry_out(change)
        except Exception as error:  # as above
            self._refused, self._tried = file, self._ledger.now
            await self._refuse(why, error, tell=not again)
            return False
        self._refused = self._tried = None
        if self.error is not None:
            log.info("config_file_good_again", path=str(file.path))
        self.error = None
        return True

    async def _refuse(self, why: str, error: Exception, *, tell: bool = True) -> None:
        """Told once for each thing that is wrong."""
        expected = isinstance(error, ConfigError | AdminError)
        message = str(error) if expected else f"{type(error).__name__}: {error}"
        known, self.error = self.error, message
        if message == known or not tell:
            return
        log.error(
            "config_file_refused",
            path=str(self._ledger.now.file.path),
            error=message,
            note="what was in force goes on",
            exc_info=None if expected else error,
        )
        code = error.code if isinstance(error, AdminError) else grpc.StatusCode.INVALID_ARGUMENT
        audit = self._ledger.audit
        await audit.add(audit.new(service("reload"), why, outcome=code.name, message=message))


def _read(path: Path, known: Sequence[FileData]) -> FileData:
    """Raises ConfigError where it is no configuration by itself."""
    file = read_again(path, known)
    if not any(file is each for each in known):
        file.config()
    return file


def _over(now: InForce, file: FileData) -> Made:
    return Made(now.overlay.folded(file.data), file)
