"""Files of secrets by their SHA-256, with what each one stands for. They are read again when they change.

A file whose name ends in `.json` is read as JSON, any other as YAML. JSON is a hundred times faster, which tells from
a few thousand entries on: reading happens in a thread, but takes the interpreter from the requests by turns.

A change is seen by modification time, size and inode, so that an edit in place, a renamed copy and the changed link of
a mounted Kubernetes secret all count. No watcher of the file system is needed, and network file systems count too.
A file is taken whole or not at all: one that is broken, gone or written to while it is read leaves the entries as they
were, is told once, and is tried again when it changes again. Half a file can still be good YAML, so a new one should be
written beside the old one and renamed.

Digests are looked up in a dict, not compared in constant time. What a clock could tell is how a digest begins, and no
secret can be made from that: its digest is of the sender's making only by trying secrets. Secrets that can be guessed
are another matter; one should be 128 random bits or more.

No text of the file goes into errors or logs, since what stands in the place of a digest may be a secret.
"""

from __future__ import annotations

import asyncio
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import structlog
import yaml

from extproc.config.identity import is_digest

log = structlog.get_logger()

POLL_S = 1.0
_LARGEST = 64 * 1024**2  # bytes

_Signature = tuple[int, ...]
Entry = TypeVar("Entry")


class DigestFileError(Exception):
    """A file of digests cannot be used. The message names file, entry and cause, and nothing that stands in the file in
    place of a digest."""


class FaultError(Exception):
    """What is wrong with the text of a file."""


class DigestFile(ABC, Generic[Entry]):
    """One file. Reading it (again) is `load`; `lookup` goes by what was read last."""

    secret: ClassVar[str]  # what a digest is of: "key", "token"
    stands_for: ClassVar[str]  # what an entry tells, in messages

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, Entry] = {}
        self._tried: _Signature | None = None  # of the file as it was last read, or tried to be

    @abstractmethod
    def entry(self, value: object) -> Entry:
        """What stands beside a digest. Raises FaultError, without a word of `value`."""

    def __len__(self) -> int:
        return len(self._entries)

    def lookup(self, digest: str) -> Entry | None:
        return self._entries.get(digest)

    def changed(self) -> bool:
        """Whether the file is another than the one that was tried last. One `stat`."""
        return self._signature() != self._tried

    def load(self) -> None:
        """Read the file. Raises DigestFileError, with the entries as they were before."""
        self._tried = self._signature()
        try:
            if not self.path.is_file() and self.path.exists():
                raise DigestFileError(f"{self.path}: is no regular file")  # to open a pipe is to wait for its writer
            with self.path.open("rb") as file:
                before = _signature(os.fstat(file.fileno()))
                data = file.read(_LARGEST + 1)
                settled = before == _signature(os.fstat(file.fileno()))
        except OSError as error:
            raise DigestFileError(f"{self.path}: cannot be read: {error.strerror or type(error).__name__}") from None
        if not settled:
            raise DigestFileError(f"{self.path}: was written to while it was read; write a new file and rename it")
        if len(data) > _LARGEST:
            raise DigestFileError(f"{self.path}: is larger than {_LARGEST // 1024**2} MiB")
        try:
            self._entries = self.entries(parsed(data, as_json=self.path.suffix == ".json"))
        except FaultError as fault:
            raise DigestFileError(f"{self.path}: {fault}") from None

    def entries(self, data: object) -> dict[str, Entry]:
        """Of the parsed text. Raises FaultError."""
        if not isinstance(data, dict):
            found = "nothing" if data is None else type(data).__name__
            raise FaultError(
                f"expected a mapping of SHA-256 to {self.stands_for}, found {found} "
                f"({{}} is a file without {self.secret}s)"
            )
        entries = {}
        for number, (digest, value) in enumerate(data.items(), 1):
            if not is_digest(digest):
                hint = f"make it with: printf %s {self.secret.upper()} | sha256sum"
                raise FaultError(f"entry {number} is no SHA-256 in lower-case hex; {hint}")
            try:
                entries[digest] = self.entry(value)
            except FaultError as fault:
                raise FaultError(f"entry {number} ({digest[:8]}...): {fault}") from None
        return entries

    def _signature(self) -> _Signature:
        try:
            return _signature(self.path.stat())
        except OSError as error:
            return (error.errno or -1,)


async def watch(files: Sequence[DigestFile[Any]], on_broken: Callable[[], None], every_s: float = POLL_S) -> None:
    """Read files again when they change; return never, unless there are none. `on_broken`: a changed file could not be
    used."""
    while files:
        for file in files:
            await _refresh(file, on_broken)
        await asyncio.sleep(every_s)


async def _refresh(file: DigestFile[Any], on_broken: Callable[[], None]) -> None:
    secrets = f"{file.secret}s"
    try:
        if await asyncio.to_thread(file.changed):
            await asyncio.to_thread(file.load)
            log.info(f"{file.secret}_file_read", path=str(file.path), **{secrets: len(file)})
    except DigestFileError as error:
        log.warning(
            f"{file.secret}_file_refused",
            error=str(error),
            note=f"the {secrets} stay as they were",
            **{secrets: len(file)},
        )
        on_broken()


def _signature(stat: os.stat_result) -> _Signature:
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)


def _unique(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Parsers take the last of two equal names in silence; a secret with two meanings is an error."""
    found: dict[str, Any] = {}
    for number, (name, value) in enumerate(pairs, 1):
        if not isinstance(name, str):
            raise FaultError(f"entry {number} of a mapping is not named by text; quote it")
        if name in found:
            raise FaultError(f"entry {number} of a mapping stands there twice")
        found[name] = value
    return found


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        return _unique(self.construct_pairs(node, deep=deep))


def parsed(data: bytes, *, as_json: bool) -> object:
    """Raises FaultError. The parsers' own messages quote the text, so they are not passed on."""
    kind = "JSON" if as_json else "YAML"
    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique) if as_json else yaml.load(text, Loader=_Loader)  # noqa: S506
    except UnicodeDecodeError:
        raise FaultError("is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise FaultError(f"is not JSON: line {error.lineno}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise FaultError("is not YAML" + (f": line {mark.line + 1}" if mark is not None else "")) from None
    except RecursionError:
        raise FaultError("is nested too deeply") from None
    except FaultError:
        raise
    except Exception:  # PyYAML's constructors raise anything: IndexError for `!!int ""`, ValueError for a 99th month
        raise FaultError(f"is not {kind}") from None
