"""Live changes over the file's data: what a patch sets, what it cannot, and how it goes away again."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from overlay_case import FILE, change

from extproc.config.load import ConfigError, Fault, from_data
from extproc.config.overlay import (
    FieldChange,
    Overlay,
    Path,
    Setting,
    diff,
    parse_path,
    path_text,
    plain_number,
)

EMPTY = Overlay()
NAN, INF = float("nan"), float("inf")


def faults(patch: Any, mask: list[Path] | None = None, overlay: Overlay = EMPTY) -> list[Fault]:
    with pytest.raises(ConfigError) as error:
        change(overlay, patch, mask)
    return list(error.value.faults)


def pool(data: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = (each for each in data["pools"] if each["name"] == name)
    return found


# -- what a patch sets ----------------------------------------------------------------------------


def test_a_patch_becomes_settings_leaf_by_leaf() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": {"weight": 5, "classes": ["batch"]}}, "on_fault": "reject"})
    assert overlay.settings == (
        Setting(("tenants", "acme.com", "weight"), 5, revision=1),
        Setting(("tenants", "acme.com", "classes"), ["batch"], revision=1),
        Setting(("on_fault",), "reject", revision=1),
    )
    data = overlay.over(FILE)
    assert data["tenants"] == {"*": {"weight": 1}, "acme.com": {"weight": 5, "max_queued": 10, "classes": ["batch"]}}
    assert data["on_fault"] == "reject"


def test_nothing_of_a_file_is_lost_by_an_overlay_of_nothing() -> None:
    assert EMPTY.over(FILE) == FILE
    assert change(EMPTY, {}) == EMPTY


@pytest.mark.parametrize("as_list", [False, True])
def test_pools_are_changed_by_name_and_may_be_given_as_the_file_has_them(as_list: bool) -> None:
    window = {"window": {"start": 3}}
    pools: Any = [{"name": "llama", **window}] if as_list else {"llama": window}
    overlay = change(EMPTY, {"pools": pools})
    assert overlay.settings == (Setting(("pools", "llama", "window", "start"), 3, revision=1),)
    data = overlay.over(FILE)
    assert [each["name"] for each in data["pools"]] == ["llama", "qwen.v2"]
    assert pool(data, "llama")["window"] == {"max_tpot": "150ms", "start": 3}
    assert pool(data, "qwen.v2") == FILE["pools"][1]


def test_pools_are_added_and_taken_away() -> None:
    new = {"models": ["m"], "endpoints": ["127.0.0.1:9"]}
    data = change(EMPTY, {"pools": {"new": new, "llama": None}}).over(FILE)
    assert data["pools"] == [FILE["pools"][1], {"name": "new", **new}]


def test_null_takes_away_what_people_name_and_is_a_value_elsewhere() -> None:
    patch = {
        "tenants": {"acme.com": None},
        "pools": {"qwen.v2": {"aliases": {"gpt": None}}, "llama": {"window": {"stalled_after": None}}},
    }
    data = change(EMPTY, patch).over(FILE)
    assert data["tenants"] == {"*": {"weight": 1}}
    assert pool(data, "qwen.v2")["aliases"] == {}
    assert pool(data, "llama")["window"] == {"max_tpot": "150ms", "stalled_after": None}
    assert from_data(data).pools[0].window.stalled_after is None


def test_the_default_classes_are_there_to_be_changed() -> None:
    overlay = change(EMPTY, {"classes": {"batch": {"queue_timeout": "10m"}}})
    assert overlay.over(FILE)["classes"] == {
        "interactive": {"rank": 0, "priority": 0, "wait_objective": "5s"},
        "default": {"rank": 1, "priority": 1_000_000, "queue_timeout": "5m"},
        "batch": {"rank": 2, "priority": 2_000_000, "queue_timeout": "10m", "max_waiting": 0, "min_share": 0.02},
    }
    assert diff(FILE, overlay.over(FILE)) == (
        FieldChange(("classes", "batch", "queue_timeout"), "3500s", "10m", had=True, has=True),
    )
    assert EMPTY.over({"pools": []}) == {"pools": []}  # and are not written where nothing changes them


def test_a_list_is_one_value_and_a_mapping_may_take_its_place() -> None:
    overlay = change(EMPTY, {"pools": {"llama": {"endpoints": {"dns": {"name": "engines", "port": 8000}}}}})
    assert pool(overlay.over(FILE), "llama")["endpoints"] == {"dns": {"name": "engines", "port": 8000}}
    overlay = change(overlay, {"pools": {"llama": {"endpoints": ["127.0.0.1:7"]}}})
    assert overlay.settings == (Setting(("pools", "llama", "endpoints"), ["127.0.0.1:7"], revision=1),)


def test_an_empty_mapping_changes_nothing_where_one_is_and_is_set_where_none_is() -> None:
    assert change(EMPTY, {"tenants": {}, "pools": {"llama": {"window": {}}}, "shutdown": {}}) == EMPTY
    assert change(EMPTY, {"pools": {"llama": {"endpoints": {}}}}).settings == (
        Setting(("pools", "llama", "endpoints"), {}, revision=1),
    )
    assert change(EMPTY, {"tenants": {"new": {}}}).over(FILE)["tenants"]["new"] == {}


# -- settings of one path -------------------------------------------------------------------------


def test_a_permanent_setting_replaces_older_ones_at_and_below_its_path() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": {"weight": 5, "rate": 100}}})
    overlay = change(overlay, {"tenants": {"acme.com": {"weight": 6}}}, revision=2, expires_at=50.0)
    overlay = change(overlay, {"tenants": {"acme.com": {"weight": 7}}}, revision=3)
    assert [(s.path[-1], s.value, s.revision) for s in overlay.settings] == [("rate", 100, 1), ("weight", 7, 3)]
    overlay = change(overlay, {"tenants": {"acme.com": None}}, revision=4)
    assert overlay.settings == (Setting(("tenants", "acme.com"), removed=True, revision=4),)


def test_a_setting_for_a_while_keeps_what_is_beneath_until_it_is_over() -> None:
    lasting = change(EMPTY, {"tenants": {"acme.com": {"weight": 5}}})
    both = change(lasting, {"tenants": {"acme.com": {"weight": 9}}}, revision=2, expires_at=100.0)
    assert both.over(FILE)["tenants"]["acme.com"]["weight"] == 9
    assert both.next_expiry == 100.0
    assert both.expired(99.9) == (both, ())
    assert both.expired(100.0) == (lasting, (Setting(("tenants", "acme.com", "weight"), 9, False, 2, 100.0),))
    assert both.permanent() == lasting
    assert lasting.next_expiry is None


def test_what_is_removed_for_a_while_comes_back_with_what_was_changed_in_it() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": {"weight": 5}}})
    overlay = change(overlay, {"tenants": {"acme.com": None}}, expires_at=10.0)
    assert "acme.com" not in overlay.over(FILE)["tenants"]
    assert overlay.expired(10.0)[0].over(FILE)["tenants"]["acme.com"] == {"weight": 5, "max_queued": 10}


def test_settings_that_never_show_again_are_not_kept() -> None:
    overlay = EMPTY
    for at in range(1000):
        overlay = change(overlay, {"tenants": {"acme.com": {"boost": 2 + at}}}, expires_at=10.0 + at)
    assert [s.value for s in overlay.settings] == [1001]
    overlay = change(overlay, {"tenants": {"acme.com": {"boost": 1}}}, expires_at=5.0)  # over before the other
    assert [s.value for s in overlay.settings] == [1001, 1]


def test_what_is_as_the_file_has_it_is_no_setting() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": {"weight": 5}}})
    assert change(overlay, {"tenants": {"acme.com": {"weight": 3}}}) == EMPTY
    overlay = change(EMPTY, {"tenants": {"new": {"weight": 5}}})
    assert change(overlay, {"tenants": {"new": None}}) == EMPTY


def test_folding_a_file_that_has_taken_the_settings_over() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": {"weight": 5, "rate": 7}}})
    taken_over = copy.deepcopy(FILE)
    taken_over["tenants"]["acme.com"]["weight"] = 5.0
    assert overlay.folded(FILE) == overlay
    assert [s.path[-1] for s in overlay.folded(taken_over).settings] == ["rate"]


def test_folding_keeps_what_shows_when_something_else_is_over() -> None:
    """The setting is as the file has it; but without it the tenant would be gone until 10."""
    overlay = Overlay(
        (
            Setting(("tenants", "acme.com"), removed=True, expires_at=10.0),
            Setting(("tenants", "acme.com", "weight"), 3),
        )
    )
    assert overlay.folded(FILE) == overlay


def test_true_is_not_one() -> None:
    data = {"pools": [], "x": {"y": 1}}
    assert diff(data, {"pools": [], "x": {"y": True}}) == (FieldChange(("x", "y"), 1, True, had=True, has=True),)
    assert diff(data, {"pools": [], "x": {"y": 1.0}}) == ()


# -- giving back to the file ----------------------------------------------------------------------


def test_a_path_of_the_mask_without_a_value_gives_back_what_is_at_and_below_it() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": {"weight": 5}}, "shutdown": {"grace": "5s"}, "on_fault": "reject"})
    kept = change(overlay, {}, [("tenants", "acme.com"), ("on_fault",)])
    assert [s.path for s in kept.settings] == [("shutdown", "grace")]
    assert change(overlay, {}, [("tenants", "acme.com", "rate")]) == overlay


def test_of_a_patch_only_what_the_mask_has_counts() -> None:
    patch = {"tenants": {"acme.com": {"weight": 5, "rate": 7}}, "on_fault": "reject"}
    overlay = change(EMPTY, patch, [("tenants", "acme.com", "rate")])
    assert [s.path for s in overlay.settings] == [("tenants", "acme.com", "rate")]
    assert change(EMPTY, patch, []) == change(EMPTY, patch, None)


def test_what_was_taken_away_can_be_given_back() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": None}})
    assert change(overlay, {}, [("tenants", "acme.com")]) == EMPTY


def test_giving_back_for_a_while() -> None:
    overlay = change(EMPTY, {"tenants": {"acme.com": {"weight": 5, "rate": 7}}})
    for_a_while = change(overlay, {}, [("tenants", "acme.com")], expires_at=10.0)
    assert for_a_while.over(FILE) == FILE
    assert for_a_while.expired(10.0)[0] == overlay


# -- what has no place ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patch", "path", "message"),
    [
        (
            {"pools": {"lama": {"window": {"start": 3}}}},
            "pools.lama",
            "there is no pool 'lama'; did you mean llama? (a new one needs models, endpoints)",
        ),
        ({"pools": {"lama": None}}, "pools.lama", "there is no pool 'lama'; did you mean llama?"),
        ({"tenants": {"acme": None}}, "tenants.acme", "there is no tenant 'acme'; did you mean acme.com?"),
        (
            {"classes": {"bach": {"max_waiting": 1}}},
            "classes.bach",
            "there is no class 'bach'; did you mean batch? (a new one needs rank, priority)",
        ),
        (
            {"pools": {"llama": {"aliases": {"x": None}}}},
            "pools.llama.aliases.x",
            "there is no alias 'x'; there is none at all",
        ),
        ({"pools": {"llama": 3}}, "pools.llama", "expected a mapping, or null to take the pool away, not 3"),
        ({"pools": [{"models": ["m"]}]}, "pools", "a list of pools needs a name in each of them, and none twice"),
        (
            {"pools": {"llama": {"name": "lama"}}},
            "pools.llama.name",
            "a pool cannot be renamed; add one, and take this one away",
        ),
        ({"tenants": {"a": {"weight": NAN}}}, "tenants.a.weight", "must be a finite number, not nan"),
        ({"tenants": {"a": {"weight": INF}}}, "tenants.a.weight", "must be a finite number, not inf"),
        ({"tenants": {1: {}}}, "tenants", "has a key that is no text"),
        ({"on_fault": {1, 2}}, "on_fault", "set has no place in a configuration"),
    ],
)
def test_a_patch_that_cannot_be_meant(patch: Any, path: str, message: str) -> None:
    assert faults(patch) == [Fault(path, message)]


@pytest.mark.parametrize(
    ("path", "at", "message"),
    [
        (("clases", "batch"), "clases", "unknown key; did you mean classes?"),
        (("classes", "bach", "rank"), "classes.bach", "there is no class 'bach'; did you mean batch?"),
        (("classes", "batch", "rnk"), "classes.batch.rnk", "unknown key; did you mean rank?"),
        (
            ("pools", "llama", "models", "0"),
            "pools.llama.models.0",
            "there is nothing below one value; a list is changed as a whole",
        ),
    ],
)
def test_a_mask_that_cannot_be_meant(path: Path, at: str, message: str) -> None:
    assert faults({}, [path]) == [Fault(at, message)]


def test_unknown_keys_are_told_when_the_whole_is_validated() -> None:
    data = change(EMPTY, {"pools": {"qwen.v2": {"window": {"strat": 3}}}}).over(FILE)
    with pytest.raises(ConfigError) as error:
        from_data(data)
    assert error.value.faults == (Fault("pools.`qwen.v2`.window.strat", "unknown key; did you mean start?"),)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mapping", "list"])
def test_a_patch_that_is_nested_without_end(kind: str) -> None:
    value: Any = 1
    for _ in range(100_000):
        value = {"x": value} if kind == "mapping" else [value]
    (fault,) = faults({"tenants": {"a": {"classes": value}}})
    assert fault.message == "is nested more than 32 levels deep"


def test_a_file_whose_pools_are_no_list_of_names_is_left_for_validation_to_refuse() -> None:
    overlay = change(EMPTY, {"pools": {"llama": {"window": {"start": 3}}}})
    for pools in (3, [{"models": []}], [{"name": "a"}, {"name": "a"}], ["llama"]):
        assert overlay.over({"pools": pools}) == {"pools": pools}


# -- paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("classes", "batch", "queue_timeout"), "classes.batch.queue_timeout"),
        (("tenants", "acme.com", "weight"), "tenants.`acme.com`.weight"),
        (("tenants", "*"), "tenants.*"),
        (("tenants", "acme/*"), "tenants.`acme/*`"),
        (("tenants", "a`b", ""), "tenants.`a``b`.``"),
    ],
)
def test_paths_as_text(path: Path, text: str) -> None:
    assert path_text(path) == text
    assert parse_path(text) == path


def test_a_name_without_dots_needs_no_backquotes_to_be_read() -> None:
    assert parse_path("tenants.acme/ml.weight") == ("tenants", "acme/ml", "weight")


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a..b", "a`b", "`a", "`a`b", "a." * 5000 + "a"])
def test_what_is_no_path(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no path|is empty") as error:
        parse_path(text)
    assert len(str(error.value)) < 500


# -- as data --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plain",
    [
        None,
        {},
        [3],
        [{}],
        [{"path": [], "value": 1, "revision": 1}],
        [{"path": "classes", "value": 1, "revision": 1}],
        [{"path": [1], "value": 1, "revision": 1}],
        [{"path": ["a"], "revision": 1}],
        [{"path": ["a"], "value": 1, "removed": True, "revision": 1}],
        [{"path": ["a"], "value": 1}],
        [{"path": ["a"], "value": 1, "revision": True}],
        [{"path": ["a"], "value": 1, "revision": 1, "expires_at": "soon"}],
        [{"path": ["a"], "value": 1, "revision": 1, "colour": "red"}],
        [{"path": ["a"], "value": NAN, "revision": 1}],
        [{"path": ["a"], "value": 1, "revision": 1, "expires_at": NAN}],
    ],
)
def test_what_is_no_overlay(plain: Any) -> None:
    with pytest.raises(ConfigError):
        Overlay.from_plain(plain)


@pytest.mark.parametrize(
    ("value", "plain"), [(3.0, 3), (0.5, 0.5), (-0.0, 0), (1e300, 1e300), (2.0**53, 2.0**53), (INF, INF)]
)
def test_whole_numbers_of_a_struct(value: float, plain: float) -> None:
    found = plain_number(value)
    assert (found, type(found)) == (plain, type(plain))
