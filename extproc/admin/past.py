"""What was: revisions and audit records that are kept. Everything here blocks but what is a coroutine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import grpc

from extproc.admin.errors import AdminError, Violation, invalid
from extproc.admin.in_force import InForce
from extproc.admin.records import AuditRecord, Revision
from extproc.admin.store import LARGEST, DamagedError, Store, StoreError
from extproc.config.faults import ConfigError
from extproc.config.overlay import FieldChange, Overlay, diff

T = TypeVar("T")


async def revisions(store: Store, before: int | None, limit: int) -> list[Revision]:
    """Newest first, with lower numbers than `before`. Raises AdminError."""
    _check(before)
    return await _read(lambda: store.revisions(before=before, limit=limit))


async def audit(store: Store, before: int | None, limit: int, *, who: str, failed_only: bool) -> list[AuditRecord]:
    """Newest first, with lower ids than `before`. Raises AdminError."""
    _check(before)
    return await _read(lambda: store.list_audit(before=before, limit=limit, who=who, failed_only=failed_only))


async def difference(store: Store, now: InForce, from_: int, to: int) -> tuple[FieldChange, ...]:
    """Between the configurations that were in force at two revisions. Raises AdminError."""

    def work() -> tuple[FieldChange, ...]:
        one, other = (now.data if each == now.number else _data_at(store, now, each) for each in (from_, to))
        return diff(one, other)

    return await _read(work)


def overlay_at(store: Store, now: InForce, number: int) -> Overlay:
    """Of a revision. Raises AdminError, with DATA_LOSS where it is damaged; StoreError, ConfigError."""
    return Overlay.from_plain(_kept(store, now, number).overlay)


def _data_at(store: Store, now: InForce, number: int) -> dict[str, Any]:
    found = _kept(store, now, number)
    return Overlay.from_plain(found.overlay).over(store.file_data(found.file_sha256))


def _kept(store: Store, now: InForce, number: int) -> Revision:
    try:
        found = store.revision(number)
    except DamagedError as error:
        raise _damaged(error) from error
    if found is None:
        told = f"revision {number} is not kept; {now.number} is in force, and admin.keep_revisions bounds how many are"
        raise AdminError(grpc.StatusCode.NOT_FOUND, told, [Violation("revision", "is not kept")])
    return found


async def _read(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except DamagedError as error:
        raise _damaged(error) from None
    except (StoreError, ConfigError) as error:
        raise AdminError(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None


def _damaged(error: DamagedError) -> AdminError:
    return AdminError(grpc.StatusCode.DATA_LOSS, f"{error}; ask for another revision")


def _check(before: int | None) -> None:
    """Raises AdminError."""
    if before is not None and not 0 <= before <= LARGEST:
        raise invalid("page_token", "is none that was given here; leave it out for the first page")
