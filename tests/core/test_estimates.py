"""What a request is thought to cost, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.estimates import Estimator


def learn(estimator: Estimator, tenant: str = "t", cls: str = "c", *, prompt: int | None = None,
          output: int | None = None, body_bytes: int = 400, guess: float = 100.0, n: int = 1) -> None:  # fmt: skip
    estimator.observe(tenant, cls, body_bytes, guess, prompt, output, n)


def test_before_anything_was_seen() -> None:
    estimator = Estimator()
    assert estimator.prompt_tokens("t", 4000) == 1000.0  # four bytes a token
    assert estimator.output_tokens("t", "c", 1000.0, None, 1) == 256.0
    assert estimator.prompt_tokens("t", 0) == 1.0  # nothing is free


def test_never_more_than_the_client_s_limit_and_times_the_choices() -> None:
    estimator = Estimator()
    assert estimator.output_tokens("t", "c", 1000.0, 100, 1) == 100.0
    assert estimator.output_tokens("t", "c", 1000.0, 100, 4) == 400.0
    assert estimator.output_tokens("t", "c", 1000.0, 10**9, 1) == 256.0


def test_one_reading_weighs_a_fifth_at_each_level() -> None:
    """n/(n + 4) with n = 1: pool 0.2*56 + 0.8*256 = 216, class 184, tenant 158.4, bucket 137.92."""
    estimator = Estimator()
    learn(estimator, output=56)
    assert estimator.output_tokens("t", "c", 100.0, None, 1) == pytest.approx(137.92)
    assert estimator.output_tokens("t", "c", 1000.0, None, 1) == pytest.approx(158.4)  # another bucket
    assert estimator.output_tokens("u", "c", 100.0, None, 1) == pytest.approx(184.0)  # another tenant
    assert estimator.output_tokens("u", "d", 100.0, None, 1) == pytest.approx(216.0)  # another class too


def test_buckets_are_powers_of_two_of_the_prompt_guessed_at_arrival() -> None:
    estimator = Estimator()
    learn(estimator, output=56, guess=64.0)
    in_bucket, outside = 137.92, 158.4
    for prompt, expected in ((63.9, outside), (64.0, in_bucket), (127.9, in_bucket), (128.0, outside)):
        assert estimator.output_tokens("t", "c", prompt, None, 1) == pytest.approx(expected)


def test_outputs_are_learnt_by_choice() -> None:
    once, four = Estimator(), Estimator()
    learn(once, output=56)
    learn(four, output=224, n=4)
    assert four.output_tokens("t", "c", 100.0, None, 1) == once.output_tokens("t", "c", 100.0, None, 1)


def test_the_mean_follows_a_change_and_forgets() -> None:
    """After many readings of 100, one of 200 moves the tenant's mean by a fifth of the difference."""
    estimator = Estimator()
    for _ in range(1000):
        learn(estimator, output=100)
    assert estimator.output_tokens("t", "c", 100.0, None, 1) == pytest.approx(100.0, rel=1e-3)
    learn(estimator, output=200)
    assert estimator.output_tokens("t", "c", 100.0, None, 1) == pytest.approx(120.0, rel=1e-2)


def test_the_first_readings_weigh_alike() -> None:
    """100, 200, 300 have the mean 200; all levels saw the same: 200 each with weight 3/7 over what is above."""
    estimator = Estimator()
    for output in (100, 200, 300):
        learn(estimator, output=output)
    expected = 256.0
    for _ in range(4):
        expected = (3 * 200.0 + 4 * expected) / 7
    assert estimator.output_tokens("t", "c", 100.0, None, 1) == pytest.approx(expected)


def test_the_prompt_s_ratio_is_learnt_by_tenant() -> None:
    """400 bytes were 200 tokens: ratio 2. Pool 0.2*2 + 0.8*1 = 1.2; tenant 0.2*2 + 0.8*1.2 = 1.36."""
    estimator = Estimator()
    learn(estimator, prompt=200)
    assert estimator.prompt_tokens("t", 4000) == pytest.approx(1360.0)
    assert estimator.prompt_tokens("u", 4000) == pytest.approx(1200.0)


@pytest.mark.parametrize(("prompt", "ratio"), [(10**7, 4.0), (0, 0.1)])
def test_an_implausible_ratio_is_bounded(prompt: int, ratio: float) -> None:
    estimator = Estimator()
    for _ in range(1000):
        learn(estimator, prompt=prompt)
    assert estimator.prompt_tokens("t", 4000) == pytest.approx(1000.0 * ratio, rel=0.02)


def test_what_was_not_counted_teaches_nothing() -> None:
    estimator = Estimator()
    learn(estimator, prompt=None, output=None)
    learn(estimator, prompt=100, body_bytes=0)
    assert estimator.prompt_tokens("t", 4000) == 1000.0
    assert estimator.output_tokens("t", "c", 100.0, None, 1) == 256.0


@pytest.mark.slow
def test_memory_is_bounded_and_the_least_recently_used_go_first() -> None:
    estimator = Estimator()
    learn(estimator, "regular", output=1, prompt=400)
    for i in range(30_000):
        learn(estimator, f"x{i}", output=256, prompt=100)
        if i % 1000 == 0:
            learn(estimator, "regular", output=1, prompt=400)
    assert len(estimator) == 3 * 20_000 + 1  # by tenant, by tenant and bucket, ratios; and one class
    assert estimator.output_tokens("regular", "c", 100.0, None, 1) < 50.0
    assert estimator.output_tokens("x0", "c", 100.0, None, 1) == pytest.approx(256.0, rel=0.05)


def test_tenants_with_prompts_of_many_sizes_do_not_take_more_memory() -> None:
    """Five buckets each: with the 40,000 of 8,000 tenants the table is full, and each new tenant forgets the oldest."""
    estimator = Estimator()
    for i in range(9_000):
        for guess in (1.0, 2.0, 4.0, 8.0, 16.0):
            learn(estimator, f"x{i}", output=100 if i < 1_000 else 256, guess=guess)
    assert len(estimator) == 8_000 * (5 + 1) + 1  # and each one's own mean, and the class
    unknown = estimator.output_tokens("never seen", "c", 16.0, None, 1)
    assert estimator.output_tokens("x0", "c", 16.0, None, 1) == unknown
    assert estimator.output_tokens("x8999", "c", 16.0, None, 1) != unknown


@pytest.mark.slow
@settings(derandomize=True, max_examples=50, deadline=None)
@given(
    seen=st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(1, 128)), max_size=20),
    limit=st.one_of(st.none(), st.integers(1, 10**7)),
    n=st.integers(1, 128),
)
def test_an_estimate_is_at_least_a_token_and_at_most_the_largest_seen(
    seen: list[tuple[int, int, int]], limit: int | None, n: int
) -> None:
    estimator = Estimator()
    for prompt, output, choices in seen:
        learn(estimator, prompt=prompt, output=output, n=choices)
    each = estimator.output_tokens("t", "c", 100.0, limit, n) / n
    most = max([256.0] + [output / choices for _, output, choices in seen])
    assert 1.0 <= each <= max(1.0, min(most, float("inf") if limit is None else limit)) * (1 + 1e-9)
    assert 100.0 * 0.1 <= estimator.prompt_tokens("t", 400) <= 100.0 * 4.0
