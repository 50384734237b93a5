"""Reads one endpoint's metrics page again and again, and hands on samples and failures.

Each endpoint has a scraper of its own, with its own connection, which is kept: a slow engine delays nobody else's
reading. At most one request is under way, and an engine is asked for at most half of the time; `rhythm` says when.

A full vLLM page costs about 14 ms of its API server's event loop (twice that under load), one that is filtered to the
names we read 2 ms: `/metrics/?name[]=...`, where the slash before the question mark matters. vLLM answers the filter
with 200 and an empty page when several processes share the metrics (several API servers, data parallelism). So it is
the content that decides: where the series are not on the filtered page, the full one is read in its place in the same
scrape, and the filter is tried again after five minutes.

Which engine answers is found out from the page (`dialect="auto"`), by the paths of all known ones until one is found.
From then on it is looked for first as the one that it was, and anew when the page is not its own: another engine may
have taken over the address.

An engine at rest sends the same bytes again and again. They are not parsed again, which saves an idle endpoint a third
of its cost.

A failure is reported, never repaired by a guess: what to do without readings is the window's business. Nothing that a
page, a network or a callback does ends the loop; only cancellation does. CPU: `fairlane bench scrape`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal
from urllib.parse import quote

import aiohttp
import structlog
from yarl import URL

from extproc.core.model import Sample
from extproc.engines.access import Access
from extproc.engines.dialects import ALL_SAMPLE_NAMES, PATHS, Dialect, MissingSignalError, Reading, detect
from extproc.engines.exposition import MetricsError, Samples, parse
from extproc.engines.page import MAX_PAGE_BYTES, FailureKind, Form, PageError, fetch, nature
from extproc.engines.rhythm import Rhythm

__all__ = ["FailureKind", "Form", "ScrapeFailure", "Scraper"]

FILTER_RETRY_S: Final = 300.0
TELL_AGAIN_S: Final = 60.0
_MOST_KEPT_BYTES: Final = 256 * 1024  # of a page, to be known again


@dataclass(frozen=True, slots=True)
class ScrapeFailure:
    kind: FailureKind
    message: str
    at: float  # clock time of the failure, seconds


class Scraper:
    """Scrapes one endpoint until cancelled. To be used from one event loop.

    `base_url`: as `access.base_url` gives it. `dialect`: the engine's, or "auto". Times in seconds, by `clock`. `busy`
    says whether requests wait for or are with the endpoint; `stretch` how many times `interval_s` is between two pages
    while they do, None: once. The callbacks are called in the loop and must not block.
    `on_engine` is called, before the sample is handed on, when a dialect is read for the first time and whenever
    another engine may be there: the page is of another dialect, or nothing had listened in between.

    The public attributes are for telemetry and are written by the scraper alone. Raises ValueError for a URL that is
    none.
    """

    def __init__(
        self,
        endpoint_name: str,
        base_url: str,
        *,
        access: Access | None = None,
        dialect: Dialect | Literal["auto"] = "auto",
        interval_s: float,
        idle_interval_s: float,
        timeout_s: float,
        on_sample: Callable[[Sample], object],
        on_failure: Callable[[ScrapeFailure], object],
        busy: Callable[[], bool],
        clock: Callable[[], float],
        on_engine: Callable[[Dialect], object] | None = None,
        stretch: Callable[[], float] | None = None,
        max_page_bytes: int = MAX_PAGE_BYTES,
    ) -> None:
        self.endpoint_name = endpoint_name
        self.on_engine = on_engine
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
        self._access = access or Access()
        self._base_url = base_url
        try:
            self._access.page_url(base_url, "/")
        except ValueError as error:
            raise ValueError(f"endpoint {endpoint_name}: {error}") from None
        self._urls: dict[tuple[str, str | None], URL] = {}
        self._timeout_s = timeout_s
        self._max_page_bytes = max_page_bytes
        self._on_sample = on_sample
        self._on_failure = on_failure
        self._busy = busy
        self._stretch = stretch
        self._clock = clock

        self._rhythm = Rhythm(interval_s, idle_interval_s)
        self._filter_retry_at = float("-inf")
        self._last: tuple[Dialect, bytes, Reading] | None = None
        self._engine: Dialect | None = None  # that `on_engine` was told last; None: it is to be told
        self._lacks_told: Dialect | None = None
        self._told: FailureKind | None = None  # the failure that the log speaks of last; None: all is well
        self._told_at: dict[FailureKind, float] = {}
        self._last_fault = ""
        self._log = structlog.get_logger(endpoint=endpoint_name)

    def wake(self) -> None:
        """Ends an idle pause: a request has come. The next reading follows at once, though never sooner than
        `interval_s` after the one before."""
        self._rhythm.wake()

    def released(self) -> None:
        """One request was released to the endpoint: after several, the next reading comes as soon as it can show
        them."""
        self._rhythm.released()

    async def run(self) -> None:
        """Scrapes until cancelled."""
        self._access.tell_risks(self.endpoint_name)
        async with aiohttp.ClientSession(**self._access.session()) as session:
            while True:
                self._rhythm.asked()
                try:
                    await self._access.refresh()
                    await self._scrape(session)
                except Exception as error:
                    self._fault(error)
                await self._rhythm.pause(self._is_busy(), self._stretched())

    # one scrape

    async def _scrape(self, session: aiohttp.ClientSession) -> None:
        self.scrapes += 1
        started = self._clock()
        try:
            reading = await self._reading(session, started)
        except PageError as error:
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
        try:
            page = await self._page(session, self._url(dialect.path, dialect))
            reading = self._read(dialect, page, started)
        except PageError as error:
            if not error.may_be_the_address:
                raise
            started = self._clock()
            reading = await self._full(session, started)
            # only now is it known that the filter was at fault and not the engine
            self._filter_retry_at = started + FILTER_RETRY_S
            return reading
        self._use(dialect, Form.FILTERED)
        return reading

    async def _full(self, session: aiohttp.ClientSession, started: float) -> Reading:
        if not self._auto and self.dialect is not None:
            page = await self._page(session, self._url(self.dialect.path))
            reading = self._read(self.dialect, page, started)
            self._use(self.dialect, Form.FULL)
            return reading
        first: PageError | None = None
        for url in self._places():
            try:
                page = await self._page(session, url)
                dialect, samples = self._whose(page)
                reading = self._read(dialect, page, started, samples)
            except PageError as error:
                first = first or error
                if not error.may_be_the_address:
                    break
                started = self._clock()
                continue
            self._use(dialect, Form.FULL)
            return reading
        raise first or PageError(FailureKind.MISSING, "no engine is known")

    def _places(self) -> list[URL]:
        """Where the page may be: where it was, then where other engines have theirs."""
        was = [] if self.dialect is None else [self.dialect.path]
        return list(dict.fromkeys(self._url(path) for path in (*was, *PATHS)))

    def _whose(self, page: bytes) -> tuple[Dialect, Samples | None]:
        """The dialect of a page, and what it was parsed to, unless it is the last page again."""
        if self.dialect is not None:
            if self._is_last(self.dialect, page):
                return self.dialect, None
            samples = _parse(page, self.dialect.sample_names)
            if self.dialect.speaks(samples):
                return self.dialect, samples
        samples = _parse(page, ALL_SAMPLE_NAMES)
        dialect = detect(samples)
        if dialect is None:
            raise PageError(
                FailureKind.MISSING, f"the page has no known engine's running or waiting requests{nature(page)}"
            )
        return dialect, samples

    def _is_last(self, dialect: Dialect, page: bytes) -> bool:
        return self._last is not None and self._last[0] is dialect and self._last[1] == page

    def _read(self, dialect: Dialect, page: bytes, started: float, samples: Samples | None = None) -> Reading:
        if self._last is not None and self._is_last(dialect, page):
            reading = self._last[2]
            return replace(reading, sample=replace(reading.sample, started=started))
        if samples is None:
            samples = _parse(page, dialect.sample_names)
        try:
            reading = dialect.read(samples, started)
        except MissingSignalError as error:
            text = f"{error}{'' if samples else nature(page)}"
            raise PageError(FailureKind.MISSING, text, ignored=error.ignored) from error
        self._last = (dialect, page, reading) if len(page) <= _MOST_KEPT_BYTES else None
        return reading

    async def _page(self, session: aiohttp.ClientSession, url: URL) -> bytes:
        return await fetch(session, url, self._access, self._timeout_s, self._max_page_bytes)

    def _url(self, path: str, dialect: Dialect | None = None) -> URL:
        """Of the page at `path`, or where the access says; filtered to what `dialect` reads."""
        key = (path, None if dialect is None else dialect.name)
        url = self._urls.get(key)
        if url is None:
            text = self._access.page_url(self._base_url, path)
            if dialect is not None:
                names = "&".join("name[]=" + quote(name, safe=":") for name in sorted(dialect.sample_names))
                text = f"{text.rstrip('/')}/?{names}"
            url = self._urls[key] = URL(text)
        return url

    # outcomes

    def _use(self, dialect: Dialect, form: Form) -> None:
        if (dialect, form) != (self.dialect, self.form):
            self._log.info("metrics page chosen", dialect=dialect.name, form=form.value)
        self.dialect, self.form = dialect, form

    def _succeeded(self, reading: Reading) -> None:
        self.last_success_at = self._clock()
        self.kv_capacity_tokens = reading.sample.kv_capacity_tokens
        if reading.names != self.names:
            self._log.info("metric names in use", **reading.names)
            self.names = reading.names
        self._count_ignored(reading.ignored)
        self.failing = None
        if self._told is not None:
            self._log.info("metrics read again", after=self._told.value)
            self._told = None
        if self.dialect is not None and self._engine is not self.dialect:
            self._tell_engine(self.dialect)
        self._on_sample(reading.sample)

    def _tell_engine(self, dialect: Dialect) -> None:
        if self._lacks_told is not dialect and dialect.lacks:
            self._log.info("this engine does not tell", dialect=dialect.name, signals=sorted(dialect.lacks))
        self._lacks_told = self._engine = dialect
        if self.on_engine is not None:
            try:
                self.on_engine(dialect)
            except Exception as error:  # the sample is good all the same
                self._fault(error)

    def _count_ignored(self, ignored: Mapping[str, int]) -> None:
        for signal, values in ignored.items():
            if signal not in self.ignored:
                self._log.warning("impossible values ignored", signal=signal)
            self.ignored[signal] += values

    def _failed(self, failure: ScrapeFailure) -> None:
        self.failures[failure.kind] += 1
        self.last_failure = failure
        self.failing = failure.kind
        if failure.kind is FailureKind.REFUSED:
            self._engine = None  # whoever answers next may be another
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

    def _is_busy(self) -> bool:
        try:
            return self._busy()
        except Exception as error:
            self._fault(error)
            return True

    def _stretched(self) -> float:
        try:
            return 1.0 if self._stretch is None else self._stretch()
        except Exception as error:
            self._fault(error)
            return 1.0


def _parse(page: bytes, names: frozenset[str]) -> Samples:
    try:
        return parse(page, names)
    except MetricsError as error:
        raise PageError(FailureKind.MALFORMED, str(error)) from error
