"""The methods that change something. Each becomes one patch of the configuration (`asked`), and `Revisions` does the
rest: checks it whole, keeps it, puts it in force. Taking requests back is the exception: it changes no configuration.

What a request gets wrong by itself is found here, told by the request's own fields, and audited like what the
configuration refuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from extproc.admin import asked, cancel, fields, messages, recordings
from extproc.admin.access import CALLER
from extproc.admin.asked import Asked
from extproc.admin.change import LONGEST_REASON, Result
from extproc.admin.control import Control
from extproc.admin.errors import AdminError, invalid
from extproc.admin.filter import Filter, parse
from extproc.admin.portions import Portions
from extproc.admin.records import UNSAFE, Author
from extproc.admin.revisions import Revisions
from extproc.admin.values import field_changes
from extproc.pb.admin.v1 import admin_pb2 as pb

_T = TypeVar("_T")
_MOST_CHANGES: Final = 2000  # in an answer: clients take 4 MiB unless told otherwise


class Writes:
    """Methods of the service, by their names there."""

    def __init__(self, control: Control, revisions: Revisions, portions: Portions | None = None) -> None:
        """`portions`: shared with what else looks through all requests."""
        self._control = control
        self._revisions = revisions
        self._portions = portions or Portions()

    # -- any part of the configuration ------------------------------------------------------------

    async def UpdateConfig(self, request: pb.UpdateConfigRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        return await self._change("UpdateConfig", request, lambda: asked.a_part(request), in_thread=True)

    async def ValidateConfig(self, request: pb.ValidateConfigRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        fields.check_known(request)
        if request.yaml and (request.HasField("config") or request.HasField("update_mask")):
            raise invalid("yaml", "is a whole file, and has no place beside config or update_mask")
        if request.yaml:
            return change_result(await self._revisions.whole_file(request.yaml))
        part = await asyncio.to_thread(asked.a_part, request)
        return change_result(await self._revisions.part(part.patch, part.mask))

    async def Rollback(self, request: pb.RollbackRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        def read() -> float | None:
            if request.revision <= 0:
                raise invalid("revision", "must be the number of a revision, see ListRevisions")
            return fields.seconds_of(request, "ttl")

        ttl_s = await self._read("Rollback", request, read)
        result = await self._revisions.rollback(
            author("Rollback"),
            request.revision,
            reason=request.reason,
            ttl_s=ttl_s,
            etag=request.etag,
            validate_only=request.validate_only,
        )
        told = change_result(result)
        told.warnings.extend(_starts_recording(result))
        return told

    # -- tenants, classes, pools, recordings ------------------------------------------------------

    async def SetTenant(self, request: pb.SetTenantRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        return await self._change("SetTenant", request, lambda: asked.a_tenant(request, self._revisions.overlay))

    async def SetClass(self, request: pb.SetClassRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        return await self._change("SetClass", request, lambda: asked.a_class(request, self._revisions.overlay))

    async def SetPool(self, request: pb.SetPoolRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        return await self._change("SetPool", request, lambda: asked.a_pool(request, self._revisions.config))

    async def BoostTenant(self, request: pb.BoostTenantRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        def ask() -> Asked:
            return asked.a_boost(request, self._revisions.config, self._control.running())

        return await self._change("BoostTenant", request, ask)

    async def StartRecording(self, request: pb.StartRecordingRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        def ask() -> Asked:
            config = self._revisions.config
            return recordings.a_start(request, config.recording, [pool.name for pool in config.pools], time.time())

        return await self._change("StartRecording", request, ask)

    async def StopRecording(self, request: pb.StopRecordingRequest, _context: Any) -> pb.ChangeResult:  # noqa: N802
        def ask() -> Asked:
            now = self._revisions
            return recordings.a_stop(now.config.recording, now.overlay, now.file.data)

        return await self._change("StopRecording", request, ask)

    # -- requests ---------------------------------------------------------------------------------

    async def CancelRequests(  # noqa: N802
        self, request: pb.CancelRequestsRequest, _context: Any
    ) -> pb.CancelRequestsResponse:
        method = "CancelRequests"
        meant = await self._read(method, request, lambda: _meant(request))
        run = cancel.Cancellation(self._control, self._portions, meant)
        outcome, error = "INTERNAL", None
        try:
            done = await run.run(None if request.validate_only else cancel.client_message(request.reason))
            outcome = "ok"
            if not done.count and done.observed:
                error = _observed_only(done.observed)
                outcome = error.code.name
        except asyncio.CancelledError:
            outcome = "CANCELLED"
            raise
        finally:
            # What was done was done, also where the caller has gone in the middle.
            told = run.done.told(validate_only=request.validate_only)
            await self._audit(method, request, outcome, told)
        if error is not None:
            raise error
        return pb.CancelRequestsResponse(
            cancelled_count=done.count,
            refused_count=done.refused,
            evicted_count=done.evicted,
            complete=done.complete,
            sample=done.sample,
        )

    # -- what all of them do ----------------------------------------------------------------------

    async def _change(
        self, method: str, request: Any, ask: Callable[[], Asked], *, in_thread: bool = False
    ) -> pb.ChangeResult:
        def read() -> tuple[Asked, float | None]:
            lasts = "ttl" in request.DESCRIPTOR.fields_by_name
            return ask(), fields.seconds_of(request, "ttl") if lasts else None

        change, ttl_s = await self._read(method, request, read, in_thread=in_thread)
        try:
            result = await self._revisions.patch(
                author(method),
                change.patch,
                change.mask,
                reason=request.reason,
                ttl_s=ttl_s,
                etag=request.etag,
                validate_only=request.validate_only,
                extra_warnings=change.warnings,
            )
        except AdminError as error:
            raise change.told_by_fields(error) from None
        return change_result(result)

    async def _read(self, method: str, request: Any, read: Callable[[], _T], *, in_thread: bool = False) -> _T:
        """What `read` makes of a request. Where that cannot be, the attempt is audited, and the AdminError goes on.
        `in_thread`: it may take longer than a release may wait, and looks at nothing but the request."""
        try:
            fields.check_known(request)
            return await asyncio.to_thread(read) if in_thread else read()
        except AdminError as error:
            await self._audit(method, request, error.code.name, error.message)
            raise

    async def _audit(self, method: str, request: Any, outcome: str, message: str) -> None:
        audit = self._revisions.audit
        await audit.add(
            audit.new(
                author(method), request.reason, outcome=outcome, message=message, validate_only=request.validate_only
            )
        )


def author(method: str) -> Author:
    """Of the call at hand."""
    caller = CALLER.get()
    return Author(caller.name, caller.role, caller.peer, method)


def change_result(result: Result) -> pb.ChangeResult:
    warnings = [pb.Warning(path=each.path, message=each.message) for each in result.warnings]
    if (more := len(result.changes) - _MOST_CHANGES) > 0:
        warnings.append(pb.Warning(message=f"{more} more changes are not listed here"))
    return pb.ChangeResult(
        revision=result.revision,
        etag=result.etag,
        validate_only=result.validate_only,
        changes=field_changes(result.changes[:_MOST_CHANGES]),
        warnings=warnings,
        expire_time=messages.timestamp(result.expires_at),
        cluster_revision=0 if result.shared is None else result.shared.revision,
        replicas=[
            pb.ReplicaTaken(replica=each.replica, taken=each.taken, error=each.error) for each in result.replicas
        ],
    )


def _meant(request: pb.CancelRequestsRequest) -> Filter:
    """Raises AdminError."""
    if fault := _reason_fault(request.reason):
        raise invalid("reason", f"{fault}: the audit keeps it, and the clients are told it")
    if not request.filter.strip():
        raise invalid("filter", "must not be empty; for all that is held say: state = queued")
    return parse(request.filter)


def _reason_fault(reason: str) -> str:
    """Empty: nothing is wrong with it."""
    if not reason.strip():
        return "must not be empty"
    if len(reason) > LONGEST_REASON:
        return f"has {len(reason)} characters, and may have {LONGEST_REASON}"
    return "has control characters" if UNSAFE.search(reason) else ""


def _observed_only(count: int) -> AdminError:
    return asked.not_now(
        f"there is nothing to cancel: the filter matches {count} observed requests and no others. Those went on to "
        "their engine as they came, and cannot be taken back; with `observed = false` in the filter they are left out"
    )


def _starts_recording(result: Result) -> list[pb.Warning]:
    """Of a rollback. Whoever asks for a recording by itself knows what it does."""
    return [
        pb.Warning(
            path="recording.file",
            message=f"it records again, into {change.after}: files of that name from an earlier recording are put "
            "aside (.1, .2, ...), and those beyond recording.keep are deleted",
        )
        for change in result.changes
        if change.path == ("recording", "file") and change.after is not None
    ]
