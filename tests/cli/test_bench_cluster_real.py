"""`fairlane bench cluster` with real processes: its bounds, what it shows, and a small run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli import bench_cluster_table
from extproc.cli.bench_cluster import cluster
from extproc.cli.bench_cluster_real import Away, Cost, Costs, Exchanges, Result, Scale, Shares, real
from extproc.cli.bench_cluster_table import checks
from extproc.cli.cluster_rig import Fill
from extproc.cli.stack import StackError

FULL = Fill(waiting_max=9, waiting_999=3, used=0.99)
EXCHANGES = Exchanges(per_replica_s=9.9, bytes_in=800, bytes_out=660, store_ms=0.3, service_ms=1.5)
NO_STORE = shutil.which("redis-server") is None and shutil.which("valkey-server") is None


def result() -> Result:
    """In which each bound just holds, by the median of its rounds."""
    single = Shares(ratio=[4.0, 4.0, 4.0], jain=[1.0] * 3, waiting_max=[3], waiting_999=[3], tokens_s=[1.0] * 3)
    single.used = [1.0, 0.5, 0.3]
    shared = Shares(
        ratio=[4.19, 9.0, 1.0],
        jain=[0.98, 0.1, 1.0],
        waiting_max=[5, 40],
        waiting_999=[5, 40, 1],
        tokens_s=[1.0] * 3,
        used=[0.98, 0.4, 0.4],
        returned_s=[3.5, 5.0],
        away=Away(0.9, Fill(waiting_max=30, waiting_999=5, used=0.9)),
    )
    costs = Costs(Cost([1.0, 2.0]), Cost([2.0, 2.0]), Cost([1.0, 2.0]), Cost([1.09, 2.18]), EXCHANGES)
    return Result({1: single, 2: shared}, {2: costs})


def test_bounds_that_hold_and_one_process_has_none() -> None:
    found = list(checks(result()))
    assert [check.what for check in found if not check.ok] == []
    assert len(found) == 9


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"ratio": [4.21] * 3}, "weights 4 : 1 at 2 replicas"),
        ({"ratio": [3.79] * 3}, "weights 4 : 1 at 2 replicas"),
        ({"jain": [0.979] * 3}, "Jain's index, 2 replicas"),
        ({"waiting_999": [6]}, "waiting in the engine, 99.9 %, 2"),
        ({"used": [0.97, 0.48, 0.4]}, "slots used, 2 / one"),
        ({"returned_s": [1.0, 5.1]}, "share back after kill -9, 2, s"),
        ({"away": Away(0.89, FULL)}, "slots used without the store / with it, 2"),
        ({"away": Away(1.0, Fill(6, 6, 1.0))}, "waiting meanwhile, 99.9 %, 2"),
    ],
)
def test_bounds_of_shares(changed: dict[str, object], what: str) -> None:
    made = result()
    for name, value in changed.items():
        setattr(made.shares[2], name, value)
    assert [check.what for check in checks(made) if not check.ok] == [what]


def test_bounds_of_cost_are_ratios_within_a_round() -> None:
    made = result()
    made.costs[2].single.ms = [1.0, 1.9]  # 1.09 and 1.15
    assert [check.what for check in checks(made) if not check.ok] == ["CPU for a request, 2 / one at the same rate"]
    assert made.costs[2].to_part == pytest.approx((0.545 + 1.09) / 2)
    assert made.costs[2].to_apart == pytest.approx(1.09)


def test_figures_and_exit_code_0_when_all_bounds_hold(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def measured(_directory: Path, scale: Scale, _tell: object) -> Result:
        assert scale == bench_cluster_table.QUICK
        return result()

    monkeypatch.setattr(bench_cluster_table, "real", measured)
    file = tmp_path / "cluster.json"
    shown = CliRunner().invoke(cluster, ["--quick", "--json", str(file)])
    assert shown.exit_code == 0, shown.output
    assert "FALLS SHORT" not in shown.output
    assert "2, shared" in shown.output
    written = json.loads(file.read_text())
    assert written["ok"] is True
    assert written["shares"]["2"]["away"]["engine"]["waiting_999"] == 5
    assert written["costs"]["2"]["exchanges"]["bytes_in"] == 800


def test_exit_code_1_when_a_bound_falls_short(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: object) -> Result:
        made = result()
        made.shares[2].jain = [0.5]
        return made

    monkeypatch.setattr(bench_cluster_table, "real", measured)
    shown = CliRunner().invoke(cluster, [])
    assert shown.exit_code == 1
    assert "FALLS SHORT" in shown.output


def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: object) -> Result:
        raise StackError("there is no redis-server")

    monkeypatch.setattr(bench_cluster_table, "real", measured)
    shown = CliRunner().invoke(cluster, [])
    assert shown.exit_code == 1
    assert "there is no redis-server" in shown.output


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.skipif(NO_STORE, reason="no redis-server here (apt install redis-server)")
async def test_a_small_run(tmp_path: Path) -> None:
    """Every figure is there, and what must be so on any machine is so."""
    scale = Scale(
        counts=(2,), rounds=1, warm_s=1.0, window_s=2.0, kills=0, away_s=2.0, rounds_of_cost=2, cost_s=1.0, rate=40.0,
        busy_s=2.0,
    )  # fmt: skip
    said: list[str] = []
    found = await real(tmp_path, scale, said.append)
    assert found.shares[1].ratio[0] == pytest.approx(4, rel=0.2)
    assert found.shares[2].ratio[0] > 2  # without word of each other it would be 1
    assert found.shares[2].away is not None
    costs = found.costs[2]
    assert all(len(each.ms) == 1 and each.ms[0] > 0 for each in (costs.single, costs.apart, costs.shared))
    assert costs.exchanges is not None
    assert costs.exchanges.per_replica_s > 1
    assert costs.exchanges.bytes_in > 100
    assert said
