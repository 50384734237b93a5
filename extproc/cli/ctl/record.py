"""`fairlane ctl record ...`: traffic and decisions, never text, into files for `fairlane replay`."""

from __future__ import annotations

import click

from extproc.cli.ctl import cells
from extproc.cli.ctl.change import Terms, make, terms
from extproc.cli.ctl.notation import SIZE
from extproc.cli.ctl.session import Command, Group, Session, pass_session
from extproc.cli.ctl.status import recording_text
from extproc.pb.admin.v1 import admin_pb2


@click.group("record", cls=Group)
def record() -> None:
    """Record traffic, to try a configuration on it with `fairlane replay`."""


@record.command("start", cls=Command)
@click.option("--name", default="", help="Of the files below recording.directory.  [default: the time]")
@click.option("--hash-tenants", is_flag=True, help="Without the tenants' names.")
@click.option("--max-size", type=SIZE, help="Of each file.  [default: 64MiB]")
@click.option("--keep", type=click.IntRange(1, 1000), help="Files for each pool.  [default: 4]")
@terms()
@pass_session
def start(
    session: Session, name: str, hash_tenants: bool, max_size: int | None, keep: int | None, terms: Terms
) -> None:
    """Begin to record."""
    request = admin_pb2.StartRecordingRequest(
        name=name, hash_tenants=hash_tenants, max_file_bytes=max_size or 0, keep_files=keep or 0
    )
    make(session, "StartRecording", request, terms)


@record.command("stop", cls=Command)
@terms(ttl="none")
@pass_session
def stop(session: Session, terms: Terms) -> None:
    """End the recording. Its files stay."""
    make(session, "StopRecording", admin_pb2.StopRecordingRequest(), terms)


@record.command("status", cls=Command)
@pass_session
def status(session: Session) -> None:
    """Whether it records, and where."""
    recording = session.call("GetStatus", admin_pb2.GetStatusRequest()).recording
    printer = session.printer
    if not printer.for_people:
        printer.message(recording)
        return
    printer.line(f"recording: {cells.text(recording_text(recording))}")
