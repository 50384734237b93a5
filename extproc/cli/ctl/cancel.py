"""`fairlane ctl cancel`: the only change that cannot be taken back, so it is asked before."""

from __future__ import annotations

import click

from extproc.cli.ctl.change import Terms, somebody_is_there, terms
from extproc.cli.ctl.failure import Failure
from extproc.cli.ctl.output import note
from extproc.cli.ctl.requests import FILTER_HELP, request_table
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2

_MOST_ROUNDS = 1000  # each is one call, in which the service cancels for two seconds at most


@click.command("cancel", cls=Command)
@click.option("--filter", "filter_", required=True, help=FILTER_HELP)
@click.option("--yes", is_flag=True, help="Do not ask.")
@terms(ttl="none", etag=False)
@pass_session
def cancel(session: Session, filter_: str, yes: bool, terms: Terms) -> None:
    """Take back all requests that match. Their clients get an error with the reason.

    Those inside the engines are meant only where the filter names `state`."""
    if not filter_.strip():
        raise click.UsageError("--filter: an empty one would be all requests; all that wait are 'state = queued'")
    asks = not (yes or terms.dry_run)
    if asks and not somebody_is_there():
        raise click.UsageError("this is no terminal to ask on: give --yes, or --dry-run to see how many there are")
    request = admin_pb2.CancelRequestsRequest(filter=filter_, reason=terms.given_reason(), validate_only=True)
    printer = session.printer
    if asks or terms.dry_run:
        would = session.call("CancelRequests", request)
        if terms.dry_run and not printer.for_people:
            printer.message(would)
            return
        least = "" if would.complete else "at least "
        text = f"{least}{would.cancelled_count} requests, {would.evicted_count} of them inside an engine"
        if terms.dry_run:
            printer.line(f"Would cancel {text}.")
            if would.sample:
                request_table(printer, list(would.sample))
                if len(would.sample) < would.cancelled_count:
                    note(f"These are {len(would.sample)} of them.")
            return
        if would.cancelled_count == 0:
            note("Nothing matches.")
            return
        if not click.confirm(f"Cancel {text}?", err=True):
            raise Failure("nothing has been cancelled")
    request.validate_only = False
    done = _in_rounds(session, request)
    if printer.for_people:
        printer.line(
            f"Cancelled {done.cancelled_count} requests: {done.refused_count} had waited, "
            f"{done.evicted_count} were inside an engine."
        )
    else:
        printer.message(done)
    if not done.complete:
        raise Failure("there may be more that match: call again for the rest")


def _in_rounds(session: Session, request: admin_pb2.CancelRequestsRequest) -> admin_pb2.CancelRequestsResponse:
    """Call until all are done: a call cancels for a limited time. A round that finds none is the last."""
    done: admin_pb2.CancelRequestsResponse = session.call("CancelRequests", request, changes=True)
    for _ in range(_MOST_ROUNDS):
        if done.complete:
            break
        more = session.call("CancelRequests", request, changes=True)
        done.cancelled_count += more.cancelled_count
        done.refused_count += more.refused_count
        done.evicted_count += more.evicted_count
        done.complete = more.complete
        if not more.cancelled_count:
            break
    return done
