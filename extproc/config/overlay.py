"""Live changes as data over the file's data.

The file is the truth. What is changed while Fairlane runs is an ordered list of settings: a path and a value, or that
what stands there is taken away. The data in force are the file's with the settings applied one after the other, so the
newest wins. Everything here is a pure function of plain data, the one that YAML and JSON have; whether the result is a
configuration is for `load.from_data` to say.

A change comes as a patch in the shape of the file, and is merged as RFC 7396 has it, with three differences. null takes
away only where names are people's (a tenant, class, pool or alias), since elsewhere it is a value, such as "never".
Pools, a list in the file, are merged by name. And what cannot be meant is refused: a name to take away that is not
there, a pool without models, which is most likely the misspelt name of another.

A patch becomes settings leaf by leaf: mappings are gone through, a list is one value. An empty mapping where a mapping
is changes nothing; elsewhere it is set.

Settings with an expiry keep what is beneath, and when they are over it shows again. Permanent ones replace all older
ones at and below their path, and those equal to what is beneath are dropped. So there is never more than one permanent
setting for a path, however long the history.

Left out: patches inside lists, and JSON Patch (RFC 6902) that could do that. A list is short and written whole.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from extproc.config.data_tree import ABSENT, CLASSES, FieldChange, Plain, Tree, diff, differences
from extproc.config.faults import ConfigError, Path, parse_path, path_text
from extproc.config.patch import Patch, check_places, check_plain, plain_number
from extproc.config.units import kind

__all__ = ["FieldChange", "Overlay", "Path", "Plain", "Setting", "diff", "parse_path", "path_text", "plain_number"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of the overlay."""

    path: Path
    value: Plain = None
    removed: bool = False  # what stands there is taken away; `value` is None
    revision: int = 0  # that made it
    expires_at: float | None = None  # seconds since 1970; None: permanent


