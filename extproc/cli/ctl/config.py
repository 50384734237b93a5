"""`fairlane ctl config ...`: the configuration in force, against the file, and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from google.protobuf import json_format

from extproc.cli.ctl import cells
from extproc.cli.ctl.change import Terms, make, tell, terms
from extproc.cli.ctl.notation import parse_path, parse_yaml, read_text
from extproc.cli.ctl.output import Printer, note, whole_numbers, yaml_text
from extproc.cli.ctl.session import Command, Group, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2

_VIEWS = ("effective", "file", "overrides")


@click.group("config", cls=Group)
def config() -> None:
    """The configuration: see it, compare it, change it, keep it."""


@config.command("get", cls=Command)
@click.option("--view", type=click.Choice(_VIEWS), default="effective", show_default=True)
@pass_session
def get(session: Session, view: str) -> None:
    """What is in force with all defaults (effective), what the file says (file), what was changed (overrides)."""
    answer = session.call("GetConfig", admin_pb2.GetConfigRequest(view=view.upper()))
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
    elif view == "overrides":
        _overrides(printer, answer)
    else:
        data = whole_numbers(json_format.MessageToDict(answer.config))
        printer.block(yaml_text(data))


@config.command("diff", cls=Command)
@pass_session
def diff(session: Session) -> None:
    """What was changed live, against what the file says."""
    answer = session.call("GetConfig", admin_pb2.GetConfigRequest(view=admin_pb2.OVERRIDES))
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    if not answer.overrides:
        note("Nothing: the file is in force.")
        return
    file = session.call("GetConfig", admin_pb2.GetConfigRequest(view=admin_pb2.FILE))
    data = whole_numbers(json_format.MessageToDict(file.config))
    printer.table(
        ("path", "file", "in force", "revision", "expires"),
        [
            (
                each.path,
                _in_file(data, each.path),
                cells.value(each, "value"),
                str(each.revision),
                cells.time(each, "expire_time"),
            )
            for each in answer.overrides
        ],
        numbers=("revision",),
    )


@config.command("apply", cls=Command)
@click.option("--file", "-f", "file", required=True, metavar="FILE", help='YAML in the shape of the file; "-": stdin.')
@terms()
@pass_session
def apply(session: Session, file: str, terms: Terms) -> None:
    """Merge a part of a file into the configuration, whole or not at all.

    Pools are named by a mapping or stand in a list, as in the file. null takes away a tenant, class, pool or alias."""
    request = admin_pb2.UpdateConfigRequest()
    request.config.update(_mapping(read_text(file, "--file"), file))
    make(session, "UpdateConfig", request, terms)


@config.command("validate", cls=Command)
@click.option("--file", "-f", "file", required=True, metavar="FILE", help='A fairlane.yaml; "-": stdin.')
@click.option("--patch", is_flag=True, help="It is a part, to be merged, as for `apply`.")
@pass_session
def validate(session: Session, file: str, patch: bool) -> None:
    """Would the service take this file, and what would change? Exit code 1: it would not."""
    text = read_text(file, "--file")
    request = admin_pb2.ValidateConfigRequest()
    if patch:
        request.config.update(_mapping(text, file))
    else:
        request.yaml = text
    tell(session.printer, session.call("ValidateConfig", request))


@config.command("export", cls=Command)
@click.option("--file", "-f", "file", metavar="FILE", help="Write it there.")
@pass_session
def export(session: Session, file: str | None) -> None:
    """The file with all that was changed for good, as YAML to be committed in its place."""
    answer = session.call("ExportConfig", admin_pb2.ExportConfigRequest())
    printer = session.printer
    if file is not None:
        with click.open_file(file, "w", encoding="utf-8", atomic=True) as out:
            out.write(answer.yaml)
    elif printer.for_people:
        printer.block(answer.yaml)
    else:
        printer.message(answer)


def _mapping(text: str, source: str) -> dict[str, Any]:
    data = parse_yaml(text, source)
    if not isinstance(data, dict) or not data:
        raise click.UsageError(f"{source}: expected a mapping in the shape of the file, like {{classes: {{...}}}}")
    return data


def _overrides(printer: Printer, answer: admin_pb2.GetConfigResponse) -> None:
    printer.table(
        ("path", "value", "revision", "expires"),
        [
            (
                each.path,
                cells.value(each, "value") if each.HasField("value") else "(taken away)",
                str(each.revision),
                cells.time(each, "expire_time"),
            )
            for each in answer.overrides
        ],
        numbers=("revision",),
    )


def _in_file(data: Any, path: str) -> str:
    """What the file says at a path; "-": nothing."""
    try:
        names = parse_path(path)
    except click.UsageError:  # of a service that is newer
        return cells.NONE
    for name in names:
        if isinstance(data, list):  # pools, which are a list and have names
            data = {each.get("name"): each for each in data if isinstance(each, Mapping)}
        if not isinstance(data, Mapping) or name not in data:
            return cells.NONE
        data = data[name]
    return cells.flow(data)
