"""What is in force when the process begins: the last overlay that was kept, over the file as it is now.

What has expired meanwhile is undone first, by a revision of its own. An overlay that does not fit the file any more is
set aside by one, whole: half of what somebody meant is nothing that anybody meant. It stays in the history, to go back
to. A store that cannot be read leaves the file alone in force; one that can be read and not be written to leaves what
it says in force.

What is found is kept only once the process serves (`keep`): one that cannot start, since its ports are another one's,
must not take that one's overlay away.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog

from extproc import __version__
from extproc.admin.audit import logged
from extproc.admin.in_force import InForce
from extproc.admin.records import AuditRecord, Kind, Revision, service
from extproc.admin.store import DamagedError, StaleError, Store, StoreError
from extproc.config.faults import ConfigError
from extproc.config.load import FileData
from extproc.config.overlay import FieldChange, Overlay, diff

log = structlog.get_logger()

ATTEMPTS = 3  # while another process, which this one takes the place of, still makes revisions
NOTHING = Overlay()


@dataclass(frozen=True, slots=True)
class Word:
    """A revision that is to be kept."""

    revision: Revision
    file_data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Begun:
    state: InForce  # as if all words were kept
    words: tuple[Word, ...] = ()


def keep(store: Store, begun: Begun) -> InForce:
    """Keep what `begin` has found. Blocks. What is in force: with a lower number where that cannot be. Raises
    StaleError."""
    for word in begun.words:
        revision = word.revision
        record = AuditRecord(
            at=revision.created_at,
            author=service("start"),
            reason=revision.reason,
            outcome="ok",
            changes=revision.changes,
            revision=revision.number,
        )
        try:
            store.commit(revision, word.file_data, record, expected=revision.number - 1)
        except StaleError:
            raise
        except StoreError as error:
            log.error("revision_not_kept", kind=revision.kind.value, error=str(error), note="in force all the same")
            return replace(begun.state, number=revision.number - 1)
        logged(record)
    if not begun.words:
        _check_last(store, begun.state.number)
    return begun.state


def _check_last(store: Store, number: int) -> None:
    """Raises StaleError where another process has made a revision meanwhile."""
    with suppress(DamagedError):
        last = None if store.broken else store.last()
        if last is not None and last.number != number:
            raise StaleError(f"another process has made revision {last.number} meanwhile")


def begin_and_keep(store: Store, file: FileData, now: float) -> Begun:
    """Both at once. Blocks. Raises ConfigError where the file is no configuration."""
    for _ in range(ATTEMPTS):
        begun = begin(store, file, now)
        try:
            return Begun(keep(store, begun))
        except StaleError as error:
            stale = error
    log.error("state_not_kept", error=str(stale))
    return Begun(InForce.of(0, file, NOTHING))


def begin(store: Store, file: FileData, now: float) -> Begun:
    """`now`: seconds since 1970. Nothing is written. Blocks. Raises ConfigError where the file is no configuration."""
    file.config()
    try:
        return _begin(store, file, now)
    except StoreError as error:
        if isinstance(error, DamagedError):  # and it is what was in force
            store.give_up(str(error) + ": move it away to begin a new one; its history is lost then")
        log.error("state_unusable", error=str(error), note="the file's configuration is in force, read-only")
    return Begun(InForce.of(0, file, NOTHING))


def _begin(store: Store, file: FileData, now: float) -> Begun:
    """Raises StoreError where nothing could be read."""
    last = store.last()
    if last is None:
        return _then(InForce.of(0, file, NOTHING), Kind.START, now, "the first start")
    then = FileData(file.path, store.file_data(last.file_sha256), last.file_sha256)
    kept = NOTHING
    try:
        kept = Overlay.from_plain(last.overlay)
        state, gone = _fitting(last.number, file, kept, now)
    except ConfigError as error:
        log.error("overlay_set_aside", revision=last.number, settings=len(last.overlay), error=str(error))
        state = InForce.of(last.number, file, NOTHING)
        reason = f"the settings of revision {last.number} do not fit the file any more: {error}"
        changes = diff(kept.over(then.data), state.data)
        return _then(state, Kind.SET_ASIDE, now, " ".join(reason.split())[:1000], changes)
    words: tuple[Word, ...] = ()
    if gone:
        changes = diff(kept.over(then.data), state.overlay.over(then.data))
        expired = replace(state, file=then)
        words = _then(expired, Kind.EXPIRY, now, f"{gone} settings expired while nothing ran", changes).words
        state = replace(state, number=words[-1].revision.number)
    if file.sha256 == last.file_sha256:
        return Begun(state, words)
    before = state.overlay.over(then.data)
    state = replace(state, overlay=state.overlay.folded(file.data))
    begun = _then(state, Kind.START, now, "the file is another than at last", diff(before, state.data))
    return Begun(begun.state, words + begun.words)


def _fitting(number: int, file: FileData, kept: Overlay, now: float) -> tuple[InForce, int]:
    """With how many settings that are over. Those stay for now where nothing else is a configuration.
    Raises ConfigError."""
    left, gone = kept.expired(now)
    try:
        return InForce.of(number, file, left), len(gone)
    except ConfigError:
        if not gone:
            raise
        return InForce.of(number, file, kept), 0


def _then(state: InForce, kind: Kind, now: float, reason: str, changes: tuple[FieldChange, ...] = ()) -> Begun:
    """`state` as the revision after its own."""
    revision = Revision(
        number=state.number + 1,
        created_at=now,
        kind=kind,
        who="fairlane",
        reason=reason,
        overlay=state.overlay.to_plain(),
        file_sha256=state.file.sha256,
        changes=changes,
        version=__version__,
    )
    return Begun(replace(state, number=revision.number), (Word(revision, state.file.data),))
