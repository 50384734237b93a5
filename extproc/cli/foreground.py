"""The service in the foreground of a process: its signals and exit codes."""

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


def run(path: Path, log_level: str, log_format: str | None) -> None:
    """`path`: of the configuration. `log_format`: "json", "console"; None: by what standard error is. Exits with 1
    where it cannot start, 2 for a bad configuration."""
    set_up(log_level, json=log_format == "json" or (log_format is None and not _on_a_terminal()))
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


def _on_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # None: it was closed before the start


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
