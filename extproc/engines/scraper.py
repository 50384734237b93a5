"""Reads one endpoint's metrics page again and again, and hands on samples and failures.

Each endpoint has a scraper of its own, with its own connection: a slow engine delays nobody else's reading. At most one
request is under way, and an engine is asked for at most half of the time: rendering the page costs vLLM's API server
time that it serves tokens with (about 14 ms of its event loop for the full page, 2 ms for one that is filtered to the
names we read, `/metrics/?name[]=...`, where the slash before the question mark matters).

vLLM answers the filter with an empty page when several processes share the metrics. Then the full page is read in its
place, and the filter is tried again after five minutes.

While requests are held or in flight the endpoint is read every `interval_s`, else every `idle_interval_s`; `wake` ends
an idle pause. A failure is reported, never repaired by a guess: what to do without readings is the window's business.
Nothing that a page, a network or a callback does ends the loop; only cancellation does.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import quote, urlsplit

import aiohttp
import structlog

from extproc.core.model import Sample
from extproc.engines.dialect import ALL_SAMPLE_NAMES, Dialect, MissingSignalError, Reading, detect
from extproc.engines.exposition import MetricsError, Samples, parse

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024  # a vLLM page has 60 KB; with many LoRA adapters some hundreds
FILTER_RETRY_S: Final = 300.0
TELL_AGAIN_S: Final = 60.0
_JITTER: Final = 0.1  # of a pause, so that scrapers do not march in step
_CHUNK_BYTES: Final = 65_536
_HEADERS: Final = {
    # compressing costs the engine's event loop more than the bytes cost the network
    "Accept-Encoding": "identity",
    "Accept": "text/plain;version=0.0.4",
    "User-Agent": "fairlane",
}


_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})


class FailureKind(StrEnum):
    REFUSED = "refused"  # no connection, or it was closed without an answer
    TIMEOUT = "timeout"
    STATUS = "status"  # not 200; redirects are not followed
    MALFORMED = "malformed"  # not HTTP, cut off, or a wanted sample that cannot be read
    MISSING = "missing"  # 200 without the series, or with values that cannot be true
    TOO_LARGE = "too_large"


class Form(StrEnum):
    """Which page is read."""

    FILTERED = "filtered"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    kind: FailureKind
    message: str
    at: float  # clock time of the failure, seconds


class _ScrapeError(Exception):
    def __init__(
        self, kind: FailureKind, message: str, *, status: int | None = None, ignored: Mapping[str, int] = _NOTHING
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status
        self.ignored = ignored

    @property
    def may_be_the_filter(self) -> bool:
        """Whether the full page is worth asking for: no answer or a server's fault says nothing about the filter."""
        if self.status is not None:
            return self.status < 500
        return self.kind in (FailureKind.MISSING, FailureKind.MALFORMED)


