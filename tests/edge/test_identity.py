"""Who sends a request: order of the sources, what counts as a name, and what a tenant may not use."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from envoy_by_messages import a_config, request

from extproc.edge import facts
from extproc.edge.identity import Identity, identify

JWT = "envoy.filters.http.jwt_authn"


def who(identity: dict[str, Any] | None = None, headers: dict[str, str] | None = None, **more: Any) -> Identity:
    metadata = more.pop("metadata", None)
    config = a_config(**({"identity": identity} if identity else {}), **more)
    return identify(config, facts.read(request(headers=headers, metadata=metadata)))


def sha256(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


# -- tenants --------------------------------------------------------------------------------------


def test_nobody_is_anonymous() -> None:
    assert who() == Identity("anonymous", "default", clamped=False)
    assert who({"anonymous": "everybody"}).tenant == "everybody"
    assert who({"tenant": []}, {"x-tenant": "a"}).tenant == "anonymous"


def test_the_first_source_that_gives_a_name_wins() -> None:
    sources = {"tenant": [{"metadata": {"path": ["sub"]}}, {"header": "X-First"}, {"header": "x-second"}]}
    headers = {"x-first": "one", "x-second": "two"}
    assert who(sources, headers, metadata={JWT: {"sub": "claim"}}).tenant == "claim"
    assert who(sources, headers).tenant == "one"
    assert who(sources, {**headers, "x-first": " "}).tenant == "two"
    assert who(sources, {"x-second": "two"}).tenant == "two"


@pytest.mark.parametrize(
    ("claims", "tenant"),
    [
        ({"payload": {"org": {"id": "acme"}}}, "acme"),
        ({"payload": {"org": {"id": 42}}}, "42"),
        ({"payload": {"org": {"id": 1.5}}}, "1.5"),
        ({"payload": {"org": {"id": True}}}, "anonymous"),
        ({"payload": {"org": {"id": None}}}, "anonymous"),
        ({"payload": {"org": {"id": ["acme"]}}}, "anonymous"),
        ({"payload": {"org": {"id": {"x": "acme"}}}}, "anonymous"),
        ({"payload": {"org": "acme"}}, "anonymous"),
        ({"payload": [{"org": {"id": "acme"}}]}, "anonymous"),
        ({"org": {"id": "acme"}}, "anonymous"),
        ({}, "anonymous"),
    ],
)
def test_a_claim_inside_nested_structs(claims: dict[str, Any], tenant: str) -> None:
    source = {"tenant": [{"metadata": {"path": ["payload", "org", "id"]}}]}
    assert who(source, metadata={JWT: claims}).tenant == tenant


def test_a_claim_of_another_namespace_is_not_believed() -> None:
    source = {"tenant": [{"metadata": {"namespace": "mine", "path": ["sub"]}}]}
    assert who(source, metadata={JWT: {"sub": "a"}}).tenant == "anonymous"
    assert who(source, metadata={"mine": {"sub": "a"}}).tenant == "a"


@pytest.mark.parametrize(
    ("sent", "tenant"),
    [
        ("Bearer sk-1", "team-a"),
        ("bearer   sk-1 ", "team-a"),
        ("sk-1", "team-a"),
        ("Bearer sk-2", "anonymous"),
        ("Basic sk-1", "anonymous"),
        ("Bearer ", "anonymous"),
        ("", "anonymous"),
    ],
)
def test_an_api_key_is_known_by_its_hash(sent: str, tenant: str) -> None:
    source = {"tenant": [{"api_key": {"sha256": {sha256("sk-1"): "team-a"}}}]}
    assert who(source, {"authorization": sent}).tenant == tenant


def test_an_api_key_in_a_header_of_its_own() -> None:
    source = {"tenant": [{"api_key": {"header": "X-Api-Key", "sha256": {sha256("sk-1"): "team-a"}}}]}
    assert who(source, {"x-api-key": "sk-1"}).tenant == "team-a"


def test_no_key_is_nobody_even_where_the_hash_of_nothing_is_listed() -> None:
    """`printf %s "$KEY" | sha256sum` with KEY unset gives it."""
    source = {"tenant": [{"api_key": {"sha256": {sha256(""): "team-a"}}}]}
    assert who(source).tenant == "anonymous"
    assert who(source, {"authorization": "Bearer "}).tenant == "anonymous"


@pytest.mark.parametrize(
    ("sent", "tenant"),
    [
        ("team-a", "team-a"),
        ("  team-a ", "team-a"),
        ("Ünïcode", "Ünïcode"),
        ("x" * 128, "x" * 128),
        ("x" * 129, "anonymous"),
        ("a\nb", "anonymous"),
        ("a\x00b", "anonymous"),
        ("a​b", "anonymous"),  # a space without width
        ("   ", "anonymous"),
        ("", "anonymous"),
    ],
)
def test_what_is_a_name(sent: str, tenant: str) -> None:
    assert who(None, {"x-tenant": sent}).tenant == tenant


def test_the_last_of_two_headers_counts() -> None:
    message = request(headers={"x-tenant": "forged"})
    message.request_headers.headers.headers.add(key="x-tenant", raw_value=b"appended-by-envoy")
    assert identify(a_config(), facts.read(message)).tenant == "appended-by-envoy"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300])
def test_numbers_that_are_no_names_do_not_raise(number: float) -> None:
    source = {"tenant": [{"metadata": {"path": ["sub"]}}]}
    assert len(who(source, metadata={JWT: {"sub": number}}).tenant) <= 128


# -- classes --------------------------------------------------------------------------------------


def test_a_class_that_is_asked_for_and_allowed() -> None:
    assert who(None, {"x-class": "urgent"}) == Identity("anonymous", "urgent", clamped=False)


def test_a_class_that_does_not_exist_is_clamped() -> None:
    assert who(None, {"x-class": "vip"}) == Identity("anonymous", "default", clamped=True)


TENANTS = {
    "batch-only": {"classes": ["default"]},
    "vip": {"classes": ["urgent", "default"], "default_class": "urgent"},
    "odd": {"classes": ["urgent"]},
    "*": {"classes": ["default"]},
}


@pytest.mark.parametrize(
    ("tenant", "asked", "cls", "clamped"),
    [
        ("batch-only", "urgent", "default", True),
        ("batch-only", "default", "default", False),
        ("batch-only", None, "default", False),
        ("vip", None, "urgent", False),
        ("vip", "default", "default", False),
        ("vip", "vip", "urgent", True),
        ("odd", None, "urgent", False),  # the default of all is not among its own
        ("odd", "default", "urgent", True),
        ("another", "urgent", "default", True),  # by "*"
        (None, "urgent", "default", True),
    ],
)
def test_what_a_tenant_may_not_use_becomes_its_default(
    tenant: str | None, asked: str | None, cls: str, clamped: bool
) -> None:
    headers = {name: value for name, value in (("x-tenant", tenant), ("x-class", asked)) if value is not None}
    assert who(None, headers, tenants=TENANTS) == Identity(tenant or "anonymous", cls, clamped)


def test_a_class_from_a_claim() -> None:
    sources = {"class": [{"metadata": {"path": ["tier"]}}, {"header": "x-class"}]}
    assert who(sources, {"x-class": "urgent"}, metadata={JWT: {"tier": "default"}}).cls == "default"
