"""Several replicas of the service on the same engines, in virtual time: N schedulers of the real core, each with its
`Sharing`, and the store's rule between them (`meeting_place`).

    client -> replica     `Cluster.place` says which one; it holds the request
    replica -> store      each period while something is held or inside, else each third of a lease, a second at most;
                          at once when something comes to an idle one, but a period after the last at the earliest
    store -> replica      the answer, `way` later; where the store is lost, an error after `timeout_s`
    page                  each replica reads its own, at its own times; or, to compare, one reads and tells the others

Each has a clock of its own, minutes from the others'. Faults of replicas: one dies, or is frozen. What a dead one held
goes to another with the time of its first arrival, as Envoy replays it; what it had inside runs on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from extproc.core.events import (
    Arrive,
    EndpointAdded,
    EndpointRemoved,
    Event,
    Scraped,
    ScrapeFailed,
    Synced,
    Tick,
)
from extproc.core.model import PoolPolicy, Sample, State
from extproc.core.scheduler import Scheduler
from extproc.core.sharing.sharing import Sharing
from extproc.core.sharing.words import Heard
from extproc.core.windows.pages import stretch
from extproc.sim.endpoint import Endpoint
from extproc.sim.jobs import Fate, Job, Record
from extproc.sim.meeting_place import MeetingPlace
from extproc.sim.scene import Engines, Fault
from extproc.sim.virtual import NextJob, Run, World
from extproc.sim.ways import FAIR

_REPLAY_S = 0.05  # until Envoy has found another replica


@dataclass(frozen=True, slots=True)
class Death:
    """A replica is gone. `back_s`: so many seconds later another process begins in its place, and knows nothing."""

    at: float
    replica: int
    back_s: float | None = None


@dataclass(frozen=True, slots=True)
class Freeze:
    """A replica does nothing, and goes on as if no time had passed."""

    since: float
    until: float
    replica: int


@dataclass(frozen=True, slots=True)
class StoreLost:
    """The store does not answer. `flushed`: it is empty afterwards."""

    since: float
    until: float
    flushed: bool = False


@dataclass(frozen=True)
class Cluster:
    """How many replicas, and how they meet. Seconds."""

    replicas: int = 2
    place: Callable[[Job], int] = lambda _job: 0  # number of the replica that a client reaches
    period_s: float = 0.1
    lease_s: float = 3.0
    timeout_s: float = 0.5
    way: tuple[float, float] = (0.0005, 0.002)  # to the store, and back
    clocks: tuple[float, ...] = (0.0, 211.0, 3_607.0, 17.0)  # how far each one's clock is ahead; they repeat
    faults: Sequence[Death | Freeze | StoreLost] = ()
    expected: int | None = None  # replicas, as configured; None: as many as there are
    stretch: float | None = None  # times `Engines.scrape_s` between two pages of a replica; None: as `pages` says
    told_s: tuple[float, float] | None = None  # the first one alone reads, and the others have its page so much later


@dataclass(frozen=True, slots=True)
class Share:
    """What the replicas hold of one endpoint, at a time. Slots."""

    at: float
    endpoint: int
    claims: tuple[float, ...]  # by replica; 0 where it has run out
    in_flight: tuple[int, ...]
    limit: float  # the most that one of them sees
    least: float  # the least, of those to whom something may go
    orphans: int = 0  # of dead ones, that the engine runs on


@dataclass(slots=True)
class SharedRun:
    """What came out. `shares`: at each look."""

    run: Run
    schedulers: list[Scheduler]
    shares: list[Share]
    homes: dict[str, int] = field(default_factory=dict)  # record -> number of the replica that has it
    exchanges: int = 0
    flows_told: int = 0
    longest_report: int = 0  # flows


class _Replica:
    def __init__(self, number: int, scheduler: Scheduler, cluster: Cluster) -> None:
        self.number = number
        self.name = f"replica-{number}"
        self.scheduler = scheduler
        self.clock = cluster.clocks[number % len(cluster.clocks)]
        expected = cluster.replicas if cluster.expected is None else cluster.expected
        self.sharing = Sharing("model", expected, cluster.period_s, cluster.lease_s, cluster.timeout_s)
        self.life = f"life-{number}"
        self.dead = False
        self.frozen_until = float("-inf")
        self.asking = False  # an exchange is under way
        self.asked_at = float("-inf")
        self.turn = 0  # of its next exchange; others that are planned are void

    @property
    def busy(self) -> bool:
        return self.scheduler.queued > 0 or any(w.in_flight for w in self.scheduler.windows.values())


def run_shared(
    jobs: Iterable[Job],
    policy: PoolPolicy,
    engines: Engines,
    seconds: float,
    cluster: Cluster,
    *,
    seed: int = 0,
    faults: Sequence[Fault] = (),
    foreign: Iterable[Job] = (),
    next_job: NextJob | None = None,
    look_s: float = 0.25,
    check: Callable[[Scheduler, float], None] | None = None,
) -> SharedRun:
    """As `virtual.run`, with several replicas."""
    rng = random.Random(seed)  # noqa: S311
    world = _World(replace(policy, shared=True), engines, cluster, rng, next_job, check)
    world.expect(jobs, faults, foreign, look_s)
    world.go(seconds, until_done=False)
    schedulers = [r.scheduler for r in world.replicas]
    done = world.outcome(seconds)
    return SharedRun(
        done, schedulers, world.shares, world.homes, world.exchanges, world.flows_told, world.longest_report
    )


class _World(World):
    def __init__(
        self,
        policy: PoolPolicy,
        engines: Engines,
        cluster: Cluster,
        rng: random.Random,
        next_job: NextJob | None,
        check: Callable[[Scheduler, float], None] | None,
    ) -> None:
        super().__init__(policy, engines, FAIR, rng, next_job, first_tokens=True, check=check)
        self.cluster = cluster
        if cluster.told_s is None:
            each = stretch(cluster.replicas, self.policy.window) if cluster.stretch is None else cluster.stretch
            # each page is for one of them
            self._engines = replace(engines, scrape_s=engines.scrape_s * each / cluster.replicas)
        self._pages: Counter[str] = Counter()  # by endpoint
        self.replicas = [_Replica(i, Scheduler(self.policy), cluster) for i in range(cluster.replicas)]
        self.scheduler = self.replicas[0].scheduler
        self.store = MeetingPlace(cluster.lease_s)
        self.homes: dict[str, int] = {}
        self._instead: dict[int, _Replica] = {}  # number of a dead one -> that which has begun in its place
        self.shares: list[Share] = []
        self.exchanges = self.flows_told = self.longest_report = 0
        for replica in self.replicas:
            self._plan_exchange(replica, cluster.period_s * replica.number / cluster.replicas)
        for fault in cluster.faults:
            match fault:
                case Death():
                    self._at(fault.at, self._die, self.replicas[fault.replica])
                    if fault.back_s is not None:
                        self._at(fault.at + fault.back_s, self._begin_anew, self.replicas[fault.replica])
                case Freeze():
                    self._at(fault.since, self._freeze, self.replicas[fault.replica], fault.until)
                case StoreLost():
                    if fault.flushed:
                        self._at(fault.until, self.store.flush)

    # -- events to replicas ------------------------------------------------------------------------

    def _apply(self, event: Event) -> None:
        match event:
            case Scraped() | ScrapeFailed():
                self._hand_out(event)
            case EndpointAdded() | EndpointRemoved():
                for replica in self.replicas:
                    self._give(replica, event)
            case Arrive():
                self._give(self._home_of(event), event)
            case _:
                self._give(self.replicas[self.homes[event.id]], event)  # type: ignore[union-attr]

    def _hand_out(self, page: Scraped | ScrapeFailed) -> None:
        told_s = self.cluster.told_s
        if told_s is None:
            self._pages[page.endpoint] += 1
            alive = [r for r in self.replicas if not r.dead or r.number not in self._instead]
            self._give(alive[self._pages[page.endpoint] % len(alive)], page)
            return
        first, *others = self.replicas
        self._give(first, page)
        for other in others:
            self._at(self.now + self._rng.uniform(*told_s), self._give, other, page)

    def _home_of(self, event: Arrive) -> _Replica:
        place = self.cluster.place(self._all[event.id].job)
        alive = [r for r in self.replicas if not r.dead]
        chosen = self._instead.get(place, self.replicas[place])
        if chosen.dead:
            chosen = alive[place % len(alive)]
        self.homes[event.id] = chosen.number
        return chosen

    def _give(self, replica: _Replica, event: Event) -> None:
        if replica.dead:
            return
        if self.now < replica.frozen_until:
            self._at(replica.frozen_until, self._give, replica, event)
            return
        self.events += 1
        ahead = replica.clock
        match event:
            case Arrive():
                event = replace(event, arrival=event.arrival + ahead)
            case Scraped():
                event = replace(event, sample=_later(event.sample, ahead))
        self._do(replica.scheduler.apply(event, self.now + ahead))
        if self._check is not None:
            self._check(replica.scheduler, self.now + ahead)
        if not isinstance(event, Tick | Scraped | Synced) and replica.scheduler.queued:
            self._wake(replica)

    def _next_tick(self) -> float | None:
        found = None
        for replica in self.replicas:
            if replica.dead or self.now < replica.frozen_until:
                continue
            due = replica.scheduler.next_deadline()
            if due is not None and (found is None or due - replica.clock < found):
                found = due - replica.clock
        return found

    def _tick(self) -> None:
        for replica in self.replicas:
            due = None if replica.dead else replica.scheduler.next_deadline()
            if due is not None and due - replica.clock <= self.now and self.now >= replica.frozen_until:
                self._give(replica, Tick())

    # -- exchanges ---------------------------------------------------------------------------------

    def _plan_exchange(self, replica: _Replica, at: float) -> None:
        replica.turn += 1
        self._at(at, self._ask, replica, replica.turn)

    def _wake(self, replica: _Replica) -> None:
        """Something waits. While one is under way, the next comes a period later anyway."""
        if not replica.asking and self.now - replica.asked_at >= self.cluster.period_s:
            self._plan_exchange(replica, self.now)

    def _ask(self, replica: _Replica, turn: int) -> None:
        if replica.dead or turn != replica.turn or replica.asking:
            return
        if self.now < replica.frozen_until:
            self._at(replica.frozen_until, self._ask, replica, turn)
            return
        cluster = self.cluster
        replica.asking, replica.asked_at = True, self.now
        report = replica.sharing.tell(replica.scheduler, self.now + replica.clock)
        self.exchanges += 1
        self.flows_told += len(report.flows)
        self.longest_report = max(self.longest_report, len(report.flows))
        if any(f.since <= self.now < f.until for f in cluster.faults if isinstance(f, StoreLost)):
            self._at(self.now + cluster.timeout_s, self._answer, replica, None)
            return
        sent_at = self.now + replica.clock
        self._at(self.now + self._rng.uniform(*cluster.way), self._arrive_at_store, replica, report, sent_at)

    def _arrive_at_store(self, replica: _Replica, report: object, sent_at: float) -> None:
        heard = self.store.exchange(replica.name, replica.life, report, sent_at, self.now)  # type: ignore[arg-type]
        self._at(self.now + self._rng.uniform(*self.cluster.way), self._answer, replica, heard)

    def _answer(self, replica: _Replica, heard: Heard | None) -> None:
        if replica.dead:
            return
        if self.now < replica.frozen_until:
            self._at(replica.frozen_until, self._answer, replica, heard)
            return
        replica.asking = False
        now, sharing = self.now + replica.clock, replica.sharing
        scheduler = replica.scheduler
        self._give(replica, sharing.lost(scheduler, now) if heard is None else sharing.heard(scheduler, heard, now))
        idle = min(1.0, self.cluster.lease_s / 3)
        self._plan_exchange(
            replica, max(self.now, replica.asked_at + (self.cluster.period_s if replica.busy else idle))
        )

    # -- faults of replicas ------------------------------------------------------------------------

    def _freeze(self, replica: _Replica, until: float) -> None:
        replica.frozen_until = until

    def _die(self, replica: _Replica) -> None:
        held = [r for r in replica.scheduler.requests.values() if r.state is State.QUEUED]
        replica.dead = True
        for request in held:
            self._at(self.now + _REPLAY_S, self._replay, self._all[request.id])

    def _begin_anew(self, dead: _Replica) -> None:
        new = _Replica(len(self.replicas), Scheduler(self.policy), self.cluster)
        new.name = dead.name
        self.replicas.append(new)
        self._instead[dead.number] = new
        for endpoint in dead.scheduler.windows:
            self._give(new, EndpointAdded(endpoint))
        self._plan_exchange(new, self.now)

    def _replay(self, record: Record) -> None:
        if record.fate is Fate.UNFINISHED:
            job = record.job
            arrival = job.at
            self._apply(
                Arrive(
                    id=record.id,
                    tenant=job.tenant,
                    cls=job.cls,
                    arrival=arrival,
                    body_bytes=4 * job.prompt if job.body_bytes is None else job.body_bytes,
                    max_output=job.max_output,
                    n=job.n,
                    timeout_s=job.timeout_s,
                    prefix=job.prefix,
                    first_byte_seen=True,
                    adapter=job.adapter,
                    session=job.session,
                )
            )

    # -- looks -------------------------------------------------------------------------------------

    def _look(self, endpoint: Endpoint, look_s: float) -> None:
        super()._look(endpoint, look_s)
        claims, inside, limits = [], [], [0.0]
        for replica in self.replicas:
            window = replica.scheduler.windows.get(endpoint.name)
            if window is None or replica.dead:
                claims.append(0.0)
                inside.append(0)
                continue
            now = self.now + replica.clock
            claims.append(window.claim if now <= window.claim_until else 0.0)
            inside.append(window.in_flight)
            if self.now >= replica.frozen_until:
                limits.append(window.limit(replica.scheduler.q_max, now))
        least = min((each for each in limits if each), default=0.0)
        orphans = self._orphans(endpoint)
        self.shares.append(Share(self.now, endpoint.number, tuple(claims), tuple(inside), max(limits), least, orphans))

    def _orphans(self, endpoint: Endpoint) -> int:
        dead = {r.number for r in self.replicas if r.dead}
        if not dead:
            return 0
        there = (r for r in self._all.values() if r.endpoint == endpoint.number and r.ended is None)
        return sum(self.homes.get(r.id) in dead for r in there)


def _later(sample: Sample, seconds: float) -> Sample:
    return replace(sample, started=sample.started + seconds)
