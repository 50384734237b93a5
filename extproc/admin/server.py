"""The gRPC port for people: the admin API behind its guard, health and reflection in front of it.

Health tells of the process, not of engines behind it: whether this service is to be asked is known without them.
Reflection is there under both of its names; grpcurl and others ask for `v1` first. Both are open to everybody who can
connect, as load balancers and people without a token need them, and tell nothing of tenants or traffic.

A Unix socket is made for its owner alone. gRPC would take a socket file away from another process that listens on it,
so that is looked at first.

Compressed messages are not taken: the limit of a message holds before it is unpacked, and 16 MiB of zeros packed are
16 GiB.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from extproc.admin.access import Access, AdminStartError
from extproc.admin.guard import SERVICE, OnDenied, handlers
from extproc.config.administration import Administration
from extproc.config.units import UNIX
from extproc.transport.tls_files import HANDSHAKE_OPTIONS

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_REFLECTION: Final = "grpc.reflection.v1.ServerReflection"  # the same messages as of v1alpha
_SERVICES: Final = (SERVICE.full_name, _HEALTH, reflection.SERVICE_NAME)
NAMES: Final = ("", *_SERVICES, _REFLECTION)  # that health is told of

_LARGEST_MESSAGE: Final = 16 * 1024**2
_STOP_GRACE_S: Final = 0.5
_TELLING_S: Final = 1.0
_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.so_reuseport", 0),  # a second process on the port is an error, not a partner
    ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
    ("grpc.max_send_message_length", _LARGEST_MESSAGE),
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none but identity
    ("grpc.max_concurrent_streams", 512),  # of one connection
    # A watcher whose machine is gone is found out, and one that pings to find out the same of us is let be.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    *HANDSHAKE_OPTIONS,
)
# A certificate is looked at when the connection is made: one that has run out since, or whose authority is no longer
# trusted, must not last.
_REVIEWED: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_connection_age_ms", 3_600_000),
    ("grpc.max_connection_age_grace_ms", 10_000),
)


class AdminServer:
    """One port. To be made, used and stopped in one event loop."""

    def __init__(self, server: grpc.aio.Server, servicer: health.aio.HealthServicer, access: Access, port: int) -> None:
        """See `build`."""
        self.port = port  # that it is bound to: another than asked for where 0 was; 1 for a Unix socket
        self.access = access
        self._server = server
        self._health = servicer

    @classmethod
    def build(cls, listen: str, administration: Administration, servicer: object, on_denied: OnDenied) -> AdminServer:
        """Bound to `listen` (`listen.admin`), not started. `servicer`: an AdminServicer. Raises AdminStartError."""
        access = Access(listen, administration)
        access.check_start()
        server = grpc.aio.server(options=(*_OPTIONS, *(_REVIEWED if access.by_certificate else ())))
        server.add_generic_rpc_handlers((handlers(servicer, access, on_denied), _reflection()))
        reflection.enable_server_reflection(_SERVICES, server)
        told = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(told, server)
        return cls(server, told, access, _bind(server, listen, access.server_credentials()))

    async def start(self) -> None:
        """Health says NOT_SERVING until it is told otherwise."""
        await self.set_serving(False)
        await self._server.start()

    async def set_serving(self, serving: bool) -> None:
        for name in NAMES:
            await self._health.set(name, SERVING if serving else NOT_SERVING)

    async def watch(self, on_broken: Callable[[], None]) -> None:
        """Follow the file of tokens; to run as long as the server does. `on_broken`: a changed file could not be
        used."""
        await self.access.watch(on_broken)

    async def stop(self, grace: float = _STOP_GRACE_S) -> None:
        """Health first; then calls may end within `grace` seconds, and those that do not (watchers do not) end with
        UNAVAILABLE."""
        with contextlib.suppress(TimeoutError):  # who watches health and does not read holds up nobody
            async with asyncio.timeout(_TELLING_S):
                await self.set_serving(False)
        await self._server.stop(grace)


def _reflection() -> grpc.GenericRpcHandler:
    servicer = reflection.aio.ReflectionServicer(_SERVICES)
    handler = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(_REFLECTION, {"ServerReflectionInfo": handler})


def _bind(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None) -> int:
    """Raises AdminStartError."""
    path = Path(listen.removeprefix(UNIX)) if listen.startswith(UNIX) else None
    address = listen
    if path is not None:
        _make_room(path)
        address = f"{UNIX}{quote(str(path))}"  # to gRPC it is a URI
    before = os.umask(0o177)  # of the socket that is made; nothing else is made here
    try:
        if credentials is None:
            bound: int = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise AdminStartError(f"{listen} (listen.admin) cannot be bound: in use, or not an address here") from error
    finally:
        os.umask(before)
    if bound == 0:
        raise AdminStartError(f"{listen} (listen.admin) cannot be bound: in use, or not an address here")
    return bound


def _make_room(path: Path) -> None:
    """Take a socket away that nobody listens on any more. Raises AdminStartError."""
    where = f"{UNIX}{path} (listen.admin) cannot be bound"
    try:
        if not path.parent.is_dir():
            raise AdminStartError(f"{where}: there is no directory {path.parent}; make it, for this user alone")
        if not path.exists() and not path.is_symlink():
            return
        if not path.is_socket():
            raise AdminStartError(f"{where}: the file is there and is no socket; remove it or name another one")
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
    except ConnectionRefusedError:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    except OSError as error:
        raise AdminStartError(f"{where}: {error.strerror or error}") from error
    else:
        raise AdminStartError(f"{where}: a process listens on it")
