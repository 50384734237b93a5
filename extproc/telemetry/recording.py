"""Writes a recording (see `extproc.core.recording`) to files while the service runs.

`Recorder` is what a pool's driver calls, once for each event, from the event loop's thread. It makes a line of it and
puts that into a buffer. A thread of its own compresses and writes the buffer at least once a second, so that no disk is
ever waited for. Nothing that goes wrong here reaches a request: on the first error, and when the disk falls
`_MOST_BEHIND` bytes behind, recording stops for good, with one log line and one call of `on_stop`. It does not go on
after a gap: what is written up to then can still be played exactly.

One that is begun in mid-life (`endpoints`) has no part 1: nobody can play exactly what began before it, and
`fairlane replay` says so. As traffic it is as good as any.

`Parts` is the files: `name` is being written, `name.1` is the part before it, up to `keep` files in all. Their sizes
are bounded to `max_bytes` each, but for the last buffer.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import stat
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import orjson
import structlog

from extproc.core.events import Effect, EndpointAdded, EndpointRemoved, Event, Reconfigure
from extproc.core.model import PoolPolicy
from extproc.core.plain import Plain
from extproc.core.recording import Clock, Header, Names, header_to_plain, record_to_plain

log = structlog.get_logger()

_FLUSH_S = 1.0
_FULL = 256 * 1024  # bytes of a buffer that is written at once
_MOST_BEHIND = 16 * 1024**2  # bytes
_GZIP = 31  # zlib's code for a gzip frame with the largest window


class Parts:
    """The files of one recording. Synchronous; any OSError is the caller's to handle."""

    def __init__(
        self, path: Path, *, max_bytes: int, keep: int, opener: Callable[[Path], BinaryIO] | None = None
    ) -> None:
        """`path`: gzip if its name ends so. What is there already is put aside, not written on."""
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._open = opener or _create
        self._packed = path.suffix == ".gz"
        self._file: BinaryIO | None = None
        self._packer = zlib.compressobj(wbits=_GZIP)
        self._size = 0

    @property
    def path(self) -> Path:
        """Of the part that is being written."""
        return self._path

    @property
    def full(self) -> bool:
        return self._size >= self._max_bytes

    def begin(self, header: bytes) -> None:
        """Put the last part aside and start one with `header`."""
        self.close()
        self._put_aside()
        self._file = self._open(self._path)
        self._packer = zlib.compressobj(wbits=_GZIP)
        self._size = 0
        self.write(header)

    def write(self, lines: bytes) -> None:
        """Append whole lines. After it they are the operating system's: a kill of this process loses none."""
        if self._packed:
            lines = self._packer.compress(lines) + self._packer.flush(zlib.Z_SYNC_FLUSH)
        assert self._file is not None  # noqa: S101 - `begin` comes first
        self._file.write(lines)
        self._file.flush()
        self._size += len(lines)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            if self._packed:
                file.write(self._packer.flush(zlib.Z_FINISH))
        finally:
            file.close()

    def _put_aside(self) -> None:
        if not self._path.exists():
            return
        for number in range(self._keep - 1, 0, -1):
            older = self._aside(number)
            newer = self._path if number == 1 else self._aside(number - 1)
            if newer.exists():
                newer.replace(older)
        self._path.unlink(missing_ok=True)  # there still where only one file is kept

    def _aside(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _create(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "wb")


def is_recording(path: Path) -> bool:
    """Whether a file may be put aside for another recording: it is one, or empty. Raises OSError."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return False
        start = file.read(256)
    if start.startswith(b"\x1f\x8b"):
        with suppress(zlib.error):
            start = zlib.decompressobj(wbits=_GZIP).decompress(start, 64)
    return not start or start.startswith(b'{"fairlane_recording"')


class _Header(bytes):
    """In the buffer: a part begins here."""


class Recorder:
    """One pool's recording. `write` and `close` are called from one thread."""

    def __init__(
        self,
        parts: Parts,
        policy: PoolPolicy,
        *,
        version: str,
        hashed: bool,
        on_stop: Callable[[], None] = lambda: None,
        epoch: Callable[[], float] = time.time,
        endpoints: Iterable[str] | None = None,
    ) -> None:
        """`policy`: of the scheduler just now. `endpoints`: those that it has, where it is at work already; None: it
        begins, and nothing has been applied yet. `on_stop` is called, from either thread, when an error has ended the
        recording. Starts the writer's thread; a file is touched at the first event."""
        self._parts = parts
        self._on_stop = on_stop
        self._epoch = epoch
        self._version = version
        self._run = secrets.token_hex(8)
        self._part = 0 if endpoints is None else 1
        self._policy = policy
        self._names = Names(secrets.token_hex(16), policy.separator) if hashed else Names()
        self._endpoints: dict[str, None] = dict.fromkeys(endpoints or ())  # a set that keeps its order
        self._buffer: list[bytes] = []
        self._size = 0  # bytes in the buffer
        self._behind = 0  # bytes in the buffer and in the writer's hands
        self._lock = threading.Lock()  # around those three; never held while a file is touched
        self._turn = True  # the next line goes into a new part
        self._something = threading.Event()
        self._hurry = threading.Event()
        self._closing = False
        self.stopped = False  # by an error
        self._thread = threading.Thread(target=self._work, name=f"recording {policy.name}", daemon=True)
        self._thread.start()

    def write(self, event: Event, now: float, effects: Sequence[Effect], raised: str | None = None) -> None:
        """One event that the scheduler has taken in at `now`, and what came of it; `raised`: the name of the exception,
        where it failed. Never raises, never waits."""
        if self.stopped or self._closing:
            return
        try:
            if self._turn:
                self._put(_Header(self._header(now)))
                self._turn = False
            self._follow(event)
            self._put(_line(record_to_plain(event, now, effects, self._names, raised)))
        except Exception as error:
            self._stop(error)

    def end(self) -> None:
        """Take nothing more. What is there is written, and nobody waits for it."""
        self._closing = True
        self._hurry.set()
        self._something.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what is there, and end. Waits for the disk."""
        self.end()
        self._thread.join(timeout_s)

    async def closed(self, timeout_s: float = 5.0) -> bool:
        """As `close`, while the event loop goes on. Whether all is written: the same file may be recorded to again."""
        self.end()
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    # -- the caller's thread ----------------------------------------------------------------------

    def _put(self, line: bytes) -> None:
        with self._lock:
            self._buffer.append(line)
            self._size += len(line)
            self._behind += len(line)
        if self._behind > _MOST_BEHIND:
            raise OSError(f"the disk is {self._behind} bytes behind")
        # The writer clears it together with the buffer: a line that finds it set is taken with the others.
        if not self._something.is_set():
            self._something.set()
        if self._size >= _FULL:
            self._hurry.set()

    def _header(self, now: float) -> bytes:
        self._part += 1
        header = Header(
            fairlane=self._version,
            run=self._run,
            part=self._part,
            pool=self._policy.name,
            clock=Clock(now, self._epoch()),
            endpoints=tuple(self._endpoints),
            policy=self._names.policy(self._policy),
            salt=self._names.salt,
            separator=self._names.separator,
        )
        return _line(header_to_plain(header))

    def _follow(self, event: Event) -> None:
        """What the header of the next part has to say."""
        match event:
            case EndpointAdded():
                self._endpoints[event.endpoint] = None
            case EndpointRemoved():
                self._endpoints.pop(event.endpoint, None)
            case Reconfigure():
                self._policy = event.policy

    # -- the writer's thread ----------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self.stopped and not (self._closing and not self._buffer):
                self._something.wait()
                self._hurry.wait(_FLUSH_S)
                self._write_buffer()
            self._parts.close()
        except Exception as error:
            self._stop(error)
            with suppress(OSError):
                self._parts.close()

    def _write_buffer(self) -> None:
        with self._lock:
            lines, self._buffer = self._buffer, []
            size, self._size = self._size, 0
            self._something.clear()
            if not self._closing:
                self._hurry.clear()
        begin = 0
        for place, line in enumerate(lines):
            if isinstance(line, _Header):
                self._write_lines(lines[begin:place])
                self._parts.begin(line)
                begin = place + 1
        self._write_lines(lines[begin:])
        with self._lock:
            self._behind -= size
            # One that waits in the buffer ends this part as well.
            if self._parts.full and not any(isinstance(line, _Header) for line in self._buffer):
                self._turn = True

    def _write_lines(self, lines: list[bytes]) -> None:
        if lines:
            self._parts.write(b"".join(lines))

    def _stop(self, error: Exception) -> None:
        if self.stopped:
            return
        self.stopped = True
        self._buffer = []
        self._hurry.set()
        self._something.set()
        log.error(
            "recording_stopped",
            pool=self._policy.name,
            error=str(error) or type(error).__name__,
            cure="make room or repair the file's place, and record anew; requests are served as before",
        )
        self._on_stop()


def _line(value: Plain) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a name that is no UTF-8, or a number of more than 64 bits
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"
