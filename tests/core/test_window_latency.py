"""The window by inter-token latency: Little's law against engines whose step time is known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.windows.change import Change
from extproc.core.windows.latency import Latency
from extproc.core.windows.step_time import StepTime

LIMIT = 0.150
BOUNDS = (1.0, 4096.0)


class Engine:
    """A step takes a + b * n, and each step gives each of n a token; no noise, no lag. One page a second."""

    def __init__(self, a: float, b: float, latency: Latency | None = None) -> None:
        self.a, self.b = a, b
        self.latency = latency or Latency(8.0)
        self.now = 0.0

    def page(self, n: float, seconds: float = 1.0, *, inside: int | None = None, prompts: float = 0.0) -> float:
        step = self.a + self.b * n
        self.now += seconds
        change = Change(seconds, itl_s=n * seconds, itl_tokens=n * seconds / step, prompt_tokens=prompts)
        self.latency.on_page(change, n, math.ceil(n) if inside is None else inside, 0, LIMIT, BOUNDS, 0.0, self.now)
        return self.latency.window


# -- Little's law ---------------------------------------------------------------------------------


def test_one_page_by_hand() -> None:
    """8 decode at 30 ms: n L/y = 8 * 0.95 * 0.15 / 0.03 = 38, over 1.5 * 8, so at once."""
    engine = Engine(0.030, 0.0)
    assert engine.page(8) == pytest.approx(38.0)
    assert engine.latency.itl_s == pytest.approx(0.030)
    assert engine.latency.decoding == pytest.approx(8.0)


def test_a_small_gap_upward_is_closed_by_three_tenths_a_second() -> None:
    """W = 8, n L/y = 8 * 0.1425 / 0.12 = 9.5: under 1.5 W. A page of a quarter second closes 1 - 0.7^0.25 of it."""
    assert Engine(0.120, 0.0).page(8) == pytest.approx(8 + 0.3 * 1.5)
    assert Engine(0.120, 0.0).page(8, 0.25) == pytest.approx(8 + (1 - 0.7**0.25) * 1.5)
    assert Engine(0.120, 0.0).page(8, 5.0) == pytest.approx(8 + 0.3 * 1.5)


def test_over_the_limit_it_falls_to_the_right_one_at_once_and_never_below_one() -> None:
    assert Engine(0.285, 0.0).page(8) == pytest.approx(4.0)  # 8 * 0.1425 / 0.285
    assert Engine(30.0, 0.0).page(8) == 1.0


@settings(derandomize=True, max_examples=60, deadline=None)
@given(a=st.floats(0.0, 0.14), b=st.floats(1e-5, 0.05))
@pytest.mark.slow
def test_without_noise_it_climbs_to_the_right_window_and_never_past_it(a: float, b: float) -> None:
    """The fixed point of n L/y with n = W is (L - a)/b, for L with the margin of 0.95."""
    right = (0.95 * LIMIT - a) / b
    engine = Engine(a, b, Latency(min(8.0, max(1.0, right / 2))))
    window = engine.latency.window
    if right < 1.0:
        return
    for _ in range(400):
        before, window = window, engine.page(window)
        assert before - 1e-9 <= window <= right * (1 + 1e-9) or window == BOUNDS[1]
    if a < 0.1:  # the nearer a to the limit, the longer it takes
        assert window >= min(0.98 * right, 0.99 * BOUNDS[1])


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    pages=st.lists(
        st.tuples(st.floats(0, 500), st.floats(1e-4, 3.0), st.floats(0.1, 5.0), st.floats(0, 5000)), max_size=30
    )
)
def test_it_never_grows_beyond_little_s_law_while_latency_is_over(
    pages: list[tuple[float, float, float, float]],
) -> None:
    """Whatever n, step, time and prompt tokens."""
    engine = Engine(0.0, 0.0)
    latency = engine.latency
    for n, step, seconds, prompts in pages:
        before, margin = latency.window, latency.margin
        engine.a = step
        window = engine.page(n, seconds, prompts=prompts)
        if latency.itl_s is None or latency.decoding is None:
            continue
        if latency.itl_s > margin * LIMIT:
            assert window <= before
            assert window <= max(1.0, latency.decoding * LIMIT / latency.itl_s) * (1 + 1e-9)
        assert BOUNDS[0] <= window <= BOUNDS[1]


def test_the_same_page_twice_and_a_page_without_tokens_change_nothing() -> None:
    engine = Engine(0.060, 0.002)
    engine.page(20)
    window, margin = engine.latency.window, engine.latency.margin
    engine.latency.on_page(Change(0.0, itl_s=0.0, itl_tokens=0.0), 20, 20, 0, LIMIT, BOUNDS, 0.0, engine.now)
    engine.latency.on_page(Change(1.0, itl_s=0.0, itl_tokens=0.0), 20, 20, 0, LIMIT, BOUNDS, 0.0, engine.now + 1)
    engine.latency.on_page(Change(1.0), 20, 20, 0, LIMIT, BOUNDS, 0.0, engine.now + 2)
    assert (engine.latency.window, engine.latency.margin) == (window, margin)


def test_an_idle_while_is_no_evidence_of_few() -> None:
    """100 decode at 60 ms, a minute of nothing, 100 again at 200 ms: the window is 71 and a bit, not a share of it."""
    engine = Engine(0.060, 0.0)
    for _ in range(20):
        engine.page(100)
    for _ in range(30):
        engine.now += 2.0
        engine.latency.on_page(Change(2.0, itl_s=0.0, itl_tokens=0.0), 0, 0, 0, LIMIT, BOUNDS, 0.0, engine.now)
    engine.a = 0.2
    for _ in range(20):
        engine.page(100)
    assert engine.latency.window == pytest.approx(100 * 0.1425 / 0.2, rel=0.1)


def test_the_smaller_of_little_and_the_gauge_counts_but_not_a_gauge_that_dips() -> None:
    """Little's n is 10. A gauge of 8 is believed, one of 4 is not: it was read between finish and admission."""
    for gauge, expected in ((8.0, 8.0), (4.0, 10.0), (12.0, 10.0)):
        latency = Latency(8.0)
        latency.on_page(Change(1.0, itl_s=10.0, itl_tokens=100.0), gauge, 10, 0, LIMIT, BOUNDS, 0.0, 1.0)
        assert latency.decoding == expected


