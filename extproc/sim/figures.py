"""Figures of merit of a simulated run, over a span of its time.

Service is what the engines have really done for a job, in cost units of the pool: its prompt at the first token, its
output evenly from there to its end. (One that is still under way at the end of a run goes on at the run's own pace.)

Waits of jobs that had no first token when the run ended count as having lasted until then: they are at least that long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from extproc.core.model import CostWeights
from extproc.sim.engine import EngineOptions
from extproc.sim.fairness import jain, percentile
from extproc.sim.jobs import Fate, Job, Record
from extproc.sim.virtual import Run

Pick = Callable[[Job], bool]

SLO_TTFT_S = 5.0  # users think that it is broken
SLO_TPOT_S = 0.150  # readers wait for words


@dataclass(frozen=True, slots=True)
class Span:
    """[since, until) in seconds."""

    since: float
    until: float

    @property
    def seconds(self) -> float:
        return self.until - self.since


def alone_s(job: Job, o: EngineOptions) -> float:
    """How long it takes when the engine has nothing else."""
    return job.prompt * o.step_per_prefill_token + job.output * (o.step_base + o.step_per_seq)


def capacity(prompt: int, output: int, o: EngineOptions) -> float:
    """Requests a second of an engine whose slots are all taken by requests of this size. Each holds its slot for
    `output` steps; in as long as a slot turns over once, each slot has one prompt computed."""
    turn = output * (o.step_base + o.max_num_seqs * o.step_per_seq) + o.max_num_seqs * prompt * o.step_per_prefill_token
    return o.max_num_seqs / turn


# -- service ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Piece:
    """One job's service: `jump` at `first`, then `slope` a second until `last`."""

    tenant: str
    cls: str
    first: float
    last: float
    jump: float
    slope: float


class Service:
    """Who has been served how much, and when."""

    def __init__(self, run: Run) -> None:
        pace = median([r.tpot for r in run.records if r.tpot is not None] or [0.0])
        self.pieces = [
            _piece(r, run.policy.weights, pace)
            for r in run.records
            if r.first is not None and r.fate is not Fate.REFUSED
        ]

    def units(self, span: Span, cls: str | None = None) -> float:
        """Units of all jobs, or of those of a class."""
        return sum(_within(p, span) for p in self.pieces if cls in (None, p.cls))

    def by_tenant(self, span: Span) -> dict[str, float]:
        """Units in the span."""
        units: dict[str, float] = defaultdict(float)
        for piece in self.pieces:
            units[piece.tenant] += _within(piece, span)
        return dict(units)

    def difference(self, span: Span, tenants: Mapping[str, float]) -> float:
        """Largest gap in service / weight between any two of the tenants (name -> weight), counted from the start of
        the span. Tenants have to be backlogged all along: one that wants less is no measure."""
        total = dict.fromkeys(tenants, 0.0)
        slope = dict.fromkeys(tenants, 0.0)
        turns: list[tuple[float, str, float, float]] = []  # time, tenant, jump, change of slope
        for p in self.pieces:
            if p.tenant not in tenants or p.last < span.since or p.first >= span.until:
                continue
            weight = tenants[p.tenant]
            turns.append(
                (max(p.first, span.since), p.tenant, p.jump / weight * (p.first >= span.since), p.slope / weight)
            )
            turns.append((min(p.last, span.until), p.tenant, 0.0, -p.slope / weight))
        turns.sort()
        at, worst = span.since, 0.0
        for when, tenant, jump, change in turns:
            if when > at:
                for name, rate in slope.items():
                    total[name] += rate * (when - at)
                at = when
                worst = max(worst, max(total.values()) - min(total.values()))
            total[tenant] += jump
            slope[tenant] += change
            worst = max(worst, max(total.values()) - min(total.values()))
        return worst


