"""`fairlane check-config`: is the file one that `serve` would take?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from extproc.config.cautions import cautions
from extproc.config.load import ConfigError, load
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
    except (ConfigError, KeyFileError, AccessError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    for caution in cautions(config):
        click.echo(f"{path}: warning: {caution.path}: {caution.message}", err=True)
    pools = ", ".join(f"{pool.name} ({pool.endpoints.told})" for pool in config.pools)
    click.echo(f"{path}: good. Pools: {pools}. Classes: {', '.join(config.classes)}.")
