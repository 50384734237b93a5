"""Workloads of the benchmark in their quick form, and the benchmark's own bookkeeping. The rest is for the command."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.core.headroom import poisson_quantile
from extproc.sim.report import Result, Verdict, medians, run_all
from extproc.sim.shapes import E1
from extproc.sim.workloads import BY_KEY, WORKLOADS, bursts, classes, musts, shares, traces
from extproc.sim.workloads.cells import CELLS, engine, sustainable
from extproc.sim.workloads.lengths import MIXES, means
from extproc.sim.workloads.real import off
from extproc.sim.workloads.workload import Must, Scale, Table

pytestmark = pytest.mark.slow

QUICK = Scale(quick=True)
TRACES = Path(__file__).parents[3] / "shared/traces"


def verdicts(key: str) -> list[Verdict]:
    workload = BY_KEY[key]
    return Result(workload, (1,), (workload.measure(1, QUICK),)).verdicts


@pytest.mark.parametrize("key", ["1", "2", "4"])
def test_what_must_hold_holds_in_the_quick_run(key: str) -> None:
    found = verdicts(key)
    assert len(found) == len(BY_KEY[key].musts)
    assert not [verdict.sentence() for verdict in found if not verdict.ok]


def test_the_baselines_fail_where_the_design_says_so() -> None:
    """Workload 4: 500 requests before a polite one take about 115 s in a queue for all."""
    table = bursts.NOISY.measure(1, QUICK)[""]
    assert table["direct FIFO"]["polite TTFT p50, s"] > 50.0
    assert table["gateway FIFO"]["polite TTFT p50, s"] > 50.0
    assert table["fair"]["polite TTFT p99, s"] < table["direct FIFO"]["polite TTFT p50, s"] / 10
    # The page shows nothing waiting until it is too late.
    assert table["threshold"]["engine waiting max"] > 100
    assert table["fair"]["engine waiting max"] < 30


def test_growth_of_the_page_alone_is_no_substitute_for_first_tokens_and_the_default_is() -> None:
    (rows,) = BY_KEY["answers"].measure(1, QUICK).values()
    relative = {way: row["throughput / exact"] for way, row in rows.items()}
    assert relative["exact"] == 1.0
    assert relative["default"] >= 0.95
    # No more than two steps' worth may be unanswered: 2 * 0.95 * 50 ms / 0.03 ms = 3,167 tokens. Growth shows them
    # answered a second or two later, so less than 3,167 go in a second, of the 15,000 (13.6 requests of 1,104) that the
    # engine could read: a fifth, and more only where a single prompt is larger than that and goes alone.
    assert relative["count"] < 0.5
    assert relative["prompt tokens"] < 0.5


def test_every_workload_of_the_page_is_there() -> None:
    assert [w.key for w in WORKLOADS] == [*(str(i) for i in range(1, 14)), "answers", "real"]
    assert len(BY_KEY) == len(WORKLOADS)
    assert all(w.musts and w.title and w.span and w.seeds >= 1 for w in WORKLOADS)
    assert len(musts()) == sum(len(w.musts) for w in WORKLOADS)
    assert all((must.least is not None) or (must.most is not None) for _, must in musts())
    # No two of a workload are the same.
    for workload in WORKLOADS:
        assert len({(m.case, m.way, m.figure) for m in workload.musts}) == len(workload.musts)


def test_a_must_is_a_closed_interval() -> None:
    must = Must("x", "f", 1.0, 2.0)
    assert [must.holds(v) for v in (0.99, 1.0, 2.0, 2.01, math.nan)] == [False, True, True, False, False]
    assert must.bound == "1 .. 2"
    assert (Must("x", "f", least=1.0).bound, Must("x", "f", most=2.0).bound) == (">= 1", "<= 2")
    assert Must("x", "f", most=1.0).value({"": {"fair": {"f": 3.0}}}) == 3.0
    assert Must("x", "f", most=1.0).value({"": {"fair": {}}}) is None


def test_medians_are_by_figure_and_leave_out_what_is_no_number() -> None:
    tables: list[Table] = [{"": {"fair": {"f": x, "g": y}}} for x, y in ((1.0, math.nan), (5.0, 4.0), (3.0, 2.0))]
    tables.append({"": {"fair": {"f": 9.0}, "other": {"f": 7.0}}})
    # f: 1, 3, 5, 9 -> 4; g: 2, 4 -> 3.
    assert medians(tables) == {"": {"fair": {"f": 4.0, "g": 3.0}, "other": {"f": 7.0}}}


def test_a_result_says_what_falls_short() -> None:
    workload = replace(
        shares.OVERLOAD,
        musts=(Must("low", "f", most=1.0), Must("there", "g", least=0.0), Must("x", "f", 1, case="other")),
    )
    result = Result(workload, (1, 2, 3), tuple({"": {"fair": {"f": x}}} for x in (1.0, 4.0, 2.0)))
    low, there = result.verdicts  # the case "other" was not run
    assert (low.ok, low.value) == (False, 2.0)
    assert low.sentence() == "low: fair: f is 2, must be <= 1"
    assert (there.ok, there.value) == (False, None)
    assert result.as_json()["must_hold"][0] == {
        "about": "low", "case": "", "way": "fair", "figure": "f", "least": None, "most": 1.0, "value": 2.0, "ok": False,
    }  # fmt: skip


def test_a_seed_in_a_process_of_its_own_gives_the_same_result() -> None:
    told: list[str] = []
    here, there = (
        run_all(["9"], 1, QUICK, jobs, lambda result: told.append(result.workload.key))[0] for jobs in (1, 2)
    )
    assert told == ["9", "9"]
    assert here.as_json() == there.as_json()
    assert here.seeds == there.seeds == (1,)
    assert all(verdict.ok for verdict in here.verdicts)


def test_traces_that_are_not_there_are_no_failure() -> None:
    (result,) = run_all(["12"], None, QUICK, 1, lambda _result: None)
    assert result.skipped == "no folder of traces (--traces)"
    assert result.verdicts == []


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not part of the project")
def test_a_trace_is_read() -> None:
    jobs = traces.read(TRACES / "vtc_arena_1500.csv")
    assert len(jobs) == 1500
    assert len({job.tenant for job in jobs}) == 27
    assert (jobs[0].at, jobs[0].prompt, jobs[0].output, jobs[0].tenant) == (0.0, 13, 199, "u05")


def test_tenants_with_less_than_the_median_demand(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens,user,x\n1.0,10,5,a,\n0.5,100,5,b,\n2,0,7,c,\n3,500,1,,\n")
    jobs = traces.read(path)
    # Sorted by time; a prompt has at least one token; who has no name is somebody all the same.
    assert [(job.at, job.tenant, job.prompt) for job in jobs] == [
        (0.5, "b", 100), (1.0, "a", 10), (2.0, "c", 1), (3.0, "nobody", 500),
    ]  # fmt: skip
    # Demands: a 20, b 110, c 15, nobody 502: the median is 65.
    assert traces.small_tenants(jobs) == {"a", "c"}


# -- what the workloads are made of -----------------------------------------------------------------


def test_poisson_quantiles() -> None:
    """From tables: for a mean of 9.5, P(X <= 15) = 0.9665 and P(X <= 16) = 0.9823."""
    assert [poisson_quantile(9.5, p) for p in (0.96, 0.97, 0.98, 0.983)] == [15, 16, 16, 17]
    assert poisson_quantile(0.0, 0.5) == 0


def test_mixes_have_the_means_of_their_traces() -> None:
    """Azure conversation: 1,105 and 265 tokens, code 1,986 and 30; ServeGen large even 645 and 50."""
    for mix, prompt, output in (("256", 256, 256), ("conv", 1105, 265), ("code", 1986, 30), ("sgl", 645, 50)):
        mean_prompt, mean_output, _ = means(mix)
        assert mean_prompt == pytest.approx(prompt, rel=0.03)
        assert mean_output == pytest.approx(output, rel=0.06)
    assert means("256")[2] == 256 + 128
    # Exponential: weighted by how long it runs, E[o * (p + o/2)] / E[o] = 256 + 256.
    assert means("256x")[2] == pytest.approx(512, rel=0.03)
    assert set(MIXES) >= {cell.mix for cell in CELLS}


def test_what_an_engine_sustains() -> None:
    """E1: its slots: 20 * 256 tokens in 256 steps of 34 ms and 20 prompts of 30.72 ms.
    E3 at 150 ms: 20 + (0.225 + 0.03) n = 150 for prompts as long as outputs: 509.8."""
    n, rate = sustainable(E1, "256", 0.15)
    assert (n, rate) == (20, pytest.approx(20 / (256 * 0.034 + 20 * 0.03072)))
    n, rate = sustainable(engine("E3", "256"), "256", 0.15)
    assert (n, rate) == (pytest.approx(130 / 0.255), pytest.approx(130 / 0.255 / (256 * 0.15)))
    # E2: 95 % of 300 * 384 tokens, of which each holds 384 in the mean.
    assert sustainable(engine("E2", "256"), "256", 0.15)[0] == pytest.approx(285, rel=0.01)


def test_how_far_a_value_is_from_two_readings() -> None:
    assert off(5.0, (4.0, 6.0)) == 0.0
    assert off(6.6, (6.0, 4.0)) == pytest.approx(0.1)
    assert off(3.0, (4.0, 6.0)) == pytest.approx(-0.25)


def test_idle_rule_and_headroom_are_changes_of_the_batch_class_alone() -> None:
    from extproc.sim.workloads.workload import a_class, a_pool

    policy = a_pool(a_class(), a_class("batch", 2, headroom=0.03))
    idle, none = classes.IDLE_RULE.change(policy), classes.NO_HEADROOM.change(policy)
    assert (idle.classes[1].idle_only, idle.classes[1].headroom) == (True, None)
    assert (none.classes[1].idle_only, none.classes[1].headroom) == (False, None)
    assert idle.classes[0] == none.classes[0] == policy.classes[0]
