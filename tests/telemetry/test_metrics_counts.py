"""What is counted by: label sets, distributions, and the caps on them."""

from __future__ import annotations

import pytest
from prometheus_client.metrics_core import Metric

from extproc.telemetry.metrics.counts import Budget, Counts, Histogram
from extproc.telemetry.metrics.labels import LONGEST, label


def told(family: Metric) -> dict[tuple[str, ...], float]:
    """(name, values of the labels) -> value, without times of creation."""
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_each_label_set_begins_when_it_is_first_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extproc.telemetry.metrics.counts.time.time", lambda: 50.0)
    counts = Counts("things", "Things", ("pool", "kind"), Budget(100))
    assert told(counts.family()) == {}
    counts.add(("sim", "a"))
    monkeypatch.setattr("extproc.telemetry.metrics.counts.time.time", lambda: 60.0)
    counts.of(("sim", "b")).value += 2.5
    counts.add(("sim", "a"))
    assert told(counts.family()) == {
        ("fairlane_things_total", "sim", "a"): 2,
        ("fairlane_things_total", "sim", "b"): 2.5,
    }
    created = {s.labels["kind"]: s.value for s in counts.family().samples if s.name == "fairlane_things_created"}
    assert created == {"a": 50.0, "b": 60.0}


def test_one_without_labels_begins_at_zero() -> None:
    assert told(Counts("things", "Things", (), Budget(100)).family()) == {("fairlane_things_total",): 0}


def test_a_bound_is_within_its_bucket() -> None:
    histogram = Histogram("wait_seconds", "Wait", (), (0.5, 1), Budget(100))
    for value in (0.0, 0.5, 0.51, 1.0, 1.01, 1e9):
        histogram.add((), value)
    assert told(histogram.family()) == {
        ("fairlane_wait_seconds_bucket", "0.5"): 2,
        ("fairlane_wait_seconds_bucket", "1.0"): 4,
        ("fairlane_wait_seconds_bucket", "+Inf"): 6,
        ("fairlane_wait_seconds_count",): 6,
        ("fairlane_wait_seconds_sum",): pytest.approx(3.02 + 1e9),
    }


def test_values_beyond_the_most_are_counted_together() -> None:
    counts = Counts("told", "Told", ("class", "priority"), Budget(100), most=2)
    for priority in (1, 2, 3, 4, 1):
        counts.add(("a", str(priority)))
    counts.add(("b", "9"))  # each class has its own
    assert told(counts.family()) == {
        ("fairlane_told_total", "a", "1"): 2,
        ("fairlane_told_total", "a", "2"): 1,
        ("fairlane_told_total", "a", "other"): 2,
        ("fairlane_told_total", "b", "9"): 1,
    }


def test_the_cap_leaves_out_what_comes_late_and_goes_on_counting_the_rest() -> None:
    budget = Budget(2 + 6)  # a count has its time of creation too; a histogram of two buckets six samples
    counts = Counts("things", "Things", ("kind",), budget)
    histogram = Histogram("wait_seconds", "Wait", ("kind",), (0.5, 1), budget)
    counts.add(("a",))
    histogram.add(("a",), 0.1)
    assert budget.left_out == 0
    counts.add(("b",))
    histogram.add(("b",), 0.1)
    counts.add(("a",))
    assert budget.left_out == 2
    assert told(counts.family()) == {("fairlane_things_total", "a"): 2}
    assert {key[1] for key in told(histogram.family())} == {"a"}


def test_a_budget_that_is_given_back_is_there_again() -> None:
    budget = Budget(8)
    assert budget.take(8)
    assert not budget.take(1)
    budget.give_back(8)
    assert budget.take(1)
    assert budget.left_out == 1


def test_a_label_stays_as_it_is_where_it_can() -> None:
    for text in ("tenant-a", 'a "quoted" \\ one', "größe 😀", "a" * LONGEST, ""):
        assert label(text) == text


def test_a_label_is_cut_and_mended_and_two_stay_apart() -> None:
    assert label("a\nb\x00c\ud800") != label("a\rb\x01c\ud801")
    assert label("x" * 10_000) != label("x" * 10_001)
    for text in ("a\nb\x00c\ud800", "x" * 10_000, "\u202e" * 500, "😀" * 200):
        assert len(label(text)) <= LONGEST
        assert label(text).isprintable() or "\ufffd" in label(text)
        label(text).encode()
    # `printf 'a\nb' | sha256sum` begins so
    assert label("a\nb") == "a\ufffdb~7e18f737"
