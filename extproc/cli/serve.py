"""`fairlane serve`: the service, behind an Envoy that runs elsewhere."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click

from extproc.config.load import ConfigError, from_data, read_file
from extproc.service import Service, StartError
from extproc.telemetry.logs import set_up


@click.command()
@click.option("--config", "path", type=click.Path(path_type=Path), default="fairlane.yaml", show_default=True,
              help="The configuration file.")  # fmt: skip
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
              show_default=True, help="debug has a line for every request.")  # fmt: skip
@click.option("--log-format", type=click.Choice(["json", "console"]), default=None,
              help="json, unless standard error is a terminal.")  # fmt: skip
def serve(path: Path, log_level: str, log_format: str | None) -> None:
    """Run the service in the foreground.

    SIGHUP reads the configuration file again; it is also read when it changes. SIGTERM or Ctrl-C drains the service:
    held requests go to another replica at once, answers under way may finish within the grace of the configuration. A
    second one ends it. Exit codes: 0 stopped, 1 cannot start, 2 bad configuration."""
    set_up(log_level, json=log_format == "json" or (log_format is None and not sys.stderr.isatty()))
    try:
        file = read_file(path)
        config = from_data(file.data, str(path))
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    # What is loaded by now stays: no full collection has to look at it while requests wait.
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(Service(config, file)))
    except StartError as error:
        click.echo(f"fairlane cannot start: {error}", err=True)
        sys.exit(1)


async def _serve(service: Service) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, service.reload)
    await service.run(stop, hurry)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: a fifth less CPU for each request."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
