"""`fairlane probe`: 0 if it answers 200, else 1 and one line that says why."""

from __future__ import annotations

import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from extproc.cli.main import main
from extproc.cli.ports import free_ports

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nready\n"


def probe(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["probe", *arguments])


class Answering:
    """A server that gives each connection these bytes; without any it is silent."""

    def __init__(self, answer: bytes, tls: ssl.SSLContext | None = None) -> None:
        self._answer = answer
        self._tls = tls
        self.asked: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            if self._over.is_set():
                connection.close()
                return
            with connection:
                connection.settimeout(20)
                try:
                    spoken = self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
                    self.asked.append(spoken.recv(65536))
                    if self._answer:
                        spoken.sendall(self._answer)
                        if self._tls:
                            spoken.close()
                    else:
                        self._over.wait(20)
                except OSError:
                    pass  # the client did not like it

    def close(self) -> None:
        self._over.set()
        with socket.socket() as last:  # wakes the thread
            last.connect_ex(("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()


@contextmanager
def answering(answer: bytes, tls: ssl.SSLContext | None = None) -> Iterator[Answering]:
    server = Answering(answer, tls)
    try:
        yield server
    finally:
        server.close()


def test_ready() -> None:
    with answering(OK) as server:
        url = f"http://127.0.0.1:{server.port}/readyz?x=1"
        result = probe(url)
        assert (result.exit_code, result.stdout, result.stderr) == (0, f"{url}: ready\n", "")
        assert server.asked[0].startswith(b"GET /readyz?x=1 HTTP/1.1\r\n")


def test_a_200_without_a_body_is_good() -> None:
    with answering(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n") as server:
        assert probe(f"http://127.0.0.1:{server.port}").stdout == f"http://127.0.0.1:{server.port}: 200\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 503 Nope\r\ncontent-length: 10\r\n\r\nnot ready\n", "answered 503: not ready"),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n", "answered 404: Not Found"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n", "answered 302: Found"),
        (b"HTTP/1.1 503 No\r\ncontent-length: 7\r\n\r\na\x1b[31m\n", "answered 503: a?[31m"),
        (b"HTTP/1.1 500 No\r\nconnection: close\r\n\r\n" + b"x" * 5000, "answered 500: " + "x" * 200),
        (
            b"SSH-2.0-OpenSSH\r\n",
            "the answer is no HTTP (BadStatusLine); is it an https:// address, or another port?",
        ),
    ],
)
def test_what_is_not_200_is_not_ready(answer: bytes, why: str) -> None:
    with answering(answer) as server:
        result = probe(f"http://127.0.0.1:{server.port}/")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == f"http://127.0.0.1:{server.port}/: {why}\n"


def test_nobody_listens() -> None:
    (port,) = free_ports(1)
    result = probe(f"http://127.0.0.1:{port}/readyz")
    assert result.exit_code == 1
    why = "nothing listens there; is it running, and is this its address (listen.http)?"
    assert result.stderr == f"http://127.0.0.1:{port}/readyz: {why}\n"


def test_a_connection_that_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def close() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)

        thread = threading.Thread(target=close)
        thread.start()
        result = probe(f"http://127.0.0.1:{port}/")
        thread.join()
    why = "the connection was closed in place of an answer; is it an https:// address?"
    assert (result.exit_code, result.stderr) == (1, f"http://127.0.0.1:{port}/: {why}\n")


def test_silence_ends() -> None:
    with answering(b"") as server:
        result = probe(f"http://127.0.0.1:{server.port}/", "--timeout", "0.2")
        assert (result.exit_code, result.stderr.split(": ")[1]) == (1, "no answer within 0.2 s\n")


@pytest.mark.parametrize(
    "url",
    ["127.0.0.1:9090", "file:///etc/passwd", "http://", "http://x:99999/", "http://[::1/", "http://x/ y", "http://x/\r\n",
     "http://us:pw@x/", "unix:/x"],
)  # fmt: skip
def test_what_cannot_be_asked(url: str) -> None:
    result = probe(url)
    assert result.exit_code == 2
    assert "expected http://host:port/path, or https://" in result.output


def test_no_proxy_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    (port,) = free_ports(1)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{port}")
    with answering(OK) as server:
        assert probe(f"http://127.0.0.1:{server.port}/").exit_code == 0


