"""Environment variables that lie over the file: every key has one, and what cannot be meant is told."""

from __future__ import annotations

import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from config_case import POOL
from environment_case import FULL, as_value, full_ones, laid, places, put, taken_out, value_at, variable
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.config.environment import NOTHING, Environment, ignored_note
from extproc.config.load import ConfigError, FileData, from_data, load, read_again, read_file
from extproc.config.model import Config
from extproc.config.schema import is_list, is_mapping_by_name, keys, section_of, step

BASE: dict[str, Any] = {"pools": [POOL]}
ONES = full_ones()


def of(data: Any = BASE, /, **variables: str) -> Config:
    return laid(data, **variables).config()


def error(data: Any = BASE, /, **variables: str) -> str:
    with pytest.raises(ConfigError) as caught:
        laid(data, **variables).config()
    return str(caught.value)


# -- every key ------------------------------------------------------------------------------------


def of_sections(annotation: Any, seen: set[tuple[type, str]]) -> set[tuple[type, str]]:
    """(section, key) of the model, wherever."""
    section = section_of(annotation)
    if section is None:
        return of_sections(step(annotation, 0), seen) if is_list(annotation) or is_mapping_by_name(annotation) else seen
    for key in keys(section):
        if (section, key) not in seen:
            seen.add((section, key))
            of_sections(step(section, key), seen)
    return seen


def annotation_at(place: tuple[str | int, ...]) -> Any:
    annotation: Any = Config
    for part in place:
        annotation = step(annotation, part)
    return annotation


FIRST = set(places(ONES[0]))
EVERY = [
    (number, place) for number, data in enumerate(ONES) for place in places(data) if number == 0 or place not in FIRST
]


def test_the_configurations_below_have_every_key() -> None:
    """One that is new has to stand in `environment_case`."""
    told = {(section_of(annotation_at(place[:-1])), place[-1]) for _, place in EVERY if isinstance(place[-1], str)}
    missing = of_sections(Config, set()) - told
    assert {f"{section.__name__}.{key}" for section, key in missing} == set()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "place"), EVERY, ids=lambda each: variable(each) if isinstance(each, tuple) else "")
def test_every_key_has_a_variable(number: int, place: tuple[str | int, ...]) -> None:
    """What stands in the file and what is said by a variable are the same configuration. And it is the variable that
    says it: without it there is another one, or none."""
    data = ONES[number]
    without = taken_out(data, place)
    expected = from_data(data)
    assert of(without, **{variable(place)[10:]: as_value(value_at(data, place))}) == expected
    with suppress(ConfigError):
        assert from_data(without) != expected


@pytest.mark.parametrize("number", range(len(ONES)))
def test_all_at_once_and_no_file(number: int) -> None:
    data = ONES[number]
    said = {key.upper(): as_value(value) for key, value in data.items()}
    environ = {f"FAIRLANE__{key}": value for key, value in said.items()}
    assert FileData.none(Environment.of(environ)).config() == from_data(data)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(st.data())
def test_any_part_of_the_file_may_be_said_by_variables(data: st.DataObject) -> None:
    full = data.draw(st.sampled_from(ONES))
    chosen = data.draw(st.lists(st.sampled_from([p for p in places(full) if not _in_list(p)]), unique=True, max_size=6))
    rest, said = full, {}
    for place in chosen:
        said[variable(place)[10:]] = as_value(value_at(full, place))
    for place in chosen:
        if not any(place[:end] in chosen for end in range(1, len(place))):
            rest = taken_out(rest, place)
    assert of(rest, **said) == from_data(full)


def _in_list(place: tuple[str | int, ...]) -> bool:
    return isinstance(place[-1], int)


# -- what a variable does -------------------------------------------------------------------------


def test_it_wins_over_the_file() -> None:
    data = {**BASE, "shutdown": {"grace": "10s", "held": "finish"}}
    config = of(data, SHUTDOWN__GRACE="20s")
    assert (config.shutdown.grace, config.shutdown.held) == (20.0, "finish")
    assert data == {**BASE, "shutdown": {"grace": "10s", "held": "finish"}}


def test_keys_are_found_in_any_case() -> None:
    assert of(Listen__HTTP="0.0.0.0:1").listen.http == "0.0.0.0:1"
    assert of(identity__CLASS="[{header: x-urgency}]").identity.headers == {"x-tenant", "x-urgency"}


