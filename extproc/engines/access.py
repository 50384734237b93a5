"""How the HTTP side of a pool's engines is reached: scheme, path, port, whom to believe, and what to show.

Certificates are checked against the endpoint's IP, or against `server_name` where the certificates carry names; the
name is then also the one that is asked for (SNI). Switching the check off takes a word of its own in the file, and is
said in the log. A bearer token goes to the engine's own host alone: redirects are not followed, and where somebody
else's code follows one, aiohttp drops the token on the way to another host. Over plain http everyone on the way reads
it; that is said once, unless the endpoint is on this machine. Whatever else is asked of an engine through `session`
carries the token too.

Tokens and certificates of a running system are replaced while it runs: a mounted secret changes, a client certificate
lives for a day. So their files are looked at again before a page is read, though once a second at most for all
endpoints together (a `stat` each, in a thread: a file may lie on a network), and never by a timer, so that nothing
wakes up for it. All of them are taken or none. Those that cannot be used any more are said once, and the last good
ones stay in use.

Left out: OCSP and revocation lists, passphrases of keys (nobody could type one), tokens by any other way than
`Authorization: Bearer`. No text of a file goes into errors or logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import structlog

from extproc.config.metrics import Metrics, Tls

log = structlog.get_logger()

POLL_S: Final = 1.0
_LARGEST_TOKEN: Final = 16 * 1024  # bytes; more than HTTP servers take as a header
_HEADERS: Final = {
    # compressing costs the engine's event loop more than the bytes cost the network
    "Accept-Encoding": "identity",
    "Accept": "text/plain;version=0.0.4, */*;q=0.1",
    "User-Agent": "fairlane",
}
_NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})

_Signature = tuple[int, ...]


class AccessError(Exception):
    """A file that is needed to reach engines cannot be used. The message names setting, file, cause and cure, and no
    secret."""


class _NamedContext(ssl.SSLContext):
    """A context that asks for, and checks, one name whatever the address."""

    server_name: str | None = None

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name or server_hostname, session)


class Access:
    """Of the engines of one pool. To be used from one event loop, once `of` or the constructor is through."""

    def __init__(
        self,
        *,
        scheme: str = "http",
        path: str | None = None,
        port: int | None = None,
        tls: Tls | None = None,
        token_file: str | None = None,
    ) -> None:
        """`path`, `port`: of the metrics page; None: the engine's own. Reads the files. Raises AccessError."""
        self.scheme = scheme
        self.path = path
        self.port = port
        self.token_file = token_file
        self._tls = (tls or Tls()) if scheme == "https" else None
        self._files = tuple(Path(name) for name in _names(self._tls, token_file))
        self._signature = self._sign()  # before they are read: what changes meanwhile is read again
        self._context = _context(self._tls)
        self._headers = _authorization(token_file)
        self._look_at = 0.0  # monotonic
        self._told: set[str] = set()
        self._trouble: str | None = None

    @classmethod
    def of(cls, metrics: Metrics, pool: str) -> Access:
        """As the configuration of `pool` says. Raises AccessError when a file of it cannot be used."""
        try:
            return cls(
                scheme=metrics.scheme,
                path=metrics.path,
                port=metrics.port,
                tls=metrics.tls,
                token_file=metrics.token_file,
            )
        except AccessError as error:
            raise AccessError(f"pools: {pool}: {error}") from error

    def base_url(self, endpoint: str) -> str:
        """Of the engine itself. `endpoint`: "ip:port"."""
        return f"{self.scheme}://{endpoint}"

    def page_url(self, base_url: str, path: str) -> str:
        """Of the metrics page of the engine at `base_url`; `path`: where its kind of engine has it. Raises
        ValueError."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{base_url!r} is no http or https URL")
        if parts.scheme != self.scheme:
            raise ValueError(f"{base_url!r} is not {self.scheme}, as the pool's engines are to be reached")
        base = base_url.rstrip("/")
        if self.port is not None:
            host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
            base = f"{parts.scheme}://{host}:{self.port}{parts.path.rstrip('/')}"
        return base + (self.path or path)

    def session(self) -> dict[str, Any]:
        """Arguments of an `aiohttp.ClientSession` that reaches the engines as they are to be reached now. It belongs
        to the running loop."""
        return {
            # Without a limit on idle connections' age there is no timer that looks for old ones; engines close theirs
            # after 5 s and more, and a request on one that is just being closed is sent again by aiohttp.
            "connector": aiohttp.TCPConnector(limit=1, keepalive_timeout=None, ssl=self._context or True),
            "headers": {**_HEADERS, **self._headers},
            "cookie_jar": aiohttp.DummyCookieJar(),
            "trust_env": False,
            "timeout": aiohttp.ClientTimeout(),  # none: each use has one of its own, and each costs a timer
        }

    def request(self) -> dict[str, Any]:
        """Arguments of one request of such a session, for what has changed since it was made."""
        return {"headers": self._headers, "ssl": self._context or True, "allow_redirects": False}

    async def refresh(self) -> None:
        """Read the files again if they have changed and nobody has looked within the last second."""
        if not self._files:
            return
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + POLL_S
            await asyncio.to_thread(self._look)

    def tell_risks(self, endpoint: str) -> None:
        """Log, once for each, what is unsafe about reaching `endpoint` in this way."""
        if self._tls is not None and self._tls.insecure_skip_verify:
            self._tell(
                "certificates of engines are not checked",
                endpoint,
                "leave insecure_skip_verify out of metrics.tls, and name the engines' CA in metrics.tls.ca",
            )
        if self._headers and self.scheme == "http" and not _is_here(endpoint):
            self._tell("the token for engines goes over the network in plain text", endpoint, "metrics.scheme: https")

    def wants_a_token(self) -> str:
        """What to say of an engine that answers 401 or 403."""
        if self.token_file is None:
            return "it wants a bearer token, see metrics.token_file"
        return f"it does not take the token in {self.token_file} (metrics.token_file)"

    # inside

    def _tell(self, event: str, endpoint: str, cure: str) -> None:
        if event not in self._told:
            self._told.add(event)
            log.warning(event, endpoint=endpoint, cure=cure)

    def _sign(self) -> tuple[_Signature, ...]:
        return tuple(_signature(path) for path in self._files)

    def _look(self) -> None:
        signature = self._sign()
        if signature == self._signature:
            return
        self._signature = signature
        try:
            context, headers = _context(self._tls), _authorization(self.token_file)
        except AccessError as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                log.warning("files for reaching engines not read", error=str(error), note="the last ones stay in use")
            return
        self._trouble = None
        self._context, self._headers = context, headers
        log.info("files for reaching engines read again", files=[str(path) for path in self._files])


def _names(tls: Tls | None, token_file: str | None) -> list[str]:
    named = [token_file] if tls is None else [token_file, tls.ca, tls.certificate, tls.key]
    return [name for name in named if name is not None]


def _signature(path: Path) -> _Signature:
    try:
        stat = path.stat()
    except OSError as error:
        return (error.errno or -1,)
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)


def _is_here(endpoint: str) -> bool:
    host = urlsplit(f"//{endpoint}").hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _bytes(setting: str, name: str, most: int) -> bytes:
    path = Path(name)
    try:
        if not path.is_file() and path.exists():
            raise AccessError(f"{setting}: {name} is no regular file")  # to open a pipe is to wait for its writer
        with path.open("rb") as file:
            return file.read(most + 1)
    except OSError as error:
        raise AccessError(f"{setting}: {name} cannot be read: {error.strerror or type(error).__name__}") from None


def _authorization(name: str | None) -> Mapping[str, str]:
    if name is None:
        return _NO_HEADERS
    setting = "metrics.token_file"
    token = _bytes(setting, name, _LARGEST_TOKEN).strip()
    if not token:
        raise AccessError(f"{setting}: {name} is empty; write the bearer token there")
    if len(token) > _LARGEST_TOKEN or not all(0x21 <= byte < 0x7F for byte in token):
        raise AccessError(
            f"{setting}: {name} must hold the token alone: one word of printable ASCII, without 'Bearer' before it, "
            f"and of at most {_LARGEST_TOKEN} bytes"
        )
    return MappingProxyType({"Authorization": "Bearer " + token.decode("ascii")})


def _context(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = _NamedContext(ssl.PROTOCOL_TLS_CLIENT)  # checks certificate and name unless told otherwise
    context.server_name = tls.server_name
    if tls.insecure_skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca is None:
        context.load_default_certs()
    else:
        _bytes("metrics.tls.ca", tls.ca, 0)
        try:
            context.load_verify_locations(cafile=tls.ca)
        except (ssl.SSLError, OSError):
            raise AccessError(f"metrics.tls.ca: {tls.ca} holds no certificates in PEM form") from None
    if tls.certificate is not None and tls.key is not None:
        _bytes("metrics.tls.certificate", tls.certificate, 0)
        _bytes("metrics.tls.key", tls.key, 0)
        try:
            context.load_cert_chain(tls.certificate, tls.key, password=_no_passphrase)
        except _EncryptedError:
            raise AccessError(
                f"metrics.tls.key: {tls.key} is encrypted, and nobody is there to give the passphrase; store it without"
            ) from None
        except (ssl.SSLError, OSError) as error:
            raise AccessError(_chain_text(tls.certificate, tls.key, error)) from None
    return context


class _EncryptedError(Exception):
    pass


def _no_passphrase() -> str:
    raise _EncryptedError


def _chain_text(certificate: str, key: str, error: OSError) -> str:
    """What is wrong with a pair. OpenSSL says of neither file which of the two it could not read."""
    reason = getattr(error, "reason", None) or ""
    if "MISMATCH" in reason:
        return f"metrics.tls.key: {key} is not the key of the certificate {certificate}"
    for what, name, mark in (
        ("certificate", certificate, b"-----BEGIN CERTIFICATE-----"),
        ("key", key, b"PRIVATE KEY-----"),
    ):
        with contextlib.suppress(OSError):
            if mark not in Path(name).read_bytes():
                return f"metrics.tls.{what}: {name} holds no {what} in PEM form"
    return f"metrics.tls.certificate and key: {certificate} and {key} cannot be used: {reason or type(error).__name__}"
