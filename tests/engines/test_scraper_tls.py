"""Scraping over TLS and with a token, against real servers: what fits, and what does not and why."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from certificates import Authority
from scraper_case import (
    LLAMACPP_PAGE,
    NEVER_S,
    VLLM_PAGE,
    Engine,
    Scraped,
    answer,
    filtering,
    scraping,
    serving,
)
from structlog.testing import capture_logs

from extproc.config.metrics import Tls
from extproc.engines import access as access_module
from extproc.engines.access import Access
from extproc.engines.dialects import LLAMACPP
from extproc.engines.scraper import FailureKind

SECRET = "s3cret-T0ken"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority("engines")


@pytest.fixture(scope="module")
def stranger() -> Authority:
    return Authority("somebody else")


@pytest.fixture
def ca(tmp_path: Path, authority: Authority) -> str:
    return written(tmp_path / "ca.pem", authority.pem)


def written(file: Path, content: str | bytes) -> str:
    """Written beside it and renamed, as files are replaced that somebody may be reading."""
    new = file.with_suffix(".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.rename(file)
    return str(file)


def pair(folder: Path, authority: Authority) -> dict[str, str]:
    certificate, key = authority.client()
    return {"certificate": written(folder / "client.pem", certificate), "key": written(folder / "client.key", key)}


@contextlib.asynccontextmanager
async def tls_scraping(server: ssl.SSLContext, tls: Tls, **settings: Any) -> AsyncIterator[tuple[Engine, Scraped]]:
    engine = Engine()
    async with (
        serving(engine, server),
        scraping(engine.url, access=Access(scheme="https", tls=tls), **settings) as scraped,
    ):
        yield engine, scraped


async def test_a_certificate_for_the_address(authority: Authority, ca: str) -> None:
    async with tls_scraping(authority.server(), Tls(ca=ca)) as (engine, scraped):
        assert engine.url.startswith("https://127.0.0.1:")
        assert (await scraped.sampled(3)).running == 8
        ports = {request.transport.get_extra_info("peername")[1] for request in engine.requests if request.transport}
    assert len(ports) == 1  # one handshake
    assert not scraped.failures


async def test_a_certificate_for_a_name(authority: Authority, ca: str) -> None:
    server = authority.server(name="engines.internal")
    asked: list[str | None] = []
    server.sni_callback = lambda _connection, name, _context: asked.append(name)
    async with tls_scraping(server, Tls(ca=ca, server_name="engines.internal")) as (_, scraped):
        assert (await scraped.sampled()).running == 8
    assert asked == ["engines.internal"]


def test_a_certificate_for_a_name_on_the_loop_of_production(tmp_path: Path) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def sampled() -> int:
        authority = Authority("engines")
        tls = Tls(ca=written(tmp_path / "ca", authority.pem), server_name="engines.internal")
        async with tls_scraping(authority.server(name="engines.internal"), tls) as (_, scraped):
            return (await scraped.sampled(2)).running

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(sampled()) == 8


async def failure_of(server: ssl.SSLContext, tls: Tls) -> str:
    async with tls_scraping(server, tls) as (engine, scraped):
        failure = await scraped.failed(2)
        assert failure.kind is FailureKind.TLS, failure
        assert not scraped.samples and not engine.asked
    return failure.message


async def test_certificates_that_do_not_fit_say_why(authority: Authority, stranger: Authority, ca: str) -> None:
    named = authority.server(name="engines.internal")
    assert "metrics.tls.server_name" in await failure_of(named, Tls(ca=ca))
    other = await failure_of(named, Tls(ca=ca, server_name="engines.example"))
    assert "engines.example" in other and "metrics.tls.server_name" in other
    assert "metrics.tls.ca must hold" in await failure_of(stranger.server(), Tls(ca=ca))
    assert "metrics.tls.ca must hold" in await failure_of(authority.server(), Tls())  # the system's do not know it
    assert "expired" in await failure_of(authority.server(expired=True), Tls(ca=ca))


async def test_the_check_can_be_switched_off_and_that_is_said(stranger: Authority) -> None:
    with capture_logs() as logs:
        async with tls_scraping(stranger.server(expired=True), Tls(insecure_skip_verify=True)) as (_, scraped):
            assert (await scraped.sampled()).running == 8
    assert [log["event"] for log in logs if log["log_level"] == "warning"] == [
        "certificates of engines are not checked"
    ]


async def test_an_engine_that_asks_for_a_certificate(
    authority: Authority, stranger: Authority, ca: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "POLL_S", 0.0)
    server = authority.server(ask_client=True)
    async with tls_scraping(server, Tls(ca=ca)) as (engine, scraped):
        assert "metrics.tls.certificate" in (await scraped.failed()).message
    tls = Tls(ca=ca, **pair(tmp_path, stranger))
    async with tls_scraping(server, tls) as (engine, scraped):
        assert "metrics.tls.certificate" in (await scraped.failed()).message
        assert not engine.asked
        pair(tmp_path, authority)  # the files are replaced, and nothing is started anew
        assert (await scraped.sampled()).running == 8


async def test_tls_where_none_is_spoken() -> None:
    engine = Engine()
    async with serving(engine):
        url = engine.url.replace("http:", "https:")
        async with scraping(url, access=Access(scheme="https")) as scraped:
            failure = await scraped.failed()
    assert failure.kind is FailureKind.TLS
    assert "metrics.scheme: http" in failure.message


async def test_plain_http_where_tls_is_spoken(authority: Authority) -> None:
    engine = Engine()
    async with serving(engine, authority.server()), scraping(engine.url.replace("https:", "http:")) as scraped:
        failure = await scraped.failed()
    assert failure.kind in (FailureKind.REFUSED, FailureKind.MALFORMED)
    assert not engine.asked


# token ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    async with serving(engine):
        yield engine


async def test_the_token_goes_with_each_request_and_a_new_one_is_taken(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "POLL_S", 0.0)
    file = tmp_path / "token"
    access = Access(token_file=written(file, "first\n"))
    taken = "Bearer first"

    async def guarded(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != taken:
            return web.Response(status=401)
        return await filtering(VLLM_PAGE)(request)

    engine.filtered = guarded
    with capture_logs() as logs:
        async with scraping(engine.url, access=access) as scraped:
            await scraped.sampled(2)
            taken = f"Bearer {SECRET}"
            failure = await scraped.failed()
            assert failure.kind is FailureKind.STATUS
            assert failure.message == f"HTTP status 401: it does not take the token in {file} (metrics.token_file)"
            written(file, SECRET)
            await scraped.sampled(2)
            written(file, "")
            await scraped.sampled(2)  # the last good one stays in use
    assert SECRET not in str(logs) and "first" not in str(logs)
    assert "full" not in engine.asked  # a closed door says nothing about the filter


@pytest.mark.parametrize("status", [401, 403])
async def test_an_engine_that_wants_a_token(engine: Engine, status: int) -> None:
    engine.full = answer(b"no", status=status)
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
    assert failure.message == f"HTTP status {status}: it wants a bearer token, see metrics.token_file"
    assert "Authorization" not in engine.requests[0].headers


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_the_token_does_not_follow_a_redirect(engine: Engine, tmp_path: Path, status: int) -> None:
    elsewhere = Engine()
    access = Access(token_file=written(tmp_path / "token", SECRET))
    async with serving(elsewhere):
        engine.full = answer(b"", status=status, Location=elsewhere.url + "/metrics")
        async with scraping(engine.url, access=access, dialect=LLAMACPP) as scraped:
            failure = await scraped.failed(2)
    assert "redirects are not followed" in failure.message
    assert not elsewhere.asked


async def test_port_and_path_of_the_page(engine: Engine) -> None:
    engine.full, engine.paths = answer(LLAMACPP_PAGE), {"/own/page"}
    port = int(engine.url.rsplit(":", 1)[1].strip("/"))
    access = Access(port=port, path="/own/page")
    async with scraping("http://127.0.0.1:1", access=access, dialect="auto", interval_s=NEVER_S) as scraped:
        assert (await scraped.sampled()).waiting == 9
    assert [request.path for request in engine.requests] == ["/own/page"]
