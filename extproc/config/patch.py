"""A patch taken apart: which leaves it sets, and whether it can be meant."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from extproc.config.data_tree import ABSENT, POOLS, Plain, Tree, are_named
from extproc.config.faults import Fault, Path, error_of, path_text
from extproc.config.model import Config
from extproc.config.schema import is_mapping_by_name, keys, meant, required, step
from extproc.config.units import kind, shown

_KINDS = {POOLS: "pool", "classes": "class", "tenants": "tenant", "aliases": "alias"}
_MOST_LEVELS = 32
_WHOLE = 2.0**53  # from here on not every whole number is a float


class Patch:
    """A patch of the configuration, in the file's shape or with pools by name."""

    def __init__(self, patch: Mapping[str, Any], mask: Sequence[Path] | None) -> None:
        """`mask`: None or empty: all of the patch counts. Raises ConfigError."""
        check_plain(patch)
        self._at = _by_mask(_with_named_pools(patch), mask)
        self.given_back = {path: None for path, value in self._at.items() if value is ABSENT}  # has no value; in order

    def leaves(self, tree: Tree) -> dict[Path, Any]:
        """What it sets of the data in `tree`; ABSENT: to be taken away. Raises ConfigError for names that are nothing
        there and do not become something."""
        leaves = {
            path: leaf
            for start, value in self._at.items()
            if value is not ABSENT
            for path, leaf in _leaves(value, _type_at(start), start)
            if leaf != {} or not isinstance(tree.get(path), dict)
        }
        _check_names(leaves, tree)
        return leaves


def check_plain(patch: Mapping[str, Any]) -> None:
    """Raises ConfigError for what JSON cannot have, or nobody can mean."""
    waiting: list[tuple[Path, Any]] = [((), dict(patch))]
    while waiting:
        path, value = waiting.pop()
        where = path_text(path[:8])
        if len(path) > _MOST_LEVELS:
            raise error_of([Fault(where, f"is nested more than {_MOST_LEVELS} levels deep")])
        if isinstance(value, dict):
            if not all(isinstance(name, str) for name in value):
                raise error_of([Fault(where, "has a key that is no text")])
            waiting += [((*path, name), each) for name, each in value.items()]
        elif isinstance(value, list):
            waiting += [((*path, str(number)), each) for number, each in enumerate(value)]
        elif isinstance(value, float) and not math.isfinite(value):
            raise error_of([Fault(where, f"must be a finite number, not {value!r}")])
        elif value is not None and not isinstance(value, bool | int | float | str):
            raise error_of([Fault(where, f"{kind(value)} has no place in a configuration")])


def plain_number(value: float) -> float | int:
    """Protobuf's Struct has no whole numbers: 3.0 as 3."""
    return int(value) if abs(value) < _WHOLE and value == int(value) else value


def check_places(paths: Iterable[Path], tree: Tree) -> None:
    """Raises ConfigError where there can be no setting. `tree` has the names that there are."""
    faults = [fault for path in paths for fault in _misplaced(path, tree)]
    if faults:
        raise error_of(faults)


def _with_named_pools(patch: Mapping[str, Any]) -> dict[str, Any]:
    """Pools by name, whether the patch has them so or as the file has them. Raises ConfigError."""
    patch = dict(patch)
    pools = patch.get(POOLS)
    if isinstance(pools, list):
        if not are_named(pools):
            raise error_of([Fault(POOLS, "a list of pools needs a name in each of them, and none twice")])
        patch[POOLS] = pools = {pool["name"]: pool for pool in pools}
    if not isinstance(pools, dict):
        return patch
    named = {}
    for name, pool in pools.items():
        where = path_text((POOLS, name))
        if isinstance(pool, dict):
            if pool.get("name", name) != name:
                raise error_of([Fault(f"{where}.name", "a pool cannot be renamed; add one, and take this one away")])
            pool = {key: pool[key] for key in pool if key != "name"}
        elif pool is not None:
            raise error_of([Fault(where, f"expected a mapping, or null to take the pool away, not {shown(pool)}")])
        named[name] = pool
    patch[POOLS] = named
    return patch


def _by_mask(patch: Mapping[str, Any], mask: Sequence[Path] | None) -> dict[Path, Any]:
    """What the patch has at each path of the mask; ABSENT: nothing."""
    found: dict[Path, Any] = {}
    for path in mask or ((),):
        node: Any = patch
        for name in path:
            node = node.get(name, ABSENT) if isinstance(node, dict) else ABSENT
        found[path] = node
    return found


def _leaves(value: Plain, annotation: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Paths and values; ABSENT: to be taken away."""
    if value is None and _is_named_element(path):
        yield path, ABSENT
    elif isinstance(value, dict) and (value or not path):
        for name, each in value.items():
            yield from _leaves(each, step(annotation, name), (*path, name))
    else:
        yield path, value


def _type_at(path: Path) -> Any:
    annotation: Any = Config
    for name in path:
        annotation = step(annotation, name)
    return annotation


def _is_named_element(path: Path) -> bool:
    return len(path) > 1 and _has_names(path[:-1])


@lru_cache(maxsize=256)
def _has_names(path: Path) -> bool:
    """Whether what is at the path is by names that people give."""
    return path == (POOLS,) or is_mapping_by_name(_type_at(path))


def _check_names(leaves: Mapping[Path, Any], tree: Tree) -> None:
    """Raises ConfigError for names that are nothing and do not become something."""
    faults = []
    given: dict[Path, set[str]] = {}  # keys of classes, pools and tenants that are not there yet
    for path, leaf in leaves.items():
        if leaf is ABSENT:
            if tree.get(path) is ABSENT:
                faults.append(_unknown(path, tree))
        elif _is_named_element(path[:2]) and tree.get(path[:2]) is ABSENT:
            given.setdefault(path[:2], set()).update(leaf if len(path) == 2 and isinstance(leaf, dict) else path[2:3])
    for path, names in given.items():
        lacking = [key for key in required(_type_at(path)) if key != "name" and key not in names]
        if lacking:
            faults.append(_unknown(path, tree, f" (a new one needs {', '.join(lacking)})"))
    if faults:
        raise error_of(faults)


def _misplaced(path: Path, tree: Tree) -> Iterator[Fault]:
    """Why there can be no setting at a path."""
    annotation: Any = Config
    for depth, name in enumerate(path):
        here = path[: depth + 1]
        if _is_named_element(here):
            if tree.get(here) is ABSENT:
                yield _unknown(here, tree)
                return
        elif not keys(annotation):
            yield Fault(path_text(here), "there is nothing below one value; a list is changed as a whole")
            return
        elif name not in keys(annotation):
            yield Fault(path_text(here), f"unknown key; {meant(name, keys(annotation))}")
            return
        annotation = step(annotation, name)


def _unknown(path: Path, tree: Tree, more: str = "") -> Fault:
    known = tree.get(path[:-1])
    names = [str(name) for name in known] if isinstance(known, dict) else []
    hint = meant(path[-1], names, "there are ") if names else "there is none at all"
    return Fault(path_text(path), f"there is no {_KINDS.get(path[-2], 'entry')} {shown(path[-1])}; {hint}{more}")
