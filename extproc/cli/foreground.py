"""The service in the foreground of a process: its signals and exit codes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import click
import structlog

from extproc.cli.given import given
from extproc.config.environment import ignored_note, shown_name
from extproc.config.load import ConfigError
from extproc.notify import Notifier
from extproc.service import Service, StartError
from extproc.telemetry.logs import set_up

log = structlog.get_logger()

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(path: Path | None, log_level: str, log_format: str | None) -> None:
    """`path`: of the configuration, see `given`. `log_format`: "json", "console"; None: by what standard error is.
    Exits with 1 where it cannot start, 2 for a bad configuration."""
    set_up(log_level, json=log_format == "json" or (log_format is None and not _on_a_terminal()))
    try:
        file = given(path, os.environ)
        config = file.config()
    except ConfigError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    for name in file.environment.ignored:
        log.warning("environment_variable_ignored", variable=shown_name(name), note=ignored_note(name))
    notifier = Notifier(os.environ)
    # What is loaded by now stays: no full collection has to look at it while requests wait.
    gc.freeze()
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_serve(Service(config, file, notifier), notifier))
    except StartError as error:
        click.echo(f"fairlane cannot start: {error}", err=True)
        sys.exit(1)


def _on_a_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()  # None: it was closed before the start


async def _serve(service: Service, notifier: Notifier) -> None:
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, service.reload if number == signal.SIGHUP else on_signal)
    watchdog = asyncio.create_task(notifier.watchdog(), name="watchdog")
    try:
        await service.run(stop, hurry)
    finally:
        watchdog.cancel()
        # What comes from now on is about a process that ends by itself in a moment. Blocked meanwhile: a handler that
        # is removed leaves what the system does by itself, which is to kill.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed: a fifth less CPU for each request."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
