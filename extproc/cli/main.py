"""The command `fairlane`. Each subcommand is a module of its own, imported when it is called."""

from __future__ import annotations

import importlib

import click

from extproc import __version__

_COMMANDS = {
    "bench": "extproc.cli.bench:bench",
    "check-config": "extproc.cli.check_config:check_config",
    "config-schema": "extproc.cli.config_schema:config_schema",
    "ctl": "extproc.cli.ctl.main:ctl",
    "demo": "extproc.cli.demo:demo",
    "doctor": "extproc.cli.doctor:doctor",
    "envoy-config": "extproc.cli.envoy_config:envoy_config",
    "probe": "extproc.cli.probe_command:probe",
    "replay": "extproc.cli.replay:replay",
    "serve": "extproc.cli.serve:serve",
    "sim": "extproc.cli.sim:sim",
    "top": "extproc.cli.top.command:top",
    "up": "extproc.cli.up:up",
}


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        place = _COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)  # noqa: S101 - our own table
        return command


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fairlane")
def main() -> None:
    """Fair priority queues for LLM requests behind Envoy's ext_proc filter."""


if __name__ == "__main__":
    main()
