"""`fairlane serve`: the service, behind an Envoy that runs elsewhere."""

from __future__ import annotations

import signal
from pathlib import Path

import click


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), default="fairlane.yaml", show_default=True,
              help="The configuration file.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              show_default=True, help="debug has a line for every request.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["json", "console"]), default=None,
              help="json, unless standard error is a terminal.")  # fmt: skip
def serve(path: Path, log_level: str, log_format: str | None) -> None:
    """Run the service in the foreground.

    SIGHUP reads the configuration file again; it is also read when it changes. A file that comes through a pipe is read
    once. SIGTERM or Ctrl-C drains the service: held requests go to another replica at once, answers under way may
    finish within the grace of the configuration. A second one ends it. Exit codes: 0 stopped, 1 cannot start, 2 bad
    configuration."""
    # It ends a process that has no handler, and the imports alone take seconds on a slow machine. The file is read
    # after this, and once more when the handler is there: nothing that it asks for is lost.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    from extproc.cli.foreground import run

    run(path, log_level, log_format)