def test_a_window_that_nobody_uses_shrinks_towards_what_is_used() -> None:
    """2 inside at 10 ms: n L/y = 28.5. From 400 it shrinks with a time constant of 60 s; used: 2."""
    engine = Engine(0.010, 0.0, Latency(8.0))
    engine.latency.window = 400.0
    assert engine.page(2) == pytest.approx(400 * math.exp(-1 / 60))
    for _ in range(300):
        engine.page(2)
    assert engine.latency.window == pytest.approx(28.5)


def test_a_restart_clears_the_sums_and_keeps_what_was_learnt() -> None:
    engine = Engine(0.060, 0.0)
    for _ in range(20):
        engine.page(40)
    window = engine.latency.window
    engine.latency.on_page(Change(1.0, restarted=True), 0, 0, 0, LIMIT, BOUNDS, 0.0, engine.now)
    assert engine.latency.window == window
    engine.now += 1.0
    engine.latency.on_page(Change(1.0, itl_s=2.0, itl_tokens=200.0), 2, 2, 0, LIMIT, BOUNDS, 0.0, engine.now)
    assert engine.latency.itl_s == pytest.approx(0.01)  # of the new engine alone


# -- the margin -----------------------------------------------------------------------------------


def test_the_margin_falls_while_ten_seconds_are_over_the_limit() -> None:
    """160 ms on each page of a second: the tenth of them fills the 10 s. Inside is W, so nothing drains."""
    engine = Engine(0.160, 0.0, Latency(8.0))
    for _ in range(9):
        engine.page(1, inside=1)
    assert engine.latency.margin == 0.95
    for i in range(1, 8):
        engine.page(1, inside=1)
        assert engine.latency.margin == pytest.approx(0.95 - 0.01 * i)
    for _ in range(40):
        engine.page(1, inside=1)
    assert engine.latency.margin == 0.75


def test_the_margin_does_not_learn_from_an_overshoot_that_drains() -> None:
    """50 inside, W falls to less at once: over 1.25 W + 2 for as long as they are there, and 10 s more."""
    engine = Engine(0.160, 0.0, Latency(8.0))
    for _ in range(30):
        engine.page(50)
    assert engine.latency.margin == 0.95
    window = math.ceil(engine.latency.window)
    for _ in range(10):
        engine.page(1, inside=min(window, 2))
        engine.latency.window = float(window)
    assert engine.latency.margin == 0.95
    engine.page(1, inside=2)
    assert engine.latency.margin == pytest.approx(0.94)


