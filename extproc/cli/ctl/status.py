"""`fairlane ctl status`."""

from __future__ import annotations

import click

from extproc.cli.ctl import cells, cluster
from extproc.cli.ctl.output import note
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2


@click.command("status", cls=Command)
@pass_session
def status(session: Session) -> None:
    """The service, its configuration, what will undo itself, and who asks."""
    answer = session.call("GetStatus", admin_pb2.GetStatusRequest())
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    file, state = answer.file, answer.state
    printer.pairs(
        [
            ("version", cells.text(answer.version)),
            ("started", cells.time(answer, "start_time")),
            ("serving", cells.yes(answer.serving) if answer.serving else "no: it drains"),
            ("revision", str(answer.revision)),
            ("etag", cells.text(answer.etag)),
            ("file", cells.text(file.path)),
            ("loaded", cells.time(file, "load_time")),
            ("overrides", str(answer.override_count)),
            ("state", state.path or "in memory: changes are gone with the process (admin.state keeps them)"),
            ("recording", recording_text(answer.recording)),
            ("pools", str(answer.pool_count)),
            ("queued", str(answer.queued_count)),
            ("in flight", str(answer.in_flight_slots)),
            ("observed", str(answer.observed_count)),
            ("watchers", str(answer.watcher_count)),
            *(_of_cluster(answer.cluster) if answer.HasField("cluster") else ()),
            ("you are", f"{cells.text(answer.caller)} ({cells.word(answer, 'caller_role')})"),
        ]
    )
    if answer.expiries:
        printer.line()
        printer.table(
            ("expires", "revision", "paths", "error"),
            [
                (cells.time(e, "expire_time"), str(e.revision), ", ".join(e.paths), cells.text(e.error))
                for e in answer.expiries
            ],
            numbers=("revision",),
        )
    if answer.cluster.replicas:
        printer.line()
        printer.table(
            ("replica", "heard of", "version", "own revision", "shared revision", "refuses"),
            [
                (
                    cells.text(each.replica),
                    cells.duration(each, "age"),
                    cells.text(each.version),
                    str(each.revision),
                    str(each.cluster_revision),
                    cells.text("; ".join(each.refused_error.splitlines())),
                )
                for each in answer.cluster.replicas
            ],
            numbers=("own revision", "shared revision"),
        )
    if not file.good and (file.path or file.error):
        told = "; ".join(file.error.splitlines())
        note(f"Warning: the file cannot be used as it is now, and the one before it goes on: {told}")
    if state.read_only:
        note(f"Warning: nothing can be changed: {state.error}")
    for told in cluster.troubles(answer.cluster):
        note(f"Warning: {told}")


def _of_cluster(seen: admin_pb2.ClusterStatus) -> list[tuple[str, str]]:
    rows = [("cluster", f"{cells.text(seen.name)} ({cells.word(seen, 'mode')})"), ("replica", cluster.role(seen))]
    rows.append(("store", cluster.store(seen)))
    return [*rows, ("replicas", cluster.there(seen))] if seen.store_used else rows


def recording_text(recording: admin_pb2.RecordingStatus) -> str:
    if recording.stopped_by_error:
        return "stopped by an error: see the log"
    return f"on: {', '.join(recording.files)}" if recording.active else "off"
