"""`fairlane envoy-config`: a complete Envoy configuration for the way that is asked for."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from extproc.cli.place_options import check_form, place_options
from extproc.cli.place_options import place as place_of
from extproc.cli.ports import HostPort
from extproc.config.cluster import Mode
from extproc.config.load import ConfigError, load
from extproc.config.units import ip_port, split_host_port
from extproc.wiring import derive, description
from extproc.wiring.base_file import EnvoyFileError
from extproc.wiring.build import Addresses, build
from extproc.wiring.description import FairlaneTls, Wiring, WiringError
from extproc.wiring.mesh import xds
from extproc.wiring.mesh.forms import FORMS
from extproc.wiring.parts import Data, is_ip
from extproc.wiring.shipped import head, mesh_head
from extproc.wiring.text import as_documents, as_json, as_yaml


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
        at = HostPort.parse(text)
        if not is_ip(at.host) and not _NAME.fullmatch(at.host):
            raise ValueError(f"{at.host!r} is neither an address nor a name in DNS")
        return at


class _Own(_Address):
    """Where Envoy itself listens."""

    name = "ip:port"

    def parse(self, text: str) -> HostPort:
        try:
            return HostPort(*split_host_port(ip_port(text)))
        except ValueError:
            raise ValueError(f"{text!r} is not ip:port, like 0.0.0.0:10000: Envoy listens at no name") from None


class _Engine(_Address):
    name = "ip:port"

    def parse(self, text: str) -> HostPort:
        return HostPort(*split_host_port(ip_port(text)))


_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]{0,252})")
_ADDRESS = _Address()
_OWN = _Own()
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
    "--cluster-mode",
    type=click.Choice(get_args(Mode)),
    help="What several --ext-proc are to each other, as cluster.mode of fairlane.yaml. [default: as in --config, else "
    "single]",
)
@click.option(
    "--spread",
    type=click.Choice(get_args(description.Spread)),
    help="Over several --ext-proc: each request to any, or each model always to the same one. "
    "[default: model with --cluster-mode partition, else requests]",
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
@click.option("--listener", type=_OWN, default="127.0.0.1:10000", show_default=True, help="Where clients go (ip:port).")
@click.option("--envoy-admin", type=_OWN, default="127.0.0.1:9901", show_default=True)
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
    "--fairlane-ca",
    metavar="FILE",
    help="Envoy speaks TLS to Fairlane: the authority of its certificate, PEM. This path and those of the next two are "
    "as Envoy sees them.",
)
@click.option("--fairlane-certificate", metavar="FILE", help="That Envoy shows to Fairlane, PEM (mTLS); with its key.")
@click.option("--fairlane-key", metavar="FILE", help="Its key, PEM.")
@click.option(
    "--fairlane-name",
    metavar="SAN",
    help="What Fairlane's certificate must be for: a DNS name, an address or a URI. [default: the host of --ext-proc]",
)
@click.option(
    "--format",
    "encoding",
    type=click.Choice(("yaml", "json")),
    help="[default: by the ending of --output; else json, and yaml of another form than static]",
)
@click.option("--output", type=click.Path(path_type=Path), help="A file (xds: a folder); otherwise standard output.")
@place_options
def envoy_config(
    profile: str,
    usage: str,
    facts: str | None,
    append: bool | None,
    first_byte: bool | None,
    retry_turned_away: bool,
    cluster_mode: str | None,
    spread: str | None,
    envoy_version: str,
    config_file: Path | None,
    listener: HostPort,
    envoy_admin: HostPort,
    ext_proc: tuple[HostPort, ...],
    engine: tuple[HostPort, ...],
    engine_name: tuple[HostPort, ...],
    fairlane_ca: str | None,
    fairlane_certificate: str | None,
    fairlane_key: str | None,
    fairlane_name: str | None,
    encoding: str | None,
    output: Path | None,
    form: str,
    **where: Any,
) -> None:
    """Print a complete Envoy configuration, or what another one needs (--form). What it does otherwise than
    envoy/envoy.yaml is said on standard error."""
    given: dict[str, Any] = {"append": append, "first_byte": first_byte, "mode": cluster_mode}
    given = {name: value for name, value in given.items() if value is not None}
    at: dict[str, Any] = {"listener": listener, "admin": envoy_admin}
    at |= {"ext_proc": list(ext_proc)} if ext_proc else {}
    engines = [*engine, *engine_name]
    if engines or form not in ("static", "xds"):
        # A gateway has its engines from --engines-service, so what the pools say of theirs is not for it.
        at["engines"] = engines or Addresses().engines
    notes: list[str] = []
    try:
        _check_given(form, encoding, output)
        _check_once("--ext-proc", ext_proc)
        _check_once("--engine, --engine-name", engines)
        if ext_proc and where["fairlane_service"] is not None:
            raise WiringError("--ext-proc and --fairlane-service: each says where Fairlane is; give one")
        given |= {"profile": profile, "usage": usage, "facts": facts, "retry_turned_away": retry_turned_away}
        given["spread"] = spread
        given["envoy"] = description.minor_version(envoy_version)
        tls = _fairlane_tls(fairlane_ca, fairlane_certificate, fairlane_key, fairlane_name)
        at |= {} if tls is None else {"fairlane_tls": tls}
        if config_file is not None:
            config = load(config_file, os.environ)
            wiring = derive.wiring(config, **given)
            addresses = derive.addresses(config, **at)
            notes += [*derive.notes(config, wiring), *derive.tls_notes(config, tls)]
            notes += derive.replica_notes(config, wiring, len(addresses.ext_proc))
            notes += () if "engines" in at else derive.engine_notes(config)
        elif "engines" in at:
            if append:
                given["unscheduled_priority"] = Wiring().default_priority  # whose file would say that, is not known
            wiring, addresses = Wiring(**given), Addresses(**at)
        else:
            raise WiringError("no engines: name them with --engine, or give fairlane.yaml with --config")
        built = build(wiring, addresses)
        place = place_of(where, form)
        documents = FORMS[form](wiring, addresses, place)
    except (WiringError, EnvoyFileError, ConfigError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    top = head(wiring, built, _command()) if form == "static" else mesh_head(form, wiring, built, _command())
    try:
        if form == "xds" and output is not None:
            output.mkdir(parents=True, exist_ok=True)
            for name, document in xds.files(built.config, place.folder).items():
                (output / name).write_text(as_yaml(document, top), encoding="utf-8")
        else:
            _write(documents, top, encoding or _encoding(form, output), output)
    except OSError as error:
        click.echo(f"{output}: cannot be written: {error.strerror}", err=True)
        sys.exit(1)
    for line in _said(built.differs, built.degraded, notes):
        click.echo(line, err=True)


def _check_given(form: str, encoding: str | None, output: Path | None) -> None:
    """Raises WiringError for an option of the command line that would not be looked at."""
    context = click.get_current_context()
    check_form(
        form,
        (
            each.opts[0]
            for each in context.command.params
            if each.name is not None and context.get_parameter_source(each.name) is ParameterSource.COMMANDLINE
        ),
    )
    if form == "xds" and output is not None and encoding == "json":
        raise WiringError("--format json: the files of the form xds name each other as .yaml; leave it out")


def _check_once(option: str, addresses: Sequence[HostPort]) -> None:
    """Raises WiringError."""
    counted = Counter(str(at).lower() for at in addresses)
    if twice := sorted(at for at, times in counted.items() if times > 1):
        raise WiringError(f"{option}: named twice: {', '.join(twice)}")


def _encoding(form: str, output: Path | None) -> str:
    if output is not None and output.suffix in (".yaml", ".yml"):
        return "yaml"
    return "json" if form == "static" else "yaml"


def _write(documents: list[Data], top: list[str], encoding: str, output: Path | None) -> None:
    """Raises OSError."""
    if encoding == "yaml":
        written = as_documents(documents, top)
    else:
        written = as_json(documents[0]) if len(documents) == 1 else as_json({"items": documents})
    if output is None:
        click.echo(written, nl=False)
    else:
        output.write_text(written, encoding="utf-8")


def _fairlane_tls(ca: str | None, certificate: str | None, key: str | None, name: str | None) -> FairlaneTls | None:
    """Raises WiringError."""
    if ca is not None:
        return FairlaneTls(ca, certificate, key, name)
    if (certificate, key, name) != (None, None, None):
        raise WiringError(
            "--fairlane-certificate, --fairlane-key and --fairlane-name are for TLS, and it is not said whom Envoy is "
            "to trust: give --fairlane-ca, too"
        )
    return None


def _command() -> str:
    return shlex.join(["fairlane", *sys.argv[1:]])


def _said(differs: tuple[str, ...], degraded: tuple[str, ...], notes: list[str]) -> Iterator[str]:
    yield from (f"differs: {each}" for each in differs)
    yield from (f"degraded: {each}" for each in degraded)
    yield from (f"note: {each}" for each in notes)
