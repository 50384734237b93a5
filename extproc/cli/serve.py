"""`fairlane serve`: the service, behind an Envoy that runs elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), envvar="FAIRLANE_CONFIG", show_envvar=True,
              help="The configuration file.  [default: fairlane.yaml]")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              envvar="FAIRLANE_LOG_LEVEL", show_envvar=True, show_default=True,
              help="debug has a line for every request.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["json", "console"]), envvar="FAIRLANE_LOG_FORMAT", show_envvar=True,
              help="json, unless standard error is a terminal.")  # fmt: skip
def serve(path: Path | None, log_level: str, log_format: str | None) -> None:
    """Run the service in the foreground.

    Environment variables lie over the file: FAIRLANE__LISTEN__HTTP=0.0.0.0:9090 for the key http of listen, and so for
    every key; values are YAML. Entries of a list have numbers from 0, null takes a name away, and a new name with
    capitals is given in a mapping: FAIRLANE__TENANTS='{Team-A: {weight: 4}}'. docs/configuration.md has all the rules.
    Where variables say all, no file is needed.

    SIGHUP reads the configuration file again; it is also read when it changes. A file that comes through a pipe is read
    once. SIGTERM or Ctrl-C drains the service: held requests go to another replica at once, answers under way may
    finish within the grace of the configuration. A second one ends it. Exit codes: 0 stopped, 1 cannot start, 2 bad
    configuration."""
    _open_standard_files()
    # It ends a process that has no handler, and the imports alone take seconds on a slow machine. The file is read
    # after this, and once more when the handler is there: nothing that it asks for is lost.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Nothing is bound or begun until the service has handlers of its own. Without these, process 1 of a container would
    # not be stopped meanwhile, and any other would end as if it had failed.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    if os.getpid() == 1:
        # Orphans of others become children of this one, as where a check runs a shell in the container: they are let
        # go when they end. It has none of its own.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    from extproc.cli.foreground import run

    run(path, log_level, log_format)


def _open_standard_files() -> None:
    """Where one of the three was closed before the start, the next socket would have its number; and libuv (uvloop)
    aborts when it is to close that."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # has the lowest number that is free
