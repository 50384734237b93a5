"""Figures of merit, against sums worked out by hand."""

from __future__ import annotations

import math

import pytest

from extproc.sim.engine import EngineOptions
from extproc.sim.figures import (
    Service,
    Span,
    alone_s,
    capacity,
    fairness,
    fates,
    goodput,
    released_difference,
    retry_after_errors,
    slowdown,
    ttfts,
    waits,
    windows_over,
)
from extproc.sim.jobs import Fate, Job, Record
from extproc.sim.scene import Look
from extproc.sim.virtual import Run
from extproc.sim.ways import FAIR
from extproc.sim.workloads.workload import a_pool

E1 = EngineOptions(max_num_seqs=20)


def served(at: float, tenant: str, released: float, first: float, ended: float, prompt: int = 10, output: int = 11
) -> Record:  # fmt: skip
    return Record(
        f"{tenant}{at}", Job(at, tenant, prompt, output), Fate.SERVED, 0, released=released, first=first, ended=ended
    )


def a_run(*records: Record, looks: list[Look] | None = None) -> Run:
    return Run(FAIR, a_pool(), 100.0, list(records), [looks or []])


def test_capacity_and_service_time_of_the_small_engine() -> None:
    """20 slots at 256/256: a slot's turn is 256 steps of 34 ms and 20 prompts of 256 * 0.12 ms."""
    assert capacity(256, 256, E1) == pytest.approx(20 / (256 * 0.034 + 20 * 256 * 0.00012))
    assert alone_s(Job(0.0, "a", 100, 10), E1) == pytest.approx(0.012 + 10 * 0.0226)


def test_service_is_the_prompt_at_the_first_token_and_the_output_evenly_after_it() -> None:
    """Prompt 10, output 11 at weight 2: 12 at the first token (t = 2), then 20 over ten seconds."""
    service = Service(a_run(served(0.0, "a", 1.0, 2.0, 12.0)))
    assert service.units(Span(0.0, 100.0)) == pytest.approx(32.0)
    assert service.units(Span(0.0, 2.0)) == 0.0
    assert service.units(Span(2.0, 7.0)) == pytest.approx(12.0 + 10.0)
    assert service.units(Span(7.0, 100.0)) == pytest.approx(10.0)
    assert service.by_tenant(Span(7.0, 8.0)) == pytest.approx({"a": 2.0})


def test_what_is_under_way_at_the_end_goes_on_at_the_run_s_pace() -> None:
    """The served one took 1 s a token. The other began at 95: five more tokens by 100."""
    running = Record("b", Job(90.0, "b", 10, 11), released=94.0, first=95.0)
    service = Service(a_run(served(0.0, "a", 1.0, 2.0, 12.0), running))
    assert service.by_tenant(Span(90.0, 100.0))["b"] == pytest.approx(12.0 + 10.0)


def test_difference_is_the_largest_gap_on_the_way() -> None:
    """a: 12 at 0 and 2 a second to 10; b: 12 at 4 and 2 a second to 14. The gap: 12 at 0, 20 just before 4, then 8
    while both run, and 32 - 24 = 8 at 10; b ends at 32: 0."""
    service = Service(a_run(served(0.0, "a", 0.0, 0.0, 10.0), served(0.0, "b", 0.0, 4.0, 14.0)))
    assert service.difference(Span(0.0, 20.0), {"a": 1.0, "b": 1.0}) == pytest.approx(20.0)
    # Counted from 5 s on: a gains nothing on b while both run at 2 a second; then b alone gets 8 from 10 to 14.
    assert service.difference(Span(5.0, 20.0), {"a": 1.0, "b": 1.0}) == pytest.approx(8.0)
    # Twice the weight is half the normalised service: at 4, a has 20/2.
    assert service.difference(Span(0.0, 4.0), {"a": 2.0, "b": 1.0}) == pytest.approx(10.0)


def test_difference_at_release_counts_a_job_whole() -> None:
    """Cost 32 each: a, a, b: 32, 64, 32."""
    done = a_run(served(0.0, "a", 1.0, 2.0, 3.0), served(0.0, "a", 2.0, 3.0, 4.0), served(0.0, "b", 3.0, 4.0, 5.0))
    assert released_difference(done, Span(0.0, 10.0), {"a": 1.0, "b": 1.0}) == pytest.approx(64.0)
    assert released_difference(done, Span(1.5, 10.0), {"a": 1.0, "b": 1.0}) == pytest.approx(32.0)


def test_jain_is_over_service_by_weight() -> None:
    assert fairness({"a": 10.0, "b": 30.0}, {"a": 1.0, "b": 3.0}) == pytest.approx(1.0)
    # (10 + 0)^2 / (2 * 100)
    assert fairness({"a": 10.0}, {"a": 1.0, "b": 1.0}) == pytest.approx(0.5)


def test_waits_of_what_never_began_last_to_the_end_of_the_run() -> None:
    refused = Record("r", Job(50.0, "a", 1, 1), Fate.REFUSED)
    done = a_run(served(0.0, "a", 1.0, 3.0, 4.0), Record("w", Job(60.0, "a", 1, 1)), refused)
    assert ttfts(done, done.records) == [3.0, 40.0]
    assert waits(done, done.records) == [1.0, 40.0]
    assert fates(done.records)[Fate.REFUSED] == 1


def test_slowdown_and_goodput() -> None:
    """Alone: 10 * 0.12 ms + 11 * 22.6 ms = 0.2498 s. Sent at 0, over at 2.498: ten times that."""
    quick = served(0.0, "a", 0.0, 1.0, 2.498)
    late = served(0.0, "a", 0.0, 5.5, 6.0)
    slow = served(0.0, "a", 0.0, 1.0, 1.0 + 10 * 0.151)
    assert slowdown([quick], E1) == pytest.approx(10.0)
    # 1.498 s for ten tokens is 149.8 ms each: one of three is good, in ten seconds.
    assert goodput([quick, late, slow], Span(0.0, 10.0)) == pytest.approx(0.1)
    assert math.isnan(slowdown([], E1))


def test_windows_over_the_limit() -> None:
    """A look a second, ten tokens each; 0.1 s a token, but for 0.3 s in seconds 10 to 14. Over 10 s the mean passes
    0.15 s while more than 2.5 of those five seconds are in the window: 0.1 + 0.2 * k / 10 > 0.15 for k = 3, 4, 5.
    The window that ends at t holds (t - 10, t]: k >= 3 for t = 13 ... 22, of the windows that end at 10 ... 30."""
    looks, total = [], 0.0
    for second in range(31):
        looks.append(Look(float(second), 1, 0, 0.0, total, 10.0 * second, 0.0))
        total += 10 * (0.3 if 10 <= second < 15 else 0.1)
    assert windows_over(a_run(looks=looks), Span(0.0, 40.0), 0.15) == pytest.approx(10 / 21)
    assert windows_over(a_run(looks=looks), Span(0.0, 40.0), 0.35) == 0.0


def test_retry_after_is_measured_against_what_became_of_those_before() -> None:
    """Refused at 10 with Retry-After 15, while the last of its tenant's was released at 30: the truth is 20 s, off by
    a quarter. Another tenant's release says nothing."""
    held = served(5.0, "a", 30.0, 31.0, 40.0)
    other = served(6.0, "b", 12.0, 13.0, 14.0)
    refused = Record("r", Job(10.0, "a", 1, 1), Fate.REFUSED, retry_after=15)
    done = a_run(held, other, refused)
    assert retry_after_errors(done, Span(0.0, 100.0)) == pytest.approx([0.25])
    assert retry_after_errors(done, Span(20.0, 100.0)) == []
