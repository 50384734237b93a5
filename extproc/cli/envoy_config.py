"""`fairlane envoy-config`: a complete Envoy configuration for the way that is asked for."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from extproc.cli.ports import HostPort
from extproc.config.load import ConfigError, load
from extproc.config.units import ip_port, split_host_port
from extproc.wiring import derive, description
from extproc.wiring.base_file import EnvoyFileError
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import Wiring, WiringError
from extproc.wiring.shipped import head
from extproc.wiring.text import as_json, as_yaml


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
@click.option(
    "--profile",
    type=click.Choice(get_args(description.Profile)),
    default="standard",
    show_default=True,
    help="standard: the body stays in Envoy, requests pass when Fairlane is away. strict: they are refused "
    "then. body, duplex: the body goes to Fairlane.",
)
@click.option(
    "--usage",
    type=click.Choice(get_args(description.Usage)),
    default="access_log",
    show_default=True,
    help="Who reads the token counts of answers: Envoy, Fairlane (stream), nobody (estimate).",
)
@click.option(
    "--facts",
    type=click.Choice(get_args(description.Facts)),
    help="Who reads model and lengths: Envoy (json), and a Lua filter in it (lua), or only Fairlane (none). "
    "[default: json; none in the profile duplex]",
)
@click.option(
    "--append/--no-append",
    default=None,
    help="A Lua filter that puts `priority` into JSON bodies. [default: as --config wants it, else not]",
)
@click.option(
    "--first-byte/--no-first-byte",
    default=None,
    help="Show Fairlane the answers' headers; preemption needs them. [default: as --config wants it]",
)
@click.option(
    "--retry-turned-away",
    is_flag=True,
    help="Envoy asks another engine, two at most, when one answers 429 or 503 (it has no room).",
)
@click.option(
    "--envoy-version",
    default=f"1.{description.NEWEST}",
    show_default=True,
    help=f"1.{description.OLDEST} to 1.{description.NEWEST}; what a version lacks is done another way.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="fairlane.yaml: engines, address of Fairlane, queued paths, sizes, priority, identity.",
)
@click.option("--listener", type=_ADDRESS, default="127.0.0.1:10000", show_default=True, help="Where clients go.")
@click.option("--envoy-admin", type=_ADDRESS, default="127.0.0.1:9901", show_default=True)
@click.option(
    "--ext-proc",
    type=_ADDRESS,
    multiple=True,
    help="Fairlane; once for each replica. [default: as in --config, else 127.0.0.1:50051]",
)
@click.option(
    "--engine", type=_ENGINE, multiple=True, help="An engine, as in fairlane.yaml; repeat it. [default: as in --config]"
)
@click.option(
    "--engine-name",
    type=_ADDRESS,
    multiple=True,
    help="A name in DNS, and a port: Envoy takes all its addresses for engines; repeat it.",
)
@click.option(
    "--format", "form", type=click.Choice(("yaml", "json")), help="[default: by the ending of --output, else json]"
)
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help="A file; otherwise standard output.")
def envoy_config(
    profile: str,
    usage: str,
    facts: str | None,
    append: bool | None,
    first_byte: bool | None,
    retry_turned_away: bool,
    envoy_version: str,
    config_file: Path | None,
    listener: HostPort,
    envoy_admin: HostPort,
    ext_proc: tuple[HostPort, ...],
    engine: tuple[HostPort, ...],
    engine_name: tuple[HostPort, ...],
    form: str | None,
    output: Path | None,
) -> None:
    """Print a complete Envoy configuration. What it does otherwise than envoy/envoy.yaml is said on standard error."""
    given: dict[str, Any] = {"append": append, "first_byte": first_byte}
    given = {name: value for name, value in given.items() if value is not None}
    at: dict[str, Any] = {"listener": listener, "admin": envoy_admin}
    at |= {"ext_proc": list(ext_proc)} if ext_proc else {}
    engines = [*engine, *engine_name]
    at |= {"engines": engines} if engines else {}
    notes: list[str] = []
    try:
        given |= {"profile": profile, "usage": usage, "facts": facts, "retry_turned_away": retry_turned_away}
        given["envoy"] = description.minor_version(envoy_version)
        if config_file is not None:
            config = load(config_file)
            wiring = derive.wiring(config, **given)
            addresses = derive.addresses(config, **at)
            notes += derive.notes(config, wiring)
            notes += () if engines else derive.engine_notes(config)
        elif engines:
            if append:
                given["unscheduled_priority"] = Wiring().default_priority  # whose file would say that, is not known
            wiring, addresses = Wiring(**given), Addresses(**at)
        else:
            raise WiringError("no engines: name them with --engine, or give fairlane.yaml with --config")
        built = build(wiring, addresses)
    except (WiringError, EnvoyFileError, ConfigError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    form = form or ("yaml" if output is not None and output.suffix in (".yaml", ".yml") else "json")
    written = as_json(built.config) if form == "json" else as_yaml(built.config, head(wiring, built, _command()))
    if output is None:
        click.echo(written, nl=False)
    else:
        try:
            output.write_text(written, encoding="utf-8")
        except OSError as error:
            click.echo(f"{output}: cannot be written: {error.strerror}", err=True)
            sys.exit(1)
    for line in _said(built.differs, built.degraded, notes):
        click.echo(line, err=True)


def _command() -> str:
    return shlex.join(["fairlane", *sys.argv[1:]])


def _said(differs: tuple[str, ...], degraded: tuple[str, ...], notes: list[str]) -> Iterator[str]:
    yield from (f"differs: {each}" for each in differs)
    yield from (f"degraded: {each}" for each in degraded)
    yield from (f"note: {each}" for each in notes)