@dataclass(frozen=True, slots=True)
class Overlay:
    """Settings in the order in which they were made. Immutable."""

    settings: tuple[Setting, ...] = ()

    def over(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data in force, in the file's shape. `data` is left as it is, and shares with the result what is equal."""
        tree = self._tree(data)
        if CLASSES not in data and not any(setting.path[0] == CLASSES for setting in self.settings):
            del tree.root[CLASSES]
        return tree.in_file_shape()

    def patched(
        self,
        patch: Mapping[str, Any],
        mask: Sequence[Path] | None,
        data: Mapping[str, Any],
        *,
        revision: int,
        expires_at: float | None,
    ) -> Overlay:
        """The overlay after a change of the configuration that it makes with `data`, the file's.

        `mask`: of the patch only what is at or below these paths; those that the patch does not have are given back to
        the file: the settings at and below them are dropped (or, where the change expires, covered with what the file
        has). None or empty: all of the patch.

        Raises ConfigError for what has no place."""
        change = Patch(patch, mask)
        kept, back = self, {}
        if change.given_back:
            check_places(change.given_back, self._names(data))
            kept = Overlay(tuple(s for s in self.settings if not _covered(s.path, change.given_back)))
            if expires_at is not None:
                back = self._differences(kept, change.given_back, data)
        leaves = back | change.leaves(kept._tree(data))
        if expires_at is not None:
            kept = self
        still = (s for s in kept.settings if not (_never_shows(s, expires_at) and _covered(s.path, leaves)))
        new = [
            Setting(path, None if leaf is ABSENT else leaf, leaf is ABSENT, revision, expires_at)
            for path, leaf in leaves.items()
        ]
        return Overlay((*still, *new)).folded(data)

    def expired(self, now: float) -> tuple[Overlay, tuple[Setting, ...]]:
        """What is left at `now`, in seconds since 1970, and the settings that are over."""
        over = tuple(s for s in self.settings if s.expires_at is not None and s.expires_at <= now)
        return Overlay(tuple(s for s in self.settings if s.expires_at is None or s.expires_at > now)), over

    def permanent(self) -> Overlay:
        """Without the settings that expire."""
        return Overlay(tuple(setting for setting in self.settings if setting.expires_at is None))

    def folded(self, data: Mapping[str, Any]) -> Overlay:
        """Without the permanent settings that are equal to what is beneath them. The data in force stay the same, now
        and when others expire."""
        tree, kept = Tree(data), []
        temporary: set[Path] = set()
        above: set[Path] = set()  # what is at and above those
        for setting in self.settings:
            if setting.expires_at is not None:
                temporary.add(setting.path)
                above.update(setting.path[:depth] for depth in range(len(setting.path) + 1))
            else:
                alone = setting.path not in above and not _covered(setting.path, temporary)
                if alone and tree.has(setting.path, setting.value, removed=setting.removed):
                    continue
                tree.put(setting.path, setting.value, removed=setting.removed)
            kept.append(setting)
        return Overlay(tuple(kept))

    @property
    def next_expiry(self) -> float | None:
        """Seconds since 1970; None: nothing expires."""
        return min((s.expires_at for s in self.settings if s.expires_at is not None), default=None)

    def to_plain(self) -> list[dict[str, Any]]:
        """As JSON can have it; `from_plain` reads it."""
        plain = []
        for setting in self.settings:
            each: dict[str, Any] = {"path": list(setting.path), "revision": setting.revision}
            if setting.removed:
                each["removed"] = True
            else:
                each["value"] = setting.value
            if setting.expires_at is not None:
                each["expires_at"] = setting.expires_at
            plain.append(each)
        return plain

    @classmethod
    def from_plain(cls, plain: object) -> Overlay:
        """Raises ConfigError for what `to_plain` does not write."""
        if not isinstance(plain, list):
            raise ConfigError(f"an overlay is a list of settings, not {kind(plain)}")
        return cls(tuple(_setting(each, number) for number, each in enumerate(plain, 1)))

    def _tree(self, data: Mapping[str, Any]) -> Tree:
        tree = Tree(data)
        for setting in self.settings:
            tree.put(setting.path, setting.value, removed=setting.removed)
        return tree

    def _differences(self, other: Overlay, paths: Iterable[Path], data: Mapping[str, Any]) -> dict[Path, Any]:
        """What has to be set to be at these paths as `other` is; ABSENT: taken away."""
        before, after = self._tree(data), other._tree(data)
        found = [each for path in paths for each in differences(before.get(path), after.get(path), path)]
        return {each.path: each.after if each.has else ABSENT for each in found}

    def _names(self, data: Mapping[str, Any]) -> Tree:
        """With all names that there are, those among them that have been taken away."""
        tree = Tree(data)
        for setting in self.settings:
            if not setting.removed:
                tree.put(setting.path, setting.value)
        return tree


def _covered(path: Path, by: Container[Path]) -> bool:
    """Whether `path` is at or below one of them."""
    return any(path[:depth] in by for depth in range(len(path) + 1))


def _never_shows(setting: Setting, until: float | None) -> bool:
    """Whether a setting that is covered `until` then, or for good, is over by then."""
    return until is None or (setting.expires_at is not None and setting.expires_at <= until)


def _setting(plain: object, number: int) -> Setting:
    def bad(what: str) -> ConfigError:
        return ConfigError(f"setting {number} of an overlay: {what}")

    if not isinstance(plain, dict) or not plain.keys() <= {"path", "value", "removed", "revision", "expires_at"}:
        raise bad("is none")
    path, revision, expires_at = plain.get("path"), plain.get("revision"), plain.get("expires_at")
    if not isinstance(path, list) or not path or not all(isinstance(name, str) for name in path):
        raise bad("its path is no list of names")
    if ("value" in plain) == (plain.get("removed", False) is True):
        raise bad("has to have either a value or removed: true")
    if not isinstance(revision, int) or isinstance(revision, bool):
        raise bad("its revision is no number")
    if expires_at is not None and (isinstance(expires_at, bool) or not isinstance(expires_at, int | float)):
        raise bad("its expiry is no time")
    check_plain({"value": plain.get("value"), "expires_at": expires_at})
    return Setting(tuple(path), plain.get("value"), "value" not in plain, revision, expires_at)
