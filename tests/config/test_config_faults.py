"""Where a fault is, by names; what was meant; and values that nobody means."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from config_case import POOL, good

from extproc.config.inheritance import own_tenants
from extproc.config.load import ConfigError, Fault, FileData, from_data, parse, read_again, read_file
from extproc.config.overlay import Overlay

OTHER: dict[str, Any] = {"name": "other.v2", "models": ["o"], "endpoints": ["127.0.0.1:8002"]}
RANKED: dict[str, Any] = {"rank": 0, "priority": 0}


def faults(data: dict[str, Any]) -> list[Fault]:
    with pytest.raises(ConfigError) as error:
        from_data(data)
    return list(error.value.faults)


def fault(pool: dict[str, Any] | None = None, **rest: Any) -> Fault:
    (found,) = faults({"pools": [{**POOL, **(pool or {})}, OTHER], **rest})
    return found


# -- places ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rest", "path", "message"),
    [
        ({"pool": {"window": {"strat": 3}}}, "pools.sim.window.strat", "unknown key; did you mean start?"),
        ({"shutdown": {"grace": 30}}, "shutdown.grace",
         "expected a duration with its unit, like 250ms, 30s, 5m or 1h, not 30"),
        ({"tenants": {"acme.com": {"weight": 0}}}, "tenants.`acme.com`.weight", "Input should be greater than 0"),
        ({"classes": {"default": {"rank": 0}}}, "classes.default.priority", "is missing"),
        ({"default_class": "defualt"}, "default_class", "there is no class 'defualt'; did you mean default?"),
        ({"default_class": "x"}, "default_class", "there is no class 'x'; there are interactive, default, batch"),
        ({"tenants": {"a: b": {"classes": ["bach"]}}}, "tenants.`a: b`",
         "there is no class 'bach'; did you mean batch?"),
        ({"tenants": {"a": {"parent": "a"}}}, "tenants", "a -> a: the parents run in a circle"),
        (
            {"identity": {"class": [{"model": {"big-*": "bach"}}]}},
            "identity.class.0.model",
            "there is no class 'bach'; did you mean batch?",
        ),
        ({"classes": {}}, "classes", "at least one is needed"),
        (
            {"classes": {"a": RANKED, "b": RANKED}, "default_class": "a"},
            "classes",
            "a and b both have rank 0; each needs its own",
        ),
        ({"pool": {"aliases": {"a": "b", "b": "m"}}}, "pools.sim",
         "the alias 'a' stands for 'b', which is an alias itself; name what the engine serves"),
        ({"pool": {"name": "other.v2", "models": ["m"]}}, "pools", "two are named 'other.v2'"),
        ({"pool": {"max_queued": 10**16 + 1}}, "pools.sim.max_queued", "must be a number of at most 1e+16"),
    ],
)  # fmt: skip
def test_a_fault_has_a_place_and_a_text_without_it(rest: dict[str, Any], path: str, message: str) -> None:
    assert fault(**rest) == Fault(path, message)


def test_pools_without_a_name_go_by_their_place() -> None:
    assert [each.path for each in faults({"pools": [POOL, {"models": ["o"]}]})] == ["pools.1.name", "pools.1.endpoints"]
    assert fault({"name": 7}).path == "pools.0.name"
    assert [each.path for each in faults({"pools": 3})] == ["pools"]
    assert [each.path for each in faults({"pools": ["x"]})] == ["pools.0"]


def test_the_text_for_a_file_has_a_line_for_each_fault_with_its_name() -> None:
    with pytest.raises(ConfigError) as error:
        parse("pools: [{name: a}]\non_fault: x\n", "f.yaml")
    assert str(error.value).split("\n") == [
        "f.yaml: pools.0.models: is missing",
        "f.yaml: pools.0.endpoints: is missing",
        "f.yaml: on_fault: Input should be 'pass' or 'reject'",
    ]
    assert [each.path for each in error.value.faults] == ["pools.a.models", "pools.a.endpoints", "on_fault"]


def test_of_many_faults_the_first_hundred_are_told() -> None:
    found = faults({"pools": [POOL], "tenants": {f"t{number}": {"weight": 0} for number in range(20_000)}})
    assert len(found) == 101
    assert found[0].path == "tenants.t0.weight"
    assert found[-1] == Fault("", "and 19900 more faults")


# -- values that nobody means ---------------------------------------------------------------------


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


ABSURD: list[Any] = [
    float("nan"), float("inf"), -float("inf"), -1, -1.5, 10**400, -(10**400), 1 << 40_000, 1e300, 2**64, "",
    "x" * 100_000, "1000000000s", "-1s", "nan", "\0", [], {}, None, True, deep(100_000),
]  # fmt: skip
PLACES = [
    ("default_class",), ("listen", "admin"), ("admin", "keep_audit"), ("identity", "anonymous"),
    ("identity", "separator"),
    ("tenants", "a"), ("tenants", "a", "weight"), ("tenants", "a", "boost"), ("tenants", "a", "rate"),
    ("tenants", "a", "max_queued"), ("tenants", "a", "max_queued_bytes"), ("tenants", "a", "classes"),
    ("classes", "batch"), ("classes", "batch", "rank"), ("classes", "batch", "priority"),
    ("classes", "batch", "queue_timeout"), ("classes", "batch", "max_queued"), ("classes", "batch", "min_share"),
    ("classes", "batch", "headroom"), ("classes", "batch", "gates", "max_waiting"),
    ("classes", "batch", "promote_after"),
    ("pools", "sim", "models"), ("pools", "sim", "aliases"), ("pools", "sim", "endpoints"),
    ("pools", "sim", "percentage"),
    ("pools", "sim", "window", "start"), ("pools", "sim", "window", "threshold"), ("pools", "sim", "cost", "output"),
    ("pools", "sim", "metrics", "interval"), ("pools", "sim", "promote_every"), ("pools", "sim", "no_endpoint_timeout"),
    ("shutdown", "grace"), ("requests", "max_body"), ("recording", "keep"),
]  # fmt: skip


@pytest.mark.parametrize("path", PLACES, ids=".".join)
def test_absurd_values_are_taken_or_told(path: tuple[str, ...]) -> None:
    file = {"pools": [POOL], "tenants": {"a": {"weight": 2}}}
    for value in ABSURD:
        patch = value
        for name in reversed(path):
            patch = {name: patch}
        try:
            config = from_data(Overlay().patched(patch, None, file, revision=1, expires_at=None).over(file))
        except ConfigError as error:
            assert error.faults
            assert all(len(each.message) < 1100 and each.path for each in error.faults)
        else:
            config.pool_policy(config.pools[0])  # the core can be told


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("weight", 0), ("weight", -1), ("weight", float("nan")), ("weight", float("inf")), ("weight", 10**400),
        ("max_queued", 10**400), ("max_queued", 1e300), ("rate", -1), ("max_queued_bytes", "1"),
    ],
)  # fmt: skip
def test_absurd_values_are_told_with_their_place(path: str, value: Any) -> None:
    assert fault(tenants={"a": {path: value}}).path == f"tenants.a.{path}"


@pytest.mark.parametrize("value", ["1000000000s", "-1s", "nans", "infs", "1e3s", "9" * 400 + "s"])
def test_absurd_durations(value: str) -> None:
    assert fault(shutdown={"grace": value}).path == "shutdown.grace"


# -- files ----------------------------------------------------------------------------------------


def test_what_a_file_holds_comes_with_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    content = b"\xef\xbb\xbfpools: [{nonsense: 1}]\n"
    file.write_bytes(content)
    found = read_file(file)
    assert (found.path, found.data) == (file, {"pools": [{"nonsense": 1}]})
    assert found.sha256 == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize("models", ["!!set {m}", "[!!binary bQ==]", "!!omap [a: m]", "!!pairs [a: m]"])
def test_what_json_could_not_keep(models: str) -> None:
    with pytest.raises(ConfigError, match=r"tag:yaml.org,2002:[a-z]+ has no place here"):
        parse(f"pools: [{{name: a, models: {models}, endpoints: ['127.0.0.1:1']}}]")


@pytest.mark.parametrize("levels", [70, 400, 900])
@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_text_that_is_nested_deeper_than_any_configuration(levels: int, pair: str) -> None:
    opened = pair[0] if pair == "[]" else "{a: "
    with pytest.raises(ConfigError, match="nested too deeply"):
        parse("x: " + opened * levels + pair[1] * levels)


def test_anchors_that_blow_up_or_run_in_a_circle() -> None:
    bomb = "x: &a0 [x]\n" + "".join(f"x{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))
    for text in (
        bomb + "pools: *a9",
        bomb + "requests: {queued: *a9}",
        "requests: {queued: &a [*a]}",
        "pools: &a [*a]",
    ):
        with pytest.raises(ConfigError) as error:
            parse(text)
        assert len(str(error.value)) < 5000


def test_data_without_a_file() -> None:
    one, other = FileData.of({"pools": [POOL]}), FileData.of({"pools": [OTHER]})
    assert one.path is None
    assert one.data == {"pools": [POOL]}
    assert one.sha256 == FileData.of({"pools": [POOL]}).sha256 != other.sha256


def test_a_path_that_no_system_has() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(Path("a\0b"))


def test_a_file_that_is_known_by_its_bytes_is_not_parsed_again(tmp_path: Path) -> None:
    file = tmp_path / "f.yaml"
    file.write_text("a: 1\n")
    first = read_file(file)
    assert first.again
    file.write_text("a: 2\n")
    second = read_again(file, [first])
    assert second.data == {"a": 2}
    file.write_text("a: 1\n")
    assert read_again(file, [second, first]) is first


def test_a_pipe_is_read_at_the_start_and_never_waited_for_later(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="is no regular file by now"):  # nobody writes
        read_again(pipe, [])
    reader, writer = os.pipe()
    os.write(writer, b"a: 1\n")
    os.close(writer)
    found = read_file(Path(f"/dev/fd/{reader}"))
    os.close(reader)
    assert (found.data, found.again) == ({"a": 1}, False)
    for folder in (tmp_path, Path("a\0b"), tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_again(folder, [])


# -- a tenant's first settings of its own ---------------------------------------------------------


CONFIG = good(
    identity={"separator": "/"},
    tenants={
        "*": {"rate": 1000, "boost": 2},
        "acme/*": {"weight": 3, "max_queued_bytes": "1GiB", "classes": ["batch"]},
        "acme/own": {"weight": 7},
    },
)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("team", {"weight": 2}, {"weight": 2, "rate": 1000}),
        ("team", {"rate": None}, {"rate": None}),
        ("team", {}, {"rate": 1000}),
        ("acme/ml", {"weight": 5}, {"weight": 5, "max_queued_bytes": "1GiB", "classes": ["batch"]}),
        ("acme/own", {"max_queued": 5}, {"max_queued": 5}),
        ("*", {"weight": 5}, {"weight": 5}),
        ("beta/*", {"weight": 5}, {"weight": 5, "rate": 1000}),
        ("gone", None, None),
    ],
)
def test_what_a_tenant_begins_with(name: str, given: Any, expected: Any) -> None:
    found = own_tenants({"tenants": {name: given}, "on_fault": "pass"}, None, CONFIG)
    assert found.patch == {"tenants": {name: expected}, "on_fault": "pass"}
    assert found.mask is None
    assert bool(found.warnings) == (expected != given)


def test_the_warning_says_what_was_copied() -> None:
    found = own_tenants({"tenants": {"acme/ml": {"weight": 5}}}, None, CONFIG)
    assert found.warnings == [
        Fault(
            "tenants.`acme/ml`",
            "begins with the settings that it had until now: max_queued_bytes 1GiB, classes ['batch']",
        )
    ]


def test_what_is_copied_gets_into_the_mask_and_what_is_not_in_it_stays_out() -> None:
    patch = {"tenants": {"team": {"weight": 2, "rate": 5}, "third": {"weight": 1}}}
    found = own_tenants(patch, [("tenants", "team", "weight")], CONFIG)
    assert found.mask == [("tenants", "team", "weight"), ("tenants", "team", "rate")]
    data: dict[str, Any] = {"pools": [POOL], "tenants": {"*": {"rate": 1000}}}
    overlay = Overlay().patched(found.patch, found.mask, data, revision=1, expires_at=None)
    assert overlay.over(data)["tenants"] == {"*": {"rate": 1000}, "team": {"weight": 2, "rate": 1000}}


def test_a_tenant_that_the_mask_leaves_out_gets_nothing() -> None:
    patch: dict[str, Any] = {"tenants": {"team": {}, "third": {"rate": 7}}}
    found = own_tenants(patch, [("on_fault",), ("tenants", "third", "weight")], CONFIG)
    assert (found.patch, found.warnings) == (patch, [])
    assert own_tenants(patch, [("tenants", "team")], CONFIG).patch["tenants"]["team"] == {"rate": 1000}


def test_nothing_is_copied_from_defaults_and_nothing_that_is_given_is_written_to() -> None:
    patch = {"tenants": {"team": {"weight": 2}}}
    assert own_tenants(patch, None, good()).patch == patch
    own_tenants(patch, None, CONFIG)
    assert patch == {"tenants": {"team": {"weight": 2}}}
    assert own_tenants({"tenants": 3}, None, CONFIG).patch == {"tenants": 3}
