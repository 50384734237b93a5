"""What a replica finds of itself when it starts: what it had in force of what all have, and what operators have made
here since then, while the store was lost or the process belonged to no cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from extproc.admin.in_force import InForce
from extproc.admin.records import Kind, Revision
from extproc.admin.store import Store
from extproc.config.faults import ConfigError
from extproc.config.overlay import Overlay
from extproc.config.shared import SharedRevision, adopted, same_settings, shared_part

log = structlog.get_logger()

_BY_OPERATORS: Final = (Kind.CHANGE, Kind.ROLLBACK)
_LOOKED_BACK: Final = 100  # revisions


@dataclass(frozen=True, slots=True)
class Remembered:
    taken: SharedRevision | None = None  # in force, with what `since` has changed
    since: tuple[Revision, ...] = ()  # by operators, the newest first


def remembered(store: Store, cluster: str, now: InForce, at: float) -> Remembered:
    """`at`: seconds since 1970. Blocks. Raises StoreError."""
    noted = store.noted(cluster)
    if noted is not None:
        try:
            taken = SharedRevision.from_plain(noted.shared)
            fits = same_settings(as_here(taken.overlay, now, at), now.overlay)
        except ConfigError as error:
            log.warning("replication_not_remembered", error=str(error))
        else:
            since = () if fits else _since(store, noted.revision)
            return Remembered(taken, since) if fits or since else Remembered()
    return Remembered(None, _since(store, 0) if shared_part(now.overlay).settings else ())


def as_here(shared: Overlay, now: InForce, at: float) -> Overlay:
    """What the overlay of all is over the file here, with what is of this process alone. `at`: seconds since 1970."""
    return adopted(shared, now.overlay, now.file.data, revision=now.number + 1, now=at)


def _since(store: Store, number: int) -> tuple[Revision, ...]:
    """Those by operators after `number`. None, where what they made has been set aside. Raises StoreError."""
    found: list[Revision] = []
    revisions: Sequence[Revision] = store.revisions(before=None, limit=_LOOKED_BACK)
    for each in revisions:
        if each.number <= number or each.kind is Kind.SET_ASIDE:
            break
        if each.kind in _BY_OPERATORS:
            found.append(each)
    return tuple(found)
