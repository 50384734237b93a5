"""What service is measured in, and the charge of a request that runs past its estimate."""

from __future__ import annotations

import pytest
from scheduler_case import Case, a_class, a_fixed_pool, drain, fill, released, settled

from extproc.core.events import Settled, Usage
from extproc.core.model import CostWeights, PoolPolicy, Source, Unit


def by(unit: Unit, slots: int = 100, **changes: object) -> PoolPolicy:
    return a_fixed_pool(a_class(queue_timeout_s=1e6), slots=slots, unit=unit, **changes)


def a_pace(case: Case, seconds: float = 0.05) -> None:
    """The engine makes an output token of each request in so many seconds."""
    case.page(itl_sum=0.0, itl_count=0.0)
    case.page(itl_sum=100.0 * seconds, itl_count=100.0)


# -- requests ----------------------------------------------------------------------------------------


def test_by_requests_each_costs_one_whatever_it_takes() -> None:
    case = Case(by(Unit.REQUESTS))
    case.arrive("r0", "t", body_bytes=1_000_000, n=5)
    case.arrive("r1", "t")
    assert case.tag("t") == 2.0
    assert settled(case.usage("r0", 250_000, 9_999)) == [("r0", 1.0)]
    assert settled(case.apply(Usage("r1", Source.ERROR))) == [("r1", 0.0)]
    case.arrive("r2", "t")
    assert case.tag("t") == 2.0


def test_by_requests_tenants_take_turns_though_one_sends_long_ones() -> None:
    case = Case(by(Unit.REQUESTS, slots=1))
    inside = fill(case, 1)
    for i in range(4):
        case.arrive(f"long{i}", "long", body_bytes=100_000)
        case.arrive(f"short{i}", "short", body_bytes=100)
    assert drain(case, inside, 4) == ["long0", "short0", "long1", "short1"]


def test_by_requests_a_long_answer_is_not_charged_again() -> None:
    case = Case(by(Unit.REQUESTS))
    a_pace(case)
    case.arrive("r", "t")
    case.first_token("r")
    case.tick(1_000.0)
    assert case.tag("t") == 1.0


# -- time ----------------------------------------------------------------------------------------------


def test_by_time_it_is_seconds_in_the_engine_times_slots() -> None:
    """At first 10 s are expected."""
    case = Case(by(Unit.TIME))
    case.arrive("r0", "t")
    case.arrive("wide", "u", n=3)
    assert (case.tag("t"), case.tag("u")) == (10.0, 30.0)
    case.now += 4.0
    case.end("r0")
    case.now += 1.0  # what comes after the end does not count
    assert settled(case.usage("r0", 9, 9)) == [("r0", 4.0)]
    case.end("wide")
    assert settled(case.usage("wide", 9, 9)) == [("wide", 15.0)]


def test_by_time_a_usage_before_the_end_counts_until_then() -> None:
    case = Case(by(Unit.TIME))
    case.arrive("r", "t")
    case.now += 4.0
    assert settled(case.usage("r", 9, 9)) == [("r", 4.0)]


def test_by_time_an_error_is_given_back_and_teaches_nothing() -> None:
    case = Case(by(Unit.TIME))
    case.arrive("r0", "t")
    case.now += 500.0
    assert settled(case.apply(Usage("r0", Source.ERROR))) == [("r0", 0.0)]
    case.arrive("r1", "t")
    assert case.scheduler.requests["r1"].charged == 10.0


def test_by_time_the_estimate_follows_what_requests_took() -> None:
    case = Case(by(Unit.TIME))
    for i in range(40):
        case.arrive(f"r{i}", "t")
        case.now += 2.0
        case.end(f"r{i}")
        case.usage(f"r{i}", 9, 9)
    case.arrive("next", "t")
    assert case.scheduler.requests["next"].charged == pytest.approx(2.0, rel=0.1)


def test_by_time_what_runs_past_its_estimate_is_charged_while_it_runs() -> None:
    """Looked at after 10 s, and then each time that half as long again has passed; not while it may wait in the engine:
    that is known from its first token."""
    case = Case(by(Unit.TIME))
    case.arrive("r", "t")
    case.first_token("r")
    case.tick(9.9)
    assert case.tag("t") == 10.0
    case.tick(0.2)
    assert case.tag("t") == pytest.approx(10.1)
    case.tick(5.0)  # the next is at 10.1 * 1.5 = 15.15 s
    assert case.tag("t") == pytest.approx(10.1)
    case.tick(5.0)
    assert case.tag("t") == pytest.approx(20.1)


# -- tokens at prices ----------------------------------------------------------------------------------