def test_a_mapping_is_merged_and_null_takes_a_name_away() -> None:
    data = {**BASE, "tenants": {"a": {"weight": 2, "rate": 3}, "b": {"weight": 4}}}
    tenants = of(data, TENANTS="{a: {weight: 5}, b: null, Team-C: {weight: 6}}").tenants
    assert sorted(tenants) == ["Team-C", "a"]
    assert (tenants["a"].weight, tenants["a"].rate, tenants["Team-C"].weight) == (5, 3, 6)
    assert of(data, TENANTS__B="null").tenants.keys() == {"a"}
    assert of(data, TENANTS__C="null").tenants.keys() == {"a", "b"}


def test_null_is_a_value_where_it_is_one() -> None:
    assert of(POOLS__0__WINDOW__STALLED_AFTER="null").pools[0].window.stalled_after is None
    assert of(POOLS__0="{window: {stalled_after: null}}").pools[0].window.stalled_after is None


def test_a_list_is_one_value() -> None:
    assert of(POOLS__0__MODELS="[x]").pools[0].models == ["x"]


def test_an_endpoint_set_is_replaced() -> None:
    data = {"pools": [{**POOL, "endpoints": {"dns": {"name": "e.svc", "port": 80}}}]}
    assert of(data, POOLS__0__ENDPOINTS="{file: /f}").pools[0].endpoints.told == "endpoints by file"
    assert of(data, POOLS__0__ENDPOINTS="['10.0.0.1:80']").pools[0].endpoints.known == ["10.0.0.1:80"]


def test_short_forms_are_gone_into() -> None:
    assert of(POOLS__0__ENDPOINTS__STATIC__1="10.0.0.1:80").pools[0].endpoints.known == [
        "127.0.0.1:8001",
        "10.0.0.1:80",
    ]
    data = {"pools": [{**POOL, "endpoints": {"file": "/f"}}]}
    file = of(data, POOLS__0__ENDPOINTS__FILE__CLUSTER="c").pools[0].endpoints.file
    assert file is not None
    assert (file.path, file.cluster) == ("/f", "c")


def test_entries_of_lists() -> None:
    config = of(
        {},
        POOLS__0__NAME="a",
        POOLS__0__MODELS="[m]",
        POOLS__0__ENDPOINTS="['10.0.0.1:80']",
        POOLS__1="{name: b, models: [n], endpoints: ['10.0.0.2:80']}",
        POOLS__1__MODE="observe",
    )
    assert [(pool.name, pool.mode) for pool in config.pools] == [("a", "enforce"), ("b", "observe")]


def test_the_eleventh_entry_comes_after_the_tenth() -> None:
    said = {f"POOLS__0__MODELS__{number}": f"m{number}" for number in reversed(range(12))}
    assert of(**said).pools[0].models == [f"m{number}" for number in range(12)]


def test_what_is_not_in_the_file_is_as_it_is_by_default() -> None:
    config = of(CLASSES__BATCH__QUEUE_TIMEOUT="20m", REQUESTS__QUEUED__11="/v1/x", IDENTITY__TENANT__0__HEADER="x-org")
    assert (config.classes["batch"].queue_timeout, config.classes["batch"].min_share) == (1200.0, 0.02)
    assert config.classes.keys() == {"interactive", "default", "batch"}
    assert config.requests.queued == [*from_data(BASE).requests.queued, "/v1/x"]
    assert config.identity.headers == {"x-org", "x-class"}


def test_all_classes_at_once_are_as_the_file_would_say_them() -> None:
    config = of(CLASSES="{only: {rank: 0, priority: 0}}", DEFAULT_CLASS="only")
    assert config.classes.keys() == {"only"}


def test_names_of_people() -> None:
    data = {**BASE, "tenants": {"Acme": {}, "LTD": {}, "ltd": {"weight": 2}}}
    assert of(data, TENANTS__ACME__WEIGHT="3").tenants["Acme"].weight == 3
    assert of(data, TENANTS__NEW_ONE__WEIGHT="3").tenants["new_one"].weight == 3
    assert of(data, TENANTS__LTD__WEIGHT="3").tenants["LTD"].weight == 3  # it is there as it stands
    assert error(data, TENANTS__Ltd__WEIGHT="3") == (
        "FAIRLANE__TENANTS__Ltd__WEIGHT: tenants has 2 names of these letters: give a mapping with the one meant"
    )


