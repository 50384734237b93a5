"""`fairlane top`: its options, and one picture where there is no terminal to look at."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from typing import Any

import click

from extproc.cli.ctl.notation import DURATION
from extproc.cli.ctl.pools import complete_pool
from extproc.cli.ctl.session import Command, Session, connection_options, settings_of
from extproc.cli.top.figures import ORDERS

_INTERVAL_S = 1.0
_FLOWS = 20  # of one picture, and until a screen says how many it has room for
_UNKNOWN_WIDTH = 200  # cells


class _Top(Command):
    """With the options of `fairlane ctl` for the connection, shown in its help, and its ways to end."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        shared = {name for option in connection_options(of_group=False) for name in option.opts}
        self.params = [option for option in self.params if not shared.intersection(option.opts)]
        self.params += [option for option in connection_options(of_group=True) if "--output" not in option.opts]
        self.epilog = "Press ? for the keys. Exit codes: as `fairlane ctl`; 0 for q and Ctrl-C, 128+n for signal n."

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = Session(settings_of(ctx))
        return super().invoke(ctx)


@click.command("top", cls=_Top)
@click.option("--interval", type=DURATION, help="Between two pictures, 100ms to 1h.  [default: 1s]")
@click.option("--pool", default="", shell_complete=complete_pool, help="This pool only.")
@click.option("--sort", type=click.Choice(tuple(ORDERS)), default="queued", show_default=True, help="Flows, by this.")
@click.option("--once", is_flag=True, help="One picture as plain text; also where the output is no terminal.")
@click.option("--ascii", "ascii_only", is_flag=True, help="No other signs; also where the terminal has no UTF-8.")
@click.pass_obj
def top(session: Session, interval: float | None, pool: str, sort: str, once: bool, ascii_only: bool) -> None:
    """Pools, endpoints, classes and who waits, as they are now, in a terminal."""
    from extproc.cli.ctl.connection import Connection
    from extproc.cli.top.bars import Look
    from extproc.cli.top.choices import Choices
    from extproc.cli.top.feed import Wanted, first
    from extproc.cli.top.figures import Seen, order_by
    from extproc.cli.top.live import Watched, run
    from extproc.cli.top.picture import whole
    from extproc.cli.top.terminal import Terminal, can_show, knows_unicode
    from extproc.pb.admin.v1 import admin_pb2 as pb

    def connect() -> Connection:
        return Connection(session.target())

    interval_s = _INTERVAL_S if interval is None else interval
    request = pb.WatchStatsRequest(pool=pool)
    request.interval.FromNanoseconds(round(interval_s * 1e9))
    choices = Choices(sort=sort, down=ORDERS[sort].down)
    look = Look(not ascii_only and knows_unicode(os.environ, getattr(sys.stdout, "encoding", None)))
    address = session.target().address
    asked = Wanted(pool, order_by(choices.sort, choices.down), _FLOWS)
    with closing(connect()) as connection:
        figures = first(connection, request, asked)
    if once or not can_show(os.environ):
        wide = shutil.get_terminal_size((_UNKNOWN_WIDTH, 0)).columns
        for line in whole(Seen(figures, figures.taken_at, interval_s, address), choices, wide, look):
            click.echo(line.plain.rstrip())
        return
    code = run(Watched(connect, request, address), figures, choices, look, Terminal())
    if code:
        sys.exit(code)
