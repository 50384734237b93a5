"""Headers as names: believed as they come, set by Envoy over the client's own, and sent in every odd way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import http2
import orjson
import pytest
import pytest_asyncio
from identity_case import Held, bearer, claims, full, held_as, jwt_authn, manager, one_slot, set_early, token
from rig import CHAT, Answer, Rig, chat

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

BODY = orjson.dumps(chat())
# x-user: made by jwt_authn of a claim. x-routed: set by the route. x-tenant: the client's own word.
SOURCES = {
    "tenant": [{"header": name} for name in ("x-user", "x-routed", "x-tenant")],
    "class": [{"header": "x-appended"}],
}
CLASS = "batch"  # that Envoy appends


def envoy(config: dict[str, Any]) -> None:
    jwt_authn(config)
    set_early(config, "x-appended", CLASS, "APPEND_IF_EXISTS_OR_ADD")
    for host in manager(config)["route_config"]["virtual_hosts"]:
        added = {"header": {"key": "x-routed", "value": "route"}}
        host["routes"][0].setdefault("request_headers_to_add", []).append(added)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    config = {"identity": SOURCES}
    async with one_slot(tmp_path_factory.mktemp("stack"), envoy, config=config) as rig, full(rig):
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Rig:
    return shared


def over_http2(rig: Rig, *fields: tuple[bytes, bytes]) -> asyncio.Task[int]:
    """As `Rig.start`; gives the status alone."""
    return asyncio.create_task(http2.request(rig.stack.addresses.envoy, CHAT, BODY, fields))


async def test_a_header_is_believed(rig: Rig) -> None:
    assert await held_as(rig, rig.start(chat(), headers={"X-Tenant": "team-a"})) == Held("team-a", CLASS)


@pytest.mark.parametrize("own", ["interactive", ""])
async def test_what_envoy_appends_counts_and_not_the_clients_own(own: str, rig: Rig) -> None:
    assert (await held_as(rig, rig.start(chat(), headers={"x-appended": own}))).cls == CLASS


async def test_a_header_from_a_claim_is_envoys_even_without_a_token(rig: Rig) -> None:
    own = {"x-user": "ceo"}
    assert (await held_as(rig, rig.start(chat(), headers={**own, **bearer(token(claims()))}))).tenant == "alice"
    assert (await held_as(rig, rig.start(chat(), headers=own))).tenant == "anonymous"


async def test_a_header_that_the_route_sets_comes_too_late(rig: Rig) -> None:
    """The router adds it, after ext_proc. So it is no source, and the client's own is believed: the reason for
    setting such headers early, or in a filter."""
    assert (await held_as(rig, rig.start(chat()))).tenant == "anonymous"
    assert (await held_as(rig, rig.start(chat(), headers={"x-routed": "forged"}))).tenant == "forged"


@pytest.mark.parametrize(
    ("fields", "tenant"),
    [
        ([(b"x-tenant", b"one"), (b"x-tenant", b"two")], "two"),
        ([(b"x-tenant", b"one"), (b"x-tenant", b"")], "anonymous"),
        ([(b"x-tenant", " Ünï ".encode())], "Ünï"),
        ([(b"x-tenant", b"\xff\xfe")], "anonymous"),  # no text, and so no name
        ([(b"x-tenant", b"a\xffb")], "anonymous"),
        ([(b"x-tenant", b"y" * 50_000)], "anonymous"),
        ([(b"x_tenant", b"other")], "anonymous"),
        ([(b"x-tenant", b"a"), (b"x-user", b"ceo"), (b"x-user", b"cto")], "a"),
    ],
    ids=[
        "twice",
        "an empty one behind",
        "UTF-8",
        "binary",
        "half binary",
        "50 KB",
        "an underscore",
        "of a claim, twice",
    ],
)
async def test_fields_of_http2(fields: list[tuple[bytes, bytes]], tenant: str, rig: Rig) -> None:
    assert (await held_as(rig, over_http2(rig, *fields))).tenant == tenant


@pytest.mark.parametrize(
    "field",
    [
        (b"X-Tenant", b"a"),
        (b"x-tenant", b"a\x00b"),
        (b"x-tenant", b"a\nx-user: ceo"),
        (b":x-tenant", b"a"),
        (b"x-tenant", b"y" * 100_000),
    ],
    ids=["upper case", "a zero byte", "a new line", "a pseudo header", "100 KB"],
)
async def test_fields_that_envoy_takes_for_an_attack(field: tuple[bytes, bytes], rig: Rig) -> None:
    with pytest.raises(ConnectionError):
        await over_http2(rig, field)
    assert (await held_as(rig, rig.start(chat(), headers={"x-tenant": "next"}))).tenant == "next"


async def test_100_kb_over_http1(rig: Rig) -> None:
    answer: Answer = await rig.post(chat(), headers={"x-tenant": "y" * 100_000})
    assert answer.status == 431
