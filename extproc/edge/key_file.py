"""Files of API keys: SHA-256 of a key -> tenant, class, classes. They are read again when they change.

    # printf %s KEY | sha256sum
    9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08: team-a
    60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752:
      {tenant: team-b, class: batch, classes: [batch, default]}

How they are read, when again, and why a digest is safe to look up: see `config.digest_file`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from extproc.config.digest_file import POLL_S, DigestFile, DigestFileError, FaultError, watch
from extproc.config.identity import LONGEST_NAME, usable
from extproc.config.model import Config

KeyFileError = DigestFileError

_MEMBERS = {"tenant", "class", "classes"}


@dataclass(frozen=True, slots=True)
class Key:
    tenant: str
    cls: str | None = None  # of requests that ask for none
    classes: frozenset[str] | None = None  # that it may use, of those of its tenant; None: all of them


class KeyFile(DigestFile[Key]):
    """One file of keys."""

    secret = "key"  # noqa: S105
    stands_for = "tenant"

    def __init__(self, path: Path, config: Config) -> None:
        super().__init__(path)
        self._config = config

    def entry(self, value: object) -> Key:
        return _key(value, self._config)


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
        await watch(tuple(self._files.values()), on_broken, every_s)


def _key(value: object, config: Config) -> Key:
    members = {"tenant": value} if isinstance(value, str) else value
    if not isinstance(members, dict) or "tenant" not in members or not members.keys() <= _MEMBERS:
        raise FaultError("expected the name of a tenant, or {tenant, class, classes} of which tenant is a must")
    tenant, cls, classes = members["tenant"], members.get("class"), members.get("classes")
    if not isinstance(tenant, str) or usable(tenant) != tenant:
        raise FaultError(f"its tenant must be printable text of at most {LONGEST_NAME} characters")
    allowed = config.tenant(tenant).classes or list(config.classes)
    if classes is not None:
        if not isinstance(classes, list) or not classes:
            raise FaultError("its classes must be a list of at least one, or be left out for all of its tenant")
        if not all(isinstance(each, str) and each in allowed for each in classes):
            raise FaultError(f"its classes must be among those of its tenant: {', '.join(allowed)}")
        allowed = classes
    if cls is not None and cls not in allowed:
        raise FaultError(f"its class must be one that it may use: {', '.join(allowed)}")
    return Key(tenant, cls, None if classes is None else frozenset(classes))
