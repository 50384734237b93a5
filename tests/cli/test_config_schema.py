"""`fairlane config-schema`: what the configuration takes, the schema takes; and what it refuses by type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.cli.main import main
from extproc.config.load import ConfigError, from_data, parse_data
from extproc.config.units import at_most

ROOT = Path(__file__).parents[2]
POOL: dict[str, Any] = {"name": "a", "models": ["m"], "endpoints": ["127.0.0.1:1"]}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]

SCHEMA = json.loads(CliRunner().invoke(main, ["config-schema"]).stdout)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def faults(data: Any) -> list[str]:
    return [error.json_path for error in VALIDATOR.iter_errors(data)]


def is_configuration(data: Any) -> bool:
    try:
        from_data(data)
    except ConfigError:
        return False
    return True


def sections(schema: Any) -> Iterator[dict[str, Any]]:
    """Every part that says which properties there are; conditions on them name no type."""
    if isinstance(schema, dict):
        if "properties" in schema and schema.get("type") == "object":
            yield schema
        for each in schema.values():
            yield from sections(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from sections(each)


def test_it_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_no_section_takes_what_it_does_not_know() -> None:
    found = list(sections(SCHEMA))
    assert len(found) > 25
    assert all(each["additionalProperties"] is False for each in found)


def test_what_is_said_of_keys_comes_from_the_shipped_file() -> None:
    keys = SCHEMA["$defs"]["Window"]["properties"]
    assert keys["max_tpot"]["description"] == "time per output token that readers put up with"
    assert keys["max_tpot"]["default"] == "150ms"
    assert SCHEMA["$defs"]["Tenant"]["properties"]["parent"]["description"].startswith("hangs under this tenant")
    assert SCHEMA["properties"]["identity"]["description"].startswith("Who sends a request, and how urgent it is. ")
    described = [key for each in sections(SCHEMA) for key in each["properties"].values() if "description" in key]
    assert len(described) > 70


def test_defaults_are_good_values() -> None:
    for section in sections(SCHEMA):
        for name, key in section["properties"].items():
            if "default" in key:
                only = {"$schema": SCHEMA["$schema"], "$defs": SCHEMA["$defs"], **key}
                assert jsonschema.Draft202012Validator(only).is_valid(key["default"]), name


@pytest.mark.parametrize("file", ["fairlane.yaml", "deploy/compose/fairlane.yaml"])
def test_the_files_of_the_project(file: str) -> None:
    assert faults(yaml.safe_load((ROOT / file).read_text())) == []


def examples() -> Iterator[Any]:
    """Blocks of YAML in the documents that are configurations, or become one with a pool."""
    for page in PAGES:
        for number, block in enumerate(
            re.findall(r"^ *```yaml\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE)
        ):
            try:
                data = parse_data(re.sub(r"(?m)^   ", "", block) if block.startswith("   ") else block)
            except ConfigError:
                continue
            if data.keys() <= SCHEMA["properties"].keys():
                yield pytest.param({"pools": [POOL], **data}, id=f"{page.name}-{number}")


EXAMPLES = list(examples())


def test_the_documents_have_examples() -> None:
    assert len(EXAMPLES) >= 10


@pytest.mark.parametrize("data", EXAMPLES)
def test_the_examples_of_the_documents(data: Any) -> None:
    assert faults(data) == []


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ({"pool": []}, "$"),
        ({"listen": {"htpp": "a:1"}}, "$.listen"),
        ({"listen": {"http": 9090}}, "$.listen.http"),
        ({"listen": {"http": ":9090"}}, "$.listen.http"),
        ({"listen": {"admin": "unix:"}}, "$.listen.admin"),
        ({"shutdown": {"grace": 30}}, "$.shutdown.grace"),
        ({"shutdown": {"grace": "30 sec"}}, "$.shutdown.grace"),
        ({"requests": {"max_body": "32MB"}}, "$.requests.max_body"),
        ({"on_fault": "panic"}, "$.on_fault"),
        ({"on_fault": False}, "$.on_fault"),
        ({"classes": {"a": {"rank": 0}}}, "$.classes.a"),
        ({"classes": {"a": {"rank": -1, "priority": 0}}}, "$.classes.a.rank"),
        ({"classes": {"a": {"rank": 0.5, "priority": 0}}}, "$.classes.a.rank"),
        ({"tenants": {"a": {"weight": "heavy"}}}, "$.tenants.a.weight"),
        ({"tenants": {"a": {"weight": True}}}, "$.tenants.a.weight"),
        ({"tenants": {"a": None}}, "$.tenants.a"),
        ({"tenants": []}, "$.tenants"),
        ({"pools": []}, "$.pools"),
        ({"pools": [{**POOL, "endpoints": ["engine:1"]}]}, "$.pools[0].endpoints"),
        ({"pools": [{**POOL, "endpoints": {"url": "a"}}]}, "$.pools[0].endpoints"),
        ({"pools": [{"name": "a"}]}, "$.pools[0]"),
        ({"telemetry": {"page": "maybe"}}, "$.telemetry.page"),
        ({"listen": {"http": "a:0"}}, "$.listen.http"),
        ({"listen": {"http": "a:65536"}}, "$.listen.http"),
        ({"listen": {"admin": "a:99999"}}, "$.listen.admin"),
        ({"requests": {"max_body": "2044MiB"}}, "$.requests.max_body"),
        ({"requests": {"max_body": "2GiB"}}, "$.requests.max_body"),
        ({"requests": {"max_buffered": "99999999999999999999GiB"}}, "$.requests.max_buffered"),
        ({"recording": {"max_size": "1048577GiB"}}, "$.recording.max_size"),
        ({"requests": {"queued": ["*"]}}, "$.requests.queued[0]"),
        ({"requests": {"queued": ["/a?b"]}}, "$.requests.queued[0]"),
        ({"telemetry": {"traces": {"otlp": "collector:4317"}}}, "$.telemetry.traces.otlp"),
        ({"classes": {}}, "$.classes"),
        ({"classes": {"a b": {"rank": 0, "priority": 0}}, "default_class": "a b"}, "$.classes"),
        ({"pools": [{**POOL, "name": ""}]}, "$.pools[0].name"),
        ({"pools": [{**POOL, "name": "a b"}]}, "$.pools[0].name"),
        *(
            ({"pools": [{**POOL, "endpoints": each}]}, "$.pools[0].endpoints")
            for each in (
                {},
                {"file": None},
                ["10.0.0.1:0"],
                ["10.0.0.1:70000"],
                {"file": "/f", "static": ["10.0.0.1:80"]},
                {"dns": {"name": "a"}},
                {"dns": {"name": "a", "record": "a", "port": None}},
                {"dns": {"name": "a", "record": "srv", "port": 80}},
                {"dns": {"name": "a", "port": 0}},
                {"kubernetes": {}},
                {"kubernetes": {"service": "a", "selector": "b=c"}},
                {"kubernetes": {"service": "a", "port": 0}},
                {"kubernetes": {"service": "a", "port": "80"}},
            )
        ),
        *(
            ({"identity": {"tenant": [each]}}, "$.identity.tenant[0]")
            for each in ({}, {"header": "a", "certificate": {}}, {"header": None})
        ),
        ({"identity": {"tenant": [{"api_key": {}}]}}, "$.identity.tenant[0].api_key"),
        ({"identity": {"tenant": [{"metadata": {}}]}}, "$.identity.tenant[0].metadata"),
        ({"identity": {"class": [{"header": "a", "model": {"m": "default"}}]}}, "$.identity.class[0]"),
    ],
)
def test_what_is_refused(data: Any, place: str) -> None:
    data = {"pools": [POOL], **data}
    assert place in faults(data)
    assert not is_configuration(data)


@pytest.mark.parametrize(
    "data",
    [
        {"pools": [{**POOL, "mode": False}]},  # YAML's off
        {"tenants": {"a": {"weight": "4", "max_queued": "5"}}},
        {"tenants": {"a": {"max_queued": 5.0, "weight": "1e3", "burst": " +.5 "}}},
        {"telemetry": {"page": "No", "enabled": 1}},
        {"pools": [{**POOL, "endpoints": {"file": "/f"}}]},
        {"pools": [{**POOL, "endpoints": {"file": {"path": "/f"}, "dns": None}}]},
        {"pools": [{**POOL, "endpoints": {"static": ["[::1]:1"]}}]},
        {"listen": {"admin": "unix:\n"}},
        {"listen": {"http": "[fe80::1%eth0]:80"}},
        {"shutdown": {"grace": " 1.5 m "}},
        {"pools": [{**POOL, "window": {"stalled_after": None}}]},
        {"listen": {"http": "a:00080"}},
        {"requests": {"max_body": " 02043 MiB\n"}},
        {"requests": {"max_body": "2142240768B"}},
        {"requests": {"max_body": "00B"}},
        {"requests": {"max_buffered": "1048576GiB", "queued": ["*/", "/\n"]}},
        {"recording": {"max_size": "1125899906842624B"}},
        {"telemetry": {"traces": {"otlp": "HTTPS://[::1]:1/v1/traces"}}},
        {"pools": [{**POOL, "endpoints": {"dns": {"name": "a", "record": "srv", "port": None}}}]},
        {"pools": [{**POOL, "endpoints": {"dns": {"name": "a", "port": "80"}, "file": None}}]},
        {"pools": [{**POOL, "endpoints": {"kubernetes": {"service": "a", "selector": None, "port": 80.0}}}]},
        {"identity": {"tenant": [{"header": "a", "api_key": None}, {"api_key": {"file": "f", "sha256": None}}]}},
        {"identity": {"class": [{"header": None, "path": {"*": "default"}}]}},
    ],
)
def test_what_is_taken_though_nobody_would_write_it(data: Any) -> None:
    data = {"pools": [POOL], **data}
    assert is_configuration(data)
    assert faults(data) == []


def test_a_digest_that_is_none() -> None:
    def with_key(digest: str) -> Any:
        return {"pools": [POOL], "identity": {"tenant": [{"api_key": {"sha256": {digest: "a"}}}]}}

    assert is_configuration(with_key("0f" * 32))
    assert faults(with_key("0f" * 32)) == []
    for digest in ("a key in plain text", "0F" * 32, "0f" * 31):
        assert not is_configuration(with_key(digest))
        assert faults(with_key(digest)) == ["$.identity.tenant[0].api_key"]


@pytest.mark.parametrize("largest", [1, 2, 7, 9, 10, 11, 19, 20, 99, 100, 101, 409, 1999, 2043])
def test_the_pattern_of_numbers_up_to_one(largest: int) -> None:
    pattern = re.compile(f"^{at_most(largest)}$")
    found = [number for number in range(largest * 11 + 20) if pattern.match(str(number))]
    assert found == list(range(1, largest + 1))


# -- whatever the configuration takes, the schema takes -------------------------------------------

TEXTS = [
    *("5", "-1", " 7 ", "1_000", "3.0", "1e3", ".5", "5.", "inf", "nan", "٣", "on", "OFF", "True", "y", "0"),
    *("1s", "2m", "0.5h", "1.s", "250 ms", "1s\n", "٣s", "1MiB", "7 B", "a:1", "127.0.0.1:80", "[::1]:80", "unix:/x"),
    *("/v1/x", "*/x", "auto", "off", "tokens", "http://c:1", "a\n", "0x10", "1_0.0", "+5", "--5", "1__0", "-inf"),
]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 70_000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
    st.sampled_from(TEXTS),
    st.lists(st.sampled_from(["a", "b", "/v1/x", "10.0.0.1:80", 1, None]), max_size=2),
    st.dictionaries(st.sampled_from(["a", "*", "path"]), st.sampled_from(["a", 1, None, {}]), max_size=2),
)


def key_places(data: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if before:
        yield before
    pairs = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in pairs:
        yield from key_places(value, (*before, key))


def with_value(data: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    copy = list(data) if isinstance(data, list) else dict(data)
    copy[place[0]] = with_value(data[place[0]], place[1:], value)
    return copy


SHIPPED = yaml.safe_load((ROOT / "fairlane.yaml").read_text())
STARTS = [SHIPPED, *(each.values[0] for each in EXAMPLES)]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_what_the_configuration_takes_the_schema_takes(data: st.DataObject) -> None:
    start = data.draw(st.sampled_from(STARTS))
    place = data.draw(st.sampled_from(list(key_places(start))))
    changed = with_value(start, place, data.draw(VALUES))
    if is_configuration(changed):
        assert faults(changed) == []


def test_each_number_and_switch_as_pydantic_reads_it() -> None:
    """The texts of above, one by one, at a whole number, a number and a switch."""
    texts = [chr(c) + "1" for c in (0x20, 0xA0, 0x2B, 0x2D, 0x5F)] + [
        *(
            "5 ",
            "\t5",
            "5\n",
            "1_000",
            "_1",
            "1_",
            "3.0",
            "3.00",
            "3.",
            "3._0",
            "3.5",
            "1e3",
            "1E3",
            "1e+3",
            ".5",
            "+.5",
        ),
        *("inf", "Inf", "INFINITY", "nan", "NaN", "0005", "+5", "-0", "0x10", "٣", "5 5", "", " "),
        *("on", "On", "oFf", "TRUE", "f", "T", "n", "Y", "yEs", " yes", "yes ", "0", "1", "2", "1.0"),
    ]
    for text in texts:
        for data in (
            {"tenants": {"a": {"burst": text}}},
            {"tenants": {"a": {"max_queued": text}}},
            {"classes": {"default": {"rank": 0, "priority": text}}},
            {"telemetry": {"page": text}},
            {"pools": [{**POOL, "metrics": {"port": text}}]},
            {"pools": [{**POOL, "window": {"start": text}}]},
        ):
            whole = {"pools": [POOL], **data}
            assert not (is_configuration(whole) and faults(whole)), (text, data)
