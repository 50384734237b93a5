"""A whole installation in virtual time: clients, the scheduler, engines and their metrics pages.

`run` drives `extproc.core.scheduler.Scheduler`, the code that runs in production, with the events that production would
give it, against one or several simulated engines. The scheduler sees what it would see there: the size of a body, the
client's own limit, gauges that lag, the token count at the end. It never sees how long an answer will be.

    client -> gateway     at the job's time
    gateway -> engine     `WayIn`: a delay, after a time that the engine's front end needs for one after the other; in a
                          burst that is why gauges show it late
    engine -> gateway     `exit_s` after the last token: usage, then the end of the stream
    page                  read each `scrape_s`; it shows the engine as it was `Lag` before, never an older state than
                          the page before it, and the counter of preemptions `Lag.preemptions_s` older still

Faults: see `extproc.sim.scene`. Jobs that others send to the engine around the gateway are `foreign`.

The same arguments give the same run: randomness is in the lags and delays alone, and comes from `seed`.

Left out: the network, losses other than those of a fault, the time that the gateway itself takes.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from extproc.core.events import (
    Arrive,
    Effect,
    End,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Evict,
    FirstToken,
    Refuse,
    Release,
    Scraped,
    ScrapeFailed,
    Settled,
    Tick,
    Unreachable,
    Usage,
)
from extproc.core.model import PoolPolicy, Sample, Source
from extproc.core.scheduler import Scheduler
from extproc.sim import sequence
from extproc.sim.endpoint import Endpoint
from extproc.sim.engine import EngineOptions, Kind
from extproc.sim.jobs import Fate, Job, Record
from extproc.sim.prefix_cache import Beginning
from extproc.sim.scene import Engines, Fault, Join, Look, Outage, Part, Resize, Restart, WayIn
from extproc.sim.ways import FAIR, Way

_SCRAPE_TAKES_S = 0.004
_GAP = 1000  # direct priority: numbers between two classes
_STUCK = 1000  # ticks in a row that move nothing


@dataclass(slots=True)
class Run:
    """What came out. `looks` are of each engine by number."""

    way: Way
    policy: PoolPolicy
    seconds: float
    records: list[Record]
    looks: list[list[Look]]
    foreign: list[Record] = field(default_factory=list)
    scheduler: Scheduler | None = None  # None: a direct way
    events: int = 0


NextJob = Callable[[Record, float], Job | None]
"""What a client sends when one of its jobs is over, if anything: a closed loop. Its time may be later than now."""


def run(
    jobs: Iterable[Job],
    policy: PoolPolicy,
    engines: Engines,
    seconds: float,
    *,
    way: Way = FAIR,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    foreign: Iterable[Job] = (),
    next_job: NextJob | None = None,
    first_tokens: bool = True,
    look_s: float = 0.25,
    until_done: bool = False,
    check: Callable[[Scheduler, float], None] | None = None,
) -> Run:
    """Run for so many seconds, or `until_done`: until all jobs have their fate, at most so many.

    `first_tokens`: whether the gateway sees them. `look_s`: how often the engines' true state is noted. `check` is
    called after each event. Raises RuntimeError when the scheduler's next deadline does not move."""
    world = World(policy, engines, way, random.Random(seed), next_job, first_tokens, check)  # noqa: S311
    world.expect(jobs, faults, foreign, look_s)
    world.go(seconds, until_done)
    return world.outcome(seconds)


