"""When pages are asked for: the pauses by a clock of the test's own, and what a server sees of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web
from scraper_case import NEVER_S, VLLM_PAGE, Engine, filtering, forever, scraping, serving

from extproc.config.metrics import Metrics
from extproc.engines import rhythm as rhythm_module
from extproc.engines.access import Access
from extproc.engines.rhythm import BURST, Rhythm


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    async with serving(engine):
        yield engine


# pauses, by a clock of their own ------------------------------------------------------------------------------------


class Timed(asyncio.SelectorEventLoop):
    """Time passes only where the loop would wait for it, and then at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.waits = 0  # how often the loop went to sleep
        select = self._selector.select  # type: ignore[attr-defined]

        def pass_time(timeout: float | None = None) -> Any:
            if timeout is None:
                raise AssertionError("it would wait for ever")
            self.waits += timeout > 0
            self.now += max(0.0, timeout)
            return select(0)

        self._selector.select = pass_time  # type: ignore[attr-defined]

    def time(self) -> float:
        return self.now


@pytest.fixture
def loop() -> Iterator[Timed]:
    loop = Timed()
    yield loop
    loop.close()


@pytest.fixture(autouse=True)
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rhythm_module.random, "uniform", lambda _low, _high: 0.0)


def ends(
    loop: Timed,
    *happens: tuple[float, str],
    took: float = 0.0,
    busy: bool = True,
    stretch: float = 1.0,
    rhythm: Rhythm,
) -> float:
    """Seconds from asking for a page, which takes `took`, to asking for the next. `happens`: (seconds after asking,
    what)."""

    async def one() -> float:
        asked = loop.time()
        rhythm.asked()
        for after, what in happens:
            loop.call_at(asked + after, getattr(rhythm, what))
        await asyncio.sleep(took)
        await rhythm.pause(busy, stretch)
        return loop.time() - asked

    return loop.run_until_complete(one())


def burst(at: float) -> list[tuple[float, str]]:
    return [(at, "released")] * BURST


@pytest.mark.parametrize(
    ("settings", "happens", "seconds"),
    [
        # at work: the interval, and as much rest as the page took
        ({}, [], 1.0),
        ({"took": 0.2}, [], 1.0),
        ({"took": 0.7}, [], 1.4),
        ({}, [(0.1, "wake")], 1.0),
        # idle: 4 s from 1000.0 and from a moment that is no full quarter
        ({"busy": False}, [], 4.0),
        ({"busy": False, "took": 0.1}, [], 4.0),
        ({"busy": False, "took": 3.0}, [], 6.0),
        # a request comes to an idle endpoint
        ({"busy": False}, [(2.0, "wake")], 2.0),
        ({"busy": False}, [(0.3, "wake")], 1.0),
        ({"busy": False, "took": 0.6}, [(0.3, "wake")], 1.2),
        ({"busy": False}, [(2.0, "released")], 2.11),
        ({"busy": False}, [(2.0, "wake"), (2.0, "released")], 2.0),
        ({"busy": False}, [(0.3, "released")], 1.0),
        ({"busy": False, "took": 0.5}, [(0.3, "released")], 1.0),
        # several at once: as soon as a page can show them, though not before the engine has rested
        ({}, burst(0.05), 0.16),
        ({}, burst(0.05)[1:], 1.0),
        ({}, burst(0.95), 1.0),
        ({"took": 0.3}, burst(0.2), 0.6),
        ({"took": 0.3}, burst(0.55), 0.66),
        ({"took": 0.05}, [*burst(0.02), *burst(0.5)], 0.13),
        ({"busy": False}, burst(2.0), 2.11),
        # other replicas read it too
        ({"stretch": 3.0}, [], 3.0),
        ({"stretch": 3.0, "took": 0.7}, [], 3.0),
        ({"stretch": 3.0}, [(0.1, "wake")], 3.0),
        ({"stretch": 3.0}, burst(0.05), 0.16),
        ({"stretch": 3.0, "busy": False}, [], 4.0),
        ({"stretch": 3.0, "busy": False}, [(0.3, "wake")], 1.0),
    ],
)
def test_a_pause_ends(loop: Timed, settings: dict[str, Any], happens: list[tuple[float, str]], seconds: float) -> None:
    assert ends(loop, *happens, **settings, rhythm=Rhythm(1.0, 4.0)) == pytest.approx(seconds)


