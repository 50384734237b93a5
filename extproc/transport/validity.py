"""Until when a certificate is good.

The standard library tells it of an authority's certificates and of a peer's, not of one's own: so it is read here
(RFC 5280, 4.1.2.5). TLS has taken the certificate before; no more of its DER is understood than it takes to come there.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from typing import Final

from extproc.transport.der import only, values

_SEQUENCE: Final = 0x30
_UTC_TIME, _GENERALIZED_TIME = 0x17, 0x18
_TIMES: Final = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def expiry(pem: bytes) -> float | None:
    """Unix time in seconds after which the first certificate in `pem` is good no more; None: it cannot be read."""
    try:
        text = pem.decode("latin-1")  # words of any kind may stand around the certificates
        first = _BEGIN + text.split(_BEGIN, 1)[1].split(_END, 1)[0] + _END
        to_be_signed = only(only(ssl.PEM_cert_to_DER_cert(first), _SEQUENCE), _SEQUENCE)
        for tag, content in values(to_be_signed):
            times = [(kind, text) for kind, text in values(content) if kind in _TIMES] if tag == _SEQUENCE else []
            if len(times) == 2:  # of the sequences before it none holds a time
                kind, written = times[1]
                return _moment(kind, written.decode("ascii"))
    except (ValueError, IndexError):
        pass
    return None


def _moment(kind: int, text: str) -> float:
    """Raises ValueError."""
    moment = datetime.strptime(text, _TIMES[kind]).replace(tzinfo=UTC)
    if kind == _UTC_TIME and moment.year >= 2050:  # RFC 5280: 50 to 99 are of the century before
        moment = moment.replace(year=moment.year - 100)
    return moment.timestamp()