def _piece(record: Record, weights: CostWeights, pace: float) -> _Piece:
    job, first = record.job, record.first
    assert first is not None  # noqa: S101 - the caller has looked
    jump = weights.cost(job.prompt, job.n, record.cached)
    rest = weights.cost(0, (job.output - 1) * job.n)
    if record.fate is Fate.SERVED and record.ended is not None:
        last, slope = record.ended, rest / (record.ended - first) if record.ended > first else 0.0
        return _Piece(job.tenant, job.cls, first, last, jump + (0.0 if slope else rest), slope)
    would_last = (job.output - 1) * pace
    last = first + would_last if record.ended is None else min(record.ended, first + would_last)
    return _Piece(job.tenant, job.cls, first, last, jump, rest / would_last if would_last > 0 else 0.0)


def _within(piece: _Piece, span: Span) -> float:
    overlap = min(piece.last, span.until) - max(piece.first, span.since)
    jump = piece.jump if span.since <= piece.first < span.until else 0.0
    return jump + piece.slope * max(0.0, overlap)


def released_difference(run: Run, span: Span, tenants: Mapping[str, float]) -> float:
    """As `Service.difference`, but a job counts whole, with its true cost, when the gateway lets it go: what the order
    of release alone is answerable for."""
    total = dict.fromkeys(tenants, 0.0)
    worst = 0.0
    by_time = sorted(
        (r.released, r.job.tenant, r.job.cost(run.policy.weights)) for r in run.records if r.released is not None
    )
    for at, tenant, cost in by_time:
        if tenant in total and span.since <= at < span.until:
            total[tenant] += cost / tenants[tenant]
            worst = max(worst, max(total.values()) - min(total.values()))
    return worst


def service_rate(service: Service, span: Span) -> float:
    """Units a second."""
    return service.units(span) / span.seconds


