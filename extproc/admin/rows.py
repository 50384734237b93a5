"""Revisions and audit records as rows of the store's tables."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Any

from extproc.admin.records import AuditRecord, Author, Kind, Revision, changes_from_plain, changes_to_plain
from extproc.core.plain import Plain

REVISION = (
    "number, created_at, kind, who, reason, file_sha256, expires_at, rolled_back_to, version, schema, digest, "
    "overlay, changes"
)
AUDIT = "at, who, role, peer, method, reason, outcome, message, validate_only, revision, count, changes"


class DamagedRowError(ValueError):
    """It is not as it was written."""


def packed(value: Plain) -> bytes:
    return zlib.compress(_text(value).encode(), 1)


def unpacked(blob: bytes) -> Any:
    return json.loads(zlib.decompress(blob))


def _text(value: Plain) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain)


def _plain(value: object) -> Plain:
    """YAML has tags for more than JSON has, and the configuration takes some of it where text or a list is due."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def marks(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


def revision_values(revision: Revision) -> tuple[Any, ...]:
    head = (
        revision.number,
        float(revision.created_at),
        revision.kind.value,
        revision.who,
        revision.reason,
        revision.file_sha256,
        None if revision.expires_at is None else float(revision.expires_at),
        revision.rolled_back_to,
        revision.version,
        revision.schema,
    )
    overlay, changes = packed(revision.overlay), packed(changes_to_plain(revision.changes))
    return (*head, _digest(head, overlay, changes), overlay, changes)


def _digest(head: Sequence[Plain], overlay: bytes, changes: bytes) -> str:
    digest = hashlib.sha256(_text(list(head)).encode())
    for blob in (overlay, changes):
        digest.update(len(blob).to_bytes(8, "big") + blob)
    return digest.hexdigest()


def revision_of(row: Sequence[Any]) -> Revision:
    """Raises DamagedRowError for what was not written by `revision_values`."""
    *head, digest, overlay, changes = row
    try:
        whole = digest == _digest(head, overlay, changes)
    except (TypeError, ValueError):
        whole = False
    if not whole:
        raise DamagedRowError(f"revision {head[0]} is not as it was written")
    number, created_at, kind, who, reason, file_sha256, expires_at, rolled_back_to, version, schema = head
    return Revision(
        number=number,
        created_at=created_at,
        kind=Kind(kind),
        who=who,
        reason=reason,
        overlay=unpacked(overlay),
        file_sha256=file_sha256,
        changes=changes_from_plain(unpacked(changes)),
        expires_at=expires_at,
        rolled_back_to=rolled_back_to,
        version=version,
        schema=schema,
    )


def damaged_revision(number: int) -> Revision:
    """What stands in a list for one that is not as it was written."""
    return Revision(number, 0.0, Kind.DAMAGED, "", "damaged: it is not as it was written", [], "")


def audit_values(record: AuditRecord) -> tuple[Any, ...]:
    author = record.author
    return (
        float(record.at),
        author.name,
        author.role,
        author.peer,
        author.method,
        record.reason,
        record.outcome,
        record.message,
        int(record.validate_only),
        record.revision,
        record.count,
        packed(changes_to_plain(record.changes)),
    )


def audit_of(row: Sequence[Any]) -> AuditRecord:
    """One that is damaged is told as such, with its number."""
    number, at, who, role, peer, method, reason, outcome, message, validate_only, revision, count, changes = row
    try:
        told = changes_from_plain(unpacked(changes))
        whole = _types(row[2:9], str) and _types((validate_only, revision, count), int) and _types((at,), float)
    except (zlib.error, LookupError, TypeError, ValueError):
        told, whole = (), False
    if not whole:
        message = "this record is damaged: it is not as it was written"
        return AuditRecord(0.0, Author("", "", "", ""), "", "DATA_LOSS", message=message, id=number)
    return AuditRecord(
        at=at,
        author=Author(who, role, peer, method),
        reason=reason,
        outcome=outcome,
        changes=told,
        message=message,
        validate_only=bool(validate_only),
        revision=revision,
        count=count,
        id=number,
    )


def _types(values: Sequence[object], type_: type) -> bool:
    return all(isinstance(each, type_) for each in values)