def test_the_margin_comes_back_by_a_thousandth_a_second_while_the_window_is_full() -> None:
    engine = Engine(0.160, 0.0, Latency(8.0))
    for _ in range(20):
        engine.page(1, inside=1)
    low = engine.latency.margin
    engine.a = 0.140
    for _ in range(10):
        engine.page(1, inside=1)
    low = engine.latency.margin
    engine.page(1, inside=math.ceil(engine.latency.window))
    assert engine.latency.margin == pytest.approx(low + 0.001)
    engine.page(1, inside=0)
    assert engine.latency.margin == pytest.approx(low + 0.001)  # not full: nothing is learnt


def test_quarter_seconds_learn_as_fast_as_seconds() -> None:
    margins = []
    for seconds in (1.0, 0.25):
        engine = Engine(0.160, 0.0, Latency(8.0))
        for _ in range(int(15 / seconds)):
            engine.page(1, seconds, inside=1)
        margins.append(engine.latency.margin)
    assert margins[0] == pytest.approx(0.95 - 0.06)  # from the 10th second to the 15th
    assert margins[1] == pytest.approx(margins[0], abs=0.01)


def test_a_limit_below_the_engine_s_own_step_is_told() -> None:
    engine = Engine(0.200, 0.001)
    for _ in range(15):
        engine.page(min(8.0, math.ceil(engine.latency.window)))
    assert engine.latency.window < 4.0
    assert engine.latency.below_step
    fast = Engine(0.020, 0.001)
    for _ in range(15):
        fast.page(8)
    assert not fast.latency.below_step


# -- answers of one step --------------------------------------------------------------------------


def test_answers_that_are_done_in_one_step_open_the_window() -> None:
    """No gap between tokens is ever counted; 8 come and go in a second: W doubles. Fewer, or sooner, prove nothing."""
    latency = Latency(8.0)

    def page(freed: int, now: float) -> float:
        latency.on_page(Change(0.5, itl_s=0.0, itl_tokens=0.0), 0, 8, freed, LIMIT, BOUNDS, 0.0, now)
        return latency.window

    assert page(100, 1.0) == 8.0  # from here on it counts
    assert page(7, 1.5) == 8.0
    assert page(0, 2.5) == 8.0
    assert page(1, 3.0) == 16.0
    assert page(100, 3.5) == 16.0
    assert page(0, 4.0) == 32.0


# -- prefill --------------------------------------------------------------------------------------


def test_the_regression_finds_the_three_terms() -> None:
    """Steps of 20 ms + 0.2 ms for each of n + 0.05 ms for each prompt token in them."""
    steps = StepTime()
    found = None
    for i in range(400):
        n, per_step = 20.0 + 30 * (i % 7), 100.0 * (i % 5)
        itl = 0.020 + 0.0002 * n + 0.00005 * per_step
        found = steps.add(itl, n, per_step / itl, 1.0, 1.0)
    assert found == pytest.approx(0.00005, rel=0.05)
    first, second, _ = steps.solve()
    assert first == pytest.approx(0.020, rel=0.05)
    assert second / 100 == pytest.approx(0.0002, rel=0.05)


def test_terms_that_would_be_negative_are_dropped() -> None:
    """Latency falls as n grows: n explains nothing, and the constant is the weighted mean."""
    steps = StepTime()
    for i in range(50):
        steps.add(0.1 if i % 2 else 0.2, 100.0 if i % 2 else 10.0, 0.0, 1.0, 0.0)
    first, second, third = steps.solve()
    assert (second, third) == (0.0, 0.0)
    assert first == pytest.approx(0.15, rel=0.01)
    assert StepTime().solve() == [0.0, 0.0, 0.0]


def test_the_steady_share_of_prefill_counts_before_it_is_there() -> None:
    """Without prefill so far: y = 22 ms at 10. With 2 prompt tokens to each output token and c = 1 ms, a step of ten
    brings 20 prompt tokens: y_ss = 22 + 20 = 42 ms, n L/y_ss = 10 * 142.5 / 42. (8 would jump there at once.)"""
    latency = Latency(8.0)
    latency._steps.add = lambda *_: 0.001  # type: ignore[method-assign]
    latency.on_page(
        Change(1.0, itl_s=10.0, itl_tokens=10 / 0.022, prompt_tokens=0.0), 10, 10, 0, LIMIT, BOUNDS, 2.0, 1.0
    )
    assert latency.window == pytest.approx(10 * 0.1425 / 0.042)
    assert latency.prompt_budget == pytest.approx(2 * (0.1425 - 0.022) / 0.001)
