"""Tenants and classes from signed tokens that Envoy's jwt_authn has checked, and clients who would be somebody else."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import jwt
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from identity_case import (
    EC_KEY,
    JWT_FILTER,
    OTHER_KEY,
    Held,
    bearer,
    claims,
    full,
    held_as,
    jwt_authn,
    one_slot,
    token,
)
from rig import CHAT, COMPLETIONS, Rig, chat

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]

RSA_KEY = rsa.generate_private_key(65537, 2048)
IDENTITY = {
    "separator": "/",
    "tenant": [{"metadata": {"paths": [["payload", "org"], ["payload", "groups"], ["payload", "sub"]]}}],
    "class": [
        {"metadata": {"path": ["payload", "tier"]}},
        {"path": {"/v1/completions": "batch", "/v1/resp*": "interactive"}},
        {"model": {"big-*": "batch"}},
    ],
}
TENANTS = {"acme/*": {"classes": ["default", "batch"]}}


def envoy(config: dict[str, Any]) -> None:
    jwt_authn(config, {**jwt.algorithms.RSAAlgorithm.to_jwk(RSA_KEY.public_key(), as_dict=True), "kid": "rs"})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    config = {"identity": IDENTITY, "tenants": TENANTS}
    async with one_slot(tmp_path_factory.mktemp("stack"), envoy, config=config) as rig, full(rig):
        yield rig


@pytest.fixture
def rig(shared: Rig) -> Rig:
    return shared


@pytest.mark.parametrize(
    ("said", "who"),
    [
        ({"org": "acme", "groups": ["ml", "ops"]}, Held("acme/ml/alice", "default")),
        ({"org": "acme", "groups": ["ml"], "tier": "batch"}, Held("acme/ml/alice", "batch")),
        ({"org": "acme", "groups": 42, "sub": "bob"}, Held("acme/42/bob", "default")),
        ({"org": "acme", "groups": ["ml"], "sub": "../ops/bob"}, Held("acme/ml/..%2Fops%2Fbob", "default")),
        ({"org": "acme"}, Held("acme", "default")),
        ({"org": 9007199254740993}, Held("anonymous", "default")),  # which arrives as ...992
        ({}, Held("anonymous", "default")),
        ({"org": "Ünïcode ✓"}, Held("Ünïcode ✓", "default")),
    ],
)
async def test_a_good_token(said: dict[str, Any], who: Held, rig: Rig) -> None:
    assert await held_as(rig, rig.start(chat(), headers=bearer(token(claims(**said))))) == who


async def test_a_token_of_another_algorithm(rig: Rig) -> None:
    signed = token(claims(org="acme"), RSA_KEY, "RS256", "rs")
    assert (await held_as(rig, rig.start(chat(), headers=bearer(signed)))).tenant == "acme"


async def test_no_token_is_anonymous(rig: Rig) -> None:
    assert await held_as(rig, rig.start(chat())) == Held("anonymous", "default")


async def test_a_class_beyond_the_tenants_rights_is_clamped_and_counted(rig: Rig) -> None:
    before = await rig.metric("fairlane_clamped_requests_total")
    said = claims(org="acme", groups="ml", tier="interactive")  # acme/ml/alice may use all classes
    assert await held_as(rig, rig.start(chat(), headers=bearer(token(said)))) == Held("acme/ml/alice", "interactive")
    assert await rig.metric("fairlane_clamped_requests_total") == before
    del said["sub"]  # acme/ml is one of acme/*
    assert await held_as(rig, rig.start(chat(), headers=bearer(token(said)))) == Held("acme/ml", "default")
    assert await rig.metric("fairlane_clamped_requests_total") == before + 1


async def test_a_class_by_what_is_asked_for(rig: Rig) -> None:
    assert (await held_as(rig, rig.start(chat(), path=COMPLETIONS))).cls == "batch"
    assert (await held_as(rig, rig.start(chat(), path="/v1/responses?x=1"))).cls == "interactive"
    assert (await held_as(rig, rig.start(chat(model="big-70b")))).cls == "batch"
    assert (await held_as(rig, rig.start(chat(model="big-70b"), path="//v1/%63ompletions"))).cls == "batch"
    assert (await held_as(rig, rig.start(chat()))).cls == "default"
    signed = token(claims(org="acme", tier="interactive"))  # the token comes first
    assert (await held_as(rig, rig.start(chat(), path=COMPLETIONS, headers=bearer(signed)))).cls == "interactive"


def unsigned(payload: dict[str, Any]) -> str:
    return jwt.encode(payload, None, algorithm="none", headers={"kid": "es"})


def signed_with_the_public_key(payload: dict[str, Any]) -> str:
    """HS256, with the published key as the secret: a checker that goes by the token's own `alg` would take it."""
    public = EC_KEY.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    head, body = (
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")
        for part in ({"alg": "HS256", "typ": "JWT", "kid": "es"}, payload)
    )
    signature = jwt.algorithms.HMACAlgorithm(jwt.algorithms.HMACAlgorithm.SHA256).sign(head + b"." + body, public)
    return b".".join((head, body, base64.urlsafe_b64encode(signature).rstrip(b"="))).decode()


