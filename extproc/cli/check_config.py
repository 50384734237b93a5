"""`fairlane check-config`: is the file one that `serve` would take?"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from extproc.config.load import ConfigError, load
from extproc.edge.key_file import KeyFileError, Keys


@click.command("check-config")
@click.argument("path", type=click.Path(path_type=Path), default="fairlane.yaml")
def check_config(path: Path) -> None:
    """Check a configuration file, and the files of keys that it names. Exit codes: 0 good, 2 not."""
    try:
        config = load(path)
        Keys(config)
    except (ConfigError, KeyFileError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    pools = ", ".join(f"{pool.name} ({len(pool.endpoints)} endpoints)" for pool in config.pools)
    click.echo(f"{path}: good. Pools: {pools}. Classes: {', '.join(config.classes)}.")