class Scraper:
    """Scrapes one endpoint until cancelled. To be used from one event loop.

    `dialect`: the engine's, or "auto" to find it out from the full page. Times in seconds, by `clock`. `busy` says
    whether requests wait for or are with the endpoint. The callbacks are called in the loop and must not block.

    The public attributes are for telemetry and are written by the scraper alone.
    """

    def __init__(
        self,
        endpoint_name: str,
        base_url: str,
        *,
        dialect: Dialect | Literal["auto"] = "auto",
        interval_s: float,
        idle_interval_s: float,
        timeout_s: float,
        on_sample: Callable[[Sample], object],
        on_failure: Callable[[ScrapeFailure], object],
        busy: Callable[[], bool],
        clock: Callable[[], float],
        max_page_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        self.endpoint_name = endpoint_name
        self.scrapes = 0
        self.failures: Counter[FailureKind] = Counter()
        self.faults = 0  # exceptions of callbacks or our own: mistakes in the code
        self.ignored: Counter[str] = Counter()  # signal -> values dropped because they cannot be true
        self.last_duration_s: float | None = None
        self.last_success_at: float | None = None
        self.last_failure: ScrapeFailure | None = None
        self.failing: FailureKind | None = None  # None: the last scrape gave a sample, or none was made yet
        self.dialect: Dialect | None = None if dialect == "auto" else dialect
        self.form: Form | None = None  # of the last good reading
        self.names: Mapping[str, str] = MappingProxyType({})  # signal -> sample name in use
        self.kv_capacity_tokens: int | None = None

        self._auto = dialect == "auto"
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"endpoint {endpoint_name}: {base_url!r} is no http or https URL")
        self._full_url = base_url.rstrip("/") + "/metrics"
        self._interval_s = interval_s
        self._idle_interval_s = idle_interval_s
        self._timeout_s = timeout_s
        self._max_page_bytes = max_page_bytes
        self._on_sample = on_sample
        self._on_failure = on_failure
        self._busy = busy
        self._clock = clock

        self._woken = asyncio.Event()
        self._filter_retry_at = float("-inf")
        self._told: FailureKind | None = None  # the failure that the log speaks of last; None: all is well
        self._told_at: dict[FailureKind, float] = {}
        self._last_fault = ""
        self._log = structlog.get_logger(endpoint=endpoint_name)

    def wake(self) -> None:
        """Ends an idle pause: a request has come. The next reading follows at once, though never sooner than
        `interval_s` after the one before."""
        self._woken.set()

    async def run(self) -> None:
        """Scrapes until cancelled."""
        loop = asyncio.get_running_loop()
        connector = aiohttp.TCPConnector(limit=1)
        async with aiohttp.ClientSession(
            connector=connector, headers=_HEADERS, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as session:
            while True:
                began = loop.time()
                self._woken.clear()
                try:
                    await self._scrape(session)
                except Exception as error:
                    self._fault(error)
                await self._pause(loop.time() - began)

    # one scrape

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        self.scrapes += 1
        started = self._clock()
        try:
            reading = await self._reading(session, started)
        except _ScrapeError as error:
            self._count_ignored(error.ignored)
            self._failed(ScrapeFailure(error.kind, str(error), self._clock()))
            return
        finally:
            self.last_duration_s = self._clock() - started
        self._succeeded(reading)

    async def _reading(self, session: aiohttp.ClientSession, started: float) -> Reading:
        dialect = self.dialect
        if dialect is None or not dialect.filters or started < self._filter_retry_at:
            return await self._full(session, started)
        names = "&".join("name[]=" + quote(name, safe=":") for name in sorted(dialect.sample_names))
        try:
            page = await self._page(session, f"{self._full_url}/?{names}")
            reading = _read(dialect, _parse(page, dialect.sample_names), started)
        except _ScrapeError as error:
            if not error.may_be_the_filter:
                raise
            started = self._clock()
            reading = await self._full(session, started)
            # only now is it known that the filter was at fault and not the engine
            self._filter_retry_at = started + FILTER_RETRY_S
            return reading
        self._use(dialect, Form.FILTERED)
        return reading

    async def _full(self, session: aiohttp.ClientSession, started: float) -> Reading:
        dialect = self.dialect
        page = await self._page(session, self._full_url)
        samples = _parse(page, ALL_SAMPLE_NAMES if self._auto or dialect is None else dialect.sample_names)
        if self._auto:
            dialect = detect(samples)  # anew each time: another engine may have taken over the address
        if dialect is None:
            raise _ScrapeError(FailureKind.MISSING, "the page has no known engine's running or waiting requests")
        reading = _read(dialect, samples, started)
        self._use(dialect, Form.FULL)
        return reading

    async def _page(self, session: aiohttp.ClientSession, url: str) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s), session.get(url, allow_redirects=False) as response:
                if response.status != 200:
                    raise _ScrapeError(FailureKind.STATUS, _status_text(response), status=response.status)
                page = bytearray()
                async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                    page += chunk
                    if len(page) > self._max_page_bytes:
                        raise _ScrapeError(
                            FailureKind.TOO_LARGE, f"the page has more than {self._max_page_bytes} bytes"
                        )
                return bytes(page)
        except TimeoutError as error:
            raise _ScrapeError(FailureKind.TIMEOUT, f"no page within {self._timeout_s:g} s") from error
        except (aiohttp.ClientResponseError, aiohttp.ClientPayloadError) as error:
            raise _ScrapeError(FailureKind.MALFORMED, _error_text(error)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _ScrapeError(FailureKind.REFUSED, _error_text(error)) from error

    # outcomes

    def _use(self, dialect: Dialect, form: Form) -> None:
        if (dialect, form) != (self.dialect, self.form):
            self._log.info("metrics page chosen", dialect=dialect.name, form=form.value)
        self.dialect, self.form = dialect, form

    def _succeeded(self, reading: Reading) -> None:
        self.last_success_at = self._clock()
        self.kv_capacity_tokens = reading.sample.kv_capacity_tokens
        if dict(reading.names) != dict(self.names):
            self._log.info("metric names in use", **reading.names)
            self.names = reading.names
        self._count_ignored(reading.ignored)
        self.failing = None
        if self._told is not None:
            self._log.info("metrics read again", after=self._told.value)
            self._told = None
        self._on_sample(reading.sample)

    def _count_ignored(self, ignored: Mapping[str, int]) -> None:
        for signal, values in ignored.items():
            if signal not in self.ignored:
                self._log.warning("impossible values ignored", signal=signal)
            self.ignored[signal] += values

    def _failed(self, failure: ScrapeFailure) -> None:
        self.failures[failure.kind] += 1
        self.last_failure = failure
        self.failing = failure.kind
        # told when it changes; one that comes and goes is told once a minute
        told_before = self._told_at.get(failure.kind)
        if self._told is not failure.kind and (told_before is None or failure.at - told_before >= TELL_AGAIN_S):
            self._told, self._told_at[failure.kind] = failure.kind, failure.at
            self._log.warning("metrics not read", kind=failure.kind.value, cause=failure.message)
        self._on_failure(failure)

    def _fault(self, error: Exception) -> None:
        self.faults += 1
        if repr(error) != self._last_fault:
            self._last_fault = repr(error)
            self._log.exception("fault while scraping", exc_info=error)

    # pauses

    def _is_busy(self) -> bool:
        try:
            return self._busy()
        except Exception as error:
            self._fault(error)
            return True

    async def _pause(self, elapsed: float) -> None:
        """`elapsed`: seconds that the scrape took; at least as long again is left to the engine."""
        spread = 1.0 + random.uniform(-_JITTER, _JITTER)  # noqa: S311  no secret
        least = max(self._interval_s * spread - elapsed, elapsed, 0.0)
        if self._is_busy():
            await asyncio.sleep(least)
            return
        idle = max(self._idle_interval_s * spread - elapsed, least)
        await asyncio.sleep(least)
        try:
            async with asyncio.timeout(idle - least):
                await self._woken.wait()
        except TimeoutError:
            pass


def _parse(page: bytes, names: frozenset[str]) -> Samples:
    try:
        return parse(page, names)
    except MetricsError as error:
        raise _ScrapeError(FailureKind.MALFORMED, str(error)) from error


def _read(dialect: Dialect, samples: Samples, started: float) -> Reading:
    try:
        return dialect.read(samples, started)
    except MissingSignalError as error:
        raise _ScrapeError(FailureKind.MISSING, str(error), ignored=error.ignored) from error


def _status_text(response: aiohttp.ClientResponse) -> str:
    location = response.headers.get("Location")
    return f"HTTP status {response.status}" + (f", to {location}; redirects are not followed" if location else "")


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__
