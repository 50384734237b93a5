"""`fairlane ctl flows`, `requests` and `explain`."""

from __future__ import annotations

import click

from extproc.cli.ctl import cells
from extproc.cli.ctl.output import Printer
from extproc.cli.ctl.paging import gather, note_more
from extproc.cli.ctl.pools import complete_pool
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2

FILTER_HELP = (
    "Like 'tenant = \"team-a\" AND class = batch AND waited > 30s'. Fields: id, pool, tenant, class, state, endpoint, "
    "adapter, waited, inside, timeout_in, cost, body_bytes, slots, observed."
)


@click.command("flows", cls=Command)
@click.option("--pool", default="", shell_complete=complete_pool, help="Of this pool only.")
@click.option("--top", default=20, type=click.IntRange(1, 10_000), show_default=True)
@click.option("--order-by", default="", help='Like "oldest_wait desc".  [default: queued_count desc]')
@pass_session
def flows(session: Session, pool: str, top: int, order_by: str) -> None:
    """Tenants by class, those with the most waiting first."""
    answer = session.call("ListFlows", admin_pb2.ListFlowsRequest(pool=pool, top_k=top, order_by=order_by))
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    numbers = ("queued", "in flight", "tag", "weight", "oldest wait")
    printer.table(
        ("pool", "tenant", "class", *numbers),
        [
            (
                each.pool,
                each.tenant,
                getattr(each, "class") + (" (observed)" if each.observed else ""),
                cells.count(each.queued_count),
                cells.count(each.in_flight_slots),
                cells.number(each.tag),
                cells.number(each.weight),
                cells.duration(each, "oldest_wait"),
            )
            for each in answer.flows
        ],
        numbers=numbers,
    )


@click.command("requests", cls=Command)
@click.option("--filter", "filter_", default="", help=FILTER_HELP)
@click.option("--limit", default=100, type=click.IntRange(1), show_default=True)
@click.option("--all", "all_", is_flag=True, help="Without a limit.")
@pass_session
def requests(session: Session, filter_: str, limit: int, all_: bool) -> None:
    """Requests that wait and that are inside the engines, in the order in which they reached Fairlane."""
    request = admin_pb2.ListRequestsRequest(filter=filter_)
    answer = gather(session, "ListRequests", request, "requests", None if all_ else limit)
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    request_table(printer, answer.requests)
    note_more(answer, len(answer.requests), "--limit, --all")


@click.command("explain", cls=Command)
@click.argument("id", required=False)
@click.option("--x-request-id", help="As Envoy or the client named it.")
@pass_session
def explain(session: Session, id: str | None, x_request_id: str | None) -> None:  # noqa: A002 - click's
    """Why a request waits, and what must happen for it to go. By the ID that `requests` gives, or by x-request-id."""
    if (id is None) == (x_request_id is None):
        raise click.UsageError("name the request by ID or by --x-request-id")
    asked = admin_pb2.ExplainRequestRequest(id=id or "", x_request_id=x_request_id or "")
    answer = session.call("ExplainRequest", asked)
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    request = answer.request
    printer.line(answer.sentence)
    if answer.next:
        printer.line(answer.next)
    printer.line()
    holds = cells.text(answer.hold) + (f" ({answer.name})" if answer.name else "")
    found = cells.optional(answer, "value")
    if answer.limit:  # what is only counted is held against nothing
        found += f" of {cells.optional(answer, 'limit')}"
    printer.pairs(
        [
            ("request", request.id),
            ("pool", request.pool),
            ("tenant", request.tenant),
            ("class", getattr(request, "class")),
            ("state", cells.word(request, "state") + (" (observed)" if request.observed else "")),
            ("waited", cells.duration(request, "waited")),
            ("timeout in", cells.duration(request, "timeout_in")),
            ("endpoint", cells.text(request.endpoint)),
            ("held by", holds),
            ("value", found if answer.HasField("value") or answer.HasField("limit") else cells.NONE),
            ("ahead in flow", cells.count(answer.ahead_in_flow_count)),
            ("flows before", f"{answer.flow_position} of {answer.flow_count}"),
            ("estimated wait", cells.duration(answer, "estimated_wait")),
            ("priority", str(answer.priority) if answer.HasField("priority") else cells.NONE),
        ]
    )


def request_table(printer: Printer, found: list[admin_pb2.Request]) -> None:
    numbers = ("waited", "inside", "timeout in", "cost", "bytes", "slots")
    printer.table(
        ("id", "pool", "tenant", "class", "state", *numbers, "endpoint", "adapter", "notes"),
        [
            (
                each.id,
                each.pool,
                each.tenant,
                getattr(each, "class"),
                cells.word(each, "state"),
                cells.duration(each, "waited"),
                cells.duration(each, "inside"),
                cells.duration(each, "timeout_in"),
                cells.number(each.cost),
                cells.size(each.body_bytes),
                cells.count(each.slots),
                cells.text(each.endpoint),
                cells.text(each.adapter),
                _notes(each),
            )
            for each in found
        ],
        numbers=numbers,
    )


def _notes(request: admin_pb2.Request) -> str:
    words = [word for word, so in (("evicted", request.evicted), ("observed", request.observed)) if so]
    return cells.text(", ".join(words))
