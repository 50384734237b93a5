"""The configuration in force as one immutable value, and what may come next.

Whoever holds an `InForce` holds one whole state: file, overlay, the data of both together and the configuration made of
it. Working out the next one is a pure function of it, so that it may run in a thread while the service goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from extproc.config.cautions import cautions
from extproc.config.data_tree import ABSENT, Tree
from extproc.config.faults import Fault, Path, error_of
from extproc.config.load import FileData, from_data
from extproc.config.model import Config
from extproc.config.overlay import FieldChange, Overlay, Setting, diff
from extproc.config.restart import needs_restart


@dataclass(frozen=True, slots=True)
class InForce:
    """`data` is the file's with the overlay; `config` is made of `data`."""

    number: int  # of the revision; 0: none could be kept
    file: FileData
    overlay: Overlay
    data: dict[str, Any]
    config: Config

    @classmethod
    def of(cls, number: int, file: FileData, overlay: Overlay) -> InForce:
        """Raises ConfigError."""
        data = overlay.over(file.data)
        return cls(number, file, overlay, data, from_data(data, None))

    @property
    def etag(self) -> str:
        return f"{self.number}-{self.file.sha256[:8]}"


@dataclass(frozen=True, slots=True)
class Candidate:
    """What may come next, valid by itself. Its number is that of the revision it would make."""

    state: InForce
    changes: tuple[FieldChange, ...]
    warnings: tuple[Fault, ...]  # that the present configuration does not have
    same_config: bool
    same: bool  # there is nothing to keep


def candidate(now: InForce, overlay: Overlay, file: FileData | None, started: Config) -> Candidate:
    """`file`: another than now. `started`: what the process began with. Raises ConfigError."""
    state = InForce.of(now.number + 1, file or now.file, overlay)
    if faults := needs_restart(now.config, state.config, started):
        raise error_of(faults)
    changes = diff(now.data, state.data)
    known = set(cautions(now.config))
    return Candidate(
        state=state,
        changes=changes,
        warnings=tuple(each for each in cautions(state.config) if each not in known),
        same_config=state.config == now.config,
        same=not changes and _settings(overlay) == _settings(now.overlay) and state.file.sha256 == now.file.sha256,
    )


def _settings(overlay: Overlay) -> list[Setting]:
    """Who set it last is no difference; nor is the order, where the data are equal."""
    return sorted((replace(each, revision=0) for each in overlay.settings), key=lambda each: (each.path, repr(each)))


def leading_to(data: Mapping[str, Any], now: InForce, *, revision: int, expires_at: float) -> Overlay:
    """The present overlay with temporary settings on top, by which `data` are in force until those expire."""
    target = Tree(data)
    new: dict[Path, Setting] = {}
    for change in diff(now.data, data):
        path = change.path
        if not change.has:  # all of what is not there at once, not leaf by leaf
            path = next(path[:depth] for depth in range(1, len(path) + 1) if target.get(path[:depth]) is ABSENT)
        new[path] = Setting(path, change.after, not change.has, revision, expires_at)
    return Overlay((*now.overlay.settings, *new.values()))
