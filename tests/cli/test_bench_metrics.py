"""`fairlane bench metrics`: what it scrapes, its verdicts and exit codes; and its measures, small."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from extproc.cli import bench_metrics
from extproc.cli.bench_metrics import Filled, Scrape, Size, checks_of
from extproc.cli.main import main
from extproc.core.view import view

SMALL = Size(tenants=240, pools=2, endpoints=3)
GOOD = Scrape("text", 10, 6_000, 1_000_000, 50.0, 10.0, 20.0)
MOST = replace(GOOD, top=500, page_bytes=9_000_000, cpu_ms=900.0)  # for comparison, not bound


def test_bounds() -> None:
    assert [check.ok for check in checks_of([GOOD, MOST])] == [True, True]
    for bad, falls in ((replace(GOOD, cpu_ms=50.1), 0), (replace(GOOD, page_bytes=1_000_001), 1)):
        assert [check.ok for check in checks_of([GOOD, bad, MOST])] == [falls != 0, falls != 1]


def test_the_pools_are_filled() -> None:
    """All tenants have come: what is not held runs, or is over."""
    filled = Filled(SMALL, top=10)
    views = [view(scheduler, 1_000.0) for scheduler in filled.schedulers.values()]
    for pool in views:
        assert [cls.name for cls in pool.classes] == ["interactive", "default", "batch"]
        assert len(pool.endpoints) == 3
        assert pool.queued > 0
        assert pool.in_flight > 0
        assert sum(cls.tenants for cls in pool.classes) > 0
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in filled.metrics.registry.collect()
        for sample in family.samples
    }
    released = sum(value for key, value in samples.items() if key[0] == "fairlane_released_requests_total")
    held = sum(value for key, value in samples.items() if key[0] == "fairlane_held_requests")
    assert released + held == 240
    tenants = {key[2] for key in samples if key[0] == "fairlane_tenant_released_requests_total"}
    assert len(tenants) == 11 and "other" in tenants


async def test_a_small_measure() -> None:
    found = await bench_metrics.measured(SMALL, rounds=2)
    assert [(each.format, each.top) for each in found] == [
        ("text", 10), ("OpenMetrics", 10), ("text", 500), ("OpenMetrics", 500),
    ]  # fmt: skip
    for each in found:
        assert each.samples > 300
        assert each.page_bytes > 20_000
        assert each.cpu_ms > 0 and each.loop_ms > 0 and each.late_ms >= 0


@pytest.mark.parametrize(("cpu_ms", "code"), [(49.0, 0), (51.0, 1)])
def test_what_the_command_says(cpu_ms: float, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: Any) -> list[Scrape]:
        return [replace(GOOD, cpu_ms=cpu_ms), MOST]

    monkeypatch.setattr(bench_metrics, "measured", measured)
    file = tmp_path / "figures.json"
    result = CliRunner().invoke(main, ["bench", "metrics", "--quick", "--json", str(file)])
    assert result.exit_code == code
    assert ("FALLS SHORT" in result.output) == bool(code)
    data = json.loads(file.read_text())
    assert data["size"] == {"tenants": 10_000, "pools": 4, "endpoints": 50}
    assert [each["top"] for each in data["scrapes"]] == [10, 500]
    assert data["checks"][0]["ok"] is not bool(code)


def test_where_no_port_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: Any) -> list[Scrape]:
        raise OSError("no port is free")

    monkeypatch.setattr(bench_metrics, "measured", measured)
    result = CliRunner().invoke(main, ["bench", "metrics"])
    assert result.exit_code == 1
    assert "nothing was measured: no port is free" in result.output
