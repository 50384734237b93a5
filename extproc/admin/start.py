"""What is in force when the process begins: the last overlay that was kept, over the file as it is now.

What has expired meanwhile is undone first, by a revision of its own. An overlay that does not fit the file any more is
set aside by one, whole: half of what somebody meant is nothing that anybody meant. It stays in the history, to go back
to. A store that cannot be read leaves the file alone in force; one that can be read and not be written to leaves what
it says in force.
"""

from __future__ import annotations

from dataclasses import replace

import structlog

from extproc import __version__
from extproc.admin.audit import logged
from extproc.admin.in_force import InForce
from extproc.admin.records import AuditRecord, Kind, Revision, service
from extproc.admin.store import StaleError, Store, StoreError
from extproc.config.faults import ConfigError
from extproc.config.load import FileData, from_data
from extproc.config.overlay import Overlay, diff

log = structlog.get_logger()

_ATTEMPTS = 3  # while another process, which this one takes the place of, still makes revisions
NOTHING = Overlay()


def begin(store: Store, file: FileData, now: float) -> InForce:
    """`now`: seconds since 1970. Raises ConfigError where the file is no configuration."""
    from_data(file.data, str(file.path or "configuration"))
    for attempt in range(_ATTEMPTS):
        try:
            return _begin(store, file, now)
        except StaleError as error:
            if attempt == _ATTEMPTS - 1:
                log.error("state_not_kept", error=str(error))
        except StoreError as error:
            log.error("state_unusable", error=str(error), note="the file's configuration is in force, read-only")
            break
    return InForce.of(0, file, NOTHING)


def _begin(store: Store, file: FileData, now: float) -> InForce:
    """Raises StaleError; StoreError where nothing could be read."""
    last = store.last()
    if last is None:
        state = InForce.of(0, file, NOTHING)
        return _kept(store, state, _revision(state, Kind.START, now, "the first start"))
    then = FileData(file.path, store.file_data(last.file_sha256), last.file_sha256)
    kept = NOTHING
    try:
        kept = Overlay.from_plain(last.overlay)
        state, gone = _fitting(last.number, file, kept, now)
    except ConfigError as error:
        log.error("overlay_set_aside", revision=last.number, settings=len(last.overlay), error=str(error))
        state = InForce.of(last.number, file, NOTHING)
        reason = f"the settings of revision {last.number} do not fit the file any more: {error}"
        revision = _revision(state, Kind.SET_ASIDE, now, " ".join(reason.split())[:1000])
        return _kept(store, state, replace(revision, changes=diff(kept.over(then.data), state.data)))
    if gone:
        changes = diff(kept.over(then.data), state.overlay.over(then.data))
        revision = _revision(replace(state, file=then), Kind.EXPIRY, now, f"{gone} settings expired while nothing ran")
        kept_as = _kept(store, replace(state, file=then), replace(revision, changes=changes))
        state = replace(state, number=kept_as.number)
    if file.sha256 == last.file_sha256:
        return state
    before = state.overlay.over(then.data)
    state = replace(state, overlay=state.overlay.folded(file.data))
    revision = _revision(state, Kind.START, now, "the file is another than at last")
    return _kept(store, state, replace(revision, changes=diff(before, state.data)))


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


def _revision(state: InForce, kind: Kind, now: float, reason: str) -> Revision:
    """The one after `state`'s."""
    return Revision(
        number=state.number + 1,
        created_at=now,
        kind=kind,
        who="fairlane",
        reason=reason,
        overlay=state.overlay.to_plain(),
        file_sha256=state.file.sha256,
        version=__version__,
    )


def _kept(store: Store, state: InForce, revision: Revision) -> InForce:
    """`state` as that revision; as it is where that cannot be kept. Raises StaleError."""
    record = AuditRecord(
        at=revision.created_at,
        author=service("start"),
        reason=revision.reason,
        outcome="ok",
        changes=revision.changes,
        revision=revision.number,
    )
    try:
        store.commit(revision, state.file.data, record, expected=state.number)
    except StaleError:
        raise
    except StoreError as error:
        log.error("revision_not_kept", kind=revision.kind.value, error=str(error), note="in force all the same")
        return state
    logged(record)
    return replace(state, number=revision.number)
