"""Files of API keys: SHA-256 of a key -> tenant, class, classes. They are read again when they change.

    # printf %s KEY | sha256sum
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08: team-a
    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752:
      {tenant: team-b, class: batch, classes: [batch, default]}

A file whose name ends in `.json` is read as JSON, any other as YAML. JSON is a hundred times faster, which tells from
a few thousand keys on: reading happens in a thread, but takes the interpreter from the requests by turns.

A change is seen by modification time, size and inode, so that an edit in place, a renamed copy and the changed link of
a mounted Kubernetes secret all count. No watcher of the file system is needed, and network file systems count too.
A file is taken whole or not at all: one that is broken, gone or written to while it is read leaves the keys as they
were, is counted and logged once, and is tried again when it changes again. Half a file can still be good YAML, so a new
one should be written beside the old one and renamed.

Digests are looked up in a dict, not compared in constant time. What a clock could tell is how a digest begins, and no
key can be made from that: its digest is of the sender's making only by trying keys. Keys that can be guessed are
another matter; a key should be 128 random bits or more.

No text of the file goes into errors or logs, since what stands in the place of a digest may be a key.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import yaml

from extproc.config.identity import DIGEST_HINT, LONGEST_NAME, is_digest, usable
from extproc.config.model import Config

log = structlog.get_logger()

POLL_S = 1.0
_LARGEST = 64 * 1024**2  # bytes
_MEMBERS = {"tenant", "class", "classes"}

_Signature = tuple[int, ...]


class KeyFileError(Exception):
    """A file of keys cannot be used. The message names file, entry and cause, and nothing that stands in the file in
    place of a digest."""


@dataclass(frozen=True, slots=True)
class Key:
    tenant: str
    cls: str | None = None  # of requests that ask for none
    classes: frozenset[str] | None = None  # that it may use, of those of its tenant; None: all of them


class KeyFile:
    """One file. Reading it (again) is `load`; `lookup` goes by what was read last."""

    def __init__(self, path: Path, config: Config) -> None:
        self.path = path
        self._config = config
        self._keys: dict[str, Key] = {}
        self._tried: _Signature | None = None  # of the file as it was last read, or tried to be

    def __len__(self) -> int:
        return len(self._keys)

    def lookup(self, digest: str) -> Key | None:
        return self._keys.get(digest)

    def changed(self) -> bool:
        """Whether the file is another than the one that was tried last. One `stat`."""
        return self._signature() != self._tried

    def load(self) -> None:
        """Read the file. Raises KeyFileError, with the keys as they were before."""
        self._tried = self._signature()
        try:
            if not self.path.is_file() and self.path.exists():
                raise KeyFileError(f"{self.path}: is no regular file")  # to open a pipe is to wait for its writer
            with self.path.open("rb") as file:
                before = _signature(os.fstat(file.fileno()))
                data = file.read(_LARGEST + 1)
                settled = before == _signature(os.fstat(file.fileno()))
        except OSError as error:
            raise KeyFileError(f"{self.path}: cannot be read: {error.strerror or type(error).__name__}") from None
        if not settled:
            raise KeyFileError(f"{self.path}: was written to while it was read; write a new file and rename it")
        if len(data) > _LARGEST:
            raise KeyFileError(f"{self.path}: is larger than {_LARGEST // 1024**2} MiB")
        try:
            self._keys = _keys(_parsed(data, as_json=self.path.suffix == ".json"), self._config)
        except _FaultError as fault:
            raise KeyFileError(f"{self.path}: {fault}") from None

    def _signature(self) -> _Signature:
        try:
            return _signature(self.path.stat())
        except OSError as error:
            return (error.errno or -1,)


class Keys:
    """All files of keys that a configuration names. `watch` is to run as long as they are in use."""

    def __init__(self, config: Config) -> None:
        """Read them. Raises KeyFileError."""
        self._files = {name: KeyFile(Path(name), config) for name in config.identity.key_files}
        for file in self._files.values():
            file.load()

    def file(self, name: str) -> KeyFile:
        """By its name in the configuration. Raises KeyError."""
        return self._files[name]

    async def watch(self, on_broken: Callable[[], None], every_s: float = POLL_S) -> None:
        """Read files again when they change; return never. `on_broken`: a changed file could not be used."""
        while self._files:
            for file in self._files.values():
                await self._refresh(file, on_broken)
            await asyncio.sleep(every_s)

    async def _refresh(self, file: KeyFile, on_broken: Callable[[], None]) -> None:
        try:
            if await asyncio.to_thread(file.changed):
                await asyncio.to_thread(file.load)
                log.info("key_file_read", path=str(file.path), keys=len(file))
        except KeyFileError as error:
            log.warning("key_file_refused", error=str(error), keys=len(file), note="the keys stay as they were")
            on_broken()


def _signature(stat: os.stat_result) -> _Signature:
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)


class _FaultError(Exception):
    """What is wrong with the text of a file."""


def _unique(pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
    """Parsers take the last of two equal keys in silence; a key with two tenants is an error."""
    found: dict[str, Any] = {}
    for number, (name, value) in enumerate(pairs, 1):
        if not isinstance(name, str):
            raise _FaultError(f"entry {number} of a mapping is not named by text; quote it")
        if name in found:
            raise _FaultError(f"entry {number} of a mapping stands there twice")
        found[name] = value
    return found


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        return _unique(self.construct_pairs(node, deep=deep))


def _parsed(data: bytes, *, as_json: bool) -> object:
    """Raises _FaultError. The parsers' own messages quote the text, so they are not passed on."""
    kind = "JSON" if as_json else "YAML"
    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_unique) if as_json else yaml.load(text, Loader=_Loader)  # noqa: S506
    except UnicodeDecodeError:
        raise _FaultError("is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise _FaultError(f"is not JSON: line {error.lineno}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise _FaultError("is not YAML" + (f": line {mark.line + 1}" if mark is not None else "")) from None
    except RecursionError:
        raise _FaultError("is nested too deeply") from None
    except _FaultError:
        raise
    except Exception:  # PyYAML's constructors raise anything: IndexError for `!!int ""`, ValueError for a 99th month
        raise _FaultError(f"is not {kind}") from None


def _keys(data: object, config: Config) -> dict[str, Key]:
    if not isinstance(data, dict):
        found = "nothing" if data is None else type(data).__name__
        raise _FaultError(f"expected a mapping of SHA-256 to tenant, found {found} ({{}} is a file without keys)")
    keys = {}
    for number, (digest, value) in enumerate(data.items(), 1):
        if not is_digest(digest):
            raise _FaultError(f"entry {number} is no SHA-256 in lower-case hex; {DIGEST_HINT}")
        try:
            keys[digest] = _key(value, config)
        except _FaultError as fault:
            raise _FaultError(f"entry {number} ({digest[:8]}...): {fault}") from None
    return keys


def _key(value: object, config: Config) -> Key:
    members = {"tenant": value} if isinstance(value, str) else value
    if not isinstance(members, dict) or "tenant" not in members or not members.keys() <= _MEMBERS:
        raise _FaultError("expected the name of a tenant, or {tenant, class, classes} of which tenant is a must")
    tenant, cls, classes = members["tenant"], members.get("class"), members.get("classes")
    if not isinstance(tenant, str) or usable(tenant) != tenant:
        raise _FaultError(f"its tenant must be printable text of at most {LONGEST_NAME} characters")
    allowed = config.tenant(tenant).classes or list(config.classes)
    if classes is not None:
        if not isinstance(classes, list) or not classes:
            raise _FaultError("its classes must be a list of at least one, or be left out for all of its tenant")
        if not all(isinstance(each, str) and each in allowed for each in classes):
            raise _FaultError(f"its classes must be among those of its tenant: {', '.join(allowed)}")
        allowed = classes
    if cls is not None and cls not in allowed:
        raise _FaultError(f"its class must be one that it may use: {', '.join(allowed)}")
    return Key(tenant, cls, None if classes is None else frozenset(classes))