class World:
    """See `run`. `extproc.sim.replicas` has several schedulers in it."""

    def __init__(
        self,
        policy: PoolPolicy,
        engines: Engines,
        way: Way,
        rng: random.Random,
        next_job: NextJob | None,
        first_tokens: bool,
        check: Callable[[Scheduler, float], None] | None,
    ) -> None:
        idle = max(policy.window.idle_scrape_interval_s, engines.scrape_s)
        window = replace(policy.window, scrape_interval_s=engines.scrape_s, idle_scrape_interval_s=idle)
        self.policy = replace(policy, window=window)
        self.way = way
        self._engines = engines
        self._rng = rng
        self._next_job = next_job
        self._first_tokens = first_tokens
        self._check = check
        self.endpoints = [Endpoint(i, engines, way.engine(engines.options)) for i in range(engines.count)]
        self._by_name = {e.name: e for e in self.endpoints}
        changed = way.change(self.policy)
        self._only_class = min(changed.classes, key=lambda c: c.rank).name
        self.scheduler = Scheduler(changed, windows=way.windows) if way.gateway else None
        self._agenda: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self._turn = itertools.count()
        self._inside: Counter[str] = Counter()  # tenant -> requests inside the engines, for direct priorities
        self._all: dict[str, Record] = {}
        self._numbers = itertools.count()
        self._open = 0  # jobs without a fate
        self.records: list[Record] = []
        self.foreign: list[Record] = []
        self.events = 0
        self.now = 0.0

    # -- time --------------------------------------------------------------------------------------

    def _at(self, when: float, what: Callable[..., None], *about: Any) -> None:
        heapq.heappush(self._agenda, (when, next(self._order), what, about))

    def expect(self, jobs: Iterable[Job], faults: Sequence[Fault], foreign: Iterable[Job], look_s: float) -> None:
        joining = {f.endpoint for f in faults if isinstance(f, Join)}
        for endpoint in self.endpoints:
            if endpoint.number not in joining:
                self._at(0.0, self._join, endpoint)
            self._at(0.0, self._plan, endpoint, 0)
            self._at(0.0, self._look, endpoint, look_s)
        for fault in faults:
            match fault:
                case Outage():
                    for endpoint in self.endpoints:
                        if fault.endpoint in (None, endpoint.number):
                            endpoint.outages.append(fault)
                case Restart():
                    self._at(fault.at, self._restart, self.endpoints[fault.endpoint], fault.away_s)
                case Resize():
                    self._at(fault.at, self._resize, self.endpoints[fault.endpoint], fault.options)
                case Join():
                    self._at(fault.at, self._join, self.endpoints[fault.endpoint])
                case Part():
                    self._at(fault.at, self._part, self.endpoints[fault.endpoint])
        for job in jobs:
            self._expect(job)
        for number, job in enumerate(foreign):
            record = self._all[f"foreign-{number}"] = Record(f"foreign-{number}", job)
            self.foreign.append(record)
            self._at(job.at, self._enter, record, self.endpoints[number % len(self.endpoints)])

    def _expect(self, job: Job) -> None:
        self._open += 1
        self._at(job.at, self._arrive, Record(f"job-{next(self._numbers)}", job))

    def go(self, seconds: float, until_done: bool) -> None:
        stuck = 0
        agenda, endpoints = self._agenda, self.endpoints
        while self._open or not until_done:
            at, endpoint = agenda[0][0], None
            for candidate in endpoints:
                due = candidate.engine.next_event_at()
                if due is not None and due <= at:  # what ends now has ended before what comes now
                    at, endpoint = max(due, self.now), candidate
            tick = self._next_tick()
            ticks = tick is not None and tick < at
            if tick is not None and tick < at:
                at = max(tick, self.now)
            if at > seconds:
                break
            stuck = stuck + 1 if ticks and at == self.now else 0
            if stuck > _STUCK:
                raise RuntimeError(f"the next deadline stays at {tick} after {_STUCK} ticks")
            self.now = at
            if ticks:
                self._tick()
            elif endpoint is not None:
                self._advance(endpoint)
            else:
                _, _, what, about = heapq.heappop(agenda)
                what(*about)

    def outcome(self, seconds: float) -> Run:
        done = self._open == 0 and self.now < seconds
        return Run(
            way=self.way,
            policy=self.policy,
            seconds=self.now if done else seconds,
            records=self.records,
            looks=[e.looks for e in self.endpoints],
            foreign=self.foreign,
            scheduler=self.scheduler,
            events=self.events,
        )

    # -- clients -----------------------------------------------------------------------------------

    def _arrive(self, record: Record) -> None:
        job = record.job
        self.records.append(record)
        self._all[record.id] = record
        if job.patience_s is not None:
            self._at(job.at + job.patience_s, self._leave, record)
        if self.scheduler is None:
            self._send_directly(record)
            return
        tenant, cls = ("everybody", self._only_class) if self.way.one_queue else (job.tenant, job.cls)
        self._apply(
            Arrive(
                id=record.id,
                tenant=tenant,
                cls=cls,
                arrival=self.now,
                body_bytes=4 * job.prompt if job.body_bytes is None else job.body_bytes,
                max_output=job.max_output,
                n=job.n,
                timeout_s=job.timeout_s,
                prefix=job.prefix,
                first_byte_seen=self._first_tokens,
                adapter=job.adapter,
                session=job.session,
            )
        )

    def _send_directly(self, record: Record) -> None:
        """Round the engines in turn, as a load balancer does that knows nothing of them."""
        job = record.job
        known = [e for e in self.endpoints if e.known]
        endpoint = known[next(self._turn) % len(known)]
        (cls,) = (c for c in self.policy.classes if c.name == job.cls)
        record.priority = cls.priority_base + min(self._inside[job.tenant], _GAP - 1)
        record.released, record.endpoint = self.now, endpoint.number
        self._inside[job.tenant] += 1
        self._go_in(record, endpoint)

    def _leave(self, record: Record) -> None:
        if record.fate is not Fate.UNFINISHED or record.first is not None:
            return
        if record.endpoint is not None:
            self.endpoints[record.endpoint].engine.abort(record.id, self.now)
        self._over(record, Fate.LEFT)
        self._tell(record, Usage(record.id, Source.ABORT), End(record.id))

    def _evict(self, record: Record) -> None:
        if record.fate is not Fate.UNFINISHED or record.endpoint is None:
            return
        self.endpoints[record.endpoint].engine.abort(record.id, self.now)
        self._over(record, Fate.ABORTED)
        self._tell(record, Usage(record.id, Source.ERROR), End(record.id))

    def _over(self, record: Record, fate: Fate) -> None:
        record.fate, record.ended = fate, self.now
        if self._is_foreign(record):
            return
        if record.released is not None:
            self._inside[record.job.tenant] -= 1
        self._open -= 1
        following = None if self._next_job is None else self._next_job(record, self.now)
        if following is not None:
            self._expect(following)

    def _is_foreign(self, record: Record) -> bool:
        return record.id.startswith("foreign")

    # -- the gateway -------------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        scheduler = self.scheduler
        if scheduler is None:
            return
        self.events += 1
        self._do(scheduler.apply(event, self.now))
        if self._check is not None:
            self._check(scheduler, self.now)

    def _next_tick(self) -> float | None:
        return None if self.scheduler is None else self.scheduler.next_deadline()

    def _tick(self) -> None:
        self._apply(Tick())

    def _do(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            record = self._all[effect.id]
            match effect:
                case Release():
                    endpoint = self._by_name[effect.endpoint]
                    record.released, record.endpoint, record.priority = self.now, endpoint.number, effect.priority
                    self._inside[record.job.tenant] += 1
                    self._go_in(record, endpoint)
                case Refuse():
                    record.reason, record.status = effect.reason.code, effect.reason.status
                    record.retry_after = effect.retry_after_s
                    self._over(record, Fate.REFUSED)
                case Evict():
                    record.reason, record.status = effect.reason.code, effect.reason.status
                    record.retry_after = effect.retry_after_s
                    self._at(self.now, self._evict, record)
                case Settled():
                    if record.charged is not None:
                        raise RuntimeError(f"{effect.id} was settled twice")
                    record.charged = effect.cost

    def _tell(self, record: Record, *events: Event) -> None:
        """What the gateway learns of a request that it has released, `exit_s` later."""
        if self.scheduler is None or self._is_foreign(record):
            return
        for event in events:
            if self._engines.exit_s:
                self._at(self.now + self._engines.exit_s, self._apply, event)
            else:
                self._apply(event)

    def _go_in(self, record: Record, endpoint: Endpoint) -> None:
        way = self._engines.way_in
        if way == WayIn():
            self._enter(record, endpoint)
            return
        endpoint.door_free_at = max(endpoint.door_free_at, self.now) + way.each
        self._at(endpoint.door_free_at + self._rng.uniform(way.least, way.most), self._enter, record, endpoint)

    # -- engines -----------------------------------------------------------------------------------

    def _enter(self, record: Record, endpoint: Endpoint) -> None:
        if record.fate is not Fate.UNFINISHED:
            return  # its client left on the way
        if self.now < endpoint.away_until:
            self._break(record, broke=False)
            return
        job = record.job
        stops = (job.output,) * job.n
        request = sequence.Request(record.id, (job.prompt,), job.output, job.n, record.priority, stops)
        each = self._engines.prefix_tokens
        beginnings = job.beginnings
        if beginnings is None:
            beginnings = tuple(Beginning(name, each * at) for at, name in enumerate(job.prefix, 1)) if each else ()
        endpoint.engine.add(request, self.now, beginnings)

    def _advance(self, endpoint: Endpoint) -> None:
        for event in endpoint.engine.advance(self.now):
            record = self._all[event.request_id]
            if event.kind is Kind.PREEMPTED:
                record.preempted += 1
                continue
            if record.first is None:
                record.first, record.cached = event.at, event.cached
                if self._first_tokens and event.kind is Kind.FIRST_TOKEN:
                    self._tell(record, FirstToken(record.id))
            if event.last:
                self._finish(record)

    def _finish(self, record: Record) -> None:
        job = record.job
        self._over(record, Fate.SERVED)
        usage = Usage(record.id, Source.USAGE, job.prompt, record.cached, job.output * job.n)
        self._tell(record, usage, End(record.id))

    def _break(self, record: Record, *, broke: bool) -> None:
        """The connection was refused, or it `broke` while the answer was under way."""
        self._over(record, Fate.ABORTED)
        usage = Usage(record.id, Source.TIME if broke else Source.ERROR)
        self._tell(record, Unreachable(record.id, broke=broke), usage, End(record.id))

    def _restart(self, endpoint: Endpoint, away_s: float) -> None:
        endpoint.away_until = self.now + away_s
        endpoint.photos.clear()
        for name in endpoint.engine.restart(self.now):
            self._break(self._all[name], broke=True)

    def _resize(self, endpoint: Endpoint, options: EngineOptions) -> None:
        endpoint.options = self.way.engine(options)
        endpoint.engine.resize(endpoint.options, self.now)

    def _join(self, endpoint: Endpoint) -> None:
        endpoint.known = True
        self._apply(EndpointAdded(endpoint.name))

    def _part(self, endpoint: Endpoint) -> None:
        endpoint.known = False
        self._apply(EndpointRemoved(endpoint.name))

    # -- pages -------------------------------------------------------------------------------------

    def _plan(self, endpoint: Endpoint, number: int) -> None:
        """Of the reading with this number: it shows what is there `lag` before, so that is noted then."""
        lag, interval = self._engines.lag, self._engines.scrape_s
        at = number * interval
        endpoint.photo_at = max(endpoint.photo_at, self.now, at - self._rng.uniform(lag.least, lag.most))
        self._at(min(endpoint.photo_at, at), self._photograph, endpoint, at)
        self._at(max(self.now, at + interval - lag.most), self._plan, endpoint, number + 1)

    def _photograph(self, endpoint: Endpoint, started: float) -> None:
        sample = endpoint.sample(endpoint.engine.page(self.now), self.now, started)
        self._at(started + _SCRAPE_TAKES_S, self._read, endpoint, sample)

    def _read(self, endpoint: Endpoint, sample: Sample) -> None:
        if not endpoint.known:
            return
        if endpoint.page_fails(sample.started):
            self._apply(ScrapeFailed(endpoint.name, refused=sample.started < endpoint.away_until))
        else:
            self._apply(Scraped(endpoint.name, sample))

    def _look(self, endpoint: Endpoint, look_s: float) -> None:
        page = endpoint.engine.page(self.now)
        gauges = page.running, page.waiting, page.kv_usage
        endpoint.looks.append(Look(self.now, *gauges, page.itl_sum, page.itl_count, page.preemptions))
        self._at(self.now + look_s, self._look, endpoint, look_s)
