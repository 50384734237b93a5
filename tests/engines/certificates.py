"""Certificates for tests that speak TLS on this machine. Good for an hour."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """One that signs its own certificate, and those of servers at 127.0.0.1 and of clients."""

    def __init__(self, name: str) -> None:
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        constraint = x509.BasicConstraints(ca=True, path_length=None)
        self._certificate = self._sign(self._name, self._key, constraint)
        self.pem = self._certificate.public_bytes(serialization.Encoding.PEM).decode()

    def server(self, *, ask_client: bool = False, name: str | None = None, expired: bool = False) -> ssl.SSLContext:
        """`ask_client`: clients without a certificate of this authority are refused. `name`: that the certificate
        carries in place of the address."""
        key = ec.generate_private_key(ec.SECP256R1())
        ip = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        names = x509.SubjectAlternativeName([ip if name is None else x509.DNSName(name)])
        certificate = self._sign(x509.Name([]), key, names, expired=expired)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.pem)
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"".join(_pem(certificate, key)))
            file.flush()
            context.load_cert_chain(file.name)
        context.verify_mode = ssl.CERT_REQUIRED if ask_client else ssl.CERT_NONE
        return context

    def client(self) -> tuple[bytes, bytes]:
        """Certificate and key, PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "client")])
        return _pem(self._sign(subject, key, x509.BasicConstraints(ca=False, path_length=None)), key)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        extension: x509.ExtensionType,
        *,
        expired: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2 if expired else 0)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(extension, critical=not subject.rdns)
        )
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> tuple[bytes, bytes]:
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
