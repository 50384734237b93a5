"""Prompt tokens that wait for their first token: the limit, and what tells of first tokens."""

from __future__ import annotations

from typing import Any

import pytest
from window_case import Bench, Q, a_request

from extproc.core.model import Controller, Request, State, WindowPolicy
from extproc.core.windows import Adaptive, Answers


def bench(answers: Answers | None = None, **settings: Any) -> Bench:
    """Slots and latency are out of the way; the prefill limit is 8,192 prompt tokens."""
    policy = WindowPolicy(
        **({"controller": Controller.ADAPTIVE, "start": 1000.0, "scrape_interval_s": 0.25} | settings)
    )
    return Bench(window=Adaptive("e", policy, 1000.0, answers=answers), read=False)


def counting(**fields: float) -> Bench:
    """A bench whose page counts first tokens, none so far."""
    found = bench()
    found.page(ttft_count=0.0, ttft_sum=0.0, **fields)
    return found


def unanswered(b: Bench) -> tuple[int | None, float | None]:
    return b.view.unanswered, b.view.unanswered_tokens


# -- the limit ------------------------------------------------------------------------------------


def test_releases_stop_at_the_limit_and_go_on_with_each_first_token() -> None:
    b = counting()
    for _ in range(4):
        assert b.accepts(prompt=2048.0)
        b.take(prompt=2048.0)
    assert unanswered(b) == (4, 8192)
    assert not b.accepts(prompt=1.0)
    hold = b.window.why_not(a_request(prompt=100.0), Q, b.now)
    assert hold is not None
    assert (hold.name, hold.value, hold.limit, hold.unit) == ("prefill", 8292, 8192, "tokens")
    assert not b.may_overtake(prompt=1.0, most=4)
    b.window.first_token(b.inside[2], b.now)
    assert unanswered(b) == (3, 6144)
    assert b.accepts(prompt=2048.0)
    assert not b.accepts(prompt=2049.0)
    assert b.view.answers == "first_token"


def test_a_prompt_beyond_the_limit_goes_alone() -> None:
    b = counting()
    b.take(prompt=10.0)
    assert not b.accepts(prompt=20_000.0)
    b.window.first_token(b.inside[0], b.now)
    assert b.accepts(prompt=20_000.0)
    b.take(prompt=20_000.0)
    assert not b.accepts(prompt=1.0)


def test_the_end_of_the_stream_answers_in_any_case() -> None:
    b = counting()
    b.take(prompt=20_000.0)
    b.later(100.0)
    b.page(ttft_count=0.0, ttft_sum=0.0)
    assert not b.accepts()
    b.free()
    assert unanswered(b) == (0, 0)


def test_a_wide_request_counts_its_prompt_once() -> None:
    b = counting()
    b.go(a_request(8, prompt=1000.0))
    assert unanswered(b) == (1, 1000)


def test_a_standing_queue_may_be_unanswered_besides() -> None:
    """Something waits: 3 prompts of the mean of 1,000 are there because we want them to. 20 s later no more."""
    b = counting()
    b.take(prompt=1000.0)
    b.page(running=1, waiting=1, ttft_count=0.0, ttft_sum=0.0)
    assert b.view.prefill_limit == pytest.approx(8192 + 3 * 1000)
    b.later(20.1)
    b.page(running=1, ttft_count=0.0, ttft_sum=0.0)
    assert b.view.prefill_limit == 8192


# -- whose turn a large prompt is -----------------------------------------------------------------


def test_a_large_prompt_that_is_passed_by_for_two_seconds_is_owed_its_turn() -> None:
    b = counting()
    b.take(prompt=100.0)
    large = a_request(prompt=20_000.0)
    for _ in range(4):  # asked for each half second; small ones pass
        assert not b.window.accepts(large, Q, b.now)
        assert b.window.owed(b.now) is None
        assert b.accepts(prompt=100.0)
        b.take(prompt=100.0)
        b.later(0.5)
        b.page(ttft_count=0.0, ttft_sum=0.0)
    assert not b.window.accepts(large, Q, b.now)
    assert b.window.owed(b.now) is large
    assert not b.accepts(prompt=100.0)
    hold = b.window.why_not(a_request(), Q, b.now)
    assert hold is not None
    assert hold.name == "prefill_turn"
    for request in b.inside:
        b.window.first_token(request, b.now)
    assert not b.accepts(prompt=100.0)  # there is room, and it is not theirs
    assert b.window.accepts(large, Q, b.now)
    b.go(large)
    assert b.window.owed(b.now) is None
    b.window.first_token(large, b.now)
    assert b.accepts(prompt=100.0)


def ask(b: Bench, large: Request) -> None:
    """For over two seconds, on fresh pages."""
    for _ in range(5):
        assert not b.window.accepts(large, Q, b.now)
        b.later(0.5)
        b.page(ttft_count=0.0, ttft_sum=0.0)


