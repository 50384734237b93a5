"""`fairlane ctl history`, `diff`, `rollback` and `audit`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from extproc.cli.ctl import cells
from extproc.cli.ctl.change import Terms, change_text, make, show_changes, terms
from extproc.cli.ctl.output import note
from extproc.cli.ctl.paging import gather, note_more
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2

_REVISION = click.IntRange(1, 2**63 - 1)
_LIMIT = click.IntRange(1)


@click.command("history", cls=Command)
@click.option("--limit", default=20, type=_LIMIT, show_default=True)
@pass_session
def history(session: Session, limit: int) -> None:
    """Revisions of the configuration, newest first."""
    answer = gather(session, "ListRevisions", admin_pb2.ListRevisionsRequest(), "revisions", limit)
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    printer.table(
        ("revision", "time", "kind", "who", "reason", "changes", "expires"),
        [
            (
                str(each.revision),
                cells.time(each, "create_time"),
                cells.word(each, "kind") + (f" to {each.rolled_back_to}" if each.rolled_back_to else ""),
                cells.text(each.who),
                cells.text(each.reason),
                _changes(each.changes),
                cells.time(each, "expire_time"),
            )
            for each in answer.revisions
        ],
        numbers=("revision",),
    )
    note_more(answer, len(answer.revisions))


@click.command("diff", cls=Command)
@click.argument("from_", metavar="[FROM]", required=False, type=_REVISION)
@click.argument("to", metavar="[TO]", required=False, type=_REVISION)
@pass_session
def diff(session: Session, from_: int | None, to: int | None) -> None:
    """Differences between two revisions. Without TO: to the one in force; without both: the last change."""
    request = admin_pb2.DiffRevisionsRequest(from_revision=from_ or 0, to_revision=to or 0)
    answer = session.call("DiffRevisions", request)
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
    elif answer.changes:
        show_changes(printer, answer.changes)
    else:
        note(f"Revisions {answer.from_revision} and {answer.to_revision} are the same.")


@click.command("rollback", cls=Command)
@click.argument("revision", type=_REVISION)
@terms()
@pass_session
def rollback(session: Session, revision: int, terms: Terms) -> None:
    """Put back the live changes as they were at REVISION, as a new revision. The file is left alone."""
    make(session, "Rollback", admin_pb2.RollbackRequest(revision=revision), terms)


@click.command("audit", cls=Command)
@click.option("--limit", default=20, type=_LIMIT, show_default=True)
@click.option("--who", default="", help="Of this one only.")
@click.option("--failed", is_flag=True, help="Only what was refused.")
@pass_session
def audit(session: Session, limit: int, who: str, failed: bool) -> None:
    """Every change and attempt, newest first: who, when, from where, why, and what came of it."""
    request = admin_pb2.ListAuditRecordsRequest(who=who, failed_only=failed)
    answer = gather(session, "ListAuditRecords", request, "records", limit)
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    printer.table(
        ("time", "who", "role", "from", "method", "outcome", "count", "revision", "reason", "changes", "message"),
        [
            (
                cells.time(each, "time"),
                cells.text(each.who),
                cells.word(each, "role"),
                cells.text(each.peer),
                each.method,
                each.outcome + (" (dry run)" if each.validate_only else ""),
                str(each.count),
                str(each.revision) if each.revision else cells.NONE,
                cells.text(each.reason),
                _changes(each.changes),
                cells.text(each.message),
            )
            for each in answer.records
        ],
        numbers=("count", "revision"),
    )
    note_more(answer, len(answer.records))


def _changes(changes: Sequence[admin_pb2.FieldChange]) -> str:
    """The first, and how many more."""
    if not changes:
        return cells.NONE
    more = len(changes) - 1
    return change_text(changes[0]) + (f" (and {more} more)" if more else "")
