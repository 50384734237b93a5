"""What a request is charged in the end, whenever and whether its usage comes."""

from __future__ import annotations

import pytest
from scheduler_case import Case, a_pool, fill, settled

from extproc.core.events import Settled
from extproc.core.model import MAX_TOKENS, Source, State
from extproc.core.view import view


def test_usage_before_the_end_settles_and_the_end_closes_the_books() -> None:
    case = Case()
    case.arrive("r", "t")
    effects = case.usage("r", 100, 50)
    assert effects == [Settled("r", "t", "interactive", Source.USAGE, cost=200.0, estimate=768.0)]
    assert view(case.scheduler, case.now).in_flight == 1
    assert case.end("r") == []
    assert case.scheduler.requests == {}


def test_usage_after_the_end_settles() -> None:
    case = Case()
    case.arrive("r")
    case.end("r")
    assert case.scheduler.requests["r"].state is State.ENDED
    case.now += 4.9
    assert settled(case.usage("r", 100, 50)) == [("r", 200.0)]
    assert case.scheduler.requests == {}
    assert case.scheduler.next_deadline() is None


@pytest.mark.parametrize("ends_first", [True, False])
def test_what_is_settled_is_not_kept_until_it_would_have_overrun(ends_first: bool) -> None:
    """It was expected to run for 256 tokens of 50 ms."""
    case = Case()
    case.arrive("r")
    assert len(case.scheduler.overrun) == 1
    if ends_first:
        case.end("r")
    case.usage("r", 100, 50)
    assert len(case.scheduler.overrun) == 0
    assert case.scheduler.overrun.first == float("inf")


def test_cached_prompt_tokens_cost_a_tenth() -> None:
    case = Case()
    case.arrive("r0")
    assert settled(case.usage("r0", 100, 50, cached_tokens=80)) == [("r0", 20 + 8 + 100.0)]
    case.arrive("r1")
    assert settled(case.usage("r1", 100, 50, cached_tokens=10**9)) == [("r1", 10 + 100.0)]


def test_usage_that_never_comes_is_replaced_by_the_estimate() -> None:
    case = Case()
    case.arrive("r", "t")
    case.end("r")
    assert case.scheduler.next_deadline() == 105.0  # usage_grace_s
    assert case.tick(4.9) == []
    effects = case.tick(0.1)
    assert effects == [Settled("r", "t", "interactive", Source.ESTIMATE, cost=768.0, estimate=768.0)]
    assert case.scheduler.requests == {}


def with_a_pace() -> Case:
    """A case whose endpoint makes a token in 50 ms."""
    case = Case()
    case.page(itl_sum=0.0, itl_count=0.0)
    case.page(itl_sum=5.0, itl_count=100.0)
    return case


def test_usage_that_never_comes_is_replaced_by_time_where_the_pace_is_known() -> None:
    case = with_a_pace()
    case.arrive("r")
    case.now += 10.0
    case.end("r")
    (effect,) = case.tick(5.0)
    # 256 tokens of prompt (1024 bytes), 10 s / 0.05 s = 200 of output; the grace does not count.
    assert (effect.source, effect.cost) == (Source.TIME, pytest.approx(256 + 400.0))


def test_output_by_time_is_no_more_than_the_client_asked_for() -> None:
    case = with_a_pace()
    case.arrive("r", max_output=30)
    case.now += 10.0
    case.end("r")
    (effect,) = case.tick(5.0)
    assert effect.cost == pytest.approx(256 + 60.0)


def test_a_client_that_left_pays_for_the_time_until_then() -> None:
    """As with TIME: 256 tokens of prompt, 10 s / 0.05 s = 200 of output."""
    case = with_a_pace()
    case.arrive("r")
    case.now += 10.0
    case.end("r")
    (effect,) = case.usage("r", None, None, source=Source.ABORT)
    assert (effect.source, effect.cost) == (Source.ABORT, pytest.approx(256 + 400.0))
    assert len(case.scheduler.estimator) == 0  # a part of an answer teaches nothing


