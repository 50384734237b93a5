"""The names in a certificate's SAN, as they stand in it.

gRPC tells them too, but as text that ends at the first zero byte: of `admin.example\\0.other.example` it tells
`admin.example`. An authority that signs such a name for whoever owns `other.example` would hand out another one's role.
So they are read here. The certificate has been checked by TLS before; of its DER no more is understood than it takes to
come to the names (RFC 5280, 4.1 and 4.2.1.6).
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Iterator
from typing import Final

from extproc.transport.der import every, only, values

_SEQUENCE: Final = 0x30
_OID: Final = 0x06
_OCTETS: Final = 0x04
_EXTENSIONS: Final = 0xA3
_SAN: Final = bytes((0x55, 0x1D, 0x11))  # 2.5.29.17
_TEXTS: Final = (0x81, 0x82, 0x86)  # mail address, DNS name, URI
_IP: Final = 0x87


def names_in(pem: bytes) -> list[str]:
    """Mail addresses, DNS names, URIs and IP addresses. Those that cannot be printed are left out: a name with a zero
    or a line break in it reads as another one somewhere. Empty where `pem` is no certificate."""
    try:
        der = ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))
        found = [_name(tag, content) for tag, content in _san(der)]
    except (ValueError, IndexError):
        return []
    return [name for name in found if name and name.isprintable()]


def _san(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Tag and content of each of its names. Raises ValueError and IndexError."""
    certificate = only(der, _SEQUENCE)
    to_be_signed = only(certificate, _SEQUENCE)
    for extensions in every(to_be_signed, _EXTENSIONS):
        for extension in every(only(extensions, _SEQUENCE), _SEQUENCE):
            if only(extension, _OID) == _SAN:
                yield from values(only(only(extension, _OCTETS), _SEQUENCE))


def _name(tag: int, content: bytes) -> str:
    if tag in _TEXTS:
        return content.decode("ascii")
    if tag == _IP:
        return str(ipaddress.ip_address(content))
    return ""
