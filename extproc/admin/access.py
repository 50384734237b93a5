"""Who calls the admin API, and whether anybody may.

Whoever reaches the port over loopback or the Unix socket is on this machine, can read the file and end the process;
nothing is asked of them unless `admin` says otherwise. Any other address is open to the network, so the service does
not start there without tokens or a client authority. What is forwarded to loopback (`kubectl port-forward`, a sidecar)
counts as loopback: where others can do that, ask for tokens.

With a client authority the connection itself needs a certificate of it; then the role is that of the certificate's SAN,
or of a token where one is shown. A token that is shown decides alone: a wrong one is not made good by a certificate.
Nothing else in the metadata says who somebody is.

A wrong token costs its sender a SHA-256 of at most 4 KiB and a look-up, whether it is the first or the ten-thousandth.
Beyond a hundred of them in a minute an address is told RESOURCE_EXHAUSTED, and its right tokens work as before: behind
one address there may be a whole company or a proxy, and whoever could lock it out would do so when operators are needed
most. Nor would a lock keep tokens safe: that nobody guesses 128 random bits does. Counts of addresses are bounded; the
oldest goes first.

A token that leaves its file, or gets another role, is refused from the next look at the file on (a second). An open
stream of such a caller ends before its next message. A certificate is looked at when the connection is made, and the
connection ends after an hour.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import grpc
import structlog

from extproc.admin.certificate_names import names_in
from extproc.admin.errors import AdminError
from extproc.admin.tokens import LOCAL, BearerError, Holder, TokenFile, digest_of
from extproc.config.administration import ROLES, Administration, CertificateRole, Role
from extproc.config.digest_file import POLL_S, DigestFileError, watch
from extproc.config.units import UNIX, split_host_port
from extproc.transport.tls_files import TlsError, TlsFiles

log = structlog.get_logger()

MOST_FAILURES: Final = 100  # of one address within WITHIN_S
WITHIN_S: Final = 60.0
_MOST_ADDRESSES: Final = 1024


class AdminStartError(Exception):
    """The admin port cannot be opened as it is configured. The message names setting, cause and cure."""


class DeniedError(AdminError):
    """A call of somebody who may not make it."""

    def __init__(self, code: grpc.StatusCode, cause: str, cure: str = "", name: str = "") -> None:
        """`cause`: the same for all calls of its kind. `name`: whose call it is, where that is known."""
        super().__init__(code, f"{cause}; {cure}" if cure else cause)
        self.cause = cause
        self.name = name


@dataclass(frozen=True, slots=True)
class Caller:
    name: str
    role: Role
    peer: str  # as gRPC has it: "ipv4:192.0.2.1:40112", "ipv6:[2001:db8::1]:40112", "unix:"
    digest: str | None = field(default=None, repr=False)  # of the token that was shown

    def may(self, role: Role) -> bool:
        """Whether this one may do what `role` may."""
        return ROLES.index(self.role) >= ROLES.index(role)


CALLER: ContextVar[Caller] = ContextVar("caller")  # of the call that is being served


class Access:
    """As one configuration has it. To be used from one event loop."""

    def __init__(self, listen: str, administration: Administration, now: Callable[[], float] = time.monotonic) -> None:
        """`listen`: `listen.admin`. Reads the files. Raises AdminStartError."""
        self.by_certificate = administration.tls is not None and administration.tls.client_ca is not None
        self._listen = listen
        self._certificates = tuple(administration.certificates)
        self._authenticates = administration.authenticates
        self._failures = Failures(now)
        self._tokens = None if administration.tokens_file is None else TokenFile(Path(administration.tokens_file))
        self.tls: TlsFiles | None = None  # None: plain text
        try:
            if self._tokens is not None:
                self._tokens.load()
            if administration.tls is not None:
                self.tls = TlsFiles(administration.tls, "admin.tls")
        except DigestFileError as error:
            raise AdminStartError(f"admin.tokens_file: {error}") from error
        except TlsError as error:
            raise AdminStartError(str(error)) from error

    def check_start(self) -> None:
        """Raises AdminStartError where the port would be open to anybody."""
        if is_local(self._listen):
            return
        if not self._authenticates:
            raise AdminStartError(
                f"listen.admin {self._listen} is open to the network, and nothing says who may change this service: "
                "give admin.tls.client_ca with admin.certificates, or admin.tokens_file; or bind 127.0.0.1 or unix:PATH"
            )
        if self.tls is None:
            log.warning(
                "admin_tokens_in_plain_text",
                listen=self._listen,
                note="everyone on the way can read the tokens of the admin port; give admin.tls",
            )

    def server_credentials(self) -> grpc.ServerCredentials | None:
        """None: plain text."""
        return None if self.tls is None else self.tls.credentials()

    def caller(self, context: grpc.aio.ServicerContext[object, object]) -> Caller:
        """Whose call it is. Raises DeniedError."""
        peer = unquote(context.peer())
        if not self._authenticates:
            if not _is_local_peer(peer):  # `localhost` may be another address than it was at the start
                raise DeniedError(grpc.StatusCode.UNAUTHENTICATED, "not of this machine")
            return Caller(LOCAL, "admin", peer)
        try:
            return self._by_token(context, peer) or self._by_certificate(context, peer)
        except DeniedError as denied:
            if self._failures.too_many(address_of(peer)):
                raise DeniedError(
                    grpc.StatusCode.RESOURCE_EXHAUSTED, denied.cause, "too many failed attempts from this address"
                ) from denied
            raise

    def valid(self, caller: Caller) -> bool:
        """Whether this one still is who it was."""
        if caller.digest is None or self._tokens is None:
            return True
        return self._tokens.lookup(caller.digest) == Holder(caller.name, caller.role)

    async def watch(self, on_broken: Callable[[], None], every_s: float = POLL_S) -> None:
        """Read the tokens again when they change; return never, unless there are none. `on_broken`: a changed file
        could not be used."""
        await watch(() if self._tokens is None else (self._tokens,), on_broken, every_s)

    def _by_token(self, context: grpc.aio.ServicerContext[object, object], peer: str) -> Caller | None:
        """None: none is shown, and none is needed."""
        if self._tokens is None:
            return None
        metadata = context.invocation_metadata() or ()
        try:
            digest = digest_of([value for key, value in metadata if key == "authorization"])
        except BearerError as error:
            raise DeniedError(grpc.StatusCode.UNAUTHENTICATED, str(error)) from error
        if digest is None:
            if self._certificates:
                return None
            cure = "send one as authorization: Bearer TOKEN"
            raise DeniedError(grpc.StatusCode.UNAUTHENTICATED, "no token", cure)
        holder = self._tokens.lookup(digest)
        if holder is None:
            cure = "it is not, or no longer, in admin.tokens_file"
            raise DeniedError(grpc.StatusCode.UNAUTHENTICATED, "unknown token", cure)
        return Caller(holder.name, holder.role, peer, digest)

    def _by_certificate(self, context: grpc.aio.ServicerContext[object, object], peer: str) -> Caller:
        names = [name for pem in context.auth_context().get("x509_pem_cert", ()) for name in names_in(pem)]
        for rule in self._certificates:
            for name in names:
                if _matches(rule, name):
                    return Caller(name, rule.role, peer)
        shown = ", ".join(names)[:256] or "none"
        cause = f"no SAN of the certificate has a role in admin.certificates; it has {shown}"
        raise DeniedError(grpc.StatusCode.UNAUTHENTICATED, cause)


class Failures:
    """How often an address failed, within windows of a minute each."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._seen: dict[str, tuple[float, int]] = {}  # beginning of the window, failures; the oldest first

    def __len__(self) -> int:
        return len(self._seen)

    def too_many(self, address: str) -> bool:
        """Count one more of them; whether that is beyond the limit."""
        now = self._now()
        since, count = self._seen.pop(address, (now, 0))
        if now - since >= WITHIN_S:
            since, count = now, 0
        self._seen[address] = (since, count + 1)
        if len(self._seen) > _MOST_ADDRESSES:
            del self._seen[next(iter(self._seen))]
        return count + 1 > MOST_FAILURES


def is_local(listen: str) -> bool:
    """Whether only this machine reaches the address. A name other than `localhost` is not taken for local, whatever it
    is the name of today."""
    if listen.startswith(UNIX):
        return True
    host, port = split_host_port(listen)
    if host.lower() != "localhost":
        return _is_loopback(host)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return bool(found) and all(_is_loopback(str(each[4][0])) for each in found)


def address_of(peer: str) -> str:
    """What a peer has in common with its next connection: "ipv4:192.0.2.1", "ipv6:[2001:db8::1]", without the port;
    "unix:", whatever name the client's end of the socket has."""
    if peer.startswith("unix:"):
        return "unix:"
    head, colon, port = peer.rpartition(":")
    return head if colon and port.isdigit() and peer.startswith(("ipv4:", "ipv6:")) else peer


def _is_local_peer(peer: str) -> bool:
    kind, _, address = address_of(peer).partition(":")
    return kind == "unix" or _is_loopback(address.strip("[]"))


def _is_loopback(host: str) -> bool:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def _matches(rule: CertificateRole, name: str) -> bool:
    if rule.san.endswith("*"):
        return name.startswith(rule.san[:-1])
    return name == rule.san
