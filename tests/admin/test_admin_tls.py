"""Certificates on the admin port: who has which role by them, who gets no connection, and new ones while it is open."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Iterator, MutableMapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
import structlog
from access_case import (
    Authority,
    Pair,
    Port,
    bearer,
    call,
    channel_to,
    opened,
    refusal,
    replace,
    shows,
    tls_files,
    write_tokens,
)
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from extproc.admin.access import AdminStartError
from extproc.admin.server import AdminServer
from extproc.config.administration import Administration

pytestmark = pytest.mark.asyncio(loop_scope="session")

Logs = list[MutableMapping[str, Any]]
URI, DNS = x509.UniformResourceIdentifier, x509.DNSName
ROLES = [
    {"san": "spiffe://cluster/ns/ops/sa/root", "role": "admin"},
    {"san": "spiffe://cluster/ns/ops/*", "role": "operator"},
    {"san": "watch.example", "role": "viewer"},
    {"san": "192.0.2.7", "role": "viewer"},
]


@pytest.fixture(autouse=True)
def logs() -> Iterator[Logs]:
    with structlog.testing.capture_logs() as entries:
        yield entries


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("ours")


@pytest_asyncio.fixture(loop_scope="session")
async def port(authority: Authority, tmp_path: Path) -> AsyncIterator[Port]:
    tls = tls_files(tmp_path, authority.server(), authority.pem)
    async with opened(tls=tls, certificates=ROLES) as found:
        yield found


@pytest.mark.parametrize(
    ("names", "role", "name"),
    [
        ([URI("spiffe://cluster/ns/ops/sa/root")], "admin", "spiffe://cluster/ns/ops/sa/root"),
        ([URI("spiffe://cluster/ns/ops/sa/root2")], "operator", "spiffe://cluster/ns/ops/sa/root2"),
        ([URI("spiffe://cluster/ns/ops/")], "operator", "spiffe://cluster/ns/ops/"),
        ([DNS("watch.example")], "viewer", "watch.example"),
        ([x509.IPAddress(ipaddress.ip_address("192.0.2.7"))], "viewer", "192.0.2.7"),
        # the first of the rules counts, not the first of the names
        ([DNS("watch.example"), URI("spiffe://cluster/ns/ops/sa/x")], "operator", "spiffe://cluster/ns/ops/sa/x"),
    ],
)
async def test_a_role_by_name(
    names: list[x509.GeneralName], role: str, name: str, port: Port, authority: Authority
) -> None:
    async with channel_to(port.address, shows(authority, authority.client(*names))) as channel:
        await call(channel)
    ((_, caller),) = port.servicer.calls
    assert (caller.name, caller.role) == (name, role)


@pytest.mark.parametrize(
    "names",
    [
        [],
        [URI("spiffe://cluster/ns/ops")],
        [URI("spiffe://CLUSTER/ns/ops/sa/root")],
        [URI("x-spiffe://cluster/ns/ops/sa/root")],
        [DNS("watch.example.org")],
        [DNS("*.example")],
        [DNS("watch.example\0.org")],
        [DNS("watch.example\n")],
    ],
)
async def test_a_certificate_without_a_role(
    names: list[x509.GeneralName], port: Port, authority: Authority, logs: Logs
) -> None:
    """The common name is none of the names."""
    client = authority.client(*names, common_name="watch.example")
    async with channel_to(port.address, shows(authority, client)) as channel:
        error = await refusal(channel)
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert (error.details() or "").startswith("no SAN of the certificate has a role in admin.certificates; it has ")
    assert [told[3:] for told in port.denied] == [("", "UNAUTHENTICATED")]
    assert not port.servicer.calls


@pytest.mark.parametrize("who", ["none", "of another authority", "expired", "of itself"])
async def test_no_connection(who: str, port: Port, authority: Authority) -> None:
    root = URI("spiffe://cluster/ns/ops/sa/root")
    client: dict[str, Pair | None] = {
        "none": None,
        "of another authority": Authority("ours").client(root),
        "expired": authority.client(root, expired=True),
        "of itself": authority.server(),
    }
    credentials = shows(authority, client[who])
    async with channel_to(port.address, credentials) as channel:
        if who == "of itself":  # the server's own certificate is of the authority, and has no role
            assert (await refusal(channel)).code() is grpc.StatusCode.UNAUTHENTICATED
        else:
            assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE
            assert not port.denied
    assert not port.servicer.calls


async def test_plain_text_is_not_answered(port: Port) -> None:
    async with channel_to(port.address) as channel:
        assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_sees_a_server_of_another_authority(port: Port, authority: Authority) -> None:
    credentials = shows(Authority("another"), authority.client(DNS("watch.example")))
    async with channel_to(port.address, credentials) as channel:
        assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE


async def test_certificates_and_tokens(authority: Authority, tmp_path: Path) -> None:
    """A token that is shown decides alone; the connection needs a certificate all the same."""
    write_tokens(tmp_path / "tokens.json", alice="admin")
    tls = tls_files(tmp_path, authority.server(), authority.pem)
    watch = authority.client(DNS("watch.example"))
    stranger = authority.client(DNS("stranger.example"))
    async with opened(tls=tls, certificates=ROLES, tokens_file=str(tmp_path / "tokens.json")) as port:
        async with channel_to(port.address, shows(authority, watch)) as channel:
            await call(channel)
            await call(channel, metadata=bearer("alice"))
            assert (await refusal(channel, metadata=bearer("guess"))).code() is grpc.StatusCode.UNAUTHENTICATED
        async with channel_to(port.address, shows(authority, stranger)) as channel:
            await call(channel, metadata=bearer("alice"))
            assert (await refusal(channel)).code() is grpc.StatusCode.UNAUTHENTICATED
        async with channel_to(port.address, shows(authority)) as channel:
            assert (await refusal(channel, metadata=bearer("alice"))).code() is grpc.StatusCode.UNAVAILABLE
        roles = [(caller.name, caller.role) for _, caller in port.servicer.calls]
    assert roles == [("watch.example", "viewer"), ("alice-holder", "admin"), ("alice-holder", "admin")]


async def test_tokens_over_tls(authority: Authority, tmp_path: Path, logs: Logs) -> None:
    """Beyond loopback, and nothing to be warned of."""
    write_tokens(tmp_path / "tokens.json", alice="admin")
    tls = tls_files(tmp_path, authority.server())
    async with (
        opened(listen="0.0.0.0:0", tls=tls, tokens_file=str(tmp_path / "tokens.json")) as port,
        channel_to(f"127.0.0.1:{port.server.port}", shows(authority)) as channel,
    ):
        await call(channel, metadata=bearer("alice"))
        assert (await refusal(channel)).code() is grpc.StatusCode.UNAUTHENTICATED
    assert not logs


async def test_certificates_over_a_socket(authority: Authority, tmp_path: Path) -> None:
    tls = tls_files(tmp_path, authority.server(), authority.pem)
    async with opened(listen=f"unix:{tmp_path}/s", tls=tls, certificates=ROLES) as port:
        options = (("grpc.ssl_target_name_override", "localhost"),)
        credentials = shows(authority, authority.client(DNS("watch.example")))
        async with grpc.aio.secure_channel(port.address, credentials, options=options) as channel:
            await call(channel)
        async with channel_to(port.address) as channel:
            assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE


# -- new files while it is open -------------------------------------------------------------------


async def test_new_certificate_and_authority(port: Port, authority: Authority, tmp_path: Path, logs: Logs) -> None:
    """Those who have a connection keep it; who comes next meets the new ones."""
    after = Authority("after")
    old = shows(authority, authority.client(DNS("watch.example")))
    new = shows(after, after.client(DNS("watch.example")))
    async with channel_to(port.address, old) as open_channel:
        await call(open_channel)
        async with channel_to(port.address, new) as channel:
            await refusal(channel)
        tls_files(tmp_path, after.server(), after.pem)
        async with channel_to(port.address, new) as channel:
            await call(channel)
        async with channel_to(port.address, old) as channel:
            assert (await refusal(channel)).code() is grpc.StatusCode.UNAVAILABLE
        await call(open_channel)
    assert [entry["event"] for entry in logs] == ["tls_read"]


@pytest.mark.parametrize("how", ["broken", "half", "gone", "no authority"])
async def test_what_cannot_be_used_leaves_the_old(
    how: str, port: Port, authority: Authority, tmp_path: Path, logs: Logs
) -> None:
    after = authority.server()
    if how == "broken":
        replace(tmp_path / "tls.crt", b"not a certificate")
    elif how == "half":
        replace(tmp_path / "tls.crt", after.certificate)  # its key is still to come
    elif how == "gone":
        (tmp_path / "tls.key").unlink()
    else:
        replace(tmp_path / "ca.crt", b"")
    credentials = shows(authority, authority.client(DNS("watch.example")))
    for _ in range(3):
        async with channel_to(port.address, credentials) as channel:
            await call(channel)
    assert [entry["event"] for entry in logs] == ["tls_refused"]
    assert "admin.tls" in logs[0]["error"]
    assert "BEGIN" not in logs[0]["error"]
    tls_files(tmp_path, after, authority.pem)
    async with channel_to(port.address, credentials) as channel:
        await call(channel)
    assert [entry["event"] for entry in logs] == ["tls_refused", "tls_read"]


# -- at the start ---------------------------------------------------------------------------------


def _with_passphrase(pair: Pair) -> bytes:
    key = serialization.load_pem_private_key(pair.key, None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("no certificate", "admin.tls.certificate: {0}/tls.crt: cannot be read: No such file"),
        ("no key", "admin.tls.key: {0}/tls.key: cannot be read: No such file"),
        ("no authority", "admin.tls.client_ca: {0}/ca.crt: cannot be read: No such file"),
        ("a directory", "admin.tls.key: {0}/tls.key: is no regular file"),
        ("text", "admin.tls: {0}/tls.crt and {0}/tls.key are not a certificate and its key, PEM"),
        ("key of another", "are not a certificate and its key, PEM, without a passphrase: KEY_VALUES_MISMATCH"),
        ("passphrase", "are not a certificate and its key, PEM, without a passphrase"),
        ("authority of text", "admin.tls.client_ca: {0}/ca.crt: holds no CA certificate, PEM"),
        ("authority that is none", "admin.tls.client_ca: {0}/ca.crt: holds no CA certificate, PEM"),
    ],
)
async def test_files_that_cannot_be_used(how: str, words: str, authority: Authority, tmp_path: Path) -> None:
    server = authority.server()
    tls = tls_files(tmp_path, server, authority.pem)
    certificate, key, client_ca = (tmp_path / name for name in ("tls.crt", "tls.key", "ca.crt"))
    if how == "no certificate":
        certificate.unlink()
    elif how == "no key":
        key.unlink()
    elif how == "no authority":
        client_ca.unlink()
    elif how == "a directory":
        key.unlink()
        key.mkdir()
    elif how == "text":
        certificate.write_text("s3cret")
    elif how == "key of another":
        key.write_bytes(authority.server().key)
    elif how == "passphrase":
        key.write_bytes(_with_passphrase(server))
    elif how == "authority of text":
        client_ca.write_text("s3cret")
    else:
        client_ca.write_bytes(authority.client(DNS("watch.example")).certificate)
    administration = Administration.model_validate({"tls": tls, "certificates": ROLES})
    with pytest.raises(AdminStartError) as error:
        AdminServer.build("127.0.0.1:0", administration, None, lambda *_: None)
    assert words.format(tmp_path) in str(error.value)
    assert "s3cret" not in str(error.value)
