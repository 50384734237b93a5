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
from extproc.cli.given import given
from extproc.config.cautions import cautions
from extproc.config.environment import ignored_note, shown_name
from extproc.config.faults import Fault
from extproc.config.load import ConfigError, FileData
from extproc.config.model import Config
from extproc.edge.key_file import KeyFileError, Keys
from extproc.engines.access import Access, AccessError
from extproc.transport.tls_files import EXPIRED, TlsError, TlsFiles

_MOST_NAMES = 10  # of variables


@click.command("check-config")
@click.argument("path", type=click.Path(path_type=Path), required=False, envvar="FAIRLANE_CONFIG")
def check_config(path: Path | None) -> None:
    """Check a configuration file, and the files of keys, tokens and certificates that it names; with the environment
    variables that `serve` would lay over it. Exit codes: 0 good, 2 not. What it says and hardly means is told on
    standard error, and is no fault."""
    try:
        file = given(path, os.environ)
        config = file.config()
        Keys(config)
        for pool in config.pools:
            Access.of(pool.metrics, pool.name)
        with _quiet():
            admin = AdminAccess(config.listen.admin, config.admin)
            admin.check_start()
            tls = [admin.tls, *_tls_files(config)]
    except (ConfigError, KeyFileError, AccessError, AdminStartError, TlsError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    told = file.path or file.title
    for name in file.environment.ignored:
        click.echo(f"{told}: warning: {shown_name(name)}: {ignored_note(name)}", err=True)
    for caution in [*cautions(config), *_admin_cautions(config), *_page_cautions(config), *_tls_cautions(tls)]:
        click.echo(f"{told}: warning: {caution.path}: {caution.message}", err=True)
    pools = ", ".join(f"{pool.name} ({pool.endpoints.told})" for pool in config.pools)
    click.echo(f"{told}{_laid_over(file)}: good. Pools: {pools}. Classes: {', '.join(config.classes)}.")


def _laid_over(file: FileData) -> str:
    """The variables that count."""
    names = file.environment.names
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f" with {', '.join(names[:_MOST_NAMES])}{more}"


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
    tls = config.listen.http_tls
    if config.telemetry.page and not is_local(config.listen.http) and (tls is None or tls.client_ca is None):
        yield Fault(
            "telemetry.page",
            f"everyone who reaches {config.listen.http} sees the names of tenants on the live page; page: false, "
            "let only Prometheus reach it, or give listen.http_tls with a client_ca",
        )


def _tls_files(config: Config) -> Iterator[TlsFiles]:
    """Those of the ports but the admin's. Raises TlsError."""
    for name, tls in (("ext_proc_tls", config.listen.ext_proc_tls), ("http_tls", config.listen.http_tls)):
        if tls is not None:
            yield TlsFiles(tls, f"listen.{name}")


def _tls_cautions(files: list[TlsFiles | None]) -> Iterator[Fault]:
    for each in files:
        if each is not None and each.expired:
            yield Fault(f"{each.setting}.certificate", EXPIRED)


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
