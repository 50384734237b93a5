"""Reading the file: every error names the place, and what was meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from config_case import POOL, error, errors
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config.load import ConfigError, from_data, load, parse
from extproc.config.model import Config

# -- the file itself ------------------------------------------------------------------------------


def test_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: cannot be read: .*No such file"):
        load(tmp_path / "gone.yaml")
    with pytest.raises(ConfigError, match=r"cannot be read: .*Is a directory"):
        load(tmp_path)


def test_not_utf_8(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_bytes("pools: # Größe".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"f\.yaml: cannot be read: .*utf-8"):
        load(file)


def test_a_file_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text(yaml.safe_dump({"pools": [POOL]}), encoding="utf-8-sig")
    assert load(file).pools[0].name == "sim"


@pytest.mark.parametrize(
    ("text", "found"),
    [("", "nothing"), ("# only words\n", "nothing"), ("- pools\n", "list"), ("pools", "str"), ("7", "int")],
)
def test_no_mapping(text: str, found: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "f.yaml")
    assert str(error.value) == f"f.yaml: expected a mapping with at least the key pools, found {found}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("pools: [", "line 1, column 9"),
        ("pools:\n\t- x", "line 2, column 1"),
        ("pools: \x00", "special characters are not allowed"),
        ("pools: !!python/object:os.system x", "could not determine a constructor"),
        ("pools: &a [*b]", "undefined alias 'b'"),
        ("{[1]: 2}", "unhashable key"),
        ("default_class: 2026-99-99", "month must be in 1..12"),
        ("default_class: !!int ''", "index out of range"),
        ("default_class: !!timestamp x", "NoneType"),
        ("default_class: !!bool x", "x"),
    ],
)
def test_no_yaml(text: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text, "f.yaml")
    assert str(error.value).startswith("f.yaml: is not YAML: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_nested_without_end() -> None:
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse("[" * 1000)


@pytest.mark.parametrize(
    ("text", "key", "line"),
    [
        ("pools: []\nlisten: {}\npools: []", "pools", 3),
        ("pools:\n  - name: a\n    models: [m]\n    name: b", "name", 4),
        ("tenants: {a: {weight: 1, weight: 2}}", "weight", 1),
    ],
)
def test_a_key_that_stands_there_twice(text: str, key: str, line: int) -> None:
    with pytest.raises(ConfigError) as error:
        parse(text)
    assert f"the key '{key}' stands there twice" in str(error.value)
    assert f"line {line}," in str(error.value)


def test_anchors_and_merges_of_yaml() -> None:
    config = parse(
        """
        pools:
          - &first {name: a, models: [m], endpoints: ["127.0.0.1:1"], window: &w {start: 3}}
          - <<: *first
            name: b
            models: [n]
            window: {<<: *w, overtake: 0}
        """
    )
    first, second = config.pools
    assert (second.name, second.endpoints) == ("b", first.endpoints)
    assert (second.window.start, second.window.overtake, first.window.overtake) == (3, 0, 1)


# -- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"pool": []}, "pool: unknown key; did you mean pools?"),
        ({"listen": {"htpp": "x:1"}}, "listen.htpp: unknown key; did you mean http?"),
        ({"identity": {"clas": []}}, "identity.clas: unknown key; did you mean class?"),
        ({"identity": {"request_class": []}}, "identity.request_class: unknown key; did you mean class?"),
        (
            {"classes": {"default": {"rank": 0, "priority": 0, "quue_timeout": "1s"}}},
            "classes.default.quue_timeout: unknown key; did you mean queue_timeout?",
        ),
        ({"tenants": {"*": {"wieght": 1}}}, "tenants.*.wieght: unknown key; did you mean weight?"),
        ({"shutdown": {"x": 1}}, "shutdown.x: unknown key; known here: grace, held"),
        (
            {"identity": {"tenant": [{"metadata": {"path": ["a"], "namspace": "b"}}]}},
            "identity.tenant.0.metadata.namspace: unknown key; did you mean namespace?",
        ),
        # names that are keys elsewhere
        (
            {"classes": {"priority": {"rank": 0, "priority": 0, "rnk": 1}}, "default_class": "priority"},
            "classes.priority.rnk: unknown key; did you mean rank?",
        ),
        ({"tenants": {"weight": {"wieght": 1}}}, "tenants.weight.wieght: unknown key; did you mean weight?"),
    ],
)
def test_an_unknown_key_is_told_with_what_was_meant(data: dict[str, Any], line: str) -> None:
    assert errors({"pools": [POOL], **data}) == [line]


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        ({"endpoint": []}, "pools.0.endpoint: unknown key; did you mean endpoints?"),
        ({"window": {"max_tpto": "1s"}}, "pools.0.window.max_tpto: unknown key; did you mean max_tpot?"),
        ({"cost": {"xyz": 1}}, "pools.0.cost.xyz: unknown key; known here: unit, prompt, cached, output"),
    ],
)
def test_an_unknown_key_of_a_pool(pool: dict[str, Any], line: str) -> None:
    assert error(pool) == line


def test_what_must_be_there() -> None:
    assert errors({}) == ["pools: is missing"]
    assert errors({"pools": [{}]}) == [f"pools.0.{key}: is missing" for key in ("name", "models", "endpoints")]
    assert errors({"pools": [POOL], "classes": {"a": {}}, "default_class": "a"}) == [
        "classes.a.rank: is missing",
        "classes.a.priority: is missing",
    ]


def test_several_errors_are_told_at_once() -> None:
    lines = errors(
        {
            "listen": {"http": "9090"},
            "tenants": {"a": {"weight": 0}},
            "pools": [{**POOL, "window": {"start": 0}, "max_queued_bytes": "2GB"}, {"name": "b"}],
            "on_fault": "panic",
        }
    )
    assert [line.partition(": ")[0] for line in lines] == [
        "listen.http",
        "tenants.a.weight",
        "pools.0.window.start",
        "pools.0.max_queued_bytes",
        "pools.1.models",
        "pools.1.endpoints",
        "on_fault",
    ]


@pytest.mark.parametrize("data", [{1: 2}, {None: 1}, {"tenants": {1: {}}}, {"tenants": None}, {"pools": {}}])
def test_keys_and_sections_of_other_types(data: dict[Any, Any]) -> None:
    assert errors({"pools": [POOL], **data})


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from(sorted(Config.model_fields))


@pytest.mark.slow
@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.dictionaries(keys, junk, max_size=4))
def test_whatever_stands_there_is_an_error_of_ours_or_good(data: dict[str, Any]) -> None:
    try:
        from_data({"pools": [POOL], **data})
    except ConfigError as error:
        assert str(error)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.text(alphabet="pools:-[]{}&*! #'\"|>%@\n\t0.~é", max_size=30))
def test_whatever_text_it_is(text: str) -> None:
    try:
        parse(text)
    except ConfigError as error:
        assert str(error)
