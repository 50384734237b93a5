"""What docs/tuning.md plots: for each knob, runs in virtual time with the knob turned from end to end.

Each function gives rows of figures (column -> value). The engine is `E1` of `extproc.sim.shapes`, a small one of 20
slots, if not said otherwise; its pages are read each 250 ms, are 15 to 40 ms late, and a request needs 10 to 30 ms
into it. Answers are of one length, arrivals are Poisson, and the seed is fixed: the same rows each time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from extproc.core.model import ClassPolicy, PoolPolicy
from extproc.sim.engine import EngineOptions
from extproc.sim.figures import Pick, Service, Span, capacity, chosen, quantile, running, ttfts
from extproc.sim.jobs import Fate, Job, Record, by_time, poisson
from extproc.sim.scene import Engines, WayIn
from extproc.sim.shapes import E1, E3, ONE_SECOND, REAL_EXIT_S, REAL_LAG, REAL_WAY_IN
from extproc.sim.virtual import Run, run
from extproc.sim.ways import DIRECT_FIFO, FAIR, Way
from extproc.sim.workloads.workload import a_class, a_pool, a_tenant, with_window

Row = dict[str, float | None]

SEED = 7
_C = capacity(256, 256, E1)  # requests of 256 + 256 tokens a second: 2.15
_BATCH = "batch"
_SLOW_WAY = WayIn(0.050, 0.150, each=0.006)
_FCFS = Way("fair, engine without priorities", priorities=False)


def _run(
    jobs: Sequence[Job],
    policy: PoolPolicy,
    seconds: float,
    options: EngineOptions = E1,
    *,
    way: Way = FAIR,
    until_done: bool = False,
    way_in: WayIn = REAL_WAY_IN,
) -> Run:
    engines = Engines(options, lag=REAL_LAG, way_in=way_in, exit_s=REAL_EXIT_S)
    return run(jobs, policy, engines, seconds, way=way, seed=SEED, until_done=until_done)


def _rng() -> random.Random:
    return random.Random(SEED)  # noqa: S311 - not for secrets


def _of(tenant: str) -> Pick:
    return lambda job: job.tenant == tenant


def _in_class(cls: str) -> Pick:
    return lambda job: job.cls == cls


def _refused(records: Sequence[Record]) -> float:
    """Per cent."""
    return 100.0 * sum(r.fate is Fate.REFUSED for r in records) / len(records)


def _output_rate(done: Run, span: Span) -> float:
    """Output tokens a second that the engine made, but for the first one of each answer."""
    looks = [look for look in done.looks[0] if span.since <= look.at < span.until]
    return (looks[-1].itl_count - looks[0].itl_count) / (looks[-1].at - looks[0].at)


# -- tenants ---------------------------------------------------------------------------------------


def weights() -> list[Row]:
    """a's weight against b and c of weight 1; all three always have something waiting."""
    rows: list[Row] = []
    span = Span(60.0, 300.0)
    for weight in (0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0):
        rng = _rng()
        jobs = by_time(*[poisson(rng, 0.9 * _C, name, 256, 256, 0.0, span.until) for name in "abc"])
        service = Service(_run(jobs, a_pool(tenants={"a": a_tenant(weight=weight)}), span.until))
        units = service.by_tenant(span)
        total = sum(units.values())
        share = {name: 100.0 * units[name] / total for name in "abc"}
        due = 100.0 * weight / (weight + 2)
        rows.append({"weight": weight, "a": share["a"], "a_due": due, "b": share["b"], "c": share["c"]})
    return rows


def noisy() -> list[Row]:
    """Four tenants send one request each two seconds, a fifth 400 at once after 30 s. For each 10 s: the longest time
    to the first token of the four's requests that were sent in it, and how many of the 400 answers have begun by its
    end."""
    rng, burst, until, bin_s = _rng(), 400, 150.0, 10.0
    polite = [poisson(rng, 0.5, f"polite-{i}", 128, 128, 0.0, until) for i in range(4)]
    jobs = by_time(*polite, [Job(30.0, "noisy", 128, 128) for _ in range(burst)])
    ways = {"direct": DIRECT_FIFO, "fairlane": FAIR}
    done = {name: _run(jobs, a_pool(), until + 400.0, way=way, until_done=True) for name, way in ways.items()}
    rows: list[Row] = []
    for number in range(round(until / bin_s)):
        span = Span(number * bin_s, (number + 1) * bin_s)
        row: Row = {"since_s": span.since}
        for name, each in done.items():
            row[f"polite_{name}_s"] = max(ttfts(each, chosen(each, span, lambda job: job.tenant != "noisy")))
        for name, each in done.items():
            first = [r.first for r in each.records if r.job.tenant == "noisy" and r.first is not None]
            row[f"noisy_{name}_begun"] = float(sum(at <= span.until for at in first))
        rows.append(row)
    return rows


