"""An admin port on a free address with a servicer that answers empty, and clients of all kinds."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from google.protobuf.message_factory import GetMessageClass

from extproc.admin.access import CALLER, Caller
from extproc.admin.server import AdminServer
from extproc.config.administration import Administration
from extproc.pb.admin.v1 import admin_pb2, admin_pb2_grpc

METHODS = {method.name: method for method in admin_pb2.DESCRIPTOR.services_by_name["Admin"].methods}
LOOPBACK = "127.0.0.1:0"
Denial = tuple[str, str, str, str, str]
Metadata = Sequence[tuple[str, str]]


class Empty:
    """Answers every method with an empty message, a stream with two, and remembers who called what."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Caller]] = []

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            raise AttributeError(name)
        answer = GetMessageClass(METHODS[name].output_type)

        async def unary(request: object, context: object) -> Any:
            self.calls.append((name, CALLER.get()))
            return answer()

        async def stream(request: object, context: object) -> AsyncIterator[Any]:
            self.calls.append((name, CALLER.get()))
            yield answer()
            yield answer()

        return stream if METHODS[name].server_streaming else unary


@dataclass
class Port:
    server: AdminServer
    servicer: Any
    address: str
    denied: list[Denial] = field(default_factory=list)
    broken: list[None] = field(default_factory=list)


@contextlib.asynccontextmanager
async def opened(servicer: Any = None, listen: str = LOOPBACK, **administration: Any) -> AsyncIterator[Port]:
    """A port for the section `admin` of the file. It serves, and follows no file of tokens by itself."""
    denied: list[Denial] = []
    servicer = Empty() if servicer is None else servicer
    server = AdminServer.build(
        listen, Administration.model_validate(administration), servicer, lambda *told: denied.append(told)
    )
    await server.start()
    await server.set_serving(True)
    address = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{server.port}"
    try:
        yield Port(server, servicer, address, denied)
    finally:
        await server.stop(0)


async def call(
    channel: grpc.aio.Channel, method: str = "GetStatus", *, metadata: Metadata = (), request: Any = None
) -> Any:
    """Its answer, of a stream the list of all."""
    given = GetMessageClass(METHODS[method].input_type)() if request is None else request
    answer = getattr(admin_pb2_grpc.AdminStub(channel), method)(given, metadata=metadata, timeout=20)
    if METHODS[method].server_streaming:
        return [message async for message in answer]
    return await answer


async def refusal(channel: grpc.aio.Channel, method: str = "GetStatus", **given: Any) -> grpc.aio.AioRpcError:
    """Of a call that must be refused."""
    try:
        await call(channel, method, **given)
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError(f"{method} was answered")


def bearer(token: str) -> Metadata:
    return (("authorization", f"Bearer {token}"),)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def write_tokens(path: Path, **tokens: str) -> None:
    """token=role; its holder has the name of the token with -holder."""
    entries = {digest(token): {"name": f"{token}-holder", "role": role} for token, role in tokens.items()}
    replace(path, json.dumps(entries))


def replace(path: Path, text: str | bytes) -> None:
    """As one should: written beside, and renamed."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(text if isinstance(text, bytes) else text.encode())
    new.replace(path)


def channel_to(address: str, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    """A connection of its own."""
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1))
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, credentials, options=options)


# -- certificates ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    certificate: bytes  # PEM
    key: bytes


class Authority:
    """Signs certificates that are good for an hour."""

    def __init__(self, name: str) -> None:
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self._sign(self._subject, self._key, ca=True).certificate

    def server(self) -> Pair:
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self._sign(x509.Name([]), ec.generate_private_key(ec.SECP256R1()), names)

    def client(self, *names: x509.GeneralName, common_name: str = "client", expired: bool = False) -> Pair:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        return self._sign(subject, ec.generate_private_key(ec.SECP256R1()), names, expired=expired)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: Sequence[x509.GeneralName] = (),
        *,
        ca: bool = False,
        expired: bool = False,
    ) -> Pair:
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2 if expired else 0)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return Pair(
            builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def tls_files(folder: Path, server: Pair, client_ca: bytes | None = None) -> dict[str, str]:
    """The section `admin.tls`, for files that are written here."""
    replace(folder / "tls.crt", server.certificate)
    replace(folder / "tls.key", server.key)
    section = {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")}
    if client_ca is not None:
        replace(folder / "ca.crt", client_ca)
        section["client_ca"] = str(folder / "ca.crt")
    return section


def shows(authority: Authority, client: Pair | None = None) -> grpc.ChannelCredentials:
    """A client that trusts `authority`, and shows `client`."""
    if client is None:
        return grpc.ssl_channel_credentials(authority.pem)
    return grpc.ssl_channel_credentials(authority.pem, client.key, client.certificate)
