"""`fairlane ctl watch`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import islice

import click

from extproc.cli.ctl import cells
from extproc.cli.ctl.failure import Exit, Failure
from extproc.cli.ctl.notation import DURATION
from extproc.cli.ctl.output import Printer, drawn
from extproc.cli.ctl.pools import POOL_HEADS, POOL_NUMBERS, complete_pool, pool_row
from extproc.cli.ctl.session import Command, Session, pass_session
from extproc.pb.admin.v1 import admin_pb2

_AGED_S = 60.0
_CLASS_HEADS = ("pool", "class", "queued", "in flight", "tenants", "oldest wait")


@click.command("watch", cls=Command)
@click.argument("pool", default="", shell_complete=complete_pool)
@click.option("--interval", type=DURATION, help="100ms to 1h.  [default: 1s]")
@click.option("--count", type=click.IntRange(1), help="End after so many.")
@pass_session
def watch(session: Session, pool: str, interval: float | None, count: int | None) -> None:
    """Pools and classes again and again, until Ctrl-C. Not on a terminal, and as JSON: a line each time."""
    request = admin_pb2.WatchStatsRequest(pool=pool)
    if interval is not None:
        request.interval.FromNanoseconds(round(interval * 1e9))
        request.interval.SetInParent()
    answers = islice(_answers(session, request), count)
    printer = session.printer
    try:
        if not printer.for_people:
            for answer in answers:
                printer.one_of_many(answer)
        elif printer.terminal:
            _live(answers)
        else:
            _lines(printer, answers)
    except KeyboardInterrupt:
        return  # how it is meant to end


def _answers(session: Session, request: admin_pb2.WatchStatsRequest) -> Iterator[admin_pb2.Stats]:
    while True:
        opened = time.monotonic()
        try:
            yield from session.stream("WatchStats", request)
            return
        except Failure as failure:
            # A service that asks for certificates ends connections when they are old, to look at them anew.
            if failure.exit_code != Exit.UNREACHABLE or time.monotonic() - opened < _AGED_S:
                raise


def _live(answers: Iterable[admin_pb2.Stats]) -> None:
    from rich.console import Console, Group
    from rich.live import Live

    with Live(console=Console(highlight=False), auto_refresh=False) as live:
        for answer in answers:
            found = answer.pools
            classes = [_class_row(pool, each) for pool in found for each in pool.classes]
            live.update(
                Group(
                    f"{cells.time(answer, 'time')}  revision {answer.revision}",
                    drawn(POOL_HEADS, map(pool_row, found), POOL_NUMBERS),
                    drawn(_CLASS_HEADS, classes, _CLASS_HEADS[2:]),
                ),
                refresh=True,
            )


def _lines(printer: Printer, answers: Iterable[admin_pb2.Stats]) -> None:
    for answer in answers:
        for pool in answer.pools:
            named = zip(POOL_HEADS[1:], pool_row(pool)[1:], strict=True)
            shown = "  ".join(f"{head.replace(' ', '_')}={text}" for head, text in named)
            printer.line(f"{cells.time(answer, 'time')}  {pool.name}  {shown}")


def _class_row(pool: admin_pb2.Pool, each: admin_pb2.ClassStats) -> tuple[str, ...]:
    return (
        pool.name,
        each.name,
        cells.count(each.queued_count),
        cells.count(each.in_flight_slots),
        cells.count(each.tenant_count),
        cells.duration(each, "oldest_wait"),
    )