def test_idle_pauses_of_all_endpoints_end_at_the_same_moments(loop: Timed) -> None:
    loop.now = 1000.1
    assert ends(loop, busy=False, rhythm=Rhythm(1.0, 4.0)) == pytest.approx(4.15)  # 1004.25
    assert ends(loop, rhythm=Rhythm(1.0, 4.0)) == pytest.approx(1.0)


@pytest.mark.parametrize("jitter", [-0.1, 0.1])
def test_pauses_vary_by_a_tenth(loop: Timed, monkeypatch: pytest.MonkeyPatch, jitter: float) -> None:
    monkeypatch.setattr(rhythm_module.random, "uniform", lambda low, high: low if jitter < 0 else high)
    assert ends(loop, rhythm=Rhythm(1.0, 4.0)) == pytest.approx(1.0 + jitter)


def test_the_default_idle_pause_is_shorter_than_engines_keep_a_connection(
    loop: Timed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rhythm_module.random, "uniform", lambda _low, high: high)
    loop.now = 1000.01
    defaults = Metrics()
    assert ends(loop, busy=False, rhythm=Rhythm(defaults.interval, defaults.idle_interval)) < 5.0


def test_a_short_interval_needs_no_early_page(loop: Timed) -> None:
    assert ends(loop, *burst(0.01), rhythm=Rhythm(0.1, 4.0)) == pytest.approx(0.1)


def test_a_second_burst_within_a_second_waits_for_the_regular_page(loop: Timed) -> None:
    rhythm = Rhythm(0.4, 4.0)
    assert ends(loop, *burst(0.0), rhythm=rhythm) == pytest.approx(0.11)
    assert ends(loop, *burst(0.1), rhythm=rhythm) == pytest.approx(0.4)  # 0.21 after the first burst
    assert ends(loop, *burst(0.1), rhythm=rhythm) == pytest.approx(0.4)  # 0.61
    assert ends(loop, *burst(0.1), rhythm=rhythm) == pytest.approx(0.21)  # 1.01


def test_where_pages_are_stretched_so_is_the_second_between_bursts(loop: Timed) -> None:
    rhythm = Rhythm(0.4, 4.0)

    def after(at: float) -> float:
        return ends(loop, *burst(at), stretch=2.0, rhythm=rhythm)

    assert after(0.01) == pytest.approx(0.12)
    assert after(0.1) == pytest.approx(0.8)  # 0.21 after the first burst
    assert after(0.1) == pytest.approx(0.8)  # 1.01
    assert after(0.1) == pytest.approx(0.8)  # 1.81
    assert after(0.1) == pytest.approx(0.21)  # 2.61


def test_a_steady_stream_adds_a_page_a_second_at_most(loop: Timed) -> None:
    rhythm, pages = Rhythm(0.25, 4.0), 0

    async def stream() -> None:
        while True:
            await asyncio.sleep(0.02)
            rhythm.released()

    async def ten_seconds() -> None:
        nonlocal pages
        task, until = asyncio.ensure_future(stream()), loop.time() + 10.0
        while loop.time() < until:
            rhythm.asked()
            pages += 1
            await rhythm.pause(True)
        task.cancel()

    loop.run_until_complete(ten_seconds())
    assert 40 < pages <= 40 + 10 + 1


def test_nothing_wakes_up_within_a_pause(loop: Timed) -> None:
    assert ends(loop, busy=False, rhythm=Rhythm(1.0, 3600.0)) == pytest.approx(3600.0)
    assert loop.waits == 1