def test_one_that_is_not_asked_for_any_more_holds_nobody() -> None:
    b = counting()
    b.take(prompt=100.0)
    large = a_request(prompt=20_000.0)
    ask(b, large)
    assert b.window.owed(b.now) is large
    b.later(0.6)
    b.page(ttft_count=0.0, ttft_sum=0.0)
    assert b.window.owed(b.now) is None
    assert b.accepts(prompt=100.0)
    b.window.accepts(large, Q, b.now)
    assert b.window.owed(b.now) is None  # it begins anew


def test_one_that_has_left_the_queue_holds_nobody() -> None:
    b = counting()
    b.take(prompt=100.0)
    large = a_request(prompt=20_000.0)
    ask(b, large)
    assert not b.accepts(prompt=100.0)
    large.move(State.CANCELLED)
    assert b.accepts(prompt=100.0)


# -- the page's count -----------------------------------------------------------------------------


def test_the_count_answers_the_oldest_ones() -> None:
    b = counting()
    b.take(prompt=100.0)
    b.take(prompt=200.0)
    b.take(prompt=400.0)
    b.later()
    b.page(ttft_count=2.0, ttft_sum=1.0)
    assert unanswered(b) == (1, 400)
    assert b.view.answers == "ttft_count"


def test_a_wide_request_is_answered_by_as_many_counts() -> None:
    b = counting()
    b.go(a_request(3, prompt=100.0))
    b.take(prompt=200.0)
    b.later()
    b.page(ttft_count=2.0, ttft_sum=1.0)
    assert unanswered(b) == (2, 300)
    b.later()
    b.page(ttft_count=3.0, ttft_sum=1.0)
    assert unanswered(b) == (1, 200)


def test_growth_of_what_was_answered_early_answers_nobody_else() -> None:
    """A first token was seen, and an answer of one step ended: their counts come with the next page."""
    b = counting()
    b.take(4, prompt=100.0)
    b.window.first_token(b.inside[1], b.now)
    b.end(b.inside[0])
    assert unanswered(b) == (2, 200)
    b.later()
    b.page(ttft_count=2.0, ttft_sum=1.0)
    assert unanswered(b) == (2, 200)
    b.later()
    b.page(ttft_count=3.0, ttft_sum=1.0)
    assert unanswered(b) == (1, 100)


def test_growth_that_never_comes_is_waited_for_no_longer_than_the_lag() -> None:
    """Left before its first token: nothing will ever count it. After 5 s growth is everybody's again."""
    b = counting()
    b.take(2, prompt=100.0)
    b.free()
    b.later(5.1)
    b.page(ttft_count=0.0, ttft_sum=0.0)
    b.later()
    b.page(ttft_count=1.0, ttft_sum=1.0)
    assert unanswered(b) == (0, 0)


def test_an_old_one_that_ends_unanswered_was_counted_long_ago() -> None:
    b = counting()
    b.take(prompt=100.0)
    b.later(2.0)
    b.take(prompt=200.0)
    b.free()  # 2 s inside
    b.later()
    b.page(ttft_count=1.0, ttft_sum=1.0)
    assert unanswered(b) == (0, 0)


def test_growth_is_shared_with_foreign_requests() -> None:
    """4 of ours and 4 others: of two counts one is ours. A page from before the release answers nobody."""
    b = bench()
    b.page(running=4, ttft_count=0.0, ttft_sum=0.0)
    assert b.view.foreign == 4
    b.take(4, prompt=100.0)
    b.later()
    b.page(running=8, ttft_count=2.0, ttft_sum=0.0)
    assert unanswered(b) == (3, 300)
    b.later(0.2)
    b.take(prompt=50.0)
    b.later(0.1)
    b.page(running=8, ttft_count=40.0, ttft_sum=0.0, started=b.now - 0.2)
    assert unanswered(b) == (1, 50)


def test_a_restart_answers_nobody_and_forgets_what_was_to_come() -> None:
    b = bench()
    b.page(ttft_count=50.0, ttft_sum=0.0)
    b.take(3, prompt=100.0)
    b.window.first_token(b.inside[0], b.now)
    b.later()
    b.page(ttft_count=0.0, ttft_sum=0.0)
    assert unanswered(b) == (2, 200)
    b.later()
    b.page(ttft_count=1.0, ttft_sum=0.0)
    assert unanswered(b) == (1, 100)


# -- prompt tokens on the page --------------------------------------------------------------------


def test_prompt_tokens_answer_the_oldest_ones_where_nothing_is_counted() -> None:
    b = bench()
    b.page(prompt_tokens=1000.0)
    b.take(prompt=100.0)
    b.take(prompt=200.0)
    b.later()
    b.page(prompt_tokens=1150.0)
    assert unanswered(b) == (1, 200)
    assert b.view.answers == "prompt_tokens"
    b.later()
    b.page(prompt_tokens=1299.0)  # the second prefill is under way, and counts when it is done
    assert unanswered(b) == (1, 200)
    b.later()
    b.page(prompt_tokens=1300.0)
    assert unanswered(b) == (0, 0)