def tenant_cap() -> list[Row]:
    """One tenant always has something waiting, and may have so many inside; another sends a tenth of the capacity."""
    rows: list[Row] = []
    span = Span(60.0, 360.0)
    for cap in (2, 4, 8, 12, 16, 18, 20, 24):
        rng = _rng()
        jobs = by_time(
            poisson(rng, 1.5 * _C, "job", 256, 256, 0.0, span.until),
            poisson(rng, 0.1 * _C, "people", 256, 256, 0.0, span.until),
        )
        done = _run(jobs, a_pool(tenants={"job": a_tenant(max_in_flight=cap)}), span.until)
        first = ttfts(done, chosen(done, span, _of("people")))
        rows.append(
            {
                "max_in_flight": float(cap),
                "people_ttft_p50_s": quantile(first, 50),
                "people_ttft_p95_s": quantile(first, 95),
                "running": fmean(running(done, span)),
                "output_tokens_per_s": _output_rate(done, span),
            }
        )
    return rows


# -- the window ------------------------------------------------------------------------------------


def max_waiting() -> list[Row]:
    """The standing queue inside the engine, under a load of twice the capacity with short answers. The engine heeds
    priorities, or goes by the order of arrival (FCFS). The way in takes 50 to 150 ms, as through a busy mesh."""
    rows: list[Row] = []
    span, size = Span(30.0, 230.0), 48
    rate = capacity(64, size, E1)
    rng = _rng()
    jobs = by_time(
        poisson(rng, 2.0 * rate, "job", 64, size, 0.0, span.until),
        poisson(rng, 0.05 * rate, "people", 64, size, 0.0, span.until),
    )
    for q in (0, 1, 2, 3, 5, 8, 12, 16, 20):
        row: Row = {"max_waiting": float(q)}
        for name, way in (("priority", FAIR), ("fcfs", _FCFS)):
            done = _run(jobs, a_pool(a_class(max_waiting=q)), span.until, way=way, way_in=_SLOW_WAY)
            row[f"ttft_p95_{name}_s"] = quantile(ttfts(done, chosen(done, span, _of("people"))), 95)
            if way is FAIR:
                row["output_tokens_per_s"] = _output_rate(done, span)
        rows.append(row)
    return rows


def max_tpot() -> list[Row]:
    """The limit on time per output token, on E3: 1,024 slots, 250 ms for a token when all are taken."""
    rows: list[Row] = []
    span = Span(60.0, 150.0)
    for limit in (0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.25):
        more = poisson(_rng(), 22.0, "job", 256, 256, 0.0, span.until)
        jobs = by_time([Job(0.0, "job", 256, 256) for _ in range(600)], more)
        done = _run(jobs, with_window(a_pool(), max_tpot_s=limit), span.until, E3)
        paces = [
            r.tpot
            for r in done.records
            if r.tpot is not None and r.ended is not None and span.since <= r.ended < span.until
        ]
        rows.append(
            {
                "max_tpot_ms": 1000.0 * limit,
                "output_tokens_per_s": _output_rate(done, span),
                "tpot_p50_ms": 1000.0 * quantile(paces, 50),
                "tpot_p95_ms": 1000.0 * quantile(paces, 95),
                "running": fmean(running(done, span)),
            }
        )
    return rows


def start() -> list[Row]:
    """A new engine of 128 slots, with 600 requests that wait: how many run, by time. Its pages are read each second and
    are a second late."""
    engines = Engines(
        replace(E3, max_num_seqs=128), lag=ONE_SECOND, way_in=REAL_WAY_IN, exit_s=REAL_EXIT_S, scrape_s=1.0
    )
    jobs = [Job(0.0, "job", 256, 256) for _ in range(600)]
    looks = {
        first: run(jobs, with_window(a_pool(), start=float(first)), engines, 13.0, seed=SEED, look_s=1.0).looks[0]
        for first in (4, 8, 32, 128)
    }
    return [
        {"seconds": look.at} | {f"start_{first}": float(each[number].running) for first, each in looks.items()}
        for number, look in enumerate(looks[8])
    ]