def test_weights_may_be_prices() -> None:
    """Three dollars for a million tokens read, 0.3 for cached ones, 15 for those written."""
    case = Case(by(Unit.TOKENS, weights=CostWeights(3e-6, 0.3e-6, 15e-6)))
    case.arrive("r", "t")
    assert case.tag("t") == pytest.approx(256 * 3e-6 + 256 * 15e-6)
    (effect,) = case.usage("r", 1_000_000, 100_000, cached_tokens=500_000)
    assert isinstance(effect, Settled)
    assert effect.cost == pytest.approx(1.5 + 0.15 + 1.5)


def test_prices_in_small_coin_do_not_pass_what_a_tag_can_hold() -> None:
    """1e7 prompt tokens at 1e9 each would be 1e16."""
    case = Case(by(Unit.TOKENS, weights=CostWeights(1e9, 1e9, 1e9)))
    assert released(case.arrive("r", "t", prompt_tokens=10**12)) == ["r"]
    assert case.tag("t") == 1e12
    assert settled(case.usage("r", 9_999_999, 9_999_999)) == [("r", 1e12)]


# -- past the estimate -----------------------------------------------------------------------------------


def test_a_long_answer_is_charged_while_it_runs_and_trued_up_at_its_end() -> None:
    """256 tokens at 50 ms are expected: looked at after 12.8 s, and from then on after half as long again."""
    case = Case(by(Unit.TOKENS))
    a_pace(case)
    case.arrive("r", "t")
    case.now += 1.0
    case.first_token("r")
    case.tick(12.0)  # 13 s after its release, 12 s after its first token: 240 tokens, less than was charged
    assert case.tag("t") == 768.0
    case.tick(6.4)
    assert case.tag("t") == 768.0  # the next look is at 13 * 1.5 = 19.5 s
    case.tick(0.2)
    tokens = (19.6 - 1.0) / 0.05
    assert case.tag("t") == pytest.approx(256 + 2 * tokens)
    case.arrive("other", "t", n=1, max_output=1)
    assert settled(case.usage("r", 256, 400)) == [("r", 1056.0)]
    assert case.tag("t") == pytest.approx(1056 + 256 + 2)


def test_all_choices_of_a_wide_request_are_charged() -> None:
    case = Case(by(Unit.TOKENS))
    a_pace(case)
    case.arrive("r", "t", n=2)
    case.first_token("r")
    case.tick(100.0)
    assert case.tag("t") == pytest.approx(256 + 2 * 2 * 2000)


def test_it_is_never_charged_for_more_than_the_client_allows() -> None:
    case = Case(by(Unit.TOKENS))
    a_pace(case)
    case.arrive("r", "t", max_output=300)
    case.first_token("r")
    case.tick(1_000.0)
    assert case.tag("t") == pytest.approx(256 + 2 * 300)


def test_time_that_may_have_passed_in_the_engine_s_own_queue_does_not_count() -> None:
    """No first token is seen here. A page with an empty queue at 50 s shows that it runs, since 49 s or before."""
    case = Case(by(Unit.TOKENS))
    a_pace(case)
    case.arrive("r", "t")
    for _ in range(5):
        case.now += 10.0
        case.page(running=8, waiting=1)
    assert case.tag("t") == 768.0
    case.page(running=8, waiting=0)
    case.tick(100.0)
    assert case.tag("t") == pytest.approx(256 + 2 * (150.0 - 49.0) / 0.05)


def test_without_a_pace_nothing_is_charged_beforehand() -> None:
    case = Case(by(Unit.TOKENS))
    case.arrive("r", "t")
    case.first_token("r")
    case.tick(1_000.0)
    assert case.tag("t") == 768.0


def test_a_settled_answer_is_charged_no_further() -> None:
    case = Case(by(Unit.TOKENS))
    a_pace(case)
    case.arrive("r", "t")
    case.first_token("r")
    case.usage("r", 256, 300)  # the count comes before the stream ends
    case.tick(1_000.0)
    assert case.tag("t") == 856.0


def test_a_tenant_whose_answers_run_long_waits_for_it_before_they_end() -> None:
    """Two slots, a and b alternate. a's answer runs for 100 s: 2,000 tokens. So b has the next turns."""
    case = Case(by(Unit.TOKENS, slots=2))
    a_pace(case)
    case.arrive("a-long", "a")
    case.arrive("b0", "b")
    case.first_token("a-long")
    for i in range(5):
        case.arrive(f"a{i}", "a")
        case.arrive(f"c{i}", "b")
    case.tick(100.0)
    assert drain(case, ["b0"], 5) == ["c0", "c1", "c2", "c3", "c4"]