def test_the_longer_name_wins_whatever_the_order() -> None:
    said = {"FAIRLANE__SHUTDOWN__GRACE": "2s", "FAIRLANE__SHUTDOWN": "{grace: 1s, held: finish}"}
    for environ in (said, dict(reversed(said.items()))):
        config = FileData.of(BASE, Environment.of(environ)).config()
        assert (config.shutdown.grace, config.shutdown.held) == (2.0, "finish")


def test_values_are_read_as_strictly_as_the_file() -> None:
    assert of(POOLS__0__MODE="off").pools[0].mode == "off"
    assert of(DEFAULT_CLASS="'batch'").default_class == "batch"
    assert "this key is no switch" in error(DEFAULT_CLASS="yes")


# -- what is no variable --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "FAIRLANE_PORT",
        "FAIRLANE_SERVICE_HOST",
        "FAIRLANE_PORT_9090_TCP_ADDR",
        "FAIRLANE_SERVICE_PORT_GRPC_EXT_PROC",
        "FAIRLANE_ADMIN_SERVICE_HOST",
        "FAIRLANE_CONFIG",
        "FAIRLANE_LOG_LEVEL",
        "FAIRLANE_TOKEN_FILE",
        "FAIRLANE_ADDRESS",
        "FAIRLANE",
        "FAIRLANES__LISTEN__HTTP",
        "PATH",
    ],
)
def test_what_others_set_is_left_alone(name: str) -> None:
    assert Environment.of({name: "tcp://10.0.0.1:50051"}) == NOTHING


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("FAIRLANE_LISTEN__HTTP", "FAIRLANE__LISTEN__HTTP"),
        ("FAIRLANE_LISTEN_HTTP", "FAIRLANE__LISTEN__HTTP"),
        ("fairlane__listen__http", "FAIRLANE__LISTEN__HTTP"),
        ("FAIRLANE_SHUTDOWN_GRACE", "FAIRLANE__SHUTDOWN__GRACE"),
        ("FAIRLANE_POOLS__0__MODE", "FAIRLANE__POOLS__0__MODE"),
    ],
)
def test_a_near_miss_is_told(name: str, meant: str) -> None:
    environment = Environment.of({name: "x"})
    assert (environment.variables, environment.ignored) == ((), (name,))
    assert ignored_note(name).endswith(f": is {meant} meant?")


# -- bad input ------------------------------------------------------------------------------------

EMPTY = "is empty; unset it, or write null where nothing is meant, '' for an empty text"
NO_KEY = "names no key; a variable is like FAIRLANE__LISTEN__HTTP, for the key http of listen"
QUOTES = "; text that begins with one of * & ! % @ ` [ { or has ': ' needs quotes"


def no_number(part: str) -> str:
    return f"pools is a list: its entries have the numbers 0, 1, ... in place of {part}; or give all of it as one value"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("LISTEN__HTPP", "a:1", "there is no key htpp in listen; did you mean FAIRLANE__LISTEN__HTTP?"),
        ("LISTENER", "a:1", "there is no key listener in the file; did you mean FAIRLANE__LISTEN?"),
        ("SHUTDOWN__X", "1", "there is no key x in shutdown; known there: grace, held"),
        (
            "IDENTITY__REQUEST_CLASS",
            "[]",
            "there is no key request_class in identity; did you mean FAIRLANE__IDENTITY__CLASS?",
        ),
        ("", "1", NO_KEY),
        ("__X", "1", NO_KEY),
        ("LISTEN__", "1", NO_KEY),
        ("LISTEN__HTTP__PORT", "1", "listen.http is one value and has no keys: end the name there"),
        ("POOLS__2__MODE", "off", "pools ends with 0, so the next entry has the number 1, not 2"),
        ("POOLS__9999999999__MODE", "off", no_number("9999999999")),
        ("POOLS__-1__MODE", "off", no_number("-1")),
        ("POOLS__²__MODE", "off", no_number("²")),
        ("LISTEN__HTTP", "", EMPTY),
        ("LISTEN__HTTP", " \n", EMPTY),
        ("LISTEN__HTTP", "\udcff", "its value is not UTF-8"),
        ("LISTEN__HTTP", "x" * (1024**2 + 1), "its value has more than 1 MiB; put it into the file"),
        ("LISTEN", "[" * 5000, "its value is nested too deeply"),
        ("LISTEN", "{http: a:1, http: b:1}", "its value has a key twice at line 1, column 13" + QUOTES),
        ("POOLS__0__MODELS", "[*]", "its value is not YAML at line 1, column 3" + QUOTES),
        ("TENANTS", "!!set {a}", "its value is not YAML at line 1, column 1" + QUOTES),
        ("CLASSES", "!!python/object:os.system {}", "its value is not YAML at line 1, column 1" + QUOTES),
        ("LISTEN__HTTP", "2026-99-99", "its value is not YAML" + QUOTES),
    ],
)  # fmt: skip
def test_what_cannot_be_meant(name: str, value: str, message: str) -> None:
    assert error(**{name: value}) == f"FAIRLANE__{name}: {message}"


