"""What every change has: a reason, how long it holds, and an account of what it did."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from extproc.cli.ctl import cells
from extproc.cli.ctl.notation import DURATION
from extproc.cli.ctl.output import Printer, note
from extproc.cli.ctl.session import Session
from extproc.pb.admin.v1 import admin_pb2

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Terms:
    """As the options say. `reason` is asked for when it is needed."""

    reason: str | None
    ttl_s: float | None
    etag: str | None
    dry_run: bool

    def into(self, request: Any) -> None:
        """Put into a request of a change. Raises click.UsageError where nobody gives a reason."""
        request.reason = self.given_reason()
        request.validate_only = self.dry_run
        if self.etag is not None:
            request.etag = self.etag
        if self.ttl_s is not None:
            request.ttl.FromNanoseconds(round(self.ttl_s * 1e9))
            request.ttl.SetInParent()

    def given_reason(self) -> str:
        reason = (self.reason or "").strip()
        if not reason and self.dry_run:
            return "dry run"
        if not reason and self.reason is None and somebody_is_there():
            reason = click.prompt("Reason", err=True).strip()
        if not reason:
            raise click.UsageError("a change needs a --reason: it stands in the history and in the audit")
        return reason


def somebody_is_there() -> bool:
    """To be asked."""
    return sys.stdin is not None and sys.stdin.isatty()


def terms(*, ttl: str = "optional", etag: bool = True) -> Callable[[F], F]:
    """Options of a change, given to the command as `terms`. `ttl`: optional, required or none."""

    def decorate(command: F) -> F:
        @functools.wraps(command)
        def with_terms(*args: Any, **options: Any) -> Any:
            given = Terms(
                options.pop("reason"), options.pop("ttl", None), options.pop("etag", None), options.pop("dry_run")
            )
            return command(*args, terms=given, **options)

        decorated: Any = with_terms
        decorated = click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")(
            decorated
        )
        if etag:
            decorated = click.option("--etag", help="Only if the configuration in force is this one.")(decorated)
        if ttl != "none":
            decorated = click.option(
                "--for",
                "ttl",
                type=DURATION,
                required=ttl == "required",
                help="Undone by itself after this time, like 10m.",
            )(decorated)
        result: F = click.option("--reason", help="Why; asked for on a terminal.")(decorated)
        return result

    return decorate


def make(session: Session, method: str, request: Any, terms: Terms) -> None:
    """Call for a change by `terms` and tell what it did."""
    terms.into(request)
    result = session.call(method, request, changes=not terms.dry_run)
    tell(session.printer, result)


def tell(printer: Printer, result: admin_pb2.ChangeResult) -> None:
    """What has changed, or would; and how it is taken back."""
    if not printer.for_people:
        printer.message(result)
        return
    for each in result.changes:
        printer.line(change_text(each))
    for warning in result.warnings:
        at = f"{warning.path}: " if warning.path else ""
        note(f"Warning: {at}{warning.message}")
    if result.validate_only:
        printer.line("Nothing has been changed: it would be good." if result.changes else "It would change nothing.")
    elif not result.changes:
        printer.line(f"No value has changed: it was so already. Revision {result.revision} is in force.")
        if result.HasField("expire_time"):
            printer.line(f"What was set for a while undoes itself at {cells.time(result, 'expire_time')}.")
    else:
        printer.line(f"Revision {result.revision} is in force.")
        if result.HasField("expire_time"):
            printer.line(f"It undoes itself at {cells.time(result, 'expire_time')}.")
        if result.revision > 1:
            printer.line(f"To take it back: fairlane ctl rollback {result.revision - 1}")
    if result.cluster_revision:
        tell_replicas(printer, result)


def tell_replicas(printer: Printer, result: admin_pb2.ChangeResult) -> None:
    """Which of the replicas have taken it, and which not and why."""
    replicas = result.replicas
    taken = sum(each.taken for each in replicas)
    printer.line(f"Cluster revision {result.cluster_revision}: taken by {taken} of {len(replicas)} replicas.")
    warnings = (
        f"Warning: replica {cells.text(each.replica)}: {each.error or 'has not taken it'}"
        for each in replicas
        if not each.taken
    )
    for warning in dict.fromkeys(warnings):  # those that cannot be seen are all alike
        note(warning)


def change_text(change: admin_pb2.FieldChange) -> str:
    """`classes.batch.queue_timeout: 5m -> 10m`; "-" for what is not there."""
    return f"{change.path}: {cells.value(change, 'before')} -> {cells.value(change, 'after')}"


def show_changes(printer: Printer, changes: Any) -> None:
    printer.table(
        ("path", "before", "after"),
        [(each.path, cells.value(each, "before"), cells.value(each, "after")) for each in changes],
    )
