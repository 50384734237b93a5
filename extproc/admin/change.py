"""One change of the configuration: what is asked for, and what it would make of the state in force."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from extproc.admin.errors import invalid
from extproc.admin.in_force import Candidate, InForce, candidate
from extproc.admin.records import UNSAFE, Author, Kind
from extproc.config.faults import ConfigError, Fault, Path
from extproc.config.inheritance import own_tenants
from extproc.config.load import FileData, from_data
from extproc.config.model import Config
from extproc.config.overlay import FieldChange, Overlay
from extproc.config.shared import ReplicaTaken, SharedRevision

LONGEST_REASON = 1000  # characters
SHORTEST_TTL_S, LONGEST_TTL_S = 1.0, 366 * 86400.0


@dataclass(frozen=True, slots=True)
class Result:
    """Of a change, made or only asked about."""

    revision: int  # that it made or would make; where there is nothing to keep, the one in force
    etag: str  # of what is in force now
    validate_only: bool
    changes: tuple[FieldChange, ...]  # of the data in force; empty: it was so already
    warnings: tuple[Fault, ...]
    expires_at: float | None  # seconds since 1970
    shared: SharedRevision | None = None  # what it made for all replicas; None: it is of this process alone
    replicas: tuple[ReplicaTaken, ...] = ()  # what became of `shared` there, this one first


@dataclass(frozen=True, slots=True)
class Made:
    """What a change makes of the state in force, not validated yet."""

    overlay: Overlay
    file: FileData | None = None  # another than the one in force
    warnings: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """`make` is given the state in force, the number of the revision to be made and when it expires. It runs in a
    thread, and may raise ConfigError, AdminError and StoreError."""

    kind: Kind
    author: Author
    reason: str
    make: Callable[[InForce, int, float | None], Made]
    ttl_s: float | None = None
    etag: str = ""
    validate_only: bool = False
    warnings: tuple[Fault, ...] = ()
    rolled_back_to: int = 0
    unfit: grpc.StatusCode = grpc.StatusCode.INVALID_ARGUMENT  # for what is no configuration
    must: bool = False  # also where it cannot be kept
    # Called when all is ready, before it is kept; gives the change as it is to be carried through. Raises AdminError.
    publish: Callable[[Candidate], Awaitable[Change]] | None = None
    shared: SharedRevision | None = None  # that it puts in force here, to be remembered with the revision
    shared_by: str = ""  # name of the cluster

    def check(self) -> None:
        """What an operator says beside the change itself. Raises AdminError."""
        if not self.reason.strip():
            raise invalid("reason", "is missing: say why, for those who read the history")
        if len(self.reason) > LONGEST_REASON:
            raise invalid("reason", f"has {len(self.reason)} characters, and {LONGEST_REASON} is the most")
        if UNSAFE.search(self.reason):
            raise invalid("reason", "has control characters; it is one line of text")
        ttl_s = self.ttl_s
        if ttl_s is not None and not (math.isfinite(ttl_s) and SHORTEST_TTL_S <= ttl_s <= LONGEST_TTL_S):
            raise invalid(
                "ttl", f"must be between 1 s and 366 days, and is {ttl_s:g} s; without it a change is for good"
            )


def worked_out(now: InForce, change: Change, expires_at: float | None, started: Config) -> tuple[Made, Candidate]:
    """What a change would make of `now`. `started`: what the process began with. Blocks for as long as it takes to
    validate the whole. Raises ConfigError, AdminError, StoreError."""
    made = change.make(now, now.number + 1, expires_at)
    try:
        return made, candidate(now, made.overlay, made.file, started)
    except ConfigError as error:
        if made.file is None or not made.overlay.settings:
            raise
        candidate(now, Overlay(), made.file, started)  # raises where the file itself is at fault
        raise ConfigError(
            f"with what was changed live ({len(made.overlay.settings)} settings) it is no configuration: {error}",
            error.faults,
        ) from error


# -- ways to make one ---------------------------------------------------------------------------------


def of_patch(
    now: InForce, patch: Mapping[str, Any], mask: Sequence[Path] | None, *, number: int, expires_at: float | None
) -> Made:
    """Raises ConfigError."""
    config = now.config
    if expires_at is None and "tenants" in patch and now.overlay.next_expiry is not None:
        # What is for a while must not be copied into what is for good.
        with suppress(ConfigError):
            config = from_data(now.overlay.permanent().over(now.file.data))
    own = own_tenants(patch, mask, config)
    overlay = now.overlay.patched(own.patch, own.mask, now.file.data, revision=number, expires_at=expires_at)
    return Made(overlay, warnings=tuple(own.warnings))


def of_file(now: InForce, file: FileData) -> Made:
    """Raises ConfigError where the file is no configuration by itself."""
    file.config()
    return Made(now.overlay.folded(file.data), file)