def test_an_empty_list_has_no_second_entry() -> None:
    assert error({}, POOLS__1__NAME="a") == (
        "FAIRLANE__POOLS__1__NAME: pools is empty, so the next entry has the number 0, not 1"
    )


def test_twice_in_another_case() -> None:
    assert error(LISTEN__HTTP="a:1", listen__http="a:1") == (
        "FAIRLANE__listen__http: says the same key as FAIRLANE__LISTEN__HTTP: unset one of the two"
    )


def test_every_fault_is_a_line() -> None:
    assert error(LISTEN__X="1", POOLS__7="1").splitlines() == [
        "FAIRLANE__LISTEN__X: there is no key x in listen; known there: " + ", ".join(keys(step(Config, "listen"))),
        "FAIRLANE__POOLS__7: pools ends with 0, so the next entry has the number 1, not 7",
    ]
    assert len(error(LISTEN__HTTP="", SHUTDOWN="{").splitlines()) == 2


def test_a_name_of_anything() -> None:
    """Messages are for terminals."""
    message = error(**{"LISTEN__\udcff\x1b[31m\n" + "x" * 5000: "1"})
    assert message.isprintable()
    assert len(message) < 500


def test_anchors_that_multiply() -> None:
    bomb = "{a: &a {x: 1, y: 1, z: 1}, " + ", ".join(
        f"{b}: &{b} {{x: *{a}, y: *{a}, z: *{a}}}"
        for a, b in zip("abcdefghijklmnopqrs", "bcdefghijklmnopqrst", strict=True)
    )
    for name in ("TENANTS", "LISTEN", "POOLS__0", "POOLS__0__ALIASES", "CLASSES", "REQUESTS__QUEUED"):
        assert len(error(**{name: bomb + "}"})) < 20_000
        twice = laid(BASE, TENANTS=bomb + "}").data
        assert len(error(twice, **{name: bomb + "}"})) < 20_000


# -- whose fault ----------------------------------------------------------------------------------


def test_a_fault_of_a_value_names_the_variable() -> None:
    assert error(SHUTDOWN__GRACE="30") == (
        "FAIRLANE__SHUTDOWN__GRACE: shutdown.grace: "
        "expected a duration with its unit, like 250ms, 30s, 5m or 1h, not 30"
    )
    assert (
        error(POOLS__0="{endpoint: []}") == "FAIRLANE__POOLS__0: pools.0.endpoint: unknown key; did you mean endpoints?"
    )
    assert error(POOLS__0__NAME="7").endswith("pools.0.name: Input should be a valid string; in quotes it is text")