def test_our_own_count_is_as_good_as_the_engines() -> None:
    case = with_a_pace()
    case.arrive("r")
    (effect,) = case.usage("r", 100, 50, source=Source.STREAM)
    assert (effect.source, effect.cost) == (Source.STREAM, 200.0)
    other = with_a_pace()
    other.arrive("r")
    other.usage("r", 100, 50)
    assert case.scheduler.estimator.output_tokens("a", "interactive", 256.0, None, 1) == (
        other.scheduler.estimator.output_tokens("a", "interactive", 256.0, None, 1)
    )


def test_a_usage_that_only_estimates_leaves_the_charge() -> None:
    case = with_a_pace()
    case.arrive("r")
    case.now += 1.0
    (effect,) = case.usage("r", None, None, source=Source.ESTIMATE)
    assert (effect.source, effect.cost) == (Source.ESTIMATE, 768.0)


@pytest.mark.parametrize(("prompt", "output"), [(None, None), (-1, -1), (None, -(10**12))])
def test_a_usage_without_counts_is_told_as_what_it_is(prompt: int | None, output: int | None) -> None:
    case = Case()
    case.arrive("r")
    (effect,) = case.usage("r", prompt, output)
    assert (effect.source, effect.cost) == (Source.ESTIMATE, 768.0)


def test_usage_twice_settles_once() -> None:
    case = Case()
    case.arrive("r0", "t")
    case.arrive("r1", "t")
    case.usage("r0", 100, 50)
    tag = case.tag("t")
    assert case.usage("r0", 100_000, 50) == []
    assert case.tag("t") == tag == 200.0 + 768.0
    case.end("r0")
    assert case.usage("r0", 100_000, 50) == []


def test_usage_after_cancel_and_of_a_held_request_is_ignored() -> None:
    case = Case(a_pool(start=1))
    fill(case, 4)
    case.arrive("r")
    assert case.usage("r", 5, 5) == []
    assert case.scheduler.requests["r"].state is State.QUEUED
    case.end("r")
    assert case.usage("r", 5, 5) == []


def test_usage_after_the_grace_is_ignored() -> None:
    case = Case()
    case.arrive("r")
    case.end("r")
    case.tick(5.0)
    assert case.usage("r", 100, 50) == []


def test_an_error_refunds_all() -> None:
    case = Case()
    case.arrive("r0", "t")
    case.arrive("r1", "t")
    case.end("r0")
    assert settled(case.usage("r0", None, None, source=Source.ERROR)) == [("r0", 0.0)]
    assert case.tag("t") == 768.0  # r1's


@pytest.mark.parametrize(
    ("prompt", "output", "cost"),
    [
        (10**12, 10**12, 768.0),  # no counts: the estimate of both
        (MAX_TOKENS, 50, 256 + 100.0),  # what the edge makes of 10^12
        (100, 10**12, 100 + 512.0),
        (-5, 50, 256 + 100.0),
        (0, 0, 0.0),
    ],
)
def test_an_absurd_count_is_none(prompt: int, output: int, cost: float) -> None:
    case = Case()
    case.arrive("r")
    assert settled(case.usage("r", prompt, output)) == [("r", cost)]


def test_negative_cached_tokens_are_none() -> None:
    case = Case()
    case.arrive("r")
    assert settled(case.usage("r", 100, 50, cached_tokens=-(10**9))) == [("r", 200.0)]


def test_estimates_are_learnt_from_usage_and_never_exceed_the_client_s_limit() -> None:
    case = Case()
    for i in range(50):
        case.arrive(f"r{i}", "t")
        case.usage(f"r{i}", 256, 10)
        case.end(f"r{i}")
    assert case.arrive("short", "t", max_output=4) != []
    assert case.scheduler.requests["short"].charged == pytest.approx(256 + 2 * 4, rel=0.01)
    case.arrive("free", "t")
    assert case.scheduler.requests["free"].output_tokens == pytest.approx(10, rel=0.1)
