"""`fairlane ctl set` and `unset`: any part of the configuration, by its path in the file."""

from __future__ import annotations

import click
from google.protobuf import field_mask_pb2

from extproc.cli.ctl.change import Terms, make, terms
from extproc.cli.ctl.notation import nested, parse_path, parse_setting, path_text
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2


@click.command("set", cls=Command)
@click.argument("settings", nargs=-1, required=True, metavar="PATH=VALUE...")
@terms()
@pass_session
def set_(session: Session, settings: tuple[str, ...], terms: Terms) -> None:
    """Change any part of the configuration, all of it at once.

    Paths are those of the file, with pools by name; values are YAML:
    pools.llama.window.max_tpot=120ms classes.batch.queue_timeout=10m. A name that has a dot is put into backquotes,
    and those into single ones for the shell: 'tenants.`acme.com`.weight=3'. null takes away a tenant, class, pool or
    alias: tenants.team-a=null."""
    request = admin_pb2.UpdateConfigRequest()
    request.config.update(nested([parse_setting(each) for each in settings]))
    make(session, "UpdateConfig", request, terms)


@click.command("unset", cls=Command)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@terms()
@pass_session
def unset(session: Session, paths: tuple[str, ...], terms: Terms) -> None:
    """Give parts of the configuration back to the file: what was changed at these paths and beneath is dropped."""
    mask = field_mask_pb2.FieldMask(paths=[path_text(parse_path(each)) for each in paths])
    request = admin_pb2.UpdateConfigRequest(update_mask=mask)
    request.config.SetInParent()
    make(session, "UpdateConfig", request, terms)
