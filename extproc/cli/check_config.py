"""`fairlane check-config`: is the file one that `serve` would take?

Nothing is bound, made or connected to. So what only the start shows is not found: a port that is taken, a Unix socket
that another process listens on, a damaged `admin.state`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import structlog

from extproc.admin.access import Access as AdminAccess
from extproc.admin.access import AdminStartError, is_local
from extproc.config.cautions import cautions
from extproc.config.faults import Fault
from extproc.config.load import ConfigError, load
from extproc.config.model import Config
from extproc.edge.key_file import KeyFileError, Keys
from extproc.engines.access import Access, AccessError


@click.command("check-config")
@click.argument("path", type=click.Path(path_type=Path), default="fairlane.yaml")
def check_config(path: Path) -> None:
    """Check a configuration file, and the files of keys, tokens and certificates that it names. Exit codes: 0 good,
    2 not. What it says and hardly means is told on standard error, and is no fault."""
    try:
        config = load(path)
        Keys(config)
        for pool in config.pools:
            Access.of(pool.metrics, pool.name)
        with _quiet():
            AdminAccess(config.listen.admin, config.admin).check_start()
    except (ConfigError, KeyFileError, AccessError, AdminStartError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    for caution in [*cautions(config), *_admin_cautions(config), *_page_cautions(config)]:
        click.echo(f"{path}: warning: {caution.path}: {caution.message}", err=True)
    pools = ", ".join(f"{pool.name} ({pool.endpoints.told})" for pool in config.pools)
    click.echo(f"{path}: good. Pools: {pools}. Classes: {', '.join(config.classes)}.")


@contextmanager
def _quiet() -> Iterator[None]:
    """What is logged as a warning at the start is told here in its place, as a line of its own."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)


def _admin_cautions(config: Config) -> Iterator[Fault]:
    """What `serve` starts with, and not as it was meant."""
    admin, listen = config.admin, config.listen.admin
    if admin.tls is None and not is_local(listen):
        yield Fault(
            "listen.admin", f"everyone on the way to {listen} can read the tokens of the admin port; give admin.tls"
        )
    fault = None if admin.state is None else _state_fault(Path(admin.state))
    if fault is not None:
        yield Fault("admin.state", f"{fault}; as it is, the admin API would start read-only")


def _page_cautions(config: Config) -> Iterator[Fault]:
    if config.telemetry.page and not is_local(config.listen.http):
        yield Fault(
            "telemetry.page",
            f"everyone who reaches {config.listen.http} sees the names of tenants on the live page; page: false, or "
            "let only Prometheus reach it",
        )


def _state_fault(path: Path) -> str | None:
    """Why the file cannot be opened to be written, or made; None: as far as this can be seen, it can."""
    folder = path.parent
    if not folder.is_dir():
        return f"{path}: there is no folder {folder}: make it, or name another place"
    if not os.access(folder, os.W_OK | os.X_OK):  # SQLite makes files beside it
        return f"{path}: the folder {folder} cannot be written to: let this user write it, or name another place"
    if not path.exists():
        return None
    if not path.is_file():
        return f"{path}: is no regular file: name another place"
    if not os.access(path, os.R_OK | os.W_OK):
        return f"{path}: cannot be read and written: let this user do both, or name another place"
    return None