# -- https -------------------------------------------------------------------------------------------


def made(directory: Path, name: str, *, at: str | None) -> tuple[Path, Path]:
    """A certificate that has signed itself, and its key. `at`: the IP address in it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    names: list[x509.GeneralName] = [x509.IPAddress(ip_address(at))] if at else [x509.DNSName("elsewhere.example")]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject).issuer_name(subject).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    files = directory / f"{name}.pem", directory / f"{name}.key"
    files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return files


def context(certificate: Path, key: Path, client_ca: Path | None = None) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    if client_ca:
        tls.load_verify_locations(client_ca)
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


def test_a_certificate_that_the_authority_vouches_for(tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "good", at="127.0.0.1")
    with answering(OK, context(certificate, key)) as server:
        assert probe(f"https://127.0.0.1:{server.port}/", "--ca", str(certificate)).exit_code == 0
        result = probe(f"https://127.0.0.1:{server.port}/")
        assert result.exit_code == 1
        assert "its certificate is not believed: " in result.stderr
        assert "--ca" in result.stderr


def test_a_certificate_for_another_name(tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "other", at=None)
    with answering(OK, context(certificate, key)) as server:
        url = f"https://127.0.0.1:{server.port}/"
        result = probe(url, "--ca", str(certificate))
        assert result.exit_code == 1
        assert "IP address mismatch" in result.stderr
        assert probe(url, "--insecure").exit_code == 0


def test_a_server_that_wants_a_certificate_gets_one(tmp_path: Path) -> None:
    certificate, key = made(tmp_path, "server", at="127.0.0.1")
    ours, our_key = made(tmp_path, "client", at="127.0.0.1")
    with answering(OK, context(certificate, key, client_ca=ours)) as server:
        url = f"https://127.0.0.1:{server.port}/"
        result = probe(url, "--ca", str(certificate), "--certificate", str(ours), "--key", str(our_key))
        assert (result.exit_code, result.stderr) == (0, "")
        result = probe(url, "--ca", str(certificate))
        assert result.exit_code == 1
        assert result.stderr.startswith(f"{url}: ")
        assert result.stderr.endswith(
            "if it asks clients for a certificate (client_ca), give one: --certificate and --key\n"
        )
        strange, strange_key = made(tmp_path, "strange", at="127.0.0.1")
        result = probe(url, "--ca", str(certificate), "--certificate", str(strange), "--key", str(strange_key))
        assert result.exit_code == 1
        assert f"does it believe {strange} (--certificate)?" in result.stderr


def test_https_where_none_is_spoken() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as server:
        result = probe(f"https://127.0.0.1:{server.port}/", "--insecure")
        assert result.exit_code == 1
        assert "does it speak TLS there?" in result.stderr


def nothing(_: Path) -> list[str]:
    return ["--ca", "/nowhere/ca.pem"]


def no_certificate(directory: Path) -> list[str]:
    (directory / "x.pem").write_text("what is this")
    return ["--ca", str(directory / "x.pem")]


def with_password(directory: Path) -> list[str]:
    certificate, _ = made(directory, "locked", at="127.0.0.1")
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"made for this test"),
    )
    (directory / "locked.key").write_bytes(key)
    return ["--certificate", str(certificate), "--key", str(directory / "locked.key")]


@pytest.mark.parametrize(
    ("given", "why"),
    [(nothing, "No such file"), (no_certificate, "cannot be used"), (with_password, "has a password")],
)
def test_files_that_cannot_be_used(tmp_path: Path, given: Callable[[Path], list[str]], why: str) -> None:
    result = probe("https://127.0.0.1:1/", *given(tmp_path))
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())


def test_options_that_do_not_fit() -> None:
    assert "are for https://" in probe("http://127.0.0.1:1/", "--insecure").output
    assert "name both" in probe("https://127.0.0.1:1/", "--key", "x").output


def test_it_imports_little() -> None:
    """It runs every few seconds for as long as the container does."""
    look = (
        "import sys, extproc.cli.main, extproc.cli.probe_command\n"
        "print([m for m in ('grpc', 'aiohttp', 'pydantic', 'yaml', 'asyncio', 'structlog') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
