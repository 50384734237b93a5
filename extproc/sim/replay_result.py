"""What a replay shows: per tenant, per class and in all, and over time.

Service is counted until the last arrival. What comes later is the clearing of a queue in which nobody competes any
more, and in the end all that was not refused is served whatever the order was. `asked` is what the requests of a tenant
would cost in all, as a share of everybody's; `got` is its share of the service.

Times to the first token and waits are those of requests that were served. So a way that refuses many looks good in
them: read them beside the refusals.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from extproc.sim.fairness import percentile
from extproc.sim.figures import Service
from extproc.sim.jobs import Fate, Record
from extproc.sim.virtual import Run

PERCENTILES = (50, 95, 99)
OTHERS = "all others"  # the tenants that have no line of their own in a plot

_BINS = 60  # of a plot over time
_CDF_POINTS = 200
_PLOTTED = 7  # tenants

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Line:
    """Some of the requests. Percentiles are in seconds, in the order of `PERCENTILES`; None: no request was served."""

    requests: int
    served: int
    refused: int
    reasons: Mapping[str, int]  # of the refusals, by code
    unserved: int  # left, broken off or unfinished
    asked: float  # 0..1 of the cost of all requests
    got: float  # 0..1 of the service until the last arrival
    ttft: tuple[float, ...] | None
    wait: tuple[float, ...] | None  # in the gateway

    def as_json(self) -> dict[str, object]:
        return {
            "requests": self.requests,
            "served": self.served,
            "refused": self.refused,
            "refused_by_reason": dict(self.reasons),
            "unserved": self.unserved,
            "asked_share": round(self.asked, 6),
            "got_share": round(self.got, 6),
            "ttft_s": _named(self.ttft),
            "wait_s": _named(self.wait),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """One way, played."""

    label: str
    seconds: float  # until everything was over
    last_arrival: float
    units_per_s: float  # until the last arrival
    waiting_mean: float  # in the engines' own queues, each, until the last arrival
    preemptions: int
    total: Line
    classes: Mapping[str, Line]
    tenants: Mapping[str, Line]  # the ones with the most requests first
    waits: Mapping[str, list[Point]] = field(default_factory=dict)  # class -> (time of arrival, p95 of TTFT)
    cdf: Mapping[str, list[Point]] = field(default_factory=dict)  # class -> (TTFT, share that has it by then)
    service: Mapping[str, list[Point]] = field(default_factory=dict)  # tenant -> (time, units until then)

    def as_json(self) -> dict[str, object]:
        return {
            "label": self.label,
            "seconds": round(self.seconds, 3),
            "last_arrival_s": round(self.last_arrival, 3),
            "units_per_s": round(self.units_per_s, 3),
            "engine_waiting_mean": round(self.waiting_mean, 3),
            "preemptions": self.preemptions,
            "total": self.total.as_json(),
            "classes": {name: line.as_json() for name, line in self.classes.items()},
            "tenants": {name: line.as_json() for name, line in self.tenants.items()},
        }


def result(label: str, run: Run) -> Result:
    """Of a run of at least one job."""
    records = run.records
    last = max(record.job.at for record in records)
    # Of requests that came all at once nothing is served by the last arrival.
    until = last if last > 0 else run.seconds
    book = _Book(run, until)
    by_tenant, by_class = _grouped(records, lambda r: r.job.tenant), _grouped(records, lambda r: r.job.cls)
    tenants = dict(sorted(by_tenant.items(), key=lambda item: (-len(item[1]), item[0])))
    looks = [look.waiting for looks in run.looks for look in looks if look.at <= until]
    return Result(
        label=label,
        seconds=run.seconds,
        last_arrival=last,
        units_per_s=book.got_in_all / until if until > 0 else 0.0,
        waiting_mean=fmean(looks) if looks else 0.0,
        preemptions=sum(round(looks[-1].preemptions) for looks in run.looks if looks),
        total=book.line(records),
        classes={name: book.line(mine) for name, mine in sorted(by_class.items())},
        tenants={name: book.line(mine) for name, mine in tenants.items()},
        waits={name: _waits(mine, until) for name, mine in sorted(by_class.items())},
        cdf={name: _cdf(mine) for name, mine in sorted(by_class.items())},
        service=book.over_time(list(tenants)[:_PLOTTED], run.seconds),
    )


class _Book:
    """Cost asked for and service received."""

    def __init__(self, run: Run, until: float) -> None:
        self._weights = run.policy.weights
        self._asked = sum(record.job.cost(self._weights) for record in run.records)
        self._pieces = Service(run).pieces
        self._until = until
        self._got: dict[tuple[str, str], float] = defaultdict(float)
        for piece in self._pieces:
            if piece.first < until:
                units = piece.jump + piece.slope * (min(piece.last, until) - piece.first)
                self._got[piece.tenant, piece.cls] += units
        self.got_in_all = sum(self._got.values())

    def line(self, records: list[Record]) -> Line:
        """Of all requests, or of all of some tenants or classes."""
        fates = Counter(record.fate for record in records)
        served = [record for record in records if record.fate is Fate.SERVED]
        groups = {(record.job.tenant, record.job.cls) for record in records}
        return Line(
            requests=len(records),
            served=fates[Fate.SERVED],
            refused=fates[Fate.REFUSED],
            reasons=Counter(record.reason or "unknown" for record in records if record.fate is Fate.REFUSED),
            unserved=len(records) - fates[Fate.SERVED] - fates[Fate.REFUSED],
            asked=_share(sum(record.job.cost(self._weights) for record in records), self._asked),
            got=_share(sum(self._got[group] for group in groups if group in self._got), self.got_in_all),
            ttft=_percentiles([record.ttft for record in served if record.ttft is not None]),
            wait=_percentiles([record.wait for record in served if record.wait is not None]),
        )

    def over_time(self, names: list[str], seconds: float) -> dict[str, list[Point]]:
        """Units served to each of the tenants, and to all others together, from the start until each of the times."""
        width = seconds / _BINS
        if width <= 0:
            return {}
        bins: dict[str, list[float]] = {name: [0.0] * (_BINS + 1) for name in [*names, OTHERS]}
        for piece in self._pieces:
            of = bins.get(piece.tenant, bins[OTHERS])
            first = min(_BINS - 1, int(piece.first / width))
            of[first + 1] += piece.jump
            for place in range(first, min(_BINS - 1, int(piece.last / width)) + 1):
                overlap = min(piece.last, (place + 1) * width) - max(piece.first, place * width)
                of[place + 1] += piece.slope * max(0.0, overlap)
        points: dict[str, list[Point]] = {}
        for name, units in bins.items():
            if any(units):
                total = 0.0
                points[name] = [(place * width, total := total + more) for place, more in enumerate(units)]
        return points


def _grouped(records: Iterable[Record], name: Callable[[Record], str]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[name(record)].append(record)
    return groups


def _share(part: float, of: float) -> float:
    return part / of if of > 0 else 0.0


def _percentiles(values: list[float]) -> tuple[float, ...] | None:
    if not values:
        return None
    values.sort()
    return tuple(found for found in (percentile(values, p) for p in PERCENTILES) if found is not None)


def _named(values: tuple[float, ...] | None) -> dict[str, float] | None:
    return None if values is None else {f"p{p}": round(v, 6) for p, v in zip(PERCENTILES, values, strict=True)}


def _waits(records: list[Record], until: float) -> list[Point]:
    """In the middle of each stretch of time: the p95 of the time to the first token of what came in it."""
    width = until / _BINS
    if width <= 0:
        return []
    bins: dict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.ttft is not None:
            bins[min(_BINS - 1, int(record.job.at / width))].append(record.ttft)
    return [((place + 0.5) * width, percentile(bins[place], 95) or 0.0) for place in sorted(bins)]


def _cdf(records: list[Record]) -> list[Point]:
    values = sorted(record.ttft for record in records if record.ttft is not None)
    step = max(1, len(values) // _CDF_POINTS)
    points = [(values[place], (place + 1) / len(values)) for place in range(0, len(values), step)]
    if points and points[-1][1] < 1.0:
        points.append((values[-1], 1.0))
    return points
