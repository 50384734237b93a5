"""`fairlane bench fairness`: what it prints and writes, and its exit code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from click.testing import CliRunner

from extproc.cli.main import main
from extproc.sim import report
from extproc.sim.workloads.workload import Must, Scale, Table, Workload

pytestmark = pytest.mark.slow


def fake(value: float) -> Workload:
    """Takes no time; the same value for each seed, plus its number."""

    def measure(seed: int, scale: Scale) -> Table:
        figures = {"ratio": value + seed, "quick": float(scale.quick), "nothing": float("nan")}
        return {"": {"direct FIFO": {"ratio": 9.0}, "fair": figures}}

    return Workload("1", "a fake", "all of it", measure, (Must("ratio at most 3", "ratio", most=3.0),))


def bench(*args: str, workload: Workload | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    if workload is not None:
        monkeypatch.setitem(report.BY_KEY, "1", workload)
    return CliRunner().invoke(main, ["bench", "fairness", "--workload", "1", *args])


def test_a_table_and_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench("--seeds", "3", workload=fake(1.0), monkeypatch=monkeypatch)  # 2, 3, 4: the median is 3
    assert result.exit_code == 0, result.output
    assert "Workload 1: a fake" in result.output
    assert "all of it; medians of 3 seeds" in result.output
    row = next(line for line in result.output.splitlines() if "ratio" in line and "│" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == ["ratio", "9", "3"]
    assert "holds        ratio at most 3: fair: ratio is 3, must be <= 3" in result.output
    assert "1 of 1 hold" in result.output


def test_exit_code_1_names_what_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    result = bench("--seeds", "1", workload=fake(2.5), monkeypatch=monkeypatch)
    assert result.exit_code == 1
    assert "Falls short: workload 1: ratio at most 3: fair: ratio is 3.5, must be <= 3" in result.output
    assert "0 of 1 hold" in result.output


def test_seeds_default_to_the_workload_s_own_and_to_one_when_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "medians of 5 seeds" in bench(workload=fake(0.0), monkeypatch=monkeypatch).output
    quick = bench("--quick", workload=fake(0.0), monkeypatch=monkeypatch).output
    assert "medians of 1 seed" in quick
    assert "medians of 1 seeds" not in quick


def test_json_has_everything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    bench("--seeds", "2", "--json", str(path), workload=fake(1.0), monkeypatch=monkeypatch)
    data = orjson.loads(path.read_bytes())
    assert data["command"].split()[0] == "fairlane"
    assert data["ok"] is True
    assert {"fairlane", "python", "seconds", "quick", "workloads"} <= set(data)
    (workload,) = data["workloads"]
    assert workload["seeds"] == [1, 2]
    assert [table[""]["fair"]["ratio"] for table in workload["by_seed"]] == [2.0, 3.0]
    assert workload["medians"][""]["fair"] == {"ratio": 2.5, "quick": 0.0, "nothing": None}
    assert workload["must_hold"][0]["ok"] is True
    assert workload["must_hold"][0]["most"] == 3.0


def test_a_real_one_through_the_command() -> None:
    result = CliRunner().invoke(main, ["bench", "fairness", "--workload", "9", "--quick"])
    assert result.exit_code == 0, result.output
    assert "priority inversion" in result.output


def test_a_workload_that_cannot_be_run_here_says_why(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        main, ["bench", "fairness", "--workload", "12", "--quick", "--traces", str(tmp_path / "none")]
    )
    assert result.exit_code == 0
    assert "Workload 12, traces at twice the capacity: skipped, no folder of traces" in result.output


def test_unknown_workloads_are_refused() -> None:
    result = CliRunner().invoke(main, ["bench", "fairness", "--workload", "99"])
    assert result.exit_code == 2
    assert "'99' is not one of" in result.output


def test_help_lists_the_benchmarks() -> None:
    result = CliRunner().invoke(main, ["bench", "--help"])
    assert result.exit_code == 0
    assert "fairness" in result.output
