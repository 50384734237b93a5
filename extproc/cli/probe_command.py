"""`fairlane probe`: is it ready? For the health checks of containers and units, which have no curl.

It is run every few seconds beside the service, so it imports little: the standard library's HTTP client alone."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import sys
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

import click

_MOST = 200  # bytes of an answer that are looked at


class _UnansweredError(Exception):
    """What to say."""


@click.command()
@click.argument("url", default="http://127.0.0.1:9090/readyz")
@click.option("--ca", type=click.Path(path_type=Path), help="https: a file with the authorities to be believed.")
@click.option(
    "--insecure", is_flag=True, help="https: believe any certificate; for one that does not name the address."
)
@click.option("--certificate", type=click.Path(path_type=Path), help="https: ours, where clients must show one.")
@click.option("--key", type=click.Path(path_type=Path), help="https: of our certificate.")
@click.option(
    "--timeout", type=click.FloatRange(0.1, 60), default=2.0, show_default=True, help="Seconds, for each step."
)
def probe(
    url: str, ca: Path | None, insecure: bool, certificate: Path | None, key: Path | None, timeout: float
) -> None:
    """Ask URL once, and exit with 0 if it answers 200, else with 1 and a line that says why.

    URL is http:// or https://; unless given, readiness at the default of listen.http. No proxy is asked, and no
    redirect is followed."""
    try:
        at = _parsed(url)
        tls = _tls(ca, insecure, certificate, key) if at.scheme == "https" else None
    except _UnansweredError as error:
        raise click.UsageError(str(error)) from None
    if at.scheme == "http" and (ca or insecure or certificate or key):
        raise click.UsageError("--ca, --insecure, --certificate and --key are for https:// addresses")
    try:
        click.echo(f"{url}: {_ask(at, tls, certificate, timeout)}")
    except _UnansweredError as error:
        click.echo(f"{url}: {error}", err=True)
        sys.exit(1)


def _parsed(url: str) -> SplitResult:
    try:
        at = urlsplit(url)
        usable = at.scheme in ("http", "https") and at.hostname and at.port != 0 and at.username is None
    except ValueError:  # a port that is none, a bracket that is not closed
        usable = False
    # Anything else would go into the request as it stands.
    if not usable or not (url.isascii() and url.isprintable()) or " " in url:
        raise _UnansweredError(f"{url!r} cannot be asked: expected http://host:port/path, or https://")
    return at


def _tls(ca: Path | None, insecure: bool, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    if key and not certificate:
        raise _UnansweredError("--key without --certificate: name both")
    try:
        context = ssl.create_default_context(cafile=ca)
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            # A password would be asked for at the terminal, and there is none.
            context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:
        files = ", ".join(str(each) for each in (ca, certificate, key) if each)
        raise _UnansweredError(f"{files}: cannot be used: {getattr(error, 'strerror', None) or error}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password; give one without")


def _hint(tls: ssl.SSLContext | None, own: Path | None) -> str:
    """What to look at where it hangs up."""
    if tls is None:
        return "is it an https:// address?"
    if own is None:
        return "if it asks clients for a certificate (client_ca), give one: --certificate and --key"
    return f"does it believe {own} (--certificate)? See client_ca there"


def _ask(at: SplitResult, tls: ssl.SSLContext | None, own: Path | None, timeout: float) -> str:
    """What a good answer says. `own`: the certificate that we show. Raises _UnansweredError."""
    host = at.hostname or ""
    connection: http.client.HTTPConnection
    if tls is not None:
        connection = http.client.HTTPSConnection(host, at.port, timeout=timeout, context=tls)
    else:
        connection = http.client.HTTPConnection(host, at.port, timeout=timeout)
    path = (at.path or "/") + (f"?{at.query}" if at.query else "")
    try:
        connection.request("GET", path, headers={"connection": "close"})
        answer = connection.getresponse()
        said = _line(answer.read(_MOST))
    except ssl.SSLCertVerificationError as error:
        raise _UnansweredError(
            f"its certificate is not believed: {error.verify_message}; name the authority (--ca), or --insecure"
        ) from None
    except (
        ConnectionResetError,
        BrokenPipeError,
        ssl.SSLEOFError,
    ):  # how one sees its refusal who shows no certificate
        what = "the connection was closed in place of an answer"
        raise _UnansweredError(f"{what}; {_hint(tls, own)}") from None
    except ssl.SSLError as error:
        why = _hint(tls, own) if re.search("CERTIFICATE|UNKNOWN_CA", error.reason or "") else "does it speak TLS there?"
        raise _UnansweredError(f"TLS failed: {error.reason or error}; {why}") from None
    except TimeoutError:
        raise _UnansweredError(f"no answer within {timeout:g} s") from None
    except ConnectionRefusedError:
        raise _UnansweredError("nothing listens there; is it running, and is this its address (listen.http)?") from None
    except socket.gaierror as error:
        raise _UnansweredError(f"no such name: {error.strerror}") from None
    except OSError as error:
        raise _UnansweredError(error.strerror or type(error).__name__) from None
    except http.client.HTTPException as error:
        raise _UnansweredError(
            f"the answer is no HTTP ({type(error).__name__}); is it an https:// address, or another port?"
        ) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise _UnansweredError(f"answered {answer.status}: {said or answer.reason}")
    return said or "200"


def _line(body: bytes) -> str:
    """Its first line, as something that a terminal may show."""
    first = body.decode(errors="replace").strip().partition("\n")[0].strip()
    return "".join(c if c.isprintable() else "?" for c in first)
