"""`fairlane replay`: a user's own traffic in virtual time, before and after a change of configuration."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click
import orjson

from extproc import __version__
from extproc.cli import replay_setting, replay_start
from extproc.cli.output import OUTPUT
from extproc.cli.replay_exactly import replay_exactly
from extproc.cli.replay_setting import Setting, SettingError
from extproc.config.load import ConfigError, load
from extproc.core.recording import RecordingError
from extproc.sim import trace
from extproc.sim.html_report import Page, page
from extproc.sim.jobs import Job
from extproc.sim.replay_result import Result, result
from extproc.sim.scene import Engines
from extproc.sim.traffic import Choice, TraceError, Traffic
from extproc.sim.virtual import run
from extproc.sim.ways import FAIR, Way

_LONGEST_S = 31 * 86_400.0  # pages are read all the time, also while nothing comes
_FOREVER_S = 30 * 24 * 3600.0  # after the last arrival; a run ends when all is over
_LOOK_S = 0.25  # between looks at the engines
_LOOKS = 20_000  # and so many of them while requests come


def _a_number(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a number to scale by", ctx, param)
    return value


@click.command("replay")
@click.argument("traces", metavar="TRACE...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="The configuration to play it with. Without it: a recording's own, else fairlane.yaml.",
)
@click.option(
    "--compare",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Another configuration to put beside it. May be given several times.",
)
@click.option("--pool", help="Name of the pool. Without it: the recording's, else the first.")
@click.option(
    "--engine",
    default="small",
    show_default=True,
    metavar="NAME[,KEY=VALUE...]",
    help=f"Each of the pool's engines: {', '.join(replay_setting.ENGINES)}, and what is different, e.g. "
    "e8,max_num_seqs=256,kv_tokens=200000. Times are in seconds.",
)
@click.option("--engines", "count", type=click.IntRange(1, 1000), help="How many. Without it: as many as the pool has.")
@click.option(
    "--baseline",
    default="",
    metavar="NAME,...",
    help=f"Other ways to put beside it: {', '.join(replay_setting.BASELINES)}, fixed-N (N requests in each "
    "engine), all.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0.001, 1e6),
    callback=_a_number,
    default=1.0,
    show_default=True,
    help="2: requests come twice as fast.",
)
@click.option("--class-column", default="class", show_default=True, help="The column of a CSV that names the class.")
@click.option("--from", "since", type=click.FloatRange(0.0), default=0.0, help="Seconds after the first row.")
@click.option("--to", "until", type=click.FloatRange(0.0), default=math.inf, help="Seconds after the first row.")
@click.option("--limit", type=click.IntRange(1), help="So many requests and no more.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of what is drawn: how late metrics pages are.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="Tenants in the table.")
@click.option("--json", "json_file", type=OUTPUT, help="Write the figures there.")
@click.option("--html", "html_file", type=OUTPUT, help="Write a report there.")
@click.option("--exact", is_flag=True, help="Play a recording event by event, and see whether the same comes out.")
def replay(
    traces: tuple[Path, ...], config: Path | None, compare: tuple[Path, ...], pool: str | None, engine: str,
    count: int | None, baseline: str, scale: float, class_column: str, since: float, until: float, limit: int | None,
    seed: int, top: int, json_file: Path | None, html_file: Path | None, exact: bool,
) -> None:  # fmt: skip
    """Play traffic against simulated engines, and say what each tenant and each class would have got.

    TRACE is a CSV (arrival_s,prompt_tokens,output_tokens,user and optionally class, max_output, n, timeout_s), or a
    recording that Fairlane has made, in one or several parts. Nothing is sent anywhere, and hours pass in seconds.

    With --exact a recording is applied event by event to the scheduler of this version. Exit codes: 0 done, or the
    same effects came out; 1 others came out; 2 something that was given cannot be used.
    """
    try:
        if exact:
            sys.exit(0 if _exactly(traces, config, pool, json_file) else 1)
        header = trace.header_of(traces)
        settings = replay_setting.settings(config, compare, pool, header)
        kind = replay_setting.engine_kind(engine)
        ways = replay_setting.baselines(baseline)
        traffic = trace.load(traces, Choice(since, until, limit, scale, class_column))
        number = count or settings[0].engines or traffic.endpoints or 1
        engines = replace(kind, count=number, prefix_tokens=traffic.prefix_tokens)
        jobs, notes = _playable(traffic, engines, traces[0])
        if header is not None:
            notes += _mid_life(traces)
        if jobs[-1].at - jobs[0].at > _LONGEST_S:
            days = (jobs[-1].at - jobs[0].at) / 86_400
            raise SettingError(f"the requests span {days:.0f} days, and 31 can be played: use --from, --to or --scale")
        results = _play(jobs, settings, ways, engines, seed, notes)
        facts = {
            "Traffic": ", ".join(map(str, traces)),
            "Requests": f"{len(jobs)} of {len(results[0].tenants)} tenants in {jobs[-1].at:.0f} s"
            + (f", {scale:g} times as fast as recorded" if scale != 1 else ""),
            "Engines": f"{number} x {engine}, simulated",
            "Compared with": settings[0].label,
        }
        _write(results, facts, notes, json_file, html_file)
    except (ConfigError, TraceError, RecordingError, SettingError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"{error.filename}: cannot be written: {error.strerror or error}", err=True)
        sys.exit(2)
    from extproc.cli.replay_table import show

    show(results, top)
    for note in notes:
        click.echo(f"Note: {note}.")


def _exactly(traces: Sequence[Path], config: Path | None, pool: str | None, json_file: Path | None) -> bool:
    header = trace.header_of(traces)
    if header is None:
        raise TraceError(f"{traces[0]}: --exact needs a recording, and this is none")
    policy = None
    if config is not None:
        loaded = load(config)
        policy = loaded.pool_policy(replay_setting.pool_of(loaded, pool, header))
    return replay_exactly(traces, policy, json_file)


def _playable(traffic: Traffic, engines: Engines, trace_file: Path) -> tuple[list[Job], list[str]]:
    """Jobs that the engines can serve, and notes. Raises TraceError where there is none."""
    notes = list(traffic.notes)
    jobs = [job for job in traffic.jobs if replay_setting.fits(job, engines.options)]
    if len(jobs) < len(traffic.jobs):
        notes.append(
            f"{len(traffic.jobs) - len(jobs)} requests are larger than the engine's KV cache of "
            f"{engines.options.kv_tokens} tokens and were left out; see --engine"
        )
    if not jobs:
        raise TraceError(f"{trace_file}: there is no request to play; {'; '.join(notes) or 'see --from and --to'}")
    return jobs, notes


def _mid_life(traces: Sequence[Path]) -> list[str]:
    """A note where a recording has no beginning. Its files are read once more then."""
    begins = replay_start.begins(trace.readers_of(traces))
    if begins is None:
        return []
    count = replay_start.missing(trace.readers_of(traces))
    if not count:
        return [begins]
    return [f"{begins}; {count} requests that end or go in it were held or inside at its start, and are not played"]


def _play(
    jobs: Sequence[Job], settings: Sequence[Setting], ways: Sequence[Way], engines: Engines, seed: int, notes: list[str]
) -> list[Result]:
    """Each configuration, then each baseline with the first one's policy."""
    results = []
    last = jobs[-1].at
    for setting, way in [*((setting, FAIR) for setting in settings), *((settings[0], way) for way in ways)]:
        label = setting.label if way is FAIR else way.name
        placed, moved = setting.place(jobs)
        if way is FAIR:
            notes += moved
        click.echo(f"{len(jobs)} requests, {label} ...", err=True)
        done = run(
            placed, setting.policy, engines, last + _FOREVER_S, way=way, seed=seed, until_done=True,
            look_s=max(_LOOK_S, last / _LOOKS),
        )  # fmt: skip
        results.append(result(label, done))
    return results


def _write(
    results: Sequence[Result],
    facts: dict[str, str],
    notes: Sequence[str],
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    """Raises OSError."""
    if json_file is not None:
        data = {
            "fairlane": __version__,
            "facts": facts,
            "notes": notes,
            "results": [each.as_json() for each in results],
        }
        json_file.write_bytes(orjson.dumps(data, option=orjson.OPT_INDENT_2))
    if html_file is not None:
        html_file.write_text(page(Page("Fairlane: replay", facts, notes), results), encoding="utf-8")
