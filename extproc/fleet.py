"""One pool's engines while Fairlane runs: which there are, what they are, how they do.

    the endpoint set says which there are      -> the scheduler's endpoints come and go
    each one's page is read again and again    -> samples and failures, to the scheduler
    each one is asked what it is, when it comes -> the way in which it is told priorities
    one that hangs is asked for a token        -> if it makes one, its next page shows that, and it is open again

An address at which another engine answers, by its identity in the set or by the names on its page, is an endpoint that
went and one that came: nothing that was learnt of the first holds for the second.

What is found out about engines is said once for all of which the same is true.

Another configuration of the pool (`prepare`) changes what it has to: another source's endpoints are compared with those
that are there, and only those that differ go or come; another way to read pages makes new readers of them; the windows,
and what they have learnt, stay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import aiohttp
import structlog

from extproc.config.endpoints import Endpoints
from extproc.config.scheduling import ALL, Pool
from extproc.core.model import Sample
from extproc.core.windows import Stance
from extproc.edge.driver import PoolDriver
from extproc.edge.ways import Ways
from extproc.engines.access import Access
from extproc.engines.dialects import DIALECTS, Dialect
from extproc.engines.endpoints.changes import changes
from extproc.engines.endpoints.factory import make
from extproc.engines.endpoints.source import Endpoint, EndpointSet
from extproc.engines.identify import identify, mismatch, way_of
from extproc.engines.one_token import ask_for_a_token
from extproc.engines.scraper import FailureKind, ScrapeFailure, Scraper
from extproc.telemetry.metrics import EndpointSetStats, Metrics, ScrapeStats

log = structlog.get_logger()

_STALLED_ASK_S: Final = 15.0  # between two questions to one that hangs
_SLACK_S: Final = 0.5
_BY_SERVICE_S: Final = 5.0  # Envoy's lookups of a Service's name, and CoreDNS's TTL
_MOST_SAID: Final = 256
_ASK_EACH_S: Final = 10.0  # an engine whose page comes and goes what it is, at most
_STILL_ASK_S: Final = 60.0
_TOKEN_TIMEOUT_S: Final = 10.0
_IDENTIFY_TIMEOUT_S: Final = 2.0  # of one answer
_IDENTIFY_AGAIN_S: Final = (5.0, 30.0, 120.0)  # an engine that is just starting may not know its own version


@dataclass(slots=True)
class _Member:
    """One endpoint, with what runs for it."""

    endpoint: Endpoint
    scraper: Scraper = field(init=False)
    scraping: asyncio.Task[None] | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    dialect: Dialect | None = None  # that it was last read by
    in_use: bool = False  # the scheduler has been told of it
    asking: asyncio.Task[None] | None = None  # what it is
    asked_at: float = float("-inf")
    failed: bool = False  # its page could not be read at last: another engine may answer when it can again
    tokens: float | None = None  # that it had made by its last page
    token_asked_at: float = float("-inf")
    progress: float | None = None  # by its last page
    moved_at: float = float("-inf")  # when that was another, or there was nothing to do


def _failure_of(scraper: Scraper) -> str | None:
    """None: its last page was read."""
    failure = scraper.last_failure
    return None if failure is None or scraper.failing is None else f"{failure.kind.value}: {failure.message}"


def _a_model(pool: Pool) -> str | None:
    """To ask its engines with."""
    return next((model for model in pool.models if model != ALL), None)


def _envoy_after_s(endpoints: Endpoints) -> float:
    """How much later than Fairlane Envoy may learn of an endpoint: by DNS it asks at the same interval. A file tells it
    at once."""
    if endpoints.dns is not None:
        return max(endpoints.dns.interval, 1.0) + _SLACK_S
    return _BY_SERVICE_S + _SLACK_S if endpoints.kubernetes is not None else 0.0


class Fleet:
    """Of one pool. To be used from one event loop."""

    def __init__(
        self,
        pool: Pool,
        driver: PoolDriver,
        ways: Ways,
        metrics: Metrics,
        endpoints: EndpointSet | None = None,
        access: Access | None = None,
    ) -> None:
        """`endpoints`: None: those that the pool's configuration names. `access`: None: read as that says, which raises
        AccessError."""
        self.pool = pool
        self._driver = driver
        self._ways = ways
        self._metrics = metrics
        self._access = access or Access.of(pool.metrics, pool.name)
        self._envoy_after_s = _envoy_after_s(pool.endpoints)
        self._emptied = False  # the set was empty at last
        self._in_use_at = float("-inf")  # the first endpoints after an empty set, see `_add_later`
        self._set = endpoints or make(pool.endpoints, pool=pool.name, clock=driver.now)
        self._another_set = asyncio.Event()
        self._members: dict[str, _Member] = {}
        self._model = _a_model(pool)
        self._said: set[str] = set()
        self._log = log.bind(pool=pool.name)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                self._another_set.clear()
                running = asyncio.ensure_future(self._set.run(self._exchange))
                changing = asyncio.ensure_future(self._another_set.wait())
                try:
                    await asyncio.wait((running, changing), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changing.cancel()
                    running.cancel()
                    # Not awaited itself: its cancellation, and ours, could not be told apart.
                    await asyncio.wait((running,))
                if not running.cancelled():
                    running.result()
        finally:
            tasks = [task for member in self._members.values() for task in member.tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def prepare(self, pool: Pool, ways: Ways) -> Callable[[], None]:
        """Make ready for another configuration of the same pool. The result puts it in force. Raises AccessError."""
        access = self._access if pool.metrics == self.pool.metrics else Access.of(pool.metrics, pool.name)
        source = None
        if pool.endpoints != self.pool.endpoints:
            source = make(pool.endpoints, pool=pool.name, clock=self._driver.now)
        return lambda: self._take(pool, ways, access, source)

    def _take(self, pool: Pool, ways: Ways, access: Access, source: EndpointSet | None) -> None:
        old, self.pool = self.pool, pool
        asks_anew = ways is not self._ways or _a_model(pool) != self._model
        self._ways, self._access, self._model = ways, access, _a_model(pool)
        reads_anew = (pool.metrics, pool.engine) != (old.metrics, old.engine)
        for member in self._members.values():
            if reads_anew:
                self._read_anew(member)
            elif asks_anew and (member.asking is not None or member.dialect is not None):
                self._ask_what_it_is(member)
        if source is not None:
            self._set, self._envoy_after_s = source, _envoy_after_s(pool.endpoints)
            self._another_set.set()

    def _read_anew(self, member: _Member) -> None:
        """With another reader; whatever answers there is asked what it is."""
        if member.scraping is not None:
            member.scraping.cancel()
        member.dialect = None
        member.scraper = self._scraper(member)
        if member.in_use:
            self._use(member)
        member.scraping = self._start(member, member.scraper.run(), "scrape")

    def scrape_stats(self) -> list[ScrapeStats]:
        return [
            ScrapeStats(
                pool=self.pool.name,
                endpoint=address,
                dialect="unknown" if (used := member.scraper.dialect) is None else used.name,
                scrapes=member.scraper.scrapes,
                failures={kind.value: count for kind, count in member.scraper.failures.items()},
                last_duration_s=member.scraper.last_duration_s or 0.0,
                way=self._ways.of(address),
                last_failure=_failure_of(member.scraper),
            )
            for address, member in self._members.items()
        ]

    def set_stats(self) -> EndpointSetStats:
        known_at = self._set.last_success_at
        return EndpointSetStats(
            pool=self.pool.name,
            endpoints=len(self._members),
            failures=self._set.failures,
            age_s=None if known_at is None else self._driver.now() - known_at,
            last_error=self._set.last_error,
        )

    # -- which there are --------------------------------------------------------------------------

    def _exchange(self, endpoints: tuple[Endpoint, ...]) -> None:
        found = changes((member.endpoint for member in self._members.values()), endpoints)
        for endpoint in found.removed:
            self._remove(endpoint.address)
        now = self._driver.now()
        if self._emptied and found.added:
            self._in_use_at = now + self._envoy_after_s
        for endpoint in found.added:
            self._add(endpoint, max(0.0, self._in_use_at - now))
        self._emptied = not self._members

    def _add(self, endpoint: Endpoint, wait_s: float) -> None:
        member = self._members[endpoint.address] = _Member(endpoint)
        member.scraper = self._scraper(member)
        if wait_s:
            self._start(member, self._add_later(member, wait_s), "add")
        else:
            self._use(member)
        member.scraping = self._start(member, member.scraper.run(), "scrape")

    def _scraper(self, member: _Member) -> Scraper:
        address, settings = member.endpoint.address, self.pool.metrics
        dialect: Dialect | Literal["auto"] = "auto" if self.pool.engine == "auto" else DIALECTS[self.pool.engine]
        return Scraper(
            address,
            self._access.base_url(address),
            access=self._access,
            dialect=dialect,
            interval_s=settings.interval,
            idle_interval_s=settings.idle_interval,
            timeout_s=settings.timeout,
            on_sample=lambda sample: self._read(member, sample),
            on_failure=lambda failure: self._not_read(member, failure),
            on_engine=lambda found: self._is(member, found),
            busy=lambda: self._driver.busy_at(address),
            stretch=lambda: self._stretch(address),
            clock=self._driver.now,
        )

    def _stretch(self, address: str) -> float:
        """More than 1 where other replicas read its pages too."""
        window = self._driver.scheduler.windows.get(address)
        return 1.0 if window is None else window.stretch

    def _use(self, member: _Member) -> None:
        """The scheduler may choose it from now on."""
        member.in_use = True
        self._driver.add_endpoint(member.endpoint.address, member.scraper.wake, member.scraper.released)

    async def _add_later(self, member: _Member, wait_s: float) -> None:
        """Envoy asks by itself, and may learn of the endpoint later. With others in its list one of those would have
        the request meanwhile; without any it answers 503 at once to what is let go."""
        await asyncio.sleep(wait_s)
        self._use(member)

    def _remove(self, address: str) -> None:
        member = self._members.pop(address)
        for task in member.tasks:
            task.cancel()
        self._ways.drop(address)
        self._driver.remove_endpoint(address)

    # -- how they do ------------------------------------------------------------------------------

    def _read(self, member: _Member, sample: Sample) -> None:
        address = member.endpoint.address
        self._driver.scraped(address, sample)
        tokens, member.tokens = member.tokens, sample.generation_tokens
        restarted = tokens is not None and member.tokens is not None and member.tokens < tokens
        if member.failed or restarted:
            member.failed = False
            if self._driver.now() - member.asked_at >= _ASK_EACH_S:
                self._ask_what_it_is(member)
        now = self._driver.now()
        if sample.progress is None or sample.progress != member.progress or not self._driver.busy:
            member.progress, member.moved_at = sample.progress, now
        stalled = self._driver.stance(address) is Stance.STALLED
        if now - member.token_asked_at >= (_STALLED_ASK_S if stalled else _STILL_ASK_S) and (
            stalled or self._stands_still(member, now)
        ):
            member.token_asked_at = now
            self._start(member, self._ask_for_a_token(member), "token")

    def _stands_still(self, member: _Member, now: float) -> bool:
        """Where Envoy chooses, nobody knows whether an engine that does nothing has been sent anything."""
        after_s = self.pool.window.stalled_after
        return self.pool.pick.by == "envoy" and after_s is not None and now - member.moved_at >= after_s

    def _not_read(self, member: _Member, failure: ScrapeFailure) -> None:
        self._driver.scrape_failed(member.endpoint.address, refused=failure.kind is FailureKind.REFUSED)
        member.failed = True
        if failure.kind is not FailureKind.REFUSED and member.asking is None:
            self._ask_what_it_is(member)  # it may have no page, and be an engine all the same

    async def _ask_for_a_token(self, member: _Member) -> None:
        address = member.endpoint.address
        async with aiohttp.ClientSession(**self._access.session()) as session:
            wrong = await ask_for_a_token(
                self._access.base_url(address), session, model=self._model, timeout_s=_TOKEN_TIMEOUT_S
            )
        if wrong is None:
            self._log.info("an engine that stood still was asked for a token, and has made one", endpoint=address)
        else:
            self._log.warning("an engine that stands still was asked for a token", endpoint=address, answer=wrong)

    # -- what they are ----------------------------------------------------------------------------

    def _is(self, member: _Member, dialect: Dialect) -> None:
        """Its page was read, for the first time or after it had been away; or it is another engine's."""
        address = member.endpoint.address
        if member.dialect is not None and member.dialect is not dialect:
            self._log.info("another engine answers there", endpoint=address, was=member.dialect.name, now=dialect.name)
            if member.in_use:
                self._driver.remove_endpoint(address)
                self._use(member)
            self._ways.drop(address)
        member.dialect, member.failed = dialect, False
        member.token_asked_at = float("-inf")
        self._ask_what_it_is(member)

    def _ask_what_it_is(self, member: _Member) -> None:
        if member.asking is not None:
            member.asking.cancel()
        member.asked_at = self._driver.now()
        member.asking = self._start(member, self._identify(member), "identify")

    async def _identify(self, member: _Member) -> None:
        pool, address = self.pool, member.endpoint.address
        for pause_s in (*_IDENTIFY_AGAIN_S, None):
            engine = pool.engine if pool.engine != "auto" or member.dialect is None else member.dialect.name
            async with aiohttp.ClientSession(**self._access.session()) as session:
                facts = await identify(
                    self._access.base_url(address),
                    session,
                    engine=engine,
                    model=self._model,
                    timeout_s=_IDENTIFY_TIMEOUT_S,
                )
            known = facts.engine is not None and facts.version is not None
            if facts.engine is not None:
                way = way_of(pool.priority_via, pool.priority_order, facts, edited=pool.tells_in_body)
                self._ways.set(address, way)
            if known or pause_s is None:
                self._say("engine", address, facts.told)
                wrong = mismatch(pool.priority_via, pool.priority_order, facts, edited=pool.tells_in_body)
                for warning in (facts.warning, wrong):
                    if warning is not None and pool.priority_via != "off":
                        self._say("engine and priorities", address, warning, warns=True)
                return
            await asyncio.sleep(pause_s)

    def _say(self, event: str, endpoint: str, told: str, *, warns: bool = False) -> None:
        if told not in self._said:
            if len(self._said) >= _MOST_SAID:  # an engine's own words are among them
                self._said.clear()
            self._said.add(told)
            (self._log.warning if warns else self._log.info)(event, endpoint=endpoint, told=told)

    # -- tasks ------------------------------------------------------------------------------------

    def _start(self, member: _Member, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(work, name=f"{name} {member.endpoint.address}")
        member.tasks.add(task)
        task.add_done_callback(lambda done: self._over(member, done))
        return task

    def _over(self, member: _Member, task: asyncio.Task[None]) -> None:
        member.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._metrics.fault("engines")
            self._log.error("fault in a task of an endpoint", task=task.get_name(), exc_info=error)