def test_a_fault_of_the_file_is_the_files(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("shutdown: {grace: 30}\non_fault: panic\n")
    with pytest.raises(ConfigError) as caught:
        load(file, {"FAIRLANE__POOLS__0__NAME": "a", "FAIRLANE__ON_FAULT": "no-such"})
    part = " (said in part by FAIRLANE__POOLS__0__NAME)"
    assert str(caught.value).splitlines() == [
        f"{file}: pools.0.models: is missing{part}",
        f"{file}: pools.0.endpoints: is missing{part}",
        "FAIRLANE__ON_FAULT: on_fault: Input should be 'pass' or 'reject'",
        f"{file}: shutdown.grace: expected a duration with its unit, like 250ms, 30s, 5m or 1h, not 30",
    ]


def test_a_fault_of_both_names_both() -> None:
    assert error(LISTEN__HTTP="127.0.0.1:50051") == (
        "configuration: listen: ext_proc and http are both 127.0.0.1:50051; each needs a port of its own "
        "(said in part by FAIRLANE__LISTEN__HTTP)"
    )
    assert error(DEFAULT_CLASS="btach") == (
        "configuration: default_class: there is no class 'btach'; did you mean batch? "
        "(said in part by FAIRLANE__DEFAULT_CLASS)"
    )
    assert error(BASE, POOLS__0__COST="{prompt: 0, output: 0}").startswith("FAIRLANE__POOLS__0__COST: pools.0.cost: ")


@pytest.mark.parametrize(
    "said",
    [
        {"ADMIN__KEEP_AUDIT": "SECRET"},
        {"LISTEN__HTTP": "SECRET"},
        {"LISTEN": "SECRET"},
        {"LISTEN__HTTP": "'SECRET"},
        {"LISTEN__HTTP": "!SECRET x"},
        {"LISTEN__HTTP": "*SECRET"},
        {"LISTEN": "{SECRET: 1, SECRET: 2}"},
        {"SHUTDOWN__GRACE": "SECRET"},
        {"ON_FAULT": "SECRET"},
        {"POOLS__0__ENDPOINTS": "[SECRET, SECRET]"},
        {"POOLS__0__ENDPOINTS": "SECRET"},
        {"POOLS__0__METRICS": "{path: SECRET}"},
        {"IDENTITY__TENANT__0__API_KEY__SHA256": "{SECRET: a}"},
        {"IDENTITY__TENANT__0": "{header: null, api_key: {sha256: {SECRET: a}}}"},
        {"TELEMETRY__TRACES__OTLP": "http://user:SECRET@collector:4317"},
        {"TELEMETRY__TRACES__OTLP": "SECRET"},
        {"REQUESTS__QUEUED": "[SECRET]"},
        {"POOLS__0__NAME": "SECRET SECRET"},
    ],
    ids=str,
)
def test_what_a_variable_holds_is_not_told(said: dict[str, str]) -> None:
    for each in ("sk-live-5f2e", "sk-live-" + "x" * 300):
        message = error(**{name: value.replace("SECRET", each) for name, value in said.items()})
        assert "sk-live" not in message
        assert "FAIRLANE__" in message


def test_a_short_value_is_not_told_either() -> None:
    assert error(SHUTDOWN__GRACE="s3c").endswith(" or 1h, not the value given")


# -- with files -----------------------------------------------------------------------------------


def test_a_file_and_the_environment_are_one(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("pools: [{name: a, models: [m], endpoints: ['127.0.0.1:1']}]\n")
    alone, other = read_file(file), read_file(file, Environment.of({"FAIRLANE__ON_FAULT": "reject"}))
    third = read_file(file, Environment.of({"FAIRLANE__ON_FAULT": "pass"}))
    assert len({alone.sha256, other.sha256, third.sha256}) == 3
    assert (alone.data.get("on_fault"), other.data["on_fault"]) == (None, "reject")
    assert read_again(file, [other]) is other  # by its bytes: nothing is parsed
    file.write_text("on_fault: pass\n" + file.read_text())
    again = read_again(file, [other])
    assert (again.data["on_fault"], again.config().on_fault) == ("reject", "reject")
    assert again.sha256 != other.sha256
    with pytest.raises(ConfigError, match=f"^{re.escape(str(file))}: expected a mapping"):
        file.write_text("- a")
        read_again(file, [other])


def test_an_empty_file_will_do_where_variables_say_all(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("# nothing\n")
    pools = "[{name: a, models: [m], endpoints: ['127.0.0.1:1']}]"
    assert load(file, {"FAIRLANE__POOLS": pools}).pools[0].name == "a"
    assert load(Path(os.devnull), {"FAIRLANE__POOLS": pools}).pools[0].name == "a"
    with pytest.raises(ConfigError, match="found nothing"):
        load(file, {"FAIRLANE_POOLS": pools})


def test_the_files_data_are_left_as_they_are() -> None:
    said = {
        variable(place)[10:]: as_value(value_at(FULL, place)) for place in (("pools", 0, "window"), ("classes", "b"))
    }
    before = repr(FULL)
    laid(FULL, **said)
    assert repr(FULL) == before
    assert put(FULL, ("on_fault",), "pass") != FULL


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=3))
@settings(max_examples=200, deadline=None)
def test_whatever_the_environment_has_it_is_taken_or_refused(environ: dict[str, str]) -> None:
    for prefix in ("", "FAIRLANE__", "FAIRLANE__POOLS__0__", "FAIRLANE__TENANTS__"):
        try:
            config = FileData.of(
                BASE, Environment.of({prefix + name: value for name, value in environ.items()})
            ).config()
        except ConfigError as refused:
            assert all(line.isprintable() for line in str(refused).splitlines())
        else:
            assert not math.isnan(config.shutdown.grace)
