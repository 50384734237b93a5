"""Rates. Figures are powers of two where they must be exact."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core import token_bucket
from extproc.core.model import TenantPolicy
from extproc.core.sorted_blocks import iterate
from extproc.core.token_bucket import Bucket, Buckets, check_rate


def test_it_starts_full_fills_at_its_rate_and_no_further() -> None:
    bucket = Bucket("a", rate=4.0, burst=16.0, now=0.0)
    bucket.take(12.0, now=0.0)
    assert [bucket.level_at(t) for t in (0.0, 1.0, 3.0, 99.0)] == [4.0, 8.0, 16.0, 16.0]
    assert bucket.full_at() == 3.0


def test_it_goes_into_debt_and_is_ready_when_it_is_positive() -> None:
    bucket = Bucket("a", rate=4.0, burst=16.0, now=0.0)
    bucket.take(24.0, now=0.0)
    assert bucket.level_at(0.0) == -8.0
    assert bucket.ready_at == math.nextafter(2.0, 3.0)  # at 2.0 it holds 0


def test_an_exactly_empty_one_is_not_ready() -> None:
    bucket = Bucket("a", rate=4.0, burst=16.0, now=1.0)
    bucket.take(16.0, now=1.0)
    assert 1.0 < bucket.ready_at < 1.0001


def test_without_a_burst_one_goes_after_the_other() -> None:
    bucket = Bucket("a", rate=4.0, burst=0.0, now=0.0)
    assert bucket.ready_at == -math.inf
    bucket.take(8.0, now=0.0)
    assert bucket.ready_at == 2.0  # it is full


def test_what_is_given_back_does_not_overfill_it() -> None:
    bucket = Bucket("a", rate=4.0, burst=16.0, now=0.0)
    bucket.take(10.0, now=0.0)
    bucket.take(-10.0, now=2.0)  # 6 + 8 + 10
    assert bucket.level_at(2.0) == 16.0


def test_time_that_goes_backwards_stands_still() -> None:
    bucket = Bucket("a", rate=4.0, burst=16.0, now=10.0)
    bucket.take(8.0, now=10.0)
    bucket.take(4.0, now=5.0)
    assert (bucket.at, bucket.level_at(3.0), bucket.level_at(11.0)) == (10.0, 4.0, 8.0)


def test_another_rate_keeps_what_is_missing() -> None:
    bucket = Bucket("a", rate=4.0, burst=16.0, now=0.0)
    bucket.take(24.0, now=0.0)  # 24 missing
    bucket.reconfigure(rate=8.0, burst=32.0, now=1.0)  # 20 missing of 32
    assert bucket.level_at(1.0) == 12.0
    assert bucket.ready_at == -math.inf
    bucket.reconfigure(rate=2.0, burst=4.0, now=1.0)  # 20 missing of 4
    assert bucket.level_at(1.0) == -16.0
    assert bucket.ready_at == math.nextafter(9.0, 10.0)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    rate=st.integers(1, 16),
    burst=st.integers(0, 64),
    steps=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 100)), min_size=1, max_size=60),
)
def test_no_more_than_burst_and_rate_and_one_charge(rate: int, burst: int, steps: list[tuple[int, int]]) -> None:
    """Over any span of time in which a charge is taken whenever the bucket lets one go."""
    bucket = Bucket("a", float(rate), float(burst), 0.0)
    now, taken = 0.0, []
    for wait, charge in steps:
        now += wait / 4
        if bucket.ready_at <= now:
            bucket.take(float(charge), now)
            taken.append((now, charge))
    for i, (start, _) in enumerate(taken):
        for j in range(i, len(taken)):
            span = taken[i : j + 1]
            most = burst + rate * (taken[j][0] - start) + max(c for _, c in span)
            assert sum(c for _, c in span) <= most + 1e-9


class Told:
    def __init__(self) -> None:
        self.nodes: list[object] = []

    def reconsider(self, node: object) -> None:
        self.nodes.append(node)


def test_members_of_one_path_share_a_bucket_and_are_told() -> None:
    buckets, one, two = Buckets(), Told(), Told()
    policy = TenantPolicy(rate=4.0, rate_burst=16.0)
    first, second = buckets.join("a", policy, "n1", one), buckets.join("a", policy, "n2", two)
    assert first is not None and first is second
    assert buckets.join("b", TenantPolicy(), "n3", one) is None
    buckets.take(first, 20.0)
    assert (one.nodes, two.nodes) == (["n1"], ["n2"])


def test_a_full_bucket_that_nobody_needs_goes() -> None:
    buckets, queue = Buckets(), Told()
    policy = TenantPolicy(rate=4.0, rate_burst=16.0)
    buckets.now = 0.0
    bucket = buckets.join("a", policy, "n", queue)
    assert bucket is not None
    buckets.take(bucket, 8.0)
    buckets.leave(bucket, "n")
    buckets.now = 1.0
    buckets.join("b", policy, "n", queue)
    assert buckets.get("a") is bucket  # it lacks 4
    buckets.now = 2.5
    buckets.join("c", policy, "n", queue)
    assert buckets.get("a") is None


def entries(buckets: Buckets) -> list[str]:
    """Paths of buckets that wait to be full, the first first."""
    return [bucket.path for _, _, bucket in iterate(buckets.listed)]


def leave_in_debt(buckets: Buckets, path: str, amount: float, policy: TenantPolicy) -> Bucket:
    bucket = buckets.join(path, policy, "n", Told())
    assert bucket is not None
    buckets.take(bucket, amount)
    buckets.leave(bucket, "n")
    return bucket


def test_a_bucket_that_comes_and_goes_is_listed_once() -> None:
    """By the time at which it is full now, and not at all while it has members."""
    buckets, policy = Buckets(), TenantPolicy(rate=1.0, rate_burst=16.0)
    buckets.now = 0.0
    leave_in_debt(buckets, "b", 1000.0, policy)
    for _ in range(5_000):
        bucket = leave_in_debt(buckets, "a", 1.0, policy)
        assert buckets.alone == 2
    assert entries(buckets) == ["b", "a"]
    buckets.join("a", policy, "n", Told())
    assert (entries(buckets), buckets.alone) == (["b"], 1)
    buckets.take(bucket, -4_500.0)
    buckets.leave(bucket, "n")
    assert entries(buckets) == ["a", "b"]


def test_debts_that_are_kept_are_bounded_and_the_one_that_is_paid_soonest_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A flood of names that owe little does not make a greater debt forgotten. Those with members do not count."""
    monkeypatch.setattr(token_bucket, "MAX_ALONE", 100)
    buckets, policy = Buckets(), TenantPolicy(rate=1.0)
    buckets.now = 0.0
    for i in range(300):
        buckets.join(f"busy{i}", policy, "n", Told())
    greedy = leave_in_debt(buckets, "greedy", 1e6, policy)
    for i in range(5_000):
        leave_in_debt(buckets, f"x{i}", 10.0 + i % 7, policy)
        assert buckets.alone == min(i + 2, 100)
    assert len(buckets) == 400
    assert buckets.get("greedy") is greedy and greedy.level == -1e6
    leave_in_debt(buckets, "y", 9.0, policy)
    assert buckets.get("y") is None  # it would have been the first to be full


def test_another_rate_changes_which_one_is_full_first() -> None:
    buckets, slow = Buckets(), TenantPolicy(rate=1.0)
    buckets.now = 0.0
    leave_in_debt(buckets, "a", 10.0, slow)
    leave_in_debt(buckets, "b", 20.0, slow)
    leave_in_debt(buckets, "c", 30.0, slow)
    rates = {"a": slow, "b": TenantPolicy(rate=8.0), "c": TenantPolicy()}  # c's bucket is of a rate that is gone
    buckets.change_alone(rates.__getitem__)
    assert entries(buckets) == ["b", "a", "c"]
    buckets.now = 2.5
    buckets.join("d", slow, "n", Told())
    assert sorted(buckets.by_path) == ["a", "c", "d"]


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate of 'a' must be a positive number"):
        check_rate("a", TenantPolicy(rate=rate))


@pytest.mark.parametrize("burst", [-1.0, math.nan, math.inf])
def test_a_burst_that_is_none_is_refused(burst: float) -> None:
    with pytest.raises(ValueError, match="rate_burst of 'a'"):
        check_rate("a", TenantPolicy(rate_burst=burst))
