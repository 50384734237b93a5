"""Authorities and certificates that are made for a test."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from extproc.config.tls import Tls

NAMES = (x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
HOUR = datetime.timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    certificate: bytes  # PEM
    key: bytes

    @property
    def der(self) -> bytes:
        return x509.load_pem_x509_certificate(self.certificate).public_bytes(serialization.Encoding.DER)

    def with_passphrase(self) -> bytes:
        """The key."""
        return serialization.load_pem_private_key(self.key, None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )


class Authority:
    def __init__(self, name: str = "ours") -> None:
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.pem = self._sign(self._subject, self._key, (), HOUR, ca=True)

    def issue(
        self, *names: x509.GeneralName, lasts: datetime.timedelta | datetime.datetime = HOUR, subject: str = ""
    ) -> Pair:
        """Without names for a port on loopback. `lasts`: from now, or until; what is over is negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        about = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)] if subject else [])
        certificate = self._sign(about, key, names or NAMES, lasts)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(certificate, pem)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        names: tuple[x509.GeneralName, ...],
        lasts: datetime.timedelta | datetime.datetime,
        *,
        ca: bool = False,
    ) -> bytes:
        now = datetime.datetime.now(datetime.UTC).replace(microsecond=0)
        end = lasts if isinstance(lasts, datetime.datetime) else now + lasts
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, end) - HOUR)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def replace(path: Path, content: bytes) -> None:
    """As one should: written beside, and renamed."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(content)
    new.replace(path)


def written(folder: Path, pair: Pair, client_ca: bytes | None = None) -> Tls:
    """The files of one port, and the section that names them."""
    replace(folder / "tls.crt", pair.certificate)
    replace(folder / "tls.key", pair.key)
    section = {"certificate": str(folder / "tls.crt"), "key": str(folder / "tls.key")}
    if client_ca is not None:
        replace(folder / "ca.crt", client_ca)
        section["client_ca"] = str(folder / "ca.crt")
    return Tls.model_validate(section)
