"""Whatever is changed in whatever order, what is in force is what a fresh start on the same files has."""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from revisions_case import Case, data, patch, rollback

from extproc.admin.errors import AdminError
from extproc.config.load import from_data
from extproc.config.model import DEFAULT_CLASSES
from extproc.config.overlay import FieldChange

PARTS: list[dict[str, Any]] = [
    {"tenants": {"acme": {"weight": 3}}},
    {"tenants": {"acme": {"weight": 2, "max_queued": 9}}},
    {"tenants": {"acme": None}},
    {"tenants": {"zeta": {"weight": 5, "default_class": "extra"}}},
    {"tenants": {"zeta": {"default_class": None}}},
    {"tenants": {"zeta": None, "*": {"rate": 100}}},
    {"classes": {"extra": {"rank": 7, "priority": 7_000_000}}},
    {"classes": {"extra": None}},
    {"classes": {"batch": {"gates": {"max_tpot": "80ms"}}}},
    {"classes": {"batch": {"gates": {}}}},
    {"pools": {"llama": {"window": {"stalled_after": None}}}},
    {"pools": {"llama": {"window": {"stalled_after": "1m", "max_tpot": "90ms"}}}},
    {"pools": {"second": {"models": ["x"], "endpoints": ["10.0.0.2:8000"]}}},
    {"pools": {"second": {"aliases": {"y": "x"}}}},
    {"pools": {"second": None}},
    {"on_fault": "reject"},
    {"default_class": "extra"},
    {"default_class": "batch", "on_fault": "pass"},
    {"listen": {"admin": "127.0.0.1:1"}},
    {"tenants": {"acme": {"weight": -1}}},
]
MASKS = [
    [("tenants", "acme")],
    [("tenants", "acme", "weight")],
    [("classes",)],
    [("pools", "llama", "window")],
    [("pools", "second")],
    [("on_fault",), ("default_class",)],
]


def _files() -> list[dict[str, Any]]:
    plain, folded, other, without, bad = (data() for _ in range(5))
    folded["tenants"]["acme"] = {"weight": 3, "max_queued": 9}
    folded["on_fault"] = "reject"
    other["tenants"] = {"*": {"max_queued": 50}, "zeta": {}}
    other["pools"].append({"name": "second", "models": ["z"], "endpoints": ["10.0.0.3:8000"]})
    del without["classes"], without["default_class"]
    bad["default_class"] = "none"
    return [plain, folded, other, without, bad]


FILES = _files()
STEPS = st.one_of(
    st.tuples(st.just("patch"), st.sampled_from(PARTS), st.sampled_from([None, None, 10, 20, 35])),
    st.tuples(st.just("patch"), st.sampled_from(PARTS), st.sampled_from([None, 10, 20])),
    st.tuples(st.just("give back"), st.sampled_from(MASKS), st.sampled_from([None, None, 15])),
    st.tuples(st.just("roll back"), st.integers(1, 12), st.sampled_from([None, None, 25])),
    st.tuples(st.just("wait"), st.integers(1, 30)),
    st.tuples(st.just("file"), st.integers(0, len(FILES) - 1)),
    st.tuples(st.just("restart"), st.none()),
)


class Life:
    """Processes on one folder, one after the other; and what is expected of them."""

    def __init__(self, folder: Path) -> None:
        self.case = Case(folder / "at work")
        self.folder = folder
        self.file = data()  # the last one that was taken
        self.revisions = self.case.open()
        self.known = {self.revisions.revision: self.revisions.data}  # by revision

    async def step(self, step: tuple[Any, ...]) -> None:
        revisions = self.revisions
        before = (revisions.revision, revisions.config)
        try:
            match step:
                case ("patch", change, ttl_s):
                    await patch(revisions, change, ttl_s=ttl_s)
                case ("give back", mask, ttl_s):
                    await patch(revisions, {}, mask=mask, ttl_s=ttl_s)
                case ("roll back", number, ttl_s):
                    await rollback(revisions, number, ttl_s=ttl_s)
                case ("wait", seconds):
                    self.case.clock.now += seconds
                    await revisions.expire()
                case ("file", number):
                    self.case.write(FILES[number])
                    if await revisions.reload("a test"):
                        self.file = FILES[number]
                    else:
                        assert revisions.file_error
                        self.case.write(self.file)  # what it was, so that a start can be compared
                        assert await revisions.reload("a test")
                case ("restart", _):
                    await revisions.close()
                    self.revisions = self.case.open()
                    assert (self.revisions.revision, self.revisions.config) == before
                    await self.revisions.expire()
        except AdminError:
            assert (revisions.revision, revisions.config) == before

    async def check(self) -> None:
        revisions = self.revisions
        assert revisions.config == from_data(revisions.data)
        assert revisions.config == self.case.control.config
        assert revisions.data == revisions.overlay.over(self.file)
        await self.check_history()
        self.check_fresh_start()

    async def check_history(self) -> None:
        """What each revision says to have changed leads from the data before it to those in force."""
        for each in (await self.revisions.list_revisions(None, 100))[::-1]:
            if each.number not in self.known:
                self.known[each.number] = changed(self.known[each.number - 1], each.changes)
        assert named(self.known[self.revisions.revision]) == named(self.revisions.data)

    def check_fresh_start(self) -> None:
        other = self.folder / "fresh"
        shutil.copytree(self.case.folder, other)
        found = Case(other, self.case.clock, begin=False).open()
        assert found.config == self.revisions.config
        assert found.overlay == self.revisions.overlay
        assert found.etag == self.revisions.etag
        found._ledger.store.close()
        shutil.rmtree(other)


def named(content: Mapping[str, Any]) -> dict[str, Any]:
    """Pools by name, the default classes where there are none, and no empty mappings, which changes do not tell from
    nothing."""

    def lean(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        found = {key: lean(each) for key, each in value.items()}
        return {key: each for key, each in found.items() if each != {}}

    pools = content["pools"]
    by_name = pools if isinstance(pools, dict) else {each["name"]: {**each, "name": None} for each in pools}
    result: dict[str, Any] = lean({"classes": DEFAULT_CLASSES, **content, "pools": by_name})
    return result


def changed(content: Mapping[str, Any], changes: tuple[FieldChange, ...]) -> dict[str, Any]:
    """The plainest way to make changes."""
    result = copy.deepcopy(named(content))
    for change in changes:
        node = result
        for name in change.path[:-1]:
            node = node.setdefault(name, {"name": None} if node is result.get("pools") else {})
        if change.has:
            node[change.path[-1]] = change.after
        else:
            assert change.had
            node.pop(change.path[-1], None)
    for name, pool in list(result["pools"].items()):
        if pool == {"name": None}:
            del result["pools"][name]
    return named(result)


def live(steps: list[tuple[Any, ...]]) -> None:
    async def run(folder: Path) -> None:
        life = Life(folder)
        await life.check()
        for step in steps:
            await life.step(step)
            await life.check()
        life.case.clock.now += 1000
        await life.revisions.expire()
        await life.check()
        # No more is in force for a while than what the rest cannot be without.
        assert all(each.error for each in life.revisions.expiries())
        await life.revisions.close()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "at work").mkdir()
        asyncio.run(run(Path(folder)))


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=12))
@pytest.mark.slow
def test_what_is_in_force_is_what_a_fresh_start_has(steps: list[tuple[Any, ...]]) -> None:
    live(steps)


@pytest.mark.slow
@pytest.mark.timeout(600)
@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.lists(STEPS, min_size=3, max_size=20))
def test_over_long_lives(steps: list[tuple[Any, ...]]) -> None:
    live(steps)
