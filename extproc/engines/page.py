"""One metrics page over HTTP: its bytes, or why there are none.

Whoever answers is not trusted to be an engine. Memory is bounded whatever is sent: reading stops behind the largest
page, and what was compressed, although identity was asked for, is unpacked piece by piece up to the same size (aiohttp
would unpack a piece of the network's as a whole, which can be a thousand times as large). Time is bounded for the page
as a whole, so that one byte a second is no life sign. Redirects are not followed: the page of another host is not this
engine's, and a login page is none at all. The content type is not looked at, since proxies change it; a page is what
parses as one.

TLS that fails is told apart from nobody listening: the first is for whoever has written the configuration, the second
is a state of the engine.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import aiohttp
from yarl import URL

from extproc.engines.access import Access

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024  # a vLLM page has 60 KB; with many LoRA adapters some hundreds
_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_EXCERPT: Final = 200  # characters of somebody else's text in a message
_ANY_ZLIB: Final = zlib.MAX_WBITS | 32  # finds out by itself whether it is gzip or zlib
_UNPACKED: Final = ("gzip", "x-gzip", "deflate")

# OpenSSL's X509_V_ERR_...
_NOT_THE_NAME: Final = (62, 64)  # HOSTNAME_MISMATCH, IP_ADDRESS_MISMATCH
_OUT_OF_DATE: Final = (9, 10)  # CERT_NOT_YET_VALID, CERT_HAS_EXPIRED
_UNKNOWN_ISSUER: Final = (2, 18, 19, 20, 21)  # no issuer's certificate, self-signed, not local, not verified


class FailureKind(StrEnum):
    REFUSED = "refused"  # no connection, or it was closed without an answer
    TIMEOUT = "timeout"
    TLS = "tls"  # somebody listens, and no TLS that both sides accept came about
    STATUS = "status"  # not 200; redirects are not followed
    MALFORMED = "malformed"  # not HTTP, cut off, or a wanted sample that cannot be read
    MISSING = "missing"  # 200 without the series, or with values that cannot be true
    TOO_LARGE = "too_large"


class Form(StrEnum):
    """Which page is read."""

    FILTERED = "filtered"
    FULL = "full"


class PageError(Exception):
    """There is no page, or none that can be read. `ignored`: as in `dialects.Reading`."""

    def __init__(
        self, kind: FailureKind, message: str, *, status: int | None = None, ignored: Mapping[str, int] = _NOTHING
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.ignored = ignored

    @property
    def may_be_the_address(self) -> bool:
        """Whether another form or path of the page is worth asking for: no answer, a server's fault, or a door that is
        closed say nothing about it."""
        if self.status is not None:
            return self.status < 500 and self.status not in (401, 403, 429)
        return self.kind in (FailureKind.MISSING, FailureKind.MALFORMED)


async def fetch(session: aiohttp.ClientSession, url: URL, access: Access, timeout_s: float, most_bytes: int) -> bytes:
    """The page at `url`, unpacked. Raises PageError."""
    try:
        async with (
            asyncio.timeout(timeout_s),
            session.get(url, auto_decompress=False, **access.request()) as response,
        ):
            if response.status != 200:
                raise PageError(FailureKind.STATUS, _status_text(response, access), status=response.status)
            return await _read(response, most_bytes)
    except TimeoutError as error:
        raise PageError(FailureKind.TIMEOUT, f"no page within {timeout_s:g} s") from error
    except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
        raise PageError(FailureKind.MALFORMED, _text(error)) from error
    except (aiohttp.ClientError, OSError) as error:
        fault = _tls_fault(error)
        if fault is not None:
            raise PageError(FailureKind.TLS, _tls_text(fault)) from error
        text = _text(error)
        if isinstance(error, aiohttp.ServerDisconnectedError) and access.scheme == "https":
            # TLS 1.3 refuses a client's certificate after the handshake, and aiohttp does not pass on why
            text += "; if it asks for certificates of clients, see metrics.tls.certificate and key"
        raise PageError(FailureKind.REFUSED, text) from error


def nature(page: bytes) -> str:
    """What a page without any metric seems to be, as an addition to a message. HTML and JSON the parser tells."""
    if not page.strip():
        return " (the page is empty)"
    return " (it is binary)" if b"\0" in page else ""


async def _read(response: aiohttp.ClientResponse, most: int) -> bytes:
    coding = response.headers.get("Content-Encoding", "identity").strip().lower()
    unpacking = None
    if coding in _UNPACKED:
        unpacking = zlib.decompressobj(_ANY_ZLIB)
    elif coding not in ("identity", ""):
        raise PageError(FailureKind.MALFORMED, f"compressed with {coding[:_EXCERPT]!r}, though it was not asked to be")
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        if unpacking is not None:
            try:
                piece = unpacking.decompress(piece, most + 1 - size)
            except zlib.error as error:
                raise PageError(FailureKind.MALFORMED, f"cannot be unpacked as {coding}: {error}") from error
        size += len(piece)
        if size > most:
            raise PageError(FailureKind.TOO_LARGE, f"the page has more than {most} bytes")
        pieces.append(piece)
    if unpacking is not None and not unpacking.eof:
        raise PageError(FailureKind.MALFORMED, f"cannot be unpacked as {coding}: it is cut off")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _status_text(response: aiohttp.ClientResponse, access: Access) -> str:
    text = f"HTTP status {response.status}"
    if response.status in (401, 403):
        return f"{text}: {access.wants_a_token()}"
    if location := response.headers.get("Location"):
        return f"{text}, to {location[:_EXCERPT]}; redirects are not followed, see metrics.path and metrics.scheme"
    return text


def _text(error: Exception) -> str:
    # aiohttp puts a status of its own before what it says of an answer that is no HTTP
    text = error.message if isinstance(error, aiohttp.ClientResponseError) else str(error)
    return " ".join(text.split())[: 2 * _EXCERPT] or type(error).__name__


def _tls_fault(error: BaseException | None) -> ssl.SSLError | None:
    """OpenSSL's own words, of an error that aiohttp raises; None: it was not about TLS."""
    while error is not None:
        for each in (getattr(error, "certificate_error", None), getattr(error, "os_error", None), error):
            # aiohttp's are kinds of SSLError too, without what there is to know
            if isinstance(each, ssl.SSLError) and not isinstance(each, aiohttp.ClientError):
                return each
        error = error.__cause__
    return None


def _tls_text(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in _NOT_THE_NAME:
            cure = "metrics.tls.server_name must be a name in it; without one, the endpoint's IP must be"
        elif error.verify_code in _OUT_OF_DATE:
            cure = "the engine needs a new one, or a clock is wrong"
        elif error.verify_code in _UNKNOWN_ISSUER:
            cure = "metrics.tls.ca must hold the certificate of whoever issued it"
        else:
            cure = "see metrics.tls"
        return f"the engine's certificate does not fit: {error.verify_message}; {cure}"
    reason = error.reason or str(error)
    if "WRONG_VERSION_NUMBER" in reason or "HTTP_REQUEST" in reason or "RECORD_LAYER_FAILURE" in reason:
        return "no TLS is spoken there; metrics.scheme: http, or another metrics.port"
    if "CERTIFICATE_REQUIRED" in reason:
        return "the engine wants a certificate of ours; see metrics.tls.certificate and key"
    if "ALERT" in reason:
        return f"the engine ended TLS: {reason}; if it asks for certificates, see metrics.tls.certificate and key"
    return f"TLS failed: {reason}"