def with_other_claims(payload: dict[str, Any]) -> str:
    head, _, signature = token(claims(org="small")).split(".")
    _, body, _ = token(payload).split(".")
    return f"{head}.{body}.{signature}"


FORGED = claims(org="acme")
BAD = {
    "expired": token({**FORGED, "exp": FORGED["iat"] - 3600}),
    "not valid yet": token({**FORGED, "nbf": FORGED["iat"] + 3600}),
    "another's key": token(FORGED, OTHER_KEY),
    "an unknown key": token(FORGED, OTHER_KEY, kid="other"),
    "alg none": unsigned(FORGED),
    "HS256 with the public key": signed_with_the_public_key(FORGED),
    "another issuer": token({**FORGED, "iss": "https://evil.example"}),
    "another audience": token({**FORGED, "aud": "other"}),
    "another's claims under a signature": with_other_claims(FORGED),
    "no signature": token(FORGED).rpartition(".")[0] + ".",
    "no token": "sk-123",
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_token_is_refused_by_envoy(name: str, rig: Rig) -> None:
    answer = await rig.post(chat(), headers=bearer(BAD[name]))
    assert answer.status in (401, 403)
    assert (await rig.pool())["queued"] == 0


FORGERIES: dict[str, dict[str, str]] = {
    "a tenant": {"x-tenant": "acme"},
    "the metadata's name": {JWT_FILTER: '{"payload": {"org": "acme"}}', "payload": '{"org": "acme"}'},
    "the protocol's names": {"x-envoy-dynamic-metadata": JWT_FILTER + "=acme", "x-envoy-peer-metadata": "acme"},
    "a payload that is forwarded": {"x-jwt-payload": base64.b64encode(b'{"org": "acme"}').decode()},
    "another scheme": {"authorization": "Basic " + token(FORGED)},
    "another header": {"x-authorization": f"Bearer {token(FORGED)}"},
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_without_a_token_nobody_is_anybody(name: str, rig: Rig) -> None:
    assert (await held_as(rig, rig.start(chat(), headers=FORGERIES[name]))).tenant == "anonymous"


async def test_the_body_says_nothing_about_the_sender(rig: Rig) -> None:
    body = chat(payload={"org": "acme"}, metadata={JWT_FILTER: {"payload": {"org": "acme"}}}, org="acme")
    assert (await held_as(rig, rig.start(body))).tenant == "anonymous"


@pytest.mark.parametrize("good_in_header", [True, False])
async def test_a_good_token_does_not_carry_a_bad_one(good_in_header: bool, rig: Rig) -> None:
    """jwt_authn reads the header and the query, and refuses what has a bad one in either."""
    good, bad = token(claims(org="small")), BAD["another's key"]
    header, query = (good, bad) if good_in_header else (bad, good)
    answer = await rig.post(chat(), path=f"{CHAT}?access_token={query}", headers=bearer(header))
    assert answer.status == 401
