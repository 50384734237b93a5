"""`fairlane envoy-config`: the shipped wiring with your addresses in it."""

from __future__ import annotations

import json
import sys

import click

from extproc.cli import envoy_file
from extproc.cli.ports import HostPort
from extproc.config.units import ip_port, split_host_port


class _Address(click.ParamType[HostPort]):
    name = "host:port"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> HostPort:
        if isinstance(value, HostPort):
            return value
        try:
            return self.parse(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)

    def parse(self, text: str) -> HostPort:
        return HostPort.parse(text)


class _Engine(_Address):
    name = "ip:port"

    def parse(self, text: str) -> HostPort:
        return HostPort(*split_host_port(ip_port(text)))


_ADDRESS = _Address()
_ENGINE = _Engine()


@click.command("envoy-config")
@click.option("--listener", type=_ADDRESS, default="127.0.0.1:10000", show_default=True, help="Where clients go.")
@click.option("--envoy-admin", type=_ADDRESS, default="127.0.0.1:9901", show_default=True)
@click.option(
    "--ext-proc", type=_ADDRESS, multiple=True, default=["127.0.0.1:50051"], show_default=True,
    help="Fairlane; once for each replica.",
)  # fmt: skip
@click.option("--engine", type=_ENGINE, multiple=True, required=True, help="An engine, as in fairlane.yaml; repeat it.")
def envoy_config(
    listener: HostPort, envoy_admin: HostPort, ext_proc: tuple[HostPort, ...], engine: tuple[HostPort, ...]
) -> None:
    """Print a complete Envoy configuration (as JSON: YAML readers take a key such as `n` for false)."""
    try:
        config = envoy_file.render(listener=listener, ext_proc=ext_proc, engines=engine, admin=envoy_admin)
    except envoy_file.EnvoyFileError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(json.dumps(config, indent=1))
