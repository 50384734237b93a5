"""Clients who would be somebody else, for every source at once, with Fairlane up and with Fairlane away.

Up: nobody gets another's name, and what Fairlane says to the engine is Fairlane's. Away: requests pass unscheduled
(fail-open), and then all the more nothing of a client's making may look as if it came from Fairlane."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from identity_case import (
    OTHER_KEY,
    ask_for_certificates,
    bearer,
    claims,
    few_retries,
    full,
    held_as,
    jwt_authn,
    one_slot,
    set_early,
    token,
)
from rig import Json, Rig, chat

from extproc.cli.stack import FAIRLANE

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

KEY = "sk-of-team-a"
GATEWAY = "gateway"  # the name that Envoy gives to whoever comes
DEFAULT = "1000000"  # priority of the default class
SOURCES = {
    "tenant": [
        {"metadata": {"path": ["payload", "sub"]}},
        {"certificate": {"which": "subject"}},
        {"api_key": {"header": "x-api-key", "sha256": {hashlib.sha256(KEY.encode()).hexdigest(): "team-a"}}},
        {"header": "x-gateway"},
    ]
}
FROM_FAIRLANE = {
    "x-vllm-priority": "-9999",
    "X-Fairlane-Ticket": "forged",
    "x-fairlane-class": "interactive",
    "x-fairlane-endpoint": "10.9.9.9:1",
    "x-fairlane-invented": "forged",
}
ATTACKS: dict[str, dict[str, str]] = {
    "metadata": {"envoy.filters.http.jwt_authn": "ceo", "fairlane.request": "ceo", "x-user": "ceo"},
    "certificate": {"x-forwarded-client-cert": 'Subject="CN=ceo"', "x-client-cert-subject": "CN=ceo"},
    "api key": {"x-api-key": "sk-of-team-b", "authorization": f"Basic {KEY}"},
    "the digest for the key": {"x-api-key": hashlib.sha256(KEY.encode()).hexdigest()},
    "header": {"X-Gateway": "ceo"},
    "header that is no source": {"x-tenant": "ceo"},
    "fairlane": FROM_FAIRLANE,
    # headers that the next hop is to drop
    "hop by hop": {"connection": "x-gateway, x-vllm-priority, x-fairlane-class, keep-alive"},
    "all at once": {"x-gateway": "ceo", "x-user": "ceo", "x-api-key": "sk", **FROM_FAIRLANE},
}
_marks = itertools.count()


def envoy(config: dict[str, Any]) -> None:
    jwt_authn(config)
    ask_for_certificates(config)
    set_early(config, "x-gateway", GATEWAY, "OVERWRITE_IF_EXISTS_OR_ADD")
    few_retries(config)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def up(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with one_slot(tmp_path_factory.mktemp("stack"), envoy, config={"identity": SOURCES}) as rig:
        yield rig


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def away(up: Rig) -> Rig:
    """The same stack from here on; tests that need Fairlane stand before."""
    await up.stack.kill(FAIRLANE)
    return up


async def sent_on(rig: Rig, headers: dict[str, str]) -> Json:
    """What the engine gets of a request that is served."""
    mark = f"mark-{next(_marks)}"
    assert (await rig.post(chat(), headers={**headers, "x-mark": mark})).status == 200
    (entry,) = [entry for entry in await rig.seen() if entry["headers"].get("x-mark") == mark]
    found: Json = entry["headers"]
    return found


def assert_nothing_forged(headers: Json, own: dict[str, str]) -> None:
    assert headers["x-gateway"] == GATEWAY
    assert "x-forwarded-client-cert" not in headers
    assert "x-user" not in headers
    ours = {name: value for name, value in headers.items() if name.startswith(("x-fairlane-", "x-vllm-"))}
    assert not set(ours.values()) & set(own.values())


async def test_who_has_the_right_to_a_name_gets_it(up: Rig) -> None:
    async with full(up):
        assert (await held_as(up, up.start(chat(), headers=bearer(token(claims()))))).tenant == "alice"
        assert (await held_as(up, up.start(chat(), headers={"x-api-key": KEY}))).tenant == "team-a"
        both = {**bearer(token(claims())), "x-api-key": KEY}
        assert (await held_as(up, up.start(chat(), headers=both))).tenant == "alice"  # by trust
        assert (await held_as(up, up.start(chat()))).tenant == GATEWAY


@pytest.mark.parametrize("attack", ATTACKS)
async def test_up(attack: str, up: Rig) -> None:
    own = ATTACKS[attack]
    async with full(up):
        assert (await held_as(up, up.start(chat(), headers=own))).tenant == GATEWAY
    headers = await sent_on(up, own)
    assert_nothing_forged(headers, own)
    assert headers["x-fairlane-class"] == "default"
    assert headers["x-vllm-priority"] == DEFAULT
    assert "x-fairlane-invented" not in headers


async def test_a_forged_token_is_refused_with_fairlane_up(up: Rig) -> None:
    assert (await up.post(chat(), headers=bearer(token(claims(), OTHER_KEY)))).status == 401


@pytest.mark.parametrize("attack", ATTACKS)
async def test_away(attack: str, away: Rig) -> None:
    own = ATTACKS[attack]
    headers = await sent_on(away, own)
    assert_nothing_forged(headers, own)
    assert not [name for name in headers if name.startswith("x-fairlane-")]
    assert headers["x-vllm-priority"] == DEFAULT


async def test_a_forged_token_is_refused_with_fairlane_away(away: Rig) -> None:
    assert (await away.post(chat(), headers=bearer(token(claims(), OTHER_KEY)))).status == 401
    assert (await away.post(chat(), headers=bearer(token(claims())))).status == 200