# -- classes ---------------------------------------------------------------------------------------


def _two_classes(done: Run, span: Span) -> Row:
    service = Service(done)
    first = ttfts(done, chosen(done, span, _in_class("interactive")))
    return {
        "chat_ttft_p50_s": quantile(first, 50),
        "chat_ttft_p95_s": quantile(first, 95),
        "batch_share": 100.0 * service.units(span, _BATCH) / service.units(span),
        "output_tokens_per_s": _output_rate(done, span),
    }


def _behind(load: float, batch: ClassPolicy, span: Span) -> Run:
    """People at `load` times the capacity, before a batch job that never ends."""
    jobs = by_time(
        [Job(0.0, "job", 256, 256, _BATCH) for _ in range(round(2.0 * _C * span.until))],
        poisson(_rng(), load * _C, "people", 256, 256, 0.0, span.until),
    )
    return _run(jobs, a_pool(a_class(), batch), span.until)


def min_share() -> list[Row]:
    """Of batch, behind people at 90 % of the capacity."""
    span = Span(120.0, 900.0)
    return [
        {"min_share": 100.0 * share} | _two_classes(_behind(0.9, a_class(_BATCH, 2, min_share=share), span), span)
        for share in (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
    ]


def headroom() -> list[Row]:
    """Of batch, behind people at half of the capacity."""
    span = Span(60.0, 660.0)
    without = _two_classes(_behind(0.5, a_class(_BATCH, 2), span), span)
    rows: list[Row] = []
    for epsilon in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3):
        figures = _two_classes(_behind(0.5, a_class(_BATCH, 2, headroom=epsilon), span), span)
        rows.append({"headroom": epsilon} | figures | {f"{name}_without": value for name, value in without.items()})
    return rows


def preempt_after() -> list[Row]:
    """Chat at a quarter of the capacity, behind batch requests of a minute each. Chat keeps three requests or none
    waiting inside the engine."""
    without = {f"{name}_without": value for q in (0, 3) for name, value in _evicting(q, None).items()}
    return [
        {"preempt_after_s": after} | _evicting(0, after) | _evicting(3, after) | without
        for after in (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
    ]


def _evicting(q: int, after: float | None) -> Row:
    span, size = Span(90.0, 690.0), 1536
    policy = a_pool(
        a_class(preempt_after_s=after, max_waiting=q),
        a_class(_BATCH, 2, preemptible=True),
        preempt_after_first_byte=True,
    )
    jobs = by_time(
        [Job(0.0, "job", 256, size, _BATCH) for _ in range(400)],
        poisson(_rng(), 0.25 * _C, "people", 256, 256, 0.0, span.until),
    )
    done = _run(jobs, policy, span.until)
    ended = [r for r in done.records if r.job.cls == _BATCH and span.since <= (r.ended or 0.0) < span.until]
    first = ttfts(done, chosen(done, span, _in_class("interactive")))
    return {
        f"ttft_p95_q{q}_s": quantile(first, 95),
        f"evicted_per_min_q{q}": 60.0 * sum(r.reason == "preempted" for r in ended) / span.seconds,
        f"served_per_min_q{q}": 60.0 * sum(r.fate is Fate.SERVED for r in ended) / span.seconds,
    }


def queue_timeout() -> list[Row]:
    """Half as much again as can be served, all the time; and three times as much for half a minute, half else."""
    rows: list[Row] = []
    for timeout in (5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0):
        row: Row = {"queue_timeout_s": timeout}
        rng = _rng()
        always = list(poisson(rng, 1.5 * _C, "people", 256, 256, 0.0, 600.0))
        usual = poisson(rng, 0.5 * _C, "people", 256, 256, 0.0, 300.0)
        burst = by_time(usual, poisson(rng, 2.5 * _C, "people", 256, 256, 60.0, 90.0))
        for name, jobs, span in (("always", always, Span(240.0, 600.0)), ("burst", burst, Span(60.0, 300.0))):
            pool = a_pool(a_class(queue_timeout_s=timeout))
            done = _run(jobs, pool, span.until + 200.0, until_done=True)
            records = chosen(done, span)
            row[f"{name}_refused"] = _refused(records)
            row[f"{name}_ttft_p95_s"] = quantile(ttfts(done, records), 95)
        rows.append(row)
    return rows
