"""What may stand under `identity`: sources, one of each, and nothing of a key in what is said of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from config_case import error, good

from extproc.config.identity import Identity

DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"  # of "test"
SECRET = "sk-my-secret-key"
PAGE = Path(__file__).parents[2] / "docs/identity.md"
BLOCKS = re.findall(r"```yaml\n(identity:\n.*?)```", PAGE.read_text(), re.DOTALL)


def tenant_error(source: Any) -> str:
    line = error(identity={"tenant": [source]})
    assert line.startswith("identity.tenant.0")
    return line.removeprefix("identity.tenant.0")


def class_error(source: Any) -> str:
    line = error(identity={"class": [source]})
    assert line.startswith("identity.class.0")
    return line.removeprefix("identity.class.0")


def identity(**keys: Any) -> Identity:
    return good(identity=keys).identity


def test_the_defaults_believe_two_headers() -> None:
    default = good().identity
    assert [source.header for source in default.tenant] == ["x-tenant"]
    assert [source.header for source in default.request_class] == ["x-class"]
    assert (default.anonymous, default.separator, default.key_files) == ("anonymous", None, [])


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        ({}, "", "a source is one of metadata, certificate, api_key or header, not nothing"),
        ({"header": "a", "metadata": {"path": ["b"]}}, "", "not ['metadata', 'header']"),
        ({"header": "X-Fairlane-Class"}, "", "cannot be a source"),
        ({"header": "x-vllm-priority"}, "", "cannot be a source"),
        ({"header": ":path"}, "", "cannot be a source"),
        ({"header": ""}, ".header", "at least 1 character"),
        ({"path": {"/v1/x": "batch"}}, ".path", "unknown key"),
        ({"model": {"m": "batch"}}, ".model", "unknown key"),
        ({"metadata": {}}, ".metadata", "give either path, to one value, or paths"),
        ({"metadata": {"path": ["a"], "paths": [["a"]]}}, ".metadata", "give either path"),
        ({"metadata": {"path": []}}, ".metadata.path", "at least 1 item"),
        ({"metadata": {"path": [""]}}, ".metadata.path.0", "at least 1 character"),
        ({"metadata": {"paths": []}}, ".metadata.paths", "at least 1 item"),
        ({"metadata": {"paths": [[]]}}, ".metadata.paths.0", "at least 1 item"),
        ({"metadata": {"paths": [["a"]] * 6}}, ".metadata.paths", "at most 5 items"),
        ({"certificate": {"which": "cn"}}, ".certificate.which", "'uri_san', 'dns_san', 'subject' or 'sha256'"),
        ({"certificate": {"pattern": "spiffe://("}}, ".certificate.pattern", "is no regular expression: missing )"),
        ({"certificate": {"pattern": "a{99999999999}"}}, ".certificate.pattern", "is no regular expression"),
        ({"certificate": {"pattern": "spiffe://.*"}}, ".certificate.pattern", "has 0 groups; one takes the name out"),
        ({"certificate": {"pattern": "(.)(.)(.)(.)(.)(.)"}}, ".certificate.pattern", "has 6 groups"),
        ({"api_key": {}}, ".api_key", "give either sha256, a mapping of digests to names, or file"),
        ({"api_key": {"sha256": {DIGEST: "a"}, "file": "f"}}, ".api_key", "give either sha256"),
        ({"api_key": {"sha256": {}}}, ".api_key.sha256", "at least 1"),
        ({"api_key": {"file": ""}}, ".api_key.file", "at least 1 character"),
        ({"api_key": {"header": "", "file": "f"}}, ".api_key.header", "at least 1 character"),
        ({"api_key": {"sha256": {DIGEST.upper(): "a"}}}, ".api_key.sha256", "entry 1 is no SHA-256 in lower-case hex"),
        ({"api_key": {"sha256": {DIGEST: "a", 7: "b"}}}, ".api_key.sha256", "entry 2 is no SHA-256"),
    ],
)
def test_what_is_no_source(source: Any, place: str, words: str) -> None:
    line = tenant_error(source)
    assert line.startswith(f"{place}: ")
    assert words in line


@pytest.mark.parametrize("name", ["team-a", 5, None, True, "", ["a"]])
def test_a_key_that_is_written_there_by_mistake_is_not_told_on(name: Any) -> None:
    line = tenant_error({"api_key": {"sha256": {DIGEST: "a", SECRET: name}}})
    assert line == (".api_key.sha256: entry 2 is no SHA-256 in lower-case hex; make it with: printf %s KEY | sha256sum")


@pytest.mark.parametrize(
    ("source", "place", "words"),
    [
        ({}, "", "one of metadata, certificate, api_key, header, path or model, not nothing"),
        ({"header": "a", "path": {"/a": "batch"}}, "", "not ['header', 'path']"),
        ({"path": {}}, ".path", "at least 1 item"),
        ({"path": {"v1/x": "batch"}}, ".path", "must be a path such as"),
        ({"path": {"/v1/x?stream=1": "batch"}}, ".path", "without a query"),
        ({"path": {"/v1/*/x": "batch"}}, ".path", "a * may stand at one end"),
        ({"path": {"*/x*": "batch"}}, ".path", "a * may stand at one end"),
        ({"model": {"a*b": "batch"}}, ".model", "a * may stand at one end"),
        ({"model": {"**": "batch"}}, ".model", "a * may stand at one end"),
        ({"model": {"": "batch"}}, ".model", "at least 1 character"),
    ],
)
def test_what_is_no_source_of_a_class(source: Any, place: str, words: str) -> None:
    line = class_error(source)
    assert line.startswith(f"{place}")
    assert words in line


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ({"path": {"/v1/x": "vip"}}, "path"),
        ({"model": {"m": "vip"}}, "model"),
        ({"api_key": {"sha256": {DIGEST: "vip"}}}, "api_key"),
    ],
)
def test_a_class_that_is_named_exists(source: Any, place: str) -> None:
    assert error(identity={"class": [{"header": "x-class"}, source]}) == (
        f"identity: class.1.{place}: there is no class 'vip'; there are interactive, default, batch"
    )


def test_patterns_of_paths_and_models() -> None:
    sources = identity(
        **{
            "class": [
                {"path": {"/v1/batches/*": "batch", "*/v1/embeddings": "batch", "*": "default"}},
                {"model": {"*": "batch"}},
            ]
        }
    ).request_class
    assert [len(source.path or source.model or ()) for source in sources] == [3, 1]


@pytest.mark.parametrize("name", ["", " a", "a\n", "a" * 129, "a\ufffd"])
def test_names_that_no_request_could_have(name: str) -> None:
    words = "a tenant is printable text of at most 128 characters, without space around it"
    assert error(identity={"anonymous": name}) == f"identity.anonymous: {words}"
    assert tenant_error({"api_key": {"sha256": {DIGEST: name}}}) == f".api_key.sha256.{DIGEST}: {words}"


# -- levels ---------------------------------------------------------------------------------------

LEVELS = {"metadata": {"paths": [["payload", "org"], ["payload", "sub"]]}}


@pytest.mark.parametrize("source", [LEVELS, {"certificate": {"pattern": "spiffe://([^/]+)/ns/([^/]+)/.*"}}])
def test_levels_need_a_separator(source: Any) -> None:
    assert error(identity={"tenant": [source]}) == (
        "identity: tenant.0 gives a name of levels, and there is no identity.separator"
    )
    assert identity(tenant=[source], separator="/").separator == "/"


def test_one_level_needs_none() -> None:
    assert (
        identity(tenant=[{"metadata": {"paths": [["sub"]]}}, {"certificate": {"pattern": "a(.*)"}}]).separator is None
    )


@pytest.mark.parametrize("separator", ["/", ":", "::", "|", " > ", "→"])
def test_separators(separator: str) -> None:
    assert identity(separator=separator).separator == separator


@pytest.mark.parametrize("separator", ["a", "2", "%", "/a", "\n", "²"])
def test_what_cannot_be_a_separator(separator: str) -> None:
    assert "cannot part names; / can" in error(identity={"separator": separator})


def test_each_file_of_keys_is_named_once() -> None:
    key = {"api_key": {"file": "a.yaml"}}
    other = {"api_key": {"file": "b.json", "header": "x-api-key"}}
    assert identity(tenant=[key, other], **{"class": [key]}).key_files == ["a.yaml", "b.json"]


@pytest.mark.parametrize("block", BLOCKS)
def test_what_the_page_shows_is_a_configuration(block: str) -> None:
    assert len(BLOCKS) == 6
    assert good(**yaml.safe_load(block)).identity.tenant