def test_a_pause_that_is_cancelled_leaves_no_timer(loop: Timed) -> None:
    async def cancelled() -> None:
        rhythm = Rhythm(1.0, 4.0)
        rhythm.asked()
        task = asyncio.ensure_future(rhythm.pause(False))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        rhythm.wake()
        for _ in range(BURST):
            rhythm.released()

    loop.run_until_complete(cancelled())
    assert all(handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


def test_wakes_and_releases_before_the_first_page_are_harmless(loop: Timed) -> None:
    async def before() -> Rhythm:
        rhythm = Rhythm(1.0, 4.0)
        rhythm.wake()
        for _ in range(2 * BURST):
            rhythm.released()
        return rhythm

    assert ends(loop, busy=False, rhythm=loop.run_until_complete(before())) == pytest.approx(4.0)


# as engines see it --------------------------------------------------------------------------------------------------


async def test_wake_ends_an_idle_pause(engine: Engine) -> None:
    async with scraping(engine.url, busy=lambda: False) as scraped:
        await scraped.sampled()
        for woken in (1, 2, 3):
            scraped.scraper.wake()
            await scraped.sampled()
            await asyncio.sleep(0.02)  # twenty intervals: one wake is one reading
            assert len(engine.asked) == 1 + woken


async def test_a_wake_during_a_scrape_is_not_lost(engine: Engine) -> None:
    held = asyncio.Event()

    async def hold(request: web.Request) -> web.StreamResponse:
        await held.wait()
        return await filtering(VLLM_PAGE)(request)

    engine.filtered = hold
    async with scraping(engine.url) as scraped:
        scraped.busy = False
        await engine.requested(1)
        scraped.scraper.wake()  # the page under way may be from before the request
        held.set()
        await scraped.sampled(2)


async def test_an_idle_endpoint_is_left_alone(engine: Engine) -> None:
    async with scraping(engine.url, busy=lambda: False) as scraped:
        await scraped.sampled()
        await asyncio.sleep(0.05)  # fifty intervals; a slow machine makes it easier, not harder
        assert len(engine.asked) == 1


async def test_wake_does_not_hurry_a_busy_scraper(engine: Engine) -> None:
    async with scraping(engine.url, interval_s=NEVER_S) as scraped:
        await scraped.sampled()
        for _ in range(5):
            scraped.scraper.wake()
            await asyncio.sleep(0.01)
        assert len(engine.asked) == 1


async def test_an_idle_endpoint_is_read_at_its_own_interval(engine: Engine) -> None:
    async with scraping(engine.url, busy=lambda: False, idle_interval_s=0.002) as scraped:
        await scraped.sampled(3)


async def test_how_far_pages_are_apart_is_asked_anew_for_each(engine: Engine) -> None:
    times = iter([1.0, 2.0])

    def stretch() -> float:
        return next(times, NEVER_S * 1000.0)

    async with scraping(engine.url, stretch=stretch) as scraped:
        await scraped.sampled(3)
        await asyncio.sleep(0.05)  # fifty intervals; a slow machine makes it easier, not harder
        assert len(engine.asked) == 3


async def test_a_fault_in_what_says_how_far_apart_stops_nothing(engine: Engine) -> None:
    async with scraping(engine.url, stretch=lambda: 1 / 0) as scraped:
        await scraped.sampled(3)
        assert scraped.scraper.faults >= 2


async def test_one_scrape_at_a_time_over_one_connection(engine: Engine) -> None:
    inside = most = 0

    async def count(request: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        scraped.scraper.wake()
        await asyncio.sleep(0.005)
        inside -= 1
        return await filtering(VLLM_PAGE)(request)

    engine.filtered = count
    async with scraping(engine.url) as scraped:
        await scraped.sampled(5)
        # keep-alive: the client's port is the same each time
        ports = {request.transport.get_extra_info("peername")[1] for request in engine.requests if request.transport}
    assert most == 1
    assert len(ports) == 1


@pytest.mark.slow
async def test_a_slow_engine_gets_as_much_rest_as_work(engine: Engine) -> None:
    loop = asyncio.get_running_loop()
    answered: list[float] = []
    rests: list[float] = []

    async def slow(request: web.Request) -> web.StreamResponse:
        if answered:
            rests.append(loop.time() - answered[-1])
        await asyncio.sleep(0.1)
        answered.append(loop.time())
        return await filtering(VLLM_PAGE)(request)

    engine.filtered = slow
    async with scraping(engine.url, interval_s=0.001) as scraped:
        await scraped.sampled(3)
    assert min(rests) >= 0.09


async def test_a_burst_brings_the_next_page_forward(engine: Engine) -> None:
    async with scraping(engine.url, interval_s=NEVER_S) as scraped:
        await scraped.sampled()
        for _ in range(BURST):
            scraped.scraper.released()
        await scraped.sampled()
    assert len(engine.asked) == 2


async def test_a_slow_engine_delays_no_other(engine: Engine) -> None:
    slow = Engine()
    slow.filtered = forever()
    access = Access()  # of one pool
    async with serving(slow), scraping(slow.url, access=access) as waits, scraping(engine.url, access=access) as quick:
        await slow.requested(1)
        await quick.sampled(20)
        assert slow.asked == ["filtered"]
        assert not waits.samples and not waits.failures
