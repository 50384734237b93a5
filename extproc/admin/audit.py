"""Who changed what, when, why, from where and how it ended: in the store, and as one log line each.

Attempts that are turned away at the door are collected: one record for all from one address with the same cause within
a minute, with their count. Anybody who reaches the port can make such attempts, and could fill the disk, or push the
records of real changes out of the store. The number of kinds within a minute is bounded for the same reason; what goes
beyond counts as of "others". The price: such a record appears up to a minute late.

A store that cannot be written loses no log line.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from extproc.admin.access import address_of
from extproc.admin.records import UNSAFE, AuditRecord, Author
from extproc.admin.store import Store, StoreError
from extproc.config.overlay import FieldChange, path_text

log = structlog.get_logger()

COLLECT_S = 60.0
MOST_KINDS = 1000  # of attempts that are told apart within COLLECT_S
OTHERS = "others"
_MOST_LOGGED = 50  # changes in a log line
_LONGEST = 4000  # characters of a message
_LONGEST_NAME = 256


class Audit:
    """For one store. Its methods belong to the event loop."""

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.time, collect_s: float = COLLECT_S) -> None:
        """`clock`: seconds since 1970."""
        self.outcomes: Counter[str] = Counter()  # records, by outcome; "dry_run" for those that were asked only
        self._store = store
        self._clock = clock
        self._collect_s = collect_s
        self._collected: dict[tuple[str, ...], AuditRecord] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing: set[asyncio.Task[None]] = set()

    def new(
        self,
        author: Author,
        reason: str,
        *,
        outcome: str = "ok",
        message: str = "",
        changes: Sequence[FieldChange] = (),
        validate_only: bool = False,
        revision: int = 0,
    ) -> AuditRecord:
        """A record of now, with texts cut to what is sane to keep and show. It is not kept anywhere yet."""
        bounded = replace(author, name=_sane(author.name, _LONGEST_NAME), peer=_sane(author.peer, _LONGEST_NAME))
        return AuditRecord(
            at=self._clock(),
            author=bounded,
            reason=_sane(reason, _LONGEST),
            outcome=outcome,
            changes=tuple(changes),
            message=_sane(message, _LONGEST),
            validate_only=validate_only,
            revision=revision,
        )

    async def add(self, record: AuditRecord) -> None:
        """Keep and log it. A store that cannot take it is logged too."""
        self.tell(record)
        await self._keep([record])

    def tell(self, record: AuditRecord) -> None:
        """Log and count one that the store has, or cannot take."""
        self.outcomes["dry_run" if record.validate_only else record.outcome] += record.count
        logged(record)

    def denied(self, peer: str, method: str, cause: str, name: str, outcome: str = "UNAUTHENTICATED") -> None:
        """One attempt that was turned away, for the record of this minute. `name`: empty where nobody knows it.
        `outcome`: name of the gRPC status."""
        address = address_of(peer)
        kind: tuple[str, ...] = (outcome, address, cause, name, method) if name else (outcome, address, cause)
        if kind not in self._collected and len(self._collected) >= MOST_KINDS:
            kind, address, name, method = (OTHERS,), OTHERS, "", ""
            cause = f"more than {MOST_KINDS} kinds of attempts within a minute"
        known = self._collected.get(kind)
        if known is None:
            self._collected[kind] = self.new(Author(name, "", address, method), "", outcome=outcome, message=cause)
        else:
            self._collected[kind] = replace(known, count=known.count + 1)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._collect_s, self._minute_over)

    async def flush(self) -> None:
        """Keep and log what was collected. To be called once more when the service stops."""
        if self._timer is not None:
            self._timer.cancel()
        await self._flush()
        if self._flushing:
            await asyncio.wait(self._flushing)

    async def _flush(self) -> None:
        self._timer = None
        records = list(self._collected.values())
        self._collected.clear()
        for record in records:
            self.tell(record)
        if records:
            await self._keep(records)

    def _minute_over(self) -> None:
        task = asyncio.get_running_loop().create_task(self._flush())
        self._flushing.add(task)
        task.add_done_callback(self._flushing.discard)

    async def _keep(self, records: Sequence[AuditRecord]) -> None:
        try:
            await asyncio.to_thread(self._store.add_audit, records)
        except StoreError as error:
            log.warning("audit_not_kept", records=len(records), error=str(error))


def logged(record: AuditRecord) -> None:
    """Its log line."""
    log.info("audit", **_line(record))


def _sane(text: str, longest: int) -> str:
    return UNSAFE.sub(lambda found: found[0] if found[0] == "\n" else "\ufffd", text[:longest])


def _line(record: AuditRecord) -> dict[str, object]:
    author = record.author
    line: dict[str, object] = {
        "who": author.name,
        "role": author.role,
        "peer": author.peer,
        "method": author.method,
        "reason": record.reason,
        "outcome": record.outcome,
        "message": record.message,
        "validate_only": record.validate_only,
        "revision": record.revision,
        "count": record.count,
        "changes": [_change(each) for each in record.changes[:_MOST_LOGGED]],
    }
    if len(record.changes) > _MOST_LOGGED:
        line["more_changes"] = len(record.changes) - _MOST_LOGGED
    return line


def _change(change: FieldChange) -> dict[str, object]:
    told: dict[str, object] = {"path": path_text(change.path)}
    if change.had:
        told["before"] = change.before
    if change.has:
        told["after"] = change.after
    return told