def test_estimates_that_are_too_high_are_put_right_by_what_answers_tell() -> None:
    """Estimated 100, really 50 each: after many of them growth of 50 answers one."""
    b = bench()
    b.page(prompt_tokens=0.0)
    for _ in range(600):
        b.window.observed(a_request(prompt=100.0), 50, 10)
    b.take(2, prompt=100.0)
    b.later()
    b.page(prompt_tokens=51.0)
    assert unanswered(b) == (1, 100)


# -- forecast, and nothing ------------------------------------------------------------------------


def test_without_anything_to_go_by_the_limit_never_binds() -> None:
    b = bench()
    b.page()
    b.take(50, prompt=5000.0)
    assert b.accepts(prompt=5000.0)
    assert unanswered(b) == (0, 0)
    assert b.view.answers == "end"


def forecasting(answers: Answers | None = None) -> Bench:
    """c = 1 ms for each prompt token, 100 ms a step. The page tells no growth."""
    b = bench(answers)
    window = b.window
    assert isinstance(window, Adaptive)
    window.latency.prompt_s, window.latency.decode_s = 0.001, 0.1
    b.page()
    return b


def test_the_forecast_reads_prompts_one_after_the_other() -> None:
    """Released at 0: 1,000 tokens are read at 0.15 + 1 s, the next 500 at 1.65 s; 100 released at 2 s at 2.25 s."""
    b = forecasting()
    b.take(prompt=1000.0)
    b.take(prompt=500.0)
    seen = []
    for at in (1.14, 1.16, 1.64, 1.66):
        b.now = 1000.0 + at
        b.page()
        seen.append(unanswered(b))
    assert seen == [(2, 1500), (1, 500), (1, 500), (0, 0)]
    b.now = 1002.0
    b.take(prompt=100.0)
    b.now = 1002.24
    b.page()
    assert unanswered(b) == (1, 100)
    b.now = 1002.26
    b.page()
    assert unanswered(b) == (0, 0)
    assert b.view.answers == "forecast"


def test_the_forecast_is_looked_at_when_the_limit_would_hold_somebody() -> None:
    b = forecasting()
    b.take(4, prompt=2048.0)
    assert not b.accepts(prompt=2048.0)
    b.later(2.25)  # 0.15 + 2.048
    assert b.accepts(prompt=2048.0)


def test_what_the_page_shows_waiting_is_not_read_yet_whatever_the_forecast_says() -> None:
    b = forecasting()
    b.take(4, prompt=10.0)
    b.later(1.0)
    b.page(running=2, waiting=2)
    assert unanswered(b) == (2, 20)
    b.later(1.0)
    b.page(running=4)
    assert unanswered(b) == (0, 0)


def test_where_first_tokens_are_seen_the_forecast_stands_in_late() -> None:
    """1,000 tokens: 1.15 s, twice that and a second more is 3.3 s."""
    b = forecasting()
    b.take(2, prompt=1000.0)
    b.window.first_token(b.inside[0], b.now)
    b.later(3.29)
    b.page()
    assert unanswered(b) == (1, 1000)
    b.later(0.02)
    b.page()
    assert unanswered(b) == (0, 0)
    assert b.view.answers == "first_token"


def test_a_prompt_beyond_every_limit_is_given_twice_its_time() -> None:
    """20,000 tokens: 20.15 s by the forecast, 41.3 s with what it takes besides."""
    b = forecasting()
    b.take(prompt=20_000.0)
    b.later(41.2)
    b.page()
    assert unanswered(b) == (1, 20_000)
    b.later(0.2)
    b.page()
    assert unanswered(b) == (0, 0)


def test_without_pages_nothing_counts_so_nothing_is_held_for_long() -> None:
    b = counting()
    b.take(4, prompt=2048.0)
    b.later(4.9)
    assert not b.accepts(prompt=2048.0)
    b.later(0.2)
    assert b.accepts(prompt=2048.0)
    assert unanswered(b) == (0, 0)


def test_growth_over_a_gap_is_not_attributed() -> None:
    """What grew in a minute without pages was for requests that are long gone."""
    b = counting()
    b.take(3, prompt=100.0)
    b.later(60.0)
    b.page(ttft_count=500.0, ttft_sum=0.0)
    assert unanswered(b) == (3, 300)
    b.later()
    b.page(ttft_count=501.0, ttft_sum=0.0)
    assert unanswered(b) == (2, 200)


@pytest.mark.parametrize("only", list(Answers))
def test_each_way_can_be_had_alone_to_measure_it(only: Answers) -> None:
    b = bench(only)
    b.page(ttft_count=0.0, ttft_sum=0.0, prompt_tokens=0.0)
    b.take(3, prompt=100.0)
    assert b.view.answers == only.value
    b.window.first_token(b.inside[2], b.now)
    b.later()
    b.page(ttft_count=1.0, ttft_sum=0.0, prompt_tokens=200.0)
    expected = {
        Answers.FIRST_TOKEN: 2,  # the one that was seen
        Answers.COUNT: 2,  # one by count
        Answers.PROMPTS: 1,  # two by tokens
        Answers.FORECAST: 0,  # no step yet, so it holds nobody
        Answers.END: 0,
    }
    assert unanswered(b)[0] == expected[only]
    b.free(3)
    assert unanswered(b) == (0, 0)
