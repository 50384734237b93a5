"""Workload 11: what goes wrong with an engine or its page, on the small engine.

Two tenants send twice what the engine can do, in mixed lengths, so that the window is what decides.

The bounds are those of `scheduling.md` 4, which are of the first controller, and of `window.md` 7, which supersede them
where the recommended one differs on purpose: it takes KV memory up to 92 % and not until the engine preempts, and it
opens only as fast as the time per token shows room. Both controllers are asked for their own there.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from extproc.core.model import WindowPolicy
from extproc.sim.engine import EngineOptions
from extproc.sim.figures import (
    Service,
    Span,
    capacity,
    preemptions,
    quantile,
    running,
    service_rate,
    waiting,
    windows_over,
)
from extproc.sim.jobs import Job
from extproc.sim.scene import Engines, Fault, Lag, Outage, Resize, Restart
from extproc.sim.shapes import E1
from extproc.sim.virtual import Run
from extproc.sim.ways import DIRECT_FIFO, FAIR, FIRST, GATEWAY_FIFO, SATURATION, THRESHOLD, Way, fixed
from extproc.sim.workloads.workload import (
    Figures,
    Must,
    Q,
    Scale,
    Table,
    Workload,
    a_pool,
    compare,
)

_FIXED = fixed(E1.max_num_seqs + Q)
WAYS: tuple[Way, ...] = (DIRECT_FIFO, GATEWAY_FIFO, THRESHOLD, SATURATION, FIRST, _FIXED, FAIR)
_USUAL = Lag(0.0, 0.1)
_TPOT_S = WindowPolicy().max_tpot_s


def mixed(rng: random.Random, load: float, until: float, prompt: int = 256, output: int = 256, o: EngineOptions = E1
) -> list[Job]:  # fmt: skip
    """Two tenants, lengths even between half and one and a half of the mean, `load` times the capacity together."""
    rate, jobs = load * capacity(prompt, output, o), []
    at = rng.expovariate(rate)
    while at < until:
        tenant = rng.choice("ab")
        jobs.append(Job(at, tenant, _around(rng, prompt), _around(rng, output)))
        at += rng.expovariate(rate)
    return jobs


def _around(rng: random.Random, mean: int) -> int:
    return rng.randint(mean // 2, mean + mean // 2)


def _steady(span: Span, done: Run, service: Service) -> Figures:  # noqa: ARG001 - the signature of all
    busy = running(done, span)
    return {
        "running mean": fmean(busy) if busy else 0.0,
        "preemptions": preemptions(done, span),
        "10 s windows over": windows_over(done, span, _TPOT_S),
    }


# -- pages that come seldom or late ------------------------------------------------------------------

_READINGS = (
    ("page each 0.05 s", 0.05, Lag()),
    ("page each 1 s, lag 1 s", 1.0, Lag(1.0, 1.0)),
    ("page each 1 s, lag 0-4 s", 1.0, Lag(0.0, 4.0)),
    ("page each 5 s", 5.0, Lag()),
    ("page each 1 s, lag 5 s", 1.0, Lag(5.0, 5.0)),
)
_KV = replace(E1, kv_blocks=12 * (256 + 128) // 16)  # room for about twelve of the twenty
_PREEMPTIONS_RELATIVE = "preemptions / direct"
_KV_CASE = "KV for 12 of 20"


def _readings(seed: int, scale: Scale, table: Table) -> None:
    span = Span(60.0, 180.0 if scale.quick else 300.0)
    jobs = mixed(random.Random(seed), 2.0, span.until)  # noqa: S311
    cases = [(name, Engines(E1, scrape_s=interval, lag=lag)) for name, interval, lag in _READINGS]
    cases.append((_KV_CASE, Engines(_KV, lag=_USUAL)))
    for name, engines in cases:

        def extra(done: Run, service: Service) -> Figures:
            return _steady(span, done, service)

        rows = table[name] = compare(jobs, a_pool(), engines, span.until, span, extra, ways=WAYS, seed=seed)
        direct = rows[DIRECT_FIFO.name]["preemptions"]
        for row in rows.values():
            row[_PREEMPTIONS_RELATIVE] = row["preemptions"] / direct if direct else 0.0


# -- faults ------------------------------------------------------------------------------------------

_AT_S = 100.0


def _outage(seed: int, table: Table) -> None:
    span = Span(_AT_S, _AT_S + 60.0)
    jobs = mixed(random.Random(seed), 2.0, span.until + 20.0)  # noqa: S311

    def extra(done: Run, service: Service) -> Figures:
        before = service_rate(service, Span(40.0, _AT_S))
        found = {
            "first 30 s / before": service_rate(service, Span(_AT_S, _AT_S + 30.0)) / before,
            "after 30 s / before": service_rate(service, Span(_AT_S + 30.0, span.until)) / before,
            "60 s / before": service_rate(service, span) / before,
        }
        return found | _steady(span, done, service)

    faults = [Outage(span.since, span.until)]
    engines = Engines(E1, lag=_USUAL)
    table["outage of 60 s"] = compare(
        jobs, a_pool(), engines, span.until + 20.0, span, extra, ways=WAYS, seed=seed, faults=faults
    )


def _restart(seed: int, table: Table) -> None:
    for away_s in (0.0, 2.0):
        span = Span(_AT_S + away_s, _AT_S + 30.0)
        jobs = mixed(random.Random(seed), 2.0, span.until)  # noqa: S311

        def extra(done: Run, service: Service, span: Span = span) -> Figures:
            return {"refilled after, s": _full_after(done, span, E1.max_num_seqs)} | _steady(span, done, service)

        faults = [Restart(_AT_S, away_s)]
        engines = Engines(E1, lag=_USUAL)
        name = f"restart, away {away_s:g} s"
        table[name] = compare(jobs, a_pool(), engines, span.until, span, extra, ways=WAYS, seed=seed, faults=faults)


def _full_after(done: Run, span: Span, slots: int) -> float:
    """Seconds from the start of the span until 95 % of the slots run. The gauge dips: any reading counts."""
    full = [look.at - span.since for look in done.looks[0] if look.at >= span.since and look.running >= 0.95 * slots]
    return min(full, default=span.seconds)


_HALF = replace(E1, max_num_seqs=E1.max_num_seqs // 2)


def _sizes(seed: int, table: Table) -> None:
    halved, doubled, end = _AT_S, _AT_S + 80.0, _AT_S + 160.0
    jobs = mixed(random.Random(seed), 2.0, end)  # noqa: S311

    def extra(done: Run, service: Service) -> Figures:  # noqa: ARG001 - the signature of all
        small, large = Span(halved + 10.0, doubled), Span(doubled + 10.0, end)
        return {
            "halved: waiting p99 after 10 s": quantile(waiting(done, small), 99),
            "doubled: running / slots after 10 s": fmean(_bridged(running(done, large))) / E1.max_num_seqs,
        }

    faults: Sequence[Fault] = [Resize(halved, _HALF), Resize(doubled, E1)]
    engines = Engines(E1, lag=_USUAL)
    span = Span(_AT_S, end)
    table["halves, doubles"] = compare(jobs, a_pool(), engines, end, span, extra, ways=WAYS, seed=seed, faults=faults)


def _bridged(readings: list[float]) -> list[float]:
    """The largest of each three in a row: the gauge is taken between an end and the next admission."""
    return [max(readings[i : i + 3]) for i in range(len(readings) - 2)]


_LARGER = replace(E1, max_num_seqs=128)
_COLD_CASE = "cold start, 128 slots"


def _cold(seed: int, table: Table) -> None:
    end = 40.0
    jobs = [replace(job, at=0.0) for job in mixed(random.Random(seed), 3.0, end, 64, 256, _LARGER)]  # noqa: S311
    span = Span(0.0, end)

    def extra(done: Run, service: Service) -> Figures:
        return {"128 slots full after, s": _full_after(done, span, 128)} | _steady(span, done, service)

    table[_COLD_CASE] = compare(jobs, a_pool(), Engines(_LARGER, scrape_s=1.0), end, span, extra, ways=WAYS, seed=seed)


def _foreign(seed: int, table: Table) -> None:
    span = Span(60.0, 240.0)
    rng = random.Random(seed)  # noqa: S311
    jobs = mixed(rng, 2.0, span.until)
    foreign = [job for job in mixed(rng, 0.4, span.until) if 60.0 <= job.at < 180.0]

    def extra(done: Run, service: Service) -> Figures:
        return _steady(span, done, service)

    table["foreign load of 0.4 C"] = compare(
        jobs, a_pool(), Engines(E1, lag=_USUAL), span.until, span, extra, ways=WAYS, seed=seed, foreign=foreign
    )


def _measure(seed: int, scale: Scale) -> Table:
    table: Table = {}
    _readings(seed, scale, table)
    _outage(seed, table)
    _restart(seed, table)
    _sizes(seed, table)
    _cold(seed, table)
    _foreign(seed, table)
    return table


def _reading_musts(case: str) -> tuple[Must, ...]:
    return (
        Must("waiting mean <= 3.2", "engine waiting mean", most=3.2, case=case),
        Must("waiting p99 <= 8", "engine waiting p99", most=8.0, case=case),
        Must("throughput >= 98.5 % of direct", "throughput / direct", least=0.985, case=case),
    )


def _kv_musts(way: Way) -> tuple[Must, ...]:
    return (
        Must("KV-limited: waiting mean < 4", "engine waiting mean", most=4.0, way=way.name, case=_KV_CASE),
        Must("KV-limited: p99 <= 9", "engine waiting p99", most=9.0, way=way.name, case=_KV_CASE),
    )


FAULTS = Workload(
    key="11",
    title="faults, at twice the capacity, lengths 128-384 in and out",
    span="steady cases 60 to 300 s (quick: 180 s), faults at 100 s",
    measure=_measure,
    musts=(
        *(must for case, _, _ in _READINGS for must in _reading_musts(case)),
        *(must for way in (FAIR, FIRST) for must in _kv_musts(way)),
        Must("KV-limited: >= 98.6 % of direct", "throughput / direct", least=0.986, way=FIRST.name, case=_KV_CASE),
        Must("KV-limited: >= 95 % of direct", "throughput / direct", least=0.95, case=_KV_CASE),
        Must("KV-limited: a tenth of the preemptions of direct", _PREEMPTIONS_RELATIVE, most=0.1, case=_KV_CASE),
        Must("outage: >= 95 % for 30 s", "first 30 s / before", least=0.95, case="outage of 60 s"),
        Must("outage: >= 50 % after", "after 30 s / before", least=0.5, case="outage of 60 s"),
        Must("outage: >= 85 % of all 60 s", "60 s / before", least=0.85, case="outage of 60 s"),
        Must("outage: preemptions <= 20", "preemptions", most=20.0, case="outage of 60 s"),
        Must("outage: 10 s windows over <= 20 %", "10 s windows over", most=0.2, case="outage of 60 s"),
        Must("restart: refilled in 3 s", "refilled after, s", most=3.0, case="restart, away 0 s"),
        Must("restart, away 2 s: refilled in 3 s", "refilled after, s", most=3.0, case="restart, away 2 s"),
        Must("halves: waiting <= 4 after 10 s", "halved: waiting p99 after 10 s", most=4.0, case="halves, doubles"),
        Must("doubles: full after 10 s", "doubled: running / slots after 10 s", least=0.95, case="halves, doubles"),
        Must("cold start: 128 slots in 5 s", "128 slots full after, s", most=5.0, way=FIRST.name, case=_COLD_CASE),
        Must("cold start: 128 slots in 25 s", "128 slots full after, s", most=25.0, case=_COLD_CASE),
        Must("foreign load: waiting p99 <= 8", "engine waiting p99", most=8.0, case="foreign load of 0.4 C"),
    ),
    seeds=3,
)
