"""Who sends a request: order of the sources, what counts as a name, and what a tenant may not use."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from envoy_by_messages import a_config, request
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.edge import facts
from extproc.edge.identity import Identifier, Identity
from extproc.edge.key_file import Keys

JWT = "envoy.filters.http.jwt_authn"


def who(identity: dict[str, Any] | None = None, headers: dict[str, str] | None = None, **more: Any) -> Identity:
    """`attributes`: of Envoy, by name; `model`: that the body names."""
    metadata, attributes, model = more.pop("metadata", None), more.pop("attributes", {}), more.pop("model", "m")
    config = a_config(**({"identity": identity} if identity else {}), **more)
    message = request(model, headers=headers, metadata=metadata)
    message.attributes[facts.ATTRIBUTES].update(attributes)
    return Identifier(config, Keys(config)).identify(facts.read(message))


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
        ({"payload": {"org": {"id": -3}}}, "-3"),
        ({"payload": {"org": {"id": 2**53 - 1}}}, "9007199254740991"),
        ({"payload": {"org": {"id": 2**53}}}, "anonymous"),  # 2**53 + 1 is the same double
        ({"payload": {"org": {"id": 1e300}}}, "anonymous"),
        ({"payload": {"org": {"id": True}}}, "anonymous"),
        ({"payload": {"org": {"id": None}}}, "anonymous"),
        ({"payload": {"org": {"id": ["acme", "other"]}}}, "acme"),
        ({"payload": {"org": {"id": [7]}}}, "7"),
        ({"payload": {"org": {"id": []}}}, "anonymous"),
        ({"payload": {"org": {"id": [None, "acme"]}}}, "anonymous"),
        ({"payload": {"org": {"id": [["acme"]]}}}, "anonymous"),
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
        ("Bearer sk-1, Bearer sk-2", "anonymous"),  # Envoy joins two headers of this name
        ("Bearer " + "x" * 100_000, "anonymous"),
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
        ("a\ufffd", "anonymous"),  # stands for bytes that were no text
        ("acme/ml/alice", "acme/ml/alice"),
        ("   ", "anonymous"),
        ("", "anonymous"),
    ],
)
def test_what_is_a_name(sent: str, tenant: str) -> None:
    assert who(None, {"x-tenant": sent}).tenant == tenant


def test_the_last_of_two_headers_counts() -> None:
    message = request(headers={"x-tenant": "forged"})
    message.request_headers.headers.headers.add(key="x-tenant", raw_value=b"appended-by-envoy")
    config = a_config()
    assert Identifier(config, Keys(config)).identify(facts.read(message)).tenant == "appended-by-envoy"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_no_name(number: float) -> None:
    source = {"tenant": [{"metadata": {"path": ["sub"]}}]}
    assert who(source, metadata={JWT: {"sub": number}}).tenant == "anonymous"


# -- levels ---------------------------------------------------------------------------------------

LEVELS = {
    "tenant": [{"metadata": {"paths": [["payload", "org"], ["payload", "team"], ["payload", "sub"]]}}],
    "separator": "/",
}


@pytest.mark.parametrize(
    ("claims", "tenant"),
    [
        ({"org": "acme", "team": "ml", "sub": "alice"}, "acme/ml/alice"),
        ({"org": ["acme", "other"], "team": 7, "sub": "alice"}, "acme/7/alice"),
        ({"org": "acme", "team": "ml"}, "acme/ml"),
        ({"org": "acme"}, "acme"),
        # what comes after a gap would sit in somebody else's place
        ({"org": "acme", "sub": "ml"}, "acme"),
        ({"team": "ml", "sub": "alice"}, "anonymous"),
        ({"org": "acme", "team": " ", "sub": "alice"}, "acme"),
        ({"org": "acme", "team": True, "sub": "alice"}, "acme"),
        # a level is one level, whatever is in it
        ({"org": "acme", "team": "ml", "sub": "../ops/bob"}, "acme/ml/..%2Fops%2Fbob"),
        ({"org": "acme", "team": "ml/alice"}, "acme/ml%2Falice"),
        ({"org": "acme", "team": "ml", "sub": "a%2Fb"}, "acme/ml/a%252Fb"),
        ({"org": "/", "team": "/"}, "%2F/%2F"),
        ({"org": "acme", "team": "t" * 100, "sub": "s" * 100}, "anonymous"),  # longer than a name may be
    ],
)
def test_levels_from_claims(claims: dict[str, Any], tenant: str) -> None:
    assert who(LEVELS, metadata={JWT: {"payload": claims}}).tenant == tenant


def test_a_longer_separator_is_not_made_of_two_levels() -> None:
    """`a:` and `b` must not become `a:::b`, which would be parted as `a` and `:b`."""
    claims = {"org": "a:", "team": ":b"}
    assert who({**LEVELS, "separator": "::"}, metadata={JWT: {"payload": claims}}).tenant == "a%3A::%3Ab"


def test_one_level_of_its_own() -> None:
    source = {"tenant": [{"metadata": {"paths": [["sub"]]}}], "separator": "/"}
    assert who(source, metadata={JWT: {"sub": "acme/ml"}}).tenant == "acme%2Fml"
    whole = {"tenant": [{"metadata": {"path": ["sub"]}}], "separator": "/"}
    assert who(whole, metadata={JWT: {"sub": "acme/ml"}}).tenant == "acme/ml"


# -- certificates ---------------------------------------------------------------------------------

URI = "connection.uri_san_peer_certificate"
SPIFFE = "spiffe://cluster/ns/team-a/sa/worker"


@pytest.mark.parametrize(
    ("which", "attribute", "value"),
    [
        ("uri_san", URI, "urn:team-a"),
        ("dns_san", "connection.dns_san_peer_certificate", "team-a.example"),
        ("subject", "connection.subject_peer_certificate", "CN=team-a,O=Acme"),
        ("sha256", "connection.sha256_peer_certificate_digest", "ab" * 32),
    ],
)
def test_what_a_certificate_says(which: str, attribute: str, value: str) -> None:
    source = {"tenant": [{"certificate": {"which": which}}]}
    assert who(source, attributes={attribute: value}).tenant == value
    assert who(source).tenant == "anonymous"
    assert who(source, attributes={attribute: ""}).tenant == "anonymous"
    assert who(source, {"x-forwarded-client-cert": f"URI={value}"}).tenant == "anonymous"


@pytest.mark.parametrize(
    ("pattern", "value", "tenant"),
    [
        ("spiffe://cluster/ns/([^/]+)/sa/.*", SPIFFE, "team-a"),
        ("spiffe://cluster/ns/(.*)/sa/.*", "spiffe://cluster/ns/a/b/sa/x", "a%2Fb"),
        ("spiffe://cluster/ns/([^/]+)/sa/([^/]+)", SPIFFE, "team-a/worker"),
        ("spiffe://cluster/ns/([^/]+)(?:/sa/([^/]+))?", "spiffe://cluster/ns/team-a", "team-a"),
        # the whole value must match, not a part of it
        ("spiffe://cluster/ns/([^/]+)/sa/.*", "spiffe://other/?" + SPIFFE, "anonymous"),
        ("spiffe://cluster/ns/([^/]+)", SPIFFE, "anonymous"),
        ("(.*)", "x" * 2000, "anonymous"),
    ],
)
def test_a_pattern_takes_the_name_out(pattern: str, value: str, tenant: str) -> None:
    source = {"tenant": [{"certificate": {"pattern": pattern}}], "separator": "/"}
    assert who(source, attributes={URI: value}).tenant == tenant


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


@pytest.mark.parametrize(
    ("path", "cls"),
    [
        ("/v1/embeddings", "urgent"),
        ("/v1/embeddings?x=1", "urgent"),
        ("/v1/embeddings/", "default"),
        ("/batch/v1/completions", "slow"),
        ("/batch/now/v1/completions", "urgent"),  # the longer pattern
        ("/x/v1/rerank", "slow"),
        ("/v1/completions", "default"),
    ],
)
def test_a_class_from_the_path(path: str, cls: str) -> None:
    paths = {"/v1/embeddings": "urgent", "/batch/*": "slow", "/batch/now/*": "urgent", "*/v1/rerank": "slow"}
    classes = {"slow": {"rank": 2, "priority": 2000}}
    assert who({"class": [{"path": paths}]}, {":path": path}, classes=classes).cls == cls


@pytest.mark.parametrize(
    ("model", "cls"), [("tiny", "urgent"), ("llama-8b", "urgent"), ("llama-70b", "default"), (None, "default")]
)
def test_a_class_from_the_model(model: str | None, cls: str) -> None:
    models = {"tiny": "urgent", "llama-*": "urgent", "llama-70b": "default"}
    assert who({"class": [{"model": models}]}, model=model).cls == cls


def test_a_class_from_the_path_is_clamped_like_any_other() -> None:
    sources = {"class": [{"path": {"/v1/*": "urgent"}}]}
    assert who(sources, {"x-tenant": "batch-only"}, tenants=TENANTS) == Identity("batch-only", "default", clamped=True)


def test_a_class_from_a_claim() -> None:
    sources = {"class": [{"metadata": {"path": ["tier"]}}, {"header": "x-class"}]}
    assert who(sources, {"x-class": "urgent"}, metadata={JWT: {"tier": "default"}}).cls == "default"


# -- files of keys --------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys.yaml"
    file.write_text(
        f"{sha256('sk-plain')}: batch-only\n"
        f"{sha256('sk-urgent')}: {{tenant: vip, class: urgent}}\n"
        f"{sha256('sk-tame')}: {{tenant: vip, class: default, classes: [default]}}\n"
        f"{sha256('sk-first')}: {{tenant: vip, classes: [default]}}\n"
    )
    return str(file)


@pytest.mark.parametrize(
    ("key", "asked", "identity"),
    [
        ("sk-plain", None, Identity("batch-only", "default", clamped=False)),
        ("sk-plain", "urgent", Identity("batch-only", "default", clamped=True)),
        ("sk-urgent", None, Identity("vip", "urgent", clamped=False)),
        ("sk-urgent", "default", Identity("vip", "default", clamped=False)),
        ("sk-tame", None, Identity("vip", "default", clamped=False)),
        ("sk-tame", "urgent", Identity("vip", "default", clamped=True)),  # its tenant might
        ("sk-first", None, Identity("vip", "default", clamped=False)),  # its tenant's default is not for it
        ("sk-none", "urgent", Identity("anonymous", "default", clamped=True)),
    ],
)
def test_a_key_of_a_file(key: str, asked: str | None, identity: Identity, keys: str) -> None:
    sources = {"tenant": [{"api_key": {"file": keys}}]}
    headers = {"authorization": f"Bearer {key}", **({"x-class": asked} if asked else {})}
    assert who(sources, headers, tenants=TENANTS) == identity


@pytest.mark.parametrize(("key", "cls"), [("sk-tame", "default"), ("sk-plain", "urgent"), ("sk-none", "urgent")])
def test_the_class_of_a_key_can_come_before_the_one_that_is_asked_for(key: str, cls: str, keys: str) -> None:
    """A key without a class leaves it to the next source."""
    sources = {"class": [{"api_key": {"file": keys}}, {"header": "x-class"}], "tenant": [{"header": "x-tenant"}]}
    headers = {"authorization": f"Bearer {key}", "x-class": "urgent", "x-tenant": "vip"}
    assert who(sources, headers, tenants=TENANTS).cls == cls


# -- anything -------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@settings(derandomize=True, deadline=None)
@given(st.dictionaries(st.sampled_from("abc"), JSON, max_size=3), st.text(max_size=20))
def test_no_claim_raises_and_levels_are_never_more_than_there_are_paths(claims: dict[str, Any], header: str) -> None:
    sources = {"tenant": [{"metadata": {"paths": [["a"], ["b", "c"]]}}], "class": [{"header": "h"}], "separator": "/"}
    found = who(sources, {"h": header}, metadata={JWT: claims})
    assert found.tenant
    assert found.tenant.isprintable()
    assert len(found.tenant) <= 128
    assert found.tenant.count("/") <= 1
    assert found.cls in ("default", "urgent")
