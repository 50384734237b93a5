"""Workload 13: large engines, where time per token and KV memory are the limits and hardly anything ever waits.

The engines, mixes and checks are those of `window.md` 2 and 7. A cell is an engine, a mix and a limit on the time per
output token. Requests come at twice the rate that the engine can serve within it, one in ten of them of the higher
class; the metrics page is read each second and is a second old.

Best fixed: the yardstick. N requests inside at all times, where N is the one of a few around the number that follows
from the engine's constants (`sustainable`) that serves most with at most 5 % of the rolling 10 s windows over the
limit. It knows everything beforehand; a controller learns on the way.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from extproc.core.model import PoolPolicy
from extproc.sim.engine import EngineOptions
from extproc.sim.figures import (
    Service,
    Span,
    chosen,
    preemptions,
    quantile,
    running,
    service_rate,
    ttfts,
    waiting,
    windows_over,
)
from extproc.sim.jobs import Job
from extproc.sim.scene import Engines, Fault, Lag, Outage, Resize
from extproc.sim.shapes import ONE_SECOND, UNEVEN
from extproc.sim.virtual import Run, run
from extproc.sim.ways import FAIR, FIRST, SATURATION, THRESHOLD, Way, fixed
from extproc.sim.workloads.cells import CELLS, Cell
from extproc.sim.workloads.lengths import MIXES
from extproc.sim.workloads.workload import Figures, Must, Q, Scale, Table, Workload, a_class, a_pool, with_window

_OVER, _OVER_AT_MOST = "10 s windows over", 0.05
_LONG_PROMPT = 16_384  # more than the window lets be unanswered together


def arrivals(seed: int, cell: Cell, load: float, since: float, until: float) -> list[Job]:
    """`load` times what the cell sustains; one in ten is interactive."""
    rng, mix = random.Random(seed), MIXES[cell.mix]  # noqa: S311
    rate, jobs = load * cell.sustainable[1], []
    at = since + rng.expovariate(rate)
    while at < until:
        jobs.append(_job(rng, at, *mix(rng)))
        at += rng.expovariate(rate)
    return jobs


def backlog(seed: int, cell: Cell, count: int, at: float = 0.0) -> list[Job]:
    """So many at once."""
    rng, mix = random.Random(seed), MIXES[cell.mix]  # noqa: S311
    return [_job(rng, at, *mix(rng)) for _ in range(count)]


def _job(rng: random.Random, at: float, prompt: int, output: int) -> Job:
    return Job(at, rng.choice("abcd"), prompt, output, "interactive" if rng.random() < 0.1 else "default")


def policy(cell: Cell) -> PoolPolicy:
    """One window for all classes: both keep the same standing queue."""
    pool = a_pool(a_class(), a_class("default", 1, max_waiting=3))
    return with_window(pool, max_tpot_s=cell.limit_s)


def _run(
    jobs: Iterable[Job],
    cell: Cell,
    seconds: float,
    way: Way,
    seed: int,
    lag: Lag = ONE_SECOND,
    faults: Sequence[Fault] = (),
) -> Run:
    engines = Engines(cell.options, lag=lag, scrape_s=1.0)
    return run(jobs, policy(cell), engines, seconds, way=way, seed=seed, faults=faults)


def figures(done: Run, cell: Cell, span: Span) -> Figures:
    service = Service(done)
    records = chosen(done, span)
    people = ttfts(done, [r for r in records if r.job.cls == "interactive"])
    queue = waiting(done, span)
    ended = [
        r.tpot
        for r in done.records
        if r.tpot is not None and r.ended is not None and span.since <= r.ended < span.until
    ]
    return {
        "units/s": service_rate(service, span),
        _OVER: windows_over(done, span, cell.limit_s),
        "preemptions": preemptions(done, span),
        "engine waiting mean": fmean(queue),
        "engine waiting p99": quantile(queue, 99),
        "engine waiting max": max(queue),
        "running mean": fmean(running(done, span)),
        "TPOT p99 / limit": quantile(ended, 99) / cell.limit_s,
        "interactive TTFT p50, s": quantile(people, 50),
        "interactive TTFT p99, s": quantile(people, 99),
        "long prompts unanswered together": float(_together(done)),
    }


def _together(done: Run) -> int:
    """Most prompts beyond the prefill limit that were released and had no first token, at a time; 0 or 1 is right."""
    turns: list[tuple[float, int]] = []
    for r in done.records:
        if r.released is not None and r.job.prompt > _LONG_PROMPT:
            turns += [(r.released, 1), (done.seconds if r.first is None else r.first, -1)]
    most = now = 0
    for _, change in sorted(turns):
        now += change
        most = max(most, now)
    return most


# -- the cells -------------------------------------------------------------------------------------

_GRID = (0.65, 0.8, 0.9, 1.0)
_BEST, _RELATIVE = "best fixed", "throughput / best fixed"


def _best_fixed(jobs: Sequence[Job], cell: Cell, seed: int, span: Span) -> Figures:
    """The yardstick, see above. It reads no page: one is good for every lag."""
    tried: list[Figures] = []
    for factor in _GRID if cell.engine != "E1" else (1.0,):
        # Where slots are the limit, a standing queue keeps them full.
        n = round(factor * cell.sustainable[0]) + (Q if cell.engine == "E1" else 0)
        tried.append({"N": float(n)} | figures(_run(jobs, cell, span.until, fixed(n), seed), cell, span))
    allowed = [row for row in tried if row[_OVER] <= _OVER_AT_MOST] or tried[:1]
    return max(allowed, key=lambda row: row["units/s"])


def _cell(
    table: Table, cell: Cell, load: float, lag: Lag, seed: int, span: Span, ways: Iterable[Way], best: Figures | None
) -> Figures:
    """Returns the yardstick, which may be given again."""
    jobs = arrivals(seed, cell, load, 0.0, span.until)
    best = best or _best_fixed(jobs, cell, seed, span)
    rows = {_BEST: dict(best)}
    for way in ways:
        rows[way.name] = figures(_run(jobs, cell, span.until, way, seed, lag), cell, span)
    for row in rows.values():
        row[_RELATIVE] = row["units/s"] / best["units/s"]
    table[_name(cell, load, lag)] = rows
    return best


def _all(table: Table, cases: Sequence[str]) -> dict[str, Figures]:
    """What the checks say of all cells together, by way."""
    found: dict[str, Figures] = {}
    for way in dict.fromkeys(way for case in cases for way in table[case]):
        rows = [table[case][way] for case in cases if way in table[case]]
        found[way] = {
            f"{_RELATIVE}, mean": fmean(row[_RELATIVE] for row in rows),
            f"{_RELATIVE}, least": min(row[_RELATIVE] for row in rows),
            f"{_OVER}, mean": fmean(row[_OVER] for row in rows),
            f"{_OVER}, most": max(row[_OVER] for row in rows),
            "preemptions, sum": sum(row["preemptions"] for row in rows),
        }
    return found


_ALL, _ALL_UNEVEN = "all cells, 2x, lag 1 s", "all cells, 2x, lag 0-4 s"
_FIVE = (CELLS[0], CELLS[1], CELLS[2], CELLS[5], CELLS[6])  # those that are looked at under five times the load, too
_QUICK = (CELLS[0], CELLS[2], CELLS[5])


def _name(cell: Cell, load: float, lag: Lag = ONE_SECOND) -> str:
    return f"{cell.name}, {load:g}x" + (", lag 0-4 s" if lag is UNEVEN else "")


# -- bursts, faults, cold start --------------------------------------------------------------------

_BURSTS = (CELLS[2], CELLS[5], CELLS[7], CELLS[11])
_OUTAGES = (CELLS[0], CELLS[5], CELLS[11])


def _burst(table: Table, cell: Cell, seed: int, ways: Iterable[Way]) -> None:
    span = Span(30.0, 150.0)
    jobs = sorted(arrivals(seed, cell, 0.3, 0.0, span.until) + backlog(seed, cell, 500, 60.0), key=lambda job: job.at)
    table[f"burst of 500 at 0.3x, {cell.name}"] = {
        way.name: figures(_run(jobs, cell, span.until, way, seed), cell, span) for way in ways
    }


def _outage(table: Table, cell: Cell, seed: int, ways: Iterable[Way]) -> None:
    before, span = Span(50.0, 100.0), Span(100.0, 160.0)
    jobs = arrivals(seed, cell, 2.0, 0.0, span.until)
    rows: dict[str, Figures] = {}
    for way in ways:
        done = _run(jobs, cell, span.until, way, seed, faults=[Outage(span.since, span.until)])
        service = Service(done)
        relative = service_rate(service, span) / service_rate(service, before)
        rows[way.name] = {"throughput / before": relative} | figures(done, cell, span)
    table[f"outage of 60 s, {cell.name}"] = rows


def _slower(o: EngineOptions) -> EngineOptions:
    return replace(
        o,
        step_base=2 * o.step_base,
        step_per_seq=2 * o.step_per_seq,
        step_per_prefill_token=2 * o.step_per_prefill_token,
        step_per_context_token=2 * o.step_per_context_token,
    )


_SIZES = "speed halves at 100 s, doubles at 200 s"


def _sizes(table: Table, cell: Cell, seed: int, ways: Iterable[Way]) -> None:
    slow, fast, end = 100.0, 200.0, 260.0
    jobs = arrivals(seed, cell, 2.0, 0.0, end)
    rows: dict[str, Figures] = {}
    for way in ways:
        faults = [Resize(slow, _slower(cell.options)), Resize(fast, cell.options)]
        done = _run(jobs, cell, end, way, seed, faults=faults)
        service = Service(done)
        usual = service_rate(service, Span(50.0, slow))
        late = [at for at, itl in _itl(done, 5.0) if slow < at < fast and itl > 1.1 * cell.limit_s]
        full = [
            at - fast
            for at in (fast + i for i in range(int(end - fast) - 10))
            if service_rate(service, Span(at, at + 10.0)) >= 0.95 * usual
        ]
        rows[way.name] = {
            "ITL back under 1.1 limit after, s": max(late, default=slow) - slow,
            "rate back to 95 % after, s": min(full, default=end - fast),
        } | figures(done, cell, Span(slow, end))
    table[_SIZES] = rows


def _itl(done: Run, width_s: float) -> list[tuple[float, float]]:
    """(time, mean seconds between tokens over the `width_s` before)."""
    looks, begin = done.looks[0], 0
    found: list[tuple[float, float]] = []
    for look in looks:
        while looks[begin + 1].at <= look.at - width_s:
            begin += 1
        tokens = look.itl_count - looks[begin].itl_count
        if tokens > 0:
            found.append((look.at, (look.itl_sum - looks[begin].itl_sum) / tokens))
    return found


def _cold(table: Table, cell: Cell, seed: int, lag_s: float, ways: Iterable[Way]) -> None:
    end = 120.0
    jobs = backlog(seed, cell, int(end * cell.sustainable[1] * 1.3) + 1_000)
    rows: dict[str, Figures] = {}
    for way in ways:
        done = _run(jobs, cell, end, way, seed, Lag(lag_s, lag_s))
        final = fmean(running(done, Span(80.0, end)))
        there = [look.at for look in done.looks[0] if look.running >= 0.6 * final]
        seconds = [itl for at, itl in _itl(done, 1.0) if at <= 30.0 and at == int(at)]
        rows[way.name] = {
            "60 % of the final running count after, s": min(there, default=end),
            "seconds over the limit in the first 30": float(sum(itl > cell.limit_s for itl in seconds)),
            "final running count": final,
        } | figures(done, cell, Span(0.0, end))
    table[_cold_name(lag_s)] = rows


def _cold_name(lag_s: float) -> str:
    return f"cold start, full backlog, lag {lag_s:g} s"


def _measure(seed: int, scale: Scale) -> Table:
    table: Table = {}
    cells = _QUICK if scale.quick else CELLS
    span = Span(30.0, 90.0 if scale.quick else 150.0)
    others: tuple[Way, ...] = () if scale.quick else (THRESHOLD, SATURATION, FIRST)
    best = {cell: _cell(table, cell, 2.0, ONE_SECOND, seed, span, (*others, FAIR), None) for cell in cells}
    table[_ALL] = _all(table, [_name(cell, 2.0) for cell in cells])
    if scale.quick:
        return table
    for cell in _FIVE:
        _cell(table, cell, 5.0, ONE_SECOND, seed, span, (FAIR,), None)
    for cell in cells:
        _cell(table, cell, 2.0, UNEVEN, seed, span, (FAIR,), best[cell])
    table[_ALL_UNEVEN] = _all(table, [_name(cell, 2.0, UNEVEN) for cell in cells])
    for cell in _BURSTS:
        _burst(table, cell, seed, (THRESHOLD, FAIR))
    for cell in _OUTAGES:
        _outage(table, cell, seed, (FIRST, FAIR))
    _sizes(table, CELLS[5], seed, (FIRST, FAIR))
    for lag_s in (1.0, 4.0):
        _cold(table, CELLS[5], seed, lag_s, (FIRST, FAIR))
    return table


# -- what must hold --------------------------------------------------------------------------------


def _must(case: str, about: str, figure: str, **bounds: Any) -> Must:
    return Must(about, figure, case=case, **bounds)


def _musts() -> Iterable[Must]:
    over, kicked = _OVER, "preemptions"
    for cell in CELLS[:2]:
        for load in (2.0, 5.0):
            case = _name(cell, load)
            yield _must(case, "1: waiting mean <= 3.2", "engine waiting mean", most=3.2)
            yield _must(case, "1: waiting p99 <= 8", "engine waiting p99", most=8.0)
            yield _must(case, "1: throughput >= 0.985 of the best", _RELATIVE, least=0.985)
    for load in (2.0, 5.0):
        case = _name(CELLS[2], load)
        yield _must(case, "2: preemptions <= 10", kicked, most=10.0)
        yield _must(case, "2: throughput >= 0.95 of the best", _RELATIVE, least=0.95)
        yield _must(case, "2: waiting p99 <= 5", "engine waiting p99", most=5.0)
    case = _name(CELLS[3], 2.0)
    yield _must(case, "3: preemptions <= 100", kicked, most=100.0)
    yield _must(case, "3: throughput >= 0.95 of the best", _RELATIVE, least=0.95)
    for cell in CELLS[5:7]:
        for load in (2.0, 5.0):
            case = _name(cell, load)
            yield _must(case, "4: 10 s windows over <= 0.03", over, most=0.03)
            yield _must(case, "4: p99 TPOT <= 1.05 x limit", "TPOT p99 / limit", most=1.05)
            yield _must(case, "4: throughput >= 0.93 of the best", _RELATIVE, least=0.93)
    for cell in CELLS[9:11]:
        case = _name(cell, 2.0)
        yield _must(case, "5: 10 s windows over <= 0.10", over, most=0.10)
        yield _must(case, "5: throughput >= 0.94 of the best", _RELATIVE, least=0.94)
    case = _name(CELLS[12], 2.0)
    yield _must(case, "6: throughput >= 0.95 of the best", _RELATIVE, least=0.95)
    yield _must(case, "6: 10 s windows over <= 0.15", over, most=0.15)
    yield _must(case, "6: interactive TTFT p99 <= 9 s", "interactive TTFT p99, s", most=9.0)
    yield _must(case, "6: never two long prompts unanswered", "long prompts unanswered together", most=1.0)
    for cell in _BURSTS:
        case = f"burst of 500 at 0.3x, {cell.name}"
        yield _must(case, "7: preemptions <= 20", kicked, most=20.0)
        yield _must(case, "7: 10 s windows over <= 0.05", over, most=0.05)
        yield _must(case, "7: waiting max <= 50", "engine waiting max", most=50.0)
    for cell in _OUTAGES:
        case = f"outage of 60 s, {cell.name}"
        yield _must(case, "8: throughput inside >= 0.85", "throughput / before", least=0.85)
        yield _must(case, "8: preemptions <= 20", kicked, most=20.0)
        yield _must(case, "8: 10 s windows over <= 0.20", over, most=0.20)
    yield _must(_SIZES, "9: ITL back in 45 s", "ITL back under 1.1 limit after, s", most=45.0)
    yield _must(_SIZES, "9: rate back in 15 s", "rate back to 95 % after, s", most=15.0)
    yield _must(_ALL_UNEVEN, "10: throughput >= 0.90 of the best", f"{_RELATIVE}, least", least=0.90)
    yield _must(_ALL_UNEVEN, "10: windows over, mean <= 0.06", f"{over}, mean", most=0.06)
    yield _must(_ALL_UNEVEN, "10: windows over, most <= 0.20", f"{over}, most", most=0.20)
    yield _must(_ALL_UNEVEN, "10: preemptions <= 100 in all", "preemptions, sum", most=100.0)
    for lag_s, most in ((1.0, 25.0), (4.0, 45.0)):
        case = _cold_name(lag_s)
        yield _must(case, "cold: <= 3 s over in 30", "seconds over the limit in the first 30", most=3.0)
        yield _must(case, f"cold: 60 % after {most:g} s", "60 % of the final running count after, s", most=most)


LARGE = Workload(
    key="13",
    title="large engines: the cells and checks of window.md 7",
    span="30 to 150 s (quick: three cells, to 90 s), faults to 160-260 s",
    measure=_measure,
    musts=tuple(_musts()),
    seeds=1,
)
