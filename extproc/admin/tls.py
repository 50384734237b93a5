"""Certificate, key and client authority of the admin port, and new ones while it is open.

gRPC asks for them before each handshake, in a thread of its own; a `stat` of each file tells whether they are others.
All of them are taken or none: new ones that cannot be used, or of which only some have arrived (a key that is not the
certificate's), are told once, and the last good ones stay in use. Connections that are open stay as they are.

Left out: passphrases of keys (nobody could type one), revocation lists, and clients that may show a certificate and
need not: gRPC for Python either demands one of everybody or asks nobody.
"""

from __future__ import annotations

import ssl
import threading
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from extproc.config.administration import AdminTls

log = structlog.get_logger()

_LARGEST = 1024**2  # bytes of a file

_Signature = tuple[tuple[int, ...], ...]


class TlsError(Exception):
    """A file cannot be used. The message names setting, file and cause, and no text of a file."""


@dataclass(frozen=True, slots=True)
class _File:
    setting: str
    path: Path


class TlsFiles:
    """Those that `admin.tls` names."""

    def __init__(self, tls: AdminTls) -> None:
        """Read them. Raises TlsError."""
        self._certificate = _File("admin.tls.certificate", Path(tls.certificate))
        self._key = _File("admin.tls.key", Path(tls.key))
        self._client_ca = None if tls.client_ca is None else _File("admin.tls.client_ca", Path(tls.client_ca))
        self._lock = threading.Lock()  # each handshake has a thread
        self._tried = self._signature()
        self._first = self._read()

    def credentials(self) -> grpc.ServerCredentials:
        """For a port. With a client authority a client without a certificate of it gets no connection."""
        return grpc.dynamic_ssl_server_credentials(self._first, self._newer, self._client_ca is not None)

    def _newer(self) -> grpc.ServerCertificateConfiguration | None:
        """What has come since the last call; None: nothing that can be used."""
        with self._lock:
            signature = self._signature()
            if signature == self._tried:
                return None
            self._tried = signature
            try:
                found = self._read()
            except TlsError as error:
                log.warning("admin_tls_refused", error=str(error), note="the last good files stay in use")
                return None
            log.info("admin_tls_read", certificate=str(self._certificate.path))
            return found

    def _read(self) -> grpc.ServerCertificateConfiguration:
        certificate, key = _content(self._certificate), _content(self._key)
        client_ca = None if self._client_ca is None else _content(self._client_ca)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # without a password the library would ask for one on the terminal
            context.load_cert_chain(self._certificate.path, self._key.path, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            cause = getattr(error, "reason", None) or type(error).__name__
            files = f"{self._certificate.path} and {self._key.path}"
            raise TlsError(
                f"admin.tls: {files} are not a certificate and its key, PEM, without a passphrase: {cause}"
            ) from None
        if self._client_ca is not None and client_ca is not None:
            try:
                context.load_verify_locations(cadata=client_ca.decode("ascii"))
                usable = bool(context.cert_store_stats()["x509_ca"])
            except (ssl.SSLError, ValueError):
                usable = False
            if not usable:
                raise TlsError(f"{self._client_ca.setting}: {self._client_ca.path}: holds no CA certificate, PEM")
        if self._signature() != self._tried:
            raise TlsError("admin.tls: its files were written to while they were read")
        return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca)

    def _signature(self) -> _Signature:
        files = (self._certificate, self._key, self._client_ca)
        return tuple(_signature(file.path) for file in files if file is not None)


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
