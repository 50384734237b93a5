"""`fairlane doctor`: what in an Envoy configuration breaks holding, and how to mend it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from extproc.config.load import ConfigError, load

if TYPE_CHECKING:
    from extproc.wiring.doctor import Report
    from extproc.wiring.doctor.finding import Finding

_COLOURS = {"error": "bold red", "warning": "yellow", "note": "cyan"}


@click.command("doctor")
@click.option(
    "--envoy", "file", type=click.Path(path_type=Path), help="A bootstrap in YAML or JSON, or a saved /config_dump."
)
@click.option("--envoy-admin", "url", help="The admin interface of a running Envoy, like http://127.0.0.1:9901.")
@click.option("--config", type=click.Path(path_type=Path), default="fairlane.yaml", show_default=True)
@click.option("--cluster", help="Envoy's name for Fairlane's cluster, where it cannot be told.")
@click.option("--check-engines", is_flag=True, help="Ask the engines whether they obey priorities.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def doctor(
    file: Path | None, url: str | None, config: Path, cluster: str | None, check_engines: bool, as_json: bool
) -> None:
    """Find in Envoy's configuration what breaks holding. docs/doctor.md has every finding.

    Exit codes: 0 clean (there may be notes), 1 findings, 2 something cannot be read."""
    if (file is None) == (url is None):
        raise click.UsageError("give either --envoy FILE or --envoy-admin URL")
    try:
        fairlane = load(config, os.environ)
    except ConfigError as error:
        _give_up(str(error))
    # Envoy's messages take more than a second to load, which `fairlane --help` need not wait for.
    from extproc.wiring.doctor import engines, examine
    from extproc.wiring.doctor.finding import NotReadableError
    from extproc.wiring.doctor.source import read_admin, read_file

    try:
        source = read_file(file) if file is not None else read_admin(url or "")
        answers = engines.ask(fairlane) if check_engines else None
        report = examine(source, fairlane, cluster=cluster, answers=answers)
    except NotReadableError as error:
        _give_up(str(error))
    if as_json:
        click.echo(json.dumps(_data(report), indent=1))
    else:
        _print(report)
    sys.exit(0 if report.clean else 1)


def _give_up(reason: str) -> NoReturn:
    click.echo(reason, err=True)
    sys.exit(2)


def _data(report: Report) -> dict[str, object]:
    return {
        "source": report.source,
        "envoy_version": report.version,
        "clean": report.clean,
        "findings": [asdict(each) for each in report.findings],
    }


def _print(report: Report) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)  # paths are for copying: never broken
    for finding in report.findings:
        console.print(Text.assemble((finding.severity.value, _COLOURS[finding.severity.value]), f" {finding.id}"))
        for line in _lines(finding):
            console.print(Text(line))
        console.print()
    console.print(Text(_summary(report)))


def _lines(finding: Finding) -> Iterator[str]:
    if finding.where:
        yield f"  where  {finding.where}"
    yield f"  what   {finding.what}"
    yield f"  why    {finding.why}"
    for number, line in enumerate(finding.fix.splitlines()):
        yield f"  {'fix' if number == 0 else '   '}    {line}"


def _summary(report: Report) -> str:
    counts = {kind: sum(each.severity.value == kind for each in report.findings) for kind in _COLOURS}
    said = [f"{count} {kind}{'s' if count != 1 else ''}" for kind, count in counts.items() if count]
    envoy = f" (Envoy {report.version})" if report.version is not None else ""
    state = "clean" if report.clean else "not clean"
    return f"{report.source}{envoy}: {state}{': ' if said else ''}{', '.join(said)}"
