"""The live changes that all replicas of a cluster have: one overlay, with a number that only grows.

It is written into the store whole, as JSON, so that whoever looks there can read it. What others have written is read
strictly: a store may hold anything. Who finds an older format or schema reads it; a newer one is left alone.

Not shared is what concerns one process: `LOCAL`. A recording is a file of the process that writes it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from extproc.config.faults import ConfigError, Path
from extproc.config.overlay import Overlay, Setting

LOCAL = frozenset({"recording"})  # sections of the file
FORMAT = 1
LARGEST = 4 * 1024**2  # bytes
_ALIKE_S = 1.0  # expiries that are so near are the same: how far clocks are apart is never known exactly
_ID = re.compile(r"[A-Za-z0-9._-]{1,63}", re.ASCII)
_ANY = re.compile(r".{0,4096}", re.DOTALL)  # the audit makes it sane
_TEXTS = {
    "id": _ID,
    "kind": re.compile("CHANGE|ROLLBACK"),
    "who": _ANY,
    "role": re.compile("viewer|operator|admin|"),
    "method": re.compile("[A-Za-z ]{0,63}"),
    "reason": _ANY,
    "replica": _ID,
    "version": re.compile(r"[A-Za-z0-9._+-]{0,63}", re.ASCII),
}


class ConflictError(Exception):
    """Another replica has written meanwhile. Nothing was written."""


class LostError(Exception):
    """The store could not be asked, and nobody knows whether it has done something. The message has cause and cure."""


class NewerError(ConfigError):
    """It was written by a newer Fairlane, which must not be overwritten."""


@dataclass(frozen=True, slots=True)
class SharedRevision:
    """What one change at one replica has made of the overlay of all."""

    revision: int  # of the cluster, from 1 on
    id: str  # of the change: no other one has it
    overlay: Overlay
    who: str
    role: str
    method: str
    reason: str
    kind: str  # "CHANGE", "ROLLBACK"
    replica: str  # that made it
    at: float  # seconds since 1970
    schema: int  # of the paths of its settings
    version: str = ""  # of Fairlane

    def to_plain(self) -> dict[str, Any]:
        """As JSON can have it; `from_plain` reads it."""
        return {
            "format": FORMAT,
            "schema": self.schema,
            "revision": self.revision,
            "at": self.at,
            **{name: getattr(self, name) for name in _TEXTS},
            "overlay": self.overlay.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: object) -> SharedRevision:
        """Raises ConfigError for what `to_plain` does not write; NewerError."""
        if not isinstance(plain, dict) or not _is_number(plain.get("format")):
            raise ConfigError("is no configuration of a cluster")
        if plain["format"] > FORMAT:
            told = f"was written by a newer Fairlane (format {plain['format']}, this one knows {FORMAT})"
            raise NewerError(f"{told}: update this replica, or make the change at one that is newer")
        numbers = {name: plain.get(name) for name in ("schema", "revision")}
        texts = {name: plain.get(name) for name in _TEXTS}
        at = plain.get("at")
        wrong = [name for name, value in numbers.items() if not _is_number(value)]
        wrong += [name for name, text in texts.items() if not isinstance(text, str) or not _TEXTS[name].fullmatch(text)]
        if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
            wrong.append("at")
        if wrong:
            raise ConfigError(f"is no configuration of a cluster: {', '.join(wrong)} cannot be")
        return cls(overlay=Overlay.from_plain(plain.get("overlay")), at=at, **numbers, **texts)  # type: ignore[arg-type]

    def to_bytes(self) -> bytes:
        """Raises ConfigError where it is too large to be shared."""
        content = json.dumps(self.to_plain(), separators=(",", ":")).encode()
        if len(content) > LARGEST:
            told = f"{len(self.overlay.settings)} settings are changed live, {len(content)} bytes"
            raise ConfigError(f"{told}; replicas share {LARGEST} at most: write them into the file (config export)")
        return content

    @classmethod
    def from_bytes(cls, content: bytes) -> SharedRevision:
        """Raises ConfigError; NewerError."""
        if len(content) > LARGEST:
            raise ConfigError(f"has {len(content)} bytes, and {LARGEST} is the most")
        try:
            plain = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"is no JSON ({error})") from error
        return cls.from_plain(plain)

    def same_as(self, other: SharedRevision | None) -> bool:
        return other is not None and (self.revision, self.id) == (other.revision, other.id)


@dataclass(frozen=True, slots=True)
class ReplicaTaken:
    """Whether a replica has a change in force."""

    replica: str
    taken: bool
    error: str = ""  # why not


# -- overlays of several replicas ---------------------------------------------------------------------


def is_local(setting: Setting) -> bool:
    return setting.path[0] in LOCAL


def shared_part(overlay: Overlay) -> Overlay:
    return Overlay(tuple(each for each in overlay.settings if not is_local(each)))


def same_settings(one: Overlay, other: Overlay, *, alike_s: float = _ALIKE_S) -> bool:
    """Whoever has set them. `alike_s`: by which expiries may differ."""
    if len(one.settings) != len(other.settings):
        return False
    known = _Known(other.settings, alike_s)
    return all(known.take(each) is not None for each in one.settings)


def adopted(shared: Overlay, mine: Overlay, data: Mapping[str, Any], *, revision: int, now: float) -> Overlay:
    """The overlay of all in the place of the one here, whose local part stays, over `data`, the file's. What is in both
    is as it was here; what is new is of `revision`. What is over at `now`, in seconds since 1970, does not come; where
    it is here it is left to who undoes it."""
    known = _Known(mine.settings)
    settings = [known.take(each) or replace(each, revision=revision) for each in shared_part(shared).settings]
    here = {id(each) for each in mine.settings}
    left = (s for s in settings if id(s) in here or s.expires_at is None or s.expires_at > now)
    return Overlay((*left, *(each for each in mine.settings if is_local(each)))).folded(data)


def published(mine: Overlay, before: Overlay, shared: Overlay | None) -> Overlay:
    """What all are to have after a change here from `before` to `mine`. `shared`: what all had before.

    What is permanent in `shared` and not here is what the file says here. It stays, since files of others may not say
    it yet: while new files are rolled out they differ."""
    settings = shared_part(mine).settings
    if shared is not None:
        now = {each.path for each in settings if each.expires_at is None}
        settings = (*(each for each in folded_away(shared, before) if not _covered(each.path, now)), *settings)
    return Overlay(settings)


def folded_away(shared: Overlay, mine: Overlay) -> list[Setting]:
    """What is permanent in the overlay of all and not here: the file here says it."""
    known = _Known(mine.settings)
    return [each for each in shared.settings if each.expires_at is None and known.take(each) is None]


def with_expiries_of(overlay: Overlay, shared: Overlay) -> Overlay:
    """With the very expiries of `shared` where a setting is in both: they do not creep by being read and written."""
    known = _Known(shared.settings)
    return Overlay(
        tuple(
            each if (found := known.take(each)) is None else replace(each, expires_at=found.expires_at)
            for each in overlay.settings
        )
    )


def moved(overlay: Overlay, seconds: float) -> Overlay:
    """With all expiries so much later."""
    if not seconds:
        return overlay
    return Overlay(
        tuple(
            each if each.expires_at is None else replace(each, expires_at=each.expires_at + seconds)
            for each in overlay.settings
        )
    )


class _Known:
    """Settings, to be found by what they say."""

    def __init__(self, settings: Iterable[Setting], alike_s: float = _ALIKE_S) -> None:
        self._alike_s = alike_s
        self._by_path: dict[Path, list[Setting]] = {}
        for each in settings:
            self._by_path.setdefault(each.path, []).append(each)

    def take(self, setting: Setting) -> Setting | None:
        """One that says the same, each once."""
        found = self._by_path.get(setting.path, [])
        for index, each in enumerate(found):
            if _says_the_same(each, setting, self._alike_s):
                return found.pop(index)
        return None


def _says_the_same(one: Setting, other: Setting, alike_s: float) -> bool:
    if (one.removed, repr(one.value)) != (other.removed, repr(other.value)):
        return False
    if one.expires_at is None or other.expires_at is None:
        return one.expires_at is other.expires_at
    return abs(one.expires_at - other.expires_at) <= alike_s


def _covered(path: Path, by: Collection[Path]) -> bool:
    """Whether `path` is at or below one of them."""
    return any(path[:depth] in by for depth in range(1, len(path) + 1))


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53
