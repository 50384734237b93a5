"""`fairlane bench admin`: its verdicts and exit codes, its changes by chance, and the whole of it, small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from extproc.cli import bench_admin
from extproc.cli.admin_changes import Changes
from extproc.cli.admin_measures import Storm, Turned, Watched
from extproc.cli.bench_admin import Figures, checks_of
from extproc.cli.main import main
from extproc.cli.stack import StackError
from extproc.config.load import ConfigError, FileData, from_data
from extproc.config.overlay import Overlay
from extproc.config.restart import needs_restart

TURNED = Turned("a knob", 8, 5.0, 10.0, 40.0, 20.0, 60.0)
NONE = Watched(0, 1.0, 1_000, 1.0, 0.5, 2.0, 8.0, 0.0)
STORM = Storm(10, 10, 500, {"200": 500}, 0, 0, 0, 3.0, 5.0)
GOOD = Figures([TURNED], STORM, [NONE, replace(NONE, watchers=50, cpu_ms=1.05, wait_ms=0.6)])


def test_bounds() -> None:
    assert all(check.ok for check in checks_of(GOOD))
    assert len(checks_of(replace(GOOD, storm=None))) == 3


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, turned=[TURNED, replace(TURNED, first_median=100.5)]),
        replace(GOOD, watched=[NONE, replace(NONE, cpu_ms=1.2)]),
        replace(GOOD, watched=[NONE, replace(NONE, wait_ms=1.7)]),
        replace(GOOD, storm=replace(STORM, lost=1)),
        replace(GOOD, storm=replace(STORM, twice=1)),
        replace(GOOD, storm=replace(STORM, faults=1)),
        replace(GOOD, storm=replace(STORM, bad=9)),
    ],
)
def test_what_falls_short(bad: Figures) -> None:
    assert [check.ok for check in checks_of(bad)].count(False) == 1


@pytest.mark.parametrize(("figures", "code"), [(GOOD, 0), (replace(GOOD, storm=replace(STORM, lost=1)), 1)])
def test_exit_codes(figures: Figures, code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def measured(*_: Any) -> Figures:
        return figures

    monkeypatch.setattr(bench_admin, "_measured", measured)
    done = CliRunner().invoke(main, ["bench", "admin", "--json", str(tmp_path / "figures.json")])
    assert done.exit_code == code
    written = json.loads((tmp_path / "figures.json").read_text(encoding="utf-8"))
    assert written["turned"][0]["first_median"] == 10.0
    assert len(written["checks"]) == 5


def test_where_nothing_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: Any) -> Figures:
        raise StackError("envoy ended while starting")

    monkeypatch.setattr(bench_admin, "_measured", measured)
    done = CliRunner().invoke(main, ["bench", "admin"])
    assert done.exit_code == 1
    assert "nothing was measured: envoy ended while starting" in done.output


def test_changes_by_chance() -> None:
    """Good ones can be made one after the other, and bad ones at any time are none."""
    shipped = yaml.safe_load((Path(__file__).parents[2] / "fairlane.yaml").read_text(encoding="utf-8"))
    endpoints = ["127.0.0.1:8001", "127.0.0.1:8002"]
    changes = Changes(3, "sim", endpoints)
    data = FileData.of(shipped).data
    began, overlay = from_data(data), Overlay()
    kinds = set()
    for revision in range(1, 201):
        good = changes.good()
        kinds.update(good)
        overlay = overlay.patched(good, None, data, revision=revision, expires_at=None)
        now = from_data(overlay.over(data))
        assert not needs_restart(began, now), good
        bad = changes.bad()
        with pytest.raises(ConfigError):
            other = from_data(overlay.patched(bad, None, data, revision=revision, expires_at=None).over(data))
            if faults := needs_restart(now, other, began):
                raise ConfigError("needs a restart", faults)
    assert kinds >= {"classes", "tenants", "pools"}


@pytest.mark.slow
def test_the_whole_of_it(tmp_path: Path) -> None:
    """Real parts, few repeats. Bounds are not looked at: the machine may be busy."""
    file = tmp_path / "figures.json"
    few = ["--changes", "10", "--repeats", "1", "--rounds", "1", "--round-s", "1"]
    done = CliRunner().invoke(main, ["bench", "admin", *few, "--json", str(file)])
    assert done.exit_code in (0, 1), done.output
    figures = json.loads(file.read_text(encoding="utf-8"))
    storm = figures["storm"]
    assert (storm["good"], storm["bad"], storm["lost"], storm["twice"], storm["faults"]) == (10, 10, 0, 0, 0)
    assert len(figures["turned"]) >= 10
    assert [each["watchers"] for each in figures["watched"]] == [0, 50, 50]
