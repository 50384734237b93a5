"""`fairlane ctl`: what operators do with a running service, over its admin API.

Exit codes: 0 done, 1 refused, 2 wrong usage, 3 the service cannot be reached, 4 not allowed, 5 somebody else made a
change meanwhile.
"""

from __future__ import annotations

import click

from extproc.cli.ctl.session import Group, Session, connection_options, settings_of

_COMMANDS = {
    "audit": "history:audit",
    "boost": "traffic:boost",
    "cancel": "cancel:cancel",
    "class": "knobs:class_",
    "completion": "completion:completion",
    "config": "config:config",
    "diff": "history:diff",
    "drain": "traffic:drain",
    "dump": "dump:dump",
    "endpoints": "pools:endpoints",
    "explain": "requests:explain",
    "flows": "requests:flows",
    "history": "history:history",
    "mode": "traffic:mode",
    "pause": "traffic:pause",
    "pool": "pools:pool",
    "pools": "pools:pools",
    "record": "record:record",
    "requests": "requests:requests",
    "resume": "traffic:resume",
    "rollback": "history:rollback",
    "set": "settings:set_",
    "status": "status:status",
    "tenant": "knobs:tenant",
    "unset": "settings:unset",
    "watch": "watch:watch",
}


@click.group(
    "ctl",
    cls=Group,
    places=_COMMANDS,
    params=connection_options(of_group=True),
    epilog="Exit codes: 0 done, 1 refused, 2 wrong usage, 3 cannot be reached, 4 not allowed, 5 changed meanwhile.",
)
@click.pass_context
def ctl(ctx: click.Context) -> None:
    """See and change a running service: its queues, its configuration, what was changed."""
    ctx.obj = Session(settings_of(ctx))
