"""Certificate, key and client authority of a port, and new ones while it is open.

A `stat` of each file, before each handshake and at each look at the metrics, tells whether they are others: nothing
wakes up for it. All of them are taken or none: new ones that cannot be used, or of which only some have arrived (a key
that is not the certificate's), are told once, and the last good ones stay in use. Connections that are open stay as
they are.

gRPC asks for them before each handshake, in a thread of its own. What asyncio serves asks for a context for each
connection: a context of its own for each set of files, since authorities can be added to one and never taken away, and
since a session of before must not be resumed with the new ones.

A certificate that has run out is no use to anybody, so one does not take the place of another. At the start there is no
other, and a port that cannot be opened tells nobody what is wrong: it is used, and told.

Left out: passphrases of keys (nobody could type one), revocation lists, and clients that may show a certificate and
need not: gRPC for Python either demands one of everybody or asks nobody.
"""

from __future__ import annotations

import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import structlog

from extproc.config.tls import Tls
from extproc.transport.validity import expiry

log = structlog.get_logger()

HANDSHAKE_S: Final = 10.0  # within which a client must have come through TLS and, over gRPC, HTTP/2's greeting
HANDSHAKE_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),  # two minutes by default
)
EXPIRED: Final = "has expired: nobody who checks it will connect; put a new certificate and its key there"
_LARGEST: Final = 1024**2  # bytes of a file
_ATTEMPTS: Final = 3  # to find all files of one moment, while somebody writes them

_Signature = tuple[tuple[int, ...], ...]


class TlsError(Exception):
    """A file cannot be used. The message names setting, file and cause, and no text of a file."""


class _ChangingError(TlsError):
    """Somebody writes the files just now."""


@dataclass(frozen=True, slots=True)
class _File:
    setting: str
    path: Path


@dataclass(frozen=True, slots=True)
class _Set:
    """Files that go together. The context is for connections of one protocol, HTTP/1.1."""

    grpc: grpc.ServerCertificateConfiguration
    context: ssl.SSLContext
    expires: float | None  # Unix time


class TlsFiles:
    """Those that one setting names. To be used from any thread."""

    def __init__(self, tls: Tls, setting: str) -> None:
        """`setting`: `admin.tls`, `listen.ext_proc_tls` or `listen.http_tls`. Read them. Raises TlsError."""
        self.setting = setting
        self._certificate = _File(f"{setting}.certificate", Path(tls.certificate))
        self._key = _File(f"{setting}.key", Path(tls.key))
        self._client_ca = None if tls.client_ca is None else _File(f"{setting}.client_ca", Path(tls.client_ca))
        self._lock = threading.Lock()  # each of gRPC's handshakes has a thread
        self._tried: _Signature = ()
        self._used = self._read_all()
        self._told_grpc = self._used
        if _is_over(self._used):
            log.warning("tls_expired", setting=setting, certificate=str(self._certificate.path), note=EXPIRED)

    @property
    def asks_clients(self) -> bool:
        """Whether a client must show a certificate."""
        return self._client_ca is not None

    def expires(self) -> float | None:
        """Unix time, in seconds, after which the certificate in use is good no more; None: not known. Looks for new
        files first: where nobody connects, nothing else does."""
        return self._look().expires

    @property
    def expired(self) -> bool:
        """Whether the certificate in use is good no more."""
        return _is_over(self._look())

    def context(self) -> ssl.SSLContext:
        """For one new connection. Not to be changed."""
        return self._look().context

    def credentials(self) -> grpc.ServerCredentials:
        """For a port. With a client authority a client without a certificate of it gets no connection."""
        return grpc.dynamic_ssl_server_credentials(self._told_grpc.grpc, self._newer, self.asks_clients)

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """What has come since gRPC was told last; None: nothing that can be used."""
        found = self._look()
        with self._lock:
            if found is self._told_grpc:
                return None
            self._told_grpc = found
        return found.grpc

    def _look(self) -> _Set:
        with self._lock:
            if self._signature() != self._tried:
                self._take()
            return self._used

    def _take(self) -> None:
        try:
            found = self._read_all()
            if _is_over(found) and not _is_over(self._used):
                raise TlsError(f"{self._certificate.setting}: {self._certificate.path}: {EXPIRED}")
        except TlsError as error:
            log.warning("tls_refused", setting=self.setting, error=str(error), note="the last good files stay in use")
            return
        self._used = found
        log.info("tls_read", setting=self.setting, certificate=str(self._certificate.path))

    def _read_all(self) -> _Set:
        """Raises TlsError."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._read()
            except _ChangingError:
                continue
        return self._read()

    def _read(self) -> _Set:
        self._tried = self._signature()
        try:
            found = self._read_as_they_are()
        except TlsError:
            self._check_unchanged()  # else one of them is new and the other is not
            raise
        self._check_unchanged()
        return found

    def _check_unchanged(self) -> None:
        if self._signature() != self._tried:
            raise _ChangingError(f"{self.setting}: its files were written to while they were read") from None

    def _read_as_they_are(self) -> _Set:
        certificate, key = _content(self._certificate), _content(self._key)
        client_ca = None if self._client_ca is None else _content(self._client_ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        try:
            # without a password the library would ask for one on the terminal
            context.load_cert_chain(self._certificate.path, self._key.path, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            cause = getattr(error, "reason", None) or type(error).__name__
            files = f"{self._certificate.path} and {self._key.path}"
            raise TlsError(
                f"{self.setting}: {files} are not a certificate and its key, PEM, without a passphrase: {cause}"
            ) from None
        if self._client_ca is not None and client_ca is not None:
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii"))
                usable = bool(context.cert_store_stats()["x509_ca"])
            except (ssl.SSLError, ValueError):
                usable = False
            if not usable:
                raise TlsError(f"{self._client_ca.setting}: {self._client_ca.path}: holds no CA certificate, PEM")
            context.verify_mode = ssl.CERT_REQUIRED
        pair = grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)
        return _Set(pair, context, expiry(certificate))

    def _signature(self) -> _Signature:
        files = (self._certificate, self._key, self._client_ca)
        return tuple(_signature(file.path) for file in files if file is not None)


def _is_over(found: _Set) -> bool:
    return found.expires is not None and found.expires <= time.time()


def _content(file: _File) -> bytes:
    """Raises TlsError."""
    try:
        if not file.path.is_file() and file.path.exists():
            raise TlsError(f"{file.setting}: {file.path}: is no regular file")
        with file.path.open("rb") as opened:
            content = opened.read(_LARGEST + 1)
    except OSError as error:
        raise TlsError(
            f"{file.setting}: {file.path}: cannot be read: {error.strerror or type(error).__name__}"
        ) from None
    if len(content) > _LARGEST:
        raise TlsError(f"{file.setting}: {file.path}: is larger than {_LARGEST // 1024**2} MiB")
    return content


def _signature(path: Path) -> tuple[int, ...]:
    try:
        stat = path.stat()
    except OSError as error:
        return (error.errno or -1,)
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)
