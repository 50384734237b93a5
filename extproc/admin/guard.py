"""What stands before every method of the admin API: whose call it is, whether its role may, and what an error becomes.

One table says which role a method needs; a method that is not in it is closed to everybody.

A caller is known before a byte of the message is read: whoever may not call cannot make the service hold or parse 16
MiB either. For that all methods are served as ones with a stream of messages from the client, which look the same on
the wire; the first message is the request.

Errors go out as `google.rpc.Status`, cut to what clients take: many drop a call whose trailers are larger than 8 KiB.
What is wrong in here goes into the log, under an id that the caller is told, and not over the wire.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from extproc.admin.access import CALLER, Access, Caller, DeniedError
from extproc.admin.errors import AdminError, Violation, status_of
from extproc.config.administration import Role
from extproc.pb.admin.v1 import admin_pb2

log = structlog.get_logger()

SERVICE: Final = admin_pb2.DESCRIPTOR.services_by_name["Admin"]

NEEDS: Final[Mapping[str, Role]] = {
    "GetStatus": "viewer",
    "ListPools": "viewer",
    "GetPool": "viewer",
    "ListEndpoints": "viewer",
    "ListFlows": "viewer",
    "ListRequests": "viewer",
    "ExplainRequest": "viewer",
    "WatchStats": "viewer",
    "DumpState": "operator",
    "GetConfig": "viewer",
    "ExportConfig": "viewer",
    "ValidateConfig": "viewer",
    "UpdateConfig": "admin",
    "SetTenant": "operator",
    "SetClass": "operator",
    "SetPool": "operator",
    "BoostTenant": "operator",
    "CancelRequests": "operator",
    "StartRecording": "operator",
    "StopRecording": "operator",
    "ListRevisions": "viewer",
    "DiffRevisions": "viewer",
    "Rollback": "admin",
    "ListAuditRecords": "viewer",
}

# (peer as gRPC has it, method, cause, name of the caller or "", name of the gRPC status)
OnDenied = Callable[[str, str, str, str, str], None]
Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

_DETAILS: Final = "grpc-status-details-bin"
_LONGEST_MESSAGE: Final = 800  # bytes; each may be three on the wire
_LONGEST_VIOLATIONS: Final = 2000  # bytes; a third more on the wire


def handlers(servicer: object, access: Access, on_denied: OnDenied) -> grpc.GenericRpcHandler:
    """All methods of the admin API, guarded. Those of `servicer` are as `AdminServicer` has them: coroutines, and
    async generators for streams."""
    methods = {
        method.name: _handler(_Call(method, getattr(servicer, method.name), access, on_denied))
        for method in SERVICE.methods
    }
    return grpc.method_handlers_generic_handler(SERVICE.full_name, methods)


def _handler(call: _Call) -> grpc.RpcMethodHandler:
    of = grpc.stream_stream_rpc_method_handler if call.streams else grpc.stream_unary_rpc_method_handler
    return of(call.serve, response_serializer=GetMessageClass(call.method.output_type).SerializeToString)


class _Call:
    """One method."""

    def __init__(self, method: Any, answer: Callable[[Any, Context], Any], access: Access, on_denied: OnDenied) -> None:
        self.method = method
        self.streams = bool(method.server_streaming)
        self.serve = self._stream if self.streams else self._unary
        self._answer = answer
        self._access = access
        self._on_denied = on_denied
        self._request = GetMessageClass(method.input_type)
        self._needs = NEEDS.get(method.name)

    async def _unary(self, _messages: object, context: Context) -> object:
        async def run() -> object:
            return await self._answer(await self._read(context), context)

        return await self._guarded(context, run)

    async def _stream(self, _messages: object, context: Context) -> None:
        async def run() -> None:
            caller = CALLER.get()
            request = await self._read(context)
            # written here rather than yielded, so that a call that ends closes the generator at once
            async with aclosing(self._answer(request, context)) as messages:
                async for message in messages:
                    if not self._access.valid(caller):
                        cause = "its token was taken away or has another role now"
                        raise DeniedError(grpc.StatusCode.UNAUTHENTICATED, cause, name=caller.name)
                    await context.write(message)

        await self._guarded(context, run)

    async def _guarded(self, context: Context, run: Callable[[], Awaitable[object]]) -> object:
        try:
            CALLER.set(self._admit(context))
            return await run()
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except AdminError as error:
            failed = error
            if isinstance(error, DeniedError):
                self._on_denied(context.peer(), self.method.name, error.cause, error.name, error.code.name)
        except Exception:
            if context.done():  # it went away while it was answered
                raise asyncio.CancelledError from None
            fault = secrets.token_hex(4)
            log.exception("admin_fault", fault=fault, method=self.method.name)
            failed = AdminError(grpc.StatusCode.INTERNAL, f"a fault in Fairlane; its log tells more under {fault}")
        await _abort(context, failed)
        raise AssertionError("abort raises")

    def _admit(self, context: Context) -> Caller:
        """Raises DeniedError."""
        caller = self._access.caller(context)
        if self._needs is None or not caller.may(self._needs):
            whom = f"role {self._needs}" if self._needs else "a role that nobody has"
            raise DeniedError(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{self.method.name} needs {whom}",
                f"{caller.name} is {caller.role}",
                caller.name,
            )
        return caller

    async def _read(self, context: Context) -> Any:
        """The request. Raises AdminError."""
        data = await context.read()
        if not isinstance(data, bytes):
            raise AdminError(grpc.StatusCode.INVALID_ARGUMENT, f"no {self._request.DESCRIPTOR.name} was sent")
        try:
            return self._request.FromString(data)
        except DecodeError:
            message = (
                f"what was sent is no {self._request.DESCRIPTOR.full_name}: it is of another kind, damaged, or nested "
                "more deeply than protobuf reads, which is 33 levels of a configuration (the file has six)"
            )
            raise AdminError(grpc.StatusCode.INVALID_ARGUMENT, message) from None


async def _abort(context: Context, error: AdminError) -> None:
    bounded = _bounded(error)
    if context.done():  # nobody is there to be told
        raise asyncio.CancelledError
    details = status_of(bounded).SerializeToString()
    await context.abort(error.code, bounded.message, trailing_metadata=((_DETAILS, details),))


def _bounded(error: AdminError) -> AdminError:
    """With as much of it as clients take. Names and values in it come from anywhere."""
    violations: list[Violation] = []
    room = _LONGEST_VIOLATIONS
    for violation in error.violations:
        shown = Violation(_cut(violation.field, 300), _cut(violation.description, 1000))
        room -= len(shown.field.encode()) + len(shown.description.encode()) + 16
        if room < 0:
            violations.append(Violation("", f"and {len(error.violations) - len(violations)} more"))
            break
        violations.append(shown)
    return AdminError(error.code, _cut(error.message, _LONGEST_MESSAGE), violations)


def _cut(text: str, most: int) -> str:
    """At most `most` bytes of UTF-8, and "..." where that is not all. Half a surrogate pair is no text on the wire."""
    data = text.encode("utf-8", "replace")
    return data.decode() if len(data) <= most else data[: most - 3].decode("utf-8", "ignore") + "..."
