"""`fairlane ctl` against a real gRPC server whose answers are tables, and which keeps what it was asked.

    with Service() as service:
        service.answers["ListPools"] = pb.ListPoolsResponse(pools=[...])
        done = service.run("pools")
        assert service.asked == [("ListPools", pb.ListPoolsRequest(page_size=1000))]

The server has an event loop and a thread of its own; commands run in this one.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.message import Message

from extproc.admin.errors import AdminError, status_of
from extproc.cli.main import main
from extproc.pb.admin.v1 import admin_pb2 as pb
from extproc.pb.admin.v1 import admin_pb2_grpc

DEADLINE_S = 30.0
_SERVICE = pb.DESCRIPTOR.services_by_name["Admin"]

Answer = Message | AdminError | Sequence[Message | AdminError] | Callable[[Any], Any]


class Service(admin_pb2_grpc.AdminServicer):
    """A server of the admin API. `at`: an address to bind; the default is a free port of the loopback."""

    def __init__(self, at: str = "127.0.0.1:0", credentials: grpc.ServerCredentials | None = None) -> None:
        self.answers: dict[str, Answer] = {}  # by method; one that is not there is empty
        self.asked: list[tuple[str, Any]] = []
        self.metadata: list[dict[str, Any]] = []  # of each call
        self.holds = False  # streams stay open after their last answer
        self.address = at
        self._credentials = credentials
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        for method in _SERVICE.methods:
            handler = self._stream(method) if method.server_streaming else self._unary(method)
            setattr(self, method.name, handler)

    def __enter__(self) -> Service:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(DEADLINE_S)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._server.stop(0), self._loop).result(DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()

    def run(self, *arguments: str, env: dict[str, str | None] | None = None, **more: Any) -> Result:
        """One command for this service. Its result has `exit_code`, `stdout` and `stderr`."""
        return run(*arguments, env={"FAIRLANE_ADDRESS": self.address, **(env or {})}, **more)

    async def _start(self) -> None:
        self._server = grpc.aio.server()
        admin_pb2_grpc.add_AdminServicer_to_server(self, self._server)
        if self._credentials is None:
            port = self._server.add_insecure_port(self.address)
        else:
            port = self._server.add_secure_port(self.address, self._credentials)
        if not self.address.startswith("unix:"):
            self.address = f"{self.address.rpartition(':')[0]}:{port}"
        await self._server.start()

    def _unary(self, method: Any) -> Callable[..., Any]:
        async def handle(request: Any, context: grpc.aio.ServicerContext) -> Message:
            answer = self._take(method, request, context)
            if callable(answer):
                answer = answer(request)
            if isinstance(answer, AdminError):
                await _abort(context, answer)
            assert isinstance(answer, Message)
            return answer

        return handle

    def _stream(self, method: Any) -> Callable[..., Any]:
        async def handle(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Message]:
            answers = self._take(method, request, context)
            for answer in answers if isinstance(answers, Sequence) else [answers]:
                if isinstance(answer, AdminError):
                    await _abort(context, answer)
                assert isinstance(answer, Message)
                yield answer
            if self.holds:
                await asyncio.Event().wait()  # until the client goes, or the server stops

        return handle

    def _take(self, method: Any, request: Any, context: Any) -> Any:
        self.asked.append((method.name, request))
        self.metadata.append(dict(context.invocation_metadata()))
        empty = getattr(pb, method.output_type.name)()
        return self.answers.get(method.name, [] if method.server_streaming else empty)


async def _abort(context: grpc.aio.ServicerContext, error: AdminError) -> None:
    details = status_of(error).SerializeToString()
    await context.abort(error.code, error.message, (("grpc-status-details-bin", details),))


def run(*arguments: str, env: dict[str, str | None] | None = None, **more: Any) -> Result:
    """`fairlane ctl` with nothing from the environment but `env`."""
    clean = {f"FAIRLANE_{name}": None for name in _ENVIRONMENT}
    return CliRunner().invoke(main, ["ctl", *arguments], env={**clean, **(env or {})}, **more)


_ENVIRONMENT = ("ADDRESS", "TOKEN", "TOKEN_FILE", "CA", "CERTIFICATE", "KEY", "TLS", "SERVER_NAME", "TIMEOUT", "OUTPUT")


class Authority:
    """A certificate authority; files are in PEM."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder / name
        self.folder.mkdir()
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signed = self._sign(self._name, self._key, [x509.BasicConstraints(ca=True, path_length=None)])
        self.file = self._write("ca.pem", signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, *names: str) -> tuple[Path, Path]:
        """Files of a certificate for these names or addresses, and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        sans = x509.SubjectAlternativeName([_san(name) for name in names])
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        signed = self._sign(subject, key, [sans])
        return (
            self._write(f"{names[0]}.pem", signed.public_bytes(serialization.Encoding.PEM)),
            self._write(
                f"{names[0]}.key",
                key.private_bytes(
                    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
                ),
            ),
        )

    def _sign(self, subject: x509.Name, key: Any, extensions: Sequence[Any]) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
        )
        for each in extensions:
            builder = builder.add_extension(each, critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _write(self, name: str, content: bytes) -> Path:
        file = self.folder / name
        file.write_bytes(content)
        return file


def _san(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
