"""What the scraper reads, from which page, and what it makes of engines that change. Waits are for events; the only
times are lower bounds."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from scraper_case import (
    LLAMACPP_PAGE,
    NEVER_S,
    PATIENCE_S,
    VLLM_PAGE,
    Engine,
    Handler,
    answer,
    filtering,
    forever,
    scraping,
    serving,
)
from structlog.testing import capture_logs

from extproc.core.model import Sample
from extproc.engines.dialects import LLAMACPP, TENSORRT_LLM, VLLM, Dialect
from extproc.engines.scraper import FailureKind, Form


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    async with serving(engine):
        yield engine


# what is read -----------------------------------------------------------------------------------------------------


async def test_vllm_is_read_from_the_filtered_page(engine: Engine) -> None:
    async with scraping(engine.url) as scraped:
        sample = await scraped.sampled(2)
    assert sample == Sample(
        8, 2, 0.75, 6.75, 770.0, 5.0, 800.0, 3000.0, 100.0, kv_capacity_tokens=128_000, progress=3800.0
    )
    assert set(engine.asked) == {"filtered"}
    scraper = scraped.scraper
    assert (scraper.dialect, scraper.form, scraper.failing) == (VLLM, Form.FILTERED, None)
    assert scraper.names["kv_usage"] == "vllm:kv_cache_usage_perc"
    assert scraper.kv_capacity_tokens == 128_000
    assert scraper.scrapes >= 2 and not scraper.failures and scraper.faults == 0
    assert scraper.last_success_at == 100.0 and scraper.last_duration_s == 0.0


async def test_the_filter_of_the_library_that_vllm_uses(engine: Engine) -> None:
    registry = CollectorRegistry()
    Gauge("vllm:num_requests_running", "", ["engine"], registry=registry).labels("0").set(3)
    Gauge("vllm:num_requests_waiting", "", ["engine"], registry=registry).labels("0").set(1)
    Counter("vllm:generation_tokens", "", ["engine"], registry=registry).labels("0").inc(40)
    latency = Histogram("vllm:inter_token_latency_seconds", "", ["engine"], registry=registry).labels("0")
    latency.observe(0.25)
    latency.observe(0.5)
    Gauge("vllm:cache_config_info", "", ["block_size", "num_gpu_blocks"], registry=registry).labels("16", "100").set(1)
    Gauge("vllm:engine_sleep_state", "", registry=registry)
    pages: list[bytes] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        pages.append(generate_latest(registry.restricted_registry(request.query.getall("name[]"))))
        return web.Response(body=pages[-1])

    engine.filtered = handle
    async with scraping(engine.url) as scraped:
        sample = await scraped.sampled()
    assert sample == Sample(3, 1, None, 0.75, 2.0, None, 40.0, None, started=100.0, kv_capacity_tokens=1600)
    assert scraped.scraper.kv_capacity_tokens == 1600
    assert b"sleep" not in pages[0] and b"_bucket" not in pages[0]
    assert set(engine.asked) == {"filtered"}


async def test_other_engines_are_read_from_the_full_page(engine: Engine) -> None:
    engine.full = answer(LLAMACPP_PAGE)
    async with scraping(engine.url + "/", dialect=LLAMACPP) as scraped:
        sample = await scraped.sampled(2)
    assert sample == Sample(4, 9, None, 3.25, 640.0, None, 640.0, 120.0, started=100.0)
    assert set(engine.asked) == {"full"}
    assert scraped.scraper.form is Form.FULL


async def test_auto_looks_at_the_full_page_first_and_then_filters(engine: Engine) -> None:
    async with scraping(engine.url, dialect="auto") as scraped:
        assert scraped.scraper.dialect is None
        sample = await scraped.sampled(3)
    assert sample.running == 8
    assert engine.asked[:3] == ["full", "filtered", "filtered"]
    assert scraped.scraper.dialect is VLLM


async def test_auto_finds_llamacpp(engine: Engine) -> None:
    engine.full = answer(LLAMACPP_PAGE)
    async with scraping(engine.url, dialect="auto") as scraped:
        await scraped.sampled(2)
    assert (scraped.scraper.dialect, set(engine.asked)) == (LLAMACPP, {"full"})


async def test_auto_notices_another_engine_at_the_same_address(engine: Engine) -> None:
    async with scraping(engine.url, dialect="auto") as scraped:
        await scraped.sampled(2)
        engine.full = answer(LLAMACPP_PAGE)
        engine.filtered = answer(b"not found", status=404)
        await scraped.until(lambda: scraped.samples[-1].running == 4)
    assert scraped.scraper.dialect is LLAMACPP
    assert not scraped.failures


async def test_auto_and_an_unknown_page(engine: Engine) -> None:
    engine.full = answer(b"queue_size 3\n")
    async with scraping(engine.url, dialect="auto") as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.MISSING
    assert "no known engine" in failure.message


async def test_the_sample_carries_the_time_at_which_it_was_asked_for(engine: Engine) -> None:
    async def slow_clock(request: web.Request) -> web.StreamResponse:
        scraped.now += 0.5  # what the page takes
        return await filtering(VLLM_PAGE)(request)

    engine.filtered = slow_clock
    async with scraping(engine.url, interval_s=NEVER_S) as scraped:
        sample = await scraped.sampled()
    assert sample.started == 100.0
    assert scraped.scraper.last_duration_s == 0.5


# which engine -------------------------------------------------------------------------------------------------------


TRTLLM_PAGE = b"trtllm_num_requests_running 3\ntrtllm_num_requests_waiting 2\n"


def at_path(pages: dict[str, bytes]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path not in pages:
            return web.json_response([{"iter": 1}])  # as trtllm-serve answers at /metrics
        return web.Response(body=pages[request.path])

    return handle


async def test_auto_finds_a_page_that_is_elsewhere_and_notices_that_it_has_moved(engine: Engine) -> None:
    engine.full = at_path({"/prometheus/metrics": TRTLLM_PAGE})
    engine.filtered = answer(b"")
    async with scraping(engine.url, dialect="auto") as scraped:
        sample = await scraped.sampled(2)
        assert (sample.running, sample.waiting, scraped.scraper.dialect) == (3, 2, TENSORRT_LLM)
        paths = [request.path for request in engine.requests]
        assert paths[:3] == ["/metrics", "/prometheus/metrics", "/prometheus/metrics"]
        engine.full = at_path({"/metrics": LLAMACPP_PAGE})
        await scraped.until(lambda: scraped.scraper.dialect is LLAMACPP)
    assert not scraped.failures


async def test_a_known_engine_is_asked_where_it_has_its_page(engine: Engine) -> None:
    engine.full = at_path({"/prometheus/metrics": TRTLLM_PAGE})
    async with scraping(engine.url, dialect=TENSORRT_LLM) as scraped:
        await scraped.sampled(2)
    assert {request.path for request in engine.requests} == {"/prometheus/metrics"}


async def test_who_answers_is_told_at_first_and_when_another_may_be_there(engine: Engine) -> None:
    told: list[tuple[Dialect, int]] = []
    async with scraping(
        engine.url, dialect="auto", on_engine=lambda dialect: told.append((dialect, len(scraped.samples)))
    ) as scraped:
        await scraped.sampled(3)
        assert told == [(VLLM, 0)]  # before its first sample, and once
        engine.full, engine.filtered = answer(LLAMACPP_PAGE), answer(b"", status=404)
        await scraped.until(lambda: scraped.samples[-1].running == 4)
        await scraped.sampled(2)
        assert [dialect for dialect, _ in told] == [VLLM, LLAMACPP]
        engine.full = answer(b"", status=500)
        await scraped.failed()
        engine.full = answer(LLAMACPP_PAGE)
        await scraped.sampled(2)
        assert len(told) == 2  # it was there all the time
        engine.full = hang_up
        assert (await scraped.failed()).kind is FailureKind.REFUSED
        engine.full = answer(LLAMACPP_PAGE)
        await scraped.sampled(2)
    assert [dialect for dialect, _ in told] == [VLLM, LLAMACPP, LLAMACPP]


async def hang_up(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def test_a_crash_in_on_engine_does_not_lose_the_sample(engine: Engine) -> None:
    def crash(_: Dialect) -> None:
        raise RuntimeError("on purpose")

    with capture_logs():
        async with scraping(engine.url, on_engine=crash) as scraped:
            assert (await scraped.sampled()).running == 8
    assert scraped.scraper.faults == 1


async def test_what_an_engine_cannot_tell_is_said_once(engine: Engine) -> None:
    engine.full = answer(LLAMACPP_PAGE)
    with capture_logs() as logs:
        async with scraping(engine.url, dialect=LLAMACPP) as scraped:
            await scraped.sampled(3)
            engine.full = hang_up
            await scraped.failed()
            engine.full = answer(LLAMACPP_PAGE)
            await scraped.sampled(3)
    said = [log["signals"] for log in logs if log["event"] == "this engine does not tell"]
    assert len(said) == 1 and {"preemptions", "adapters", "ttft"} <= set(said[0])


async def test_a_page_that_has_not_changed_is_a_new_reading(engine: Engine) -> None:
    async with scraping(engine.url) as scraped:
        first = await scraped.sampled()
        scraped.now += 1.0
        await scraped.until(lambda: scraped.samples[-1].started == 101.0)
        assert scraped.samples[-1] == dataclasses.replace(first, started=101.0)
        engine.filtered = filtering(VLLM_PAGE.replace(b'waiting{engine="1",', b'waiting{engine="1",x="",'))
        await scraped.sampled(2)
        engine.filtered = filtering(VLLM_PAGE.replace(b'"base \\"v2\\""} 5.0', b'"base \\"v2\\""} 6.0', 1))
        await scraped.until(lambda: scraped.samples[-1].running == 9)
    assert not scraped.failures


# the filter that is not understood --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reply",
    [
        answer(b""),  # several processes share the metrics
        answer(b"not found", status=404),
        answer(b"", status=307, Location="/metrics"),
        answer(b"<html>welcome</html>"),
        answer(b"vllm:num_requests_running{\n"),
    ],
    ids=["empty", "404", "redirect", "html", "malformed"],
)
async def test_the_full_page_takes_its_place_in_the_same_scrape(engine: Engine, reply: Handler) -> None:
    engine.filtered = reply
    async with scraping(engine.url) as scraped:
        sample = await scraped.sampled(3)
    assert sample.running == 8
    assert engine.asked[:4] == ["filtered", "full", "full", "full"]
    assert scraped.scraper.form is Form.FULL
    assert not scraped.failures


async def test_the_filter_is_tried_again_after_five_minutes(engine: Engine) -> None:
    engine.filtered = answer(b"")
    async with scraping(engine.url) as scraped:
        await scraped.sampled(2)
        scraped.now += 299.0
        await scraped.sampled(3)
        assert engine.asked.count("filtered") == 1
        scraped.now += 1.0
        await scraped.until(lambda: engine.asked.count("filtered") == 2)
        assert scraped.scraper.form is Form.FULL
        engine.filtered = filtering(VLLM_PAGE)
        scraped.now += 301.0
        await scraped.until(lambda: scraped.scraper.form is Form.FILTERED)
    assert not scraped.failures


async def test_an_engine_in_trouble_is_not_asked_for_the_full_page_as_well(engine: Engine) -> None:
    engine.filtered = answer(b"overloaded", status=503)
    async with scraping(engine.url) as scraped:
        failure = await scraped.failed(2)
    assert failure.kind is FailureKind.STATUS
    assert set(engine.asked) == {"filtered"}


async def test_when_neither_page_helps_the_filter_is_not_blamed(engine: Engine) -> None:
    engine.filtered = engine.full = answer(b"up 1\n")
    async with scraping(engine.url) as scraped:
        failure = await scraped.failed()
        assert failure.kind is FailureKind.MISSING
        assert "vllm:num_requests_running is not on the page" in failure.message
        engine.filtered = filtering(VLLM_PAGE)
        await scraped.sampled()
    assert scraped.scraper.form is Form.FILTERED


# faults and the end -----------------------------------------------------------------------------------------------


async def test_a_crash_in_a_callback_is_logged_once_and_the_loop_goes_on(engine: Engine) -> None:
    calls = asyncio.Queue[Sample]()

    def crash(sample: Sample) -> None:
        calls.put_nowait(sample)
        raise RuntimeError("on purpose")

    with capture_logs() as logs:
        async with scraping(engine.url, on_sample=crash) as scraped, asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                await calls.get()
            assert not scraped.task.done()
    assert scraped.scraper.faults >= 2
    assert [log["event"] for log in logs].count("fault while scraping") == 1


async def test_a_crash_in_busy_or_on_failure_does_not_end_the_loop(engine: Engine) -> None:
    def crash(*_: object) -> bool:
        raise RuntimeError("on purpose")

    engine.filtered = answer(b"", status=500)
    with capture_logs():
        async with scraping(engine.url, busy=crash, on_failure=crash) as scraped:
            await engine.requested(2)
            engine.filtered = filtering(VLLM_PAGE)
            await scraped.sampled()
    assert scraped.scraper.faults >= 2


async def test_only_changes_are_logged(engine: Engine) -> None:
    def events() -> list[tuple[str, Any]]:
        return [(log["event"], log.get("kind", log.get("after"))) for log in logs]

    chosen = [("metrics page chosen", None), ("metric names in use", None)]
    with capture_logs() as logs:
        async with scraping(engine.url) as scraped:
            await scraped.sampled(3)
            assert events() == chosen
            engine.filtered = answer(b"", status=500)
            await scraped.failed(3)
            assert events() == [*chosen, ("metrics not read", "status")]
            engine.filtered = filtering(VLLM_PAGE)
            await scraped.sampled(3)
            assert events() == [*chosen, ("metrics not read", "status"), ("metrics read again", "status")]
            # the same failure once more within a minute is not told, after a minute it is
            engine.filtered = answer(b"", status=500)
            await scraped.failed(2)
            engine.filtered = filtering(VLLM_PAGE)
            await scraped.sampled(2)
            assert len(events()) == 4
            scraped.now += 60.0
            engine.filtered = answer(b"", status=500)
            await scraped.failed(2)
            assert events()[4:] == [("metrics not read", "status")]
    assert all(log["endpoint"] == "engine-a" for log in logs)


@pytest.mark.parametrize("moment", ["in a request", "in a pause", "in an idle pause"])
async def test_cancellation_ends_it_anywhere(engine: Engine, moment: str) -> None:
    if moment == "in a request":
        engine.filtered = forever()
    async with scraping(engine.url, interval_s=NEVER_S, busy=lambda: moment == "in a pause") as scraped:
        await (engine.requested(1) if moment == "in a request" else scraped.sampled())
        scraped.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            async with asyncio.timeout(PATIENCE_S):
                await scraped.task
    assert scraped.scraper.faults == 0
    assert not scraped.failures
