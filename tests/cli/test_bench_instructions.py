"""`fairlane bench wire --only instructions`: what is made of the counts, what is said where nothing can be counted; and
all of it, small, with Envoy and valgrind."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import bench_wire, wire_instructions
from extproc.cli.bench_wire import checks_of
from extproc.cli.main import main
from extproc.cli.stack import StackError
from extproc.cli.wire_instructions import ROWS, UNTRACED, Counted, Instructions, instructions, why_not
from extproc.cli.wire_measures import Cpu, Scale
from extproc.cli.wire_telemetry import ALL, CONTROL, OFF, SCRAPED, SHIPPED, TRACED, Looked

ALL_BOUND = "instructions for a request, all telemetry / none"
APART_BOUND = "counts of two processes without any are apart by"


def counted(untraced: float = 1_040.0, control: float = 1_000.0, scrape: float = 15_000.0) -> Instructions:
    """Telemetry off costs 1,000 for each request and 5,000 each second: 1,010 at 500 requests a second."""
    rows = {
        OFF: Counted([1_000.0], [5_000.0], [1.0]),
        CONTROL: Counted([control], [5_000.0], [1.0]),
        SHIPPED: Counted([1_030.0], [5_000.0], [scrape]),
        UNTRACED: Counted([untraced], [7_500.0], [scrape]),
        TRACED: Counted([untraced + 500.0], [9_000.0], [scrape]),
    }
    return Instructions(rows, rate=500.0, sample=0.01)


def failing(found: Instructions) -> set[str]:
    return {check.what for check in checks_of({"instructions": found}) if not check.ok}


def test_what_is_done_once_a_second_is_spread_over_the_rate() -> None:
    assert counted().ratio(SHIPPED) == pytest.approx(1_040 / 1_010)
    assert counted().ratio(UNTRACED) == pytest.approx(1_055 / 1_010)


def test_all_of_it_has_the_shipped_share_of_spans_and_a_scrape_each_15_s() -> None:
    # 1,040 + 0.01 * 500, and (7,500 + 15,000 / 15) / 500
    assert counted().all_of_it == pytest.approx((1_045 + 17) / 1_010)


def test_medians_of_the_launches_are_compared() -> None:
    found = counted()
    found.rows[SHIPPED] = Counted([1_030.0, 9_000.0, 1_030.0], [5_000.0, 5_000.0, 0.0], [1.0])
    assert found.ratio(SHIPPED) == pytest.approx(1_040 / 1_010)


def test_the_bound() -> None:
    assert failing(counted(untraced=1_035.0)) == set()  # 1,057 / 1,010 = 1.047
    assert failing(counted(untraced=1_040.0)) == {ALL_BOUND}  # 1.051
    assert failing(counted(untraced=1_035.0, scrape=45_000.0)) == {ALL_BOUND}  # four more for a request: 1.050495


def test_two_without_telemetry_must_be_alike() -> None:
    assert failing(counted(untraced=1_000.0, control=1_010.0)) == set()  # 1,010 and 1,020: 0.99 %
    assert failing(counted(untraced=1_000.0, control=1_012.0)) == {APART_BOUND}  # 1.2 %


def test_from_which_rate_on_it_holds() -> None:
    # 8,500 - 1.05 * 5,000 a second are to be paid from 1.05 * 1,000 - 1,045 for each request: 3,250 / 5
    assert counted().rate_for(1.05) == pytest.approx(650.0)
    assert counted(untraced=1_045.0).rate_for(1.05) is None
    assert Instructions({name: Counted([1.0], [1.0], [0.0]) for name in ROWS}).rate_for(1.05) == 0.0


def test_where_instructions_are_counted_cpu_time_decides_nothing() -> None:
    looked: Any = Looked({}, [])  # of which nothing could be worked out
    assert [check.what for check in checks_of({"telemetry": looked, "instructions": counted()})] == [
        ALL_BOUND, APART_BOUND,
    ]  # fmt: skip


# -- where it cannot be done -------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *programs: str) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None if name in programs else f"/usr/bin/{name}")


def test_without_valgrind_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "valgrind", "callgrind_control")
    reason = why_not()
    assert reason is not None
    assert "there is no valgrind and no callgrind_control" in reason
    assert "apt-get install valgrind" in reason
    without(monkeypatch)
    assert why_not() is None


def test_on_another_system_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "on Linux only" in (why_not() or "")


async def test_nothing_is_started_where_it_cannot_be_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    without(monkeypatch, "valgrind")
    with pytest.raises(StackError, match="there is no valgrind"):
        await instructions(tmp_path, Scale(), lambda _: None)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240 - there is nothing else to do


def found_in(monkeypatch: pytest.MonkeyPatch, found: object) -> None:
    async def measure(*_: object) -> object:
        return found

    monkeypatch.setitem(bench_wire.MEASURES, "telemetry", measure)


def cpu_times(all_ms: float) -> Looked:
    rows = {OFF: Cpu([1.0]), CONTROL: Cpu([1.0]), ALL: Cpu([all_ms]), SCRAPED: Cpu([all_ms])}
    return Looked(rows, scraped_s=[1.0])


@pytest.mark.parametrize(("all_ms", "code"), [(1.04, 0), (1.06, 1)])
def test_without_valgrind_cpu_time_decides(monkeypatch: pytest.MonkeyPatch, all_ms: float, code: int) -> None:
    without(monkeypatch, "valgrind")
    found_in(monkeypatch, cpu_times(all_ms))
    result = CliRunner().invoke(main, ["bench", "wire", "--only", "telemetry", "--only", "instructions"])
    assert result.exit_code == code, result.output
    assert "left out: instructions cannot be counted: there is no valgrind" in result.output
    assert "CPU for a request, all telemetry / none" in result.output


def test_alone_and_without_valgrind_nothing_could_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "valgrind")
    result = CliRunner().invoke(main, ["bench", "wire", "--only", "instructions"])
    assert result.exit_code == 1
    assert "there is no valgrind" in result.output


def test_the_figures_are_shown_and_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def measure(*_: object) -> Instructions:
        return counted(untraced=1_035.0)

    without(monkeypatch)
    monkeypatch.setitem(bench_wire.MEASURES, "instructions", measure)
    path = tmp_path / "instructions.json"
    result = CliRunner().invoke(main, ["bench", "wire", "--only", "instructions", "--json", str(path)])
    assert result.exit_code == 0, result.output
    written = json.loads(path.read_text())
    assert written["ok"] is True
    assert written["instructions"]["rate"] == 500.0
    assert written["instructions"]["rows"][SHIPPED]["request"] == [1_030.0]
    told = " ".join(result.output.split())  # lines are wrapped
    assert "1% of the requests traced) / off: 1.047; within 1.05 from 325 requests a second on" in told


# -- with Envoy and valgrind -------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(1_800)
async def test_instructions_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setattr(wire_instructions, "ROWS", (OFF, TRACED))
    found = await instructions(
        tmp_path, Scale(counted_launches=1, counted_rounds=2, counted=20, counted_s=1.0), lambda _: None
    )
    off, traced = found.rows[OFF], found.rows[TRACED]
    assert len(off.request) == len(traced.request) == 2
    assert 300_000 < off.request_median < 3_000_000
    # Two spans take more than half of what all else takes.
    assert traced.request_median > 1.5 * off.request_median
    assert off.second_median > 0
    assert traced.scrape_median > 1_000_000
