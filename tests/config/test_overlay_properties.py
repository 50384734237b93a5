"""The overlay against a merge written without it, and what must hold for any history of changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from overlay_case import FILE, PATCHES, PATHS, change

from extproc.config.load import ConfigError
from extproc.config.overlay import Overlay, Path, diff

RUN = settings(derandomize=True, deadline=None, max_examples=60, phases=(Phase.generate, Phase.shrink))
DEFAULT_CLASSES: dict[str, Any] = {
    "interactive": {"rank": 0, "priority": 0},
    "default": {"rank": 1, "priority": 1_000_000, "queue_timeout": "5m"},
    "batch": {"rank": 2, "priority": 2_000_000, "queue_timeout": "3500s", "max_waiting": 0, "min_share": 0.02},
}
NEEDED: dict[str, set[str]] = {"pools": {"models", "endpoints"}, "classes": {"rank", "priority"}, "tenants": set()}
OTHER_FILE: dict[str, Any] = {
    "pools": [{"name": "llama", "models": ["m"], "endpoints": ["127.0.0.1:1"], "window": {"start": 2}}],
    "tenants": {"acme.com": {"weight": 2}, "new": {"rate": 1}},
    "on_fault": "reject",
}
EXPIRIES = st.none() | st.sampled_from([10.0, 20.0, 30.0])
CHANGES = st.lists(st.tuples(PATCHES, st.none() | st.lists(PATHS, max_size=3), EXPIRIES), max_size=6)


class _RefusedError(Exception):
    pass


def by_name(data: dict[str, Any]) -> dict[str, Any]:
    tree = copy.deepcopy({"classes": DEFAULT_CLASSES, **data})
    tree["pools"] = {pool.pop("name"): pool for pool in tree["pools"]}
    return tree


def merged(tree: Any, patch: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, Any]:
    """RFC 7396 with the differences that the overlay's docstring tells, written as that RFC has it."""
    result = dict(tree) if isinstance(tree, dict) else {}
    named = path in (("tenants",), ("classes",), ("pools",)) or (path[:1] == ("pools",) and path[2:] == ("aliases",))
    for name, value in patch.items():
        if value is None and named:
            if name not in result:
                raise _RefusedError
            del result[name]
        elif isinstance(value, dict):
            if len(path) == 1 and named and name not in result and not NEEDED[path[0]] <= value.keys():
                raise _RefusedError
            result[name] = merged(result.get(name), value, (*path, name))
        else:
            result[name] = value
    return result


def history(changes: list[tuple[dict[str, Any], list[Path] | None, float | None]]) -> Overlay:
    overlay = Overlay()
    for revision, (patch, mask, expires_at) in enumerate(changes, 1):
        try:
            overlay = change(overlay, patch, mask, revision=revision, expires_at=expires_at)
        except ConfigError:
            continue
    return overlay


@RUN
@given(CHANGES, PATCHES, EXPIRIES)
def test_a_patch_is_a_merge(changes: Any, patch: dict[str, Any], expires_at: float | None) -> None:
    overlay = history(changes)
    try:
        expected = merged(by_name(overlay.over(FILE)), patch)
    except _RefusedError:
        with pytest.raises(ConfigError):
            change(overlay, patch, expires_at=expires_at)
        return
    data = change(overlay, patch, expires_at=expires_at).over(FILE)
    assert by_name(data) == expected
    found = diff(overlay.over(FILE), data)
    assert bool(found) == (by_name(overlay.over(FILE)) != expected)


@RUN
@given(CHANGES, PATCHES, st.none() | st.lists(PATHS, max_size=3))
def test_a_change_for_a_while_undoes_itself(changes: Any, patch: dict[str, Any], mask: list[Path] | None) -> None:
    overlay = history(changes)
    for expires_at in (5.0, 10.0, 15.0, 30.0, 35.0):
        try:
            changed = change(overlay, patch, mask, revision=9, expires_at=expires_at)
        except ConfigError:
            return
        for now in (expires_at, 20.0, 30.0, 40.0):
            if now >= expires_at:
                assert changed.expired(now)[0].over(FILE) == overlay.expired(now)[0].over(FILE)


@RUN
@given(CHANGES)
def test_the_order_of_expiry_does_not_matter(changes: Any) -> None:
    overlay = history(changes)
    at_once, over = overlay.expired(30.0)
    by_steps = overlay.expired(10.0)[0].expired(20.0)[0].expired(30.0)[0]
    assert at_once == by_steps == overlay.permanent()
    assert len(over) + len(at_once.settings) == len(overlay.settings)
    assert overlay.next_expiry == min((s.expires_at for s in over if s.expires_at is not None), default=None)


@RUN
@given(CHANGES)
def test_permanent_settings_are_bounded_by_their_paths(changes: Any) -> None:
    paths = [setting.path for setting in history(changes).settings if setting.expires_at is None]
    assert len(set(paths)) == len(paths)
    ahead: set[Path] = set()
    for path in paths:  # and none is hidden by a later one
        assert not any(earlier[: len(path)] == path for earlier in ahead)
        ahead.add(path)


@RUN
@given(CHANGES, st.sampled_from([FILE, OTHER_FILE]))
def test_folding_changes_nothing_that_is_in_force(changes: Any, data: dict[str, Any]) -> None:
    overlay = history(changes)
    folded = overlay.folded(data)
    assert folded.folded(data) == folded
    for now in (0.0, 10.0, 20.0, 30.0):
        assert by_name(folded.expired(now)[0].over(data)) == by_name(overlay.expired(now)[0].over(data))


@RUN
@given(CHANGES, PATHS)
def test_giving_back_drops_what_is_at_and_below_a_path_and_nothing_else(changes: Any, path: Path) -> None:
    overlay = history(changes)
    try:
        left = change(overlay, {}, [path])
    except ConfigError:  # a name that neither the file nor the overlay has
        assert not any(setting.path[: len(path)] == path for setting in overlay.settings)
        return
    kept = Overlay(tuple(s for s in overlay.settings if s.path[: len(path)] != path))
    assert left == kept.folded(FILE)


@pytest.mark.slow
@RUN
@given(CHANGES, PATCHES)
def test_nothing_that_is_given_is_written_to(changes: Any, patch: dict[str, Any]) -> None:
    data, given_patch = copy.deepcopy(FILE), copy.deepcopy(patch)
    overlay = history(changes)
    before = copy.deepcopy(overlay)
    for expires_at in (None, 10.0):
        try:
            changed = overlay.patched(patch, None, data, revision=9, expires_at=expires_at)
        except ConfigError:
            continue
        assert changed.over(data) == changed.over(data)
    assert (data, patch, overlay) == (FILE, given_patch, before)


@RUN
@given(CHANGES)
def test_an_overlay_as_json(changes: Any) -> None:
    overlay = history(changes)
    assert Overlay.from_plain(json.loads(json.dumps(overlay.to_plain(), allow_nan=False))) == overlay


def test_parts_that_yaml_shares_are_changed_apart() -> None:
    window: dict[str, Any] = {"start": 8}
    shared = {"pools": [{"name": "a", "window": window}, {"name": "b", "window": window}]}
    overlay = change(Overlay(), {"pools": {"a": {"window": {"start": 3}}}}, data=shared)
    assert [pool["window"]["start"] for pool in overlay.over(shared)["pools"]] == [3, 8]
