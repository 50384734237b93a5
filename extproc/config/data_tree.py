"""The data of a configuration file as a tree in which every part has a path of names.

It is the file's data but for two things: pools, a list in the file, go by their names, and where no classes are given
there are the default ones, since that is what a file without them means.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from extproc.config.faults import Path
from extproc.config.model import DEFAULT_CLASSES

Plain = Any  # None, bool, int, float, str, list of such, dict of such by text

POOLS, CLASSES = "pools", "classes"


class Absent:
    """What is found where there is nothing. None is a value."""


ABSENT: Final = Absent()


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A leaf that differs between two configurations."""

    path: Path
    before: Plain
    after: Plain
    had: bool  # False: it was not there, and `before` is None
    has: bool


def diff(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[FieldChange, ...]:
    """The leaves that differ between two data in the file's shape, pools by name."""
    return tuple(differences(Tree(before).root, Tree(after).root, ()))


@dataclass(slots=True)
class Tree:
    """Data with pools as a mapping by name, and the default classes where none are given. What is changed is copied
    first: parts may be shared with the input, and by YAML's anchors with each other."""

    data: Mapping[str, Any]
    root: dict[str, Any] = field(init=False)
    _own: dict[int, dict[str, Any]] = field(init=False)  # copies made here, by identity

    def __post_init__(self) -> None:
        self.root = {CLASSES: DEFAULT_CLASSES, **self.data}
        pools = self.root.get(POOLS, [])
        if are_named(pools):
            self.root[POOLS] = {p["name"]: {key: p[key] for key in p if key != "name"} for p in pools}
        self._own = {id(self.root): self.root}

    def get(self, path: Path) -> object:
        """ABSENT where there is nothing."""
        node: object = self.root
        for name in path:
            if not isinstance(node, dict) or name not in node:
                return ABSENT
            node = node[name]
        return node

    def has(self, path: Path, value: Plain, *, removed: bool = False) -> bool:
        """Whether `put` would change nothing."""
        found = self.get(path)
        return found is ABSENT if removed else found is not ABSENT and equal(found, value)

    def put(self, path: Path, value: Plain = None, *, removed: bool = False) -> None:
        """Set what stands at a path, or take it away. What is no mapping and is in the way becomes one."""
        if path[0] == POOLS and len(path) > 1 and not isinstance(self.root.get(POOLS), dict):
            return  # what the file has there is no list of pools, and is told so
        if removed and self.get(path) is ABSENT:
            return
        node = self.root
        for name in path[:-1]:
            child: Any = node.get(name)
            if id(child) not in self._own:
                child = dict(child) if isinstance(child, dict) else {}
                self._own[id(child)] = child
                node[name] = child
            node = child
        if removed:
            del node[path[-1]]
        else:
            node[path[-1]] = value

    def in_file_shape(self) -> dict[str, Any]:
        """The data as a file has them. The tree is not to be used any more."""
        pools = self.root.get(POOLS)
        if isinstance(pools, dict):
            listed = [{"name": name, **pool} if isinstance(pool, dict) else pool for name, pool in pools.items()]
            if listed or POOLS in self.data:
                self.root[POOLS] = listed
            else:
                del self.root[POOLS]
        return self.root


def are_named(pools: object) -> bool:
    """Whether it is a list of pools with a name of its own each."""
    if not isinstance(pools, list):
        return False
    names = [pool.get("name") if isinstance(pool, dict) else None for pool in pools]
    return all(isinstance(name, str) for name in names) and len(set(names)) == len(names)


def equal(one: Plain, other: Plain) -> bool:
    """In Python, True is 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def differences(before: Plain, after: Plain, path: Path) -> Iterator[FieldChange]:
    had, has = before is not ABSENT, after is not ABSENT
    if had and has and equal(before, after):
        return
    one, other = (each if isinstance(each, dict) else {} for each in (before, after))
    mappings = [each for each in (before, after) if each is not ABSENT]
    if (one or other) and all(isinstance(each, dict) for each in mappings):
        for name in one | other:
            yield from differences(one.get(name, ABSENT), other.get(name, ABSENT), (*path, str(name)))
    else:
        yield FieldChange(path, before if had else None, after if has else None, had, has)
