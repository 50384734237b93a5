"""Tenants from client certificates that Envoy's TLS has checked, and clients who would be somebody else."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any, NamedTuple

import aiohttp
import orjson
import pytest
import pytest_asyncio
from cryptography import x509
from identity_case import Authority, Held, Pair, ask_for_certificates, digest, full, held_as, one_slot, tls_listener
from rig import CHAT, Answer, Rig, chat

from extproc.cli.ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

SPIFFE = "spiffe://cluster/ns/{}/sa/worker"


class Tls(NamedTuple):
    rig: Rig
    url: str
    good: Authority
    evil: Authority

    def request(self, pair: Pair | None, headers: Mapping[str, str] | None = None) -> asyncio.Task[Answer]:
        """Over a connection of its own."""
        return asyncio.create_task(self._post(pair, headers))

    async def _post(self, pair: Pair | None, headers: Mapping[str, str] | None) -> Answer:
        context = ssl.create_default_context(cafile=str(self.good.file))
        context.check_hostname = False
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        content = {"content-type": "application/json", **(headers or {})}
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http,
            http.post(self.url + CHAT, data=orjson.dumps(chat()), headers=content) as answer,
        ):
            return Answer(answer.status, answer.headers, await answer.read())


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def tls(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tls]:
    directory = tmp_path_factory.mktemp("pki")
    good, evil = Authority(directory, "good"), Authority(directory, "evil")
    server = good.issue("server", x509.DNSName("localhost"))
    (port,) = free_ports(1)

    def envoy(config: dict[str, Any]) -> None:
        ask_for_certificates(config)
        tls_listener(config, port, server, good)

    tenant = [
        {"certificate": {"pattern": "spiffe://cluster/ns/(.*)/sa/.*"}},
        {"certificate": {"which": "dns_san", "pattern": r"(.*)\.teams\.example"}},
        {"certificate": {"which": "subject", "pattern": "CN=team-(.*)"}},
        {"certificate": {"which": "sha256"}},
    ]
    config = {"identity": {"tenant": tenant, "separator": "/"}}
    async with one_slot(tmp_path_factory.mktemp("stack"), envoy, config=config) as rig, full(rig):
        yield Tls(rig, f"https://127.0.0.1:{port}", good, evil)


async def test_a_name_in_a_uri(tls: Tls) -> None:
    pair = tls.good.issue("uri", x509.UniformResourceIdentifier(SPIFFE.format("team-a")))
    assert await held_as(tls.rig, tls.request(pair)) == Held("team-a", "default")


async def test_a_name_cannot_climb(tls: Tls) -> None:
    pair = tls.good.issue("climb", x509.UniformResourceIdentifier(SPIFFE.format("team-a/team-b")))
    assert (await held_as(tls.rig, tls.request(pair))).tenant == "team-a%2Fteam-b"


async def test_of_several_uris_the_first_counts(tls: Tls) -> None:
    names = [x509.UniformResourceIdentifier(SPIFFE.format(name)) for name in ("first", "second")]
    pair = tls.good.issue("several", x509.DNSName("x.teams.example"), *names)
    assert (await held_as(tls.rig, tls.request(pair))).tenant == "first"


async def test_a_uri_that_only_contains_a_name(tls: Tls) -> None:
    pair = tls.good.issue("inside", x509.UniformResourceIdentifier("https://x.example/?" + SPIFFE.format("team-a")))
    assert (await held_as(tls.rig, tls.request(pair))).tenant == digest(pair)


async def test_a_dns_name(tls: Tls) -> None:
    pair = tls.good.issue("dns", x509.DNSName("team-d.teams.example"))
    assert (await held_as(tls.rig, tls.request(pair))).tenant == "team-d"


async def test_a_subject(tls: Tls) -> None:
    pair = tls.good.issue("team-s")
    assert (await held_as(tls.rig, tls.request(pair))).tenant == "s"


async def test_the_certificates_digest(tls: Tls) -> None:
    pair = tls.good.issue("plain")
    assert (await held_as(tls.rig, tls.request(pair))).tenant == digest(pair)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-forwarded-client-cert": f"By=x;Hash=00;URI={SPIFFE.format('team-a')};DNS=team-d.teams.example"},
        {"connection.uri_san_peer_certificate": SPIFFE.format("team-a")},
        {"x-tenant": "team-a"},
    ],
    ids=["", "x-forwarded-client-cert", "the attribute's name", "x-tenant"],
)
async def test_without_a_certificate_nobody_is_anybody(headers: dict[str, str], tls: Tls) -> None:
    assert (await held_as(tls.rig, tls.request(None, headers))).tenant == "anonymous"
    assert (await held_as(tls.rig, tls.rig.start(chat(), headers=headers))).tenant == "anonymous"  # nor without TLS


async def test_a_header_does_not_replace_a_certificate(tls: Tls) -> None:
    pair = tls.good.issue("honest", x509.UniformResourceIdentifier(SPIFFE.format("team-b")))
    forged = {"x-forwarded-client-cert": f"URI={SPIFFE.format('team-a')}"}
    assert (await held_as(tls.rig, tls.request(pair, forged))).tenant == "team-b"


@pytest.mark.parametrize("what", ["of another authority", "expired"])
async def test_a_bad_certificate_is_refused_by_envoy(what: str, tls: Tls) -> None:
    name = x509.UniformResourceIdentifier(SPIFFE.format("team-a"))
    pair = tls.good.issue("old", name, days=-1) if what == "expired" else tls.evil.issue("forged", name)
    with pytest.raises(aiohttp.ClientError):
        await tls.request(pair)
    assert (await tls.rig.pool())["queued"] == 0