def fairness(units: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Jain's index over service / weight."""
    return jain([units.get(name, 0.0) / weight for name, weight in weights.items()])


# -- waits -----------------------------------------------------------------------------------------


def chosen(run: Run, span: Span, pick: Pick | None = None) -> list[Record]:
    """Records of the jobs sent in the span. A job whose client asked for more than it will wait for is as any other."""
    return [r for r in run.records if span.since <= r.job.at < span.until and (pick is None or pick(r.job))]


def ttfts(run: Run, records: Iterable[Record]) -> list[float]:
    """Seconds to the first token, of those that were not refused."""
    return [
        r.ttft if r.ttft is not None else run.seconds - r.job.at
        for r in records
        if r.fate in (Fate.SERVED, Fate.UNFINISHED)
    ]


def waits(run: Run, records: Iterable[Record]) -> list[float]:
    """Seconds in the gateway, of those that were not refused."""
    return [
        r.wait if r.wait is not None else run.seconds - r.job.at
        for r in records
        if r.fate in (Fate.SERVED, Fate.UNFINISHED)
    ]


def inside_s(run: Run, record: Record) -> float:
    """Seconds from its release to its first token, or to its end without one, or to the end of the run."""
    until = record.first if record.first is not None else record.ended
    return (run.seconds if until is None else until) - (record.released or 0.0)


def quantile(values: list[float], p: float) -> float:
    """nan: no values."""
    found = percentile(values, p)
    return math.nan if found is None else found


def slowdown(records: Iterable[Record], options: EngineOptions) -> float:
    """Median of (time from sending to the end) / (time that it would take alone), of those served."""
    ratios = [
        (r.ended - r.job.at) / alone_s(r.job, options) for r in records if r.fate is Fate.SERVED and r.ended is not None
    ]
    return median(ratios) if ratios else math.nan


def goodput(records: Iterable[Record], span: Span) -> float:
    """Requests a second whose first token came within 5 s, and the others each within 150 ms in the mean."""
    good = sum(
        r.fate is Fate.SERVED and r.ttft is not None and r.ttft <= SLO_TTFT_S and (r.tpot or 0.0) <= SLO_TPOT_S
        for r in records
    )
    return good / span.seconds


# -- the engine ------------------------------------------------------------------------------------


def waiting(run: Run, span: Span, endpoint: int = 0) -> list[float]:
    """Requests in the engine's own queue, as it truly was."""
    return [float(look.waiting) for look in run.looks[endpoint] if span.since <= look.at < span.until]


def running(run: Run, span: Span, endpoint: int = 0) -> list[float]:
    return [float(look.running) for look in run.looks[endpoint] if span.since <= look.at < span.until]


def preemptions(run: Run, span: Span, endpoint: int = 0) -> float:
    counts = [look.preemptions for look in run.looks[endpoint] if span.since <= look.at < span.until]
    return counts[-1] - counts[0] if counts else 0.0


def windows_over(run: Run, span: Span, limit_s: float, width_s: float = 10.0, endpoint: int = 0) -> float:
    """Share of the rolling windows whose mean time between tokens, weighted by tokens, is over the limit. Windows in
    which nothing was produced do not count."""
    looks = [look for look in run.looks[endpoint] if span.since <= look.at < span.until]
    over = total = begin = 0
    for look in looks:
        if look.at - looks[0].at < width_s:
            continue
        while looks[begin + 1].at <= look.at - width_s:
            begin += 1
        seconds, tokens = look.itl_sum - looks[begin].itl_sum, look.itl_count - looks[begin].itl_count
        if tokens > 0:
            total += 1
            over += seconds / tokens > limit_s
    return over / total if total else 0.0


# -- refusals --------------------------------------------------------------------------------------


def retry_after_errors(run: Run, span: Span) -> list[float]:
    """|Retry-After / truth - 1| of each job of the span that was refused at the door for what its tenant had waiting.
    The truth: how long it took until all that its tenant had waiting then was released, as one learns afterwards."""
    errors: list[float] = []
    by_tenant: dict[str, list[Record]] = defaultdict(list)
    for record in run.records:
        by_tenant[record.job.tenant].append(record)
    for records in by_tenant.values():
        last_accepted: Record | None = None  # a tenant's own are released in the order of their coming
        for record in records:
            if record.fate is not Fate.REFUSED:
                last_accepted = record
                continue
            gone = None if last_accepted is None else last_accepted.released
            if gone is None or record.retry_after is None or not span.since <= record.job.at < span.until:
                continue
            truth = gone - record.job.at
            if truth > 0:
                errors.append(abs(record.retry_after / truth - 1.0))
    return errors


def fates(records: Iterable[Record]) -> dict[Fate, int]:
    counts = dict.fromkeys(Fate, 0)
    for record in records:
        counts[record.fate] += 1
    return counts


def common(run: Run, service: Service, span: Span, options: EngineOptions, direct: float | None) -> dict[str, float]:
    """What every workload's table has. `direct`: units a second of direct FIFO in the same span."""
    records = chosen(run, span)
    rate = service_rate(service, span)
    queue = sorted(x for i in range(len(run.looks)) for x in waiting(run, span, i))
    counts = fates(records)
    found = {
        "units/s": rate,
        "throughput / direct": rate / direct if direct else math.nan,
        "engine waiting mean": fmean(queue) if queue else math.nan,
        "engine waiting p99": quantile(queue, 99),
        "engine waiting max": queue[-1] if queue else math.nan,
        "goodput in SLO, req/s": goodput(records, span),
        "longest wait inside, s": max((inside_s(run, r) for r in run.records if r.released is not None), default=0.0),
        "refused": float(counts[Fate.REFUSED]),
        "aborted": float(counts[Fate.ABORTED]),
    }
    classes = sorted({r.job.cls for r in records})
    for cls in classes:
        mine = [r for r in records if r.job.cls == cls]
        first, held = ttfts(run, mine), waits(run, mine)
        for p in (50, 95, 99):
            found[f"{cls} TTFT p{p}, s"] = quantile(first, p)
        found[f"{cls} held p50, s"] = quantile(held, 50)
        found[f"{cls} slowdown p50"] = slowdown(mine, options)
    return found
