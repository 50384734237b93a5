"""`fairlane ctl pools`, `pool` and `endpoints`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click

from extproc.cli.ctl import cells
from extproc.cli.ctl.output import Printer
from extproc.cli.ctl.paging import gather
from extproc.cli.ctl.session import Command, Session, completing, pass_session
from extproc.pb.admin.v1 import admin_pb2

POOL_HEADS = ("pool", "mode", "traffic", "queued", "bytes", "in flight", "released/s", "observed", "endpoints")
POOL_NUMBERS = ("queued", "bytes", "in flight", "released/s", "observed", "endpoints")

_LONG_NS = 30 * 10**9  # without a release, though something waits: said from then on


def _pool_names(session: Session) -> list[str]:
    return [pool.name for pool in session.call("ListPools", admin_pb2.ListPoolsRequest()).pools]


def _class_names(session: Session) -> list[str]:
    return [
        each.name for pool in session.call("ListPools", admin_pb2.ListPoolsRequest()).pools for each in pool.classes
    ]


def _tenant_names(session: Session) -> list[str]:
    return [flow.tenant for flow in session.call("ListFlows", admin_pb2.ListFlowsRequest(top_k=100)).flows]


complete_pool = completing(_pool_names)
complete_class = completing(_class_names)
complete_tenant = completing(_tenant_names)


@click.command("pools", cls=Command)
@pass_session
def pools(session: Session) -> None:
    """All pools, a line each."""
    answer = gather(session, "ListPools", admin_pb2.ListPoolsRequest(), "pools")
    printer = session.printer
    if printer.for_people:
        printer.table(POOL_HEADS, map(pool_row, answer.pools), numbers=POOL_NUMBERS)
    else:
        printer.message(answer)


@click.command("pool", cls=Command)
@click.argument("name", shell_complete=complete_pool)
@pass_session
def pool(session: Session, name: str) -> None:
    """One pool: what holds each of its classes, and its endpoints with the room of their windows."""
    answer = session.call("GetPool", admin_pb2.GetPoolRequest(pool=name))
    printer = session.printer
    if not printer.for_people:
        printer.message(answer)
        return
    _pool(printer, answer)
    if answer.HasField("observed"):
        printer.line()
        printer.line("observed: requests pass as they come, and this is what would be if they waited their turn")
        printer.pairs(_load(answer.observed))
        printer.line()
        _classes(printer, answer.observed, would=True)
        printer.line()
        _endpoints(printer, answer.observed.endpoints, windows=True)


@click.command("endpoints", cls=Command)
@click.option("--pool", default="", shell_complete=complete_pool, help="Of this pool only.")
@pass_session
def endpoints(session: Session, pool: str) -> None:
    """All endpoints: what is inside them, and what their pages say."""
    answer = gather(session, "ListEndpoints", admin_pb2.ListEndpointsRequest(pool=pool), "endpoints")
    printer = session.printer
    if printer.for_people:
        _endpoints(printer, answer.endpoints)
    else:
        printer.message(answer)


def _pool(printer: Printer, pool: admin_pb2.Pool) -> None:
    source = cells.text(pool.endpoint_source)
    if pool.endpoint_source_error:
        source += f" (cannot be read: {pool.endpoint_source_error})"
    printer.pairs(
        [
            ("pool", pool.name),
            ("mode", mode_text(pool)),
            ("traffic", traffic_text(pool)),
            ("models", cells.text(", ".join(pool.models))),
            *_load(pool),
            ("observed", str(pool.observed_count)),
            ("endpoints", source),
        ]
    )
    printer.line()
    _classes(printer, pool)
    printer.line()
    _endpoints(printer, pool.endpoints, windows=True)


def mode_text(pool: admin_pb2.Pool) -> str:
    mode = cells.word(pool, "mode")
    if pool.percentage >= 100:  # also where the mode is for nobody, that is said
        return mode
    return f"{mode} {pool.percentage:g}% of {cells.word(pool, 'percentage_of')}"


def traffic_text(pool: admin_pb2.Pool) -> str:
    return "retiring" if pool.retiring else cells.word(pool, "traffic")


def pool_row(pool: admin_pb2.Pool) -> Sequence[str]:
    """By POOL_HEADS."""
    return (
        pool.name,
        mode_text(pool),
        traffic_text(pool),
        cells.count(pool.queued_count),
        cells.size(pool.queued_bytes),
        cells.count(pool.in_flight_slots),
        cells.number(pool.releases_per_second),
        cells.count(pool.observed_count),
        str(len(pool.endpoints)),
    )


def _load(pool: admin_pb2.Pool) -> list[tuple[str, str]]:
    """What is wrong is there only when it is."""
    found = [
        ("queued", f"{pool.queued_count} ({cells.size(pool.queued_bytes)})"),
        ("in flight", str(pool.in_flight_slots)),
        ("known", str(pool.known_count)),
        ("released/s", cells.number(pool.releases_per_second)),
    ]
    if pool.since_release.ToNanoseconds() > _LONG_NS:
        found.append(("nothing released for", cells.duration(pool, "since_release")))
    if pool.leaked_slots:
        found.append(("leaked slots", f"{pool.leaked_slots} (no stream holds them: a fault of Fairlane)"))
    return found


def _classes(printer: Printer, pool: admin_pb2.Pool, *, would: bool = False) -> None:
    """A table, and a line for each class that waits. `would`: it would, if requests were held."""
    numbers = ("rank", "queued", "in flight", "tenants", "oldest wait", "objective")
    printer.table(
        ("class", *numbers, "would be held by" if would else "held by", "gates closed", "retiring"),
        [
            (
                each.name,
                str(each.rank),
                cells.count(each.queued_count),
                cells.count(each.in_flight_slots),
                cells.count(each.tenant_count),
                cells.duration(each, "oldest_wait"),
                cells.duration(each, "wait_objective"),
                cells.text(each.hold),
                cells.text(
                    ", ".join(f"{gate.name} at {gate.closed_count}" for gate in each.gates if gate.closed_count)
                ),
                cells.yes(each.retiring),
            )
            for each in pool.classes
        ],
        numbers=numbers,
    )
    for each in pool.classes:
        if each.hold:
            then = f"; goes when: {each.next}" if each.next else ""
            printer.line(f"{each.name}{' would be held' if would else ''}: {each.sentence}{then}")


def _endpoints(printer: Printer, found: Iterable[admin_pb2.Endpoint], *, windows: bool = False) -> None:
    """`windows`: with the limit of each window, and the slots of it that are free. Memory or prompts may hold more."""
    found = list(found)
    window = ("limit", "room") if windows else ()
    shared = any(each.HasField("claim_slots") for each in found)  # with other replicas, which hold some of `foreign`
    numbers = (
        "in flight",
        *window,
        *(("part", "others") if shared else ()),
        "capacity",
        "foreign",
        "running",
        "waiting",
        "kv",
        "tpot",
        "page age",
        "failed",
        "turned away",
    )
    printer.table(
        ("endpoint", "pool", "stance", *numbers, "engine", "priority by", "last error"),
        [
            (
                each.address,
                each.pool,
                cells.word(each, "stance"),
                cells.count(each.in_flight_slots),
                *((cells.number(each.limit), cells.number(each.room)) if windows else ()),
                *((cells.optional(each, "claim_slots"), cells.count(each.others_slots)) if shared else ()),
                cells.number(each.capacity),
                cells.count(each.foreign_count),
                cells.optional(each, "running_count"),
                cells.optional(each, "waiting_count"),
                cells.optional(each, "kv_usage_ratio"),
                cells.duration(each, "time_per_output_token"),
                cells.duration(each, "page_age"),
                cells.count(each.failed_count),
                cells.count(each.turned_away_count),
                cells.text(each.dialect),
                cells.text(each.priority_told),
                cells.text(each.last_error),
            )
            for each in found
        ],
        numbers=numbers,
    )
