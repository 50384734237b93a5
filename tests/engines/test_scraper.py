"""The scraper against engines that behave and that do not. Waits are for events; the only times are lower bounds."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from structlog.testing import capture_logs

from extproc.core.model import Sample
from extproc.engines.dialect import LLAMACPP, VLLM
from extproc.engines.scraper import FailureKind, Form, ScrapeFailure, Scraper

PAGES = Path(__file__).parent / "pages"
VLLM_PAGE = (PAGES / "vllm_two_engines.txt").read_bytes()
LLAMACPP_PAGE = (PAGES / "llamacpp.txt").read_bytes()
PATIENCE_S = 20.0  # until a test counts as hung; never reached by one that passes
NEVER_S = 3600.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Engine:
    """A server whose pages a test exchanges while it runs. `asked` has a request's kind for each one that came."""

    def __init__(self) -> None:
        self.full: Handler = answer(VLLM_PAGE)
        self.filtered: Handler = filtering(VLLM_PAGE)
        self.asked: list[str] = []
        self.requests: list[web.Request] = []
        self.came = asyncio.Condition()
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        filtered = request.path == "/metrics/" and "name[]" in request.query
        assert filtered or (request.path == "/metrics" and not request.query), request.rel_url
        async with self.came:
            self.asked.append("filtered" if filtered else "full")
            self.requests.append(request)
            self.came.notify_all()
        return await (self.filtered if filtered else self.full)(request)

    async def requested(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self.came:
            await self.came.wait_for(lambda: len(self.asked) >= count)


def answer(body: bytes, status: int = 200, **headers: str) -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return web.Response(body=body, status=status, headers=named, content_type="text/plain")

    return handle


def filtering(page: bytes) -> Handler:
    """Like vLLM's server: only the lines of the samples that the query names."""

    async def handle(request: web.Request) -> web.StreamResponse:
        wanted = tuple(name + end for name in request.query.getall("name[]") for end in "{ ")
        lines = [line for line in page.decode().splitlines(keepends=True) if line.startswith(wanted)]
        return web.Response(text="".join(lines))

    return handle


def forever() -> Handler:
    async def handle(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(NEVER_S)
        raise AssertionError

    return handle


@contextlib.asynccontextmanager
async def serving(engine: Engine) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get("/{path:.*}", engine.handle)
    server = TestServer(app, handler_cancellation=True)
    await server.start_server(shutdown_timeout=0)
    engine.url = str(server.make_url(""))
    try:
        yield
    finally:
        await server.close()


@pytest.fixture
async def engine() -> AsyncIterator[Engine]:
    engine = Engine()
    async with serving(engine):
        yield engine


@contextlib.asynccontextmanager
async def raw_server(reply: bytes) -> AsyncIterator[str]:
    """Answers each connection with these bytes and closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(reply)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Scraped:
    """A running scraper and what it has reported."""

    def __init__(self) -> None:
        self.now = 100.0
        self.busy = True
        self.samples: list[Sample] = []
        self.failures: list[ScrapeFailure] = []
        self.reported = asyncio.Event()
        self.scraper: Scraper
        self.task: asyncio.Task[None]

    def on_sample(self, sample: Sample) -> None:
        self.samples.append(sample)
        self.reported.set()

    def on_failure(self, failure: ScrapeFailure) -> None:
        self.failures.append(failure)
        self.reported.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self.reported.clear()
                await self.reported.wait()

    async def sampled(self, count: int = 1) -> Sample:
        """The sample that is `count` further on."""
        goal = len(self.samples) + count
        await self.until(lambda: len(self.samples) >= goal)
        return self.samples[-1]

    async def failed(self, count: int = 1) -> ScrapeFailure:
        goal = len(self.failures) + count
        await self.until(lambda: len(self.failures) >= goal)
        return self.failures[-1]


@contextlib.asynccontextmanager
async def scraping(url: str, **settings: Any) -> AsyncIterator[Scraped]:
    scraped = Scraped()
    scraped.scraper = Scraper(
        "engine-a",
        url,
        **{
            "dialect": VLLM,
            "interval_s": 0.001,
            "idle_interval_s": NEVER_S,
            "timeout_s": PATIENCE_S,
            "on_sample": scraped.on_sample,
            "on_failure": scraped.on_failure,
            "busy": lambda: scraped.busy,
            "clock": lambda: scraped.now,
            **settings,
        },
    )
    scraped.task = asyncio.create_task(scraped.scraper.run())
    try:
        yield scraped
    finally:
        scraped.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await scraped.task


# what is read -----------------------------------------------------------------------------------------------------


async def test_vllm_is_read_from_the_filtered_page(engine: Engine) -> None:
    async with scraping(engine.url) as scraped:
        sample = await scraped.sampled(2)
    assert sample == Sample(8, 2, 0.75, 6.75, 770.0, 5.0, 800.0, 3000.0, started=100.0, kv_capacity_tokens=128_000)
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
    Gauge("vllm:num_requests_swapped", "", registry=registry)
    pages: list[bytes] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        pages.append(generate_latest(registry.restricted_registry(request.query.getall("name[]"))))
        return web.Response(body=pages[-1])

    engine.filtered = handle
    async with scraping(engine.url) as scraped:
        sample = await scraped.sampled()
    assert sample == Sample(3, 1, None, 0.75, 2.0, None, 40.0, None, started=100.0, kv_capacity_tokens=1600)
    assert scraped.scraper.kv_capacity_tokens == 1600
    assert b"swapped" not in pages[0] and b"_bucket" not in pages[0]
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
    engine.full = answer(b"tgi_queue_size 3\n")
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


# failures ---------------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_connection_refused() -> None:
    async with scraping(f"http://127.0.0.1:{free_port()}") as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.REFUSED
    assert failure.at == 100.0
    assert scraped.scraper.failures[FailureKind.REFUSED] >= 1
    assert scraped.scraper.last_failure is not None and scraped.scraper.failing is FailureKind.REFUSED


async def test_an_engine_that_goes_away_and_comes_back() -> None:
    engine = Engine()
    async with serving(engine), scraping(engine.url) as scraped:
        await scraped.sampled()
        port = int(engine.url.rsplit(":", 1)[1].strip("/"))
    async with scraping(f"http://127.0.0.1:{port}") as scraped:
        await scraped.failed(2)
        back = web.Application()
        back.router.add_get("/{path:.*}", engine.handle)
        server = TestServer(back, port=port)
        await server.start_server()
        try:
            await scraped.sampled(2)
        finally:
            await server.close()
    assert scraped.failures[-1].kind is FailureKind.REFUSED


async def test_an_engine_slower_than_the_timeout(engine: Engine) -> None:
    engine.filtered = forever()
    async with scraping(engine.url, timeout_s=0.05) as scraped:
        failure = await scraped.failed(2)
        assert failure.kind is FailureKind.TIMEOUT
        assert failure.message == "no page within 0.05 s"
        engine.filtered = filtering(VLLM_PAGE)
        scraped.scraper._timeout_s = PATIENCE_S  # so that a slow machine passes too
        await scraped.sampled()
    assert "full" not in engine.asked


async def test_a_page_that_stops_in_the_middle_is_a_timeout(engine: Engine) -> None:
    async def stall(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(LLAMACPP_PAGE[:100])
        await asyncio.sleep(NEVER_S)
        raise AssertionError

    engine.full = stall
    async with scraping(engine.url, dialect=LLAMACPP, timeout_s=0.1) as scraped:
        assert (await scraped.failed()).kind is FailureKind.TIMEOUT


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (answer(b"no", status=500), FailureKind.STATUS, "HTTP status 500"),
        (answer(b"no", status=404), FailureKind.STATUS, "HTTP status 404"),
        (answer(b"", status=302, Location="/login"), FailureKind.STATUS, "HTTP status 302, to /login"),
        (answer(b"<html><body>Sign in</body></html>"), FailureKind.MISSING, "llamacpp:requests_processing"),
        (answer(b""), FailureKind.MISSING, "llamacpp:requests_processing"),
        (answer(bytes(range(256)) * 200), FailureKind.MISSING, "llamacpp:requests_processing"),
        (answer(LLAMACPP_PAGE[:-2]), FailureKind.MALFORMED, "llamacpp:requests_deferred"),
        (answer(LLAMACPP_PAGE.replace(b"deferred 9", b"deferred -1")), FailureKind.MISSING, "cannot be true"),
        (answer(b"\x1f\x8b no gzip", Content_Encoding="gzip"), FailureKind.MALFORMED, "gzip"),
    ],
    ids=["500", "404", "redirect", "html", "empty", "binary", "half a line", "minus one", "bad gzip"],
)
async def test_answers_that_are_no_metrics(engine: Engine, reply: Handler, kind: FailureKind, said: str) -> None:
    engine.full = reply
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
        assert failure.kind is kind
        assert said in failure.message
        assert not scraped.samples
        engine.full = answer(LLAMACPP_PAGE)
        assert (await scraped.sampled()).waiting == 9
    assert {request.path for request in engine.requests} == {"/metrics"}  # nobody followed the redirect


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (b"", FailureKind.REFUSED),
        (b"SSH-2.0-OpenSSH_9.2\r\n", FailureKind.MALFORMED),
        (HEAD + b"Content-Length: 500\r\n\r\n" + LLAMACPP_PAGE[:60], FailureKind.MALFORMED),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\nllama", FailureKind.MALFORMED),
        # without a length the end of the connection is the end of the page: only the open line tells
        (HEAD + b"Connection: close\r\n\r\n" + LLAMACPP_PAGE[:-2], FailureKind.MALFORMED),
    ],
    ids=["closed without an answer", "not HTTP", "shorter than its length", "half a chunk", "cut off"],
)
async def test_answers_that_break_off(reply: bytes, kind: FailureKind) -> None:
    async with raw_server(reply) as url, scraping(url, dialect=LLAMACPP) as scraped:
        failure = await scraped.failed()
    assert failure.kind is kind, failure.message


async def test_a_page_of_fifty_megabytes_is_left_unread(engine: Engine) -> None:
    sent = 0

    async def flood(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        sent = 0
        response = web.StreamResponse()
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            for _ in range(50):
                await response.write(b"x 1\n" * 250_000)
                sent += 1
        return response

    engine.full = flood
    async with scraping(engine.url, dialect=LLAMACPP, interval_s=NEVER_S) as scraped:
        failure = await scraped.failed()
    assert failure.kind is FailureKind.TOO_LARGE
    assert failure.message == "the page has more than 4194304 bytes"
    assert sent < 40  # megabytes: 4 read, the rest of it in socket buffers


async def test_a_small_page_that_unpacks_to_a_large_one_is_too_large(engine: Engine) -> None:
    engine.full = answer(gzip.compress(b"x 1\n" * 2_000_000), Content_Encoding="gzip")
    async with scraping(engine.url, dialect=LLAMACPP, interval_s=NEVER_S) as scraped:
        assert (await scraped.failed()).kind is FailureKind.TOO_LARGE


async def test_gzip_is_not_asked_for_and_is_understood(engine: Engine) -> None:
    engine.full = answer(gzip.compress(LLAMACPP_PAGE), Content_Encoding="gzip")
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        assert (await scraped.sampled()).waiting == 9
    assert engine.requests[0].headers["Accept-Encoding"] == "identity"


async def test_impossible_values_are_counted_whether_or_not_there_is_a_sample(engine: Engine) -> None:
    engine.full = answer(LLAMACPP_PAGE.replace(b"deferred 9", b"deferred -1"))
    async with scraping(engine.url, dialect=LLAMACPP) as scraped:
        await scraped.failed()
        assert scraped.scraper.ignored["waiting"] >= 1
        engine.full = answer(LLAMACPP_PAGE.replace(b"prompt_tokens_total 120", b"prompt_tokens_total NaN"))
        assert (await scraped.sampled()).prompt_tokens is None
    assert scraped.scraper.ignored["prompt_tokens"] >= 1


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000", "ftp://h/", "http://", "/metrics"])
def test_an_address_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="engine-a"):
        Scraper(
            "engine-a",
            url,
            interval_s=1.0,
            idle_interval_s=1.0,
            timeout_s=1.0,
            on_sample=lambda _: None,
            on_failure=lambda _: None,
            busy=lambda: True,
            clock=lambda: 0.0,
        )


# rhythm -----------------------------------------------------------------------------------------------------------


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
