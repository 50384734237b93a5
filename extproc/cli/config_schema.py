"""`fairlane config-schema`: the JSON Schema of the configuration file, for editors."""

from __future__ import annotations

import json

import click

from extproc.cli.stack import shipped_config
from extproc.config.comments import comments
from extproc.config.json_schema import json_schema


@click.command("config-schema")
def config_schema() -> None:
    """Print the JSON Schema (2020-12) of fairlane.yaml: keys, types, defaults and what each key is for.

    An editor with the YAML language server goes by it where the first line of the file says
    "# yaml-language-server: $schema=fairlane.schema.json", after: fairlane config-schema > fairlane.schema.json."""
    file = shipped_config()
    told = {} if file is None else comments(file.read_text(encoding="utf-8"))
    click.echo(json.dumps(json_schema(told), indent=2))
