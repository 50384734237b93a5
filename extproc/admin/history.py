"""The configuration as it is, and what became of it: revisions and audit records.

Whole configurations are made into messages and text in a thread: with thousands of tenants that takes longer than a
release may wait. What goes there is immutable, or nobody else has it. Lists of what was are read some entries at a time
and made into messages in portions, since one entry may have thousands of changes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import grpc

from extproc.admin import messages
from extproc.admin.errors import AdminError, Violation, invalid
from extproc.admin.paging import from_token, page_size, to_token
from extproc.admin.portions import Portions, Work
from extproc.admin.records import AuditRecord, Revision
from extproc.admin.revisions import Revisions
from extproc.admin.values import field_change, field_changes, fill, value_of
from extproc.config.faults import ConfigError, path_text
from extproc.config.load import FileData, from_data
from extproc.config.overlay import Overlay
from extproc.config.written import to_yaml, written
from extproc.pb.admin.v1 import admin_pb2 as pb

_REVISIONS_PAGE: Final = (50, 500)  # unless asked for, and at most
_AUDIT_PAGE: Final = (100, 1000)
_VIEWS = tuple(pb.ConfigView.keys())[1:]
_MOST_PATHS = 20  # that are named of what is left out
_MOST_CHANGES = 200  # of one revision or record in a list; DiffRevisions tells all
_PAGE_BYTES = 1024**2  # serializing holds the loop too
_READ_AT_ONCE = 5  # entries; each comes with all of its changes, and there may be thousands

_K = TypeVar("_K", Revision, AuditRecord)


class History:
    """Methods of the service, by their names there."""

    def __init__(self, revisions: Revisions, portions: Portions | None = None) -> None:
        """`portions`: shared with what else holds the loop for long."""
        self._revisions = revisions
        self._portions = portions or Portions()

    # -- the configuration ------------------------------------------------------------------------

    async def GetConfig(self, request: pb.GetConfigRequest, _context: Any) -> pb.GetConfigResponse:  # noqa: N802
        revisions = self._revisions
        config, file, overlay = revisions.config, revisions.file, revisions.overlay
        answer = pb.GetConfigResponse(etag=revisions.etag, revision=revisions.revision)

        def work() -> None:
            match request.view:
                case pb.CONFIG_VIEW_UNSPECIFIED | pb.EFFECTIVE:
                    answer.config.SetInParent()
                    fill(answer.config, written(config))
                case pb.FILE:
                    answer.config.SetInParent()
                    fill(answer.config, file.data)
                case pb.OVERRIDES:
                    answer.overrides.extend(_overrides(overlay))
                case unknown:
                    raise invalid(
                        "view", f"this server knows no number {unknown} of it; it knows EFFECTIVE, FILE, OVERRIDES"
                    )

        await asyncio.to_thread(work)
        return answer

    async def ExportConfig(  # noqa: N802
        self, _request: pb.ExportConfigRequest, _context: Any
    ) -> pb.ExportConfigResponse:
        revisions = self._revisions
        etag, head = revisions.etag, _head(revisions.revision, revisions.etag, revisions.overlay)
        text = await asyncio.to_thread(_exported, revisions.file, revisions.overlay)
        return pb.ExportConfigResponse(yaml=head + text, etag=etag)

    # -- revisions --------------------------------------------------------------------------------

    async def ListRevisions(  # noqa: N802
        self, request: pb.ListRevisionsRequest, _context: Any
    ) -> pb.ListRevisionsResponse:
        size = page_size(request.page_size, default=_REVISIONS_PAGE[0], most=_REVISIONS_PAGE[1])
        place = from_token("revisions", request.page_token, int)
        answer = pb.ListRevisionsResponse()
        page = answer.revisions
        before = place[0] if place else None
        if await self._fill(page, size, before, self._revisions.list_revisions, _revision, lambda kept: kept.number):
            answer.next_page_token = to_token("revisions", page[-1].revision)
        return answer

    async def DiffRevisions(  # noqa: N802
        self, request: pb.DiffRevisionsRequest, _context: Any
    ) -> pb.DiffRevisionsResponse:
        for name in ("from_revision", "to_revision"):
            if getattr(request, name) < 0:
                raise invalid(name, "must not be negative")
        to = request.to_revision or self._revisions.revision
        from_ = request.from_revision or to - 1
        if from_ <= 0:
            raise invalid("from_revision", f"is missing: there is none before revision {to}")
        changes = await self._revisions.diff(from_, to)
        told = await asyncio.to_thread(field_changes, changes)
        return pb.DiffRevisionsResponse(changes=told, from_revision=from_, to_revision=to)

    # -- audit ------------------------------------------------------------------------------------

    async def ListAuditRecords(  # noqa: N802
        self, request: pb.ListAuditRecordsRequest, _context: Any
    ) -> pb.ListAuditRecordsResponse:
        size = page_size(request.page_size, default=_AUDIT_PAGE[0], most=_AUDIT_PAGE[1])
        scope = f"audit {request.failed_only} {request.who}"
        place = from_token(scope, request.page_token, int)

        async def read(before: int | None, limit: int) -> Sequence[AuditRecord]:
            return await self._revisions.list_audit(before, limit, who=request.who, failed_only=request.failed_only)

        answer = pb.ListAuditRecordsResponse()
        page = answer.records
        if await self._fill(page, size, place[0] if place else None, read, _record, lambda kept: kept.id):
            answer.next_page_token = to_token(scope, page[-1].id)
        return answer

    async def _fill(
        self,
        page: Any,
        size: int,
        before: int | None,
        read: Callable[[int | None, int], Awaitable[Sequence[_K]]],
        message: Callable[[_K], Any],
        number: Callable[[_K], int],
    ) -> bool:
        """As many as fit into `page` (a list of messages) by their count and size, one at least. Whether there are
        more. `read`: entries, the newest first, whose `number` is below its first argument, as many as its second.
        `message`: of an entry, without its changes."""
        work, left = Work(self._portions), _PAGE_BYTES
        while True:
            wanted = min(_READ_AT_ONCE, size - len(page) + 1)
            found = await read(before, wanted)
            await work.next()
            for kept in found:
                if len(page) == size:
                    return True
                entry = message(kept)
                for change in kept.changes[:_MOST_CHANGES]:
                    if work.over:
                        await work.next()
                    entry.changes.append(field_change(change))
                left -= entry.ByteSize()
                if left < 0 and page:
                    return True
                page.append(entry)
                before = number(kept)
            if len(found) < wanted:
                return False


def _overrides(overlay: Overlay) -> Iterator[pb.Override]:
    for setting in overlay.settings:
        yield pb.Override(
            path=path_text(setting.path),
            value=None if setting.removed else value_of(setting.value),
            revision=setting.revision,
            expire_time=messages.timestamp(setting.expires_at),
        )


def _exported(file: FileData, overlay: Overlay) -> str:
    """Raises AdminError where what is permanent is no configuration by itself."""
    data = overlay.permanent().over(file.data)
    try:
        from_data(data, None)
    except ConfigError as error:
        raise AdminError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "the temporary settings are left out, and without them this is no configuration; make permanent what it "
            f"needs: {error}",
            [Violation(fault.path, fault.message) for fault in error.faults],
        ) from None
    return to_yaml(data)


def _head(revision: int, etag: str, overlay: Overlay) -> str:
    """What the text is, in one line of comment."""
    left_out = [path_text(setting.path) for setting in overlay.settings if setting.expires_at is not None]
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    told = f"# Fairlane's configuration in force at {when}: revision {revision} ({etag})"
    if left_out:
        more = f" and {len(left_out) - _MOST_PATHS} more" if len(left_out) > _MOST_PATHS else ""
        told += f"; left out, since temporary: {', '.join(left_out[:_MOST_PATHS])}{more}"
    # Names of tenants may have anything in them, ends of lines too
    return "".join(each if each.isprintable() else "?" for each in told) + "\n"


def _revision(kept: Revision) -> pb.Revision:
    """Without its changes."""
    return pb.Revision(
        revision=kept.number,
        create_time=messages.timestamp(kept.created_at),
        kind=kept.kind.value,
        who=kept.who,
        reason=kept.reason,
        expire_time=messages.timestamp(kept.expires_at),
        file_sha256=kept.file_sha256,
        override_count=len(kept.overlay),
        rolled_back_to=kept.rolled_back_to,
        version=kept.version,
    )


def _record(kept: AuditRecord) -> pb.AuditRecord:
    """Without its changes."""
    return pb.AuditRecord(
        id=kept.id,
        time=messages.timestamp(kept.at),
        who=kept.author.name,
        role=kept.author.role.upper() or pb.ROLE_UNSPECIFIED,
        peer=kept.author.peer,
        method=kept.author.method,
        reason=kept.reason,
        outcome=kept.outcome,
        message=kept.message,
        validate_only=kept.validate_only,
        revision=kept.revision,
        count=kept.count,
    )
